# SPDX-License-Identifier: Apache-2.0
"""Everybody gets events at the rate it asked for, and all of them if it asked for no limit."""

from typing import Final, NamedTuple

from tests.e2e.peers import ZenohPeer
from tests.e2e.rates import assert_rate, flowed_s, publish
from tests.e2e.vehicle import Vehicle

SECONDS: Final = 3.0


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


def test_every_subscriber_gets_the_rate_it_asked_for(vehicle: Vehicle, app: ZenohPeer) -> None:
    topics = {name: vehicle.fresh_topic() for name in WISHES}
    unlimited = vehicle.fresh_topic()
    app.subscribe(unlimited)
    for name, wish in WISHES.items():
        app.subscribe(topics[name], max_frequency=wish.max_frequency, sample_period_ms=wish.sample_period_ms)
    everything = publish(vehicle, app, list(topics.values()), unlimited, seconds=SECONDS)
    assert [sample.payload for sample in everything] == [b"%d" % number for number in range(len(everything))]
    assert flowed_s(everything) >= SECONDS, "the machine is too busy for any measurement"
    for name, wish in WISHES.items():
        assert_rate(app.events(topics[name]), wish.hz, everything)


# [itest->req~usubscription-subscribe-multiple~1]
def test_a_second_subscribe_with_another_rate_takes_effect(vehicle: Vehicle, app: ZenohPeer) -> None:
    topic, unlimited = vehicle.fresh_topic(), vehicle.fresh_topic()
    app.subscribe(unlimited)
    before = 0
    for hz in (10.0, 50.0, 20.0):
        app.subscribe(topic, max_frequency=hz)
        everything = publish(vehicle, app, [topic], unlimited, seconds=1.0)
        limited = app.events(topic)[before:]
        before += len(limited)
        # One event that comes a beat early or late is more than 2 % of a second.
        assert_rate(limited, hz, everything, tolerance=0.05)
    app.subscribe(topic)
    everything = publish(vehicle, app, [topic], unlimited, seconds=0.5)
    assert len(app.wait_events(topic, before + len(everything))) == before + len(everything)
