# SPDX-License-Identifier: Apache-2.0
"""ECUs that subscribe what is offered here: who is accepted, what an Ack stands before, and when nothing is sent any more."""

from collections.abc import Sequence

import msgspec
import pytest

from tests.transports.someip.test_subscribed_events import GROUP, HOT, KEY, LIGHT, OPEN, SERVICE
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.delivery import Transmit
from ustreamer.core.routing.usubscription_codec import Status, subscribe_answer
from ustreamer.hooks import SubscriberGone
from ustreamer.transports.someip.config import Service
from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers
from ustreamer.transports.someip.discovery.event_publisher import SubscribedEvents
from ustreamer.transports.someip.discovery.event_subscriptions import Admission
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import Subscription, SubscriptionAsked
from ustreamer.transports.someip.sd.offered_groups import offers
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

DOORS, LAMPS, ENGINE, BY_GROUP = 1, 2, 3, 4
EVENTS = [
    {"id": 0x8001, "eventgroup": DOORS},
    {"id": 0x8002, "eventgroup": LAMPS, "field": True},
    {"id": 0x8003, "eventgroup": ENGINE, "protocol": "tcp"},
    {"id": 0x8004, "eventgroup": BY_GROUP},
]
UDP, STREAM = ("10.0.0.2", 40_001), TcpAddress("10.0.0.2", 40_002)
THERE, GONE = TcpAddress("10.0.0.3", 1), TcpAddress("10.0.0.4", 1)
METHODS = {1: "subscribe", 2: "unsubscribe"}


def wants(
    group: int, udp: Address | None = UDP, tcp: Address | None = None, *, host: str = "10.0.0.2"
) -> Subscription:
    return Subscription((host, 30490), KEY, group, 0, udp, tcp)


class Desk:
    """Everything but the network and our uSubscription; `journal` has what went to the ECUs, in order."""

    def __init__(self) -> None:
        groups = [{"id": BY_GROUP, "multicast": "239.1.1.1:30600", "threshold": 1}]
        offered = offers(
            [msgspec.convert(SERVICE | {"events": EVENTS, "eventgroups": groups}, Service)], "hpc.vin1"
        )
        clock = ManualClock().clock()
        self.ids = UuidSource(clock.wall_ms)
        self.journal: list[tuple[object, ...]] = []
        self.connected, self.kept = {STREAM, THERE}, set[TcpAddress]()
        self.ecus = EcuSubscribers("chassis", "hpc.vin1", clock, self.ids.next, {KEY: 1})
        self.events = SubscribedEvents(offered, self.sender)
        self.admission = Admission(offered, self.ecus, self.events, self, self.decide)

    def sender(self, receiver: EventReceiver) -> Transmit:
        def transmit(message: UMessage) -> None:
            topic = message.attributes.source
            to = receiver.tcp_address if topic in receiver.over_tcp else receiver.address
            self.journal.append(("event", to, message.payload))

        return transmit

    def decide(self, accepted: Sequence[Subscription], refused: Sequence[Subscription]) -> None:
        self.journal += [("ack", each) for each in accepted] + [("nack", each) for each in refused]

    def is_connected(self, address: TcpAddress, /) -> bool:
        return address in self.connected

    def keep(self, address: TcpAddress, /) -> None:
        self.kept.add(address)

    def ask(self, *subscriptions: Subscription, values: bool = True) -> None:
        for each in subscriptions:
            self.admission.asked(SubscriptionAsked(each, 5, multicast=None, initial_data=values))

    def granted(self, *subscriptions: Subscription, values: bool = True) -> None:
        """Have these asked for and accepted."""
        self.ask(*subscriptions, values=values)
        calls = self.admission.requests()
        for call in calls:
            said = subscribe_answer(3, OPEN, Status.SUBSCRIBED).SerializeToString()
            self.ecus.answered(response(self.ids.next(), call, said, UPayloadFormat.PROTOBUF))
        self.admission.take_verdicts()

    def send(self, topic: UUri, payload: bytes, subscriber: UUri) -> None:
        self.events.transmitter(subscriber)(publish(self.ids.next(), topic, payload))

    def said(self) -> list[tuple[str, UUri]]:
        """What our uSubscription is told, and by whom."""
        calls = [each.attributes for each in self.admission.requests()]
        return [(METHODS[each.sink.resource_id], each.source) for each in calls if each.sink is not None]

    def take(self) -> list[tuple[object, ...]]:
        journal, self.journal = self.journal, []
        return journal


def entity(n: int) -> UUri:
    """The uEntity that stands for the nth receiver of the service, behind the configured one."""
    return UUri("chassis", n << 16 | 0x4001, 1, 0)


def test_whoever_our_usubscription_grants_has_an_ack_and_then_what_is_published() -> None:
    desk = Desk()
    desk.ask(wants(DOORS))
    assert desk.take() == []
    desk.admission.take_verdicts()
    assert desk.take() == []  # not before it has answered
    desk.granted(wants(DOORS))
    desk.send(OPEN, b"open", entity(1))
    assert desk.take() == [("ack", wants(DOORS)), ("event", UDP, b"open")]
    assert desk.said() == []


def test_the_values_of_fields_come_behind_the_ack_for_whoever_has_asked_for_them() -> None:
    desk = Desk()
    early, late, unasked = (wants(LAMPS, ("10.0.0.2", n)) for n in (1, 2, 3))
    desk.granted(early)
    desk.send(LIGHT, b"on", entity(1))
    desk.granted(late)
    desk.granted(unasked, values=False)
    assert desk.take() == [
        ("ack", early),
        ("event", early.udp, b"on"),
        ("ack", late),
        ("event", late.udp, b"on"),
        ("ack", unasked),
    ]
    desk.admission.send_values(unasked)  # as it asks for them later
    desk.admission.send_values(wants(LAMPS, ("10.0.0.2", 4)))  # which nobody has subscribed
    assert desk.take() == [("event", unasked.udp, b"on")]


def test_whoever_our_usubscription_refuses_has_a_nack_and_nothing_else() -> None:
    desk = Desk()
    desk.ask(wants(DOORS))
    (call,) = desk.admission.requests()
    desk.ecus.answered(error_response(desk.ids.next(), call, UStatus(UCode.PERMISSION_DENIED, "no")))
    desk.admission.take_verdicts()
    assert desk.take() == [("nack", wants(DOORS))]
    assert desk.said() == []
    with pytest.raises(SubscriberGone):
        desk.send(OPEN, b"open", entity(1))
    desk.granted(wants(DOORS))
    assert desk.take() == [("ack", wants(DOORS))]  # it may try again


def test_whoever_was_refused_is_sent_no_values_either() -> None:
    desk = Desk()
    desk.granted(wants(LAMPS))
    desk.send(LIGHT, b"on", entity(1))
    other = wants(LAMPS, ("10.0.0.2", 9))
    desk.ask(other)
    (call,) = desk.admission.requests()
    desk.ecus.answered(error_response(desk.ids.next(), call, UStatus(UCode.PERMISSION_DENIED, "no")))
    desk.admission.take_verdicts()
    desk.take()
    desk.admission.send_values(other)
    assert desk.take() == []


def test_a_group_is_sent_once_for_all_of_it_by_whoever_of_them_is_there() -> None:
    desk = Desk()
    first, second = wants(BY_GROUP, ("10.0.0.2", 1)), wants(BY_GROUP, ("10.0.0.2", 2))
    desk.granted(first, second)
    topic = OPEN.with_resource(0x8004)

    def sent(payload: bytes) -> list[tuple[object, ...]]:
        desk.take()
        for n in (1, 2):
            desk.send(topic, payload, entity(n))
        return desk.take()

    assert sent(b"both") == [("event", GROUP, b"both")]
    desk.admission.ended(first)
    assert sent(b"one") == [("event", GROUP, b"one")]
    desk.admission.ended(second)
    assert GROUP not in [to for _, to, _ in sent(b"nobody")]


@pytest.mark.parametrize(
    ("subscription", "reachable"),
    [
        (wants(DOORS), True),
        (wants(DOORS, None), False),
        (wants(DOORS, None, STREAM), False),
        (wants(BY_GROUP, None), True),
        (wants(ENGINE, None, STREAM), True),
        (wants(ENGINE, UDP, STREAM), True),
        (wants(ENGINE), False),
        (wants(ENGINE, UDP, GONE), False),
    ],
)
def test_whoever_names_nowhere_to_send_is_refused_at_once(
    subscription: Subscription, reachable: bool
) -> None:
    desk = Desk()
    desk.ask(subscription)
    assert desk.take() == ([] if reachable else [("nack", subscription)])
    assert desk.said() == [("subscribe", entity(1))] * reachable
    streams = {STREAM} if reachable and subscription.tcp is not None else set()
    assert desk.kept == streams


def test_whoever_names_nowhere_to_send_any_more_has_nothing_from_before() -> None:
    desk = Desk()
    engine = wants(ENGINE, None, STREAM)
    desk.granted(engine)
    desk.connected.clear()
    desk.ask(engine)
    assert desk.take() == [("ack", engine), ("nack", engine)]
    assert desk.said() == [("unsubscribe", entity(1))]


def test_with_a_connection_go_those_who_were_sent_events_over_it() -> None:
    desk = Desk()
    here, there, doors = (
        wants(ENGINE, None, STREAM),
        wants(ENGINE, None, THERE, host="10.0.0.3"),
        wants(DOORS),
    )
    for each in (here, there, doors):
        desk.granted(each)
    desk.take()
    desk.admission.stream_gone(STREAM)
    assert desk.take() == [("nack", here)]
    assert desk.said() == [("unsubscribe", entity(1))]
    desk.send(HOT, b"hot", entity(2))
    assert desk.take() == [("event", THERE, b"hot")]
    desk.admission.stream_gone(STREAM)
    assert (desk.take(), desk.said()) == ([], [])


def test_who_has_ended_is_told_nothing_more_and_sent_nothing_once_our_usubscription_lets_go() -> None:
    desk = Desk()
    desk.granted(wants(DOORS))
    desk.take()
    desk.admission.ended(wants(DOORS))
    (call,) = desk.admission.requests()
    assert call.attributes.source == entity(1)
    desk.send(OPEN, b"under way", entity(1))
    assert desk.take() == [("event", UDP, b"under way")]
    desk.ecus.answered(response(desk.ids.next(), call, b"", UPayloadFormat.PROTOBUF))
    assert desk.said() == []
    with pytest.raises(SubscriberGone):
        desk.send(OPEN, b"too late", entity(1))
    desk.admission.take_verdicts()
    assert desk.take() == []


def test_what_nobody_is_there_for_is_asked_for_no_more() -> None:
    """A streamer that was killed has left a subscription."""
    desk = Desk()
    with pytest.raises(SubscriberGone):
        desk.send(OPEN, b"for nobody", entity(9))
    assert desk.said() == [("unsubscribe", entity(9))]
    assert desk.said() == []
