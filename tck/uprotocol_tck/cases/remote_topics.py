# SPDX-License-Identifier: Apache-2.0
"""Topics of another device. The kit is the uSubscription of that device."""

from typing import Final

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.uprotocol import Code, Kind, Priority
from uprotocol_tck.usubscription import REMOTE_TIMEOUT_MS, State
from uprotocol_tck.world import World

BOTH: Final = (3, 4)
OTHER: Final = (Need.OTHER,)


@case(
    "req~usubscription-subscribe-remote~1",
    "req~usubscription-subscribe-remote-pending~1",
    "dsn~usubscription-state-machine~1",
    versions=BOTH,
    needs=OTHER,
)
def the_first_subscribe_is_forwarded_and_pending(world: World) -> None:
    """The first Subscribe to a remote topic is forwarded to the uSubscription there, and is pending meanwhile."""
    app, topic = world.app(), world.other_topic()
    world.remote.hold(topic)
    check_equal(app.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to Subscribe")
    call = world.remote.wait_call(topic, subscribe=True)
    check_equal(app.state_of(topic), State.SUBSCRIBE_PENDING, "the listed state before the answer")
    call.answer(State.SUBSCRIBED)
    app.wait_state(topic, State.SUBSCRIBED)


@case(
    "dsn~usubscription-subscribe-remote-subscriber-change~1",
    "dsn~usubscription-unsubscribe-remote-subscriber-change~1",
    "LIF-15",
    "dsn~up-attributes-request-type~1",
    "dsn~up-attributes-request-source~1",
    "dsn~up-attributes-request-sink~1",
    "dsn~up-attributes-request-priority~1",
    "dsn~up-attributes-request-ttl~1",
    versions=BOTH,
    needs=OTHER,
)
def a_forwarded_call_is_a_request_of_the_usubscription_itself(world: World) -> None:
    """A forwarded Subscribe and Unsubscribe come from core.usubscription of the subject, as valid Requests."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic)
    first = world.remote.wait_call(topic, subscribe=True)
    app.wait_state(topic, State.SUBSCRIBED)
    app.unsubscribe(topic)
    second = world.remote.wait_call(topic, subscribe=False)
    for call in (first, second):
        head = call.received.head
        source = (head.source.authority, head.source.ue_id & 0xFFFF, head.source.resource)
        check_equal(source, (world.options.authority, 0, 0), "authority, type and resource of the source")
        check_equal(head.kind, Kind.REQUEST, "the type of the message")
        check(head.priority >= Priority.CS4, f"the priority {head.priority}, expected CS4 or higher")
        check(head.ttl, "the Request has no ttl")
        subscriber = call.wanted.subscriber
        check(
            subscriber.authority in {"", world.options.authority} and subscriber.ue_id & 0xFFFF == 0,
            f"the subscriber in the Request is {subscriber}, expected core.usubscription or none",
        )


@case("req~usubscription-remote-max-timeout~1", "LIF-16", versions=BOTH, needs=OTHER)
def a_forwarded_call_may_take_five_minutes(world: World) -> None:
    """A forwarded request has a timeout of 5 minutes, which its ttl shows."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic)
    head = world.remote.wait_call(topic, subscribe=True).received.head
    check_equal(head.ttl, REMOTE_TIMEOUT_MS, "the ttl in ms")


@case("req~usubscription-subscribe-remote-response~1", versions=BOTH, needs=OTHER)
def all_subscribers_take_the_granted_status(world: World) -> None:
    """Every subscription of the topic takes the status in the response of the other device: SUBSCRIBED."""
    first, second, topic = world.app(), world.app(), world.other_topic()
    world.remote.hold(topic)
    for each in (first, second):
        check_equal(each.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to Subscribe")
    world.remote.wait_call(topic, subscribe=True).answer(State.SUBSCRIBED)
    for each in (first, second):
        each.wait_change(topic, State.SUBSCRIBED, each.address)
        check_equal(each.state_of(topic), State.SUBSCRIBED, "the listed state")
    third = world.app()
    check_equal(third.subscribe(topic), State.SUBSCRIBED, "the response to a Subscribe after the answer")


@case("req~usubscription-subscribe-remote-response~1", versions=BOTH, needs=OTHER)
def all_subscribers_take_the_pending_status(world: World) -> None:
    """Every subscription of the topic takes the status in the response of the other device: SUBSCRIBE_PENDING."""
    first, second, topic, fence = world.app(), world.app(), world.other_topic(), world.other_topic()
    world.remote.hold(topic)
    for each in (first, second):
        each.subscribe(topic)
    world.remote.wait_call(topic, subscribe=True).answer(State.SUBSCRIBE_PENDING)
    first.subscribe(fence)  # granted by an answer after that one
    first.wait_state(fence, State.SUBSCRIBED)
    world.quiet()
    for each in (first, second):
        check_equal(each.state_of(topic), State.SUBSCRIBE_PENDING, "the listed state")


@case("req~usubscription-subscribe-remote-response~1", versions=BOTH, needs=OTHER)
def only_the_usubscription_of_the_other_device_answers(world: World) -> None:
    """The status is that of the uSubscription of the other device: a response of another entity does not count."""
    app, forger, topic = world.app(), world.far_app(), world.other_topic()
    world.remote.hold(topic)
    app.subscribe(topic)
    call = world.remote.wait_call(topic, subscribe=True)
    forged = call.dialect.encode_subscribed(topic, State.SUBSCRIBED)
    forger.respond(call.received, forged, source=forger.address.at(call.dialect.methods.subscribe))
    world.quiet()
    check_equal(app.state_of(topic), State.SUBSCRIBE_PENDING, "the listed state after the other response")
    world.remote.release(topic)  # another run may have interrupted the network: then the call was repeated
    app.wait_state(topic, State.SUBSCRIBED)


@case("req~usubscription-subscribe-remote-response~1", "LIF-19", versions=BOTH, needs=OTHER)
def all_subscribers_take_the_refused_status(world: World) -> None:
    """Every subscription of the topic takes the status in the response of the other device: UNSUBSCRIBED."""
    first, second, topic = world.app(), world.app(), world.other_topic()
    world.remote.hold(topic)
    for each in (first, second):
        each.subscribe(topic)
    world.remote.wait_call(topic, subscribe=True).answer(State.UNSUBSCRIBED)
    for each in (first, second):
        each.wait_change(topic, State.UNSUBSCRIBED, each.address)
        check_equal(each.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("LIF-19", "dsn~service-error-model-failed-rpc~1", versions=BOTH, needs=OTHER)
def an_error_of_the_other_device_ends_the_subscription(world: World) -> None:
    """A forwarded Subscribe whose response reports an error has failed: the subscriber is notified of UNSUBSCRIBED."""
    app, topic = world.app(), world.other_topic()
    world.remote.hold(topic)
    app.subscribe(topic)
    world.remote.wait_call(topic, subscribe=True).fail(Code.PERMISSION_DENIED)
    app.wait_change(topic, State.UNSUBSCRIBED)
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("req~usubscription-unsubscribe-last-remote~1", versions=BOTH, needs=OTHER)
def the_last_unsubscribe_is_forwarded(world: World) -> None:
    """When the last subscriber of a remote topic leaves, Unsubscribe is forwarded, and not before."""
    first, second, topic = world.app(), world.app(), world.other_topic()
    for each in (first, second):
        each.subscribe(topic)
        each.wait_state(topic, State.SUBSCRIBED)
    first.unsubscribe(topic)
    world.quiet()
    check_equal(
        world.remote.calls(topic, subscribe=False), [], "forwarded calls while one subscriber is left"
    )
    second.unsubscribe(topic)
    world.remote.wait_call(topic, subscribe=False)


@case(
    "req~usubscription-subscribe-expiration~1",
    "dsn~usubscription-state-machine~1",
    versions=BOTH,
    needs=OTHER,
)
def the_expiration_of_the_last_subscription_ends_the_remote_one(world: World) -> None:
    """When the last subscription of a remote topic expires, the one there ends, too, and a new one is pending.

    The subject forwards Unsubscribe, unless the forwarded subscription has an expiration.
    """
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic, expire_ms=world.soon_ms())
    call = world.remote.wait_call(topic, subscribe=True)
    app.wait_state(topic, State.UNSUBSCRIBED)
    if call.wanted.expire_ms is None:
        world.remote.wait_call(topic, subscribe=False)
    world.remote.hold(topic)
    check_equal(
        app.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to a Subscribe after the expiration"
    )
    world.remote.wait_call(topic, subscribe=True, count=2).answer(State.SUBSCRIBED)
    app.wait_state(topic, State.SUBSCRIBED)


@case("LIF-19", versions=BOTH, needs=OTHER)
def an_unsubscribe_is_answered_before_the_other_device_answers(world: World) -> None:
    """The response OK to the last Unsubscribe does not wait for the other device."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic)
    app.wait_state(topic, State.SUBSCRIBED)
    world.remote.hold(topic)
    app.unsubscribe(topic)
    call = world.remote.wait_call(topic, subscribe=False)
    check_equal(app.state_of(topic) is State.SUBSCRIBED, False, "the subscription is still SUBSCRIBED")
    call.answer()


@case("req~usubscription-unsubscribe-remote-unsubscribed~1", versions=BOTH, needs=OTHER)
def a_remote_topic_is_unsubscribed_whatever_the_other_device_answers(world: World) -> None:
    """After a forwarded Unsubscribe the topic counts as UNSUBSCRIBED, also if the other device reports an error."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic)
    app.wait_state(topic, State.SUBSCRIBED)
    world.remote.hold(topic)
    app.unsubscribe(topic)
    world.remote.wait_call(topic, subscribe=False).fail(Code.INTERNAL)
    app.wait_state(topic, State.UNSUBSCRIBED)
    check_equal(app.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to a new Subscribe")
    world.remote.wait_call(topic, subscribe=True, count=2).answer(State.SUBSCRIBED)
    app.wait_state(topic, State.SUBSCRIBED)


@case(
    "req~usubscription-subscribe-unsubscribe-pending~1",
    "dsn~usubscription-state-machine~1",
    versions=BOTH,
    needs=OTHER,
)
def a_subscribe_before_the_answer_to_unsubscribe_is_pending(world: World) -> None:
    """A Subscribe to a remote topic that is UNSUBSCRIBE_PENDING is forwarded, and is SUBSCRIBE_PENDING."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic)
    app.wait_state(topic, State.SUBSCRIBED)
    world.remote.hold(topic)
    app.unsubscribe(topic)
    ending = world.remote.wait_call(topic, subscribe=False)
    check_equal(app.subscribe(topic), State.SUBSCRIBE_PENDING, "the response to Subscribe")
    ending.answer()
    world.remote.wait_call(topic, subscribe=True, count=2).answer(State.SUBSCRIBED)
    app.wait_state(topic, State.SUBSCRIBED)


@case("req~usubscription-unsubscribe-subscribe-pending~1", versions=BOTH, needs=OTHER)
def an_unsubscribe_before_the_answer_to_subscribe_is_forwarded(world: World) -> None:
    """An Unsubscribe of a remote topic that is SUBSCRIBE_PENDING is forwarded, and the state is UNSUBSCRIBED."""
    app, topic = world.app(), world.other_topic()
    world.remote.hold(topic)
    app.subscribe(topic)
    beginning = world.remote.wait_call(topic, subscribe=True)
    app.unsubscribe(topic)
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")
    beginning.answer(State.SUBSCRIBED)
    world.remote.wait_call(topic, subscribe=False).answer()
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state after both answers")


@case("LIF-20", versions=BOTH, needs=OTHER)
def changed_attributes_are_forwarded(world: World) -> None:
    """A changed rate of the only subscriber is forwarded to the uSubscription of the other device."""
    app, topic = world.app(), world.other_topic()
    app.subscribe(topic, period_ms=600)
    first = world.remote.wait_call(topic, subscribe=True)
    app.wait_state(topic, State.SUBSCRIBED)
    app.subscribe(topic, period_ms=90)
    second = world.remote.wait_call(topic, subscribe=True, count=2)
    periods = (first.wanted.period_ms or 0, second.wanted.period_ms or 0)
    check(
        90 < periods[0] <= 600 and 0 < periods[1] <= 90, f"the forwarded periods {periods} for 600 and 90 ms"
    )
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the listed state")


@case("DSP-23", "LIF-20", versions=BOTH, needs=OTHER)
def a_forwarded_rate_covers_every_subscriber(world: World) -> None:
    """The forwarded rate is at least that of any subscriber here: a slow one must not throttle a fast one."""
    slow_ms, fast_ms = 600, 90
    for first_ms, second_ms in ((slow_ms, fast_ms), (fast_ms, slow_ms)):
        first, second, topic = world.app(), world.app(), world.other_topic()
        first.subscribe(topic, period_ms=first_ms)
        first.wait_state(topic, State.SUBSCRIBED)
        second.subscribe(topic, period_ms=second_ms)
        if (world.remote.wait_call(topic, subscribe=True).wanted.period_ms or 0) > fast_ms:
            world.remote.wait_call(topic, subscribe=True, count=2)
        world.quiet()
        forwarded = world.remote.calls(topic, subscribe=True)[-1].wanted.period_ms or 0
        check(forwarded <= fast_ms, f"the forwarded period {forwarded} ms for {first_ms} and {second_ms} ms")


@case("req~usubscription-subscribe-expiration~1", "LIF-20", versions=BOTH, needs=OTHER)
def a_forwarded_expiration_is_that_of_the_last_subscriber(world: World) -> None:
    """The forwarded subscription lasts as long as that of the subscriber here that expires last."""
    early_ms, late_ms = world.now_ms() + 3_600_000, world.now_ms() + 7_200_000
    for first_ms, second_ms in ((early_ms, late_ms), (late_ms, early_ms)):
        first, second, topic = world.app(), world.app(), world.other_topic()
        first.subscribe(topic, expire_ms=first_ms)
        first.wait_state(topic, State.SUBSCRIBED)
        second.subscribe(topic, expire_ms=second_ms)
        if (world.remote.wait_call(topic, subscribe=True).wanted.expire_ms or late_ms) < late_ms:
            world.remote.wait_call(topic, subscribe=True, count=2)
        world.quiet()
        forwarded = world.remote.calls(topic, subscribe=True)[-1].wanted.expire_ms
        check(
            forwarded is None or forwarded >= late_ms,
            f"the forwarded expiration {forwarded} for {first_ms} and {second_ms}",
        )


@case("req~usubscription-subscribe-no-expiration~1", "LIF-20", versions=BOTH, needs=OTHER)
def a_forwarded_expiration_covers_every_subscriber(world: World) -> None:
    """The forwarded subscription lasts as long as that of any subscriber here: it has its expiration or none."""
    timed, endless, topic = world.app(), world.app(), world.other_topic()
    expire_ms = world.now_ms() + 3_600_000
    timed.subscribe(topic, expire_ms=expire_ms)
    timed.wait_state(topic, State.SUBSCRIBED)
    first = world.remote.wait_call(topic, subscribe=True).wanted.expire_ms
    check(first is None or first >= expire_ms, f"the forwarded expiration {first} is before {expire_ms}")
    endless.subscribe(topic)
    if first is not None:
        second = world.remote.wait_call(topic, subscribe=True, count=2).wanted.expire_ms
        check_equal(second, None, "the forwarded expiration after a Subscribe without one")
    check_equal(endless.state_of(topic), State.SUBSCRIBED, "the listed state")


@case("req~usubscription-remote-unsubscribe-notifications~1", versions=(4,), needs=OTHER)
def after_the_last_unsubscribe_of_a_remote_topic_nothing_is_published(world: World) -> None:
    """When the last subscriber of a remote topic has left, changes of the topic are not published any more."""
    listener, app, fence, topic = world.app(), world.app(), world.topic(), world.other_topic()
    channel = listener.service.at(0x8000)
    listener.listen(channel)
    listener.subscribe(channel)
    app.subscribe(topic)
    app.wait_state(topic, State.SUBSCRIBED)
    world.remote.hold(topic)
    app.unsubscribe(topic)
    call = world.remote.wait_call(topic, subscribe=False)

    def changes() -> list[State]:
        found = [listener.dialect.read_change(each.payload) for each in listener.events(channel)]
        return [each.state for each in found if each.topic == topic and each.subscriber == app.address]

    listener.wait(lambda _: State.UNSUBSCRIBED in changes(), f"the publication of the end of {topic}")
    before = changes()
    call.answer()
    app.unsubscribe(topic)
    app.subscribe(fence)
    app.wait_change(fence, State.SUBSCRIBED)
    world.quiet()
    check_equal(changes(), before, "the published states")


@case("req~usubscription-remote-retry-indefinitely~1", "LIF-17", versions=BOTH, needs=OTHER, alone=True)
def a_call_that_expired_on_the_path_stays_pending(world: World) -> None:
    """A request to the other device that timed out on the path is repeated, so the subscription does not end."""
    app, topic = world.app(), world.other_topic()
    world.remote.hold(topic)
    app.subscribe(topic)
    world.remote.wait_call(topic, subscribe=True).fail(Code.DEADLINE_EXCEEDED)
    world.quiet()
    check_equal(app.state_of(topic), State.SUBSCRIBE_PENDING, "the listed state")
    # For the next cases, the other device has answered again.
    answered = world.other_topic()
    app.subscribe(answered)
    app.wait_state(answered, State.SUBSCRIBED)


@case(
    "req~usubscription-remote-retry-indefinitely~1",
    "LIF-17",
    versions=(3,),
    needs=(Need.OTHER, Need.SLOW),
    alone=True,
)
def a_call_without_an_answer_is_repeated(world: World) -> None:
    """A request to the other device that has no answer within 5 minutes is repeated while it is needed."""
    app, topic = world.app(), world.other_topic()
    world.remote.hold(topic)
    app.subscribe(topic)
    world.remote.wait_call(topic, subscribe=True)
    world.pass_ms(REMOTE_TIMEOUT_MS)
    world.remote.wait_call(topic, subscribe=True, count=2).answer(State.SUBSCRIBED)
    app.wait_state(topic, State.SUBSCRIBED)
