# SPDX-License-Identifier: Apache-2.0
"""TCP connections on real sockets: partial writes, killed peers, malformed streams, and too many peers."""

import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from tests.transports.someip.tcp_rig import (
    RestartableService,
    TcpRig,
    is_closed,
    number_of,
    numbered,
    read_messages,
)
from tests.waiting import wait_until
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.endpoint.service_port import InboundStreams
from ustreamer.transports.someip.io import tcp_connection, tcp_connections
from ustreamer.transports.someip.io.tcp_acceptor import TcpAcceptor
from ustreamer.transports.someip.io.tcp_connection import finish_connect
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.socket_marks import SocketMarks
from ustreamer.transports.someip.protocol.stream import CLIENT_COOKIE, SERVER_COOKIE, StreamReader
from ustreamer.uprotocol.ustatus import UCode, UStatusError

MakeRig = Callable[..., TcpRig]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture
def rig(stack: ExitStack) -> MakeRig:
    def make(**limits: Any) -> TcpRig:
        made = TcpRig(**limits)
        stack.callback(made.close)
        return made

    return make


@pytest.fixture
def service(stack: ExitStack) -> RestartableService:
    made = RestartableService()
    stack.callback(made.close)
    return made


class ManualTime:
    """A manual clock, so that deadlines do not depend on the machine."""

    def __init__(self) -> None:
        self._now_ns = 10**9

    def __call__(self) -> int:
        return self._now_ns

    def advance(self, ms: int, rig: TcpRig) -> None:
        self._now_ns += ms * 1_000_000
        rig.wake()


def test_a_connection_that_cannot_be_marked_is_reset_and_takes_no_place(
    rig: MakeRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "not permitted")

    ours = rig(connections=1)
    address = ours.listen()
    with monkeypatch.context() as patch:
        patch.setattr(tcp_connections, "mark_accepted", refuse)
        refused = ours.ecu(address)
        wait_until(lambda: is_closed(refused))
    ours.ecu(address).sendall(numbered(1))
    wait_until(lambda: len(ours.received) == 1)
    assert (ours.statistic("accepted"), ours.failure) == (1, None)


# --- outbound connections ---------------------------------------------------------------------------------------------


# [utest->RPC-585, RPC-644]
def test_a_connection_carries_messages_in_both_directions(rig: MakeRig, service: RestartableService) -> None:
    ours = rig()
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connects == [(service.address, False)])

    ours.connections.send(numbered(1), service.address)
    peer.sendall(numbered(2))

    assert [number_of(each) for each in read_messages(peer, 1)] == [1]
    wait_until(lambda: len(ours.received) == 1)
    assert number_of(ours.received[0][0]) == 2
    assert ours.received[0][1] == service.address
    assert ours.connections.local_address(service.address) == peer.getpeername()


# [utest->RPC-325]
def test_a_short_message_does_not_wait_for_the_acknowledgement_of_the_last_one(
    rig: MakeRig, service: RestartableService, stack: ExitStack
) -> None:
    """Nagle's algorithm would delay it: 40 ms with a peer that delays its acknowledgements."""
    ours = rig()
    stack.enter_context(socket.create_connection(ours.listen()))
    ours.connections.connect(service.address)
    wait_until(lambda: ours.statistic("established") == 2)
    opened = [each.socket for each in ours.connections._connections.values()]
    assert all(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) for each in opened)


# [utest->SD-869]
def test_the_kernel_checks_idle_connections(
    rig: MakeRig, service: RestartableService, stack: ExitStack
) -> None:
    ours = rig()
    stack.enter_context(socket.create_connection(ours.listen()))
    ours.connections.connect(service.address)
    wait_until(lambda: ours.statistic("established") == 2)
    opened = [each.socket for each in ours.connections._connections.values()]
    assert [each.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for each in opened] == [1, 1]


def test_without_a_connection_a_route_is_blocked_until_it_opens(
    rig: MakeRig, service: RestartableService
) -> None:
    service.kill()
    ours = rig()
    ours.connections.connect(service.address)

    with pytest.raises(RouteUnavailable, match="is not connected") as refused:
        ours.connections.send(numbered(1), service.address)
    assert ours.opened_routes == []
    service.restart()
    peer = service.accept()
    wait_until(lambda: refused.value.route in ours.opened_routes)
    ours.connections.send(numbered(1), service.address)

    assert number_of(read_messages(peer, 1)[0]) == 1


def test_an_unreachable_peer_is_tried_again_after_bounded_pauses(
    rig: MakeRig, service: RestartableService, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.kill()
    ours = rig(retry_first_ms=30, retry_max_ms=30)
    tries: list[float] = []
    real = tcp_connection.start_connect

    def connecting(address: TcpAddress, bind: str, marks: SocketMarks) -> socket.socket:
        tries.append(time.monotonic())
        return real(address, bind, marks)

    monkeypatch.setattr(tcp_connections, "start_connect", connecting)
    ours.connections.connect(service.address)

    wait_until(lambda: len(tries) >= 4)

    assert all(later - earlier >= 0.02 for earlier, later in pairwise(tries))


def test_a_disconnected_peer_is_not_connected_again(rig: MakeRig, service: RestartableService) -> None:
    ours = rig()
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))

    ours.connections.disconnect(service.address)

    assert is_closed(peer)
    wait_until(lambda: ours.disconnects == [(service.address, False)])
    with pytest.raises(UStatusError) as refused:
        ours.connections.send(numbered(1), service.address)
    assert refused.value.code is UCode.NOT_FOUND
    assert ours.connections.next_deadline_ns is None


def test_a_socket_connected_to_itself_is_closed() -> None:
    with socket.socket() as alone:
        alone.bind(("127.0.0.1", 0))
        alone.connect(alone.getsockname())  # TCP's simultaneous open of a socket with itself

        with pytest.raises(ConnectionRefusedError, match="itself"):
            finish_connect(alone)


# [utest->RPC-647]
def test_a_restarted_peer_is_connected_again(rig: MakeRig, service: RestartableService) -> None:
    ours = rig()
    ours.connections.connect(service.address)
    before = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))
    client = ours.ecu(ours.listen())
    wait_until(lambda: len(ours.connects) == 2)
    ours.answer = lambda message, peer: ours.connections.drop_host("127.0.0.1")  # on the receiving thread

    client.sendall(numbered(1))

    assert is_closed(before)
    assert is_closed(client)
    service.accept().close()


# --- full buffers -----------------------------------------------------------------------------------------------------


def test_a_full_connection_refuses_messages_and_completes_a_partial_one(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(send_buffer=65_536)
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))

    sent, refused = ours.fill(service.address, 10_000)
    assert "accepts no bytes at present" in refused.message
    with pytest.raises(RouteUnavailable):
        ours.connections.send(numbered(sent, 1), service.address)
    ours.opened_routes.clear()
    got = read_messages(peer, sent)
    wait_until(lambda: refused.route in ours.opened_routes)
    ours.connections.send(numbered(sent, 10_000), service.address)
    got += read_messages(peer, 1)

    assert [number_of(each) for each in got] == list(range(sent + 1))
    assert sent * 10_000 < 10_000_000


def test_a_message_longer_than_the_buffer_continues_when_the_peer_reads(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(send_buffer=4_096)
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))

    ours.connections.send(numbered(1, 1_000_000), service.address)
    with pytest.raises(RouteUnavailable, match="accepts no bytes at present"):
        ours.connections.send(numbered(2), service.address)

    (message,) = read_messages(peer, 1)
    assert (number_of(message), len(message.payload)) == (1, 1_000_004)
    ours.send(numbered(3), service.address)
    assert number_of(read_messages(peer, 1)[0]) == 3


def test_a_sender_completes_a_partial_message_without_the_receiving_thread(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(send_buffer=65_536)
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))
    sent, _ = ours.fill(service.address, 60_000)
    ours.stop()

    got: list[int] = []
    reading = threading.Thread(
        target=lambda: got.extend(number_of(each) for each in read_messages(peer, sent + 1))
    )
    reading.start()
    ours.send(numbered(sent), service.address)
    reading.join()

    assert got == list(range(sent + 1))


def test_a_message_that_is_too_long_is_refused_with_its_length(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(max_message=1_000)
    ours.connections.connect(service.address)

    with pytest.raises(UStatusError, match=r"1020 bytes .* 1000 of tcp\.max_message") as refused:
        ours.connections.send(numbered(1, 1_000), service.address)
    assert refused.value.code is UCode.INVALID_ARGUMENT


def test_concurrent_senders_do_not_interleave_messages(rig: MakeRig, service: RestartableService) -> None:
    ours = rig(send_buffer=65_536)
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))
    senders = [
        threading.Thread(
            target=ours.send_all,
            args=([numbered(first + n, 3_000) for n in range(200)], service.address),
        )
        for first in (0, 1_000, 2_000)
    ]
    for each in senders:
        each.start()

    numbers = [number_of(each) for each in read_messages(peer, 600)]
    for each in senders:
        each.join()

    for first in (0, 1_000, 2_000):
        assert [n for n in numbers if first <= n < first + 1_000] == list(range(first, first + 200))


# --- messages lost with a connection ----------------------------------------------------------------------------------


def runs_of_a_peer(ours: TcpRig, service: RestartableService) -> list[list[int]]:
    """The messages that a peer reads in each of its runs, of 1 000. The peer is killed in the middle of one, with
    more unread.
    """

    def send() -> None:
        for number in range(1_000):
            ours.send(numbered(number, 1_500), service.address)
            time.sleep(0.0002)  # a rate that a running peer sustains

    sender = threading.Thread(target=send)
    sender.start()
    lives: list[list[int]] = []
    seen = -1
    while seen < 999:
        peer, before = service.accept(), seen
        reader = StreamReader()
        life: list[int] = []
        read = 0
        while seen < min(before + 200, 999):
            data = peer.recv(7_001)  # never at the end of a message
            assert data
            read += len(data)
            life += [number_of(each) for each in reader.feed(data).messages]
            seen = max([seen, *life])
        lives.append(life)
        if seen < 900:
            # Three messages. A kernel with a buffer full of small segments may accept only some of them.
            wait_until(lambda read=read: ours.acknowledged(service.address) > read + 5_000)  # type: ignore[misc]
        service.kill()
        peer.close()
        service.restart()
    sender.join()
    return lives


def test_a_peer_killed_repeatedly_within_a_message_loses_nothing_and_keeps_the_order(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(retransmit_ms=2_000)
    ours.connections.connect(service.address)

    lives = runs_of_a_peer(ours, service)

    assert len(lives) >= 5
    so_far = 0
    for life in lives:
        assert life == list(range(life[0], life[0] + len(life))), "a life without gaps, in order"
        assert life[0] <= so_far, "nothing is missing between two runs"
        so_far = max(so_far, life[-1] + 1)
    assert so_far == 1_000
    assert ours.statistic("sent_again") > 0
    assert ours.statistic("dropped") == 0


def test_without_replay_a_killed_peer_loses_unread_messages(
    rig: MakeRig, service: RestartableService
) -> None:
    """The negative control: messages acknowledged by the kernel are lost with the peer, and no others."""
    ours = rig(retransmit_ms=0)
    ours.connections.connect(service.address)

    lives = runs_of_a_peer(ours, service)

    read = {number for life in lives for number in life}
    assert len(read) < 1_000
    assert all(life == list(range(life[0], life[0] + len(life))) for life in lives)


def test_a_peer_that_closes_normally_receives_no_duplicates(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(retransmit_ms=60_000)
    ours.connections.connect(service.address)
    peer = service.accept()
    ours.send_all([numbered(n) for n in range(50)], service.address)
    read_messages(peer, 50)
    peer.close()
    wait_until(lambda: ours.disconnects)

    peer = service.accept()
    ours.send(numbered(50), service.address)

    assert [number_of(each) for each in read_messages(peer, 1)] == [50]
    assert ours.statistic("sent_again") == 0


def test_unacknowledged_messages_go_first_into_the_next_connection(
    rig: MakeRig, service: RestartableService
) -> None:
    ours = rig(send_buffer=1 << 20, retransmit_ms=0)
    ours.connections.connect(service.address)
    peer = service.accept()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    wait_until(lambda: ours.connections.is_connected(service.address))
    for number in range(5):
        ours.connections.send(numbered(number, 200_000), service.address)

    peer.close()
    again = service.accept()
    ours.send(numbered(5), service.address)
    reader, numbers = StreamReader(), list[int]()
    while numbers[-1:] != [5]:
        data = again.recv(65_536)
        assert data
        numbers += [number_of(each) for each in reader.feed(data).messages]

    assert numbers == [0, 1, 2, 3, 4, 5]


def test_expired_unsent_messages_are_dropped_and_counted(rig: MakeRig, service: RestartableService) -> None:
    ours = rig(send_buffer=1 << 20)
    ours.connections.connect(service.address)
    peer = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))
    soon_ns = time.monotonic_ns() + 50_000_000
    ours.connections.send(numbered(0, 1_000_000), service.address, deadline_ns=soon_ns)
    ours.connections.send(numbered(1, 10), service.address)
    service.kill()
    peer.close()
    wait_until(lambda: ours.statistic("waiting") == 2)
    wait_until(lambda: time.monotonic_ns() > soon_ns)
    service.restart()

    assert [number_of(each) for each in read_messages(service.accept(), 1)] == [1]
    wait_until(lambda: ours.statistic("dropped") == 1)


# --- inbound connections ----------------------------------------------------------------------------------------------


def test_an_ecu_may_write_byte_by_byte_or_all_at_once(rig: MakeRig) -> None:
    ours = rig()
    client = ours.ecu(ours.listen())
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    for byte in numbered(0) + numbered(1):
        client.sendall(bytes([byte]))
    client.sendall(b"".join(numbered(n) for n in range(2, 1_002)))

    wait_until(lambda: len(ours.received) == 1_002)
    assert [number_of(message) for message, _ in ours.received] == list(range(1_002))
    assert {peer for _, peer in ours.received} == {client.getsockname()}


def test_a_response_uses_the_connection_of_its_request(rig: MakeRig) -> None:
    ours = rig()
    ours.answer = lambda message, peer: ours.connections.send(numbered(number_of(message) + 1), peer)
    address = ours.listen()
    clients = [ours.ecu(address) for _ in range(3)]

    for number, client in enumerate(clients):
        client.sendall(numbered(10 * number))

    assert [number_of(read_messages(client, 1)[0]) for client in clients] == [1, 11, 21]


def test_a_response_to_a_closed_connection_is_not_found(rig: MakeRig) -> None:
    ours = rig()
    client = ours.ecu(ours.listen())
    peer = TcpAddress(*client.getsockname())
    wait_until(lambda: ours.connections.is_connected(peer))
    client.close()
    wait_until(lambda: ours.disconnects == [(peer, True)])

    with pytest.raises(UStatusError, match="no connection") as refused:
        ours.connections.send(numbered(1), peer)
    assert refused.value.code is UCode.NOT_FOUND


def test_events_for_a_host_wait_and_use_its_newest_connection(rig: MakeRig) -> None:
    ours = rig()
    ours.connections.expect_host("127.0.0.1")
    host = TcpAddress("127.0.0.1", 0)
    with pytest.raises(RouteUnavailable) as refused:
        ours.connections.send(numbered(1), host)
    address = ours.listen()

    first = ours.ecu(address)
    wait_until(lambda: refused.value.route in ours.opened_routes)
    ours.connections.send(numbered(1), host)
    assert number_of(read_messages(first, 1)[0]) == 1
    second = ours.ecu(address)
    wait_until(lambda: len(ours.connects) == 2)
    ours.connections.send(numbered(2), host)
    # The ECU may have restarted, and lost what only its kernel had.
    assert [number_of(each) for each in read_messages(second, 2)] == [1, 2]
    second.close()
    wait_until(lambda: len(ours.disconnects) == 1)
    ours.send(numbered(3), host)
    assert number_of(read_messages(first, 1)[0]) == 3


def test_a_new_connection_first_carries_the_unconfirmed_messages_of_the_old_one(rig: MakeRig) -> None:
    ours = rig(send_buffer=1 << 20, retransmit_ms=0)
    ours.connections.expect_host("127.0.0.1")
    host, address = TcpAddress("127.0.0.1", 0), ours.listen()
    frozen = ours.ecu(address, buffer=4_096)
    wait_until(lambda: ours.connections.is_connected(host))
    for number in range(4):
        ours.connections.send(numbered(number, 200_000), host)

    again = ours.ecu(address)
    got = read_messages(again, 4)
    ours.send(numbered(4), host)
    got += read_messages(again, 1)

    assert [number_of(each) for each in got] == [0, 1, 2, 3, 4]
    frozen.close()


# --- unknown and misbehaving peers ------------------------------------------------------------------------------------


def test_an_unknown_host_is_refused(rig: MakeRig) -> None:
    ours = rig()

    assert is_closed(ours.ecu(ours.listen(), host="127.0.7.7"))
    wait_until(lambda: ours.refused == ["tcp_unknown_host"])
    assert ours.connects == []


@pytest.mark.parametrize(
    ("hostile", "reasons"),
    [
        (bytes.fromhex("123480010000000700000000 01010200"), ["length_too_small"]),
        (bytes.fromhex("12348001ffffffff00000000 01010200"), ["length_beyond_datagram"]),
        (b"GET / HTTP/1.1\r\nHost: ecu\r\n\r\n", ["protocol_version"]),
    ],
    ids=["a length that is too small", "a length above the limit", "another protocol"],
)
def test_a_broken_stream_is_closed_and_the_others_continue(
    rig: MakeRig, hostile: bytes, reasons: list[str]
) -> None:
    ours = rig()
    address = ours.listen()
    good, bad = ours.ecu(address), ours.ecu(address)

    bad.sendall(numbered(1) + hostile)

    assert is_closed(bad)
    good.sendall(numbered(2))
    wait_until(lambda: [number_of(message) for message, _ in ours.received] == [1, 2])
    assert [str(each.reason) for each in ours.malformed] == reasons
    assert ours.refused == ["tcp_stream"]


def test_an_unfinished_message_ends_its_connection(rig: MakeRig) -> None:
    ours = rig(message_timeout_ms=50)
    address = ours.listen()
    slow, good = ours.ecu(address), ours.ecu(address)

    slow.sendall(numbered(1)[:-1])

    assert is_closed(slow)
    assert ours.refused == ["tcp_message_timeout"]
    good.sendall(numbered(2))
    wait_until(lambda: len(ours.received) == 1)


def test_each_message_has_its_own_timeout(rig: MakeRig) -> None:
    clock = ManualTime()
    ours = rig(now_ns=clock, message_timeout_ms=150)
    client = ours.ecu(ours.listen())
    data = b"".join(numbered(n) for n in range(9))
    half = len(numbered(0)) // 2

    client.sendall(data[:half])
    for number in range(8):
        clock.advance(100, ours)
        client.sendall(
            data[half * (2 * number + 1) : half * (2 * number + 3)]
        )  # the end of one message, and half of the next
        wait_until(lambda number=number: len(ours.received) == number + 1)  # type: ignore[misc]

    assert ours.refused == []
    clock.advance(200, ours)
    assert is_closed(client)
    assert ours.refused == ["tcp_message_timeout"]


def test_an_idle_connection_is_closed_unless_it_carries_events(rig: MakeRig) -> None:
    clock = ManualTime()
    ours = rig(now_ns=clock, idle_ms=100)
    address = ours.listen()
    idle, kept = ours.ecu(address), ours.ecu(address)
    wait_until(lambda: len(ours.connects) == 2)
    ours.connections.exempt_from_idle(TcpAddress(*kept.getsockname()))
    clock.advance(100, ours)

    assert is_closed(idle)
    assert ours.refused == ["tcp_idle"]
    kept.sendall(numbered(1))
    wait_until(lambda: len(ours.received) == 1)


def test_a_flood_of_connections_is_bounded_and_a_peer_is_served(rig: MakeRig) -> None:
    ours = rig(connections=10, connections_per_host=4)
    ours.answer = lambda message, peer: ours.connections.send(numbered(number_of(message)), peer)
    address = ours.listen()
    good = ours.ecu(address)
    wait_until(lambda: ours.statistic("open") == 1)

    flood = [ours.ecu(address, host=f"127.0.0.{2 + n // 100}") for n in range(1_000)]
    for number in range(20):
        good.sendall(numbered(number))
        assert number_of(read_messages(good, 1)[0]) == number

    wait_until(lambda: len(ours.refused) == 991)
    assert ours.statistic("open") == 10
    assert set(ours.refused) == {"tcp_host_connections", "tcp_connections"}
    for each in flood:
        each.close()
    wait_until(lambda: ours.statistic("open") == 1)
    ours.ecu(address, host="127.0.0.3").sendall(numbered(99))
    wait_until(lambda: number_of(ours.received[-1][0]) == 99)


def test_a_host_has_as_many_connections_as_its_limit_and_no_more(rig: MakeRig) -> None:
    ours = rig(connections=10, connections_per_host=4)
    address = ours.listen()
    accepted = [ours.ecu(address) for _ in range(4)]
    wait_until(lambda: ours.statistic("open") == 4)

    another = ours.ecu(address)
    wait_until(lambda: ours.refused or ours.statistic("open") > 4)
    assert ours.refused == ["tcp_host_connections"]
    assert is_closed(another)
    accepted[0].close()
    wait_until(lambda: ours.statistic("open") == 3)
    ours.ecu(address)
    wait_until(lambda: ours.statistic("open") == 4)


def test_accepting_is_tried_again_after_a_pause(rig: MakeRig, monkeypatch: pytest.MonkeyPatch) -> None:
    sent_request: list[float] = []

    def accept(door: TcpAcceptor, real: Callable[[TcpAcceptor], bool] = TcpAcceptor.accept_pending) -> bool:
        sent_request.append(time.monotonic())
        return len(sent_request) > 2 and real(door)

    monkeypatch.setattr(TcpAcceptor, "accept_pending", accept)
    ours = rig()
    client = ours.ecu(ours.listen())
    client.sendall(numbered(1))

    wait_until(lambda: len(ours.received) == 1)
    assert sent_request[1] - sent_request[0] > 0.05
    assert sent_request[2] - sent_request[1] > 0.05


# --- magic cookies ----------------------------------------------------------------------------------------------------


def test_with_cookies_each_side_sends_its_own_cookie_first(rig: MakeRig, service: RestartableService) -> None:
    ours = rig(cookies=True)
    ours.connections.connect(service.address)
    server, client = service.accept(), ours.ecu(ours.listen())
    wait_until(lambda: len(ours.connects) == 2)

    ours.connections.send(numbered(1), service.address)
    ours.connections.send(numbered(2), TcpAddress(*client.getsockname()))
    ours.connections.send(numbered(3), service.address)

    assert server.recv(1_000, socket.MSG_PEEK)[:36] == CLIENT_COOKIE + numbered(1)
    assert client.recv(200) == SERVER_COOKIE + numbered(2)


# [utest->RPC-593, RPC-594]
def test_with_cookies_the_next_one_follows_after_10_s(rig: MakeRig, service: RestartableService) -> None:
    now = ManualTime()
    ours = rig(now_ns=now, cookies=True)
    ours.connections.connect(service.address)
    server = service.accept()
    wait_until(lambda: ours.connections.is_connected(service.address))

    expected = b""
    for number, (pause_ms, cookie) in enumerate([(0, CLIENT_COOKIE), (9_000, b""), (1_000, CLIENT_COOKIE)]):
        now.advance(pause_ms, ours)
        ours.connections.send(numbered(number), service.address)
        expected += cookie + numbered(number)

    assert server.recv(len(expected), socket.MSG_WAITALL) == expected


# [utest->RPC-586]
def test_with_cookies_decoding_continues_behind_invalid_bytes(rig: MakeRig) -> None:
    ours = rig(cookies=True)
    client = ours.ecu(ours.listen())

    client.sendall(numbered(1) + b"\xff" * 64 + CLIENT_COOKIE + numbered(2))

    wait_until(lambda: [number_of(message) for message, _ in ours.received] == [1, 2])
    assert ours.refused == []


def test_a_connection_that_is_not_accepted_yet_is_found_for_a_subscribe(rig: MakeRig) -> None:
    """A client may send its Subscribe before the receiving thread has accepted its connection."""
    ours = rig()
    address = ours.listen()
    ours.stop()  # as between two polls of the receiving thread
    with socket.create_connection(address) as client:
        peer = TcpAddress(*client.getsockname())
        assert not ours.connections.is_connected(peer)
        assert InboundStreams([ours.connections]).is_connected(peer)


# --- stop and close ---------------------------------------------------------------------------------------------------


def test_messages_sent_before_the_close_arrive_despite_unread_input(rig: MakeRig) -> None:
    ours = rig()
    client = ours.ecu(ours.listen())
    peer = TcpAddress(*client.getsockname())
    wait_until(lambda: ours.connections.is_connected(peer))
    ours.stop()
    client.sendall(numbered(7) * 1_000)
    for number in range(100):
        ours.connections.send(numbered(number, 1_000), peer)

    ours.connections.close()

    assert [number_of(each) for each in read_messages(client, 100)] == list(range(100))
    assert client.recv(1) == b""


def test_an_address_in_use_is_named(rig: MakeRig, service: RestartableService) -> None:
    with pytest.raises(UStatusError, match=f"cannot listen at TCP 127.0.0.1:{service.address.port}"):
        rig().connections.listen(service.address.port)
