# SPDX-License-Identifier: Apache-2.0
"""UUIDs of messages: RFC 9562 version 7 (`dsn~uuid-spec~1`).

msb  63..16 unix time in ms | 15..12 version 7 | 11..0 counter
lsb  63..62 variant 0b10    | 61..0  random
"""

import random
import re
from collections.abc import Callable
from typing import Final

import msgspec

from ustreamer.uprotocol.ustatus import invalid_argument

_TEXT: Final = re.compile(r"([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})")
_VERSION_7: Final = 0x7000
_VARIANT: Final = 0b10 << 62
_COUNTER_BITS: Final = 12


class UUID(msgspec.Struct, frozen=True, order=True, gc=False):
    """A UUID as two 64-bit halves, as on the wire (`fixed64 msb`, `fixed64 lsb`).

    The constructor checks nothing, because it runs per message; `is_valid` does. Order is order of creation.
    """

    msb: int
    lsb: int

    @property
    def is_valid(self) -> bool:
        """True if version and variant bits are those of a UUIDv7. [impl->dsn~uuid-spec~1]"""
        return self.msb & 0xF000 == _VERSION_7 and self.lsb >> 62 == 0b10

    @property
    def time_ms(self) -> int:
        """The creation time of the message in ms since the Unix epoch."""
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
    """Creates UUIDv7s in rising order, also if the wall clock steps back.

    `wall_ms` returns ms since the epoch. Within a millisecond the 12-bit counter rises; after 4096 ids in one
    millisecond the time part runs ahead of the clock.
    """

    def __init__(self, wall_ms: Callable[[], int], bits: Callable[[int], int] | None = None) -> None:
        self._wall_ms = wall_ms
        # Ids are not secret: one seed from the operating system, 0.05 us per id instead of 0.4.
        self._bits = bits or random.Random().getrandbits
        self._stamp = 0  # time in ms << 12 | counter

    def next(self) -> UUID:
        """A new id. Not thread-safe: a source belongs to one thread, or to callers under one lock."""
        stamp = self._wall_ms() << _COUNTER_BITS
        if stamp <= self._stamp:
            stamp = self._stamp + 1
        self._stamp = stamp
        return UUID((stamp >> _COUNTER_BITS) << 16 | _VERSION_7 | stamp & 0xFFF, _VARIANT | self._bits(62))

    def next_n(self, count: int) -> list[UUID]:
        """New ids in rising order."""
        return [self.next() for _ in range(count)]
