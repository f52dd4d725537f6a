# SPDX-License-Identifier: Apache-2.0
"""Service discovery of a running endpoint, opposite an ECU made of bytes: what is found, lost, subscribed and served."""

import random
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pytest

from tests.e2e.rigs.ports import udp_ports
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    SubscriptionUpdate,
    status_in,
    subscribe_in,
    subscribe_request,
    subscribe_response,
    subscription_update_in,
    unsubscribe_request,
    unsubscribe_response,
)
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, RouteUnavailable, SubscriberEnded
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.sd_driver import MAX_PENDING_MESSAGES
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode, split
from ustreamer.transports.someip.sd.codec import (
    Entry,
    EntryType,
    EventgroupEntry,
    SdMessage,
    ServiceEntry,
    decode_sd_message,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole, L4Protocol, Option
from ustreamer.transports.someip.sd.sessions import REORDER_NS
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status

WITHIN_S = 30.0
GROUP = "224.244.224.245"
EVENTS = "239.7.7.7"
SPEED, DOORS = 0x1234, 0x4001
TOPIC = UUri("chassis", SPEED, 1, 0x8001)
METHOD = UUri("chassis", SPEED, 1, 1)
OPEN, LIGHT = UUri("hpc.vin1", 0x8401, 1, 0x8001), UUri("hpc.vin1", 0x8401, 1, 0x8002)
APP, OWN = UUri("hpc.vin1", 0x10A0, 1, 0), UUri("hpc.vin1", 0, 3, 0)
SERVER = UUri("chassis", 0, 3, 1)
FAST = {
    "initial_delay_min_ms": 0,
    "initial_delay_max_ms": 1,
    "repetitions_base_delay_ms": 10,
    "cyclic_offer_delay_ms": 100,
    "request_response_delay_min_ms": 0,
    "request_response_delay_max_ms": 1,
    "ttl_offer_s": 1,
    "ttl_subscribe_s": 2,
}


class Ecu:
    """An ECU in bytes: service discovery on a socket for the group and one of its own, and one for its data."""

    def __init__(self, stack: ExitStack, host: str, sd_port: int) -> None:
        self.host, self._port, self._stack = host, sd_port, stack
        self.tcp_server: socket.socket | None = None
        self._own = self._socket(stack, (host, sd_port))
        self._group = self._socket(stack, (GROUP, sd_port))
        membership = socket.inet_aton(GROUP) + socket.inet_aton(host)
        self._group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        self.data = self._socket(stack, (host, 0))
        self.address: Address = self.data.getsockname()
        self._sessions: dict[Address, int] = {}
        self.received: list[Entry] = []

    def _socket(self, stack: ExitStack, address: Address) -> socket.socket:
        opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.host))
        opened.bind(address)
        opened.settimeout(0.01)
        return opened

    def reboot(self) -> None:
        """Count from 1 again, after longer than a network may take to deliver what was said before."""
        booted_ns = time.monotonic_ns() + REORDER_NS
        wait_until(lambda: time.monotonic_ns() > booted_ns)
        self._sessions.clear()

    def send(self, *entries: Entry, to: str = GROUP, flag: bool = True) -> None:
        address = (to, self._port)
        session = self._sessions[address] = self._sessions.get(address, 0) + 1
        self._own.sendto(encode_sd_message(SdMessage(entries, reboot=flag), session), address)

    def offer(self, ttl: int = 30, port: int | None = None, service: int = SPEED) -> None:
        where: list[Option] = [Endpoint(self.host, self.address[1] if port is None else port)]
        if self.tcp_server is not None:
            where += over(self.tcp_server.getsockname())
        self.send(ServiceEntry(EntryType.OFFER, service, 1, 1, 0, ttl, tuple(where)))

    def open_tcp_server(self) -> None:
        """Have a TCP endpoint as well, which is in the Offers from now on."""
        self.tcp_server = self._stack.enter_context(socket.create_server((self.host, 0)))
        self.tcp_server.settimeout(WITHIN_S)

    def accept(self) -> socket.socket:
        assert self.tcp_server is not None
        stream, _ = self.tcp_server.accept()
        stream.settimeout(WITHIN_S)
        return self._stack.enter_context(stream)

    def connect(self, to: Address) -> socket.socket:
        stream = socket.create_connection(to, WITHIN_S, (self.host, 0))
        return self._stack.enter_context(stream)

    def subscribe_over(self, stream: socket.socket, ttl: int = 30) -> None:
        where = over(stream.getsockname())
        self.send(EventgroupEntry(EntryType.SUBSCRIBE, DOORS, 1, 1, 3, ttl, options=where), to="127.0.0.1")

    def subscribe(self, group: int = 1, ttl: int = 30, service: int = DOORS) -> None:
        where = Endpoint(*self.address)
        entry = EventgroupEntry(EntryType.SUBSCRIBE, service, 1, 1, group, ttl, options=(where,))
        self.send(entry, to="127.0.0.1")

    def send_ack(self, subscribe: EventgroupEntry, ttl: int, multicast: Address | None = None) -> None:
        options = () if multicast is None else (Endpoint(*multicast, role=int(EndpointRole.MULTICAST)),)
        entry = EventgroupEntry(
            EntryType.ACK,
            subscribe.service,
            subscribe.instance,
            subscribe.major,
            subscribe.eventgroup,
            ttl,
            options=options,
        )
        self.send(entry, to="127.0.0.1")

    def expect_entry(self, match: Callable[[Any], bool], at: tuple[socket.socket, ...] | None = None) -> Any:
        """The next entry that came and matches; those before it are forgotten."""
        until = time.monotonic() + WITHIN_S
        while time.monotonic() < until:
            while self.received:
                entry = self.received.pop(0)
                if match(entry):
                    return entry
            for opened in at or (self._own, self._group):
                try:
                    [message], _ = split(opened.recv(65_535))
                except TimeoutError:
                    continue
                self.received += decode_sd_message(message)[0].entries
        raise AssertionError("no such entry came")

    def wait_until_processed(self) -> None:
        """Wait until all that anybody has said before this is taken in: a Find is answered to its sender alone."""
        for to in (GROUP, "127.0.0.1"):
            self.send(ServiceEntry(EntryType.FIND, DOORS, 1, 1, 0, 1), to=to)
            self.expect_entry(lambda each: each.type == EntryType.OFFER and each.ttl, (self._own,))

    def discard_received(self) -> None:
        """Leave nothing to hear of what came before this."""
        self.received.clear()
        for opened in (self._own, self._group):
            with suppress(TimeoutError):
                while True:
                    opened.recv(65_535)

    def expect_subscribe(self) -> EventgroupEntry:
        entry = self.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and each.ttl)
        assert isinstance(entry, EventgroupEntry)
        return entry

    def event(self, payload: bytes, to: Address) -> None:
        self.data.sendto(event(0x8001, payload), to)

    def request(self, to: Address) -> None:
        self.data.sendto(bytes.fromhex("400100010000000800010001010100 00".replace(" ", "")), to)

    def receive(self) -> SomeIpMessage:
        self.data.settimeout(WITHIN_S)
        [message], _ = split(self.data.recv(65_535))
        return message


def over(address: Address) -> tuple[Option, ...]:
    """The option of an endpoint over TCP."""
    host, port = address
    return (Endpoint(host, port, int(L4Protocol.TCP)),)


def event(number: int, payload: bytes) -> bytes:
    """A NOTIFICATION of the ECU's service."""
    message = SomeIpMessage(
        service=SPEED,
        method=number,
        client=0,
        session=1,
        interface_version=1,
        message_type=int(MessageType.NOTIFICATION),
        return_code=0,
        payload=payload,
    )
    return encode(message)


class Bench:
    """An endpoint with service discovery; what its listeners hear waits in `ears`."""

    def __init__(
        self, stack: ExitStack, *, opened: bool = True, clients: list[str] | None = None, **sd: Any
    ) -> None:
        self.stack = stack
        self.sd_port, self.port = udp_ports(2)
        section = {"multicast": GROUP, "port": self.sd_port, "interface": "127.0.0.1", "timings": FAST} | sd
        config = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": self.port,
            "sd": section,
            "clients": clients,
            "services": [
                {
                    "service": SPEED,
                    "major": 1,
                    "events": [
                        {"id": 0x8001, "eventgroup": 1},
                        {"id": 0x8002, "eventgroup": 1},
                        {"id": 0x8003, "eventgroup": 3, "protocol": "tcp"},
                    ],
                    "methods": [1],
                },
                {
                    "service": DOORS,
                    "major": 1,
                    "events": [
                        {"id": 0x8001, "eventgroup": 1},
                        {"id": 0x8002, "eventgroup": 1, "field": True},
                        {"id": 0x8003, "eventgroup": 3, "protocol": "tcp"},
                    ],
                    "methods": [1],
                    "offered": True,
                    "provider": "//hpc.vin1/8401/1/0",
                },
            ],
        }
        context = EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK)
        self.endpoint = SomeipTransport(msgspec.convert(config, SomeipEndpoint), context)
        stack.callback(self.endpoint.close)
        self.received: SimpleQueue[UMessage] = SimpleQueue()
        self.routes: list[object] = []
        self.endpoint.watch_routes(self.routes.append)
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.received.put)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        if opened:
            self.endpoint.open()

    def ecu(self, host: str = "127.0.0.7") -> Ecu:
        return Ecu(self.stack, host, self.sd_port)

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.port)

    def next(self) -> UMessage:
        return self.received.get(timeout=WITHIN_S)

    def count(self, name: str) -> int:
        return self.endpoint.statistics()[name]

    def until(self, name: str, number: int) -> None:
        wait_until(lambda: self.count(name) == number)

    # --- as our uSubscription, which asks ---------------------------------------------------------------------------------

    def subscribe_topic(self, topic: UUri = TOPIC, caller: UUri = OWN) -> Status:
        payload = subscribe_request(SubscribeRequest(topic)).SerializeToString()
        answer = self.call(SERVER, payload, caller)
        assert answer.attributes.commstatus is None
        return status_in(3, answer.payload, answer.attributes.payload_format)

    def call(self, method: UUri, payload: bytes, caller: UUri = OWN) -> UMessage:
        call = request(self.ids.next(), caller, method, payload, UPayloadFormat.PROTOBUF, ttl=1_000)
        self.endpoint.send(call)
        answer = self.next()
        assert answer.attributes.reqid == call.id
        return answer

    def next_update(self) -> SubscriptionUpdate | None:
        return subscription_update_in(self.next())

    # --- as our uSubscription, which is asked -----------------------------------------------------------------------------

    def next_request(self) -> UMessage:
        call = self.next()
        assert call.attributes.type is UMessageType.REQUEST
        assert call.attributes.sink in {OWN.with_resource(1), OWN.with_resource(2)}
        return call

    def grant(self, call: UMessage) -> None:
        assert call.attributes.sink is not None
        payload = (
            subscribe_response(3, OPEN, Status.SUBSCRIBED)
            if call.attributes.sink.resource_id == 1
            else unsubscribe_response(3)
        )
        answer = response(self.ids.next(), call, payload.SerializeToString(), UPayloadFormat.PROTOBUF)
        self.endpoint.send(answer)

    def subscribe_ecu(self, ecu: Ecu, ttl: int = 30) -> UUri:
        """Have an ECU subscribe the doors; the uEntity that stands for it."""
        ecu.subscribe(ttl=ttl)
        calls = [self.next_request(), self.next_request()]
        for call in calls:
            self.grant(call)
        ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl)
        return calls[0].attributes.source


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.001)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


@pytest.fixture
def bench(stack: ExitStack) -> Bench:
    return Bench(stack)


# --- finding ------------------------------------------------------------------------------------------------------------


def call_of(bench: Bench) -> UMessage:
    return request(bench.ids.next(), APP, METHOD, b"?", ttl=1_000)


def test_a_service_is_called_where_it_is_offered_and_its_route_opens(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.expect_entry(lambda each: each.type == EntryType.FIND and each.service == SPEED)
    with pytest.raises(RouteUnavailable, match="not offered at present") as refused:
        bench.endpoint.send(call_of(bench))

    ecu.offer()
    wait_until(lambda: bench.routes == [refused.value.route])
    bench.endpoint.send(call_of(bench))
    assert ecu.receive().payload == b"?"


@pytest.mark.parametrize("how", ["stops", "ttl", "reboots"])
def test_a_service_that_is_gone_is_not_called_any_more(bench: Bench, how: str) -> None:
    ecu = bench.ecu()
    ecu.offer(ttl=1 if how == "ttl" else 30)
    if how == "stops":
        bench.until("sd_found", 1)
        ecu.offer(ttl=0)
    elif how == "reboots":
        bench.until("sd_found", 1)
        ecu.reboot()
        ecu.send(ServiceEntry(EntryType.FIND, 0x7777, 1, 1, 0, 1))
    bench.until("sd_times_lost", 1)
    with pytest.raises(RouteUnavailable):
        bench.endpoint.send(call_of(bench))


@pytest.mark.parametrize(("how", "why"), [("stops", "stopped"), ("ttl", "expired"), ("reboots", "rebooted")])
def test_callers_of_a_service_that_goes_are_told_at_once(bench: Bench, how: str, why: str) -> None:
    ecu = bench.ecu()
    ecu.offer(ttl=2 if how == "ttl" else 30)
    bench.until("sd_found", 1)
    call = request(bench.ids.next(), APP, METHOD, b"?", ttl=600_000)
    bench.endpoint.send(call)
    assert ecu.receive().payload == b"?"
    if how == "stops":
        ecu.offer(ttl=0)
    elif how == "reboots":
        ecu.reboot()
        ecu.offer(ttl=30)

    answer = bench.next()

    assert (answer.attributes.reqid, answer.attributes.commstatus) == (call.id, UCode.UNAVAILABLE)
    assert f"went ({why})" in decode_status(answer.payload).message
    assert (bench.count("calls_service_gone"), bench.count("calls_open")) == (1, 0)


def test_an_event_is_taken_from_where_its_service_is_offered_and_from_nowhere_else(bench: Bench) -> None:
    ecu, other = bench.ecu(), bench.ecu("127.0.0.8")
    ecu.event(b"early", bench.address)
    bench.until("refused_event_address", 1)
    ecu.offer()
    bench.until("sd_found", 1)
    other.event(b"forged", bench.address)
    bench.until("refused_event_address", 2)
    ecu.event(b"fast", bench.address)
    message = bench.next()
    assert (message.attributes.source, message.payload) == (TOPIC, b"fast")


def test_an_offer_from_a_network_that_is_not_believed_is_refused(stack: ExitStack) -> None:
    bench = Bench(stack, networks=["127.0.0.8/32"])
    stranger, known = bench.ecu("127.0.0.7"), bench.ecu("127.0.0.8")
    stranger.offer()
    bench.until("refused_sd_network", 1)
    assert bench.count("sd_found") == 0
    known.offer()
    bench.until("sd_found", 1)


def test_an_offer_does_not_move_a_service_in_use(bench: Bench) -> None:
    ecu, thief = bench.ecu(), bench.ecu("127.0.0.8")
    ecu.offer()
    bench.until("sd_found", 1)
    ecu.offer(port=1)
    bench.until("refused_sd_offer_changed", 1)
    thief.offer()
    bench.until("refused_sd_offer_foreign", 1)
    bench.endpoint.send(call_of(bench))
    assert ecu.receive().payload == b"?"


def test_what_is_no_service_discovery_is_refused(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.event(b"x", ("127.0.0.1", bench.sd_port))
    bench.until("refused_sd_service", 1)
    ecu.data.sendto(b"\xff" * 7, ("127.0.0.1", bench.sd_port))
    bench.until("refused_truncated_header", 1)


def test_requests_are_taken_from_whom_we_believe_or_from_the_configured_clients_alone(
    stack: ExitStack,
) -> None:
    for clients, answered in ((None, True), (["127.0.0.200/32"], False)):
        bench = Bench(stack, clients=clients, networks=["127.0.0.7/32"])
        ecu = bench.ecu()
        ecu.request(bench.address)
        if answered:
            assert bench.next().attributes.sink == UUri("hpc.vin1", 0x8401, 1, 1)
        else:
            bench.until("refused_request_address", 1)


# --- what others subscribe of ECUs --------------------------------------------------------------------------------------


def test_a_topic_is_pending_until_its_ack_and_what_happens_to_it_is_told(bench: Bench) -> None:
    ecu = bench.ecu()
    assert bench.subscribe_topic() is Status.SUBSCRIBE_PENDING
    ecu.offer()
    asked = ecu.expect_subscribe()
    assert (asked.service, asked.eventgroup, asked.ttl) == (SPEED, 1, 2)
    assert asked.options == (Endpoint(*bench.address),)
    ecu.send_ack(asked, 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)
    assert bench.subscribe_topic() is Status.SUBSCRIBED

    ecu.offer(ttl=0)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)


def test_a_nack_is_told_and_a_reboot_has_it_subscribed_again(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 0)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.UNSUBSCRIBED)
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)

    ecu.reboot()
    ecu.offer()
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    ecu.send_ack(ecu.expect_subscribe(), 30)
    assert bench.next_update() == SubscriptionUpdate(TOPIC, OWN, Status.SUBSCRIBED)
    assert bench.count("sd_reboots") == 1
    bench.endpoint.stop_receiving()
    assert bench.count("sd_reboots") == 1  # in the last words of a streamer, too


def test_the_last_unsubscribe_stops_the_event_group(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    ecu.send_ack(ecu.expect_subscribe(), 30)
    bench.next_update()
    answer = bench.call(SERVER.with_resource(2), unsubscribe_request(TOPIC).SerializeToString())
    assert answer.attributes.commstatus is None
    ecu.expect_entry(lambda each: each.type == EntryType.SUBSCRIBE and not each.ttl)


def test_events_come_by_multicast_where_the_ack_says_so(bench: Bench) -> None:
    ecu = bench.ecu()
    bench.subscribe_topic()
    ecu.offer()
    asked = ecu.expect_subscribe()
    group = (EVENTS, udp_ports(1)[0])
    ecu.send_ack(asked, 30, group)
    bench.next_update()
    ecu.event(b"all", group)
    message = bench.next()
    assert (message.attributes.source, message.payload) == (TOPIC, b"all")
    ecu.offer(ttl=0)
    bench.until("sd_groups_joined", 0)


def test_another_device_that_subscribes_here_is_shown_to_the_router(bench: Bench) -> None:
    changes: list[None] = []
    directory = bench.endpoint.subscription_directory(lambda: changes.append(None))
    assert directory is not None
    cloud = UUri("cloud", 0, 3, 0)
    bench.subscribe_topic(TOPIC, cloud)
    wait_until(lambda: len(changes) == 1)
    assert [each.subscriber for each in directory.subscribers(TOPIC)] == [cloud]


def test_who_asks_is_answered_though_nothing_else_is_due(stack: ExitStack) -> None:
    slow = {"initial_delay_min_ms": 0, "initial_delay_max_ms": 0, "repetitions_max": 0}
    slow |= {"cyclic_offer_delay_ms": 60_000, "ttl_offer_s": 100}
    bench = Bench(stack, timings=slow)
    ecu = bench.ecu()
    ecu.send(ServiceEntry(EntryType.FIND, DOORS, 1, 1, 0, 1), to="127.0.0.1")
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER)  # so it has begun, and waits for a minute
    assert bench.subscribe_topic() is Status.SUBSCRIBE_PENDING


# --- what ECUs subscribe of us ------------------------------------------------------------------------------------------


def test_what_we_offer_is_offered_until_we_go(bench: Bench) -> None:
    ecu = bench.ecu()
    offer = ecu.expect_entry(lambda each: each.type == EntryType.OFFER)
    assert (offer.service, offer.ttl) == (DOORS, 1)
    assert offer.options == (Endpoint(*bench.address), *over(bench.address))
    bench.endpoint.stop_receiving()
    ecu.expect_entry(lambda each: each.type == EntryType.OFFER and not each.ttl)


def test_an_ecu_that_subscribes_is_a_subscriber_of_our_usubscription(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    assert who == UUri("chassis", DOORS, 1, 0)
    message = publish(bench.ids.next(), OPEN, b"ajar")
    bench.endpoint.transmitter(who)(message)
    assert ecu.receive().payload == b"ajar"

    ecu.subscribe(ttl=0)
    calls = [bench.next_request(), bench.next_request()]
    bench.endpoint.transmitter(who)(message)  # what was on its way
    assert ecu.receive().payload == b"ajar"
    for call in calls:
        bench.grant(call)
    bench.until("sd_receivers", 0)
    with pytest.raises(SubscriberEnded):
        bench.endpoint.transmitter(who)(message)


def test_many_publications_at_once_go_to_who_has_subscribed_for_as_long_as_it_has(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    transmit_all = bench.endpoint.batch_transmitter(who)
    messages = [
        publish(bench.ids.next(), topic, b"%d" % number) for number in range(3) for topic in (OPEN, LIGHT)
    ]
    assert transmit_all(messages) == 6
    assert [ecu.receive().payload for _ in messages] == [message.payload for message in messages]
    assert bench.count("field_values") == 1

    ecu.subscribe(ttl=0)
    for call in [bench.next_request(), bench.next_request()]:
        bench.grant(call)
    bench.until("sd_receivers", 0)
    assert transmit_all(messages) == 0
    assert bench.endpoint.batch_transmitter(who)(messages) == 0


def test_a_publication_that_is_sent_without_a_subscriber_goes_to_all_who_subscribed(bench: Bench) -> None:
    message = publish(bench.ids.next(), OPEN, b"ajar")
    with pytest.raises(UStatusError):
        bench.endpoint.send(message)
    ecu = bench.ecu()
    bench.subscribe_ecu(ecu)
    bench.endpoint.send(message)
    assert ecu.receive().payload == b"ajar"


def test_many_events_at_once_reach_who_subscribed_and_none_who_is_gone(bench: Bench) -> None:
    ecu = bench.ecu()
    who = bench.subscribe_ecu(ecu)
    messages = [publish(bench.ids.next(), OPEN, payload) for payload in (b"1", b"2")]
    assert bench.endpoint.batch_transmitter(who)(messages) == 2
    assert [ecu.receive().payload, ecu.receive().payload] == [b"1", b"2"]
    assert bench.endpoint.batch_transmitter(UUri("chassis", 9 << 16 | DOORS, 1, 0))(messages) == 0


def test_an_event_for_nobody_has_its_subscription_ended(bench: Bench) -> None:
    left = UUri("chassis", 7 << 16 | DOORS, 1, 0)
    with pytest.raises(SubscriberEnded):
        bench.endpoint.transmitter(left)(publish(bench.ids.next(), OPEN, b"ajar"))
    call = bench.next_request()
    assert (call.attributes.source, call.attributes.sink) == (left, OWN.with_resource(2))


def test_a_refusal_of_our_usubscription_is_a_nack(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe()
    first, second = bench.next_request(), bench.next_request()
    bench.grant(first)
    status = UStatus(UCode.PERMISSION_DENIED, "no")
    bench.endpoint.send(error_response(bench.ids.next(), second, status))
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    back = bench.next_request()
    assert back.attributes.sink == OWN.with_resource(2)


def test_a_new_subscriber_gets_the_last_value_of_a_field_behind_its_ack(bench: Bench) -> None:
    first, second = bench.ecu(), bench.ecu("127.0.0.8")
    bench.endpoint.transmitter(bench.subscribe_ecu(first))(publish(bench.ids.next(), LIGHT, b"on"))
    bench.subscribe_ecu(second)
    got = second.receive()
    assert (got.method, got.payload) == (0x8002, b"on")


@pytest.mark.parametrize("how", ["ttl", "reboots"])
def test_a_subscriber_that_is_gone_is_unsubscribed(bench: Bench, how: str) -> None:
    ecu = bench.ecu()
    bench.subscribe_ecu(ecu, ttl=3 if how == "ttl" else 30)
    if how == "reboots":
        ecu.reboot()
        ecu.send(ServiceEntry(EntryType.FIND, 0x7777, 1, 1, 0, 1), to="127.0.0.1")
    assert {bench.next_request().attributes.sink, bench.next_request().attributes.sink} == {
        OWN.with_resource(2)
    }


def test_when_we_go_our_usubscription_is_told(bench: Bench) -> None:
    bench.subscribe_ecu(bench.ecu())
    bench.endpoint.stop_receiving()
    calls = [bench.next_request(), bench.next_request()]
    assert {each.attributes.sink for each in calls} == {OWN.with_resource(2)}
    bench.grant(calls[0])  # and may answer
    with pytest.raises(Empty):
        bench.received.get_nowait()


def test_the_expiry_asked_of_our_usubscription_follows_the_ttl(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe(ttl=3_000)
    wish = subscribe_in(3, bench.next_request().payload, UPayloadFormat.PROTOBUF)
    assert wish.expire_ms is not None
    assert abs(wish.expire_ms - SYSTEM_CLOCK.wall_ms() - 3_000_000) < 10_000


def test_what_waits_for_the_receiving_thread_has_a_bound(stack: ExitStack) -> None:
    bench = Bench(stack, opened=False)
    call = request(bench.ids.next(), OWN, SERVER, b"", ttl=1_000)
    for _ in range(MAX_PENDING_MESSAGES):
        bench.endpoint.send(call)
    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(call)
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED


# --- whoever may be there -----------------------------------------------------------------------------------------------


def anything(rng: random.Random, ecu: Ecu, own: Address) -> Entry:
    """An entry that is well-formed and need not make sense."""
    ids = (rng.choice([SPEED, DOORS, 0x7777]), rng.choice([1, 1, 2, 0xFFFF]), rng.choice([1, 1, 2, 0xFF]))
    hosts = [ecu.address, ecu.address, own, ("127.0.0.9", 1), ("10.9.9.9", 1)]
    options = tuple(
        Endpoint(*rng.choice(hosts), rng.choice([6, 17]))
        if rng.random() < 0.8
        else Endpoint(EVENTS, 1, role=int(EndpointRole.MULTICAST))
        for _ in range(rng.choice([0, 1, 1, 1, 2]))
    )
    ttl = rng.choice([0, 1, 3, 0xFFFFFF])
    kind = rng.choice(list(EntryType))
    if kind in {EntryType.FIND, EntryType.OFFER}:
        return ServiceEntry(kind, *ids, rng.choice([0, 0xFFFF_FFFF]), min(ttl, 1), options)
    group = rng.choice([1, 1, 3, 9])
    return EventgroupEntry(kind, *ids, group, ttl, rng.choice([0, 0, 1]), options=options)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_said_nobody_else_is_kept_from_being_served(bench: Bench, seed: int) -> None:
    rng = random.Random(seed)
    rogue = bench.ecu("127.0.0.66")
    bench.subscribe_topic()
    for number in range(600):
        if rng.random() < 0.02:
            rogue._sessions.clear()
        entries = [anything(rng, rogue, bench.address) for _ in range(rng.choice([1, 2, 5]))]
        rogue.send(*entries, to=rng.choice([GROUP, "127.0.0.1"]))
        if number % 20 == 0:
            answer_all(bench, rng)
    ecu = bench.ecu("127.0.0.7")
    ecu.wait_until_processed()
    bench.until("sd_found", 0)  # whatever the rogue has offered has a ttl of 1 s at most
    ecu.offer()
    wait_until(lambda: can_be_called(bench))
    assert ecu.receive().payload == b"?"


def answer_all(bench: Bench, rng: random.Random) -> None:
    """As our uSubscription, in one way or the other."""
    while not bench.received.empty():
        call = bench.received.get()
        if call.attributes.type is not UMessageType.REQUEST or call.attributes.sink == APP:
            continue
        if call.attributes.sink in {OWN.with_resource(1), OWN.with_resource(2)} and rng.random() < 0.8:
            bench.grant(call)


def can_be_called(bench: Bench) -> bool:
    try:
        bench.endpoint.send(call_of(bench))
    except RouteUnavailable:
        return False
    return True


# --- over TCP -----------------------------------------------------------------------------------------------------------

HOT_TOPIC, HOT = UUri("chassis", SPEED, 1, 0x8003), UUri("hpc.vin1", 0x8401, 1, 0x8003)


def test_an_event_group_over_tcp_is_subscribed_with_our_end_of_a_connection_to_the_ecu(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    bench.subscribe_topic(HOT_TOPIC)
    ecu.offer()
    stream = ecu.accept()
    asked = ecu.expect_subscribe()
    assert asked.options == over(stream.getpeername())
    ecu.send_ack(asked, 30)
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBED)
    stream.sendall(event(0x8003, b"hot"))
    assert bench.next().payload == b"hot"

    stream.close()
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBE_PENDING)
    again = ecu.accept()
    asked = ecu.expect_entry(
        lambda each: each.type == EntryType.SUBSCRIBE and each.options == over(again.getpeername())
    )
    ecu.send_ack(asked, 30)
    assert bench.next_update() == SubscriptionUpdate(HOT_TOPIC, OWN, Status.SUBSCRIBED)


def test_no_connection_is_kept_to_a_service_that_has_stopped(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    ecu.offer()
    stream = ecu.accept()
    ecu.offer(ttl=0)
    assert stream.recv(1) == b""


def test_an_event_group_over_tcp_goes_over_the_connection_that_it_was_subscribed_with(bench: Bench) -> None:
    ecu = bench.ecu()
    stream, other = ecu.connect(bench.address), ecu.connect(bench.address)
    bench.until("tcp_open", 2)
    ecu.subscribe_over(stream)
    call = bench.next_request()
    bench.grant(call)
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl)
    bench.endpoint.transmitter(call.attributes.source)(publish(bench.ids.next(), HOT, b"hot"))
    [message], _ = split(stream.recv(65_535))
    assert (message.method, message.payload) == (0x8003, b"hot")

    stream.close()
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    assert bench.next_request().attributes.sink == OWN.with_resource(2)
    other.close()


def test_a_subscribe_over_a_connection_that_is_not_there_gets_a_nack(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.subscribe(group=3)  # names an endpoint over UDP, and the event goes over TCP
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    with ecu.connect(bench.address) as stream:
        bench.until("tcp_open", 1)
        address = stream.getsockname()
    bench.until("tcp_open", 0)
    ecu.send(EventgroupEntry(EntryType.SUBSCRIBE, DOORS, 1, 1, 3, 3, options=over(address)), to="127.0.0.1")
    ecu.expect_entry(lambda each: each.type == EntryType.ACK and not each.ttl)
    with pytest.raises(Empty):
        bench.received.get_nowait()


def test_a_reboot_closes_the_connections_with_its_peer(bench: Bench) -> None:
    ecu = bench.ecu()
    ecu.open_tcp_server()
    ecu.offer()
    stream = ecu.accept()
    ecu.reboot()
    ecu.offer()
    assert stream.recv(1) == b""
    ecu.accept()
