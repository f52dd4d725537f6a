# SPDX-License-Identifier: Apache-2.0
"""Encodes one segment: events and rows in, blocks of bytes out. No I/O and no clock."""

import struct
from collections.abc import Callable
from typing import Final
from zlib import compress, crc32

from ustreamer_recorder import layout
from ustreamer_recorder.batch_note import BatchNote
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    End,
    Gap,
    Letter,
    Row,
    Samples,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import (
    BATCH,
    DELIVERY,
    HAS_TTL,
    HEADER,
    HELD,
    MAX_RECORDS,
    MAX_ROWS,
    NO_CODE,
    RECORD,
    SIZES,
    TIMES,
    BlockHeader,
    Kind,
    SegmentHeader,
)

MAX_STRINGS: Final = 65_536
MAX_PAYLOAD: Final = 65_536
_MAX_ATTEMPTS: Final = 0xFFFF
_ROW: Final = int(Kind.DELIVERY)  # a look-up in the enum costs 0.08 us
_BATCH: Final = int(Kind.BATCH)
_MIN_BATCH_ROWS: Final = 2  # rows; for fewer a BATCH takes more records than single rows
_pack_row: Final = DELIVERY.pack_into


class SegmentEncoder:
    """Encodes one segment and passes each block to `emit`. The caller writes the header first.

    `now` is the (mono_ns, wall_ms) of the next block header: set it before adding.
    """

    def __init__(self, header: SegmentHeader, emit: Callable[[bytes], None]) -> None:
        self.header = header
        self.now = header.mono_ns, header.wall_ms
        self.next_seq = header.first_seq
        self.next_change = header.first_change
        self.size = HEADER
        """Bytes emitted so far, with the header."""
        self._emit = emit
        self._buffer = bytearray(RECORD * (1 + MAX_RECORDS))
        self._records = 0
        self._blocks = 0
        self._block_seq = header.first_seq
        self._strings: dict[str, int] = {}
        self.targets: set[int] = set()
        """Numbers of the targets that this segment defines."""

    @property
    def is_full(self) -> bool:
        """Whether the segment should end: only some thousand more texts have ids left."""
        return len(self._strings) >= MAX_STRINGS - 16_384

    @property
    def pending(self) -> tuple[int, bytes]:
        """The first row number of the open block, and its records."""
        return self._block_seq, bytes(self._buffer[RECORD : RECORD * (1 + self._records)])

    def string_id(self, text: str | None) -> int:
        """The id of `text`, which its first use defines; 0 for None. A long text is cut."""
        if text is None:
            return 0
        known = self._strings.get(text)
        return self._new_string(text) if known is None else known

    def _new_string(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")  # an error text can have a lone surrogate
        if len(data) > layout.MAX_STRING:
            data = data[: layout.MAX_STRING].decode("utf-8", "ignore").encode()
        id = self._strings[text] = len(self._strings) + 1
        parts = max(1, -(-len(data) // layout.STRING_BYTES))
        self._ensure_room(parts)
        for part in range(parts):
            chunk = data[part * layout.STRING_BYTES : (part + 1) * layout.STRING_BYTES]
            self._add(layout.STRING, Kind.STRING, part, id, len(data), chunk)
        return id

    def add_target(self, target: Target) -> None:
        """Define `target`, unless this segment has defined it."""
        if target.target in self.targets:
            return
        texts = [
            self.string_id(each) for each in (target.ingress, target.egress, target.topic, target.subscriber)
        ]
        self.targets.add(target.target)
        self._add(
            layout.TARGET,
            Kind.TARGET,
            target.target,
            target.delivery,
            *texts,
            target.period_ns,
            target.tuned_ns,
        )

    def pack_row(
        self,
        flags: int,
        verdict: int,
        code: int,
        type: int,
        priority: int,
        attempts: int,
        msb: int,
        lsb: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
        target: int,
        source: int,
        sink: int,
        size: int,
        ttl_ms: int,
        reason: int,
        epoch: int,
    ) -> None:
        """Add the row `next_seq`; target and texts by their ids. 0.5 us."""
        if self._records == MAX_RECORDS:
            self.end_block()
        place = self._records + 1
        seq = self.next_seq
        _pack_row(
            self._buffer,
            place * RECORD,
            _ROW,
            flags,
            verdict,
            code,
            type,
            priority,
            attempts if attempts < _MAX_ATTEMPTS else _MAX_ATTEMPTS,  # noqa: FURB136 - 0.1 us less than min()
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
        )
        self._records = place
        self.next_seq = seq + 1

    def pack_rows(
        self,
        flags: int,
        type: int,
        priority: int,
        target: int,
        source: int,
        sink: int,
        ttl_ms: int,
        epoch: int,
        batch: BatchNote,
        begin: int,
    ) -> int:
        """Add rows of a batch from row `begin` on as one BATCH; return how many fit in this block.

        Returns 0 for fewer than two. The fast path of `pack_row`, in a fifth of the bytes: 0.03 us a row instead of
        0.5 us. test_batch_note.py compares both.
        """
        times_ns, sizes = batch.times_ns, batch.sizes
        columns = [batch.msbs, batch.lsbs]
        at_ns, size, width = times_ns, sizes[0], 16
        if not isinstance(times_ns, int):
            columns.append(times_ns)
            at_ns, flags, width = 0, flags | TIMES, 24
        each = sizes.tobytes()
        if each != each[:4] * len(sizes):  # a tenth of the time of count()
            columns.append(sizes)
            size, flags, width = 0, flags | SIZES, width + 4
        count = len(sizes)
        number = min(count - begin, MAX_ROWS, (MAX_RECORDS - self._records - 1) * RECORD // width)
        if number < _MIN_BATCH_ROWS:
            return 0
        if number < count:
            columns = [column[begin : begin + number] for column in columns]
        records = -(-number * width // RECORD)
        seq, head = self.next_seq, RECORD * (self._records + 1)
        BATCH.pack_into(
            self._buffer,
            head,
            _BATCH,
            flags,
            number,
            type,
            priority,
            records,
            seq,
            at_ns,
            batch.settled_ns,
            target,
            source,
            sink,
            ttl_ms,
            epoch,
            size,
        )
        head += RECORD
        length = RECORD * records
        self._buffer[head : head + length] = b"".join(columns).ljust(length, b"\0")
        self._records += 1 + records
        self.next_seq = seq + number
        return number

    def row(self, row: Row) -> None:
        """Add a row with its own number."""
        self.add_target(row.target)
        source, sink, reason = (
            self.string_id(row.source),
            self.string_id(row.sink),
            self.string_id(row.reason),
        )
        if row.request is not None:
            self.ensure_room_for_answer()
        self._continue_at(row.seq)
        self.pack_row(
            (HELD if row.held else 0) | (0 if row.ttl_ms is None else HAS_TTL),
            row.verdict,
            NO_CODE if row.code is None else row.code,
            row.type,
            row.priority,
            row.attempts,
            row.id.msb,
            row.id.lsb,
            row.arrived_ns,
            row.received_ns,
            row.first_attempt_ns,
            row.settled_ns,
            row.target.target,
            source,
            sink,
            row.size,
            row.ttl_ms or 0,
            reason,
            row.epoch,
        )
        if row.request is not None:
            self.answer(row.request.msb, row.request.lsb)

    def ensure_room_for_answer(self) -> None:
        """Keep a row and its ANSWER in one block: call it before the row."""
        self._ensure_room(2)

    def _continue_at(self, seq: int) -> None:
        if self._block_seq == self.next_seq:
            self._block_seq = seq
        self.next_seq = seq

    def answer(self, msb: int, lsb: int) -> None:
        """Add the request that the previous row answers; after `ensure_room_for_answer`."""
        self._add(layout.ANSWER, Kind.ANSWER, self.next_seq - 1, msb, lsb)

    def letter(self, letter: Letter) -> None:
        """Add a dead letter. Raises ValueError for a payload above MAX_PAYLOAD bytes."""
        payload = letter.payload
        kept_bytes = 0 if payload is None else len(payload)
        if kept_bytes > MAX_PAYLOAD:
            raise ValueError(f"payload of {kept_bytes} bytes: expected at most {MAX_PAYLOAD}")
        self.add_target(letter.target)
        texts = [self.string_id(each) for each in (letter.source, letter.sink, letter.reason)]
        parts = -(-kept_bytes // layout.PAYLOAD_BYTES)
        self._ensure_room(1 + parts)
        self._add(
            layout.DEAD_LETTER,
            Kind.DEAD_LETTER,
            0 if payload is None else layout.PAYLOAD_KEPT,
            NO_CODE if letter.code is None else letter.code,
            letter.seq,
            letter.id.msb,
            letter.id.lsb,
            letter.time_ns,
            letter.target.target,
            *texts,
            letter.attempts,
            letter.size,
            kept_bytes,
            parts,
        )
        for part in range(parts):
            assert payload is not None
            chunk = payload[part * layout.PAYLOAD_BYTES : (part + 1) * layout.PAYLOAD_BYTES]
            self._add(layout.PAYLOAD, Kind.PAYLOAD, part, kept_bytes, letter.seq, chunk)

    def samples(self, samples: Samples) -> None:
        """Add payloads, compressed together. The caller bounds them: all parts are in one block."""
        whole = bytearray()
        for each in samples.samples:
            topic = self.string_id(each.topic)
            whole += layout.SAMPLE.pack(
                each.id.msb,
                each.id.lsb,
                each.arrived_ns,
                topic,
                each.size,
                len(each.payload),
                each.format,
            )
            whole += each.payload
        packed = compress(whole, 1) if whole else b""
        parts = -(-len(packed) // layout.SAMPLES_PART_BYTES)
        self._ensure_room(1 + parts)
        self._add(
            layout.SAMPLES,
            Kind.SAMPLES,
            layout.ZLIB,
            parts,
            len(samples.samples),
            len(whole),
            len(packed),
            samples.from_ns,
            samples.until_ns,
            samples.dropped,
        )
        for part in range(parts):
            chunk = packed[part * layout.SAMPLES_PART_BYTES : (part + 1) * layout.SAMPLES_PART_BYTES]
            self._add(layout.SAMPLES_PART, Kind.SAMPLES_PART, part, len(packed), chunk)

    def change(self, change: SubscriptionChange) -> None:
        topic, subscriber = self.string_id(change.topic), self.string_id(change.subscriber)
        self._add(
            layout.SUBSCRIPTION,
            Kind.SUBSCRIPTION,
            change.change,
            change.number,
            change.time_ns,
            change.period_ns,
            topic,
            subscriber,
        )
        self.next_change = change.number + 1

    def anchor(self, anchor: Anchor) -> None:
        self._add(
            layout.ANCHOR, Kind.ANCHOR, anchor.cause, anchor.mono_ns, anchor.wall_ms, anchor.clock_step_ms
        )

    def gap(self, gap: Gap) -> None:
        """Add a gap. The next row has the number after the missing rows."""
        self._continue_at(gap.first_seq)
        self._add(
            layout.GAP,
            Kind.GAP,
            gap.cause,
            gap.first_seq,
            gap.from_ns,
            gap.until_ns,
            *gap.rows,
            gap.changes,
            gap.letters,
        )
        self.next_seq = gap.first_seq + sum(gap.rows)
        self.next_change += gap.changes

    def config(self, config: Config) -> None:
        text = self.string_id(config.text)
        self._add(layout.CONFIG, Kind.CONFIG, config.epoch, config.since_ns, text)

    def counters(self, counters: Counters) -> None:
        ledger = counters.ledger
        self._add(
            layout.COUNTERS,
            Kind.COUNTERS,
            counters.cause,
            counters.mono_ns,
            ledger.received,
            ledger.delivered,
            ledger.throttled,
            ledger.expired,
            ledger.dead_lettered,
            ledger.denied,
            ledger.no_subscriber,
            ledger.queued,
            counters.next_seq,
            counters.skipped,
        )

    def end(self, end: End) -> None:
        self._add(layout.END, Kind.END, end.cause, end.mono_ns, end.wall_ms, end.next_seq, end.next_change)

    # --- blocks -------------------------------------------------------------------------------------------------------

    def end_block(self) -> None:
        """Emit the open block, if it has records."""
        if not self._records:
            return
        length = RECORD * (1 + self._records)
        records = memoryview(self._buffer)[RECORD:length]
        BlockHeader(
            self._records,
            crc32(records),
            self.header.run,
            self.header.number,
            self._blocks,
            self._block_seq,
            self.next_seq,
            *self.now,
        ).pack_into(self._buffer)
        block = bytes(memoryview(self._buffer)[:length])
        self._records = 0
        self._blocks += 1
        self._block_seq = self.next_seq
        self.size += length
        self._emit(block)

    def _ensure_room(self, records: int) -> None:
        if self._records + records > MAX_RECORDS:
            self.end_block()

    def _add(self, record: struct.Struct, *fields: int | bytes) -> None:
        self._ensure_room(1)
        record.pack_into(self._buffer, RECORD * (self._records + 1), *fields)
        self._records += 1
