# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent, how much of it may, and when it is tried again. `egress_queue` has where it waits."""

from collections.abc import Callable, Hashable
from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.uprotocol.umessage import UMessage

CLASSES: Final = 7  # CS0..CS6
WEIGHTS: Final = (1, 2, 4, 8, 16, 32, 64)
"""What each class, CS0 to CS6, may send before all that wait have had their turn: at most 126 others are before CS0."""
NEVER_NS: Final = 1 << 62
OVERHEAD_BYTES: Final = 200  # what a queued message occupies beside its payload, measured with tracemalloc


class EgressLimits(msgspec.Struct, frozen=True):
    """How much may wait, how long, and when it is tried again."""

    queue_messages: int = 10_000
    queue_bytes: int = 16_000_000
    retry_first_ms: int = 100
    retry_max_ms: int = 5_000
    max_age_ms: int = 30_000
    """Bound for messages without ttl, from the moment they were received."""
    spool_messages: int = 100_000
    """In place of `queue_messages` where an endpoint is durable; that is then what may be in memory."""
    spool_bytes: int = 256_000_000
    subscriber_messages: int | None = None
    """Of `queue_messages`, or `spool_messages`, how many may wait for one subscriber of a unicast transport; None: half."""
    subscriber_bytes: int | None = None

    @property
    def per_subscriber(self) -> tuple[int, int]:
        """How many messages and bytes may wait for one subscriber."""
        messages, size = self.subscriber_messages, self.subscriber_bytes
        return (
            max(1, self.queue_messages // 2) if messages is None else messages,
            max(1, self.queue_bytes // 2) if size is None else size,
        )


class QueuedMessage(msgspec.Struct):
    """A message that waits for its delivery. Times are monotonic ns. After its deadline it must not be sent (DSP-4, DSP-27)."""

    delivery: Delivery
    message: UMessage
    received_ns: int
    size: int
    attempts: int = 0
    first_attempt_ns: int = 0
    last_attempt_ns: int = 0
    deadline_ns: int = NEVER_NS
    """Until when it may wait; no leap of the wall clock moves it (`ustreamer.core.delivery.expiry`)."""
    spool_key: bytes | None = None
    """Its key on disk, b"" while it is on its way there; None in a lane that keeps nothing."""
    header_only: bool = False
    """`message` has the attributes only; the rest is on disk."""
    pinned: bool = False
    """Its lane has asked for the whole message, so that it must not become absent."""
    evicted_by_subscriber_limit: bool = False
    """It had to go because of the bounds of its subscriber, not of those of the endpoint."""


def stream_key(delivery: Delivery, message: UMessage) -> Hashable:
    """What keeps its order of arrival within a class, whatever becomes of other messages."""
    attributes = message.attributes
    return delivery.subscriber, attributes.source, attributes.sink


def retry_delay_ns(limits: EgressLimits, failures: int, rng: Callable[[], float]) -> int:
    """How long to wait after the nth failure in a row: doubled each time up to the limit, and jittered by 0.5-1.0.

    The jitter (`rng` gives 0..1) keeps many gateways from knocking at a returning peer in step.
    """
    doubled = min(limits.retry_max_ms, limits.retry_first_ms << min(failures - 1, 20))
    return round(doubled * (0.5 + rng() / 2) * 1_000_000)
