# SPDX-License-Identifier: Apache-2.0
"""A recording has the inputs of every decision: the throttle's own gate, with the recorded inputs, decides the same.

The replay uses the recording, docs/recordings.md and `Gate`, and nothing of the dispatcher.
"""

import json
from itertools import groupby
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_recorder.events import Config, Event, Row, Target
from ustreamer_throttle.gate import Gate, Sampler

from tests.host.recording.replay_rig import MS, SUBSCRIBERS, TOPICS, ReplayRig
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uuri import UUri

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
                gate.set_tolerance(tolerance)
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
