# SPDX-License-Identifier: Apache-2.0
"""Everybody gets events at the rate it asked for, and all of them if it asked for no limit."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from tests.e2e.peers import Metronome, Sample, ZenohPeer
from tests.e2e.vehicle import Vehicle
from tests.e2e.wire import Uri

PUBLISHED_HZ: Final = 100
SECONDS: Final = 3
TOLERANCE: Final = 0.02
LATE_S: Final = 0.025
"""From here on a gap between two events of a 100 Hz publisher shows that the machine, and not a limit, held them up."""


class Wish(NamedTuple):
    """What is asked for, and what that is in Hz."""

    hz: float
    max_frequency: float | None = None
    sample_period_ms: int | None = None


WISHES: Final = {
    "40 Hz as a double": Wish(40, max_frequency=40.0),
    "25 ms as a varint": Wish(40, sample_period_ms=25),
    "77 Hz": Wish(77, max_frequency=77.0),
    "as often as published": Wish(100, max_frequency=100.0),
    "10 Hz": Wish(10, max_frequency=10.0),
}


def gaps(samples: Sequence[Sample]) -> list[float]:
    return [later.at - earlier.at for earlier, later in pairwise(samples)]


def held_up(samples: Sequence[Sample]) -> float:
    """For how many seconds in all a busy machine held up the events of a topic without limit."""
    return sum(gap for gap in gaps(samples) if gap > LATE_S)


def assert_rate(limited: Sequence[Sample], hz: float, stalled_s: float, tolerance: float = TOLERANCE) -> None:
    """At no more than `hz`, and no less in the time in which there was something to send."""
    intervals = len(limited) - 1
    span_s = limited[-1].at - limited[0].at
    assert intervals / span_s <= hz * (1 + tolerance)
    assert intervals / (span_s - stalled_s) >= hz * (1 - tolerance)


def publish(
    vehicle: Vehicle, app: ZenohPeer, topics: Sequence[Uri], all_of: Uri, *, beats: int
) -> list[Sample]:
    """Publish on every topic at 100 Hz until so many came of `all_of`, which has no limit; those."""

    def beat(number: int) -> None:
        for topic in (*topics, all_of):
            vehicle.emit(topic, b"%d" % number, session=number % 0xFFFF + 1)

    already = len(app.events(all_of))
    with Metronome(PUBLISHED_HZ, beat) as metronome:
        app.wait_events(all_of, already + beats, within=beats / PUBLISHED_HZ * 5)
    return app.wait_events(all_of, already + len(metronome.beats))[already:]


def test_every_subscriber_gets_the_rate_it_asked_for(vehicle: Vehicle, app: ZenohPeer) -> None:
    topics = {name: vehicle.fresh_topic() for name in WISHES}
    unlimited = vehicle.fresh_topic()
    app.subscribe(unlimited)
    for name, wish in WISHES.items():
        app.subscribe(topics[name], max_frequency=wish.max_frequency, sample_period_ms=wish.sample_period_ms)
    everything = publish(vehicle, app, list(topics.values()), unlimited, beats=SECONDS * PUBLISHED_HZ)
    assert [sample.payload for sample in everything] == [b"%d" % number for number in range(len(everything))]
    stalled_s = held_up(everything)
    assert stalled_s < SECONDS / 5, "the machine is too busy for any measurement"
    for name, wish in WISHES.items():
        assert_rate(app.events(topics[name]), wish.hz, stalled_s)


# [itest->req~usubscription-subscribe-multiple~1]
def test_a_second_subscribe_with_another_rate_takes_effect(vehicle: Vehicle, app: ZenohPeer) -> None:
    topic, unlimited = vehicle.fresh_topic(), vehicle.fresh_topic()
    app.subscribe(unlimited)
    before = 0
    for hz in (10.0, 50.0, 20.0):
        app.subscribe(topic, max_frequency=hz)
        everything = publish(vehicle, app, [topic], unlimited, beats=PUBLISHED_HZ)
        limited = app.events(topic)[before:]
        before += len(limited)
        # One event that comes a beat early or late is more than 2 % of a second.
        assert_rate(limited, hz, held_up(everything), tolerance=0.05)
    app.subscribe(topic)
    everything = publish(vehicle, app, [topic], unlimited, beats=PUBLISHED_HZ // 2)
    assert len(app.wait_events(topic, before + len(everything))) == before + len(everything)
