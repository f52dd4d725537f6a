# SPDX-License-Identifier: Apache-2.0
"""Errors contain the byte, the member, the value and the expected form."""

from collections.abc import Callable
from typing import Any

import pytest
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError

Described = Callable[..., Description]


def members(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": type} for name, type in types.items()]


WHEEL = {"kind": "struct", "members": members(speed="f32", slip="i16", ok="bool")}
GEAR = {"kind": "enum", "of": "u8", "values": {"park": 0, "drive": 1}}
LAMPS = {
    "kind": "bits",
    "of": "u8",
    "fields": [{"name": "low", "bit": 0}, {"name": "mode", "bit": 1, "width": 3}],
}
LOAD = {"kind": "union", "length": 8, "selector": 8, "variants": [{"id": 1, "name": "kg", "type": "u16"}]}
STATE = {
    "kind": "struct",
    "members": members(
        count="u8",
        wheels={"kind": "array", "of": WHEEL, "count": 4},
        gear=GEAR,
        lamps=LAMPS,
        driver={"kind": "string", "length": 8},
        load=LOAD,
        trips={"kind": "array", "of": "u16", "length": 8, "max": 2},
        notes={"kind": "array", "of": {"kind": "bytes", "length": 8}, "length": 8, "max": 2},
        odometer="u32",
    ),
}
ROUND = {"speed": 1.5, "slip": -1, "ok": True}
VALUE: dict[str, Any] = {
    "count": 4,
    "wheels": [ROUND] * 4,
    "gear": "drive",
    "lamps": {"low": True, "mode": 5},
    "driver": "Ada",
    "load": {"kg": 300},
    "trips": [1, 2],
    "notes": [b"a", b"bc"],
    "odometer": 7,
}


def broken(payload: bytes, at: int, byte: int) -> bytes:
    return payload[:at] + bytes([byte]) + payload[at + 1 :]


@pytest.mark.parametrize(
    ("at", "byte", "text"),
    [
        (14, 9, "at byte 14: State.wheels[1].ok: 9 is not a bool, which is 0 or 1"),
        (31, 255, "at byte 31: State.driver: its length field is 255 bytes, 26 are left"),
        (35, 0xFF, "at byte 35: State.driver: not UTF-8: invalid start byte"),
        (39, 255, "at byte 39: State.load: the union has 255 bytes, 17 are left"),
        (39, 1, "at byte 41: State.load.kg: needs 2 bytes, 1 are left"),
        (40, 3, "at byte 40: State.load: the union has no variant 3 (have: 1 kg)"),
        (43, 3, "at byte 46: State.trips[1]: needs 2 bytes, 1 are left"),
        (43, 6, "at byte 44: State.trips: 3 elements, more than 2"),
        (48, 6, "at byte 54: State.notes[2]: more than 2 elements"),
        (49, 9, "at byte 49: State.notes[0]: its length field is 9 bytes, 4 are left"),
    ],
)
def test_a_wrong_byte_is_reported_with_its_member(
    described: Described, at: int, byte: int, text: str
) -> None:
    description = described(T=STATE)
    payload = description.encode(VALUE)
    assert description.decode(payload) == VALUE
    with pytest.raises(PayloadError) as refused:
        description.decode(broken(payload, at, byte))
    assert str(refused.value) == text.replace("State", "T")


@pytest.mark.parametrize(
    ("length", "text"),
    [
        (0, "at byte 0: T.count: needs 1 bytes, 0 are left"),
        (20, "at byte 1: T.wheels: needs 28 bytes, 19 are left"),
        (30, "at byte 30: T.lamps: needs 1 bytes, 0 are left"),
        (56, "at byte 54: T.odometer: needs 4 bytes, 2 are left"),
    ],
)
def test_an_end_too_early_is_named_with_the_member_that_is_not_there(
    described: Described, length: int, text: str
) -> None:
    description = described(T=STATE)
    with pytest.raises(PayloadError) as refused:
        description.decode(description.encode(VALUE)[:length])
    assert str(refused.value) == text


def test_a_run_of_scalars_that_ends_too_early_names_the_first_that_is_not_whole(described: Described) -> None:
    with pytest.raises(PayloadError, match=r"^at byte 4: T.slip: needs 2 bytes, 1 are left$"):
        described(T=WHEEL).decode(bytes(5))


def test_an_end_before_an_aligned_member_is_named_where_its_padding_begins(described: Described) -> None:
    aligned = [*members(a="u8"), {"name": "b", "type": {"kind": "array", "of": "u8", "count": 0}, "align": 4}]
    description = described("struct", members=aligned)
    assert description.decode(description.encode({"a": 1, "b": []})) == {"a": 1, "b": []}
    with pytest.raises(
        PayloadError, match=r"^at byte 1: T.b: needs 3 bytes of padding before it, 2 are left$"
    ):
        description.decode(b"\1\0\0")


def test_of_many_structs_the_one_with_the_mistake_is_named(described: Described) -> None:
    with pytest.raises(PayloadError, match=r"^at byte 20: T\[2\].ok: 7 is not a bool"):
        described("array", of=WHEEL, length=0).decode(bytes(20) + b"\7")
    with pytest.raises(PayloadError, match=r"^at byte 14: T\[2\]: needs 7 bytes, 3 are left"):
        described("array", of=WHEEL, length=0).decode(bytes(17))
    with pytest.raises(PayloadError, match=r"^at byte 3: T\[3\]: 7 is not a bool"):
        described("array", of="bool", length=0).decode(bytes(3) + b"\7")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"count": 256}, "T.count: 256 is not an integer of 0 to 255"),
        ({"count": "x"}, "T.count: 'x' is not an integer of 0 to 255"),
        ({"wheels": [ROUND] * 3}, "T.wheels: 3 elements: expected 4"),
        ({"wheels": 4}, "T.wheels: 4: expected a list"),
        ({"wheels": [ROUND, {**ROUND, "slip": 40_000}, ROUND, ROUND]}, "T.wheels[1].slip: 40000 is not an integer of -32768 to 32767"),
        ({"wheels": [{**ROUND, "speed": 1e300}] * 4}, "T.wheels[0].speed: 1e+300 is not a number in the range of f32"),
        ({"wheels": [{**ROUND, "ok": 1}] * 4}, "T.wheels[0].ok: 1: expected true or false"),
        ({"wheels": [{"speed": 1.5}] * 4}, "T.wheels[0].slip: is missing"),
        ({"wheels": [{**ROUND, "x": 1}] * 4}, "T.wheels[0].x: no such member (have: speed, slip, ok)"),
        ({"gear": "fly"}, "T.gear: 'fly' is not one of: park, drive"),
        ({"lamps": {"low": True, "mode": 8}}, "T.lamps.mode: 8: expected an integer of 0 to 7"),
        ({"lamps": {"low": 2, "mode": 1}}, "T.lamps.low: 2: expected true or false"),
        ({"driver": 5}, "T.driver: 5: expected a string"),
        ({"driver": "a\0b"}, "T.driver: has a NUL in it, which ends a string"),
        ({"driver": "\ud800"}, "T.driver: cannot be written as UTF-8: surrogates not allowed"),
        ({"driver": 300 * "x"}, "T.driver: 304 bytes are more than a length field of 8 bits can represent"),
        ({"load": {"lb": 1}}, "T.load: dict: expected a table of one of: kg"),
        ({"load": {"kg": -1}}, "T.load.kg: -1 is not an integer of 0 to 65535"),
        ({"trips": [1, 2, 3]}, "T.trips: 3 elements, more than 2"),
        ({"notes": ["text"]}, "T.notes[0]: 'text': expected bytes"),
        ({"odometer": None}, "T.odometer: NoneType is not an integer of 0 to 4294967295"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_written_is_named(
    described: Described, change: dict[str, Any], text: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        described(T=STATE).encode({**VALUE, **change})
    assert str(refused.value) == text


def test_texts_and_bytes_of_a_fixed_size_do_not_grow(described: Described) -> None:
    with pytest.raises(PayloadError, match="T: takes 9 bytes, with mark and NUL; there is room for 8"):
        described("string", size=8).encode("Hello")
    with pytest.raises(PayloadError, match="T: 3 bytes: expected 2"):
        described("bytes", size=2).encode(b"abc")


def test_a_text_that_would_be_taken_for_a_mark_is_not_written_without_one(described: Described) -> None:
    with pytest.raises(PayloadError, match="byte order mark, and has none before it"):
        described("string", bom=False).encode("\ufeffa")
    with_mark = described("string")
    assert with_mark.decode(with_mark.encode("\ufeffa")) == "\ufeffa"


def test_tagged_members_are_written_by_their_names_only(described: Described) -> None:
    description = described("tlv", members=[{"id": 1, "name": "a", "type": "u8"}])
    with pytest.raises(PayloadError, match=r"^T.b: no such member \(have: a\)$"):
        description.encode({"b": 1})
    with pytest.raises(PayloadError, match=r"^T.a: 256 is not an integer of 0 to 255$"):
        description.encode({"a": 256})


@pytest.mark.parametrize("size", [10, 11])
def test_a_payload_larger_than_max_bytes_is_not_looked_into(described: Described, size: int) -> None:
    description = described("bytes", length=0, max_bytes=10)
    if size == 10:
        assert description.decode(description.encode(bytes(10))) == bytes(10)
        return
    for there in (description.decode, description.encode):
        with pytest.raises(PayloadError, match=r"^T: 11 bytes, more than max_bytes \(10\)$"):
            there(bytes(11))
