# SPDX-License-Identifier: Apache-2.0
"""The rate of a subscriber, between two networks."""

import time
from collections.abc import Sequence
from typing import Final

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.cases.forwarding import TO_FAR, Route, ids, route_to_far
from uprotocol_tck.protobuf import field
from uprotocol_tck.uprotocol import Code, Uuid
from uprotocol_tck.usubscription import VERSION_3
from uprotocol_tck.world import World

SLACK: Final = 2.5
"""A limiter may let pass so many messages more than f * T in a window."""
SHARE: Final = 0.88
"""Of the messages that the rate permits, so many must arrive."""
STALL_S: Final = 0.03
"""A gap of the kit's own publisher above its period: the machine was busy, and the rate was not there."""


def _publish(world: World, route: Route, hz: float, seconds: float) -> tuple[list[Uuid], float]:
    """Publish at a rate. Returns the ids, and the seconds without the stalls of the publisher."""
    sent, steady_s, period_s = [], 0.0, 1 / hz
    due = last = time.monotonic()
    end = due + seconds
    while due < end:
        world.pass_ms(max(0.0, due - time.monotonic()) * 1000)
        now = time.monotonic()
        steady_s += min(now - last, period_s + STALL_S)
        last = now
        sent.append(route.publisher.publish(route.topic, b"event"))
        due = max(due + period_s, now - STALL_S)
    return sent, steady_s


def _arrivals(world: World, route: Route) -> list[float]:
    """The times of the publications that arrived, when no more come."""
    before = 0
    route.listener.wait_events(route.topic)
    while len(found := route.listener.events(route.topic)) > before:
        before = len(found)
        world.quiet()
    return [each.at for each in found]


def _check_at_most(arrivals: Sequence[float], hz: float) -> None:
    """In no window are there more than f * T + SLACK."""
    for first in range(len(arrivals)):
        for last in range(first + 1, len(arrivals)):
            count, window_s = last - first + 1, arrivals[last] - arrivals[first]
            check(
                count <= hz * window_s + SLACK + 1,
                f"{count} publications in {window_s:.3f} s at a limit of {hz:g} Hz",
            )


def _check_limited(world: World, route: Route, limit_hz: float, published_hz: float) -> list[Uuid]:
    sent, steady_s = _publish(world, route, published_hz, 2.0)
    arrivals = _arrivals(world, route)
    _check_at_most(arrivals, limit_hz)
    expected = limit_hz * steady_s * SHARE - 1
    what = f"{len(arrivals)} of {len(sent)} publications in {steady_s:.2f} s at a limit of {limit_hz:g} Hz"
    check(len(arrivals) >= expected, f"{what}, expected {expected:.1f} or more")
    return sent


@case("DSP-20", "DSP-21", subject="streamer", needs=TO_FAR, alone=True)
def publications_are_forwarded_at_the_rate_of_the_subscriber(world: World) -> None:
    """A topic is forwarded at the rate that its subscriber requested; what is above it is dropped."""
    _check_limited(world, route_to_far(world, period_ms=100), 10, 60)


@case("DSP-20", "DSP-21", subject="streamer", needs=TO_FAR, alone=True)
def a_rate_that_does_not_divide_that_of_the_publisher_is_kept(world: World) -> None:
    """Also a rate that does not divide the publisher's rate is reached: 83 Hz of 100 Hz."""
    _check_limited(world, route_to_far(world, period_ms=12), 1000 / 12, 100)


@case(
    "DSP-20", subject="streamer", needs=[Need.OTHER_NETWORK, Need.VERSION_3, Need.MAX_FREQUENCY], alone=True
)
def a_maximum_frequency_limits_the_rate(world: World) -> None:
    """The attribute `max_frequency`, in Hz, sets the rate of a subscriber."""
    route = route_to_far(world)
    _limit_frequency(world, route, 10.0)
    _check_limited(world, route, 10, 60)


@case("DSP-20", subject="streamer", needs=[Need.OTHER_NETWORK, Need.VERSION_3, Need.MAX_FREQUENCY])
def a_maximum_frequency_may_be_below_one_hertz(world: World) -> None:
    """The attribute `max_frequency` is a number of Hz with a fraction: 0.1 Hz is one publication in 10 s."""
    route = route_to_far(world)
    _limit_frequency(world, route, 0.1)
    _publish(world, route, 20, 2.5)
    count = len(_arrivals(world, route))
    check(count <= 2, f"{count} publications in 2.5 s at a limit of 0.1 Hz")


def _limit_frequency(world: World, route: Route, hz: float) -> None:
    request = VERSION_3.topic_request(route.topic) + field(3, field(3, hz))
    response = route.subscriber.call(
        world.service._replace(version=3).at(VERSION_3.methods.subscribe), request
    )
    check_equal(response.head.code, Code.OK, "the outcome of Subscribe")


@case("DSP-23", subject="streamer", needs=TO_FAR)
def without_a_rate_nothing_is_throttled(world: World) -> None:
    """Without a rate in the subscription, every publication is forwarded."""
    route = route_to_far(world)
    sent, _ = _publish(world, route, 200, 0.5)
    check_equal(
        len(ids(route.listener.wait_events(route.topic, len(sent)))), len(sent), "publications that arrived"
    )


@case("DSP-24", subject="streamer", needs=TO_FAR, alone=True)
def a_publisher_below_the_rate_is_not_throttled(world: World) -> None:
    """A publisher that is slower than the rate of the subscriber is not throttled."""
    route = route_to_far(world, period_ms=20)
    sent, _ = _publish(world, route, 5, 2.0)  # a busy machine may delay one by 0.1 s, and not the next one
    found = ids(route.listener.wait_events(route.topic, len(sent)))
    check_equal(found, sent, "the publications that arrived")


@case("DSP-20", "DSP-23", "req~usubscription-subscribe-multiple~1", subject="streamer", needs=TO_FAR)
def a_changed_rate_holds_for_the_next_publications(world: World) -> None:
    """Another Subscribe of the same subscriber changes its rate: without one, everything is forwarded."""
    route = route_to_far(world, period_ms=60_000)
    for _ in range(5):
        route.publisher.publish(route.topic, b"limited")
    route.listener.wait_events(route.topic)
    world.quiet()
    check_equal(len(ids(route.listener.events(route.topic))), 1, "publications in one period")
    route.subscriber.subscribe(route.topic)
    sent = {route.publisher.publish(route.topic, b"free") for _ in range(5)}
    arrived = ids(route.listener.wait_events(route.topic, 1 + len(sent)))
    check(sent <= set(arrived), f"{len(sent & set(arrived))} of {len(sent)} publications after the change")


@case("DSP-23", subject="streamer", needs=TO_FAR)
def a_slow_subscriber_does_not_throttle_another(world: World) -> None:
    """A subscriber without a rate gets every publication, also if another one of its network wants few."""
    route, other = route_to_far(world, period_ms=60_000), world.far_client()
    other.listen(route.topic)
    other.subscribe(route.topic)
    sent = [route.publisher.publish(route.topic, b"event") for _ in range(10)]
    check_equal(ids(other.wait_events(route.topic, len(sent))), sent, "the publications that arrived")


@case("DSP-26", subject="streamer", needs=TO_FAR)
def only_publications_are_throttled(world: World) -> None:
    """Notifications of the same entity are not throttled by the rate of its topic's subscriber."""
    route = route_to_far(world, period_ms=1_000)
    topic = route.topic
    sent = [route.publisher.notify(route.listener.address, source=topic) for _ in range(20)]
    received = route.listener.wait(
        lambda each: each.attributes is not None and each.attributes.id in sent, "notifications", len(sent)
    )
    check_equal(len(ids(received)), len(sent), "notifications that arrived")


@case("DSP-22", subject="streamer", needs=[Need.OTHER_NETWORK, Need.DEAD_LETTERS])
def a_dropped_publication_is_no_dead_letter(world: World) -> None:
    """What the rate drops is not published on the dead letter topic."""
    route, letters = route_to_far(world, period_ms=10_000), world.app()
    topic = world.options.dead_letters
    assert topic is not None
    letters.listen(topic)
    letters.subscribe(topic)
    sent = [route.publisher.publish(route.topic, b"%d" % number) for number in range(20)]
    route.listener.wait_events(route.topic)
    world.quiet()
    about = [
        id for id in sent for each in letters.inbox.all() if id.encode() in each.payload + each.attachment
    ]
    check_equal(len(about), 0, "dead letters of dropped publications")
    check(len(route.listener.events(route.topic)) < len(sent), "every publication arrived")
