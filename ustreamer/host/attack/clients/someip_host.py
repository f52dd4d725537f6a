# SPDX-License-Identifier: Apache-2.0
"""Hostile SOME/IP hosts: frames of any form from addresses that no ECU has."""

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ustreamer.transports.someip.protocol.addresses import Address

HOSTS: Final = tuple(f"127.0.66.{number}" for number in range(1, 201))
"""Addresses of attackers. `config_copy` gives none of them to an ECU."""
HONEST: Final = "127.0.67.1"
"""A host that only tests whether the streamer still serves others."""
_HEADER: Final = struct.Struct(">HHIHHBBBB")

REQUEST, REQUEST_NO_RETURN, NOTIFICATION, RESPONSE, ERROR = 0x00, 0x01, 0x02, 0x80, 0x81
TP: Final = 0x20


def frame(
    service: int,
    method: int,
    kind: int,
    payload: bytes = b"",
    *,
    client: int = 0,
    session: int = 1,
    major: int = 1,
    protocol: int = 1,
    length: int | None = None,
) -> bytes:
    """A SOME/IP message; `length` overrides the true one."""
    size = len(payload) + 8 if length is None else length
    return _HEADER.pack(service, method, size, client, session, protocol, major, kind, 0) + payload


def segment(
    service: int, method: int, kind: int, offset: int, payload: bytes, *, more: bool, session: int
) -> bytes:
    """A segment of SOME/IP-TP."""
    return frame(service, method, kind | TP, struct.pack(">I", offset | more) + payload, session=session)


@contextmanager
def udp(host: str, port: int = 0) -> Iterator[socket.socket]:
    """A UDP socket at an attacker's address that never blocks."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind((host, port))
        opened.setblocking(False)
        yield opened


def send(opened: socket.socket, datagram: bytes, to: Address) -> None:
    """Send a datagram, or drop it."""
    try:
        opened.sendto(datagram, to)
    except OSError:  # no room, or an ICMP error of an earlier datagram
        return


def received(opened: socket.socket) -> Iterator[bytes]:
    """The datagrams that have arrived."""
    while True:
        try:
            yield opened.recv(65_535)
        except OSError:
            return


# --- service discovery ------------------------------------------------------------------------------------------------

FIND, OFFER, SUBSCRIBE, ACK = 0x00, 0x01, 0x06, 0x07


def sd_entry(
    kind: int, service: int, ttl: int, last: int = 0, *, instance: int = 1, major: int = 1, options: int = 1
) -> bytes:
    """An entry with the first `options` options; `last` is the minor version, or counter and event group."""
    return struct.pack(">BBBBHHII", kind, 0, 0, options << 4, service, instance, major << 24 | ttl, last)


def endpoint_option(address: Address) -> bytes:
    """An IPv4 endpoint over UDP."""
    return struct.pack(">HBB4sBBH", 9, 0x04, 0, socket.inet_aton(address[0]), 0, 17, address[1])


def sd_message(entries: bytes, options: bytes = b"", *, session: int = 1, reboot: bool = True) -> bytes:
    flags = 0xC000_0000 if reboot else 0x4000_0000
    payload = struct.pack(">II", flags, len(entries)) + entries + struct.pack(">I", len(options)) + options
    return frame(0xFFFF, 0x8100, NOTIFICATION, payload, session=session)
