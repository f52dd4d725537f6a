# SPDX-License-Identifier: Apache-2.0
"""The kernel's state of a Zenoh link over TCP: acknowledged, unacknowledged and received bytes.

Zenoh reports that a link is lost, but not why, and the lost messages depend on the reason. Zenoh's sockets belong to
this process, so the kernel can be queried (`getsockopt(TCP_INFO)`, 4 us). Zenoh closes a socket as soon as the other
side has ended the connection. A second descriptor keeps the connection open, so that its last state can be read.

In: the two ends of a link as Zenoh reports them. Out: the state of its connection, also after Zenoh has closed it.
"""

import os
import re
import socket
from array import array
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from fcntl import ioctl
from pathlib import Path
from struct import Struct
from termios import FIONREAD, TIOCOUTQ
from typing import Final

import msgspec

_LOCATOR: Final = r"(?:tcp|tls|ws)/(.+):(\d+)(?:[?#].*)?"
# struct tcp_info of linux/tcp.h: 8 bytes, 24 numbers of 32 bits, tcpi_bytes_acked at 120 (Linux 4.1),
# tcpi_bytes_received at 128.
_INFO: Final = Struct("<B7x24I16xQQ")
_NO_LINGER: Final = Struct("ii").pack(0, 0)
_READ_BYTES: Final = 65_536
_OPEN: Final = (1, 4, 5)
"""ESTABLISHED, FIN_WAIT1, FIN_WAIT2: the other side has not ended the connection."""
_LAST_RECEIVED_MS: Final = 12
_LAST_ACK_MS: Final = 13
_ACKED: Final = 25
_RECEIVED: Final = 26

_Ends = tuple[tuple[str, int], tuple[str, int]]


class TcpState(msgspec.Struct, frozen=True):
    """The state of a connection. Bytes count from its start; the end of the stream counts as one byte."""

    peer_open: bool
    """True if the other side has neither ended its stream nor reset the connection."""
    acked: int
    """Bytes acknowledged by the other side's kernel."""
    unacked: int
    """Bytes written and not acknowledged, sent or not."""
    received_ago_ms: int
    """Time since the other side last sent data."""
    received: int
    """Bytes received."""
    unread: int = 0
    """Received bytes that Zenoh has not read yet."""
    acked_ago_ms: int = 0
    """Time since the other side's kernel last sent an acknowledgement, also one of nothing new: its buffer is full."""


class TcpLink:
    """A connection that Zenoh owns, with a second descriptor of it. Its owner calls `release` in the end."""

    def __init__(self, fd: int, second: socket.socket) -> None:
        """`fd` is Zenoh's descriptor."""
        self.fd = fd
        self._second = second
        self._identity = os.fstat(second.fileno())

    @property
    def is_closed(self) -> bool:
        """True if Zenoh has closed its descriptor."""
        try:
            return not os.path.samestat(os.fstat(self.fd), self._identity)
        except OSError:
            return True

    def send_window(self) -> int:
        """Bytes that the kernel accepts now without blocking; 0 if Zenoh has closed the connection."""
        if self.is_closed:
            return 0
        try:
            size = self._second.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
            return max(0, size // 2 - self._unacked_bytes())  # the kernel uses half for bookkeeping
        except (OSError, ValueError):
            return 0

    def state(self) -> TcpState | None:
        """The present state; None after `release`, or if the kernel has no TCP_INFO."""
        try:
            # First: bytes acknowledged between the two calls then count twice instead of never.
            waiting, unread = self._unacked_bytes(), self._queued_bytes(FIONREAD)
            info = self._second.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
        except (OSError, ValueError):
            return None
        if len(info) < _INFO.size:
            return None
        fields = _INFO.unpack(info)
        numbers = (
            fields[_ACKED],
            waiting,
            fields[_LAST_RECEIVED_MS],
            fields[_RECEIVED],
            unread,
            fields[_LAST_ACK_MS],
        )
        return TcpState(fields[0] in _OPEN, *numbers)

    def hold(self) -> socket.socket | None:
        """A further descriptor, which stays open after `release`; None if Zenoh has closed its own."""
        if self.is_closed:
            return None
        try:
            return socket.socket(fileno=os.dup(self._second.fileno()))
        except OSError:
            return None

    def shut_down(self) -> None:
        """End both directions, also for the descriptor of `hold`. The kernel sends what waits, then the end of the stream."""
        with suppress(OSError):
            self._second.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Close the second descriptor. What the kernel has not sent yet, it sends later."""
        with suppress(OSError):
            # Zenoh sets a linger time: the last `close` would wait up to 10 s for a frozen node.
            self._second.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._second.close()

    def _unacked_bytes(self) -> int:
        """Bytes written and not acknowledged."""
        return self._queued_bytes(TIOCOUTQ)

    def _queued_bytes(self, request: int) -> int:
        waiting = array("i", [0])
        ioctl(self._second.fileno(), request, waiting)
        return waiting[0]


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
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)  # as in `release`
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
        if _ends_of(fd) != (ours, theirs):
            continue
        try:
            second = os.dup(fd)
        except OSError:  # closed since the listing
            continue
        if _ends_of(second) == (ours, theirs):
            return TcpLink(fd, socket.socket(fileno=second))
        os.close(second)  # the kernel has reused the number meanwhile
    return None


def _ends_of(fd: int) -> _Ends | None:
    """The two ends of a descriptor that is a connected socket."""
    try:
        borrowed = socket.socket(fileno=fd)
    except OSError:  # no socket, or closed
        return None
    try:
        return _ends(borrowed)
    except OSError:  # not connected
        return None
    finally:
        borrowed.detach()  # else the object would close it


def _address(locator: str) -> tuple[str, int] | None:
    match = re.fullmatch(_LOCATOR, locator)
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
