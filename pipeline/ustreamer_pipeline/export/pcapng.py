# SPDX-License-Identifier: Apache-2.0
"""Messages as SOME/IP events in a pcapng file, for Wireshark and tshark.

The SOME/IP header is that of the event that has the topic's UUri: service, event, interface version. The IP and UDP
headers are not recorded: addresses are of the range for documentation. An interface of the file is a gateway.
"""

import struct
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Final

from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.export.messages import SampledMessage

PORT: Final = 30509
"""Source port. tshark: `-d udp.port==30509,someip`."""
_SENDER: Final = bytes((192, 0, 2, 1))
_GROUP: Final = bytes((233, 252, 0, 1))  # MCAST-TEST-NET
_LINKTYPE_IPV4: Final = 228
_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_NAME, _COMMENT, _END = 2, 1, 0
_NOTIFICATION: Final = 2
_MAX_PAYLOAD: Final = 65_535 - 20 - 8 - 16
"""Bytes of payload in one IP packet; a longer one is cut."""


def write_pcapng(messages: Iterator[SampledMessage], path: Path) -> int:
    """Times have microseconds. The comment of a packet is the id of the message."""
    count = 0
    with path.open("wb") as file:
        file.write(_block(_SECTION, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)))
        interfaces: dict[str, int] = {}
        for message in messages:
            if message.gateway not in interfaces:
                interfaces[message.gateway] = len(interfaces)
                options = _options((_NAME, message.gateway.encode()))
                file.write(_block(_INTERFACE, struct.pack("<HHI", _LINKTYPE_IPV4, 0, 0) + options))
            whole = min(message.size, _MAX_PAYLOAD)
            packet = someip_packet(UUri.parse(message.topic), message.payload[:whole], whole)
            head = struct.pack(
                "<IIIII",
                interfaces[message.gateway],
                message.time_us >> 32,
                message.time_us & 0xFFFF_FFFF,
                len(packet),
                len(packet) + whole - len(message.payload[:whole]),
            )
            options = _options((_COMMENT, message.id.encode()))
            file.write(_block(_PACKET, head + _padded(packet) + options))
            count += 1
    return count


def someip_packet(topic: UUri, payload: bytes, size: int) -> bytes:
    """An IPv4 packet with the SOME/IP event of a topic. `size` is that of the payload before it was cut."""
    event = struct.pack(
        "!HHIHHBBBB",
        topic.ue_type,
        topic.resource_id,
        8 + size,
        0,  # client
        0,  # session: not in use
        1,
        topic.ue_version_major,
        _NOTIFICATION,
        0,
    )
    udp = struct.pack("!HHHH", PORT, PORT, 8 + len(event) + size, 0)
    length = 20 + len(udp) + len(event) + size
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, 1, 17, 0, _SENDER, _GROUP)
    checksum = struct.pack("!H", _checksum(head))
    return head[:10] + checksum + head[12:] + udp + event + payload


def _checksum(head: bytes) -> int:
    total: int = sum(struct.unpack("!10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def _block(kind: int, body: bytes) -> bytes:
    length = 12 + len(body)
    return struct.pack("<II", kind, length) + body + struct.pack("<I", length)


def _options(*options: tuple[int, bytes]) -> bytes:
    each = (
        struct.pack("<HH", code, len(text)) + _padded(text) for code, text in chain(options, [(_END, b"")])
    )
    return b"".join(each)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
