# SPDX-License-Identifier: Apache-2.0
"""Messages of a durable queue that are not on disk yet. They are in memory only, so memory limits apply."""

from collections.abc import Iterator
from typing import Final

from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.uprotocol.uuri import UUri

_NO_MESSAGES: Final = 0, 0


class WriteBuffer:
    """Messages in order of arrival. One subscriber may have at most half of the capacity. Not thread-safe."""

    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        # By identity: one message may wait for two subscribers.
        self._items: dict[int, QueuedMessage] = {}
        self._bytes = 0
        self._by_subscriber: dict[UUri, tuple[int, int]] = {}

    def set_limits(self, limits: EgressLimits) -> None:
        self._limits = limits

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[QueuedMessage]:
        return iter(self._items.values())

    def has_room(self, size: int) -> bool:
        """Whether a message of `size` bytes fits into `queue_messages` and `queue_bytes`."""
        limits = self._limits
        return len(self._items) < limits.queue_messages and self._bytes + size <= limits.queue_bytes

    def has_room_for_subscriber(self, subscriber: UUri | None, size: int) -> bool:
        """Whether the message fits into the half that one subscriber may use."""
        if subscriber is None:
            return True
        messages, waiting = self._by_subscriber.get(subscriber, _NO_MESSAGES)
        limits = self._limits
        return messages < max(1, limits.queue_messages // 2) and waiting + size <= max(
            1, limits.queue_bytes // 2
        )

    def message_count_for(self, subscriber: UUri) -> int:
        """Messages that wait for one subscriber."""
        return self._by_subscriber.get(subscriber, _NO_MESSAGES)[0]

    def add_message(self, item: QueuedMessage) -> None:
        self._items[id(item)] = item
        self._update_counts(item, 1, item.size)

    def remove_message(self, item: QueuedMessage) -> bool:
        """Remove one message; returns whether it was present."""
        if self._items.pop(id(item), None) is None:
            return False
        self._update_counts(item, -1, -item.size)
        return True

    def peek_batch(self, limit: int, size: int) -> list[QueuedMessage]:
        """The oldest messages: at most `limit`, and at most `size` bytes in total, but at least one."""
        batch: list[QueuedMessage] = []
        for item in self._items.values():
            size -= item.size
            if len(batch) == limit or (batch and size < 0):
                break
            batch.append(item)
        return batch

    def _update_counts(self, item: QueuedMessage, messages: int, size: int) -> None:
        self._bytes += size
        subscriber = item.delivery.subscriber
        if subscriber is None:
            return
        before, waiting = self._by_subscriber.get(subscriber, _NO_MESSAGES)
        self._by_subscriber[subscriber] = before + messages, waiting + size
        if not before + messages:
            del self._by_subscriber[subscriber]
