# SPDX-License-Identifier: Apache-2.0
"""Each subscriber receives events at its requested rate, and all events if it requested no limit."""

from typing import Final, NamedTuple

from tests.e2e.rigs.entities import ZenohEntity
from tests.e2e.rigs.rates import assert_rate, flowing_seconds, publish_until_flowed
from tests.e2e.rigs.vehicle import Vehicle

SECONDS: Final = 3.0


class RateRequest(NamedTuple):
    """The requested limit, and the expected rate in Hz."""

    hz: float
    max_frequency: float | None = None
    sample_period_ms: int | None = None


RATE_REQUESTS: Final = {
    "40 Hz as a double": RateRequest(40, max_frequency=40.0),
    "25 ms as a varint": RateRequest(40, sample_period_ms=25),
    "77 Hz": RateRequest(77, max_frequency=77.0),
    "as often as published": RateRequest(100, max_frequency=100.0),
    "10 Hz": RateRequest(10, max_frequency=10.0),
}


def test_every_subscriber_receives_events_at_its_requested_rate(vehicle: Vehicle, app: ZenohEntity) -> None:
    topics = {name: vehicle.unused_topic() for name in RATE_REQUESTS}
    unlimited = vehicle.unused_topic()
    app.subscribe(unlimited)
    for name, rate_request in RATE_REQUESTS.items():
        app.subscribe(
            topics[name],
            max_frequency=rate_request.max_frequency,
            sample_period_ms=rate_request.sample_period_ms,
        )
    everything = publish_until_flowed(vehicle, app, list(topics.values()), unlimited, seconds=SECONDS)
    assert [sample.payload for sample in everything] == [b"%d" % number for number in range(len(everything))]
    assert flowing_seconds(everything) >= SECONDS, "the machine is too busy for any measurement"
    for name, rate_request in RATE_REQUESTS.items():
        assert_rate(app.events(topics[name]), rate_request.hz, everything)


# [itest->req~usubscription-subscribe-multiple~1]
def test_a_second_subscribe_with_another_rate_takes_effect(vehicle: Vehicle, app: ZenohEntity) -> None:
    topic, unlimited = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(unlimited)
    before = 0
    for hz in (10.0, 50.0, 20.0):
        app.subscribe(topic, max_frequency=hz)
        everything = publish_until_flowed(vehicle, app, [topic], unlimited, seconds=1.0)
        limited = app.events(topic)[before:]
        before += len(limited)
        # One event that is one period early or late is more than 2 % of a second.
        assert_rate(limited, hz, everything, tolerance=0.05)
    app.subscribe(topic)
    everything = publish_until_flowed(vehicle, app, [topic], unlimited, seconds=0.5)
    assert len(app.wait_events(topic, before + len(everything))) == before + len(everything)
