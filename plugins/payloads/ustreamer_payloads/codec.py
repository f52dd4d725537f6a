# SPDX-License-Identifier: Apache-2.0
"""The interface of a compiled type, and its optional length field.

Length fields, selectors and tags are always big-endian.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from ustreamer_payloads.errors import PayloadError, too_short

DecodeMany = Callable[[bytes, int, int], list[object]]


class Codec(ABC):
    """One type: decodes bytes to a value and encodes it back. Built once from a description; stateless."""

    size: int | None = None
    """The size of every value in bytes, if it is fixed."""
    min_size: int = 0
    """The minimum size of a value in bytes."""
    open_ended: bool = False
    """True if the type uses all remaining bytes. No member can follow it."""
    decode_many: DecodeMany | None = None
    """(data, at, count) to consecutive values, `size` bytes apart; set where this is faster than `decode`."""

    @abstractmethod
    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        """Return the value at `at`, and the offset of the next value.

        Raises PayloadError; never reads at or beyond `end`.
        """

    @abstractmethod
    def encode(self, value: object, out: bytearray) -> None:
        """Append a value; `out` contains the payload before it. Raises PayloadError."""


def extent(data: bytes, at: int, end: int, octets: int) -> tuple[int, int]:
    """Start and end of the data after a length field of `octets` bytes."""
    begin = at + octets
    if begin > end:
        raise PayloadError(f"needs a length field of {octets} bytes, {max(0, end - at)} are left", at)
    length = int.from_bytes(data[at:begin], "big")
    if begin + length > end:
        raise PayloadError(f"its length field is {length} bytes, {end - begin} are left", at)
    return begin, begin + length


def write_length(out: bytearray, mark: int, octets: int, length: int) -> None:
    """Write the length into the reserved field at `mark`."""
    if length >> 8 * octets:
        raise PayloadError(f"{length} bytes are more than a length field of {8 * octets} bits can represent")
    out[mark : mark + octets] = length.to_bytes(octets, "big")


class Prefixed(Codec):
    """A type after a length field. Extra bytes within the length, which a newer sender can add, are skipped."""

    def __init__(self, body: Codec, octets: int) -> None:
        self._body = body
        self._octets = octets
        self.min_size = octets + body.min_size

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        begin, stop = extent(data, at, end, self._octets)
        return self._body.decode(data, begin, stop)[0], stop

    def encode(self, value: object, out: bytearray) -> None:
        mark = len(out)
        out += bytes(self._octets)
        self._body.encode(value, out)
        write_length(out, mark, self._octets, len(out) - mark - self._octets)


class Bytes(Codec):
    """Opaque bytes: `size` bytes, or all remaining bytes if `size` is None."""

    def __init__(self, size: int | None) -> None:
        self.size = size
        self.min_size = size or 0
        self.open_ended = size is None

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        stop = end if self.size is None else at + self.size
        if stop > end:
            raise too_short(self.min_size, at, end)
        return data[at:stop], stop

    def encode(self, value: object, out: bytearray) -> None:
        if not isinstance(value, bytes | bytearray):
            raise PayloadError(f"{describe_value(value)}: expected bytes")
        if self.size is not None and len(value) != self.size:
            raise PayloadError(f"{len(value)} bytes: expected {self.size}")
        out += value


def describe_value(value: object) -> str:
    """A value as text for an error message, 40 characters at most."""
    text = repr(value) if isinstance(value, int | float | str) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."


def check_members(value: object, names: Sequence[str], *, complete: bool = True) -> Mapping[str, object]:
    """Return `value` if it has exactly these members. Raises PayloadError."""
    if not isinstance(value, Mapping):
        raise PayloadError(f"{describe_value(value)}: expected a table of {', '.join(names)}")
    if complete:
        for name in names:
            if name not in value:
                raise PayloadError("is missing").within(f".{name}")
    for name in value:
        if name not in names:
            raise PayloadError(f"no such member (have: {', '.join(names)})").within(f".{name}")
    return value
