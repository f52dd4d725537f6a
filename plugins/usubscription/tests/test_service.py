# SPDX-License-Identifier: Apache-2.0
"""The rules of the uSubscription specification, asked over a bus and answered by the real service on a real store."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_usubscription.requests import v3
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.service import MAX_PAYLOAD

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP, OTHER_APP = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0)
TOPIC, OTHER_TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD), UUri(OWN, 0x42, 1, 0x8000)
SUBSCRIBE, UNSUBSCRIBE, FETCH_SUBSCRIPTIONS, FETCH_SUBSCRIBERS = 1, 2, 3, 8
REGISTER, UNREGISTER, RESET = 6, 7, 9
UNSUBSCRIBED, SUBSCRIBED = pb.SubscriptionStatus.UNSUBSCRIBED, pb.SubscriptionStatus.SUBSCRIBED
MS = 1_000_000


def info(uuri: UUri) -> pb.SubscriberInfo:
    return pb.SubscriberInfo(uri=uuri.to_pb())


def subscribers(desk: "ServiceRig", topic: UUri = TOPIC, offset: int | None = None) -> list[UUri]:
    wanted = pb.FetchSubscribersRequest(topic=topic.to_pb(), offset=offset)
    answer = desk.call_for(pb.FetchSubscribersResponse, FETCH_SUBSCRIBERS, wanted)
    return [UUri.from_pb(each.uri) for each in answer.subscribers]


# --- Subscribe --------------------------------------------------------------------------------------------------------


def test_a_subscriber_is_answered_subscribed_and_routed_to_at_once(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe~1]"""
    version = desk.plugin.directory.version
    assert desk.subscribe(sample_period_ms=40) == SUBSCRIBED
    assert desk.routed_subscribers() == [(APP, 40 * MS)]
    assert desk.plugin.directory.version > version


def test_the_core_routes_by_it_without_restart_or_polling(desk: "ServiceRig") -> None:
    router = Router(
        AuthorityTable({OWN: "backbone", SERVED: "chassis"}),
        desk.plugin.directory,
        {"backbone": False, "chassis": True},
    )
    assert router.subscribed_targets("chassis", TOPIC) == ()
    desk.subscribe(sample_period_ms=40)
    desk.subscribe(caller=OTHER_APP, sample_period_ms=20)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 20 * MS),)
    desk.unsubscribe(caller=OTHER_APP)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 40 * MS),)
    desk.unsubscribe()
    assert router.subscribed_targets("chassis", TOPIC) == ()


VECTORS = [
    ("0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807", 1000 * MS, 1781565900_000),
    ("0a120a076465766963653210ab21180320cd8102", 0, None),
]


@pytest.mark.parametrize(("payload", "period_ns", "expire_ms"), VECTORS)
def test_subscribe_speaks_the_bytes_of_the_standard(
    desk: "ServiceRig", payload: str, period_ns: int, expire_ms: int | None
) -> None:
    """[utest->dsn~usubscription-subscribe-protobuf~1]"""
    answer = desk.call(SUBSCRIBE, bytes.fromhex(payload))
    assert answer.payload.hex() == "0a0208021a120a076465766963653210ab21180320cd8102"
    [entry] = desk.plugin.directory.subscribers(TOPIC)
    assert (entry.subscriber, entry.period_ns, entry.expire_ms) == (APP, period_ns, expire_ms)


def test_a_request_wrapped_in_any_gets_an_answer_wrapped_in_any(desk: "ServiceRig") -> None:
    answer = desk.call(
        SUBSCRIBE, desk.subscription_request(), payload_format=UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY
    )
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY
    wrapped = Any.FromString(answer.payload)
    assert wrapped.type_url.endswith("/uprotocol.core.usubscription.v3.SubscriptionResponse")
    assert pb.SubscriptionResponse.FromString(wrapped.value).status.state == SUBSCRIBED


def test_a_request_of_unknown_format_gets_an_answer_in_protobuf(desk: "ServiceRig") -> None:
    answer = desk.call(SUBSCRIBE, desk.subscription_request(), payload_format=UPayloadFormat.UNSPECIFIED)
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert pb.SubscriptionResponse.FromString(answer.payload).status.state == SUBSCRIBED


def test_an_answer_has_the_attributes_that_its_request_asks_for(desk: "ServiceRig") -> None:
    reqid = desk.send_request(SUBSCRIBE, desk.subscription_request(), authority=SERVED, ttl=1234)
    assert desk.wait_response(reqid).attributes == UAttributes(
        type=UMessageType.RESPONSE,
        source=UUri(SERVED, 0, 3, 1),
        sink=APP,
        priority=UPriority.CS4,
        ttl=1234,
        reqid=reqid,
        payload_format=UPayloadFormat.PROTOBUF,
    )


def test_subscribing_again_returns_the_current_status_and_keeps_one_subscription(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-multiple~1]"""
    assert [desk.subscribe(), desk.subscribe()] == [SUBSCRIBED, SUBSCRIBED]
    assert desk.pairs() == [(TOPIC, APP)]


def test_subscribing_again_unchanged_costs_no_transaction(desk: "ServiceRig") -> None:
    desk.subscribe(sample_period_ms=5)
    before = desk.statistics("transactions")
    desk.subscribe(sample_period_ms=5)
    assert desk.statistics("transactions") == before


def test_subscribing_again_changes_the_rate_at_once(desk: "ServiceRig") -> None:
    desk.subscribe(sample_period_ms=40)
    version = desk.plugin.directory.version
    desk.subscribe(sample_period_ms=20)
    assert desk.routed_subscribers() == [(APP, 20 * MS)]
    assert desk.plugin.directory.version > version
    desk.subscribe()
    assert desk.routed_subscribers() == [(APP, 0)]


@pytest.mark.parametrize("seconds", [5, 20, None], ids=["earlier", "later", "never"])
def test_subscribing_again_updates_an_expire_that_differs(desk: "ServiceRig", seconds: int | None) -> None:
    """[utest->req~usubscription-subscribe-expiration-extension~1]"""
    wanted = None if seconds is None else desk.now_ms + seconds * 1000
    desk.subscribe(expire_ms=desk.now_ms + 10_000)
    desk.subscribe(expire_ms=wanted)
    [entry] = desk.plugin.directory.subscribers(TOPIC)
    assert entry.expire_ms == wanted


@pytest.mark.parametrize("before", [False, True], ids=["new", "subscribed"])
def test_an_expire_in_the_past_is_answered_unsubscribed_and_ends_what_there_was(
    desk: "ServiceRig", before: bool
) -> None:
    if before:
        desk.subscribe()
    assert desk.subscribe(expire_ms=desk.now_ms - 1) == UNSUBSCRIBED
    assert desk.routed_subscribers() == []
    assert desk.pairs() == []
    assert desk.subscribe(expire_ms=desk.now_ms) == SUBSCRIBED  # not past yet


def test_a_topic_without_authority_belongs_to_the_authority_that_was_called(desk: "ServiceRig") -> None:
    wanted = desk.subscription_request(UUri("", 0x10AB, 3, 0x80CD))
    answer = desk.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted)
    assert UUri.from_pb(answer.topic) == UUri(OWN, 0x10AB, 3, 0x80CD)
    answer = desk.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted, authority=SERVED)
    assert UUri.from_pb(answer.topic) == UUri(SERVED, 0x10AB, 3, 0x80CD)


def test_the_subscriber_is_who_sent_the_request(desk: "ServiceRig") -> None:
    desk.subscribe(caller=OTHER_APP)
    desk.subscribe(caller=UUri("far.away", 7, 1, 0))
    assert subscribers(desk) == [OTHER_APP, UUri("far.away", 7, 1, 0)]


# Field 2 `subscriber`, which requests had until 2024-08-07; the bytes are those of the standard's own vector.
@pytest.mark.parametrize(
    ("method", "request_hex"),
    [
        (SUBSCRIBE, "0a120a076465766963653210ab21180320cd8102"),
        (UNSUBSCRIBE, "0a120a076465766963653210ab21180320cd8102"),
        (REGISTER, "0a120a076465766963653210ab21180320cd8102"),
        (UNREGISTER, "0a120a076465766963653210ab21180320cd8102"),
    ],
)
def test_the_legacy_subscriber_field_must_name_the_caller(
    desk: "ServiceRig", method: int, request_hex: str
) -> None:
    payload = bytes.fromhex(request_hex + "120d0a0b0a07646576696365311803")
    assert desk.call(method, payload, caller=UUri(OWN, 0, 3, 0)).attributes.commstatus is None
    status = desk.call_refused(method, payload, caller=APP)
    assert status.code is UCode.PERMISSION_DENIED
    assert (
        status.message
        == "subscriber up://device1/0/3/0: the caller is up://device1/300EF/4/0, and may act only for itself"
    )


def test_the_legacy_subscriber_field_may_leave_the_authority_out_or_be_empty(desk: "ServiceRig") -> None:
    for subscriber in (info(UUri("", 0x300EF, 4, 0)), pb.SubscriberInfo()):
        wanted = pb.SubscriptionRequest(topic=TOPIC.to_pb(), subscriber=subscriber)
        assert desk.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted).status.state == SUBSCRIBED


def test_attributes_that_make_no_sense_are_refused(desk: "ServiceRig") -> None:
    wanted = desk.subscription_request()
    wanted.attributes.MergeFromString(bytes.fromhex("19000000000000f0bf"))  # max_frequency -1 Hz
    assert "max_frequency -1.0 Hz" in desk.call_refused(SUBSCRIBE, wanted).message
    assert desk.pairs() == []


def test_the_lowest_frequency_is_told_as_the_longest_period_in_both_versions(desk: "ServiceRig") -> None:
    wanted = desk.subscription_request()
    wanted.attributes.MergeFromString(bytes.fromhex("1995d626e80b2e113e"))  # max_frequency 1e-9 Hz
    assert desk.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted).status.state == SUBSCRIBED
    assert desk.routed_subscribers() == [(APP, 10**18)]
    [old] = desk.fetch().subscriptions
    assert old.attributes.sample_period_ms == 2**32 - 1
    [new] = desk.call_for(pb4.FetchSubscriptionsResponse, 3, version=4).subscriptions
    assert new.sample_period == 2**32 - 1


# --- topics and subscribers that are no addresses ---------------------------------------------------------------------

BAD_TOPICS = [
    (UUri("*", 1, 1, 0x8000), "authority is a wildcard"),
    (UUri("a", 0xFFFF, 1, 0x8000), "type is a wildcard"),
    (UUri("a", 0xFFFF0001, 1, 0x8000), "instance is a wildcard"),
    (UUri("a", 1, 0xFF, 0x8000), "version is a wildcard"),
    (UUri("a", 1, 1, 0xFFFF), "resource is a wildcard"),
    (UUri("a", 1, 1, 0x7FFF), "is not a topic"),
    (UUri("A", 1, 1, 0x8000), "authority 'A'"),
    (UUri("a", 1, 1, 0x1_8000), "resource_id 0x18000"),
]


@pytest.mark.parametrize(("topic", "why"), BAD_TOPICS, ids=[why for _, why in BAD_TOPICS])
@pytest.mark.parametrize(
    ("method", "request_of"),
    [
        (SUBSCRIBE, lambda topic: pb.SubscriptionRequest(topic=topic)),
        (UNSUBSCRIBE, lambda topic: pb.UnsubscribeRequest(topic=topic)),
        (FETCH_SUBSCRIPTIONS, lambda topic: pb.FetchSubscriptionsRequest(topic=topic)),
        (FETCH_SUBSCRIBERS, lambda topic: pb.FetchSubscribersRequest(topic=topic)),
        (REGISTER, lambda topic: pb.NotificationsRequest(topic=topic)),
        (UNREGISTER, lambda topic: pb.NotificationsRequest(topic=topic)),
    ],
    ids=[
        "Subscribe",
        "Unsubscribe",
        "FetchSubscriptions",
        "FetchSubscribers",
        "RegisterForNotifications",
        "UnregisterForNotifications",
    ],
)
def test_every_operation_refuses_a_bad_topic(
    desk: "ServiceRig", method: int, request_of: Callable[..., Any], topic: UUri, why: str
) -> None:
    """[utest->dsn~usubscription-subscribe-invalid-topic~1]
    [utest->dsn~usubscription-unsubscribe-invalid-topic~1]
    [utest->dsn~usubscription-fetch-subscriptions-invalid-topic~1]
    [utest->dsn~usubscription-fetch-subscribers-invalid-topic~1]
    [utest->dsn~usubscription-register-notifications-invalid-topic~1]
    [utest->dsn~usubscription-unregister-notifications-invalid-topic~1]
    [utest->dsn~usubscription-uri-version-major~1]
    """
    status = desk.call_refused(method, request_of(topic.to_pb()))
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message
    assert desk.statistics("refused_invalid_argument") == 1


@pytest.mark.parametrize("method", [SUBSCRIBE, UNSUBSCRIBE, FETCH_SUBSCRIBERS, REGISTER, UNREGISTER])
def test_a_request_without_a_topic_is_refused(desk: "ServiceRig", method: int) -> None:
    assert str(desk.call_refused(method)) == "INVALID_ARGUMENT: topic: missing"


@pytest.mark.parametrize(
    ("subscriber", "why"),
    [
        (UUri("*", 1, 1, 0), "authority is a wildcard"),
        (UUri("a", 0xFFFF, 1, 0), "type is a wildcard"),
        (UUri("a", 0xFFFF0001, 1, 0), "instance is a wildcard"),
        (UUri("a", 1, 0xFF, 0), "version is a wildcard"),
        (UUri("a", 1, 1, 0xFFFF), "resource is a wildcard"),
        (UUri("A", 1, 1, 0), "authority 'A'"),
    ],
)
def test_fetching_by_a_bad_subscriber_is_refused(desk: "ServiceRig", subscriber: UUri, why: str) -> None:
    """[utest->dsn~usubscription-fetch-subscriptions-invalid-subscriber~1]"""
    status = desk.call_refused(FETCH_SUBSCRIPTIONS, pb.FetchSubscriptionsRequest(subscriber=info(subscriber)))
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message


def test_fetching_by_a_subscriber_without_uri_is_refused(desk: "ServiceRig") -> None:
    status = desk.call_refused(
        FETCH_SUBSCRIPTIONS, pb.FetchSubscriptionsRequest(subscriber=pb.SubscriberInfo())
    )
    assert str(status) == "INVALID_ARGUMENT: subscriber: its uri is missing"


# --- Unsubscribe ------------------------------------------------------------------------------------------------------


def test_whoever_unsubscribes_is_routed_to_no_more(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe~1]"""
    desk.subscribe()
    desk.subscribe(caller=OTHER_APP)
    version = desk.plugin.directory.version
    desk.unsubscribe()
    assert desk.routed_subscribers() == [(OTHER_APP, 0)]
    assert desk.plugin.directory.version > version


def test_unsubscribing_is_answered_with_an_empty_message(desk: "ServiceRig") -> None:
    """[utest->dsn~usubscription-unsubscribe-protobuf~1]"""
    desk.subscribe()
    answer = desk.call(UNSUBSCRIBE, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert desk.routed_subscribers() == []


@pytest.mark.parametrize("topic", [TOPIC, UUri("device3", 1, 1, 0x8000)], ids=["local", "remote"])
def test_unsubscribing_what_was_not_subscribed_succeeds_and_writes_nothing(
    desk: "ServiceRig", topic: UUri
) -> None:
    """[utest->req~usubscription-unsubscribe-multiple~1]"""
    before = desk.statistics("transactions")
    desk.unsubscribe(topic)
    desk.unsubscribe(topic)
    assert desk.statistics("transactions") == before


# --- RegisterForNotifications, UnregisterForNotifications, Reset ------------------------------------------------------


@pytest.mark.parametrize("method", [REGISTER, UNREGISTER])
def test_registering_speaks_the_bytes_of_the_standard(desk: "ServiceRig", method: int) -> None:
    """[utest->dsn~usubscription-register-notifications-protobuf~1]
    [utest->dsn~usubscription-unregister-notifications-protobuf~1]
    """
    answer = desk.call(method, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert desk.registered_observers() == ({(TOPIC, APP)} if method == REGISTER else set())


def test_a_registration_survives_a_restart_and_ends_for_good(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    desk.register(TOPIC)
    desk.register(OTHER_TOPIC)
    desk.register(caller=APP)
    desk.unregister(OTHER_TOPIC)
    desk.unregister(OTHER_TOPIC)
    desk.restart()
    assert desk.registered_observers() == {(TOPIC, OTHER_APP), (TOPIC, APP)}
    desk.unregister()
    desk.unregister(caller=APP)
    desk.restart()
    assert desk.registered_observers() == set()


def test_registering_again_costs_no_transaction(desk: "ServiceRig") -> None:
    desk.register()
    before = desk.statistics("transactions")
    desk.register()
    assert (desk.statistics("transactions"), desk.statistics("registrations")) == (before, 1)


def test_one_registration_too_many_is_refused(make_desk: MakeRig) -> None:
    desk = make_desk(max_registrations=1).start()
    desk.register()
    status = desk.call_refused(REGISTER, pb.NotificationsRequest(topic=TOPIC.to_pb()), caller=APP)
    assert str(status) == "RESOURCE_EXHAUSTED: 1 registrations are kept, max_registrations is 1"


def test_a_registration_is_stored_before_it_is_acknowledged(desk: "ServiceRig") -> None:
    seen: list[int] = []
    desk.on_response = lambda _: seen.append(desk.statistics("transactions"))
    before = desk.statistics("transactions")
    desk.register()
    assert seen == [before + 1]


@pytest.mark.parametrize(
    "reset", ["", "0a060801120262792a00", "120608cc93c2d106"], ids=["bare", "reason", "before"]
)
def test_a_reset_ends_everything_in_memory_and_in_the_store(desk: "ServiceRig", reset: str) -> None:
    """[utest->req~usubscription-reset~1] [utest->dsn~usubscription-reset-protobuf~1]"""
    desk.subscribe()
    desk.subscribe(OTHER_TOPIC, caller=OTHER_APP)
    desk.register()
    answer = desk.call(RESET, bytes.fromhex(reset), caller=UUri("device3", 0, 3, 0))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert (desk.routed_subscribers(), desk.pairs(), desk.registered_observers()) == ([], [], set())
    desk.restart()
    assert (desk.routed_subscribers(), desk.pairs(), desk.registered_observers()) == ([], [], set())


@pytest.mark.parametrize(
    "caller",
    [APP, UUri("device3", 0x10000, 3, 0), UUri("device3", 1, 3, 0)],
    ids=["an application", "type 0 with an instance", "core.udiscovery"],
)
def test_only_a_usubscription_may_reset(desk: "ServiceRig", caller: UUri) -> None:
    """[utest->req~usubscription-reset-only-usubscription~1]"""
    desk.subscribe()
    desk.register()
    status = desk.call_refused(RESET, caller=caller)
    assert status.code is UCode.PERMISSION_DENIED
    assert status.message == f"caller {caller}: only a uSubscription, ue_id 0, may reset another"
    assert (desk.pairs(), desk.registered_observers()) == ([(TOPIC, APP)], {(TOPIC, OTHER_APP)})


def test_a_usubscription_of_which_nobody_knows_where_it_lives_may_not_reset(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-reset-only-usubscription~1] Behind `"*"` anybody could claim to be it."""
    desk.subscribe()
    for version, method in ((3, RESET), (4, 6)):
        status = decode_status(
            desk.call(method, caller=UUri("device9", 0, version, 0), version=version).payload
        )
        assert status.code is UCode.PERMISSION_DENIED
        assert "only a device that the configuration names may reset this one" in status.message
    assert desk.pairs() == [(TOPIC, APP)]


def test_a_reset_that_claims_to_come_from_ourselves_is_refused_by_the_core(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-reset-only-usubscription~1] What the service relies on when it believes a source."""
    router = Router(
        AuthorityTable(
            {OWN: "backbone", SERVED: "chassis", "device3": "uplink"}, desk.plugin.service.entities
        ),
        desk.plugin.directory,
        {"backbone": False, "chassis": True, "uplink": False},
    )
    for endpoint, authority in (
        ("backbone", OWN),
        ("chassis", SERVED),
        ("backbone", SERVED),
        ("chassis", OWN),
        ("backbone", "device3"),
    ):
        claimed = request(UUID(0x7000, 2 << 62), UUri(authority, 0, 3, 0), UUri(OWN, 0, 3, RESET), ttl=1000)
        assert router.decide(endpoint, claimed.attributes).verdict is Verdict.DENIED, (endpoint, authority)
    honest = request(UUID(0x7000, 2 << 62), UUri("device3", 0, 3, 0), UUri(OWN, 0, 3, RESET), ttl=1000)
    assert router.decide("uplink", honest.attributes).targets == (Target("self"),)


def test_what_follows_a_reset_in_the_same_transaction_stands(desk: "ServiceRig") -> None:
    desk.subscribe()
    with desk.service_blocked():
        desk.send_request(SUBSCRIBE, desk.subscription_request(), caller=OTHER_APP)
        desk.send_request(RESET, caller=UUri("device3", 0, 3, 0))
        desk.send_request(SUBSCRIBE, desk.subscription_request(OTHER_TOPIC))
    assert desk.pairs() == [(OTHER_TOPIC, APP)]
    desk.restart()
    assert desk.pairs() == [(OTHER_TOPIC, APP)]


# --- FetchSubscribers, FetchSubscriptions -----------------------------------------------------------------------------


def app(number: int) -> UUri:
    return UUri(OWN, number, 1, 0)


def test_the_subscribers_of_a_topic_are_listed(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscribers~1] [utest->dsn~usubscription-fetch-subscribers-protobuf~1]"""
    desk.subscribe(caller=APP)
    desk.subscribe(OTHER_TOPIC, caller=OTHER_APP)
    answer = desk.call(FETCH_SUBSCRIBERS, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert answer.payload.hex() == "0a110a0f0a076465766963653110ef810c1804"
    assert subscribers(desk, OTHER_TOPIC) == [OTHER_APP]
    assert subscribers(desk, UUri("device3", 1, 1, 0x8000)) == []


def test_the_subscriptions_of_a_topic_are_listed(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscriptions-by-topic~1]
    [utest->dsn~usubscription-fetch-subscriptions-protobuf~1]
    """
    desk.subscribe(caller=APP, sample_period_ms=40, expire_ms=desk.now_ms + 1500)
    desk.subscribe(OTHER_TOPIC, caller=APP)
    [found] = desk.fetch(TOPIC).subscriptions
    assert UUri.from_pb(found.topic) == TOPIC
    assert UUri.from_pb(found.subscriber.uri) == APP
    assert found.status.state == SUBSCRIBED
    assert found.attributes.sample_period_ms == 40
    assert found.attributes.expire.ToMilliseconds() == desk.now_ms + 1500


def test_the_subscriptions_of_a_subscriber_are_listed(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscriptions-by-subscriber~1]"""
    for topic, caller in ((TOPIC, APP), (OTHER_TOPIC, APP), (TOPIC, OTHER_APP)):
        desk.subscribe(topic, caller=caller)
    for subscriber in (APP, UUri("", 0x300EF, 4, 0)):
        found = desk.fetch(subscriber=subscriber).subscriptions
        assert [UUri.from_pb(each.topic) for each in found] == [OTHER_TOPIC, TOPIC]
        assert {UUri.from_pb(each.subscriber.uri) for each in found} == {APP}
    assert list(desk.fetch(subscriber=app(99)).subscriptions) == []


def test_an_empty_fetch_lists_everything(desk: "ServiceRig") -> None:
    everything = [(OTHER_TOPIC, APP), (TOPIC, APP), (TOPIC, OTHER_APP)]
    for topic, caller in reversed(everything):
        desk.subscribe(topic, caller=caller)
    assert desk.pairs() == everything


def test_every_subscription_has_attributes_even_if_nothing_was_asked(desk: "ServiceRig") -> None:
    desk.subscribe()
    [found] = desk.fetch().subscriptions
    assert found.HasField("attributes")
    assert not found.attributes.HasField("sample_period_ms")


def test_lists_come_in_the_same_order_each_time_and_after_a_restart(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscribers-stable-sorting~1]
    [utest->req~usubscription-fetch-subscriptions-stable-sorting~1]
    """
    for number in (3, 0x10, 1, 2):
        desk.subscribe(caller=app(number))
        desk.subscribe(OTHER_TOPIC, caller=app(number))
    first = (subscribers(desk), desk.fetch(), desk.fetch(subscriber=app(1)))
    assert (subscribers(desk), desk.fetch(), desk.fetch(subscriber=app(1))) == first
    desk.restart()
    assert (subscribers(desk), desk.fetch(), desk.fetch(subscriber=app(1))) == first


@pytest.mark.parametrize(
    ("offset", "listed"), [(None, [1, 2, 3]), (0, [1, 2, 3]), (1, [2, 3]), (3, []), (2**32 - 1, [])]
)
def test_an_offset_leaves_out_so_many_entries(
    desk: "ServiceRig", offset: int | None, listed: list[int]
) -> None:
    """[utest->req~usubscription-fetch-subscribers-offset~1]
    [utest->req~usubscription-fetch-subscriptions-offset~1]
    """
    for number in (1, 2, 3):
        desk.subscribe(caller=app(number))
    assert [each.ue_id for each in subscribers(desk, offset=offset)] == listed
    for found in (desk.fetch(offset=offset), desk.fetch(TOPIC, offset=offset)):
        assert [each.subscriber.uri.ue_id for each in found.subscriptions] == listed
        assert not found.HasField("has_more_records")


@pytest.mark.parametrize(
    ("offset", "listed", "more"), [(0, [1, 2], True), (1, [2, 3], False), (2, [3], False)]
)
def test_a_page_that_is_not_the_last_says_so(
    make_desk: MakeRig, offset: int, listed: list[int], more: bool
) -> None:
    """[utest->req~usubscription-fetch-subscribers-has-more-records~1]
    [utest->req~usubscription-fetch-subscriptions-has-more-records~1]
    """
    desk = make_desk(page_size=2).start()
    for number in (1, 2, 3):
        desk.subscribe(caller=app(number))
    found = desk.fetch(offset=offset)
    assert [each.subscriber.uri.ue_id for each in found.subscriptions] == listed
    wanted = pb.FetchSubscribersRequest(topic=TOPIC.to_pb(), offset=offset)
    answer = desk.call_for(pb.FetchSubscribersResponse, FETCH_SUBSCRIBERS, wanted)
    assert [each.uri.ue_id for each in answer.subscribers] == listed
    assert (found.has_more_records, answer.has_more_records) == (more, more)
    assert (found.HasField("has_more_records"), answer.HasField("has_more_records")) == (more, more)


# --- the end of a subscription ----------------------------------------------------------------------------------------


def test_a_subscription_ends_when_its_expire_has_passed(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-expiration~1]"""
    desk.subscribe(expire_ms=desk.now_ms + 500)
    desk.subscribe(caller=OTHER_APP)
    version = desk.plugin.directory.version
    desk.advance(ms=500)
    assert desk.pairs() == [(TOPIC, APP), (TOPIC, OTHER_APP)]
    desk.advance(ms=1)
    desk.wait_until(lambda: desk.routed_subscribers() == [(OTHER_APP, 0)], "the timer to end a subscription")
    assert desk.plugin.directory.version > version
    assert desk.pairs() == [(TOPIC, OTHER_APP)]


def test_what_has_ended_leaves_the_store(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)
    before = desk.statistics("transactions")
    desk.advance(ms=501)
    desk.wait_until(
        lambda: desk.statistics("transactions") == before + 1, "the ended subscription to be deleted"
    )
    desk.stop()
    assert [each.topic for each in stored(desk)] == []


def stored(desk: "ServiceRig") -> list[pb.Subscription]:
    """What a streamer whose clock has not moved finds in the store."""
    again = type(desk)(desk.state_dir).start()
    try:
        return list(again.fetch().subscriptions)
    finally:
        again.stop()


def test_a_subscription_without_expire_stands_for_ever(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-no-expiration~1]"""
    desk.subscribe()
    desk.advance(s=100 * 365 * 86_400)
    desk.restart()
    assert desk.pairs() == [(TOPIC, APP)]


def test_a_renewed_subscription_outlives_its_first_expire(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)
    desk.subscribe(expire_ms=desk.now_ms + 5000)
    desk.advance(ms=600)
    assert desk.pairs() == [(TOPIC, APP)]
    desk.advance(ms=4500)
    assert desk.pairs() == []


def test_a_subscription_that_ended_and_was_made_again_stays(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)
    desk.advance(s=1, wall_only=True)  # no timer: the end and the new beginning share a transaction
    desk.subscribe()
    desk.subscribe(OTHER_TOPIC)  # and what was deleted once is not deleted again with the next
    desk.restart()
    assert desk.pairs() == [(OTHER_TOPIC, APP), (TOPIC, APP)]


def test_a_subscription_that_ended_while_nobody_was_here_is_not_routed_by(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)
    desk.subscribe(OTHER_TOPIC)
    desk.stop()
    desk.advance(s=1)
    desk.restart()
    assert (desk.routed_subscribers(), desk.routed_subscribers(OTHER_TOPIC)) == ([], [(APP, 0)])


def test_a_jump_of_the_wall_clock_is_noticed_within_a_second(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 86_400_000)
    desk.advance(s=3 * 86_400, wall_only=True)
    assert desk.routed_subscribers() == [(APP, 0)]
    desk.advance(s=1)
    desk.wait_until(lambda: desk.routed_subscribers() == [], "the clock's jump to be noticed")


def test_a_wall_clock_that_is_set_back_ends_nothing_early(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 1000)
    desk.advance(s=-3600, wall_only=True)
    for _ in range(5):
        desk.advance(s=1)
        assert desk.pairs() == [(TOPIC, APP)]
    desk.advance(s=3600, wall_only=True)
    assert desk.pairs() == []


def test_timers_do_not_pile_up(desk: "ServiceRig") -> None:
    for number in range(50):
        desk.subscribe(caller=app(number), expire_ms=desk.now_ms + 10_000 + number)
    assert len(desk._timers) == 1


# --- restart ----------------------------------------------------------------------------------------------------------


def test_subscriptions_survive_a_restart_as_they_were(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]"""
    desk.subscribe(caller=APP, sample_period_ms=40, expire_ms=desk.now_ms + 10_000)
    desk.subscribe(caller=OTHER_APP)
    desk.subscribe(OTHER_TOPIC)
    desk.unsubscribe(OTHER_TOPIC)
    before = desk.fetch()
    desk.restart()
    assert desk.routed_subscribers() == [(APP, 40 * MS), (OTHER_APP, 0)]
    assert desk.fetch() == before


def test_a_damaged_record_stops_the_start_and_leaves_nothing_open(make_desk: MakeRig) -> None:
    desk = make_desk(damaged="refuse").start()
    desk.subscribe()
    desk.stop()
    data = desk.state_dir / "usubscription" / "data.mdb"
    written = data.read_bytes()
    data.write_bytes(written.replace(b"\0up://device1/300EF/4/0", b"\0up://device1/300EE/4/0"))
    again = make_desk(desk.state_dir, damaged="refuse")
    with pytest.raises(StoreDamaged, match="record b's/up://device2/10AB/3/80CD.x00up://device1/300EE/4/0'"):
        again.start()
    data.write_bytes(written)
    assert again.start().pairs() == [(TOPIC, APP)]


# --- what is not for us -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [4, 5, 10, 0x7FFF])
def test_a_method_that_is_not_there_is_unimplemented(desk: "ServiceRig", method: int) -> None:
    status = desk.call_refused(method)
    assert status.code is UCode.UNIMPLEMENTED
    assert (
        status.message
        == f"method {method} of core.usubscription version 3: this streamer has [1, 2, 3, 6, 7, 8, 9]"
    )


def test_every_method_of_the_tables_is_either_a_change_or_a_question() -> None:
    assert sorted([*v3.MUTATIONS, *v3.QUERIES]) == [(3, n) for n in (1, 2, 3, 6, 7, 8, 9)]


@pytest.mark.parametrize("version", [0, 2, 5, 0xFE])
def test_a_version_that_is_not_there_is_unimplemented(desk: "ServiceRig", version: int) -> None:
    status = desk.call_refused(SUBSCRIBE, desk.subscription_request(), version=version)
    assert status.code is UCode.UNIMPLEMENTED
    assert status.message == f"core.usubscription version {version}: this streamer speaks version 3 and 4"


def test_an_answer_that_nobody_waits_for_is_counted_and_ignored(desk: "ServiceRig") -> None:
    asked = request(UUID(0x7000, 2 << 62), UUri(OWN, 0, 3, 0), UUri("device3", 0, 3, 1), ttl=1000)
    desk.client.send(response(UUID(0x7001, 2 << 62), asked))
    desk.client.send(publish(UUID(0x7000, 2 << 62), TOPIC))
    assert desk.statistics("ignored") == 1  # a publication does not even come here


def test_requests_to_other_entities_are_not_taken(desk: "ServiceRig") -> None:
    for sink in (UUri("device3", 0, 3, 3), UUri(OWN, 0x10000, 3, 3), UUri(OWN, 1, 3, 3)):
        desk.send_empty_request(sink)
    desk.fetch()
    assert len(desk.response_order) == 1


@pytest.mark.parametrize("years", [26, -26])
def test_no_leap_of_the_clock_ends_or_extends_what_waits_in_the_queue(desk: "ServiceRig", years: int) -> None:
    """An ECU boots in 2000, and its clock leaps to today."""
    with desk.service_blocked():
        late = desk.send_request(SUBSCRIBE, desk.subscription_request(), ttl=100)
        in_time = desk.send_request(SUBSCRIBE, desk.subscription_request(OTHER_TOPIC), ttl=5000)
        desk.advance(s=years * 365 * 86_400, wall_only=True)
        desk.advance(ms=101)
    assert desk.wait_response(late).attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert desk.wait_response(in_time).attributes.commstatus is None
    assert desk.pairs() == [(OTHER_TOPIC, APP)]


def test_a_request_of_before_a_leap_that_comes_after_it_is_carried_out(desk: "ServiceRig") -> None:
    payload = desk.subscription_request().SerializeToString()
    made = UuidSource(lambda: desk.now_ms).next()
    asked = request(made, APP, UUri(OWN, 0, 3, SUBSCRIBE), payload, UPayloadFormat.PROTOBUF, ttl=5000)
    desk.advance(s=26 * 365 * 86_400, wall_only=True)
    desk.client.send(asked)
    assert desk.wait_response(made).attributes.commstatus is None


def test_a_request_whose_ttl_runs_out_in_the_queue_is_not_carried_out(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        late = desk.send_request(SUBSCRIBE, desk.subscription_request(), ttl=100)
        in_time = desk.send_request(SUBSCRIBE, desk.subscription_request(OTHER_TOPIC), ttl=101)
        desk.advance(ms=101)
    status = decode_status(desk.wait_response(late).payload)
    assert str(status) == "DEADLINE_EXCEEDED: ttl of 100 ms ran out in the queue"
    assert desk.wait_response(in_time).attributes.commstatus is None
    assert desk.pairs() == [(OTHER_TOPIC, APP)]


def test_a_payload_beyond_all_reason_does_not_even_queue(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        status = decode_status(
            desk.wait_response(desk.send_request(FETCH_SUBSCRIPTIONS, b"x" * (MAX_PAYLOAD + 1))).payload
        )
        assert desk.statistics("queued") == 0
    assert str(status) == "INVALID_ARGUMENT: payload of 16385 bytes: expected at most 16384"
    wanted = desk.subscription_request(UUri("device2", 0xFFFEFFFE, 0xFE, 0xFFFE))
    wanted.attributes.details.add().value = b"d" * (MAX_DETAILS - 10)
    wanted.subscriber.uri.CopyFrom(APP.to_pb())
    assert desk.call(SUBSCRIBE, wanted).attributes.commstatus is None
    assert wanted.ByteSize() < MAX_PAYLOAD / 2


# --- commits and their order ------------------------------------------------------------------------------------------


def test_requests_that_wait_for_the_disk_share_one_transaction(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        before = desk.statistics("transactions")
        waiting = [
            desk.send_request(SUBSCRIBE, desk.subscription_request(), caller=app(n)) for n in range(64)
        ]
    for reqid in waiting:
        assert desk.wait_response(reqid).attributes.commstatus is None
    assert desk.statistics("transactions") == before + 1
    assert len(desk.routed_subscribers()) == 64


def test_requests_that_come_one_after_the_other_have_a_transaction_each(desk: "ServiceRig") -> None:
    before = desk.statistics("transactions")
    for number in range(5):
        desk.subscribe(caller=app(number))
    assert desk.statistics("transactions") == before + 5


def test_answers_come_in_the_order_of_the_requests(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        waiting = [
            desk.send_request(method, desk.subscription_request(), caller=app(number))
            for number, method in enumerate([1, 2, 10, 8, 1, 3, 2, 1] * 4)
        ]
    desk.wait_response(waiting[-1])
    assert desk.response_order[1:] == waiting


def test_a_question_sees_what_was_asked_for_with_it(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        desk.send_request(SUBSCRIBE, desk.subscription_request())
        question = desk.send_request(FETCH_SUBSCRIPTIONS)
    found = pb.FetchSubscriptionsResponse.FromString(desk.wait_response(question).payload)
    assert len(found.subscriptions) == 1


def test_a_change_is_stored_and_routed_by_before_it_is_acknowledged(make_desk: MakeRig) -> None:
    desk = make_desk().start()
    seen: list[tuple[int, int]] = []
    desk.on_response = lambda _: seen.append(
        (len(desk.routed_subscribers()), desk.statistics("transactions"))
    )
    before = desk.statistics("transactions")
    desk.subscribe()
    assert seen == [(1, before + 1)]


def test_what_was_accepted_before_the_stop_is_finished(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        waiting = [
            desk.send_request(SUBSCRIBE, desk.subscription_request(), caller=app(n)) for n in range(10)
        ]
        stopping = threading.Thread(target=desk.stop)
        stopping.start()
    stopping.join(20)
    assert all(desk.wait_response(reqid).attributes.commstatus is None for reqid in waiting)
    desk.restart()
    assert len(desk.routed_subscribers()) == 10


def test_stopping_ends_the_thread_and_the_listening(desk: "ServiceRig") -> None:
    desk.stop()
    assert "usubscription" not in {thread.name for thread in threading.enumerate()}
    desk.send_request(FETCH_SUBSCRIPTIONS)
    assert desk.response_order == []


def test_a_failure_to_listen_leaves_nothing_behind(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.stop()

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no more listeners")

    with monkeypatch.context() as patched:
        patched.setattr(desk.bus, "register_listener", full)
        with pytest.raises(UStatusError, match="no more listeners"):
            desk.restart()
    assert "usubscription" not in {thread.name for thread in threading.enumerate()}
    desk.restart()
    assert desk.pairs() == []


def test_answers_that_the_bus_does_not_take_are_counted_said_once_and_end_nothing(
    desk: "ServiceRig", caplog: pytest.LogCaptureFixture
) -> None:
    with desk.service_blocked():
        for number in range(3):
            desk.send_request(SUBSCRIBE, desk.subscription_request(), caller=app(number))
        desk.bus.close()
    desk.wait_until(lambda: desk.statistics("updates") == 3, "the answers and updates to be refused")
    assert len(desk.routed_subscribers()) == 3
    assert (desk.statistics("unsent"), desk.statistics("updates_unsent")) == (3, 9)
    assert [record.message for record in caplog.records] == [
        "usubscription.response_not_sent",
        "usubscription.update_not_sent",
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_should_the_thread_fail_callers_are_told_and_routing_goes_on(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.subscribe()
    monkeypatch.setattr(
        desk.plugin.service._outbox, "send_response", None
    )  # a mistake of ours, whatever it would be
    desk.send_request(FETCH_SUBSCRIPTIONS)
    desk.wait_until(lambda: not desk.plugin.service._thread.is_alive(), "the thread to fail")  # type: ignore[union-attr]
    status = desk.call_refused(FETCH_SUBSCRIPTIONS)
    assert str(status) == "UNAVAILABLE: core.usubscription has stopped"
    assert desk.routed_subscribers() == [(APP, 0)]


def test_a_refusal_that_the_bus_does_not_take_is_counted_too(make_desk: MakeRig) -> None:
    desk = make_desk(max_queued_requests=1).start()
    refuse = desk.plugin.service._on_message
    with desk.service_blocked():
        desk.send_request(FETCH_SUBSCRIPTIONS)
        desk.bus.close()
        refuse(request(UUID(0x7000, 2 << 62), APP, UUri(OWN, 0, 3, 3), ttl=1000))
        assert (desk.statistics("unsent"), desk.statistics("refused_resource_exhausted")) == (1, 1)


# --- when there is no room --------------------------------------------------------------------------------------------


def test_a_full_queue_refuses_at_once_and_carries_on(make_desk: MakeRig) -> None:
    desk = make_desk(max_queued_requests=3).start()
    with desk.service_blocked():
        accepted = [
            desk.send_request(SUBSCRIBE, desk.subscription_request(), caller=app(n)) for n in range(3)
        ]
        status = decode_status(desk.wait_response(desk.send_request(UNSUBSCRIBE)).payload)
        assert status.code is UCode.RESOURCE_EXHAUSTED
        assert "3 requests wait for core.usubscription" in status.message
    assert all(desk.wait_response(reqid).attributes.commstatus is None for reqid in accepted)
    assert desk.statistics("refused_resource_exhausted") == 1
    assert len(desk.pairs()) == 3


def test_another_bound_holds_from_the_next_request_on(make_desk: MakeRig) -> None:
    desk = make_desk(max_subscriptions=1).start()
    desk.subscribe(caller=app(1))
    desk.call_refused(SUBSCRIBE, desk.subscription_request(), caller=app(2))
    desk.plugin.service.set_config(msgspec.structs.replace(desk.plugin.service.config, max_subscriptions=2))
    desk.subscribe(caller=app(2))
    status = desk.call_refused(SUBSCRIBE, desk.subscription_request(), caller=app(3))
    assert "max_subscriptions is 2" in str(status)


def test_one_subscription_too_many_is_refused_and_the_others_stay(make_desk: MakeRig) -> None:
    desk = make_desk(max_subscriptions=2).start()
    desk.subscribe(caller=app(1))
    desk.subscribe(caller=app(2))
    status = desk.call_refused(SUBSCRIBE, desk.subscription_request(), caller=app(3))
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert "max_subscriptions is 2" in status.message
    desk.subscribe(caller=app(2), sample_period_ms=5)
    desk.unsubscribe(caller=app(1))
    desk.subscribe(caller=app(3))
    assert subscribers(desk) == [app(2), app(3)]


def bulky(desk: "ServiceRig") -> pb.SubscriptionRequest:
    wanted = desk.subscription_request()
    wanted.attributes.details.add().value = b"d" * 4000
    return wanted


def test_a_full_map_refuses_new_subscriptions_and_keeps_the_old_ones(make_desk: MakeRig) -> None:
    desk = make_desk(map_size_mb=1).start()
    with desk.service_blocked():
        waiting = [desk.send_request(SUBSCRIBE, bulky(desk), caller=app(n)) for n in range(150)]
    count = sum(desk.wait_response(reqid).attributes.commstatus is None for reqid in waiting)
    while (answer := desk.call(SUBSCRIBE, bulky(desk), caller=app(count))).attributes.commstatus is None:
        count += 1
    assert answer.attributes.commstatus is UCode.RESOURCE_EXHAUSTED
    assert "MDB_MAP_FULL" in decode_status(answer.payload).message
    assert len(desk.routed_subscribers()) == count
    desk.restart()
    assert len(desk.routed_subscribers()) == count
    for number in range(20):
        desk.unsubscribe(caller=app(number))
    assert desk.call(SUBSCRIBE, bulky(desk), caller=app(0)).attributes.commstatus is None


def test_a_request_that_needs_no_room_is_not_refused_for_its_neighbours(make_desk: MakeRig) -> None:
    desk = make_desk(map_size_mb=1).start()
    desk.subscribe(caller=APP)
    with desk.service_blocked():
        leaving = desk.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=TOPIC.to_pb()), caller=APP)
        greedy = [desk.send_request(SUBSCRIBE, bulky(desk), caller=app(n)) for n in range(300)]
        small = desk.send_request(FETCH_SUBSCRIBERS, pb.FetchSubscribersRequest(topic=TOPIC.to_pb()))
    granted = [reqid for reqid in greedy if desk.wait_response(reqid).attributes.commstatus is None]
    assert 100 < len(granted) < 300
    assert desk.wait_response(leaving).attributes.commstatus is None
    assert len(pb.FetchSubscribersResponse.FromString(desk.wait_response(small).payload).subscribers) == len(
        granted
    )
    assert APP not in dict(desk.routed_subscribers())
    desk.restart()
    assert len(desk.routed_subscribers()) == len(granted)


def test_a_subscription_ends_in_memory_though_the_disk_refuses_and_in_the_store_when_it_can(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no room")

    before = desk.statistics("transactions")
    with monkeypatch.context() as patched:
        patched.setattr(desk.plugin.service._store, "commit", full)
        desk.advance(ms=501)
        assert desk.pairs() == []  # and the question is answered
        assert desk.statistics("transactions") == before
    desk.advance(s=1)
    desk.wait_until(lambda: desk.statistics("transactions") == before + 1, "the deletion to be tried again")
