# SPDX-License-Identifier: Apache-2.0
"""Subscribe and Unsubscribe of topics of the subject's own device."""

from typing import Final

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.uprotocol import ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, ANY_TYPE, ANY_VERSION, Code, Uri
from uprotocol_tck.usubscription import State
from uprotocol_tck.world import Application, World

BOTH: Final = (3, 4)


@case("req~usubscription-subscribe~1", "dsn~usubscription-state-machine~1", versions=BOTH)
def a_caller_of_subscribe_is_listed_as_subscriber(world: World) -> None:
    """A caller of Subscribe is a subscriber of the topic from then on."""
    app, topic = world.app(), world.topic()
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the state before Subscribe")
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to Subscribe")
    check_equal(app.state_of(topic), State.SUBSCRIBED, "the listed state")


@case("req~usubscription-subscribe~1", "dsn~usubscription-state-machine~1", versions=BOTH)
def each_subscription_is_of_one_subscriber_and_one_topic(world: World) -> None:
    """A subscription relates one subscriber and one topic; others are not affected by it."""
    first, second, topic = world.app(), world.app(), world.topic()
    neighbour = topic.at(0x8002)
    first.subscribe(topic)
    second.subscribe(neighbour)
    check_equal([each.subscriber for each in first.subscriptions(topic)], [first.address], "subscribers")
    check_equal([each.subscriber for each in first.subscriptions(neighbour)], [second.address], "subscribers")
    first.unsubscribe(topic)
    check_equal(second.state_of(neighbour), State.SUBSCRIBED, "the state of the other subscription")


@case("dsn~usubscription-subscribe-protobuf~1", versions=(3,))
def the_response_to_subscribe_has_the_status_and_the_topic(world: World) -> None:
    """Subscribe takes a SubscriptionRequest and returns a SubscriptionResponse."""
    app, topic = world.app(), world.topic()
    response = app.ask_ok(app.dialect.methods.subscribe, app.dialect.subscribe(topic, None, None))
    state, named = app.dialect.read_subscribed(response.payload)
    check_equal(state, State.SUBSCRIBED, "the status in the response")
    check(named in {None, topic}, f"the topic in the response: {named}, expected {topic}")


@case("req~usubscription-subscribe-multiple~1", versions=BOTH)
def a_second_subscribe_returns_the_current_status(world: World) -> None:
    """The response to a Subscribe of an existing subscription has its current status."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the second response")
    check_equal(len(app.subscriptions(topic)), 1, "the number of listed subscriptions")


@case("req~usubscription-unsubscribe~1", "dsn~usubscription-state-machine~1", versions=BOTH)
def a_caller_of_unsubscribe_is_no_longer_listed(world: World) -> None:
    """A caller of Unsubscribe is no longer a subscriber of the topic; others stay."""
    app, other, topic = world.app(), world.app(), world.topic()
    app.subscribe(topic)
    other.subscribe(topic)
    app.unsubscribe(topic)
    check_equal([each.subscriber for each in app.subscriptions(topic)], [other.address], "subscribers")
    check_equal(app.subscribe(topic), State.SUBSCRIBED, "the response to another Subscribe")


@case("req~usubscription-unsubscribe-multiple~1", "dsn~usubscription-unsubscribe-protobuf~1", versions=(3,))
def unsubscribing_without_a_subscription_means_unsubscribed(world: World) -> None:
    """The response to an Unsubscribe without a subscription is UNSUBSCRIBED: OK and an empty message."""
    app, topic = world.app(), world.topic()
    check_equal(app.unsubscribe(topic).payload, b"", "the payload of the response")
    app.subscribe(topic)
    app.unsubscribe(topic)
    check_equal(app.unsubscribe(topic).payload, b"", "the payload of the response to a second Unsubscribe")
    check_equal(app.state_of(topic), State.UNSUBSCRIBED, "the listed state")


@case("dsn~usubscription-uri-version-major~1", "LIF-9", versions=(3,))
def another_major_version_is_another_topic(world: World) -> None:
    """A topic has one major version; a subscription of it is none of another version."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    check_equal(app.subscriptions(topic._replace(version=2)), [], "the subscriptions of version 2")


# --- topics that are refused --------------------------------------------------------------------------------


def _malformed(topic: Uri) -> dict[str, Uri | bytes | None]:
    """Topics that are no valid UUri."""
    return {
        "no topic": None,
        "an authority of 129 characters": topic._replace(authority="a" * 129),
        "the major version 256": topic._replace(version=0x100),
        "the resource 65536": topic._replace(resource=0x1_0000),
        "bytes that are no UUri": b"\x0a\xff",
    }


def _with_wildcards(topic: Uri) -> dict[str, Uri | bytes | None]:
    return {
        "a wildcard authority": topic._replace(authority=ANY_AUTHORITY),
        "a wildcard entity": topic._replace(ue_id=ANY_ENTITY),
        "a wildcard service": topic._replace(ue_id=topic.ue_id & 0xFFFF_0000 | ANY_TYPE),
        "a wildcard resource": topic._replace(resource=ANY_RESOURCE),
    }


def _check_refused(app: Application, method: int | None, requests: dict[str, bytes]) -> None:
    findings = Findings()
    for what, request in requests.items():
        with findings.of(what):
            check_equal(app.ask(method, request).head.code, Code.INVALID_ARGUMENT, "the outcome")
    findings.judge()


def _check_invalid_topics(world: World, method: str) -> None:
    app, topic = world.app(), world.topic()
    refused = {**_malformed(topic), **_with_wildcards(topic)}
    if method == "fetch_subscriptions":
        del refused["no topic"]  # it lists everything, or is refused: the text is read both ways
    requests = {what: _request_of(app, method, each) for what, each in refused.items()}
    _check_refused(app, getattr(app.dialect.methods, method), requests)


def _request_of(app: Application, method: str, topic: Uri | bytes | None) -> bytes:
    if method == "subscribe":
        return app.dialect.subscribe(topic, None, None)
    if method == "fetch_subscriptions":
        return app.dialect.fetch(topic, None)
    return app.dialect.topic_request(topic)


@case("dsn~usubscription-subscribe-invalid-topic~1", versions=(3,))
def subscribe_refuses_an_invalid_topic(world: World) -> None:
    """Subscribe refuses a malformed topic, and one with a wildcard authority, entity or resource."""
    _check_invalid_topics(world, "subscribe")


@case("dsn~usubscription-unsubscribe-invalid-topic~1", versions=(3,))
def unsubscribe_refuses_an_invalid_topic(world: World) -> None:
    """Unsubscribe refuses the same topics as Subscribe."""
    _check_invalid_topics(world, "unsubscribe")


@case("dsn~usubscription-fetch-subscribers-invalid-topic~1", versions=(3,))
def fetch_subscribers_refuses_an_invalid_topic(world: World) -> None:
    """FetchSubscribers refuses the same topics as Subscribe."""
    _check_invalid_topics(world, "fetch_subscribers")


@case("dsn~usubscription-fetch-subscriptions-invalid-topic~1", versions=(3,))
def fetch_subscriptions_refuses_an_invalid_topic(world: World) -> None:
    """FetchSubscriptions refuses the same topics as Subscribe."""
    _check_invalid_topics(world, "fetch_subscriptions")


@case("dsn~usubscription-register-notifications-invalid-topic~1", versions=(3,))
def register_refuses_an_invalid_topic(world: World) -> None:
    """RegisterForNotifications refuses the same topics as Subscribe."""
    _check_invalid_topics(world, "register")


@case("dsn~usubscription-unregister-notifications-invalid-topic~1", versions=(3,))
def unregister_refuses_an_invalid_topic(world: World) -> None:
    """UnregisterForNotifications refuses the same topics as Subscribe."""
    _check_invalid_topics(world, "unregister")


@case("dsn~usubscription-fetch-subscriptions-invalid-subscriber~1", versions=(3,))
def fetch_subscriptions_refuses_an_invalid_subscriber(world: World) -> None:
    """FetchSubscriptions refuses a malformed subscriber, and one with a wildcard."""
    app = world.app()
    refused = {**_malformed(app.address), **_with_wildcards(app.address)}
    del refused["no topic"]
    requests = {what: app.dialect.fetch(None, each) for what, each in refused.items()}
    _check_refused(app, app.dialect.methods.fetch_subscriptions, requests)


@case("dsn~usubscription-uri-version-major~1", versions=(3,))
def a_wildcard_version_is_refused(world: World) -> None:
    """A topic with a wildcard for its major version is no topic of a subscription."""
    app, topic = world.app(), world.topic()._replace(version=ANY_VERSION)
    request = app.dialect.subscribe(topic, None, None)
    _check_refused(app, app.dialect.methods.subscribe, {"a wildcard version": request})


def _refused_in_version_4(topic: Uri) -> dict[str, Uri | bytes | None]:
    return {
        **_malformed(topic),
        **_with_wildcards(topic),
        "an empty authority": topic._replace(authority=""),
        "the resource 0": topic._replace(resource=0),
        "the resource 7FFF": topic._replace(resource=0x7FFF),
    }


@case("dsn~usubscription-subscribe-valid-topic-uuris~1", versions=(4,))
def subscribe_of_version_4_refuses_what_is_no_topic(world: World) -> None:
    """Subscribe refuses a resource outside 8000 to FFFE, an empty or wildcard authority, and other wildcards."""
    app, refused = world.app(), _refused_in_version_4(world.topic())
    requests = {what: app.dialect.subscribe(each, None, None) for what, each in refused.items()}
    _check_refused(app, app.dialect.methods.subscribe, requests)


@case("dsn~usubscription-unsubscribe-valid-topic-uuris~1", versions=(4,))
def unsubscribe_of_version_4_refuses_what_is_no_topic(world: World) -> None:
    """Unsubscribe refuses the same topics as Subscribe."""
    app, refused = world.app(), _refused_in_version_4(world.topic())
    requests = {what: app.dialect.topic_request(each) for what, each in refused.items()}
    _check_refused(app, app.dialect.methods.unsubscribe, requests)


@case("dsn~usubscription-subscribe-valid-topic-uuris~1", versions=(4,))
def a_topic_of_every_instance_can_be_subscribed(world: World) -> None:
    """A topic of version 4 may have a wildcard for the instance of its service."""
    app, topic = world.app(), world.topic()
    every = topic._replace(ue_id=topic.ue_id | 0xFFFF_0000)
    check_equal(app.subscribe(every), State.SUBSCRIBED, "the response to Subscribe")
    check_equal(app.state_of(every), State.SUBSCRIBED, "the listed state")
    app.unsubscribe(every)
    check_equal(app.state_of(every), State.UNSUBSCRIBED, "the listed state after Unsubscribe")


@case(
    "dsn~usubscription-interaction-subscriber~1",
    "aou~usubscription-interaction-subscriber~1",
    subject="streamer",
    needs=[Need.OTHER_NETWORK],
)
def a_listener_alone_receives_nothing_from_another_device(world: World) -> None:
    """An entity that only listens at its transport, and has not subscribed, receives no publication from elsewhere."""
    listener, subscriber = world.far_app(), world.far_usubscription()
    topic = world.topic()
    fence = topic.at(0x8002)
    for each in (topic, fence):
        listener.listen(each)
    subscriber.subscribe(fence)
    publisher = world.app()
    for each in (topic, fence):
        publisher.publish(each, b"event")
    listener.wait_events(fence)
    world.quiet()
    check_equal(listener.events(topic), [], "publications of a topic that has no subscriber")
