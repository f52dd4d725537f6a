# SPDX-License-Identifier: Apache-2.0
"""Borders of SOME/IP: datagrams, service discovery, segments and TCP streams."""

from collections.abc import Mapping
from ipaddress import ip_network
from typing import Final

from tests.fuzz.border import Border, join_pieces, pure, split_pieces
from ustreamer.transports.someip.protocol.codec import (
    MalformedMessage,
    MessageType,
    SomeIpMessage,
    encode,
    split,
)
from ustreamer.transports.someip.protocol.stream import CLIENT_COOKIE, StreamReader
from ustreamer.transports.someip.protocol.tp import Reassembly, TpRefused
from ustreamer.transports.someip.protocol.tp_config import TpLimits
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.transports.someip.sd.codec import (
    EntryType,
    EventgroupEntry,
    MalformedSdMessage,
    RefusedEntry,
    SdMessage,
    ServiceEntry,
    decode_sd_message,
    encode_sd_message,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER, SdLimits
from ustreamer.transports.someip.sd.discovery import Discovery as ServiceDiscovery
from ustreamer.transports.someip.sd.options import (
    Configuration,
    Endpoint,
    L4Protocol,
    LoadBalancing,
    UnknownOption,
)
from ustreamer.transports.someip.sd.settings import OfferedService, SdSettings, ServiceKey, WantedService

PEER: Final = ("10.0.0.2", 30490)
MAX_STREAM_MESSAGE: Final = 2_048

EVENT: Final = SomeIpMessage(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, 0, bytes(range(40)))
_UDP: Final = Endpoint("10.0.0.2", 30509)
DISCOVERY: Final = encode_sd_message(
    SdMessage(
        (
            ServiceEntry(
                EntryType.OFFER, 0x1234, 1, 1, 0, 3, (_UDP, Endpoint("10.0.0.2", 5, int(L4Protocol.TCP)))
            ),
            EventgroupEntry(EntryType.SUBSCRIBE, 0x4321, 1, 1, 7, TTL_FOREVER, options=(_UDP,)),
            EventgroupEntry(
                EntryType.ACK, 0x1234, 1, 1, 7, 3, options=(LoadBalancing(1, 2), UnknownOption(9, b"x"))
            ),
            ServiceEntry(EntryType.FIND, 0x4321, 0xFFFF, 0xFF, 0, 3, (Configuration((b"a=b", b"c")),)),
        ),
        reboot=True,
    ),
    1,
)
SEGMENTS: Final = list(
    split_into_segments(SomeIpMessage(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, 0, bytes(200)), 48)
)


def take_datagram(data: bytes) -> None:
    messages, refused = split(data)
    assert messages or refused
    assert all(type(each) is MalformedMessage for each in refused)


def take_discovery(data: bytes) -> None:
    for message in split(data)[0]:
        try:
            _, refused = decode_sd_message(message)
        except MalformedSdMessage:
            continue
        assert all(type(each) is RefusedEntry for each in refused)


def new_discovery() -> ServiceDiscovery:
    """A host that offers a service, wants another, and has a link since time 0."""
    settings = SdSettings(
        own=("10.0.0.1", 30490),
        networks=(ip_network("10.0.0.0/24"),),
        events=("10.0.0.1", 30500),
        limits=SdLimits(peer_entries_per_s=1_000_000_000),
    )
    discovery = ServiceDiscovery(settings, lambda: 0.5)
    service = OfferedService(ServiceKey(0x4321, 1, 1), udp=("10.0.0.1", 30501), eventgroups=((7, None),))
    discovery.offer_service(service, 0)
    discovery.subscribe(WantedService(0x1234), 7, 0)
    discovery.link_up(0)
    return discovery


def take_discovery_steps(data: bytes) -> None:
    """Pieces are datagrams. Bit 0 of the kind is multicast; the rest are units of 10 ms before it."""
    discovery, now_ns = new_discovery(), 0
    for kind, piece in split_pieces(data):
        now_ns += (kind >> 1) * 10_000_000
        discovery.on_timer(now_ns)
        for message in split(piece)[0]:
            discovery.feed(message, PEER, multicast=bool(kind & 1), now_ns=now_ns)


def take_segments(data: bytes) -> None:
    """Pieces are datagrams, and the kind is the number of units of 10 ms before it."""
    parts, now_ns = Reassembly(TpLimits()), 0
    for kind, piece in split_pieces(data):
        now_ns += kind * 10_000_000
        for message in split(piece)[0]:
            if message.is_tp:
                outcome = parts.feed(message, PEER, now_ns)
                assert outcome is None or type(outcome) in {SomeIpMessage, TpRefused}
        parts.expire(now_ns)


def take_stream(data: bytes) -> None:
    """Pieces are what one read from the socket gives; bit 0 of the first kind is the setting of magic cookies."""
    reader: StreamReader | None = None
    for kind, piece in split_pieces(data):
        if reader is None:
            reader = StreamReader(cookies=bool(kind & 1), max_message=MAX_STREAM_MESSAGE)
        fed = reader.feed(piece)
        assert all(type(each) is MalformedMessage for each in fed.refused)
        assert reader.pending_bytes < MAX_STREAM_MESSAGE
        if reader.broken:
            return


_EVENT_BYTES: Final = encode(EVENT)
BORDERS: Final[Mapping[str, Border]] = {
    "someip-datagram": Border(pure(take_datagram), [_EVENT_BYTES, _EVENT_BYTES * 3, DISCOVERY]),
    "someip-discovery": Border(pure(take_discovery), [DISCOVERY]),
    "someip-discovery-steps": Border(
        pure(take_discovery_steps), [join_pieces(DISCOVERY), join_pieces(DISCOVERY, DISCOVERY, kind=3)]
    ),
    "someip-segments": Border(pure(take_segments), [join_pieces(*SEGMENTS), join_pieces(*SEGMENTS[::-1])]),
    "someip-stream": Border(
        pure(take_stream),
        [
            join_pieces(_EVENT_BYTES),
            join_pieces(_EVENT_BYTES[:9], _EVENT_BYTES[9:]),
            join_pieces(CLIENT_COOKIE + _EVENT_BYTES, kind=1),
        ],
    ),
}
