# SPDX-License-Identifier: Apache-2.0
"""Properties of the codecs: sizes, permitted successors, and the scalars that are decoded together."""

import struct

import pytest
from ustreamer_payloads.arrays import DynamicArray, FixedArray
from ustreamer_payloads.codec import Bytes, Codec, Prefixed, describe_value
from ustreamer_payloads.config import ArrayShape, BytesShape, StringShape
from ustreamer_payloads.records import FlatRecordCodec, Member, RecordCodec, record_codec
from ustreamer_payloads.scalars import BitField, Scalar, bit_fields, enumeration
from ustreamer_payloads.tagged import Tagged, TlvRecordCodec
from ustreamer_payloads.texts import MARKS, Text, read_text
from ustreamer_payloads.unions import Union, Variant

U8, U16, U32 = Scalar("u8"), Scalar("u16"), Scalar("u32le")
TEXT = Text(None, "utf-8", bom=True, nul=True)
FLAT = record_codec([Member("a", U16), Member("b", U8)])
MIXED = record_codec([Member("a", U16), Member("b", U32)])
NUMBER = Variant(1, "n", U16)


@pytest.mark.parametrize(
    ("codec", "size", "least", "open_ended"),
    [
        (U32, 4, 4, False),
        (enumeration("i64", {"a": 1}), 8, 8, False),
        (bit_fields("u16", (BitField("a", 0, 1),)), 2, 2, False),
        (TEXT, None, 0, True),
        (Text(8, "utf-8", bom=True, nul=True), 8, 8, False),
        (Bytes(None), None, 0, True),
        (Bytes(3), 3, 3, False),
        (Prefixed(TEXT, 2), None, 2, False),
        (FixedArray(U16, 3), 6, 6, False),
        (FixedArray(Prefixed(TEXT, 2), 3), None, 6, False),
        (DynamicArray(U16, 3), None, 0, True),
        (FLAT, 3, 3, False),
        (MIXED, 6, 6, False),
        (record_codec([Member("a", U8), Member("b", U8, align=4)]), None, 2, False),
        (record_codec([Member("a", U8), Member("b", TEXT)]), None, 1, True),
        (Union([NUMBER], 4, 4, 1), None, 8, False),
        (Union([NUMBER], 0, 1, 1), 3, 3, False),
        (TlvRecordCodec([Tagged(1, "a", U8, scalar=True)], 4), None, 0, True),
    ],
)
def test_the_sizes_of_a_type(codec: Codec, size: int | None, least: int, open_ended: bool) -> None:
    assert (codec.size, codec.min_size, codec.open_ended) == (size, least, open_ended)


def test_scalars_of_one_byte_order_are_read_together_and_by_their_thousands() -> None:
    assert isinstance(FLAT, FlatRecordCodec)
    assert not isinstance(MIXED, FlatRecordCodec)
    assert isinstance(MIXED, RecordCodec)
    many = struct.pack(">" + 1000 * "HB", *(number % 256 for number in range(2000)))
    values, end = DynamicArray(FLAT, 1000).decode(many, 0, len(many))
    assert isinstance(values, list)
    assert (len(values), end) == (1000, 3000)
    assert values[999] == {"a": 1998 % 256, "b": 1999 % 256}


def test_no_byte_after_the_end_is_read() -> None:
    assert U16.decode(b"\0\1\0\2", 2, 4) == (2, 4)
    for codec in (U16, FLAT, FixedArray(U16, 2), Bytes(2), Union([NUMBER], 0, 1, 1)):
        with pytest.raises(ValueError, match="are left"):
            codec.decode(bytes(100), 10, 11)


@pytest.mark.parametrize("encoding", MARKS)
def test_a_byte_order_mark_overrides_the_configured_encoding(encoding: str) -> None:
    assert all(read_text(MARKS[encoding] + "é".encode(encoding), other, 0) == "é" for other in MARKS)


def test_a_type_of_variable_size_has_a_length_field_of_32_bits_by_default() -> None:
    assert (StringShape().length_bits, BytesShape(size=3).length_bits) == (32, 0)
    assert (ArrayShape(of="u8").length_bits, ArrayShape(of="u8", count=3).length_bits) == (32, 0)
    assert ArrayShape(of="u8", count=3, length=8).length_bits == 8


def test_a_value_in_an_error_is_short() -> None:
    assert describe_value("x" * 1000) == "'" + "x" * 36 + "..."
    assert describe_value([1] * 1000) == "list"
