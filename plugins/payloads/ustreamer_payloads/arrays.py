# SPDX-License-Identifier: Apache-2.0
"""Arrays: of a fixed number of elements, or of as many as there are bytes for."""

from collections.abc import Sequence

from ustreamer_payloads.codec import Codec, kind_of
from ustreamer_payloads.errors import PayloadError, too_short


class FixedArray(Codec):
    """Always so many elements, which may be none."""

    def __init__(self, element: Codec, count: int) -> None:
        self._element, self._count = element, count
        self.size = None if element.size is None else count * element.size
        self.least = count * element.least

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        element, batch = self._element, self._element.batch
        if batch is not None and self.size is not None:
            if at + self.size > end:
                raise too_short(self.size, at, end)
            return batch(data, at, self._count), at + self.size
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
    """As many elements as there are, `most` at most. A part of one at the end is an error."""

    open_ended = True

    def __init__(self, element: Codec, most: int) -> None:
        self._element, self._most = element, most

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        element, most, size = self._element, self._most, self._element.size
        if element.batch is not None and size is not None:
            count, rest = divmod(end - at, size)
            if rest:
                broken = at + count * size
                raise too_short(size, broken, end).within(f"[{count}]")
            if count > most:
                raise PayloadError(f"{count} elements, more than {most}", at)
            return element.batch(data, at, count), end
        values: list[object] = []
        try:
            while at < end:
                if len(values) == most:
                    raise PayloadError(f"more than {most} elements", at)
                value, at = element.decode(data, at, end)
                values.append(value)
        except PayloadError as error:
            raise error.within(f"[{len(values)}]") from None
        return values, end

    def encode(self, value: object, out: bytearray) -> None:
        values = _elements(value)
        if len(values) > self._most:
            raise PayloadError(f"{len(values)} elements, more than {self._most}")
        _write(self._element, values, out)


def _elements(value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise PayloadError(f"{kind_of(value)}: expected a list")
    return value


def _write(element: Codec, values: Sequence[object], out: bytearray) -> None:
    for index, value in enumerate(values):
        try:
            element.encode(value, out)
        except PayloadError as error:
            raise error.within(f"[{index}]") from None
