# SPDX-License-Identifier: Apache-2.0
"""core.usubscription version 3, spoken byte by byte."""

from collections.abc import Iterator

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, ZenohEntity, ZenohSample
from tests.e2e.rigs.vehicle import Vehicle
from tests.e2e.rigs.wire import Uri

METHODS = {
    "Subscribe": wire.SUBSCRIBE,
    "Unsubscribe": wire.UNSUBSCRIBE,
    "FetchSubscriptions": wire.FETCH_SUBSCRIPTIONS,
    "FetchSubscribers": wire.FETCH_SUBSCRIBERS,
}

INVALID_ADDRESSES = {
    "wildcard authority": Uri("*", 0x1234, 1, 0x8001),
    "wildcard type": Uri("chassis", 0xFFFF, 1, 0x8001),
    "wildcard instance": Uri("chassis", 0xFFFF1234, 1, 0x8001),
    "wildcard entity": Uri("chassis", 0xFFFFFFFF, 1, 0x8001),
    "wildcard version": Uri("chassis", 0x1234, 0xFF, 0x8001),
    "wildcard resource": Uri("chassis", 0x1234, 1, 0xFFFF),
    "a version of nine bits": Uri("chassis", 0x1234, 0x1FF, 0x8001),
    "a resource of 17 bits": Uri("chassis", 0x1234, 1, 0x18001),
    "an upper-case authority": Uri("CHASSIS", 0x1234, 1, 0x8001),
    "an authority with a port": Uri("chassis:30501", 0x1234, 1, 0x8001),
    "an authority of 129 characters": Uri("a" * 129, 0x1234, 1, 0x8001),
}
INVALID_TOPICS = INVALID_ADDRESSES | {
    "a method": Uri("chassis", 0x1234, 1, 0x0001),
    "a uEntity": Uri("chassis", 0x1234, 1, 0),
}


@pytest.fixture(scope="module")
def caller(vehicle: Vehicle) -> Iterator[ZenohEntity]:
    with ZenohEntity(vehicle.ports.backbone, "hpc.vin1") as peer:
        yield peer


def refusal_message(answer: ZenohSample, code: int) -> str:
    """The text of an error Response; commstatus and payload have the same code."""
    assert answer.head.commstatus == code, answer
    assert answer.head.payload_format == wire.PROTOBUF
    assert answer.status.code == code
    assert answer.status.message
    return answer.status.message


# [itest->dsn~usubscription-subscribe-protobuf~1]
def test_the_answer_to_subscribe_belongs_to_its_request(vehicle: Vehicle, caller: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    method = USUBSCRIPTION.at(wire.SUBSCRIBE)
    sent_request = caller.send_request(method, wire.subscription_request(topic), ttl=4321, priority=wire.CS5)
    answer = caller.wait_response(sent_request)
    assert answer.key == wire.key(method, caller.address)
    assert answer.head.id.is_version_7
    assert answer.head._replace(commstatus=None) == wire.Attributes(
        answer.head.id,
        wire.RESPONSE,
        method,
        caller.address,
        priority=wire.CS5,
        ttl=4321,
        reqid=sent_request,
        payload_format=wire.PROTOBUF,
    )
    assert answer.head.commstatus in {None, wire.OK}
    assert wire.SubscriptionResponse.decode(answer.payload) == (wire.SUBSCRIBED, topic)


# [itest->req~usubscription-fetch-subscribers~1] [itest->dsn~usubscription-fetch-subscribers-protobuf~1]
def test_fetch_subscribers_lists_all_subscribers_of_the_topic(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    topic = vehicle.unused_topic()

    def subscribers() -> set[Uri]:
        answer = app.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIBERS), wire.topic_request(topic))
        assert answer.head.commstatus in {None, wire.OK}
        listed = wire.subscribers_in(answer.payload)
        assert len(listed) == len(set(listed))
        return set(listed)

    assert subscribers() == set()
    app.subscribe(topic)
    fleet.subscribe(topic, max_frequency=10.0)
    assert subscribers() == {app.address, fleet.address}
    app.unsubscribe(topic)
    assert subscribers() == {fleet.address}


def fetch_subscriptions(peer: ZenohEntity, request: bytes) -> list[wire.SubscriptionEntry]:
    answer = peer.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIPTIONS), request)
    assert answer.head.commstatus in {None, wire.OK}, answer.status
    return wire.subscriptions_in(answer.payload)


# [itest->req~usubscription-fetch-subscriptions-by-subscriber~1]
# [itest->req~usubscription-fetch-subscriptions-by-topic~1]
def test_fetch_subscriptions_finds_them_by_subscriber_and_by_topic(
    vehicle: Vehicle, app: ZenohEntity, fleet: ZenohEntity
) -> None:
    fast, slow = vehicle.unused_topic(), vehicle.unused_topic()
    app.subscribe(fast)
    app.subscribe(slow, sample_period_ms=25)
    fleet.subscribe(fast)
    # Rust peers cannot read an entry without attributes, so they are there even when they are empty.
    fast_of_app = wire.SubscriptionEntry(fast, app.address, wire.SUBSCRIBED, b"")
    slow_of_app = wire.SubscriptionEntry(slow, app.address, wire.SUBSCRIBED, wire.field(3, 25))
    fast_of_fleet = wire.SubscriptionEntry(fast, fleet.address, wire.SUBSCRIBED, b"")

    assert set(fetch_subscriptions(app, wire.subscriber_request(app.address))) == {fast_of_app, slow_of_app}
    assert set(fetch_subscriptions(app, wire.topic_request(fast))) == {fast_of_app, fast_of_fleet}
    everything = fetch_subscriptions(fleet, b"")
    assert {fast_of_app, slow_of_app, fast_of_fleet} <= set(everything)
    assert everything == fetch_subscriptions(fleet, b"")  # in the same order each time


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("topic", INVALID_TOPICS)
# [itest->dsn~usubscription-subscribe-invalid-topic~1] [itest->dsn~usubscription-unsubscribe-invalid-topic~1]
# [itest->dsn~usubscription-fetch-subscriptions-invalid-topic~1]
# [itest->dsn~usubscription-fetch-subscribers-invalid-topic~1]
def test_an_invalid_topic_is_refused(caller: ZenohEntity, method: str, topic: str) -> None:
    answer = caller.call(USUBSCRIPTION.at(METHODS[method]), wire.topic_request(INVALID_TOPICS[topic]))
    refusal_message(answer, wire.INVALID_ARGUMENT)


@pytest.mark.parametrize("subscriber", INVALID_ADDRESSES)
# [itest->dsn~usubscription-fetch-subscriptions-invalid-subscriber~1]
def test_an_invalid_subscriber_is_refused(caller: ZenohEntity, subscriber: str) -> None:
    sent_request = wire.subscriber_request(INVALID_ADDRESSES[subscriber])
    refusal_message(
        caller.call(USUBSCRIPTION.at(wire.FETCH_SUBSCRIPTIONS), sent_request), wire.INVALID_ARGUMENT
    )


@pytest.mark.parametrize("method", ["Subscribe", "Unsubscribe", "FetchSubscribers"])
def test_a_request_without_a_topic_is_refused(caller: ZenohEntity, method: str) -> None:
    answer = caller.call(USUBSCRIPTION.at(METHODS[method]), b"")
    assert "topic" in refusal_message(answer, wire.INVALID_ARGUMENT)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "garbage", [b"\xff" * 40, b"\x0a\x7fshort", b"\x08"], ids=["noise", "cut off", "a tag"]
)
def test_garbage_for_a_request_is_refused(caller: ZenohEntity, method: str, garbage: bytes) -> None:
    refusal_message(caller.call(USUBSCRIPTION.at(METHODS[method]), garbage), wire.INVALID_ARGUMENT)


@pytest.mark.parametrize("max_frequency", [0.0, -1.0, float("inf"), float("nan")])
def test_an_invalid_frequency_is_refused(vehicle: Vehicle, caller: ZenohEntity, max_frequency: float) -> None:
    sent_request = wire.subscription_request(Uri("chassis", 0x1234, 1, 0x8001), max_frequency=max_frequency)
    refusal_message(caller.call(USUBSCRIPTION.at(wire.SUBSCRIBE), sent_request), wire.INVALID_ARGUMENT)


@pytest.mark.parametrize(
    "method", [USUBSCRIPTION.at(0x7F), USUBSCRIPTION._replace(version=9).at(wire.SUBSCRIBE)], ids=str
)
def test_an_unknown_method_is_unimplemented(caller: ZenohEntity, method: Uri) -> None:
    refusal_message(caller.call(method, b""), wire.UNIMPLEMENTED)


def test_requests_and_answers_may_be_wrapped_in_any(vehicle: Vehicle, caller: ZenohEntity) -> None:
    topic = vehicle.unused_topic()
    sent_request = wire.pack_any("SubscriptionRequest", wire.subscription_request(topic))
    answer = caller.call(USUBSCRIPTION.at(wire.SUBSCRIBE), sent_request, payload_format=wire.WRAPPED_IN_ANY)
    assert answer.head.commstatus in {None, wire.OK}, answer.status
    payload = answer.payload
    if answer.head.payload_format == wire.WRAPPED_IN_ANY:
        payload = wire.unpack_any("SubscriptionResponse", payload)
    assert wire.SubscriptionResponse.decode(payload) == (wire.SUBSCRIBED, topic)
    vehicle.send_event(topic)
    caller.wait_events(topic)


def test_an_any_of_another_type_is_refused(vehicle: Vehicle, caller: ZenohEntity) -> None:
    sent_request = wire.pack_any("UnsubscribeRequest", wire.topic_request(Uri("chassis", 0x1234, 1, 0x8001)))
    answer = caller.call(USUBSCRIPTION.at(wire.SUBSCRIBE), sent_request, payload_format=wire.WRAPPED_IN_ANY)
    refusal_message(answer, wire.INVALID_ARGUMENT)


def test_a_subscribe_for_another_entity_is_refused(vehicle: Vehicle, caller: ZenohEntity) -> None:
    topic = Uri("chassis", 0x1234, 1, 0x8001)
    named = wire.field(2, wire.subscriber_info(Uri("hpc.vin1", 0x7777, 1)))
    answer = caller.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(topic) + named)
    refusal_message(answer, wire.PERMISSION_DENIED)


def test_an_empty_authority_in_a_topic_is_that_of_the_service(caller: ZenohEntity) -> None:
    answer = caller.call(
        USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(Uri("", 0x1234, 1, 0x8001))
    )
    assert wire.SubscriptionResponse.decode(answer.payload) == (
        wire.SUBSCRIBED,
        Uri("hpc.vin1", 0x1234, 1, 0x8001),
    )


# [itest->req~usubscription-unsubscribe-multiple~1]
def test_unsubscribe_without_a_subscription_succeeds(vehicle: Vehicle, caller: ZenohEntity) -> None:
    caller.unsubscribe(vehicle.unused_topic())
