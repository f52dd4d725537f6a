# SPDX-License-Identifier: Apache-2.0
"""The bytes of a segment file. docs/recordings.md explains them to authors of readers.

    segment   header (288 bytes), block, block, ..., zeros up to the reserved size (only while it is written)
    block     block header (96), 1 to MAX_RECORDS records of 96 bytes
    record    its kind (1 byte), and the fields of RECORDS[kind]
              directly after a BATCH, records of columns only: the numbers of its rows, column by column

All numbers are little endian. Every record is RECORD bytes long, so block headers and records are on one grid. On
this grid a reader finds the next block after a damaged block. A block is valid as a whole or not at all. Its CRC-32
covers all of its records, and the CRC-32 of its header covers the header. Later blocks of the same file refer to
texts and targets of a block; other files do not.
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

LAYOUT: Final = 2
"""The layout of written files: 2 has BATCH records, 1 had none."""
LAYOUTS: Final = frozenset({1, 2})
"""The layouts that are read."""
RECORD: Final = 96
HEADER: Final = 3 * RECORD
MAX_RECORDS: Final = 2_048
"""Records of one block: one bad bit costs at most 196 kB."""
OPEN_SUFFIX: Final = ".useg.open"
SUFFIX: Final = ".useg"

MAGIC: Final = b"USEG\r\n\x1a\n"  # as in PNG: a copy in text mode or with seven bits damages it
BLOCK_MAGIC: Final = b"UBLK"
NO_CODE: Final = 255
"""`code` of a verdict without a reason."""


class Damaged(ValueError):
    """Damaged bytes: their offset in the file, and the error."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Kind(IntEnum):
    """The first byte of a record. A reader skips unknown kinds."""

    STRING = 1
    TARGET = 2
    DELIVERY = 3
    ANSWER = 4
    SUBSCRIPTION = 5
    DEAD_LETTER = 6
    PAYLOAD = 7
    ANCHOR = 8
    GAP = 9
    CONFIG = 10
    COUNTERS = 11
    END = 12
    BATCH = 13
    SAMPLES = 14
    SAMPLES_PART = 15


# ---------------------------------------------------------------------------------------------------- header, block

_HEADER: Final = struct.Struct("<8sHHHHQIIqqQQ32x192s")
_CRC_AT: Final = 28
_MAX_AUTHORITY: Final = 192  # bytes
_BLOCK: Final = struct.Struct("<4sIIIQIIQQqq32x")


class SegmentHeader(NamedTuple):
    """The header of a file.

    `mono_ns` and `wall_ms` are one moment on both clocks. `first_seq` is the number of the first row of the file,
    `first_change` that of its first subscription change.
    """

    authority: str
    run: int
    number: int
    mono_ns: int
    wall_ms: int
    first_seq: int = 0
    first_change: int = 0

    def pack(self) -> bytes:
        """ValueError for an authority of more than 192 bytes."""
        name = self.authority.encode()
        if len(name) > _MAX_AUTHORITY:
            raise ValueError(f"authority of {len(name)} bytes: expected at most {_MAX_AUTHORITY}")
        data = bytearray(
            _HEADER.pack(
                MAGIC,
                LAYOUT,
                RECORD,
                HEADER,
                len(name),
                self.run,
                self.number,
                0,
                self.mono_ns,
                self.wall_ms,
                self.first_seq,
                self.first_change,
                name,
            )
        )
        struct.pack_into("<I", data, _CRC_AT, crc32(data))
        return bytes(data)

    @classmethod
    def unpack(cls, data: bytes) -> "SegmentHeader":
        """Raises Damaged, also for a later layout."""
        if len(data) < HEADER:
            raise Damaged(0, f"{len(data)} bytes: expected a header of {HEADER}")
        magic, layout, record, header, length, run, number, crc, mono_ns, wall_ms, seq, change, name = (
            _HEADER.unpack_from(data)
        )
        if magic != MAGIC:
            raise Damaged(0, f"begins with {magic!r}: expected {MAGIC!r}")
        if layout not in LAYOUTS:
            raise Damaged(8, f"layout {layout}: expected one of {sorted(LAYOUTS)}")
        if (
            crc != crc32(data[:_CRC_AT] + bytes(4) + data[_CRC_AT + 4 : HEADER])
            or (record, header) != (RECORD, HEADER)
            or length > _MAX_AUTHORITY
        ):
            raise Damaged(0, "header does not match its checksum")
        try:
            authority = name[:length].decode()
        except UnicodeDecodeError as error:
            raise Damaged(HEADER - _MAX_AUTHORITY, f"authority is not UTF-8: {error}") from error
        return cls(authority, run, number, mono_ns, wall_ms, seq, change)


class BlockHeader(NamedTuple):
    """The header before the records of one flush. `first_seq` and `next_seq` bound its rows, with skipped rows.

    `records` follow it; `number` counts the blocks of a file from 0; `mono_ns` and `wall_ms` date the write.
    """

    records: int
    records_crc: int
    run: int
    segment: int
    number: int
    first_seq: int
    next_seq: int
    mono_ns: int
    wall_ms: int

    def pack_into(self, data: bytearray, offset: int = 0) -> None:
        _BLOCK.pack_into(
            data,
            offset,
            BLOCK_MAGIC,
            0,
            self.records_crc,
            self.records,
            self.run,
            self.segment,
            self.number,
            self.first_seq,
            self.next_seq,
            self.mono_ns,
            self.wall_ms,
        )
        struct.pack_into("<I", data, offset + 4, crc32(memoryview(data)[offset : offset + RECORD]))

    @classmethod
    def find(cls, data: bytes | bytearray | memoryview, offset: int) -> "BlockHeader | None":
        """The block header at `offset`; None if there is none or it is damaged."""
        head = bytes(data[offset : offset + RECORD])
        if len(head) < RECORD or not head.startswith(BLOCK_MAGIC):
            return None
        _, crc, records_crc, records, run, segment, number, first, following, mono_ns, wall_ms = (
            _BLOCK.unpack(head)
        )
        if crc != crc32(head[:4] + bytes(4) + head[8:]) or not 0 < records <= MAX_RECORDS:
            return None
        return cls(records, records_crc, run, segment, number, first, following, mono_ns, wall_ms)


# --------------------------------------------------------------------------------------------------------- records

STRING_BYTES: Final = 84
STRING: Final = struct.Struct("<BxHII84s")
"""kind, part (from 0), id, length of the whole in bytes, the bytes of this part."""
MAX_STRING: Final = 65_535

TARGET: Final = struct.Struct("<B3xIIIIIIqq52x")
"""kind, target, delivery, ingress, egress, topic, subscriber (strings), period_ns, tuned_ns."""

DELIVERY: Final = struct.Struct("<BBBBBBHQQQqqqqIIIIIII4x")
"""kind, flags, verdict, code, type, priority, attempts, seq, id msb, id lsb, arrived_ns, received_ns,
first_attempt_ns, settled_ns, target, source, sink, size, ttl_ms, reason, epoch.
"""
HELD: Final = 1
"""Flag: a filter held the message from arrived_ns to received_ns."""
HAS_TTL: Final = 2
"""Flag: the message has a ttl; without the flag ttl_ms is 0 and has no meaning."""

ANSWER: Final = struct.Struct("<B7xQQQ64x")
"""kind, seq of the row before, request id msb, lsb."""

SUBSCRIPTION: Final = struct.Struct("<BB6xQqqII56x")
"""kind, change, number, time_ns, period_ns, topic, subscriber."""

DEAD_LETTER: Final = struct.Struct("<BBBx4xQQQqIIIIIIII24x")
"""kind, flags, code, seq of its row, id msb, id lsb, time_ns, target, source, sink, reason, attempts, size, kept,
parts."""
PAYLOAD_KEPT: Final = 1
"""Flag: PAYLOAD records with the payload, or its beginning, follow. An empty payload that was kept has none."""

PAYLOAD_BYTES: Final = 80
PAYLOAD: Final = struct.Struct("<BxHIQ80s")
"""kind, part (from 0), length of the whole in bytes, seq of its row, the bytes of this part."""

ANCHOR: Final = struct.Struct("<BB6xqqq64x")
"""kind, cause, mono_ns, wall_ms, clock_step_ms."""

GAP: Final = struct.Struct("<BB6xQqq6QQQ")
"""kind, cause, first_seq, from_ns, until_ns; skipped: rows by verdict, subscription changes, dead letters."""

CONFIG: Final = struct.Struct("<B3xIqI76x")
"""kind, epoch, since_ns, text (a string: JSON)."""

COUNTERS: Final = struct.Struct("<BB6xq8QQQ")
"""kind, cause, mono_ns, received, delivered, throttled, expired, dead_lettered, denied, no_subscriber, queued,
next_seq, rows skipped in this run so far."""

END: Final = struct.Struct("<BB6xqqQQ56x")
"""kind, cause, mono_ns, wall_ms, next_seq, next number of a subscription change."""

BATCH: Final = struct.Struct("<BBHBBHQqqIIIIII40x")
"""kind, flags, rows, type, priority, records of columns after it, seq of the first row, time_ns, settled_ns, target,
source, sink, ttl_ms, epoch, size.

The columns: msbs (u64), lsbs (u64), with TIMES times_ns (i64), with SIZES sizes (u32), each of `rows` numbers, then
zeros up to the next record. A number with a column is 0 in the record itself.
"""
TIMES: Final = 4
"""Flag: each row has its own time."""
SIZES: Final = 8
"""Flag: each row has its own size."""
MAX_ROWS: Final = 1_024
"""Rows of one BATCH."""


def columns_records(rows: int, flags: int) -> int:
    """The number of records that the columns of a BATCH fill, with the zeros after them."""
    width = 16 + (8 if flags & TIMES else 0) + (4 if flags & SIZES else 0)
    return -(-rows * width // RECORD)


SAMPLES: Final = struct.Struct("<BBHIIIqqQ56x")
"""kind, compression (1: zlib), parts, samples, bytes of all samples, bytes compressed, from_ns, until_ns, dropped.

Payloads that the configuration selects by topic, and the number of those that were dropped since the last SAMPLES.
"""
ZLIB: Final = 1
SAMPLES_PART_BYTES: Final = 88
SAMPLES_PART: Final = struct.Struct("<BxHI88s")
"""kind, part (from 0), bytes of all parts, the bytes of this part."""

SAMPLE: Final = struct.Struct("<QQqIIIB3x")
"""One sample before compression, and `kept` bytes of payload after it: id msb, id lsb, arrived_ns, topic (a string),
size of the payload, kept, UPayloadFormat.
"""


RECORDS: Final = {
    Kind.STRING: STRING,
    Kind.TARGET: TARGET,
    Kind.DELIVERY: DELIVERY,
    Kind.ANSWER: ANSWER,
    Kind.SUBSCRIPTION: SUBSCRIPTION,
    Kind.DEAD_LETTER: DEAD_LETTER,
    Kind.PAYLOAD: PAYLOAD,
    Kind.ANCHOR: ANCHOR,
    Kind.GAP: GAP,
    Kind.CONFIG: CONFIG,
    Kind.COUNTERS: COUNTERS,
    Kind.END: END,
    Kind.BATCH: BATCH,
    Kind.SAMPLES: SAMPLES,
    Kind.SAMPLES_PART: SAMPLES_PART,
}


class AnchorCause(IntEnum):
    """Why an anchor was written: a file begins, or the wall clock was set."""

    SEGMENT = 0
    CLOCK_STEP = 1


class GapCause(IntEnum):
    """Why rows are missing: a full queue, an error of the disk, or a number that fits in no record."""

    OVERRUN = 0
    DISK = 1
    UNFIT = 2


class CountersCause(IntEnum):
    """While messages move, or at the end, when no message moves and the ledger is exact."""

    RUNNING = 0
    STOPPED = 1


class EndCause(IntEnum):
    """Why the file ends: the next file continues the run, or the streamer stopped in an orderly way."""

    ROTATED = 0
    STOPPED = 1


def segment_name(run: int, number: int) -> str:
    """The name of a finished segment; that of an open one is the same with OPEN_SUFFIX for SUFFIX."""
    return f"{run:016x}-{number:06d}{SUFFIX}"
