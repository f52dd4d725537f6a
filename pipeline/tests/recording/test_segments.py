# SPDX-License-Identifier: Apache-2.0
"""The reader with files from the writer of the recorder: valid, truncated anywhere, damaged anywhere."""

import random
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from tests.sample_recordings import MS, NOON_MS, ROW, TARGET, TOPIC, Record, expected, make_row
from ustreamer_pipeline.recording.events import event_batch, find_event_rows
from ustreamer_pipeline.recording.layout import ANCHOR, CELL, DELIVERY, END, HEADER, SUBSCRIPTION, TYPES
from ustreamer_pipeline.recording.rows import DAY_US, TextPool, day_of, day_text, record_batches, rows_of
from ustreamer_pipeline.recording.segments import (
    RecordingRefused,
    Segment,
    parse_name,
    read_header,
    read_segment,
)
from ustreamer_pipeline.schemas import (
    COUNTERS,
    DEAD_LETTERS,
    EPOCHS,
    GAPS,
    LEAPS,
    QUARANTINE,
    SEGMENTS,
    SUBSCRIPTIONS,
)
from ustreamer_recorder import reader
from ustreamer_recorder.events import (
    Anchor,
    Config,
    Counters,
    Gap,
    Letter,
    Row,
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import AnchorCause, CountersCause, EndCause, GapCause

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID


def read(path: Path) -> Segment:
    return read_segment(path.read_bytes(), path.name)


def columns(segment: Segment) -> list[dict[str, object]]:
    pool = TextPool()
    rows = rows_of(segment, pool, "f", 0, detail=False)
    return [row for batch in record_batches(rows, pool, 0, "g") for row in batch.to_pylist()]


def any_row(rng: random.Random, seq: int, targets: list[Target]) -> Row:
    """A row with random fields, including extremes."""
    texts = [None, "//a.very.long.authority/" + "x" * rng.randrange(200), TOPIC, "//ä.ö/1/1/0"]
    return Row(
        seq,
        UUID(rng.getrandbits(63), rng.getrandbits(64)),
        Verdict(rng.randrange(6)),
        rng.choice(targets),
        UMessageType(rng.randrange(1, 5)),
        TOPIC,
        rng.choice(texts),
        rng.randrange(7),
        rng.choice([0, 2**32 - 1, 100]),
        seq * 1000,
        seq * 1000 + rng.randrange(1000),
        rng.choice([0, seq * 1000 + 1]),
        seq * 1000 + 2000,
        rng.choice([0, 1, 65_535]),
        rng.choice([None, 0, 2**32 - 1]),
        rng.choice([None, 0, 14]),
        rng.choice(texts),
        rng.randrange(1000),
        rng.random() < 0.5,
        rng.choice([None, UUID(rng.getrandbits(63) | 1, rng.getrandbits(64))]),
    )


@pytest.mark.parametrize("seed", range(5))
def test_every_field_of_every_row_is_read_as_written(record: Record, seed: int) -> None:
    rng = random.Random(seed)
    targets = [
        TARGET,
        Target(2, 0, "chassis"),
        Target(2**32 - 1, 9, "a", "b", "//t/1/1/8000", "//s/1/1/0", 2**50, 7),
    ]
    rows = [any_row(rng, seq, targets) for seq in range(500)]
    got = columns(read(record(rows, block=rng.randrange(1, 200))))
    assert len(got) == len(rows)
    for row, have in zip(rows, got, strict=True):
        wanted = expected(row)
        assert {name: have[name] for name in wanted} == wanted


def test_every_other_event_is_a_row_of_its_table(record: Record) -> None:
    ledger = LedgerSnapshot(21, 1, 2, 3, 4, 5, 6, 0)
    payload = bytes(range(256)) * 2
    path = record(
        [
            Config(3, 5 * MS, '{"egress": {}, "throttle": null}'),
            SubscriptionChange(0, MS, Change.CHANGED, "//v/FFFF/1/FFFF", "//s/1/1/0", 7),
            Letter(4, ROW.id, 2 * MS, TARGET, TOPIC, None, 3, 600, 14, "gone", payload),
            Letter(5, ROW.id, 2 * MS, Target(8, 0, "in"), TOPIC, "//k/1/1/0", 0, 0, None, None, None),
            Letter(6, ROW.id, 2 * MS, TARGET, TOPIC, None, 0, 0, 4, "late", b""),
            Gap(10, GapCause.DISK, MS, 3 * MS, (1, 2, 3, 4, 5, 6), 7, 8),
            Anchor(10 * MS, NOON_MS + 60_010, AnchorCause.CLOCK_STEP, 60_000),
            Counters(CountersCause.STOPPED, 11 * MS, ledger, 31, 21),
        ],
    )
    listed = [(table.name, row) for table, _, row in find_event_rows(read(path), "f", 0)]
    us = NOON_MS * 1000
    assert [row for name, row in listed if name == EPOCHS.name] == [
        {
            "run": 1,
            "epoch": 3,
            "since_us": us + 5_000,
            "since_ns": 5 * MS,
            "settings": '{"egress": {}, "throttle": null}',
        }
    ]
    (change,) = [row for name, row in listed if name == SUBSCRIPTIONS.name]
    assert (
        change["change"],
        change["topic"],
        change["subscriber"],
        change["period_ns"],
        change["time_us"],
    ) == (
        "CHANGED",
        "//v/FFFF/1/FFFF",
        "//s/1/1/0",
        7,
        us + 1_000,
    )
    letters = [row for name, row in listed if name == DEAD_LETTERS.name]
    assert [(row["seq"], row["endpoint"], row["payload"], row["code"], row["reason"]) for row in letters] == [
        (4, "backbone", payload, 14, "gone"),
        (5, "in", None, None, None),
        (6, "backbone", b"", 4, "late"),
    ]
    (gap,) = [row for name, row in listed if name == GAPS.name]
    assert (gap["cause"], gap["first_seq"], gap["rows"], gap["no_subscriber"]) == ("DISK", 10, 21, 6)
    assert (gap["changes"], gap["letters"], gap["until_us"]) == (7, 8, us + 3_000)
    (books,) = [row for name, row in listed if name == COUNTERS.name]
    assert (books["final"], books["received"], books["queued"], books["next_seq"]) == (True, 21, 0, 31)
    assert books["time_us"] == us + 60_000_000 + 11_000, "behind a leap of a minute"
    (segment,) = [row for name, row in listed if name == SEGMENTS.name]
    assert (segment["end"], segment["began_us"], segment["rows"]) == ("STOPPED", us, 0)
    assert (segment["began_ns"], gap["from_ns"], gap["until_ns"]) == (0, MS, 3 * MS)
    assert [row for name, row in listed if name == LEAPS.name] == [
        {"run": 1, "time_us": us + 60_010_000, "time_ns": 10 * MS, "leap_ms": 60_000}
    ]
    assert QUARANTINE.name not in {name for name, _ in listed}


@pytest.mark.parametrize("cause", GapCause)
def test_every_cause_of_a_gap_is_read(record: Record, cause: GapCause) -> None:
    segment = read(record([Gap(0, cause, MS, MS, (1, 0, 0, 0, 0, 0), 0, 0)]))
    assert [row["cause"] for table, _, row in find_event_rows(segment, "f", 0) if table is GAPS] == [
        cause.name
    ]


def test_a_file_truncated_anywhere_yields_the_blocks_before_the_cut(record: Record) -> None:
    path = record([make_row(seq) for seq in range(12)], block=3)
    whole = path.read_bytes()
    every = columns(read(path))
    got: list[dict[str, object]] = []
    for length in range(HEADER, len(whole)):
        segment = read_segment(whole[:length], path.name)
        got = columns(segment)
        assert got == every[: len(got)]
        assert segment.length <= length
        assert not segment.faults
        assert segment.torn == any(whole[segment.length : length])
    assert len(got) == 12
    assert read(path).end is not None


def test_an_open_file_is_read_up_to_its_preallocated_zeros(record: Record) -> None:
    path = record([make_row(seq) for seq in range(5)], still_open=True)
    segment = read_segment(path.read_bytes() + bytes(100_000), path.name)
    assert len(columns(segment)) == 5
    assert (segment.torn, segment.end) == (False, None)


def damaged(whole: bytes, seed: int) -> Iterator[tuple[int, bytes]]:
    rng = random.Random(seed)
    for _ in range(150):
        at = rng.randrange(HEADER, len(whole))
        broken = bytearray(whole)
        broken[at] ^= 1 << rng.randrange(8)
        yield at, bytes(broken)


def test_a_bit_error_loses_its_block_with_a_fault_and_invents_no_row(record: Record) -> None:
    path = record([make_row(seq, reason="late", code=4) for seq in range(200)], block=20)
    whole = path.read_bytes()
    every = {row["seq"]: row for row in columns(read(path))}
    for at, broken in damaged(whole, 1):
        segment = read_segment(broken, path.name)
        got = columns(segment)
        lost = set(every) - {row["seq"] for row in got}
        assert segment.faults or segment.torn, at
        assert len(lost) <= 20
        for row in got:
            if row["fault"] is None:
                assert row == every[row["seq"]]
            else:
                assert "is not in the file" in str(row["fault"])
        if segment.faults:
            (fault,) = segment.faults
            # Losses are known by number: each missing row is in the range of a fault.
            assert lost <= set(range(fault.first_seq, fault.first_seq + fault.rows))
            assert whole[fault.offset : fault.offset + 4] == b"UBLK"


def test_lost_rows_become_a_gap_and_their_bytes_are_quarantined(record: Record) -> None:
    path = record([make_row(seq, seq * 10.0) for seq in range(90)], block=30)
    whole = bytearray(path.read_bytes())
    second = [at for at in range(HEADER, len(whole), CELL) if whole[at : at + 4] == b"UBLK"][2]
    whole[second + 5 * CELL + 40] ^= 1
    listed = [
        (table.name, row) for table, _, row in find_event_rows(read_segment(bytes(whole), path.name), "f", 60)
    ]
    (gap,) = [row for name, row in listed if name == GAPS.name]
    assert (gap["cause"], gap["first_seq"], gap["rows"]) == ("DAMAGED", 30, 30)
    (bad,) = [row for name, row in listed if name == QUARANTINE.name]
    assert bad["offset"] == second
    assert bad["raw"][:4] == b"UBLK"
    assert len(bad["raw"]) <= 4096


def test_a_removed_block_is_detected(record: Record) -> None:
    path = record([make_row(seq) for seq in range(90)], block=30)
    whole = path.read_bytes()
    blocks = [at for at in range(HEADER, len(whole), CELL) if whole[at : at + 4] == b"UBLK"]
    (fault,) = read_segment(whole[: blocks[2]] + whole[blocks[3] :], path.name).faults
    assert (fault.first_seq, fault.rows) == (30, 30)


def header_with(data: bytes, offset: int, form: str, value: object) -> bytes:
    """A file with a changed header and a valid checksum."""
    head = bytearray(data)
    struct.pack_into(form, head, offset, value)
    head[28:32] = bytes(4)
    struct.pack_into("<I", head, 28, crc32(head[:HEADER]))
    return bytes(head)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: b"", "0 bytes of a header"),
        (lambda data: data[:287], "287 bytes of a header"),
        (lambda data: bytes(5_000), "288 bytes of a header, or zeros"),
        (lambda data: b"PK" + data[2:], "begins with b'PK"),
        (lambda data: header_with(data, 8, "<H", 3), "layout 3: this version reads 1, 2"),
        (lambda data: data[:100] + b"?" + data[101:], "does not match its checksum"),
        (lambda data: header_with(data, 10, "<H", 64), "does not match its checksum"),
        (lambda data: header_with(data, 14, "<H", 0), "does not match its checksum"),
        (lambda data: header_with(data, 96, "<2s", b"\xff\xff"), "the authority is not UTF-8"),
        (lambda data: header_with(data, 16, "<Q", 1 << 63), "run 9223372036854775808: expected 0 to"),
        (lambda data: header_with(data, 40, "<q", 1 << 62), "wall_ms 4611686018427387904: expected 0 to"),
        (lambda data: header_with(data, 40, "<q", -1), "wall_ms -1: expected 0 to 140737488355327"),
        (lambda data: header_with(data, 48, "<Q", 1 << 63), "first_seq 9223372036854775808: expected 0 to"),
        (lambda data: header_with(data, 16, "<Q", 9), "the header says 0000000000000009, 0"),
        (lambda data: header_with(data, 24, "<I", 3), "the header says 0000000000000001, 3"),
    ],
)
def test_an_unusable_file_is_refused_with_a_reason(record: Record, change: object, reason: str) -> None:
    path = record([make_row(0)])
    with pytest.raises(RecordingRefused, match=reason):
        read_segment(change(path.read_bytes()), path.name)  # type: ignore[operator]


@pytest.mark.parametrize(
    "name", ["x.useg", "1-0.useg", "0000000000000001-000000.useg.tmp", "000000000000000G-000000.useg"]
)
def test_an_invalid_file_name_is_refused(name: str) -> None:
    with pytest.raises(RecordingRefused, match="expected <run, 16 hex digits>"):
        parse_name(name)


def test_the_header_is_read_with_the_gateways_whole_name(record: Record) -> None:
    path = record([], gateway="ü" * 96, run=2**63 - 1, number=7, first_seq=2**40)
    header = read_header(path.read_bytes(), path.name)
    assert (header.gateway, header.run, header.number, header.first_seq) == ("ü" * 96, 2**63 - 1, 7, 2**40)


def test_records_with_unresolved_references_are_quarantined(record: Record) -> None:
    """The block with the texts is damaged; the rows after it are valid but refer to missing texts."""
    change = SubscriptionChange(0, 1, Change.SUBSCRIBED, TOPIC, "//s/1/1/0", 0)
    path = record([make_row(0), *(make_row(seq) for seq in range(1, 6)), change], block=1)
    whole = bytearray(path.read_bytes())
    text = whole.find(TOPIC.encode())
    whole[text] ^= 1
    segment = read_segment(bytes(whole), path.name)
    got = columns(segment)
    assert [row["seq"] for row in got] == [1, 2, 3, 4, 5]
    assert {row["fault"] for row in got} == {"source: string 3 is not in the file"} or all(
        row["fault"] for row in got
    )
    bad = [row["reason"] for table, _, row in find_event_rows(segment, "f", 0) if table is QUARANTINE]
    assert any("topic: string" in reason for reason in bad)


@pytest.mark.parametrize("wall_ms", [1 << 62, -(1 << 63), (1 << 63) - 1])
def test_every_time_of_an_absurd_wall_clock_has_a_date(record: Record, wall_ms: int) -> None:
    path = record([make_row(0), make_row(1)], cause=EndCause.STOPPED)
    segment = read_segment(path.read_bytes(), path.name)
    cells = segment.cells.copy()
    for kind in (ANCHOR, END):
        cells.view(TYPES[kind])["wall_ms"][segment.positions_of(kind)] = wall_ms
    absurd = replace(segment, cells=cells)
    days = set(day_of(rows_of(absurd, TextPool(), "f", 0, detail=False)["received_us"]).tolist())
    listed = list(find_event_rows(absurd, "f", 2))
    for day in days | {wall_us // DAY_US for _, wall_us, _ in listed}:
        assert day_text(day) >= "1970"
        event_batch(listed, day, "g")


def test_a_change_without_a_subscriber_is_quarantined(record: Record) -> None:
    path = record([SubscriptionChange(0, 1, Change.SUBSCRIBED, TOPIC, "//s/1/1/0", 0)])
    segment = read_segment(path.read_bytes(), path.name)
    cells = segment.cells.copy()
    cells.view(TYPES[SUBSCRIPTION])["subscriber"][segment.positions_of(SUBSCRIPTION)] = 0
    rows = list(find_event_rows(replace(segment, cells=cells), "f", 0))
    assert [row["reason"] for table, _, row in rows if table is QUARANTINE] == ["subscriber: expected one"]
    assert not [row for table, _, row in rows if table is SUBSCRIPTIONS]


def test_rows_without_ascending_numbers_are_quarantined(record: Record) -> None:
    segment = read(record([make_row(seq) for seq in (3, 4, 4, 2, 5)], first_seq=3))
    pool = TextPool()
    rows = rows_of(segment, pool, "f", 4, detail=False)
    faults = pool.column(rows["fault"]).to_pylist()
    there = "seq {}: was there already".format
    assert faults == [there(3), None, there(4), there(2), None]


@pytest.mark.parametrize("seed", range(20))
def test_both_readers_accept_the_same_rows_of_a_file_with_several_faults(record: Record, seed: int) -> None:
    """The oracle: the reader of the recorder, record by record in plain Python."""
    rng = random.Random(seed)
    path = record([any_row(rng, seq, [TARGET, Target(2, 0, "x")]) for seq in range(150)], block=10)
    whole = bytearray(path.read_bytes())
    for _ in range(rng.randrange(1, 4)):
        whole[rng.randrange(HEADER, len(whole))] ^= 1 << rng.randrange(8)
    cut = rng.choice([len(whole), rng.randrange(HEADER, len(whole))])
    data = bytes(whole[:cut])
    theirs = [event.seq for event in reader.read_segment(data) if isinstance(event, Row)]
    ours = [row["seq"] for row in columns(read_segment(data, path.name)) if row["fault"] is None]
    assert ours == theirs


def test_wall_time_follows_the_last_anchor_and_is_rounded_down(record: Record) -> None:
    leap = Anchor(10 * MS, NOON_MS - 5_000, AnchorCause.CLOCK_STEP, -5_010)
    segment = read(record([make_row(0, 1.0), leap, make_row(1, 20.0)]))
    assert len(segment.records(ANCHOR)) == 2
    wall = segment.wall_us(np.array([-1, 999, 10 * MS - 1, 10 * MS, 20 * MS + 999]))
    us = NOON_MS * 1000
    assert wall.tolist() == [us - 1, us, us + 9_999, us - 5_000_000, us - 5_000_000 + 10_000]
    assert len(segment.records(DELIVERY)) == 2


def test_a_file_without_an_end_record_is_unfinished(record: Record) -> None:
    assert read(record([make_row(0)], cause=None)).end is None
    assert read(record([make_row(0)], number=1, cause=EndCause.ROTATED)).end["cause"] == 0  # type: ignore[index]
