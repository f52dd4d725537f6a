# SPDX-License-Identifier: Apache-2.0
"""The modules `socket`, `select`, `os` and `fcntl` as the SOME/IP transport sees them, on the simulated IP network.

A call takes 2 us of virtual time, and other threads may run then. File descriptors are numbers of the simulated
kernel, the lowest free one first, as in Linux. The wait for events is level-triggered. A call of a killed process has
no effect.
"""

import ctypes
import errno
import os
import select
import socket
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any, Final, Self

from tests.simulation.ip_network import IpAddress, SimIpHost, UdpSocket, error_of
from tests.simulation.primitives import product_modules
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Process, Scheduler, Task
from tests.simulation.tcp_stream import TcpListener, TcpSocket

SOMEIP: Final = "ustreamer.transports.someip"
_CALL_NS: Final = 2_000
_FIRST_FD: Final = 1_000
_UDP_SEGMENT: Final = 103
_SO_TIMESTAMPNS: Final = 35
_SO_MEMINFO: Final = 55
_RECVERR: Final = 11
_TIMESPEC: Final = struct.Struct("@ll")
_IFCONF: Final = struct.Struct("iP")
_IFREQ: Final = struct.Struct("16s2xH4s16x")  # name, then struct sockaddr_in: family (skipped), port, host
_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_UP_AND_RUNNING: Final = 0x41
_NAME: Final = b"eth0"
_ICMP_PORT: Final = struct.pack("=IBBBBII", errno.ECONNREFUSED, 2, 3, 3, 0, 0, 0)

OnMessage = Callable[[bytes, IpAddress, str], None]
"""Bytes, the address of the other side, and "udp" or "tcp"."""


class SimFile:
    """Something with a file descriptor, which belongs to a process."""

    def __init__(self, kernel: "SimKernel") -> None:
        self.kernel = kernel
        self.process: Process = kernel.scheduler.current.process
        self.fd = kernel.open_file(self)
        self.watchers: dict[SimEpoll, None] = {}

    def events(self) -> int:
        """The events that the file has now."""
        raise NotImplementedError

    def fileno(self) -> int:
        return self.fd

    def changed(self) -> None:
        for each in self.watchers:
            each.wake()

    def enter(self) -> None:
        """Begin a system call."""
        scheduler = self.kernel.scheduler
        scheduler.check_killed()
        scheduler.spend(_CALL_NS)
        if self.fd < 0:
            raise error_of(errno.EBADF)

    def close(self) -> None:
        self.kernel.scheduler.check_killed()
        self.close_file()

    def close_file(self) -> None:
        self.kernel.files.pop(self.fd, None)
        self.fd = -1
        for each in self.watchers:
            each.forget(self)
        self.watchers.clear()


class SimEventFd(SimFile):
    """An eventfd."""

    count = 0

    def events(self) -> int:
        return select.EPOLLIN if self.count else 0


class SimEpoll:
    """`select.epoll`."""

    def __init__(self, kernel: "SimKernel") -> None:
        self._kernel = kernel
        self._files: dict[int, tuple[SimFile, int]] = {}
        self._waiting: Task | None = None

    def register(self, fd: int, events: int) -> None:
        self._kernel.scheduler.check_killed()
        file = self._kernel.file(fd)
        if fd in self._files:
            raise error_of(errno.EEXIST)
        self._files[fd] = file, events
        file.watchers[self] = None
        self.wake()

    def modify(self, fd: int, events: int) -> None:
        self._kernel.scheduler.check_killed()
        if fd not in self._files:
            raise error_of(errno.ENOENT)
        self._files[fd] = self._files[fd][0], events
        self.wake()

    def unregister(self, fd: int) -> None:
        self._kernel.scheduler.check_killed()
        if fd not in self._files:
            raise error_of(errno.ENOENT)
        self._files.pop(fd)[0].watchers.pop(self, None)

    def forget(self, file: SimFile) -> None:
        """A closed file leaves the set."""
        for fd in [fd for fd, (each, _) in self._files.items() if each is file]:
            del self._files[fd]

    def wake(self) -> None:
        if self._waiting is not None:
            self._kernel.scheduler.make_ready(self._waiting)

    def _ready(self) -> list[tuple[int, int]]:
        always = select.EPOLLERR | select.EPOLLHUP
        found = ((fd, file.events() & (wanted | always)) for fd, (file, wanted) in self._files.items())
        ready = [each for each in found if each[1]]
        if len(ready) > 1:
            self._kernel.scheduler.rng.shuffle(ready)
        return ready

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        scheduler = self._kernel.scheduler
        scheduler.check_killed()
        scheduler.spend(_CALL_NS)
        until_ns = None
        if timeout is not None and timeout >= 0:  # rounded up to whole ms, as `select.epoll` does
            until_ns = scheduler.now_ns + -(-int(timeout * NS_PER_S) // NS_PER_MS) * NS_PER_MS
        while not (ready := self._ready()):
            if until_ns is not None and scheduler.now_ns >= until_ns:
                return []
            self._waiting = scheduler.current
            scheduler.block(until_ns)
            self._waiting = None
        return ready

    def close(self) -> None:
        self._kernel.scheduler.check_killed()
        for file, _ in self._files.values():
            file.watchers.pop(self, None)
        self._files.clear()


class SimNetlink(SimFile):
    """A netlink socket: one message for each change of the link."""

    changes = 0

    def events(self) -> int:
        return select.EPOLLIN if self.changes else 0

    def setblocking(self, flag: bool) -> None:
        assert not flag

    def bind(self, address: tuple[int, int]) -> None:
        pass

    def recv(self, size: int) -> bytes:
        self.enter()
        if not self.changes:
            raise error_of(errno.EAGAIN)
        self.changes -= 1
        return b"change"


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

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
            case socket.SOL_SOCKET, 35:
                self.stamps = bool(value)
            case socket.SOL_SOCKET, socket.SO_LINGER:
                self._lingers = False
            case socket.SOL_SOCKET, socket.SO_KEEPALIVE if self.tcp is not None:
                self.tcp.keep_alive()
            case socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT if self.tcp is not None and isinstance(value, int):
                self.tcp.user_timeout_ns = value * NS_PER_MS
            case socket.IPPROTO_IP, 11 if self.udp is not None:
                self.udp.reports_unreachable = bool(value)
            case socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP if self.udp is not None and isinstance(value, bytes):
                self.udp.groups.add(socket.inet_ntoa(value[:4]))
            case socket.IPPROTO_IP, socket.IP_DROP_MEMBERSHIP if self.udp is not None and isinstance(value, bytes):
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
            return struct.pack("<120xQ", 0 if self.tcp is None else self.tcp.acked)
        return b"" if size else 0

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
        assert self.udp is not None
        to = address[0], address[1]
        self.udp.send(bytes(data), to)
        self.kernel.on_sent(bytes(data), to, "udp")
        return len(data)

    def sendmsg(
        self,
        parts: Sequence[bytes],
        ancillary: Sequence[tuple[int, int, bytes]] = (),
        flags: int = 0,
        address: IpAddress = ("", 0),
    ) -> int:
        """Send a datagram, or with UDP_SEGMENT as many as its size makes."""
        data = b"".join(parts)
        sizes = [struct.unpack("H", each)[0] for _, kind, each in ancillary if kind == _UDP_SEGMENT]
        size = sizes[0] if sizes else len(data)
        for begin in range(0, len(data), size):
            self.sendto(data[begin : begin + size], address)
        return len(data)

    def send(self, data: bytes | memoryview) -> int:
        self.enter()
        assert self.tcp is not None
        taken = self.tcp.write(data)
        for message in self._writer.feed(bytes(data[:taken])):
            self.kernel.on_sent(message, self.tcp.remote, "tcp")
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
        assert how == socket.SHUT_WR and self.tcp is not None
        self.tcp.shut_down()

    def recv(self, size: int) -> bytes:
        self.enter()
        if self.tcp is not None:
            data = self.tcp.read(size)
            for message in self._reader.feed(data):
                self.kernel.on_read(message, self.tcp.remote, "tcp")
            return data
        return self.recvfrom(size)[0]

    def recvfrom(self, size: int) -> tuple[bytes, IpAddress]:
        self.enter()
        assert self.udp is not None
        datagram = self.udp.pop()
        self.kernel.on_read(datagram.data, datagram.sender, "udp")
        return datagram.data, datagram.sender

    def recvmsg(
        self, size: int, ancillary_bytes: int = 0, flags: int = 0
    ) -> tuple[bytes, list[tuple[int, int, bytes]], int, IpAddress]:
        self.enter()
        assert self.udp is not None
        if flags & socket.MSG_ERRQUEUE:
            return b"", [(socket.IPPROTO_IP, _RECVERR, _ICMP_PORT)], 0, self.udp.pop_unreachable()
        datagram = self.udp.pop()
        self.kernel.on_read(datagram.data, datagram.sender, "udp")
        stamp = _TIMESPEC.pack(*divmod(self.kernel.wall_ns(datagram.at_ns), NS_PER_S))
        ancillary = [(socket.SOL_SOCKET, _SO_TIMESTAMPNS, stamp)] if self.stamps else []
        return datagram.data, ancillary, 0, datagram.sender

    def close_file(self) -> None:
        if self.fd < 0:
            return
        super().close_file()
        if self.udp is not None:
            self.kernel.dropped[self.process] += self.udp.dropped
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


class _Msghdr(ctypes.Structure):
    """struct mmsghdr of Linux: struct msghdr, and the length of the datagram."""

    _fields_ = [  # noqa: RUF012
        ("name", ctypes.c_void_p),
        ("name_length", ctypes.c_uint),
        ("parts", ctypes.c_void_p),
        ("number_of_parts", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_length", ctypes.c_size_t),
        ("flags", ctypes.c_int),
        ("padding", ctypes.c_int),
        ("length", ctypes.c_uint),
    ]


class _Iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]  # noqa: RUF012


class SimKernel:
    """The kernel of the streamer's host: its files, and what the streamer sent and read. `wall_ns` is its clock."""

    def __init__(self, scheduler: Scheduler, host: SimIpHost, wall_ns: Callable[[int], int]) -> None:
        self.scheduler = scheduler
        self.host = host
        self.wall_ns = wall_ns
        self.files: dict[int, SimFile] = {}
        self.on_sent: OnMessage = lambda data, address, protocol: None
        self.on_read: OnMessage = lambda data, address, protocol: None
        self.dropped: Counter[Process] = Counter()
        """Datagrams that full buffers of closed sockets of a process dropped."""
        host.on_link_change = self._report_link

    def file(self, fd: int) -> SimFile:
        if fd not in self.files:
            raise error_of(errno.EBADF)
        return self.files[fd]

    def open_file(self, file: SimFile) -> int:
        fd = _FIRST_FD
        while fd in self.files:
            fd += 1
        self.files[fd] = file
        return fd

    def end_process(self, process: Process) -> None:
        """Close all files of a process that has ended."""
        for file in [each for each in self.files.values() if each.process is process]:
            file.close_file()

    def _report_link(self) -> None:
        for file in self.files.values():
            if isinstance(file, SimNetlink):
                file.changes += 1
                file.changed()

    # --- modules ------------------------------------------------------------------------------------------------------

    def new_socket(self, family: int, kind: int, protocol: int = 0) -> SimSocket | SimNetlink:
        self.scheduler.check_killed()
        return SimNetlink(self) if family == socket.AF_NETLINK else SimSocket(self, kind)

    def _eventfd_write(self, fd: int, value: int) -> None:
        file = self.file(fd)
        assert isinstance(file, SimEventFd)
        file.enter()
        file.count += value
        file.changed()

    def _eventfd_read(self, fd: int) -> int:
        file = self.file(fd)
        assert isinstance(file, SimEventFd)
        file.enter()
        if not file.count:
            raise error_of(errno.EAGAIN)
        value, file.count = file.count, 0
        return value

    def _ioctl(self, file: SimFile, request: int, argument: bytes) -> bytes:
        """The requests for the addresses of the machine: one interface with one address."""
        if request == _SIOCGIFCONF:
            _, at = _IFCONF.unpack(argument)
            record = _IFREQ.pack(_NAME, 0, socket.inet_aton(self.host.ip))
            ctypes.memmove(at, record, len(record))
            return _IFCONF.pack(len(record), at)
        if request == _SIOCGIFNETMASK:
            return _IFREQ.pack(_NAME, 0, socket.inet_aton("255.255.255.0"))
        assert request == _SIOCGIFFLAGS
        return struct.pack("16sH22x", _NAME, _UP_AND_RUNNING if self.host.is_link_up else 1)

    def _recvmmsg(self, fd: int, address: int, limit: int, flags: int, timeout: None) -> int:
        file = self.file(fd)
        assert isinstance(file, SimSocket) and file.udp is not None
        file.enter()
        for number in range(limit):
            try:
                data, (host, port) = file.recvfrom(65_535)
            except OSError as error:
                if number:
                    return number
                ctypes.set_errno(error.errno or errno.EIO)
                return -1
            message = _Msghdr.from_address(address + number * ctypes.sizeof(_Msghdr))
            sender = struct.pack("=H", socket.AF_INET) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)
            ctypes.memmove(message.name, sender, len(sender))
            message.length, rest = len(data), data
            for part in (_Iovec * message.number_of_parts).from_address(message.parts):
                ctypes.memmove(part.base, rest, min(len(rest), part.length))
                rest = rest[part.length :]
        return limit

    def replacements(self) -> dict[tuple[str, str], object]:
        """What replaces names of the product's modules: (module, name) to value."""
        fake_socket = _Module(socket, socket=self.new_socket)
        fake_os = SimpleNamespace(
            EFD_NONBLOCK=os.EFD_NONBLOCK,
            EFD_CLOEXEC=os.EFD_CLOEXEC,
            eventfd=lambda value, flags: SimEventFd(self).fd,
            eventfd_write=self._eventfd_write,
            eventfd_read=self._eventfd_read,
            close=lambda fd: self.file(fd).close(),
        )
        found: dict[tuple[str, str], object] = {
            (f"{SOMEIP}.io.poller", "select"): SimpleNamespace(epoll=lambda: SimEpoll(self)),
            (f"{SOMEIP}.io.receive_loop", "os"): fake_os,
            (f"{SOMEIP}.io.recvmmsg", "_load_recvmmsg"): lambda: self._recvmmsg,
            (f"{SOMEIP}.sd.interface_monitor", "fcntl"): SimpleNamespace(ioctl=self._ioctl),
        }
        for module in product_modules():
            if module.__name__.startswith(SOMEIP) and getattr(module, "socket", None) is socket:
                found[module.__name__, "socket"] = fake_socket
        return found


class _Module:
    """A module with other values for some of its names."""

    def __init__(self, module: ModuleType, **others: object) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> object:
        return getattr(self._module, name)
