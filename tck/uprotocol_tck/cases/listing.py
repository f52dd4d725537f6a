# SPDX-License-Identifier: Apache-2.0
"""FetchSubscribers and FetchSubscriptions."""

from typing import Final

from uprotocol_tck.case import Findings, Need, case, check, check_equal
from uprotocol_tck.protobuf import field
from uprotocol_tck.uprotocol import ANY_AUTHORITY, ANY_ENTITY, ANY_RESOURCE, ANY_VERSION, Code, Uri
from uprotocol_tck.usubscription import VERSION_3, State
from uprotocol_tck.world import Application, World

SUBSCRIBERS: Final = 5
MANY: Final = 60
"""More entries than a list of some services holds."""


def _subscribers(world: World, topic: Uri, count: int = SUBSCRIBERS) -> list[Application]:
    apps = [world.app() for _ in range(count)]
    for each in apps:
        each.subscribe(topic)
    return apps


def _fetch_subscribers(app: Application, topic: Uri, offset: int | None = None) -> list[Uri]:
    request = VERSION_3.topic_request(topic)
    if offset is not None:
        request = VERSION_3.paged(request, 2, offset)
    return VERSION_3.read_subscribers(app.ask_ok(app.dialect.methods.fetch_subscribers, request).payload)


@case(
    "req~usubscription-fetch-subscribers~1",
    "dsn~usubscription-fetch-subscribers-protobuf~1",
    versions=(3,),
)
def fetch_subscribers_lists_the_subscribers_of_a_topic(world: World) -> None:
    """FetchSubscribers lists the current subscribers of a topic, and no others."""
    topic = world.topic()
    apps = _subscribers(world, topic, 3)
    apps[0].subscribe(topic.at(0x8002))
    check_equal(set(_fetch_subscribers(apps[0], topic)), {each.address for each in apps}, "the subscribers")
    apps[1].unsubscribe(topic)
    left = {apps[0].address, apps[2].address}
    check_equal(set(_fetch_subscribers(apps[0], topic)), left, "the subscribers after an Unsubscribe")
    check_equal(_fetch_subscribers(apps[0], world.topic()), [], "the subscribers of an unknown topic")


@case("req~usubscription-fetch-subscribers-stable-sorting~1", versions=(3,))
def fetch_subscribers_lists_in_the_same_order_each_time(world: World) -> None:
    """Two calls of FetchSubscribers list in the same order."""
    topic = world.topic()
    app = _subscribers(world, topic)[0]
    check_equal(_fetch_subscribers(app, topic), _fetch_subscribers(app, topic), "the second list")


@case("req~usubscription-fetch-subscribers-offset~1", versions=(3,))
def fetch_subscribers_leaves_out_the_entries_before_the_offset(world: World) -> None:
    """FetchSubscribers with `offset` lists what comes after so many entries."""
    topic = world.topic()
    app = _subscribers(world, topic)[0]
    everything = _fetch_subscribers(app, topic)
    for offset in (1, SUBSCRIBERS - 1, SUBSCRIBERS, SUBSCRIBERS + 3):
        check_equal(_fetch_subscribers(app, topic, offset), everything[offset:], f"the list after {offset}")


@case("req~usubscription-fetch-subscribers-has-more-records~1", versions=(3,))
def fetch_subscribers_announces_more_records_only_if_there_are(world: World) -> None:
    """FetchSubscribers sets has_more_records if its list is incomplete; a complete list does not have it."""
    topic = world.topic()
    apps = _subscribers(world, topic, MANY)
    method = apps[0].dialect.methods.fetch_subscribers
    response = apps[0].ask_ok(method, VERSION_3.topic_request(topic))
    is_complete = len(VERSION_3.read_subscribers(response.payload)) == len(apps)
    check_equal(VERSION_3.has_more(response.payload), not is_complete, "has_more_records")


@case("req~usubscription-fetch-subscribers~1", versions=(3,), needs=[Need.OTHER])
def fetch_subscribers_lists_those_of_other_devices(world: World) -> None:
    """FetchSubscribers lists all subscribers of a topic, also those of another device."""
    app, far, topic = world.app(), world.far_client(), world.topic()
    for each in (app, far):
        each.subscribe(topic)
    check_equal(set(_fetch_subscribers(app, topic)), {app.address, far.address}, "the subscribers")


@case(
    "req~usubscription-fetch-subscriptions-by-subscriber~1",
    "dsn~usubscription-fetch-subscriptions-protobuf~1",
    versions=(3,),
)
def fetch_subscriptions_lists_what_a_subscriber_has_subscribed(world: World) -> None:
    """FetchSubscriptions with a subscriber lists its subscriptions, and no others."""
    app, other, topic = world.app(), world.app(), world.topic()
    topics = {topic, topic.at(0x8002), world.topic()}
    for each in topics:
        app.subscribe(each)
    other.subscribe(topic)
    listed = other.subscriptions(subscriber=app.address)
    check_equal({each.topic for each in listed}, topics, "the topics of the subscriber")
    check_equal({each.subscriber for each in listed}, {app.address}, "the subscribers in the list")
    check_equal({each.state for each in listed}, {State.SUBSCRIBED}, "the states in the list")
    expire_ms = world.now_ms() + 3_600_000
    app.subscribe(topic, expire_ms=expire_ms, period_ms=35)
    (changed,) = [each for each in app.subscriptions(topic) if each.subscriber == app.address]
    check_equal((changed.expire_ms, changed.period_ms), (expire_ms, 35), "the listed attributes")


@case("req~usubscription-fetch-subscriptions-by-subscriber~1", versions=(3,))
def fetch_subscriptions_tells_the_versions_of_an_entity_apart(world: World) -> None:
    """FetchSubscriptions with a subscriber lists nothing of another major version of the same entity."""
    app = world.app()
    _check_apart(app, world.app(app.address._replace(version=app.address.version + 1)), world.topic())


@case("req~usubscription-fetch-subscriptions-by-subscriber~1", versions=(3,), needs=[Need.OTHER])
def fetch_subscriptions_tells_the_devices_of_an_entity_apart(world: World) -> None:
    """FetchSubscriptions with a subscriber lists nothing of the same entity of another device."""
    app = world.app()
    _check_apart(app, world.far_client(app.address._replace(authority=world.options.other)), world.topic())


def _check_apart(app: Application, twin: Application, topic: Uri) -> None:
    app.subscribe(topic)
    twin.subscribe(topic.at(0x8002))
    for each, subscribed in ((app, topic), (twin, topic.at(0x8002))):
        listed = [(one.topic, one.subscriber) for one in app.subscriptions(subscriber=each.address)]
        check_equal(listed, [(subscribed, each.address)], f"the subscriptions of {each.address}")


@case("req~usubscription-fetch-subscriptions-by-topic~1", versions=(3,))
def fetch_subscriptions_lists_who_has_subscribed_a_topic(world: World) -> None:
    """FetchSubscriptions with a topic lists its subscriptions, and no others."""
    topic = world.topic()
    apps = _subscribers(world, topic, 3)
    apps[0].subscribe(topic.at(0x8002))
    listed = apps[0].subscriptions(topic)
    check_equal({each.subscriber for each in listed}, {each.address for each in apps}, "the subscribers")
    check_equal({each.topic for each in listed}, {topic}, "the topics in the list")


@case("req~usubscription-fetch-subscriptions-stable-sorting~1", versions=(3,))
def fetch_subscriptions_lists_in_the_same_order_each_time(world: World) -> None:
    """Two calls of FetchSubscriptions list in the same order."""
    topic = world.topic()
    app = _subscribers(world, topic)[0]
    check_equal(app.subscriptions(topic), app.subscriptions(topic), "the second list")


@case("req~usubscription-fetch-subscriptions-offset~1", versions=(3,))
def fetch_subscriptions_leaves_out_the_entries_before_the_offset(world: World) -> None:
    """FetchSubscriptions with `offset` lists what comes after so many entries."""
    topic = world.topic()
    app = _subscribers(world, topic)[0]
    everything = app.subscriptions(topic)
    for offset in (1, SUBSCRIBERS - 1, SUBSCRIBERS, SUBSCRIBERS + 3):
        request = VERSION_3.paged(app.dialect.fetch(topic, None), 3, offset)
        response = app.ask_ok(app.dialect.methods.fetch_subscriptions, request)
        check_equal(VERSION_3.read_list(response.payload), everything[offset:], f"the list after {offset}")


@case("req~usubscription-fetch-subscriptions-has-more-records~1", versions=(3,))
def fetch_subscriptions_announces_more_records_only_if_there_are(world: World) -> None:
    """FetchSubscriptions sets has_more_records if its list is incomplete; a complete list does not have it."""
    app = world.app()
    for _ in range(MANY):
        app.subscribe(world.topic())
    response = app.ask_ok(app.dialect.methods.fetch_subscriptions, app.dialect.fetch(None, app.address))
    is_complete = len(VERSION_3.read_list(response.payload)) == MANY
    check_equal(VERSION_3.has_more(response.payload), not is_complete, "has_more_records")


# --- version 4 --------------------------------------------------------------------------------------------------------


@case(
    "req~usubscription-fetch-subscriptions~1",
    "req~usubscription-fetch-subscriptions-method_id~1",
    "req~usubscription-fetch-subscriptions-request-signature~1",
    "req~usubscription-fetch-subscriptions-response-signature~1",
    versions=(4,),
)
def fetch_subscriptions_of_version_4_lists_subscriptions(world: World) -> None:
    """FetchSubscriptions, method 3, takes two optional filters and returns subscriptions, or an empty list."""
    app, topic = world.app(), world.topic()
    check_equal(app.subscriptions(topic), [], "the subscriptions of an unknown topic")
    expire_ms = world.now_ms() + 3_600_000
    app.subscribe(topic, expire_ms=expire_ms, period_ms=40)
    (listed,) = app.subscriptions(topic)
    found = (listed.topic, listed.subscriber, listed.state, listed.expire_ms, listed.period_ms)
    check_equal(found, (topic, app.address, State.SUBSCRIBED, expire_ms, 40), "the listed subscription")
    check(listed in app.subscriptions(), "a list without filters lacks a subscription")
    check_equal(app.subscriptions(topic, app.address), [listed], "the list with both filters")


def _patterns(uri: Uri) -> dict[str, tuple[Uri, bool]]:
    """Filters by their name, and whether `uri` matches: the table of UUri pattern matching."""
    instance = uri.ue_id & 0xFFFF_0000
    service = uri.ue_id & 0xFFFF
    return {
        "the same": (uri, True),
        "any authority": (uri._replace(authority=ANY_AUTHORITY), True),
        "any service": (uri._replace(ue_id=instance | 0xFFFF), True),
        "any instance": (uri._replace(ue_id=0xFFFF_0000 | service), True),
        "any entity": (uri._replace(ue_id=ANY_ENTITY), True),
        "any version": (uri._replace(version=ANY_VERSION), True),
        "any resource": (uri._replace(resource=ANY_RESOURCE), True),
        "anything of the authority": (Uri(uri.authority, ANY_ENTITY, ANY_VERSION, ANY_RESOURCE), True),
        "another authority": (uri._replace(authority="tck.nowhere"), False),
        "another service": (uri._replace(ue_id=instance | service ^ 1), False),
        "another instance": (uri._replace(ue_id=instance ^ 0x1_0000 | service), False),
        "any service of another instance": (uri._replace(ue_id=(instance ^ 0x1_0000) | 0xFFFF), False),
        "any instance of another service": (uri._replace(ue_id=0xFFFF_0000 | service ^ 1), False),
        "another version": (uri._replace(version=uri.version ^ 1), False),
        "another resource": (uri._replace(resource=uri.resource ^ 1), False),
        "any entity of another version": (uri._replace(ue_id=ANY_ENTITY, version=uri.version ^ 1), False),
    }


@case(
    "req~usubscription-fetch-subscriptions-topic-filter~1",
    "dsn~uri-pattern-matching~2",
    "dsn~uri-entity-id~1",
    "dsn~uri-resource-id~1",
    versions=(4,),
)
def a_topic_filter_is_a_pattern(world: World) -> None:
    """Only the subscriptions whose topic matches the filter are listed; it may have wildcards."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    findings = Findings()
    for name, (pattern, matches) in _patterns(topic).items():
        with findings.of(name):
            listed = app.subscriptions(pattern, app.address)
            check_equal(
                [each.topic for each in listed], [topic] if matches else [], f"the list for {pattern}"
            )
    findings.judge()


@case("req~usubscription-fetch-subscriptions-topic-filter~1", "dsn~uri-pattern-matching~2", versions=(4,))
def a_subscriber_filter_is_a_pattern(world: World) -> None:
    """Only the subscriptions whose subscriber matches the filter are listed; it may have wildcards."""
    app, topic = world.app(), world.topic()
    app.subscribe(topic)
    findings = Findings()
    for name, (pattern, matches) in _patterns(app.address).items():
        with findings.of(name):
            listed = app.subscriptions(topic, pattern)
            expected = [app.address] if matches else []
            check_equal([each.subscriber for each in listed], expected, f"the list for {pattern}")
    findings.judge()


def _check_invalid_filter(world: World, number: int) -> None:
    app = world.app()
    findings = Findings()
    for what, invalid in {
        "an authority of 129 characters": app.address._replace(authority="a" * 129).encode(),
        "the major version 256": app.address._replace(version=0x100).encode(),
        "the resource 65536": app.address._replace(resource=0x1_0000).encode(),
        "bytes that are no UUri": b"\x0a\xff",
    }.items():
        with findings.of(what):
            response = app.ask(app.dialect.methods.fetch_subscriptions, field(number, invalid))
            check_equal(response.head.code, Code.INVALID_ARGUMENT, "the outcome")
    findings.judge()


@case("dsn~usubscription-fetch-subscriptions-invalid-topic-filter~1", versions=(4,))
def an_invalid_topic_filter_is_refused(world: World) -> None:
    """A filter for topics that is no valid UUri is refused."""
    _check_invalid_filter(world, 1)


@case("dsn~usubscription-fetch-subscriptions-invalid-subscriber-filter~1", versions=(4,))
def an_invalid_subscriber_filter_is_refused(world: World) -> None:
    """A filter for subscribers that is no valid UUri is refused."""
    _check_invalid_filter(world, 2)
