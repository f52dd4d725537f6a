# SPDX-License-Identifier: Apache-2.0
"""Payloads byte for byte, as in the standard. Each value is encoded to its bytes, and the bytes are decoded to the
value.
"""

from collections.abc import Callable
from typing import Any

import pytest
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.scalars import SCALARS

Described = Callable[..., Description]


def members(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": type} for name, type in types.items()]


STRING = {"kind": "string"}
UTF16 = {"kind": "string", "encoding": "utf-16be"}
POINT = {"kind": "struct", "members": members(x="i16", y="i16")}

GOLDEN = [
    # --- scalars
    ("u8", 0xFE, "fe"),
    ("i8", -2, "fe"),
    ("u16", 0x1234, "1234"),
    ("u16le", 0x1234, "3412"),
    ("i16", -2, "fffe"),
    ("i16le", -2, "feff"),
    ("u32", 0x12345678, "12345678"),
    ("u32le", 0x12345678, "78563412"),
    ("i32", -1, "ffffffff"),
    ("i32le", -2, "feffffff"),
    ("u64", 1, "0000000000000001"),
    ("u64le", 1, "0100000000000000"),
    ("i64", -1, "ffffffffffffffff"),
    ("i64le", -2, "feffffffffffffff"),
    ("f32", 1.5, "3fc00000"),
    ("f32le", 1.5, "0000c03f"),
    ("f64", -2.0, "c000000000000000"),
    ("f64le", -2.0, "00000000000000c0"),
    ("bool", True, "01"),
    ("bool", False, "00"),
    # --- enumerations and bits
    ({"kind": "enum", "of": "u16", "values": {"off": 0, "on": 258}}, "on", "0102"),
    ({"kind": "enum", "of": "i8", "values": {"low": -1}}, "low", "ff"),
    ({"kind": "enum", "of": "u8", "values": {"off": 0}}, 7, "07"),  # a newer sender's
    (
        {
            "kind": "bits",
            "of": "u16",
            "fields": [{"name": "locked", "bit": 0}, {"name": "level", "bit": 4, "width": 12}],
        },
        {"locked": True, "level": 0xABC},
        "abc1",
    ),
    # --- strings: the length counts mark and NUL
    (STRING, "Hi", "00000006 efbbbf 4869 00"),
    (STRING, "", "00000004 efbbbf 00"),
    ({**STRING, "length": 8}, "Hi", "06 efbbbf 4869 00"),
    ({**STRING, "length": 16, "bom": False}, "Hi", "0003 4869 00"),
    ({**STRING, "bom": False, "nul": False, "length": 8}, "Hi", "02 4869"),
    ({**STRING, "length": 0}, "Hi", "efbbbf 4869 00"),
    (UTF16, "Hi", "00000008 feff 0048 0069 0000"),
    ({**UTF16, "encoding": "utf-16le"}, "Hi", "00000008 fffe 4800 6900 0000"),
    (UTF16, "\u0100\U0001f697", "0000000a feff 0100 d83dde97 0000"),  # zeros across characters end nothing
    ({**STRING, "size": 8}, "Hi", "efbbbf 4869 000000"),
    ({**STRING, "size": 8, "length": 8}, "Hi", "08 efbbbf 4869 000000"),
    # --- bytes
    ({"kind": "bytes"}, b"\x01\x02", "00000002 0102"),
    ({"kind": "bytes", "size": 2}, b"\x01\x02", "0102"),
    # --- arrays: lengths in bytes, not elements
    ({"kind": "array", "of": "u16"}, [1, 2], "00000004 0001 0002"),
    ({"kind": "array", "of": "u16", "length": 8}, [1, 2], "04 0001 0002"),
    ({"kind": "array", "of": "u16", "length": 16}, [], "0000"),
    ({"kind": "array", "of": "u16", "length": 0}, [1, 2], "0001 0002"),
    ({"kind": "array", "of": "u16le", "count": 2}, [1, 2], "0100 0200"),
    ({"kind": "array", "of": "u16", "count": 2, "length": 32}, [1, 2], "00000004 0001 0002"),
    ({"kind": "array", "of": "bool", "length": 8}, [True, False], "02 01 00"),
    (
        {"kind": "array", "of": POINT, "length": 8},
        [{"x": 1, "y": -1}, {"x": 2, "y": 0}],
        "08 0001ffff 00020000",
    ),
    (
        {"kind": "array", "of": {"kind": "array", "of": "u8", "length": 8}, "length": 8},
        [[1], [], [2, 3]],
        "06 01 01 00 02 0203",
    ),
    (
        {"kind": "array", "count": 2, "of": {"kind": "array", "of": "u8", "count": 2}},
        [[1, 2], [3, 4]],
        "01020304",
    ),
    # --- structs
    (
        {"kind": "struct", "members": members(a="u8", b="u16", c="f32")},
        {"a": 1, "b": 2, "c": 1.5},
        "01 0002 3fc00000",
    ),
    (
        {"kind": "struct", "members": members(a="u16", b="u16le", c="u8", d="u32")},  # byte orders mixed
        {"a": 1, "b": 1, "c": 1, "d": 1},
        "0001 0100 01 00000001",
    ),
    (
        {"kind": "struct", "length": 16, "members": members(a="u8", b="bool")},
        {"a": 1, "b": True},
        "0002 01 01",
    ),
    (
        {"kind": "struct", "members": members(p=POINT, s={**STRING, "length": 8}, q=POINT)},
        {"p": {"x": 1, "y": 2}, "s": "a", "q": {"x": 3, "y": 4}},
        "00010002 05 efbbbf6100 00030004",
    ),
    (  # 16 bytes of header: the payload's byte 3 is the message's byte 19, and 20 the next multiple of 4
        {
            "kind": "struct",
            "members": [*members(s={"kind": "bytes", "length": 8}), {"name": "n", "type": "u16", "align": 4}],
        },
        {"s": b"\x01\x02", "n": 0xABCD},
        "02 0102 00 abcd",
    ),
    (
        {"kind": "struct", "members": [*members(a="u8"), {"name": "n", "type": "u8", "align": 32}]},
        {"a": 1, "n": 2},
        "01" + 15 * "00" + "02",
    ),
    # --- unions: length of the value, selector, value, padding
    (
        {
            "kind": "union",
            "variants": [{"id": 1, "name": "n", "type": "u16"}, {"id": 2, "name": "p", "type": POINT}],
        },
        {"p": {"x": 1, "y": 2}},
        "00000004 00000002 00010002",
    ),
    (
        {
            "kind": "union",
            "length": 8,
            "selector": 8,
            "pad": 4,
            "variants": [{"id": 1, "name": "n", "type": "u16"}],
        },
        {"n": 7},
        "04 01 0007 0000",
    ),
    (
        {"kind": "union", "length": 0, "selector": 16, "variants": [{"id": 1, "name": "n", "type": "u16"}]},
        {"n": 7},
        "0001 0007",
    ),
    (
        {"kind": "union", "selector": 8, "variants": [{"id": 1, "name": "n", "type": "u8"}]},
        None,
        "00000000 00",
    ),
    (
        {"kind": "union", "length": 0, "selector": 8, "variants": [{"id": 1, "name": "n", "type": "u16"}]},
        None,
        "00 0000",
    ),
    # --- TLV: wire types 0 to 3 for scalars, 4 for everything else; no length but the tag's
    (
        {
            "kind": "tlv",
            "members": [
                {"id": 1, "name": "a", "type": "u8"},
                {"id": 2, "name": "b", "type": "u16"},
                {"id": 3, "name": "c", "type": "f32"},
                {"id": 0xFFF, "name": "d", "type": "u64"},
                {"id": 5, "name": "s", "type": STRING},
                {"id": 6, "name": "p", "type": {**POINT, "length": 32}},
                {"id": 7, "name": "l", "type": {"kind": "array", "of": "u16"}},
            ],
        },
        {"a": 1, "b": 2, "c": 1.5, "d": 3, "s": "x", "p": {"x": 1, "y": 2}, "l": [9]},
        (
            "0001 01  1002 0002  2003 3fc00000  3fff 0000000000000003"
            "4005 00000005 efbbbf7800  4006 00000004 00010002  4007 00000002 0009"
        ),
    ),
    (
        {"kind": "tlv", "length": 8, "static_length": 8, "members": [{"id": 1, "name": "s", "type": STRING}]},
        {"s": "x"},
        "08 4001 05 efbbbf7800",
    ),
    ({"kind": "tlv", "members": [{"id": 1, "name": "a", "type": "u8"}]}, {}, ""),  # all may be left out
]


@pytest.mark.parametrize(("type", "value", "hexed"), GOLDEN)
def test_a_value_and_its_bytes_are_converted_to_each_other(
    described: Described, type: Any, value: object, hexed: str
) -> None:
    # As a member between two others, and alone: the bytes before and after a type do not affect it.
    alone = described(T={"kind": "struct", "members": members(it=type)})
    assert alone.encode({"it": value}).hex() == hexed.replace(" ", "")
    assert alone.decode(bytes.fromhex(hexed)) == {"it": value}
    if not isinstance(type, str):
        whole = described(T=type)
        assert whole.encode(value).hex() == hexed.replace(" ", "")
        assert whole.decode(bytes.fromhex(hexed)) == value


def test_every_scalar_is_among_the_golden_ones() -> None:
    assert {type for type, _, _ in GOLDEN if isinstance(type, str)} == set(SCALARS)


READ = [
    # --- what a newer, older or laxer sender writes; none of it is how we write it
    ("no mark, no NUL", {**STRING, "length": 8}, "02 4869", "Hi"),
    ("the mark decides", {**STRING, "length": 8}, "08 feff 0048 0069 0000", "Hi"),
    ("the mark decides", {**UTF16, "length": 8}, "06 fffe 4800 6900", "Hi"),
    ("the mark decides", {**UTF16, "length": 8}, "06 efbbbf 4869 00", "Hi"),
    ("no mark: as described", {**UTF16, "length": 8}, "04 0048 0069", "Hi"),
    ("an odd byte of UTF-16 does not count", {**UTF16, "length": 8}, "05 0048 0069 ff", "Hi"),
    ("behind the NUL is nothing", {**STRING, "size": 5}, "4869 00 ffff", "Hi"),
    ("behind the NUL is nothing", {**UTF16, "size": 6}, "0048 0000 d800", "H"),
    ("a struct is longer than known", {"kind": "struct", "length": 8, "members": members(a="u8")}, "03 01 0203", {"a": 1}),
    ("so is a fixed array", {"kind": "array", "of": "u8", "count": 2, "length": 8}, "03 010203", [1, 2]),
    ("and a union", {"kind": "union", "length": 8, "selector": 8, "variants": [{"id": 1, "name": "n", "type": "u8"}]},
     "03 01 070809", {"n": 7}),
    ("other bits are not looked at", {"kind": "bits", "of": "u8", "fields": [{"name": "on", "bit": 7}]}, "ff", {"on": True}),
    ("padding may be anything", {"kind": "struct", "members": [*members(a="u8"), {"name": "b", "type": "u8", "align": 4}]},
     "01 ffffff 02", {"a": 1, "b": 2}),
]  # fmt: skip


@pytest.mark.parametrize(("why", "type", "hexed", "value"), READ)
def test_payloads_of_other_senders_are_decoded_with_the_members_after_them(
    described: Described, why: str, type: Any, hexed: str, value: object
) -> None:
    between = described(T={"kind": "struct", "members": members(it=type, next="u16")})
    assert between.decode(bytes.fromhex(hexed) + b"\xbe\xef") == {"it": value, "next": 0xBEEF}, why


TLV = {
    "kind": "tlv",
    "static_length": 16,
    "members": [{"id": 1, "name": "a", "type": "u8"}, {"id": 2, "name": "s", "type": STRING}],
}


@pytest.mark.parametrize(
    ("hexed", "value"),
    [
        ("4002 0002 6869  0001 05", {"s": "hi", "a": 5}),  # any order
        ("5002 02 6869", {"s": "hi"}),  # lengths of 8, 16 and 32 bits, whatever is configured
        ("6002 0002 6869", {"s": "hi"}),
        ("7002 00000002 6869", {"s": "hi"}),
        ("8001 05", {"a": 5}),  # the reserved bit
        ("0009 ff  0001 05", {"a": 5}),  # unknown tags of every wire type
        ("1009 ffff  0001 05", {"a": 5}),
        ("2009 ffffffff  0001 05", {"a": 5}),
        ("3009 ffffffffffffffff  0001 05", {"a": 5}),
        ("4009 0001 ff  0001 05", {"a": 5}),
        ("5009 01 ff  0001 05", {"a": 5}),
        ("6009 0001 ff  0001 05", {"a": 5}),
        ("7009 00000001 ff  0001 05", {"a": 5}),
    ],
)
def test_tagged_members_may_be_in_any_order_and_unknown_ones_are_skipped(
    described: Described, hexed: str, value: object
) -> None:
    assert described(T=TLV).decode(bytes.fromhex(hexed)) == value


@pytest.mark.parametrize(
    ("hexed", "text"),
    [
        ("00", "at byte 0: T: needs 2 bytes, 1 are left"),
        ("0001", "at byte 2: T.a: needs 1 bytes, 0 are left"),
        ("1001 0005", "at byte 0: T.a: wire type 1: expected 0"),
        ("0002 05", "at byte 0: T.s: wire type 0: expected 4 to 7, with a length"),
        ("0001 05 0001 06", "at byte 3: T.a: occurs twice"),
        ("4002 0003 6869", "at byte 2: T.s: its length field is 3 bytes, 2 are left"),
        ("7009 ffffffff", "at byte 2: T.<tag 9>: its length field is 4294967295 bytes, 0 are left"),
        ("5009", "at byte 2: T.<tag 9>: needs a length field of 1 bytes, 0 are left"),
    ],
)
def test_invalid_tags_are_rejected(described: Described, hexed: str, text: str) -> None:
    with pytest.raises(PayloadError) as refused:
        described(T=TLV).decode(bytes.fromhex(hexed))
    assert str(refused.value) == text


def test_bytes_after_the_last_member_are_ignored(described: Described) -> None:
    assert described("struct", members=members(a="u8")).decode(b"\x01\xff\xff") == {"a": 1}
