# SPDX-License-Identifier: Apache-2.0
"""Numbers, booleans, enumerations and bit fields: types with one format code of the module `struct`."""

import struct
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ustreamer_payloads.codec import Codec, check_members, describe_value
from ustreamer_payloads.errors import PayloadError, too_short

Convert = Callable[[Any], Any]

_CODES: Final = {
    "bool": "B", "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "f32": "f", "f64": "d",
}  # fmt: skip
_LITTLE: Final = "le"
SCALARS: Final = (*_CODES, *(f"{name}{_LITTLE}" for name, code in _CODES.items() if code not in "Bb"))
"""The names of scalars: the plain name is big-endian, the suffix "le" is little-endian."""


class Scalar(Codec):
    """One number. `read` converts the number to a value and `write` converts it back; None means no conversion."""

    def __init__(self, name: str, read: Convert | None = None, write: Convert | None = None) -> None:
        self.name = name.removesuffix(_LITTLE)
        self.code = _CODES[self.name]
        self.size: int = struct.calcsize(f">{self.code}")
        self.min_size = self.size
        self.order = "" if self.size == 1 else "<" if name.endswith(_LITTLE) else ">"
        """Empty if the byte order has no effect."""
        self.read, self.write = read, write
        if self.name == "bool":
            self.read, self.write = _read_bool, _write_bool
        self._struct = struct.Struct(f"{self.order or '>'}{self.code}")
        self.decode_many = self._decode_many

    @property
    def is_integer(self) -> bool:
        return self.code not in "fd"

    @property
    def is_unsigned(self) -> bool:
        return self.code.isupper()

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        stop = at + self.size
        if stop > end:
            raise too_short(self.size, at, end)
        return self.value(self._struct.unpack_from(data, at)[0], at), stop

    def value(self, raw: Any, at: int) -> object:
        """The value of a number that was read at offset `at`."""
        if self.read is None:
            return raw
        try:
            return self.read(raw)
        except PayloadError as error:
            error.at = at
            raise

    def _decode_many(self, data: bytes, at: int, count: int) -> list[object]:
        numbers = struct.unpack_from(f"{self.order or '>'}{count}{self.code}", data, at)
        if self.read is None:
            return list(numbers)
        values: list[object] = []
        try:
            for raw in numbers:
                values.append(self.value(raw, at + len(values) * self.size))
        except PayloadError as error:
            raise error.within(f"[{len(values)}]") from None
        return values

    def number(self, value: Any) -> Any:
        """The number that is written for a value."""
        return value if self.write is None else self.write(value)

    def encode(self, value: object, out: bytearray) -> None:
        number = self.number(value)
        try:
            out += self._struct.pack(number)
        except (struct.error, OverflowError, TypeError):
            raise PayloadError(f"{describe_value(value)} is not {self._range()}") from None

    def _range(self) -> str:
        if not self.is_integer:
            return f"a number in the range of {self.name}"
        bits = 8 * self.size
        low, high = (0, (1 << bits) - 1) if self.is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
        return f"an integer of {low} to {high}"


def _read_bool(raw: int) -> bool:
    # 2 is not a bool. Accepting it as true would hide that the description does not match the payload.
    if raw > 1:
        raise PayloadError(f"{raw} is not a bool, which is 0 or 1")
    return raw == 1


def _write_bool(value: object) -> int:
    if not isinstance(value, bool):
        raise PayloadError(f"{describe_value(value)}: expected true or false")
    return int(value)


def enumeration(name: str, values: Mapping[str, int]) -> Scalar:
    """Integers with names. A number without a name remains a number, because a newer sender can add values."""
    names = {number: text for text, number in values.items()}

    def write(value: object) -> object:
        if not isinstance(value, str):
            return value
        if value not in values:
            raise PayloadError(f"{describe_value(value)} is not one of: {', '.join(values)}")
        return values[value]

    return Scalar(name, lambda raw: names.get(raw, raw), write)


class BitField(NamedTuple):
    """A field of `width` bits; `bit` is its lowest bit, and bit 0 is the least significant."""

    name: str
    bit: int
    width: int


def bit_fields(name: str, fields: tuple[BitField, ...]) -> Scalar:
    """An unsigned integer that consists of bit fields: single bits are booleans, wider fields integers.

    Other bits are ignored and written as 0.
    """
    names = tuple(field.name for field in fields)
    shifts = [(each.name, each.bit, (1 << each.width) - 1) for each in fields]

    def read(raw: int) -> dict[str, object]:
        return {
            name: bool(raw >> shift & 1) if mask == 1 else raw >> shift & mask for name, shift, mask in shifts
        }

    def write(value: object) -> int:
        table = check_members(value, names)
        number = 0
        for part_name, shift, mask in shifts:
            part = table[part_name]
            if not isinstance(part, int) or not 0 <= part <= mask:
                wanted = "true or false" if mask == 1 else f"an integer of 0 to {mask}"
                raise PayloadError(f"{describe_value(part)}: expected {wanted}").within(f".{part_name}")
            number |= part << shift
        return number

    return Scalar(name, read, write)
