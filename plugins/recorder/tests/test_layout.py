# SPDX-License-Identifier: Apache-2.0
"""The bytes of headers and records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_recorder.layout import (
    HEADER,
    RECORD,
    RECORDS,
    BlockHeader,
    Damaged,
    Kind,
    SegmentHeader,
    segment_name,
)

u64 = st.integers(0, 2**64 - 1)
u32 = st.integers(0, 2**32 - 1)
i64 = st.integers(-(2**63), 2**63 - 1)
segment_headers = st.builds(SegmentHeader, st.text(max_size=48), u64, u32, i64, i64, u64, u64)


def test_every_kind_of_record_fits_the_grid() -> None:
    assert {kind: record.size for kind, record in RECORDS.items()} == dict.fromkeys(Kind, RECORD)


@given(segment_headers)
def test_a_header_comes_back_as_it_went(header: SegmentHeader) -> None:
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
    data[8] = 2
    with pytest.raises(Damaged, match="layout 2: expected 1"):
        SegmentHeader.unpack(bytes(data))


def test_an_authority_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="authority of 193 bytes: expected at most 192"):
        SegmentHeader("a" * 193, 1, 0, 0, 0).pack()


block_headers = st.builds(BlockHeader, st.integers(1, 2048), u32, u64, u32, u32, u64, u64, i64, i64)


@given(block_headers, st.integers(0, RECORD * 8 - 1))
def test_a_block_header_comes_back_and_is_not_found_with_one_wrong_bit(header: BlockHeader, bit: int) -> None:
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
