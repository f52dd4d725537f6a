# SPDX-License-Identifier: Apache-2.0
"""The bytes of headers and records."""

import re
import struct
from enum import IntEnum
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_recorder import layout
from ustreamer_recorder.layout import (
    HEADER,
    RECORD,
    RECORDS,
    AnchorCause,
    BlockHeader,
    CountersCause,
    Damaged,
    EndCause,
    GapCause,
    Kind,
    SegmentHeader,
    segment_name,
)

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.subscriptions import Change

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
segment_headers = st.builds(SegmentHeader, st.text(max_size=48), u64, u32, i64, i64, u64, u64)


def test_every_kind_of_record_fits_the_grid() -> None:
    assert {kind: record.size for kind, record in RECORDS.items()} == dict.fromkeys(Kind, RECORD)


@given(segment_headers)
def test_a_header_is_read_back_unchanged(header: SegmentHeader) -> None:
    assert len(header.pack()) == HEADER
    assert SegmentHeader.unpack(header.pack()) == header


@given(segment_headers, st.integers(0, HEADER * 8 - 1))
def test_a_header_with_one_wrong_bit_is_refused(header: SegmentHeader, bit: int) -> None:
    data = bytearray(header.pack())
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Damaged):
        SegmentHeader.unpack(bytes(data))


@given(segment_headers, st.integers(0, HEADER - 1))
def test_a_header_that_is_cut_off_is_refused(header: SegmentHeader, length: int) -> None:
    with pytest.raises(Damaged, match=f"{length} bytes: expected a header of 288"):
        SegmentHeader.unpack(header.pack()[:length])


def test_a_later_layout_is_refused_by_its_number() -> None:
    data = bytearray(SegmentHeader("hpc", 1, 0, 0, 0).pack())
    data[8] = 3
    with pytest.raises(Damaged, match=r"layout 3: expected one of \[1, 2\]"):
        SegmentHeader.unpack(bytes(data))


def test_the_layout_without_batches_is_still_read() -> None:
    header = SegmentHeader("hpc", 1, 0, 5, 6)
    data = bytearray(header.pack())
    data[8] = 1
    data[28:32] = bytes(4)
    data[28:32] = crc32(data).to_bytes(4, "little")
    assert SegmentHeader.unpack(bytes(data)) == header


def test_an_authority_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="authority of 193 bytes: expected at most 192"):
        SegmentHeader("a" * 193, 1, 0, 0, 0).pack()


block_headers = st.builds(BlockHeader, st.integers(1, 2048), u32, u64, u32, u32, u64, u64, i64, i64)


@given(block_headers, st.integers(0, RECORD * 8 - 1))
def test_a_block_header_with_one_wrong_bit_is_not_found(header: BlockHeader, bit: int) -> None:
    data = bytearray(2 * RECORD)
    header.pack_into(data, RECORD)
    assert BlockHeader.find(data, RECORD) == header
    data[RECORD + bit // 8] ^= 1 << bit % 8
    assert BlockHeader.find(data, RECORD) is None
    assert BlockHeader.find(data, 0) is None
    assert BlockHeader.find(data[:-1], RECORD) is None


def test_names_of_segments_sort_by_run_and_number() -> None:
    names = [segment_name(run, number) for run in (1, 2**62) for number in (0, 9, 10)]
    assert names == sorted(names)
    assert names[0] == "0000000000000001-000000.useg"


# ------------------------------------------------------------------------------------------------------ the document

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recordings.md"
CODES = {"u8": "B", "u16": "H", "u32": "I", "string": "I", "u64": "Q", "i64": "q"}


def documented(section: str) -> list[tuple[int, str]]:
    """(offset, code of struct) of every field in the tables of a section."""
    fields = []
    for offset, type in re.findall(r"^\| (\d+) \| ([^|]+) \|", section, re.MULTILINE):
        if many := re.fullmatch(r"(\d+) \* (\w+)", type):
            step = struct.calcsize("<" + CODES[many[2]])
            fields += [(int(offset) + step * n, CODES[many[2]]) for n in range(int(many[1]))]
        else:
            length = re.fullmatch(r"(\d+) bytes", type)
            fields.append((int(offset), f"{length[1]}s" if length else CODES[type]))
    return fields


def in_code(record: struct.Struct) -> list[tuple[int, str]]:
    fields, at = [], 0
    for count, code in re.findall(r"(\d*)([a-zA-Z])", record.format):
        if code == "x":
            at += int(count or 1)
        elif code == "s":
            fields.append((at, count + code))
            at += int(count)
        else:
            for _ in range(int(count or 1)):
                fields.append((at, code))
                at += struct.calcsize("<" + code)
    return fields


def test_the_document_has_every_field_of_every_record() -> None:
    parts = re.split(r"^(?:\*\*\d+ (\w+)\*\*|#+ (.*)$)", PAGE.read_text(), flags=re.MULTILINE)
    sections = {kind or title: text for kind, title, text in zip(*[iter(parts[1:])] * 3, strict=True)}
    for kind, record in RECORDS.items():
        assert documented(sections[kind.name]) == in_code(record)[1:], kind.name  # byte 0 is the kind
        assert f"**{kind.value} {kind.name}**" in PAGE.read_text()
    assert documented(sections["Header"]) == in_code(layout._HEADER)
    assert documented(sections["Block header"]) == in_code(layout._BLOCK)
    assert documented(sections["Sample"]) == in_code(layout.SAMPLE)


@pytest.mark.parametrize("numbers", [Verdict, Change, AnchorCause, GapCause, CountersCause, EndCause])
def test_the_numbers_are_those_that_files_have(numbers: type[IntEnum]) -> None:
    """A change of one of these is a change of the layout."""
    known = {
        Verdict: "DELIVERED THROTTLED EXPIRED DEAD_LETTERED DENIED NO_SUBSCRIBER QUEUED",
        Change: "PRESENT SUBSCRIBED CHANGED UNSUBSCRIBED",
        AnchorCause: "SEGMENT CLOCK_STEP",
        GapCause: "OVERRUN DISK UNFIT",
        CountersCause: "RUNNING STOPPED",
        EndCause: "ROTATED STOPPED",
    }
    assert [each.name for each in numbers] == known[numbers].split()
    assert [each.value for each in numbers] == list(range(len(numbers)))
