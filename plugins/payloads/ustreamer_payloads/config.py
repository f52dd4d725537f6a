# SPDX-License-Identifier: Apache-2.0
"""What may stand under `[plugins.payloads]`: descriptions of types, one Struct for each kind.

Sizes of length fields are in bits, as the standard says them; everything else is in bytes.
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
Align: TypeAlias = Literal[1, 2, 4, 8, 16, 32]
Encoding: TypeAlias = Literal["utf-8", "utf-16be", "utf-16le"]
Unsigned: TypeAlias = Literal["u8", "u16", "u32", "u64", "u16le", "u32le", "u64le"]
Integer: TypeAlias = Literal[
    "u8", "u16", "u32", "u64", "u16le", "u32le", "u64le", "i8", "i16", "i32", "i64", "i16le", "i32le", "i64le"
]


class _Shape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    pass


class MemberShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a struct. `align`: it begins at a multiple of so many bytes, from the beginning of the SOME/IP message."""

    name: Name
    type: "TypeRef"
    align: Align = 1


class StructShape(_Shape, tag="struct", frozen=True):
    """`length`: bits of a length field in front of it; what it counts beyond the last member is skipped."""

    members: Annotated[tuple[MemberShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 0


class TaggedShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A member of a TLV struct: its data id."""

    id: Annotated[int, Meta(ge=0, le=0xFFF)]
    name: Name
    type: "TypeRef"


class TlvShape(_Shape, tag="tlv", frozen=True):
    """`length` as of a struct; `static_length`: bits of the lengths of wire type 4."""

    members: Annotated[tuple[TaggedShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 0
    static_length: FieldBits = 32


class ArrayShape(_Shape, tag="array", frozen=True):
    """Of `count` elements; without it, of as many as come, `max` at most, behind a length field (0: to the end)."""

    of: "TypeRef"
    count: Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)] | UnsetType = UNSET
    length: LengthBits | UnsetType = UNSET
    max: Annotated[int, Meta(ge=1, le=MAX_ELEMENTS)] = 65_536

    @property
    def length_bits(self) -> int:
        """The size of its length field: 32 by default for a dynamic array, none for a fixed one."""
        if self.length is not UNSET:
            return self.length
        return 32 if self.count is UNSET else 0


class _Sized(_Shape, frozen=True):
    """Of `size` bytes; without it, as long as the length field says (0: to the end)."""

    size: Annotated[int, Meta(ge=1, le=MAX_BYTES)] | UnsetType = UNSET
    length: LengthBits | UnsetType = UNSET

    @property
    def length_bits(self) -> int:
        if self.length is not UNSET:
            return self.length
        return 32 if self.size is UNSET else 0


class StringShape(_Sized, tag="string", frozen=True):
    """`encoding` is what is written, and read where there is no byte order mark; `bom` and `nul`: whether they are written."""

    encoding: Encoding = "utf-8"
    bom: bool = True
    nul: bool = True


class BytesShape(_Sized, tag="bytes", frozen=True):
    """Opaque bytes."""


class VariantShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant of a union: the selector that says it."""

    id: Annotated[int, Meta(ge=0, le=0xFFFF_FFFF)]
    name: Name
    type: "TypeRef"


class UnionShape(_Shape, tag="union", frozen=True):
    """`length`, `selector`: bits of those fields; the value is padded to a multiple of `pad` bytes."""

    variants: Annotated[tuple[VariantShape, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    length: LengthBits = 32
    selector: FieldBits = 32
    pad: Align = 1


class EnumShape(_Shape, tag="enum", frozen=True):
    """Names of numbers."""

    of: Integer
    values: Annotated[dict[Name, int], Meta(min_length=1, max_length=4096)]


class BitShape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`width` bits from `bit` on, counted from the least significant."""

    name: Name
    bit: Annotated[int, Meta(ge=0, le=63)]
    width: Annotated[int, Meta(ge=1, le=64)] = 1


class BitsShape(_Shape, tag="bits", frozen=True):
    """An unsigned integer in parts."""

    of: Unsigned
    fields: Annotated[tuple[BitShape, ...], Meta(min_length=1, max_length=64)]


Shape: TypeAlias = (
    StructShape | TlvShape | ArrayShape | StringShape | BytesShape | UnionShape | EnumShape | BitsShape
)
TypeRef: TypeAlias = str | Shape
"""A scalar, "string", "bytes" or a type of `types` by its name; or a description on the spot."""
