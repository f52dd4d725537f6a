# SPDX-License-Identifier: Apache-2.0
"""A durable lane: what waits in it is on disk, so that neither a kill nor a power cut ends it.

What is sent at once never touches the disk. What still waits after `LINGER_S` is written, in groups, by a thread of the
lane's own, and removed some ms after its delivery has ended (`delete_buffer`), whatever the verdict. Of what is on disk and too much
for memory (`queue_messages`, `queue_bytes`) only the attributes stay in memory, and where to find the rest: order, priorities,
routes, expiry and the lanes of subscribers are those of any endpoint, because it is the same queue. On disk there are no lanes:
a record says whom it is for, and each subscriber's bounds are those of what waits for it in the queue.

A kill loses what was accepted in the last `LINGER_S` and two commits. It repeats at most `MAX_REPEATED` messages, with the
same ids: those that were sent and not removed yet.
"""

import logging
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Condition, Event, Lock, Thread
from typing import Final

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import Expiry, remaining_after_reboot_ms
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.host.egress.delete_buffer import DELETE_DELAY_NS, DeleteBuffer
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.egress.send_worker import OnUndelivered
from ustreamer.host.egress.write_buffer import WriteBuffer
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SpoolRecord
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import HeaderDecoder, HeaderEncoder

log = logging.getLogger("ustreamer.egress")

LINGER_S: Final = 0.01
"""How long a message may wait before it is on its way to the disk: most are sent by then."""
MAX_DUPLICATES: Final = 256
"""Messages that were on disk, are sent and not removed yet: the sender waits rather than exceed it, but no longer than 1 s."""

_UNDELETED_LIMIT: Final = MAX_DUPLICATES - 64  # a lane sends up to 64 between two looks at the gate
_UNDELETED_WAIT_S: Final = 1.0
_BATCH: Final = 512
_BATCH_BYTES: Final = 4 << 20
_DELETE_BATCH: Final = 128  # of one transaction: more need not linger
_RETRY_S: Final = 0.5  # after the disk has refused
_POLL_S: Final = 0.02
_READ: Final = 1_000
_READ_BYTES: Final = 16 << 20
_SLACK_MESSAGES: Final = 4 * (_BATCH + MAX_DUPLICATES)  # on disk, and in the queue no more
_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_NO_ID: Final = UUID(0, 0)

RestoredDeliveryFactory = Callable[[str, UUri | None, UUri | None], Delivery]
"""The delivery for what came in at an ingress, for a topic and a subscriber."""


class _DiskSizedQueue(EgressQueue):
    """An egress queue as large as the spool, that tells its lane what it has taken in."""

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
        evicted = not write_buffer.has_room_for_subscriber(delivery.subscriber, size)
        if evicted or not write_buffer.has_room(size):
            self.evicted_by_subscriber_limit += evicted
            item = QueuedMessage(delivery, message, now_ns, size, attempts, deadline_ns=deadline_ns)
            item.evicted_by_subscriber_limit = evicted
            return [item]
        return super().push(delivery, message, now_ns, attempts, deadline_ns)

    def _enqueue(self, subscriber_queue: SubscriberQueue, item: QueuedMessage) -> None:
        super()._enqueue(subscriber_queue, item)
        self._durable_queue.enqueue_write(item)


class DurableQueue(EndpointQueue):
    """The egress of one endpoint, kept on disk; a `Lane` in all else. `restore` comes before `start`."""

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
    ) -> None:
        """`spool` is its directory, which is touched by `restore` only; `boot` the id of this boot of the machine.

        What was sent stays on disk for `delete_delay_ns`.
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
        self._spool = Spool(spool, _spool_limits(limits))
        self._restored_delivery = restored_delivery
        self._boot = _boot_id() if boot is None else boot
        self.write_buffer = WriteBuffer(limits)
        self._being_written: set[int] = set()
        self._deletes = DeleteBuffer(clock.monotonic_ns, delete_delay_ns)
        self._undeleted = 0  # settled, and still on disk as far as we know
        self._persisted = 0
        self._left_on_disk = 0
        self._committed = 0
        self._write_error: UStatus | None = None
        self._new_limits: EgressLimits | None = None
        self._writer_work = Condition(self._lock)
        self._writer_idle = False
        self._stop_writing = Event()
        self._encode = HeaderEncoder().encode
        self._decode = HeaderDecoder().decode
        self._decode_lock = Lock()
        self._writer = Thread(target=self._run_writer, name=f"spool {name}", daemon=True)

    # --- life -----------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Open the spool and queue what is in it, as received anew. Raises UStatusError if it cannot be opened."""
        self._spool.open()
        known: dict[tuple[str, str | None, str | None], Delivery] = {}
        for rank in range(CLASSES):
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
            _, attributes = self._decode(stored.attributes)
            delivery = known.get(delivery_key)
            if delivery is None:
                topic, subscriber = (UUri.parse(text) if text else None for text in delivery_key[1:])
                delivery = known[delivery_key] = self._restored_delivery(stored.ingress, topic, subscriber)
        except UStatusError as error:  # written by another version, with rules of its own
            log.error("egress.not_restored", extra={"endpoint": self.name, "reason": str(error)})  # noqa: TRY400
            return None
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
        """When a message was received and until when it may wait, on the monotonic clock of now."""
        now_ns = self._clock.monotonic_ns()
        if stored.boot and stored.boot == self._boot and stored.received_ns <= now_ns:
            return stored.received_ns, stored.deadline_ns
        allowed_ms = (stored.deadline_ns - stored.received_ns) // _NS_PER_MS
        remaining_ms = remaining_after_reboot_ms(allowed_ms, stored.deadline_ms, self._clock.wall_ms())
        return now_ns, now_ns + remaining_ms * _NS_PER_MS

    def start(self) -> None:
        super().start()
        self._writer.start()

    def close(self, timeout_s: float) -> None:
        """End both threads, with a last commit, and close the spool. What waits on disk is there for the next start."""
        super().close(timeout_s)
        with self._lock:
            self._stop_writing.set()
            self._writer_work.notify_all()
        if self._writer.is_alive():
            self._writer.join(timeout_s)
        if (
            not self._writer.is_alive()
        ):  # a disk that hangs: the end of the process closes it, and loses nothing
            self._spool.close()

    def set_limits(self, limits: EgressLimits) -> None:
        with self._lock:
            super().set_limits(limits)
            self.write_buffer.set_limits(limits)
            self._new_limits = limits
            self._writer_work.notify_all()

    # --- what waits -----------------------------------------------------------------------------------------------------

    def enqueue_write(self, item: QueuedMessage) -> None:
        item.spool_key = b""
        self.write_buffer.add_message(item)
        if self._writer_idle:
            self._writer_idle = False
            self._writer_work.notify()

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
        ticket, item.spool_key = item.spool_key, None
        if ticket:
            self._persisted -= 1
            self._schedule_delete(ticket)
        elif ticket is not None:
            self.write_buffer.remove_message(item)
            self._undeleted += id(item) in self._being_written  # it will be on disk, and has ended

    def _schedule_delete(self, key: bytes) -> None:
        self._undeleted += 1
        self._deletes.add_key(key)
        if self._writer_idle:
            self._writer_idle = False
            self._writer_work.notify()

    def _report_undelivered(self, item: QueuedMessage, status: UStatus) -> None:
        if not item.header_only:  # what the disk has lost, `spool.messages_lost`, has no more to be told of
            self._undelivered_callback(item, status)

    def _fail(self, item: QueuedMessage, verdict: Verdict, status: UStatus) -> None:
        self._load_message(item)
        super()._fail(item, verdict, status)

    def _send(self, item: QueuedMessage) -> UStatusError | None:
        if not self._load_message(item):
            lost = UStatusError(UCode.DATA_LOSS, f"endpoint {self.name!r}: the disk has lost a message")
            self._fail(item, Verdict.DEAD_LETTERED, lost.status)
            return lost
        return super()._send(item)

    def _take_batch(self) -> list[QueuedMessage]:
        with self._lock:
            end_ns = self._clock.monotonic_ns() + round(_UNDELETED_WAIT_S * _NS_PER_S)
            while self._undeleted >= _UNDELETED_LIMIT and not self._closing:
                left_ns = end_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    break
                self._changed.wait(left_ns / _NS_PER_S)
            return super()._take_batch()

    def _load_message(self, item: QueuedMessage) -> bool:
        """Have all of a message in memory until it has ended; False if the disk has lost it."""
        with self._lock:
            first, item.pinned = not item.pinned, True
            if not (first and item.header_only):
                return not item.header_only
        # The key is there: only what is on disk becomes absent.
        try:
            stored = self._spool.get(item.spool_key or b"")
            if stored is None:
                return False
            with self._decode_lock:
                id, _ = self._decode(stored.attributes)
        except UStatusError:  # it was closed, and a send that hung has returned: the next start has it
            return False
        item.message = UMessage(id, item.message.attributes, stored.payload)
        item.header_only = False
        return True

    # --- the disk -------------------------------------------------------------------------------------------------------

    def _run_writer(self) -> None:
        while True:
            with self._lock:
                while not (
                    self.write_buffer or self._deletes or self._new_limits or self._stop_writing.is_set()
                ):
                    self._writer_idle = True
                    self._writer_work.wait()
                self._writer_idle = False
                if self._stop_writing.is_set() and not (self.write_buffer or self._deletes):
                    return
                linger_s = LINGER_S
                if len(self._deletes) >= _DELETE_BATCH:
                    linger_s = min(linger_s, self._deletes.remaining_s)
                if len(self.write_buffer) >= _BATCH:
                    linger_s = 0.0
            if linger_s:
                self._stop_writing.wait(linger_s)
            if not self._write_once() and self._stop_writing.wait(_RETRY_S):
                return

    def _write_once(self) -> bool:
        """Write some of what waits, and remove what has ended, in one go; False if the disk refuses."""
        with self._lock:
            limits, self._new_limits = self._new_limits, None
            deletes = self._deletes.pop_due(everything=self._stop_writing.is_set())
            batch = self.write_buffer.peek_batch(_BATCH, _BATCH_BYTES)
            self._being_written = set(map(id, batch))
        write_error = None
        keys: list[bytes] = []
        try:
            if limits is not None:
                self._spool.set_limits(_spool_limits(limits))
            if batch:
                keys = self._spool.commit([self._record(item) for item in batch], deletes)
            elif deletes:
                self._spool.delete_messages(deletes)
        except UStatusError as error:
            write_error = error.status
        except Exception as error:
            log.exception("egress.spool_failed", extra={"endpoint": self.name})
            write_error = UStatus(UCode.INTERNAL, f"{type(error).__name__}: {error}")
        if write_error is not None and self._write_error is None:
            extra = {"endpoint": self.name, "reason": str(write_error), "messages": len(self.write_buffer)}
            log.error("egress.not_persisted", extra=extra)
        with self._lock:
            self._write_error = write_error
            self._being_written = set()
            self._undeleted -= len(deletes)
            for item, key in zip(batch, keys, strict=bool(keys)):
                self._on_written(item, key)
            self._committed += len(keys)
            if write_error is not None:  # what has ended meanwhile is not on disk after all
                self._undeleted = len(self._deletes)
            self._changed.notify_all()
        return write_error is None

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
            self._deletes.add_key(key)  # it has ended while it was written, and is in `_unremoved` already
            return
        self._persisted += 1
        item.spool_key = key
        limits, queue = self._limits, self._queue
        too_much = queue.messages > limits.queue_messages or queue.bytes > limits.queue_bytes
        if too_much and not item.pinned:
            item.message = UMessage(_NO_ID, item.message.attributes)
            item.header_only = True

    # --- stopping and reading -------------------------------------------------------------------------------------------

    @property
    def queued(self) -> int:
        return super().queued + self._left_on_disk

    @property
    def persisted(self) -> int:
        return self._persisted

    @property
    def sendable(self) -> int:
        """Messages that only memory has."""
        return len(self.write_buffer)

    @property
    def committed(self) -> int:
        """Messages that were put on disk since the start."""
        return self._committed

    @property
    def is_failing(self) -> bool:
        """Whether the last send was refused, so that waiting for the lane to empty may take for ever."""
        return self._queue.is_failing

    def wait_sent(self, deadline_ns: int) -> bool:
        """Wait until all that can be sent is sent and all else is on disk."""
        with self._lock:
            while self.write_buffer or self._queue.has_sendable or (self._in_flight and not self.is_failing):
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(min(left_ns / _NS_PER_S, _POLL_S))
            return True

    def wait_empty(self, deadline_ns: int) -> bool:
        """As `wait_sent`: what is on disk is in nobody's way."""
        return self.wait_sent(deadline_ns)

    def abandon_all(self, status: UStatus) -> list[QueuedMessage]:
        """Make a dead letter of what only memory has. What is on disk stays there, and is sent no more by this process."""
        with self._lock:
            waiting = self._queue.pop_all()
            abandoned = [item for item in waiting if not item.spool_key]
            self._left_on_disk += len(waiting) - len(abandoned)
            for item in abandoned:
                self._settle(item, Verdict.DEAD_LETTERED, self._clock.monotonic_ns(), status)
        return abandoned

    def no_more_retries(self, status: UStatus) -> None:
        """Nothing changes: what is not taken at the first try is kept."""

    def counters(self) -> dict[str, int]:
        """What the spool counts, and what of the lane is on its way there."""
        return {
            **self._spool.statistics(),
            "unwritten": len(self.write_buffer),
            "spool_committed": self._committed,
        }


def _disk_limits(limits: EgressLimits) -> EgressLimits:
    return msgspec.structs.replace(
        limits, queue_messages=limits.spool_messages, queue_bytes=limits.spool_bytes
    )


def _spool_limits(limits: EgressLimits) -> SpoolLimits:
    # The queue keeps the limits; a record is larger than what it counts, by the names in it.
    return SpoolLimits(limits.spool_messages + _SLACK_MESSAGES, 2 * limits.spool_bytes + _BATCH_BYTES)


def _boot_id() -> bytes:
    try:
        return bytes.fromhex(Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return b""  # no boot is this one: the wall clock has to do
