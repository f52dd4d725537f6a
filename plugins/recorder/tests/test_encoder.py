# SPDX-License-Identifier: Apache-2.0
"""A BATCH and its columns: bytes, rows, and inconsistent records."""

import struct
from array import array
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_recorder.batch_note import BatchNote
from ustreamer_recorder.encoder import SegmentEncoder
from ustreamer_recorder.events import Anchor, Damage, Event, Row, Target
from ustreamer_recorder.layout import (
    BATCH,
    HAS_TTL,
    HEADER,
    MAX_RECORDS,
    MAX_ROWS,
    RECORD,
    SIZES,
    TIMES,
    BlockHeader,
    Kind,
    SegmentHeader,
)
from ustreamer_recorder.lost_blocks import count_lost
from ustreamer_recorder.note_queue import Skipped
from ustreamer_recorder.reader import read_segment

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

HEAD = SegmentHeader("hpc.vin1", run=77, number=3, mono_ns=5, wall_ms=1_700_000_000_000)
TARGET = Target(3, 1, "chassis", "backbone")
ATTRIBUTES = UAttributes(type=UMessageType.PUBLISH, source=UUri("chassis", 1, 1, 0x8000))
SOURCE = "//chassis/1/1/8000"
_u64 = st.integers(0, 2**64 - 1)
_times = st.integers(0, 2**63 - 1)
_sizes = st.integers(0, 2**32 - 1)


def batch_note(count: int, times_ns: "int | list[int]" = 40, sizes: "int | list[int]" = 9) -> BatchNote:
    """Ids are such that a column of them looks like records of this kind."""
    return BatchNote(
        ATTRIBUTES,
        Delivery.__new__(Delivery),  # not used here
        array("Q", [(0x0101_0101_0101_0101 * Kind.BATCH + n) & 2**64 - 1 for n in range(count)]),
        array("Q", [1 << 63 | n for n in range(count)]),
        array("I", [sizes] * count if isinstance(sizes, int) else sizes),
        times_ns if isinstance(times_ns, int) else array("Q", times_ns),
        99,
    )


def expected(given: BatchNote, number: int, seq: int, ttl_ms: int | None = None) -> Row:
    at_ns = given.time_ns(number)
    return Row(
        seq=seq,
        id=UUID(given.msbs[number], given.lsbs[number]),
        verdict=Verdict.DELIVERED,
        target=TARGET,
        type=UMessageType.NOTIFICATION,
        source=SOURCE,
        sink="//hpc/1/1/0",
        priority=4,
        size=given.sizes[number],
        arrived_ns=at_ns,
        received_ns=at_ns,
        first_attempt_ns=at_ns,
        settled_ns=99,
        attempts=1,
        ttl_ms=ttl_ms,
        epoch=6,
    )


class EncodedSegment:
    """A segment with a target; its encoder continues."""

    def __init__(self) -> None:
        self.parts = [HEAD.pack()]
        self.encoder = SegmentEncoder(HEAD, self.parts.append)
        self.encoder.add_target(TARGET)
        self.source, self.sink = self.encoder.string_id(SOURCE), self.encoder.string_id("//hpc/1/1/0")

    def pack(self, given: BatchNote, begin: int = 0, ttl_ms: int | None = None) -> int:
        flags = 0 if ttl_ms is None else HAS_TTL
        type, priority, target = UMessageType.NOTIFICATION, 4, TARGET.target
        return self.encoder.pack_rows(
            flags, type, priority, target, self.source, self.sink, ttl_ms or 0, 6, given, begin
        )

    def data(self) -> bytes:
        self.encoder.end_block()
        return b"".join(self.parts)

    def read(self) -> list[Event | Damage]:
        return [each for each in read_segment(self.data()) if not isinstance(each, Target)]

    def records(self) -> bytes:
        """The data that waits for the end of the block, without the target and the texts."""
        return self.encoder.pending[1][5 * RECORD :]


def rewritten(data: bytes, at: int, form: str, value: object) -> bytes:
    """One block with another field at `at` after its header, and valid checksums."""
    changed = bytearray(data)
    struct.pack_into(form, changed, HEADER + RECORD + at, value)
    head = BlockHeader.find(data, HEADER)
    assert head is not None
    head._replace(records_crc=crc32(changed[HEADER + RECORD :])).pack_into(changed, HEADER)
    return bytes(changed)


@given(
    ids=st.lists(st.tuples(_u64, _u64), min_size=2, max_size=100),
    rng=st.data(),
    ttl_ms=st.none() | st.integers(0, 2**32 - 1),
)
def test_each_row_of_a_batch_is_read_back_unchanged(
    ids: list[tuple[int, int]], rng: st.DataObject, ttl_ms: int | None
) -> None:
    count = len(ids)
    times_ns = rng.draw(_times | st.lists(_times, min_size=count, max_size=count))
    sizes = rng.draw(_sizes | st.lists(_sizes, min_size=count, max_size=count))
    given = batch_note(count, times_ns, sizes)
    for number, (msb, lsb) in enumerate(ids):
        given.msbs[number], given.lsbs[number] = msb, lsb
    made = EncodedSegment()
    assert made.pack(given, 0, ttl_ms) == count
    assert made.pack(given, 0, ttl_ms) == count
    rows = [expected(given, number % count, number, ttl_ms) for number in range(2 * count)]
    assert made.read() == rows


@pytest.mark.parametrize(
    ("times_ns", "sizes", "flags", "width"),
    [(40, 9, 0, 16), ([1] * 99 + [2], 9, TIMES, 24), (40, [1] * 99 + [2], SIZES, 20)],
)
def test_only_numbers_that_differ_have_a_column(
    times_ns: "int | list[int]", sizes: "int | list[int]", flags: int, width: int
) -> None:
    made = EncodedSegment()
    assert made.pack(batch_note(100, times_ns, sizes)) == 100
    records = made.records()
    fields = BATCH.unpack_from(records)
    assert (fields[:3], fields[5]) == ((Kind.BATCH, flags, 100), -(-100 * width // RECORD))
    assert len(records) == RECORD * (1 + fields[5])
    assert not any(records[RECORD + 100 * width :])


def test_a_common_time_has_no_column() -> None:
    made = EncodedSegment()
    made.pack(batch_note(3, times_ns=[7, 7, 8], sizes=[5, 5, 5]))
    fields = BATCH.unpack_from(made.records())
    assert (fields[1], fields[7], fields[14]) == (TIMES, 0, 5)


def test_a_single_message_is_no_batch() -> None:
    """It would take two records."""
    made = EncodedSegment()
    assert made.pack(batch_note(1)) == 0
    assert made.pack(batch_note(5), begin=4) == 0
    assert made.pack(batch_note(5), begin=3) == 2
    assert made.read() == [expected(batch_note(5), 3, 0), expected(batch_note(5), 4, 1)]


@pytest.mark.parametrize("left", range(20))
@pytest.mark.parametrize("times_ns", [40, list(range(100))])
def test_a_block_takes_as_many_rows_as_fit(left: int, times_ns: "int | list[int]") -> None:
    made, given = EncodedSegment(), batch_note(100, times_ns)
    while made.encoder._records < MAX_RECORDS - left:
        made.encoder.anchor(Anchor(1, 2))
    room = max(left - 1, 0) * RECORD // (16 if isinstance(times_ns, int) else 24)
    taken = made.pack(given)
    assert taken == min(room, 100)
    assert made.encoder._records <= MAX_RECORDS
    assert made.encoder._records + 1 >= MAX_RECORDS or taken == 100
    made.encoder.end_block()
    assert made.pack(given, taken) == 100 - taken
    rows = [each for each in read_segment(made.data()) if isinstance(each, Row)]
    assert rows == [expected(given, number, number) for number in range(100)]


def test_a_long_batch_is_written_in_parts() -> None:
    made, given = EncodedSegment(), batch_note(2 * MAX_ROWS + 2)
    assert [made.pack(given, begin) for begin in (0, MAX_ROWS, 2 * MAX_ROWS)] == [MAX_ROWS, MAX_ROWS, 2]
    assert made.read() == [expected(given, number, number) for number in range(2 * MAX_ROWS + 2)]


def test_columns_of_a_batch_are_not_read_as_records() -> None:
    """Whatever they look like; an ANSWER behind them is not theirs, and they are not that of a row before."""
    made, given = EncodedSegment(), batch_note(20)
    request = UUID(1, 2)
    before = expected(given, 0, 0)
    for seq in (0, 21):
        made.encoder.row(
            Row(**{name: getattr(before, name) for name in Row.__struct_fields__} | {"seq": seq})
        )
        made.encoder.next_seq = seq + 1
        if not seq:
            assert made.pack(given) == 20
    made.encoder.answer(1, 2)
    found = [each for each in made.read() if isinstance(each, Row)]
    assert [each.seq for each in found] == list(range(22))
    assert [each.seq for each in found if each.request == request] == [21]
    assert found[1:21] == [expected(given, number, 1 + number) for number in range(20)]


@pytest.mark.parametrize(
    ("at", "form", "value", "reason"),
    [
        (2, "<H", 0, "0 rows in 4 records: expected 0"),
        (2, "<H", 25, "25 rows in 4 records: expected 5"),
        (2, "<H", 18, "18 rows in 4 records: expected 3"),
        (2, "<H", 1025, "1025 rows in 4 records: expected 171"),
        (6, "<H", 3, "20 rows in 3 records: expected 4"),
        (6, "<H", 9, "20 rows in 9 records: expected 4"),
        (1, "<B", TIMES, "20 rows in 4 records: expected 5"),
        (2, "6s", struct.pack("<HBBH", 0, 4, 4, 0), "0 rows in 0 records: expected 0"),
        (2, "6s", struct.pack("<HBBH", 60, 4, 4, 10), "60 rows in 10 records: 5 are left in its block"),
        (32, "<I", 8, "target 8 is not known"),
        (36, "<I", 80, "string 80 is not known"),
        (4, "<B", 77, "77 is not a valid UMessageType"),
    ],
)
def test_an_inconsistent_batch_is_damage(at: int, form: str, value: object, reason: str) -> None:
    made, given = EncodedSegment(), batch_note(20)
    made.pack(given)
    offset = 5 * RECORD
    made.encoder.answer(1, 2)  # of no row: the data after the columns
    data = rewritten(made.data(), offset + at, form, value)
    found = [each for each in read_segment(data) if not isinstance(each, Target)]
    assert all(isinstance(each, Damage) for each in found)
    first = found[0]
    assert isinstance(first, Damage)
    assert (first.offset, first.reason) == (HEADER + RECORD + offset, f"BATCH: {reason}")
    assert first.raw == data[first.offset : first.offset + RECORD]


def test_rows_of_a_lost_batch_are_counted() -> None:
    """Ids are such that their bytes would count too, if they were taken for records."""
    made = EncodedSegment()
    made.pack(batch_note(20))
    made.pack(batch_note(7, list(range(7))))
    _, waiting = made.encoder.pending
    made.encoder.end_block()
    for data in (waiting, made.parts[1]):
        lost = Skipped()
        assert count_lost(data, lost) == 0
        assert lost.rows == [27, 0, 0, 0, 0, 0]
        assert (lost.changes, lost.letters, lost.from_ns, lost.until_ns) == (0, 0, 99, 99)


def test_a_batch_takes_a_fifth_of_the_bytes() -> None:
    made = EncodedSegment()
    made.pack(batch_note(128))
    assert len(made.records()) < 128 * RECORD / 5
