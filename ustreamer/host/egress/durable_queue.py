# SPDX-License-Identifier: Apache-2.0
"""The egress queue of a durable endpoint: waiting messages are on disk and survive a kill or a power cut.

In: messages as for `EndpointQueue`. Out: the same sends, and records for the spool.

A message that is sent at once never touches the disk. A message that still waits after `LINGER_S` is written by the
writer thread, in batches. Its record is deleted some ms after the delivery has ended (`delete_buffer`), whatever the
verdict.

When the queue exceeds the memory limits (`queue_messages`, `queue_bytes`), only the attributes and the spool key of a
written message stay in memory. Order, priorities, routes, expiry and subscriber queues are those of any endpoint,
because the queue class is the same. The spool has no subscriber queues: a record names its subscriber, and each
subscriber's limits apply in the queue.

A transport that cannot know yet whether a sent message arrived keeps it here too (`keep`), until it knows
(`sent_records`), and the receivers that must confirm it (`keep_receivers`). After a restart these messages are sent
again before all others.

A kill loses the messages accepted in the last `LINGER_S` and two commits. It duplicates at most `MAX_DUPLICATES`
messages, with the same ids: those sent but not yet deleted. Those that the transport kept can come twice too.
"""

import logging
import random
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from itertools import chain
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Final

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import Expiry, remaining_after_reboot_ms
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.host.egress.answered_first import AnsweredFirst
from ustreamer.host.egress.delete_buffer import DELETE_DELAY_NS, DeleteBuffer
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.egress.send_worker import OnUndelivered
from ustreamer.host.egress.sent_records import SentRecords
from ustreamer.host.egress.write_buffer import WriteBuffer
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SENT, SpoolRecord
from ustreamer.transport_port import SENT_FROM_DISK_NS, EndpointTransport
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import BatchListener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import HeaderDecoder, HeaderEncoder

log = logging.getLogger("ustreamer.egress")

LINGER_S: Final = 0.01
"""How long a message may wait before it is written: most are sent by then."""
MAX_DUPLICATES: Final = 256
"""Messages that are sent but still on disk. The send thread waits rather than exceed this number, at most 1 s."""

_UNDELETED_LIMIT: Final = MAX_DUPLICATES - 64  # the send thread sends up to 64 between two checks
_UNDELETED_WAIT_S: Final = 1.0
_BATCH: Final = 512
_BATCH_BYTES: Final = 4 << 20
_END_WRITER_S: Final = 2.0
_DELETE_BATCH: Final = 128  # deletes of one transaction: a full batch needs no linger
_RETRY_S: Final = 0.5  # after a failed write
_UNRECEIPTED_LIMIT: Final = 4_096 - 64  # a kill repeats them too, and their receiver drops copies
_POLL_S: Final = 0.02
_SEND_NS: Final = 100_000_000  # from the receipt of a message to its send, unless it waits in the queue
_KEEP_LOCK_S: Final = 0.025  # a sender may hold the lock while its send waits
_READ: Final = 1_000
_READ_BYTES: Final = 16 << 20
_SLACK_MESSAGES: Final = 4 * (_BATCH + MAX_DUPLICATES)  # on disk, in addition to the queue limit
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_NO_ID: Final = UUID(0, 0)

RestoredDeliveryFactory = Callable[[str, UUri | None, UUri | None], Delivery]
"""Builds the delivery of a restored message from its ingress, topic and subscriber."""


class _DiskSizedQueue(EgressQueue):
    """An egress queue as large as the spool. It passes each queued message to the writer."""

    def __init__(self, limits: EgressLimits, durable_queue: "DurableQueue") -> None:
        super().__init__(_disk_limits(limits))
        self._durable_queue = durable_queue

    def set_limits(self, limits: EgressLimits) -> None:
        super().set_limits(_disk_limits(limits))

    def push(
        self,
        delivery: Delivery,
        message: UMessage,
        now_ns: int,
        attempts: int = 0,
        deadline_ns: int = NEVER_NS,
    ) -> list[QueuedMessage]:
        size = len(message.payload) + OVERHEAD_BYTES
        write_buffer = self._durable_queue.write_buffer
        is_over_share = not write_buffer.has_room_for_subscriber(delivery.subscriber, size)
        if is_over_share or not write_buffer.has_room(size):
            self.evicted_by_subscriber_limit += is_over_share
            item = QueuedMessage(delivery, message, now_ns, size, attempts, deadline_ns=deadline_ns)
            item.evicted_by_subscriber_limit = is_over_share
            return [item]
        return super().push(delivery, message, now_ns, attempts, deadline_ns)

    def _enqueue(self, subscriber_queue: SubscriberQueue, item: QueuedMessage) -> None:
        super()._enqueue(subscriber_queue, item)
        self._durable_queue.enqueue_write(item)


class DurableQueue(EndpointQueue):
    """The egress of one durable endpoint: an `EndpointQueue` with a copy on disk. Call `restore` before `start`."""

    refuses_absent = False  # a durable endpoint keeps messages for receivers that are away

    def __init__(
        self,
        name: str,
        transport: EndpointTransport,
        limits: EgressLimits,
        clock: Clock,
        on_undelivered: OnUndelivered,
        spool: Path,
        restored_delivery: RestoredDeliveryFactory,
        rng: Callable[[], float] = random.random,
        expiry: Expiry | None = None,
        boot: bytes | None = None,
        delete_delay_ns: int = DELETE_DELAY_NS,
        stores: StoreStates | None = None,
    ) -> None:
        """`spool` is a directory, which only `restore` opens. `boot` is the id of this boot of the machine.

        The record of a sent message stays on disk for `delete_delay_ns`.
        """
        self._undelivered_callback = on_undelivered
        super().__init__(
            name,
            transport,
            limits,
            clock,
            self._report_undelivered,
            rng,
            expiry,
            queue=_DiskSizedQueue(limits, self),
        )
        self._spool = Spool(spool, _spool_limits(limits), stores)
        self._restored_delivery = restored_delivery
        self._boot = _boot_id() if boot is None else boot
        self.write_buffer = WriteBuffer(limits)
        self._being_written: set[int] = set()
        self._deletes = DeleteBuffer(clock.monotonic_ns, delete_delay_ns)
        self._sent_records = SentRecords(limits)
        self._undeleted = 0  # settled, and possibly still on disk
        # Emptied from the front: with 100 000 entries 0.1 us each; a plain dict takes 32.
        self._unreceipted: OrderedDict[bytes, tuple[UUID, int]] = OrderedDict()
        """Of these, the sent ones without a receipt, by the key of the record: the id, and when it was sent."""
        # Sent Requests of these, with their keys; b"" while the send or the write is not over.
        self._sent_requests: dict[UUID, bytes] = {}
        self._deleting: set[bytes] = set()
        """Keys of ended messages that the spool deletes, and that may still be on disk."""
        self.restored_ids: dict[str, list[UUID]] = {}
        """The ids of the messages that `restore` found, by the endpoint at which they were received."""
        self.restored_receivers: Sequence[str] = ()
        """The receivers that an earlier process gave to `keep_receivers`."""
        self._new_receivers: Sequence[str] | None = None
        """The receivers that are still to be written."""
        self._persisted = 0
        self._left_on_disk = 0
        self._abandoned_ns = NEVER_NS  # receive time of the oldest message that a stop abandoned
        self._committed = 0
        self._write_error: UStatus | None = None
        self._safe_before_ns = 0  # as it was last determined
        self._new_limits: EgressLimits | None = None
        self._limits_at_ns = 0  # when the writer may apply them
        self._writer_work = Condition(self._lock)
        self._writer_idle = False
        self._stop_writing = Event()
        self._encode = HeaderEncoder().encode
        self._decode = HeaderDecoder().decode
        self._decode_lock = Lock()
        self._writer = Thread(target=self._run_writer, name=f"spool {name}", daemon=True)

    # --- life cycle --------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Open the spool and queue its messages, counted as received.

        Raises UStatusError if the spool cannot be opened.
        """
        self._spool.open()
        self.restored_receivers = self._spool.receivers()
        self._move_sent_in_front()
        known: dict[tuple[str, str | None, str | None], Delivery] = {}
        for rank in (SENT, *range(CLASSES)):
            for key, stored in self._read_stored(rank):
                item = None if stored is None else self._restore_item(key, stored, known)
                if item is None:
                    self._deletes.add_key(key, due_now=True)
                    continue
                item.delivery.count_restored()
                self._queue.restore(item)
                self._persisted += 1
        self._undeleted = len(self._deletes)
        if self._persisted:
            log.info("egress.restored", extra={"endpoint": self.name, "messages": self._persisted})

    def _move_sent_in_front(self) -> None:
        """Move the sent messages of earlier processes in front of those that wait, where they are in order.

        A disk that refuses leaves them in their own class, which `restore` reads first.
        """
        keys, records = list[bytes](), list[tuple[int, SpoolRecord]]()
        for key, stored in self._read_stored(SENT):
            rank = None if stored is None else self._rank_of(stored)
            if stored is not None and rank is not None:
                keys.append(key)
                records.append((rank, stored))
        if not keys:
            return
        try:
            self._spool.prepend(records, keys)
        except UStatusError as error:
            extra = {"endpoint": self.name, "reason": str(error), "messages": len(keys)}
            log.warning("egress.sent_not_moved", extra=extra)

    def _rank_of(self, stored: SpoolRecord) -> int | None:
        try:
            return self._decode(stored.attributes)[1].priority_class
        except UStatusError:  # reported by `_restore_item`
            return None

    def _read_stored(self, rank: int) -> Iterator[tuple[bytes, SpoolRecord | None]]:
        after = None
        while found := self._spool.read(rank, after, _READ, _READ_BYTES):
            yield from found
            after = found[-1][0]

    def _restore_item(
        self, key: bytes, stored: SpoolRecord, known: dict[tuple[str, str | None, str | None], Delivery]
    ) -> QueuedMessage | None:
        delivery_key = stored.ingress, stored.topic, stored.subscriber
        try:
            id, attributes = self._decode(stored.attributes)
            delivery = known.get(delivery_key)
            if delivery is None:
                topic, subscriber = (UUri.parse(text) if text else None for text in delivery_key[1:])
                delivery = known[delivery_key] = self._restored_delivery(stored.ingress, topic, subscriber)
        except UStatusError as error:  # written by a version with other rules
            log.error("egress.not_restored", extra={"endpoint": self.name, "reason": str(error)})  # noqa: TRY400
            return None
        self.restored_ids.setdefault(stored.ingress, []).append(id)
        received_ns, deadline_ns = self._restore_times(stored)
        size = len(stored.payload) + OVERHEAD_BYTES
        return QueuedMessage(
            delivery,
            UMessage(_NO_ID, attributes),
            received_ns,
            size,
            deadline_ns=deadline_ns,
            spool_key=key,
            header_only=True,
        )

    def _restore_times(self, stored: SpoolRecord) -> tuple[int, int]:
        """The receive time and the deadline of a stored message, on the current monotonic clock."""
        now_ns = self._clock.monotonic_ns()
        if stored.boot and stored.boot == self._boot and stored.received_ns <= now_ns:
            return stored.received_ns, stored.deadline_ns
        allowed_ms = (stored.deadline_ns - stored.received_ns) // _NS_PER_MS
        remaining_ms = remaining_after_reboot_ms(allowed_ms, stored.deadline_ms, self._clock.wall_ms())
        return now_ns, now_ns + remaining_ms * _NS_PER_MS

    def start(self) -> None:
        super().start()
        self._writer.start()

    def close(self, timeout_s: float, status: UStatus | None = None) -> None:
        """Stop both threads after a last commit, and close the spool. Messages on disk stay there for the next start.

        Messages that exist in memory only become dead letters with `status`, if there is one.
        """
        super().close(timeout_s)
        has_ended = self._end_writer(timeout_s)
        self._closed_status = status
        if status is not None:
            self._abandon_rest(status)
        if has_ended:
            # A writer blocked by a hung disk keeps the spool open. The end of the process closes it without loss.
            self._spool.close()

    def _end_writer(self, timeout_s: float) -> bool:
        """End the writer thread after a last commit; False if the disk hangs."""
        with self._lock:
            self._stop_writing.set()
            self._writer_work.notify_all()
        if self._writer.is_alive():
            self._writer.join(timeout_s)
        return not self._writer.is_alive()

    def reclaim(
        self, sent: Sequence[QueuedMessage], stored: Collection[UUID] = ()
    ) -> Sequence[QueuedMessage]:
        """Leave the sent messages that may not have arrived on disk, in front of all others, for the next start.

        These are `sent`, and those with ids in `stored`. Ends the writer. What `SentStore.keep` wrote stays. All else is
        written, or moves to the front. The other records of sent messages are deleted. Returns what the disk refuses, as
        any queue does.
        """
        to_write, staying = list(sent), 0
        refused = to_write
        if sent or stored or self._sent_keys():
            has_ended = self._end_writer(_END_WRITER_S)
            others = frozenset(stored) - {item.message.id for item in sent}
            on_disk = {id for id, _ in self._sent_keys()}
            to_write = [*self._unwritten(others - on_disk), *sent]
            refused = to_write
            if has_ended:
                staying, refused = self._leave_on_disk(to_write, others & on_disk)
        spooled = len(to_write) - len(refused) + staying
        with self._lock:
            self.ledger.settled[Verdict.DELIVERED] -= spooled
            self._left_on_disk += spooled
            self._persisted += spooled
        return super().reclaim(refused)

    def _leave_on_disk(
        self, items: Sequence[QueuedMessage], staying: AbstractSet[UUID]
    ) -> tuple[int, list[QueuedMessage]]:
        """Write these in front of all others, keep the sent ones in `staying`, and delete the others that were sent.

        Returns how many of `staying` are on disk, and the items that the disk refuses.
        """
        sent_keys = self._sent_keys()
        kept = dict(each for each in self._sent_records.on_disk() if each[0] in staying)
        moved = self._records_sent_from_disk(staying - kept.keys())
        kept_keys = frozenset(kept.values())
        obsolete = [key for _, key in sent_keys if key not in kept_keys]
        refused: list[QueuedMessage] = []
        try:
            self._spool.prepend([*moved, *map(self._record, items)], obsolete)
        except UStatusError as error:
            on_disk = {id for id, _ in sent_keys}
            refused = [item for item in items if item.message.id not in on_disk]
            self._write_error = error.status
            extra = {"endpoint": self.name, "reason": str(error), "messages": len(refused)}
            log.error("egress.not_persisted", extra=extra)  # noqa: TRY400 - the reason is enough
        return len(kept) + len(moved), refused

    def _unwritten(self, ids: AbstractSet[UUID]) -> list[QueuedMessage]:
        with self._lock:
            return self._sent_records.unwritten(ids)

    def _keys_sent_from_disk(self, ids: Collection[UUID]) -> list[bytes]:
        return [key for key, (id, _) in self._unreceipted.items() if id in ids]

    def _records_sent_from_disk(self, ids: Collection[UUID]) -> list[tuple[int, SpoolRecord]]:
        """The records of these messages, which were on disk when they were sent, with their ranks."""
        with self._lock:
            keys = self._keys_sent_from_disk(ids)
        found = []
        for key in keys:
            stored = self._spool.get(key)
            rank = None if stored is None else self._rank_of(stored)
            if stored is not None and rank is not None:
                found.append((rank, stored))
        return found

    def _sent_keys(self) -> list[tuple[UUID, bytes]]:
        """The ids and keys of the sent messages on disk that may not have arrived."""
        with self._lock:
            unreceipted = [(id, key) for key, (id, _) in self._unreceipted.items()]
            return [*self._sent_records.on_disk(), *unreceipted]

    def set_limits(self, limits: EgressLimits) -> None:
        with self._lock:
            super().set_limits(limits)
            self.write_buffer.set_limits(limits)
            self._sent_records.set_limits(limits)
            self._new_limits, self._limits_at_ns = limits, 0
            self._writer_work.notify_all()

    # --- the queue ---------------------------------------------------------------------------------------------------

    def enqueue_write(self, item: QueuedMessage) -> None:
        item.spool_key = b""
        self.write_buffer.add_message(item)
        self._wake_writer()

    def _full_status_for(self, item: QueuedMessage) -> UStatus:
        subscriber = item.delivery.subscriber
        if (
            subscriber is None
            or not item.evicted_by_subscriber_limit
            or self.write_buffer.has_room_for_subscriber(subscriber, item.size)
        ):
            return super()._full_status_for(item)
        text = f"{self.write_buffer.message_count_for(subscriber)} messages for subscriber {subscriber} wait for the disk"
        why = f": {self._write_error.message}" if self._write_error else ""
        return UStatus(UCode.RESOURCE_EXHAUSTED, f"endpoint {self.name!r}: {text}{why}")

    @property
    def _full_status(self) -> UStatus:
        limits, why = self._limits, self._write_error
        if self._queue.messages < limits.spool_messages and self._queue.bytes < limits.spool_bytes // 2:
            text = f"{len(self.write_buffer)} messages wait for the disk" + (
                f": {why.message}" if why else ""
            )
        else:
            text = f"its spool is full ({limits.spool_messages} messages or {limits.spool_bytes} bytes)"
        return UStatus(UCode.RESOURCE_EXHAUSTED, f"endpoint {self.name!r}: {text}")

    def _settle(self, item: QueuedMessage, verdict: Verdict, now_ns: int, reason: UStatus | None) -> None:
        if item.header_only:
            self._load_message(item)
        super()._settle(item, verdict, now_ns, reason)
        key, item.spool_key = item.spool_key, None
        if item.message.id in self._sent_requests:
            if key or id(item) in self._being_written:
                self._sent_requests[item.message.id] = key or b""
            else:
                del self._sent_requests[item.message.id]
        if key:
            self._persisted -= 1
            if verdict is Verdict.DELIVERED and self._awaits_receipt(item.message.id):
                self._undeleted += 1
                self._unreceipted[key] = item.message.id, now_ns
                self._wake_writer()
            else:
                self._schedule_delete(key)
        elif key is not None:
            self.write_buffer.remove_message(item)
            # A record that is being written will be on disk, and is obsolete.
            self._undeleted += id(item) in self._being_written

    def _awaits_receipt(self, id: UUID) -> bool:
        try:
            return self._transport.awaits_receipt(id)
        except FOREIGN_ERRORS as error:  # as in `_refusal`: as if the transport knew no receipts
            self._log_error(error)
            return False

    def _unstored_since_ns(self) -> int:
        """Messages that were sent since then may be lost, and the writer does not have them yet."""
        try:
            return self._transport.unstored_since_ns()
        except FOREIGN_ERRORS as error:  # as above
            self._log_error(error)
            return NEVER_NS

    def _delete_receipted(self) -> None:
        """Delete the records of sent messages that have arrived, or that are on disk among the sent messages.

        In the order of the sends, up to the first one that stays.
        """
        now_ns = self._clock.monotonic_ns()
        while self._unreceipted:
            key, (id, sent_ns) = next(iter(self._unreceipted.items()))
            is_kept = self._sent_records.is_on_disk(id) or now_ns - sent_ns > SENT_FROM_DISK_NS
            if not is_kept and self._awaits_receipt(id):
                return
            del self._unreceipted[key]
            self._deletes.add_key(key)

    def _schedule_delete(self, key: bytes) -> None:
        self._undeleted += 1
        self._deletes.add_key(key)
        self._wake_writer()

    def _wake_writer(self) -> None:
        if self._writer_idle:
            self._writer_idle = False
            self._writer_work.notify()

    def keep(self, route: Hashable, items: Sequence[QueuedMessage]) -> Collection[UUID] | None:
        """As `SentStore.keep`."""
        kept: list[UUID] = []
        done = self._change_sent(lambda: kept.extend(self._sent_records.add(route, items)))
        return kept if done else None

    def sent_ids(self) -> Collection[UUID]:
        """As `SentStore.ids`."""
        with self._lock:
            return {*self._sent_records.ids(), *(id for id, _ in self._unreceipted.values())}

    def read_sent(self, route: Hashable, id: UUID) -> UMessage | None:
        """As `SentStore.read`. Without the lock, which a sender may hold while it waits for the caller."""
        record = self._sent_records.find(route, id)
        if record is None:
            return None
        item = record.item
        if item is not None:
            return item.message
        return self._read_message(record.key)

    def _read_message(self, key: bytes) -> UMessage | None:
        try:
            stored = self._spool.get(key, may_be_deleted=True)  # its receipt may have come just now
            if stored is None:
                return None
            with self._decode_lock:
                return UMessage(*self._decode(stored.attributes), stored.payload)
        except UStatusError:  # it is closed, or another version wrote it
            return None

    def sent_from_disk(self, ids: Collection[UUID]) -> list[UMessage]:
        """As `SentStore.sent_from_disk`."""
        keys: list[bytes] = []
        self._change_sent(lambda: keys.extend(self._keys_sent_from_disk(ids)))
        found: list[UMessage] = []
        size = 0
        for key in keys:
            message = self._read_message(key)
            if message is not None:
                found.append(message)
                size += len(message.payload)
            if size > _BATCH_BYTES:
                break
        return found

    def release(self, route: Hashable, ids: Collection[UUID] | None = None) -> bool:
        """As `SentStore.release`."""
        return self._change_sent(lambda: self._sent_records.release(route, ids))

    def keep_receivers(self, receivers: Sequence[str]) -> bool:
        """As `SentStore.keep_receivers`."""

        def change() -> None:
            self._new_receivers = receivers

        return self._change_sent(change)

    def safe_before_ns(self) -> int:
        """Messages received before this time were sent `DELETE_DELAY_NS` ago, or are on disk.

        What a stop abandons without a disk is not safe: its sender should keep it. Nor is what was sent to a node that
        may be frozen or gone, until it is on disk.
        """
        with self._lock:
            oldest = next(iter(self.write_buffer), None)
            safe_ns = min(self._clock.monotonic_ns() - DELETE_DELAY_NS, self._abandoned_ns)
            if oldest is not None:
                safe_ns = min(safe_ns, oldest.received_ns)
            unstored_ns = self._unstored_since_ns()
            if unstored_ns < NEVER_NS:
                is_written = not self._sent_records.unwritten_count
                safe_ns = min(safe_ns, unstored_ns - _SEND_NS if is_written else self._safe_before_ns)
            self._safe_before_ns = safe_ns
            return safe_ns

    def _change_sent(self, change: Callable[[], None]) -> bool:
        if not self._lock.acquire(timeout=_KEEP_LOCK_S):
            return False
        try:
            change()
            self._wake_writer()
        finally:
            self._lock.release()
        return True

    def listener(self, ingress: BatchListener) -> BatchListener:
        return AnsweredFirst(ingress, self)

    @property
    def has_sent_requests(self) -> bool:
        """Whether a Request was sent whose record may still be on disk."""
        return bool(self._sent_requests) or self._sent_records.has_requests

    def wait_deleted(self, answered: Sequence[UUID]) -> None:
        """Delete the records of these Requests, and wait until they have left the disk, at most 1 s."""
        with self._lock:
            for each in answered:
                self._sent_records.release_request(each)
                key = self._sent_requests.get(each, b"")
                if self._unreceipted.pop(key, None) is not None:
                    self._deletes.add_key(key)
            waiting = [each for each in answered if self._may_be_on_disk(each)]
            end_ns = self._clock.monotonic_ns() + round(_UNDELETED_WAIT_S * _NS_PER_S)
            while waiting and self._writer.is_alive():
                self._deletes.expedite({self._sent_requests.get(each, b"") for each in waiting})
                self._wake_writer()
                left_ns = end_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return
                self._changed.wait(left_ns / _NS_PER_S)
                waiting = [each for each in waiting if self._may_be_on_disk(each)]

    def _may_be_on_disk(self, request: UUID) -> bool:
        return request in self._sent_requests or self._sent_records.has_request(request)

    def _report_undelivered(self, item: QueuedMessage, status: UStatus) -> None:
        # A message that the disk lost (`spool.messages_lost`) has no content to report.
        if not item.header_only:
            self._undelivered_callback(item, status)

    def _fail(self, item: QueuedMessage, verdict: Verdict, status: UStatus) -> None:
        self._load_message(item)
        super()._fail(item, verdict, status)

    def _send(self, item: QueuedMessage) -> UStatusError | None:
        if not self._load_message(item):
            lost = UStatusError(UCode.DATA_LOSS, f"endpoint {self.name!r}: a message was lost on disk")
            self._fail(item, Verdict.DEAD_LETTERED, lost.status)
            return lost
        if item.spool_key is None or item.message.attributes.type is not UMessageType.REQUEST:
            return super()._send(item)
        with self._lock:  # before the send: its Response may come before its verdict
            self._sent_requests[item.message.id] = b""
        refusal = super()._send(item)
        if refusal is not None:
            with self._lock:
                self._sent_requests.pop(item.message.id, None)
        return refusal

    def _take_batch(self) -> list[QueuedMessage]:
        with self._lock:
            end_ns = self._clock.monotonic_ns() + round(_UNDELETED_WAIT_S * _NS_PER_S)
            while self._has_many_undeleted and not self._closing:
                left_ns = end_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    break
                self._changed.wait(left_ns / _NS_PER_S)
            return super()._take_batch()

    @property
    def _has_many_undeleted(self) -> bool:
        unreceipted = len(self._unreceipted)
        return self._undeleted - unreceipted >= _UNDELETED_LIMIT or unreceipted >= _UNRECEIPTED_LIMIT

    def _load_message(self, item: QueuedMessage) -> bool:
        """Load a whole message into memory and pin it there; False if the disk lost it."""
        with self._lock:
            first, item.pinned = not item.pinned, True
            if not (first and item.header_only):
                return not item.header_only
        # The key is set: only messages on disk become header-only.
        try:
            stored = self._spool.get(item.spool_key or b"")
            if stored is None:
                return False
            with self._decode_lock:
                id, _ = self._decode(stored.attributes)
        except UStatusError:
            # The spool was closed while a send hung. Here the message is dead-lettered; the next start sends it.
            return False
        item.message = UMessage(id, item.message.attributes, stored.payload)
        item.header_only = False
        return True

    # --- the disk ----------------------------------------------------------------------------------------------------

    def _run_writer(self) -> None:
        while True:
            with self._lock:
                while not (self._has_writes or self._has_due_limits or self._stop_writing.is_set()):
                    self._writer_idle = True
                    is_repeated = self._spool.is_degraded or self._new_limits is not None
                    if not self._writer_work.wait(_RETRY_S if is_repeated else None):
                        break
                self._writer_idle = False
                if self._stop_writing.is_set() and not self._has_writes:
                    return
                linger_s = LINGER_S
                if len(self._deletes) >= _DELETE_BATCH and self._unstored_since_ns() == NEVER_NS:
                    linger_s = min(linger_s, self._deletes.remaining_s)
                if len(self.write_buffer) >= _BATCH:
                    linger_s = 0.0
            if linger_s:
                self._stop_writing.wait(linger_s)
            if not self._write_once() and self._stop_writing.wait(_RETRY_S):
                return

    @property
    def _has_due_limits(self) -> bool:
        return self._new_limits is not None and self._clock.monotonic_ns() >= self._limits_at_ns

    def _apply_limits(self) -> None:
        """Apply the limits of a reload. If that fails, a later write tries it again."""
        limits, now_ns = self._new_limits, self._clock.monotonic_ns()
        if limits is None or now_ns < self._limits_at_ns:
            return
        try:
            self._spool.set_limits(_spool_limits(limits))
        except Exception:
            log.exception("egress.spool_failed", extra={"endpoint": self.name, **limited(self.name)})
            self._limits_at_ns = now_ns + int(_RETRY_S * 1e9)
            return
        with self._lock:
            if self._new_limits is limits:  # no other reload came meanwhile
                self._new_limits = None

    @property
    def _has_writes(self) -> bool:
        if self._unreceipted and not self._stop_writing.is_set():
            return True
        if self._new_receivers is not None:
            return True
        return bool(self.write_buffer or self._deletes or self._sent_records.has_work)

    def _write_once(self) -> bool:
        """Write the receivers, then one batch and the deletions in one transaction; False if the disk refuses."""
        self._apply_limits()
        are_receivers_written = self._write_receivers()
        with self._lock:
            if not self._stop_writing.is_set():  # else `reclaim` decides
                self._delete_receipted()
            unstored_ns = self._unstored_since_ns()  # before `sent`, which has the earlier ones
            batch = self.write_buffer.peek_batch(_BATCH, _BATCH_BYTES)
            self._being_written = set(map(id, batch))
            sent = self._sent_records.peek_batch(_BATCH, _BATCH_BYTES)
            if unstored_ns < NEVER_NS and len(sent) < self._sent_records.unwritten_count:
                unstored_ns = 0
            deletes = self._deletes.pop_due(unstored_ns, everything=self._stop_writing.is_set())
            obsolete = self._sent_records.pop_obsolete()
        write_error = None
        keys: list[bytes] = []
        try:
            if batch or sent:
                # Not a list: the spool takes the deletions before it calls `_record`, which may fail.
                sent_records = ((SENT, self._record(item)[1]) for _, item in sent)
                records = chain(map(self._record, batch), sent_records)
                keys = self._spool.commit(records, [*deletes, *obsolete])
            elif deletes or obsolete:
                self._spool.delete_messages([*deletes, *obsolete])
            else:
                self._spool.retry()
        except UStatusError as error:
            write_error = error.status
        except Exception as error:
            log.exception("egress.spool_failed", extra={"endpoint": self.name, **limited(self.name)})
            write_error = UStatus(UCode.INTERNAL, f"{type(error).__name__}: {error}")
        if write_error is not None and self._write_error is None:
            waiting = len(self.write_buffer)
            extra = {"endpoint": self.name, "reason": str(write_error), "messages": waiting}
            log.error("egress.not_persisted", extra={**extra, **limited(self.name)})
        with self._lock:
            self._write_error = write_error
            self._being_written = set()
            self._undeleted -= len(deletes)
            self._forget_deleted_requests(deletes)
            for item, key in zip(batch, keys, strict=False):  # no keys after an error
                self._on_written(item, key)
            for (record, _), key in zip(sent, keys[len(batch) :], strict=False):
                self._sent_records.on_written(record, key)
            self._sent_records.on_commit(self._spool.pending_deletes)
            self._committed += len(keys)
            # After an error, messages that ended during the write are not on disk.
            if write_error is not None:
                for item in batch:
                    if item.spool_key is None:
                        self._sent_requests.pop(item.message.id, None)
                self._undeleted = len(self._deletes) + len(self._unreceipted)
            self._changed.notify_all()
        return write_error is None and are_receivers_written

    def _write_receivers(self) -> bool:
        """Write the receivers of the sent messages, if they have changed. False if the disk refuses, as its store reports."""
        receivers = self._new_receivers
        if receivers is None:
            return True
        try:
            self._spool.write_receivers(receivers)
        except UStatusError:
            return False
        with self._lock:
            if self._new_receivers is receivers:  # no others came meanwhile
                self._new_receivers = None
        return True

    def _forget_deleted_requests(self, deletes: Collection[bytes]) -> None:
        """Forget the sent Requests whose records have left the disk. `deletes` were given to the spool."""
        sent = self._sent_requests
        if not sent:
            self._deleting.clear()
            return
        self._deleting.update(deletes)
        deleted = self._deleting.difference(self._spool.pending_deletes)
        self._deleting -= deleted
        self._sent_requests = {id: key for id, key in sent.items() if key not in deleted}

    def _record(self, item: QueuedMessage) -> tuple[int, SpoolRecord]:
        message, delivery = item.message, item.delivery
        now_ns, wall_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        return message.attributes.priority_class, SpoolRecord(
            attributes=self._encode(message.id, message.attributes),
            payload=message.payload,
            ingress=delivery.ingress,
            topic=None if delivery.topic is None else str(delivery.topic),
            subscriber=None if delivery.subscriber is None else str(delivery.subscriber),
            received_ns=item.received_ns,
            deadline_ns=item.deadline_ns,
            boot=self._boot,
            deadline_ms=wall_ms + (item.deadline_ns - now_ns) // _NS_PER_MS,
        )

    def _on_written(self, item: QueuedMessage, key: bytes) -> None:
        if not self.write_buffer.remove_message(item):
            # The message ended during the write and is counted in `_undeleted` already.
            self._deletes.add_key(key)
            if item.message.id in self._sent_requests:
                self._sent_requests[item.message.id] = key
            return
        self._persisted += 1
        item.spool_key = key
        limits, queue = self._limits, self._queue
        too_much = queue.messages > limits.queue_messages or queue.bytes > limits.queue_bytes
        if too_much and not item.pinned:
            item.message = UMessage(_NO_ID, item.message.attributes)
            item.header_only = True

    # --- stopping and reading ----------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return super().queued + self._left_on_disk

    @property
    def persisted(self) -> int:
        return self._persisted

    @property
    def sendable(self) -> int:
        """Messages that exist in memory only."""
        return len(self.write_buffer)

    @property
    def committed(self) -> int:
        """Messages written to disk since the start."""
        return self._committed

    @property
    def is_failing(self) -> bool:
        """Whether the last send was refused, so that waiting for an empty queue may never end."""
        return self._queue.is_failing

    def wait_sent(self, deadline_ns: int) -> bool:
        """Wait until every sendable message is sent and every other message is on disk."""
        with self._lock:
            while self.write_buffer or self._queue.has_sendable or (self._in_flight and not self.is_failing):
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(min(left_ns / _NS_PER_S, _POLL_S))
            return True

    def wait_empty(self, deadline_ns: int) -> bool:
        """As `wait_sent`: messages on disk do not delay a stop."""
        return self.wait_sent(deadline_ns)

    def abandon_all(self, status: UStatus) -> list[QueuedMessage]:
        """Dead-letter the messages that exist in memory only.

        Messages on disk stay there; this process sends them no more.
        """
        with self._lock:
            waiting = self._queue.pop_all()
            abandoned = [item for item in waiting if not item.spool_key]
            self._left_on_disk += len(waiting) - len(abandoned)
            self._abandoned_ns = min([self._abandoned_ns, *(item.received_ns for item in abandoned)])
            return self._settle_abandoned(abandoned, status)

    def no_more_retries(self, status: UStatus) -> None:
        """No change: a message that is refused stays on disk."""

    def counters(self) -> dict[str, int]:
        """The counters of the spool, and of the messages still to be written."""
        return {
            **super().counters(),
            **self._spool.statistics(),
            "unwritten": len(self.write_buffer),
            "spool_committed": self._committed,
            "spooled_sent": len(self._sent_records),
            "spool_sent_refused": self._sent_records.refused,
        }


def _disk_limits(limits: EgressLimits) -> EgressLimits:
    return msgspec.structs.replace(
        limits, queue_messages=limits.spool_messages, queue_bytes=limits.spool_bytes
    )


def _spool_limits(limits: EgressLimits) -> SpoolLimits:
    # The queue enforces the limits. A record is larger than the queue's count by the names in it. As much again is for
    # sent messages: they must not take the room of those that wait.
    return SpoolLimits(2 * limits.spool_messages + _SLACK_MESSAGES, 4 * limits.spool_bytes + _BATCH_BYTES)


def _boot_id() -> bytes:
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""  # no match with any stored boot: restored deadlines use the wall clock
