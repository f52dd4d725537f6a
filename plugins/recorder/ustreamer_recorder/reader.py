# SPDX-License-Identifier: Apache-2.0
"""Reads segments: bytes in, events and damage out. Plain Python, 5 us a row, for the command line and tests."""

import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple
from zlib import crc32

import msgspec

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer_recorder import layout
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    Damage,
    End,
    Event,
    Gap,
    Letter,
    Row,
    Sample,
    Samples,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import (
    BLOCK_MAGIC,
    HAS_TTL,
    HEADER,
    HELD,
    NO_CODE,
    RECORD,
    AnchorCause,
    BlockHeader,
    CountersCause,
    EndCause,
    GapCause,
    Kind,
    SegmentHeader,
)

_VERDICTS: Final[dict[int, Verdict]] = {int(each): each for each in Verdict}
_TYPES: Final[dict[int, UMessageType]] = {int(each): each for each in UMessageType}
"""By number, as `Verdict(number)` and `UMessageType(number)`, which cost 0.3 us each."""
_BATCH: Final = int(Kind.BATCH)
_ANSWER: Final = int(Kind.ANSWER)


class Block(NamedTuple):
    """A valid block: its header and its offset."""

    header: BlockHeader
    offset: int

    @property
    def end(self) -> int:
        return self.offset + RECORD * (1 + self.header.records)


def read_segment(data: bytes, name: str = "") -> Iterator[Event | Damage]:
    """The events and the damage of a file, in order. Raises Damaged for a damaged header.

    `name` is the file's name: the name of another segment raises Damaged too.
    """
    header = SegmentHeader.unpack(data)
    if name and not name.startswith(layout.segment_name(header.run, header.number)):
        raise layout.Damaged(16, f"is segment {layout.segment_name(header.run, header.number)}, not {name}")
    decoder = _Decoder()
    for part in read_blocks(data, header):
        if isinstance(part, Damage):
            yield part
        else:
            yield from decoder.events(data, part)


def read_header(path: Path) -> SegmentHeader:
    """The header of a file. Raises Damaged, OSError."""
    with path.open("rb") as file:
        return SegmentHeader.unpack(file.read(HEADER))


def read_blocks(data: bytes, header: SegmentHeader) -> Iterator[Block | Damage]:
    """The valid blocks in order, and the damage between them. Zeros at the end are no damage."""
    offset, number = HEADER, 0
    while offset < len(data):
        block = _block_at(data, offset, header, number)
        if block is None:
            block = _next_block(data, offset, header, number)
            if block is None:
                yield from _torn_end(data, offset)
                return
            reason = f"no whole block {number} until block {block.header.number}"
            yield Damage(offset, block.offset - offset, reason)
        elif block.header.number != number:
            yield Damage(offset, 0, f"block {block.header.number}: expected {number}")
        yield block
        offset, number = block.end, block.header.number + 1


def _block_at(data: bytes, offset: int, header: SegmentHeader, at_least: int) -> Block | None:
    found = BlockHeader.find(data, offset)
    if found is None or (found.run, found.segment) != (header.run, header.number) or found.number < at_least:
        return None
    block = Block(found, offset)
    if block.end > len(data) or crc32(data[offset + RECORD : block.end]) != found.records_crc:
        return None
    return block


def _next_block(data: bytes, offset: int, header: SegmentHeader, at_least: int) -> Block | None:
    while (offset := data.find(BLOCK_MAGIC, offset + 1)) >= 0:
        if (offset - HEADER) % RECORD == 0:
            block = _block_at(data, offset, header, at_least)
            if block is not None:
                return block
    return None


def _torn_end(data: bytes, offset: int) -> Iterator[Damage]:
    rest = data[offset:].rstrip(b"\0")
    if rest:
        yield Damage(offset, len(rest), f"{len(rest)} bytes behind the last whole block", torn=True)


class _InvalidReference(Exception):
    """A record refers to an unknown text or target, or has an invalid number."""


def _column_records(record: bytes, room: int) -> int:
    """The number of column records after a BATCH, at most `room`."""
    fields: tuple[int, ...] = layout.BATCH.unpack(record)
    flags, count, filled = fields[1], fields[2], fields[5]
    expected = layout.columns_records(count, flags)
    if not 0 < count <= layout.MAX_ROWS or filled != expected:
        raise _InvalidReference(f"{count} rows in {filled} records: expected {expected}")
    if filled > room:
        raise _InvalidReference(f"{count} rows in {filled} records: {room} are left in its block")
    return filled


def _inflate(packed: bytes, length: int) -> bytes:
    """Exactly `length` bytes. Raises _InvalidReference."""
    try:
        whole = zlib.decompressobj().decompress(packed, length + 1)
    except zlib.error as error:
        raise _InvalidReference(str(error)) from error
    if len(whole) != length:
        raise _InvalidReference(f"{len(whole)} bytes or more: expected {length}")
    return whole


class _Decoder:
    """Decodes records with the texts and targets of earlier blocks."""

    def __init__(self) -> None:
        self._strings: dict[int, str] = {}
        self._targets: dict[int, Target] = {}
        self._text = bytearray()
        self._row: Row | None = None  # an ANSWER can complete it
        self._letter: tuple[Letter, int, int] | None = None  # with the bytes and parts still missing
        self._payload = bytearray()
        self._samples: tuple[int, ...] = ()  # fields of the SAMPLES whose parts are incomplete
        self._packed = bytearray()

    def events(self, data: bytes, block: Block) -> Iterator[Event | Damage]:
        """The events of a block. No event extends over two blocks."""
        self._row = self._letter = None
        self._samples = ()
        following = block.offset + RECORD
        while following < block.end:
            offset, following = following, following + RECORD
            record = data[offset:following]
            kind = record[0]
            if kind == _BATCH:
                yield from self._pending_row()
                try:
                    following += RECORD * _column_records(record, (block.end - following) // RECORD)
                except _InvalidReference as error:  # the rest of the block can be records or columns
                    yield Damage(offset, block.end - offset, f"BATCH: {error}", raw=record)
                    return
                yield from self._batch(data[offset:following], offset)
                continue
            decode = _DECODERS.get(kind)
            if decode is None:
                continue
            if kind != _ANSWER:
                yield from self._pending_row()
            try:
                event = decode(self, record)
            except (_InvalidReference, ValueError) as error:
                yield Damage(offset, RECORD, f"{Kind(record[0]).name}: {error}", raw=record)
                continue
            if event is not None:
                yield event
        yield from self._pending_row()

    def _batch(self, records: bytes, offset: int) -> Iterator[Row | Damage]:
        try:
            yield from self.batch(records)
        except (_InvalidReference, ValueError) as error:
            yield Damage(offset, len(records), f"BATCH: {error}", raw=records[:RECORD])

    def _pending_row(self) -> Iterator[Row]:
        row, self._row = self._row, None
        if row is not None:
            yield row

    def _string(self, id: int) -> str | None:
        if not id:
            return None
        try:
            return self._strings[id]
        except KeyError:
            raise _InvalidReference(f"string {id} is not known") from None

    def _required_string(self, id: int) -> str:
        text = self._string(id)
        if text is None:
            raise _InvalidReference("string 0 where there must be a text")
        return text

    def _target(self, number: int) -> Target:
        try:
            return self._targets[number]
        except KeyError:
            raise _InvalidReference(f"target {number} is not known") from None

    # --- one for each kind --------------------------------------------------------------------------------------------

    def string(self, record: bytes) -> None:
        _, part, id, length, chunk = layout.STRING.unpack(record)
        if part == 0:
            self._text.clear()
        self._text += chunk[: length - layout.STRING_BYTES * part]
        if len(self._text) == length:
            self._strings[id] = self._text.decode()

    def target(self, record: bytes) -> Target:
        _, number, delivery, ingress, egress, topic, subscriber, period_ns, tuned_ns = layout.TARGET.unpack(
            record
        )
        target = self._targets[number] = Target(
            number,
            delivery,
            self._required_string(ingress),
            self._string(egress),
            self._string(topic),
            self._string(subscriber),
            period_ns,
            tuned_ns,
        )
        return target

    def delivery(self, record: bytes) -> None:
        (
            _,
            flags,
            verdict,
            code,
            type,
            priority,
            attempts,
            seq,
            msb,
            lsb,
            arrived_ns,
            received_ns,
            first_attempt_ns,
            settled_ns,
            target,
            source,
            sink,
            size,
            ttl_ms,
            reason,
            epoch,
        ) = layout.DELIVERY.unpack(record)
        self._row = Row(  # by position: a third faster, and a drive has millions of rows
            seq,
            UUID(msb, lsb),
            _VERDICTS[verdict] if verdict in _VERDICTS else Verdict(verdict),
            self._target(target),
            _TYPES[type] if type in _TYPES else UMessageType(type),
            self._required_string(source),
            self._string(sink),
            priority,
            size,
            arrived_ns,
            received_ns,
            first_attempt_ns,
            settled_ns,
            attempts,
            ttl_ms if flags & HAS_TTL else None,
            None if code == NO_CODE else code,
            self._string(reason),
            epoch,
            bool(flags & HELD),
        )

    def batch(self, records: bytes) -> list[Row]:
        """The rows of a BATCH and its columns."""
        (
            _,
            flags,
            count,
            type,
            priority,
            _,
            seq,
            time_ns,
            settled_ns,
            target,
            source,
            sink,
            ttl_ms,
            epoch,
            size,
        ) = layout.BATCH.unpack_from(records)
        forms = ["Q", "Q", *("q" if flags & layout.TIMES else ""), *("I" if flags & layout.SIZES else "")]
        numbers = struct.unpack_from("<" + "".join(f"{count}{form}" for form in forms), records, RECORD)
        msbs, lsbs, *others = (numbers[at : at + count] for at in range(0, len(numbers), count))
        times_ns = others[0] if flags & layout.TIMES else (time_ns,) * count
        sizes = others[-1] if flags & layout.SIZES else (size,) * count
        kind, to = UMessageType(type), self._target(target)
        sender, receiver = self._required_string(source), self._string(sink)
        ttl = ttl_ms if flags & HAS_TTL else None
        return [
            Row(
                number,
                UUID(msb, lsb),
                Verdict.DELIVERED,
                to,
                kind,
                sender,
                receiver,
                priority,
                size,
                time_ns,
                time_ns,
                time_ns,
                settled_ns,
                1,
                ttl,
                None,
                None,
                epoch,
            )
            for number, msb, lsb, time_ns, size in zip(
                range(seq, seq + count), msbs, lsbs, times_ns, sizes, strict=True
            )
        ]

    def answer(self, record: bytes) -> Row:
        _, seq, msb, lsb = layout.ANSWER.unpack(record)
        row, self._row = self._row, None
        if row is None or row.seq != seq:
            raise _InvalidReference(f"of row {seq}, which is not the one before")
        return msgspec.structs.replace(row, request=UUID(msb, lsb))

    def subscription(self, record: bytes) -> SubscriptionChange:
        _, change, number, time_ns, period_ns, topic, subscriber = layout.SUBSCRIPTION.unpack(record)
        return SubscriptionChange(
            number,
            time_ns,
            Change(change),
            self._required_string(topic),
            self._required_string(subscriber),
            period_ns,
        )

    def dead_letter(self, record: bytes) -> Letter | None:
        (
            _,
            flags,
            code,
            seq,
            msb,
            lsb,
            time_ns,
            target,
            source,
            sink,
            reason,
            attempts,
            size,
            kept,
            parts,
        ) = layout.DEAD_LETTER.unpack(record)
        letter = Letter(
            seq=seq,
            id=UUID(msb, lsb),
            time_ns=time_ns,
            target=self._target(target),
            source=self._required_string(source),
            sink=self._string(sink),
            attempts=attempts,
            size=size,
            code=None if code == NO_CODE else code,
            reason=self._string(reason),
            payload=b"" if flags & layout.PAYLOAD_KEPT else None,
        )
        self._payload.clear()
        self._letter = (letter, kept, parts) if parts else None
        return None if parts else letter

    def payload(self, record: bytes) -> Letter | None:
        _, part, length, seq, chunk = layout.PAYLOAD.unpack(record)
        if self._letter is None or self._letter[0].seq != seq:
            raise _InvalidReference(f"of dead letter {seq}, which is not the one before")
        letter, kept, parts = self._letter
        self._payload += chunk[: length - layout.PAYLOAD_BYTES * part]
        if part + 1 < parts:
            return None
        self._letter = None
        if len(self._payload) != kept:
            raise _InvalidReference(f"{len(self._payload)} bytes: expected {kept}")
        return msgspec.structs.replace(letter, payload=bytes(self._payload))

    def samples(self, record: bytes) -> Samples | None:
        self._samples = layout.SAMPLES.unpack(record)
        self._packed.clear()
        return None if self._samples[2] else self._unpacked_samples()

    def samples_part(self, record: bytes) -> Samples | None:
        _, part, length, chunk = layout.SAMPLES_PART.unpack(record)
        if not self._samples:
            raise _InvalidReference("follows no SAMPLES")
        self._packed += chunk[: length - layout.SAMPLES_PART_BYTES * part]
        return self._unpacked_samples() if part + 1 == self._samples[2] else None

    def _unpacked_samples(self) -> Samples:
        _, compression, _, count, length, packed, from_ns, until_ns, dropped = self._samples
        self._samples = ()
        if compression != layout.ZLIB or len(self._packed) != packed:
            raise _InvalidReference(f"{len(self._packed)} bytes of compression {compression}")
        whole = _inflate(bytes(self._packed), length) if packed else b""
        samples, at = [], 0
        for number in range(count):
            if len(whole) - at < layout.SAMPLE.size:
                raise _InvalidReference(f"ends before sample {number} of {count}")
            msb, lsb, arrived_ns, topic, size, kept, form = layout.SAMPLE.unpack_from(whole, at)
            begin, at = at + layout.SAMPLE.size, at + layout.SAMPLE.size + kept
            payload = whole[begin:at]
            if len(payload) < kept:
                raise _InvalidReference(
                    f"sample {number} has {len(payload)} bytes of payload: expected {kept}"
                )
            text = self._required_string(topic)
            samples.append(Sample(UUID(msb, lsb), arrived_ns, text, size, payload, form))
        return Samples(from_ns, until_ns, tuple(samples), dropped)

    def anchor(self, record: bytes) -> Anchor:
        _, cause, mono_ns, wall_ms, clock_step_ms = layout.ANCHOR.unpack(record)
        return Anchor(mono_ns, wall_ms, AnchorCause(cause), clock_step_ms)

    def gap(self, record: bytes) -> Gap:
        _, cause, first_seq, from_ns, until_ns, a, b, c, d, e, f, changes, letters = layout.GAP.unpack(record)
        return Gap(first_seq, GapCause(cause), from_ns, until_ns, (a, b, c, d, e, f), changes, letters)

    def config(self, record: bytes) -> Config:
        _, epoch, since_ns, text = layout.CONFIG.unpack(record)
        return Config(epoch, since_ns, self._required_string(text))

    def counters(self, record: bytes) -> Counters:
        _, cause, mono_ns, *ledger_fields, next_seq, skipped = layout.COUNTERS.unpack(record)
        return Counters(CountersCause(cause), mono_ns, LedgerSnapshot(*ledger_fields), next_seq, skipped)

    def end(self, record: bytes) -> End:
        _, cause, mono_ns, wall_ms, next_seq, next_change = layout.END.unpack(record)
        return End(EndCause(cause), mono_ns, wall_ms, next_seq, next_change)


_DECODERS: Final[dict[int, Callable[[_Decoder, bytes], Event | None]]] = {
    Kind.STRING: _Decoder.string,
    Kind.TARGET: _Decoder.target,
    Kind.DELIVERY: _Decoder.delivery,
    Kind.ANSWER: _Decoder.answer,
    Kind.SUBSCRIPTION: _Decoder.subscription,
    Kind.DEAD_LETTER: _Decoder.dead_letter,
    Kind.PAYLOAD: _Decoder.payload,
    Kind.ANCHOR: _Decoder.anchor,
    Kind.GAP: _Decoder.gap,
    Kind.CONFIG: _Decoder.config,
    Kind.COUNTERS: _Decoder.counters,
    Kind.END: _Decoder.end,
    Kind.SAMPLES: _Decoder.samples,
    Kind.SAMPLES_PART: _Decoder.samples_part,
}
