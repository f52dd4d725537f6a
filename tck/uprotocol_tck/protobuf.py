# SPDX-License-Identifier: Apache-2.0
"""The wire format of protobuf: fields as bytes, and a strict reader.

https://protobuf.dev/programming-guides/encoding
"""

import struct
from collections.abc import Iterator
from typing import Final

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BITS: Final = 63


class MalformedProtobuf(ValueError):
    """Bytes that are no message, or a field of another type than its definition has."""


def field(number: int, value: float | str | bytes | None) -> bytes:
    """One field: an int as varint, a float as double, text and bytes with their length; nothing for None."""
    if value is None:
        return b""
    if isinstance(value, int):  # before float, which to a type checker an int is as well
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED64) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _LENGTH) + _varint(len(data)) + data


def fixed64(number: int, value: int) -> bytes:
    """One field of type fixed64."""
    return _varint(number << 3 | _FIXED64) + struct.pack("<Q", value)


class Fields:
    """The fields of one message. Raises MalformedProtobuf, also for a field of an unexpected wire type."""

    def __init__(self, data: bytes) -> None:
        self._found: dict[int, list[tuple[int, int | bytes]]] = {}
        at = 0
        while at < len(data):
            tag, at = _read_varint(data, at)
            kind, size = tag & 7, 0
            if kind == _VARINT:
                value, at = _read_varint(data, at)
                self._found.setdefault(tag >> 3, []).append((kind, value))
                continue
            if kind == _LENGTH:
                size, at = _read_varint(data, at)
            elif kind in {_FIXED64, _FIXED32}:
                size = 8 if kind == _FIXED64 else 4
            else:
                raise MalformedProtobuf(f"wire type {kind} at byte {at}")
            chunk = data[at : at + size]
            if len(chunk) != size:
                raise MalformedProtobuf(f"field {tag >> 3}: {size} bytes expected, {len(chunk)} there")
            number = chunk if kind == _LENGTH else int.from_bytes(chunk, "little")
            self._found.setdefault(tag >> 3, []).append((kind, number))
            at += size

    def __contains__(self, number: int) -> bool:
        return number in self._found

    def __iter__(self) -> Iterator[int]:
        """The numbers of the fields that are there."""
        return iter(self._found)

    def number(self, number: int, *, kind: int = _VARINT) -> int | None:
        """The last value of a number's field; None if it is absent."""
        value = self._last(number, kind)
        assert value is None or isinstance(value, int)
        return value

    def fixed64(self, number: int) -> int:
        """The value of a fixed64; 0 if it is absent."""
        return self.number(number, kind=_FIXED64) or 0

    def data(self, number: int) -> bytes | None:
        """The last value of a field of text, bytes or a message; None if it is absent."""
        value = self._last(number, _LENGTH)
        assert value is None or isinstance(value, bytes)
        return value

    def text(self, number: int) -> str | None:
        value = self.data(number)
        try:
            return None if value is None else value.decode()
        except UnicodeDecodeError:
            raise MalformedProtobuf(f"field {number} is no text") from None

    def message(self, number: int) -> "Fields":
        """The fields of a message in a field; none if it is absent."""
        return Fields(self.data(number) or b"")

    def repeated(self, number: int) -> list[bytes]:
        """Every value of a repeated field of messages."""
        for kind, _ in self._found.get(number, []):
            self._check(number, kind, _LENGTH)
        return [value for _, value in self._found.get(number, []) if isinstance(value, bytes)]

    def _last(self, number: int, expected: int) -> int | bytes | None:
        values = self._found.get(number)
        if not values:
            return None
        kind, value = values[-1]
        self._check(number, kind, expected)
        return value

    @staticmethod
    def _check(number: int, kind: int, expected: int) -> None:
        if kind != expected:
            raise MalformedProtobuf(f"field {number} has wire type {kind}, expected {expected}")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_VARINT_BITS:
            raise MalformedProtobuf(f"the varint at byte {at} does not end")
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at
