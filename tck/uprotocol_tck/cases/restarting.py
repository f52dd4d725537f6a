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
    """A subscription remains after a restart, with its attributes; one that was ended does not return."""
    app, left, topic = world.app(), world.app(), world.topic()
    timed = topic.at(0x8002)
    expire_ms = world.now_ms() + 3_600_000
    app.subscribe(topic)
    app.subscribe(timed, expire_ms=expire_ms, period_ms=45)
    left.subscribe(topic)
    left.unsubscribe(topic)
    world.restart()
    listed = {
        each.topic: (each.state, each.expire_ms, each.period_ms or None)
        for each in app.subscriptions(subscriber=app.address)
    }
    expected = {topic: (State.SUBSCRIBED, None, None), timed: (State.SUBSCRIBED, expire_ms, 45)}
    check(listed == expected, f"the listed subscriptions: {listed}, expected {expected}")
    check_equal([each.subscriber for each in app.subscriptions(topic)], [app.address], "the subscribers")
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to Subscribe")


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


@case("req~usubscription-subscribe-expiration~1", versions=(3, 4), needs=[Need.RESTART], disturbs=True)
def a_subscription_ends_at_its_expiration_after_a_restart(world: World) -> None:
    """A subscription that expires after a restart, or during it, ends."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic, expire_ms=world.soon_ms())
    world.restart()
    app.wait_state(topic, State.UNSUBSCRIBED)


@case(
    "req~usubscription-subscribe-persistency~1",
    "LIF-18",
    versions=(3, 4),
    needs=[Need.RESTART, Need.OTHER_NETWORK],
    disturbs=True,
)
def pending_calls_are_repeated_after_a_restart(world: World) -> None:
    """A Subscribe and an Unsubscribe without an answer are sent again when subject and other device are linked again."""
    app, wanted, left = world.app(), world.other_topic(), world.other_topic()
    app.subscribe(left)
    app.wait_state(left, State.SUBSCRIBED)
    for each in (wanted, left):
        world.remote.hold(each)
    app.subscribe(wanted)
    app.unsubscribe(left)
    pending = ((wanted, True), (left, False))
    for topic, subscribe in pending:
        world.remote.wait_call(topic, subscribe=subscribe)
    left_at = world.restart()
    for topic, subscribe in pending:
        before = [
            each for each in world.remote.calls(topic, subscribe=subscribe) if each.received.at <= left_at
        ]
        world.remote.wait_call(topic, subscribe=subscribe, count=len(before) + 1)


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
