# SPDX-License-Identifier: Apache-2.0
"""Admission of ECUs to offered events: acceptance, the order of Ack and events, and the end of sending."""

from collections.abc import Sequence

import msgspec
import pytest

from tests.transports.someip.discovery.test_event_publisher import GROUP, HOT, KEY, LIGHT, OPEN, SERVICE
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ports import SendOne
from ustreamer.core.routing.usubscription_codec import Status, subscribe_response
from ustreamer.transport_port import SubscriberEnded
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers
from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
from ustreamer.transports.someip.discovery.event_subscriptions import EventgroupAdmission
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import SdSubscription, SubscriptionRequested
from ustreamer.transports.someip.sd.offered_groups import offered_eventgroups
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


def subscription_of(
    group: int, udp: Address | None = UDP, tcp: Address | None = None, *, host: str = "10.0.0.2"
) -> SdSubscription:
    return SdSubscription((host, 30490), KEY, group, 0, udp, tcp)


class AdmissionRig:
    """All parts except the network and uSubscription; `journal` has the messages to the ECUs, in order."""

    def __init__(self) -> None:
        groups = [{"id": BY_GROUP, "multicast": "239.1.1.1:30600", "threshold": 1}]
        offered = offered_eventgroups(
            [msgspec.convert(SERVICE | {"events": EVENTS, "eventgroups": groups}, ServiceConfig)], "hpc.vin1"
        )
        clock = ManualClock().clock()
        self.ids = UuidSource(clock.wall_ms)
        self.journal: list[tuple[object, ...]] = []
        self.connected, self.kept_open = {STREAM, THERE}, set[TcpAddress]()
        self.ecus = EcuSubscribers("chassis", "hpc.vin1", clock, self.ids.next, {KEY: 1})
        self.events = EventPublisher(offered, self.sender)
        self.admission = EventgroupAdmission(offered, self.ecus, self.events, self, self.decide)

    def sender(self, receiver: EventReceiver) -> SendOne:
        def transmit(message: UMessage) -> None:
            topic = message.attributes.source
            to = receiver.tcp_address if topic in receiver.over_tcp else receiver.address
            self.journal.append(("event", to, message.payload))

        return transmit

    def decide(self, accepted: Sequence[SdSubscription], refused: Sequence[SdSubscription]) -> None:
        self.journal += [("ack", each) for each in accepted] + [("nack", each) for each in refused]

    def is_connected(self, address: TcpAddress, /) -> bool:
        return address in self.connected

    def exempt_from_idle(self, address: TcpAddress, /) -> None:
        self.kept_open.add(address)

    def on_subscribe(self, *subscriptions: SdSubscription, values: bool = True) -> None:
        for each in subscriptions:
            self.admission.on_subscribe(SubscriptionRequested(each, 5, multicast=None, initial_data=values))

    def granted(self, *subscriptions: SdSubscription, values: bool = True) -> None:
        """Request and accept these subscriptions."""
        self.on_subscribe(*subscriptions, values=values)
        calls = self.admission.pop_requests()
        for call in calls:
            payload = subscribe_response(3, OPEN, Status.SUBSCRIBED).SerializeToString()
            self.ecus.on_response(response(self.ids.next(), call, payload, UPayloadFormat.PROTOBUF))
        self.admission.apply_decisions()

    def send(self, topic: UUri, payload: bytes, subscriber: UUri) -> None:
        self.events.event_sender(subscriber)(publish(self.ids.next(), topic, payload))

    def next_requests(self) -> list[tuple[str, UUri]]:
        """The requests to uSubscription: method and uEntity."""
        calls = [each.attributes for each in self.admission.pop_requests()]
        return [(METHODS[each.sink.resource_id], each.source) for each in calls if each.sink is not None]

    def pop_journal(self) -> list[tuple[object, ...]]:
        journal, self.journal = self.journal, []
        return journal


def entity(n: int) -> UUri:
    """The uEntity of the nth receiver of the service, after the configured one."""
    return UUri("chassis", n << 16 | 0x4001, 1, 0)


# [utest->SD-204]
def test_a_granted_subscription_gets_an_ack_and_then_events() -> None:
    rig = AdmissionRig()
    rig.on_subscribe(subscription_of(DOORS))
    assert rig.pop_journal() == []
    rig.admission.apply_decisions()
    assert rig.pop_journal() == []  # not before the response
    rig.granted(subscription_of(DOORS))
    rig.send(OPEN, b"open", entity(1))
    assert rig.pop_journal() == [("ack", subscription_of(DOORS)), ("event", UDP, b"open")]
    assert rig.next_requests() == []


# [utest->SD-691]
def test_requested_field_values_follow_the_ack() -> None:
    rig = AdmissionRig()
    early, late, unasked = (subscription_of(LAMPS, ("10.0.0.2", n)) for n in (1, 2, 3))
    rig.granted(early)
    rig.send(LIGHT, b"on", entity(1))
    rig.granted(late)
    rig.granted(unasked, values=False)
    assert rig.pop_journal() == [
        ("ack", early),
        ("event", early.udp, b"on"),
        ("ack", late),
        ("event", late.udp, b"on"),
        ("ack", unasked),
    ]
    rig.admission.send_initial_events(unasked)  # a later request for values
    rig.admission.send_initial_events(subscription_of(LAMPS, ("10.0.0.2", 4)))  # not subscribed
    assert rig.pop_journal() == [("event", unasked.udp, b"on")]


def test_a_refused_subscription_gets_only_a_nack() -> None:
    rig = AdmissionRig()
    rig.on_subscribe(subscription_of(DOORS))
    (call,) = rig.admission.pop_requests()
    rig.ecus.on_response(error_response(rig.ids.next(), call, UStatus(UCode.PERMISSION_DENIED, "no")))
    rig.admission.apply_decisions()
    assert rig.pop_journal() == [("nack", subscription_of(DOORS))]
    assert rig.next_requests() == []
    with pytest.raises(SubscriberEnded):
        rig.send(OPEN, b"open", entity(1))
    rig.granted(subscription_of(DOORS))
    assert rig.pop_journal() == [("ack", subscription_of(DOORS))]  # a retry is possible


def test_a_refused_subscription_gets_no_field_values() -> None:
    rig = AdmissionRig()
    rig.granted(subscription_of(LAMPS))
    rig.send(LIGHT, b"on", entity(1))
    other = subscription_of(LAMPS, ("10.0.0.2", 9))
    rig.on_subscribe(other)
    (call,) = rig.admission.pop_requests()
    rig.ecus.on_response(error_response(rig.ids.next(), call, UStatus(UCode.PERMISSION_DENIED, "no")))
    rig.admission.apply_decisions()
    rig.pop_journal()
    rig.admission.send_initial_events(other)
    assert rig.pop_journal() == []


# [utest->SD-626]
def test_a_multicast_group_is_sent_once_for_all_subscribers() -> None:
    rig = AdmissionRig()
    first, second = subscription_of(BY_GROUP, ("10.0.0.2", 1)), subscription_of(BY_GROUP, ("10.0.0.2", 2))
    rig.granted(first, second)
    topic = OPEN.with_resource(0x8004)

    def sent(payload: bytes) -> list[tuple[object, ...]]:
        rig.pop_journal()
        for n in (1, 2):
            rig.send(topic, payload, entity(n))
        return rig.pop_journal()

    assert sent(b"both") == [("event", GROUP, b"both")]
    rig.admission.on_subscription_ended(first)
    assert sent(b"one") == [("event", GROUP, b"one")]
    rig.admission.on_subscription_ended(second)
    assert GROUP not in [to for _, to, _ in sent(b"no receiver")]


# [utest->SD-1137, SD-102]
@pytest.mark.parametrize(
    ("subscription", "reachable"),
    [
        (subscription_of(DOORS), True),
        (subscription_of(DOORS, None), False),
        (subscription_of(DOORS, None, STREAM), False),
        (subscription_of(BY_GROUP, None), True),
        (subscription_of(ENGINE, None, STREAM), True),
        (subscription_of(ENGINE, UDP, STREAM), True),
        (subscription_of(ENGINE), False),
        (subscription_of(ENGINE, UDP, GONE), False),
    ],
)
def test_a_subscribe_without_a_usable_endpoint_is_refused_immediately(
    subscription: SdSubscription, reachable: bool
) -> None:
    rig = AdmissionRig()
    rig.on_subscribe(subscription)
    assert rig.pop_journal() == ([] if reachable else [("nack", subscription)])
    assert rig.next_requests() == [("subscribe", entity(1))] * reachable
    streams = {STREAM} if reachable and subscription.tcp is not None else set()
    assert rig.kept_open == streams


def test_a_renewal_without_a_usable_endpoint_ends_the_subscription() -> None:
    rig = AdmissionRig()
    engine = subscription_of(ENGINE, None, STREAM)
    rig.granted(engine)
    rig.connected.clear()
    rig.on_subscribe(engine)
    assert rig.pop_journal() == [("ack", engine), ("nack", engine)]
    assert rig.next_requests() == [("unsubscribe", entity(1))]


# [utest->SD-435]
def test_a_closed_connection_ends_its_subscriptions() -> None:
    rig = AdmissionRig()
    here, there, doors = (
        subscription_of(ENGINE, None, STREAM),
        subscription_of(ENGINE, None, THERE, host="10.0.0.3"),
        subscription_of(DOORS),
    )
    for each in (here, there, doors):
        rig.granted(each)
    rig.pop_journal()
    rig.admission.on_tcp_disconnected(STREAM)
    assert rig.pop_journal() == [("nack", here)]
    assert rig.next_requests() == [("unsubscribe", entity(1))]
    rig.send(HOT, b"hot", entity(2))
    assert rig.pop_journal() == [("event", THERE, b"hot")]
    rig.admission.on_tcp_disconnected(STREAM)
    assert (rig.pop_journal(), rig.next_requests()) == ([], [])


# [utest->SD-204]
def test_an_ended_subscription_gets_no_answer_and_no_events() -> None:
    rig = AdmissionRig()
    rig.granted(subscription_of(DOORS))
    rig.pop_journal()
    rig.admission.on_subscription_ended(subscription_of(DOORS))
    (call,) = rig.admission.pop_requests()
    assert call.attributes.source == entity(1)
    rig.send(OPEN, b"under way", entity(1))
    assert rig.pop_journal() == [("event", UDP, b"under way")]
    rig.ecus.on_response(response(rig.ids.next(), call, b"", UPayloadFormat.PROTOBUF))
    assert rig.next_requests() == []
    with pytest.raises(SubscriberEnded):
        rig.send(OPEN, b"too late", entity(1))
    rig.admission.apply_decisions()
    assert rig.pop_journal() == []


def test_an_orphaned_subscription_is_unsubscribed() -> None:
    """A killed streamer left a subscription."""
    rig = AdmissionRig()
    with pytest.raises(SubscriberEnded):
        rig.send(OPEN, b"no receiver", entity(9))
    assert rig.next_requests() == [("unsubscribe", entity(9))]
    assert rig.next_requests() == []
