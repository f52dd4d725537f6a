# SPDX-License-Identifier: Apache-2.0
"""Replay of one target of one topic in all scenarios at once, batch after batch."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from ustreamer_pipeline.replay.gate import LONG_AGO, Limit, Mask, Times, decide, retuned
from ustreamer_pipeline.replay.whatif_scenarios import Scenario

NEVER: Final = 1 << 62


class ReplayTarget(NamedTuple):
    """The target. `topic` is None for messages routed by their sink, which are never throttled."""

    ingress: str
    egress: str
    topic: str | None
    subscriber: str | None


class MessageSlice(NamedTuple):
    """Consecutive messages of one target under one limit. `passed` is the recorded mask: not dropped by the throttle.

    `tolerance` is None without a throttle, when no limit was enforced.
    """

    received_ns: Times
    arrived_ns: Times
    passed: Mask
    period_ns: int
    tuned_ns: int
    tolerance: float | None

    def skip(self, count: int) -> "MessageSlice":
        """The messages without the first `count`."""
        if not count:
            return self
        return self._replace(
            received_ns=self.received_ns[count:],
            arrived_ns=self.arrived_ns[count:],
            passed=self.passed[count:],
        )


class GateState:
    """State of a gate between batches; in mode `latest` also the held message."""

    __slots__ = ("due", "held_at", "limit")

    def __init__(self) -> None:
        self.due: int = LONG_AGO
        self.limit: Limit | None = None
        self.held_at: int | None = None

    def set_limit(self, period_ns: int, tolerance: float, tuned_ns: int) -> Limit | None:
        """Apply this limit from now on, as the plugin does: no limit removes the gate, another limit retunes it."""
        if not period_ns:
            self.limit, self.due, self.held_at = None, LONG_AGO, None
            return None
        if (
            self.limit is None
            or self.limit.period != period_ns
            or self.limit != Limit.for_period(period_ns, tolerance)
        ):
            limit = Limit.for_period(period_ns, tolerance)
            if self.limit is not None:
                self.due = retuned(self.due, self.limit, limit, tuned_ns)
            self.limit = limit
        return self.limit

    def admit(self, now_ns: int) -> bool:
        assert self.limit is not None
        passed, self.due = decide(np.array([now_ns], dtype=np.int64), self.due, self.limit)
        return bool(passed[0])


class TargetReplay:
    """The gates of one target: the recorded one first, then one per scenario that changes this target."""

    __slots__ = (
        "_as_recorded",
        "_default_tolerance",
        "_gate_known",
        "_gates",
        "_last_arrival_ns",
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
        self._last_arrival_ns = NEVER

    @property
    def unchanged_scenarios(self) -> list[int]:
        """Numbers of the scenarios that had only the recorded settings here so far; 0 is the recorded one."""
        return [0, *(number for number, same in enumerate(self._as_recorded, 1) if same)]

    def reset_after_loss(self) -> None:
        """Rows before the next ones may be missing: the state of the recorded gate is unknown."""
        self._gate_known = False
        self._last_arrival_ns = NEVER
        self._gates[0] = GateState()

    def replay(self, part: MessageSlice) -> tuple[int, list[Mask]]:
        """Masks of the admitted messages, by the recorded settings and then by each scenario.

        The number before the masks counts the first messages whose recorded verdict is used, as the state of the gate
        is unknown.
        """
        topic, egress, subscriber = self.target.topic, self.target.egress, self.target.subscriber
        if topic is None:
            return 0, [part.passed] * len(self._gates)
        self._latest = self._latest or bool((part.arrived_ns != part.received_ns).any())
        recorded = (
            (part.period_ns, part.tolerance) if part.tolerance is not None else (0, self._default_tolerance)
        )
        before = GateState()
        _copy(self._gates[0], before)
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
                _copy(before, gate)
            if setting is None:
                masks.append(np.zeros(len(base), dtype=np.bool_))
            else:
                masks.append(self._decide(gate, part, *setting, unchanged=False))
        return unknown, masks

    def _unknown(self, part: MessageSlice, period_ns: int, tolerance: float) -> int:
        """Number of messages before the first pause: after a pause every gate is in its initial state."""
        if not period_ns:
            self._gate_known = True
            return 0
        period, early, _, pause = Limit.for_period(period_ns, tolerance)
        before = min(self._last_arrival_ns, int(part.arrived_ns[0]))
        self._last_arrival_ns = int(part.arrived_ns[-1])
        pauses = np.flatnonzero(np.diff(part.arrived_ns, prepend=before) > pause + period + early)
        if self._latest or not len(pauses):
            return len(part.passed)
        self._gate_known = True
        return int(pauses[0])

    def _decide(
        self, gate: GateState, part: MessageSlice, period_ns: int, tolerance: float, *, unchanged: bool
    ) -> Mask:
        # A message that was held when the limit changed was decided by the limit before the change.
        count = _held_before_change(gate, part) if self._latest and unchanged else 0
        offered = [gate.admit(at_ns) for at_ns in part.arrived_ns[:count].tolist()]
        limit = gate.set_limit(period_ns, tolerance, part.tuned_ns)
        if limit is None:
            return np.ones(len(part.passed), dtype=np.bool_)
        if self._latest:
            return _as_recorded(gate, part, offered) if unchanged else _sampled(gate, part)
        passed, gate.due = decide(part.received_ns, gate.due, limit)
        return passed


def _copy(source: GateState, target: GateState) -> None:
    target.due, target.limit, target.held_at = source.due, source.limit, source.held_at


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
        admitted = offered[index] if index < len(offered) else gate.admit(now)
        if not admitted and part.passed[index]:
            leaves_ns = int(part.received_ns[index])
            admitted = leaves_ns > now and leaves_ns >= _due_ns(gate) and gate.admit(leaves_ns)
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
        if held is not None and leaves_ns <= now and gate.admit(leaves_ns):
            passed[held] = True
            held = None
        if held is None and gate.held_at is not None and gate.held_at <= now:
            gate.admit(gate.held_at)  # held at the end of the previous batch
        gate.held_at = None
        if gate.admit(now):
            passed[index] = True
            held = None
            continue
        held = index
        leaves_ns = _due_ns(gate)
    if held is not None:
        passed[held] = True
        gate.held_at = leaves_ns
    return passed


def _due_ns(gate: GateState) -> int:
    assert gate.limit is not None
    return gate.due - gate.limit.early
