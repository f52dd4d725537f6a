# SPDX-License-Identifier: Apache-2.0
"""The rows of the table, and a topic for each of its figures."""

from typing import Final, NamedTuple

from benchmarks.traffic import wire

STREAMERS: Final = ("a1.vin1", "a2.vin1", "a3.vin1")
"""Their authorities, in the order of the row."""
_HEADROOM: Final = 1.5
_SERVICE: Final = 0x5000
_SOMEIP_SERVICE: Final = 0x5100


class Row(NamedTuple):
    """A kind of publisher and a limit."""

    hz: float
    jitter: float
    """A fraction of the period."""
    limit_hz: float
    is_someip: bool = False


ROWS: Final = (
    Row(100, 0, 100),
    Row(100, 0.01, 77),
    Row(100, 0.20, 90),
    Row(100, 0.20, 40),
    Row(1000, 0.01, 60),
    Row(250, 0.20, 33),
    Row(100, 0.20, 100, is_someip=True),
)
DEPTHS: Final = (1, 2, 3)


class ChainTopic(NamedTuple):
    """A topic of a row that ends behind `depth` streamers, the last of which has mode latest or drop."""

    row: int
    depth: int
    latest: bool

    @property
    def address(self) -> wire.Address:
        number = 0x8001 + self.depth * 2 + self.latest
        if ROWS[self.row].is_someip:
            return wire.Address(wire.ECU, _SOMEIP_SERVICE + self.row, wire.MAJOR, number)
        return wire.Address(STREAMERS[0], _SERVICE + self.row, wire.MAJOR, number)

    def limit_hz(self, streamer: int) -> float:
        """The limit at a streamer, the first of which has number 1."""
        return ROWS[self.row].limit_hz * _HEADROOM ** (self.depth - streamer)


TOPICS: Final = [
    ChainTopic(row, depth, latest) for row in range(len(ROWS)) for depth in DEPTHS for latest in (False, True)
]
