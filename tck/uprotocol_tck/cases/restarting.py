# SPDX-License-Identifier: Apache-2.0
"""What a restart of the subject leaves. These cases run alone, at the end."""

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.cases.forwarding import ids, route_to_far
from uprotocol_tck.uprotocol import Code
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import World


@case(
    "req~usubscription-subscribe~1",
    "req~usubscription-subscribe-persistency~1",
    "req~usubscription-subscribe-no-expiration~1",
    versions=(3, 4),
    needs=[Need.RESTART],
    disturbs=True,
)
def subscriptions_remain_after_a_restart(world: World) -> None:
    """A subscription remains after a restart, with its expiration; one that was ended does not return."""
    app, left, topic = world.app(), world.app(), world.topic()
    timed = topic.at(0x8002)
    expire_ms = world.now_ms() + 3_600_000
    app.subscribe(topic)
    app.subscribe(timed, expire_ms=expire_ms)
    left.subscribe(topic)
    left.unsubscribe(topic)
    world.restart()
    again = world.app(app.address)
    listed = {
        each.topic: (each.state, each.expire_ms) for each in again.subscriptions(subscriber=app.address)
    }
    expected = {topic: (State.SUBSCRIBED, None), timed: (State.SUBSCRIBED, expire_ms)}
    check(listed == expected, f"the listed subscriptions: {listed}, expected {expected}")
    check_equal([each.subscriber for each in again.subscriptions(topic)], [app.address], "the subscribers")
    check_equal(again.subscribe(topic), State.SUBSCRIBED, "the response to Subscribe")


@case(
    "req~usubscription-subscribe-persistency~1",
    "DSP-1",
    subject="streamer",
    needs=[Need.RESTART, Need.OTHER_NETWORK],
    disturbs=True,
)
def a_topic_is_forwarded_after_a_restart_without_another_subscribe(world: World) -> None:
    """A streamer that was restarted forwards what was subscribed before."""
    route = route_to_far(world)
    world.restart()
    publisher, listener = world.app(), world.far_app()
    listener.listen(route.topic)
    listener.network.wait_declared()
    sent = publisher.publish(route.topic, b"event")
    check_equal(ids(listener.wait_events(route.topic)), [sent], "the publications that arrived")


@case("LIF-3", versions=(3,), needs=[Need.LIFECYCLE, Need.RESTART], disturbs=True)
def the_state_of_a_topic_remains_after_a_restart(world: World) -> None:
    """A topic that was ACTIVE or DEPRECATED is so after a restart."""
    topic = world.new_topic()
    deprecated = topic.at(0x8002)
    producer = world.app(topic.at(0))
    methods = producer.dialect.methods
    for each in (topic, deprecated):
        producer.ask_ok(methods.create_topic, producer.dialect.topic_request(each))
    producer.ask_ok(methods.deprecate_topic, producer.dialect.topic_request(deprecated))
    world.restart()
    app = world.app()
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to a Subscribe of the ACTIVE topic")
    refused = app.ask(methods.subscribe, app.dialect.subscribe(deprecated, None, None))
    check_equal(refused.head.code, Code.FAILED_PRECONDITION, "the outcome for the DEPRECATED topic")
