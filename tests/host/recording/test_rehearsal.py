# SPDX-License-Identifier: Apache-2.0
"""`ustreamer test` predicts the decisions of a dispatcher with other settings, message by message."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ustreamer_recorder.events import Damage, Event, Row
from ustreamer_recorder.rehearsal.recorded_traffic import Destination, RecordedMessage, RecordedTraffic
from ustreamer_recorder.rehearsal.rehearsal import Rehearsal
from ustreamer_recorder.rehearsal.subscriptions import RecordedSubscriptions

from tests.host.recording.replay_rig import MS, SUBSCRIBERS, TOPICS, ReplayRig
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.hooks import OfflineRouting
from ustreamer.uprotocol.uuri import UUri

Decided = list[dict[Destination, Verdict]]
Step = tuple[str, object, object]

PUBLISH = st.tuples(st.just("publish"), st.sampled_from(TOPICS), st.integers(1, 4))
SUBSCRIPTION = st.tuples(
    st.just("subscription"),
    st.sampled_from([(topic, who) for topic in TOPICS for who in SUBSCRIBERS]),
    st.sampled_from([None, 0, 7, 10, 23]),
)
BUNCH = st.tuples(st.just("bunch"), st.sampled_from(TOPICS), st.integers(2, 8))
SEND = st.tuples(st.just("send"), st.just(0), st.just(0))
WAIT = st.tuples(st.just("wait"), st.integers(1, 40), st.just(0))
CHANGES = st.lists(st.one_of(PUBLISH, PUBLISH, SUBSCRIPTION, SEND, WAIT), max_size=60)
HELD = st.lists(st.one_of(PUBLISH, PUBLISH, BUNCH, SEND, WAIT), max_size=60)
"""A message that is held while its limit changes may leave at another time: a recording has no timers."""
JITTER = st.lists(st.integers(1, 3 * MS), min_size=1, max_size=7)


def drive(rig: ReplayRig, steps: Iterable[Step], jitter: list[int]) -> list[Event]:
    """The same traffic for each rig; returns what it recorded."""
    for topic in TOPICS:
        rig.set_subscription(topic, SUBSCRIBERS[0], 10 * MS)
    for count, (what, first, second) in enumerate(steps):
        rig.advance(jitter[count % len(jitter)])
        if what == "publish" and isinstance(first, UUri) and isinstance(second, int):
            for _ in range(second):
                rig.publish(first)
                rig.advance(1 + jitter[count % len(jitter)] // 2)
        elif what == "bunch" and isinstance(first, UUri) and isinstance(second, int):
            for number in range(second, 0, -1):
                rig.publish(first, age_ms=9 * number)
                rig.advance(1_000)
        elif what == "subscription" and isinstance(first, tuple):
            topic, subscriber = first
            rig.set_subscription(topic, subscriber, second * MS if isinstance(second, int) else None)
        elif what == "send":
            rig.egress["backbone"].send()
        elif isinstance(first, int):
            rig.advance(first * MS)
    rig.advance(200 * MS)
    return rig.recorded()


def recorded(events: Iterable[Event | Damage]) -> RecordedTraffic:
    run = RecordedTraffic()
    for each in events:
        run.add_event(each)
    return run


def rehearse(run: RecordedTraffic, rig: ReplayRig) -> tuple[Rehearsal, Decided]:
    """The decisions of the settings of `rig`, in order of arrival."""
    subscriptions, decided = RecordedSubscriptions(), list[tuple[int, dict[Destination, Verdict]]]()
    unicast = dict.fromkeys((SELF, "chassis", "backbone"), True)
    router = Router(AuthorityTable({"chassis": "chassis", "hpc": "backbone"}), subscriptions, unicast)

    def note(message: RecordedMessage, decisions: dict[Destination, Verdict]) -> None:
        decided.append((message.arrived_ns, decisions))

    routing = OfflineRouting(router, unicast, rig.filters, {}, frozenset())
    rehearsal = Rehearsal(run, routing, subscriptions, note)
    rehearsal.run()
    return rehearsal, [decisions for _, decisions in sorted(decided, key=lambda each: each[0])]


HELD_BEHIND_A_BUNCH: list[Step] = [
    ("publish", TOPICS[0], 1),
    ("wait", 35, 0),
    ("bunch", TOPICS[0], 2),
    *[("publish", TOPICS[0], 1)] * 3,
]
"""The last but one is held for the newest, and due while messages of the bunch wait."""


@pytest.mark.parametrize("mode", ["drop", "latest"])
@given(steps=HELD, jitter=JITTER)
@example(steps=HELD_BEHIND_A_BUNCH, jitter=[616_450])
@settings(max_examples=25)
def test_with_the_settings_of_the_recording_no_delivery_changes(
    mode: Literal["drop", "latest"],
    steps: list[Step],
    jitter: list[int],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    run = recorded(drive(ReplayRig(tmp_path_factory.mktemp("recording"), mode), steps, jitter))
    rehearsal, _ = rehearse(run, ReplayRig(tmp_path_factory.mktemp("again"), mode))
    assert rehearsal.changes == {}
    assert rehearsal.deliveries == run.rows


@pytest.mark.parametrize("late_ms", [0, 5])
def test_a_held_message_leaves_when_it_left_in_the_recorded_run(late_ms: int, tmp_path: Path) -> None:
    """The third message arrives after the second is due: a late timer still holds the second, which it replaces."""
    rig = ReplayRig(tmp_path, "latest")
    rig.late_ns = late_ms * MS
    rig.set_subscription(TOPICS[0], SUBSCRIBERS[0], 100 * MS)
    for wait_ms in (30, 62, 200):  # the second is due after 90 ms
        rig.publish(TOPICS[0])
        rig.advance(wait_ms * MS)
    events = rig.recorded()
    verdicts = [each.verdict for each in events if isinstance(each, Row)]
    assert verdicts.count(Verdict.THROTTLED) == (1 if late_ms else 0)
    rehearsal, _ = rehearse(recorded(events), ReplayRig(tmp_path / "again", "latest"))
    assert rehearsal.changes == {}


@given(steps=CHANGES, jitter=JITTER, tolerance=st.sampled_from([0.0, 0.1, 0.5]))
@settings(max_examples=25)
def test_the_prediction_is_what_a_later_run_with_the_new_settings_decides(
    steps: list[Step], jitter: list[int], tolerance: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def rig(tolerance: float) -> ReplayRig:
        return ReplayRig(tmp_path_factory.mktemp("recording"), "drop", tolerance)

    rehearsal, predicted = rehearse(recorded(drive(rig(0.1), steps, jitter)), rig(tolerance))
    later = recorded(drive(rig(tolerance), steps, jitter))
    assert predicted == [each.decisions for each in later.messages()]
    if tolerance == 0.1:
        assert rehearsal.changed == 0


def test_a_subscription_that_no_directory_reports_is_inferred_from_the_rows(tmp_path: Path) -> None:
    """Dashboards subscribe patterns at their own directory, which reports no changes."""
    rig = ReplayRig(tmp_path, "drop")
    rig.directory.set_subscription(TOPICS[0], SUBSCRIBERS[0], 10 * MS)
    for _ in range(5):
        rig.publish(TOPICS[0])
        rig.advance(4 * MS)
    rig.directory.set_subscription(TOPICS[0], SUBSCRIBERS[0], None)
    rig.publish(TOPICS[0])
    events = rig.recorded()
    assert {each.verdict for each in events if isinstance(each, Row)} == {
        Verdict.DELIVERED,
        Verdict.THROTTLED,
        Verdict.NO_SUBSCRIBER,
    }
    rehearsal, decided = rehearse(recorded(events), ReplayRig(tmp_path / "again", "drop"))
    assert rehearsal.changes == {}
    assert len(decided) == 6
