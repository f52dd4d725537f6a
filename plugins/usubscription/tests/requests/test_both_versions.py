# SPDX-License-Identifier: Apache-2.0
"""Rules that no other test shows on its own: those that both versions share, in the words of each, and numbers on the wire."""

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
    desk: "ServiceRig",
    version: int,
    topic: UUri = TOPIC,
    *,
    caller: UUri = APP,
    expire_ms: int | None = None,
    sample_period_ms: int | None = None,
) -> str:
    """Subscribe in the words of a version; the name of the status in the answer, as version 3 has it."""
    if version == 3:
        wanted = desk.subscription_request(topic, sample_period_ms=sample_period_ms, expire_ms=expire_ms)
        state = desk.call_for(pb3.SubscriptionResponse, 1, wanted, caller=caller).status.state
        return pb3.SubscriptionStatus.State.Name(state)
    request = pb4.SubscribeRequest(topic=topic.to_pb(), sample_period=sample_period_ms)
    if expire_ms is not None:
        request.expiration.FromMilliseconds(expire_ms)
    status = desk.call_for(pb4.SubscribeResponse, 1, request, caller=caller, version=4).status
    return pb4.SubscriptionStatus.Name(status).removeprefix("STATUS_")


def unsubscribe(desk: "ServiceRig", version: int, topic: UUri = TOPIC, *, caller: UUri = APP) -> None:
    if version == 3:
        desk.unsubscribe(topic, caller=caller)
    else:
        wanted = pb4.UnsubscribeRequest(topic=topic.to_pb())
        desk.call_for(pb4.UnsubscribeResponse, 2, wanted, caller=caller, version=4)


# --- what both versions say -------------------------------------------------------------------------------------------


@in_both_versions
def test_who_subscribed_is_a_subscriber_through_a_restart_until_it_leaves(
    desk: "ServiceRig", version: int
) -> None:
    """[utest->req~usubscription-subscribe~1] [utest->req~usubscription-subscribe-persistency~1]
    [utest->req~usubscription-unsubscribe~1]
    """
    assert subscribe(desk, version) == "SUBSCRIBED"
    assert subscribe(desk, version, caller=OTHER_APP) == "SUBSCRIBED"
    desk.restart()
    assert desk.routed_subscribers() == [(APP, 0), (OTHER_APP, 0)]
    unsubscribe(desk, version)
    assert desk.routed_subscribers() == [(OTHER_APP, 0)]
    desk.restart()
    assert desk.routed_subscribers() == [(OTHER_APP, 0)]


@in_both_versions
def test_nothing_is_routed_to_who_has_not_subscribed(desk: "ServiceRig", version: int) -> None:
    """[utest->dsn~usubscription-interaction-subscriber~1] [utest->aou~usubscription-interaction-subscriber~1]

    Whoever listens at the backbone hears what comes there, and nothing comes before a Subscribe.
    """
    router = Router(
        AuthorityTable({OWN: "backbone", SERVED: "chassis"}),
        desk.plugin.directory,
        {"backbone": False, "chassis": True},
    )
    assert router.subscribed_targets("chassis", TOPIC) == ()
    subscribe(desk, version)
    assert router.subscribed_targets("chassis", TOPIC) == (Target("backbone", None, 0),)
    unsubscribe(desk, version)
    assert router.subscribed_targets("chassis", TOPIC) == ()


@in_both_versions
def test_a_subscription_ends_at_its_expiration_to_the_millisecond(desk: "ServiceRig", version: int) -> None:
    """[utest->req~usubscription-subscribe-expiration~1] [utest->dsn~usubscription-subscription-expiration-datatype~1]"""
    subscribe(desk, version, expire_ms=desk.now_ms + 501)
    desk.advance(ms=501)
    assert desk.pairs() == [(TOPIC, APP)]
    desk.advance(ms=1)
    assert desk.pairs() == []


@in_both_versions
def test_a_subscription_without_expiration_is_there_after_a_century(desk: "ServiceRig", version: int) -> None:
    """[utest->req~usubscription-subscribe-no-expiration~1]"""
    subscribe(desk, version)
    desk.advance(s=100 * 365 * 86_400)
    desk.restart()
    assert desk.routed_subscribers() == [(APP, 0)]


@in_both_versions
@pytest.mark.parametrize("seconds", [5, 20, None], ids=["earlier", "later", "never"])
def test_subscribing_again_is_answered_subscribed_and_moves_the_expiration(
    desk: "ServiceRig", version: int, seconds: int | None
) -> None:
    """[utest->req~usubscription-subscribe-multiple~1] [utest->req~usubscription-subscribe-expiration-extension~1]"""
    moved = None if seconds is None else desk.now_ms + seconds * 1000
    subscribe(desk, version, expire_ms=desk.now_ms + 10_000)
    assert subscribe(desk, version, expire_ms=moved) == "SUBSCRIBED"
    if seconds is None:
        desk.advance(s=10, ms=1)
        assert desk.pairs() == [(TOPIC, APP)]
        return
    desk.advance(s=seconds)
    assert desk.pairs() == [(TOPIC, APP)]
    desk.advance(ms=1)
    assert desk.pairs() == []


@in_both_versions
def test_unsubscribing_what_was_not_subscribed_is_answered_ok_and_empty(
    desk: "ServiceRig", version: int
) -> None:
    """[utest->req~usubscription-unsubscribe-multiple~1] That says UNSUBSCRIBED (X-3)."""
    subscribe(desk, version, OTHER_TOPIC)
    subscribe(desk, version, caller=OTHER_APP)
    answer = desk.call(2, pb4.UnsubscribeRequest(topic=TOPIC.to_pb()), version=version)
    assert (answer.payload, answer.attributes.commstatus) == (b"", None)
    assert desk.pairs() == [(OTHER_TOPIC, APP), (TOPIC, OTHER_APP)]


@in_both_versions
def test_another_major_version_is_another_topic(desk: "ServiceRig", version: int) -> None:
    """[utest->LIF-9] Who wants it subscribes again."""
    newer = UUri(SERVED, 0x10AB, 4, 0x80CD)
    subscribe(desk, version)
    assert (desk.routed_subscribers(), desk.routed_subscribers(newer)) == ([(APP, 0)], [])
    subscribe(desk, version, newer)
    unsubscribe(desk, version)
    assert (desk.routed_subscribers(), desk.routed_subscribers(newer)) == ([], [(APP, 0)])


@in_both_versions
@pytest.mark.parametrize("authority", [OWN, SERVED])
def test_the_service_is_core_usubscription_which_is_entity_0(
    desk: "ServiceRig", version: int, authority: str
) -> None:
    """[utest->req~usubscription-service_name~1] [utest->req~usubscription-uentity_id~1]"""
    assert {each.ue_id for each in desk.plugin.service.entities} == {0}
    status = desk.call_refused(0x7F, version=version, authority=authority)
    assert status.code is UCode.UNIMPLEMENTED
    assert status.message.startswith(f"method 127 of core.usubscription version {version}")


def test_the_bytes_of_unregistering_undo_those_of_registering(desk: "ServiceRig") -> None:
    """[utest->dsn~usubscription-register-notifications-protobuf~1]
    [utest->dsn~usubscription-unregister-notifications-protobuf~1]
    """
    for method, kept in ((6, {(TOPIC, APP)}), (7, set())):
        answer = desk.call(method, bytes.fromhex(TOPIC_FIELD))
        assert (answer.payload, answer.attributes.commstatus) == (b"", None)
        assert desk.registered_observers() == kept


# --- version 4 on the wire --------------------------------------------------------------------------------------------

T_HEX, APP_HEX = "0a076465766963653210ab21180320cd8102", "0a076465766963653110ef810c1804"
OTHER_APP_HEX = "0a0764657669636531" + "10421801"
TOPIC_FIELD = "0a12" + T_HEX
ENTRY = TOPIC_FIELD + "120f" + APP_HEX + "1803"  # topic, subscriber, SUBSCRIBED


def test_each_method_of_version_4_has_its_number_its_question_and_its_answer(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-method_id~1] [utest->req~usubscription-unsubscribe-method_id~1]
    [utest->req~usubscription-fetch-subscriptions-method_id~1]
    [utest->req~usubscription-fetch-subscriptions-request-signature~1]
    [utest->req~usubscription-fetch-subscriptions-response-signature~1]
    [utest->req~usubscription-register-notifications-method_id~1]
    [utest->req~usubscription-unregister-notifications-method_id~1] [utest->req~usubscription-reset-method_id~1]
    [utest->req~usubscription-subscribe-request-signature~1] [utest->req~usubscription-unsubscribe-request-signature~1]
    """

    def said(method: int, request: str = "", caller: UUri = APP) -> str:
        answer = desk.call(method, bytes.fromhex(request), caller=caller, version=4)
        assert answer.attributes.commstatus is None
        return answer.payload.hex()

    assert said(1, TOPIC_FIELD + "120608cc93c2d10618e807") == TOPIC_FIELD + "1003"
    [entry] = desk.plugin.directory.subscribers(TOPIC)
    assert (entry.period_ns, entry.expire_ms) == (1000 * MS, 1_781_565_900_000)
    assert said(1, TOPIC_FIELD) == TOPIC_FIELD + "1003"
    listed = "0a27" + ENTRY
    assert len(bytes.fromhex(ENTRY)) == 0x27
    assert said(3) == said(3, TOPIC_FIELD) == said(3, "120f" + APP_HEX) == listed
    assert said(3, "120d" + OTHER_APP_HEX) == said(3, TOPIC_FIELD + "120d" + OTHER_APP_HEX) == ""
    assert said(4, caller=WATCHER) == ""
    assert desk.statistics("registrations") == 1
    assert said(5, caller=WATCHER) == ""
    assert desk.statistics("registrations") == 0
    assert said(2, TOPIC_FIELD) == ""
    assert desk.pairs() == []
    subscribe(desk, 4)
    assert said(6, caller=PEER) == ""
    assert desk.pairs() == []


@pytest.mark.parametrize("period_ms", [1, 2**32 - 1])
def test_a_sample_period_may_be_any_uint32(desk: "ServiceRig", period_ms: int) -> None:
    """[utest->dsn~usubscription-sample-period-datatype~1]"""
    subscribe(desk, 4, sample_period_ms=period_ms)
    desk.restart()
    assert desk.routed_subscribers() == [(APP, period_ms * MS)]
    [entry] = desk.call_for(pb4.FetchSubscriptionsResponse, 3, version=4).subscriptions
    assert entry.sample_period == period_ms


def take_v4_notifications(desk: "ServiceRig") -> list[tuple[UUri | None, pb4.Subscription]]:
    """Each notification of version 4 since the last call; who asks the service twice knows that all have come."""
    desk.fetch()
    desk.fetch()
    received, desk.notifications[:] = list(desk.notifications), []
    return [
        (each.attributes.sink, pb4.Subscription.FromString(each.payload))
        for each in received
        if each.attributes.source == UUri(OWN, 0, 4, 0x8000)
    ]


def test_a_change_of_status_expiration_or_period_is_told_and_nothing_after_leaving(
    desk: "ServiceRig",
) -> None:
    """[utest->req~usubscription-change-notification~1] [utest->req~usubscription-unsubscribe-notifications~1]"""
    soon = desk.now_ms + 1000
    subscribe(desk, 4)
    subscribe(desk, 4)  # nothing changes
    subscribe(desk, 4, expire_ms=soon)
    subscribe(desk, 4, expire_ms=soon, sample_period_ms=5)
    unsubscribe(desk, 4)
    subscribe(desk, 4, caller=OTHER_APP)
    unsubscribe(desk, 4, caller=OTHER_APP)
    told = take_v4_notifications(desk)
    assert [
        (change.status, change.expiration.ToMilliseconds(), change.sample_period)
        for to, change in told
        if to == APP
    ] == [(3, 0, 0), (3, soon, 0), (3, soon, 5), (1, 0, 0)]
    assert [(to, UUri.from_pb(change.subscriber)) for to, change in told[4:]] == [(OTHER_APP, OTHER_APP)] * 2


# --- who is told, under the rules of the topic lifecycle --------------------------------------------------------------


def test_under_strict_rules_a_subscriber_hears_of_itself_and_a_producer_and_a_dispatcher_of_all(
    make_desk: MakeRig,
) -> None:
    """[utest->LIF-10] [utest->LIF-11] [utest->LIF-12] [utest->LIF-13]"""
    desk = make_desk(register_policy="strict", dispatchers=("//device3/7/1/0",)).start()
    wanted = pb3.NotificationsRequest(topic=TOPIC.to_pb())
    assert desk.call_refused(6, wanted, caller=APP).code is UCode.PERMISSION_DENIED
    foreign = pb3.NotificationsRequest(topic=OTHER_TOPIC.to_pb())
    assert desk.call_refused(6, foreign, caller=PRODUCER).code is UCode.PERMISSION_DENIED
    desk.register(caller=PRODUCER)
    desk.register(caller=WATCHER)
    desk.subscribe()
    desk.subscribe(caller=OTHER_APP)
    desk.fetch()
    desk.fetch()
    assert [each.attributes.source for each in desk.notifications] == [UUri(OWN, 0, 3, 0x8000)] * 6
    assert desk.take_v3_notifications() == [
        (to, TOPIC, subscriber, "SUBSCRIBED")
        for subscriber in (APP, OTHER_APP)
        for to in (subscriber, PRODUCER, WATCHER)
    ]
