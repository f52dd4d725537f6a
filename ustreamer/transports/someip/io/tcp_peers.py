# SPDX-License-Identifier: Apache-2.0
"""Messages to TCP peers: the connection of each, their order, and the messages that wait for the next connection.

A peer is the target that a sender names: the address of a service; the exact address of an ECU's end of a connection;
or, with port 0, an ECU's host with any port. Unconfirmed messages wait at their peer for the next connection. The
exact address of an ECU has no next connection.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from threading import Lock
from typing import Final

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.io.tcp_connection import TcpConnection
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.unacked_window import SentMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument

_NS_PER_MS: Final = 1_000_000


class TcpPeer:
    """A target that senders name. `keep_connected`: it is connected again when its connection ends."""

    __slots__ = (
        "address",
        "blocked",
        "connecting",
        "connection",
        "failures",
        "keep_connected",
        "outbound",
        "unsent",
    )

    def __init__(self, address: TcpAddress, *, outbound: bool, keep_connected: bool) -> None:
        self.address = address
        self.outbound = outbound
        self.keep_connected = keep_connected
        self.connection: TcpConnection | None = None
        self.connecting: TcpConnection | None = None
        """A connection attempt; this and `failures` belong to the receiving thread."""
        self.failures = 0
        self.unsent: deque[SentMessage] = deque()
        self.blocked = False
        """Whether a sender waits for a notification that the route is open."""

    @property
    def route(self) -> Hashable:
        """Not the address: over UDP the same peer has the same address."""
        return ("tcp", *self.address)


class TcpPeers:
    """Safe from any thread; never waits."""

    def __init__(
        self,
        limits: TcpConfig,
        monotonic_ns: Callable[[], int],
        watch_writable: Callable[[TcpConnection], None],
    ) -> None:
        """`watch_writable` requests a call of `on_progress` as soon as the kernel has room for a connection."""
        self._limits = limits
        self._monotonic_ns = monotonic_ns
        self._watch_writable = watch_writable
        # Held during system calls that do not wait; never during a callback that could send.
        self._lock = Lock()
        self._peers: dict[TcpAddress, TcpPeer] = {}
        self.resent = 0
        self.dropped = 0
        """Messages that may be lost and are not sent again: expired, or without a next connection."""

    # --- known peers --------------------------------------------------------------------------------------------------

    # [impl->RPC-644]
    def add_service(self, address: TcpAddress) -> TcpPeer:
        """The peer of a service, which is kept connected from now on."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None or not peer.outbound:
                peer = self._peers[address] = TcpPeer(address, outbound=True, keep_connected=True)
            peer.keep_connected = True
            return peer

    def add_host(self, host: str) -> None:
        """Send messages for (`host`, 0) over the newest connection of this host; without one they wait."""
        address = TcpAddress(host, 0)
        with self._lock:
            if address not in self._peers:
                self._peers[address] = TcpPeer(address, outbound=False, keep_connected=True)

    def get(self, address: TcpAddress) -> TcpPeer | None:
        return self._peers.get(address)

    def peers_of(self, connection: TcpConnection) -> list[TcpPeer]:
        """The peers that may use `connection`."""
        keys = [connection.address]
        if connection.inbound:
            keys.append(TcpAddress(connection.address.host, 0))
        return [self._peers[key] for key in keys if key in self._peers]

    def remove(self, peer: TcpPeer) -> None:
        with self._lock:
            self._remove(peer)

    def _remove(self, peer: TcpPeer) -> None:
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
        self.dropped += len(peer.unsent)
        peer.unsent.clear()

    @property
    def unsent_count(self) -> int:
        """Messages that wait to be sent again."""
        with self._lock:
            return sum(len(peer.unsent) for peer in self._peers.values())

    def unsent_messages(self, address: TcpAddress) -> list[bytes]:
        """The messages for `address` that wait to be sent again."""
        with self._lock:
            peer = self._peers.get(address)
            return [] if peer is None else [each.data for each in peer.unsent]

    # --- sending ------------------------------------------------------------------------------------------------------

    def send(
        self, data: bytes, address: TcpAddress, deadline_ns: int | None, *, resend_if_unread: bool
    ) -> None:
        """As `TcpConnections.send`."""
        if len(data) > self._limits.max_message:
            raise invalid_argument(
                f"message of {len(data)} bytes for {address}: "
                f"more than the {self._limits.max_message} of tcp.max_message"
            )
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                raise UStatusError(UCode.NOT_FOUND, f"{address}: no connection with this peer")
            connection = peer.connection
            if connection is not None and self._try_send(
                peer, connection, data, deadline_ns, resend_if_unread=resend_if_unread
            ):
                return
            peer.blocked = True
            if connection is not None:
                self._watch_writable(connection)
        state = "is not connected" if connection is None else "accepts no bytes at present"
        raise RouteUnavailable(peer.route, f"{address} {state}")

    def _try_send(
        self,
        peer: TcpPeer,
        connection: TcpConnection,
        data: bytes,
        deadline_ns: int | None,
        *,
        resend_if_unread: bool,
    ) -> bool:
        try:
            if peer.unsent and not self._resend_all(peer, connection):
                return False
            if not connection.write(
                data, peer, self._monotonic_ns(), deadline_ns, resend_if_unread=resend_if_unread
            ):
                return False
        except OSError:  # the poller reports it too, and the receiving thread closes the connection
            return False
        if connection.partial_write is not None:
            self._watch_writable(connection)
        return True

    def _resend_all(self, peer: TcpPeer, connection: TcpConnection) -> bool:
        while peer.unsent:
            sent_message = peer.unsent[0]
            now_ns = self._monotonic_ns()
            if sent_message.deadline_ns is not None and now_ns > sent_message.deadline_ns:
                self.dropped += 1
            elif connection.write(
                sent_message.data,
                peer,
                now_ns,
                sent_message.deadline_ns,
                resend_if_unread=sent_message.resend_if_unread,
            ):
                self.resent += 1
            else:
                return False
            peer.unsent.popleft()
        return True

    def on_progress(self, connection: TcpConnection) -> list[Hashable] | None:
        """The kernel has room: write the partial message first, then the messages to send again.

        Returns the routes that are open again; None while a message waits for room or acknowledgements.
        """
        with self._lock:
            peers = [peer for peer in self.peers_of(connection) if peer.connection is connection]
            try:
                if not connection.flush():
                    return None
                for peer in peers:
                    if not self._resend_all(peer, connection):
                        return None
            except OSError:
                return []  # the poller reports it too
            if connection.partial_write is not None or not connection.has_room():
                return None
            opened = [peer.route for peer in peers if peer.blocked]
            for peer in peers:
                peer.blocked = False
            return opened

    # --- opening and closing ------------------------------------------------------------------------------------------

    def on_connected(self, connection: TcpConnection) -> None:
        """A connection is established: its peers use it from now on."""
        with self._lock:
            if connection.inbound:
                self._peers[connection.address] = TcpPeer(
                    connection.address, outbound=False, keep_connected=False
                )
            for peer in self.peers_of(connection):
                if peer.connection is not None:
                    # An ECU has connected again. The unconfirmed messages of the older connection go first into this
                    # one, before those that already waited.
                    moved = peer.connection.remove_for_peer(peer, self._monotonic_ns())
                    peer.unsent.extendleft(reversed(self._with_deadlines(moved)))
                peer.connection, peer.connecting = connection, None

    def on_closed(
        self, connection: TcpConnection, others: Iterator[TcpConnection], *, all_read: bool
    ) -> None:
        """Close `connection`; unconfirmed messages wait for the next one.

        `others`: connections of the same host. `all_read` as in `UnackedWindow.unconfirmed`.
        """
        with self._lock:
            unconfirmed = connection.close_unconfirmed(
                all_read=all_read, must_not_arrive_late=_must_not_arrive_late
            )
            for sent_message in reversed(self._with_deadlines(unconfirmed)):
                peer = sent_message.peer
                if isinstance(peer, TcpPeer) and peer.keep_connected:
                    peer.unsent.appendleft(sent_message)  # before the waiting ones: it was sent before them
                else:
                    self.dropped += 1
            for peer in self.peers_of(connection):
                if peer.connection is not connection:
                    continue
                peer.connection = None
                if not peer.outbound and not peer.keep_connected:
                    self._remove(peer)
                elif not peer.outbound:
                    peer.connection = next(others, None)
                    if peer.connection is not None:
                        self._watch_writable(peer.connection)

    def _with_deadlines(self, unconfirmed: list[SentMessage]) -> list[SentMessage]:
        until_ns = self._monotonic_ns() + self._limits.unsent_ttl_ms * _NS_PER_MS
        return [
            each if each.deadline_ns is not None else each._replace(deadline_ns=until_ns)
            for each in unconfirmed
        ]

    def close(self) -> None:
        """Drop all waiting messages."""
        with self._lock:
            for peer in list(self._peers.values()):
                self._remove(peer)


def _must_not_arrive_late(sent_message: SentMessage) -> bool:
    """Whether the message waits for the next connection of its peer, or its caller gets UNAVAILABLE."""
    peer = sent_message.peer
    return isinstance(peer, TcpPeer) and (peer.keep_connected or peer.outbound)
