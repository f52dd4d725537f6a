# SPDX-License-Identifier: Apache-2.0
"""The rules of the uSubscription specification, tested over a bus with the real service on a real store."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import pytest
from ustreamer_usubscription.operator_changes import RemovalPattern
from ustreamer_usubscription.requests import v3
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.service import MAX_PAYLOAD

from ustreamer.core.delivery.expiry import STEP_GRACE_NS
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
from ustreamer.uprotocol.uuri import ANY, UUri
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
DEADLINE_S = 30.0


def info(uuri: UUri) -> pb.SubscriberInfo:
    return pb.SubscriberInfo(uri=uuri.to_pb())


def subscribers(rig: "ServiceRig", topic: UUri = TOPIC, offset: int | None = None) -> list[UUri]:
    wanted = pb.FetchSubscribersRequest(topic=topic.to_pb(), offset=offset)
    answer = rig.call_for(pb.FetchSubscribersResponse, FETCH_SUBSCRIBERS, wanted)
    return [UUri.from_pb(each.uri) for each in answer.subscribers]


# --- Subscribe --------------------------------------------------------------------------------------------------------


def test_a_subscriber_is_answered_subscribed_and_routed_to_at_once(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe~1]"""
    version = rig.plugin.directory.version
    assert rig.subscribe(sample_period_ms=40) == SUBSCRIBED
    assert rig.routed_subscribers() == [(APP, 40 * MS)]
    assert rig.plugin.directory.version > version


def test_the_core_routes_by_it_without_restart_or_polling(rig: "ServiceRig") -> None:
    router = Router(
        AuthorityTable({OWN: "backbone", SERVED: "chassis"}),
        rig.plugin.directory,
        {"backbone": False, "chassis": True},
    )
    assert router.subscribed_targets("chassis", TOPIC) == ()
    rig.subscribe(sample_period_ms=40)
    rig.subscribe(caller=OTHER_APP, sample_period_ms=20)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 20 * MS),)
    rig.unsubscribe(caller=OTHER_APP)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 40 * MS),)
    rig.unsubscribe()
    assert router.subscribed_targets("chassis", TOPIC) == ()


VECTORS = [
    ("0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807", 1000 * MS, 1781565900_000),
    ("0a120a076465766963653210ab21180320cd8102", 0, None),
]


@pytest.mark.parametrize(("payload", "period_ns", "expire_ms"), VECTORS)
def test_subscribe_has_the_bytes_of_the_standard(
    rig: "ServiceRig", payload: str, period_ns: int, expire_ms: int | None
) -> None:
    """[utest->dsn~usubscription-subscribe-protobuf~1]"""
    answer = rig.call(SUBSCRIBE, bytes.fromhex(payload))
    assert answer.payload.hex() == "0a0208021a120a076465766963653210ab21180320cd8102"
    [entry] = rig.plugin.directory.subscribers(TOPIC)
    assert (entry.subscriber, entry.period_ns, entry.expire_ms) == (APP, period_ns, expire_ms)


def test_a_request_wrapped_in_any_gets_an_answer_wrapped_in_any(rig: "ServiceRig") -> None:
    answer = rig.call(
        SUBSCRIBE, rig.subscription_request(), payload_format=UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY
    )
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY
    wrapped = Any.FromString(answer.payload)
    assert wrapped.type_url.endswith("/uprotocol.core.usubscription.v3.SubscriptionResponse")
    assert pb.SubscriptionResponse.FromString(wrapped.value).status.state == SUBSCRIBED


def test_a_request_of_unknown_format_gets_an_answer_in_protobuf(rig: "ServiceRig") -> None:
    answer = rig.call(SUBSCRIBE, rig.subscription_request(), payload_format=UPayloadFormat.UNSPECIFIED)
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert pb.SubscriptionResponse.FromString(answer.payload).status.state == SUBSCRIBED


def test_a_response_has_the_attributes_that_its_request_requires(rig: "ServiceRig") -> None:
    reqid = rig.send_request(SUBSCRIBE, rig.subscription_request(), authority=SERVED, ttl=1234)
    assert rig.wait_response(reqid).attributes == UAttributes(
        type=UMessageType.RESPONSE,
        source=UUri(SERVED, 0, 3, 1),
        sink=APP,
        priority=UPriority.CS4,
        ttl=1234,
        reqid=reqid,
        payload_format=UPayloadFormat.PROTOBUF,
    )


def test_subscribing_again_returns_the_current_status_and_keeps_one_subscription(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-multiple~1]"""
    assert [rig.subscribe(), rig.subscribe()] == [SUBSCRIBED, SUBSCRIBED]
    assert rig.pairs() == [(TOPIC, APP)]


def test_subscribing_again_unchanged_costs_no_transaction(rig: "ServiceRig") -> None:
    rig.subscribe(sample_period_ms=5)
    before = rig.statistics("transactions")
    rig.subscribe(sample_period_ms=5)
    assert rig.statistics("transactions") == before


def test_subscribing_again_changes_the_rate_at_once(rig: "ServiceRig") -> None:
    rig.subscribe(sample_period_ms=40)
    version = rig.plugin.directory.version
    rig.subscribe(sample_period_ms=20)
    assert rig.routed_subscribers() == [(APP, 20 * MS)]
    assert rig.plugin.directory.version > version
    rig.subscribe()
    assert rig.routed_subscribers() == [(APP, 0)]


@pytest.mark.parametrize("seconds", [5, 20, None], ids=["earlier", "later", "never"])
def test_subscribing_again_updates_an_expire_that_differs(rig: "ServiceRig", seconds: int | None) -> None:
    """[utest->req~usubscription-subscribe-expiration-extension~1]"""
    wanted = None if seconds is None else rig.now_ms + seconds * 1000
    rig.subscribe(expire_ms=rig.now_ms + 10_000)
    rig.subscribe(expire_ms=wanted)
    [entry] = rig.plugin.directory.subscribers(TOPIC)
    assert entry.expire_ms == wanted


@pytest.mark.parametrize("before", [False, True], ids=["new", "subscribed"])
def test_an_expire_in_the_past_is_answered_unsubscribed_and_ends_the_existing_subscription(
    rig: "ServiceRig", before: bool
) -> None:
    if before:
        rig.subscribe()
    assert rig.subscribe(expire_ms=rig.now_ms - 1) == UNSUBSCRIBED
    assert rig.routed_subscribers() == []
    assert rig.pairs() == []
    assert rig.subscribe(expire_ms=rig.now_ms) == SUBSCRIBED  # not past yet


def test_a_topic_without_authority_belongs_to_the_authority_that_was_called(rig: "ServiceRig") -> None:
    wanted = rig.subscription_request(UUri("", 0x10AB, 3, 0x80CD))
    answer = rig.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted)
    assert UUri.from_pb(answer.topic) == UUri(OWN, 0x10AB, 3, 0x80CD)
    answer = rig.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted, authority=SERVED)
    assert UUri.from_pb(answer.topic) == UUri(SERVED, 0x10AB, 3, 0x80CD)


def test_the_subscriber_is_the_source_of_the_request(rig: "ServiceRig") -> None:
    rig.subscribe(caller=OTHER_APP)
    rig.subscribe(caller=UUri("far.away", 7, 1, 0))
    assert subscribers(rig) == [OTHER_APP, UUri("far.away", 7, 1, 0)]


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
    rig: "ServiceRig", method: int, request_hex: str
) -> None:
    payload = bytes.fromhex(request_hex + "120d0a0b0a07646576696365311803")
    assert rig.call(method, payload, caller=UUri(OWN, 0, 3, 0)).attributes.commstatus is None
    status = rig.call_refused(method, payload, caller=APP)
    assert status.code is UCode.PERMISSION_DENIED
    assert (
        status.message
        == "subscriber up://device1/0/3/0: the caller is up://device1/300EF/4/0, and may act only for itself"
    )


def test_the_legacy_subscriber_field_may_leave_the_authority_out_or_be_empty(rig: "ServiceRig") -> None:
    for subscriber in (info(UUri("", 0x300EF, 4, 0)), pb.SubscriberInfo()):
        wanted = pb.SubscriptionRequest(topic=TOPIC.to_pb(), subscriber=subscriber)
        assert rig.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted).status.state == SUBSCRIBED


def test_contradictory_attributes_are_rejected(rig: "ServiceRig") -> None:
    wanted = rig.subscription_request()
    wanted.attributes.MergeFromString(bytes.fromhex("19000000000000f0bf"))  # max_frequency -1 Hz
    assert "max_frequency -1.0 Hz" in rig.call_refused(SUBSCRIBE, wanted).message
    assert rig.pairs() == []


def test_the_lowest_frequency_is_reported_as_the_longest_period_in_both_versions(rig: "ServiceRig") -> None:
    wanted = rig.subscription_request()
    wanted.attributes.MergeFromString(bytes.fromhex("1995d626e80b2e113e"))  # max_frequency 1e-9 Hz
    assert rig.call_for(pb.SubscriptionResponse, SUBSCRIBE, wanted).status.state == SUBSCRIBED
    assert rig.routed_subscribers() == [(APP, 10**18)]
    [old] = rig.fetch().subscriptions
    assert old.attributes.sample_period_ms == 2**32 - 1
    [new] = rig.call_for(pb4.FetchSubscriptionsResponse, 3, version=4).subscriptions
    assert new.sample_period == 2**32 - 1


# --- invalid addresses of topics and subscribers ------------------------------------------------------------

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
def test_every_operation_rejects_an_invalid_topic(
    rig: "ServiceRig", method: int, request_of: Callable[..., Any], topic: UUri, why: str
) -> None:
    """[utest->dsn~usubscription-subscribe-invalid-topic~1]
    [utest->dsn~usubscription-unsubscribe-invalid-topic~1]
    [utest->dsn~usubscription-fetch-subscriptions-invalid-topic~1]
    [utest->dsn~usubscription-fetch-subscribers-invalid-topic~1]
    [utest->dsn~usubscription-register-notifications-invalid-topic~1]
    [utest->dsn~usubscription-unregister-notifications-invalid-topic~1]
    [utest->dsn~usubscription-uri-version-major~1]
    """
    status = rig.call_refused(method, request_of(topic.to_pb()))
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message
    assert rig.statistics("refused_invalid_argument") == 1


@pytest.mark.parametrize("method", [SUBSCRIBE, UNSUBSCRIBE, FETCH_SUBSCRIBERS, REGISTER, UNREGISTER])
def test_a_request_without_a_topic_is_refused(rig: "ServiceRig", method: int) -> None:
    assert str(rig.call_refused(method)) == "INVALID_ARGUMENT: topic: missing"


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
def test_fetching_by_an_invalid_subscriber_is_rejected(rig: "ServiceRig", subscriber: UUri, why: str) -> None:
    """[utest->dsn~usubscription-fetch-subscriptions-invalid-subscriber~1]"""
    status = rig.call_refused(FETCH_SUBSCRIPTIONS, pb.FetchSubscriptionsRequest(subscriber=info(subscriber)))
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message


def test_fetching_by_a_subscriber_without_uri_is_refused(rig: "ServiceRig") -> None:
    status = rig.call_refused(
        FETCH_SUBSCRIPTIONS, pb.FetchSubscriptionsRequest(subscriber=pb.SubscriberInfo())
    )
    assert str(status) == "INVALID_ARGUMENT: subscriber: its uri is missing"


# --- Unsubscribe ------------------------------------------------------------------------------------------------------


def test_after_unsubscribe_no_event_is_routed(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe~1]"""
    rig.subscribe()
    rig.subscribe(caller=OTHER_APP)
    version = rig.plugin.directory.version
    rig.unsubscribe()
    assert rig.routed_subscribers() == [(OTHER_APP, 0)]
    assert rig.plugin.directory.version > version


def test_unsubscribing_is_answered_with_an_empty_message(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-unsubscribe-protobuf~1]"""
    rig.subscribe()
    answer = rig.call(UNSUBSCRIBE, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert rig.routed_subscribers() == []


@pytest.mark.parametrize("topic", [TOPIC, UUri("device3", 1, 1, 0x8000)], ids=["local", "remote"])
def test_unsubscribe_without_a_subscription_succeeds_and_writes_nothing(
    rig: "ServiceRig", topic: UUri
) -> None:
    """[utest->req~usubscription-unsubscribe-multiple~1]"""
    before = rig.statistics("transactions")
    rig.unsubscribe(topic)
    rig.unsubscribe(topic)
    assert rig.statistics("transactions") == before


# --- RegisterForNotifications, UnregisterForNotifications, Reset ------------------------------------------------------


@pytest.mark.parametrize("method", [REGISTER, UNREGISTER])
def test_register_for_notifications_has_the_bytes_of_the_standard(rig: "ServiceRig", method: int) -> None:
    """[utest->dsn~usubscription-register-notifications-protobuf~1]
    [utest->dsn~usubscription-unregister-notifications-protobuf~1]
    """
    answer = rig.call(method, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert rig.registered_observers() == ({(TOPIC, APP)} if method == REGISTER else set())


def test_a_registration_survives_a_restart_and_ends_permanently(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    rig.register(TOPIC)
    rig.register(OTHER_TOPIC)
    rig.register(caller=APP)
    rig.unregister(OTHER_TOPIC)
    rig.unregister(OTHER_TOPIC)
    rig.restart()
    assert rig.registered_observers() == {(TOPIC, OTHER_APP), (TOPIC, APP)}
    rig.unregister()
    rig.unregister(caller=APP)
    rig.restart()
    assert rig.registered_observers() == set()


def test_registering_again_costs_no_transaction(rig: "ServiceRig") -> None:
    rig.register()
    before = rig.statistics("transactions")
    rig.register()
    assert (rig.statistics("transactions"), rig.statistics("registrations")) == (before, 1)


def test_one_registration_too_many_is_refused(make_rig: MakeRig) -> None:
    rig = make_rig(max_registrations=1).start()
    rig.register()
    status = rig.call_refused(REGISTER, pb.NotificationsRequest(topic=TOPIC.to_pb()), caller=APP)
    assert str(status) == "RESOURCE_EXHAUSTED: 1 registrations are kept, max_registrations is 1"


def test_a_registration_is_stored_before_it_is_acknowledged(rig: "ServiceRig") -> None:
    seen: list[int] = []
    rig.on_response = lambda _: seen.append(rig.statistics("transactions"))
    before = rig.statistics("transactions")
    rig.register()
    assert seen == [before + 1]


@pytest.mark.parametrize(
    "reset", ["", "0a060801120262792a00", "120608cc93c2d106"], ids=["bare", "reason", "before"]
)
def test_a_reset_ends_everything_in_memory_and_in_the_store(rig: "ServiceRig", reset: str) -> None:
    """[utest->req~usubscription-reset~1] [utest->dsn~usubscription-reset-protobuf~1]"""
    rig.subscribe()
    rig.subscribe(OTHER_TOPIC, caller=OTHER_APP)
    rig.register()
    answer = rig.call(RESET, bytes.fromhex(reset), caller=UUri("device3", 0, 3, 0))
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert (rig.routed_subscribers(), rig.pairs(), rig.registered_observers()) == ([], [], set())
    rig.restart()
    assert (rig.routed_subscribers(), rig.pairs(), rig.registered_observers()) == ([], [], set())


@pytest.mark.parametrize(
    "caller",
    [APP, UUri("device3", 0x10000, 3, 0), UUri("device3", 1, 3, 0)],
    ids=["an application", "type 0 with an instance", "core.udiscovery"],
)
def test_only_a_usubscription_may_reset(rig: "ServiceRig", caller: UUri) -> None:
    """[utest->req~usubscription-reset-only-usubscription~1]"""
    rig.subscribe()
    rig.register()
    status = rig.call_refused(RESET, caller=caller)
    assert status.code is UCode.PERMISSION_DENIED
    assert status.message == f"caller {caller}: only a uSubscription, ue_id 0, may reset another"
    assert (rig.pairs(), rig.registered_observers()) == ([(TOPIC, APP)], {(TOPIC, OTHER_APP)})


def test_a_usubscription_without_a_configured_authority_may_not_reset(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-reset-only-usubscription~1] Behind `"*"` any entity could use its address."""
    rig.subscribe()
    for version, method in ((3, RESET), (4, 6)):
        status = decode_status(
            rig.call(method, caller=UUri("device9", 0, version, 0), version=version).payload
        )
        assert status.code is UCode.PERMISSION_DENIED
        assert "only a device that the configuration names may reset this one" in status.message
    assert rig.pairs() == [(TOPIC, APP)]


def test_a_reset_with_our_own_address_as_source_is_rejected_by_the_core(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-reset-only-usubscription~1] The service relies on this check when it trusts a source."""
    router = Router(
        AuthorityTable(
            {OWN: "backbone", SERVED: "chassis", "device3": "uplink"}, rig.plugin.service.entities
        ),
        rig.plugin.directory,
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


def test_requests_after_a_reset_in_the_same_transaction_take_effect(rig: "ServiceRig") -> None:
    rig.subscribe()
    with rig.service_blocked():
        rig.send_request(SUBSCRIBE, rig.subscription_request(), caller=OTHER_APP)
        rig.send_request(RESET, caller=UUri("device3", 0, 3, 0))
        rig.send_request(SUBSCRIBE, rig.subscription_request(OTHER_TOPIC))
    assert rig.pairs() == [(OTHER_TOPIC, APP)]
    rig.restart()
    assert rig.pairs() == [(OTHER_TOPIC, APP)]


# --- FetchSubscribers, FetchSubscriptions -----------------------------------------------------------------------------


def app(number: int) -> UUri:
    return UUri(OWN, number, 1, 0)


def test_the_subscribers_of_a_topic_are_listed(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscribers~1] [utest->dsn~usubscription-fetch-subscribers-protobuf~1]"""
    rig.subscribe(caller=APP)
    rig.subscribe(OTHER_TOPIC, caller=OTHER_APP)
    answer = rig.call(FETCH_SUBSCRIBERS, bytes.fromhex("0a120a076465766963653210ab21180320cd8102"))
    assert answer.payload.hex() == "0a110a0f0a076465766963653110ef810c1804"
    assert subscribers(rig, OTHER_TOPIC) == [OTHER_APP]
    assert subscribers(rig, UUri("device3", 1, 1, 0x8000)) == []


def test_the_subscriptions_of_a_topic_are_listed(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscriptions-by-topic~1]
    [utest->dsn~usubscription-fetch-subscriptions-protobuf~1]
    """
    rig.subscribe(caller=APP, sample_period_ms=40, expire_ms=rig.now_ms + 1500)
    rig.subscribe(OTHER_TOPIC, caller=APP)
    [found] = rig.fetch(TOPIC).subscriptions
    assert UUri.from_pb(found.topic) == TOPIC
    assert UUri.from_pb(found.subscriber.uri) == APP
    assert found.status.state == SUBSCRIBED
    assert found.attributes.sample_period_ms == 40
    assert found.attributes.expire.ToMilliseconds() == rig.now_ms + 1500


def test_the_subscriptions_of_a_subscriber_are_listed(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscriptions-by-subscriber~1]"""
    for topic, caller in ((TOPIC, APP), (OTHER_TOPIC, APP), (TOPIC, OTHER_APP)):
        rig.subscribe(topic, caller=caller)
    for subscriber in (APP, UUri("", 0x300EF, 4, 0)):
        found = rig.fetch(subscriber=subscriber).subscriptions
        assert [UUri.from_pb(each.topic) for each in found] == [OTHER_TOPIC, TOPIC]
        assert {UUri.from_pb(each.subscriber.uri) for each in found} == {APP}
    assert list(rig.fetch(subscriber=app(99)).subscriptions) == []


def test_an_empty_fetch_lists_everything(rig: "ServiceRig") -> None:
    everything = [(OTHER_TOPIC, APP), (TOPIC, APP), (TOPIC, OTHER_APP)]
    for topic, caller in reversed(everything):
        rig.subscribe(topic, caller=caller)
    assert rig.pairs() == everything


def test_every_subscription_has_attributes_even_without_a_request_for_any(rig: "ServiceRig") -> None:
    rig.subscribe()
    [found] = rig.fetch().subscriptions
    assert found.HasField("attributes")
    assert not found.attributes.HasField("sample_period_ms")


def test_lists_have_the_same_order_each_time_and_after_a_restart(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-fetch-subscribers-stable-sorting~1]
    [utest->req~usubscription-fetch-subscriptions-stable-sorting~1]
    """
    for number in (3, 0x10, 1, 2):
        rig.subscribe(caller=app(number))
        rig.subscribe(OTHER_TOPIC, caller=app(number))
    first = (subscribers(rig), rig.fetch(), rig.fetch(subscriber=app(1)))
    assert (subscribers(rig), rig.fetch(), rig.fetch(subscriber=app(1))) == first
    rig.restart()
    assert (subscribers(rig), rig.fetch(), rig.fetch(subscriber=app(1))) == first


@pytest.mark.parametrize(
    ("offset", "listed"), [(None, [1, 2, 3]), (0, [1, 2, 3]), (1, [2, 3]), (3, []), (2**32 - 1, [])]
)
def test_an_offset_leaves_out_so_many_entries(
    rig: "ServiceRig", offset: int | None, listed: list[int]
) -> None:
    """[utest->req~usubscription-fetch-subscribers-offset~1]
    [utest->req~usubscription-fetch-subscriptions-offset~1]
    """
    for number in (1, 2, 3):
        rig.subscribe(caller=app(number))
    assert [each.ue_id for each in subscribers(rig, offset=offset)] == listed
    for found in (rig.fetch(offset=offset), rig.fetch(TOPIC, offset=offset)):
        assert [each.subscriber.uri.ue_id for each in found.subscriptions] == listed
        assert not found.HasField("has_more_records")


@pytest.mark.parametrize(
    ("offset", "listed", "more"), [(0, [1, 2], True), (1, [2, 3], False), (2, [3], False)]
)
def test_a_page_that_is_not_the_last_sets_has_more_records(
    make_rig: MakeRig, offset: int, listed: list[int], more: bool
) -> None:
    """[utest->req~usubscription-fetch-subscribers-has-more-records~1]
    [utest->req~usubscription-fetch-subscriptions-has-more-records~1]
    """
    rig = make_rig(page_size=2).start()
    for number in (1, 2, 3):
        rig.subscribe(caller=app(number))
    found = rig.fetch(offset=offset)
    assert [each.subscriber.uri.ue_id for each in found.subscriptions] == listed
    wanted = pb.FetchSubscribersRequest(topic=TOPIC.to_pb(), offset=offset)
    answer = rig.call_for(pb.FetchSubscribersResponse, FETCH_SUBSCRIBERS, wanted)
    assert [each.uri.ue_id for each in answer.subscribers] == listed
    assert (found.has_more_records, answer.has_more_records) == (more, more)
    assert (found.HasField("has_more_records"), answer.HasField("has_more_records")) == (more, more)


# --- the end of a subscription ----------------------------------------------------------------------------------------


def test_a_subscription_ends_when_its_expire_has_passed(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-expiration~1]"""
    rig.subscribe(expire_ms=rig.now_ms + 500)
    rig.subscribe(caller=OTHER_APP)
    version = rig.plugin.directory.version
    rig.advance(ms=500)
    assert rig.pairs() == [(TOPIC, APP), (TOPIC, OTHER_APP)]
    rig.advance(ms=1)
    rig.wait_until(lambda: rig.routed_subscribers() == [(OTHER_APP, 0)], "the timer to end a subscription")
    assert rig.plugin.directory.version > version
    assert rig.pairs() == [(TOPIC, OTHER_APP)]


def test_ended_subscriptions_are_removed_from_the_store(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)
    before = rig.statistics("transactions")
    rig.advance(ms=501)
    rig.wait_until(
        lambda: rig.statistics("transactions") == before + 1, "the ended subscription to be deleted"
    )
    rig.stop()
    assert [each.topic for each in stored(rig)] == []


def stored(rig: "ServiceRig") -> list[pb.Subscription]:
    """The stored state for a streamer whose clock has not advanced."""
    again = type(rig)(rig.state_dir).start()
    try:
        return list(again.fetch().subscriptions)
    finally:
        again.stop()


def test_a_subscription_without_expire_has_no_end(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-no-expiration~1]"""
    rig.subscribe()
    rig.advance(s=100 * 365 * 86_400)
    rig.restart()
    assert rig.pairs() == [(TOPIC, APP)]


def test_a_renewed_subscription_outlives_its_first_expire(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)
    rig.subscribe(expire_ms=rig.now_ms + 5000)
    rig.advance(ms=600)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(ms=4500)
    assert rig.pairs() == []


def test_a_subscription_that_ended_and_was_created_again_stays(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)
    rig.advance(s=1, wall_only=True)  # no timer: the end and the new beginning share a transaction
    rig.subscribe()
    rig.subscribe(OTHER_TOPIC)  # and records deleted once are not deleted again with the next
    rig.restart()
    assert rig.pairs() == [(OTHER_TOPIC, APP), (TOPIC, APP)]


def test_a_subscription_that_ended_during_a_stop_is_not_routed(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)
    rig.subscribe(OTHER_TOPIC)
    rig.stop()
    rig.advance(s=1)
    rig.restart()
    assert (rig.routed_subscribers(), rig.routed_subscribers(OTHER_TOPIC)) == ([], [(APP, 0)])


GRACE_S = STEP_GRACE_NS // 1_000_000_000


def test_a_subscription_that_a_stepped_clock_seems_to_expire_has_a_grace_period(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 3_000_000)
    rig.advance(s=3 * 86_400, wall_only=True)
    assert rig.pairs() == [(TOPIC, APP)]  # the step is detected here
    rig.advance(s=GRACE_S)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(s=1)
    rig.wait_until(lambda: rig.routed_subscribers() == [], "the end of the grace period")


@pytest.mark.parametrize("step_s", [3_600, 14 * 365 * 86_400], ids=["an hour", "to 2040"])
def test_a_clock_glitch_ends_no_subscription(rig: "ServiceRig", step_s: int) -> None:
    rig.subscribe(expire_ms=rig.now_ms + 120_000)
    rig.advance(s=step_s, wall_only=True)
    for _ in range(60):
        rig.advance(s=1)
        assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(s=-step_s, wall_only=True)
    rig.advance(s=60)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(ms=1)
    rig.wait_until(lambda: rig.routed_subscribers() == [], "the end of the subscription")


def test_a_subscription_is_renewed_during_a_clock_glitch(rig: "ServiceRig") -> None:
    """The subscriber's clock is right, so its renewal is accepted."""
    right_ms = rig.now_ms
    rig.subscribe(expire_ms=right_ms + 10_000)
    rig.advance(s=3_600, wall_only=True)
    rig.advance(s=5)
    assert rig.subscribe(expire_ms=right_ms + 20_000) == SUBSCRIBED
    rig.advance(s=10)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(s=-3_600, wall_only=True)
    rig.advance(ms=5_001)
    rig.wait_until(lambda: rig.routed_subscribers() == [], "the end of the renewed subscription")


def test_a_wall_clock_that_is_set_back_ends_nothing_early(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms + 1000)
    rig.advance(s=-3600, wall_only=True)
    for _ in range(5):
        rig.advance(s=1)
        assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(s=3600, wall_only=True)
    assert rig.pairs() == []


def test_timers_do_not_pile_up(rig: "ServiceRig") -> None:
    for number in range(50):
        rig.subscribe(caller=app(number), expire_ms=rig.now_ms + 10_000 + number)
    assert len(rig._timers) == 1


# --- restart ----------------------------------------------------------------------------------------------------------


def test_subscriptions_survive_a_restart_as_they_were(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]"""
    rig.subscribe(caller=APP, sample_period_ms=40, expire_ms=rig.now_ms + 10_000)
    rig.subscribe(caller=OTHER_APP)
    rig.subscribe(OTHER_TOPIC)
    rig.unsubscribe(OTHER_TOPIC)
    before = rig.fetch()
    rig.restart()
    assert rig.routed_subscribers() == [(APP, 40 * MS), (OTHER_APP, 0)]
    assert rig.fetch() == before


def test_a_damaged_record_stops_the_start_and_leaves_nothing_open(make_rig: MakeRig) -> None:
    rig = make_rig(damaged="refuse").start()
    rig.subscribe()
    rig.stop()
    data = rig.state_dir / "usubscription" / "data.mdb"
    written = data.read_bytes()
    data.write_bytes(written.replace(b"\0up://device1/300EF/4/0", b"\0up://device1/300EE/4/0"))
    again = make_rig(rig.state_dir, damaged="refuse")
    with pytest.raises(StoreDamaged, match="record b's/up://device2/10AB/3/80CD.x00up://device1/300EE/4/0'"):
        again.start()
    data.write_bytes(written)
    assert again.start().pairs() == [(TOPIC, APP)]


# --- messages for other receivers ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", [4, 5, 10, 0x7FFF])
def test_a_method_that_is_not_there_is_unimplemented(rig: "ServiceRig", method: int) -> None:
    status = rig.call_refused(method)
    assert status.code is UCode.UNIMPLEMENTED
    assert (
        status.message
        == f"method {method} of core.usubscription version 3: this streamer has [1, 2, 3, 6, 7, 8, 9]"
    )


def test_every_method_of_the_tables_is_either_a_change_or_a_question() -> None:
    assert sorted([*v3.MUTATIONS, *v3.QUERIES]) == [(3, n) for n in (1, 2, 3, 6, 7, 8, 9)]


@pytest.mark.parametrize("version", [0, 2, 5, 0xFE])
def test_a_version_that_is_not_there_is_unimplemented(rig: "ServiceRig", version: int) -> None:
    status = rig.call_refused(SUBSCRIBE, rig.subscription_request(), version=version)
    assert status.code is UCode.UNIMPLEMENTED
    assert status.message == f"core.usubscription version {version}: this streamer speaks version 3 and 4"


def test_a_response_without_a_pending_call_is_counted_and_ignored(rig: "ServiceRig") -> None:
    sent_request = request(UUID(0x7000, 2 << 62), UUri(OWN, 0, 3, 0), UUri("device3", 0, 3, 1), ttl=1000)
    rig.client.send(response(UUID(0x7001, 2 << 62), sent_request))
    rig.client.send(publish(UUID(0x7000, 2 << 62), TOPIC))
    assert rig.statistics("ignored") == 1  # a publication does not reach the service


def test_requests_to_other_entities_are_not_taken(rig: "ServiceRig") -> None:
    for sink in (UUri("device3", 0, 3, 3), UUri(OWN, 0x10000, 3, 3), UUri(OWN, 1, 3, 3)):
        rig.send_empty_request(sink)
    rig.fetch()
    assert len(rig.response_order) == 1


@pytest.mark.parametrize("years", [26, -26])
def test_a_clock_step_neither_ends_nor_extends_queued_requests(rig: "ServiceRig", years: int) -> None:
    """An ECU boots in 2000, and then its clock is set to today."""
    with rig.service_blocked():
        late = rig.send_request(SUBSCRIBE, rig.subscription_request(), ttl=100)
        in_time = rig.send_request(SUBSCRIBE, rig.subscription_request(OTHER_TOPIC), ttl=5000)
        rig.advance(s=years * 365 * 86_400, wall_only=True)
        rig.advance(ms=101)
    assert rig.wait_response(late).attributes.commstatus is UCode.DEADLINE_EXCEEDED
    assert rig.wait_response(in_time).attributes.commstatus is None
    assert rig.pairs() == [(OTHER_TOPIC, APP)]


def test_a_request_from_before_a_clock_step_that_arrives_after_it_is_executed(rig: "ServiceRig") -> None:
    payload = rig.subscription_request().SerializeToString()
    made = UuidSource(lambda: rig.now_ms).next()
    sent_request = request(made, APP, UUri(OWN, 0, 3, SUBSCRIBE), payload, UPayloadFormat.PROTOBUF, ttl=5000)
    rig.advance(s=26 * 365 * 86_400, wall_only=True)
    rig.client.send(sent_request)
    assert rig.wait_response(made).attributes.commstatus is None


def test_a_request_whose_ttl_ends_in_the_queue_is_not_executed(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        late = rig.send_request(SUBSCRIBE, rig.subscription_request(), ttl=100)
        in_time = rig.send_request(SUBSCRIBE, rig.subscription_request(OTHER_TOPIC), ttl=101)
        rig.advance(ms=101)
    status = decode_status(rig.wait_response(late).payload)
    assert str(status) == "DEADLINE_EXCEEDED: ttl of 100 ms ran out in the queue"
    assert rig.wait_response(in_time).attributes.commstatus is None
    assert rig.pairs() == [(OTHER_TOPIC, APP)]


def test_an_oversized_payload_is_not_queued(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        status = decode_status(
            rig.wait_response(rig.send_request(FETCH_SUBSCRIPTIONS, b"x" * (MAX_PAYLOAD + 1))).payload
        )
        assert rig.statistics("queued") == 0
    assert str(status) == "INVALID_ARGUMENT: payload of 16385 bytes: expected at most 16384"
    wanted = rig.subscription_request(UUri("device2", 0xFFFEFFFE, 0xFE, 0xFFFE))
    wanted.attributes.details.add().value = b"d" * (MAX_DETAILS - 10)
    wanted.subscriber.uri.CopyFrom(APP.to_pb())
    assert rig.call(SUBSCRIBE, wanted).attributes.commstatus is None
    assert wanted.ByteSize() < MAX_PAYLOAD / 2


# --- commits and their order ------------------------------------------------------------------------------------------


def test_requests_that_wait_for_the_disk_share_one_transaction(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        before = rig.statistics("transactions")
        waiting = [rig.send_request(SUBSCRIBE, rig.subscription_request(), caller=app(n)) for n in range(64)]
    for reqid in waiting:
        assert rig.wait_response(reqid).attributes.commstatus is None
    assert rig.statistics("transactions") == before + 1
    assert len(rig.routed_subscribers()) == 64


def test_consecutive_requests_have_a_transaction_each(rig: "ServiceRig") -> None:
    before = rig.statistics("transactions")
    for number in range(5):
        rig.subscribe(caller=app(number))
    assert rig.statistics("transactions") == before + 5


def test_responses_are_in_the_order_of_the_requests(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        waiting = [
            rig.send_request(method, rig.subscription_request(), caller=app(number))
            for number, method in enumerate([1, 2, 10, 8, 1, 3, 2, 1] * 4)
        ]
    rig.wait_response(waiting[-1])
    assert rig.response_order[1:] == waiting


def test_a_query_includes_the_changes_requested_before_it(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        rig.send_request(SUBSCRIBE, rig.subscription_request())
        question = rig.send_request(FETCH_SUBSCRIPTIONS)
    found = pb.FetchSubscriptionsResponse.FromString(rig.wait_response(question).payload)
    assert len(found.subscriptions) == 1


def test_a_change_is_stored_and_routed_by_before_it_is_acknowledged(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    seen: list[tuple[int, int]] = []
    rig.on_response = lambda _: seen.append((len(rig.routed_subscribers()), rig.statistics("transactions")))
    before = rig.statistics("transactions")
    rig.subscribe()
    assert seen == [(1, before + 1)]


def test_accepted_requests_are_finished_before_the_stop(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        waiting = [rig.send_request(SUBSCRIBE, rig.subscription_request(), caller=app(n)) for n in range(10)]
        stopping = threading.Thread(target=rig.stop)
        stopping.start()
    stopping.join(20)
    assert all(rig.wait_response(reqid).attributes.commstatus is None for reqid in waiting)
    rig.restart()
    assert len(rig.routed_subscribers()) == 10


def test_stopping_ends_the_thread_and_the_listening(rig: "ServiceRig") -> None:
    rig.stop()
    assert "usubscription" not in {thread.name for thread in threading.enumerate()}
    rig.send_request(FETCH_SUBSCRIPTIONS)
    assert rig.response_order == []


def test_a_failure_to_listen_leaves_nothing_behind(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.stop()

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no more listeners")

    with monkeypatch.context() as patched:
        patched.setattr(rig.bus, "register_listener", full)
        with pytest.raises(UStatusError, match="no more listeners"):
            rig.restart()
    assert "usubscription" not in {thread.name for thread in threading.enumerate()}
    rig.restart()
    assert rig.pairs() == []


def test_responses_that_the_bus_rejects_are_counted_logged_once_and_end_nothing(
    rig: "ServiceRig", caplog: pytest.LogCaptureFixture
) -> None:
    with rig.service_blocked():
        for number in range(3):
            rig.send_request(SUBSCRIBE, rig.subscription_request(), caller=app(number))
        rig.bus.close()
    rig.wait_until(lambda: rig.statistics("updates") == 3, "the answers and updates to be refused")
    assert len(rig.routed_subscribers()) == 3
    assert (rig.statistics("unsent"), rig.statistics("updates_unsent")) == (3, 9)
    assert [record.message for record in caplog.records] == [
        "usubscription.response_not_sent",
        "usubscription.update_not_sent",
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_if_the_thread_fails_callers_receive_an_error_and_routing_continues(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.subscribe()
    monkeypatch.setattr(
        rig.plugin.service._outbox, "send_response", None
    )  # a mistake of ours, whatever it would be
    rig.send_request(FETCH_SUBSCRIPTIONS)
    rig.wait_until(lambda: not rig.plugin.service._thread.is_alive(), "the thread to fail")  # type: ignore[union-attr]
    status = rig.call_refused(FETCH_SUBSCRIPTIONS)
    assert str(status) == "UNAVAILABLE: core.usubscription has stopped"
    assert rig.routed_subscribers() == [(APP, 0)]


def test_an_error_response_that_the_bus_rejects_is_counted_too(make_rig: MakeRig) -> None:
    rig = make_rig(max_queued_requests=1).start()
    refuse = rig.plugin.service._on_message
    with rig.service_blocked():
        rig.send_request(FETCH_SUBSCRIPTIONS)
        rig.bus.close()
        refuse(request(UUID(0x7000, 2 << 62), APP, UUri(OWN, 0, 3, 3), ttl=1000))
        assert (rig.statistics("unsent"), rig.statistics("refused_resource_exhausted")) == (1, 1)


# --- full store ---------------------------------------------------------------------------------------------


def test_a_full_queue_rejects_at_once_and_continues(make_rig: MakeRig) -> None:
    rig = make_rig(max_queued_requests=3).start()
    with rig.service_blocked():
        accepted = [rig.send_request(SUBSCRIBE, rig.subscription_request(), caller=app(n)) for n in range(3)]
        status = decode_status(rig.wait_response(rig.send_request(UNSUBSCRIBE)).payload)
        assert status.code is UCode.RESOURCE_EXHAUSTED
        assert "3 requests wait for core.usubscription" in status.message
    assert all(rig.wait_response(reqid).attributes.commstatus is None for reqid in accepted)
    assert rig.statistics("refused_resource_exhausted") == 1
    assert len(rig.pairs()) == 3


def test_another_bound_holds_from_the_next_request_on(make_rig: MakeRig) -> None:
    rig = make_rig(max_subscriptions=1).start()
    rig.subscribe(caller=app(1))
    rig.call_refused(SUBSCRIBE, rig.subscription_request(), caller=app(2))
    rig.plugin.service.set_config(msgspec.structs.replace(rig.plugin.service.config, max_subscriptions=2))
    rig.subscribe(caller=app(2))
    status = rig.call_refused(SUBSCRIBE, rig.subscription_request(), caller=app(3))
    assert "max_subscriptions is 2" in str(status)


def test_one_subscription_too_many_is_refused_and_the_others_stay(make_rig: MakeRig) -> None:
    rig = make_rig(max_subscriptions=2).start()
    rig.subscribe(caller=app(1))
    rig.subscribe(caller=app(2))
    status = rig.call_refused(SUBSCRIBE, rig.subscription_request(), caller=app(3))
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert "max_subscriptions is 2" in status.message
    rig.subscribe(caller=app(2), sample_period_ms=5)
    rig.unsubscribe(caller=app(1))
    rig.subscribe(caller=app(3))
    assert subscribers(rig) == [app(2), app(3)]


def bulky(rig: "ServiceRig") -> pb.SubscriptionRequest:
    wanted = rig.subscription_request()
    wanted.attributes.details.add().value = b"d" * 4000
    return wanted


def test_a_full_map_rejects_new_subscriptions_and_keeps_the_old_ones(make_rig: MakeRig) -> None:
    rig = make_rig(map_size_mb=1).start()
    with rig.service_blocked():
        waiting = [rig.send_request(SUBSCRIBE, bulky(rig), caller=app(n)) for n in range(150)]
    count = sum(rig.wait_response(reqid).attributes.commstatus is None for reqid in waiting)
    while (answer := rig.call(SUBSCRIBE, bulky(rig), caller=app(count))).attributes.commstatus is None:
        count += 1
    assert answer.attributes.commstatus is UCode.RESOURCE_EXHAUSTED
    assert "MDB_MAP_FULL" in decode_status(answer.payload).message
    assert len(rig.routed_subscribers()) == count
    rig.restart()
    assert len(rig.routed_subscribers()) == count
    for number in range(20):
        rig.unsubscribe(caller=app(number))
    assert rig.call(SUBSCRIBE, bulky(rig), caller=app(0)).attributes.commstatus is None


def test_a_request_that_needs_no_space_is_not_rejected_for_others_in_its_batch(make_rig: MakeRig) -> None:
    rig = make_rig(map_size_mb=1).start()
    rig.subscribe(caller=APP)
    with rig.service_blocked():
        leaving = rig.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=TOPIC.to_pb()), caller=APP)
        greedy = [rig.send_request(SUBSCRIBE, bulky(rig), caller=app(n)) for n in range(300)]
        small = rig.send_request(FETCH_SUBSCRIBERS, pb.FetchSubscribersRequest(topic=TOPIC.to_pb()))
    granted = [reqid for reqid in greedy if rig.wait_response(reqid).attributes.commstatus is None]
    assert 100 < len(granted) < 300
    assert rig.wait_response(leaving).attributes.commstatus is None
    assert len(pb.FetchSubscribersResponse.FromString(rig.wait_response(small).payload).subscribers) == len(
        granted
    )
    assert APP not in dict(rig.routed_subscribers())
    rig.restart()
    assert len(rig.routed_subscribers()) == len(granted)


def test_a_subscription_ends_in_memory_although_the_disk_is_full_and_later_in_the_store(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no room")

    before = rig.statistics("transactions")
    with monkeypatch.context() as patched:
        patched.setattr(rig.plugin.service._store, "commit", full)
        rig.advance(ms=501)
        assert rig.pairs() == []  # and the question is answered
        assert rig.statistics("transactions") == before
        rig.wait_until(lambda: len(rig._timers) == 1, "the next try to be planned")
    rig.advance(s=1)
    rig.wait_until(lambda: rig.statistics("transactions") == before + 1, "the deletion to be tried again")


def test_each_subscribe_is_reported_also_a_repeated_one(rig: "ServiceRig") -> None:
    """A restarted subscriber subscribes again, and its subscription does not change."""
    reported: list[tuple[UUri, UUri]] = []
    rig.plugin.directory.watch_subscribes(lambda each: reported.append((each.topic, each.subscriber)))
    rig.subscribe()
    rig.subscribe()
    rig.unsubscribe()
    assert reported == [(TOPIC, APP), (TOPIC, APP)]


def test_a_change_of_an_operator_before_a_stop_is_made(rig: "ServiceRig") -> None:
    service = rig.plugin.service
    with ThreadPoolExecutor() as threads:
        with rig.service_blocked():
            change = threads.submit(service.change, RemovalPattern(ANY, ANY))
            rig.wait_until(lambda: bool(service._operator_changes), "the change")
            stop = threads.submit(rig.stop)
            rig.wait_until(lambda: service._inbox.closed, "the stop")
        stop.result(DEADLINE_S)
        assert change.result(DEADLINE_S) == 0


def test_a_change_of_an_operator_during_a_stop_is_refused_at_once(rig: "ServiceRig") -> None:
    service = rig.plugin.service
    with ThreadPoolExecutor() as threads:
        with rig.service_blocked():
            stop = threads.submit(rig.stop)
            rig.wait_until(lambda: service._inbox.closed, "the stop")
            change = threads.submit(service.change, RemovalPattern(ANY, ANY))
            with pytest.raises(UStatusError, match="stopped"):
                change.result(DEADLINE_S)
        stop.result(DEADLINE_S)


def test_a_change_of_an_operator_is_refused_when_the_service_fails(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    service = rig.plugin.service
    failed = threading.Event()

    def fail() -> None:
        failed.set()
        wait_for_change()
        raise RuntimeError("defect")

    def wait_for_change() -> None:
        rig.wait_until(lambda: bool(service._operator_changes), "the change")

    monkeypatch.setattr(service._inbox, "wait_batch", fail)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    service._inbox.wake()
    assert failed.wait(DEADLINE_S)
    with pytest.raises(UStatusError, match="stopped"):
        service.change(RemovalPattern(ANY, ANY))
