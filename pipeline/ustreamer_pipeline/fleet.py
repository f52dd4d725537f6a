# SPDX-License-Identifier: Apache-2.0
"""Recordings of a fleet that does not exist: seeded, of any size, and decided by the gateway's own throttle.

A vehicle publishes topics at rates from 1 kHz to 1 Hz with jitter, bursts and silences; some are subscribed, on a Zenoh network
or by single entities, with and without a limit, which some subscribers change; links go down and come back, so that messages
wait, expire or become dead letters; and there are requests with answers. Vehicles are independent of each other: the same
seed and number give the same bytes, whatever else is made and in how many processes.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from ustreamer_throttle.gate import DEFAULT_TOLERANCE, Gate

from ustreamer_pipeline.layout import (
    ANSWER,
    COUNTERS,
    DEAD_LETTER,
    DELIVERY,
    END,
    HAS_TTL,
    NO_CODE,
    SUBSCRIPTION,
    TYPES,
)
from ustreamer_pipeline.schemas import VERDICTS
from ustreamer_pipeline.segment_writer import (
    Strings,
    TargetText,
    cells,
    empty,
    encode,
    file_name,
    one,
    preamble,
)
from ustreamer_pipeline.segments import Header, Ints, Records

_DELIVERED, _THROTTLED, _EXPIRED, _DEAD_LETTERED, _NO_SUBSCRIBER = (
    VERDICTS.index(name) for name in ("DELIVERED", "THROTTLED", "EXPIRED", "DEAD_LETTERED", "NO_SUBSCRIBER")
)
_PUBLISH, _REQUEST, _RESPONSE = 1, 2, 3
_UNAVAILABLE, _DEADLINE_EXCEEDED, _INTERNAL = 14, 4, 13
_REFUSED: Final = 0.0005
_RATES_HZ: Final = (1, 2, 5, 10, 20, 50, 100)
_LIMITS_HZ: Final = (0, 0, 1, 5, 10, 40)
_NS: Final = 1_000_000_000
_MAX_AGE_NS: Final = 30 * _NS
_RUN_NS: Final = 1_000_000_000  # a run's first reading of the monotonic clock

SEGMENT_ROWS: Final = 170_000
"""Rows of a segment, which makes it 16 MiB."""


@dataclass(frozen=True)
class Fleet:
    """What to make. `start_ms` is the wall clock at which every vehicle starts, give or take a minute.

    `topics` of each vehicle have rates from 1 to 100 Hz, and `fast` more of them 1 kHz. `jitter` is a fraction of the period,
    below 0.5. `outages` are links that go down, per hour. `killed` is how many vehicles of a hundred end without a stop.
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

    def check(self) -> None:
        """Raises ValueError naming what cannot be."""
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


def write_fleet(fleet: Fleet, folder: Path, processes: int = 1) -> Iterator[int]:
    """Make every vehicle's recordings below `folder`, a folder each; gives the rows of each vehicle that is done."""
    fleet.check()
    make = partial(write_vehicle, fleet, folder)
    if processes == 1:
        yield from map(make, range(fleet.vehicles))
        return
    # Not forked: the caller may have threads.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(
            make, range(fleet.vehicles), chunksize=max(1, min(16, fleet.vehicles // (4 * processes)))
        )


def write_vehicle(fleet: Fleet, folder: Path, number: int) -> int:
    """Make one vehicle's recording; how many rows it has. A file is there whole or not at all."""
    vehicle = Vehicle(fleet, number)
    place = folder / vehicle.gateway
    place.mkdir(parents=True, exist_ok=True)
    for header, data in vehicle.segments():
        temporary = place / f".{file_name(header)}"
        temporary.write_bytes(data)
        temporary.replace(place / file_name(header))
    return vehicle.next_seq


@dataclass
class _Line:
    """One delivery: a topic, to one target, with one gate; `tuned` are its later limits, in order of time.

    `settled_ns` is when its last message left, and `answered_ns` when its last answer came in: a lane keeps the order.
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
class _Topic:
    """One topic: `next` is the number of its next message on a grid of `period_ns` from `phase_ns`."""

    uri: str
    sink: str | None
    type: int
    period_ns: int
    phase_ns: int
    size: int
    priority: int
    ttl_ms: int
    lines: list[_Line]
    silences: Ints
    next: int = 0


class Vehicle:
    """One gateway in one drive."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        self._dice = np.random.default_rng([fleet.seed, number])
        self.gateway = f"v{number:07d}.hpc"
        start_ms = fleet.start_ms + int(self._dice.integers(0, 60_000))
        self.run = start_ms
        self._start_ms = start_ms
        self._end_ns = _RUN_NS + int(fleet.seconds * _NS)
        self._targets: list[TargetText] = []
        self._deliveries = 0
        self._killed = bool(self._dice.integers(0, 100) < fleet.killed)
        self._strings = Strings()
        self._topics = [self._topic(index) for index in range(fleet.topics + fleet.fast)]
        self._calls = self._rpc()
        self.next_seq = 0
        self._settled = np.zeros(len(VERDICTS), np.int64)
        self._received = 0
        self._carried: Records = empty(DELIVERY, 0)
        self._carried_requests: Ints = np.zeros((0, 2), np.int64)

    # ------------------------------------------------------------------------------------------------- the vehicle

    def _topic(self, index: int) -> _Topic:
        dice, fleet = self._dice, self._fleet
        rate = 1_000 if index >= fleet.topics else int(dice.choice(_RATES_HZ))
        uri = f"//{self.gateway.replace('hpc', 'chassis')}/10A{index % 16:X}/1/{0x8000 + index:X}"
        period_ns = _NS // rate
        count = min(int(dice.poisson(fleet.subscribers)), 8)
        # A network is one target of a topic, however many listen there; the others are for one subscriber each.
        network = int(dice.choice(count)) if count and dice.random() < 0.8 else -1
        lines = [self._line(uri, network=index == network) for index in range(count)]
        if not lines:
            lines = [_Line(0, [self._new_target(TargetText(0, 0, "chassis"))], None)]
        return _Topic(
            uri,
            None,
            _PUBLISH,
            period_ns,
            int(dice.integers(0, period_ns)),
            int(dice.integers(1, 200)),
            int(dice.integers(0, 7)),
            int(dice.choice((0, 0, 500, 5_000))),
            lines,
            self._spans(fleet.outages / 4, 5.0),
        )

    def _line(self, topic: str, *, network: bool) -> _Line:
        """A subscriber, or a Zenoh network of them; one in four changes its limit half-way."""
        dice = self._dice
        self._deliveries += 1
        limit = int(dice.choice(_LIMITS_HZ))
        subscriber = None if network else f"//{self.gateway.replace('hpc', 'cabin')}/{self._deliveries:X}/1/0"
        period_ns = _NS // limit if limit else 0
        egress = "backbone" if subscriber is None else "cabin"
        first = TargetText(0, self._deliveries, "chassis", egress, topic, subscriber, period_ns, _RUN_NS)
        targets = [self._new_target(first)]
        gate = Gate(period_ns, DEFAULT_TOLERANCE) if period_ns else None
        tuned = []
        if gate is not None and dice.random() < 0.25:
            tuned.append(_RUN_NS + int(dice.random() * (self._end_ns - _RUN_NS)))
            changed = TargetText(
                0, self._deliveries, "chassis", egress, topic, subscriber, period_ns * 2, tuned[0]
            )
            targets.append(self._new_target(changed))
        return _Line(self._deliveries, targets, gate, tuned, outages=self._spans(self._fleet.outages, 8.0))

    def _new_target(self, target: TargetText) -> TargetText:
        numbered = {f.name: getattr(target, f.name) for f in fields(target)} | {
            "target": len(self._targets) + 1
        }
        self._targets.append(TargetText(**numbered))
        return self._targets[-1]

    def _spans(self, per_hour: float, mean_s: float) -> Ints:
        """When something is away: rows of (from, until), in order, apart."""
        dice, length = self._dice, self._end_ns - _RUN_NS
        count = int(dice.poisson(per_hour * length / (3_600 * _NS)))
        starts = np.sort(dice.integers(_RUN_NS, self._end_ns, count))
        ends = starts + (dice.exponential(mean_s, count) * _NS).astype(np.int64)
        if count > 1:
            ends[:-1] = np.minimum(ends[:-1], starts[1:])
        return np.stack((starts, ends), axis=1)

    def _rpc(self) -> _Topic | None:
        if not self._fleet.requests_hz:
            return None
        self._deliveries += 2
        there = self._new_target(TargetText(0, self._deliveries - 1, "cabin", "chassis"))
        back = self._new_target(TargetText(0, self._deliveries, "chassis", "cabin"))
        period_ns = int(_NS / self._fleet.requests_hz)
        client = f"//{self.gateway.replace('hpc', 'cabin')}/F1/1/0"
        method = f"//{self.gateway.replace('hpc', 'chassis')}/20B0/1/1"
        lines = [_Line(there.delivery, [there], None), _Line(back.delivery, [back], None)]
        return _Topic(
            client,
            method,
            _REQUEST,
            period_ns,
            period_ns // 3,
            24,
            4,
            2_000,
            lines,
            np.zeros((0, 2), np.int64),
        )

    # -------------------------------------------------------------------------------------------------- the drive

    def segments(self) -> Iterator[tuple[Header, bytes]]:
        """Segments in order. Each is one stretch of time; what settles later goes on in the next."""
        stretch = max(int(self._fleet.segment_rows / self._rows_per_s() * _NS), 1_000_000)
        begins = _RUN_NS
        number = 0
        while begins < self._end_ns:
            ends = min(begins + stretch, self._end_ns)
            yield self._segment(number, begins, ends, last=ends == self._end_ns)
            begins, number = ends, number + 1

    def _rows_per_s(self) -> float:
        rows = sum(len(topic.lines) * _NS / topic.period_ns for topic in self._topics)
        return rows + 2 * self._fleet.requests_hz

    def _segment(self, number: int, begins: int, ends: int, *, last: bool) -> tuple[Header, bytes]:
        header = Header(self.gateway, self.run, number, 1, begins, self._wall_ms(begins), self.next_seq)
        made = [self._carried]
        requests = [self._carried_requests]
        for topic in self._topics:
            made += self._publications(topic, begins, ends)
        requests += [np.zeros((len(part), 2), np.int64) for part in made[1:]]
        if self._calls is not None:
            for rows, theirs in self._rpc_rows(self._calls, begins, ends):
                made.append(rows)
                requests.append(theirs)
        # As cells: numpy puts records together field by field, without the bytes between the fields.
        rows = np.concatenate([cells(part) for part in made]).view(TYPES[DELIVERY])
        answers = np.concatenate(requests)
        self._received += len(rows) - len(self._carried)
        order = np.argsort(rows["settled_ns"], kind="stable")
        rows, answers = cells(rows)[order].view(TYPES[DELIVERY]), answers[order]
        here = len(rows) if last else int(np.searchsorted(rows["settled_ns"], ends))
        self._carried, self._carried_requests = rows[here:], answers[here:]
        rows, answers = rows[:here], answers[:here]
        rows["seq"] = np.arange(self.next_seq, self.next_seq + here)
        self.next_seq += here
        self._settled += np.bincount(rows["verdict"], minlength=len(VERDICTS))[: len(VERDICTS)]
        stops = int(rows["settled_ns"][-1]) if last and here else ends
        return header, self._encoded(header, rows, answers, max(stops, ends), begins, ends, last=last)

    def _encoded(
        self, header: Header, rows: Records, answers: Ints, stops: int, begins: int, ends: int, *, last: bool
    ) -> bytes:
        changes = self._changes(begins, ends)  # before the preamble, which tells every text that is in use
        first = preamble(header, self._strings, self._targets, 0, _RUN_NS, self._settings())
        records = [np.concatenate((first, *changes)), self._interleaved(rows, answers)]
        wall_ms = self._wall_ms(stops)
        if not (last and self._killed):
            books = [self._received, *self._settled.tolist(), len(self._carried)]
            final = [
                one(COUNTERS, cause=int(last), mono_ns=stops, ledger=[books], next_seq=self.next_seq),
                one(END, cause=int(last), mono_ns=stops, wall_ms=wall_ms, next_seq=self.next_seq),
            ]
            records.append(np.concatenate(final))
        return encode(header, [part for part in records if len(part)], mono_ns=stops, wall_ms=wall_ms)

    def _settings(self) -> dict[str, Any]:
        limits = {"queue_messages": 10_000, "queue_bytes": 16_000_000, "max_age_ms": _MAX_AGE_NS // 1_000_000}
        throttle = {"tolerance": DEFAULT_TOLERANCE, "mode": "drop", "latest": []}
        return {"egress": dict.fromkeys(("backbone", "cabin", "chassis"), limits), "throttle": throttle}

    def _wall_ms(self, mono_ns: int) -> int:
        return self._start_ms + (mono_ns - _RUN_NS) // 1_000_000

    def _changes(self, begins: int, ends: int) -> list[Records]:
        """Subscriptions: those that are there when the run begins, and limits that are changed."""
        found: list[tuple[int, int, TargetText]] = []
        for topic in self._topics:
            for line in topic.lines:
                if line.delivery:
                    found += zip(
                        [_RUN_NS, *line.tuned], [0] + [2] * len(line.tuned), line.targets, strict=True
                    )
        found.sort(key=lambda one: (one[0], one[2].target))
        return [
            one(
                SUBSCRIPTION,
                change=change,
                number=number,
                time_ns=time_ns,
                period_ns=target.period_ns,
                topic=self._strings[target.topic],
                subscriber=self._strings[target.subscriber or f"//{self.gateway}/F{target.delivery:X}/1/0"],
            )
            for number, (time_ns, change, target) in enumerate(found)
            if begins <= time_ns < ends
        ]

    # --------------------------------------------------------------------------------------------------- the rows

    def _arrivals(self, topic: _Topic, begins: int, ends: int) -> Ints:
        """When messages of a topic come in, in order: a grid with jitter, bursts now and then, and silences."""
        dice = self._dice
        until = max(-(-(ends - _RUN_NS - topic.phase_ns) // topic.period_ns), topic.next)
        grid = np.arange(topic.next, until, dtype=np.int64)
        topic.next = until
        jitter = (dice.random(len(grid)) - 0.5) * 2 * self._fleet.jitter * topic.period_ns
        times = _RUN_NS + topic.phase_ns + grid * topic.period_ns + jitter.astype(np.int64)
        times = np.maximum(times, begins)
        if len(times) and dice.random() < 0.1:  # ten at once, 50 us apart
            at = times[dice.integers(0, len(times))]
            burst = np.minimum(at + 50_000 * np.arange(1, 11), max(at, ends - 1))
            # No two at once: a gate's decisions are told apart by their time.
            times = np.unique(np.concatenate((times, burst)))
        away = _until(topic.silences, times) > times
        return times[~away]

    def _publications(self, topic: _Topic, begins: int, ends: int) -> list[Records]:
        arrived = self._arrivals(topic, begins, ends)
        msb, lsb = self._ids(arrived)
        made = []
        for line in topic.lines:
            rows = empty(DELIVERY, len(arrived))
            rows["id_msb"], rows["id_lsb"] = msb, lsb
            self._fill(rows, topic, arrived)
            if line.delivery == 0:
                rows["target"] = line.targets[0].target
                rows["verdict"], rows["settled_ns"] = _NO_SUBSCRIBER, arrived
            else:
                self._deliver(rows, line, topic.ttl_ms)
            made.append(rows)
        return made

    def _ids(self, arrived: Ints) -> tuple[Ints, Ints]:
        """UUIDs of version 7, made by the sender just before."""
        ms = self._start_ms + (arrived - _RUN_NS) // 1_000_000
        msb = ms << 16 | 0x7000 | np.arange(len(arrived)) & 0xFFF
        return msb, self._dice.integers(0, 2**62, len(arrived)) | np.int64(-(2**63))

    def _fill(self, rows: Records, topic: _Topic, arrived: Ints) -> None:
        rows["arrived_ns"] = rows["received_ns"] = arrived
        rows["source"], rows["sink"] = self._strings[topic.uri], self._strings[topic.sink]
        rows["type"], rows["priority"], rows["size"] = topic.type, topic.priority, topic.size
        rows["code"] = NO_CODE
        if topic.ttl_ms:
            rows["flags"], rows["ttl_ms"] = HAS_TTL, topic.ttl_ms

    def _deliver(self, rows: Records, line: _Line, ttl_ms: int) -> None:
        """The gate decides, message by message; then the queue, and the link if it is there."""
        arrived = rows["arrived_ns"]
        passed = self._gated(rows, line, arrived)
        back = _until(line.outages, arrived)
        waits = back - arrived
        spent = np.cumsum(self._dice.exponential(2_000, len(rows))).astype(np.int64)
        # What waited goes out one after the other once the link is back, not all in the same nanosecond.
        queued = arrived + self._dice.integers(5_000, 60_000, len(rows))
        tried = np.where(waits > 0, back + spent - (spent[0] if len(spent) else 0), queued)
        settled = tried + self._dice.integers(2_000, 90_000, len(rows))
        patience = ttl_ms * 1_000_000 if ttl_ms else _MAX_AGE_NS
        late = tried - arrived >= patience
        left = passed & ~late
        settled[left] = _rising(line.settled_ns, settled[left])
        line.settled_ns = int(settled[left].max(initial=line.settled_ns))
        rows["first_attempt_ns"] = np.where(passed & ~late, tried, 0)
        rows["attempts"] = np.where(passed & ~late, 1 + (waits > 0), 0)
        rows["verdict"] = np.select(
            [~passed, late], [_THROTTLED, _EXPIRED if ttl_ms else _DEAD_LETTERED], _DELIVERED
        )
        rows["settled_ns"] = np.select([~passed, late], [arrived, arrived + patience], settled)
        gone = passed & late
        rows["code"][gone] = _DEADLINE_EXCEEDED if ttl_ms else _UNAVAILABLE
        rows["reason"][gone] = self._strings["ttl over" if ttl_ms else "older than max_age_ms"]
        if line.targets[0].topic is not None:  # requests and answers all arrive: an audit may ask for that
            refused = (rows["verdict"] == _DELIVERED) & (self._dice.random(len(rows)) < _REFUSED)
            rows["verdict"][refused], rows["code"][refused] = _DEAD_LETTERED, _INTERNAL
            rows["reason"][refused] = self._strings["the transport refused the message"]

    def _gated(self, rows: Records, line: _Line, arrived: Ints) -> npt.NDArray[np.bool_]:
        """Which messages the gate lets pass; from each change of the limit on, rows name the next target."""
        passed = np.ones(len(rows), np.bool_)
        cuts = np.searchsorted(arrived, line.tuned)
        for index, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            rows["target"][start:stop] = line.targets[index].target
            if line.gate is None:
                continue
            if index and start < stop and line.gate_at < index:
                line.gate.retune(line.targets[index].period_ns, line.tuned[index - 1])
                line.gate_at = index
            admit = line.gate.admit
            passed[start:stop] = [admit(now) for now in arrived[start:stop].tolist()]
        return passed

    def _rpc_rows(self, calls: _Topic, begins: int, ends: int) -> Iterator[tuple[Records, Ints]]:
        arrived = self._arrivals(calls, begins, ends)
        there, back = calls.lines
        request = empty(DELIVERY, len(arrived))
        request["id_msb"], request["id_lsb"] = self._ids(arrived)
        self._fill(request, calls, arrived)
        self._deliver(request, there, calls.ttl_ms)
        yield request, np.zeros((len(request), 2), np.int64)
        answered = request["settled_ns"] + self._dice.integers(200_000, 9_000_000, len(arrived))
        answered = _rising(back.answered_ns, answered)
        back.answered_ns = int(answered.max(initial=back.answered_ns))
        answer = empty(DELIVERY, len(arrived))
        answer["id_msb"], answer["id_lsb"] = self._ids(answered)
        self._fill(answer, calls, answered)
        answer["type"], answer["source"], answer["sink"] = (
            _RESPONSE,
            self._strings[calls.sink],
            self._strings[calls.uri],
        )
        self._deliver(answer, back, calls.ttl_ms)
        yield answer, np.stack((request["id_msb"], request["id_lsb"]), axis=1)

    def _interleaved(self, rows: Records, answers: Ints) -> Records:
        """Rows, each with what stands behind it: the id of the request, the dead letter."""
        letters = np.flatnonzero(np.isin(rows["verdict"], (_EXPIRED, _DEAD_LETTERED)))
        responses = np.flatnonzero(rows["type"] == _RESPONSE)
        answer = empty(ANSWER, len(responses))
        answer["seq"] = rows["seq"][responses]
        answer["request_msb"], answer["request_lsb"] = answers[responses].T
        letter = empty(DEAD_LETTER, len(letters))
        for name in (
            "code",
            "seq",
            "id_msb",
            "id_lsb",
            "target",
            "source",
            "sink",
            "reason",
            "attempts",
            "size",
        ):
            letter[name] = rows[name][letters]
        letter["time_ns"] = rows["settled_ns"][letters]
        return np.insert(
            cells(rows),
            np.concatenate((responses, letters)) + 1,  # equal places keep this order: the answer first
            np.concatenate((cells(answer), cells(letter))),
        )


def _rising(least: int, times: Ints) -> Ints:
    """The times, each put off to the one before it where it is earlier."""
    rising: Ints = np.maximum.accumulate(np.maximum(times, least)) if len(times) else times
    return rising


def _until(spans: Ints, times: Ints) -> Ints:
    """For each time the end of the span that it is in; the time itself where it is in none."""
    if not len(spans):
        return times
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    ends = np.where(at >= 0, spans[np.maximum(at, 0), 1], times)
    return np.maximum(ends, times)
