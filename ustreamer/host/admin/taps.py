# SPDX-License-Identifier: Apache-2.0
"""Tap readers: the verdicts of a running streamer, one by one, for `ustreamer tap`.

In: verdicts of the dispatcher, as notes with only the fields to show. Out: lines, which the reader's own
thread builds from the notes. A slow reader loses notes and gets their number.
"""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.routing.subscriptions import PausedSubscription
from ustreamer.host.admin.payload_decoding import MAX_DECODED, DecodedPayload, FindDecoder, PayloadDecoder
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MAX_READERS: Final = 4
MAX_NOTES: Final = 10_000
"""Notes that wait for one reader: at most 5 MB with payloads."""
MAX_BYTES: Final = 8_000_000
"""The payload bytes that wait to be decoded for one reader."""
SHOWN_BYTES: Final = 256
MAX_SUBSCRIBERS: Final = 16
"""The subscribers of one line."""
_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1_000_000  # of payloads: their values may take many times as much
_NS_PER_MS: Final = 1_000_000


class TapFilter(msgspec.Struct, frozen=True):
    """The verdicts to show; None stands for all. Payloads and decoded payloads only on request; tokens never."""

    source: UUri | None = None
    sink: UUri | None = None
    verdict: Verdict | None = None
    payload: bool = False
    decode: bool = False
    type: UMessageType | None = None
    ingress: str | None = None

    def matches(self, attributes: UAttributes, verdict: Verdict) -> bool:
        sink = attributes.sink
        return (
            (self.verdict is None or verdict is self.verdict)
            and (self.type is None or attributes.type is self.type)
            and (self.source is None or self.source.matches(attributes.source))
            and (self.sink is None or (sink is not None and self.sink.matches(sink)))
        )


class TapLine(msgspec.Struct, frozen=True, tag="verdict", tag_field="line"):
    """One message for one target, and its verdict.

    `egress` and `subscriber` are None for a message without a target, and `subscriber` is None for a multicast target.
    `subscribers` are those that share the multicast target of a publication, at most MAX_SUBSCRIBERS. `latency_ms` is
    from arrival to verdict; for messages sent as a batch, to the end of the batch. `payload` is its beginning as hex,
    on request or if it could not be decoded.
    """

    time_ms: int
    id: str
    type: str
    source: str
    sink: str | None
    subscriber: str | None
    ingress: str
    egress: str | None
    verdict: str
    code: str | None
    reason: str | None
    attempts: int
    latency_ms: float
    payload_size: int
    payload: str | None
    decoded: DecodedPayload | None
    subscribers: tuple[str, ...] = ()


class Dropped(msgspec.Struct, frozen=True, tag="dropped", tag_field="line"):
    """The number of lines lost at this point, because the reader was too slow."""

    count: int


class _TapNote(msgspec.Struct, frozen=True, gc=False):
    id: UUID
    attributes: UAttributes
    size: int
    payload: bytes
    ingress: str
    egress: str | None
    subscriber: UUri | None
    verdict: Verdict
    reason: UStatus | None
    attempts: int
    arrived_ns: int
    settled_ns: int


SubscribersOf = Callable[[UUri, str], Sequence[UUri]]
"""The subscribers of a topic behind an endpoint."""


def _no_subscribers(topic: UUri, endpoint: str) -> Sequence[UUri]:
    return ()


class TapReader:
    """The notes of one reader. Any thread adds notes; one thread builds lines."""

    def __init__(
        self,
        tap_filter: TapFilter,
        clock: Clock,
        find_decoder: FindDecoder,
        max_notes: int = MAX_NOTES,
        subscribers_of: SubscribersOf = _no_subscribers,
    ) -> None:
        self._subscribers_of = subscribers_of
        self._filter = tap_filter
        self._payload_decoder = PayloadDecoder(find_decoder)
        self._clock = clock
        self._max_notes = max_notes
        self._notes: SimpleQueue[_TapNote | None] = SimpleQueue()
        self._count_lock = Lock()
        self._dropped = 0
        self._waiting_bytes = 0  # counted only with decoding
        self._detach: Callable[[], None] = lambda: None

    def attach(self, dispatcher: Dispatcher) -> None:
        """Receive verdicts from `dispatcher` until `close`."""
        self._detach = dispatcher.attach_taps(self.tap_at)

    def tap_at(self, ingress: str) -> Tap:
        """The tap function of one endpoint."""
        tap_filter, notes = self._filter, self._notes
        is_shown = tap_filter.ingress in (None, ingress)
        monotonic_ns = self._clock.monotonic_ns
        whole_limit = MAX_DECODED if tap_filter.decode else 0
        shown_limit = SHOWN_BYTES if tap_filter.payload or tap_filter.decode else 0

        def note(
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
            attributes = message.attributes
            if not is_shown or not tap_filter.matches(attributes, verdict):
                return
            if settled_ns == received_ns:
                settled_ns = (
                    monotonic_ns()
                )  # sent or dropped on the receiving thread, which reads no clock for it
            size = len(message.payload)
            payload = message.payload if size <= whole_limit else message.payload[:shown_limit]
            if notes.qsize() >= self._max_notes or (whole_limit and not self._has_room(len(payload))):
                with self._count_lock:
                    self._dropped += 1
                return
            notes.put(
                _TapNote(
                    message.id,
                    attributes,
                    size,
                    payload,
                    ingress,
                    None if delivery is None else delivery.endpoint,
                    None if delivery is None else delivery.subscriber,
                    verdict,
                    reason,
                    attempts,
                    arrived_ns,
                    settled_ns,
                )
            )

        return note

    def _has_room(self, size: int) -> bool:
        """Reserve `size` more payload bytes; returns whether they fit the limit."""
        with self._count_lock:
            fits = self._waiting_bytes + size <= MAX_BYTES
            self._waiting_bytes += size if fits else 0
        return fits

    def wait_lines(self, timeout_s: float) -> Sequence[TapLine | Dropped]:
        """Wait for lines; empty after the timeout or after `close`."""
        lines: list[TapLine | Dropped] = []
        read_bytes = 0
        try:
            note = self._notes.get(timeout=timeout_s)
            while note is not None:
                lines.append(self._to_line(note))
                read_bytes += len(note.payload)
                if len(lines) == _LINES_AT_ONCE or read_bytes > _BYTES_AT_ONCE:
                    break
                note = self._notes.get_nowait()
        except Empty:
            pass
        with self._count_lock:
            dropped, self._dropped = self._dropped, 0
        return [*lines, Dropped(dropped)] if dropped else lines

    def _to_line(self, note: _TapNote) -> TapLine:
        now_ns, wall_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        decoded = self._decode_note(note) if self._filter.decode else None
        undecoded = self._filter.decode and (decoded is None or decoded.problem is not UNSET)
        attributes, reason = note.attributes, note.reason
        return TapLine(
            time_ms=wall_ms - (now_ns - note.settled_ns) // _NS_PER_MS,
            id=str(note.id),
            type=attributes.type.name,
            source=str(attributes.source),
            sink=_text(attributes.sink),
            subscriber=_text(note.subscriber),
            ingress=note.ingress,
            egress=note.egress,
            verdict=note.verdict.name.lower(),
            code=_code(attributes, reason),
            reason=None if reason is None else reason.message,
            attempts=note.attempts,
            latency_ms=(note.settled_ns - note.arrived_ns) / _NS_PER_MS,
            payload_size=note.size,
            payload=note.payload[:SHOWN_BYTES].hex() if self._filter.payload or undecoded else None,
            decoded=decoded,
            subscribers=self._shared_subscribers(note),
        )

    def _shared_subscribers(self, note: _TapNote) -> tuple[str, ...]:
        """The subscribers of a multicast target."""
        if note.egress is None or note.subscriber is not None or note.attributes.sink is not None:
            return ()
        found = self._subscribers_of(note.attributes.source, note.egress)
        return tuple(map(str, found[:MAX_SUBSCRIBERS]))

    def _decode_note(self, note: _TapNote) -> DecodedPayload | None:
        with self._count_lock:
            self._waiting_bytes -= len(note.payload)
        if note.size > MAX_DECODED:
            return DecodedPayload(problem=f"{note.size} bytes, more than {MAX_DECODED}")
        return self._payload_decoder.decode_payload(note.attributes, note.payload)

    def close(self) -> None:
        """Receive no more verdicts, and wake a waiting thread. May be repeated."""
        with (
            self._count_lock
        ):  # the end of the server and the end of the client may close it at the same time
            detach, self._detach = self._detach, lambda: None
        detach()
        self._notes.put(None)


class Taps:
    """All tap readers. Their number is limited: each costs a note for every verdict."""

    def __init__(
        self, dispatcher: Dispatcher, find_decoder: FindDecoder, max_readers: int = MAX_READERS
    ) -> None:
        self._dispatcher = dispatcher
        self._find_decoder = find_decoder
        self._free_slots = max_readers
        self._lock = Lock()

    def open_reader(self, tap_filter: TapFilter) -> TapReader:
        """A reader with the verdicts that match `tap_filter`, from now on. Raises UStatusError(RESOURCE_EXHAUSTED)."""
        self.take_slot()
        reader = _SlotReader(
            tap_filter, self._dispatcher.clock, self._find_decoder, self.subscribers_of, self.release_slot
        )
        reader.attach(self._dispatcher)
        return reader

    def take_slot(self) -> None:
        """Reserve one of the readers until `release_slot`. Raises UStatusError(RESOURCE_EXHAUSTED)."""
        with self._lock:
            if not self._free_slots:
                raise UStatusError(UCode.RESOURCE_EXHAUSTED, "too many tap readers: try again later")
            self._free_slots -= 1

    def subscribers_of(self, topic: UUri, endpoint: str) -> Sequence[UUri]:
        """The subscribers of `topic` behind `endpoint` that have not stopped its dispatch."""
        router = self._dispatcher.router
        return [
            each.subscriber
            for each in router.directory.subscribers(topic)
            if router.authority_table.endpoint_of(each.subscriber) == endpoint
            and not isinstance(each, PausedSubscription)
        ]

    def release_slot(self) -> None:
        with self._lock:
            self._free_slots += 1


class _SlotReader(TapReader):
    """A reader that releases its slot once."""

    def __init__(
        self,
        tap_filter: TapFilter,
        clock: Clock,
        find_decoder: FindDecoder,
        subscribers_of: SubscribersOf,
        release: Callable[[], None],
    ) -> None:
        super().__init__(tap_filter, clock, find_decoder, subscribers_of=subscribers_of)
        self._release: Callable[[], None] | None = release

    def close(self) -> None:
        super().close()
        with self._count_lock:
            release, self._release = self._release, None
        if release is not None:
            release()


def _code(attributes: UAttributes, reason: UStatus | None) -> str | None:
    """The code of `reason`, or else the commstatus of a publication: that of an event that failed its E2E check."""
    if reason is not None:
        return reason.code.name
    marked = attributes.commstatus if attributes.type is UMessageType.PUBLISH else None
    return None if marked is None else marked.name


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
