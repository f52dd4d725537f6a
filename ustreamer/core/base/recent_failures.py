# SPDX-License-Identifier: Apache-2.0
"""What was refused or failed lately, by kind, subject and peer, with its times: for diagnosis.

In: each failure, as it is counted. Out: bounded records. A failure costs about 0.5 us; nothing here is called for a message
that is accepted.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

import msgspec

CURRENT_MS: Final = 60_000
"""A failure of the last minute is a present problem. After a minute without one, a new series begins."""
MAX_RECORDS: Final = 256
_REFUSED: Final = "refused_"
_MIN_PAUSE_MS: Final = 1_000
_PAUSES: Final = 3


def series_goes_on(count: int, first_ms: int, last_ms: int, now_ms: int) -> bool:
    """Whether the next one of `count` events may still come: three mean intervals, and at least 1 s, are not over."""
    interval_ms = (last_ms - first_ms) / max(1, count - 1)
    return now_ms - last_ms <= min(CURRENT_MS, max(_MIN_PAUSE_MS, _PAUSES * interval_ms))


class RecentFailure(msgspec.Struct, frozen=True):
    """A series of failures of one kind. Times are ms since the epoch. `peer` and `detail` can be empty.

    `kind` is the reason of a counter `refused_<reason>`, or one that the transport documents.
    """

    kind: str
    count: int
    first_ms: int
    last_ms: int
    peer: str = ""
    detail: str = ""

    def is_current(self, now_ms: int) -> bool:
        """Whether the last one was within `CURRENT_MS`."""
        return now_ms - self.last_ms <= CURRENT_MS

    def goes_on(self, now_ms: int) -> bool:
        """Whether the next one may still come, by the mean interval of the series."""
        return series_goes_on(self.count, self.first_ms, self.last_ms, now_ms)


_Key = tuple[str, Hashable, str, object]
"""Kind, subject, peer, detail."""


class _Series(msgspec.Struct):
    count: int
    first_ms: int
    last_ms: int

    def add(self, count: int, now_ms: int) -> None:
        if now_ms - self.last_ms > CURRENT_MS:
            self.count, self.first_ms = 0, now_ms
        self.count += count
        self.last_ms = now_ms


class RecentFailures:
    """The failures of one endpoint: `MAX_RECORDS`, those that ended first are forgotten. From any thread."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._series: OrderedDict[_Key, _Series] = OrderedDict()
        self._lock = Lock()

    def add(
        self, kind: str, about: Hashable = None, peer: str = "", detail: object = "", *, count: int = 1
    ) -> None:
        """Count a failure about `about`; None if that is unknown. The detail becomes text when it is read."""
        key = (kind, about, peer, detail)
        now_ms = self._wall_ms()
        with self._lock:
            series = self._series.get(key)
            if series is None:
                self._series[key] = _Series(count, now_ms, now_ms)
                if len(self._series) > MAX_RECORDS:
                    self._series.popitem(last=False)
            else:
                series.add(count, now_ms)
                self._series.move_to_end(key)

    def about(self, *subjects: Hashable) -> list[RecentFailure]:
        """The failures about each of `subjects`, the latest last."""
        with self._lock:
            return [
                RecentFailure(kind, each.count, each.first_ms, each.last_ms, peer, str(detail))
                for (kind, about, peer, detail), each in self._series.items()
                if about in subjects
            ]


def refusals_of(counters: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """The reasons and counts of the counters `refused_<reason>`."""
    return (
        (name.removeprefix(_REFUSED), count) for name, count in counters.items() if name.startswith(_REFUSED)
    )


class RisingCounters:
    """Failures of an endpoint by its counters alone, which are read about once a second. From any thread."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._failures = RecentFailures(wall_ms)
        self._before: dict[tuple[str, str], int] = {}
        self._lock = Lock()

    def observe(self, endpoint: str, counts: Iterable[tuple[str, int]]) -> None:
        """Take the counters of an endpoint by kind. They begin at 0."""
        with self._lock:
            for kind, count in counts:
                rise = count - self._before.get((endpoint, kind), 0)
                if rise:
                    self._before[endpoint, kind] = count
                if rise > 0:
                    self._failures.add(kind, endpoint, count=rise)

    def about(self, endpoint: str) -> list[RecentFailure]:
        return self._failures.about(endpoint)
