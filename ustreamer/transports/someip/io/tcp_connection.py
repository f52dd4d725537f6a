# SPDX-License-Identifier: Apache-2.0
"""One TCP connection with a SOME/IP peer: a non-blocking socket, the stream's reader, and what may be lost with it.

Not locked: `Connections` sees to it.
"""

import errno
import os
import socket
from collections.abc import Hashable
from struct import Struct
from typing import Final

from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.stream import CLIENT_COOKIE, SERVER_COOKIE, Fed, StreamReader
from ustreamer.transports.someip.protocol.tcp_config import Tcp
from ustreamer.transports.someip.protocol.unacked_window import Kept, Window

_NS_PER_MS: Final = 1_000_000
_KEEP_IDLE_S: Final = 10
_KEEP_INTERVAL_S: Final = 5
_KEEP_PROBES: Final = 3
_BIND_ADDRESS_NO_PORT: Final = 24  # IP_BIND_ADDRESS_NO_PORT of linux/in.h
_PIECE: Final = 65_536
_BACKLOG: Final = 1_024  # who finds no room in it has to wait for a second
_NO_LINGER: Final = Struct("ii").pack(1, 0)
_COOKIE_NS: Final = 10_000_000_000
"""Between two magic cookies, at least: what a peer has to pass over after bytes it could not read."""
# struct tcp_info of linux/tcp.h: tcpi_bytes_acked at 120 (Linux 4.1).
_ACKED: Final = Struct("<120xQ")


class TcpConnection:
    """`address` is the peer's own; `inbound` if the peer has opened it."""

    def __init__(
        self, opened: socket.socket, address: TcpAddress, limits: Tcp, now_ns: int, *, inbound: bool
    ) -> None:
        self.socket = opened
        self.fd = opened.fileno()
        self.address = address
        self.inbound = inbound
        self.established = False
        self.closed = False
        self.subscriber = False
        """Events go over it: silence is no reason to close it."""
        self.since_ns = self.used_ns = now_ns
        self.began_ns: int | None = None
        """Since when a message has been coming in that is not complete."""
        self.rest: memoryview | None = None
        """What the kernel has not taken yet of a message that it has begun to take."""
        self.failure: int | None = None
        """What the kernel said of the connection when it took no more."""
        self.reader = StreamReader(cookies=limits.cookies, max_message=limits.max_message)
        self.window = Window(limits.send_buffer, limits.replay_ms * _NS_PER_MS)
        self._cookie = (SERVER_COOKIE if inbound else CLIENT_COOKIE) if limits.cookies else None
        self._cookie_ns = now_ns - _COOKIE_NS
        self._stall_ms = limits.stall_ms
        self._send_buffer = limits.send_buffer
        self._acked_before = 0
        self._wanted = 0

    def begin(self, now_ns: int) -> None:
        """The connection is there. Raises OSError if it is gone again already."""
        opened = self.socket
        for level, option, value in (
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_INTERVAL_S),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_PROBES),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._stall_ms),
            (socket.SOL_SOCKET, socket.SO_SNDBUF, self._send_buffer),
        ):
            opened.setsockopt(level, option, value)
        self._acked_before = self._bytes_acked()  # 1 where we have opened it: its beginning counts as a byte
        self.established = True
        self.since_ns = self.used_ns = now_ns

    def write(self, data: bytes, way: Hashable, now_ns: int, deadline_ns: int | None, *, again: bool) -> bool:
        """Write a message, or nothing of it; whether the kernel took it, if only its beginning. Raises OSError."""
        if self.rest is not None and not self.flush():
            return False
        # Who was refused comes first, or short messages would keep a long one out for ever.
        if self._wanted or not self.window.has_room(len(data)):
            self._wanted = max(self._wanted, len(data))
            if not self.has_room():
                return False
        if self._cookie is not None and now_ns - self._cookie_ns >= _COOKIE_NS:
            self._cookie_ns = now_ns
            data = self._cookie + data
        taken = self._put(data)
        if taken is None:
            return False
        self.window.add(data, way, now_ns, deadline_ns, again=again)
        self.used_ns = now_ns
        if taken < len(data):
            self.rest = memoryview(data)[taken:]
        return True

    def flush(self) -> bool:
        """Write what is left of a message; whether all of it was taken. Raises OSError."""
        if self.rest is not None:
            taken = self._put(self.rest)
            if taken is None or taken < len(self.rest):
                self.rest = self.rest[taken or 0 :]
                return False
            self.rest = None
        return True

    def _put(self, data: bytes | memoryview) -> int | None:
        """How many bytes the kernel took; None if it has no room. Raises OSError."""
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return None
        except OSError as error:
            self.failure = (
                self.failure or error.errno
            )  # the kernel tells it once, and reading is then at an end
            raise

    def has_room(self) -> bool:
        """Whether the window has room for the longest message that it had none for."""
        if not self.window.has_room(self._wanted):
            self.window.acknowledge(self._acked())
            if not self.window.has_room(self._wanted):
                return False
        self._wanted = 0
        return True

    def feed(self, data: bytes, now_ns: int) -> Fed:
        """Take in what has come, and note since when a message is incomplete."""
        fed = self.reader.feed(data)
        self.used_ns = now_ns
        if not self.reader.pending:
            self.began_ns = None
        elif self.began_ns is None or fed.messages or fed.refused:
            self.began_ns = now_ns
        return fed

    def end(self, *, read: bool) -> list[Kept]:
        """Close; what has to be sent again, in order. `read` as in `Window.lost`."""
        self.closed = True
        self.rest = None
        lost = self.window.lost(self._acked(), read=read)
        self.socket.close()
        return lost

    @property
    def local(self) -> TcpAddress | None:
        """Our end; None once it is closed."""
        try:
            return TcpAddress(*self.socket.getsockname())
        except OSError:
            return None

    def take(self, way: Hashable) -> list[Kept]:
        """As `Window.take`."""
        return self.window.take(way, self._acked())

    def part(self, until_s: float) -> bool:
        """Send what is left of a message, for `until_s` at most, and say that nothing more comes; whether it was sent.

        What came in is read and forgotten: unread, it would make the kernel tear the connection down, answers and all.
        """
        try:
            if self.rest is not None:
                self.socket.settimeout(until_s)
                self.socket.sendall(self.rest)
                self.rest = None
            self.socket.setblocking(False)
            self.socket.shutdown(socket.SHUT_WR)
            while self.socket.recv(_PIECE):
                pass
        except OSError:  # not in time, no connection, or nothing more to read
            pass
        return self.rest is None

    def _acked(self) -> int:
        try:
            return self._bytes_acked() - self._acked_before
        except OSError:  # no kernel that tells: nothing counts as acknowledged that did not before
            return 0

    def _bytes_acked(self) -> int:
        info = self.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _ACKED.size)
        if len(info) < _ACKED.size:
            raise OSError(errno.ENOPROTOOPT, "the kernel does not tell how much was acknowledged")
        (acked,) = _ACKED.unpack(info)
        return int(acked)


def connecting(address: TcpAddress, bind: str) -> socket.socket:
    """A socket on its way to `address`, from our own. Raises OSError if it cannot even begin."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        opened.setsockopt(socket.IPPROTO_IP, _BIND_ADDRESS_NO_PORT, 1)
        opened.bind((bind, 0))
        failure = opened.connect_ex(address)
        if failure not in {0, errno.EINPROGRESS}:
            raise OSError(failure, os.strerror(failure))
    except OSError:
        opened.close()
        raise
    return opened


def connected(opened: socket.socket) -> None:
    """Raises OSError if the connection that was on its way has not come about."""
    failure = opened.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if failure:
        raise OSError(failure, os.strerror(failure))
    # Between two addresses of one host TCP may connect a socket to itself, where nobody listens.
    if opened.getsockname() == opened.getpeername():
        raise OSError(errno.ECONNREFUSED, "connected to itself")


def listening(address: tuple[str, int]) -> socket.socket:
    """A non-blocking socket that listens at `address`. Raises OSError."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Or an end that a peer of before has not acknowledged keeps the port for a minute after a restart.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(_BACKLOG)
    except OSError:
        opened.close()
        raise
    return opened


def turn_away(opened: socket.socket) -> None:
    """Close with a reset, which leaves nothing behind in the kernel."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
    finally:
        opened.close()
