# SPDX-License-Identifier: Apache-2.0
"""Version 4 of the interface, next to version 3 and on the same state."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import Message
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.requests import v4
from ustreamer_usubscription.requests.updates import update_messages
from ustreamer_usubscription.store.compact_index import CompactIndex
from ustreamer_usubscription.store.records import put_subscription

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP, OTHER_APP, PEER = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0), UUri("device3", 0, 4, 0)
TOPIC, OTHER_TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD), UUri(OWN, 0x42, 1, 0x8000)
SECOND, EVERY = UUri(SERVED, 0x110AB, 3, 0x80CD), UUri(SERVED, 0xFFFF10AB, 3, 0x80CD)
SOURCE3, SOURCE4 = UUri(OWN, 0, 3, 0x8000), UUri(OWN, 0, 4, 0x8000)
SUBSCRIBE, UNSUBSCRIBE, FETCH, REGISTER, UNREGISTER, RESET = range(1, 7)
UNSUBSCRIBED, SUBSCRIBED = pb.STATUS_UNSUBSCRIBED, pb.STATUS_SUBSCRIBED
T_HEX = "0a120a076465766963653210ab21180320cd8102"


def call(rig: "ServiceRig", method: int, payload: Message | bytes = b"", caller: UUri = APP) -> UMessage:
    return rig.call(method, payload, caller=caller, version=4)


def refused(rig: "ServiceRig", method: int, payload: Message | bytes = b"", caller: UUri = APP) -> UStatus:
    return rig.call_refused(method, payload, caller=caller, version=4)


def subscribe(
    rig: "ServiceRig",
    topic: UUri = TOPIC,
    caller: UUri = APP,
    sample_period: int | None = None,
    expire_ms: int | None = None,
) -> int:
    wanted = pb.SubscribeRequest(topic=topic.to_pb(), sample_period=sample_period)
    if expire_ms is not None:
        wanted.expiration.FromMilliseconds(expire_ms)
    answer = rig.call_for(pb.SubscribeResponse, SUBSCRIBE, wanted, caller=caller, version=4)
    assert UUri.from_pb(answer.topic) == topic
    return answer.status


def unsubscribe(rig: "ServiceRig", topic: UUri = TOPIC, caller: UUri = APP) -> None:
    wanted = pb.UnsubscribeRequest(topic=topic.to_pb())
    rig.call_for(pb.UnsubscribeResponse, UNSUBSCRIBE, wanted, caller=caller, version=4)


def fetch(
    rig: "ServiceRig", topics: UUri | None = None, subscribers: UUri | None = None
) -> list[tuple[UUri, UUri]]:
    wanted = pb.FetchSubscriptionsRequest(
        topic_filter=topics.to_pb() if topics else None,
        subscriber_filter=subscribers.to_pb() if subscribers else None,
    )
    found = rig.call_for(pb.FetchSubscriptionsResponse, FETCH, wanted, version=4).subscriptions
    assert all(each.status == SUBSCRIBED for each in found)
    return [(UUri.from_pb(each.topic), UUri.from_pb(each.subscriber)) for each in found]


def take_notifications(rig: "ServiceRig") -> list[tuple[int, UUri | None, UUri, int]]:
    """(version, receiver, topic, status as in version 4) of each notification since the last call."""
    rig.fetch()
    rig.fetch()
    received, rig.notifications[:] = list(rig.notifications), []
    found = []
    for each in received:
        if each.attributes.source == SOURCE4:
            change = pb.Subscription.FromString(each.payload)
            found.append((4, each.attributes.sink, UUri.from_pb(change.topic), int(change.status)))
        else:
            update = pb3.Update.FromString(each.payload)
            found.append((3, each.attributes.sink, UUri.from_pb(update.topic), update.status.state + 1))
    return found


# --- the wire ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "sent_request", "answered"),
    [
        (SUBSCRIBE, T_HEX + "120608cc93c2d10618e807", T_HEX + "1003"),
        (SUBSCRIBE, T_HEX, T_HEX + "1003"),
        (UNSUBSCRIBE, T_HEX, ""),
        (FETCH, "", ""),
        (REGISTER, "", ""),
        (UNREGISTER, "", ""),
    ],
)
def test_version_4_has_the_bytes_of_the_standard(
    rig: "ServiceRig", method: int, sent_request: str, answered: str
) -> None:
    """[utest->req~usubscription-subscribe-request-signature~1]
    [utest->req~usubscription-subscribe-response-signature~1] [utest->req~usubscription-subscribe-method_id~1]
    [utest->req~usubscription-unsubscribe-request-signature~1] [utest->req~usubscription-unsubscribe-method_id~1]
    [utest->req~usubscription-unsubscribe-response-signature~1]
    [utest->req~usubscription-fetch-subscriptions-request-signature~1]
    [utest->req~usubscription-fetch-subscriptions-response-signature~1]
    [utest->req~usubscription-fetch-subscriptions-method_id~1]
    [utest->req~usubscription-register-notifications-request-signature~1]
    [utest->req~usubscription-register-notifications-response-signature~1]
    [utest->req~usubscription-register-notifications-method_id~1]
    [utest->req~usubscription-unregister-notifications-request-signature~1]
    [utest->req~usubscription-unregister-notifications-response-signature~1]
    [utest->req~usubscription-unregister-notifications-method_id~1]
    """
    answer = call(rig, method, bytes.fromhex(sent_request))
    assert (answer.payload.hex(), answer.attributes.commstatus) == (answered, None)


def test_rate_and_expiration_are_kept_and_reported(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-subscription-expiration-datatype~1] [utest->dsn~usubscription-sample-period-datatype~1]"""
    subscribe(rig, sample_period=40, expire_ms=1_781_565_900_123)
    subscribe(rig, OTHER_TOPIC)
    assert rig.routed_subscribers() == [(APP, 40_000_000)]
    rig.restart()
    plain, limited = rig.call_for(pb.FetchSubscriptionsResponse, FETCH, version=4).subscriptions
    assert (limited.sample_period, limited.expiration.ToMilliseconds()) == (40, 1_781_565_900_123)
    assert not plain.HasField("sample_period")
    assert not plain.HasField("expiration")


def test_there_are_six_methods(rig: "ServiceRig") -> None:
    assert sorted([*v4.MUTATIONS, *v4.QUERIES]) == [(4, n) for n in range(1, 7)]
    for method in (7, 8, 9):
        status = refused(rig, method)
        assert status.code is UCode.UNIMPLEMENTED
        assert "version 4: this streamer has [1, 2, 3, 4, 5, 6]" in status.message


@pytest.mark.parametrize("mode", ["off", "track", "enforce"])
def test_methods_4_and_5_have_the_meaning_of_their_own_version(make_rig: MakeRig, mode: str) -> None:
    rig = make_rig(topic_lifecycle=mode).start()
    call(rig, REGISTER)
    assert (rig.statistics("registrations"), rig.statistics("topics")) == (1, 0)


# --- topics -----------------------------------------------------------------------------------------------------------

BAD_TOPICS = [
    (None, "topic: missing"),
    (UUri("", 1, 1, 0x8000), "its authority is empty"),
    (UUri("*", 1, 1, 0x8000), "authority is a wildcard"),
    (UUri("a", 0xFFFF, 1, 0x8000), "type is a wildcard"),
    (UUri("a", 0xFFFFFFFF, 1, 0x8000), "type is a wildcard"),
    (UUri("a", 1, 0xFF, 0x8000), "version is a wildcard"),
    (UUri("a", 1, 1, 0xFFFF), "resource is a wildcard"),
    (UUri("a", 1, 1, 0x7FFF), "is not a topic"),
    (UUri("A", 1, 1, 0x8000), "authority 'A'"),
]


@pytest.mark.parametrize(("topic", "why"), BAD_TOPICS, ids=[why for _, why in BAD_TOPICS])
@pytest.mark.parametrize("method", [SUBSCRIBE, UNSUBSCRIBE])
def test_an_invalid_topic_is_rejected(rig: "ServiceRig", method: int, topic: UUri | None, why: str) -> None:
    """[utest->dsn~usubscription-subscribe-valid-topic-uuris~1]
    [utest->dsn~usubscription-unsubscribe-valid-topic-uuris~1]
    """
    status = refused(rig, method, pb.UnsubscribeRequest(topic=topic.to_pb() if topic else None))
    assert status.code is UCode.INVALID_ARGUMENT
    assert why in status.message


def test_a_topic_of_every_instance_is_routed_listed_kept_and_ended(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-subscribe-valid-topic-uuris~1]"""
    version = rig.plugin.directory.version
    assert subscribe(rig, EVERY, sample_period=5) == SUBSCRIBED
    assert rig.plugin.directory.version > version
    rig.subscribe(TOPIC, caller=OTHER_APP)
    rig.subscribe(TOPIC)
    for _ in range(2):
        assert rig.routed_subscribers(SECOND) == [(APP, 5_000_000)]
        assert rig.routed_subscribers(TOPIC) == [(APP, 0), (OTHER_APP, 0), (APP, 5_000_000)]
        assert rig.routed_subscribers(TOPIC.with_resource(0x8000)) == []
        assert rig.pairs() == [(TOPIC, APP), (TOPIC, OTHER_APP), (EVERY, APP)]
        wanted = pb3.FetchSubscribersRequest(topic=TOPIC.to_pb())
        found = rig.call_for(pb3.FetchSubscribersResponse, 8, wanted).subscribers
        assert [UUri.from_pb(each.uri) for each in found] == [APP, OTHER_APP]
        rig.restart()
    unsubscribe(rig, EVERY)
    assert (rig.routed_subscribers(SECOND), len(rig.routed_subscribers(TOPIC))) == ([], 2)


def test_a_directory_without_wildcards_searches_one_table_only() -> None:
    directory = InMemoryDirectory()
    changes = sorted(
        [put_subscription(SubscriptionRecord(TOPIC, APP)), put_subscription(SubscriptionRecord(EVERY, APP))],
        key=lambda change: change.key,
    )
    directory.load_stored(
        CompactIndex([change.key for change in changes], [change.value or b"" for change in changes])
    )
    assert directory._wildcard_topics == 1
    assert (
        list(directory.subscribers(EVERY))
        == list(directory.exact_subscriptions(EVERY))
        == [SubscriptionRecord(EVERY, APP)]
    )
    directory.apply({(EVERY, APP): None, (EVERY, OTHER_APP): SubscriptionRecord(EVERY, OTHER_APP)})
    assert (directory._wildcard_topics, len(directory.subscribers(TOPIC))) == (1, 2)
    directory.apply({(EVERY, OTHER_APP): None})
    assert (directory._wildcard_topics, list(directory.subscribers(TOPIC))) == (
        0,
        [SubscriptionRecord(TOPIC, APP)],
    )


def test_version_3_still_rejects_such_a_topic(rig: "ServiceRig") -> None:
    subscribe(rig, EVERY)
    assert rig.call_refused(2, pb3.UnsubscribeRequest(topic=EVERY.to_pb())).code is UCode.INVALID_ARGUMENT


@pytest.mark.parametrize("before", [False, True], ids=["new", "subscribed"])
def test_a_past_expiration_registers_nothing_and_ends_the_existing_subscription(
    rig: "ServiceRig", before: bool
) -> None:
    """[utest->req~usubscription-past-subscription-expiration~1]
    [utest->req~usubscription-subscribe-expiration-extension-past~1]
    """
    if before:
        subscribe(rig)
    assert subscribe(rig, expire_ms=rig.now_ms - 1) == UNSUBSCRIBED
    assert (rig.pairs(), rig.routed_subscribers()) == ([], [])


# --- FetchSubscriptions -----------------------------------------------------------------------------------------------

PAIRS = [(OTHER_TOPIC, APP), (TOPIC, APP), (TOPIC, OTHER_APP), (SECOND, OTHER_APP), (EVERY, APP)]
FILTERS: list[tuple[UUri | None, UUri | None, list[int]]] = [
    (None, None, [0, 2, 3, 1, 4]),
    (TOPIC, None, [1, 2]),
    (EVERY, None, [1, 2, 3, 4]),
    (UUri("*", 0xFFFFFFFF, 0xFF, 0x8000), None, [0]),
    (UUri(SERVED, 0xFFFFFFFF, 0xFF, 0xFFFF), None, [1, 2, 3, 4]),
    (UUri("", 0x42, 1, 0xFFFF), None, [0]),
    (None, APP, [0, 1, 4]),
    (None, UUri(OWN, 0xFFFF0042, 0xFF, 0), [2, 3]),
    (TOPIC, OTHER_APP, [2]),
    (TOPIC, UUri("*", 0x42, 0xFF, 0xFFFF), [2]),
    (EVERY, APP, [1, 4]),
    (UUri("*", 0xFFFF0042, 1, 0xFFFF), UUri("*", 0xFFFFFFFF, 4, 0), [0]),
    (TOPIC.with_resource(0x8000), None, []),
    (UUri(SERVED, 0x10AB, 3, 0), None, []),
]


@pytest.mark.parametrize(("topics", "subscribers", "found"), FILTERS)
def test_filters_may_hold_wildcards_and_must_both_match(
    rig: "ServiceRig", topics: UUri | None, subscribers: UUri | None, found: list[int]
) -> None:
    """[utest->req~usubscription-fetch-subscriptions~1] [utest->req~usubscription-fetch-subscriptions-topic-filter~1]"""
    for topic, caller in PAIRS:
        subscribe(rig, topic, caller)
    listed = fetch(rig, topics, subscribers)
    assert sorted(listed) == sorted(PAIRS[n] for n in found)
    assert listed == sorted(listed, key=lambda pair: (str(pair[0]), str(pair[1])))


@pytest.mark.parametrize("field", ["topic_filter", "subscriber_filter"])
def test_a_malformed_filter_is_refused(rig: "ServiceRig", field: str) -> None:
    """[utest->dsn~usubscription-fetch-subscriptions-invalid-topic-filter~1]
    [utest->dsn~usubscription-fetch-subscriptions-invalid-subscriber-filter~1]
    """
    for bad in (UUri("A", 1, 1, 0x8000), UUri("a", 1, 0x100, 0x8000), UUri("a", 1, 1, 0x10000)):
        wanted = pb.FetchSubscriptionsRequest(**{field: bad.to_pb()})
        assert refused(rig, FETCH, wanted).code is UCode.INVALID_ARGUMENT


def test_a_list_that_is_too_long_is_rejected_instead_of_truncated(make_rig: MakeRig) -> None:
    rig = make_rig(page_size=2).start()
    for topic, caller in PAIRS[:3]:
        subscribe(rig, topic, caller)
    assert str(refused(rig, FETCH)) == (
        "RESOURCE_EXHAUSTED: more than 2 subscriptions match, page_size; use narrower filters"
    )
    assert fetch(rig, TOPIC) == PAIRS[1:3]


# --- changes ----------------------------------------------------------------------------------------------------------


def test_a_change_has_the_bytes_of_the_standard() -> None:
    """[utest->req~usubscription-change-message-type~1] [utest->req~usubscription-change-notification-resource~1]
    [utest->req~usubscription-change-topic~1]
    """
    changed = SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP, version=4), Status.SUBSCRIBED)
    sent = [
        m for m in update_messages(changed, OWN, UuidSource(lambda: 0).next) if m.attributes.source == SOURCE4
    ]
    assert [(m.attributes.type.name, m.attributes.sink) for m in sent] == [
        ("NOTIFICATION", APP),
        ("PUBLISH", None),
    ]
    for message in sent:
        message.check()
        assert message.payload.hex() == T_HEX + "120f0a076465766963653110ef810c18041803"


@pytest.mark.parametrize("status", list(Status))
def test_the_numbers_of_version_4_are_one_more(status: Status) -> None:
    change = v4.encode_change(
        SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP, 5_000_000, 1000), status)
    )
    assert pb.SubscriptionStatus.Name(change.status) == f"STATUS_{status.name}"
    assert change.HasField("sample_period") is change.HasField("expiration") is (status != 0)


def test_each_subscriber_is_notified_in_the_version_of_its_request(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-change-notification~1] [utest->req~usubscription-change-topic~1]
    [utest->req~usubscription-unsubscribe-notifications~1] Its own Unsubscribe ends the notifications to it.
    """
    call(rig, REGISTER, caller=PEER)
    rig.register(TOPIC, caller=OTHER_APP)
    subscribe(rig, TOPIC)
    subscribe(rig, TOPIC)  # nothing changes
    subscribe(rig, TOPIC, sample_period=5)
    rig.subscribe(OTHER_TOPIC)
    unsubscribe(rig, TOPIC)
    assert take_notifications(rig) == [
        *[(3, OTHER_APP, TOPIC, SUBSCRIBED), (4, APP, TOPIC, SUBSCRIBED), (4, PEER, TOPIC, SUBSCRIBED)] * 2,
        *[(3, APP, OTHER_TOPIC, SUBSCRIBED), (4, PEER, OTHER_TOPIC, SUBSCRIBED)],
        *[(3, OTHER_APP, TOPIC, UNSUBSCRIBED), (4, PEER, TOPIC, UNSUBSCRIBED)],
    ]
    assert [m.attributes.source for m in rig.published] == [SOURCE3, SOURCE4] * 4


def test_a_repeated_subscribe_in_the_other_version_changes_the_version_of_notifications(
    rig: "ServiceRig",
) -> None:
    rig.subscribe()
    subscribe(rig)  # the same subscription, so no change
    rig.restart()
    subscribe(rig, sample_period=5)
    assert take_notifications(rig) == [(3, APP, TOPIC, SUBSCRIBED), (4, APP, TOPIC, SUBSCRIBED)]


def test_registering_concerns_every_topic_survives_a_restart_and_ends(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    call(rig, REGISTER, caller=PEER)
    call(rig, REGISTER, caller=PEER)
    rig.register(TOPIC, caller=PEER)
    rig.restart()
    assert rig.statistics("registrations") == 2
    subscribe(rig, EVERY, expire_ms=rig.now_ms + 500)
    rig.take_v3_notifications()
    rig.advance(ms=501)
    assert take_notifications(rig) == [(4, APP, EVERY, UNSUBSCRIBED), (4, PEER, EVERY, UNSUBSCRIBED)]
    call(rig, UNREGISTER, caller=PEER)
    call(rig, UNREGISTER, caller=PEER)
    subscribe(rig)
    assert take_notifications(rig) == [(3, PEER, TOPIC, SUBSCRIBED), (4, APP, TOPIC, SUBSCRIBED)]


def test_with_a_strict_policy_only_dispatchers_may_observe_all_subscriptions(make_rig: MakeRig) -> None:
    rig = make_rig(register_policy="strict", dispatchers=("//device3/0/FF/0",)).start()
    assert refused(rig, REGISTER).code is UCode.PERMISSION_DENIED
    call(rig, REGISTER, caller=PEER)
    observers = rig.plugin.service._state.observers
    assert observers.observers_of(TOPIC) == (Observer(UUri("*", 0xFFFFFFFF, 0xFF, 0xFFFF), PEER, 4),)


# --- Reset ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "caller", [PEER, UUri("device3", 0x70000, 4, 0)], ids=["type 0", "an instance of type 0"]
)
def test_a_reset_ends_everything_of_both_versions(rig: "ServiceRig", caller: UUri) -> None:
    """[utest->req~usubscription-reset~1] [utest->req~usubscription-reset-method_id~1]
    [utest->req~usubscription-reset-request-signature~1] [utest->req~usubscription-reset-response-signature~1]
    """
    rig.register(caller=OTHER_APP)
    call(rig, REGISTER, caller=PEER)
    rig.subscribe(TOPIC)
    subscribe(rig, EVERY)
    take_notifications(rig)
    answer = call(rig, RESET, caller=caller)
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert take_notifications(rig) == [
        *[(3, APP, TOPIC, UNSUBSCRIBED), (3, OTHER_APP, TOPIC, UNSUBSCRIBED), (4, PEER, TOPIC, UNSUBSCRIBED)],
        *[(4, APP, EVERY, UNSUBSCRIBED), (4, PEER, EVERY, UNSUBSCRIBED)],
    ]
    rig.restart()
    assert (rig.pairs(), rig.registered_observers()) == ([], set())


@pytest.mark.parametrize(
    "caller",
    [APP, UUri("device3", 1, 4, 0), UUri(OWN, 0x10000, 4, 0), UUri(SERVED, 0x10000, 4, 0)],
    ids=["an application", "another type", "an instance at our own authority", "one at a served authority"],
)
def test_no_other_caller_may_reset(rig: "ServiceRig", caller: UUri) -> None:
    """[utest->req~usubscription-reset-only-usubscription~1]"""
    subscribe(rig)
    assert refused(rig, RESET, caller=caller).code is UCode.PERMISSION_DENIED
    assert rig.pairs() == [(TOPIC, APP)]
