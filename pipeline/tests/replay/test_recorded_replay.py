# SPDX-License-Identifier: Apache-2.0
"""The replay of recordings that the dispatcher, the throttle and the recorder made: every verdict is as recorded.

The time is virtual, so that a limit changes while a message is held.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest
from tests.replay.recorded_rows import RUN, SCHEMA, recorded_rows, recorded_settings
from ustreamer_pipeline.replay.replay import GatewayReplay, ReplayCheck
from ustreamer_recorder.events import Event, Row

from tests.host.recording.replay_rig import MS, SUBSCRIBERS, TOPICS, ReplayRig


def drive(place: Path, seed: int, mode: Literal["drop", "latest"], steps: int = 200) -> list[Event]:
    """A recording of random messages, subscriptions, reloads, deliveries and pauses."""
    rng = random.Random(seed)
    rig = ReplayRig(place, mode)
    for topic in TOPICS:
        rig.directory.set_subscription(topic, SUBSCRIBERS[0], 10 * MS)
    for _ in range(steps):
        rig.advance(rng.randrange(1, 3 * MS))
        kind = rng.choices(["publish", "subscribe", "reload", "send", "wait"], [70, 2, 2, 16, 10])[0]
        if kind == "publish":
            for _ in range(rng.randrange(1, 4)):
                rig.publish(rng.choice(TOPICS))
                rig.advance(rng.randrange(1, 2 * MS))
        elif kind == "subscribe":
            period = rng.choice([None, 0, 7, 10, 23])
            period_ns = None if period is None else period * MS
            rig.directory.set_subscription(rng.choice(TOPICS), rng.choice(SUBSCRIBERS), period_ns)
        elif kind == "reload":
            rig.set_tolerance(rng.choice([0.0, 0.1, 0.5]))
        elif kind == "send":
            rig.egress["backbone"].send()
        else:
            rig.advance(rng.randrange(1, 40) * MS)
    rig.advance(200 * MS)
    return rig.recorded()


def check_of(events: Sequence[Event], *, cut_off: bool = False) -> ReplayCheck:
    """The check of a replay of these rows, in the order of silver."""
    made = recorded_rows(events)
    replay = GatewayReplay([], recorded_settings(events), 0.1, cut_off=[RUN] if cut_off else [])
    for start in range(0, len(made), 97):
        replay.feed(pa.RecordBatch.from_pylist(made[start : start + 97], schema=SCHEMA))
    replay.finish()
    return replay.check


@pytest.mark.parametrize("mode", ["drop", "latest"])
def test_no_verdict_differs_after_reloads_and_changed_subscriptions(
    mode: Literal["drop", "latest"], tmp_path: Path
) -> None:
    checks = []
    for seed in range(40):
        place = tmp_path / str(seed)
        place.mkdir()
        checks.append(check_of(drive(place, seed, mode)))
    assert [(seed, check) for seed, check in enumerate(checks) if check.differing or check.unknown] == []
    assert sum(check.decided for check in checks) > 10_000


def test_rows_that_a_cut_off_run_lacks_make_later_verdicts_unknown(tmp_path: Path) -> None:
    """The dispatcher had queued messages when the process ended: these have passed the gate, and have no row."""
    events = drive(tmp_path, 4, "drop")
    rows = [each for each in events if isinstance(each, Row) and each.verdict.name == "DELIVERED"]
    queued = {row.seq for row in rows[-30:]}
    cut = [each for each in events if not (isinstance(each, Row) and each.seq in queued)]
    whole = check_of(cut)
    assert (whole.differing > 5, whole.unknown) == (True, 0)
    check = check_of(cut, cut_off=True)
    assert (check.differing, check.unknown) == (0, whole.differing)
