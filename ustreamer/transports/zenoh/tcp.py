# SPDX-License-Identifier: Apache-2.0
"""What the kernel knows of a Zenoh link over TCP: whether the other side still takes what we send, and still speaks.

Zenoh tells that a link is lost, not why; what was lost with it depends on that. Its sockets are in this process, so the
kernel may be asked about them (`getsockopt(TCP_INFO)`, 4 us). They are only ever asked, by number, and never kept: a number
that has come to mean another socket is noticed by its addresses.
"""

import fcntl
import re
import socket
import termios
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

_LOCATOR: Final = re.compile(r"(?:tcp|tls|ws)/(.+):(\d+)(?:[?#].*)?")
# struct tcp_info of linux/tcp.h: 8 bytes, 24 numbers of 32 bits, ..., tcpi_bytes_received at 128,
# tcpi_notsent_bytes (Linux 4.6) at 144.
_INFO: Final = Struct("<B7x24I24xQ8xI")
_INT: Final = Struct("i")
_ESTABLISHED: Final = 1
_UNACKED: Final = 5
_LAST_RECEIVED_MS: Final = 12
_LAST_ACK_MS: Final = 13
_RECEIVED: Final = 25
_NOT_SENT: Final = 26

_Ends = tuple[tuple[str, int], tuple[str, int]]


class TcpState(NamedTuple):
    """A connection at one moment: segments in flight, bytes that wait for their turn, and how long ago it was heard of."""

    established: bool
    """Whether neither side's kernel has ended it."""
    unacked: int
    not_sent: int
    ack_ms: int
    """Since the last acknowledgement."""
    heard_ms: int
    """Since the other side last sent something of its own."""
    received: int
    """Bytes that came in; its end counts as one."""


class TcpLink(NamedTuple):
    """One of this process's connections, which belongs to somebody else."""

    fd: int
    ends: _Ends

    def room(self) -> int:
        """Bytes that the kernel takes now without making the sender wait; 0 if the connection is no more."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return 0
        try:
            if _address_of(borrowed.getsockname()) != self.ends[0]:
                return 0
            size = borrowed.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)  # half of it is for bookkeeping
            (waiting,) = _INT.unpack(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(_INT.size)))
        except OSError:
            return 0
        finally:
            borrowed.detach()
        return max(0, size // 2 - int(waiting))

    def state(self) -> TcpState | None:
        """How it is now; None if it is no more, or the kernel does not tell."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return None
        try:
            if _address_of(borrowed.getsockname()) != self.ends[0]:
                return None
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return None
        finally:
            borrowed.detach()  # or it would be closed with the object
        if len(info) < _INFO.size:
            return None
        fields = _INFO.unpack(info)
        numbers = (_UNACKED, _NOT_SENT, _LAST_ACK_MS, _LAST_RECEIVED_MS, _RECEIVED)
        return TcpState(fields[0] == _ESTABLISHED, *(fields[each] for each in numbers))


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
