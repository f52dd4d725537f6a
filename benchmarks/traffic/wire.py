# SPDX-License-Identifier: Apache-2.0
"""Messages of generators and sinks, encoded by hand: independent of the code of the streamer.

    payload    zeros up to the size, then number (u64) and time stamp (monotonic ns, u64), big-endian
    SOME/IP    16 bytes of header, payload
    Zenoh      key of 11 chunks; attachment 0x01 + UAttributes in protobuf, the id first; payload

Number and time stamp are at the end, so that a sink finds them with and without a header.
"""

from struct import Struct
from typing import Final

import msgspec

TAIL: Final = Struct(">QQ")
SOMEIP_HEADER: Final = Struct(">HHIHHBBBB")
SESSION_OFFSET: Final = 10

_NOTIFICATION: Final = 0x02
_PUBLISH, _REQUEST, _RESPONSE = 1, 2, 3
CS1, _CS4 = 2, 5
_PROTOBUF: Final = 2
_ID: Final = Struct("<4sQcQ")
_DOUBLE: Final = Struct("<d")
_ID_HEAD: Final = b"\x01\x0a\x12\x09"  # 0x01 is uProtocol's major version, the rest opens field 1
_UUID_V7: Final = 0x7000
_VARIANT: Final = 0b10 << 62


class Address(msgspec.Struct, frozen=True):
    """A UUri of instance 0: authority, service, version, resource."""

    authority: str
    service: int
    version: int
    resource: int

    @property
    def chunks(self) -> str:
        """Its half of a Zenoh key."""
        return f"{self.authority}/{self.service:X}/0/{self.version:X}/{self.resource:X}"

    def to_pb(self) -> bytes:
        """Protobuf encoding; proto3 omits zero values."""
        numbers = ((0x10, self.service), (0x18, self.version), (0x20, self.resource))
        name = self.authority.encode()
        return b"\x0a" + varint(len(name)) + name + b"".join(bytes([t]) + varint(n) for t, n in numbers if n)


STREAMER: Final = "hpc.vin1"
ECU: Final = "chassis"
CLOUD: Final = "cloud"
SERVICE: Final = 0x1234
OFFERED: Final = 0x4321
MAJOR: Final = 1
EVENT: Final = 0x8001

ECU_TOPIC: Final = Address(ECU, SERVICE, MAJOR, EVENT)
"""Topic of the SOME/IP generator, as a Zenoh application addresses it."""
APP_TOPIC: Final = Address(STREAMER, OFFERED, MAJOR, EVENT)
"""Topic of the Zenoh generator; the streamer offers it on SOME/IP."""
SUBSCRIBER: Final = Address(STREAMER, 0x10A1, 1, 0)
REMOTE_SUBSCRIBER: Final = Address(CLOUD, 0x10A1, 1, 0)
SUBSCRIBE: Final = Address(STREAMER, 0, 3, 1)
UNSUBSCRIBE: Final = Address(STREAMER, 0, 3, 2)
CHANGES: Final = Address(STREAMER, 0, 3, 0x8000)


def varint(number: int) -> bytes:
    """A protobuf varint of a number that is not negative."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def _number(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def payload(size: int, number: int, stamp_ns: int) -> bytes:
    """`size` bytes that end in number and stamp."""
    return bytes(size - TAIL.size) + TAIL.pack(number, stamp_ns)


def someip_request(service: int, method: int, client: int, session: int, body: bytes) -> bytes:
    """A SOME/IP request."""
    return SOMEIP_HEADER.pack(service, method, len(body) + 8, client, session, 1, MAJOR, 0, 0) + body


def someip_event(service: int, event: int, session: int, body: bytes) -> bytes:
    """A SOME/IP notification."""
    return SOMEIP_HEADER.pack(service, event, len(body) + 8, 0, session, 1, MAJOR, _NOTIFICATION, 0) + body


def session(number: int) -> int:
    """The session id of the message with this number: 1..0xFFFF, over and over."""
    return number % 0xFFFF + 1


def publish_key(topic: Address) -> str:
    return f"up/{topic.chunks}/{{}}/{{}}/{{}}/{{}}/{{}}"


def unicast_key(source: Address, sink: Address) -> str:
    return f"up/{source.chunks}/{sink.chunks}"


def attachment_head(wall_ms: int, number: int) -> bytes:
    """The part of an attachment that differs from message to message: a UUIDv7 with the number as its random part."""
    return _ID.pack(_ID_HEAD, wall_ms << 16 | _UUID_V7, b"\x11", _VARIANT | number)


def publish_tail(topic: Address, priority: int = CS1) -> bytes:
    """The rest of the attachment of a publication. `priority` is a number of UPriority."""
    return _number(2, _PUBLISH) + _field(3, topic.to_pb()) + _number(5, priority)


def request_tail(source: Address, method: Address, ttl_ms: int) -> bytes:
    """The rest of the attachment of a request of priority CS4 with a protobuf payload."""
    ends = _field(3, source.to_pb()) + _field(4, method.to_pb())
    return _number(2, _REQUEST) + ends + _number(5, _CS4) + _number(6, ttl_ms) + _number(12, _PROTOBUF)


def response_tail(source: Address, sink: Address, ttl_ms: int) -> bytes:
    """The rest of the attachment of a response of priority CS4, without the reqid."""
    ends = _field(3, source.to_pb()) + _field(4, sink.to_pb())
    return _number(2, _RESPONSE) + ends + _number(5, _CS4) + _number(6, ttl_ms)


def reqid(request: bytes) -> bytes:
    """The reqid field for the end of a response attachment: the id of the attachment of the request."""
    return _field(9, request[3:21])


def reqid_lsb(response: bytes) -> bytes:
    """The second half of the reqid in the attachment of a response."""
    end = response.index(b"\x4a\x12\x09") + 20
    return response[end - 8 : end]


def subscription_request(topic: Address, max_hz: float | None = None) -> bytes:
    """A SubscriptionRequest of uSubscription v3, with `max_frequency` if given. Also an UnsubscribeRequest."""
    attributes = b"" if max_hz is None else _field(3, b"\x19" + _DOUBLE.pack(max_hz))
    return _field(1, topic.to_pb()) + attributes


def is_subscribed(response: bytes) -> bool:
    """Whether a SubscriptionResponse opens with status { state: SUBSCRIBED }."""
    return response[:1] == b"\x0a" and response[2:4] == b"\x08\x02"
