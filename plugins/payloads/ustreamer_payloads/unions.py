# SPDX-License-Identifier: Apache-2.0
"""Unions: a length, a selector, the value of the selected variant, and padding."""

from collections.abc import Sequence
from typing import NamedTuple

from ustreamer_payloads.codec import Codec, describe_value, write_length
from ustreamer_payloads.errors import PayloadError, too_short

NOTHING = 0
"""The selector of an empty union."""


class Variant(NamedTuple):
    id: int
    name: str
    codec: Codec


class Union(Codec):
    """One of several types, as a dict with the variant's name as its only key. None is an empty union.

    The length counts the value and its padding to a multiple of `pad` bytes; it excludes the selector. Without a
    length field (0) all variants have the same size.
    """

    def __init__(self, variants: Sequence[Variant], length: int, selector: int, pad: int) -> None:
        """`length` and `selector`: bytes of these fields."""
        self._by_id = {each.id: each for each in variants}
        self._by_name = {each.name: each for each in variants}
        self._length, self._selector, self._pad = length, selector, pad
        self._body = 0 if length else variants[0].codec.size or 0
        self.min_size = length + selector + self._body
        if not length:
            self.size = self.min_size

    def decode(self, data: bytes, at: int, end: int) -> tuple[object, int]:
        begin = at + self._length + self._selector
        if begin > end:
            raise too_short(self._length + self._selector, at, end)
        length = int.from_bytes(data[at : at + self._length], "big") if self._length else self._body
        stop = begin + length
        if stop > end:
            raise PayloadError(f"the union has {length} bytes, {end - begin} are left", at)
        chosen = int.from_bytes(data[at + self._length : begin], "big")
        variant = self._by_id.get(chosen)
        if variant is None:
            if chosen == NOTHING:
                return None, stop
            have = ", ".join(f"{each.id} {each.name}" for each in self._by_id.values())
            raise PayloadError(f"the union has no variant {chosen} (have: {have})", at + self._length)
        try:
            return {variant.name: variant.codec.decode(data, begin, stop)[0]}, stop
        except PayloadError as error:
            raise error.within(f".{variant.name}") from None

    def encode(self, value: object, out: bytearray) -> None:
        mark = len(out)
        out += bytes(self._length)
        if value is None and NOTHING not in self._by_id:
            out += NOTHING.to_bytes(self._selector, "big") + bytes(self._body)
            return
        variant, held = None, None
        if isinstance(value, dict) and len(value) == 1:
            [(name, held)] = value.items()
            variant = self._by_name.get(name)
        if variant is None:
            have = ", ".join(self._by_name)
            raise PayloadError(f"{describe_value(value)}: expected a table of one of: {have}")
        out += variant.id.to_bytes(self._selector, "big")
        begin = len(out)
        try:
            variant.codec.encode(held, out)
        except PayloadError as error:
            raise error.within(f".{variant.name}") from None
        if self._length:
            out += bytes(-(len(out) - begin) % self._pad)
            write_length(out, mark, self._length, len(out) - begin)
