# SPDX-License-Identifier: Apache-2.0
"""Known faults of other serializers, each as a test."""

from collections.abc import Callable
from typing import Any

import pytest
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError

Described = Callable[..., Description]
STRING = {"kind": "string"}
BYTES = {"kind": "array", "of": "u8"}


def members(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": type} for name, type in types.items()]


def there_and_back(description: Description, value: object) -> bytes:
    payload = description.encode(value)
    assert description.decode(payload) == value
    return payload


@pytest.mark.parametrize("keys", [{}, {"size": 16}])
def test_a_text_is_as_long_as_its_bytes_not_its_characters(
    described: Described, keys: dict[str, Any]
) -> None:
    payload = there_and_back(described("string", **keys), "Grüße")
    assert "Grüße".encode() in payload


def test_an_array_of_strings_has_a_length_field_of_its_own(described: Described) -> None:
    description = described("struct", members=members(names={"kind": "array", "of": STRING}, next="u16"))
    payload = there_and_back(description, {"names": ["abb", "bb"], "next": 0xBEEF})
    assert int.from_bytes(payload[:4], "big") == len(payload) - 4 - 2


def test_an_array_of_structs_with_arrays_has_a_length_field_of_its_own(described: Described) -> None:
    inner = {"kind": "struct", "members": members(list=BYTES)}
    description = described("struct", members=members(all={"kind": "array", "of": inner}, next="u8"))
    payload = there_and_back(
        description, {"all": [{"list": [1, 2]}, {"list": []}, {"list": [3]}], "next": 0x7F}
    )
    assert payload[:4] == (4 + 2 + 4 + 4 + 1).to_bytes(4, "big")


def test_a_length_field_of_a_fixed_array_is_counted_once(described: Described) -> None:
    array = {"kind": "array", "of": "u16", "count": 2, "length": 32}
    payload = there_and_back(
        described("struct", members=members(a=array, next="u8")), {"a": [1, 2], "next": 3}
    )
    assert payload.hex() == "00000004" + "00010002" + "03"


@pytest.mark.parametrize("keys", [{}, {"length": 8}])
def test_a_fixed_array_may_have_no_elements(described: Described, keys: dict[str, Any]) -> None:
    array = {"kind": "array", "of": "u16", "count": 0, **keys}
    there_and_back(described("struct", members=members(a=array, next="u8")), {"a": [], "next": 3})


def test_one_description_reads_payloads_of_any_length_in_any_order(described: Described) -> None:
    description = described("array", of="u16")  # and keeps no length of one for the next
    payloads = {bytes.fromhex(each): value for each, value in (
        ("00000008 0001000200030004", [1, 2, 3, 4]), ("00000000", []), ("00000002 0009", [9])
    )}  # fmt: skip
    for _ in range(2):
        assert {each: description.decode(each) for each in payloads} == payloads


def test_extra_bytes_of_a_struct_are_skipped(described: Described) -> None:
    inner = {"kind": "struct", "length": 32, "members": members(a="u8")}
    description = described("struct", members=members(inner=inner, next="u16"))
    assert description.decode(bytes.fromhex("00000003 01ffff beef")) == {"inner": {"a": 1}, "next": 0xBEEF}


@pytest.mark.parametrize("kind", ["string", "bytes"])
def test_a_length_beyond_the_payload_is_an_error_not_a_shorter_text(described: Described, kind: str) -> None:
    with pytest.raises(PayloadError, match="its length field is 9 bytes, 2 are left"):
        described(kind).decode(b"\0\0\0\x09ab")


def test_invalid_utf_8_is_an_error_at_its_byte_not_another_text(described: Described) -> None:
    with pytest.raises(PayloadError, match="at byte 9: T: not UTF-8: invalid start byte"):
        described("string").decode(b"\0\0\0\x08\xef\xbb\xbfab\xff\xff\0")


def test_a_bool_of_2_is_an_error_and_never_the_value_before_it(described: Described) -> None:
    description = described("struct", members=members(a="u8", on="bool"))
    assert description.decode(b"\0\x01") == {"a": 0, "on": True}
    with pytest.raises(PayloadError, match="at byte 1: T.on: 2 is not a bool, which is 0 or 1"):
        description.decode(b"\0\x02")


def test_a_member_may_have_a_name_that_begins_with_an_underscore(described: Described) -> None:
    payload = there_and_back(described("struct", members=members(_a="u8", b="u8")), {"_a": 1, "b": 2})
    assert payload == b"\x01\x02"
