# SPDX-License-Identifier: Apache-2.0
"""Receivers and contents of notifications about changes of subscriptions, tested over a bus."""

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


def test_an_update_has_the_bytes_of_the_standard() -> None:
    """[utest->dsn~usubscription-change-notification-type~1] [utest->dsn~usubscription-change-notification-topic~1]
    [utest->dsn~usubscription-change-notification-update~1] [utest->LIF-13]
    """
    changed = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, UUri("device1", 0x300EF, 4, 0)), Status.SUBSCRIBED
    )
    notified, published, _ = update_messages(changed, OWN, UuidSource(lambda: 0).next)
    assert (
        notified.payload.hex()
        == published.payload.hex()
        == "0a120a076465766963653210ab21180320cd810212110a0f0a076465766963653110ef810c18041a020802"
    )
    for message, kind, sink in (
        (notified, UMessageType.NOTIFICATION, APP),
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
    ids=["rate", "expire", "nothing requested", "ended"],
)
def test_an_update_contains_the_attributes_of_the_subscription(
    changed: SubscriptionStatusChange, shown: str
) -> None:
    update = pb.Update.FromString(next(update_messages(changed, OWN, UuidSource(lambda: 0).next)).payload)
    assert " ".join(str(update.attributes).split()) == shown
    assert update.HasField("attributes") is bool(shown)


def test_a_subscriber_that_registered_is_notified_once() -> None:
    watching = (Observer(TOPIC, APP), Observer(TOPIC, OTHER_APP))
    changed = SubscriptionStatusChange(SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, watching)
    sinks = [each.attributes.sink for each in update_messages(changed, OWN, UuidSource(lambda: 0).next)]
    assert sinks == [APP, OTHER_APP, None, None]  # published in both versions


def test_a_subscriber_without_registration_is_notified_for_ten_seconds_and_a_registered_one_always() -> None:
    changed = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, (Observer(TOPIC, OTHER_APP),)
    )
    notified = list(update_messages(changed, OWN, UuidSource(lambda: 0).next))
    for message in notified:
        message.check(strict=True)
    ttls = {each.attributes.sink: each.attributes.ttl for each in notified}
    assert ttls == {APP: 10_000, OTHER_APP: None, None: None}
    registered_too = SubscriptionStatusChange(
        SubscriptionRecord(TOPIC, APP), Status.SUBSCRIBED, (Observer(TOPIC, APP),)
    )
    assert next(update_messages(registered_too, OWN, UuidSource(lambda: 0).next)).attributes.ttl is None


# --- receivers of notifications -----------------------------------------------------------------------------


def test_a_subscriber_is_notified_of_changes_of_its_subscription(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-change-notification-update~1] [utest->req~usubscription-subscribe-notifications~1]
    [utest->req~usubscription-unsubscribe-notifications~1] [utest->LIF-10]
    """
    rig.subscribe()
    rig.subscribe()  # nothing changes
    rig.subscribe(sample_period_ms=40)
    rig.subscribe(sample_period_ms=40, expire_ms=rig.now_ms + 1000)
    rig.unsubscribe()
    rig.unsubscribe()  # nothing changes
    assert rig.take_v3_notifications() == [(APP, TOPIC, APP, state) for state in (IN, IN, IN, OUT)]


def test_after_the_last_unsubscribe_no_change_of_a_topic_is_announced(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-notifications~1]"""
    rig.register(caller=WATCHER)
    rig.subscribe()
    rig.subscribe(caller=OTHER_APP)
    rig.unsubscribe()
    rig.unsubscribe(caller=OTHER_APP)
    assert rig.take_v3_notifications()[-2:] == [
        (OTHER_APP, TOPIC, OTHER_APP, OUT),
        (WATCHER, TOPIC, OTHER_APP, OUT),
    ]
    published = len(rig.published)
    rig.unsubscribe(caller=OTHER_APP)
    rig.unsubscribe()
    rig.register(caller=APP)
    rig.unregister(caller=APP)
    assert (rig.take_v3_notifications(), len(rig.published)) == ([], published)


def test_a_registered_entity_is_notified_of_all_subscribers_of_its_topic_and_of_no_other_topic(
    rig: "ServiceRig",
) -> None:
    """[utest->req~usubscription-register-notifications~1]"""
    rig.register(caller=WATCHER)
    rig.subscribe()
    rig.subscribe(OTHER_TOPIC)
    rig.subscribe(caller=OTHER_APP)
    assert [each for each in rig.take_v3_notifications() if each[0] == WATCHER] == [
        (WATCHER, TOPIC, APP, IN),
        (WATCHER, TOPIC, OTHER_APP, IN),
    ]


def test_a_registration_survives_a_restart_and_ends_with_unregister(
    rig: "ServiceRig",
) -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    rig.register(caller=WATCHER)
    rig.restart()
    rig.subscribe()
    rig.unregister(caller=WATCHER)
    rig.unsubscribe()
    assert rig.take_v3_notifications() == [
        (APP, TOPIC, APP, IN),
        (WATCHER, TOPIC, APP, IN),
        (APP, TOPIC, APP, OUT),
    ]


def test_every_change_is_published_too_and_routed_like_any_topic(rig: "ServiceRig") -> None:
    rig.register(caller=WATCHER)
    rig.subscribe()
    rig.subscribe(SOURCE, caller=WATCHER)
    rig.unsubscribe()
    rig.fetch()
    changes = [pb.Update.FromString(m.payload) for m in rig.published if m.attributes.source == SOURCE]
    assert [(UUri.from_pb(c.topic), c.status.state) for c in changes] == [(TOPIC, 2), (SOURCE, 2), (TOPIC, 0)]
    router = Router(
        AuthorityTable({OWN: "backbone", "device3": "uplink"}, rig.plugin.service.entities),
        rig.plugin.directory,
        {"backbone": False, "uplink": False},
    )
    assert [target.endpoint for target in router.decide("self", rig.published[0].attributes).targets] == [
        "uplink"
    ]


def test_a_passed_expire_is_announced(rig: "ServiceRig") -> None:
    rig.register(caller=WATCHER)
    rig.subscribe(expire_ms=rig.now_ms + 500)
    expired = rig.now_ms + 500
    rig.take_v3_notifications()
    rig.advance(ms=501)
    rig.wait_until(lambda: len(rig.notifications) == 2, "the end to be announced")
    [update, _] = [pb.Update.FromString(m.payload) for m in rig.notifications]
    assert update.status.message == f"expire, {expired} ms, has passed"
    assert rig.take_v3_notifications() == [(APP, TOPIC, APP, OUT), (WATCHER, TOPIC, APP, OUT)]


def test_an_expire_in_the_past_is_announced_if_it_ends_a_subscription(rig: "ServiceRig") -> None:
    rig.subscribe(expire_ms=rig.now_ms - 1)
    assert rig.take_v3_notifications() == []
    rig.subscribe()
    rig.subscribe(expire_ms=rig.now_ms - 1)
    assert rig.take_v3_notifications() == [(APP, TOPIC, APP, IN), (APP, TOPIC, APP, OUT)]


def test_a_subscription_that_ended_during_a_stop_is_announced_once_endpoints_are_up(
    rig: "ServiceRig",
) -> None:
    rig.subscribe(expire_ms=rig.now_ms + 500)
    rig.take_v3_notifications()
    rig.stop()
    rig.advance(s=1)
    rig.plugin = rig._new_plugin()
    rig.plugin.service.start(rig.bus)
    rig.advance(s=1)
    assert (rig.notifications, rig.statistics("updates_waiting")) == ([], 1)
    rig.plugin.ustreamer_started()
    rig.wait_until(lambda: rig.statistics("updates") == 1, "the end to be announced")
    assert rig.take_v3_notifications() == [(APP, TOPIC, APP, OUT)]


def test_a_reset_is_announced_to_all_affected_entities(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-reset~1]"""
    rig.register(caller=WATCHER)
    for topic, caller in ((TOPIC, APP), (TOPIC, OTHER_APP), (OTHER_TOPIC, APP)):
        rig.subscribe(topic, caller=caller)
    rig.take_v3_notifications()
    rig.reset()
    assert rig.take_v3_notifications() == [
        (APP, OTHER_TOPIC, APP, OUT),
        (APP, TOPIC, APP, OUT),
        (WATCHER, TOPIC, APP, OUT),
        (OTHER_APP, TOPIC, OTHER_APP, OUT),
        (WATCHER, TOPIC, OTHER_APP, OUT),
    ]
    rig.subscribe()
    assert rig.take_v3_notifications() == [(APP, TOPIC, APP, IN)]  # no entity is registered any more


# --- time ---------------------------------------------------------------------------------------------------


def test_a_change_is_announced_after_its_commit_and_its_response(rig: "ServiceRig") -> None:
    seen: list[tuple[int, int]] = []
    rig.on_response = lambda _: seen.append((rig.statistics("transactions"), len(rig.notifications)))
    before = rig.statistics("transactions")
    rig.subscribe()
    assert seen == [(before + 1, 0)]
    assert len(rig.take_v3_notifications()) == 1


def test_changes_of_one_transaction_are_announced_in_the_order_of_the_requests(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        for joins in (True, False, True):
            wanted = rig.subscription_request() if joins else pb.UnsubscribeRequest(topic=TOPIC.to_pb())
            rig.send_request(1 if joins else 2, wanted)
    assert [state for *_, state in rig.take_v3_notifications()] == [IN, OUT, IN]


def test_a_change_that_is_not_committed_is_not_announced(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "no room")

    with monkeypatch.context() as patched:
        patched.setattr(rig.plugin.service._store, "commit", full)
        assert rig.call_refused(1, rig.subscription_request()).code is UCode.RESOURCE_EXHAUSTED
    assert rig.take_v3_notifications() == []


def test_a_flood_of_changes_is_announced_in_parts_and_in_order(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    callers = [UUri(OWN, number, 1, 0) for number in range(1, 9)]
    for caller in callers:
        rig.subscribe(caller=caller)
    rig.take_v3_notifications()
    monkeypatch.setattr(outbox, "UPDATES_PER_TICK", 3)
    rig.reset()
    rig.wait_until(lambda: len(rig.notifications) == 3, "the first three to be announced")
    assert rig.statistics("updates_waiting") == 5
    for count in (6, 8):
        rig.wait_until(lambda: len(rig._timers) == 1, "the next turn to be planned")
        rig.advance(ms=100)
        rig.wait_until(lambda count=count: len(rig.notifications) == count, "the next to be announced")  # type: ignore[misc]
    assert [subscriber for _, _, subscriber, _ in rig.take_v3_notifications()] == callers


def test_pending_notifications_at_the_stop_are_counted_and_logged(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(1, 9):
        rig.subscribe(caller=UUri(OWN, number, 1, 0))
    rig.take_v3_notifications()
    monkeypatch.setattr(outbox, "UPDATES_PER_TICK", 3)
    rig.reset()
    rig.stop()
    assert len(rig.notifications) == 6
    [record] = [each for each in caplog.records if each.message == "usubscription.updates_not_sent"]
    assert record.count == 2  # type: ignore[attr-defined]
