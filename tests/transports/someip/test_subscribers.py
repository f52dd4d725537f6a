# SPDX-License-Identifier: Apache-2.0
"""ECUs that subscribe what we offer, as subscribers of our uSubscription: what it is told, and what its answers decide."""

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.routing.usubscription_codec import (
    Status,
    Wish,
    change,
    subscribe_answer,
    subscribe_in,
    unsubscribe_answer,
    unsubscribe_in,
)
from ustreamer.transports.someip.discovery.ecu_subscribers import CALL_TTL_MS, LEAST_LEASE_S, EcuSubscribers
from ustreamer.transports.someip.sd.actions import Subscription
from ustreamer.transports.someip.sd.codec import FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

KEY = ServiceKey(0x4001, 1, 1)
PEER, HERE, THERE = ("10.0.0.2", 30490), ("10.0.0.2", 40001), ("10.0.0.2", 40002)
OPEN, SHUT, HOT = (UUri("hpc.vin1", 0x8401, 1, event) for event in (0x8001, 0x8002, 0x8003))
DOORS = Subscription(PEER, KEY, 1, 0, HERE, None)
ALL = Subscription(PEER, KEY, 2, 0, HERE, None)
ELSEWHERE = Subscription(PEER, KEY, 1, 0, THERE, None)
SERVER = UUri("hpc.vin1", 0, 3, 0)


class Desk:
    """Subscribers of a service that has one configured receiver already."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.ids = UuidSource(self.clock.clock().wall_ms)
        self.ecus = EcuSubscribers("chassis", "hpc.vin1", self.clock.clock(), self.ids.next, {KEY: 1})

    def ask(self, subscription: Subscription = DOORS, *topics: UUri, ttl: int = 5) -> None:
        self.ecus.asked(subscription, topics or (OPEN, SHUT), ttl)

    def grant(self, calls: list[UMessage], status: Status = Status.SUBSCRIBED) -> None:
        for call in calls:
            self.ecus.answered(self.answer(call, status))

    def answer(self, call: UMessage, status: Status) -> UMessage:
        assert call.attributes.sink is not None
        said = (
            subscribe_answer(3, OPEN, status)
            if call.attributes.sink.resource_id == 1
            else unsubscribe_answer(3)
        )
        return response(self.ids.next(), call, said.SerializeToString(), UPayloadFormat.PROTOBUF)

    def refuse(self, call: UMessage, code: UCode) -> None:
        self.ecus.answered(error_response(self.ids.next(), call, UStatus(code, "no")))

    def change(self, subscriber: UUri, topic: UUri, status: Status) -> None:
        payload = change(3, topic, subscriber, status).SerializeToString()
        source = SERVER.with_resource(0x8000)
        self.ecus.told(notification(self.ids.next(), source, subscriber, payload, UPayloadFormat.PROTOBUF))

    def verdicts(self) -> tuple[list[Subscription], list[Subscription]]:
        return tuple(self.ecus.take_verdicts())  # type: ignore[return-value]

    def said(self) -> list[tuple[str, int, UUri]]:
        return [spoken(each) for each in self.ecus.requests()]

    def held(self) -> None:
        """Have the doors subscribed."""
        self.ask()
        self.grant(self.ecus.requests())
        assert self.verdicts() == ([DOORS], [])


def spoken(call: UMessage) -> tuple[str, int, UUri]:
    """What is asked, by which receiver (its n), of which topic."""
    attributes = call.attributes
    assert attributes.sink is not None
    assert attributes.source == UUri("chassis", attributes.source.ue_id, 1, 0)
    assert attributes.source.ue_type == 0x4001
    n = attributes.source.ue_instance
    if attributes.sink == SERVER.with_resource(1):
        return "subscribe", n, subscribe_in(3, call.payload, UPayloadFormat.PROTOBUF).topic
    assert attributes.sink == SERVER.with_resource(2)
    return "unsubscribe", n, unsubscribe_in(3, call.payload, UPayloadFormat.PROTOBUF)


def test_each_event_of_the_group_is_subscribed_for_the_receiver_behind_the_configured_ones() -> None:
    desk = Desk()
    desk.ask()
    assert desk.said() == [("subscribe", 1, OPEN), ("subscribe", 1, SHUT)]
    assert desk.said() == []


def test_a_group_is_accepted_when_all_its_events_are() -> None:
    desk = Desk()
    desk.ask()
    first, second = desk.ecus.requests()
    desk.grant([first])
    assert desk.verdicts() == ([], [])
    desk.grant([second], Status.SUBSCRIBE_PENDING)
    assert desk.verdicts() == ([DOORS], [])
    assert desk.verdicts() == ([], [])


def test_a_group_is_refused_with_one_of_its_events_and_the_others_are_given_back() -> None:
    desk = Desk()
    desk.ask()
    first, second = desk.ecus.requests()
    desk.grant([first])
    desk.refuse(second, UCode.PERMISSION_DENIED)

    assert desk.verdicts() == ([], [DOORS])
    calls = desk.ecus.requests()
    assert [spoken(each) for each in calls] == [("unsubscribe", 1, OPEN)]
    desk.grant(calls)
    assert desk.said() == []
    assert [gone.subscriber for gone in desk.ecus.take_gone()] == [UUri("chassis", 0x1_4001, 1, 0)]
    assert desk.ecus.statistics() == {"sd_receivers": 0, "sd_undecided": 0}


def test_an_answer_that_says_unsubscribed_or_nothing_refuses() -> None:
    for said in (Status.UNSUBSCRIBED, None):
        desk = Desk()
        desk.ask(DOORS, OPEN)
        [call] = desk.ecus.requests()
        if said is None:
            desk.ecus.answered(response(desk.ids.next(), call, b"\xff", UPayloadFormat.PROTOBUF))
        else:
            desk.grant([call], said)
        assert desk.verdicts() == ([], [DOORS])


def test_an_event_of_two_groups_is_subscribed_once_and_ends_with_the_second() -> None:
    desk = Desk()
    desk.held()
    desk.ask(ALL, OPEN, HOT)
    calls = desk.ecus.requests()
    assert [spoken(each) for each in calls] == [("subscribe", 1, HOT)]
    desk.grant(calls)
    assert desk.verdicts() == ([ALL], [])

    desk.ecus.ended(DOORS)
    assert desk.said() == [("unsubscribe", 1, SHUT)]
    desk.ecus.ended(ALL)
    assert desk.said() == [("unsubscribe", 1, OPEN), ("unsubscribe", 1, HOT)]


def test_another_endpoint_is_another_receiver() -> None:
    desk = Desk()
    desk.held()
    desk.ask(ELSEWHERE, OPEN)
    assert desk.said() == [("subscribe", 2, OPEN)]


def test_who_stops_and_subscribes_again_at_once_changes_nothing() -> None:
    desk = Desk()
    desk.held()
    desk.ecus.ended(DOORS)
    desk.ask()
    assert desk.said() == []
    assert desk.verdicts() == ([DOORS], [])


def test_a_receiver_keeps_its_place_until_our_usubscription_has_let_it_go() -> None:
    desk = Desk()
    desk.held()
    desk.ecus.ended(DOORS)
    calls = desk.ecus.requests()
    assert desk.ecus.take_gone() == []
    desk.grant(calls)
    assert desk.said() == []
    [gone] = desk.ecus.take_gone()
    assert gone.place.udp == HERE
    desk.ask(ELSEWHERE, OPEN)
    assert desk.said() == [("subscribe", 1, OPEN)]  # its n is free


def test_who_comes_back_while_it_is_unsubscribed_is_subscribed_behind_that() -> None:
    desk = Desk()
    desk.held()
    desk.ecus.ended(DOORS)
    leaving = desk.ecus.requests()
    desk.ask()
    coming = desk.ecus.requests()
    assert [spoken(each)[0] for each in coming] == ["subscribe", "subscribe"]

    desk.grant(leaving)
    assert desk.said() == []
    assert desk.verdicts() == ([], [])
    desk.grant(coming)
    assert desk.verdicts() == ([DOORS], [])
    assert desk.ecus.take_gone() == []


def test_a_subscription_for_ever_has_no_end_and_another_lasts_as_its_ttl_says() -> None:
    for ttl, lease_s in ((FOREVER, None), (3, LEAST_LEASE_S), (600, 600)):
        desk = Desk()
        desk.ask(DOORS, OPEN, ttl=ttl)
        [call] = desk.ecus.requests()
        end = None if lease_s is None else desk.clock.clock().wall_ms() + lease_s * 1_000
        assert subscribe_in(3, call.payload, UPayloadFormat.PROTOBUF) == Wish(OPEN, end)


def test_a_subscription_that_lasts_is_renewed_at_half_of_its_time() -> None:
    desk = Desk()
    desk.ask(DOORS, OPEN, ttl=100)
    desk.grant(desk.ecus.requests())
    assert desk.ecus.next_deadline_ns == desk.clock.now_ns + 50_000_000_000

    desk.clock.advance(s=50)
    desk.ecus.on_timer(desk.clock.now_ns)
    calls = desk.ecus.requests()
    assert [spoken(each) for each in calls] == [("subscribe", 1, OPEN)]
    desk.grant(calls)
    assert desk.ecus.next_deadline_ns == desk.clock.now_ns + 50_000_000_000
    assert desk.verdicts() == ([DOORS], [])


def test_a_renewal_that_was_not_delivered_is_made_again_and_ends_nothing() -> None:
    desk = Desk()
    desk.ask(DOORS, OPEN, ttl=100)
    desk.grant(desk.ecus.requests())
    desk.verdicts()
    desk.clock.advance(s=50)
    desk.ecus.on_timer(desk.clock.now_ns)
    [call] = desk.ecus.requests()
    desk.refuse(call, UCode.RESOURCE_EXHAUSTED)
    assert desk.verdicts() == ([], [])
    desk.clock.advance(ms=CALL_TTL_MS)
    desk.ecus.on_timer(desk.clock.now_ns)
    assert desk.said() == [("subscribe", 1, OPEN)]

    desk.clock.advance(ms=CALL_TTL_MS)  # and this one was lost
    desk.ecus.on_timer(desk.clock.now_ns)
    assert desk.verdicts() == ([], [])
    assert desk.said() == [("subscribe", 1, OPEN)]


def test_a_call_without_an_answer_is_a_refusal_and_is_taken_back() -> None:
    desk = Desk()
    desk.ask(DOORS, OPEN)
    assert desk.said() == [("subscribe", 1, OPEN)]
    desk.clock.advance(ms=CALL_TTL_MS)
    desk.ecus.on_timer(desk.clock.now_ns)

    assert desk.verdicts() == ([], [DOORS])
    assert desk.said() == [("unsubscribe", 1, OPEN)]
    desk.clock.advance(ms=CALL_TTL_MS)
    desk.ecus.on_timer(desk.clock.now_ns)
    assert desk.said() == []
    assert len(desk.ecus.take_gone()) == 1
    assert desk.ecus.next_deadline_ns is None


def test_what_our_usubscription_ends_is_refused_and_may_be_asked_for_again() -> None:
    desk = Desk()
    desk.held()
    subscriber = UUri("chassis", 0x1_4001, 1, 0)
    desk.change(subscriber, OPEN, Status.SUBSCRIBED)
    assert desk.verdicts() == ([], [])
    desk.change(subscriber, OPEN, Status.UNSUBSCRIBED)

    assert desk.verdicts() == ([], [DOORS])
    assert desk.said() == [("unsubscribe", 1, SHUT)]
    desk.ask()
    assert ("subscribe", 1, OPEN) in desk.said()


def test_news_of_what_was_before_is_no_news() -> None:
    desk = Desk()
    desk.held()
    desk.ecus.ended(DOORS)
    desk.grant(desk.ecus.requests())
    desk.ask()
    calls = desk.ecus.requests()
    desk.change(UUri("chassis", 0x1_4001, 1, 0), OPEN, Status.UNSUBSCRIBED)
    assert desk.verdicts() == ([], [])
    desk.grant(calls)
    assert desk.verdicts() == ([DOORS], [])


@pytest.mark.parametrize("authority", ["hpc.vin2", "chassis"])
def test_news_from_anybody_else_is_not_believed(authority: str) -> None:
    desk = Desk()
    desk.held()
    subscriber = UUri("chassis", 0x1_4001, 1, 0)
    payload = change(3, OPEN, subscriber, Status.UNSUBSCRIBED).SerializeToString()
    source = UUri(authority, 0, 3, 0x8000)
    told = notification(desk.ids.next(), source, subscriber, payload, UPayloadFormat.PROTOBUF)
    desk.ecus.told(told)
    assert desk.verdicts() == ([], [])


def test_a_late_or_a_second_answer_changes_nothing() -> None:
    desk = Desk()
    desk.ask(DOORS, OPEN)
    calls = desk.ecus.requests()
    desk.grant(calls)
    desk.verdicts()
    desk.refuse(calls[0], UCode.PERMISSION_DENIED)
    assert desk.verdicts() == ([], [])


def test_what_our_usubscription_remembers_of_a_streamer_that_was_killed_is_unsubscribed() -> None:
    desk = Desk()
    desk.held()
    left = UUri("chassis", 0x9_4001, 1, 0)
    desk.ecus.let_go(left, OPEN)
    desk.ecus.let_go(UUri("chassis", 0x1_4001, 1, 0), OPEN)  # this one is ours
    desk.ecus.let_go(UUri("cloud", 0x9_4001, 1, 0), OPEN)
    [call] = desk.ecus.requests()
    assert spoken(call) == ("unsubscribe", 9, OPEN)
    desk.grant([call])
    assert desk.said() == []


def test_the_place_is_what_tells_receivers_apart() -> None:
    desk = Desk()
    assert desk.ecus.asked(DOORS, (OPEN,), 5) is desk.ecus.asked(ALL, (OPEN,), 5)
    assert desk.ecus.asked(ELSEWHERE, (OPEN,), 5) is not desk.ecus.asked(ALL, (OPEN,), 5)


def test_what_was_accepted_and_is_over_before_anybody_has_asked_is_accepted_no_more() -> None:
    desk = Desk()
    desk.held()
    again = Subscription(PEER, KEY, 1, 1, HERE, None)  # another counter, and all its topics are held already
    desk.ask(again)
    desk.ecus.ended(again)
    assert desk.verdicts() == ([], [])
    desk.ask(again)
    assert desk.verdicts() == ([again], [])
