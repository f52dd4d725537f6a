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
        self.messages = 0
        self.bytes = 0

    def push(self, delivery: Delivery, message: UMessage, now_ns: int) -> list[Queued]:
        """Take `message` in; what had to go for it is returned.

        When the queue is full, the youngest of the lowest class below the newcomer's makes room; if there is none, the
        newcomer itself is returned.
        """
        item = Queued(delivery, message, now_ns, len(message.payload) + OVERHEAD_BYTES)
        displaced: list[Queued] = []
        rank = message.attributes.priority_class
        if not self._fits(item):
            if not self._could_fit(item, rank):
                return [item]
            while not self._fits(item):
                displaced.append(self._youngest_below(rank))
        self._classes[rank].append(item)
        self.messages += 1
        self.bytes += item.size
        return displaced

    def _fits(self, item: Queued) -> bool:
        return (
            self.messages < self._limits.queue_messages and self.bytes + item.size <= self._limits.queue_bytes
        )

    def _could_fit(self, item: Queued, rank: int) -> bool:
        lower = [each for waiting in self._classes[:rank] for each in waiting]
        spare = self._limits.queue_bytes - self.bytes + sum(each.size for each in lower)
        return bool(lower) and item.size <= spare

    def _youngest_below(self, rank: int) -> Queued:
        waiting = next(waiting for waiting in self._classes[:rank] if waiting)
        item = waiting.pop()
        self._forget(item)
        return item

    def take(self, limit: int = 1) -> list[Queued]:
        """Take out up to `limit` messages, the most important first."""
        taken: list[Queued] = []
        for waiting in reversed(self._classes):
            while waiting and len(taken) < limit:
                item = waiting.popleft()
                self._forget(item)
                taken.append(item)
        return taken

    def put_back(self, items: list[Queued]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        for item in reversed(items):
            self._classes[item.message.attributes.priority_class].appendleft(item)
            self.messages += 1
            self.bytes += item.size

    def _forget(self, item: Queued) -> None:
        self.messages -= 1
        self.bytes -= item.size

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
