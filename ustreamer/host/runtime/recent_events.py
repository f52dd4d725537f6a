# SPDX-License-Identifier: Apache-2.0
"""What happened lately, with the time: link changes, stopped topics, dead letters, log lines.

In: notifications of the streamer and records of the log. Out: bounded snapshots for reports (`ustreamer why`, `top`).
Nothing here is called for a message that is delivered.
"""

import logging
from collections import deque
from collections.abc import Mapping
from threading import Lock
from typing import Final

from ustreamer.core.egress.dead_letter import DeadLetter
from ustreamer.host.diagnosis.recent import RecentLetters, RecentLogLine
from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

MAX_KINDS: Final = 512
"""Kinds of dead letters (source, sink, endpoint, code) that are remembered."""
MAX_STOPS: Final = 1_024
MAX_LINES: Final = 200
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_MAX_TEXT: Final = 300
_ROOT_LOGGER: Final = "ustreamer"

_Kind = tuple[UUri, UUri | None, str, UCode]


class RecentEvents:
    """The latest events of one streamer. From any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._link_ms: dict[str, int] = {}
        self._peers_ms: dict[str, int] = {}
        self._stop_ms: BoundedCache[UUri, int] = BoundedCache(MAX_STOPS)
        self._letters: BoundedCache[_Kind, RecentLetters] = BoundedCache(MAX_KINDS)

    def on_link_change(self, endpoint: str, now_ms: int) -> None:
        """The link of an endpoint was lost, or it is up again after a loss."""
        self._link_ms[endpoint] = now_ms

    def on_peers_changed(self, endpoint: str, now_ms: int) -> None:
        self._peers_ms[endpoint] = now_ms

    def on_stopped(self, topic: UUri, now_ms: int) -> None:
        """A subscriber has stopped or started the dispatch of `topic`, an address or a pattern."""
        with self._lock:
            self._stop_ms.add(topic, now_ms)

    def on_letter(self, letter: DeadLetter) -> None:
        """Count a dead letter by its kind: 1 us, next to 40 us for the letter itself."""
        attributes = letter.message.attributes
        kind = (attributes.source, attributes.sink, letter.endpoint, letter.status.code)
        with self._lock:
            before = self._letters.pop(kind, None) or RecentLetters(*kind, "", "", 0, 0, 0, 0, 0)
            self._letters.add(kind, before.with_letter(letter))

    def link_times(self) -> Mapping[str, int]:
        """By endpoint, when its link was lost or came up last, in ms since the epoch."""
        return dict(self._link_ms)

    def peer_times(self) -> Mapping[str, int]:
        """By endpoint, when its peers changed last."""
        return dict(self._peers_ms)

    def stop_time(self, topic: UUri) -> int | None:
        """When the dispatch of `topic`, or of a pattern over it, was stopped or started last."""
        with self._lock:
            return max((at_ms for each, at_ms in self._stop_ms.items() if each.matches(topic)), default=None)

    def letters(self) -> list[RecentLetters]:
        """The kinds of dead letters, the latest last."""
        with self._lock:
            return list(self._letters.values())


class RecentLog(logging.Handler):
    """The latest warnings and errors of the log, for reports."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._lines: deque[RecentLogLine] = deque(maxlen=MAX_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            name: _text_of(value)
            for name, value in vars(record).items()
            if name not in _STANDARD and name != "limited"
        }
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] = _text_of(repr(record.exc_info[1]))
        self._lines.append(
            RecentLogLine(int(record.created * 1000), record.levelname.lower(), record.getMessage(), fields)
        )

    def lines(self) -> tuple[RecentLogLine, ...]:
        """The lines, oldest first. From any thread."""
        return tuple(self._lines)


def recent_log() -> RecentLog:
    """The recent log of this process, which begins with the first call."""
    root = logging.getLogger(_ROOT_LOGGER)
    for each in root.handlers:
        if isinstance(each, RecentLog):
            return each
    created = RecentLog()
    root.addHandler(created)
    return created


def _text_of(value: object) -> str:
    try:
        return str(value)[:_MAX_TEXT]
    except Exception:  # noqa: BLE001  # a report must not fail because of a value in the log
        return object.__repr__(value)
