# SPDX-License-Identifier: Apache-2.0
"""Which connection a message goes into, and what becomes of it when that has gone: one real connection, and no threads."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.transports.someip.tcp_rig import WITHIN_S, number_of, numbered, read_messages
from ustreamer.hooks import RouteUnavailable
from ustreamer.transports.someip.io.tcp_connection import TcpConnection
from ustreamer.transports.someip.io.tcp_peers import Ways
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.tcp_config import Tcp
from ustreamer.transports.someip.protocol.unacked_window import Window
from ustreamer.uprotocol.ustatus import UCode, UStatusError

HOST = TcpAddress("127.0.0.1", 0)
LIMITS = Tcp(send_buffer=16_384, keep_ms=1_000)


class Clock:
    def __init__(self) -> None:
        self.now_ns = time.monotonic_ns()

    def __call__(self) -> int:
        return self.now_ns


class Street:
    """Ways, whose clock is moved by hand; `looked` are the connections that are to be looked at when there is room."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.clock = Clock()
        self.looked: list[TcpConnection] = []
        self.ways = Ways(LIMITS, self.clock, self.looked.append)

    def connection(self) -> tuple[TcpConnection, socket.socket]:
        """A connection that an ECU has opened, and its end."""
        listener = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        theirs = self._stack.enter_context(socket.create_connection(listener.getsockname()))
        theirs.settimeout(WITHIN_S)
        ours, peer = listener.accept()
        self._stack.enter_context(ours)
        ours.setblocking(False)
        made = TcpConnection(ours, TcpAddress(*peer), LIMITS, self.clock(), inbound=True)
        made.begin(self.clock())
        self.ways.came(made)
        return made, theirs

    def fill(self, size: int) -> int:
        """Send to the host until it is refused; how many were taken."""
        for number in range(1_000_000):
            try:
                self.ways.send(numbered(number, size), HOST, None, again=True)
            except RouteUnavailable:
                return number
        raise AssertionError("it takes everything")


@pytest.fixture
def street() -> Iterator[Street]:
    with ExitStack() as stack:
        yield Street(stack)


def numbers(connection: socket.socket, count: int) -> list[int]:
    return [number_of(each) for each in read_messages(connection, count)]


def test_who_was_refused_is_told_once_when_there_is_a_connection(street: Street) -> None:
    street.ways.to_host(HOST.host)
    with pytest.raises(RouteUnavailable, match="is not connected") as refused:
        street.ways.send(numbered(1), HOST, None, again=True)

    connection, _ = street.connection()

    assert street.ways.went_on(connection) == [refused.value.route]
    assert street.ways.went_on(connection) == []


def test_nobody_is_told_who_was_not_refused(street: Street) -> None:
    street.ways.to_host(HOST.host)
    connection, theirs = street.connection()
    street.ways.send(numbered(1), HOST, None, again=True)

    assert street.ways.went_on(connection) == []
    assert street.looked == []
    assert numbers(theirs, 1) == [1]


def test_a_connection_that_took_too_little_is_looked_at_when_there_is_room(street: Street) -> None:
    street.ways.to_host(HOST.host)
    connection, theirs = street.connection()

    taken = street.fill(3_000)
    assert street.looked
    assert set(street.looked) == {connection}
    assert street.ways.went_on(connection) is None  # nothing was read, so there is no room

    assert numbers(theirs, taken - 1)[: taken - 1] == list(range(taken - 1))


def test_short_messages_do_not_keep_a_long_one_out(street: Street) -> None:
    street.ways.to_host(HOST.host)
    connection, _ = street.connection()
    taken = 0
    while connection.window.has_room(8_000):
        connection.window.add(bytes(100), None, 0, None, again=True)  # on its way for ever
        taken += 1

    for size in (8_000, 1):
        with pytest.raises(RouteUnavailable):
            street.ways.send(bytes(size), HOST, None, again=True)
    assert connection.window.has_room(1)


def test_what_may_be_lost_waits_for_as_long_as_it_is_kept(street: Street) -> None:
    street.ways.to_host(HOST.host)
    connection, _ = street.connection()
    connection.window.add(numbered(0), street.ways.get(HOST), street.clock(), None, again=True)
    later_ns = street.clock() + 5_000_000_000
    connection.window.add(numbered(1), street.ways.get(HOST), street.clock(), later_ns, again=True)
    street.ways.gone(connection, iter(()), read=False)
    assert street.ways.waiting == 2

    street.clock.now_ns += 1_000_000_001  # more than keep_ms
    again, theirs = street.connection()

    assert street.ways.went_on(again) == []
    assert numbers(theirs, 1) == [1]
    assert (street.ways.sent_again, street.ways.given_up) == (1, 1)


def test_what_is_new_waits_for_what_is_sent_again(street: Street) -> None:
    street.ways.to_host(HOST.host)
    first, _ = street.connection()
    for number in range(3):
        first.window.add(numbered(number), street.ways.get(HOST), street.clock(), None, again=True)
    street.ways.gone(first, iter(()), read=False)

    _, theirs = street.connection()
    street.ways.send(numbered(3), HOST, None, again=True)

    assert numbers(theirs, 4) == list(range(4))


def test_who_calls_again_while_what_was_lost_is_sent_again_gets_it_in_order(street: Street) -> None:
    street.ways.to_host(HOST.host)
    way = street.ways.get(HOST)
    assert way is not None
    first, _ = street.connection()
    for number in range(6):
        first.window.add(numbered(number, 5_000), way, street.clock(), None, again=True)
    street.ways.gone(first, iter(()), read=False)

    second, _ = street.connection()
    second._acked = lambda: 0  # type: ignore[method-assign]  # cut off: its kernel takes some, and nothing arrives
    assert street.ways.went_on(second) is None
    assert 0 < street.ways.sent_again < 6
    third, theirs = street.connection()
    third.window = Window(1 << 20, 0)

    assert street.ways.went_on(third) == []
    assert numbers(theirs, 6) == list(range(6))


def test_what_was_for_an_end_that_does_not_come_again_is_given_up_and_counted(street: Street) -> None:
    connection, _ = street.connection()
    way = street.ways.get(connection.address)
    connection.window.add(numbered(0), way, street.clock(), None, again=True)

    street.ways.gone(connection, iter(()), read=False)

    assert street.ways.given_up == 1
    with pytest.raises(UStatusError) as refused:
        street.ways.send(numbered(1), connection.address, None, again=True)
    assert refused.value.code is UCode.NOT_FOUND
