# SPDX-License-Identifier: Apache-2.0
"""UDP sockets, and the uProtocol status of their errors."""

import errno
import socket
from struct import Struct
from typing import Final

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.protocol.addresses import Address, format_address, is_ipv6, open_socket
from ustreamer.transports.someip.protocol.mapping import MAX_PAYLOAD
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks, mark_socket
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument

_SO_MEMINFO: Final = 55  # asm-generic/socket.h
_MEMINFO: Final = Struct("@9I")  # linux/sock_diag.h, enum sk_meminfo
_DROPS: Final = 8
_IP_RECVERR: Final = 11  # linux/in.h; not in the socket module
_EXTENDED_ERROR: Final = Struct(
    "=IBBB"
)  # linux/errqueue.h, struct sock_extended_err: errno, origin, type, code
_IPV6_RECVERR: Final = 25  # linux/in6.h
_PORT_UNREACHABLE: Final = ([2, 3, 3], [3, 1, 4])  # of ICMP and ICMPv6: destination unreachable, port
_RECVERR: Final = ((socket.IPPROTO_IP, _IP_RECVERR), (socket.IPPROTO_IPV6, _IPV6_RECVERR))
_ERROR_BYTES: Final = 512
_MAX_ERRORS: Final = 256  # in one call; the next call continues
_UNREACHABLE: Final = {errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ECONNREFUSED}
"""One receiver is unreachable at present; others may be reachable."""
# UNAVAILABLE: the kernel's queue is full, or the link is down. EPERM comes from a firewall.
_CODES: Final = {
    errno.EAGAIN: UCode.UNAVAILABLE,
    errno.ENOBUFS: UCode.UNAVAILABLE,
    errno.ENOMEM: UCode.UNAVAILABLE,
    errno.ENETDOWN: UCode.UNAVAILABLE,
    errno.EBADF: UCode.UNAVAILABLE,
    errno.EPERM: UCode.PERMISSION_DENIED,
    errno.EACCES: UCode.PERMISSION_DENIED,
}


def bind_udp(address: Address, marks: SocketMarks = UNMARKED) -> socket.socket:
    """A non-blocking, unconnected UDP socket at `address`.

    Unconnected, so that an ICMP "port unreachable" from one peer does not fail a later send to another.
    """
    opened = open_socket(address[0], socket.SOCK_DGRAM)
    try:
        mark_socket(opened, marks)
        opened.bind(address)
        if is_ipv6(address[0]) and address[0] != "::":  # over IPv4 the source address selects the interface
            from ustreamer.transports.someip.sd.sockets import set_multicast_interface  # with IPv6 only

            set_multicast_interface(opened, address[0])
    except OSError as error:
        opened.close()
        text = f"cannot bind UDP {format_address(address)}: {error.strerror}"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    return opened


def report_unreachable(opened: socket.socket) -> None:
    """Let the kernel keep the ICMP errors of `opened`, with the address that each is about (IP_RECVERR).

    An error then also fails the next call of the socket, whatever that call is about.
    """
    if opened.family == socket.AF_INET6:
        opened.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVERR, 1)
    else:
        opened.setsockopt(socket.IPPROTO_IP, _IP_RECVERR, 1)


def pop_unreachable(opened: socket.socket) -> list[Address]:
    """The addresses without a listening socket that ICMP has reported since the last call."""
    found: list[Address] = []
    for _ in range(_MAX_ERRORS):
        try:
            _, ancillary, _, address = opened.recvmsg(0, _ERROR_BYTES, socket.MSG_ERRQUEUE)
        except OSError:  # no more
            break
        for level, kind, data in ancillary:
            if (level, kind) in _RECVERR:
                _, *reported = _EXTENDED_ERROR.unpack_from(data)
                if reported in _PORT_UNREACHABLE:
                    found.append((address[0], address[1]))
    return found


def dropped_datagrams(opened: socket.socket) -> int:
    """Datagrams that the kernel dropped because the receive buffer was full, or with bad checksums; 0 if unknown."""
    try:
        info = opened.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, _MEMINFO.size)
    except OSError:  # closed, or a kernel before 4.12
        return 0
    return int(_MEMINFO.unpack(info)[_DROPS]) if len(info) == _MEMINFO.size else 0


def send_error(error: OSError, size: int, address: Address) -> UStatusError:
    """The uProtocol status of a failed send of `size` bytes of payload."""
    to = format_address(address)
    if error.errno == errno.EMSGSIZE:
        return invalid_argument(
            f"payload of {size} bytes for {to}: at most {MAX_PAYLOAD} fit into one datagram; "
            "`tp = true` of its event, method or service has it sent in segments (SOME/IP-TP)"
        )
    text = f"cannot send {size} bytes of payload to {to}: {error.strerror}"
    if error.errno in _UNREACHABLE:
        return RouteUnavailable(address, text)
    return UStatusError(_CODES.get(error.errno or 0, UCode.INTERNAL), text)
