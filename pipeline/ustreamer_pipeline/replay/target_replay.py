# SPDX-License-Identifier: Apache-2.0
"""Replay of one target of one topic in all scenarios at once, batch after batch."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import numpy as np
from ustreamer_throttle.gate import NS_PER_MS, TIME_BITS, Gate, GateMemory

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.replay.gate import Limit, Mask, Times, decide, may_lag, reference_after, retuned
from ustreamer_pipeline.replay.whatif_scenarios import Scenario

NEVER: Final = 1 << 62
_LONGEST_WAIT_NS: Final = 2_000_000_000  # of a bunched message: a second, and late timers
_UNSIGNED: Final = (1 << 64) - 1  # a column of ids is signed


class ReplayTarget(NamedTuple):
    """The target. `topic` is None for messages routed by their sink, which are never throttled."""

    ingress: str
    egress: str
    topic: str | None
    subscriber: str | None


class ThrottleSettings(NamedTuple):
    """The settings of a gateway's throttle. Recordings before 2026-11 have no `max_delay_ns`, which means 0."""

    tolerance: float
    max_delay_ns: int = 0
    mode: str = "drop"
    latest: tuple[str, ...] = ()

    def is_latest(self, topic: str) -> bool:
        """Whether this topic has mode `latest`."""
        if self.mode == "latest":
            return True
        if not self.latest:
            return False
        try:
            uuri = UUri.parse(topic)
        except UStatusError:
            return False  # no pattern matches it
        return any(UUri.parse(each).with_authority(uuri.authority_name).matches(uuri) for each in self.latest)


Tail = tuple[Times, Times]
"""Arrivals, and the upper halves of their ids."""


class MessageSlice(NamedTuple):
    """Consecutive messages of one target under one limit. `passed` is the recorded mask: not dropped by the throttle.

    `tolerance` is None without a throttle, when no limit was enforced. `msb` is the upper half of each id.
    """

    received_ns: Times
    arrived_ns: Times
    passed: Mask
    period_ns: int
    tuned_ns: int
    tolerance: float | None
    msb: Times | None = None
    settings: ThrottleSettings | None = None

    @property
    def max_delay_ns(self) -> int:
        """Of the throttle; 0 where arrival alone counts."""
        return 0 if self.settings is None or self.msb is None else self.settings.max_delay_ns

    def msb_at(self, index: int) -> int:
        """The upper half of an id; 0 if it is unknown."""
        return 0 if self.msb is None else int(self.msb[index]) & _UNSIGNED

    def made_ns(self) -> Times:
        """The creation times in the ids: whole ms of the publisher's clock."""
        assert self.msb is not None
        return (self.msb.view(np.uint64) >> TIME_BITS).astype(np.int64) * NS_PER_MS

    def take(self, rows: Any) -> "MessageSlice":
        """These messages only."""
        return self._replace(
            received_ns=self.received_ns[rows],
            arrived_ns=self.arrived_ns[rows],
            passed=self.passed[rows],
            msb=None if self.msb is None else self.msb[rows],
        )

    def skip(self, count: int) -> "MessageSlice":
        """The messages without the first `count`."""
        return self.take(slice(count, None)) if count else self


class GateState:
    """State of a gate between batches; in mode `latest` also the held message.

    While messages of a bunch may wait, `_gate` is the gate itself; otherwise `memory` is all of its state.
    """

    __slots__ = (
        "_gate",
        "_in_order_from_ns",
        "_max_delay_ns",
        "_tail",
        "_tolerance",
        "held_at",
        "limit",
        "memory",
    )

    def __init__(self) -> None:
        self.memory = GateMemory()
        self.limit: Limit | None = None
        self.held_at: int | None = None
        self._gate: Gate | None = None
        self._in_order_from_ns = 0
        self._tail: Tail = (np.array([], dtype=np.int64), np.array([], dtype=np.int64))
        self._tolerance = 0.0
        self._max_delay_ns = 0

    def snapshot(self) -> "GateState":
        return copy.copy(self) if self._gate is None else copy.deepcopy(self)

    def set_limit(
        self, period_ns: int, tolerance: float, tuned_ns: int, max_delay_ns: int = 0
    ) -> Limit | None:
        """Apply this limit from now on, as the plugin does: no limit removes the gate, another limit retunes it."""
        if not period_ns:
            self.__init__()  # type: ignore[misc]
            return None
        limit = Limit.for_period(period_ns, tolerance)
        if self.limit != limit:
            if len(self._tail[0]):
                self.decide(*self._tail)
                self._tail = self._tail[0][:0], self._tail[1][:0]
            if self._gate is not None:
                self._gate.set_tolerance(tolerance)
                self._gate.retune(period_ns, tuned_ns)
            elif self.limit is not None:
                due = retuned(self.memory.due_ns, self.limit, limit, tuned_ns)
                self.memory = self.memory._replace(due_ns=due)
            self.limit = limit
        self._tolerance, self._max_delay_ns = tolerance, max_delay_ns
        return limit

    @property
    def due_ns(self) -> int:
        assert self.limit is not None
        return self.memory.due_ns - self.limit.early if self._gate is None else self._gate.due_ns

    def admit(self, now_ns: int, msb: int = 0) -> bool:
        with self._opened() as gate:
            return gate.admit(now_ns, msb)

    def hold(self, now_ns: int, msb: int) -> None:
        """A message that was not admitted is held."""
        with self._opened() as gate:
            gate.note_arrival(now_ns, msb)

    def release(self, now_ns: int) -> bool:
        with self._opened() as gate:
            return gate.release(now_ns)

    def decide(self, times: Times, msbs: Times | None) -> Mask:
        """Mask of the admitted messages."""
        assert self.limit is not None
        if msbs is None or not self._max_delay_ns:
            passed, due = decide(times, self.memory.due_ns, self.limit)
            self.memory = self.memory._replace(due_ns=due)
            return passed
        if self._gate is None and not may_lag(times, msbs, self.memory, self.limit.period):
            passed, due = decide(times, self.memory.due_ns, self.limit)
            memory = self.memory._replace(due_ns=due)
            self.memory = reference_after(times[passed], msbs[passed], memory)
            return passed
        with self._opened() as gate:
            decisions = [
                gate.admit(*each) for each in zip(times.tolist(), msbs.view(np.uint64).tolist(), strict=True)
            ]
        return np.array(decisions, dtype=np.bool_)

    def decide_on_arrival(self, part: MessageSlice) -> Mask:
        """As `decide`, in mode `drop`, by the times of arrival.

        A message that waited to leave is recorded behind later ones that were dropped. So those behind the last message
        that passed may be out of order: their decisions follow with the next slice, and here they count as dropped.
        """
        msbs = part.msb
        assert msbs is not None
        assert self.limit is not None
        if not len(msbs):  # the state of the gate is unknown: all recorded verdicts are used
            return np.zeros(0, dtype=np.bool_)
        tail, tail_msbs = self._tail
        if self._gate is not None or may_lag(part.arrived_ns, msbs, self.memory, self.limit.period):
            self._in_order_from_ns = int(part.arrived_ns.max()) + _LONGEST_WAIT_NS
        if not len(tail) and int(part.arrived_ns[0]) >= self._in_order_from_ns:
            return self.decide(part.arrived_ns, msbs)
        times, ids = np.concatenate([tail, part.arrived_ns]), np.concatenate([tail_msbs, msbs])
        order = np.lexsort((ids.view(np.uint64), times))
        was_passed = np.flatnonzero(np.concatenate([np.zeros(len(tail), dtype=np.bool_), part.passed])[order])
        known, later = np.split(order, [int(was_passed[-1]) + 1 if len(was_passed) else 0])
        self._tail = times[later], ids[later]
        passed = np.zeros(len(order), dtype=np.bool_)
        passed[known] = self.decide(times[known], ids[known])
        return passed[len(tail) :]

    @contextmanager
    def _opened(self) -> Iterator[Gate]:
        gate = self._gate
        if gate is None:
            assert self.limit is not None
            gate = Gate(self.limit.period, self._tolerance, self._max_delay_ns)
            gate.restore(self.memory)
        yield gate
        if gate.departure_gate is None:
            self.memory, self._gate = gate.memory, None
        else:
            self._gate = gate


class TargetReplay:
    """The gates of one target: the recorded one first, then one per scenario that changes this target."""

    __slots__ = (
        "_as_recorded",
        "_default_tolerance",
        "_gate_known",
        "_gates",
        "_last_arrival_ns",
        "_last_made_ns",
        "_last_ns",
        "_latest",
        "_scenarios",
        "target",
    )

    def __init__(
        self, target: ReplayTarget, scenarios: tuple[Scenario, ...], default_tolerance: float
    ) -> None:
        """`usual` is the tolerance if there was no throttle and a scenario sets a limit."""
        self._default_tolerance = default_tolerance
        self.target = target
        self._scenarios = scenarios
        self._gates = [GateState() for _ in range(len(scenarios) + 1)]
        # Whether a scenario had only the recorded settings here so far, so that its gate equals the recorded one.
        self._as_recorded = [True] * len(scenarios)
        self._latest = False
        self._gate_known = True
        self._last_ns = self._last_arrival_ns = self._last_made_ns = NEVER

    @property
    def unchanged_scenarios(self) -> list[int]:
        """Numbers of the scenarios that had only the recorded settings here so far; 0 is the recorded one."""
        return [0, *(number for number, same in enumerate(self._as_recorded, 1) if same)]

    def reset_after_loss(self) -> None:
        """Rows before the next ones may be missing: the state of the recorded gate is unknown."""
        self._gate_known = False
        self._last_ns = self._last_arrival_ns = self._last_made_ns = NEVER
        self._gates[0] = GateState()

    def replay(self, part: MessageSlice) -> tuple[int, list[Mask]]:
        """Masks of the admitted messages, by the recorded settings and then by each scenario.

        The number before the masks counts the first messages whose recorded verdict is used, as the state of the gate
        is unknown.
        """
        topic, egress, subscriber = self.target.topic, self.target.egress, self.target.subscriber
        if topic is None:
            return 0, [part.passed] * len(self._gates)
        self._latest = self._latest or _is_latest(part, topic)
        recorded = (
            (part.period_ns, part.tolerance) if part.tolerance is not None else (0, self._default_tolerance)
        )
        before = self._gates[0].snapshot()
        unknown = 0 if self._gate_known else self._unknown(part, *recorded)
        base = self._decide(self._gates[0], part.skip(unknown), *recorded, unchanged=True)
        if unknown:
            base = np.concatenate([part.passed[:unknown], base])
        masks = [base]
        for number, scenario in enumerate(self._scenarios):
            setting = scenario.limit_for(topic, egress, subscriber, *recorded)
            if setting == recorded and self._as_recorded[number]:
                masks.append(base)
                continue
            gate = self._gates[number + 1]
            if self._as_recorded[number]:
                self._as_recorded[number] = False
                gate = self._gates[number + 1] = before.snapshot()
            if setting is None:
                masks.append(np.zeros(len(base), dtype=np.bool_))
            else:
                masks.append(self._decide(gate, part, *setting, unchanged=False))
        return unknown, masks

    def _unknown(self, part: MessageSlice, period_ns: int, tolerance: float) -> int:
        """Number of messages before the first pause: after a pause every gate is in its initial state.

        In a pause no message waits: those leave every period. A message that the network delayed ends no pause: what
        the gate knows of earlier messages counts for it.
        """
        if not period_ns:
            self._gate_known = True
            return 0
        period, early, _, pause = Limit.for_period(period_ns, tolerance)
        gaps, self._last_ns = _gaps(part.received_ns, self._last_ns)
        is_pause = gaps > pause + period + early
        if part.max_delay_ns:
            arrival_gaps, self._last_arrival_ns = _gaps(part.arrived_ns, self._last_arrival_ns)
            made_gaps, self._last_made_ns = _gaps(part.made_ns(), self._last_made_ns)
            is_pause &= arrival_gaps - made_gaps < period
        pauses = np.flatnonzero(is_pause)
        if self._latest or not len(pauses):
            return len(part.passed)
        self._gate_known = True
        return int(pauses[0])

    def _decide(
        self, gate: GateState, part: MessageSlice, period_ns: int, tolerance: float, *, unchanged: bool
    ) -> Mask:
        # A message that was held when the limit changed was decided by the limit before the change.
        count = _held_before_change(gate, part) if self._latest and unchanged else 0
        offered = [gate.admit(int(part.arrived_ns[each]), part.msb_at(each)) for each in range(count)]
        limit = gate.set_limit(period_ns, tolerance, part.tuned_ns, part.max_delay_ns)
        if limit is None:
            return np.ones(len(part.passed), dtype=np.bool_)
        if self._latest:
            return _as_recorded(gate, part, offered) if unchanged else _sampled(gate, part)
        return gate.decide_on_arrival(part) if part.max_delay_ns else gate.decide(part.received_ns, None)


def _gaps(times: Times, last: int) -> tuple[Times, int]:
    """The time from the latest one before to each of `times`, and the latest one of all. `last` may be NEVER.

    A message that waited to leave is behind later ones, so the one directly before is not always the latest.
    """
    first = int(times[0])
    latest = np.maximum.accumulate(np.concatenate([[first if last == NEVER else last], times]))
    return times - latest[:-1], int(latest[-1])


def _is_latest(part: MessageSlice, topic: str) -> bool:
    if part.max_delay_ns:
        assert part.settings is not None
        return part.settings.is_latest(topic)
    return bool((part.arrived_ns != part.received_ns).any())  # without bunches only this mode holds messages


def _held_before_change(gate: GateState, part: MessageSlice) -> int:
    """Number of the first messages that arrived before the gate got the limit of `part`."""
    if gate.limit is None:
        return 0
    return int(np.argmin(np.append(part.arrived_ns < part.tuned_ns, False)))


def _as_recorded(gate: GateState, part: MessageSlice, offered: Sequence[bool]) -> Mask:
    """Mode `latest` with the recorded settings: a held message leaves at its recorded time, however late its timer was.

    `offered` has the decisions of the first messages, by the limit before. A held message leaves before the next one
    is decided, so messages are in order of arrival.
    """
    passed = np.zeros(len(part.passed), dtype=np.bool_)
    for index in np.argsort(part.arrived_ns, kind="stable").tolist():
        now = int(part.arrived_ns[index])
        admitted = offered[index] if index < len(offered) else gate.admit(now, part.msb_at(index))
        if not admitted:
            gate.hold(now, part.msb_at(index))
        if not admitted and part.passed[index]:
            leaves_ns = int(part.received_ns[index])
            admitted = leaves_ns > now and leaves_ns >= gate.due_ns and gate.release(leaves_ns)
        passed[index] = admitted
    return passed


def _sampled(gate: GateState, part: MessageSlice) -> Mask:
    """Mode `latest` with other settings: an early message is held until it is due, or a newer message replaces it.

    The timer is punctual. A message that is held at the end of a batch counts as passed: it is the newest, and only a
    message within the rest of its period can replace it.
    """
    order = np.argsort(part.arrived_ns, kind="stable")
    passed = np.zeros(len(order), dtype=np.bool_)
    held: int | None = None
    leaves_ns = NEVER
    for index in order.tolist():
        now = int(part.arrived_ns[index])
        if held is not None and leaves_ns <= now and gate.release(leaves_ns):
            passed[held] = True
            held = None
        if held is None and gate.held_at is not None and gate.held_at <= now:
            gate.release(gate.held_at)  # held at the end of the previous batch
        gate.held_at = None
        if gate.admit(now, part.msb_at(index)):
            passed[index] = True
            held = None
            continue
        gate.hold(now, part.msb_at(index))
        held = index
        leaves_ns = gate.due_ns
    if held is not None:
        passed[held] = True
        gate.held_at = leaves_ns
    return passed
