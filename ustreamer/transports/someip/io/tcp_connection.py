# SPDX-License-Identifier: Apache-2.0
"""One TCP connection with a SOME/IP peer: a non-blocking socket, its stream reader, and its unacknowledged messages.

Not locked: `TcpConnections` locks.
"""

import errno
import os
import socket
from collections.abc import Callable, Hashable
from struct import Struct
from typing import Final

from ustreamer.transports.someip.protocol.addresses import TcpAddress, open_socket
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks, mark_socket
from ustreamer.transports.someip.protocol.stream import (
    CLIENT_COOKIE,
    SERVER_COOKIE,
    DecodedChunk,
    StreamReader,
)
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.protocol.unacked_window import SentMessage, UnackedWindow

_NS_PER_MS: Final = 1_000_000
_KEEPALIVE_IDLE_S: Final = 10
_KEEPALIVE_INTERVAL_S: Final = 5
_KEEPALIVE_PROBES: Final = 3
_BIND_ADDRESS_NO_PORT: Final = 24  # IP_BIND_ADDRESS_NO_PORT of linux/in.h
_RECV_BYTES: Final = 65_536
_BACKLOG: Final = 1_024  # a peer beyond the backlog waits for a second
_NO_LINGER: Final = Struct("ii").pack(1, 0)
_COOKIE_INTERVAL_NS: Final = 10_000_000_000
"""Shortest time between two magic cookies. A peer skips at most the bytes between them."""
# struct tcp_info of linux/tcp.h: tcpi_bytes_acked at 120 (Linux 4.1).
_TCP_INFO: Final = Struct("<B119xQ")
"""The state and the acknowledged bytes."""
_TCP_ESTABLISHED: Final = 1
TCP_CLOSE_WAIT: Final = 8


class TcpConnection:
    """`address` is the address of the peer; `inbound` if the peer opened the connection."""

    def __init__(
        self, opened: socket.socket, address: TcpAddress, limits: TcpConfig, now_ns: int, *, inbound: bool
    ) -> None:
        self.socket = opened
        self.fd = opened.fileno()
        self.address = address
        self.inbound = inbound
        self.established = False
        self.closed = False
        self.carries_events = False
        """The connection carries events: it is never idle."""
        self.opened_at_ns = self.last_used_ns = now_ns
        self.incomplete_since_ns: int | None = None
        """The start time of an incomplete incoming message."""
        self.partial_write: memoryview | None = None
        """The bytes of a message that the kernel has accepted only in part."""
        self.last_errno: int | None = None
        """The error of the connection, as the kernel reported it."""
        self.reader = StreamReader(cookies=limits.cookies, max_message=limits.max_message)
        self.window = UnackedWindow(limits.send_buffer, limits.retransmit_ms * _NS_PER_MS)
        self._cookie = (SERVER_COOKIE if inbound else CLIENT_COOKIE) if limits.cookies else None
        self._last_cookie_ns = now_ns - _COOKIE_INTERVAL_NS
        self._ack_timeout_ms = limits.ack_timeout_ms
        self._send_buffer = limits.send_buffer
        self._acked_at_start = 0
        self._blocked_size = 0

    # [impl->RPC-325, SD-869]
    def on_established(self, now_ns: int) -> None:
        """The connection is established. Raises OSError if it is closed already."""
        opened = self.socket
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._ack_timeout_ms),
            (socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer),
        ):
            opened.setsockopt(level, option, value)
        # 1 for a connection that we opened: its SYN counts as a byte.
        self._acked_at_start = self._tcp_info_bytes_acked()
        self.established = True
        self.opened_at_ns = self.last_used_ns = now_ns

    # [impl->RPC-593, RPC-594]
    def write(
        self, data: bytes, peer: Hashable, now_ns: int, deadline_ns: int | None, *, resend_if_unread: bool
    ) -> bool:
        """Write a message or nothing of it; returns whether the kernel accepted at least a part. Raises OSError."""
        if self.partial_write is not None and not self.flush():
            return False
        # The longest blocked message comes first; otherwise short messages would block it forever.
        if self._blocked_size or not self.window.has_room(len(data)):
            self._blocked_size = max(self._blocked_size, len(data))
            if not self.has_room():
                return False
        if self._cookie is not None and now_ns - self._last_cookie_ns >= _COOKIE_INTERVAL_NS:
            self._last_cookie_ns = now_ns
            data = self._cookie + data
        taken = self._send_some(data)
        if taken is None:
            return False
        self.window.add_sent(data, peer, now_ns, deadline_ns, resend_if_unread=resend_if_unread)
        self.last_used_ns = now_ns
        if taken < len(data):
            self.partial_write = memoryview(data)[taken:]
        return True

    def flush(self) -> bool:
        """Write the rest of a message; returns whether all of it was accepted. Raises OSError."""
        if self.partial_write is not None:
            taken = self._send_some(self.partial_write)
            if taken is None or taken < len(self.partial_write):
                self.partial_write = self.partial_write[taken or 0 :]
                return False
            self.partial_write = None
        return True

    def _send_some(self, data: bytes | memoryview) -> int | None:
        """The number of bytes that the kernel accepted; None if its buffer is full. Raises OSError."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return None
        except OSError as error:
            # The kernel reports it once, and reading then returns the end of the stream.
            self.last_errno = self.last_errno or error.errno
            raise

    def has_room(self) -> bool:
        """Whether the window has room for the longest blocked message."""
        if not self.window.has_room(self._blocked_size):
            self.window.acknowledge(self._acked_offset())
            if not self.window.has_room(self._blocked_size):
                return False
        self._blocked_size = 0
        return True

    def feed(self, data: bytes, now_ns: int) -> DecodedChunk:
        """Decode received bytes, and record since when a message is incomplete."""
        chunk = self.reader.feed(data)
        self.last_used_ns = now_ns
        if not self.reader.pending_bytes:
            self.incomplete_since_ns = None
        elif self.incomplete_since_ns is None or chunk.messages or chunk.refused:
            self.incomplete_since_ns = now_ns
        return chunk

    def close_unconfirmed(
        self, *, all_read: bool, must_not_arrive_late: Callable[[SentMessage], bool]
    ) -> list[SentMessage]:
        """Close; returns the unconfirmed messages, in order. `all_read` as in `UnackedWindow.unconfirmed`.

        If one of them `must_not_arrive_late`, the connection is reset: else the kernel would go on sending it.
        """
        self.closed = True
        self.partial_write = None
        unconfirmed = self.window.unconfirmed(self._acked_offset(), all_read=all_read)
        if any(map(must_not_arrive_late, unconfirmed)):
            close_with_reset(self.socket)
        else:
            self.socket.close()
        return unconfirmed

    @property
    def awaits_ack(self) -> bool:
        """Whether the connection lasts, and the peer's kernel does not have all messages."""
        return self._state() == _TCP_ESTABLISHED and self.window.unacked_count(self._acked_offset()) > 0

    def lost_count(self) -> int:
        """The number of messages that the peer may lack: while the connection lasts, of the unacknowledged ones."""
        state = self._state()
        if state is None:
            return 0
        if state == _TCP_ESTABLISHED:
            return self.window.unacked_count(self._acked_offset())
        return self.window.unconfirmed_count(self._acked_offset(), all_read=state == TCP_CLOSE_WAIT)

    @property
    def local_address(self) -> TcpAddress | None:
        """Our address of the connection; None after it is closed."""
        try:
            return TcpAddress(*self.socket.getsockname()[:2])
        except OSError:
            return None

    def remove_for_peer(self, peer: Hashable, now_ns: int) -> list[SentMessage]:
        """As `UnackedWindow.remove_for_peer`. A peer with earlier messages lives: it has answered a keep-alive."""
        silent_ms = self._ack_timeout_ms + _KEEPALIVE_IDLE_S * 1_000
        return self.window.remove_for_peer(peer, self._acked_offset(), now_ns - silent_ms * _NS_PER_MS)

    def shut_down(self, timeout_s: float) -> bool:
        """Send the rest of a message within `timeout_s`, then the end of the stream; returns whether the rest was
        sent.

        Input is read and discarded: unread input would make the kernel reset the connection and lose the responses.
        """
        try:
            if self.partial_write is not None:
                self.socket.settimeout(timeout_s)
                self.socket.sendall(self.partial_write)
                self.partial_write = None
            self.socket.setblocking(False)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(_RECV_BYTES):
                pass
        except OSError:  # timeout, no connection, or no more input
            pass
        return self.partial_write is None

    def _acked_offset(self) -> int:
        try:
            return self._tcp_info_bytes_acked() - self._acked_at_start
        except OSError:  # no tcp_info: nothing more counts as acknowledged
            return 0

    def _state(self) -> int | None:
        """The state of the connection; None if the kernel does not report it."""
        try:
            return self._tcp_info()[0]
        except OSError:
            return None

    def _tcp_info_bytes_acked(self) -> int:
        return self._tcp_info()[1]

    def _tcp_info(self) -> tuple[int, int]:
        """The state, and the acknowledged bytes. Raises OSError."""
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        if len(info) < _TCP_INFO.size:
            raise OSError(errno.ENOPROTOOPT, "the kernel does not report acknowledged bytes")
        state, acked = _TCP_INFO.unpack(info)
        return state, acked


def start_connect(address: TcpAddress, bind: str, marks: SocketMarks = UNMARKED) -> socket.socket:
    """A socket that is connecting to `address` from `bind`. Raises OSError if it cannot start."""
    opened = open_socket(bind, socket.SOCK_STREAM)
    try:
        mark_socket(opened, marks)
        opened.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        opened.bind((bind, 0))
        failure = opened.connect_ex(address)
        if failure not in {0, errno.EINPROGRESS}:
            raise OSError(failure, os.strerror(failure))
    except OSError:
        opened.close()
        raise
    return opened


def finish_connect(opened: socket.socket) -> None:
    """Raises OSError if the connection attempt failed."""
    failure = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failure:
        raise OSError(failure, os.strerror(failure))
    # Between two addresses of one host TCP may connect a socket to itself, without a listener.
    if opened.getsockname() == opened.getpeername():
        raise OSError(errno.ECONNREFUSED, "connected to itself")


def open_listener(address: tuple[str, int], marks: SocketMarks = UNMARKED) -> socket.socket:
    """A non-blocking socket that listens at `address`. Raises OSError."""
    opened = open_socket(address[0], socket.SOCK_STREAM)
    try:
        mark_socket(opened, marks)
        # Otherwise an unacknowledged end of an earlier connection blocks the port for a minute after a restart.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def close_with_reset(opened: socket.socket) -> None:
    """Close with a reset, which leaves no state in the kernel."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    finally:
        opened.close()
