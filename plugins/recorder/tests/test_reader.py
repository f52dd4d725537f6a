# SPDX-License-Identifier: Apache-2.0
"""A segment is read back unchanged, and damaged bytes give no wrong events."""

import random
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from zlib import compress, crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_recorder.encoder import MAX_PAYLOAD, MAX_STRINGS, SegmentEncoder
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
    SubscriptionChange,
    Target,
)
from ustreamer_recorder.layout import (
    HEADER,
    MAX_RECORDS,
    RECORD,
    SAMPLE,
    SAMPLES,
    SAMPLES_PART,
    ZLIB,
    AnchorCause,
    BlockHeader,
    CountersCause,
    Damaged,
    EndCause,
    GapCause,
    Kind,
    SegmentHeader,
)
from ustreamer_recorder.reader import Block, read_blocks, read_header, read_segment
from ustreamer_recorder.writer import SegmentWriter

from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.routing.subscriptions import Change
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

VERDICTS = [each for each in Verdict if each is not Verdict.QUEUED]
TYPES = [each for each in UMessageType if each]

_u32 = st.integers(0, 2**32 - 1)
_u64 = st.integers(0, 2**64 - 1)
_i64 = st.integers(-(2**63), 2**63 - 1)
_ids = st.builds(UUID, _u64, _u64)
# Long ones too, that need more than one record, and such as have more bytes than characters.
_texts = st.one_of(st.text(max_size=20), st.text("aé€𝄞", min_size=60, max_size=300))
_some = st.none() | _texts
_targets = st.integers(1, 5).flatmap(
    # A number is the id of one target, permanently.
    lambda number: st.just(
        Target(
            number, number // 2, f"in{number}", "out" * (number % 2) or None, "t" * 50 * number, None, number
        )
    )
)

rows = st.builds(
    Row,
    seq=_u64.filter(lambda seq: seq < 2**63),
    id=_ids,
    verdict=st.sampled_from(VERDICTS),
    target=_targets,
    type=st.sampled_from(TYPES),
    source=_texts,
    sink=_some,
    priority=st.integers(0, 6),
    size=_u32,
    arrived_ns=_i64,
    received_ns=_i64,
    first_attempt_ns=_i64,
    settled_ns=_i64,
    attempts=st.integers(0, 65535),
    ttl_ms=st.none() | _u32,
    code=st.none() | st.integers(0, 16),
    reason=_some,
    epoch=_u32,
    held=st.booleans(),
    request=st.none() | _ids,
)
letters = st.builds(
    Letter,
    seq=_u64,
    id=_ids,
    time_ns=_i64,
    target=_targets,
    source=_texts,
    sink=_some,
    attempts=_u32,
    size=_u32,
    code=st.none() | st.integers(0, 16),
    reason=_some,
    payload=st.none() | st.binary(max_size=300),
)
changes = st.builds(
    SubscriptionChange,
    _u64.filter(lambda number: number < 2**63),
    _i64,
    st.sampled_from(Change),
    _texts,
    _texts,
    _i64,
)
_six = st.tuples(*[_u32] * 6)
gaps = st.builds(
    Gap,
    _u64.filter(lambda seq: seq < 2**62),
    st.sampled_from(GapCause),
    _i64,
    _i64,
    _six,
    st.integers(0, 2**32),
    _u64,
)
anchors = st.builds(Anchor, _i64, _i64, st.sampled_from(AnchorCause), _i64)
configs = st.builds(Config, _u32, _i64, _texts)
ledgers = st.builds(LedgerSnapshot, *[_u64] * 8)
counters = st.builds(Counters, st.sampled_from(CountersCause), _i64, ledgers, _u64, _u64)
events: st.SearchStrategy[Event] = st.one_of(rows, rows, letters, changes, gaps, anchors, configs, counters)


def row(seq: int, target: Target | None = None, **fields: object) -> Row:
    """A publication, delivered."""
    at = 1_000_000 * (seq + 1)
    given = {
        "seq": seq,
        "id": UUID((1_700_000_000_000 + seq) << 16 | 0x7000, 0b10 << 62 | seq),
        "verdict": Verdict.DELIVERED,
        "target": target or Target(1, 1, "chassis", "backbone", "up://chassis/1234/1/8001"),
        "type": UMessageType.PUBLISH,
        "source": "up://chassis/1234/1/8001",
        "sink": None,
        "priority": 1,
        "size": 100,
        "arrived_ns": at,
        "received_ns": at,
        "first_attempt_ns": at + 10,
        "settled_ns": at + 20,
        "attempts": 1,
    }
    return Row(**{**given, **fields})  # type: ignore[arg-type]


def rows_of(events: Sequence[object]) -> list[Row]:
    return [each for each in events if isinstance(each, Row)]


HEAD = SegmentHeader("hpc.vin1", run=77, number=3, mono_ns=5, wall_ms=1_700_000_000_000)


def segment(given: list[Event], per_block: int = 0) -> bytes:
    """A file with these events, in blocks of that many events, or in as few blocks as possible."""
    parts = [HEAD.pack()]
    encoder = SegmentEncoder(HEAD, parts.append)
    for number, event in enumerate(given):
        add(encoder, event)
        if per_block and number % per_block == per_block - 1:
            encoder.end_block()
    encoder.end_block()
    data = b"".join(parts)
    assert len(data) == encoder.size
    return data


def add(encoder: SegmentEncoder, event: Event) -> None:
    names = {"Row": "row", "SubscriptionChange": "change"}
    name = type(event).__name__
    getattr(encoder, names.get(name, name.lower()))(event)


def read(data: bytes) -> tuple[list[Event], list[Damage]]:
    """Events but for targets, which rows name; and damage."""
    found = list(read_segment(data))
    events: list[Event] = [e for e in found if not isinstance(e, (Damage, Target))]
    return events, [e for e in found if isinstance(e, Damage)]


@given(st.lists(events, max_size=20), st.integers(0, 4))
def test_events_are_read_back_unchanged(given: list[Event], per_block: int) -> None:
    assert read(segment(given, per_block)) == (given, [])


def test_many_rows_make_blocks_with_contiguous_numbers() -> None:
    given: list[Event] = [row(seq) for seq in range(3 * MAX_RECORDS)]
    data = segment(given)
    found = list(read_blocks(data, HEAD))
    headers = [each.header for each in found if isinstance(each, Block)]
    assert len(headers) == len(found) == 4
    assert max(each.records for each in headers) == MAX_RECORDS
    assert [each.number for each in headers] == [0, 1, 2, 3]
    assert all(before.next_seq == after.first_seq for before, after in pairwise(headers))
    assert (headers[0].first_seq, headers[-1].next_seq) == (0, len(given))
    assert read(data) == (given, [])


def test_related_records_are_in_one_block() -> None:
    """A Response and its ANSWER, a text and its parts, a dead letter and its payload: whatever is in front of them."""
    for before in range(MAX_RECORDS - 20, MAX_RECORDS + 1):
        answer = row(before, request=row(7).id)
        letter = Letter(
            before, answer.id, 5, answer.target, "s" * 300, None, 1, 900, payload=bytes(range(250)) * 3
        )
        given: list[Event] = [*map(row, range(before - 3)), answer, letter]
        assert read(segment(given)) == (given, [])


def test_long_texts_are_cut_and_invalid_ones_escaped() -> None:
    cut, odd = row(0, reason="€" * 30_000), row(1, reason="bad \udc80")
    found, damage = read(segment([cut, odd]))
    assert [each.reason for each in rows_of(found)] == ["€" * 21_845, r"bad \udc80"]
    assert damage == []


def test_a_payload_above_the_maximum_is_refused() -> None:
    letter = Letter(0, row(0).id, 0, row(0).target, "s", None, 0, 0, payload=bytes(MAX_PAYLOAD + 1))
    with pytest.raises(ValueError, match="payload of 65537 bytes: expected at most 65536"):
        segment([letter])
    data = segment([Letter(0, row(0).id, 0, row(0).target, "s", None, 0, 0, payload=bytes(MAX_PAYLOAD))])
    assert read(data)[1] == []


def test_a_number_that_does_not_fit_is_rejected_without_side_effects() -> None:
    parts: list[bytes] = [HEAD.pack()]
    encoder = SegmentEncoder(HEAD, parts.append)
    with pytest.raises(Exception, match="format requires"):
        encoder.row(row(0, size=2**32))
    encoder.row(row(0))
    encoder.end_block()
    assert read(b"".join(parts)) == ([row(0)], [])


def test_a_segment_with_too_many_texts_reports_that_it_is_full() -> None:
    encoder = SegmentEncoder(HEAD, lambda _: None)
    count = 0
    while not encoder.is_full:
        encoder.string_id(f"text {count}")
        count += 1
    assert count == MAX_STRINGS - 16_384


# ------------------------------------------------------------------------------------------ decoding of bytes


def small() -> tuple[bytes, list[Event]]:
    """Four blocks, with all references to other blocks."""
    here, there = Target(1, 1, "chassis", "backbone", "topic"), Target(2, 2, "chassis")
    given: list[Event] = [
        row(0, here),
        row(1, there, reason="why " * 30),
        row(2, here, request=row(9).id),
        SubscriptionChange(0, 5, Change.SUBSCRIBED, "topic", "subscriber"),
        Letter(2, row(2).id, 6, there, "from", "to", 3, 200, 8, "full", b"payload" * 20),
        Anchor(5, 6, AnchorCause.CLOCK_STEP, 7),
        row(3, here, reason="why " * 30),
        End(EndCause.STOPPED, 1, 2, 4, 1),
    ]
    return segment(given, per_block=2), given


def is_part_of(found: list[Event], given: list[Event]) -> bool:
    """Whether `found` is `given` with some left out."""
    rest = iter(given)
    return all(any(each == other for other in rest) for each in found)


def test_every_wrong_bit_is_found_and_no_wrong_event_is_read() -> None:
    data, given = small()
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        try:
            found, damage = read(bytes(wrong))
        except Damaged:
            assert bit < 8 * HEADER
            continue
        assert damage, f"bit {bit} was not noticed"
        assert is_part_of(found, given)
        assert bit >= 8 * HEADER


def test_a_wrong_bit_invalidates_its_block_and_the_rows_that_refer_to_it() -> None:
    data, given = small()
    last = [each for each in read_blocks(data, HEAD) if isinstance(each, Block)][-1]
    wrong = bytearray(data)
    wrong[last.offset - 1] ^= 1
    found, damage = read(bytes(wrong))
    assert found == [*given[:4], *given[6:]]
    assert [(each.torn, each.reason) for each in damage] == [(False, "no whole block 2 until block 3")]


def test_a_row_whose_target_is_lost_is_quarantined_and_not_guessed() -> None:
    given: list[Event] = [row(0), row(1)]
    data = bytearray(segment(given, per_block=1))
    data[HEADER + RECORD] ^= 1  # the first text, and so the whole first block
    found, damage = read(bytes(data))
    assert found == []
    assert [each.reason for each in damage] == [
        "no whole block 0 until block 1",
        "DELIVERY: target 1 is not known",
    ]
    assert damage[1].raw == data[damage[1].offset : damage[1].offset + RECORD]


def test_every_length_of_a_cut_file_gives_whole_blocks_and_a_torn_tail() -> None:
    data, given = small()
    ends = [each.end for each in read_blocks(data, HEAD) if isinstance(each, Block)]
    for length in range(HEADER, len(data)):
        found, damage = read(data[:length])
        whole = sum(end <= length for end in ends)
        assert found == given[: 2 * whole]
        torn = bool(data[max([HEADER, *ends[:whole]]) : length].rstrip(b"\0"))
        assert [each.torn for each in damage] == [True] * torn


def test_zeros_after_the_last_block_are_the_end() -> None:
    data, given = small()
    assert read(data + bytes(100 * RECORD)) == (given, [])


@given(st.integers(0, 10**6))
def test_random_bytes_give_no_wrong_rows(seed: int) -> None:
    """A stretch of the file is overwritten, with noise or with another stretch of it."""
    data, given = small()
    rng = random.Random(seed)
    wrong = bytearray(data)
    length = rng.randrange(1, 400)
    at, source = rng.randrange(len(data) - length), rng.randrange(len(data) - length)
    wrong[at : at + length] = rng.choice(
        [rng.randbytes(length), data[source : source + length], bytes(length)]
    )
    try:
        found, _ = read(bytes(wrong))
    except Damaged:
        return
    assert is_part_of(found, given)


def test_blocks_of_another_file_do_not_count() -> None:
    data, given = small()
    other = SegmentHeader("hpc.vin1", run=77, number=4, mono_ns=5, wall_ms=1_700_000_000_000)
    parts = [data]
    encoder = SegmentEncoder(other, parts.append)
    encoder.row(row(9))
    encoder.end_block()
    found, damage = read(b"".join(parts))
    assert found == given
    assert [each.torn for each in damage] == [True]


def test_a_missing_block_in_between_is_noticed() -> None:
    data, given = small()
    second = [each for each in read_blocks(data, HEAD) if isinstance(each, Block)][1]
    found, damage = read(data[: second.offset] + data[second.end :])
    assert is_part_of(found, given)
    assert damage[0].reason == "block 2: expected 1"


def test_a_record_of_a_later_kind_is_skipped() -> None:
    data = bytearray(segment([row(0), row(1)]))
    for record in range(HEADER + RECORD, len(data), RECORD):
        if data[record] == 3:
            data[record] = 200
            break
    head = BlockHeader.find(data, HEADER)
    assert head is not None
    head._replace(records_crc=crc32(data[HEADER + RECORD :])).pack_into(data, HEADER)
    assert read(bytes(data)) == ([row(1)], [])


def with_records(*records: bytes) -> bytes:
    """A file with one block of these records."""
    data = bytearray(segment([Anchor(5, 6, AnchorCause.CLOCK_STEP, 7)] * len(records)))
    data[HEADER + RECORD :] = b"".join(records)
    head = BlockHeader.find(data, HEADER)
    assert head is not None
    head._replace(records_crc=crc32(data[HEADER + RECORD :])).pack_into(data, HEADER)
    return bytes(data)


def test_samples_that_end_early_are_damage() -> None:
    empty = SAMPLES.pack(Kind.SAMPLES, ZLIB, 0, 1, 0, 0, 0, 0, 0)
    _, damage = read(with_records(empty))
    assert [each.reason for each in damage] == ["SAMPLES: ends before sample 0 of 1"]
    whole = SAMPLE.pack(1, 2, 3, 1, 6, 6, 0) + b"short"
    packed = compress(whole)
    head = SAMPLES.pack(Kind.SAMPLES, ZLIB, 1, 1, len(whole), len(packed), 0, 0, 0)
    _, damage = read(with_records(head, SAMPLES_PART.pack(Kind.SAMPLES_PART, 0, len(packed), packed)))
    assert [each.reason for each in damage] == ["SAMPLES_PART: sample 0 has 5 bytes of payload: expected 6"]


# -------------------------------------------------------------------------------------------------------- as files


def test_a_writer_makes_a_file_with_an_anchor_an_end_and_its_name(tmp_path: Path) -> None:
    with SegmentWriter(tmp_path, HEAD) as writer:
        writer.add_event(row(0))
        assert [each.name for each in tmp_path.iterdir()] == ["000000000000004d-000003.useg.open"]
    path = tmp_path / "000000000000004d-000003.useg"
    assert list(tmp_path.iterdir()) == [path]
    found = list(read_segment(path.read_bytes(), path.name))
    assert found == [
        Anchor(5, 1_700_000_000_000),
        row(0).target,
        row(0),
        End(EndCause.STOPPED, 5, 1_700_000_000_000, 1, 0),
    ]
    assert read_header(path) == HEAD
    with pytest.raises(FileExistsError):
        SegmentWriter(tmp_path, HEAD)


@given(given=st.lists(events, max_size=10))
def test_a_writer_takes_every_event(given: list[Event], tmp_path_factory: pytest.TempPathFactory) -> None:
    writer = SegmentWriter(tmp_path_factory.mktemp("segments"), HEAD)
    for event in given:
        writer.add_event(event)
        writer.flush(8, 9)
    path = writer.close(None)
    assert read(path.read_bytes()) == ([Anchor(5, 1_700_000_000_000), *given], [])


def test_a_killed_writer_leaves_its_flushed_blocks(tmp_path: Path) -> None:
    writer = SegmentWriter(tmp_path, HEAD)
    writer.add_event(row(0))
    writer.flush(8, 9)
    writer.add_event(row(1))
    path = writer.abandon()
    found, damage = read(path.read_bytes())
    assert (rows_of(found), damage) == ([row(0)], [])
    assert Counter(type(each) for each in found) == {Anchor: 1, Row: 1}


def test_a_file_defines_each_target_once(tmp_path: Path) -> None:
    here, there = Target(1, 1, "chassis"), Target(2, 1, "chassis", period_ns=5)
    writer = SegmentWriter(tmp_path, HEAD)
    for event in (there, row(0, here), row(1, there), row(2, here)):
        writer.add_event(event)
    found = list(read_segment(writer.close().read_bytes()))
    assert [each for each in found if isinstance(each, Target)] == [there, here]
    assert [each.target for each in rows_of(found)] == [here, there, here]


def test_a_file_with_the_name_of_another_is_refused(tmp_path: Path) -> None:
    path = SegmentWriter(tmp_path, HEAD).close()
    with pytest.raises(
        Damaged, match="is segment 000000000000004d-000003.useg, not 000000000000004d-000004.useg"
    ):
        list(read_segment(path.read_bytes(), "000000000000004d-000004.useg"))
    assert list(read_segment(path.read_bytes(), path.name + ".open"))
