# SPDX-License-Identifier: Apache-2.0
"""SOME/IP over TCP, with Zenoh on the other side: killed and stopped peers, fragmented streams, and floods."""

import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, Metronome, eventually
from tests.e2e.rigs.streamer import assert_ledger_balanced
from tests.e2e.someip.tcp_scenario import (
    ECU,
    HZ,
    OFFERED,
    PATIENCE_S,
    PROVIDER,
    SERVICE,
    TcpReceiver,
    TcpScenario,
    TcpService,
    assert_consecutive,
    numbers,
    payload,
    running,
)


@pytest.fixture
def net(tmp_path: Path) -> Iterator[TcpScenario]:
    with running(tmp_path) as made:
        yield made


# --- events to a killed and to a stopped receiver ---------------------------------------------------------------------


def run_receiver_lives(net: TcpScenario) -> tuple[list[list[int]], int]:
    """Kill a receiver repeatedly with unread events; returns the numbers read per life, and the number of events."""
    topic = PROVIDER.at(0x8001)
    lives: list[list[int]] = []

    def publish(beat: int) -> None:
        net.app.publish(topic, payload(beat))

    with ExitStack() as receivers:
        with Metronome(HZ, publish) as metronome:
            for _ in range(2):
                with TcpReceiver(net.ports.tcp) as receiver:
                    receiver.wait_numbers(60)
                    receiver.send_signal(signal.SIGSTOP)
                    so_far = metronome.beats
                    eventually(lambda so_far=so_far: metronome.beats > so_far + 80, expected=True)  # type: ignore[misc]
                    lives.append(receiver.kill())
            receiver = receivers.enter_context(TcpReceiver(net.ports.tcp))
            receiver.wait_numbers(1)  # the last event is sent over the last connection, so it cannot be lost
        count = metronome.beats
        receiver.inbox.wait_one(lambda line: line == str(count - 1), PATIENCE_S)
        lives.append(receiver.kill())
    return lives, count


def test_a_killed_and_restarted_receiver_gets_all_events_in_order(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "retransmit_ms = 60000, send_buffer = 4000000") as net:
        lives, count = run_receiver_lives(net)
        net.process.stop()
        ledger = net.process.ledger

    read = 0
    for life in lives:
        assert_consecutive(life)
        assert life[0] <= read, "events between two runs are missing"
        read = max(read, life[-1] + 1)
    assert read == count
    assert ledger["dead_lettered"] == ledger["expired"] == 0


def test_without_retransmission_a_killed_receiver_loses_unread_events(tmp_path: Path) -> None:
    """The negative control: only data that the kernel had acknowledged is lost."""
    with running(tmp_path, "retransmit_ms = 0") as net:
        lives, count = run_receiver_lives(net)

    for life in lives:
        assert_consecutive(life)
    assert len({number for life in lives for number in life}) < count


def test_events_for_a_stopped_receiver_wait_without_delaying_others(net: TcpScenario) -> None:
    over_tcp, over_udp = PROVIDER.at(0x8001), PROVIDER.at(0x8002)
    with (
        TcpReceiver(net.ports.tcp) as receiver,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other,
    ):
        other.bind(("127.0.0.1", net.ports.receiver))
        other.settimeout(DEADLINE_S)
        net.app.publish(over_tcp, payload(0))
        receiver.wait_numbers(1)
        receiver.send_signal(signal.SIGSTOP)
        for number in range(1, 301):  # 18 MB: more than all kernel buffers
            net.app.publish(over_tcp, payload(number, 60_000))
        net.process.stderr.wait_one(lambda line: '"egress.route_unavailable"' in line)

        net.app.publish(over_udp, b"the others go on")
        assert other.recv(100)[16:] == b"the others go on"
        assert len(receiver.inbox.items(str.isdigit)) == 1
        receiver.send_signal(signal.SIGCONT)
        receiver.wait_numbers(301)
        assert_consecutive(receiver.kill())


# --- a remote service -------------------------------------------------------------------------------------------------


@pytest.fixture
def service(net: TcpScenario) -> Iterator[TcpService]:
    with TcpService(net.ports.ecu) as made:
        yield made


def read_message(connection: socket.socket) -> bytes:
    head = connection.recv(16, socket.MSG_WAITALL)
    size = int.from_bytes(head[4:8], "big") - 8
    return head + (connection.recv(size, socket.MSG_WAITALL) if size else b"")


def test_a_stream_may_be_fragmented_anywhere(net: TcpScenario, service: TcpService) -> None:
    topic = ECU.at(0x8001)
    net.app.subscribe(topic)
    connection = service.accept()

    for number in range(3):
        for byte in wire.event(SERVICE, 0x8001, payload(number, 4)):
            connection.sendall(bytes([byte]))
    connection.sendall(
        b"".join(wire.event(SERVICE, 0x8001, payload(number, 4)) for number in range(3, 1_003))
    )

    assert numbers(net.app, topic, 1_003) == list(range(1_003))


def test_a_method_is_called_over_the_connection(net: TcpScenario, service: TcpService) -> None:
    connection = service.accept()
    call_id = net.app.send_request(ECU.at(0x0001), b"how much?")

    request = read_message(connection)
    client, session = int.from_bytes(request[8:10], "big"), int.from_bytes(request[10:12], "big")
    connection.sendall(wire.someip(SERVICE, 1, wire.SOMEIP_RESPONSE, b"42", client=client, session=session))

    assert request[16:] == b"how much?"
    assert net.app.wait_response(call_id).payload == b"42"


def test_a_request_lost_with_its_connection_is_sent_to_the_next_one(net: TcpScenario) -> None:
    call_id = net.app.send_request(ECU.at(0x0001), b"a request", ttl=20_000)
    net.process.stderr.wait_one(lambda line: '"egress.route_unavailable"' in line)

    with TcpService(net.ports.ecu) as service:
        connection = service.accept()
        request = read_message(connection)
        connection.sendall(
            wire.someip(
                SERVICE,
                1,
                wire.SOMEIP_RESPONSE,
                b"yes",
                client=int.from_bytes(request[8:10], "big"),
                session=int.from_bytes(request[10:12], "big"),
            )
        )
        assert net.app.wait_response(call_id).payload == b"yes"


@pytest.mark.parametrize("length", [0, 7, 0x7FFF_FFFF, 0xFFFF_FFFF], ids=hex)
def test_an_invalid_length_closes_the_connection_but_not_the_next_one(
    net: TcpScenario, service: TcpService, length: int
) -> None:
    topic = ECU.at(0x8001)
    net.app.subscribe(topic)
    first = service.accept()
    first.sendall(
        wire.event(SERVICE, 0x8001, payload(1, 4)) + wire.someip(SERVICE, 0x8001, 2, b"", length=length)
    )

    second = service.accept()
    second.sendall(wire.event(SERVICE, 0x8001, payload(2, 4)))

    assert numbers(net.app, topic, 2) == [1, 2]
    assert_ended(first)


def assert_ended(connection: socket.socket) -> None:
    with suppress(ConnectionResetError):
        assert connection.recv(1) == b""


# --- clients of the offered service -----------------------------------------------------------------------------------


def test_a_flood_of_connections_is_bounded_and_a_client_is_served(
    tmp_path: Path,
) -> None:
    with running(tmp_path, "connections = 20, connections_per_host = 10") as net, ExitStack() as stack:
        client = _client(stack, net.ports.tcp)
        for number in range(1_000):
            _client(stack, net.ports.tcp, host=f"127.0.0.{2 + number // 100}")
            if number % 100 == 0:
                _send_call(net, client, number)
        _send_call(net, client, 1_000)
        net.process.stderr.wait_one(lambda line: "tcp_host_connections" in line)
        net.process.stop()
        assert_ledger_balanced(net.process.ledger)


def _client(stack: ExitStack, port: int, host: str = "127.0.0.1") -> socket.socket:
    connection = stack.enter_context(socket.socket())
    connection.settimeout(DEADLINE_S)
    connection.bind((host, 0))
    with suppress(ConnectionResetError):  # refused before connect() returned
        connection.connect(("127.0.0.1", port))
    return connection


def _send_call(net: TcpScenario, client: socket.socket, number: int) -> None:
    """Call the provider and require its response."""
    question = b"number %d" % number
    client.sendall(wire.someip(OFFERED, 1, wire.SOMEIP_REQUEST, question, client=7, session=number % 100 + 1))
    call_id = net.app.inbox.wait_one(lambda sample: sample.payload == question)
    net.app.respond(call_id, question[::-1])
    answer = read_message(client)
    assert answer[14:] == bytes([wire.SOMEIP_RESPONSE, wire.E_OK]) + question[::-1]
