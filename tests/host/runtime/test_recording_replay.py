# SPDX-License-Identifier: Apache-2.0
"""A recording has the inputs of every decision: the throttle's own gate, with the recorded inputs, decides the same.

The replay uses the recording, docs/recordings.md and `Gate`, and nothing of the dispatcher.
"""

import json
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_recorder.config import RecorderConfig
from ustreamer_recorder.events import Config, Event, Row, Target
from ustreamer_recorder.journal import Journal
from ustreamer_recorder.note_queue import NoteQueue, Skipped
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments
from ustreamer_throttle.gate import Gate, Sampler
from ustreamer_throttle.plugin import ThrottleConfig, ThrottlePlugin

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import EMPTY_LEDGER, Ledger, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.hooks import PluginContext
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPICS: Final = [UUri("chassis", 0x1234, 1, 0x8000 + number) for number in range(2)]
SUBSCRIBERS: Final = [UUri("hpc", 7, 1, 0), UUri("hpc", 8, 1, 0)]


class MutableDirectory:
    """A directory that changes during the test."""

    def __init__(self) -> None:
        self.version = 0
        self._subscriptions: dict[tuple[UUri, UUri], Subscription] = {}

    def set_subscription(self, topic: UUri, subscriber: UUri, period_ns: int | None) -> None:
        if period_ns is None:
            self._subscriptions.pop((topic, subscriber), None)
        else:
            self._subscriptions[topic, subscriber] = Subscription(topic, subscriber, period_ns)
        self.version += 1

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return [
            subscription
            for (subscribed, _), subscription in self._subscriptions.items()
            if subscribed == topic
        ]


class DelayedEgress:
    """Delivers on request, which settles rows."""

    unicast = True

    def __init__(self, name: str, time: ManualClock) -> None:
        self.name = name
        self.ledger = Ledger()
        self._time = time
        self._waiting: list[tuple[Delivery, UMessage, int]] = []

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        self._waiting.append((delivery, message, now_ns))

    def send(self) -> None:
        for delivery, message, received_ns in self._waiting:
            now_ns = self._time.now_ns
            delivery.settle(self.ledger, message, Verdict.DELIVERED, received_ns, now_ns, None, 1, now_ns)
        self._waiting = []


class ReplayRig:
    """A dispatcher with throttle and recorder, and the events of a test."""

    def __init__(self, directory: Path, mode: Literal["drop", "latest"]) -> None:
        self.time = ManualClock()
        clock = self.time.clock()
        self.timers = Timers()
        self.directory = MutableDirectory()
        self.mode: Literal["drop", "latest"] = mode
        context = PluginContext("hpc", ("hpc",), directory, clock, self.timers.schedule)
        self.throttle = ThrottlePlugin(ThrottleConfig(mode=mode), context)
        self.intake = NoteQueue(100_000, clock.monotonic_ns, dead_letter_topic("hpc"))
        self._directory = directory
        self._journal = Journal(RecorderConfig(keep_free_bytes=0), directory, "hpc", clock, 1)
        self._journal.tick(Skipped())
        self.egress = {name: DelayedEgress(name, self.time) for name in (SELF, "chassis", "backbone")}
        places = AuthorityTable({"chassis": "chassis", "hpc": "backbone"})
        self.set_tolerance(0.1, swap=False)
        self.dispatcher = Dispatcher(
            "hpc",
            clock,
            Router(places, self.directory, dict.fromkeys(self.egress, True)),
            self.egress,
            filters=self._filters,
            taps=lambda endpoint: [self.intake.tap(endpoint)],
            schedule=self.timers.schedule,
        )
        self._ids = UuidSource(clock.wall_ms)

    def _filters(self, delivery: Delivery) -> list[Filter]:
        self.intake.on_rate_change(delivery)
        found = self.throttle.ustreamer_filters(delivery)
        return [] if found is None else [found]

    def set_tolerance(self, tolerance: float, *, swap: bool = True) -> None:
        """A reload with another tolerance."""

        def change() -> None:
            config = ThrottleConfig(tolerance, self.mode)
            self.throttle.reconfigure(config)()
            self.intake.on_configured(json.dumps({"throttle": {"tolerance": tolerance}}))

        if swap:
            self.dispatcher.swap_router(self.dispatcher.router, change)
        else:
            change()

    def publish(self, topic: UUri) -> None:
        self.dispatcher.ingress("chassis").dispatch(publish(self._ids.next(), topic))

    def advance(self, ns: int) -> None:
        end_ns = self.time.now_ns + ns
        while (due_ns := self.timers.next_due_ns) is not None and due_ns <= end_ns:
            self.time.now_ns = max(self.time.now_ns, due_ns) + 1
            for action in self.timers.pop_due(due_ns):
                action()
                self.time.now_ns += 1  # no two decisions at one moment, as on a real clock
        self.time.now_ns = max(self.time.now_ns, end_ns)

    def recorded(self) -> list[Event]:
        for endpoint_queue in self.egress.values():
            endpoint_queue.send()
        self._journal.write(self.intake.notes, len(self.intake.notes), self.intake)
        self._journal.finish(EMPTY_LEDGER)
        found: list[Event] = []
        for file in list_segments(self._directory):
            for event in read_segment(file.path.read_bytes(), file.path.name):
                assert not hasattr(event, "torn")
                found.append(event)
        return found


# ------------------------------------------------------------------------------------------------------------ the replay


def replayed(events: list[Event], mode: str) -> list[tuple[Row, bool, bool]]:
    """Every row that a limit decided; whether it passes, and the messages held before it, in a replay."""
    configs = [each for each in events if isinstance(each, Config)]
    targets: dict[int, dict[int, Target]] = {}
    for each in events:
        if isinstance(each, Target) and each.delivery:
            targets.setdefault(each.delivery, {})[each.target] = each
    rows = sorted(
        (each for each in events if isinstance(each, Row) and each.target.delivery),
        key=lambda row: (row.target.delivery, row.received_ns),
    )
    decided = []
    for delivery, its in groupby(rows, key=lambda row: row.target.delivery):
        decided += _of_one(list(its), list(targets[delivery].values()), configs, mode)
    return decided


def _of_one(
    rows: list[Row], targets: list[Target], configs: list[Config], mode: str
) -> list[tuple[Row, bool, bool]]:
    """One delivery: settings, limits, offers and releases in order."""
    scenario: list[tuple[int, int, Target | Config | Row]] = [
        *((each.since_ns, 0, each) for each in configs),
        *((each.tuned_ns, 1, each) for each in targets),
        *((row.arrived_ns, 2, row) for row in rows),
        *((row.received_ns, 3, row) for row in rows if row.held and row.verdict is not Verdict.THROTTLED),
    ]
    gate: Gate | None = None
    sampler: Sampler[Row] | None = None
    tolerance = 0.1
    decided = []
    for now_ns, kind, what in sorted(scenario, key=lambda each: each[:2]):
        if isinstance(what, Config):
            tolerance = json.loads(what.text)["throttle"]["tolerance"]
            if gate is not None:
                gate.tolerate(tolerance)
        elif isinstance(what, Target):
            if not what.period_ns:
                gate = None
            elif gate is None:
                gate = Gate(what.period_ns, tolerance)
                sampler = Sampler(gate)
            else:
                gate.retune(what.period_ns, what.tuned_ns)
        elif gate is None and kind == 2:
            decided.append((what, True, False))
        elif mode == "drop":
            assert gate is not None
            decided.append((what, gate.admit(now_ns), False))
        elif kind == 2:
            assert sampler is not None
            passes, displaced = sampler.offer(what, now_ns)
            decided += [(what, True, False)] if passes else []
            decided += [] if displaced is None else [(displaced, False, True)]
        elif (
            gate is None or sampler is None or sampler.release(now_ns) is what
        ):  # its limit was lifted while it was held
            decided.append((what, True, True))
    return decided


# --- the property ----------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 4)),
        st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 4)),
        st.tuples(
            st.just("subscription"),
            st.sampled_from([(topic, who) for topic in TOPICS for who in SUBSCRIBERS]),
            st.sampled_from([None, 0, 7, 10, 23]),
        ),
        st.tuples(st.just("tolerate"), st.sampled_from([0.0, 0.1, 0.5]), st.just(0)),
        st.tuples(st.just("send"), st.just(0), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 40), st.just(0)),
    ),
    max_size=60,
)
MS: Final = 1_000_000


@pytest.mark.parametrize("mode", ["drop", "latest"])
@given(steps=STEPS, jitter=st.lists(st.integers(1, 3 * MS), min_size=1, max_size=7))
@settings(max_examples=25)
def test_with_nothing_changed_a_replay_gives_the_recorded_verdicts(
    mode: Literal["drop", "latest"],
    steps: list[tuple[str, object, object]],
    jitter: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    scenario = ReplayRig(tmp_path_factory.mktemp("recording"), mode)
    for topic in TOPICS:
        scenario.directory.set_subscription(topic, SUBSCRIBERS[0], 10 * MS)
    for count, (what, first, second) in enumerate(steps):
        scenario.advance(jitter[count % len(jitter)])
        if what == "publish" and isinstance(first, UUri) and isinstance(second, int):
            for _ in range(second):
                scenario.publish(first)
                scenario.advance(1 + jitter[count % len(jitter)] // 2)
        elif what == "subscription" and isinstance(first, tuple):
            topic, subscriber = first
            scenario.directory.set_subscription(
                topic, subscriber, second * MS if isinstance(second, int) else None
            )
        elif what == "tolerate" and isinstance(first, float):
            scenario.set_tolerance(first)
        elif what == "send":
            scenario.egress["backbone"].send()
        elif isinstance(first, int):
            scenario.advance(first * MS)
    scenario.advance(200 * MS)
    events = scenario.recorded()
    passed = (Verdict.DELIVERED, Verdict.NO_SUBSCRIBER)  # the latter: released without a subscriber
    rows = [row for row in events if isinstance(row, Row) and row.target.delivery]
    again = replayed(events, mode)
    assert {row.seq: (passes, held) for row, passes, held in again} == {
        row.seq: (row.verdict in passed, row.held) for row in rows
    }
    assert len(again) == len(rows)
