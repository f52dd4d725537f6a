# SPDX-License-Identifier: Apache-2.0
"""IP addresses, ports and networks, in the notation of the configuration: `10.0.0.2:30501` and `[fd00::2]:30501`.

IPv6 addresses have no zone: one that is valid on its link only (fe80::/10) is refused, except as a multicast group.
"""

import ipaddress
import socket
from typing import NamedTuple

Address = tuple[str, int]
"""Canonical IP address and port, as the socket module takes it."""
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


class TcpAddress(NamedTuple):
    """An address over TCP. A message to a TcpAddress uses the connection with this peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp {format_address(self)}"


def is_ipv6(host: str) -> bool:
    """The IP version of an address."""
    return ":" in host


def open_socket(host: str, kind: int) -> socket.socket:
    """A non-blocking socket of the IP version of `host`, and of no other one. Raises OSError."""
    opened = socket.socket(socket.AF_INET6 if is_ipv6(host) else socket.AF_INET, kind | socket.SOCK_NONBLOCK)
    if is_ipv6(host):
        opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    return opened


def format_address(address: Address) -> str:
    """The notation of the configuration."""
    host, port = address
    return f"[{host}]:{port}" if is_ipv6(host) else f"{host}:{port}"


def parse_address(text: str) -> Address:
    """Parse `10.0.0.2:30501` or `[fd00::2]:30501`. Raises ValueError for anything else; names are not resolved."""
    found = _split(text)
    if found is None:
        raise ValueError(
            f"{text!r}: expected an IP address and a port, such as 10.0.0.2:30501 or [fd00::2]:30501"
        )
    ip, port = found
    if ip.is_multicast or ip.is_unspecified or ip == _BROADCAST:
        raise ValueError(f"{text!r}: expected the address of one host, not of many")
    _check_scope(text, ip)
    return str(ip), port


_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def _split(text: str) -> tuple[_Ip, int] | None:
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 0xFFFF):
        return None
    in_brackets = host.startswith("[") and host.endswith("]")
    try:
        ip: _Ip = ipaddress.IPv6Address(host[1:-1]) if in_brackets else ipaddress.IPv4Address(host)
    except ValueError:
        return None
    return ip, int(port)


def _check_scope(text: str, ip: _Ip) -> None:
    if isinstance(ip, ipaddress.IPv6Address) and (ip.is_link_local or ip.scope_id):
        raise ValueError(f"{text!r}: expected an address without a zone, such as one of fd00::/8")


def check_address(key: str, address: str) -> None:
    """Raises ValueError that begins with `key` unless `parse_address` accepts `address`."""
    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def check_ip(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `text` is an IP address without a zone."""
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{key}: {text!r}: expected an IP address, such as 10.0.0.1 or fd00::1") from None
    try:
        _check_scope(text, ip)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def is_of_many(text: str) -> bool:
    """Whether an IP address is a multicast group or the broadcast address, which no socket sends from."""
    ip = ipaddress.ip_address(text)
    return ip.is_multicast or ip == _BROADCAST


def check_network(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `text` is an IP network."""
    try:
        ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}; expected a network, such as 10.0.0.0/24") from None


def parse_group(text: str) -> Address:
    """Parse `239.1.1.1:30600` or `[ff14::1]:30600`. Raises ValueError for anything else."""
    found = _split(text)
    if found is None or not found[0].is_multicast:
        raise ValueError(f"{text!r}: expected a multicast group and a port, such as 239.1.1.1:30600")
    ip, port = found
    return str(ip), port


def check_group(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `parse_group` accepts `address`."""
    try:
        parse_group(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
