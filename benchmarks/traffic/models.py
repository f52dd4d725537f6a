# SPDX-License-Identifier: Apache-2.0
"""Traffic models: which topic each message has, and its size. Deterministic, so that a sink can check order by number.

Message `n` has the topic `model.sequence[n % len(model.sequence)]`.
"""

import random
from array import array
from functools import cached_property
from typing import Final

import msgspec

from benchmarks.traffic import wire

SEQUENCE: Final = 65_536
"""Messages after which the topics repeat."""

_SEED: Final = 17
_SMALL: Final = (16, 16, 24, 24, 32, 48, 64, 64, 100, 200)
"""Payload bytes of signals: most are small."""
_TOPICS_OF_A_SERVICE: Final = 500
_FIRST_SERVICE: Final = 0x2000
_FIRST_EVENT: Final = 0x8001
_RATES_HZ: Final = (0.1, 1_000.0)
"""The slowest and the fastest topic of the vehicle model."""
_BURST_MAX: Final = 8


class TrafficModel(msgspec.Struct, frozen=True, dict=True):
    """`topics` topics; with `vehicle` at different rates and in bursts, otherwise in turn."""

    name: str
    topics: int
    sizes: tuple[int, ...] = _SMALL
    vehicle: bool = False

    @cached_property
    def sequence(self) -> "array[int]":
        """The topic of each message."""
        if self.vehicle:
            return self._vehicle_sequence()
        return array("H", (number % self.topics for number in range(SEQUENCE - SEQUENCE % self.topics)))

    def _vehicle_sequence(self) -> "array[int]":
        """Topics by their rates, log-uniform between 0.1 and 1 000 Hz (Zipf); one message in ten starts a burst."""
        rng = random.Random(_SEED)
        slowest, fastest = _RATES_HZ
        rates = [
            slowest * (fastest / slowest) ** (rank / max(1, self.topics - 1)) for rank in range(self.topics)
        ]
        rng.shuffle(rates)
        sequence = array("H", range(self.topics))
        while len(sequence) < SEQUENCE:
            for topic in rng.choices(range(self.topics), rates, k=1_024):
                sequence.extend([topic] * (rng.randint(2, _BURST_MAX) if rng.random() < 0.1 else 1))
        return sequence[:SEQUENCE]

    def size(self, topic: int) -> int:
        """The payload bytes of the messages of a topic."""
        return self.sizes[topic % len(self.sizes)]

    def address(self, topic: int, authority: str = wire.STREAMER) -> wire.Address:
        """The address of a topic."""
        service, event = divmod(topic, _TOPICS_OF_A_SERVICE)
        return wire.Address(authority, _FIRST_SERVICE + service, wire.MAJOR, _FIRST_EVENT + event)


MODELS: Final = {
    model.name: model
    for model in (
        TrafficModel("one", 1, (64,)),
        TrafficModel("one-1k", 1, (1_000,)),
        TrafficModel("8", 8),
        TrafficModel("100", 100),
        TrafficModel("500", 500),
        TrafficModel("2000", 2_000),
        TrafficModel("10000", 10_000),
        TrafficModel("vehicle", 500, vehicle=True),
    )
}
