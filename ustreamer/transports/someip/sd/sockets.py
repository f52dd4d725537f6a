# SPDX-License-Identifier: Apache-2.0
"""The two sockets of service discovery: one receives the multicast group, the other sends and receives unicasts."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct, pack
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.addresses import Address, format_address, is_ipv6, open_socket
from ustreamer.transports.someip.protocol.socket_marks import UNMARKED, SocketMarks, mark_socket
from ustreamer.transports.someip.sd.interface_monitor import interface_index
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_MAX_DATAGRAM: Final = 65_535
_BUFFER: Final = (
    1 << 20
)  # an Offer from each of 256 peers at once is 100 KB, or 400 KB with the kernel's overhead
_TTL: Final = 1  # service discovery is link-local
_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; not in the socket module
_TIMESPEC: Final = Struct("@ll")
_CMSG_SPACE: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_MAX_WAITED_NS: Final = 10 * _NS_PER_S
"""Bound of a wait, because a clock step can make it arbitrary.

A real wait must stay below. A datagram with a wait that is too short can look like a reboot. Next to two busy
loops, a reader of 700 datagrams per s was 1 to 2 s late.
"""


class ReceivedDatagram(NamedTuple):
    """A datagram at the service discovery port; `arrived_ns` since the epoch, None without a kernel timestamp."""

    datagram: bytes
    peer: Address
    multicast: bool
    arrived_ns: int | None = None

    def waited_ns(self, wall_ms: int) -> int:
        """The time between arrival and read, in ns, at most 10 s.

        The computation uses the wall clock, which may step at any moment.
        """
        if self.arrived_ns is None:
            return 0
        return min(max(wall_ms * _NS_PER_MS - self.arrived_ns, 0), _MAX_WAITED_NS)


class SdSockets:
    """All methods belong to one thread, except `fds` and `sockets`."""

    def __init__(self, own_address: Address, group: Address, marks: SocketMarks = UNMARKED) -> None:
        self._own_address, self._group, self._marks = own_address, group, marks
        self._unicast: socket.socket | None = None
        self._multicast: socket.socket | None = None
        self.send_failed = 0
        """Messages that the kernel refused. A receiver repeats its request or gets the next cyclic Offer."""

    # [impl->SD-27]
    def open(self) -> None:
        """Bind and join the group. Raises UStatusError(UNAVAILABLE) with the failed address."""
        try:
            self._unicast = self._bind(self._own_address)
            # The address and not 0.0.0.0, which would join on the interface of the default route.
            self._select_interface(self._unicast)
            self._multicast = join_group(self._group, self._own_address[0], marks=self._marks)
            self._multicast.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            for each in (self._unicast, self._multicast):
                each.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except UStatusError:
            self.close()
            raise

    def _select_interface(self, opened: socket.socket) -> None:
        """Send multicasts on the own interface only. Raises OSError."""
        set_multicast_interface(opened, self._own_address[0])
        if is_ipv6(self._own_address[0]):
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, _TTL)
        else:
            opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)

    def _bind(self, address: Address) -> socket.socket:
        # REUSEADDR: another stack on this machine may use the port, at another address or at all of them.
        return open_udp_socket(address, reuse=True, buffer=_BUFFER, marks=self._marks)

    @property
    def fds(self) -> tuple[int, ...]:
        """The descriptors to poll; none while closed."""
        return tuple(each.fileno() for each in self.sockets)

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The open sockets, for the statistics of any thread."""
        return tuple(each for each in (self._multicast, self._unicast) if each is not None)

    def receive(self, limit: int) -> Iterator[ReceivedDatagram]:
        """Yield the pending datagrams, at most `limit` of each socket."""
        for opened, multicast in ((self._multicast, True), (self._unicast, False)):
            for _ in range(limit if opened is not None else 0):
                assert opened is not None
                try:
                    datagram, ancillary, _, peer = opened.recvmsg(_MAX_DATAGRAM, _CMSG_SPACE)
                except BlockingIOError:
                    break
                except OSError:
                    break  # an ICMP error for an earlier send
                yield ReceivedDatagram(datagram, peer[:2], multicast, _kernel_timestamp(ancillary))

    def send(self, datagram: bytes, to: Address | None) -> None:
        """Send to one peer or (None) to the group. A failed send is counted."""
        try:
            assert self._unicast is not None
            self._unicast.sendto(datagram, to or self._group)
        except OSError:
            self.send_failed += 1

    def rejoin(self) -> None:
        """Join the group again after a link loss, and set the interface for multicasts.

        The kernel stores the interface index, and a recreated interface has another index.
        """
        if self._multicast is not None:
            rejoin_group(self._multicast, self._group[0], self._own_address[0])
        if self._unicast is not None:
            with suppress(OSError):  # the interface vanished again; its return retries this
                self._select_interface(self._unicast)

    def close(self) -> None:
        """Close both sockets. Idempotent."""
        for each in (self._unicast, self._multicast):
            if each is not None:
                each.close()
        self._unicast = self._multicast = None


def _kernel_timestamp(ancillary: list[tuple[int, int, bytes]]) -> int | None:
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS and len(data) == _TIMESPEC.size:
            seconds, ns = _TIMESPEC.unpack(data)
            return int(seconds * _NS_PER_S + ns)
    return None


def open_udp_socket(
    address: Address,
    *,
    reuse: bool,
    buffer: int | None = None,
    scope: int = 0,
    marks: SocketMarks = UNMARKED,
) -> socket.socket:
    """Open a non-blocking UDP socket at `address`. Raises UStatusError(UNAVAILABLE).

    `scope` is the index of the interface of an IPv6 group, which may be valid on one link only (ff02::/16).
    """
    opened = open_socket(address[0], socket.SOCK_DGRAM)
    try:
        mark_socket(opened, marks)
        if reuse:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        opened.bind((*address, 0, scope) if is_ipv6(address[0]) else address)
    except OSError as error:
        opened.close()
        text = f"cannot bind UDP {format_address(address)}: {error.strerror}"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    return opened


def join_group(
    group: Address, interface: str, buffer: int | None = None, marks: SocketMarks = UNMARKED
) -> socket.socket:
    """Open a non-blocking socket that receives `group`, on the interface that has the address `interface`."""
    scope = interface_index(interface) if is_ipv6(interface) else 0
    opened = open_udp_socket(group, reuse=True, buffer=buffer, scope=scope, marks=marks)
    try:
        opened.setsockopt(*_membership(group[0], interface, join=True))
    except OSError as error:
        opened.close()
        text = f"cannot join {group[0]} on the interface of {interface}: {error.strerror}"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    return opened


def rejoin_group(opened: socket.socket, group: str, interface: str) -> None:
    """Leave and join the group, as far as the kernel permits."""
    for join in (False, True):
        try:
            opened.setsockopt(*_membership(group, interface, join=join))
        except OSError:
            continue  # not a member; or the interface vanished again, and its return retries this


def set_multicast_interface(opened: socket.socket, interface: str) -> None:
    """Send multicasts on the interface that has the address `interface`. Raises OSError."""
    if is_ipv6(interface):
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, interface_index(interface))
    else:
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(interface))


def _membership(group: str, interface: str, *, join: bool) -> tuple[int, int, bytes]:
    """The socket option that joins or leaves a group. Raises OSError if there is no such interface."""
    if is_ipv6(group):
        option = socket.IPV6_JOIN_GROUP if join else socket.IPV6_LEAVE_GROUP
        value = pack("=16sI", socket.inet_pton(socket.AF_INET6, group), interface_index(interface))
        return socket.IPPROTO_IPV6, option, value
    option = socket.IP_ADD_MEMBERSHIP if join else socket.IP_DROP_MEMBERSHIP
    return socket.IPPROTO_IP, option, socket.inet_aton(group) + socket.inet_aton(interface)
