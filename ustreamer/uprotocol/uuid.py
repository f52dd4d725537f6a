# SPDX-License-Identifier: Apache-2.0
"""UUIDs of messages: RFC 9562 version 7 (`dsn~uuid-spec~1`).

msb  63..16 unix time in ms | 15..12 version 7 | 11..0 counter
lsb  63..62 variant 0b10    | 61..0  random
"""

import random
import re
import sys
from array import array
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from ustreamer.uprotocol.ustatus import invalid_argument

_TEXT: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})")
_VERSION_7: Final = 0x7000
_VARIANT: Final = 0b10 << 62
_COUNTER_BITS: Final = 12
_RANDOM: Final = (1 << 62) - 1


class UUID(msgspec.Struct, frozen=True, order=True, gc=False):
    """A UUID as its two 64-bit halves, which is what the wire carries (`fixed64 msb`, `fixed64 lsb`).

    Construction checks nothing, because it happens for every message; `is_valid` does. Order is order of creation.
    """

    msb: int
    lsb: int

    @property
    def is_valid(self) -> bool:
        """Whether version nibble and variant bits are those of a UUIDv7. [impl->dsn~uuid-spec~1]"""
        return self.msb & 0xF000 == _VERSION_7 and self.lsb >> 62 == 0b10

    @property
    def time_ms(self) -> int:
        """When the message was created: ms since the Unix epoch."""
        return self.msb >> 16

    @classmethod
    def parse(cls, text: str) -> "UUID":
        """Read the hex-and-dash form (either case); INVALID_ARGUMENT unless it is a version 7 UUID."""
        match = _TEXT.fullmatch(text.lower())
        if match is None:
            raise invalid_argument(f"UUID {text!r}: expected 8-4-4-4-12 hex digits")
        digits = "".join(match.groups())
        uuid = cls(int(digits[:16], 16), int(digits[16:], 16))
        if not uuid.is_valid:
            raise invalid_argument(f"UUID {text!r}: expected version 7 and variant 0b10")
        return uuid

    def __str__(self) -> str:
        msb, lsb = f"{self.msb:016x}", f"{self.lsb:016x}"
        return f"{msb[:8]}-{msb[8:12]}-{msb[12:]}-{lsb[:4]}-{lsb[4:]}"


class UuidSource:
    """Makes UUIDv7s that never go backwards, also when the wall clock does.

    `wall_ms` gives ms since the epoch. Within a millisecond the 12 counter bits rise; after 4096 ids in one
    millisecond the time part runs ahead of the clock instead of waiting for it.
    """

    def __init__(self, wall_ms: Callable[[], int], bits: Callable[[int], int] | None = None) -> None:
        self._wall_ms = wall_ms
        # Ids are not secrets: the operating system seeds once, 0.05 us an id instead of 0.4.
        self._bits = bits or random.Random().getrandbits
        self._stamp = 0  # time in ms << 12 | counter

    def next(self) -> UUID:
        """A new id. Not locked: one source belongs to one thread (or to callers under one lock)."""
        stamp = self._wall_ms() << _COUNTER_BITS
        if stamp <= self._stamp:
            stamp = self._stamp + 1
        self._stamp = stamp
        return UUID((stamp >> _COUNTER_BITS) << 16 | _VERSION_7 | stamp & 0xFFF, _VARIANT | self._bits(62))

    def next_n(self, count: int) -> list[UUID]:
        """As `next`, `count` times, with one look at the clock."""
        return list(map(UUID, *self.next_n_columns(count)))

    def next_n_columns(self, count: int) -> "tuple[array[int], array[int]]":
        """As `some`, as the first halves of the ids and their second ones.

        All random bits are drawn at once, as one number with 64 bits of each: 0.03 us an id instead of 0.1.
        """
        if not count:
            return array("Q"), array("Q")
        first = max(self._wall_ms() << _COUNTER_BITS, self._stamp + 1)
        self._stamp = first + count - 1
        each = _one_in_each(count)
        drawn = self._bits(64 * count) & each * _RANDOM | each * _VARIANT
        lsbs = array("Q", drawn.to_bytes(8 * count, sys.byteorder))
        msb = (first >> _COUNTER_BITS) << 16 | _VERSION_7 | first & 0xFFF
        if (first & 0xFFF) + count <= 0x1000:  # the counter does not run over, so that msb just counts up
            return array("Q", range(msb, msb + count)), lsbs
        stamps = range(first, first + count)
        msbs = [(stamp >> _COUNTER_BITS) << 16 | _VERSION_7 | stamp & 0xFFF for stamp in stamps]
        return array("Q", msbs), lsbs


@lru_cache(256)
def _one_in_each(count: int) -> int:
    """The number that has a 1 in every 64 bits of so many."""
    return sum(1 << 64 * number for number in range(count))
