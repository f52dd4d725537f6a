# SPDX-License-Identifier: Apache-2.0
"""Decisions of a synthetic gateway as rows: arrivals, verdicts of the real gate, and links that are up or down."""

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt

from ustreamer_pipeline.fleet.plan import NS, RESPONSE, RUN_NS, PlannedDelivery, Topic
from ustreamer_pipeline.recording.layout import DELIVERY, HAS_TTL, NO_CODE, Ints, Records
from ustreamer_pipeline.recording.segment_writer import StringTable, empty_records
from ustreamer_pipeline.schemas import VERDICTS

DELIVERED, THROTTLED, EXPIRED, DEAD_LETTERED, NO_SUBSCRIBER = (
    VERDICTS.index(name) for name in ("DELIVERED", "THROTTLED", "EXPIRED", "DEAD_LETTERED", "NO_SUBSCRIBER")
)
_UNAVAILABLE, _DEADLINE_EXCEEDED, _INTERNAL = 14, 4, 13
_REFUSED: Final = 0.0005
MAX_AGE_NS: Final = 30 * NS


class Traffic:
    """Rows of one vehicle, period by period. `start_ms` is the wall clock at the start of the run."""

    def __init__(self, jitter: float, start_ms: int, strings: StringTable, rng: np.random.Generator) -> None:
        self._jitter, self._start_ms, self._strings, self._rng = jitter, start_ms, strings, rng

    def arrivals(self, topic: Topic, begins: int, ends: int) -> Ints:
        """Arrival times of a topic, in order: a grid with jitter, occasional bursts, and pauses."""
        rng = self._rng
        until = max(-(-(ends - RUN_NS - topic.phase_ns) // topic.period_ns), topic.next)
        grid = np.arange(topic.next, until, dtype=np.int64)
        topic.next = until
        jitter = (rng.random(len(grid)) - 0.5) * 2 * self._jitter * topic.period_ns
        times = RUN_NS + topic.phase_ns + grid * topic.period_ns + jitter.astype(np.int64)
        times = np.maximum(times, begins)
        if len(times) and rng.random() < 0.1:  # ten at once, 50 us apart
            at = times[rng.integers(0, len(times))]
            burst = np.minimum(at + 50_000 * np.arange(1, 11), max(at, ends - 1))
            # No two at the same time: the decisions of a gate are identified by their time.
            times = np.unique(np.concatenate((times, burst)))
        away = _until(topic.silences, times) > times
        return times[~away]

    def publications(self, topic: Topic, begins: int, ends: int) -> list[Records]:
        arrived = self.arrivals(topic, begins, ends)
        msb, lsb = self._ids(arrived)
        made = []
        for delivery in topic.deliveries:
            rows = empty_records(DELIVERY, len(arrived))
            rows["id_msb"], rows["id_lsb"] = msb, lsb
            self._fill(rows, topic, arrived)
            if delivery.delivery == 0:
                rows["target"] = delivery.targets[0].target
                rows["verdict"], rows["settled_ns"] = NO_SUBSCRIBER, arrived
            else:
                self._deliver(rows, delivery, topic.ttl_ms)
            made.append(rows)
        return made

    def _ids(self, arrived: Ints) -> tuple[Ints, Ints]:
        """UUIDs of version 7, created by the sender shortly before."""
        ms = self._start_ms + (arrived - RUN_NS) // 1_000_000
        msb = ms << 16 | 0x7000 | np.arange(len(arrived)) & 0xFFF
        return msb, self._rng.integers(0, 2**62, len(arrived)) | np.int64(-(2**63))

    def _fill(self, rows: Records, topic: Topic, arrived: Ints) -> None:
        rows["arrived_ns"] = rows["received_ns"] = arrived
        rows["source"], rows["sink"] = self._strings[topic.uri], self._strings[topic.sink]
        rows["type"], rows["priority"], rows["size"] = topic.type, topic.priority, topic.size
        rows["code"] = NO_CODE
        if topic.ttl_ms:
            rows["flags"], rows["ttl_ms"] = HAS_TTL, topic.ttl_ms

    def _deliver(self, rows: Records, delivery: PlannedDelivery, ttl_ms: int) -> None:
        """The gate decides message by message; the queue and the link follow."""
        arrived = rows["arrived_ns"]
        passed = self._gated(rows, delivery, arrived)
        back = _until(delivery.outages, arrived)
        waits = back - arrived
        spent = np.cumsum(self._rng.exponential(2_000, len(rows))).astype(np.int64)
        # Queued messages leave one after the other when the link is up again, not in the same nanosecond.
        queued = arrived + self._rng.integers(5_000, 60_000, len(rows))
        tried = np.where(waits > 0, back + spent - (spent[0] if len(spent) else 0), queued)
        settled = tried + self._rng.integers(2_000, 90_000, len(rows))
        max_wait = ttl_ms * 1_000_000 if ttl_ms else MAX_AGE_NS
        late = tried - arrived >= max_wait
        sent = passed & ~late
        settled[sent] = _rising(delivery.settled_ns, settled[sent])
        delivery.settled_ns = int(settled[sent].max(initial=delivery.settled_ns))
        rows["first_attempt_ns"] = np.where(passed & ~late, tried, 0)
        rows["attempts"] = np.where(passed & ~late, 1 + (waits > 0), 0)
        rows["verdict"] = np.select(
            [~passed, late], [THROTTLED, EXPIRED if ttl_ms else DEAD_LETTERED], DELIVERED
        )
        rows["settled_ns"] = np.select([~passed, late], [arrived, arrived + max_wait], settled)
        late_rows = passed & late
        rows["code"][late_rows] = _DEADLINE_EXCEEDED if ttl_ms else _UNAVAILABLE
        rows["reason"][late_rows] = self._strings["ttl over" if ttl_ms else "older than max_age_ms"]
        if (
            delivery.targets[0].topic is not None
        ):  # all requests and responses arrive, as an audit may check that
            refused = (rows["verdict"] == DELIVERED) & (self._rng.random(len(rows)) < _REFUSED)
            rows["verdict"][refused], rows["code"][refused] = DEAD_LETTERED, _INTERNAL
            rows["reason"][refused] = self._strings["the transport refused the message"]

    def _gated(self, rows: Records, delivery: PlannedDelivery, arrived: Ints) -> npt.NDArray[np.bool_]:
        """Mask of the messages that the gate admits. After each change of the limit, rows name the next target."""
        passed = np.ones(len(rows), np.bool_)
        cuts = np.searchsorted(arrived, delivery.tuned)
        for index, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(rows)], strict=True)):
            rows["target"][start:stop] = delivery.targets[index].target
            if delivery.gate is None:
                continue
            if index and start < stop and delivery.gate_at < index:
                delivery.gate.retune(delivery.targets[index].period_ns, delivery.tuned[index - 1])
                delivery.gate_at = index
            admit = delivery.gate.admit
            passed[start:stop] = [admit(now) for now in arrived[start:stop].tolist()]
        return passed

    def calls(self, calls: Topic, begins: int, ends: int) -> Iterator[tuple[Records, Ints]]:
        arrived = self.arrivals(calls, begins, ends)
        there, back = calls.deliveries
        request = empty_records(DELIVERY, len(arrived))
        request["id_msb"], request["id_lsb"] = self._ids(arrived)
        self._fill(request, calls, arrived)
        self._deliver(request, there, calls.ttl_ms)
        yield request, np.zeros((len(request), 2), np.int64)
        answered = request["settled_ns"] + self._rng.integers(200_000, 9_000_000, len(arrived))
        answered = _rising(back.answered_ns, answered)
        back.answered_ns = int(answered.max(initial=back.answered_ns))
        answer = empty_records(DELIVERY, len(arrived))
        answer["id_msb"], answer["id_lsb"] = self._ids(answered)
        self._fill(answer, calls, answered)
        answer["type"], answer["source"], answer["sink"] = (
            RESPONSE,
            self._strings[calls.sink],
            self._strings[calls.uri],
        )
        self._deliver(answer, back, calls.ttl_ms)
        yield answer, np.stack((request["id_msb"], request["id_lsb"]), axis=1)


def _rising(least: int, times: Ints) -> Ints:
    """The times, each raised to the previous one where it is earlier."""
    rising: Ints = np.maximum.accumulate(np.maximum(times, least)) if len(times) else times
    return rising


def _until(spans: Ints, times: Ints) -> Ints:
    """For each time the end of the span that contains it, else the time itself."""
    if not len(spans):
        return times
    at = np.searchsorted(spans[:, 0], times, side="right") - 1
    ends = np.where(at >= 0, spans[np.maximum(at, 0), 1], times)
    return np.maximum(ends, times)
