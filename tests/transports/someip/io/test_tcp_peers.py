# SPDX-License-Identifier: Apache-2.0
"""Messages to TCP peers: the connection they use, and their fate when it closes. One real connection, no threads."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.transports.someip.tcp_rig import WITHIN_S, number_of, numbered, read_messages
from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.io.tcp_connection import TcpConnection
from ustreamer.transports.someip.io.tcp_peers import TcpPeers
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.unacked_window import UnackedWindow
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HOST = TcpAddress("127.0.0.1", 0)
LIMITS = TcpConfig(send_buffer=16_384, unsent_ttl_ms=1_000)


class Clock:
    def __init__(self) -> None:
        self.now_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.now_ns


class TcpPeersRig:
    """TcpPeers with a manual clock; `watched_connections` are the connections that wait for room."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.clock = Clock()
        self.watched_connections: list[TcpConnection] = []
        self.peers = TcpPeers(LIMITS, self.clock, self.watched_connections.append)

    def connection(self) -> tuple[TcpConnection, socket.socket]:
        """A connection opened by an ECU, and the ECU's socket."""
        listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        theirs = self._stack.enter_context(socket.create_connection(listener.getsockname()))
        theirs.settimeout(WITHIN_S)
        ours, peer = listener.accept()
        self._stack.enter_context(ours)
        ours.setblocking(False)
        made = TcpConnection(ours, TcpAddress(*peer), LIMITS, self.clock(), inbound=True)
        made.on_established(self.clock())
        self.peers.on_connected(made)
        return made, theirs

    def fill(self, size: int, first: int = 0) -> int:
        """Send messages from number `first` on until one is refused; returns the number of that message."""
        for number in range(first, 1_000_000):
            try:
                self.peers.send(numbered(number, size), HOST, None, resend_if_unread=True)
            except RouteUnavailable:
                return number
        raise AssertionError("it takes everything")


@pytest.fixture
def rig() -> Iterator[TcpPeersRig]:
    with ExitStack() as stack:
        yield TcpPeersRig(stack)


def numbers(connection: socket.socket, count: int) -> list[int]:
    return [number_of(each) for each in read_messages(connection, count)]


def test_a_blocked_route_opens_once_when_the_connection_opens(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    with pytest.raises(RouteUnavailable, match="is not connected") as refused:
        rig.peers.send(numbered(1), HOST, None, resend_if_unread=True)

    connection, _ = rig.connection()

    assert rig.peers.on_progress(connection) == [refused.value.route]
    assert rig.peers.on_progress(connection) == []


def test_a_route_that_was_not_blocked_is_not_reported(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    connection, theirs = rig.connection()
    rig.peers.send(numbered(1), HOST, None, resend_if_unread=True)

    assert rig.peers.on_progress(connection) == []
    assert rig.watched_connections == []
    assert numbers(theirs, 1) == [1]


def test_a_full_connection_is_watched_for_room(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    connection, theirs = rig.connection()

    taken = rig.fill(3_000)
    assert rig.watched_connections
    assert set(rig.watched_connections) == {connection}
    # The peer reads nothing, but its kernel may still acknowledge bytes: fill again until it does not.
    while rig.peers.on_progress(connection) is not None:
        taken = rig.fill(3_000, taken)

    assert numbers(theirs, taken - 1)[: taken - 1] == list(range(taken - 1))


def test_short_messages_do_not_starve_a_long_one(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    connection, _ = rig.connection()
    taken = 0
    while connection.window.has_room(8_000):
        connection.window.add_sent(bytes(100), None, 0, None, resend_if_unread=True)  # in flight forever
        taken += 1

    for size in (8_000, 1):
        with pytest.raises(RouteUnavailable):
            rig.peers.send(bytes(size), HOST, None, resend_if_unread=True)
    assert connection.window.has_room(1)


def test_unconfirmed_messages_wait_until_their_deadline(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    connection, _ = rig.connection()
    connection.window.add_sent(numbered(0), rig.peers.get(HOST), rig.clock(), None, resend_if_unread=True)
    later_ns = rig.clock() + 5_000_000_000
    connection.window.add_sent(numbered(1), rig.peers.get(HOST), rig.clock(), later_ns, resend_if_unread=True)
    rig.peers.on_closed(connection, iter(()), all_read=False)
    assert rig.peers.unsent_count == 2

    rig.clock.now_ns += 1_000_000_001  # more than unsent_ttl_ms
    again, theirs = rig.connection()

    assert rig.peers.on_progress(again) == []
    assert numbers(theirs, 1) == [1]
    assert (rig.peers.resent, rig.peers.dropped) == (1, 1)


def test_new_messages_wait_behind_resent_ones(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    first, _ = rig.connection()
    for number in range(3):
        first.window.add_sent(numbered(number), rig.peers.get(HOST), rig.clock(), None, resend_if_unread=True)
    rig.peers.on_closed(first, iter(()), all_read=False)

    _, theirs = rig.connection()
    rig.peers.send(numbered(3), HOST, None, resend_if_unread=True)

    assert numbers(theirs, 4) == list(range(4))


def test_a_reconnect_during_a_resend_keeps_the_order(rig: TcpPeersRig) -> None:
    rig.peers.add_host(HOST.host)
    tcp_peer = rig.peers.get(HOST)
    assert tcp_peer is not None
    first, _ = rig.connection()
    for number in range(6):
        first.window.add_sent(numbered(number, 5_000), tcp_peer, rig.clock(), None, resend_if_unread=True)
    rig.peers.on_closed(first, iter(()), all_read=False)

    second, _ = rig.connection()
    second._acked_offset = lambda: 0  # type: ignore[method-assign]  # partitioned: its kernel accepts some bytes, and no acknowledgement arrives
    assert rig.peers.on_progress(second) is None
    assert 0 < rig.peers.resent < 6
    third, theirs = rig.connection()
    third.window = UnackedWindow(1 << 20, 0)

    assert rig.peers.on_progress(third) == []
    assert numbers(theirs, 6) == list(range(6))


def test_messages_for_a_closed_inbound_address_are_dropped_and_counted(rig: TcpPeersRig) -> None:
    connection, _ = rig.connection()
    tcp_peer = rig.peers.get(connection.address)
    connection.window.add_sent(numbered(0), tcp_peer, rig.clock(), None, resend_if_unread=True)

    rig.peers.on_closed(connection, iter(()), all_read=False)

    assert rig.peers.dropped == 1
    with pytest.raises(UStatusError) as refused:
        rig.peers.send(numbered(1), connection.address, None, resend_if_unread=True)
    assert refused.value.code is UCode.NOT_FOUND
