# SPDX-License-Identifier: Apache-2.0
"""Who looks on: verdicts of a running streamer, one by one, for `ustreamer tap`.

On the path a note is taken, of nothing but what is shown; a thread of the reader's makes lines of the notes. Who reads too
slowly misses some, and is told how many.
"""

from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Final

import msgspec
from msgspec import UNSET

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery, Tap
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.host.admin.payload_decoding import MAX_DECODED, Decoded, FindDecoder, Readable
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MAX_READERS: Final = 4
MAX_NOTES: Final = 10_000
"""Notes that wait for one reader: at most 5 MB, payloads included."""
MAX_BYTES: Final = 8_000_000
"""Of payloads that wait to be decoded for one reader, who wants them whole."""
SHOWN_BYTES: Final = 256
_LINES_AT_ONCE: Final = 500
_BYTES_AT_ONCE: Final = 1_000_000  # of payloads: their values may take many times as much
_NS_PER_MS: Final = 1_000_000


class Wish(msgspec.Struct, frozen=True):
    """Which verdicts somebody wants to see: None is all. Payloads, or what is in them, only for who asks; never a token."""

    source: UUri | None = None
    sink: UUri | None = None
    verdict: Verdict | None = None
    payload: bool = False
    decode: bool = False

    def covers(self, attributes: UAttributes, verdict: Verdict) -> bool:
        sink = attributes.sink
        return (
            (self.verdict is None or verdict is self.verdict)
            and (self.source is None or self.source.matches(attributes.source))
            and (self.sink is None or (sink is not None and self.sink.matches(sink)))
        )


class Line(msgspec.Struct, frozen=True, tag="verdict", tag_field="line"):
    """One message for one target and what became of it.

    `egress` and `subscriber` are None where it had no target, or the target is all who listen there. `latency_ms` is from
    its arrival to its end here. `payload` is its beginning, as hex, where that was asked for or could not be decoded.
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
    decoded: Decoded | None


class Missed(msgspec.Struct, frozen=True, tag="missed", tag_field="line"):
    """So many lines were lost here, because they were not read in time."""

    count: int


class _Note(msgspec.Struct, frozen=True, gc=False):
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


class Reader:
    """What one reader is to be told. Notes come from any thread; one thread makes lines."""

    def __init__(
        self, wish: Wish, clock: Clock, find_decoder: FindDecoder, max_notes: int = MAX_NOTES
    ) -> None:
        self._wish = wish
        self._readable = Readable(find_decoder)
        self._clock = clock
        self._max_notes = max_notes
        self._notes: SimpleQueue[_Note | None] = SimpleQueue()
        self._counting = Lock()
        self._missed = 0
        self._waiting_bytes = 0  # counted only for who wants payloads decoded
        self._end: Callable[[], None] = lambda: None

    def look_on(self, dispatcher: Dispatcher) -> None:
        """Be told by `dispatcher` until `close`."""
        self._end = dispatcher.tap(self.tap)

    def tap(self, ingress: str) -> Tap:
        """What takes the notes at one endpoint."""
        wish, notes = self._wish, self._notes
        whole = MAX_DECODED if wish.decode else 0
        shown = SHOWN_BYTES if wish.payload or wish.decode else 0

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
            if not wish.covers(attributes, verdict):
                return
            size = len(message.payload)
            payload = message.payload if size <= whole else message.payload[:shown]
            if notes.qsize() >= self._max_notes or (whole and not self._has_room(len(payload))):
                with self._counting:
                    self._missed += 1
                return
            notes.put(
                _Note(
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
        """Whether so many bytes more may wait; then they do."""
        with self._counting:
            fits = self._waiting_bytes + size <= MAX_BYTES
            self._waiting_bytes += size if fits else 0
        return fits

    def wait_lines(self, timeout_s: float) -> Sequence[Line | Missed]:
        """Wait for something to tell; nothing when that takes longer, or after `close`."""
        lines: list[Line | Missed] = []
        read = 0
        try:
            note = self._notes.get(timeout=timeout_s)
            while note is not None:
                lines.append(self._line(note))
                read += len(note.payload)
                if len(lines) == _LINES_AT_ONCE or read > _BYTES_AT_ONCE:
                    break
                note = self._notes.get_nowait()
        except Empty:
            pass
        with self._counting:
            missed, self._missed = self._missed, 0
        return [*lines, Missed(missed)] if missed else lines

    def _line(self, note: _Note) -> Line:
        now_ns, wall_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        decoded = self._decoded(note) if self._wish.decode else None
        unread = self._wish.decode and (decoded is None or decoded.problem is not UNSET)
        attributes, reason = note.attributes, note.reason
        return Line(
            time_ms=wall_ms - (now_ns - note.settled_ns) // _NS_PER_MS,
            id=str(note.id),
            type=attributes.type.name,
            source=str(attributes.source),
            sink=_text(attributes.sink),
            subscriber=_text(note.subscriber),
            ingress=note.ingress,
            egress=note.egress,
            verdict=note.verdict.name.lower(),
            code=None if reason is None else reason.code.name,
            reason=None if reason is None else reason.message,
            attempts=note.attempts,
            latency_ms=(note.settled_ns - note.arrived_ns) / _NS_PER_MS,
            payload_size=note.size,
            payload=note.payload[:SHOWN_BYTES].hex() if self._wish.payload or unread else None,
            decoded=decoded,
        )

    def _decoded(self, note: _Note) -> Decoded | None:
        with self._counting:
            self._waiting_bytes -= len(note.payload)
        if note.size > MAX_DECODED:
            return Decoded(problem=f"{note.size} bytes, more than {MAX_DECODED}")
        return self._readable.decoded(note.attributes, note.payload)

    def close(self) -> None:
        """See nothing more, and let go of who waits. May be repeated."""
        self._end()
        self._end = lambda: None
        self._notes.put(None)


class Taps:
    """All who look on, of whom there are few: each costs a note for every verdict."""

    def __init__(
        self, dispatcher: Dispatcher, find_decoder: FindDecoder, max_readers: int = MAX_READERS
    ) -> None:
        self._dispatcher = dispatcher
        self._find_decoder = find_decoder
        self._places = max_readers
        self._lock = Lock()

    def open(self, wish: Wish) -> Reader:
        """A reader that sees what `wish` covers, from now on. Raises UStatusError(RESOURCE_EXHAUSTED)."""
        with self._lock:
            if not self._places:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED, "as many look on already as may: try again later"
                )
            self._places -= 1
        reader = _Placed(wish, self._dispatcher.clock, self._find_decoder, self._leave)
        reader.look_on(self._dispatcher)
        return reader

    def _leave(self) -> None:
        with self._lock:
            self._places += 1


class _Placed(Reader):
    """A reader that gives its place back once."""

    def __init__(
        self, wish: Wish, clock: Clock, find_decoder: FindDecoder, leave: Callable[[], None]
    ) -> None:
        super().__init__(wish, clock, find_decoder)
        self._leave: Callable[[], None] | None = leave

    def close(self) -> None:
        super().close()
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
