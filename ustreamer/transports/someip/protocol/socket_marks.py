# SPDX-License-Identifier: Apache-2.0
"""What marks all that a socket sends: its interface, the DSCP, and the priority from which VLANs derive their PCP."""

import errno
import socket
from typing import Final

import msgspec

from ustreamer.transports.someip.protocol.dscp import set_dscp

_MAX_NAME_BYTES: Final = 16
_HINTS: Final = {
    errno.ENODEV: "there is no such interface",
    errno.EPERM: "vlan_priority 7 and a second bind to an interface need more privileges",
}


class SocketMarks(msgspec.Struct, frozen=True):
    """`priority` is SO_PRIORITY, `interface` SO_BINDTODEVICE; None leaves the default of the kernel."""

    dscp: int = 0
    priority: int | None = None
    interface: str | None = None


UNMARKED: Final = SocketMarks()


def mark_socket(opened: socket.socket, marks: SocketMarks) -> None:
    """Mark a new socket, before its bind. Raises OSError."""
    try:
        if marks.interface is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, marks.interface.encode() + b"\0")
        mark_accepted(opened, marks)
    except OSError as error:
        hint = _HINTS.get(error.errno or 0)
        if hint is None:
            raise
        raise OSError(error.errno, f"{error.strerror} (interface {marks.interface}: {hint})") from error


def mark_accepted(opened: socket.socket, marks: SocketMarks) -> None:
    """Mark an accepted connection, which has the interface of its listener. Raises OSError."""
    set_dscp(opened, marks.dscp)
    if marks.priority is not None:  # last, because a DSCP sets the priority too
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, marks.priority)


def copy_interface(of: socket.socket, to: socket.socket) -> None:
    """Bind a new socket to the interface of another one, if it has one. Raises OSError."""
    name = of.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, _MAX_NAME_BYTES)
    if name.rstrip(b"\0"):
        to.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, name)
