# SPDX-License-Identifier: Apache-2.0
"""Measuring a rate on a machine that may be busy with something else."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tests.e2e.peers import LATE_S, Metronome, Sample, ZenohPeer
from tests.e2e.vehicle import Vehicle
from tests.e2e.wire import Uri

PUBLISHED_HZ: Final = 100
TOLERANCE: Final = 0.02


def stalled_s(unlimited: Sequence[Sample]) -> float:
    """For how many seconds in all a busy machine held up the events of a topic without limit."""
    gaps = (later.at - earlier.at for earlier, later in pairwise(unlimited))
    return sum(gap for gap in gaps if gap > LATE_S)


def flowed_s(unlimited: Sequence[Sample]) -> float:
    """For how many seconds in all they flowed."""
    return unlimited[-1].at - unlimited[0].at - stalled_s(unlimited) if unlimited else 0.0


def assert_rate(
    limited: Sequence[Sample], hz: float, unlimited: Sequence[Sample], tolerance: float = TOLERANCE
) -> None:
    """At no more than `hz`, and at no less while there was something to send.

    When one of them passed the gate is told by nobody: behind its making, which is in its id, and before its arrival.
    """
    intervals = len(limited) - 1
    wall_s = time.time() - time.monotonic()
    (first_made_s, first_came_s), (last_made_s, last_came_s) = (
        (each.head.id.time_ms / 1000, each.at + wall_s) for each in (limited[0], limited[-1])
    )
    assert intervals / (last_came_s - first_made_s) <= hz * (1 + tolerance)
    assert intervals / (last_made_s - first_came_s - stalled_s(unlimited)) >= hz * (1 - tolerance)


def publish(
    vehicle: Vehicle, app: ZenohPeer, topics: Sequence[Uri], unlimited: Uri, *, seconds: float
) -> list[Sample]:
    """Publish on every topic at 100 Hz until those of `unlimited` have flowed for so long; these."""

    def beat(number: int) -> None:
        for topic in (*topics, unlimited):
            vehicle.emit(topic, b"%d" % number, session=number % 0xFFFF + 1)

    already = len(app.events(unlimited))
    count = already
    with Metronome(PUBLISHED_HZ, beat) as metronome:
        for _ in range(20):
            flowed = flowed_s(app.events(unlimited)[already:])
            if flowed >= seconds:
                break
            count = len(app.events(unlimited)) + round((seconds - flowed) * PUBLISHED_HZ) + 1
            app.wait_events(unlimited, count)
    return app.wait_events(unlimited, already + metronome.beats)[already:]
