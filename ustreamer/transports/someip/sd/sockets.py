# SPDX-License-Identifier: Apache-2.0
"""The two sockets of service discovery: one hears the group, the other one sends everything and hears what is for us alone."""

import socket
from collections.abc import Iterator
from contextlib import suppress
from struct import Struct, pack
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_MAX_DATAGRAM: Final = 65_535
_BUFFER: Final = 1 << 20  # an Offer from each of 256 peers at once is 100 KB, with the kernel's share 400
_TTL: Final = 1  # service discovery stays on its link
_SO_TIMESTAMPNS: Final = 35  # asm-generic/socket.h; not in the socket module
_TIMESPEC: Final = Struct("@ll")
_CMSG_SPACE: Final = socket.CMSG_SPACE(_TIMESPEC.size)
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_MAX_WAITED_NS: Final = _NS_PER_S
"""What has waited longer may as well have come when the clock was set."""


class ReceivedDatagram(NamedTuple):
    """A datagram that came to service discovery's port; `arrived_ns` since the epoch, None if the kernel does not say."""

    datagram: bytes
    peer: Address
    multicast: bool
    arrived_ns: int | None = None

    def waited_ns(self, wall_ms: int) -> int:
        """For how long nobody took it, by the wall clock, which may be set at any moment: 1 s at most."""
        if self.arrived_ns is None:
            return 0
        return min(max(wall_ms * _NS_PER_MS - self.arrived_ns, 0), _MAX_WAITED_NS)


class SdSockets:
    """Belongs to one thread, but for `fds`."""

    def __init__(self, own_address: Address, group: Address) -> None:
        self._own_address = own_address
        self._group = group
        self._unicast: socket.socket | None = None
        self._multicast: socket.socket | None = None
        self.send_failed = 0
        """Messages that the kernel did not take. Whoever needs them asks again, or gets the next cyclic Offer."""

    def open(self) -> None:
        """Bind and join. Raises UStatusError(UNAVAILABLE) naming what could not be had."""
        try:
            self._unicast = self._bind(self._own_address)
            # With the address and not 0.0.0.0, or the group is joined on whatever interface has the default route.
            self._unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._interface)
            self._unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, _TTL)
            self._multicast = join_group(self._group, self._own_address[0])
            self._multicast.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
            for each in (self._unicast, self._multicast):
                each.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        except UStatusError:
            self.close()
            raise

    @property
    def _interface(self) -> bytes:
        return socket.inet_aton(self._own_address[0])

    def _bind(self, address: Address) -> socket.socket:
        # REUSEADDR, because another stack on this machine has the port already: at another address, or at all of them.
        return open_udp_socket(address, reuse=True, buffer=_BUFFER)

    @property
    def fds(self) -> tuple[int, ...]:
        """What to wait for; none while it is closed."""
        return tuple(each.fileno() for each in (self._multicast, self._unicast) if each is not None)

    def receive(self, limit: int) -> Iterator[ReceivedDatagram]:
        """What has come in, `most` datagrams of each socket."""
        for opened, multicast in ((self._multicast, True), (self._unicast, False)):
            for _ in range(limit if opened is not None else 0):
                assert opened is not None
                try:
                    datagram, ancillary, _, peer = opened.recvmsg(_MAX_DATAGRAM, _CMSG_SPACE)
                except BlockingIOError:
                    break
                except OSError:
                    break  # an ICMP error for something we sent: whoever is not there does not answer
                yield ReceivedDatagram(datagram, peer, multicast, _kernel_timestamp(ancillary))

    def send(self, datagram: bytes, to: Address | None) -> None:
        """Send from our address, to one peer or (None) to the group. What cannot be sent is counted."""
        try:
            assert self._unicast is not None
            self._unicast.sendto(datagram, to or self._group)
        except OSError:
            self.send_failed += 1

    def rejoin(self) -> None:
        """Be a member of the group again after the link was away, and send to it: an interface that was made anew is another.

        The kernel has noted its number, which is not that of the new one, for what is sent to groups as well.
        """
        if self._multicast is not None:
            rejoin_group(self._multicast, self._group[0], self._own_address[0])
        if self._unicast is not None:
            with suppress(OSError):  # the interface is gone again, and its next coming is another try
                self._unicast.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, self._interface)

    def close(self) -> None:
        """May be repeated."""
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


def open_udp_socket(address: Address, *, reuse: bool, buffer: int | None = None) -> socket.socket:
    """A non-blocking UDP socket at `address`. Raises UStatusError(UNAVAILABLE)."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        opened.setblocking(False)
        if reuse:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if buffer is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        opened.bind(address)
    except OSError as error:
        opened.close()
        host, port = address
        raise UStatusError(UCode.UNAVAILABLE, f"cannot bind UDP {host}:{port}: {error.strerror}") from error
    return opened


def join_group(group: Address, interface: str, buffer: int | None = None) -> socket.socket:
    """A non-blocking socket that hears what is sent to `group`, on the interface that has the address `interface`."""
    opened = open_udp_socket(group, reuse=True, buffer=buffer)
    try:
        opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, _membership(group[0], interface))
    except OSError as error:
        opened.close()
        text = f"cannot join {group[0]} on the interface of {interface}: {error.strerror}"
        raise UStatusError(UCode.UNAVAILABLE, text) from error
    return opened


def rejoin_group(opened: socket.socket, group: str, interface: str) -> None:
    """Leave and join, as far as the kernel lets us."""
    for option in (socket.IP_DROP_MEMBERSHIP, socket.IP_ADD_MEMBERSHIP):
        try:
            opened.setsockopt(socket.IPPROTO_IP, option, _membership(group, interface))
        except OSError:
            continue  # not a member; or the interface is gone again, and its next coming is another try


def _membership(group: str, interface: str) -> bytes:
    return pack("=4s4s", socket.inet_aton(group), socket.inet_aton(interface))
