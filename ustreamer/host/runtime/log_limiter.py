# SPDX-License-Identifier: Apache-2.0
"""Limits the log lines that remote hosts can cause, so that no host fills the disk or hides other lines.

In: every record of the log, and the time. Out: the records to write now, and the number of those never written.

    line of                     written                                                limit
    one event about one thing   the first one at once, then the last one in PAUSE_NS   1 in PAUSE_NS
    one event about anything    EVENT_BURST at once, then one in EVENT_NS              1 in EVENT_NS

The last line about a thing is written some seconds late, so the log ends with the state that holds. Above MAX_TRACKED
things the oldest is forgotten, and its waiting line is counted as left out. A written line has the field `suppressed`:
how many lines of its event were left out before it.
"""

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

import msgspec

from ustreamer.core.base.log_limit import LIMITED

PAUSE_NS: Final = 2_000_000_000
EVENT_BURST: Final = 250
EVENT_NS: Final = 1_000_000_000
MAX_TRACKED: Final = 1024
"""Pairs of event and thing that are remembered, with one waiting record each."""


class _Tracked(msgspec.Struct):
    """`next_ns` is the earliest time of the next line; `waiting` is the record that waits for it."""

    next_ns: int = 0
    waiting: logging.LogRecord | None = None


class LogLimiter(logging.Filter):
    """A filter of a handler. Records without the mark of `log_limit.limited` pass. Safe from any thread."""

    def __init__(self, monotonic_ns: Callable[[], int]) -> None:
        super().__init__()
        self._monotonic_ns = monotonic_ns
        self._lock = Lock()
        self._tracked: OrderedDict[tuple[str, ...], _Tracked] = OrderedDict()
        self._full_ns: dict[str, int] = {}
        """When the allowance of an event is full again; each line takes EVENT_NS of it."""
        self._suppressed: Counter[str] = Counter()
        self._unreported: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write `record` now. If not, it waits for `pop_due`, or for a newer one that replaces it."""
        about = vars(record).pop(LIMITED, None)
        if about is None:
            return True
        now_ns = self._monotonic_ns()
        key = (record.msg, *map(str, about))
        with self._lock:
            tracked = self._track(key)
            if tracked.waiting is not None:
                self._suppress(record.msg)
            if now_ns >= tracked.next_ns and self._admit(record, now_ns):
                tracked.next_ns, tracked.waiting = now_ns + PAUSE_NS, None
                return True
            tracked.waiting = record
            return False

    def _track(self, key: tuple[str, ...]) -> _Tracked:
        tracked = self._tracked.setdefault(key, _Tracked())
        self._tracked.move_to_end(key)
        if len(self._tracked) > MAX_TRACKED:
            (event, *_), oldest = self._tracked.popitem(last=False)
            if oldest.waiting is not None:
                self._suppress(event)
        return tracked

    def _suppress(self, event: str) -> None:
        self._suppressed[event] += 1
        self._unreported[event] += 1

    def _admit(self, record: logging.LogRecord, now_ns: int) -> bool:
        """Take a line from the allowance of the event; False if none is left."""
        full_ns = max(self._full_ns.get(record.msg, 0), now_ns) + EVENT_NS
        if full_ns - now_ns > EVENT_BURST * EVENT_NS:
            return False
        self._full_ns[record.msg] = full_ns
        if left_out := self._unreported.pop(record.msg, 0):
            vars(record)["suppressed"] = left_out
        return True

    def pop_due(self, *, at_end: bool = False) -> list[logging.LogRecord]:
        """The waiting records to write now, oldest first; `at_end` also those that are not due."""
        now_ns = self._monotonic_ns()
        due = []
        with self._lock:
            waiting = [each for each in self._tracked.values() if each.waiting is not None]
            for each in sorted(waiting, key=_created):
                record = each.waiting
                if record is not None and (at_end or now_ns >= each.next_ns) and self._admit(record, now_ns):
                    each.next_ns, each.waiting = now_ns + PAUSE_NS, None
                    due.append(record)
        return due

    def suppressed(self) -> Mapping[str, int]:
        """The number of lines that were never written, by event."""
        with self._lock:
            return dict(self._suppressed)


def _created(tracked: _Tracked) -> float:
    return 0.0 if tracked.waiting is None else tracked.waiting.created
