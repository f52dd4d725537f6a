# SPDX-License-Identifier: Apache-2.0
"""The sendable messages of one subscriber queue, in seven priority classes that share the sends by weight."""

from collections import deque
from typing import Final, Protocol

from ustreamer.core.egress.limits import CLASSES, WEIGHTS, QueuedMessage, first_of

_HIGHEST_FIRST: Final = tuple(reversed(range(CLASSES)))


class QueueCounters(Protocol):
    """The endpoint's counters of waiting messages."""

    def count_waiting(self, rank: int, messages: int, size: int) -> None: ...


class WeightedPriorityQueue:
    """A queue with seven classes; each class keeps order of arrival. Not thread-safe.

    Higher classes send first. A flood of one class does not starve another.
    """

    __slots__ = ("_class_bytes", "_classes", "_counters", "_sends_left", "bytes", "messages")

    def __init__(self, counters: QueueCounters) -> None:
        self._counters = counters
        self._sends_left = list(WEIGHTS)
        self._classes: tuple[deque[QueuedMessage], ...] = tuple(deque() for _ in range(CLASSES))
        # Per class, so that a push to a full queue needs no walk through the queue.
        self._class_bytes = [0] * CLASSES
        self.messages = 0
        self.bytes = 0

    def messages_in(self, rank: int) -> int:
        """The number of messages of a class."""
        return len(self._classes[rank])

    def bytes_in(self, rank: int) -> int:
        """The bytes of the messages of a class."""
        return self._class_bytes[rank]

    def heads(self) -> list[QueuedMessage]:
        """The oldest message of each class. From any thread."""
        return [item for items in self._classes for item in first_of(items)]

    def total_below(self, rank: int) -> tuple[int, int]:
        """Messages and bytes of all classes below `rank`."""
        return sum(map(len, self._classes[:rank])), sum(self._class_bytes[:rank])

    def append(self, rank: int, item: QueuedMessage) -> None:
        self._classes[rank].append(item)
        self._count_change(rank, 1, item.size)

    def pop_newest(self, rank: int) -> QueuedMessage:
        """Pop the newest message of a class that is not empty."""
        item = self._classes[rank].pop()
        self._count_change(rank, -1, -item.size)
        return item

    def pop_batch(self, limit: int) -> list[QueuedMessage]:
        """Pop up to `limit` messages, highest class first among those with sends left."""
        for rank in _HIGHEST_FIRST:
            waiting = self._classes[rank]
            if waiting:
                if len(waiting) != self.messages:
                    return self._pop_weighted(limit)
                return self._pop_from_class(rank, limit)  # the usual case: only one class waits
        return []

    def _pop_weighted(self, limit: int) -> list[QueuedMessage]:
        popped: list[QueuedMessage] = []
        sends_left = self._sends_left
        ranks = _HIGHEST_FIRST
        while True:
            for rank in ranks:
                if sends_left[rank] and self._classes[rank]:
                    moved = self._pop_from_class(rank, min(sends_left[rank], limit - len(popped)))
                    sends_left[rank] -= len(moved)
                    popped += moved
                    if len(popped) == limit:
                        return popped
            ranks = tuple(rank for rank in ranks if self._classes[rank])
            if not ranks:
                return popped
            sends_left[:] = WEIGHTS  # all waiting classes have used their sends

    def _pop_from_class(self, rank: int, most: int) -> list[QueuedMessage]:
        """Pop up to `most` messages of a class."""
        waiting, moved, size = self._classes[rank], list[QueuedMessage](), 0
        while waiting and len(moved) < most:
            item = waiting.popleft()
            moved.append(item)
            size += item.size
        self._count_change(rank, -len(moved), -size)
        return moved

    def requeue(self, items: list[QueuedMessage]) -> None:
        """Put popped messages back in their order."""
        for item in reversed(items):
            rank = item.message.attributes.priority_class
            self._classes[rank].appendleft(item)
            self._count_change(rank, 1, item.size)
            # An unsent message uses none of its sends, so the highest class is tried first again.
            self._sends_left[rank] = min(self._sends_left[rank] + 1, WEIGHTS[rank])

    def prepend(self, rank: int, items: deque[QueuedMessage]) -> None:
        """Insert these in their order in front of their class."""
        self._classes[rank].extendleft(reversed(items))
        self._count_change(rank, len(items), sum(each.size for each in items))

    def _count_change(self, rank: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self._class_bytes[rank] += size
        self._counters.count_waiting(rank, messages, size)
