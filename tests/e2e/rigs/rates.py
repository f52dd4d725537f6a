# SPDX-License-Identifier: Apache-2.0
"""Rate measurements on a machine with other load."""

import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from tests.e2e.rigs.entities import STALL_GAP_S, Metronome, ZenohEntity, ZenohSample
from tests.e2e.rigs.vehicle import Vehicle
from tests.e2e.rigs.wire import Uri

PUBLISHED_HZ: Final = 100
TOLERANCE: Final = 0.02


def stalled_seconds(unlimited: Sequence[ZenohSample]) -> float:
    """Total time for which a busy machine delayed the events of an unlimited topic."""
    gaps = (later.received_at - earlier.received_at for earlier, later in pairwise(unlimited))
    return sum(gap for gap in gaps if gap > STALL_GAP_S)


def flowing_seconds(unlimited: Sequence[ZenohSample]) -> float:
    """Total time without such delays."""
    return (
        unlimited[-1].received_at - unlimited[0].received_at - stalled_seconds(unlimited)
        if unlimited
        else 0.0
    )


def assert_rate(
    limited: Sequence[ZenohSample], hz: float, unlimited: Sequence[ZenohSample], tolerance: float = TOLERANCE
) -> None:
    """Check a rate of at most `hz`, and at least `hz` while messages were available.

    The time at the gate is unknown: it is after the creation of a message, which is in its id, and before its
    arrival.
    """
    intervals = len(limited) - 1
    wall_s = time.time() - time.monotonic()
    (first_made_s, first_received_s), (last_made_s, last_received_s) = (
        (each.head.id.time_ms / 1000, each.received_at + wall_s) for each in (limited[0], limited[-1])
    )
    assert intervals / (last_received_s - first_made_s) <= hz * (1 + tolerance)
    assert intervals / (last_made_s - first_received_s - stalled_seconds(unlimited)) >= hz * (1 - tolerance)


def publish_until_flowed(
    vehicle: Vehicle, app: ZenohEntity, topics: Sequence[Uri], unlimited: Uri, *, seconds: float
) -> list[ZenohSample]:
    """Publish on every topic at 100 Hz until `unlimited` has flowed for `seconds`. Returns its events."""

    def beat(number: int) -> None:
        for topic in (*topics, unlimited):
            vehicle.send_event(topic, b"%d" % number, session=number % 0xFFFF + 1)

    already = len(app.events(unlimited))
    count = already
    with Metronome(PUBLISHED_HZ, beat) as metronome:
        for _ in range(20):
            flowed = flowing_seconds(app.events(unlimited)[already:])
            if flowed >= seconds:
                break
            count = len(app.events(unlimited)) + round((seconds - flowed) * PUBLISHED_HZ) + 1
            app.wait_events(unlimited, count)
    return app.wait_events(unlimited, already + metronome.beats)[already:]
