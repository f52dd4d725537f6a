# SPDX-License-Identifier: Apache-2.0
"""The queued message and the bounds of an egress queue. egress_queue.py holds the messages."""

from collections import deque
from collections.abc import Hashable
from typing import Final

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.uprotocol.umessage import UMessage

CLASSES: Final = 7  # CS0..CS6
WEIGHTS: Final = (1, 2, 4, 8, 16, 32, 64)
"""Messages per class, CS0 to CS6, in one round over all waiting classes: at most 126 others precede one of CS0."""
NEVER_NS: Final = 1 << 62
OVERHEAD_BYTES: Final = 200  # memory of a queued message besides its payload, measured with tracemalloc


class EgressLimits(msgspec.Struct, frozen=True):
    """The bounds of one endpoint's egress queue and its retry times."""

    queue_messages: int = 10_000
    queue_bytes: int = 16_000_000
    retry_first_ms: int = 100
    retry_max_ms: int = 5_000
    max_age_ms: int = 30_000
    """The age limit of messages without ttl, from their reception."""
    spool_messages: int = 100_000
    """Replaces `queue_messages` at a durable endpoint, where `queue_messages` bounds the messages in memory."""
    spool_bytes: int = 256_000_000
    subscriber_messages: int | None = None
    """Maximum for one unicast subscriber; None is half of `queue_messages` or `spool_messages`."""
    subscriber_bytes: int | None = None

    @property
    def per_subscriber(self) -> tuple[int, int]:
        """The bounds in messages and bytes of one subscriber."""
        messages, size = self.subscriber_messages, self.subscriber_bytes
        return (
            max(1, self.queue_messages // 2) if messages is None else messages,
            max(1, self.queue_bytes // 2) if size is None else size,
        )


class QueuedMessage(msgspec.Struct):
    """A message in an egress queue. Times are monotonic ns. It must not be sent after its deadline (DSP-4, DSP-27)."""

    delivery: Delivery
    message: UMessage
    received_ns: int
    size: int
    attempts: int = 0
    first_attempt_ns: int = 0
    last_attempt_ns: int = 0
    deadline_ns: int = NEVER_NS
    """Its deadline, independent of clock steps (`ustreamer.core.delivery.expiry`)."""
    spool_key: bytes | None = None
    """Its key on disk; b"" while the write is pending; None in a queue without spool."""
    header_only: bool = False
    """`message` has only the attributes; the payload is on disk."""
    pinned: bool = False
    """The queue has requested the whole message, so its payload must stay in memory."""
    evicted_by_subscriber_limit: bool = False
    """The bounds of its subscriber caused its eviction, not those of the endpoint."""


def first_of(items: deque[QueuedMessage]) -> list[QueuedMessage]:
    """The first message, if there is one. From any thread: an index is one atomic step, an iterator is two."""
    try:
        return [items[0]]
    except IndexError:
        return []


def stream_key(delivery: Delivery, message: UMessage) -> Hashable:
    """The key of a stream: messages with equal key and class are sent in order of arrival."""
    attributes = message.attributes
    return delivery.subscriber, attributes.source, attributes.sink
