# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of a SOME/IP endpoint: those to services of the network, and those that ECUs have opened to us.

    send -> the kernel takes it, or its beginning        the rest goes on when there is room, and others wait for it
         -> no room, or no connection                    RouteUnavailable: it stays in the lane; `opened` when it may be tried
    a connection ends -> what was not acknowledged, and what may not have been read, goes first into the next one

Everything belongs to the endpoint's receiving thread, but for what `tcp_ways` does for senders.
"""

import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, Protocol

from ustreamer.core.base.keyed_deadlines import Deadlines
from ustreamer.transports.someip.io.poller import READABLE, WRITABLE, Poller
from ustreamer.transports.someip.io.tcp_acceptor import Door, TcpReason
from ustreamer.transports.someip.io.tcp_connection import TcpConnection, connected, connecting
from ustreamer.transports.someip.io.tcp_peers import Way, Ways
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MalformedMessage, SomeIpMessage
from ustreamer.transports.someip.protocol.tcp_config import Tcp
from ustreamer.uprotocol.ustatus import UCode, UStatusError

log = logging.getLogger("ustreamer.someip")

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_PIECE: Final = 65_536
_PIECES: Final = 4  # of one connection, before it is the turn of others
_LOOK_NS: Final = 5_000_000  # the kernel says when it has room, and not when the peer has acknowledged
_ACCEPT_PAUSE_NS: Final = 100_000_000
_PART_NS: Final = 1_000_000_000


class ComesOrGoes(Protocol):
    """Told that the connection with `peer` is there, or is no more; `inbound`: the peer has opened it."""

    def __call__(self, peer: TcpAddress, *, inbound: bool) -> None: ...


def _nobody(peer: TcpAddress, *, inbound: bool) -> None:
    pass


class TcpCallbacks(NamedTuple):
    """Called on the receiving thread with no lock held; what is called may send."""

    take: Callable[[list[SomeIpMessage], list[MalformedMessage], TcpAddress], None]
    refused: Callable[[str, Address, object], None]
    opened: Callable[[Hashable], None]
    connected: ComesOrGoes = _nobody
    disconnected: ComesOrGoes = _nobody


class Connections:
    """`connect`, `disconnect`, `expect`, `send`, `is_connected`, `statistics`: any thread. The rest: the receiving thread."""

    def __init__(
        self,
        limits: Tcp,
        monotonic_ns: Callable[[], int],
        rng: Callable[[], float],
        knows: Callable[[str], bool],
        callbacks: TcpCallbacks,
    ) -> None:
        """`knows`: whether a host may connect to us. `rng` gives 0..1."""
        self._limits = limits
        self._monotonic_ns = monotonic_ns
        self._rng = rng
        self._callbacks = callbacks
        self._ways = Ways(limits, monotonic_ns, self._look)
        self._door = Door(limits, knows, self._entered, self._turned_away)
        self._bind = ""
        self._poller: Poller | None = None
        self._wake: Callable[[], None] = lambda: None
        self._open: dict[int, TcpConnection] = {}
        self._asked: deque[Way] = deque()
        self._deadlines: Deadlines[Way | TcpConnection | Door] = Deadlines()
        self._accepted = self._established = self._ended = 0

    # --- life -----------------------------------------------------------------------------------------------------------

    def open(self, bind: str, poller: Poller, wake: Callable[[], None]) -> None:
        """Before all else; `wake` has the receiving thread look at `next_deadline_ns` again."""
        self._bind, self._poller, self._wake = bind, poller, wake

    def listen(self, port: int) -> None:
        """Take connections at `port` (0: any). Raises UStatusError(UNAVAILABLE)."""
        try:
            fd = self._door.open((self._bind, port))
        except OSError as error:
            raise UStatusError(
                UCode.UNAVAILABLE, f"cannot listen at TCP {self._bind}:{port}: {error.strerror}"
            ) from error
        self._polled.add(fd, self._knock)

    @property
    def port(self) -> int:
        """Where we listen; 0 if we do not."""
        return self._door.port

    @property
    def _polled(self) -> Poller:
        assert self._poller is not None  # `open` comes before all else
        return self._poller

    def close(self) -> None:
        """Close everything, when the receiving thread has ended. What the kernel has taken still goes its way. May be repeated."""
        until_ns = self._monotonic_ns() + _PART_NS
        for each in list(self._open.values()):
            self._polled.remove(each.fd)
            left_s = max(1, until_ns - self._monotonic_ns()) / _NS_PER_S
            if not each.part(left_s):
                self._ways.given_up += 1
            each.end(read=True)
        self._open.clear()
        self._ways.close()
        if self._door.fd is not None:
            self._polled.remove(self._door.fd)
        self._door.close()

    # --- what is wanted ---------------------------------------------------------------------------------------------------

    def connect(self, address: TcpAddress) -> None:
        """Keep a connection to `address` from now on; where there is none, one is tried for at once."""
        self._asked.append(self._ways.to_service(address))
        self._wake()

    def disconnect(self, address: TcpAddress) -> None:
        """Keep none any more."""
        way = self._ways.get(address)
        if way is not None and way.outbound:
            way.wanted = False
            self._asked.append(way)
            self._wake()

    def expect(self, host: str) -> None:
        """What is sent to (`host`, 0) goes over the newest connection that this host has opened, and waits for one."""
        self._ways.to_host(host)

    def keep(self, address: TcpAddress) -> None:
        """Events go to `address`: silence is no reason to close its connection."""
        connection = self._connection(address)
        if connection is not None:
            connection.subscriber = True

    def is_connected(self, address: TcpAddress) -> bool:
        return self._connection(address) is not None

    def local(self, address: TcpAddress) -> TcpAddress | None:
        """Our end of the connection with `address`; None without one."""
        connection = self._connection(address)
        return None if connection is None else connection.local

    def _connection(self, address: TcpAddress) -> TcpConnection | None:
        way = self._ways.get(address)
        return None if way is None else way.connection

    def drop(self, host: str) -> None:
        """The peer at `host` was started anew: close all connections with it; ours are made again."""
        for each in [each for each in self._open.values() if each.address.host == host]:
            self._end(each, read=False)

    def send(
        self, data: bytes, address: TcpAddress, deadline_ns: int | None = None, *, again: bool = True
    ) -> None:
        """Send one whole message. Never waits.

        `deadline_ns`: no later is it sent again; `again`: also if only its reading is in doubt. Raises RouteUnavailable while
        there is no connection or no room; NOT_FOUND if an ECU's connection has gone; INVALID_ARGUMENT if it is too long.
        """
        self._ways.send(data, address, deadline_ns, again=again)

    def waiting_at(self, address: TcpAddress) -> list[bytes]:
        """The messages that wait for the next connection with `address`."""
        return self._ways.waiting_at(address)

    # --- what the poller says -------------------------------------------------------------------------------------------

    def _look(self, connection: TcpConnection) -> None:
        if not connection.closed:
            self._polled.change(connection.fd, READABLE | WRITABLE)

    def _handle(self, connection: TcpConnection, events: int) -> None:
        if not connection.established:
            self._arrived(connection)
            return
        if events & ~WRITABLE:
            self._read(connection)
        if events & WRITABLE and not connection.closed:
            self._go_on(connection)

    def _read(self, connection: TcpConnection) -> None:
        for _ in range(_PIECES):
            try:
                data = connection.socket.recv(_PIECE)
            except BlockingIOError:
                return
            except OSError as error:
                connection.failure = connection.failure or error.errno
                data = b""
            if not data:
                # After the end of its stream a peer that gets more answers with a reset, too; its kernel may then have
                # acknowledged what its process never read (measured: 26 kB).
                self._end(connection, read=connection.failure is None)
                return
            self._feed(connection, data)
            if connection.closed or len(data) < _PIECE:
                return

    def _feed(self, connection: TcpConnection, data: bytes) -> None:
        fed = connection.feed(data, self._monotonic_ns())
        if connection.began_ns is not None:
            self._deadlines.set_earlier(
                connection, connection.began_ns + self._limits.message_ms * _NS_PER_MS
            )
        self._callbacks.take(fed.messages, fed.refused, connection.address)
        if connection.reader.broken and not connection.closed:
            self._refuse(connection, TcpReason.STREAM, "where its next message begins is not known")

    def _go_on(self, connection: TcpConnection) -> None:
        self._polled.change(connection.fd, READABLE)  # first: who is refused meanwhile changes it back
        routes = self._ways.went_on(connection)
        if connection.rest is not None:
            self._look(connection)
        elif routes is None:
            self._deadlines.set_earlier(connection, self._monotonic_ns() + _LOOK_NS)
        for route in routes or ():
            self._callbacks.opened(route)

    # --- coming and going -------------------------------------------------------------------------------------------------

    def _knock(self, events: int) -> None:
        if not self._door.accept() and self._door.fd is not None:
            self._polled.remove(self._door.fd)
            self._deadlines.set(self._door, self._monotonic_ns() + _ACCEPT_PAUSE_NS)

    def _turned_away(self, reason: TcpReason, peer: TcpAddress) -> None:
        self._callbacks.refused(reason, peer, "a connection")

    def _entered(self, opened: socket.socket, peer: TcpAddress) -> None:
        self._accepted += 1
        self._begin(TcpConnection(opened, peer, self._limits, self._monotonic_ns(), inbound=True))

    def _try(self, way: Way) -> None:
        try:
            opened = connecting(way.address, self._bind)
        except OSError as error:
            self._failed(way, error)
            return
        now_ns = self._monotonic_ns()
        trying = TcpConnection(opened, way.address, self._limits, now_ns, inbound=False)
        way.trying = self._open[trying.fd] = trying
        self._polled.add(trying.fd, lambda events: self._handle(trying, events), WRITABLE)
        self._deadlines.set(trying, now_ns + self._limits.connect_ms * _NS_PER_MS)

    def _arrived(self, connection: TcpConnection) -> None:
        try:
            connected(connection.socket)
        except OSError as error:
            self._end(connection, read=True, why=error)
            return
        self._polled.remove(connection.fd)
        self._deadlines.cancel(connection)
        self._begin(connection)

    def _begin(self, connection: TcpConnection) -> None:
        self._open[connection.fd] = connection
        try:
            connection.begin(self._monotonic_ns())
        except OSError as error:
            self._end(connection, read=True, why=error)
            return
        self._established += 1
        self._polled.add(connection.fd, lambda events: self._handle(connection, events), READABLE | WRITABLE)
        self._ways.came(connection)
        self._check_later(connection)
        self._callbacks.connected(connection.address, inbound=connection.inbound)

    def _end(self, connection: TcpConnection, *, read: bool, why: OSError | None = None) -> None:
        """Close; what may be lost waits for the next connection. `read`: as in `Window.lost`."""
        if connection.closed:
            return
        peer, inbound = connection.address, connection.inbound
        self._polled.remove(connection.fd)
        self._deadlines.cancel(connection)
        del self._open[connection.fd]
        others = [
            each
            for each in self._open.values()
            if each.inbound and each.established and each.address.host == peer.host
        ]
        way = None if inbound else self._ways.get(peer)
        self._ways.gone(connection, iter(reversed(others)), read=read)
        if inbound:
            self._door.left(peer.host)
        elif way is not None:
            way.trying = None
            lasted_ns = self._monotonic_ns() - connection.since_ns
            if connection.established and lasted_ns > self._limits.retry_max_ms * _NS_PER_MS:
                way.failures = 0
            self._failed(way, why)
        if connection.established:
            self._ended += 1
            self._callbacks.disconnected(peer, inbound=inbound)

    def _refuse(self, connection: TcpConnection, reason: TcpReason, detail: str) -> None:
        self._callbacks.refused(reason, connection.address, detail)
        self._end(connection, read=False)

    def _failed(self, way: Way, why: OSError | None) -> None:
        """Try again after a pause, jittered by 0.5 to 1, so that many gateways do not knock at a returning peer in step."""
        if not way.wanted:
            self._ways.forget(way)
            return
        if why is not None and not way.failures:
            log.warning("someip.tcp_not_connected", extra={"peer": str(way.address), "reason": why.strerror})
        limits = self._limits
        pause_ms = min(limits.retry_max_ms, limits.retry_first_ms << min(way.failures, 20))
        way.failures += 1
        pause_ns = round(pause_ms * (0.5 + self._rng() / 2) * _NS_PER_MS)
        self._deadlines.set(way, self._monotonic_ns() + pause_ns)

    # --- time -----------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do; 0 for at once, None if nothing is due."""
        return 0 if self._asked else self._deadlines.next_ns

    def on_timer(self) -> None:
        """Connect, disconnect, give up, look again: what was asked for or is due."""
        while self._asked:
            self._look_after(self._asked.popleft())
        if self._deadlines.next_ns is None:
            return
        now_ns = self._monotonic_ns()
        while (due := self._deadlines.pop_due(now_ns)) is not None:
            if isinstance(due, Way):
                self._look_after(due)
            elif isinstance(due, TcpConnection):
                self._check(due, now_ns)
            elif due.fd is not None:
                self._polled.add(due.fd, self._knock)

    def _look_after(self, way: Way) -> None:
        connection = way.connection or way.trying
        if not way.wanted:
            self._deadlines.cancel(way)
            if connection is not None:
                self._end(connection, read=True)
            self._ways.forget(way)
        elif connection is None:
            self._deadlines.cancel(way)
            self._try(way)

    def _check(self, connection: TcpConnection, now_ns: int) -> None:
        limits = self._limits
        if not connection.established:
            late = OSError(errno.ETIMEDOUT, f"no connection within {limits.connect_ms} ms")
            self._end(connection, read=True, why=late)
        elif (
            connection.began_ns is not None and now_ns >= connection.began_ns + limits.message_ms * _NS_PER_MS
        ):
            self._refuse(connection, TcpReason.SLOW, f"a message did not end within {limits.message_ms} ms")
        elif self._is_idle(connection, now_ns):
            self._refuse(connection, TcpReason.IDLE, f"nothing for {limits.idle_ms} ms")
        else:
            self._check_later(connection)
            self._go_on(connection)

    def _is_idle(self, connection: TcpConnection, now_ns: int) -> bool:
        idle_ns = self._limits.idle_ms * _NS_PER_MS
        if not idle_ns or not connection.inbound or now_ns < connection.used_ns + idle_ns:
            return False
        return not connection.subscriber and self._ways.get(TcpAddress(connection.address.host, 0)) is None

    def _check_later(self, connection: TcpConnection) -> None:
        limits = self._limits
        if connection.began_ns is not None:
            self._deadlines.set_earlier(connection, connection.began_ns + limits.message_ms * _NS_PER_MS)
        if limits.idle_ms and connection.inbound:
            now_ns, idle_ns = self._monotonic_ns(), limits.idle_ms * _NS_PER_MS
            at_ns = connection.used_ns + idle_ns
            self._deadlines.set_earlier(connection, at_ns if at_ns > now_ns else now_ns + idle_ns)

    # --- counters -------------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """Names as in `SomeipTransport.statistics`."""
        ways = self._ways
        return {
            "tcp_open": len(self._open),
            "tcp_accepted": self._accepted,
            "tcp_established": self._established,
            "tcp_ended": self._ended,
            "tcp_waiting": ways.waiting,
            "tcp_sent_again": ways.sent_again,
            "tcp_given_up": ways.given_up,
        }
