# SPDX-License-Identifier: Apache-2.0
"""Deadlines that move often: keys and times in, due keys out."""

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 1000


class LazyDeadlineHeap(Generic[K]):
    """A heap of deadlines with lazy removal.

    A key that moves or leaves keeps its old entry in the heap; `deadline_of` identifies stale entries. The heap is
    rebuilt when they outnumber the valid ones, which bounds its size. Any clock, any unit.
    """

    def __init__(
        self, deadline_of: Callable[[K], int | None], all_deadlines: Callable[[], Iterable[tuple[int, K]]]
    ) -> None:
        """`deadline_of`: the deadline of a key, None if it has none. `all_deadlines`: every key with a deadline."""
        self._deadline_of = deadline_of
        self._all_deadlines = all_deadlines
        self._heap: list[tuple[int, int, K]] = []
        self._added = 0  # a tie-break: keys have no order
        self._rebuild_size = _SLACK

    def push_deadline(self, when: int, key: K) -> None:
        """Add the deadline `when` of `key`; `deadline_of` returns the same."""
        self._added += 1
        heapq.heappush(self._heap, (when, self._added, key))
        if len(self._heap) > self._rebuild_size:
            self.replace_all(self._all_deadlines())

    def replace_all(self, deadlines: Iterable[tuple[int, K]]) -> None:
        """Replace all deadlines."""
        self._heap = [(when, number, key) for number, (when, key) in enumerate(deadlines)]
        self._added = len(self._heap)
        heapq.heapify(self._heap)
        self._rebuild_size = 2 * len(self._heap) + _SLACK

    def next_deadline(self) -> int | None:
        """The next deadline; None if there is none."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._deadline_of(key) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def pop_before(self, now: int) -> list[K]:
        """Remove and return the keys due before `now`, each once."""
        due: dict[K, None] = {}
        while self._heap and self._heap[0][0] < now:
            _, _, key = heapq.heappop(self._heap)
            when = self._deadline_of(key)
            if when is not None and when < now:
                due[key] = None
        return list(due)

    def __len__(self) -> int:
        return len(self._heap)
