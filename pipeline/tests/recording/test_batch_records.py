# SPDX-License-Identifier: Apache-2.0
"""Expansion of BATCH records: the same rows as from the reader of the recorder, for valid, damaged and inconsistent
files.
"""

import random
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from tests.sample_recordings import NOON_MS, TOPIC, expected, make_row
from ustreamer_pipeline.bronze.landing import land
from ustreamer_pipeline.recording.batch_records import expand_batches
from ustreamer_pipeline.recording.events import find_event_rows
from ustreamer_pipeline.recording.layout import BATCH, CELL, DELIVERY, HEADER, TYPES
from ustreamer_pipeline.recording.rows import TextPool, record_batches, rows_of
from ustreamer_pipeline.recording.segments import Segment, read_segment
from ustreamer_pipeline.schemas import QUARANTINE
from ustreamer_recorder import layout, reader
from ustreamer_recorder.batch_note import BatchNote
from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import Row, Target
from ustreamer_recorder.layout import HAS_TTL, BlockHeader, SegmentHeader, segment_name

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuri import UUri

HEAD = SegmentHeader("hpc.vin1", 1, 0, 0, NOON_MS)
NAME = segment_name(1, 0)
TARGETS = [Target(1, 1, "chassis", "backbone", TOPIC, None, 5, 7), Target(2, 2, "chassis", "cloud")]
ATTRIBUTES = UAttributes(type=UMessageType.PUBLISH, source=UUri("chassis", 1, 1, 0x8000))


class RecordingBuilder:
    """A segment of single rows and batches of every shape, in blocks of any length."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.parts = [HEAD.pack()]
        self.encoder = SegmentEncoder(HEAD, self.parts.append)
        for target in TARGETS:
            self.encoder.add_target(target)
        self.texts = [self.encoder.string_id(TOPIC), self.encoder.string_id("//hpc/1/1/0")]

    def batch(self, count: int) -> None:
        rng = self.rng
        # Numbers that start with the codes of record kinds, as ids may.
        msbs = array("Q", [rng.getrandbits(56) << 8 | rng.choice([BATCH, DELIVERY, 4]) for _ in range(count)])
        lsbs = array("Q", [rng.getrandbits(64) for _ in range(count)])
        sizes = array("I", [rng.choice([5, 2**32 - 1]) for _ in range(count)])
        times_ns = array("Q", sorted(rng.randrange(10**12) for _ in range(count)))
        given = BatchNote(
            ATTRIBUTES,
            Delivery.__new__(Delivery),  # not read here
            msbs,
            lsbs,
            sizes if rng.random() < 0.5 else array("I", [9] * count),
            times_ns if rng.random() < 0.5 else rng.randrange(10**12),
            2 * 10**12,
        )
        ttl_ms = rng.choice([0, 0, 500])
        source, sink = self.texts[0], rng.choice([0, self.texts[1]])
        flags, target = HAS_TTL if ttl_ms else 0, rng.choice(TARGETS).target
        begin = 0
        while begin < count - 1:
            type, priority, epoch = rng.randrange(1, 5), rng.randrange(7), rng.randrange(9)
            begin += (
                self.encoder.pack_rows(
                    flags, type, priority, target, source, sink, ttl_ms, epoch, given, begin
                )
                or self.full()
            )

    def full(self) -> int:
        self.encoder.end_block()
        return 0

    def row(self) -> None:
        request = self.rng.choice([None, make_row(0).id])
        self.encoder.row(make_row(self.encoder.next_seq, target=self.rng.choice(TARGETS), request=request))

    def with_parts(self, parts: int, longest: int = 150) -> "RecordingBuilder":
        for _ in range(parts):
            what = self.rng.random()
            if what < 0.5:
                self.batch(self.rng.randrange(2, longest))
            elif what < 0.8:
                self.row()
            else:
                self.encoder.end_block()
        return self

    def data(self) -> bytes:
        self.encoder.end_block()
        return b"".join(self.parts)


def ours(segment: Segment) -> list[dict[str, object]]:
    pool = TextPool()
    rows = rows_of(segment, pool, "f", 0, detail=False)
    listed = [row for batch in record_batches(rows, pool, 0, "g") for row in batch.to_pylist()]
    return [row for row in listed if row["fault"] is None]


def theirs(data: bytes) -> list[dict[str, object]]:
    return [expected(row) for row in reader.read_segment(data) if isinstance(row, Row)]


def same(data: bytes) -> int:
    """Check that both readers find the same rows. Returns their number."""
    wanted, have = theirs(data), ours(read_segment(data, NAME))
    assert len(have) == len(wanted)
    for row, each in zip(have, wanted, strict=True):
        assert {name: row[name] for name in each} == each
    return len(wanted)


@pytest.mark.parametrize("seed", range(30))
def test_both_readers_find_the_same_rows(seed: int) -> None:
    assert same(RecordingBuilder(seed).with_parts(25).data()) > 100


def test_a_long_batch_and_many_blocks() -> None:
    assert same(RecordingBuilder(1).with_parts(12, longest=20_000).data()) > 20_000


@pytest.mark.parametrize("seed", range(30))
def test_both_readers_accept_the_same_rows_of_a_damaged_file(seed: int) -> None:
    story = RecordingBuilder(seed).with_parts(30)
    data = bytearray(story.data())
    for _ in range(story.rng.randrange(1, 4)):
        data[story.rng.randrange(HEADER, len(data))] ^= 1 << story.rng.randrange(8)
    same(bytes(data[: story.rng.choice([len(data), story.rng.randrange(HEADER, len(data))])]))


def batches_in(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Positions of each BATCH: the header of its block, the record, the end of its block."""
    for block in reader.read_blocks(data, HEAD):
        assert isinstance(block, reader.Block)
        at = block.offset + CELL
        while at < block.end:
            here, at = at, at + CELL
            if data[here] == BATCH:
                yield block.offset, here, block.end
                at += CELL * struct.unpack_from("<H", data, here + 6)[0]


def contradicting(data: bytes, rng: random.Random) -> tuple[bytes, int]:
    """An inconsistent BATCH below a valid checksum."""
    block, at, end = rng.choice(list(batches_in(data)))
    changed = bytearray(data)
    rows, records = struct.unpack_from("<H", data, at + 2)[0], struct.unpack_from("<H", data, at + 6)[0]
    match rng.randrange(6):
        case 0:
            struct.pack_into("<H", changed, at + 2, rng.choice([0, rows + 12, 1_025, 65_535]))
        case 1:
            struct.pack_into("<H", changed, at + 6, rng.choice([records + 1, records + 400, 65_535]))
        case 2:  # correct for a longer block
            changed[at + 1] &= 3
            struct.pack_into("<H", changed, at + 2, 6 * (end - at) // CELL)
            struct.pack_into("<H", changed, at + 6, (end - at) // CELL)
        case 3:  # no row, for which the columns are sufficient
            struct.pack_into("<H", changed, at + 2, 0)
            struct.pack_into("<H", changed, at + 6, 0)
        case 4:
            struct.pack_into("<H", changed, at + 6, 0)
        case _:
            changed[at + 1] ^= 12  # columns present or not
    head = BlockHeader.find(changed, block)
    assert head is not None
    head._replace(records_crc=crc32(changed[block + CELL : end])).pack_into(changed, block)
    return bytes(changed), at


@pytest.mark.parametrize("seed", range(40))
def test_an_inconsistent_batch_is_quarantined_and_the_next_block_is_read(seed: int) -> None:
    story = RecordingBuilder(seed).with_parts(6)
    story.batch(24)  # so that one exists
    story.encoder.end_block()
    story.batch(24)
    data, at = contradicting(story.with_parts(6).data(), story.rng)
    if not any(batch == at for _, batch, _ in batches_in(data)):
        pytest.skip("it is not found any more")
    same(data)
    segment = read_segment(data, NAME)
    bad = [row for table, _, row in find_event_rows(segment, NAME, 0) if table is QUARANTINE]
    assert any(row["offset"] == at and "no BATCH is like that" in str(row["reason"]) for row in bad)


def test_the_quarantine_has_position_and_bytes_of_a_row_from_a_batch() -> None:
    story = RecordingBuilder(0)
    story.encoder.targets.clear()
    story.texts[0] = 77  # a source that the file does not contain
    story.batch(30)
    data = story.data()
    ((_, at, _),) = batches_in(data)
    pool = TextPool()
    rows = rows_of(read_segment(data, NAME), pool, NAME, 0, detail=True)
    listed = [row for batch in record_batches(rows, pool, 0, "g") for row in batch.to_pylist()]
    assert {(row["fault"], row["offset"]) for row in listed} == {("source: string 77 is not in the file", at)}
    assert [struct.unpack_from("<BxxxxxxxQ", row["raw"]) for row in listed] == [
        (DELIVERY, seq) for seq in range(30)
    ]


def test_records_without_batches_are_not_copied() -> None:
    cells, offsets = np.zeros(5, f"V{CELL}"), np.arange(5, dtype=np.int64)
    got = expand_batches(cells, offsets)
    assert got[0] is cells
    assert got[1] is offsets
    none = np.zeros(0, f"V{CELL}")
    assert len(expand_batches(none, offsets[:0])[0]) == 0


def test_a_lake_counts_the_rows_of_batches(tmp_path: Path) -> None:
    story = RecordingBuilder(3).with_parts(20)
    path = tmp_path / NAME
    path.write_bytes(story.data())
    (tmp_path / "lake").mkdir()
    segment = land(str(path), str(tmp_path / "lake")).segment
    assert segment is not None
    assert segment.rows == len(theirs(story.data())) == story.encoder.next_seq


def test_the_batch_record_has_the_fields_of_the_recorder() -> None:
    data = RecordingBuilder(5).with_parts(10).data()
    _, at, _ = next(batches_in(data))
    record = np.frombuffer(data, TYPES[BATCH], 1, at)[0]
    fields = [int(record[name]) for name in TYPES[BATCH].names or ()]
    assert fields == list(layout.BATCH.unpack_from(data, at))
