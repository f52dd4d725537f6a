# SPDX-License-Identifier: Apache-2.0
"""The options of service discovery entries: bytes in, values out.

    u16 length (of the bytes after the type) | u8 type | u8 reserved, bit 7: may be discarded | body

An option with contradicting content (an endpoint of 3 bytes, a unicast address in a multicast endpoint) becomes an
`InvalidOption`: only the entries that refer to it are refused. An option whose length exceeds the array is an error of
the whole message, because the start of the next option is unknown.
"""

import ipaddress
from collections.abc import Iterable, Mapping
from enum import IntEnum
from struct import Struct as Layout
from typing import Final

from msgspec import Struct

from ustreamer.transports.someip.protocol.codec import UnencodableMessage

DISCARDABLE: Final = 0x80
MAX_PORT: Final = 0xFFFF
MAX_BODY: Final = 0xFFFE
"""Maximum bytes of an option after its reserved byte."""

_HEAD: Final = Layout(">HBB")
_BODY_V4: Final = Layout(">4sxBH")
_BODY_V6: Final = Layout(">16sxBH")
_TWO_U16: Final = Layout(">HH")
_TWO_U32: Final = Layout(">II")


class OptionType(IntEnum):
    """The decoded types. vsomeip also has 0x20 (selective), which is an `UnknownOption` here."""

    CONFIGURATION = 0x01
    LOAD_BALANCING = 0x02
    PROTECTION = 0x03  # a vsomeip extension; not in the standard
    IPV4_ENDPOINT = 0x04
    IPV6_ENDPOINT = 0x06
    IPV4_MULTICAST = 0x14
    IPV6_MULTICAST = 0x16
    IPV4_SD_ENDPOINT = 0x24
    IPV6_SD_ENDPOINT = 0x26


# [impl->SD-127, SD-723, SD-1085, SD-809, SD-810]
class EndpointRole(IntEnum):
    """The purpose of an endpoint: the type byte of its IPv4 option. IPv6 adds 2."""

    SERVICE = 0x04
    MULTICAST = 0x14
    DISCOVERY = 0x24


class L4Protocol(IntEnum):
    TCP = 6
    UDP = 17


# [impl->SD-128, SD-724, SD-1086]
class Endpoint(Struct, frozen=True):
    """An address, a port and a protocol. `host` is an IPv4 or IPv6 address in canonical form."""

    host: str
    port: int
    protocol: int = int(L4Protocol.UDP)
    role: int = int(EndpointRole.SERVICE)

    @property
    def address(self) -> tuple[str, int]:
        return (self.host, self.port)


# [impl->SD-159, SD-160, SD-217, SD-684, SD-809, SD-857]
class Configuration(Struct, frozen=True):
    """Items of the form `key`, `key=` or `key=value`. Repeated keys are allowed; the order is kept."""

    items: tuple[bytes, ...]
    discardable: bool = False


class LoadBalancing(Struct, frozen=True):
    """Load balancing: the lowest `priority` is selected, and `weight` decides among equals."""

    priority: int
    weight: int
    discardable: bool = False


class Protection(Struct, frozen=True):
    """vsomeip's alive counter and CRC. Kept but not verified: the CRC algorithm is not published."""

    counter: int
    crc: int
    discardable: bool = False


# [impl->SD-1142]
class UnknownOption(Struct, frozen=True):
    """An option of unknown type. The option is ignored; its entry is processed.

    The standard contradicts itself for an option that is not `discardable`: ignore the option, or refuse the entry. A
    refusal
    would lose every Offer with a newer option, so the flag is only kept.
    """

    type: int
    body: bytes
    discardable: bool = False


class InvalidOption(Struct, frozen=True):
    """An option of a known type with contradicting content; `problem` is the description."""

    type: int
    problem: str


Option = Endpoint | Configuration | LoadBalancing | Protection | UnknownOption | InvalidOption


class OptionOverrun(ValueError):
    """The option at `offset` of the array has a `length` of 0 or beyond the array's `size`."""

    def __init__(self, offset: int, length: int, size: int) -> None:
        super().__init__(offset, length, size)
        self.offset = offset
        self.length = length
        self.size = size

    def __str__(self) -> str:
        room = self.size - self.offset - 3
        return f"option at offset {self.offset}: length {self.length}, expected 1 to {max(room, 0)}"


# --- reading ----------------------------------------------------------------------------------------------------------


# [impl->SD-133]
def read_options(array: bytes) -> list[Option]:
    """Decode all options of an options array, in order. Raises OptionOverrun."""
    options: list[Option] = []
    offset, size = 0, len(array)
    while offset < size:
        if size - offset < _HEAD.size:
            raise OptionOverrun(offset, size - offset, size)
        length, type, reserved = _HEAD.unpack_from(array, offset)
        end = offset + 3 + length
        if length == 0 or end > size:
            raise OptionOverrun(offset, length, size)
        options.append(_read(type, bool(reserved & DISCARDABLE), array[offset + 4 : end]))
        offset = end
    return options


def _read(type: int, discardable: bool, body: bytes) -> Option:
    layout = _ENDPOINTS.get(type)
    if layout is not None:
        return _endpoint(type, layout, body)
    if type == OptionType.CONFIGURATION:
        return _configuration(body, discardable)
    if type == OptionType.LOAD_BALANCING:
        if len(body) != _TWO_U16.size:
            return InvalidOption(type, f"{len(body)} bytes, expected 4: priority and weight")
        priority, weight = _TWO_U16.unpack(body)
        return LoadBalancing(priority, weight, discardable)
    if type == OptionType.PROTECTION:
        if len(body) != _TWO_U32.size:
            return InvalidOption(type, f"{len(body)} bytes, expected 8: counter and CRC")
        counter, crc = _TWO_U32.unpack(body)
        return Protection(counter, crc, discardable)
    return UnknownOption(type, body, discardable)


# [impl->SD-129, SD-725, SD-1087]
def _endpoint(type: int, layout: Layout, body: bytes) -> Endpoint | InvalidOption:
    if len(body) != layout.size:
        return InvalidOption(type, f"{len(body)} bytes, expected {layout.size}: address, protocol and port")
    packed, protocol, port = layout.unpack(body)
    role = type & ~2
    ip = ipaddress.ip_address(packed)
    problem = _problem(ip, port, protocol, role)
    return Endpoint(str(ip), port, protocol, role) if problem is None else InvalidOption(type, problem)


# [impl->SD-790]
def _problem(
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int, protocol: int, role: int
) -> str | None:
    if protocol not in _PROTOCOLS:
        return f"protocol {protocol}, expected 6 (TCP) or 17 (UDP)"
    if port == 0:
        return "port 0, expected 1 to 65535"
    if role == EndpointRole.SERVICE:
        if ip.is_multicast or ip.is_unspecified or ip == _BROADCAST:
            return f"address {ip}, expected that of one host"
    elif protocol != L4Protocol.UDP:
        return f"protocol {protocol}, expected 17 (UDP)"
    elif ip.is_multicast != (role == EndpointRole.MULTICAST):
        return f"address {ip}, expected {'a multicast group' if role == EndpointRole.MULTICAST else 'that of one host'}"
    return None


_PROTOCOLS: Final = frozenset(map(int, L4Protocol))
_BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")
_ENDPOINTS: Final[Mapping[int, Layout]] = {
    role | extra: layout for role in EndpointRole for extra, layout in ((0, _BODY_V4), (2, _BODY_V6))
}


# [impl->SD-149, SD-150, SD-151, SD-158, SD-161, SD-201, SD-144, SD-147]
def _configuration(body: bytes, discardable: bool) -> Configuration | InvalidOption:
    items: list[bytes] = []
    offset = 0
    while offset < len(body) and body[offset] != 0:
        end = offset + 1 + body[offset]
        if end > len(body):
            return InvalidOption(
                OptionType.CONFIGURATION, f"an item of {body[offset]} bytes leaves the option"
            )
        item = body[offset + 1 : end]
        if item.startswith(b"="):
            return InvalidOption(OptionType.CONFIGURATION, f"item {item!r} has no key")
        items.append(item)
        offset = end
    if offset != len(body) - 1:  # the terminating 0 is the last byte
        return InvalidOption(OptionType.CONFIGURATION, "expected items and a 0 at the end")
    return Configuration(tuple(items), discardable)


# --- writing ----------------------------------------------------------------------------------------------------------


# [impl->SD-129, SD-199, SD-141, SD-725, SD-733, SD-734, SD-1087, SD-1095, SD-1096]
def write_option(option: Option) -> bytes:
    """Encode an option. Raises UnencodableMessage for a value that does not fit, and for every InvalidOption."""
    if isinstance(option, Endpoint):
        ip = _ip(option.host)
        problem = _problem(ip, _fits("port", option.port, MAX_PORT), option.protocol, option.role)
        if problem is not None:
            raise UnencodableMessage(f"endpoint ({problem})", option.address, MAX_PORT)
        layout, type = (_BODY_V4, option.role) if ip.version == 4 else (_BODY_V6, option.role | 2)
        return _framed(type, False, layout.pack(ip.packed, option.protocol, option.port))
    if isinstance(option, Configuration):
        return _framed(OptionType.CONFIGURATION, option.discardable, _items(option.items))
    if isinstance(option, LoadBalancing):
        priority = _fits("priority", option.priority, 0xFFFF)
        body = _TWO_U16.pack(priority, _fits("weight", option.weight, 0xFFFF))
        return _framed(OptionType.LOAD_BALANCING, option.discardable, body)
    if isinstance(option, Protection):
        counter = _fits("counter", option.counter, 0xFFFF_FFFF)
        body = _TWO_U32.pack(counter, _fits("crc", option.crc, 0xFFFF_FFFF))
        return _framed(OptionType.PROTECTION, option.discardable, body)
    if isinstance(option, UnknownOption):
        return _framed(_fits("type", option.type, 0xFF), option.discardable, option.body)
    raise UnencodableMessage("option", option, 0)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        raise UnencodableMessage("host", host, 0) from None


def _fits(field: str, value: int, limit: int) -> int:
    if not 0 <= value <= limit:
        raise UnencodableMessage(field, value, limit)
    return value


# [impl->SD-149, SD-150, SD-161]
def _items(items: Iterable[bytes]) -> bytes:
    parts = []
    for item in items:
        if not item or item.startswith(b"="):
            raise UnencodableMessage("configuration item", item, 0xFF)
        parts.append(bytes((_fits("length of a configuration item", len(item), 0xFF),)) + item)
    return b"".join(parts) + b"\0"


# [impl->SD-133]
def _framed(type: int, discardable: bool, body: bytes) -> bytes:
    length = _fits("length of an option", len(body), MAX_BODY) + 1
    return _HEAD.pack(length, type, DISCARDABLE if discardable else 0) + body
