# SPDX-License-Identifier: Apache-2.0
"""IPv4 addresses, ports and networks, in the notation of the configuration."""

import ipaddress
from typing import NamedTuple

Address = tuple[str, int]
"""Canonical IPv4 address and port: the address format of the socket module."""


class TcpAddress(NamedTuple):
    """An address over TCP. A message to a TcpAddress uses the connection with this peer."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp {self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Parse `10.0.0.2:30501`. Raises ValueError for anything else; names are not resolved."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 0xFFFF):
        raise ValueError(f"{text!r}: expected an IPv4 address and a port, such as 10.0.0.2:30501")
    return _unicast(text, host), int(port)


def _unicast(text: str, host: str) -> str:
    try:
        ip = ipaddress.IPv4Address(host)
    except ValueError:
        raise ValueError(f"{text!r}: expected an IPv4 address and a port, such as 10.0.0.2:30501") from None
    if ip.is_multicast or ip.is_unspecified or int(ip) == 0xFFFF_FFFF:
        raise ValueError(f"{text!r}: expected the address of one host, not of many")
    return str(ip)


def check_address(key: str, address: str) -> None:
    """Raises ValueError that begins with `key` unless `parse_address` accepts `address`."""
    try:
        parse_address(address)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def check_ip(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `text` is an IPv4 address."""
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        raise ValueError(f"{key}: {text!r}: expected an IPv4 address, such as 10.0.0.1") from None


def check_network(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `text` is an IPv4 network."""
    try:
        ipaddress.IPv4Network(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}; expected a network, such as 10.0.0.0/24") from None


def parse_group(text: str) -> Address:
    """Parse `239.1.1.1:30600`. Raises ValueError for anything else."""
    host, _, port = text.rpartition(":")
    if port.isascii() and port.isdigit() and 1 <= int(port) <= 0xFFFF:
        try:
            ip = ipaddress.IPv4Address(host)
        except ValueError:
            ip = ipaddress.IPv4Address(0)
        if ip.is_multicast:
            return str(ip), int(port)
    raise ValueError(f"{text!r}: expected a multicast group and a port, such as 239.1.1.1:30600")


def check_group(key: str, text: str) -> None:
    """Raises ValueError that begins with `key` unless `parse_group` accepts `address`."""
    try:
        parse_group(text)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error
