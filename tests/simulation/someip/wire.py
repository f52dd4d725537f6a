# SPDX-License-Identifier: Apache-2.0
"""SOME/IP and service discovery in bytes, for the simulated ECUs and the oracle. Independent of the product's codecs.

In: bytes, or values. Out: values, or bytes. All numbers are those of the standard; addresses are IPv4.
"""

import socket
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

REQUEST, EVENT, RESPONSE, ERROR = 0x00, 0x02, 0x80, 0x81
FIND, OFFER, SUBSCRIBE, ACK = 0x00, 0x01, 0x06, 0x07
UDP, TCP = 17, 6
SD_SERVICE, SD_METHOD = 0xFFFF, 0x8100
_HEADER: Final = struct.Struct(">HHIHHBBBB")
_ENTRY: Final = struct.Struct(">BBBBHHII")
_OPTION: Final = struct.Struct(">HBB4sxBH")
_MARK: Final = b"SIM\0"
_IDENTITY: Final = struct.Struct(">4sII")
MIN_PAYLOAD: Final = _IDENTITY.size


class WireHeader(NamedTuple):
    """A SOME/IP message. `kind` is the message type."""

    service: int
    method: int
    client: int
    session: int
    kind: int
    code: int
    payload: bytes


class WireEntry(NamedTuple):
    """An SD entry. `last` is the minor version, or the event group. `endpoints` are protocol, host and port."""

    kind: int
    service: int
    ttl_s: int
    last: int = 0
    endpoints: tuple[tuple[int, str, int], ...] = ()


def encode_message(
    service: int, method: int, payload: bytes, kind: int, client: int = 0, session: int = 1, code: int = 0
) -> bytes:
    return _HEADER.pack(service, method, len(payload) + 8, client, session, 1, 1, kind, code) + payload


def decode_message(data: bytes) -> WireHeader:
    service, method, length, client, session, _, _, kind, code = _HEADER.unpack_from(data)
    return WireHeader(service, method, client, session, kind, code, data[16 : 8 + length])


def encode_sd(entries: Sequence[WireEntry], session: int, *, reboot: bool) -> bytes:
    """A message of service discovery with instance 1 and major version 1 in each entry."""
    packed, options, count = b"", b"", 0
    for each in entries:
        last = each.last & 0xFFFF_FFFF
        number = len(each.endpoints)
        runs = (count, 0, number << 4) if number else (0, 0, 0)
        packed += _ENTRY.pack(each.kind, *runs, each.service, 1, 1 << 24 | each.ttl_s, last)
        for protocol, host, port in each.endpoints:
            options += _OPTION.pack(9, 4, 0, socket.inet_aton(host), protocol, port)
            count += 1
    flags = 0x40 | 0x80 * reboot
    payload = struct.pack(">I", flags << 24)
    payload += struct.pack(">I", len(packed)) + packed + struct.pack(">I", len(options)) + options
    return encode_message(SD_SERVICE, SD_METHOD, payload, EVENT, session=session)


def decode_sd(data: bytes) -> list[WireEntry]:
    """The entries of a message of service discovery. Options that are no IPv4 endpoint are left out."""
    payload = decode_message(data).payload
    (size,) = struct.unpack_from(">I", payload, 4)
    options = _options(payload[12 + size :])
    found = []
    for at in range(8, 8 + size, _ENTRY.size):
        kind, first, second, counts, service, _, version, last = _ENTRY.unpack_from(payload, at)
        indexes = (*range(first, first + (counts >> 4)), *range(second, second + (counts & 0xF)))
        named = (options[each] for each in indexes if each < len(options))
        endpoints = tuple(each for each in named if each is not None)
        found.append(WireEntry(kind, service, version & 0xFF_FFFF, last & 0xFFFF, endpoints))
    return found


def _options(data: bytes) -> list[tuple[int, str, int] | None]:
    found: list[tuple[int, str, int] | None] = []
    while data:
        size = 3 + int.from_bytes(data[:2])
        if data[2] == 4:
            _, _, _, host, protocol, port = _OPTION.unpack(data[:size])
            found.append((protocol, socket.inet_ntoa(host), port))
        else:
            found.append(None)
        data = data[size:]
    return found


def identify(flow: int, number: int, size: int) -> bytes:
    """A payload of at least `MIN_PAYLOAD` bytes that names a message: its flow, and its number in the flow."""
    return _IDENTITY.pack(_MARK, flow, number).ljust(size, b".")


def identity_in(payload: bytes) -> tuple[int, int] | None:
    """The flow and the number of a payload of `identify`; None for any other one."""
    if len(payload) < _IDENTITY.size or payload[:4] != _MARK:
        return None
    _, flow, number = _IDENTITY.unpack_from(payload)
    return flow, number
