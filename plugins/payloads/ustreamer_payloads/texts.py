# SPDX-License-Identifier: Apache-2.0
"""SOME/IP strings: a byte order mark, the text, a NUL. The length counts all three, in bytes."""

import codecs
from typing import Final

from ustreamer_payloads.codec import Codec, describe_value
from ustreamer_payloads.errors import PayloadError, too_short

MARKS: Final = {
    "utf-8": codecs.BOM_UTF8,
    "utf-16be": codecs.BOM_UTF16_BE,
    "utf-16le": codecs.BOM_UTF16_LE,
}

_ANY_MARK: Final = tuple(MARKS.values())


def read_text(raw: bytes, encoding: str, at: int) -> str:
    """Decode `raw`, which starts at offset `at`, up to a NUL.

    The byte order mark selects the encoding; `encoding` is the default.
    """
    for marked, mark in MARKS.items():
        if raw.startswith(mark):
            encoding, raw, at = marked, raw[len(mark) :], at + len(mark)
            break
    raw = raw[: _end_of(raw, 1 if encoding == "utf-8" else 2)]
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise PayloadError(f"not {encoding.upper()}: {error.reason}", at + error.start) from None


def _end_of(raw: bytes, unit: int) -> int:
    """The offset of the NUL, or the end.

    In UTF-16 of odd length the last byte is ignored, as the standard requires.
    """
    at = raw.find(bytes(unit))
    while at % unit and at >= 0:  # the zeros belong to two adjacent characters
        at = raw.find(bytes(unit), at + 1)
    return len(raw) - len(raw) % unit if at < 0 else at


def write_text(value: object, encoding: str, *, bom: bool, nul: bool) -> bytes:
    if not isinstance(value, str):
        raise PayloadError(f"{describe_value(value)}: expected a string")
    if "\0" in value:
        raise PayloadError("has a NUL in it, which ends a string")
    try:
        raw = value.encode(encoding)
    except UnicodeEncodeError as error:
        raise PayloadError(f"cannot be written as {encoding.upper()}: {error.reason}") from None
    if not bom and raw.startswith(_ANY_MARK):
        raise PayloadError("begins with a byte order mark, and has none before it")
    end = b"\0" if encoding == "utf-8" else b"\0\0"
    return (MARKS[encoding] if bom else b"") + raw + (end if nul else b"")


class Text(Codec):
    """A string of all remaining bytes, or of `size` bytes; the bytes after the NUL are zeros."""

    def __init__(self, size: int | None, encoding: str, *, bom: bool, nul: bool) -> None:
        self.size = size
        self.min_size = size or 0
        self.open_ended = size is None
        self._encoding, self._bom, self._nul = encoding, bom, nul

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        stop = end if self.size is None else at + self.size
        if stop > end:
            raise too_short(self.min_size, at, end)
        return read_text(data[at:stop], self._encoding, at), stop

    def encode(self, value: object, out: bytearray) -> None:
        raw = write_text(value, self._encoding, bom=self._bom, nul=self._nul)
        if self.size is None:
            out += raw
            return
        if len(raw) > self.size:
            raise PayloadError(f"takes {len(raw)} bytes, with mark and NUL; there is room for {self.size}")
        out += raw.ljust(self.size, b"\0")
