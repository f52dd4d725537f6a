# SPDX-License-Identifier: Apache-2.0
"""ECUs as subscribers of the own uSubscription: the requests to it, and the decisions from its responses."""

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    subscribe_in,
    subscribe_response,
    unsubscribe_in,
    unsubscribe_response,
    update_message,
)
from ustreamer.transports.someip.discovery.ecu_subscribers import (
    CALL_TTL_MS,
    FIELD_KEEPER,
    MIN_LEASE_S,
    EcuSubscribers,
)
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

KEY = ServiceKey(0x4001, 1, 1)
PEER, HERE, THERE = ("10.0.0.2", 30490), ("10.0.0.2", 40001), ("10.0.0.2", 40002)
OPEN, SHUT, HOT = (UUri("hpc.vin1", 0x8401, 1, event) for event in (0x8001, 0x8002, 0x8003))
DOORS = SdSubscription(PEER, KEY, 1, 0, HERE, None)
ALL = SdSubscription(PEER, KEY, 2, 0, HERE, None)
ELSEWHERE = SdSubscription(PEER, KEY, 1, 0, THERE, None)
SERVER = UUri("hpc.vin1", 0, 3, 0)


class SubscribersRig:
    """Subscribers of a service with one configured receiver."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ids = UuidSource(self.clock.clock().wall_ms)
        self.ecus = EcuSubscribers("chassis", "hpc.vin1", self.clock.clock(), self.ids.next, {KEY: 1})

    def on_subscribe(self, subscription: SdSubscription = DOORS, *topics: UUri, ttl: int = 5) -> None:
        self.ecus.on_subscribe(subscription, topics or (OPEN, SHUT), ttl)

    def grant(self, calls: list[UMessage], status: Status = Status.SUBSCRIBED) -> None:
        for call in calls:
            self.ecus.on_response(self.answer(call, status))

    def answer(self, call: UMessage, status: Status) -> UMessage:
        assert call.attributes.sink is not None
        state_text = (
            subscribe_response(3, OPEN, status)
            if call.attributes.sink.resource_id == 1
            else unsubscribe_response(3)
        )
        return response(self.ids.next(), call, state_text.SerializeToString(), UPayloadFormat.PROTOBUF)

    def refuse(self, call: UMessage, code: UCode) -> None:
        self.ecus.on_response(error_response(self.ids.next(), call, UStatus(code, "no")))

    def change(self, subscriber: UUri, topic: UUri, status: Status) -> None:
        payload = update_message(3, topic, subscriber, status).SerializeToString()
        source = SERVER.with_resource(0x8000)
        self.ecus.on_update(
            notification(self.ids.next(), source, subscriber, payload, UPayloadFormat.PROTOBUF)
        )

    def pop_decisions(self) -> tuple[list[SdSubscription], list[SdSubscription]]:
        return tuple(self.ecus.pop_decisions())  # type: ignore[return-value]

    def next_requests(self) -> list[tuple[str, int, UUri]]:
        return [request_summary(each) for each in self.ecus.pop_requests()]

    def subscribe_doors(self) -> None:
        """Subscribe to the doors service."""
        self.on_subscribe()
        self.grant(self.ecus.pop_requests())
        assert self.pop_decisions() == ([DOORS], [])


def request_summary(call: UMessage) -> tuple[str, int, UUri]:
    """The method, the receiver's n and the topic of a request."""
    attributes = call.attributes
    assert attributes.sink is not None
    assert attributes.source == UUri("chassis", attributes.source.ue_id, 1, 0)
    assert attributes.source.ue_type == 0x4001
    n = attributes.source.ue_instance
    if attributes.sink == SERVER.with_resource(1):
        return "subscribe", n, subscribe_in(3, call.payload, UPayloadFormat.PROTOBUF).topic
    assert attributes.sink == SERVER.with_resource(2)
    return "unsubscribe", n, unsubscribe_in(3, call.payload, UPayloadFormat.PROTOBUF)


def test_each_event_is_subscribed_by_a_uentity_after_the_configured_ones() -> None:
    rig = SubscribersRig()
    rig.on_subscribe()
    assert rig.next_requests() == [("subscribe", 1, OPEN), ("subscribe", 1, SHUT)]
    assert rig.next_requests() == []


def test_a_group_is_accepted_when_all_its_events_are() -> None:
    rig = SubscribersRig()
    rig.on_subscribe()
    first, second = rig.ecus.pop_requests()
    rig.grant([first])
    assert rig.pop_decisions() == ([], [])
    rig.grant([second], Status.SUBSCRIBE_PENDING)
    assert rig.pop_decisions() == ([DOORS], [])
    assert rig.pop_decisions() == ([], [])


def test_one_refused_event_refuses_the_group_and_unsubscribes_the_others() -> None:
    rig = SubscribersRig()
    rig.on_subscribe()
    first, second = rig.ecus.pop_requests()
    rig.grant([first])
    rig.refuse(second, UCode.PERMISSION_DENIED)

    assert rig.pop_decisions() == ([], [DOORS])
    calls = rig.ecus.pop_requests()
    assert [request_summary(each) for each in calls] == [("unsubscribe", 1, OPEN)]
    rig.grant(calls)
    assert rig.next_requests() == []
    assert [removed.subscriber for removed in rig.ecus.pop_released_sinks()] == [
        UUri("chassis", 0x1_4001, 1, 0)
    ]
    assert rig.ecus.statistics() == {"sd_receivers": 0, "sd_undecided": 0}


def test_a_response_without_a_granted_state_refuses() -> None:
    for state_text in (Status.UNSUBSCRIBED, None):
        rig = SubscribersRig()
        rig.on_subscribe(DOORS, OPEN)
        [call] = rig.ecus.pop_requests()
        if state_text is None:
            rig.ecus.on_response(response(rig.ids.next(), call, b"\xff", UPayloadFormat.PROTOBUF))
        else:
            rig.grant([call], state_text)
        assert rig.pop_decisions() == ([], [DOORS])


def test_an_event_of_two_groups_is_subscribed_once_and_ends_with_the_second() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.on_subscribe(ALL, OPEN, HOT)
    calls = rig.ecus.pop_requests()
    assert [request_summary(each) for each in calls] == [("subscribe", 1, HOT)]
    rig.grant(calls)
    assert rig.pop_decisions() == ([ALL], [])

    rig.ecus.on_subscription_ended(DOORS)
    assert rig.next_requests() == [("unsubscribe", 1, SHUT)]
    rig.ecus.on_subscription_ended(ALL)
    assert rig.next_requests() == [("unsubscribe", 1, OPEN), ("unsubscribe", 1, HOT)]


def test_another_endpoint_is_another_receiver() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.on_subscribe(ELSEWHERE, OPEN)
    assert rig.next_requests() == [("subscribe", 2, OPEN)]


# [utest->SD-1170]
def test_a_stop_and_subscribe_in_one_message_changes_nothing() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.ecus.on_subscription_ended(DOORS)
    rig.on_subscribe()
    assert rig.next_requests() == []
    assert rig.pop_decisions() == ([DOORS], [])


def test_a_sink_keeps_its_address_until_usubscription_released_it() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.ecus.on_subscription_ended(DOORS)
    calls = rig.ecus.pop_requests()
    assert rig.ecus.pop_released_sinks() == []
    rig.grant(calls)
    assert rig.next_requests() == []
    [removed] = rig.ecus.pop_released_sinks()
    assert removed.destination.udp == HERE
    rig.on_subscribe(ELSEWHERE, OPEN)
    assert rig.next_requests() == [("subscribe", 1, OPEN)]  # the number is free again


def test_a_subscribe_during_an_unsubscribe_follows_it() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.ecus.on_subscription_ended(DOORS)
    leaving = rig.ecus.pop_requests()
    rig.on_subscribe()
    coming = rig.ecus.pop_requests()
    assert [request_summary(each)[0] for each in coming] == ["subscribe", "subscribe"]

    rig.grant(leaving)
    assert rig.next_requests() == []
    assert rig.pop_decisions() == ([], [])
    rig.grant(coming)
    assert rig.pop_decisions() == ([DOORS], [])
    assert rig.ecus.pop_released_sinks() == []


def test_the_lease_follows_the_ttl() -> None:
    for ttl, lease_s in ((TTL_FOREVER, None), (3, MIN_LEASE_S), (600, 600)):
        rig = SubscribersRig()
        rig.on_subscribe(DOORS, OPEN, ttl=ttl)
        [call] = rig.ecus.pop_requests()
        end = None if lease_s is None else rig.clock.clock().wall_ms() + lease_s * 1_000
        assert subscribe_in(3, call.payload, UPayloadFormat.PROTOBUF) == SubscribeRequest(OPEN, end)


def test_a_lasting_subscription_is_renewed_at_half_of_its_lease() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN, ttl=100)
    rig.grant(rig.ecus.pop_requests())
    assert rig.ecus.next_deadline_ns == rig.clock.now_ns + 50_000_000_000

    rig.clock.advance(s=50)
    rig.ecus.on_timer(rig.clock.now_ns)
    calls = rig.ecus.pop_requests()
    assert [request_summary(each) for each in calls] == [("subscribe", 1, OPEN)]
    rig.grant(calls)
    assert rig.ecus.next_deadline_ns == rig.clock.now_ns + 50_000_000_000
    assert rig.pop_decisions() == ([DOORS], [])


def test_a_lost_renewal_is_retried_without_an_end() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN, ttl=100)
    rig.grant(rig.ecus.pop_requests())
    rig.pop_decisions()
    rig.clock.advance(s=50)
    rig.ecus.on_timer(rig.clock.now_ns)
    [call] = rig.ecus.pop_requests()
    rig.refuse(call, UCode.RESOURCE_EXHAUSTED)
    assert rig.pop_decisions() == ([], [])
    rig.clock.advance(ms=CALL_TTL_MS)
    rig.ecus.on_timer(rig.clock.now_ns)
    assert rig.next_requests() == [("subscribe", 1, OPEN)]

    rig.clock.advance(ms=CALL_TTL_MS)  # and the response is lost
    rig.ecus.on_timer(rig.clock.now_ns)
    assert rig.pop_decisions() == ([], [])
    assert rig.next_requests() == [("subscribe", 1, OPEN)]


def test_a_longer_lease_is_requested_after_the_answer_to_a_shorter_one() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN, ttl=3)
    calls = rig.ecus.pop_requests()
    rig.on_subscribe(ALL, OPEN, ttl=600)
    assert rig.next_requests() == []
    rig.grant(calls)
    assert rig.pop_decisions() == ([DOORS, ALL], [])
    [call] = rig.ecus.pop_requests()
    end_ms = rig.clock.clock().wall_ms() + 600_000
    assert subscribe_in(3, call.payload, UPayloadFormat.PROTOBUF) == SubscribeRequest(OPEN, end_ms)


def test_an_end_by_usubscription_during_a_renewal_is_followed_by_an_unsubscribe() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN, ttl=100)
    rig.grant(rig.ecus.pop_requests())
    rig.clock.advance(s=50)
    rig.ecus.on_timer(rig.clock.now_ns)
    renewals = rig.ecus.pop_requests()
    rig.change(UUri("chassis", 0x1_4001, 1, 0), OPEN, Status.UNSUBSCRIBED)
    assert rig.pop_decisions() == ([], [DOORS])
    assert rig.next_requests() == [("unsubscribe", 1, OPEN)]
    rig.grant(renewals)
    assert rig.next_requests() == []


def test_a_call_without_a_response_is_a_refusal_and_is_unsubscribed() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN)
    assert rig.next_requests() == [("subscribe", 1, OPEN)]
    rig.clock.advance(ms=CALL_TTL_MS)
    rig.ecus.on_timer(rig.clock.now_ns)

    assert rig.pop_decisions() == ([], [DOORS])
    assert rig.next_requests() == [("unsubscribe", 1, OPEN)]
    rig.clock.advance(ms=CALL_TTL_MS)
    rig.ecus.on_timer(rig.clock.now_ns)
    assert rig.next_requests() == []
    assert len(rig.ecus.pop_released_sinks()) == 1
    assert rig.ecus.next_deadline_ns is None


def test_an_end_by_usubscription_is_a_refusal_and_a_retry_is_possible() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    subscriber = UUri("chassis", 0x1_4001, 1, 0)
    rig.change(subscriber, OPEN, Status.SUBSCRIBED)
    assert rig.pop_decisions() == ([], [])
    rig.change(subscriber, OPEN, Status.UNSUBSCRIBED)

    assert rig.pop_decisions() == ([], [DOORS])
    assert rig.next_requests() == [("unsubscribe", 1, SHUT)]
    rig.on_subscribe()
    assert ("subscribe", 1, OPEN) in rig.next_requests()


def test_an_update_of_an_own_unsubscribe_may_come_after_the_next_grant() -> None:
    """Else the renewed subscription ends, and its events have no subscriber until the ECU subscribes again."""
    rig = SubscribersRig()
    rig.subscribe_doors()
    subscriber = UUri("chassis", 0x1_4001, 1, 0)
    rig.ecus.on_subscription_ended(DOORS)
    rig.ecus.pop_requests()
    rig.on_subscribe()
    rig.grant(rig.ecus.pop_requests())
    assert rig.pop_decisions() == ([DOORS], [])
    for topic in (OPEN, SHUT):
        rig.change(subscriber, topic, Status.UNSUBSCRIBED)
        rig.change(subscriber, topic, Status.SUBSCRIBED)
    assert rig.pop_decisions() == ([], [])
    rig.change(subscriber, OPEN, Status.UNSUBSCRIBED)  # an end by uSubscription
    assert rig.pop_decisions() == ([], [DOORS])


def test_an_own_unsubscribe_without_an_update_hides_no_later_end() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.ecus.on_subscription_ended(DOORS)
    rig.grant(rig.ecus.pop_requests())
    rig.on_subscribe()
    rig.grant(rig.ecus.pop_requests())
    rig.pop_decisions()
    rig.clock.advance(s=5)
    rig.change(UUri("chassis", 0x1_4001, 1, 0), OPEN, Status.UNSUBSCRIBED)
    assert rig.pop_decisions() == ([], [DOORS])


def test_an_obsolete_update_is_ignored() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    rig.ecus.on_subscription_ended(DOORS)
    rig.grant(rig.ecus.pop_requests())
    rig.on_subscribe()
    calls = rig.ecus.pop_requests()
    rig.change(UUri("chassis", 0x1_4001, 1, 0), OPEN, Status.UNSUBSCRIBED)
    assert rig.pop_decisions() == ([], [])
    rig.grant(calls)
    assert rig.pop_decisions() == ([DOORS], [])


@pytest.mark.parametrize("authority", ["hpc.vin2", "chassis"])
def test_an_update_from_another_authority_is_ignored(authority: str) -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    subscriber = UUri("chassis", 0x1_4001, 1, 0)
    payload = update_message(3, OPEN, subscriber, Status.UNSUBSCRIBED).SerializeToString()
    source = UUri(authority, 0, 3, 0x8000)
    notified = notification(rig.ids.next(), source, subscriber, payload, UPayloadFormat.PROTOBUF)
    rig.ecus.on_update(notified)
    assert rig.pop_decisions() == ([], [])


def test_a_late_or_repeated_response_changes_nothing() -> None:
    rig = SubscribersRig()
    rig.on_subscribe(DOORS, OPEN)
    calls = rig.ecus.pop_requests()
    rig.grant(calls)
    rig.pop_decisions()
    rig.refuse(calls[0], UCode.PERMISSION_DENIED)
    assert rig.pop_decisions() == ([], [])


def test_subscriptions_of_a_killed_streamer_are_unsubscribed() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    left = UUri("chassis", 0x9_4001, 1, 0)
    rig.ecus.unsubscribe_orphan(left, OPEN)
    rig.ecus.unsubscribe_orphan(UUri("chassis", 0x1_4001, 1, 0), OPEN)  # this one is known
    rig.ecus.unsubscribe_orphan(UUri("cloud", 0x9_4001, 1, 0), OPEN)
    [call] = rig.ecus.pop_requests()
    assert request_summary(call) == ("unsubscribe", 9, OPEN)
    rig.grant([call])
    assert rig.next_requests() == []


def test_receivers_are_distinguished_by_destination() -> None:
    rig = SubscribersRig()
    assert rig.ecus.on_subscribe(DOORS, (OPEN,), 5) is rig.ecus.on_subscribe(ALL, (OPEN,), 5)
    assert rig.ecus.on_subscribe(ELSEWHERE, (OPEN,), 5) is not rig.ecus.on_subscribe(ALL, (OPEN,), 5)


def test_a_subscription_that_ended_has_no_decision() -> None:
    rig = SubscribersRig()
    rig.subscribe_doors()
    again = SdSubscription(PEER, KEY, 1, 1, HERE, None)  # another counter; all its topics are already granted
    rig.on_subscribe(again)
    rig.ecus.on_subscription_ended(again)
    assert rig.pop_decisions() == ([], [])
    rig.on_subscribe(again)
    assert rig.pop_decisions() == ([again], [])


# --- field keepers ----------------------------------------------------------------------------------------------------

LIMIT = UUri("cloud", 0x8401, 1, 0x8009)


def test_a_field_of_another_device_stays_subscribed_after_the_last_ecu() -> None:
    rig = SubscribersRig()
    rig.ecus.keep_fields(KEY, [OPEN, LIMIT])
    calls = rig.ecus.pop_requests()
    assert [request_summary(each) for each in calls] == [("subscribe", FIELD_KEEPER, LIMIT)]
    rig.grant(calls, Status.SUBSCRIBE_PENDING)
    rig.on_subscribe(DOORS, LIMIT)
    rig.ecus.keep_fields(KEY, [OPEN, LIMIT])
    rig.grant(rig.ecus.pop_requests())
    rig.ecus.on_subscription_ended(DOORS)
    assert rig.next_requests() == [("unsubscribe", 1, LIMIT)]


def test_a_refused_field_keeper_subscribes_again_after_a_pause() -> None:
    rig = SubscribersRig()
    rig.ecus.keep_fields(KEY, [LIMIT])
    [call] = rig.ecus.pop_requests()
    rig.refuse(call, UCode.RESOURCE_EXHAUSTED)
    assert rig.next_requests() == []
    rig.clock.advance(ms=CALL_TTL_MS)
    rig.ecus.on_timer(rig.clock.now_ns)
    calls = rig.ecus.pop_requests()
    assert [request_summary(each) for each in calls] == [("subscribe", FIELD_KEEPER, LIMIT)]
    rig.grant(calls)
    rig.change(UUri("chassis", FIELD_KEEPER << 16 | 0x4001, 1, 0), LIMIT, Status.UNSUBSCRIBED)
    assert rig.next_requests() == []
    rig.clock.advance(ms=CALL_TTL_MS)
    rig.ecus.on_timer(rig.clock.now_ns)
    assert rig.next_requests() == [("subscribe", FIELD_KEEPER, LIMIT)]
    assert rig.pop_decisions() == ([], [])
