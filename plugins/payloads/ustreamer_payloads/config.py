# SPDX-License-Identifier: Apache-2.0
"""The section `[plugins.payloads]`: descriptions of types, one Struct for each kind.

Sizes of length fields are in bits, as in the standard. All other sizes are in bytes.
"""

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

MAX_MEMBERS: Final = 256
MAX_ELEMENTS: Final = 1_000_000
MAX_BYTES: Final = 16_777_216

LengthBits: TypeAlias = Literal[0, 8, 16, 32]
FieldBits: TypeAlias = Literal[8, 16, 32]
Name: TypeAlias = Annotated[str, Meta(pattern=r"^\w{1,64}$")]
Unit: TypeAlias = Annotated[str, Meta(max_length=32)]
Align: TypeAlias = Literal[1, 2, 4, 8, 16, 32]
Encoding: TypeAlias = Literal["utf-8", "utf-16be", "utf-16le"]
Unsigned: TypeAlias = Literal["u8", "u16", "u32", "u64", "u16le", "u32le", "u64le"]
Integer: TypeAlias = Literal[
    "u8", "u16", "u32", "u64", "u16le", "u32le", "u64le", "i8", "i16", "i32", "i64", "i16le", "i32le", "i64le"
]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class MemberShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a struct. `unit` is for readers of the value, such as "m/s".

    `align`: it starts at a multiple of `align` bytes, counted from the start of the SOME/IP message.
    """

    name: Name
    type: "TypeRef"
    align: Align = 1
    unit: Unit = ""


class StructShape(_Shape, tag="struct", frozen=True):
    """A struct.

    `length`: bits of its length field. Bytes within this length and after the last member are skipped.
    """

    members: Annotated[tuple[MemberShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 0


class TaggedShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a TLV struct, with its data id."""

    id: Annotated[int, Meta(ge=0, le=0xFFF)]
    name: Name
    type: "TypeRef"
    unit: Unit = ""


class TlvShape(_Shape, tag="tlv", frozen=True):
    """A TLV struct. `length`: as for a struct; `static_length`: bits of the length fields of wire type 4."""

    members: Annotated[tuple[TaggedShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 0
    static_length: FieldBits = 32


class ArrayShape(_Shape, tag="array", frozen=True):
    """An array of `count` elements.

    Without `count`: of `max` elements at most, after a length field (0: to the end of the data).
    """

    of: "TypeRef"
    count: Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)] | UnsetType = UNSET
    length: LengthBits | UnsetType = UNSET
    max: Annotated[int, Meta(ge=1, le=MAX_ELEMENTS)] = 65_536

    @property
    def length_bits(self) -> int:
        """The size of its length field in bits. The default is 32 for a dynamic array and none for a fixed array."""
        if self.length is not UNSET:
            return self.length
        return 32 if self.count is UNSET else 0


class _Sized(_Shape, frozen=True):
    """A string of `size` bytes. Without `size`: its length field gives the length (0: to the end of the data)."""

    size: Annotated[int, Meta(ge=1, le=MAX_BYTES)] | UnsetType = UNSET
    length: LengthBits | UnsetType = UNSET

    @property
    def length_bits(self) -> int:
        if self.length is not UNSET:
            return self.length
        return 32 if self.size is UNSET else 0


class StringShape(_Sized, tag="string", frozen=True):
    """`encoding`: written, and used for reading if there is no byte order mark.

    `bom`, `nul`: whether to write the mark and the NUL.
    """

    encoding: Encoding = "utf-8"
    bom: bool = True
    nul: bool = True


class BytesShape(_Sized, tag="bytes", frozen=True):
    """Opaque bytes."""


class VariantShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant of a union, with its selector."""

    id: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    name: Name
    type: "TypeRef"


class UnionShape(_Shape, tag="union", frozen=True):
    """`length`, `selector`: bits of these fields. The value is padded to a multiple of `pad` bytes."""

    variants: Annotated[tuple[VariantShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 32
    selector: FieldBits = 32
    pad: Align = 1


class EnumShape(_Shape, tag="enum", frozen=True):
    """Names for the values of an integer type."""

    of: Integer
    values: Annotated[dict[Name, int], Meta(min_length=1, max_length=4096)]


class BitShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field of `width` bits; `bit` is its lowest bit, and bit 0 is the least significant."""

    name: Name
    bit: Annotated[int, Meta(ge=0, le=63)]
    width: Annotated[int, Meta(ge=1, le=64)] = 1


class BitsShape(_Shape, tag="bits", frozen=True):
    """An unsigned integer that consists of bit fields."""

    of: Unsigned
    fields: Annotated[tuple[BitShape, ...], Meta(min_length=1, max_length=64)]


Shape: TypeAlias = (
    StructShape | TlvShape | ArrayShape | StringShape | BytesShape | UnionShape | EnumShape | BitsShape
)
TypeRef: TypeAlias = str | Shape
"""The name of a scalar, "string", "bytes", the name of a type in `types`, or an inline description."""


def type_names(shape: Shape) -> set[str]:
    """The names of types in a description, at any depth."""
    tree = msgspec.to_builtins(shape)
    found: set[str] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            found |= {node[key] for key in ("type", "of") if isinstance(node.get(key), str)}
            waiting += node.values()
        elif isinstance(node, list | tuple):
            waiting += node
    return found
