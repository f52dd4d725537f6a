# SPDX-License-Identifier: Apache-2.0
"""What is due next, among many things that change their minds."""

import heapq
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SLACK: Final = 1000


class LazyDeadlineHeap(Generic[K]):
    """Times by which things are due, as a heap that forgets lazily.

    Whatever moves or goes leaves its old time behind; `current` tells those from the valid ones. When they outnumber the
    valid ones the heap is made again, so one that is moved without end cannot make it grow. Any clock, any unit.
    """

    def __init__(
        self, deadline_of: Callable[[K], int | None], all_deadlines: Callable[[], Iterable[tuple[int, K]]]
    ) -> None:
        """`current` is when a thing is due now, `every` all that are; None is for one that is not due at all."""
        self._deadline_of = deadline_of
        self._all_deadlines = all_deadlines
        self._heap: list[tuple[int, int, K]] = []
        self._added = 0  # keeps the keys, which have no order, from being compared
        self._rebuild_size = _SLACK

    def push_deadline(self, when: int, key: K) -> None:
        """Note that `key`, for which `current` says the same by now, is due at `when`."""
        self._added += 1
        heapq.heappush(self._heap, (when, self._added, key))
        if len(self._heap) > self._rebuild_size:
            self.replace_all(self._all_deadlines())

    def replace_all(self, deadlines: Iterable[tuple[int, K]]) -> None:
        """Keep these and forget all others."""
        self._heap = [(when, number, key) for number, (when, key) in enumerate(deadlines)]
        self._added = len(self._heap)
        heapq.heapify(self._heap)
        self._rebuild_size = 2 * len(self._heap) + _SLACK

    def next_deadline(self) -> int | None:
        """When the next thing is due; None if nothing is."""
        while self._heap:
            when, _, key = self._heap[0]
            if self._deadline_of(key) == when:
                return when
            heapq.heappop(self._heap)
        return None

    def pop_before(self, now: int) -> list[K]:
        """Take out what was due before `now`, each once."""
        due: dict[K, None] = {}
        while self._heap and self._heap[0][0] < now:
            _, _, key = heapq.heappop(self._heap)
            when = self._deadline_of(key)
            if when is not None and when < now:
                due[key] = None
        return list(due)

    def __len__(self) -> int:
        return len(self._heap)
