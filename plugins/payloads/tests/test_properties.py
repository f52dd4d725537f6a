# SPDX-License-Identifier: Apache-2.0
"""For any accepted description: encoded values are decoded again, and arbitrary bytes raise nothing but PayloadError."""

from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from ustreamer_payloads.description import Description
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.plugin import PayloadsConfig
from ustreamer_payloads.scalars import SCALARS

Drawn = tuple[Any, SearchStrategy[Any]]
"""A description, and the values that it has."""

FEW = 4
NAMES = [f"m{number}" for number in range(FEW)]
BITS = {8: "u8", 16: "u16", 32: "u32le", 64: "u64"}
LENGTHS = [8, 16, 32]  # so that anything may follow; 0 is drawn at the end of things only


def floats(name: str) -> SearchStrategy[float]:
    return st.floats(width=32 if name.startswith("f32") else 64, allow_nan=False)


def scalar(name: str) -> Drawn:
    if name == "bool":
        return name, st.booleans()
    if name.startswith("f"):
        return name, floats(name)
    bits = int(name.strip("uile"))
    low, high = (0, 2**bits - 1) if name[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return name, st.integers(low, high)


@st.composite
def enums(draw: st.DrawFn) -> Drawn:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True))
    numbers = draw(st.lists(st.integers(0, 255), min_size=len(names), max_size=len(names), unique=True))
    others = st.integers(0, 255).filter(lambda number: number not in numbers)
    return (
        {"kind": "enum", "of": "u8", "values": dict(zip(names, numbers, strict=True))},
        st.one_of(st.sampled_from(names), others),
    )


@st.composite
def bit_fields(draw: st.DrawFn) -> Drawn:
    size = draw(st.sampled_from([*BITS]))
    fields, values, bit = [], {}, 0
    for name in NAMES:
        bit += draw(st.integers(0, 2))
        width = draw(st.integers(1, 9))
        if bit + width > size:
            break
        fields.append({"name": name, "bit": bit, "width": width})
        values[name] = st.booleans() if width == 1 else st.integers(0, 2**width - 1)
        bit += width
    if not fields:
        return {"kind": "bits", "of": "u8", "fields": [{"name": "m0", "bit": 7}]}, st.fixed_dictionaries(
            {"m0": st.booleans()}
        )
    return {"kind": "bits", "of": BITS[size], "fields": fields}, st.fixed_dictionaries(values)


@st.composite
def texts(draw: st.DrawFn) -> Drawn:
    encoding = draw(st.sampled_from(["utf-8", "utf-16be", "utf-16le"]))
    shape: dict[str, Any] = {"kind": "string", "encoding": encoding, "nul": draw(st.booleans())}
    shape["bom"] = draw(st.booleans())
    shape |= draw(st.sampled_from([{}, {"length": 16}, {"size": 40}, {"size": 40, "length": 8}]))
    # A text without a byte order mark may not begin with the bytes of one.
    letters = st.characters(
        exclude_categories=["Cs"], exclude_characters="\0" if shape["bom"] else "\0\ufeff\ufffe\uefbb"
    )
    return shape, st.text(letters, max_size=8)


def blobs() -> SearchStrategy[Drawn]:
    return st.one_of(
        st.sampled_from([8, 16, 32]).map(lambda bits: ({"kind": "bytes", "length": bits}, st.binary(max_size=8))),
        st.integers(1, 5).map(lambda size: ({"kind": "bytes", "size": size}, st.binary(min_size=size, max_size=size))),
    )  # fmt: skip


@st.composite
def arrays(draw: st.DrawFn, elements: SearchStrategy[Drawn]) -> Drawn:
    of, values = draw(elements)
    if draw(st.booleans()):
        shape, size = {"kind": "array", "of": of, "length": draw(st.sampled_from([16, 32]))}, (0, 3)
    else:
        count = draw(st.integers(1, 3))
        shape, size = (
            {"kind": "array", "of": of, "count": count, "length": draw(st.sampled_from([0, 32]))},
            (count, count),
        )
    return shape, st.lists(values, min_size=size[0], max_size=size[1])


@st.composite
def structs(draw: st.DrawFn, types: SearchStrategy[Drawn]) -> Drawn:
    parts = draw(st.lists(types, min_size=1, max_size=FEW))
    members = [
        {"name": name, "type": type, "align": draw(st.sampled_from([1, 1, 1, 2, 4, 32]))}
        for name, (type, _) in zip(NAMES, parts, strict=False)
    ]
    values = {name: value for name, (_, value) in zip(NAMES, parts, strict=False)}
    return {
        "kind": "struct",
        "members": members,
        "length": draw(st.sampled_from([0, 0, 32])),
    }, st.fixed_dictionaries(values)


@st.composite
def unions(draw: st.DrawFn, types: SearchStrategy[Drawn]) -> Drawn:
    parts = draw(st.lists(types, min_size=1, max_size=3))
    variants = [
        {"id": number + 1, "name": NAMES[number], "type": type} for number, (type, _) in enumerate(parts)
    ]
    shape = {
        "kind": "union",
        "variants": variants,
        "selector": draw(st.sampled_from(LENGTHS)),
        "pad": draw(st.sampled_from([1, 4])),
    }
    held = [st.fixed_dictionaries({NAMES[number]: value}) for number, (_, value) in enumerate(parts)]
    return shape, st.one_of(st.none(), *held)


@st.composite
def tagged(draw: st.DrawFn, types: SearchStrategy[Drawn]) -> Drawn:
    untagged = types.filter(lambda drawn: not (isinstance(drawn[0], dict) and drawn[0]["kind"] == "union"))
    parts = draw(st.lists(untagged, min_size=1, max_size=FEW))
    members = [
        {"id": 3 * number, "name": NAMES[number], "type": type} for number, (type, _) in enumerate(parts)
    ]
    values = {NAMES[number]: value for number, (_, value) in enumerate(parts)}
    return {"kind": "tlv", "members": members, "length": 32}, st.fixed_dictionaries({}, optional=values)


def complexes(types: SearchStrategy[Drawn]) -> SearchStrategy[Drawn]:
    return st.one_of(arrays(types), structs(types), unions(types), tagged(types))


LEAVES = st.one_of(st.sampled_from(SCALARS).map(scalar), enums(), bit_fields(), texts(), blobs())
ROOTS = complexes(st.recursive(LEAVES, complexes, max_leaves=6))


def compiled(type: Any) -> Description:
    data = {"types": {"T": type}, "topics": [{"topic": "//a/1/1/8001", "type": "T"}]}
    return msgspec.convert(data, PayloadsConfig).descriptions()["T"]


def refusal(description: Description, payload: bytes) -> PayloadError | None:
    """Why it cannot be read; anything but a PayloadError fails the test."""
    try:
        description.decode(payload)
    except PayloadError as error:
        return error
    return None


ROOMY = settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@ROOMY
@given(st.data(), ROOTS)
def test_encoded_values_are_decoded_again(data: st.DataObject, drawn: Drawn) -> None:
    type, values = drawn
    description, value = compiled(type), data.draw(values)
    payload = description.encode(value)
    assert description.decode(payload) == value
    assert description.encode(description.decode(payload)) == payload


@ROOMY
@given(st.data(), ROOTS)
def test_arbitrary_bytes_raise_nothing_but_a_payload_error(data: st.DataObject, drawn: Drawn) -> None:
    type, values = drawn
    description = compiled(type)
    payload = bytearray(description.encode(data.draw(values)))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4)):
        payload[at : at + 1] = bytes([byte])
    cut = data.draw(st.integers(0, len(payload)))
    for hostile in (bytes(payload), bytes(payload[:cut]), data.draw(st.binary(max_size=64))):
        error = refusal(description, hostile)
        if error is not None:
            assert error.place.startswith("T")
            assert error.at is not None
            assert 0 <= error.at <= len(hostile)


@ROOMY
@given(st.data(), ROOTS)
def test_a_truncated_payload_is_rejected_or_has_fewer_values(data: st.DataObject, drawn: Drawn) -> None:
    type, values = drawn
    description, value = compiled(type), data.draw(values)
    payload = description.encode(value)
    for end in range(len(payload)):
        if refusal(description, payload[:end]) is None:
            # Only optional bytes were omitted: TLV members, padding, and ignored bytes at the end of a type with a
            # length.
            less = description.decode(payload[:end])
            assert description.decode(description.encode(less)) == less
