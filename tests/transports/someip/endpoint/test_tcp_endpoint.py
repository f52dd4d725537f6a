# SPDX-License-Identifier: Apache-2.0
"""A SOME/IP endpoint with services over TCP, opposite peers that are plain sockets."""

import socket
import threading
from collections.abc import Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from tests.transports.someip.tcp_rig import WITHIN_S, RestartableService, is_closed, read_messages
from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, RouteUnavailable, Unconfirmed
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint import transport
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.io.tcp_connection import TCP_CLOSE_WAIT, close_with_reset
from ustreamer.transports.someip.protocol.codec import MessageType, ReturnCode, SomeIpMessage, encode
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import decode_status

APP = UUri.parse("//device1/3AB/1/0")
METHOD = UUri.parse("//chassis/CD/4/B")
OVER_UDP = UUri.parse("//chassis/CD/4/C")
DOOR = UUri.parse("//hpc.vin1/9077/1/8001")
DOOR_OVER_UDP = UUri.parse("//hpc.vin1/9077/1/8002")


class Bench:
    """An endpoint between an ECU's TCP service and listeners for everything; `udp` is the other socket of the ECU."""

    def __init__(self, stack: ExitStack, **keys: Any) -> None:
        self.ecu = RestartableService()
        stack.callback(self.ecu.close)
        self.udp = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        self.udp.bind(("127.0.0.1", 0))
        self.udp.settimeout(WITHIN_S)
        self.stack = stack
        self.endpoint = SomeipTransport(
            msgspec.convert(self._config() | keys, SomeipEndpoint),
            EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK),
        )
        stack.callback(self.endpoint.close)
        self.received: SimpleQueue[UMessage] = SimpleQueue()
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.received.put)
        self.opened: SimpleQueue[Hashable] = SimpleQueue()
        self.endpoint.watch_routes(self.opened.put)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)

    def _config(self) -> dict[str, Any]:
        over_tcp, over_udp = (f"127.0.0.1:{self.ecu.address.port}", f"127.0.0.1:{self.udp.getsockname()[1]}")
        return {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 0,
            "tcp": {"retry_first_ms": 2, "retry_max_ms": 20},
            "services": [
                {
                    "service": 0x00CD,
                    "major": 4,
                    "events": [{"id": 0x80CD}],
                    "methods": [0x000B, {"id": 0x000C, "protocol": "udp"}],
                    "protocol": "tcp",
                    "remote": over_udp,
                    "remote_tcp": over_tcp,
                },
                {
                    "service": 0x0777,
                    "major": 2,
                    "methods": [1],
                    "events": [{"id": 0x8001}, {"id": 0x8002, "protocol": "udp"}],
                    "protocol": "tcp",
                    "offered": True,
                    "provider": "//hpc.vin1/9077/1/0",
                    "remote": over_udp,
                },
            ],
        }

    def client(self, host: str = "127.0.0.1") -> socket.socket:
        opened = self.stack.enter_context(socket.socket())
        opened.settimeout(WITHIN_S)
        opened.bind((host, 0))
        with suppress(ConnectionResetError):  # an unknown host is reset
            opened.connect(self.endpoint.tcp_address)
        return opened

    def next(self) -> UMessage:
        return self.received.get(timeout=WITHIN_S)

    def event(self, topic: UUri, payload: bytes = b"") -> UMessage:
        return publish(self.ids.next(), topic, payload)

    def call(self, method: UUri, ttl: int = 10_000) -> UMessage:
        return request(self.ids.next(), APP, method, b"hi", ttl=ttl)

    def deliver(self, message: UMessage) -> None:
        """Send to the receiver of our service, after its connection is open."""
        (subscription,) = [s for s in self.endpoint.subscriptions() if s.topic == message.attributes.source]
        transmit = self.endpoint.transmitter(subscription.subscriber)
        try:
            transmit(message)
        except RouteUnavailable as refused:
            while self.opened.get(timeout=WITHIN_S) != refused.route:
                pass
            transmit(message)

    def connected(self) -> socket.socket:
        """The ECU's end of the connection, from when on the endpoint can send on it."""
        connection = self.ecu.accept()
        connections = self.endpoint._connections
        assert connections is not None
        wait_until(lambda: connections.local_address(self.ecu.address))
        return connection

    def statistic(self, name: str) -> int:
        return self.endpoint.statistics()[name]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        made = Bench(stack)
        made.endpoint.open()
        yield made


def message(
    method: int,
    kind: MessageType,
    payload: bytes = b"",
    *,
    service: int = 0x00CD,
    major: int = 4,
    request_id: int = 0,
) -> SomeIpMessage:
    return SomeIpMessage(
        service, method, request_id >> 16, request_id & 0xFFFF or 1, major, kind, ReturnCode.E_OK, payload
    )


def test_an_event_over_an_outbound_connection_is_a_publication(bench: Bench) -> None:
    bench.connected().sendall(encode(message(0x80CD, MessageType.NOTIFICATION, b"hello")))

    received = bench.next()
    assert received.attributes.type is UMessageType.PUBLISH
    assert received.attributes.source == UUri.parse("//chassis/CD/4/80CD")
    assert received.payload == b"hello"


def test_a_method_is_called_over_tcp_and_its_response_is_correlated(bench: Bench) -> None:
    ecu = bench.connected()
    sent_request = bench.call(METHOD)

    bench.endpoint.send(sent_request)
    (got,) = read_messages(ecu, 1)
    ecu.sendall(encode(message(0x000B, MessageType.RESPONSE, b"ok", request_id=got.request_id)))

    assert (got.message_type, got.payload) == (MessageType.REQUEST, b"hi")
    received = bench.next()
    assert (received.attributes.reqid, received.payload) == (sent_request.id, b"ok")


def test_a_method_with_its_own_protocol_is_called_over_it(bench: Bench) -> None:
    bench.endpoint.send(bench.call(OVER_UDP))

    assert bench.udp.recv(100)[:4] == bytes.fromhex("00cd000c")


def test_a_call_waits_for_the_connection_and_leaves_nothing_open_meanwhile(bench: Bench) -> None:
    connection = bench.connected()
    bench.ecu.kill()
    connection.close()
    wait_until(lambda: bench.statistic("tcp_ended") == 1)

    with pytest.raises(RouteUnavailable) as refused:
        bench.endpoint.send(bench.call(METHOD))
    assert bench.statistic("calls_open") == 0
    bench.ecu.restart()
    connection = bench.ecu.accept()
    assert bench.opened.get(timeout=WITHIN_S) == refused.value.route
    bench.endpoint.send(bench.call(METHOD))

    assert read_messages(connection, 1)[0].method == 0x000B


def test_messages_wait_for_the_connections_of_an_endpoint_that_is_not_open_yet() -> None:
    """A durable queue sends what it restored so early."""
    with ExitStack() as stack:
        bench = Bench(stack)
        (subscription,) = [each for each in bench.endpoint.subscriptions() if each.topic == DOOR]
        with pytest.raises(RouteUnavailable):
            bench.endpoint.transmitter(subscription.subscriber)(bench.event(DOOR))
        with pytest.raises(RouteUnavailable) as refused:
            bench.endpoint.send(bench.call(METHOD))
        bench.endpoint.open()
        connection = bench.ecu.accept()
        assert bench.opened.get(timeout=WITHIN_S) == refused.value.route
        bench.endpoint.send(bench.call(METHOD))
        assert read_messages(connection, 1)[0].method == 0x000B


# [utest->RPC-326]
def test_calls_fail_when_the_connection_of_their_responses_closes(
    bench: Bench,
) -> None:
    ecu = bench.connected()
    sent_request, over_udp = bench.call(METHOD, ttl=600_000), bench.call(OVER_UDP)
    bench.endpoint.send(over_udp)
    bench.endpoint.send(sent_request)
    read_messages(ecu, 1)
    ecu.close()  # which acknowledges the bytes that were read

    received = bench.next()

    assert (received.attributes.reqid, received.attributes.commstatus) == (sent_request.id, UCode.UNAVAILABLE)
    assert "ended before it answered" in decode_status(received.payload).message
    assert (bench.statistic("calls_service_gone"), bench.statistic("calls_open")) == (1, 1)


def test_a_call_that_a_killed_peer_may_have_read_is_not_sent_again() -> None:
    """An event would be: its receiver gets it twice. A method may not tolerate a second call."""
    with ExitStack() as stack:
        bench = Bench(stack, tcp={"retry_first_ms": 2, "retry_max_ms": 20, "retransmit_ms": 60_000})
        bench.endpoint.open()
        ecu = bench.connected()
        first, second = bench.call(METHOD), bench.call(METHOD)
        bench.endpoint.send(first)
        (got,) = read_messages(ecu, 1)
        close_with_reset(ecu)

        ecu = bench.connected()
        bench.endpoint.send(second)

        (then,) = read_messages(ecu, 1)
        assert then.request_id != got.request_id
        received = bench.next()
        assert (received.attributes.reqid, received.attributes.commstatus) == (first.id, UCode.UNAVAILABLE)
        assert bench.statistic("tcp_sent_again") == 0


def test_udp_messages_do_not_wait_for_a_connection_to_the_same_peer(bench: Bench) -> None:
    connection = bench.connected()
    bench.ecu.kill()
    connection.close()
    wait_until(lambda: bench.statistic("tcp_ended") == 1)

    bench.endpoint.send(bench.call(OVER_UDP))

    assert bench.udp.recv(100)[:4] == bytes.fromhex("00cd000c")


def test_the_next_connection_attempt_is_made_in_time_without_other_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ustreamer.transports.someip.io.receive_loop.MAX_SLEEP_NS", 3_600_000_000_000)
    with ExitStack() as stack:
        bench = Bench(stack, tcp={"retry_first_ms": 200, "retry_max_ms": 200})
        bench.ecu.kill()
        bench.endpoint.open()

        def tries_again() -> bool:
            assert bench.endpoint._connections is not None
            due_ns = bench.endpoint._connections.next_deadline_ns or 0
            return 0 < due_ns - SYSTEM_CLOCK.monotonic_ns() <= 200_000_000

        wait_until(tries_again)  # the first attempt failed, and nothing else happens
        bench.ecu.restart()
        assert bench.ecu.accept().getpeername()[0] == "127.0.0.1"


# [utest->RPC-49]
def test_a_response_uses_the_connection_of_the_calling_ecu(bench: Bench) -> None:
    first, second = bench.client(), bench.client()
    for number, client in enumerate((first, second)):
        client.sendall(
            encode(message(1, MessageType.REQUEST, b"d%d" % number, service=0x0777, major=2, request_id=7))
        )

    for _ in range(2):
        received = bench.next()
        bench.endpoint.send(response(bench.ids.next(), received, received.payload + b"!"))

    assert [read_messages(each, 1)[0].payload for each in (first, second)] == [b"d0!", b"d1!"]
    assert bench.statistic("requests_open") == 0


def test_the_reply_to_a_refused_request_uses_its_connection(bench: Bench) -> None:
    client = bench.client()

    client.sendall(encode(message(2, MessageType.REQUEST, service=0x0777, major=2)))

    (answer,) = read_messages(client, 1)
    assert (answer.message_type, answer.return_code) == (MessageType.ERROR, ReturnCode.E_UNKNOWN_METHOD)


def test_the_response_to_a_disconnected_client_is_not_found(bench: Bench) -> None:
    client = bench.client()
    client.sendall(encode(message(1, MessageType.REQUEST, service=0x0777, major=2)))
    received = bench.next()
    client.close()
    wait_until(lambda: bench.statistic("tcp_ended") == 1)

    with pytest.raises(UStatusError) as refused:
        bench.endpoint.send(response(bench.ids.next(), received, b"late"))
    assert refused.value.code is UCode.NOT_FOUND


def test_a_receiver_gets_each_event_over_its_configured_protocol(bench: Bench) -> None:
    client = bench.client()

    bench.deliver(bench.event(DOOR, b"open"))
    bench.deliver(bench.event(DOOR_OVER_UDP, b"shut"))

    (got,) = read_messages(client, 1)
    assert (got.method, got.payload) == (0x8001, b"open")
    assert bench.udp.recv(100)[16:] == b"shut"


def test_a_stop_counts_messages_that_wait_to_be_sent_again() -> None:
    with ExitStack() as stack:
        bench = Bench(stack, tcp={"retransmit_ms": 60_000})
        bench.endpoint.open()
        client = bench.client()
        bench.deliver(bench.event(DOOR, b"open"))
        close_with_reset(client)  # as a killed receiver
        wait_until(lambda: bench.statistic("tcp_waiting") == 1)
        assert bench.endpoint.finish() == Unconfirmed(forgotten=1)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_stop_counts_messages_of_connections_that_ended_during_it(is_killed: bool) -> None:
    with ExitStack() as stack:
        bench = Bench(stack, tcp={"retransmit_ms": 60_000})
        bench.endpoint.open()
        client = bench.client()
        bench.deliver(bench.event(DOOR, b"open"))
        read_messages(client, 1)
        bench.endpoint.stop_receiving()
        assert bench.endpoint.finish() == Unconfirmed()
        if is_killed:
            close_with_reset(client)
            wait_until(lambda: bench.endpoint.finish() == Unconfirmed(forgotten=1))
        else:  # it has read everything
            client.close()
            assert bench.endpoint._connections is not None
            [connection] = (
                each for each in bench.endpoint._connections._connections.values() if each.inbound
            )
            wait_until(lambda: connection._tcp_info()[0] == TCP_CLOSE_WAIT)
            assert bench.endpoint.finish() == Unconfirmed()


def send_until_full(bench: Bench, payload: bytes) -> int:
    """Send events to a client that does not read, until the kernels' buffers are full; returns their number."""
    bench.deliver(bench.event(DOOR, payload))
    (subscription,) = (each for each in bench.endpoint.subscriptions() if each.topic == DOOR)
    transmit = bench.endpoint.transmitter(subscription.subscriber)
    for number in range(1, 1_000):
        try:
            transmit(bench.event(DOOR, payload))
        except RouteUnavailable:
            return number
    pytest.fail("the buffers were never full")


def stopping_with_full_buffers(stack: ExitStack) -> tuple[Bench, socket.socket, int]:
    """An endpoint that has stopped receiving, its client, and the number of events that the client has not read."""
    bench = Bench(stack)
    bench.endpoint.open()
    client = bench.client()
    sent = send_until_full(bench, bytes(60_000))
    bench.endpoint.stop_receiving()
    return bench, client, sent


def test_a_stop_counts_messages_that_a_hung_receiver_has_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "_ACKS_NS", 200_000_000)
    with ExitStack() as stack:
        bench, client, sent = stopping_with_full_buffers(stack)
        unconfirmed = bench.endpoint.finish().forgotten
        assert 0 < unconfirmed <= sent
        read_messages(client, sent - unconfirmed)  # the kernel of the receiver has the others


def test_a_stop_waits_for_a_receiver_that_reads_again() -> None:
    with ExitStack() as stack:
        bench, client, sent = stopping_with_full_buffers(stack)
        with ThreadPoolExecutor(1) as pool:
            finished = pool.submit(bench.endpoint.finish)
            # The last message may be in the connection in part: `close` sends its rest.
            read_messages(client, sent - 1)
            assert finished.result().forgotten <= 1


def test_an_unknown_host_cannot_connect(bench: Bench) -> None:
    with ExitStack() as stack:
        narrow = Bench(stack, clients=["127.0.0.9/32"], port=0)
        narrow.endpoint.open()

        assert is_closed(narrow.client(host="127.0.7.7"))
        wait_until(lambda: narrow.statistic("refused_tcp_unknown_host") == 1)


def test_an_invalid_stream_is_counted_and_closed(bench: Bench) -> None:
    client = bench.client()

    client.sendall(bytes.fromhex("12348001ffffffff0000000001010200"))

    assert is_closed(client)
    assert bench.statistic("refused_length_beyond_datagram") == 1
    assert bench.statistic("refused_tcp_stream") == 1


def test_a_flood_of_datagrams_does_not_starve_tcp(bench: Bench) -> None:
    never = threading.Event()

    def slow_listener(received: UMessage) -> None:  # a slow listener, so that the flood lasts
        never.wait(0.001)

    bench.endpoint.register_listener(ANY, None, slow_listener)
    event = encode(message(0x80CD, MessageType.NOTIFICATION, b"x"))
    client = bench.client()
    wait_until(lambda: bench.statistic("tcp_open") == 2)

    for _ in range(600):
        bench.udp.sendto(event, bench.endpoint.address)
    client.sendall(encode(message(1, MessageType.REQUEST, b"turn", service=0x0777, major=2)))

    payloads = [bench.next().payload for _ in range(400)]
    assert b"turn" in payloads


def test_a_port_in_use_is_a_problem_and_fails_the_open() -> None:
    with ExitStack() as stack:
        other = RestartableService()
        stack.callback(other.close)
        bench = Bench(stack, port_tcp=other.address.port)

        (problem,) = bench.endpoint.problems()
        assert problem.startswith(f"port_tcp: cannot listen at TCP 127.0.0.1:{other.address.port}")
        with pytest.raises(UStatusError, match="cannot listen at TCP") as refused:
            bench.endpoint.open()
        assert refused.value.code is UCode.UNAVAILABLE


def test_close_closes_every_socket(bench: Bench) -> None:
    ecu, client = bench.connected(), bench.client()
    wait_until(lambda: bench.statistic("tcp_open") == 2)

    bench.endpoint.close()
    bench.endpoint.close()

    assert is_closed(ecu)
    assert is_closed(client)
    with pytest.raises(UStatusError):
        bench.endpoint.send(bench.call(METHOD))
