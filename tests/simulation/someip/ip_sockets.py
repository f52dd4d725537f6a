# SPDX-License-Identifier: Apache-2.0
"""Sockets as the SOME/IP transport sees them, on the simulated IP network: the interface of `socket.socket`."""

import errno
import select
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from tests.simulation.scheduler import NS_PER_MS, NS_PER_S
from tests.simulation.someip.ip_files import SimFile, SimKernel
from tests.simulation.someip.ip_network import IpAddress, UdpSocket, error_of
from tests.simulation.someip.tcp_stream import TcpListener, TcpSocket

_UDP_SEGMENT: Final = 103
_SO_TIMESTAMPNS: Final = 35
_SO_MEMINFO: Final = 55
_RECVERR: Final = 11
_TIMESPEC: Final = struct.Struct("@ll")
_TCP_ESTABLISHED: Final = 1
_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8
_ICMP_PORT: Final = struct.pack("=IBBBBII", errno.ECONNREFUSED, 2, 3, 3, 0, 0, 0)


class SimSocket(SimFile):
    """A socket of IPv4: UDP, TCP, or a listener."""

    def __init__(self, kernel: "SimKernel", kind: int) -> None:
        super().__init__(kernel)
        self.family = socket.AF_INET
        self.stamps = False
        self.timeout_s: float | None = 0.0 if kind & socket.SOCK_NONBLOCK else None
        self.udp: UdpSocket | None = None
        self.tcp: TcpSocket | None = None
        self.listener: TcpListener | None = None
        self._lingers = True
        self._dropped_at_read = 0
        self._is_shut = False
        self._bound: IpAddress = ("0.0.0.0", 0)
        self._writer, self._reader = StreamSplitter(), StreamSplitter()
        if kind & 0xF == socket.SOCK_DGRAM:
            self.udp = UdpSocket(kernel.host)
            self.udp.on_ready = self.changed
        else:
            self.use(TcpSocket(kernel.host))

    def use(self, tcp: TcpSocket) -> None:
        self.tcp = tcp
        tcp.on_ready = self.changed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def events(self) -> int:
        if self.udp is not None:
            found = select.EPOLLOUT | select.EPOLLIN * bool(self.udp.queue or self.udp.error)
            return found | select.EPOLLERR * bool(self.udp.error or self.udp.unreachable)
        if self.listener is not None:
            return select.EPOLLIN * bool(self.listener.waiting)
        assert self.tcp is not None
        if self.tcp.error:
            return select.EPOLLERR | select.EPOLLHUP | select.EPOLLIN | select.EPOLLOUT
        if not self.tcp.established:
            return 0
        over = self.tcp.is_over
        readable = select.EPOLLIN * (self.tcp.is_readable or over)
        return readable | select.EPOLLOUT * bool(self.tcp.room) | select.EPOLLHUP * over

    # --- options ------------------------------------------------------------------------------------------------------

    def setblocking(self, flag: bool) -> None:
        self.timeout_s = None if flag else 0.0

    def settimeout(self, seconds: float) -> None:
        self.timeout_s = seconds

    def setsockopt(self, level: int, option: int, value: int | bytes) -> None:
        self.enter()
        match level, option:
            case socket.SOL_SOCKET, socket.SO_RCVBUF if self.udp is not None and isinstance(value, int):
                self.udp.buffer_bytes = 2 * value  # the kernel doubles it
            case socket.SOL_SOCKET, socket.SO_REUSEADDR if self.udp is not None:
                self.udp.shares_address = bool(value)
            case socket.SOL_SOCKET, _ if option == _SO_TIMESTAMPNS:
                self.stamps = bool(value)
            case socket.SOL_SOCKET, socket.SO_LINGER:
                self._lingers = False
            case socket.SOL_SOCKET, socket.SO_KEEPALIVE if self.tcp is not None:
                self.tcp.keep_alive()
            case socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT if self.tcp is not None and isinstance(
                value, int
            ):
                self.tcp.user_timeout_ns = value * NS_PER_MS
            case socket.IPPROTO_IP, _ if option == _RECVERR and self.udp is not None:
                self.udp.reports_unreachable = bool(value)
            case socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP if self.udp is not None and isinstance(
                value, bytes
            ):
                self.udp.groups.add(socket.inet_ntoa(value[:4]))
            case socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP if self.udp is not None and isinstance(
                value, bytes
            ):
                self.udp.groups.discard(socket.inet_ntoa(value[:4]))

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        self.enter()
        if option == _SO_MEMINFO and level == socket.SOL_SOCKET:
            return struct.pack("@9I", *(0,) * 8, 0 if self.udp is None else self.udp.dropped)
        if option == socket.SO_ERROR and level == socket.SOL_SOCKET:
            found = self.udp or self.tcp
            assert found is not None
            code, found.error = found.error, 0
            return code
        if option == socket.TCP_INFO and level == socket.IPPROTO_TCP:
            return self._tcp_info()
        return b"" if size else 0

    def _tcp_info(self) -> bytes:
        tcp = self.tcp
        if tcp is None or tcp.is_over:
            state = _TCP_CLOSE
        else:
            state = _TCP_CLOSE_WAIT if tcp.has_received_end else _TCP_ESTABLISHED
        return struct.pack("<B119xQ", state, 0 if tcp is None else tcp.acked)

    # --- addresses ----------------------------------------------------------------------------------------------------

    def bind(self, address: IpAddress) -> None:
        self.enter()
        self._bound = address[0], address[1]
        if self.udp is not None:
            self.udp.bind(self._bound)

    def listen(self, backlog: int) -> None:
        self.enter()
        self.tcp = None
        self.listener = TcpListener(self.kernel.host, self._bound[1])
        self.listener.on_ready = self.changed

    def getsockname(self) -> IpAddress:
        if self.fd < 0:
            raise error_of(errno.EBADF)
        if self.udp is not None:
            return self.udp.address or self._bound
        if self.listener is not None:
            return self._bound[0], self.listener.port
        assert self.tcp is not None
        return self.tcp.local

    def getpeername(self) -> IpAddress:
        self.enter()
        if self.tcp is None or self.tcp.is_over:
            raise error_of(errno.ENOTCONN)
        return self.tcp.remote

    def connect(self, address: IpAddress) -> None:
        self.enter()
        assert self.udp is not None
        self.udp.peer = address[0], address[1]

    def connect_ex(self, address: IpAddress) -> int:
        self.enter()
        assert self.tcp is not None
        try:
            self.tcp.connect((address[0], address[1]))
        except OSError as error:
            return error.errno or errno.EIO
        return errno.EINPROGRESS

    def accept(self) -> "tuple[SimSocket, IpAddress]":
        self.enter()
        assert self.listener is not None
        accepted = self.listener.accept()
        opened = SimSocket(self.kernel, socket.SOCK_STREAM)
        opened.use(accepted)
        return opened, accepted.remote

    # --- data ---------------------------------------------------------------------------------------------------------

    def sendto(self, data: bytes, address: IpAddress) -> int:
        self.enter()
        self._send_datagram(bytes(data), (address[0], address[1]))
        return len(data)

    def _send_datagram(self, data: bytes, to: IpAddress) -> None:
        assert self.udp is not None
        self.udp.send(data, to)
        self.kernel.on_sent(data, to)

    def sendmsg(
        self,
        parts: Sequence[bytes],
        ancillary: Sequence[tuple[int, int, bytes]] = (),
        flags: int = 0,
        address: IpAddress = ("", 0),
    ) -> int:
        """Send a datagram, or with UDP_SEGMENT as many as its size makes: all of them or none."""
        self.enter()
        data = b"".join(parts)
        sizes = [struct.unpack("H", each)[0] for _, kind, each in ancillary if kind == _UDP_SEGMENT]
        size = sizes[0] if sizes else len(data)
        for begin in range(0, len(data), size):
            self._send_datagram(data[begin : begin + size], (address[0], address[1]))
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        self.enter()
        assert self.tcp is not None
        taken = self.tcp.write(data)
        for message in self._writer.feed(bytes(data[:taken])):
            self.kernel.on_sent(message, self.tcp.remote)
        return taken

    def sendall(self, data: bytes | memoryview) -> None:
        """Send all within the timeout."""
        scheduler = self.kernel.scheduler
        until_ns = scheduler.now_ns + round((self.timeout_s or 0) * NS_PER_S)
        left = memoryview(data)
        while left:
            try:
                left = left[self.send(left) :]
            except BlockingIOError:
                if scheduler.now_ns >= until_ns:
                    raise TimeoutError from None
                scheduler.sleep(NS_PER_MS)

    def shutdown(self, how: int) -> None:
        self.enter()
        assert how == socket.SHUT_WR
        assert self.tcp is not None
        self._is_shut = (
            True  # documented: a stop reads and discards input, so that the connection is not reset
        )
        self.tcp.shut_down()

    def recv(self, size: int) -> bytes:
        self.enter()
        if self.tcp is not None:
            data = self.tcp.read(size)
            for message in () if self._is_shut else self._reader.feed(data):
                self.kernel.on_read(message, self.tcp.remote)
            return data
        return self.recvfrom(size)[0]

    def recvfrom(self, size: int) -> tuple[bytes, IpAddress]:
        self.enter()
        assert self.udp is not None
        datagram = self.udp.pop()
        self._dropped_at_read = self.udp.dropped
        self.kernel.on_read(datagram.data, datagram.sender)
        return datagram.data, datagram.sender

    def recvmsg(
        self, size: int, ancillary_bytes: int = 0, flags: int = 0
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, IpAddress]:
        self.enter()
        assert self.udp is not None
        if flags & socket.MSG_ERRQUEUE:
            return b"", [(socket.IPPROTO_IP, _RECVERR, _ICMP_PORT)], 0, self.udp.pop_unreachable()
        datagram = self.udp.pop()
        self._dropped_at_read = self.udp.dropped
        self.kernel.on_read(datagram.data, datagram.sender)
        stamp = _TIMESPEC.pack(*divmod(self.kernel.wall_ns(datagram.at_ns), NS_PER_S))
        ancillary = [(socket.SOL_SOCKET, _SO_TIMESTAMPNS, stamp)] if self.stamps else []
        return datagram.data, ancillary, 0, datagram.sender

    def close_file(self) -> None:
        if self.fd < 0:
            return
        super().close_file()
        if self.udp is not None:
            self.kernel.dropped[self.process] += self.udp.dropped
            self.kernel.dropped_until_read[self.process] += self._dropped_at_read
            self.udp.close()
        if self.listener is not None:
            self.listener.close()
        if self.tcp is not None:
            if self._lingers:
                self.tcp.close()
            else:
                self.tcp.reset()


class StreamSplitter:
    """Cuts the bytes of a stream into whole SOME/IP messages."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        self._rest += data
        while len(self._rest) >= 8:
            size = 8 + int.from_bytes(self._rest[4:8])
            if len(self._rest) < size:
                return
            message, self._rest = self._rest[:size], self._rest[size:]
            yield message
