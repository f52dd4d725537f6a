# SPDX-License-Identifier: Apache-2.0
"""The TCP connections of a SOME/IP endpoint: outbound to services, and inbound from ECUs.

    send -> the kernel accepts it, or a part         the rest follows when there is room, and other messages wait for
    it
         -> no room, or no connection                RouteUnavailable: it stays queued until `on_route_opened`
    a connection ends -> unacknowledged and possibly unread messages go first into the next connection

All belongs to the receiving thread of the endpoint, except the methods of `TcpPeers` for senders.
"""

import errno
import logging
import socket
from collections import deque
from collections.abc import Callable, Hashable
from threading import Event
from typing import Final, NamedTuple, Protocol

from ustreamer.core.base.backoff import backoff_ns
from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.base.log_limit import limited
from ustreamer.transports.someip.io.poller import READABLE, WRITABLE, Poller
from ustreamer.transports.someip.io.tcp_acceptor import TcpAcceptor
from ustreamer.transports.someip.io.tcp_connection import (
    TcpConnection,
    close_with_reset,
    finish_connect,
    start_connect,
)
from ustreamer.transports.someip.io.tcp_peers import TcpPeer, TcpPeers
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MalformedMessage, SomeIpMessage
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks, mark_accepted
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig, TcpReason
from ustreamer.uprotocol.ustatus import UCode, UStatusError

log = logging.getLogger("ustreamer.someip")

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_RECV_BYTES: Final = 65_536
_MAX_RECVS_PER_EVENT: Final = 4  # of one connection, then other sockets are served
_ACK_POLL_NS: Final = 5_000_000  # the kernel reports room, but not acknowledgements
_ACCEPT_PAUSE_NS: Final = 100_000_000
_SHUTDOWN_TIMEOUT_NS: Final = 1_000_000_000


class ConnectionCallback(Protocol):
    """Called when the connection with `peer` is established or closed; `inbound`: the peer opened it."""

    def __call__(self, peer: TcpAddress, *, inbound: bool) -> None: ...


def _ignore_connection(peer: TcpAddress, *, inbound: bool) -> None:
    pass


class TcpCallbacks(NamedTuple):
    """Called on the receiving thread without a lock; a callback may send."""

    on_messages: Callable[[list[SomeIpMessage], list[MalformedMessage], TcpAddress], None]
    on_refused: Callable[[str, Address, object], None]
    on_route_opened: Callable[[Hashable], None]
    on_connected: ConnectionCallback = _ignore_connection
    on_disconnected: ConnectionCallback = _ignore_connection


class TcpConnections:
    """The receiving thread owns it. Any thread: `connect`, `disconnect`, `expect_host`, `expect_service`, `send`,
    `is_connected`, `statistics`.
    """

    def __init__(
        self,
        limits: TcpConfig,
        monotonic_ns: Callable[[], int],
        rng: Callable[[], float],
        is_known_host: Callable[[str], bool],
        callbacks: TcpCallbacks,
    ) -> None:
        """`is_known_host`: whether a host may connect to us. `rng` returns 0..1."""
        self._limits = limits
        self._monotonic_ns = monotonic_ns
        self._rng = rng
        self._callbacks = callbacks
        self._peers = TcpPeers(limits, monotonic_ns, self._watch_writable)
        self._acceptor = TcpAcceptor(limits, is_known_host, self._on_accepted, self._on_connection_refused)
        self._bind, self._marks = "", UNMARKED
        self._poller: Poller | None = None
        self._wake: Callable[[], None] = lambda: None
        self._connections: dict[int, TcpConnection] = {}
        self._changed_peers: deque[TcpPeer] = deque()
        self._deadlines: DeadlineQueue[TcpPeer | TcpConnection | TcpAcceptor] = DeadlineQueue()
        self._accepted = self._established = self._closed = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(
        self, bind: str, poller: Poller, wake: Callable[[], None], marks: SocketMarks = UNMARKED
    ) -> None:
        """Call this first. `wake` makes the receiving thread read `next_deadline_ns` again; `marks` are of all sockets."""
        self._bind, self._poller, self._wake, self._marks = bind, poller, wake, marks

    def listen(self, port: int) -> None:
        """Accept connections at `port` (0: any). Raises UStatusError(UNAVAILABLE)."""
        try:
            fd = self._acceptor.open((self._bind, port), self._marks)
        except OSError as error:
            raise UStatusError(
                UCode.UNAVAILABLE, f"cannot listen at TCP {self._bind}:{port}: {error.strerror}"
            ) from error
        self._active_poller.add(fd, self._on_acceptable)

    @property
    def port(self) -> int:
        """The listening port; 0 if not listening."""
        return self._acceptor.port

    @property
    def _active_poller(self) -> Poller:
        assert self._poller is not None  # `open` is called first
        return self._poller

    def close(self) -> None:
        """Close all, after the end of the receiving thread. The kernel still sends accepted bytes. May be repeated."""
        until_ns = self._monotonic_ns() + _SHUTDOWN_TIMEOUT_NS
        for each in list(self._connections.values()):
            self._active_poller.remove(each.fd)
            left_s = max(1, until_ns - self._monotonic_ns()) / _NS_PER_S
            if not each.shut_down(left_s):
                self._peers.dropped += 1
            each.close_unconfirmed(all_read=True, must_not_arrive_late=lambda _: False)
        self._connections.clear()
        self._peers.close()
        if self._acceptor.fd is not None:
            self._active_poller.remove(self._acceptor.fd)
        self._acceptor.close()

    # --- desired connections ------------------------------------------------------------------------------------------

    # [impl->RPC-646]
    def connect(self, address: TcpAddress) -> None:
        """Keep a connection to `address` from now on; connect at once if there is none."""
        self._changed_peers.append(self._peers.add_service(address))
        self._wake()

    def disconnect(self, address: TcpAddress) -> None:
        """Close the connection and keep none."""
        peer = self._peers.get(address)
        if peer is not None and peer.outbound:
            peer.keep_connected = False
            self._changed_peers.append(peer)
            self._wake()

    def expect_host(self, host: str) -> None:
        """Messages for (`host`, 0) use the newest connection that this host opened; without one they wait."""
        self._peers.add_host(host)

    def expect_service(self, address: TcpAddress) -> None:
        """Messages for `address` wait until `connect` has opened a connection."""
        self._peers.add_service(address)

    def exempt_from_idle(self, address: TcpAddress) -> None:
        """Events go to `address`: its connection is never idle."""
        connection = self._connection(address)
        if connection is not None:
            connection.carries_events = True

    def is_connected(self, address: TcpAddress) -> bool:
        return self._connection(address) is not None

    def local_address(self, address: TcpAddress) -> TcpAddress | None:
        """Our address of the connection with `address`; None without a connection."""
        connection = self._connection(address)
        return None if connection is None else connection.local_address

    def _connection(self, address: TcpAddress) -> TcpConnection | None:
        peer = self._peers.get(address)
        return None if peer is None else peer.connection

    def drop_host(self, host: str) -> None:
        """The peer at `host` has restarted: close all connections with it; outbound ones are opened again."""
        for each in [each for each in self._connections.values() if each.address.host == host]:
            self._close_connection(each, all_read=False)

    # [impl->RPC-49]
    def send(
        self,
        data: bytes,
        address: TcpAddress,
        deadline_ns: int | None = None,
        *,
        resend_if_unread: bool = True,
    ) -> None:
        """Send one whole message. Never waits.

        `deadline_ns`: the message is not sent again after it. `resend_if_unread`: send again also an acknowledged
        message that may be unread. Raises RouteUnavailable without a connection or room; NOT_FOUND if an ECU's
        connection is closed; INVALID_ARGUMENT if the message is too long.
        """
        self._peers.send(data, address, deadline_ns, resend_if_unread=resend_if_unread)

    def lost_count(self, until_ns: int) -> int:
        """The messages that a stop may lose, after the end of the receiving thread.

        They wait for the next connections, or a peer has ended their connection and no thread has noticed it. Or the
        kernel of a peer has not acknowledged them by `until_ns`: the peer may have stopped reading.
        """
        established = [each for each in self._connections.values() if each.established]
        pause = Event()
        while any(each.awaits_ack for each in established) and self._monotonic_ns() < until_ns:
            pause.wait(_ACK_POLL_NS / _NS_PER_S)
        return self._peers.unsent_count + sum(each.lost_count() for each in established)

    def unsent_messages(self, address: TcpAddress) -> list[bytes]:
        """The messages that wait for the next connection with `address`."""
        return self._peers.unsent_messages(address)

    # --- events of the poller -----------------------------------------------------------------------------------------

    def _watch_writable(self, connection: TcpConnection) -> None:
        if not connection.closed:
            self._active_poller.change(connection.fd, READABLE | WRITABLE)

    def _on_events(self, connection: TcpConnection, events: int) -> None:
        if not connection.established:
            self._on_connect_finished(connection)
            return
        if events & ~WRITABLE:
            self._on_readable(connection)
        if events & WRITABLE and not connection.closed:
            self._on_writable(connection)

    def _on_readable(self, connection: TcpConnection) -> None:
        for _ in range(_MAX_RECVS_PER_EVENT):
            try:
                data = connection.socket.recv(_RECV_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                connection.last_errno = connection.last_errno or error.errno
                data = b""
            if not data:
                # A peer may also answer with a reset when it gets messages after the end of its stream. Its kernel
                # may then have acknowledged bytes that its process never read (measured: 26 kB).
                self._close_connection(connection, all_read=connection.last_errno is None)
                return
            self._on_data(connection, data)
            if connection.closed or len(data) < _RECV_BYTES:
                return

    def _on_data(self, connection: TcpConnection, data: bytes) -> None:
        chunk = connection.feed(data, self._monotonic_ns())
        if connection.incomplete_since_ns is not None:
            self._deadlines.schedule_earlier(
                connection, connection.incomplete_since_ns + self._limits.message_timeout_ms * _NS_PER_MS
            )
        self._callbacks.on_messages(chunk.messages, chunk.refused, connection.address)
        if connection.reader.broken and not connection.closed:
            self._close_refused(connection, TcpReason.STREAM, "the start of its next message is unknown")

    def _on_writable(self, connection: TcpConnection) -> None:
        # First: a sender that is blocked meanwhile requests WRITABLE again.
        self._active_poller.change(connection.fd, READABLE)
        routes = self._peers.on_progress(connection)
        if connection.partial_write is not None:
            self._watch_writable(connection)
        elif routes is None:
            self._deadlines.schedule_earlier(connection, self._monotonic_ns() + _ACK_POLL_NS)
        for route in routes or ():
            self._callbacks.on_route_opened(route)

    # --- opening and closing ------------------------------------------------------------------------------------------

    def accept_waiting(self) -> None:
        """Accept the connections that wait, before the poller reports them. Receiving thread."""
        if self._acceptor.fd is not None:
            self._acceptor.accept_pending()

    def _on_acceptable(self, events: int) -> None:
        if not self._acceptor.accept_pending() and self._acceptor.fd is not None:
            self._active_poller.remove(self._acceptor.fd)
            self._deadlines.schedule(self._acceptor, self._monotonic_ns() + _ACCEPT_PAUSE_NS)

    def _on_connection_refused(self, reason: TcpReason, peer: TcpAddress) -> None:
        self._callbacks.on_refused(reason, peer, "a connection")

    def _on_accepted(self, opened: socket.socket, peer: TcpAddress) -> None:
        try:
            mark_accepted(opened, self._marks)
        except OSError as error:
            close_with_reset(opened)
            self._acceptor.on_closed(peer.host)
            extra = {"peer": str(peer), "reason": error.strerror, **limited(peer.host)}
            log.warning("someip.tcp_not_accepted", extra=extra)
            return
        self._accepted += 1
        self._on_established(TcpConnection(opened, peer, self._limits, self._monotonic_ns(), inbound=True))

    def _start_connect(self, peer: TcpPeer) -> None:
        try:
            opened = start_connect(peer.address, self._bind, self._marks)
        except OSError as error:
            self._schedule_retry(peer, error)
            return
        now_ns = self._monotonic_ns()
        connection = TcpConnection(opened, peer.address, self._limits, now_ns, inbound=False)
        peer.connecting = self._connections[connection.fd] = connection
        self._active_poller.add(connection.fd, lambda events: self._on_events(connection, events), WRITABLE)
        self._deadlines.schedule(connection, now_ns + self._limits.connect_ms * _NS_PER_MS)

    def _on_connect_finished(self, connection: TcpConnection) -> None:
        try:
            finish_connect(connection.socket)
        except OSError as error:
            self._close_connection(connection, all_read=True, cause=error)
            return
        self._active_poller.remove(connection.fd)
        self._deadlines.cancel(connection)
        self._on_established(connection)

    def _on_established(self, connection: TcpConnection) -> None:
        self._connections[connection.fd] = connection
        try:
            connection.on_established(self._monotonic_ns())
        except OSError as error:
            self._close_connection(connection, all_read=True, cause=error)
            return
        self._established += 1
        self._active_poller.add(
            connection.fd, lambda events: self._on_events(connection, events), READABLE | WRITABLE
        )
        self._peers.on_connected(connection)
        self._schedule_check(connection)
        self._callbacks.on_connected(connection.address, inbound=connection.inbound)

    def _close_connection(
        self, connection: TcpConnection, *, all_read: bool, cause: OSError | None = None
    ) -> None:
        """Close; unconfirmed messages wait for the next connection. `all_read`: as in `UnackedWindow.unconfirmed`."""
        if connection.closed:
            return
        peer, inbound = connection.address, connection.inbound
        self._active_poller.remove(connection.fd)
        self._deadlines.cancel(connection)
        del self._connections[connection.fd]
        others = [
            each
            for each in self._connections.values()
            if each.inbound and each.established and each.address.host == peer.host
        ]
        tcp_peer = None if inbound else self._peers.get(peer)
        self._peers.on_closed(connection, iter(reversed(others)), all_read=all_read)
        if inbound:
            self._acceptor.on_closed(peer.host)
        elif tcp_peer is not None:
            tcp_peer.connecting = None
            lasted_ns = self._monotonic_ns() - connection.opened_at_ns
            if connection.established and lasted_ns > self._limits.retry_max_ms * _NS_PER_MS:
                tcp_peer.failures = 0
            self._schedule_retry(tcp_peer, cause)
        if connection.established:
            self._closed += 1
            self._callbacks.on_disconnected(peer, inbound=inbound)

    def _close_refused(self, connection: TcpConnection, reason: TcpReason, detail: str) -> None:
        self._callbacks.on_refused(reason, connection.address, detail)
        self._close_connection(connection, all_read=False)

    # [impl->RPC-647]
    def _schedule_retry(self, peer: TcpPeer, cause: OSError | None) -> None:
        """Schedule the next attempt."""
        if not peer.keep_connected:
            self._peers.remove(peer)
            return
        if cause is not None and not peer.failures:
            extra = {"peer": str(peer.address), "reason": cause.strerror, **limited(peer.address.host)}
            log.warning("someip.tcp_not_connected", extra=extra)
        limits = self._limits
        pause_ns = backoff_ns(limits.retry_first_ms, limits.retry_max_ms, peer.failures, self._rng())
        peer.failures += 1
        self._deadlines.schedule(peer, self._monotonic_ns() + pause_ns)

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def next_deadline_ns(self) -> int | None:
        """The time of the next `on_timer`; 0 for at once, None if nothing is due."""
        return 0 if self._changed_peers else self._deadlines.next_due

    def on_timer(self) -> None:
        """Run due work: connect, disconnect, check timeouts, accept again."""
        while self._changed_peers:
            self._reconcile(self._changed_peers.popleft())
        if self._deadlines.next_due is None:
            return
        now_ns = self._monotonic_ns()
        while (due := self._deadlines.pop_due(now_ns)) is not None:
            if isinstance(due, TcpPeer):
                self._reconcile(due)
            elif isinstance(due, TcpConnection):
                self._check_timeouts(due, now_ns)
            elif due.fd is not None:
                self._active_poller.add(due.fd, self._on_acceptable)

    def _reconcile(self, peer: TcpPeer) -> None:
        connection = peer.connection or peer.connecting
        if not peer.keep_connected:
            self._deadlines.cancel(peer)
            if connection is not None:
                self._close_connection(connection, all_read=True)
            self._peers.remove(peer)
        elif connection is None:
            self._deadlines.cancel(peer)
            self._start_connect(peer)

    def _check_timeouts(self, connection: TcpConnection, now_ns: int) -> None:
        limits = self._limits
        if not connection.established:
            timeout = OSError(errno.ETIMEDOUT, f"no connection within {limits.connect_ms} ms")
            self._close_connection(connection, all_read=True, cause=timeout)
        elif (
            connection.incomplete_since_ns is not None
            and now_ns >= connection.incomplete_since_ns + limits.message_timeout_ms * _NS_PER_MS
        ):
            self._close_refused(
                connection,
                TcpReason.MESSAGE_TIMEOUT,
                f"a message did not end within {limits.message_timeout_ms} ms",
            )
        elif self._is_idle(connection, now_ns):
            self._close_refused(connection, TcpReason.IDLE, f"idle for {limits.idle_ms} ms")
        else:
            self._schedule_check(connection)
            self._on_writable(connection)

    def _is_idle(self, connection: TcpConnection, now_ns: int) -> bool:
        idle_ns = self._limits.idle_ms * _NS_PER_MS
        if not idle_ns or not connection.inbound or now_ns < connection.last_used_ns + idle_ns:
            return False
        return (
            not connection.carries_events and self._peers.get(TcpAddress(connection.address.host, 0)) is None
        )

    def _schedule_check(self, connection: TcpConnection) -> None:
        limits = self._limits
        if connection.incomplete_since_ns is not None:
            self._deadlines.schedule_earlier(
                connection, connection.incomplete_since_ns + limits.message_timeout_ms * _NS_PER_MS
            )
        if limits.idle_ms and connection.inbound:
            now_ns, idle_ns = self._monotonic_ns(), limits.idle_ms * _NS_PER_MS
            at_ns = connection.last_used_ns + idle_ns
            self._deadlines.schedule_earlier(connection, at_ns if at_ns > now_ns else now_ns + idle_ns)

    # --- counters -----------------------------------------------------------------------------------------------------

    def statistics(self) -> dict[str, int]:
        """Names as in `SomeipTransport.statistics`."""
        peers = self._peers
        return {
            "tcp_open": len(self._connections),
            "tcp_accepted": self._accepted,
            "tcp_established": self._established,
            "tcp_ended": self._closed,
            "tcp_waiting": peers.unsent_count,
            "tcp_sent_again": peers.resent,
            "tcp_dropped": peers.dropped,
        }
