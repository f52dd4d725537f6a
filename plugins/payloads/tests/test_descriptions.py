# SPDX-License-Identifier: Apache-2.0
"""An invalid description is rejected at the start, with its place and the valid form."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from ustreamer_payloads.compiler import MAX_NESTING, Compiler, DescriptionError
from ustreamer_payloads.config import Shape
from ustreamer_payloads.description import Description

Described = Callable[..., Description]


def members(**types: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": type} for name, type in types.items()]


def struct(**types: Any) -> dict[str, Any]:
    return {"kind": "struct", "members": members(**types)}


def array(of: Any, **keys: Any) -> dict[str, Any]:
    return {"kind": "array", "of": of, **keys}


def union(*variants: tuple[int, str, Any], **keys: Any) -> dict[str, Any]:
    found = [{"id": id, "name": name, "type": type} for id, name, type in variants]
    return {"kind": "union", "variants": found, **keys}


def refusal(types: dict[str, Any]) -> str:
    with pytest.raises(DescriptionError) as refused:
        Compiler(msgspec.convert(types, dict[str, Shape])).check()
    return str(refused.value)


OPEN = {"kind": "string", "length": 0}
WRONG = [
    ({"A": struct(a="u9")}, "types.A.members[0].type: there is no type 'u9' (did you mean 'u8'?)"),
    ({"A": struct(a="Whel"), "Wheel": struct(a="u8")}, "types.A.members[0].type: there is no type 'Whel' (did you mean 'Wheel'?)"),
    ({"A": struct(a="zzz")}, "types.A.members[0].type: there is no type 'zzz' (have: A, string, bytes, u8, ...)"),
    ({"u8": struct(a="u16")}, "types.u8: 'u8' is a type already: choose another name"),
    ({"string": struct(a="u16")}, "types.string: 'string' is a type already: choose another name"),
    ({"A": {"kind": "struct", "members": [{"name": "a", "type": "u8"}, {"name": "a", "type": "u8"}]}},
     "types.A.members[1].name: 'a' is that of [0] already"),
    ({"A": struct(a="A")}, "types.A.members[0].type: A contains itself: A -> A"),
    ({"A": struct(a=array("B")), "B": union((1, "c", "C")), "C": struct(x=struct(a="A"))},
     "types.C.members[0].type.members[0].type: A contains itself: A -> B -> C -> A"),
    ({"A": struct(a=OPEN, b="u8")}, "types.A.members[0].type: a uses all remaining bytes, so no member can follow: give it a length field"),
    ({"A": struct(a=struct(x="u8", y=OPEN), b="u8")},
     "types.A.members[0].type: a uses all remaining bytes, so no member can follow: give it a length field"),
    ({"A": struct(t={"kind": "tlv", "members": [{"id": 1, "name": "a", "type": "u8"}]}, b="u8")},
     "types.A.members[0].type: t uses all remaining bytes, so no member can follow: give it a length field"),
    ({"A": array(OPEN)}, "types.A.of: the element uses all remaining bytes, so no second can follow: give it a length field"),
    ({"A": array(array("u8", count=0))}, "types.A.of: the element may be of no bytes at all: they cannot be counted"),
    ({"A": array(array("u8", count=0), count=1_000_000)},
     "types.A.of: the element may be of no bytes at all: they cannot be counted"),
    ({"A": union((1, "a", "u8"), (1, "b", "u8"))}, "types.A.variants[1].id: 1 is that of [0] already"),
    ({"A": union((1, "a", "u8"), (2, "a", "u8"))}, "types.A.variants[1].name: 'a' is that of [0] already"),
    ({"A": union((256, "a", "u8"), selector=8)}, "types.A.variants[0].id: 256 is more than a selector of 8 bits can represent"),
    ({"A": union((1, "a", "u8"), (2, "b", "u16"), length=0)},
     "types.A.length: without a length field all variants need one and the same size"),
    ({"A": union((1, "a", "string"), length=0)}, "types.A.length: without a length field all variants need one and the same size"),
    ({"A": {"kind": "tlv", "members": [{"id": 1, "name": "a", "type": "u8"}, {"id": 1, "name": "b", "type": "u8"}]}},
     "types.A.members[1].id: 1 is that of [0] already"),
    ({"A": {"kind": "tlv", "members": [{"id": 1, "name": "a", "type": union((1, "x", "u8"))}]}},
     "types.A.members[0].type: a union cannot be a TLV member: put it into a struct"),
    ({"A": {"kind": "enum", "of": "u8", "values": {"a": 1, "b": 1}}}, "types.A.values.b: 1 is a already"),
    ({"A": {"kind": "enum", "of": "i8", "values": {"a": 128}}}, "types.A.values.a: 128 does not fit into i8"),
    ({"A": {"kind": "bits", "of": "u8", "fields": [{"name": "a", "bit": 4, "width": 5}]}},
     "types.A.fields[0]: bits 4 to 8 are not all in u8"),
    ({"A": {"kind": "bits", "of": "u8", "fields": [{"name": "a", "bit": 0, "width": 4}, {"name": "b", "bit": 3}]}},
     "types.A.fields[1]: b overlaps a field before it"),
    ({"A": {"kind": "string", "encoding": "utf-16le", "size": 5}}, "types.A.size: 5 is odd, a string of UTF-16 is not"),
]  # fmt: skip


@pytest.mark.parametrize(("types", "text"), WRONG)
def test_an_invalid_description_is_reported_with_its_place(types: dict[str, Any], text: str) -> None:
    assert refusal(types) == text


def nested(depth: int) -> dict[str, Any]:
    """`depth` named types, each with the next inside it."""
    return {f"T{level}": struct(x=f"T{level + 1}" if level + 1 < depth else "u8") for level in range(depth)}


@pytest.mark.parametrize("backwards", [False, True])
def test_types_may_be_inside_each_other_up_to_a_bound(backwards: bool) -> None:
    def in_order(depth: int) -> dict[str, Any]:
        types = nested(depth)
        return dict(reversed(types.items())) if backwards else types

    Compiler(msgspec.convert(in_order(MAX_NESTING), dict[str, Shape])).check()
    assert refusal(in_order(MAX_NESTING + 1)).endswith(f"more than {MAX_NESTING} types are inside each other")
    assert refusal(in_order(1000)).endswith(f"more than {MAX_NESTING} types are inside each other")


def test_types_on_the_spot_count_as_well() -> None:
    type: Any = "u8"
    for _ in range(MAX_NESTING):
        type = struct(x=type)
    Compiler(msgspec.convert({"A": type}, dict[str, Shape])).check()
    assert "inside each other" in refusal({"A": struct(x=type)})


def test_a_type_that_many_use_is_compiled_once() -> None:
    width = {f"L{level}": struct(a=f"L{level + 1}", b=f"L{level + 1}") for level in range(MAX_NESTING - 1)}
    types = msgspec.convert({**width, f"L{MAX_NESTING - 1}": struct(a="u8")}, dict[str, Shape])
    compiler = Compiler(types)
    compiler.check()  # 2^15 structs otherwise
    assert compiler.codec_named("L0", "") is compiler.codec_named("L0", "")


def test_a_tlv_member_has_no_length_field_of_its_own_but_other_uses_of_its_type_do(
    described: Described,
) -> None:
    types = {
        "P": {"kind": "struct", "length": 8, "members": members(x="u8")},
        "T": {"kind": "tlv", "static_length": 8, "members": [{"id": 1, "name": "p", "type": "P"}, {"id": 2, "name": "l", "type": array("P", length=8)}]},
    }  # fmt: skip
    payload = described(**types).encode({"p": {"x": 1}, "l": [{"x": 2}]})
    assert payload.hex() == "4001" + "01" + "01" + "4002" + "02" + "0102"
