# SPDX-License-Identifier: Apache-2.0
"""Messages into TCP connections: which one, in which order, and what goes on when the connection has gone.

A *way* is a peer as senders name it: a service's address; the exact address of an ECU's end of a connection; or, with port 0,
an ECU's host, whichever port it calls from. What is to be sent again waits with its way for the next connection, but for an ECU's
exact address, which does not come again.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Final

from ustreamer.hooks import RouteUnavailable
from ustreamer.transports.someip.io.tcp_connection import TcpConnection
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.tcp_config import Tcp
from ustreamer.transports.someip.protocol.unacked_window import Kept
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid

_NS_PER_MS: Final = 1_000_000


class Way:
    """A peer as senders name it. `wanted`: it is to be reached again when its connection ends."""

    __slots__ = ("address", "again", "connection", "failures", "outbound", "refused", "trying", "wanted")

    def __init__(self, address: TcpAddress, *, outbound: bool, wanted: bool) -> None:
        self.address = address
        self.outbound = outbound
        self.wanted = wanted
        self.connection: TcpConnection | None = None
        self.trying: TcpConnection | None = None
        """A connection that is on its way; this and `failures` belong to the receiving thread."""
        self.failures = 0
        self.again: deque[Kept] = deque()
        self.refused = False
        """Whether somebody waits to be told that it may be tried again."""

    @property
    def route(self) -> Hashable:
        """Not the address: over UDP the same peer has the same one."""
        return ("tcp", *self.address)


class Ways:
    """Safe from any thread; nothing in it waits."""

    def __init__(
        self, limits: Tcp, monotonic_ns: Callable[[], int], look: Callable[[TcpConnection], None]
    ) -> None:
        """`look` has `went_on` called as soon as the kernel has room for a connection."""
        self._limits = limits
        self._monotonic_ns = monotonic_ns
        self._look = look
        # Taken for system calls that do not wait, and never while anybody is called back who could send.
        self._lock = Lock()
        self._ways: dict[TcpAddress, Way] = {}
        self.sent_again = 0
        self.given_up = 0
        """What may have been lost and is not sent again: too old, or there is no next connection."""

    # --- which there are --------------------------------------------------------------------------------------------------

    def to_service(self, address: TcpAddress) -> Way:
        """The way to a service; it is wanted from now on."""
        with self._lock:
            way = self._ways.get(address)
            if way is None or not way.outbound:
                way = self._ways[address] = Way(address, outbound=True, wanted=True)
            way.wanted = True
            return way

    def to_host(self, host: str) -> None:
        """Have what is for (`host`, 0) go over the newest connection of this host, and wait for one."""
        address = TcpAddress(host, 0)
        with self._lock:
            if address not in self._ways:
                self._ways[address] = Way(address, outbound=False, wanted=True)

    def get(self, address: TcpAddress) -> Way | None:
        return self._ways.get(address)

    def of(self, connection: TcpConnection) -> list[Way]:
        """The ways that may go over `connection`."""
        keys = [connection.address]
        if connection.inbound:
            keys.append(TcpAddress(connection.address.host, 0))
        return [self._ways[key] for key in keys if key in self._ways]

    def forget(self, way: Way) -> None:
        with self._lock:
            self._forget(way)

    def _forget(self, way: Way) -> None:
        if self._ways.get(way.address) is way:
            del self._ways[way.address]
        self.given_up += len(way.again)
        way.again.clear()

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent again."""
        with self._lock:
            return sum(len(way.again) for way in self._ways.values())

    def waiting_at(self, address: TcpAddress) -> list[bytes]:
        """The messages for `address` that wait to be sent again."""
        with self._lock:
            way = self._ways.get(address)
            return [] if way is None else [kept.data for kept in way.again]

    # --- sending ----------------------------------------------------------------------------------------------------------

    def send(self, data: bytes, address: TcpAddress, deadline_ns: int | None, *, again: bool) -> None:
        """As `Connections.send`."""
        if len(data) > self._limits.max_message:
            raise invalid(
                f"message of {len(data)} bytes for {address}: more than the {self._limits.max_message} of tcp.max_message"
            )
        with self._lock:
            way = self._ways.get(address)
            if way is None:
                raise UStatusError(UCode.NOT_FOUND, f"{address}: no connection with this peer")
            connection = way.connection
            if connection is not None and self._sent(way, connection, data, deadline_ns, again=again):
                return
            way.refused = True
            if connection is not None:
                self._look(connection)
        what = "is not connected" if connection is None else "takes nothing at present"
        raise RouteUnavailable(way.route, f"{address} {what}")

    def _sent(
        self, way: Way, connection: TcpConnection, data: bytes, deadline_ns: int | None, *, again: bool
    ) -> bool:
        try:
            if way.again and not self._all_sent_again(way, connection):
                return False
            if not connection.write(data, way, self._monotonic_ns(), deadline_ns, again=again):
                return False
        except OSError:  # the poller says so too, and the receiving thread ends it
            return False
        if connection.rest is not None:
            self._look(connection)
        return True

    def _all_sent_again(self, way: Way, connection: TcpConnection) -> bool:
        while way.again:
            kept = way.again[0]
            now_ns = self._monotonic_ns()
            if kept.deadline_ns is not None and now_ns > kept.deadline_ns:
                self.given_up += 1
            elif connection.write(kept.data, way, now_ns, kept.deadline_ns, again=kept.again):
                self.sent_again += 1
            else:
                return False
            way.again.popleft()
        return True

    def went_on(self, connection: TcpConnection) -> list[Hashable] | None:
        """The kernel has room: what is left goes first, then what is to be sent again.

        The routes that may be tried again; None while something of it waits for room or acknowledgements.
        """
        with self._lock:
            ways = [way for way in self.of(connection) if way.connection is connection]
            try:
                if not connection.flush():
                    return None
                for way in ways:
                    if not self._all_sent_again(way, connection):
                        return None
            except OSError:
                return []  # the poller says so too
            if connection.rest is not None or not connection.has_room():
                return None
            opened = [way.route for way in ways if way.refused]
            for way in ways:
                way.refused = False
            return opened

    # --- coming and going -------------------------------------------------------------------------------------------------

    def came(self, connection: TcpConnection) -> None:
        """A connection is there: its ways go over it from now on."""
        with self._lock:
            if connection.inbound:
                self._ways[connection.address] = Way(connection.address, outbound=False, wanted=False)
            for way in self.of(connection):
                if way.connection is not None:
                    # An ECU has called again. What the older connection may not have delivered goes first into this one,
                    # before what had still to be sent again into that one.
                    way.again.extendleft(reversed(self._dated(way.connection.take(way))))
                way.connection, way.trying = connection, None

    def gone(self, connection: TcpConnection, others: Iterator[TcpConnection], *, read: bool) -> None:
        """Close `connection`; what may be lost waits for the next one. `others`: of the same host. `read`: as in `Window.lost`."""
        with self._lock:
            for kept in reversed(self._dated(connection.end(read=read))):
                way = kept.way
                if isinstance(way, Way) and way.wanted:
                    way.again.appendleft(kept)  # before what waits already: it was sent before that
                else:
                    self.given_up += 1
            for way in self.of(connection):
                if way.connection is not connection:
                    continue
                way.connection = None
                if not way.outbound and not way.wanted:
                    self._forget(way)
                elif not way.outbound:
                    way.connection = next(others, None)
                    if way.connection is not None:
                        self._look(way.connection)

    def _dated(self, lost: list[Kept]) -> list[Kept]:
        until_ns = self._monotonic_ns() + self._limits.keep_ms * _NS_PER_MS
        return [
            each if each.deadline_ns is not None else each._replace(deadline_ns=until_ns) for each in lost
        ]

    def close(self) -> None:
        """Give up all that waits."""
        with self._lock:
            for way in list(self._ways.values()):
                self._forget(way)
