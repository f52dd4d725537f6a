# SPDX-License-Identifier: Apache-2.0
"""Sent messages of a durable queue that may not have arrived. They stay on disk until the transport releases them.

In: messages with the route on which they were sent (`add`), and routes whose messages have arrived, or were sent again
and have arrived (`release`). Out: batches to write (`peek_batch`), and keys to delete (`pop_obsolete`).

A Request leaves the disk before its Response is dispatched: `release_request`, then wait until `has_request` is false.
"""

from collections.abc import Collection, Hashable, Sequence
from typing import Final

from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

_UNWRITTEN: Final = b""


class SentRecord:
    """A sent message; `item` is None when it is on disk at `key`."""

    __slots__ = ("is_released", "item", "key", "size")

    def __init__(self, item: QueuedMessage) -> None:
        self.item: QueuedMessage | None = item
        self.size = item.size
        self.key = _UNWRITTEN
        self.is_released = False


class SentRecords:
    """The sent messages by route, at most `spool_messages` and `spool_bytes`. Not thread-safe."""

    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        self._by_route: dict[Hashable, dict[UUID, SentRecord]] = {}
        self._unwritten: dict[SentRecord, None] = {}
        self._obsolete: list[bytes] = []
        self._being_written: set[SentRecord] = set()
        self._requests: dict[UUID, SentRecord] = {}
        """The Requests that are or will be on disk, until their deletion."""
        self._messages = self._bytes = 0
        self.refused = 0
        """Messages above the limits, which are not on disk: a kill loses them, if they have not arrived."""

    def set_limits(self, limits: EgressLimits) -> None:
        self._limits = limits

    def __len__(self) -> int:
        return self._messages

    @property
    def has_work(self) -> bool:
        """Whether there is something to write or to delete."""
        return bool(self._unwritten or self._obsolete)

    @property
    def unwritten_count(self) -> int:
        """The number of messages that are not on disk yet."""
        return len(self._unwritten)

    def ids(self) -> list[UUID]:
        """The ids of all messages, once for each route."""
        return [id for records in self._by_route.values() for id in records]

    def unwritten(self, ids: Collection[UUID]) -> list[QueuedMessage]:
        """The messages with these ids that are not on disk yet, each once."""
        items = (each.item for each in self._unwritten)
        found = {item.message.id: item for item in items if item is not None and item.message.id in ids}
        return list(found.values())

    def on_disk(self) -> list[tuple[UUID, bytes]]:
        """The ids of the messages on disk, with their keys; once for each route."""
        records = (each for records in self._by_route.values() for each in records.items())
        return [(id, record.key) for id, record in records if record.key]

    def add(self, route: Hashable, items: Sequence[QueuedMessage]) -> list[UUID]:
        """Add messages that were sent on `route`, in order. Those that it has already are ignored.

        Returns the ids of those that it has now; the others are above the limits.
        """
        records = self._by_route.setdefault(route, {})
        for item in items:
            if item.message.id in records:
                continue
            if (
                self._messages >= self._limits.spool_messages
                or self._bytes + item.size > self._limits.spool_bytes
            ):
                self.refused += 1
                continue
            record = records[item.message.id] = SentRecord(item)
            self._unwritten[record] = None
            if item.message.attributes.type is UMessageType.REQUEST:
                self._requests[item.message.id] = record
            self._messages += 1
            self._bytes += record.size
        return [item.message.id for item in items if item.message.id in records]

    def find(self, route: Hashable, id: UUID) -> SentRecord | None:
        """The record of a message. From any thread: then its `item` is to be read before its `key`."""
        return self._by_route.get(route, {}).get(id)

    def is_on_disk(self, id: UUID) -> bool:
        return any(id in records and records[id].key for records in self._by_route.values())

    @property
    def has_requests(self) -> bool:
        """Whether a Request is or will be on disk."""
        return bool(self._requests)

    def has_request(self, id: UUID) -> bool:
        """Whether this Request is or will be on disk."""
        return id in self._requests

    def release_request(self, id: UUID) -> None:
        """Forget this Request, as `release`."""
        for route in self._by_route:
            self.release(route, [id])

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> None:
        """Forget the messages of a route, or those with `ids`; their records become obsolete."""
        records = self._by_route.pop(route, {}) if ids is None else self._by_route.get(route, {})
        for id in list(records) if ids is None else ids:
            record = records.pop(id, None)
            if record is None:  # it was above the limits
                continue
            record.is_released = True
            self._messages -= 1
            self._bytes -= record.size
            self._unwritten.pop(record, None)
            if record.key:
                self._obsolete.append(record.key)
            elif record not in self._being_written:
                self._requests.pop(id, None)

    def peek_batch(self, limit: int, size: int) -> list[tuple[SentRecord, QueuedMessage]]:
        """The oldest unwritten messages: at most `limit` and `size` bytes, but at least one."""
        batch: list[tuple[SentRecord, QueuedMessage]] = []
        for record in self._unwritten:
            size -= record.size
            if len(batch) == limit or (batch and size < 0):
                break
            assert record.item is not None
            batch.append((record, record.item))
        self._being_written = {record for record, _ in batch}
        return batch

    def on_written(self, record: SentRecord, key: bytes) -> None:
        """The record is on disk. If it was released meanwhile, it is obsolete."""
        self._unwritten.pop(record, None)
        record.key = key
        record.item = None
        if record.is_released:
            self._obsolete.append(key)

    def on_commit(self, undeleted: Collection[bytes]) -> None:
        """The write of the last batch is over. The disk has refused the deletion of these keys so far."""
        self._being_written = set()
        if self._requests:
            on_disk = {*self._obsolete, *undeleted}
            ended = [
                id for id, each in self._requests.items() if each.is_released and each.key not in on_disk
            ]
            for id in ended:
                del self._requests[id]

    def pop_obsolete(self) -> list[bytes]:
        """Remove and return the keys to delete."""
        keys, self._obsolete = self._obsolete, []
        return keys
