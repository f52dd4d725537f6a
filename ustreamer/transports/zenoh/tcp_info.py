# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of a Zenoh link over TCP: whether the other side still takes what we send, and still speaks.

Zenoh tells that a link is lost, not why; what was lost with it depends on that. Its sockets are in this process, so the
kernel may be asked about them (`getsockopt(TCP_INFO)`, 4 us). They are only ever asked, by number, and never kept: a number
that has come to mean another socket is noticed by its addresses.
"""

import re
import socket
from array import array
from fcntl import ioctl
from pathlib import Path
from struct import Struct
from termios import TIOCOUTQ
from typing import Final, NamedTuple

_LOCATOR: Final = re.compile(r"(?:tcp|tls|ws)/(.+):(\d+)(?:[?#].*)?")
# struct tcp_info of linux/tcp.h: 8 bytes, 24 numbers of 32 bits, tcpi_bytes_acked at 120 (Linux 4.1),
# tcpi_bytes_received at 128.
_INFO: Final = Struct("<B7x24I16xQQ")
_ESTABLISHED: Final = 1
_LAST_RECEIVED_MS: Final = 12
_ACKED: Final = 25
_RECEIVED: Final = 26

_Ends = tuple[tuple[str, int], tuple[str, int]]


class TcpState(NamedTuple):
    """A connection at one moment. Bytes are counted from its beginning; its end counts as one."""

    established: bool
    """Whether neither side's kernel has ended it."""
    acked: int
    """Bytes that the other side's kernel has acknowledged."""
    unacked: int
    """Bytes that were written and are not acknowledged yet, whether they have been sent or not."""
    received_ago_ms: int
    """Since the other side last sent something of its own."""
    received: int
    """Bytes that came in."""


class TcpLink(NamedTuple):
    """One of this process's connections, which belongs to somebody else."""

    fd: int
    ends: _Ends

    def send_window(self) -> int:
        """Bytes that the kernel takes now without making the sender wait; 0 if the connection is no more."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return 0
        try:
            if not self._is_same(borrowed):
                return 0
            size = borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # half of it is for bookkeeping
            waiting = self._unacked_bytes()
        except OSError:
            return 0
        finally:
            borrowed.detach()
        return max(0, size // 2 - waiting)

    def state(self) -> TcpState | None:
        """How it is now; None if it is no more, or the kernel does not tell."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return None
        try:
            if not self._is_same(borrowed):
                return None
            waiting = (
                self._unacked_bytes()
            )  # first: what is acknowledged in between counts twice, and not never
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return None
        finally:
            borrowed.detach()  # or it would be closed with the object
        if len(info) < _INFO.size:
            return None
        fields = _INFO.unpack(info)
        numbers = (fields[_ACKED], waiting, fields[_LAST_RECEIVED_MS], fields[_RECEIVED])
        return TcpState(fields[0] == _ESTABLISHED, *numbers)

    def _unacked_bytes(self) -> int:
        """Bytes that were written and are not acknowledged yet."""
        waiting = array("i", [0])
        ioctl(self.fd, TIOCOUTQ, waiting)
        return waiting[0]

    def _is_same(self, connection: socket.socket) -> bool:
        """Whether it is still this one: of those that were accepted at one address, only the other end differs."""
        if _address_of(connection.getsockname()) != self.ends[0]:
            return False
        try:
            return _address_of(connection.getpeername()) == self.ends[1]
        except OSError:  # reset: the kernel has forgotten by whom
            return True


def find_link(src: str, dst: str) -> TcpLink | None:
    """The connection of this process between two Zenoh locators, its own end first; None if there is none over TCP."""
    ours, theirs = _address(src), _address(dst)
    if ours is None or theirs is None:
        return None
    for each in Path("/proc/self/fd").iterdir():
        fd = int(each.name)
        try:
            borrowed = socket.socket(fileno=fd)
        except OSError:  # no socket, or closed since it was listed
            continue
        try:
            ends = _ends(borrowed)
        except OSError:  # not connected
            continue
        finally:
            borrowed.detach()
        if ends == (ours, theirs):
            return TcpLink(fd, ends)
    return None


def _address(locator: str) -> tuple[str, int] | None:
    match = _LOCATOR.fullmatch(locator)
    return None if match is None else (match[1].strip("[]").split("%", 1)[0], int(match[2]))


def _ends(connected: socket.socket) -> _Ends | None:
    if connected.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    return _address_of(connected.getsockname()), _address_of(connected.getpeername())


def _address_of(name: object) -> tuple[str, int]:
    """Host and port as the kernel gives them; ("", 0) for another family."""
    match name:
        case (str(host), int(port), *_):
            return host.removeprefix("::ffff:"), port
        case _:
            return "", 0
