# SPDX-License-Identifier: Apache-2.0
"""The next of many deadlines: one deadline per key goes in, keys whose time has come go out.

Pure: callers pass the time and poll for due keys. There are no callbacks.
"""

from collections.abc import Hashable, Iterable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_MAX_STALE: Final = 64  # stale heap entries that are not worth a rebuild


class DeadlineQueue(Generic[K]):
    """Keys by deadline, in any clock and unit; keys of one deadline in the order of scheduling. Not locked.

    A moved or cancelled key leaves its old entry in the heap, because removal would need a search. The heap is rebuilt
    when stale entries outnumber valid ones, so a key that moves without end does not make it grow.
    """

    def __init__(self, deadlines: Iterable[tuple[int, K]] = ()) -> None:
        """`deadlines` are pairs of deadline and key, each key once."""
        self._order = count()  # also keeps keys, which may have no order, from being compared
        self._heap = [(at, next(self._order), key) for at, key in deadlines]
        self._entries = {entry[2]: entry for entry in self._heap}  # the valid entry of each key
        heapify(self._heap)

    def schedule(self, key: K, at: int) -> None:
        """Make `key` due at `at`, in place of its earlier deadline."""
        entry = self._entries[key] = (at, next(self._order), key)
        heap = self._heap
        heappush(heap, entry)
        if len(heap) > 2 * len(self._entries) + _MAX_STALE:
            self._rebuild()

    def schedule_earlier(self, key: K, at: int) -> None:
        """Make `key` due at `at` unless it is due earlier."""
        known = self._entries.get(key)
        if known is None or at < known[0]:
            self.schedule(key, at)

    def cancel(self, key: K) -> None:
        """Remove the deadline of `key`, if there is one."""
        if self._entries.pop(key, None) is not None and len(self._heap) > 2 * len(self._entries) + _MAX_STALE:
            self._rebuild()

    def pop_due(self, now: int) -> K | None:
        """Remove and return the first due key. One at a time, because the handling of one key may cancel another."""
        at = self.next_due
        if at is None or at > now:
            return None
        key = heappop(self._heap)[2]
        del self._entries[key]
        return key

    def pop_all_due(self, now: int) -> list[K]:
        """Remove and return all due keys, in order."""
        keys = []
        while (key := self.pop_due(now)) is not None:
            keys.append(key)
        return keys

    def first_due(self, now: int) -> K | None:
        """The first due key, without removal."""
        at = self.next_due
        return None if at is None or at > now else self._heap[0][2]

    @property
    def next_due(self) -> int | None:
        """The earliest deadline; None if there is none."""
        heap, entries = self._heap, self._entries
        while heap:
            entry = heap[0]
            if entries.get(entry[2]) is entry:
                return entry[0]
            heappop(heap)
        return None

    def _rebuild(self) -> None:
        self._heap = list(self._entries.values())
        heapify(self._heap)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
