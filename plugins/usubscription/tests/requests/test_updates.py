# SPDX-License-Identifier: Apache-2.0
"""Who is told what, when subscriptions change: asked over a bus, and heard on it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from ustreamer_usubscription import outbox
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.requests.updates import update_messages

from ustreamer.core.routing.router import AuthorityTable, Router
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP, OTHER_APP, WATCHER = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0), UUri("device3", 7, 1, 0)
PEER = UUri("device3", 0, 3, 0)
TOPIC, OTHER_TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD), UUri(OWN, 0x42, 1, 0x8000)
SOURCE = UUri(OWN, 0, 3, 0x8000)
IN, OUT = "SUBSCRIBED", "UNSUBSCRIBED"

# --- the messages -----------------------------------------------------------------------------------------------------


def test_an_update_speaks_the_bytes_of_the_standard() -> None:
    """[utest->dsn~usubscription-change-notification-type~1] [utest->dsn~usubscription-change-notification-topic~1]
    [utest->dsn~usubscription-change-notification-update~1] [utest->LIF-13]
    """
    changed = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, UUri("device1", 0x300EF, 4, 0)), Status.SUBSCRIBED
    )
    told, published, _ = update_messages(changed, OWN, UuidSource(lambda: 0).next)
    assert (
        told.payload.hex()
        == published.payload.hex()
        == "0a120a076465766963653210ab21180320cd810212110a0f0a076465766963653110ef810c18041a020802"
    )
    for message, kind, sink in (
        (told, UMessageType.NOTIFICATION, APP),
        (published, UMessageType.PUBLISH, None),
    ):
        attributes = message.attributes
        message.check()
        assert (attributes.type, attributes.source, attributes.sink) == (kind, SOURCE, sink)
        assert (attributes.priority, attributes.payload_format) == (UPriority.CS2, UPayloadFormat.PROTOBUF)


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        (
            SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP, 40_000_000), Status.SUBSCRIBED),
            "sample_period_ms: 40",
        ),
        (
            SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP, 0, 1000), Status.SUBSCRIBED),
            "expire { seconds: 1 }",
        ),
        (SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED), ""),
        (SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP, 40_000_000), Status.UNSUBSCRIBED), ""),
    ],
    ids=["rate", "expire", "nothing asked", "ended"],
)
def test_an_update_tells_the_attributes_of_what_stands(changed: SubscriptionStatusChange, shown: str) -> None:
    update = pb.Update.FromString(next(update_messages(changed, OWN, UuidSource(lambda: 0).next)).payload)
    assert " ".join(str(update.attributes).split()) == shown
    assert update.HasField("attributes") is bool(shown)


def test_one_who_subscribed_and_registered_is_told_once() -> None:
    watching = (Observer(TOPIC, APP), Observer(TOPIC, OTHER_APP))
    changed = SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, watching)
    sinks = [each.attributes.sink for each in update_messages(changed, OWN, UuidSource(lambda: 0).next)]
    assert sinks == [APP, OTHER_APP, None, None]  # published in both versions


def test_who_did_not_ask_to_be_told_is_told_for_ten_seconds_and_who_registered_for_as_long_as_anybody() -> (
    None
):
    changed = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, (Observer(TOPIC, OTHER_APP),)
    )
    told = list(update_messages(changed, OWN, UuidSource(lambda: 0).next))
    for message in told:
        message.check(strict=True)
    ttls = {each.attributes.sink: each.attributes.ttl for each in told}
    assert ttls == {APP: 10_000, OTHER_APP: None, None: None}
    registered_too = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, (Observer(TOPIC, APP),)
    )
    assert next(update_messages(registered_too, OWN, UuidSource(lambda: 0).next)).attributes.ttl is None


# --- who is told what -------------------------------------------------------------------------------------------------


def test_a_subscriber_is_told_what_becomes_of_its_subscription(desk: "ServiceRig") -> None:
    """[utest->dsn~usubscription-change-notification-update~1] [utest->req~usubscription-subscribe-notifications~1]
    [utest->req~usubscription-unsubscribe-notifications~1] [utest->LIF-10]
    """
    desk.subscribe()
    desk.subscribe()  # nothing changes
    desk.subscribe(sample_period_ms=40)
    desk.subscribe(sample_period_ms=40, expire_ms=desk.now_ms + 1000)
    desk.unsubscribe()
    desk.unsubscribe()  # nothing changes
    assert desk.take_v3_notifications() == [(APP, TOPIC, APP, state) for state in (IN, IN, IN, OUT)]


def test_after_the_last_unsubscribe_nothing_is_told_of_a_topic(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-notifications~1]"""
    desk.register(caller=WATCHER)
    desk.subscribe()
    desk.subscribe(caller=OTHER_APP)
    desk.unsubscribe()
    desk.unsubscribe(caller=OTHER_APP)
    assert desk.take_v3_notifications()[-2:] == [
        (OTHER_APP, TOPIC, OTHER_APP, OUT),
        (WATCHER, TOPIC, OTHER_APP, OUT),
    ]
    published = len(desk.published)
    desk.unsubscribe(caller=OTHER_APP)
    desk.unsubscribe()
    desk.register(caller=APP)
    desk.unregister(caller=APP)
    assert (desk.take_v3_notifications(), len(desk.published)) == ([], published)


def test_who_registered_for_a_topic_is_told_of_all_its_subscribers_and_of_no_other_topic(
    desk: "ServiceRig",
) -> None:
    """[utest->req~usubscription-register-notifications~1]"""
    desk.register(caller=WATCHER)
    desk.subscribe()
    desk.subscribe(OTHER_TOPIC)
    desk.subscribe(caller=OTHER_APP)
    assert [each for each in desk.take_v3_notifications() if each[0] == WATCHER] == [
        (WATCHER, TOPIC, APP, IN),
        (WATCHER, TOPIC, OTHER_APP, IN),
    ]


def test_who_registered_is_told_after_a_restart_as_well_and_not_after_unregistering(
    desk: "ServiceRig",
) -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    desk.register(caller=WATCHER)
    desk.restart()
    desk.subscribe()
    desk.unregister(caller=WATCHER)
    desk.unsubscribe()
    assert desk.take_v3_notifications() == [
        (APP, TOPIC, APP, IN),
        (WATCHER, TOPIC, APP, IN),
        (APP, TOPIC, APP, OUT),
    ]


def test_every_change_is_published_too_and_routed_like_any_topic(desk: "ServiceRig") -> None:
    desk.register(caller=WATCHER)
    desk.subscribe()
    desk.subscribe(SOURCE, caller=WATCHER)
    desk.unsubscribe()
    desk.fetch()
    changes = [pb.Update.FromString(m.payload) for m in desk.published if m.attributes.source == SOURCE]
    assert [(UUri.from_pb(c.topic), c.status.state) for c in changes] == [(TOPIC, 2), (SOURCE, 2), (TOPIC, 0)]
    router = Router(
        AuthorityTable({OWN: "backbone", "device3": "uplink"}, desk.plugin.service.entities),
        desk.plugin.directory,
        {"backbone": False, "uplink": False},
    )
    assert [target.endpoint for target in router.decide("self", desk.published[0].attributes).targets] == [
        "uplink"
    ]


def test_an_expire_that_has_passed_is_told(desk: "ServiceRig") -> None:
    desk.register(caller=WATCHER)
    desk.subscribe(expire_ms=desk.now_ms + 500)
    expired = desk.now_ms + 500
    desk.take_v3_notifications()
    desk.advance(ms=501)
    desk.wait_until(lambda: len(desk.notifications) == 2, "the end to be told")
    [update, _] = [pb.Update.FromString(m.payload) for m in desk.notifications]
    assert update.status.message == f"expire, {expired} ms, has passed"
    assert desk.take_v3_notifications() == [(APP, TOPIC, APP, OUT), (WATCHER, TOPIC, APP, OUT)]


def test_an_expire_in_the_past_is_told_if_it_ends_something(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms - 1)
    assert desk.take_v3_notifications() == []
    desk.subscribe()
    desk.subscribe(expire_ms=desk.now_ms - 1)
    assert desk.take_v3_notifications() == [(APP, TOPIC, APP, IN), (APP, TOPIC, APP, OUT)]


def test_what_ended_while_nobody_was_here_is_told_once_endpoints_are_up(desk: "ServiceRig") -> None:
    desk.subscribe(expire_ms=desk.now_ms + 500)
    desk.take_v3_notifications()
    desk.stop()
    desk.advance(s=1)
    desk.plugin = desk._new_plugin()
    desk.plugin.service.start(desk.bus)
    desk.advance(s=1)
    assert (desk.notifications, desk.statistics("updates_waiting")) == ([], 1)
    desk.plugin.ustreamer_started()
    desk.wait_until(lambda: desk.statistics("updates") == 1, "the end to be told")
    assert desk.take_v3_notifications() == [(APP, TOPIC, APP, OUT)]


def test_a_reset_is_told_to_all_whom_it_concerned(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-reset~1]"""
    desk.register(caller=WATCHER)
    for topic, caller in ((TOPIC, APP), (TOPIC, OTHER_APP), (OTHER_TOPIC, APP)):
        desk.subscribe(topic, caller=caller)
    desk.take_v3_notifications()
    desk.reset()
    assert desk.take_v3_notifications() == [
        (APP, OTHER_TOPIC, APP, OUT),
        (APP, TOPIC, APP, OUT),
        (WATCHER, TOPIC, APP, OUT),
        (OTHER_APP, TOPIC, OTHER_APP, OUT),
        (WATCHER, TOPIC, OTHER_APP, OUT),
    ]
    desk.subscribe()
    assert desk.take_v3_notifications() == [(APP, TOPIC, APP, IN)]  # nobody is registered any more


# --- when -------------------------------------------------------------------------------------------------------------


def test_a_change_is_told_after_it_is_committed_and_answered(desk: "ServiceRig") -> None:
    seen: list[tuple[int, int]] = []
    desk.on_response = lambda _: seen.append((desk.statistics("transactions"), len(desk.notifications)))
    before = desk.statistics("transactions")
    desk.subscribe()
    assert seen == [(before + 1, 0)]
    assert len(desk.take_v3_notifications()) == 1


def test_changes_of_one_transaction_are_told_in_the_order_of_the_requests(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        for joins in (True, False, True):
            wanted = desk.subscription_request() if joins else pb.UnsubscribeRequest(topic=TOPIC.to_pb())
            desk.send_request(1 if joins else 2, wanted)
    assert [state for *_, state in desk.take_v3_notifications()] == [IN, OUT, IN]


def test_what_is_not_committed_is_not_told(desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(desk.plugin.service._store, "commit", full)
        assert desk.call_refused(1, desk.subscription_request()).code is UCode.RESOURCE_EXHAUSTED
    assert desk.take_v3_notifications() == []


def test_a_flood_of_changes_is_told_bit_by_bit_and_in_order(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = [UUri(OWN, number, 1, 0) for number in range(1, 9)]
    for caller in callers:
        desk.subscribe(caller=caller)
    desk.take_v3_notifications()
    monkeypatch.setattr(outbox, "UPDATES_PER_TICK", 3)
    desk.reset()
    desk.wait_until(lambda: len(desk.notifications) == 3, "the first three to be told")
    assert desk.statistics("updates_waiting") == 5
    for told in (6, 8):
        desk.wait_until(lambda: len(desk._timers) == 1, "the next turn to be planned")
        desk.advance(ms=100)
        desk.wait_until(lambda told=told: len(desk.notifications) == told, "the next to be told")  # type: ignore[misc]
    assert [subscriber for _, _, subscriber, _ in desk.take_v3_notifications()] == callers


def test_what_waits_at_the_stop_is_counted_and_said(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 9):
        desk.subscribe(caller=UUri(OWN, number, 1, 0))
    desk.take_v3_notifications()
    monkeypatch.setattr(outbox, "UPDATES_PER_TICK", 3)
    desk.reset()
    desk.stop()
    assert len(desk.notifications) == 6
    [record] = [each for each in caplog.records if each.message == "usubscription.updates_not_sent"]
    assert record.count == 2  # type: ignore[attr-defined]
