# SPDX-License-Identifier: Apache-2.0
"""What replaces the modules `socket`, `select`, `os` and `fcntl`, and `recvmmsg`, in the SOME/IP transport."""

import ctypes
import errno
import os
import socket
import struct
from types import ModuleType, SimpleNamespace
from typing import Final

from tests.simulation.primitives import product_modules
from tests.simulation.someip.ip_files import SimEpoll, SimEventFd, SimFile, SimKernel, SimNetlink
from tests.simulation.someip.ip_network import error_of
from tests.simulation.someip.ip_sockets import SimSocket

SOMEIP: Final = "ustreamer.transports.someip"
_IFCONF: Final = struct.Struct("iP")
_IFREQ: Final = struct.Struct("16s2xH4s16x")  # name, then struct sockaddr_in: family (left out), port, host
_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_UP, _UP_AND_RUNNING = 0x01, 0x41
_NAME: Final = b"eth0"


class _Msghdr(ctypes.Structure):
    """struct mmsghdr of Linux: struct msghdr, and the length of the datagram."""

    _fields_ = [
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
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class SimModules:
    """The functions of the replaced modules, for one kernel."""

    def __init__(self, kernel: SimKernel) -> None:
        self._kernel = kernel

    def new_socket(self, family: int, kind: int, protocol: int = 0) -> SimSocket | SimNetlink:
        self._kernel.scheduler.check_killed()
        return SimNetlink(self._kernel) if family == socket.AF_NETLINK else SimSocket(self._kernel, kind)

    def _eventfd_write(self, fd: int, value: int) -> None:
        file = self._kernel.file(fd)
        assert isinstance(file, SimEventFd)
        file.enter()
        file.count += value
        file.changed()

    def _eventfd_read(self, fd: int) -> int:
        file = self._kernel.file(fd)
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
            record = _IFREQ.pack(_NAME, 0, socket.inet_aton(self._kernel.host.ip))
            ctypes.memmove(at, record, len(record))
            return _IFCONF.pack(len(record), at)
        if request == _SIOCGIFNETMASK:
            return _IFREQ.pack(_NAME, 0, socket.inet_aton("255.255.255.0"))
        assert request == _SIOCGIFFLAGS
        return struct.pack("16sH22x", _NAME, _UP_AND_RUNNING if self._kernel.host.is_link_up else _UP)

    def _recvmmsg(self, fd: int, address: int, limit: int, flags: int, timeout: None) -> int:
        file = self._kernel.file(fd)
        assert isinstance(file, SimSocket)
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
            sender = (
                struct.pack("=H", socket.AF_INET)
                + struct.pack(">H", port)
                + socket.inet_aton(host)
                + bytes(8)
            )
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
            eventfd=lambda value, flags: SimEventFd(self._kernel).fd,
            eventfd_write=self._eventfd_write,
            eventfd_read=self._eventfd_read,
            close=lambda fd: self._kernel.file(fd).close(),
        )
        found: dict[tuple[str, str], object] = {
            (f"{SOMEIP}.io.poller", "select"): SimpleNamespace(epoll=lambda: SimEpoll(self._kernel)),
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
