# SPDX-License-Identifier: Apache-2.0
"""The kernel's state of a Zenoh link over TCP: acknowledged, unacknowledged and received bytes.

Zenoh reports that a link is lost, but not why, and the lost messages depend on the reason. Zenoh's sockets belong to
this process, so the kernel can be queried (`getsockopt(TCP_INFO)`, 4 us). A socket is queried by its number and never
kept open. A number that the kernel has reused is detected by its addresses.
"""

import os
import re
import socket
from array import array
from collections.abc import Callable
from enum import Enum
from fcntl import ioctl
from pathlib import Path
from struct import Struct
from termios import TIOCOUTQ
from typing import Final, NamedTuple

_LOCATOR: Final = re.compile(r"(?:tcp|tls|ws)/(.+):(\d+)(?:[?#].*)?")
# struct tcp_info of linux/tcp.h: 8 bytes, 24 numbers of 32 bits, tcpi_bytes_acked at 120 (Linux 4.1),
# tcpi_bytes_received at 128.
_INFO: Final = Struct("<B7x24I16xQQ")
_LINGER: Final = Struct("ii")
_READ_BYTES: Final = 65_536
_ESTABLISHED: Final = 1
_LAST_RECEIVED_MS: Final = 12
_LAST_ACK_MS: Final = 13
_ACKED: Final = 25
_RECEIVED: Final = 26

_Ends = tuple[tuple[str, int], tuple[str, int]]


class TcpState(NamedTuple):
    """The state of a connection. Bytes count from its start; the end of the stream counts as one byte."""

    established: bool
    """True if neither kernel has ended the connection."""
    acked: int
    """Bytes acknowledged by the other side's kernel."""
    unacked: int
    """Bytes written and not acknowledged, sent or not."""
    received_ago_ms: int
    """Time since the other side last sent data."""
    received: int
    """Bytes received."""
    ack_ago_ms: int
    """Time since the other side's kernel last sent an acknowledgement, also one of no further bytes."""


class TcpLink(NamedTuple):
    """A connection of this process, owned by Zenoh."""

    fd: int
    ends: _Ends

    def send_window(self) -> int:
        """Bytes that the kernel accepts now without blocking; 0 if the connection is gone."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return 0
        try:
            if not self._is_same(borrowed):
                return 0
            size = borrowed.getsockopt(
                socket.SOL_SOCKET, socket.SO_SNDBUF
            )  # the kernel uses half for bookkeeping
            waiting = self._unacked_bytes()
        except OSError:
            return 0
        finally:
            borrowed.detach()
        return max(0, size // 2 - waiting)

    def state(self) -> TcpState | None:
        """The present state; None if the connection is gone or the kernel has no TCP_INFO."""
        try:
            borrowed = socket.socket(fileno=self.fd)
        except OSError:
            return None
        try:
            if not self._is_same(borrowed):
                return None
            # First: bytes acknowledged between the two calls then count twice instead of never.
            waiting = self._unacked_bytes()
            info = borrowed.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except OSError:
            return None
        finally:
            borrowed.detach()  # else the object would close it
        if len(info) < _INFO.size:
            return None
        fields = _INFO.unpack(info)
        numbers = (
            fields[_ACKED],
            waiting,
            fields[_LAST_RECEIVED_MS],
            fields[_RECEIVED],
            fields[_LAST_ACK_MS],
        )
        return TcpState(fields[0] == _ESTABLISHED, *numbers)

    def hold(self) -> socket.socket | None:
        """A second descriptor of the connection, which stays open when Zenoh closes its own; None if it is gone."""
        try:
            held = socket.socket(fileno=os.dup(self.fd))
        except OSError:
            return None
        try:
            if self._is_same(held):
                return held
        except OSError:
            pass
        held.close()
        return None

    def _unacked_bytes(self) -> int:
        """Bytes written and not acknowledged."""
        waiting = array("i", [0])
        ioctl(self.fd, TIOCOUTQ, waiting)
        return waiting[0]

    def _is_same(self, connection: socket.socket) -> bool:
        """True if it is still this connection. Connections accepted at one address differ only in the other end."""
        if _address_of(connection.getsockname()) != self.ends[0]:
            return False
        try:
            return _address_of(connection.getpeername()) == self.ends[1]
        except OSError:  # reset: the kernel has forgotten the peer's address
            return True


class LinkEnd(Enum):
    """How the other side ended a connection after our end."""

    READ = "it has read everything"
    UNREAD = "it closed with unread data, or was killed"
    NONE = "it has not ended the connection in time"


def wait_link_end(held: socket.socket, end_ns: int, monotonic_ns: Callable[[], int]) -> LinkEnd:
    """Wait until `end_ns` for the other side to end its stream after the Close message. Closes `held`.

    A killed side with unread data resets the connection. A frozen one does nothing.
    """
    with held:
        try:
            # Zenoh sets a linger time: the last `close` would wait up to 10 s for a frozen node.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER.pack(0, 0))
            while (left_ns := end_ns - monotonic_ns()) > 0:
                held.settimeout(left_ns / 1e9)
                if not held.recv(_READ_BYTES):
                    is_reset = held.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
                    return LinkEnd.UNREAD if is_reset else LinkEnd.READ
        except TimeoutError:
            pass
        except OSError:
            return LinkEnd.UNREAD
    return LinkEnd.NONE


def find_link(src: str, dst: str) -> TcpLink | None:
    """The TCP connection of this process between two Zenoh locators, own end first; None if there is none."""
    ours, theirs = _address(src), _address(dst)
    if ours is None or theirs is None:
        return None
    for each in Path("/proc/self/fd").iterdir():
        fd = int(each.name)
        try:
            borrowed = socket.socket(fileno=fd)
        except OSError:  # no socket, or closed since the listing
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
