# SPDX-License-Identifier: Apache-2.0
"""Which subscription ends next."""

import heapq
from collections.abc import Callable, Iterable
from typing import Final

from ustreamer_usubscription.tracked import Pair, Tracked

_SLACK: Final = 1000


class Deadlines:
    """The ends of subscriptions, as a heap that forgets lazily.

    A changed or ended subscription leaves its old deadline behind; `current` tells those from the valid ones. When they
    outnumber the valid ones the heap is made again, so a client that renews without end cannot make it grow.
    """

    def __init__(
        self, current: Callable[[Pair], Tracked | None], every: Callable[[], Iterable[Tracked]]
    ) -> None:
        """`current` is what the directory knows of a subscription now, `every` all that it knows."""
        self._current = current
        self._every = every
        self._heap: list[tuple[int, Pair]] = []
        self._bound = _SLACK

    def add(self, entry: Tracked) -> None:
        if entry.expire_ms is None:
            return
        heapq.heappush(self._heap, (entry.expire_ms, entry.pair))
        if len(self._heap) > self._bound:
            self.rebuild()

    def rebuild(self) -> None:
        """Keep one deadline for each subscription that has one."""
        self.load(self._every())

    def load(self, entries: Iterable[Tracked]) -> None:
        """Keep the deadlines of these subscriptions and forget all others."""
        self._heap = [(e.expire_ms, e.pair) for e in entries if e.expire_ms is not None]
        heapq.heapify(self._heap)
        self._bound = 2 * len(self._heap) + _SLACK

    def next_ms(self) -> int | None:
        """The wall-clock time after which a subscription ends; None if none will."""
        while self._heap:
            expire_ms, pair = self._heap[0]
            entry = self._current(pair)
            if entry is not None and entry.expire_ms == expire_ms:
                return expire_ms
            heapq.heappop(self._heap)
        return None

    def pop_expired(self, now_ms: int) -> list[Tracked]:
        """Take out the subscriptions that have ended."""
        ended: dict[Pair, Tracked] = {}
        while self._heap and self._heap[0][0] < now_ms:
            _, pair = heapq.heappop(self._heap)
            entry = self._current(pair)
            if entry is not None and entry.expired(now_ms):
                ended[pair] = entry
        return list(ended.values())

    def __len__(self) -> int:
        return len(self._heap)
