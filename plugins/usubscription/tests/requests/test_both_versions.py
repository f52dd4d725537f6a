# SPDX-License-Identifier: Apache-2.0
"""Rules that no other test covers on its own: rules of both versions, in the messages of each, and numbers on the
wire.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP, OTHER_APP, WATCHER = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0), UUri("device3", 7, 1, 0)
PEER = UUri("device3", 0, 4, 0)
TOPIC, OTHER_TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD), UUri(OWN, 0x42, 1, 0x8000)
PRODUCER = TOPIC.with_resource(0)
MS = 1_000_000

in_both_versions = pytest.mark.parametrize("version", [3, 4])


def subscribe(
    rig: "ServiceRig",
    version: int,
    topic: UUri = TOPIC,
    *,
    caller: UUri = APP,
    expire_ms: int | None = None,
    sample_period_ms: int | None = None,
) -> str:
    """Subscribe with the messages of a version; returns the name of the response's status, as in version 3."""
    if version == 3:
        wanted = rig.subscription_request(topic, sample_period_ms=sample_period_ms, expire_ms=expire_ms)
        state = rig.call_for(pb3.SubscriptionResponse, 1, wanted, caller=caller).status.state
        return pb3.SubscriptionStatus.State.Name(state)
    request = pb4.SubscribeRequest(topic=topic.to_pb(), sample_period=sample_period_ms)
    if expire_ms is not None:
        request.expiration.FromMilliseconds(expire_ms)
    status = rig.call_for(pb4.SubscribeResponse, 1, request, caller=caller, version=4).status
    return pb4.SubscriptionStatus.Name(status).removeprefix("STATUS_")


def unsubscribe(rig: "ServiceRig", version: int, topic: UUri = TOPIC, *, caller: UUri = APP) -> None:
    if version == 3:
        rig.unsubscribe(topic, caller=caller)
    else:
        wanted = pb4.UnsubscribeRequest(topic=topic.to_pb())
        rig.call_for(pb4.UnsubscribeResponse, 2, wanted, caller=caller, version=4)


# --- rules of both versions ---------------------------------------------------------------------------------


@in_both_versions
def test_a_subscriber_stays_subscribed_through_a_restart_until_it_unsubscribes(
    rig: "ServiceRig", version: int
) -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]
    [utest->req~usubscription-unsubscribe~1]
    """
    assert subscribe(rig, version) == "SUBSCRIBED"
    assert subscribe(rig, version, caller=OTHER_APP) == "SUBSCRIBED"
    rig.restart()
    assert rig.routed_subscribers() == [(APP, 0), (OTHER_APP, 0)]
    unsubscribe(rig, version)
    assert rig.routed_subscribers() == [(OTHER_APP, 0)]
    rig.restart()
    assert rig.routed_subscribers() == [(OTHER_APP, 0)]


@in_both_versions
def test_no_event_is_routed_to_an_entity_without_a_subscription(rig: "ServiceRig", version: int) -> None:
    """[utest->dsn~usubscription-interaction-subscriber~1] [utest->aou~usubscription-interaction-subscriber~1]

    A listener at the backbone receives its events, but no event arrives before a Subscribe.
    """
    router = Router(
        AuthorityTable({OWN: "backbone", SERVED: "chassis"}),
        rig.plugin.directory,
        {"backbone": False, "chassis": True},
    )
    assert router.subscribed_targets("chassis", TOPIC) == ()
    subscribe(rig, version)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 0),)
    unsubscribe(rig, version)
    assert router.subscribed_targets("chassis", TOPIC) == ()


@in_both_versions
def test_a_subscription_ends_at_its_expiration_to_the_millisecond(rig: "ServiceRig", version: int) -> None:
    """[utest->req~usubscription-subscribe-expiration~1] [utest->dsn~usubscription-subscription-expiration-datatype~1]"""
    subscribe(rig, version, expire_ms=rig.now_ms + 501)
    rig.advance(ms=501)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(ms=1)
    assert rig.pairs() == []


@in_both_versions
def test_a_subscription_without_expiration_is_there_after_a_century(rig: "ServiceRig", version: int) -> None:
    """[utest->req~usubscription-subscribe-no-expiration~1]"""
    subscribe(rig, version)
    rig.advance(s=100 * 365 * 86_400)
    rig.restart()
    assert rig.routed_subscribers() == [(APP, 0)]


@in_both_versions
@pytest.mark.parametrize("seconds", [5, 20, None], ids=["earlier", "later", "never"])
def test_subscribing_again_is_answered_subscribed_and_moves_the_expiration(
    rig: "ServiceRig", version: int, seconds: int | None
) -> None:
    """[utest->req~usubscription-subscribe-multiple~1] [utest->req~usubscription-subscribe-expiration-extension~1]"""
    moved = None if seconds is None else rig.now_ms + seconds * 1000
    subscribe(rig, version, expire_ms=rig.now_ms + 10_000)
    assert subscribe(rig, version, expire_ms=moved) == "SUBSCRIBED"
    if seconds is None:
        rig.advance(s=10, ms=1)
        assert rig.pairs() == [(TOPIC, APP)]
        return
    rig.advance(s=seconds)
    assert rig.pairs() == [(TOPIC, APP)]
    rig.advance(ms=1)
    assert rig.pairs() == []


@in_both_versions
def test_unsubscribe_without_a_subscription_is_answered_ok_and_empty(rig: "ServiceRig", version: int) -> None:
    """[utest->req~usubscription-unsubscribe-multiple~1] That is UNSUBSCRIBED (X-3)."""
    subscribe(rig, version, OTHER_TOPIC)
    subscribe(rig, version, caller=OTHER_APP)
    answer = rig.call(2, pb4.UnsubscribeRequest(topic=TOPIC.to_pb()), version=version)
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert rig.pairs() == [(OTHER_TOPIC, APP), (TOPIC, OTHER_APP)]


@in_both_versions
def test_another_major_version_is_another_topic(rig: "ServiceRig", version: int) -> None:
    """[utest->LIF-9] A subscriber of the other version subscribes again."""
    newer = UUri(SERVED, 0x10AB, 4, 0x80CD)
    subscribe(rig, version)
    assert (rig.routed_subscribers(), rig.routed_subscribers(newer)) == ([(APP, 0)], [])
    subscribe(rig, version, newer)
    unsubscribe(rig, version)
    assert (rig.routed_subscribers(), rig.routed_subscribers(newer)) == ([], [(APP, 0)])


@in_both_versions
@pytest.mark.parametrize("authority", [OWN, SERVED])
def test_the_service_is_core_usubscription_which_is_entity_0(
    rig: "ServiceRig", version: int, authority: str
) -> None:
    """[utest->req~usubscription-service_name~1] [utest->req~usubscription-uentity_id~1]"""
    assert {each.ue_id for each in rig.plugin.service.entities} == {0}
    status = rig.call_refused(0x7F, version=version, authority=authority)
    assert status.code is UCode.UNIMPLEMENTED
    assert status.message.startswith(f"method 127 of core.usubscription version {version}")


def test_the_bytes_of_unregistering_undo_those_of_registering(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-register-notifications-protobuf~1]
    [utest->dsn~usubscription-unregister-notifications-protobuf~1]
    """
    for method, kept in ((6, {(TOPIC, APP)}), (7, set())):
        answer = rig.call(method, bytes.fromhex(TOPIC_FIELD))
        assert (answer.payload, answer.attributes.commstatus) == (b"", None)
        assert rig.registered_observers() == kept


# --- version 4 on the wire --------------------------------------------------------------------------------------------

T_HEX, APP_HEX = "0a076465766963653210ab21180320cd8102", "0a076465766963653110ef810c1804"
OTHER_APP_HEX = "0a0764657669636531" + "10421801"
TOPIC_FIELD = "0a12" + T_HEX
ENTRY = TOPIC_FIELD + "120f" + APP_HEX + "1803"  # topic, subscriber, SUBSCRIBED


def test_each_method_of_version_4_has_its_number_its_question_and_its_answer(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-method_id~1] [utest->req~usubscription-unsubscribe-method_id~1]
    [utest->req~usubscription-fetch-subscriptions-method_id~1]
    [utest->req~usubscription-fetch-subscriptions-request-signature~1]
    [utest->req~usubscription-fetch-subscriptions-response-signature~1]
    [utest->req~usubscription-register-notifications-method_id~1]
    [utest->req~usubscription-unregister-notifications-method_id~1] [utest->req~usubscription-reset-method_id~1]
    [utest->req~usubscription-subscribe-request-signature~1] [utest->req~usubscription-unsubscribe-request-signature~1]
    """

    def error_of(method: int, request: str = "", caller: UUri = APP) -> str:
        answer = rig.call(method, bytes.fromhex(request), caller=caller, version=4)
        assert answer.attributes.commstatus is None
        return answer.payload.hex()

    assert error_of(1, TOPIC_FIELD + "120608cc93c2d10618e807") == TOPIC_FIELD + "1003"
    [entry] = rig.plugin.directory.subscribers(TOPIC)
    assert (entry.period_ns, entry.expire_ms) == (1000 * MS, 1_781_565_900_000)
    assert error_of(1, TOPIC_FIELD) == TOPIC_FIELD + "1003"
    listed = "0a27" + ENTRY
    assert len(bytes.fromhex(ENTRY)) == 0x27
    assert error_of(3) == error_of(3, TOPIC_FIELD) == error_of(3, "120f" + APP_HEX) == listed
    assert error_of(3, "120d" + OTHER_APP_HEX) == error_of(3, TOPIC_FIELD + "120d" + OTHER_APP_HEX) == ""
    assert error_of(4, caller=WATCHER) == ""
    assert rig.statistics("registrations") == 1
    assert error_of(5, caller=WATCHER) == ""
    assert rig.statistics("registrations") == 0
    assert error_of(2, TOPIC_FIELD) == ""
    assert rig.pairs() == []
    subscribe(rig, 4)
    assert error_of(6, caller=PEER) == ""
    assert rig.pairs() == []


@pytest.mark.parametrize("period_ms", [1, 2**32 - 1])
def test_a_sample_period_may_be_any_uint32(rig: "ServiceRig", period_ms: int) -> None:
    """[utest->dsn~usubscription-sample-period-datatype~1]"""
    subscribe(rig, 4, sample_period_ms=period_ms)
    rig.restart()
    assert rig.routed_subscribers() == [(APP, period_ms * MS)]
    [entry] = rig.call_for(pb4.FetchSubscriptionsResponse, 3, version=4).subscriptions
    assert entry.sample_period == period_ms


def take_v4_notifications(rig: "ServiceRig") -> list[tuple[UUri | None, pb4.Subscription]]:
    """Each notification of version 4 since the last call. Two calls of the service ensure that all have arrived."""
    rig.fetch()
    rig.fetch()
    received, rig.notifications[:] = list(rig.notifications), []
    return [
        (each.attributes.sink, pb4.Subscription.FromString(each.payload))
        for each in received
        if each.attributes.source == UUri(OWN, 0, 4, 0x8000)
    ]


def test_a_change_of_status_expiration_or_period_is_announced_and_nothing_after_unsubscribe(
    rig: "ServiceRig",
) -> None:
    """[utest->req~usubscription-change-notification~1] [utest->req~usubscription-unsubscribe-notifications~1]"""
    soon = rig.now_ms + 1000
    subscribe(rig, 4)
    subscribe(rig, 4)  # nothing changes
    subscribe(rig, 4, expire_ms=soon)
    subscribe(rig, 4, expire_ms=soon, sample_period_ms=5)
    unsubscribe(rig, 4)
    subscribe(rig, 4, caller=OTHER_APP)
    unsubscribe(rig, 4, caller=OTHER_APP)
    notified = take_v4_notifications(rig)
    assert [
        (change.status, change.expiration.ToMilliseconds(), change.sample_period)
        for to, change in notified
        if to == APP
    ] == [(3, 0, 0), (3, soon, 0), (3, soon, 5)]
    assert [(to, UUri.from_pb(change.subscriber)) for to, change in notified[3:]] == [(OTHER_APP, OTHER_APP)]


# --- receivers of notifications under the topic lifecycle ---------------------------------------------------


def test_the_strict_policy_limits_notifications_to_own_subscriptions_producers_and_dispatchers(
    make_rig: MakeRig,
) -> None:
    """[utest->LIF-10] [utest->LIF-11] [utest->LIF-12] [utest->LIF-13]"""
    rig = make_rig(register_policy="strict", dispatchers=("//device3/7/1/0",)).start()
    wanted = pb3.NotificationsRequest(topic=TOPIC.to_pb())
    assert rig.call_refused(6, wanted, caller=APP).code is UCode.PERMISSION_DENIED
    foreign = pb3.NotificationsRequest(topic=OTHER_TOPIC.to_pb())
    assert rig.call_refused(6, foreign, caller=PRODUCER).code is UCode.PERMISSION_DENIED
    rig.register(caller=PRODUCER)
    rig.register(caller=WATCHER)
    rig.subscribe()
    rig.subscribe(caller=OTHER_APP)
    rig.fetch()
    rig.fetch()
    assert [each.attributes.source for each in rig.notifications] == [UUri(OWN, 0, 3, 0x8000)] * 6
    assert rig.take_v3_notifications() == [
        (to, TOPIC, subscriber, "SUBSCRIBED")
        for subscriber in (APP, OTHER_APP)
        for to in (subscriber, PRODUCER, WATCHER)
    ]
