# SPDX-License-Identifier: Apache-2.0
"""Counts samples below `up/` whose keys have another number of chunks than those of a uProtocol message.

A subscription of messages matches keys with 11 chunks only. So a node with the older layout, in which type and instance
are one chunk, would stay unnoticed. Zenoh sends samples only to matching subscriptions, so each length needs its own.

In: samples, on threads of Zenoh. Out: counters, and one event in the log for each kind.

Any node may put any key. Of each kind about 1 000 samples are counted. The subscriptions then end, and Zenoh sends no
more of these samples to this process. The paths of messages are not touched.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from functools import partial
from threading import Lock
from typing import Final

import zenoh
from zenoh.handlers import Callback

log = logging.getLogger("ustreamer.zenoh")

MAX_COUNTED: Final = 1_000
"""Samples of a kind after which its subscriptions end. Samples that are on their way are counted too."""

_CHUNKS: Final = 11
_OLDER_CHUNKS: Final = 9
_MAX_KEY_CHARACTERS: Final = 200  # a key in the log; Zenoh allows 65 535 bytes


class ForeignKeyKind(StrEnum):
    """The kinds of keys that are not the key of a message."""

    OLDER_LAYOUT = "older_layout"
    OTHER_LAYOUT = "other_layout"


def _key_expression(chunks: int) -> str:
    return "up" + "/*" * (chunks - 1)


KEY_EXPRESSIONS: Final = {
    ForeignKeyKind.OLDER_LAYOUT: (_key_expression(_OLDER_CHUNKS),),
    ForeignKeyKind.OTHER_LAYOUT: (
        *(_key_expression(chunks) for chunks in range(2, _CHUNKS) if chunks != _OLDER_CHUNKS),
        f"{_key_expression(_CHUNKS + 1)}/**",
    ),
}
"""Together they match each key below `up/` that does not have 11 chunks, once."""

_LAYOUT: Final = "up/ and twice authority/type/instance/version/resource"
_WHY: Final = {
    ForeignKeyKind.OLDER_LAYOUT: f"9 chunks as in the older layout, where type and instance are one; expected {_LAYOUT}",
    ForeignKeyKind.OTHER_LAYOUT: f"a number of chunks of no known layout, expected 11: {_LAYOUT}",
}


class ForeignKeys:
    """The subscriptions of foreign keys at one endpoint, and the number of samples of each kind."""

    def __init__(self, endpoint: str, run_later: Callable[[Callable[[], None]], None]) -> None:
        """`run_later` runs a task on another thread: a thread of Zenoh must not end its own subscription."""
        self._endpoint = endpoint
        self._run_later = run_later
        self._lock = Lock()  # a leaf lock; each link has its own thread of Zenoh
        self._counts = dict.fromkeys(ForeignKeyKind, 0)
        self._subscribers: dict[ForeignKeyKind, list[zenoh.Subscriber[None]]] = {}

    def start(self, session: zenoh.Session) -> None:
        """Declare the subscribers: 0.1 to 1.3 ms for all. Raises zenoh.ZError if the session is closed."""
        for kind, expressions in KEY_EXPRESSIONS.items():
            callback = partial(self._on_sample, kind)
            self._subscribers[kind] = [
                session.declare_subscriber(
                    each, Callback(callback, indirect=False), allowed_origin=zenoh.Locality.REMOTE
                )
                for each in expressions
            ]

    def stop(self) -> None:
        """Undeclare all subscribers. May be repeated."""
        for kind in ForeignKeyKind:
            self._undeclare(kind)

    def counters(self) -> dict[str, int]:
        with self._lock:
            return {f"refused_key_{kind}": count for kind, count in self._counts.items()}

    def _on_sample(self, kind: ForeignKeyKind, sample: zenoh.Sample) -> None:
        """Called on a thread of Zenoh."""
        with self._lock:
            self._counts[kind] += 1
            count = self._counts[kind]
        if count == 1:
            extra = {"endpoint": self._endpoint, "kind": kind, "key": _printable(str(sample.key_expr))}
            log.warning("zenoh.foreign_key", extra={**extra, "why": _WHY[kind]})
        elif count == MAX_COUNTED:
            self._run_later(partial(self._undeclare, kind))

    def _undeclare(self, kind: ForeignKeyKind) -> None:
        with self._lock:
            subscribers = self._subscribers.pop(kind, [])
        for each in subscribers:
            with suppress(zenoh.ZError):  # the session is closed
                each.undeclare()  # type: ignore[no-untyped-call]


def _printable(key: str) -> str:
    """The begin of a key in quotes, with escapes for everything but printable ASCII."""
    return ascii(key[:_MAX_KEY_CHARACTERS]) + ("..." if len(key) > _MAX_KEY_CHARACTERS else "")
