# SPDX-License-Identifier: Apache-2.0
"""Arrays: of a fixed number of elements, or of all elements up to the end of the data."""

from collections.abc import Sequence

from ustreamer_payloads.codec import Codec, describe_value
from ustreamer_payloads.errors import PayloadError, too_short


class FixedArray(Codec):
    """An array of exactly `count` elements; `count` can be 0."""

    def __init__(self, element: Codec, count: int) -> None:
        self._element, self._count = element, count
        self.size = None if element.size is None else count * element.size
        self.min_size = count * element.min_size

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        element, decode_many = self._element, self._element.decode_many
        if decode_many is not None and self.size is not None:
            if at + self.size > end:
                raise too_short(self.size, at, end)
            return decode_many(data, at, self._count), at + self.size
        values: list[object] = []
        try:
            for _ in range(self._count):
                value, at = element.decode(data, at, end)
                values.append(value)
        except PayloadError as error:
            raise error.within(f"[{len(values)}]") from None
        return values, at

    def encode(self, value: object, out: bytearray) -> None:
        values = _elements(value)
        if len(values) != self._count:
            raise PayloadError(f"{len(values)} elements: expected {self._count}")
        _write(self._element, values, out)


class DynamicArray(Codec):
    """An array of all elements up to the end of the data, `max_elements` at most.

    An incomplete last element is an error.
    """

    open_ended = True

    def __init__(self, element: Codec, max_elements: int) -> None:
        self._element, self._max_elements = element, max_elements

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        element, max_elements, size = self._element, self._max_elements, self._element.size
        if element.decode_many is not None and size is not None:
            count, rest = divmod(end - at, size)
            if rest:
                broken = at + count * size
                raise too_short(size, broken, end).within(f"[{count}]")
            if count > max_elements:
                raise PayloadError(f"{count} elements, more than {max_elements}", at)
            return element.decode_many(data, at, count), end
        values: list[object] = []
        try:
            while at < end:
                if len(values) == max_elements:
                    raise PayloadError(f"more than {max_elements} elements", at)
                value, at = element.decode(data, at, end)
                values.append(value)
        except PayloadError as error:
            raise error.within(f"[{len(values)}]") from None
        return values, end

    def encode(self, value: object, out: bytearray) -> None:
        values = _elements(value)
        if len(values) > self._max_elements:
            raise PayloadError(f"{len(values)} elements, more than {self._max_elements}")
        _write(self._element, values, out)


def _elements(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise PayloadError(f"{describe_value(value)}: expected a list")
    return value


def _write(element: Codec, values: Sequence[object], out: bytearray) -> None:
    for index, value in enumerate(values):
        try:
            element.encode(value, out)
        except PayloadError as error:
            raise error.within(f"[{index}]") from None
