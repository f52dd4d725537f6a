# SPDX-License-Identifier: Apache-2.0
"""Offered events reach their subscribers: by unicast, by multicast, and field values for later subscribers."""

from typing import NamedTuple

import msgspec
import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.delivery.ports import SendOne
from ustreamer.transport_port import SubscriberEnded
from ustreamer.transports.someip.config import ServiceConfig
from ustreamer.transports.someip.discovery.ecu_subscribers import (
    FIELD_KEEPER,
    EventDestination,
    EventSink,
)
from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
from ustreamer.transports.someip.endpoint.outbound import Outbound
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import HEADER_LENGTH
from ustreamer.transports.someip.protocol.e2e import E2eChecker, E2eResult
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.transports.someip.protocol.field_values import MAX_FIELD_CACHE_BYTES
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.tp_config import TpLimits
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.offered_groups import offered_eventgroups
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

KEY = ServiceKey(0x4001, 1, 1)
OPEN, LIGHT, HOT = (UUri("hpc.vin1", 0x8401, 1, event) for event in (0x8001, 0x8002, 0x8003))
GROUP: Address = ("239.1.1.1", 30600)
ID = UUID(0x7000, 2 << 62)
SERVICE = {
    "service": 0x4001,
    "major": 1,
    "minor": 7,
    "offered": True,
    "provider": "//hpc.vin1/8401/1/0",
    "receivers": [{"address": "10.0.0.9:1"}],
    "events": [
        {"id": 0x8001, "eventgroup": 1},
        {"id": 0x8002, "eventgroup": 2, "field": True},
        {"id": 0x8003, "eventgroup": 3, "protocol": "tcp"},
    ],
}


class Sent(NamedTuple):
    to: Address
    topic: UUri
    payload: bytes


class Bench:
    def __init__(self, **changes: object) -> None:
        service = msgspec.convert(SERVICE | changes, ServiceConfig)
        self.offers = offered_eventgroups([service], "hpc.vin1")
        self.sent: list[Sent] = []
        self.made: list[EventReceiver] = []
        self.away: set[Address] = set()
        self.events = EventPublisher(self.offers, self.sender)
        self.receivers: dict[SdSubscription, EventSink] = {}

    def sender(self, receiver: EventReceiver) -> SendOne:
        self.made.append(receiver)

        def transmit(message: UMessage) -> None:
            topic = message.attributes.source
            to = receiver.tcp_address if topic in receiver.over_tcp else receiver.address
            if to in self.away:
                raise UStatusError(UCode.UNAVAILABLE, "away")
            self.sent.append(Sent(to, topic, message.payload))

        return transmit

    def subscribe(
        self, n: int, group: int, udp: bool = True, tcp: Address | None = None
    ) -> tuple[SdSubscription, UUri]:
        host = f"10.0.0.{n}"
        address = (host, 40_000) if udp else None
        subscription = SdSubscription((host, 30490), KEY, group, 0, address, tcp)
        receiver = EventSink(EventDestination(KEY, address, tcp), UUri("chassis", n << 16 | 0x4001, 1, 0))
        self.receivers[subscription] = receiver
        self.events.add_sink(receiver)
        self.events.on_subscription_accepted(subscription, receiver)
        return subscription, receiver.subscriber

    def publish(self, topic: UUri, payload: bytes, *subscribers: UUri) -> None:
        for each in subscribers:
            self.events.event_sender(each)(publish(ID, topic, payload))

    def pop_sent(self) -> list[Sent]:
        sent, self.sent = self.sent, []
        return sent


# [utest->SD-849, SD-756, SD-814]
def test_an_offer_contains_endpoints_and_event_groups() -> None:
    groups = [
        {"id": 1, "multicast": "239.1.1.1:30600"},
        {"id": 2, "multicast": "239.1.1.2:1", "threshold": 0},
    ]
    offer = Bench(eventgroups=groups).offers[KEY]
    assert offer.sd_service_at(("10.0.0.1", 30500), ("10.0.0.1", 30501)) == OfferedService(
        KEY, 7, ("10.0.0.1", 30500), ("10.0.0.1", 30501), ((1, GROUP), (2, None), (3, None)), (), "hpc.vin1"
    )
    assert (offer.receivers, offer.fields) == (1, frozenset({LIGHT}))


# [utest->SD-787]
def test_each_subscriber_gets_a_unicast_copy() -> None:
    bench = Bench()
    _, first = bench.subscribe(2, 1)
    _, second = bench.subscribe(3, 1)
    bench.publish(OPEN, b"x", first, second)
    assert bench.pop_sent() == [
        Sent(("10.0.0.2", 40_000), OPEN, b"x"),
        Sent(("10.0.0.3", 40_000), OPEN, b"x"),
    ]


# [utest->SD-788]
def test_a_tcp_event_uses_the_connection_named_in_the_subscribe() -> None:
    bench = Bench()
    _, who = bench.subscribe(2, 3, udp=False, tcp=("10.0.0.2", 50_000))
    bench.publish(HOT, b"x", who)
    assert bench.pop_sent() == [Sent(TcpAddress("10.0.0.2", 50_000), HOT, b"x")]


# [utest->RPC-807]
def test_a_removed_subscriber_has_no_sender() -> None:
    bench = Bench()
    subscription, who = bench.subscribe(2, 1)
    transmit = bench.events.event_sender(who)
    bench.events.remove_sink(bench.receivers[subscription])
    with pytest.raises(SubscriberEnded):
        transmit(publish(ID, OPEN, b"x"))
    assert bench.events.pop_orphans() == [(who, OPEN)]
    assert bench.events.pop_orphans() == []


# --- multicast --------------------------------------------------------------------------------------------------------


def by_multicast(threshold: int) -> Bench:
    return Bench(eventgroups=[{"id": 1, "multicast": "239.1.1.1:30600", "threshold": threshold}])


# [utest->RPC-811, RPC-813, SD-823]
def test_from_the_threshold_on_one_target_sends_for_all() -> None:
    bench = by_multicast(2)
    _, first = bench.subscribe(2, 1)
    bench.publish(OPEN, b"1", first)
    second_subscription, second = bench.subscribe(3, 1)
    bench.publish(OPEN, b"2", first, second)
    bench.events.on_subscription_ended(second_subscription)
    bench.publish(OPEN, b"3", first)
    assert bench.pop_sent() == [
        Sent(("10.0.0.2", 40_000), OPEN, b"1"),
        Sent(GROUP, OPEN, b"2"),
        Sent(("10.0.0.2", 40_000), OPEN, b"3"),
    ]


def test_when_the_sending_target_leaves_another_one_sends() -> None:
    bench = by_multicast(1)
    first_subscription, first = bench.subscribe(2, 1)
    _, second = bench.subscribe(3, 1)
    bench.events.on_subscription_ended(first_subscription)
    bench.publish(OPEN, b"x", first, second)
    assert bench.pop_sent() == [Sent(GROUP, OPEN, b"x")]


# [utest->RPC-813]
def test_a_subscriber_without_an_address_gets_multicast_below_the_threshold() -> None:
    bench = by_multicast(9)
    _, first = bench.subscribe(2, 1)
    subscription, nowhere = bench.subscribe(3, 1, udp=False)
    bench.publish(OPEN, b"1", first, nowhere)
    bench.events.on_subscription_ended(subscription)
    bench.publish(OPEN, b"2", first, nowhere)
    assert bench.pop_sent() == [Sent(GROUP, OPEN, b"1"), Sent(("10.0.0.2", 40_000), OPEN, b"2")]


def test_two_groups_of_one_endpoint_count_as_one_subscriber() -> None:
    bench = by_multicast(2)
    _, who = bench.subscribe(2, 1)
    host, key = ("10.0.0.2", 30490), KEY
    again = SdSubscription(host, key, 1, 1, ("10.0.0.2", 40_000), None)  # another counter
    bench.events.on_subscription_accepted(again, bench.receivers[next(iter(bench.receivers))])
    bench.publish(OPEN, b"x", who)
    assert bench.pop_sent() == [Sent(("10.0.0.2", 40_000), OPEN, b"x")]


# --- an event in two groups -----------------------------------------------------------------------------------------


IN_TWO = [{"id": 0x8001, "eventgroup": [1, 2]}, {"id": 0x8002, "eventgroup": 2, "field": True}]


# [utest->SD-1168]
def test_an_event_in_two_groups_reaches_each_subscriber_once() -> None:
    bench = Bench(events=IN_TWO)
    assert bench.offers[KEY].eventgroups == {1: (OPEN,), 2: (OPEN, LIGHT)}
    _, first = bench.subscribe(2, 1)
    _, second = bench.subscribe(3, 2)
    one, both = bench.subscribe(4, 1)
    bench.subscribe(4, 2)
    assert bench.events.subscribers_of(OPEN) == [first, both, second]
    assert bench.events.subscribers_of(LIGHT) == [second, both]
    bench.publish(OPEN, b"x", *bench.events.subscribers_of(OPEN))
    assert [each.to[0] for each in bench.pop_sent()] == ["10.0.0.2", "10.0.0.4", "10.0.0.3"]
    bench.events.on_subscription_ended(one)
    assert bench.events.subscribers_of(OPEN) == [first, second, both]


def test_multicast_receivers_get_no_unicast_copy_through_a_second_group() -> None:
    bench = Bench(events=IN_TWO, eventgroups=[{"id": 1, "multicast": "239.1.1.1:30600"}])
    subscription, first = bench.subscribe(2, 1)
    _, other = bench.subscribe(3, 2)
    _, both = bench.subscribe(4, 1)
    bench.subscribe(4, 2)
    bench.publish(OPEN, b"1", first, other, both)
    assert bench.pop_sent() == [Sent(GROUP, OPEN, b"1"), Sent(("10.0.0.3", 40_000), OPEN, b"1")]
    bench.publish(LIGHT, b"1", other, both)
    assert [each.to[0] for each in bench.pop_sent()] == ["10.0.0.3", "10.0.0.4"]

    bench.events.on_subscription_ended(subscription)
    bench.publish(OPEN, b"2", other, both)
    assert bench.pop_sent() == [Sent(("10.0.0.3", 40_000), OPEN, b"2"), Sent(GROUP, OPEN, b"2")]


def test_two_multicast_groups_each_get_the_event_once() -> None:
    ways = [{"id": 1, "multicast": "239.1.1.1:30600"}, {"id": 2, "multicast": "239.1.1.2:30600"}]
    bench = Bench(events=IN_TWO, eventgroups=ways)
    _, first = bench.subscribe(2, 1)
    _, second = bench.subscribe(3, 2)
    bench.publish(OPEN, b"x", first, second)
    assert [each.to for each in bench.pop_sent()] == [GROUP, ("239.1.1.2", 30600)]

    bench = Bench(events=IN_TWO, eventgroups=ways)
    _, both = bench.subscribe(2, 1)
    bench.subscribe(2, 2)
    bench.publish(OPEN, b"x", both)
    assert [each.to for each in bench.pop_sent()] == [GROUP, ("239.1.1.2", 30600)]


# --- fields -----------------------------------------------------------------------------------------------------------


# [utest->RPC-635, SD-833]
def test_a_later_subscriber_gets_the_last_field_value_but_no_event() -> None:
    bench = Bench()
    _, first = bench.subscribe(2, 2)
    bench.publish(LIGHT, b"off", first)
    bench.publish(LIGHT, b"on", first)
    later, _ = bench.subscribe(3, 2)
    bench.pop_sent()
    bench.events.send_initial_events(later, bench.receivers[later])
    assert bench.pop_sent() == [Sent(("10.0.0.3", 40_000), LIGHT, b"on")]

    _, listener = bench.subscribe(2, 1)
    bench.publish(OPEN, b"x", listener)
    of_events, _ = bench.subscribe(3, 1)
    bench.pop_sent()
    bench.events.send_initial_events(of_events, bench.receivers[of_events])
    assert bench.pop_sent() == []


# [utest->RPC-812, SD-793]
def test_initial_events_of_a_multicast_group_are_unicast() -> None:
    bench = Bench(eventgroups=[{"id": 2, "multicast": "239.1.1.1:30600"}])
    _, first = bench.subscribe(2, 2)
    bench.publish(LIGHT, b"on", first)
    later, _ = bench.subscribe(3, 2)
    assert bench.pop_sent() == [Sent(GROUP, LIGHT, b"on")]
    bench.events.send_initial_events(later, bench.receivers[later])
    assert bench.pop_sent() == [Sent(("10.0.0.3", 40_000), LIGHT, b"on")]


# [utest->SD-1167]
def test_a_field_in_two_groups_has_an_initial_event_for_each_subscription() -> None:
    bench = Bench(events=[{"id": 0x8001, "eventgroup": [1, 2], "field": True}])
    _, first = bench.subscribe(2, 1)
    bench.publish(OPEN, b"on", first)
    bench.pop_sent()
    for group in (1, 2):
        later, _ = bench.subscribe(3, group)
        bench.events.send_initial_events(later, bench.receivers[later])
    assert bench.pop_sent() == [Sent(("10.0.0.3", 40_000), OPEN, b"on")] * 2


def test_a_value_stays_after_the_last_subscriber() -> None:
    bench = Bench()
    first, who = bench.subscribe(2, 2)
    bench.publish(LIGHT, b"on", who)
    bench.events.on_subscription_ended(first)
    later, _ = bench.subscribe(3, 2)
    bench.pop_sent()
    bench.events.send_initial_events(later, bench.receivers[later])
    assert bench.pop_sent() == [Sent(("10.0.0.3", 40_000), LIGHT, b"on")]


def test_the_field_keeper_receives_values_without_a_subscriber() -> None:
    bench = Bench()
    keeper = UUri("chassis", FIELD_KEEPER << 16 | 0x4001, 1, 0)
    bench.events.add_field_keeper(keeper)
    bench.publish(LIGHT, b"on", keeper)
    assert bench.pop_sent() == []
    first, _ = bench.subscribe(2, 2)
    bench.events.send_initial_events(first, bench.receivers[first])
    assert bench.pop_sent() == [Sent(("10.0.0.2", 40_000), LIGHT, b"on")]


def test_a_late_copy_of_an_older_value_does_not_replace_a_newer_one() -> None:
    bench = Bench()
    keeper = UUri("chassis", FIELD_KEEPER << 16 | 0x4001, 1, 0)
    bench.events.add_field_keeper(keeper)
    _, slow = bench.subscribe(2, 2)
    bench.events.event_sender(keeper)(publish(UUID(2 << 16 | 0x7000, 2 << 62), LIGHT, b"new"))
    bench.events.event_sender(slow)(publish(UUID(1 << 16 | 0x7000, 2 << 62), LIGHT, b"old"))
    value = bench.events.values.find(LIGHT)
    assert value is not None
    assert value.payload == b"new"


def test_cached_values_are_bounded() -> None:
    bench = Bench()
    _, who = bench.subscribe(2, 2)
    bench.publish(LIGHT, bytes(MAX_FIELD_CACHE_BYTES + 1), who)
    assert bench.events.statistics()["field_values_dropped"] == 1
    bench.publish(LIGHT, bytes(MAX_FIELD_CACHE_BYTES), who)
    bench.publish(LIGHT, bytes(MAX_FIELD_CACHE_BYTES), who)  # replaces the previous value
    statistics = bench.events.statistics()
    assert (statistics["field_values"], statistics["field_values_dropped"]) == (1, 1)


def test_a_failed_initial_event_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    _, who = bench.subscribe(2, 2)
    bench.publish(LIGHT, b"on", who)
    later, _ = bench.subscribe(3, 2)
    bench.away.add(("10.0.0.3", 40_000))
    bench.events.send_initial_events(later, bench.receivers[later])
    statistics = bench.events.statistics()
    assert (statistics["initial_events"], statistics["initial_events_failed"]) == (0, 1)
    (line,) = caplog.records
    assert (line.message, vars(line)["topic"], vars(line)["reason"]) == (
        "someip.initial_event_failed",
        str(LIGHT),
        "away",
    )


def test_the_initial_event_of_a_protected_field_fits_the_multicast_events_that_follow() -> None:
    """No receiver sees a step of the counter above 1: neither the new one, nor those that the group had before."""
    e2e = {"profile": "P06", "data_id": 7, "covers_header": False, "strip": True}
    event = {"id": 0x8002, "eventgroup": 2, "field": True, "e2e": e2e}
    bench = Bench(events=[event], eventgroups=[{"id": 2, "multicast": "239.1.1.1:30600"}])
    datagrams: list[tuple[Address, bytes]] = []
    callbacks = TcpCallbacks(lambda *_: None, lambda *_: None, lambda _: None)
    connections = TcpConnections(TcpConfig(), lambda: 0, lambda: 0.5, lambda _: True, callbacks)
    no_event = lambda topic: UStatusError(UCode.NOT_FOUND, f"{topic}")  # noqa: E731
    outbound = Outbound(TpLimits(), connections, ManualClock().clock(), lambda _: None, no_event)
    outbound.sendto = lambda datagram, address: datagrams.append((address, datagram))
    bench.events = EventPublisher(bench.offers, outbound.event_transmitter)
    _, first = bench.subscribe(2, 2)
    for payload in (b"1", b"2", b"3"):
        bench.publish(LIGHT, payload, first)
    later, second = bench.subscribe(3, 2)
    bench.events.send_initial_events(later, bench.receivers[later])
    bench.publish(LIGHT, b"4", first, second)
    assert [to for to, _ in datagrams] == [GROUP] * 3 + [("10.0.0.3", 40_000), GROUP]
    config = msgspec.convert(e2e | {"max_delta_counter": 1}, E2eConfig)
    for received in (datagrams[:3] + datagrams[4:], datagrams[3:]):
        checker = E2eChecker(config)
        assert {checker.check(b"", each[HEADER_LENGTH:]) for _, each in received} == {E2eResult.OK}
