# SPDX-License-Identifier: Apache-2.0
"""Notifications and publications of changes."""

from typing import Final

from uprotocol_tck.case import Need, case, check, check_equal
from uprotocol_tck.probe import Received
from uprotocol_tck.uprotocol import MIN_TOPIC, Kind
from uprotocol_tck.usubscription import CHANGES, State
from uprotocol_tck.world import Application, World

BOTH: Final = (3, 4)


@case(
    "req~usubscription-subscribe-notifications~1",
    "dsn~usubscription-change-notification-update~1",
    "LIF-10",
    versions=BOTH,
)
def a_subscriber_is_notified_of_its_subscription(world: World) -> None:
    """A subscriber is notified of the changes of its own subscription without registering for them."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    change = app.wait_change(topic, State.SUBSCRIBED)
    check_equal(change.subscriber, app.address, "the subscriber in the notification")


@case(
    "req~usubscription-subscribe-notifications~1",
    "dsn~usubscription-change-notification-update~1",
    versions=BOTH,
    needs=[Need.OTHER],
)
def a_subscriber_of_another_device_is_notified(world: World) -> None:
    """A subscriber of another device is notified of the changes of its own subscription, too."""
    app, topic = world.far_client(), world.topic()
    app.subscribe(topic)
    check_equal(app.wait_change(topic, State.SUBSCRIBED).subscriber, app.address, "the notified subscriber")


@case("dsn~usubscription-change-notification-update~1", versions=(3,))
def the_entity_that_unsubscribes_is_notified(world: World) -> None:
    """A subscriber is notified of its own Unsubscribe, here while the topic has another subscriber."""
    app, stays, topic = world.app(), world.app(), world.topic()
    for each in (app, stays):
        each.subscribe(topic)
    app.unsubscribe(topic)
    app.wait_change(topic, State.UNSUBSCRIBED, app.address)


@case(
    "dsn~usubscription-change-notification-topic~1",
    "LIF-13",
    "dsn~up-attributes-notification-type~1",
    "dsn~up-attributes-notification-source~1",
    "dsn~up-attributes-notification-sink~1",
    versions=(3,),
)
def a_change_comes_from_resource_8000(world: World) -> None:
    """A change is a Notification from resource 8000 of the service to resource 0 of the receiver."""
    _check_origin(world)


@case("req~usubscription-change-notification-resource~1", versions=(4,))
def a_change_of_version_4_comes_from_resource_8000(world: World) -> None:
    """A change is a Notification from resource 8000 of the service to resource 0 of the receiver."""
    _check_origin(world)


def _check_origin(world: World) -> None:
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    (received,) = app.wait(lambda each: _kind(each) == Kind.NOTIFICATION, "a notification")
    head = received.head
    check_equal(head.source, app.service.at(CHANGES), "the source")
    check_equal(head.sink, app.address.at(0), "the sink")


def _kind(received: Received) -> int | None:
    return received.attributes.kind if received.attributes else None


@case("dsn~usubscription-change-notification-type~1", versions=(3,))
def a_change_is_an_update(world: World) -> None:
    """A change has a payload of type Update: topic, subscriber, status and attributes."""
    _check_payload(world)


@case("req~usubscription-change-message-type~1", versions=(4,))
def a_change_is_a_subscription(world: World) -> None:
    """A change has a payload of type Subscription: topic, subscriber, status, expiration and sample period."""
    _check_payload(world)


def _check_payload(world: World) -> None:
    app, topic, expire_ms = world.app(), world.topic(), world.now_ms() + 3_600_000
    app.subscribe(topic, expire_ms=expire_ms, period_ms=50)
    change = app.wait_change(topic, State.SUBSCRIBED)
    found = (change.topic, change.subscriber, change.expire_ms, change.period_ms)
    check_equal(found, (topic, app.address, expire_ms, 50), "the payload")


@case("req~usubscription-change-notification~1", versions=(4,))
def a_changed_expiration_or_period_is_notified(world: World) -> None:
    """The subscriber is notified when its expiration or its sample period changes."""
    app, topic, expire_ms = world.app(), world.topic(), world.now_ms() + 3_600_000
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    app.subscribe(topic, expire_ms=expire_ms)
    check_equal(app.wait_change(topic, State.SUBSCRIBED, count=2).expire_ms, expire_ms, "the expiration")
    app.subscribe(topic, expire_ms=expire_ms, period_ms=75)
    check_equal(app.wait_change(topic, State.SUBSCRIBED, count=3).period_ms, 75, "the sample period")


@case("req~usubscription-unsubscribe-notifications~1", versions=(3,))
def after_the_last_unsubscribe_no_change_is_notified(world: World) -> None:
    """After the last subscriber of a topic has left, no changes of the topic are notified."""
    app, observer, topic = world.app(), world.app(), world.topic()
    app.subscribe(topic)
    observer.register(topic)
    app.unsubscribe(topic)
    observer.wait_change(topic, State.UNSUBSCRIBED)
    before = len(observer.changes(topic))
    app.unsubscribe(topic)
    world.quiet()
    check_equal(len(observer.changes(topic)), before, "the number of notifications")
    check(
        all(each.state is not State.SUBSCRIBED for each in app.changes(topic)[1:]), "a change after the end"
    )


@case("req~usubscription-unsubscribe-notifications~1", versions=(4,))
def a_subscriber_that_left_is_not_notified(world: World) -> None:
    """After its Unsubscribe a client receives no more notifications about the topic."""
    app, stays, topic = world.app(), world.app(), world.topic()
    app.subscribe(topic)
    app.wait_change(topic, State.SUBSCRIBED)
    stays.subscribe(topic)
    before = len(app.changes(topic))
    app.unsubscribe(topic)
    stays.subscribe(topic, period_ms=70)
    stays.wait_change(topic, State.SUBSCRIBED, count=2)
    world.quiet()
    check_equal(len(app.changes(topic)), before, "the notifications after Unsubscribe")


@case(
    "req~usubscription-register-notifications~1",
    "dsn~usubscription-register-notifications-protobuf~1",
    "LIF-11",
    "LIF-12",
    versions=(3,),
)
def a_registered_entity_is_notified_of_every_subscriber(world: World) -> None:
    """A caller of RegisterForNotifications is notified of the changes of all subscriptions of the topic."""
    topic = world.topic()
    producer = world.app(topic.at(0))
    check_equal(_register(producer, topic).payload, b"", "the payload of the response")
    first, second = world.app(), world.app()
    first.subscribe(topic)
    second.subscribe(topic.at(0x8002))
    second.subscribe(topic)
    for each in (first, second):
        producer.wait_change(topic, State.SUBSCRIBED, each.address)
    first.unsubscribe(topic)
    producer.wait_change(topic, State.UNSUBSCRIBED, first.address)
    check_equal(producer.changes(topic.at(0x8002)), [], "notifications of another topic")


@case("req~usubscription-register-notifications~1", versions=(3,))
def a_registration_remains_after_an_unsubscribe(world: World) -> None:
    """An entity that registered is notified until it unregisters, also after it has ended its own subscription."""
    stays, later, topic = world.app(), world.app(), world.topic()
    producer = world.app(topic.at(0))
    producer.register(topic)
    for each in (producer, stays):
        each.subscribe(topic)
    producer.unsubscribe(topic)
    later.subscribe(topic)
    producer.wait_change(topic, State.SUBSCRIBED, later.address)


def _register(app: Application, topic: object) -> Received:
    return app.ask_ok(app.dialect.methods.register, app.dialect.register(topic))  # type: ignore[arg-type]


@case(
    "req~usubscription-register-notifications~1",
    "req~usubscription-register-notifications-method_id~1",
    "req~usubscription-register-notifications-request-signature~1",
    "req~usubscription-register-notifications-response-signature~1",
    versions=(4,),
)
def a_registered_entity_is_notified_of_every_subscription(world: World) -> None:
    """RegisterForNotifications, method 4, has no parameters: its caller is notified of all subscriptions."""
    observer, app = world.app(), world.app()
    check_equal(_register(observer, None).payload, b"", "the payload of the response")
    for topic in (world.topic(), world.topic()):
        app.subscribe(topic)
        observer.wait_change(topic, State.SUBSCRIBED, app.address)
        app.unsubscribe(topic)
        observer.wait_change(topic, State.UNSUBSCRIBED, app.address)


@case(
    "req~usubscription-unregister-notifications~1",
    "dsn~usubscription-unregister-notifications-protobuf~1",
    versions=(3,),
)
def an_entity_that_unregistered_is_not_notified(world: World) -> None:
    """A caller of UnregisterForNotifications is not notified of further changes."""
    _check_unregister(world)


@case(
    "req~usubscription-unregister-notifications~1",
    "req~usubscription-unregister-notifications-method_id~1",
    "req~usubscription-unregister-notifications-request-signature~1",
    "req~usubscription-unregister-notifications-response-signature~1",
    versions=(4,),
)
def an_entity_that_unregistered_in_version_4_is_not_notified(world: World) -> None:
    """UnregisterForNotifications, method 5, has no parameters and ends all notifications of its caller."""
    _check_unregister(world)


def _check_unregister(world: World) -> None:
    topic = world.topic()
    observer, stays, app = world.app(), world.app(), world.app()
    for each in (observer, stays):
        each.register(topic)
    app.subscribe(topic)
    for each in (observer, stays):
        each.wait_change(topic, State.SUBSCRIBED, app.address)
    method = observer.dialect.methods.unregister
    response = observer.ask_ok(method, observer.dialect.register(topic))
    check_equal(response.payload, b"", "the payload of the response")
    app.unsubscribe(topic)
    stays.wait_change(topic, State.UNSUBSCRIBED, app.address)
    world.quiet()
    states = [each.state for each in observer.changes(topic)]
    check_equal(states, [State.SUBSCRIBED], "the notified states")


@case(
    "req~usubscription-change-topic~1",
    "dsn~up-attributes-publish-type~1",
    "dsn~up-attributes-publish-source~1",
    versions=(4,),
)
def each_change_is_published(world: World) -> None:
    """Each change of a subscription is also published on the topic of changes."""
    listener = world.app()
    channel = listener.service.at(CHANGES)
    check(channel.resource >= MIN_TOPIC, "the topic of changes is a topic")
    listener.listen(channel)
    listener.subscribe(channel)
    _check_published(world, listener)


@case("req~usubscription-change-topic~1", "dsn~usubscription-change-notification-topic~1", versions=BOTH)
def an_entity_that_only_listens_gets_each_change(world: World) -> None:
    """A listener of the topic of changes gets each change once, without a Subscribe of that topic."""
    listener = world.app()
    listener.listen(listener.service.at(CHANGES))
    _check_published(world, listener)


def _check_published(world: World, listener: Application) -> None:
    app, topic, channel = world.app(), world.topic(), listener.service.at(CHANGES)

    def states() -> list[State]:
        changes = [listener.dialect.read_change(each.payload) for each in listener.events(channel)]
        return [each.state for each in changes if (each.topic, each.subscriber) == (topic, app.address)]

    app.subscribe(topic)
    app.subscribe(topic, period_ms=60)
    app.unsubscribe(topic)
    listener.wait(lambda _: len(states()) >= 3, f"publications of the changes of {topic} on {channel}")
    world.quiet()
    expected = [State.SUBSCRIBED, State.SUBSCRIBED, State.UNSUBSCRIBED]
    check_equal(states(), expected, "the published states")
