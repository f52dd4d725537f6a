# SPDX-License-Identifier: Apache-2.0
"""Which of many things is due next: one deadline per key, asked for and never started."""

import heapq
import itertools
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 64  # stale deadlines that are not worth tidying up


class KeyedDeadlines(Generic[K]):
    """Deadlines (monotonic ns) by key. As many as there are keys; a stale one is tidied up in time. Not locked."""

    def __init__(self) -> None:
        self._entries: dict[K, tuple[int, int]] = {}
        # A deadline that was moved stays in the heap until it comes up: taking it out would cost a search.
        self._heap: list[tuple[int, int, K]] = []
        self._serials = itertools.count()

    def schedule(self, key: K, at_ns: int) -> None:
        """Make `key` due at `at_ns`, in place of what it was."""
        serial = next(self._serials)
        self._entries[key] = (at_ns, serial)
        heapq.heappush(self._heap, (at_ns, serial, key))
        self._compact()

    def schedule_earlier(self, key: K, at_ns: int) -> None:
        """Make `key` due at `at_ns` unless it is due before."""
        known = self._entries.get(key)
        if known is None or at_ns < known[0]:
            self.schedule(key, at_ns)

    def cancel(self, key: K) -> None:
        """Forget `key`, if it is there."""
        if self._entries.pop(key, None) is not None:
            self._compact()

    def pop_due(self, now_ns: int) -> K | None:
        """Take out the first key that is due. One at a time, because what is done about one may cancel another."""
        at_ns = self.next_ns
        if at_ns is None or at_ns > now_ns:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._entries[key]
        return key

    def first_due(self, now_ns: int) -> K | None:
        """The first key that is due; it stays."""
        at_ns = self.next_ns
        return None if at_ns is None or at_ns > now_ns else self._heap[0][2]

    @property
    def next_ns(self) -> int | None:
        """When the next key is due; None if there is none."""
        while self._heap:
            at_ns, serial, key = self._heap[0]
            if self._entries.get(key) == (at_ns, serial):
                return at_ns
            heapq.heappop(self._heap)
        return None

    def _compact(self) -> None:
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = [(at_ns, serial, key) for key, (at_ns, serial) in self._entries.items()]
            heapq.heapify(self._heap)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def __len__(self) -> int:
        return len(self._entries)
