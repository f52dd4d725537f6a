# SPDX-License-Identifier: Apache-2.0
"""TLV: structs whose members have tags. Members can be absent, unknown to the receiver, and in any order.

    tag:  bit 15 reserved | bits 14-12 wire type | bits 11-0 data id

Wire types 0 to 3 are 8, 16, 32 and 64 bits. The other wire types have a length field after the tag. The description
gives its size for wire type 4; it has 8, 16 or 32 bits for wire types 5, 6 and 7. This length replaces the length
field of the member.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ustreamer_payloads.codec import Codec, check_members, extent, write_length
from ustreamer_payloads.errors import PayloadError, too_short

_TAG: Final = 2
_STATIC: Final = 4
_SIZES: Final = {0: 1, 1: 2, 2: 4, 3: 8}
_WIRE_TYPES: Final = {size: wire for wire, size in _SIZES.items()}
_LENGTHS: Final = {5: 1, 6: 2, 7: 4}


class Tagged(NamedTuple):
    """A member: a scalar, or (`scalar` False) a type without a length field."""

    id: int
    name: str
    codec: Codec
    scalar: bool


class TlvRecordCodec(Codec):
    """A dict of the present members, in their order, from all remaining bytes. Unknown tags are skipped."""

    open_ended = True

    def __init__(self, members: Sequence[Tagged], static_length: int) -> None:
        """`static_length`: bytes of the length field of wire type 4. Members are encoded with this wire type."""
        self._by_id = {each.id: each for each in members}
        self._by_name = {each.name: each for each in members}
        self._lengths = {_STATIC: static_length, **_LENGTHS}

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        value: dict[str, object] = {}
        while at < end:
            if at + _TAG > end:
                raise too_short(_TAG, at, end)
            tag = int.from_bytes(data[at : at + _TAG], "big")
            wire, member = tag >> 12 & 7, self._by_id.get(tag & 0xFFF)
            try:
                begin, stop = self._extent(data, at + _TAG, end, wire)
                if member is not None:
                    self._check(member, wire, value, at)
                    value[member.name] = member.codec.decode(data, begin, stop)[0]
            except PayloadError as error:
                raise error.within(f".{member.name}" if member else f".<tag {tag & 0xFFF}>") from None
            at = stop
        return value, end

    def _extent(self, data: bytes, at: int, end: int, wire: int) -> tuple[int, int]:
        if wire not in _SIZES:
            return extent(data, at, end, self._lengths[wire])
        if at + _SIZES[wire] > end:
            raise too_short(_SIZES[wire], at, end)
        return at, at + _SIZES[wire]

    @staticmethod
    def _check(member: Tagged, wire: int, value: dict[str, object], at: int) -> None:
        if member.name in value:
            raise PayloadError("occurs twice", at)
        if member.scalar and wire != _WIRE_TYPES[member.codec.min_size]:
            raise PayloadError(f"wire type {wire}: expected {_WIRE_TYPES[member.codec.min_size]}", at)
        if not member.scalar and wire in _SIZES:
            raise PayloadError(f"wire type {wire}: expected 4 to 7, with a length", at)

    def encode(self, value: object, out: bytearray) -> None:
        for name, part in check_members(value, tuple(self._by_name), complete=False).items():
            try:
                self._write(self._by_name[name], part, out)
            except PayloadError as error:
                raise error.within(f".{name}") from None

    def _write(self, member: Tagged, value: object, out: bytearray) -> None:
        wire = _WIRE_TYPES[member.codec.min_size] if member.scalar else _STATIC
        out += (wire << 12 | member.id).to_bytes(_TAG, "big")
        mark, octets = len(out), 0 if member.scalar else self._lengths[_STATIC]
        out += bytes(octets)
        member.codec.encode(value, out)
        if octets:
            write_length(out, mark, octets, len(out) - mark - octets)
