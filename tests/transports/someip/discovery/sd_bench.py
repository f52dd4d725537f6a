# SPDX-License-Identifier: Apache-2.0
"""The rig of the service discovery tests: an endpoint on loopback (`Bench`) and an ECU at byte level (`Ecu`).

Both share real sockets and the system clock. A test waits for conditions with a deadline (`wait_until`,
`Bench.until`). Used by `test_sd_driver.py`, `test_dynamic_services.py`, `test_peer_streamers.py` and
`recreated_interface.py`.
"""

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any

import msgspec

from tests.e2e.rigs.ports import udp_ports
from tests.waiting import wait_until
from ustreamer.core.routing.usubscription_codec import (
    Status,
    SubscribeRequest,
    SubscriptionUpdate,
    status_in,
    subscribe_request,
    subscribe_response,
    subscription_update_in,
    unsubscribe_response,
)
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, RouteUnavailable
from ustreamer.transports.someip.config import SomeipEndpoint
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
from ustreamer.uprotocol.umessage import UMessage, request, response
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

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
    """An ECU at byte level: one socket for the group, one for unicast service discovery, one for data."""

    def __init__(self, stack: ExitStack, host: str, sd_port: int) -> None:
        self.host, self._port, self._stack = host, sd_port, stack
        self.tcp_server: socket.socket | None = None
        self._own = self.open_socket(stack, (host, sd_port))
        self._group = self.open_socket(stack, (GROUP, sd_port))
        membership = socket.inet_aton(GROUP) + socket.inet_aton(host)
        self._group.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        self.data = self.open_socket(stack, (host, 0))
        self.address: Address = self.data.getsockname()
        self._sessions: dict[Address, int] = {}
        self.received: list[Entry] = []

    def open_socket(self, stack: ExitStack, address: Address) -> socket.socket:
        opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(self.host))
        opened.bind(address)
        opened.settimeout(0.01)
        return opened

    def reboot(self) -> None:
        """Restart the session numbers, later than a network can delay an earlier datagram."""
        booted_ns = time.monotonic_ns() + REORDER_NS
        wait_until(lambda: time.monotonic_ns() > booted_ns)
        self.restart_sessions()

    def restart_sessions(self) -> None:
        """Start a new life: the next datagram has session number 1."""
        self._sessions.clear()

    def leave_group(self) -> None:
        """Leave the multicast group.

        While any socket of this host is a member, the kernel delivers the group to all.
        """
        self._group.close()

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
        """Add a TCP endpoint to the following Offers."""
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
        """The next received entry that matches; earlier entries are dropped."""
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
        raise AssertionError(f"no such entry within {WITHIN_S} s")

    def wait_until_processed(self) -> None:
        """Wait until all earlier input is processed: the answer to a unicast Find shows it."""
        for to in (GROUP, "127.0.0.1"):
            self.send(ServiceEntry(EntryType.FIND, DOORS, 1, 1, 0, 1), to=to)
            self.expect_entry(lambda each: each.type == EntryType.OFFER and each.ttl, (self._own,))

    def discard_received(self) -> None:
        """Drop all received datagrams."""
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
    """The option of a TCP endpoint."""
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
    """An endpoint with service discovery; its received messages wait in `received`."""

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
                        {"id": 0x8004, "eventgroup": 4},
                        {"id": 0x8005, "eventgroup": 4, "protocol": "tcp"},
                        {"id": 0x8006, "eventgroup": 6, "field": True},
                        {"id": 0x8007, "eventgroup": 7, "max_silence_ms": 300},
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

    def send_when_found(self, call: UMessage) -> None:
        """Send `call` once its service is known. The count `sd_found` is higher a moment earlier."""

        def is_sent() -> bool:
            try:
                self.endpoint.send(call)
            except RouteUnavailable:
                return False
            return True

        wait_until(is_sent, "the service")

    # --- as the own uSubscription, requesting -------------------------------------------------------------------------

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

    # --- as the own uSubscription, responding -------------------------------------------------------------------------

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
        """Subscribe an ECU to the doors service; returns the uEntity that represents it."""
        ecu.subscribe(ttl=ttl)
        calls = [self.next_request(), self.next_request()]
        for call in calls:
            self.grant(call)
        ecu.expect_entry(lambda each: each.type == EntryType.ACK and each.ttl)
        return calls[0].attributes.source
