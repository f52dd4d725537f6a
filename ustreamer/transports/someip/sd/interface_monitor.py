# SPDX-License-Identifier: Apache-2.0
"""The state of the interface that has an address, with a wake-up on changes (Linux: ioctl and netlink)."""

import array
import fcntl
import ipaddress
import socket
import struct
from pathlib import Path
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.addresses import Network

_SIOCGIFCONF: Final = 0x8912
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFNETMASK: Final = 0x891B
_IFF_UP: Final = 0x1
_IFF_RUNNING: Final = 0x40  # carrier present
_READY: Final = _IFF_UP | _IFF_RUNNING
_IFREQ: Final = struct.Struct("16s24s")  # name and union on 64 bits; slightly long on 32 bits
_MAX_ADDRESSES: Final = 1_024  # bound of the examined addresses of one machine
_NETLINK_GROUPS: Final = 0x1 | 0x10 | 0x100  # RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV6_IFADDR
_IPV6_ADDRESSES: Final = Path("/proc/net/if_inet6")


class Interface(NamedTuple):
    """An interface by one of its addresses."""

    name: str
    network: Network
    up: bool


def find_interface(address: str) -> Interface | None:
    """The interface that has `address` or, as loopback owns 127.0.0.0/8, its network; None if there is none."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        return _find_ipv6(ip)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        known = [(own, _interface(control, request)) for own, request in _addresses(control)]
    exact = [each for own, each in known if own == ip]
    loopback = [each for _, each in known if ip.is_loopback and ip in each.network]
    return next(iter((*exact, *loopback)), None)


def interface_index(address: str) -> int:
    """The index of the interface that has `address`; 0 if there is none."""
    found = find_interface(address)
    return 0 if found is None else socket.if_nametoindex(found.name)


def _find_ipv6(ip: ipaddress.IPv6Address) -> Interface | None:
    """In a line of the file: address and, in hexadecimal, interface index, prefix length, scope and flags; the name."""
    try:
        lines = _IPV6_ADDRESSES.read_text(encoding="ascii").splitlines()
    except FileNotFoundError:  # a kernel without IPv6
        return None
    for own, _, prefix, _, _, name in map(str.split, lines):
        if int(own, 16) == int(ip):
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                is_up = _is_up(control, _IFREQ.pack(name.encode(), b""))
            return Interface(name, ipaddress.IPv6Network((ip, int(prefix, 16)), strict=False), is_up)
    return None


def _is_up(control: socket.socket, request: bytes) -> bool:
    flags: int = struct.unpack_from("H", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)[0]
    return flags & _READY == _READY


def _addresses(control: socket.socket) -> list[tuple[ipaddress.IPv4Address, bytes]]:
    buffer = array.array("B", bytes(_MAX_ADDRESSES * _IFREQ.size))
    at, size = buffer.buffer_info()
    length, _ = struct.unpack("iP", fcntl.ioctl(control, _SIOCGIFCONF, struct.pack("iP", size, at)))
    raw = buffer.tobytes()[:length]
    requests = [raw[start : start + _IFREQ.size] for start in range(0, length, _IFREQ.size)]
    return [(_address_in(each), each) for each in requests]


def _interface(control: socket.socket, request: bytes) -> Interface:
    mask = _address_in(fcntl.ioctl(control, _SIOCGIFNETMASK, request))
    name = request[:16].rstrip(b"\0").decode(errors="replace")
    network = ipaddress.IPv4Network(f"{_address_in(request)}/{mask}", strict=False)
    return Interface(name, network, _is_up(control, request))


def _address_in(request: bytes) -> ipaddress.IPv4Address:
    return ipaddress.IPv4Address(request[20:24])


# [impl->SD-23]
class InterfaceMonitor:
    """A file descriptor that wakes on interface and address changes; `is_up` then reads the current state."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        self._socket.bind((0, _NETLINK_GROUPS))

    def fileno(self) -> int:
        return self._socket.fileno()

    def drain(self) -> None:
        """Read all pending netlink messages. A buffer overflow is harmless: the state is read separately."""
        while True:
            try:
                self._socket.recv(65_536)
            except BlockingIOError:
                return
            except OSError:
                return  # ENOBUFS: the kernel dropped some

    def is_up(self) -> bool:
        """Whether the interface of the address is up and has a carrier."""
        try:
            found = find_interface(self._address)
        except OSError:
            return False  # the interface vanished between two calls; netlink reports that as well
        return found is not None and found.up

    def close(self) -> None:
        self._socket.close()
