# SPDX-License-Identifier: Apache-2.0
"""A bounded queue between the path of messages and the writer: verdicts in, notes out, and counts of those dropped.

A tap runs on the path, under locks. It appends one tuple of its arguments: 0.3 us, no text look-up, no disk. The
writer encodes. (A write into a mapped file here would cost as much again, and would block the path while the kernel
waits for the disk.)

Messages that were delivered together are one note with a column for each number that differs, without payloads.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Final, TypeAlias, cast
from weakref import WeakSet

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import BatchTap, Tap
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_recorder.batch_note import AS_STORED, BatchNote, batch_note_of
from ustreamer_recorder.payload_sampler import PayloadSampler, SampledTopic

MAX_WAITING_PAYLOAD_BYTES: Final = 16_000_000
"""The most bytes of payloads in the queue."""
_DELIVERED: Final = Verdict.DELIVERED
_EXPIRED: Final = Verdict.EXPIRED
_DEAD_LETTERED: Final = Verdict.DEAD_LETTERED


class DeadLetterNote(msgspec.Struct, frozen=True):
    """The dead letter of a verdict; `payload` is None if it is not kept."""

    payload: bytes | None


RowNote: TypeAlias = tuple[
    UUID,
    UAttributes,
    int,  # size
    "Delivery | str",  # the delivery, or the endpoint of a message without one
    Verdict,
    UStatus | None,
    int,  # attempts
    int,  # arrived_ns
    int,  # received_ns
    int,  # first_attempt_ns
    int,  # settled_ns
    DeadLetterNote | None,
]
"""A tuple, because it is made on the path; the constants `ROW_*` are its indices."""
ROW_ID: Final = 0
ROW_ATTRIBUTES: Final = 1
ROW_SIZE: Final = 2
ROW_DESTINATION: Final = 3
ROW_VERDICT: Final = 4
ROW_REASON: Final = 5
ROW_ATTEMPTS: Final = 6
ROW_ARRIVED_NS: Final = 7
ROW_RECEIVED_NS: Final = 8
ROW_SETTLED_NS: Final = 10
ROW_LETTER: Final = 11


def row_of(batch: BatchNote, number: int) -> RowNote:
    """The note of one message of a batch, as if it had been delivered alone."""
    at_ns = batch.time_ns(number)
    return (
        UUID(batch.msbs[number], batch.lsbs[number]),
        batch.attributes,
        batch.sizes[number],
        batch.delivery,
        _DELIVERED,
        None,
        1,
        at_ns,
        at_ns,
        at_ns,
        batch.settled_ns,
        None,
    )


class RateChangeNote(msgspec.Struct, frozen=True):
    """A delivery is new, or has another period or new filters."""

    delivery: Delivery
    period_ns: int
    tuned_ns: int


class ChangeNote(msgspec.Struct, frozen=True):
    subscription: Subscription
    change: Change
    time_ns: int


class ConfigNote(msgspec.Struct, frozen=True):
    text: str
    since_ns: int


class SampleNote(msgspec.Struct, frozen=True):
    """The payload of a publication, which may be cut; `size` is that of the whole."""

    id: UUID
    attributes: UAttributes
    arrived_ns: int
    size: int
    payload: bytes


SingleNote: TypeAlias = "RowNote | RateChangeNote | ChangeNote | ConfigNote | SampleNote"
Note: TypeAlias = "SingleNote | BatchNote"


class Skipped(msgspec.Struct):
    """Dropped notes: rows by verdict, subscription changes, dead letters, payloads, rate changes; their time range."""

    rows: list[int] = msgspec.field(default_factory=lambda: [0] * 6)
    changes: int = 0
    letters: int = 0
    from_ns: int = 0
    until_ns: int = 0
    samples: int = 0
    rate_changes: int = 0

    def __bool__(self) -> bool:
        return bool(self.changes or self.letters or self.rate_changes or any(self.rows))

    def include_time(self, time_ns: int) -> None:
        """Extend the time range."""
        self.from_ns = min(self.from_ns or time_ns, time_ns)
        self.until_ns = max(self.until_ns, time_ns)

    def merge(self, other: "Skipped") -> None:
        if other:
            self.rows = [mine + more for mine, more in zip(self.rows, other.rows, strict=True)]
            self.changes += other.changes
            self.letters += other.letters
            self.rate_changes += other.rate_changes
            self.include_time(other.from_ns)
            self.include_time(other.until_ns)


class NoteQueue:
    """The queue of one streamer. The streamer calls it from any thread; only the writer's part has one thread."""

    def __init__(
        self,
        limit: int,
        monotonic_ns: Callable[[], int],
        dead_letter_topic: UUri,
        payload_bytes: int | None = None,
        sampler: PayloadSampler | None = None,
    ) -> None:
        """At most `limit` rows are queued. `payload_bytes` of a payload are kept; None: no payload.

        Without a `sampler` these are the payloads of dead letters, with it those of the topics that it selects.
        """
        self.notes: deque[Note] = deque()
        self._limit = limit
        self._monotonic_ns = monotonic_ns
        self._dead_letter_topic = dead_letter_topic
        self._payload_bytes = payload_bytes
        self._sampler = sampler
        self._lock = Lock()  # a leaf lock; most messages do not need it
        self._skipped = Skipped()
        self._unnoted_rates: WeakSet[Delivery] = WeakSet()
        """Deliveries whose rate change was dropped. The writer gets their rate with its next look at the queue."""
        self._waiting_payload_bytes = 0
        self._extra_rows = 0  # queued rows above one for each note

    # --- on the path --------------------------------------------------------------------------------------------------

    def tap(self, endpoint: str) -> BatchTap:
        """The tap on all verdicts on messages received at `endpoint`."""
        notes, append, limit, monotonic_ns = self.notes, self.notes.append, self._limit, self._monotonic_ns
        sampled = None if self._sampler is None else self._sampler.headers

        def tap(
            message: UMessage,
            delivery: Delivery | None,
            verdict: Verdict,
            reason: UStatus | None,
            attempts: int,
            arrived_ns: int,
            received_ns: int,
            first_attempt_ns: int,
            settled_ns: int,
        ) -> None:
            if sampled is not None:
                topic = sampled.get(message.attributes)
                if topic is None or arrived_ns >= topic.next_ns:
                    self._sample(message, topic, arrived_ns)
            if len(notes) + self._extra_rows >= limit:
                self._skip(message, verdict, settled_ns)
                return
            letter = None
            if verdict is _DELIVERED:
                if settled_ns == received_ns:  # sent inline, without reading the clock
                    settled_ns = monotonic_ns()
            elif verdict is _DEAD_LETTERED or verdict is _EXPIRED:
                letter = self._dead_letter_note(message)
            append(
                (
                    message.id,
                    message.attributes,
                    len(message.payload),
                    delivery or endpoint,
                    verdict,
                    reason,
                    attempts,
                    arrived_ns,
                    received_ns,
                    first_attempt_ns,
                    settled_ns,
                    letter,
                )
            )

        return self._batch_tap(tap)

    def _batch_tap(self, tap: Tap) -> BatchTap:
        """A tap that also takes messages that were delivered together."""

        def on_delivered_batch(
            messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int]
        ) -> None:
            if self._append_batch(messages, delivery, times_ns):
                self._sample_batch(messages, times_ns)
            else:
                for message, at_ns in zip(messages, times_ns, strict=True):
                    tap(message, delivery, _DELIVERED, None, 1, at_ns, at_ns, at_ns, at_ns)

        # An attribute of a function: a callable object costs 0.15 us more for each call.
        tap.on_delivered_batch = on_delivered_batch  # type: ignore[attr-defined]
        return cast("BatchTap", tap)

    def _append_batch(
        self, messages: Sequence[UMessage], delivery: Delivery, times_ns: Sequence[int]
    ) -> bool:
        """Append these messages as one note; false if they do not fit in the queue or in one batch."""
        more = len(messages) - 1
        if not AS_STORED or len(self.notes) + self._extra_rows + more >= self._limit:
            return False
        note = batch_note_of(messages, delivery, times_ns, self._monotonic_ns())
        if note is None:
            return False
        with self._lock:
            self._extra_rows += more
        self.notes.append(note)
        return True

    def _sample(self, message: UMessage, topic: SampledTopic | None, arrived_ns: int) -> None:
        """Append the payload of a message, if it is due."""
        sampler, attributes = self._sampler, message.attributes
        if sampler is None:
            return
        size = len(message.payload)
        kept = min(size, self._payload_bytes or 0)
        if not sampler.admit(topic or sampler.topic_of(attributes), arrived_ns, kept):
            return
        is_full = len(self.notes) + self._extra_rows >= self._limit
        with self._lock:
            is_full = is_full or self._waiting_payload_bytes + kept > MAX_WAITING_PAYLOAD_BYTES
            self._waiting_payload_bytes += 0 if is_full else kept
        if is_full:
            sampler.count_dropped(1)
            return
        self.notes.append(SampleNote(message.id, attributes, arrived_ns, size, message.payload[:kept]))

    def _sample_batch(self, messages: Sequence[UMessage], times_ns: Sequence[int]) -> None:
        """`_sample` for messages with the same attributes, which looks only at those that are due."""
        if self._sampler is None:
            return
        topic = self._sampler.topic_of(messages[0].attributes)
        at = bisect_left(times_ns, topic.next_ns)
        while at < len(messages):
            self._sample(messages[at], topic, times_ns[at])
            at = bisect_left(times_ns, topic.next_ns, at + 1)

    def on_rate_change(self, delivery: Delivery) -> None:
        """Note the new filters of a delivery. The queue takes twice as many notes as rows for these."""
        if len(self.notes) < 2 * self._limit:
            self.notes.append(RateChangeNote(delivery, delivery.period_ns, delivery.period_since_ns))
            return
        with self._lock:
            self._unnoted_rates.add(delivery)
            self._skipped.rate_changes += 1
            self._skipped.include_time(self._monotonic_ns())

    def on_subscription_change(self, subscription: Subscription, change: Change, /) -> None:
        now_ns = self._monotonic_ns()
        if len(self.notes) < self._limit:
            self.notes.append(ChangeNote(subscription, change, now_ns))
            return
        with self._lock:
            self._skipped.changes += 1
            self._skipped.include_time(now_ns)

    def on_configured(self, text: str) -> None:
        self.notes.append(ConfigNote(text, self._monotonic_ns()))

    def _skip(self, message: UMessage, verdict: Verdict, now_ns: int) -> None:
        with self._lock:
            self._skipped.rows[verdict] += 1
            self._skipped.letters += self._makes_dead_letter(message, verdict)
            self._skipped.include_time(now_ns)

    def _makes_dead_letter(self, message: UMessage, verdict: Verdict) -> bool:
        """Whether this verdict creates a dead letter; a dead letter creates no other."""
        ends_badly = verdict is _DEAD_LETTERED or verdict is _EXPIRED
        return ends_badly and message.attributes.source != self._dead_letter_topic

    def _dead_letter_note(self, message: UMessage) -> DeadLetterNote | None:
        if message.attributes.source == self._dead_letter_topic:
            return None
        sampler = self._sampler
        if self._payload_bytes is None or (sampler is not None and not sampler.matches(message.attributes)):
            return DeadLetterNote(None)
        payload = message.payload[: self._payload_bytes]
        with self._lock:
            if self._waiting_payload_bytes + len(payload) > MAX_WAITING_PAYLOAD_BYTES:
                return DeadLetterNote(None)
            self._waiting_payload_bytes += len(payload)
        return DeadLetterNote(payload)

    # --- for the writer -----------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Queued rows and other notes."""
        return len(self.notes) + self._extra_rows

    @property
    def has_batches(self) -> bool:
        """Whether a note of many rows is queued."""
        return self._extra_rows > 0

    def batch_popped(self, batch: BatchNote) -> None:
        """The writer has taken a note of many rows."""
        with self._lock:
            self._extra_rows -= len(batch) - 1

    def payload_written(self, note: DeadLetterNote | SampleNote) -> None:
        """The writer has taken a payload."""
        if note.payload:
            with self._lock:
                self._waiting_payload_bytes -= len(note.payload)

    def pop_skipped(self) -> Skipped:
        """The notes dropped since the last call. Queues the present rates of deliveries whose change was dropped."""
        with self._lock:
            skipped, self._skipped = self._skipped, Skipped()
            unnoted, self._unnoted_rates = self._unnoted_rates, WeakSet()
        for delivery in unnoted:
            self.on_rate_change(delivery)
        if self._sampler is not None:
            skipped.samples = self._sampler.pop_dropped()
        return skipped
