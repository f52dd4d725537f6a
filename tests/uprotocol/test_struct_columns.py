# SPDX-License-Identifier: Apache-2.0
"""Columns of adjacent records equal the records unpacked row by row, for any number of records."""

from random import Random
from struct import Struct, error

import pytest

from ustreamer.uprotocol import struct_columns as module
from ustreamer.uprotocol.struct_columns import MAX_BATCH, unpack_columns, unpack_u64_columns

FORMATS = [
    "<Q",
    "<4xQxQ",
    "<4xQxQ23x",
    "<4xQxQ5x3xQxQ7x",
    "<4xQxQ0x3xQxQ0x",
    ">HHIHHBBBB5s7x",
    ">HHIHHBBBB0s0x",
    "!B",
    "<c3xbxx2s",
    ">xxxI",
]
NUMBERS = [*range(1, 131), 2 * MAX_BATCH, 2 * MAX_BATCH + 1]
BYTES = Random(1).randbytes(2 * MAX_BATCH * 64)


@pytest.mark.parametrize("record", FORMATS)
def test_columns_equal_the_records_unpacked_row_by_row(record: str) -> None:
    one = Struct(record)
    for number in NUMBERS:
        records = BYTES[: number * one.size]
        rows = [one.unpack_from(records, at * one.size) for at in range(number)]
        expected = [tuple(row[field] for row in rows) for field in range(len(rows[0]))]
        assert list(unpack_columns(record, records)) == expected
        assert list(unpack_columns(record, memoryview(bytearray(records)))) == expected


@pytest.mark.parametrize("record", ["<Q", "<4xQxQ", "<4xQxQ23x"])
def test_u64_columns_equal_the_generic_columns(record: str) -> None:
    size = Struct(record).size
    for number in (0, 1, 8, MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1):
        records = BYTES[: number * size]
        expected = [list(column) for column in unpack_columns(record, records)]
        assert [column.tolist() for column in unpack_u64_columns(record, records)] == expected


@pytest.mark.parametrize("record", FORMATS)
def test_no_records_give_empty_columns(record: str) -> None:
    fields = len(Struct(record).unpack(bytes(Struct(record).size)))
    assert list(unpack_columns(record, b"")) == [()] * fields


@pytest.mark.parametrize("number", [1, MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1])
def test_partial_records_are_refused(number: int) -> None:
    with pytest.raises(error):
        unpack_columns("<4xQxQ23x", BYTES[: number * 44 + 1])


def test_the_format_caches_are_bounded() -> None:
    for padding in range(600):
        unpack_columns(f"<B{padding}x", bytes(MAX_BATCH * (1 + padding)))
    for kept, most in ((module._record_struct, 256), (module._batch_struct, 64), (module._field_count, 256)):
        assert kept.cache_info().currsize <= most
