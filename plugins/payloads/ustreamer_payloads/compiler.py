# SPDX-License-Identifier: Apache-2.0
"""Compiles descriptions to codecs, once. An error names its place in the configuration."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from msgspec import UNSET, UnsetType

from ustreamer_payloads.arrays import DynamicArray, FixedArray
from ustreamer_payloads.codec import Bytes, Codec, Prefixed
from ustreamer_payloads.config import (
    ArrayShape,
    BitsShape,
    BytesShape,
    EnumShape,
    Shape,
    StringShape,
    StructShape,
    TlvShape,
    TypeRef,
    UnionShape,
)
from ustreamer_payloads.errors import PayloadError
from ustreamer_payloads.records import Member, record_codec
from ustreamer_payloads.scalars import SCALARS, BitField, Scalar, bit_fields, enumeration
from ustreamer_payloads.tagged import Tagged, TlvRecordCodec
from ustreamer_payloads.texts import Text
from ustreamer_payloads.unions import Union, Variant

MAX_NESTING: Final = 16
"""The maximum nesting of types. It limits the recursion of a decoder."""
_PLAIN: Final[dict[str, Shape]] = {"string": StringShape(), "bytes": BytesShape()}


class DescriptionError(ValueError):
    """A description that cannot be compiled: "types.Wheel.members[2].type: ..."."""

    def __init__(self, place: str, text: str) -> None:
        super().__init__(f"{place}: {text}")


class Compiler:
    """The types of one configuration. Each type is compiled at most twice: with and without its length field."""

    def __init__(self, types: Mapping[str, Shape]) -> None:
        self._types = types
        self._compiled: dict[tuple[str, bool], tuple[Codec, int]] = {}  # the codec and its nesting depth
        self._open: list[str] = []
        self._deepest = 0

    def check(self) -> None:
        """Compile everything. Raises DescriptionError."""
        for name in self._types:
            if name in SCALARS or name in _PLAIN:
                raise DescriptionError(f"types.{name}", f"{name!r} is a type already: choose another name")
            self.codec_named(name, f"types.{name}")

    def codec_named(self, name: str, place: str, *, bare: bool = False) -> Codec:
        """The codec of a named type; `bare`: without its length field. Raises DescriptionError at `place`."""
        if name in SCALARS:
            return Scalar(name)
        if name in _PLAIN:
            return self._shape(_PLAIN[name], place, bare=bare)
        if name not in self._types:
            near = difflib.get_close_matches(name, [*self._types, *SCALARS, *_PLAIN], 1, 0.5)
            hint = (
                f" (did you mean {near[0]!r}?)"
                if near
                else f" (have: {', '.join([*self._types, *_PLAIN])}, u8, ...)"
            )
            raise DescriptionError(place, f"there is no type {name!r}{hint}")
        if name in self._open:
            cycle = " -> ".join([*filter(None, self._open[self._open.index(name) :]), name])
            raise DescriptionError(place, f"{name} contains itself: {cycle}")
        compiled = self._compiled.get((name, bare))
        if compiled is None:
            compiled = self._compiled[name, bare] = self._compile(
                name, self._types[name], f"types.{name}", bare=bare
            )
        codec, depth = compiled
        self._check_depth(depth, place)
        return codec

    def _type(self, ref: TypeRef, place: str, *, bare: bool = False) -> Codec:
        if isinstance(ref, str):
            return self.codec_named(ref, place, bare=bare)
        codec, depth = self._compile("", ref, place, bare=bare)
        self._check_depth(depth, place)
        return codec

    def _compile(self, name: str, shape: Shape, place: str, *, bare: bool) -> tuple[Codec, int]:
        """Return a codec and its nesting depth, itself included."""
        self._check_depth(1, place)
        above, self._deepest = self._deepest, 0
        self._open.append(name)
        codec = self._shape(shape, place, bare=bare)
        self._open.pop()
        depth = max(0, self._deepest - len(self._open) - 1) + 1
        self._deepest = above
        return codec, depth

    def _check_depth(self, depth: int, place: str) -> None:
        self._deepest = max(self._deepest, len(self._open) + depth)
        if self._deepest > MAX_NESTING:
            raise DescriptionError(place, f"more than {MAX_NESTING} types are inside each other")

    def _shape(self, shape: Shape, place: str, *, bare: bool) -> Codec:
        make: Callable[[Any, str, bool], Codec] = getattr(self, _METHODS[type(shape)])
        return make(shape, place, bare)

    # --- kinds ----------------------------------------------------------------------------------------------

    def _struct(self, shape: StructShape, place: str, bare: bool) -> Codec:
        _check_unique(shape.members, "name", f"{place}.members")
        members = []
        for index, each in enumerate(shape.members):
            codec = self._type(each.type, f"{place}.members[{index}].type")
            if codec.open_ended and index + 1 < len(shape.members):
                text = (
                    f"{each.name} uses all remaining bytes, so no member can follow: give it a length field"
                )
                raise DescriptionError(f"{place}.members[{index}].type", text)
            members.append(Member(each.name, codec, each.align))
        return _prefixed(record_codec(members), 0 if bare else shape.length)

    def _tlv(self, shape: TlvShape, place: str, bare: bool) -> Codec:
        _check_unique(shape.members, "name", f"{place}.members")
        _check_unique(shape.members, "id", f"{place}.members")
        members = []
        for index, each in enumerate(shape.members):
            where = f"{place}.members[{index}].type"
            codec = self._type(each.type, where, bare=True)
            if isinstance(codec, Union):
                # The length of a union excludes the selector. A receiver without this tag would skip too few bytes.
                raise DescriptionError(where, "a union cannot be a TLV member: put it into a struct")
            members.append(Tagged(each.id, each.name, codec, isinstance(codec, Scalar)))
        return _prefixed(TlvRecordCodec(members, shape.static_length // 8), 0 if bare else shape.length)

    def _array(self, shape: ArrayShape, place: str, bare: bool) -> Codec:
        element = self._type(shape.of, f"{place}.of")
        if element.open_ended:
            raise DescriptionError(
                f"{place}.of",
                "the element uses all remaining bytes, so no second can follow: give it a length field",
            )
        if not element.min_size:  # otherwise a few bytes could declare a million elements
            raise DescriptionError(
                f"{place}.of", "the element may be of no bytes at all: they cannot be counted"
            )
        fixed = not isinstance(shape.count, UnsetType)
        body = FixedArray(element, shape.count) if fixed else DynamicArray(element, shape.max)  # type: ignore[arg-type]
        return _prefixed(body, 0 if bare else shape.length_bits)

    def _string(self, shape: StringShape, place: str, bare: bool) -> Codec:
        size = None if shape.size is UNSET else shape.size
        unit = 1 if shape.encoding == "utf-8" else 2
        if size is not None and size % unit:
            raise DescriptionError(f"{place}.size", f"{size} is odd, a string of UTF-16 is not")
        body = Text(size, shape.encoding, bom=shape.bom, nul=shape.nul)
        return _prefixed(body, 0 if bare else shape.length_bits)

    def _bytes(self, shape: BytesShape, place: str, bare: bool) -> Codec:
        return _prefixed(Bytes(None if shape.size is UNSET else shape.size), 0 if bare else shape.length_bits)

    def _union(self, shape: UnionShape, place: str, bare: bool) -> Codec:
        _check_unique(shape.variants, "name", f"{place}.variants")
        _check_unique(shape.variants, "id", f"{place}.variants")
        variants = []
        for index, each in enumerate(shape.variants):
            if each.id >> shape.selector:
                text = f"{each.id} is more than a selector of {shape.selector} bits can represent"
                raise DescriptionError(f"{place}.variants[{index}].id", text)
            variants.append(
                Variant(each.id, each.name, self._type(each.type, f"{place}.variants[{index}].type"))
            )
        sizes = {each.codec.size for each in variants}
        if not shape.length and (len(sizes) > 1 or None in sizes):
            raise DescriptionError(
                f"{place}.length", "without a length field all variants need one and the same size"
            )
        return Union(variants, shape.length // 8, shape.selector // 8, shape.pad)

    def _enum(self, shape: EnumShape, place: str, bare: bool) -> Codec:
        codec = enumeration(shape.of, shape.values)
        seen: dict[int, str] = {}
        for name, number in shape.values.items():
            if number in seen:
                raise DescriptionError(f"{place}.values.{name}", f"{number} is {seen[number]} already")
            seen[number] = name
            try:
                codec.encode(name, bytearray())
            except PayloadError:
                raise DescriptionError(
                    f"{place}.values.{name}", f"{number} does not fit into {shape.of}"
                ) from None
        return codec

    def _bits(self, shape: BitsShape, place: str, bare: bool) -> Codec:
        _check_unique(shape.fields, "name", f"{place}.fields")
        taken = 0
        for index, each in enumerate(shape.fields):
            mask = ((1 << each.width) - 1) << each.bit
            where = f"{place}.fields[{index}]"
            if mask >> 8 * Scalar(shape.of).size:
                raise DescriptionError(
                    where, f"bits {each.bit} to {each.bit + each.width - 1} are not all in {shape.of}"
                )
            if mask & taken:
                raise DescriptionError(where, f"{each.name} overlaps a field before it")
            taken |= mask
        return bit_fields(shape.of, tuple(BitField(each.name, each.bit, each.width) for each in shape.fields))


_METHODS: Final[dict[type, str]] = {
    StructShape: "_struct",
    TlvShape: "_tlv",
    ArrayShape: "_array",
    StringShape: "_string",
    BytesShape: "_bytes",
    UnionShape: "_union",
    EnumShape: "_enum",
    BitsShape: "_bits",
}


def _prefixed(body: Codec, bits: int) -> Codec:
    return Prefixed(body, bits // 8) if bits else body


def _check_unique(entries: Iterable[Any], key: str, place: str) -> None:
    seen: dict[object, int] = {}
    for index, each in enumerate(entries):
        value = getattr(each, key)
        if value in seen:
            raise DescriptionError(f"{place}[{index}].{key}", f"{value!r} is that of [{seen[value]}] already")
        seen[value] = index
