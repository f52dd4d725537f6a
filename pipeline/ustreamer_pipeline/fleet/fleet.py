# SPDX-License-Identifier: Apache-2.0
"""Recordings of a synthetic fleet: seeded, of any size, with the decisions of the real throttle.

A vehicle publishes topics at 1 Hz to 1 kHz with jitter, bursts and pauses. Some topics have subscribers, on a Zenoh
network or single entities, with and without a rate limit; some subscribers change their limit.
Links go down and up, so that messages wait, expire or become dead letters. There are requests with responses.
Vehicles are independent: one seed and number give the same bytes, for any fleet size and number of processes.
"""

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from ustreamer_throttle.gate import DEFAULT_TOLERANCE

from ustreamer_pipeline.fleet.plan import NS, RESPONSE, RUN_NS, Fleet, VehiclePlan
from ustreamer_pipeline.fleet.traffic import DEAD_LETTERED, EXPIRED, MAX_AGE_NS, Traffic
from ustreamer_pipeline.recording.layout import (
    ANSWER,
    COUNTERS,
    DEAD_LETTER,
    DELIVERY,
    END,
    LAYOUT,
    SUBSCRIPTION,
    TYPES,
    Ints,
    Records,
)
from ustreamer_pipeline.recording.segment_writer import (
    StringTable,
    TargetText,
    as_cells,
    empty_records,
    encode_segment,
    file_name,
    make_record,
    preamble,
)
from ustreamer_pipeline.recording.segments import Header
from ustreamer_pipeline.schemas import VERDICTS

__all__ = ["Fleet", "SyntheticVehicle", "write_fleet", "write_vehicle"]


def write_fleet(fleet: Fleet, folder: Path, processes: int = 1) -> Iterator[int]:
    """Write the recordings of every vehicle below `folder`, one folder each. Yields the row count of each finished
    vehicle.
    """
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
    """Write the recording of one vehicle, each file atomically. Returns the number of rows."""
    vehicle = SyntheticVehicle(fleet, number)
    place = folder / vehicle.gateway
    place.mkdir(parents=True, exist_ok=True)
    for header, data in vehicle.segments():
        temporary = place / f".{file_name(header)}"
        temporary.write_bytes(data)
        temporary.replace(place / file_name(header))
    return vehicle.next_seq


class SyntheticVehicle:
    """One gateway on one drive."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self._fleet = fleet
        rng = np.random.default_rng([fleet.seed, number])
        self.gateway = f"v{number:07d}.hpc"
        self.run = self._start_ms = fleet.start_ms + int(rng.integers(0, 60_000))
        self._killed = bool(rng.integers(0, 100) < fleet.killed)
        self._strings = StringTable()
        self._plan = VehiclePlan(fleet, self.gateway, rng)
        self._traffic = Traffic(fleet.jitter, self._start_ms, self._strings, rng)
        self.next_seq = 0
        self._settled = np.zeros(len(VERDICTS), np.int64)
        self._received = 0
        self._carried: Records = empty_records(DELIVERY, 0)
        self._carried_requests: Ints = np.zeros((0, 2), np.int64)

    def segments(self) -> Iterator[tuple[Header, bytes]]:
        """Segments in order, each for one period of time. A message that settles later belongs to a later segment."""
        stretch = max(int(self._fleet.segment_rows / self._rows_per_s() * NS), 1_000_000)
        begins = RUN_NS
        number = 0
        while begins < self._plan.end_ns:
            ends = min(begins + stretch, self._plan.end_ns)
            yield self._segment(number, begins, ends, last=ends == self._plan.end_ns)
            begins, number = ends, number + 1

    def _rows_per_s(self) -> float:
        rows = sum(len(topic.deliveries) * NS / topic.period_ns for topic in self._plan.topics)
        return rows + 2 * self._fleet.requests_hz

    def _segment(self, number: int, begins: int, ends: int, *, last: bool) -> tuple[Header, bytes]:
        header = Header(
            self.gateway,
            self.run,
            number,
            LAYOUT,
            begins,
            self._wall_ms(begins),
            self.next_seq,
            len(self._changes_before(begins)),
        )
        made = [self._carried]
        requests = [self._carried_requests]
        for topic in self._plan.topics:
            made += self._traffic.publications(topic, begins, ends)
        requests += [np.zeros((len(part), 2), np.int64) for part in made[1:]]
        if self._plan.calls is not None:
            for rows, theirs in self._traffic.calls(self._plan.calls, begins, ends):
                made.append(rows)
                requests.append(theirs)
        # As cells: numpy concatenates structured arrays field by field and drops the padding between fields.
        rows = np.concatenate([as_cells(part) for part in made]).view(TYPES[DELIVERY])
        answers = np.concatenate(requests)
        self._received += len(rows) - len(self._carried)
        order = np.argsort(rows["settled_ns"], kind="stable")
        rows, answers = as_cells(rows)[order].view(TYPES[DELIVERY]), answers[order]
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
        changes = self._subscription_changes(begins, ends)  # before the preamble, which has every text in use
        first = preamble(header, self._strings, self._plan.targets, 0, RUN_NS, self._settings())
        records = [np.concatenate((first, *changes)), self._interleaved(rows, answers)]
        wall_ms = self._wall_ms(stops)
        if not (last and self._killed):
            ledger = [self._received, *self._settled.tolist(), len(self._carried)]
            final = [
                make_record(
                    COUNTERS, cause=int(last), mono_ns=stops, ledger=[ledger], next_seq=self.next_seq
                ),
                make_record(
                    END,
                    cause=int(last),
                    mono_ns=stops,
                    wall_ms=wall_ms,
                    next_seq=self.next_seq,
                    next_change=len(self._changes_before(ends)),
                ),
            ]
            records.append(np.concatenate(final))
        return encode_segment(header, [part for part in records if len(part)], mono_ns=stops, wall_ms=wall_ms)

    def _settings(self) -> dict[str, Any]:
        limits = {"queue_messages": 10_000, "queue_bytes": 16_000_000, "max_age_ms": MAX_AGE_NS // 1_000_000}
        throttle = {"tolerance": DEFAULT_TOLERANCE, "mode": "drop", "latest": []}
        settings = {"egress": dict.fromkeys(("backbone", "cabin", "chassis"), limits), "throttle": throttle}
        return settings | ({"release": self._fleet.release} if self._fleet.release else {})

    def _wall_ms(self, mono_ns: int) -> int:
        return self._start_ms + (mono_ns - RUN_NS) // 1_000_000

    def _changes_before(self, time_ns: int) -> list[tuple[int, int, TargetText]]:
        """Subscriptions (time, change, target): those that exist at the start of the run, and changes of limits."""
        found: list[tuple[int, int, TargetText]] = []
        for topic in self._plan.topics:
            for delivery in topic.deliveries:
                if delivery.delivery:
                    found += zip(
                        [RUN_NS, *delivery.tuned],
                        [0] + [2] * len(delivery.tuned),
                        delivery.targets,
                        strict=True,
                    )
        found.sort(key=lambda one: (one[0], one[2].target))
        return [each for each in found if each[0] < time_ns]

    def _subscription_changes(self, begins: int, ends: int) -> list[Records]:
        return [
            make_record(
                SUBSCRIPTION,
                change=change,
                number=number,
                time_ns=time_ns,
                period_ns=target.period_ns,
                topic=self._strings[target.topic],
                subscriber=self._strings[target.subscriber or f"//{self.gateway}/F{target.delivery:X}/1/0"],
            )
            for number, (time_ns, change, target) in enumerate(self._changes_before(ends))
            if begins <= time_ns
        ]

    def _interleaved(self, rows: Records, answers: Ints) -> Records:
        """Rows, each followed by its attached record: the id of the request, the dead letter."""
        letters = np.flatnonzero(np.isin(rows["verdict"], (EXPIRED, DEAD_LETTERED)))
        responses = np.flatnonzero(rows["type"] == RESPONSE)
        answer = empty_records(ANSWER, len(responses))
        answer["seq"] = rows["seq"][responses]
        answer["request_msb"], answer["request_lsb"] = answers[responses].T
        letter = empty_records(DEAD_LETTER, len(letters))
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
            as_cells(rows),
            np.concatenate((responses, letters)) + 1,  # stable sort: the response stays first
            np.concatenate((as_cells(answer), as_cells(letter))),
        )
