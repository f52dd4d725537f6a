# SPDX-License-Identifier: Apache-2.0
"""Traffic models: which topic each message has, and its size. Deterministic, so that a sink can check order by number.

Topics are numbers from 0. Message `n` has the topic `model.sequence[n % len(model.sequence)]`. The value `model.call`,
one above the last topic, marks a request to `method`.
"""

import random
from array import array
from collections import Counter
from functools import cached_property
from typing import Final

import msgspec

from benchmarks.traffic import wire

SEQUENCE: Final = 65_536
"""Messages after which the topics repeat."""
CALLER: Final = wire.Address(wire.STREAMER, 0x10B1, 1, 0)
"""The application that sends the requests of a model over Zenoh."""
ECU_CALLER: Final = wire.Address(wire.ECU, 0x0077, 1, 0)
"""The ECU that sends the requests of a model over SOME/IP."""

_SEED: Final = 17
_SMALL: Final = (16, 16, 24, 24, 32, 48, 64, 64, 100, 200)
"""Payload bytes of signals: most are small."""
_MIXED: Final = (16, 16, 20, 24, 24, 32, 32, 48, 64, 64, 128, 256, 512)
"""Payload bytes of signals and of larger messages."""
_FIRST_SERVICE: Final = 0x2000
_FIRST_EVENT: Final = 0x8001
_BURST_MAX: Final = 8
_CALL_SIZE: Final = 64
_METHOD: Final = (0x3000, wire.MAJOR, 1)
_LIMITS_HZ: Final = (5.0, 10.0, 20.0, 8.0)
_APART: Final = "-apart"
_LIMITED_SERVICE: Final = 5
"""One service of this many is limited."""
_SWITCHED_TOPIC: Final = 20
"""One topic of this many has a subscription that comes and goes."""


class TrafficModel(msgspec.Struct, frozen=True, dict=True):
    """The number of topics, their rates and sizes. Without `rates_hz` one message of each topic is sent in turn.

    `rates_hz` are the slowest and the fastest rate; each topic has its own, and some messages start a burst. The rates
    are relative: the pace of the generator scales them. `calls` is the share of requests. With `limits`, one service in
    five is throttled, and one topic in twenty has a subscription that comes and goes.
    """

    name: str
    topics: int
    sizes: tuple[int, ...] = _SMALL
    rates_hz: tuple[float, float] | None = None
    calls: float = 0.0
    limits: bool = False
    service_topics: int = 500
    apart: bool = False
    """Every topic has its own service: the reference streamer forwards event 0x8001 only."""

    @property
    def call(self) -> int:
        """The value of a request in `sequence`, and the index of the requests in `counts`."""
        return self.topics

    @cached_property
    def sequence(self) -> "array[int]":
        """The topic of each message."""
        if self.rates_hz is None:
            return array("H", (number % self.topics for number in range(SEQUENCE - SEQUENCE % self.topics)))
        return self._vehicle_sequence(*self.rates_hz)

    def _vehicle_sequence(self, slowest: float, fastest: float) -> "array[int]":
        """Topics drawn by their rates, a geometric series (log-uniform). One in ten starts a burst of 2 to 8."""
        rng = random.Random(_SEED)
        rates = [
            slowest * (fastest / slowest) ** (rank / max(1, self.topics - 1)) for rank in range(self.topics)
        ]
        rng.shuffle(rates)
        sequence, calls = array("H", range(self.topics)), 0
        while len(sequence) < SEQUENCE:
            for topic in rng.choices(range(self.topics), rates, k=1_024):
                sequence.extend([topic] * (rng.randint(2, _BURST_MAX) if rng.random() < 0.1 else 1))
                if calls < self.calls * len(sequence):
                    sequence.append(self.call)
                    calls += 1
        return sequence[:SEQUENCE]

    def counts(self, first: int, end: int) -> list[int]:
        """The messages of each topic with the numbers `first` to `end` - 1. The last item counts the requests."""
        sequence, length = self.sequence, len(self.sequence)
        cycles, rest = divmod(end - first, length)
        start = first % length
        once = Counter(sequence[start : start + rest]) + Counter(sequence[: max(0, start + rest - length)])
        cycle = Counter(sequence) if cycles else Counter()
        return [once[topic] + cycles * cycle[topic] for topic in range(self.topics + 1)]

    def size(self, topic: int) -> int:
        """The payload bytes of the messages of a topic."""
        return _CALL_SIZE if topic == self.call else self.sizes[topic % len(self.sizes)]

    @property
    def services(self) -> int:
        return -(-self.topics // self.service_topics)

    def address(self, topic: int, authority: str = wire.STREAMER) -> wire.Address:
        """The address of a topic."""
        service, event = divmod(topic, 1 if self.apart else self.service_topics)
        return wire.Address(authority, _FIRST_SERVICE + service, wire.MAJOR, _FIRST_EVENT + event)

    def limit_hz(self, topic: int) -> float | None:
        """The limit of a throttled topic; it is the same for all topics of a service."""
        turn, place = divmod(topic // self.service_topics, _LIMITED_SERVICE)
        if not self.limits or place != _LIMITED_SERVICE - 1:
            return None
        return _LIMITS_HZ[turn % len(_LIMITS_HZ)]

    def is_switched(self, topic: int) -> bool:
        """Whether the subscription of a topic comes and goes."""
        return self.limits and topic % _SWITCHED_TOPIC == 1 and self.limit_hz(topic) is None

    def set_apart(self) -> "TrafficModel":
        """The same traffic with a service for each topic. Its name ends in `-apart`; `model_named` accepts the name."""
        return msgspec.structs.replace(self, name=self.name + _APART, apart=True)

    @cached_property
    def steady(self) -> list[bool]:
        """For each topic: whether every message reaches the sink, as the topic is neither throttled nor switched.

        The last item, for the requests, is False.
        """
        topics = range(self.topics)
        return [not self.is_switched(topic) and self.limit_hz(topic) is None for topic in topics] + [False]


def method(authority: str) -> wire.Address:
    """The method of the requests of a model, in the network of the sink."""
    return wire.Address(authority, *_METHOD)


VEHICLE: Final = TrafficModel(
    "vehicle", 500, rates_hz=(0.1, 1_000.0), calls=0.05, limits=True, service_topics=25
)
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
        TrafficModel("mixed", 200, _MIXED, rates_hz=(10.0, 100.0), service_topics=25),
        VEHICLE,
    )
}


def model_named(name: str) -> TrafficModel:
    """The model of a name, or its variant by `set_apart`. Raises KeyError."""
    if name.endswith(_APART):
        return MODELS[name.removesuffix(_APART)].set_apart()
    return MODELS[name]
