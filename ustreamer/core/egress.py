# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent, bounded by messages and bytes, the important first, retried with growing pauses.

A lane of the host owns one queue, holds its lock, and sends what `take` gives.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from ustreamer.core.chain import Delivery
from ustreamer.uprotocol.uattributes import is_expired
from ustreamer.uprotocol.umessage import UMessage

CLASSES: Final = 7  # CS0..CS6
OVERHEAD_BYTES: Final = 200  # what a queued message occupies beside its payload, measured with tracemalloc


class EgressLimits(msgspec.Struct, frozen=True):
    """How much may wait, how long, and when it is tried again."""

    queue_messages: int = 10_000
    queue_bytes: int = 16_000_000
    retry_first_ms: int = 100
    retry_max_ms: int = 5_000
    max_age_ms: int = 30_000
    """Bound for messages without ttl, from the moment they were received."""


class Queued(msgspec.Struct):
    """A message that waits for its delivery. Times are monotonic ns."""

    delivery: Delivery
    message: UMessage
    received_ns: int
    size: int
    attempts: int = 0
    first_attempt_ns: int = 0
    last_attempt_ns: int = 0


class EgressQueue:
    """A bounded queue in seven priority classes; within a class order of arrival is kept. Not locked."""

    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        self._classes: tuple[deque[Queued], ...] = tuple(deque() for _ in range(CLASSES))
        # By class, so that a full queue need not be walked through for every newcomer.
        self._class_bytes = [0] * CLASSES
        self.messages = 0
        self.bytes = 0

    def use(self, limits: EgressLimits) -> None:
        """Go by other limits; what is in the queue stays until it is taken, or has to make room."""
        self._limits = limits

    def push(self, delivery: Delivery, message: UMessage, now_ns: int, attempts: int = 0) -> list[Queued]:
        """Take `message` in, which was tried `attempts` times just now; what had to go for it is returned.

        When the queue is full, the youngest of the lowest classes below the newcomer's make room; if that is not enough,
        the newcomer itself is returned.
        """
        tried_ns = now_ns if attempts else 0
        size = len(message.payload) + OVERHEAD_BYTES
        item = Queued(delivery, message, now_ns, size, attempts, tried_ns, tried_ns)
        rank = message.attributes.priority_class
        if self._fits(item.size):
            self._append(rank, item)
            return []
        if not self._fits(item.size - sum(self._class_bytes[:rank]), sum(map(len, self._classes[:rank]))):
            return [item]
        displaced = []
        while not self._fits(item.size):
            displaced.append(self._youngest_below(rank))
        self._append(rank, item)
        return displaced

    def _fits(self, size: int, going: int = 0) -> bool:
        """Whether a message adding `size` bytes has room when `going` others leave."""
        limits = self._limits
        return self.messages - going < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _youngest_below(self, rank: int) -> Queued:
        lowest = next(each for each in range(rank) if self._classes[each])
        item = self._classes[lowest].pop()
        self._count(lowest, -1, -item.size)
        return item

    def take(self, limit: int = 1) -> list[Queued]:
        """Take out up to `limit` messages, the most important first."""
        taken: list[Queued] = []
        for rank in reversed(range(CLASSES)):
            waiting = self._classes[rank]
            while waiting and len(taken) < limit:
                item = waiting.popleft()
                self._count(rank, -1, -item.size)
                taken.append(item)
        return taken

    def put_back(self, items: list[Queued]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        for item in reversed(items):
            rank = item.message.attributes.priority_class
            self._classes[rank].appendleft(item)
            self._count(rank, 1, item.size)

    def _append(self, rank: int, item: Queued) -> None:
        self._classes[rank].append(item)
        self._count(rank, 1, item.size)

    def _count(self, rank: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self._class_bytes[rank] += size

    def __len__(self) -> int:
        return self.messages


def is_too_old(item: Queued, limits: EgressLimits, now_ns: int, wall_ms: int) -> bool:
    """Whether the ttl of a message, or `max_age_ms` where it has none, has run out (DSP-4, DSP-27)."""
    ttl = item.message.attributes.ttl
    if ttl:
        return is_expired(item.message.id.time_ms, ttl, wall_ms)
    return now_ns - item.received_ns > limits.max_age_ms * 1_000_000


def retry_delay_ns(limits: EgressLimits, failures: int, rng: Callable[[], float]) -> int:
    """How long to wait after the nth failure in a row: doubled each time up to the limit, and jittered by 0.5-1.0.

    The jitter (`rng` gives 0..1) keeps many gateways from knocking at a returning peer in step.
    """
    doubled = min(limits.retry_max_ms, limits.retry_first_ms << min(failures - 1, 20))
    return round(doubled * (0.5 + rng() / 2) * 1_000_000)
