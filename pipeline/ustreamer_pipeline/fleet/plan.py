# SPDX-License-Identifier: Apache-2.0
"""The plan of a synthetic vehicle: topics with rates, subscribers, and outages of links."""

from dataclasses import dataclass, field, fields
from typing import Final

import numpy as np
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, Gate

from ustreamer_pipeline.recording.layout import Ints
from ustreamer_pipeline.recording.segment_writer import TargetText

NS: Final = 1_000_000_000
RUN_NS: Final = 1_000_000_000
"""First reading of the monotonic clock in a run."""
PUBLISH, REQUEST, RESPONSE = 1, 2, 3
_RATES_HZ: Final = (1, 2, 5, 10, 20, 50, 100)
_LIMITS_HZ: Final = (0, 0, 1, 5, 10, 40)

SEGMENT_ROWS: Final = 170_000
"""Rows of a segment: 16 MiB."""


@dataclass(frozen=True)
class Fleet:
    """Parameters of a fleet. `start_ms` is the wall clock at which every vehicle starts, within one minute.

    Each vehicle has `topics` topics of 1 to 100 Hz and `fast` topics of 1 kHz. `jitter` is a fraction of the period,
    below 0.5. `outages` is the number of link outages per hour. `killed` is the percentage of vehicles without a
    regular stop.
    """

    vehicles: int = 10
    seconds: float = 60.0
    topics: int = 30
    fast: int = 0
    subscribers: float = 1.5
    jitter: float = 0.2
    outages: float = 6.0
    requests_hz: float = 2.0
    killed: int = 10
    seed: int = 1
    start_ms: int = 1_760_000_000_000
    segment_rows: int = SEGMENT_ROWS
    release: str = ""

    def check(self) -> None:
        """Raises ValueError with the invalid parameter."""
        for name, low, high in (
            ("vehicles", 1, 10_000_000),
            ("seconds", 0.001, 10_000_000),
            ("topics", 1, 4_096),
            ("fast", 0, 1_000),
            ("subscribers", 0, 100),
            ("jitter", 0, 0.49),
            ("outages", 0, 3_600),
            ("requests_hz", 0, 1_000),
            ("killed", 0, 100),
            ("segment_rows", 1, 1_000_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} {value}: expected {low} to {high}")


@dataclass
class PlannedDelivery:
    """One delivery: a topic, one target, one gate; `tuned` are its later limits, in order of time.

    `settled_ns` is the send time of the last message and `answered_ns` the time of the last response: a queue keeps
    the order.
    """

    delivery: int
    targets: list[TargetText]
    gate: Gate | None
    tuned: list[int] = field(default_factory=list)
    gate_at: int = 0
    settled_ns: int = 0
    answered_ns: int = 0
    outages: Ints = field(default_factory=lambda: np.zeros((0, 2), np.int64))


@dataclass
class Topic:
    """One topic. `next` is the number of its next message on a grid of `period_ns` from `phase_ns`."""

    uri: str
    sink: str | None
    type: int
    period_ns: int
    phase_ns: int
    size: int
    priority: int
    ttl_ms: int
    deliveries: list[PlannedDelivery]
    silences: Ints
    next: int = 0


class VehiclePlan:
    """The plan of one vehicle. It draws from `rng` in a fixed order, so equal seeds give equal plans."""

    def __init__(self, fleet: Fleet, gateway: str, rng: np.random.Generator) -> None:
        self._fleet, self._gateway, self._rng = fleet, gateway, rng
        self.end_ns = RUN_NS + int(fleet.seconds * NS)
        self.targets: list[TargetText] = []
        self._delivery_count = 0
        self.topics = [self._topic(index) for index in range(fleet.topics + fleet.fast)]
        self.calls = self._rpc()

    def _topic(self, index: int) -> Topic:
        rng, fleet = self._rng, self._fleet
        rate = 1_000 if index >= fleet.topics else int(rng.choice(_RATES_HZ))
        uri = f"//{self._gateway.replace('hpc', 'chassis')}/10A{index % 16:X}/1/{0x8000 + index:X}"
        period_ns = NS // rate
        count = min(int(rng.poisson(fleet.subscribers)), 8)
        # A network is one target of a topic, for any number of listeners; other targets have one subscriber each.
        network = int(rng.choice(count)) if count and rng.random() < 0.8 else -1
        deliveries = [self._planned_delivery(uri, network=index == network) for index in range(count)]
        if not deliveries:
            deliveries = [PlannedDelivery(0, [self._new_target(TargetText(0, 0, "chassis"))], None)]
        return Topic(
            uri,
            None,
            PUBLISH,
            period_ns,
            int(rng.integers(0, period_ns)),
            int(rng.integers(1, 200)),
            int(rng.integers(0, 7)),
            int(rng.choice((0, 0, 500, 5_000))),
            deliveries,
            self._spans(fleet.outages / 4, 5.0),
        )

    def _planned_delivery(self, topic: str, *, network: bool) -> PlannedDelivery:
        """One subscriber, or one Zenoh network of subscribers; one in four changes its limit half-way."""
        rng = self._rng
        self._delivery_count += 1
        limit = int(rng.choice(_LIMITS_HZ))
        subscriber = (
            None if network else f"//{self._gateway.replace('hpc', 'cabin')}/{self._delivery_count:X}/1/0"
        )
        period_ns = NS // limit if limit else 0
        egress = "backbone" if subscriber is None else "cabin"
        first = TargetText(0, self._delivery_count, "chassis", egress, topic, subscriber, period_ns, RUN_NS)
        targets = [self._new_target(first)]
        gate = Gate(period_ns, DEFAULT_TOLERANCE) if period_ns else None
        tuned = []
        if gate is not None and rng.random() < 0.25:
            tuned.append(RUN_NS + int(rng.random() * (self.end_ns - RUN_NS)))
            changed = TargetText(
                0, self._delivery_count, "chassis", egress, topic, subscriber, period_ns * 2, tuned[0]
            )
            targets.append(self._new_target(changed))
        return PlannedDelivery(
            self._delivery_count, targets, gate, tuned, outages=self._spans(self._fleet.outages, 8.0)
        )

    def _new_target(self, target: TargetText) -> TargetText:
        numbered = {f.name: getattr(target, f.name) for f in fields(target)} | {
            "target": len(self.targets) + 1
        }
        self.targets.append(TargetText(**numbered))
        return self.targets[-1]

    def _spans(self, per_hour: float, mean_s: float) -> Ints:
        """Outages as rows of (from, until), in order and disjoint."""
        rng, length = self._rng, self.end_ns - RUN_NS
        count = int(rng.poisson(per_hour * length / (3_600 * NS)))
        starts = np.sort(rng.integers(RUN_NS, self.end_ns, count))
        ends = starts + (rng.exponential(mean_s, count) * NS).astype(np.int64)
        if count > 1:
            ends[:-1] = np.minimum(ends[:-1], starts[1:])
        return np.stack((starts, ends), axis=1)

    def _rpc(self) -> Topic | None:
        if not self._fleet.requests_hz:
            return None
        self._delivery_count += 2
        there = self._new_target(TargetText(0, self._delivery_count - 1, "cabin", "chassis"))
        back = self._new_target(TargetText(0, self._delivery_count, "chassis", "cabin"))
        period_ns = int(NS / self._fleet.requests_hz)
        client = f"//{self._gateway.replace('hpc', 'cabin')}/F1/1/0"
        method = f"//{self._gateway.replace('hpc', 'chassis')}/20B0/1/1"
        deliveries = [
            PlannedDelivery(there.delivery, [there], None),
            PlannedDelivery(back.delivery, [back], None),
        ]
        return Topic(
            client,
            method,
            REQUEST,
            period_ns,
            period_ns // 3,
            24,
            4,
            2_000,
            deliveries,
            np.zeros((0, 2), np.int64),
        )
