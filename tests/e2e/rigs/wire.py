# SPDX-License-Identifier: Apache-2.0
"""uProtocol and SOME/IP from an independent implementation: handwritten, from the specifications alone.

This module uses no code of the streamer. So the tests measure the streamer against the wire formats and not against
its own codecs. Numbers are from the specifications: up-spec (uuri, uuid, uattributes, up-l1/zenoh,
up-l3/usubscription/v3) and the AUTOSAR SOME/IP protocol specification.
"""

import random
import struct
import time
from typing import Final, NamedTuple, Self

# UMessageType
PUBLISH, REQUEST, RESPONSE, NOTIFICATION = 1, 2, 3, 4
# UPriority
CS0, CS1, CS2, CS3, CS4, CS5, CS6 = range(1, 8)
# UPayloadFormat
WRAPPED_IN_ANY, PROTOBUF = 1, 2
# UCode
OK, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 2, 3, 4, 5
PERMISSION_DENIED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS = 7, 9, 12, 13, 14, 15
# SubscriptionStatus.State
UNSUBSCRIBED: Final = 0
SUBSCRIBED: Final = 2

# --- protobuf -----------------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: float | str | bytes | None) -> bytes:
    """One field: an int as varint, a float as double, text and bytes with their length; nothing for None."""
    if value is None:
        return b""
    if isinstance(value, int):  # before float, which to a type checker an int is as well
        return varint(number << 3) + varint(value)
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def fixed64(number: int, value: int) -> bytes:
    return varint(number << 3 | 1) + struct.pack("<Q", value)


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a message by number, in order; ValueError if `data` is not a message."""
    found: dict[int, list[int | bytes]] = {}
    at = 0
    while at < len(data):
        tag, at = _read_varint(data, at)
        match tag & 7:
            case 0:
                value, at = _read_varint(data, at)
                found.setdefault(tag >> 3, []).append(value)
                continue
            case 1:
                size = 8
            case 2:
                size, at = _read_varint(data, at)
            case 5:
                size = 4
            case other:
                raise ValueError(f"wire type {other} at {at}")
        chunk = data[at : at + size]
        if len(chunk) != size:
            raise ValueError(f"field {tag >> 3}: {size} bytes expected, {len(chunk)} there")
        found.setdefault(tag >> 3, []).append(chunk if tag & 7 == 2 else int.from_bytes(chunk, "little"))
        at += size
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"varint at {at} does not end")
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 0x80:
            return number, at


def message_in(found: dict[int, list[int | bytes]], number: int) -> bytes | None:
    """The last field of that number as text, bytes or a message; None if it is absent."""
    value = found.get(number, [None])[-1]
    if isinstance(value, int):
        raise ValueError(f"field {number} is a number")  # noqa: TRY004 - malformed data, not a wrong argument
    return value


def number_in(found: dict[int, list[int | bytes]], number: int) -> int | None:
    """The last field of that number as a number; None if it is absent."""
    value = found.get(number, [None])[-1]
    if isinstance(value, bytes):
        raise ValueError(f"field {number} is no number")  # noqa: TRY004 - malformed data, not a wrong argument
    return value


# --- uProtocol ----------------------------------------------------------------------------------------------


class Id(NamedTuple):
    """A UUID, as uProtocol has it."""

    msb: int
    lsb: int

    def encode(self) -> bytes:
        return fixed64(1, self.msb) + fixed64(2, self.lsb)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        return cls(number_in(found, 1) or 0, number_in(found, 2) or 0)

    @property
    def is_version_7(self) -> bool:
        return self.msb >> 12 & 0xF == 7 and self.lsb >> 62 == 0b10

    @property
    def time_ms(self) -> int:
        return self.msb >> 16


def new_id() -> Id:
    """A UUID version 7 of this moment."""
    now_ms = time.time_ns() // 1_000_000
    return Id(now_ms << 16 | 7 << 12 | random.getrandbits(12), 0b10 << 62 | random.getrandbits(62))


class Uri(NamedTuple):
    """A UUri; `ue_id` is instance << 16 | type."""

    authority: str
    ue_id: int
    version: int
    resource: int = 0

    def at(self, resource: int) -> Self:
        return self._replace(resource=resource)

    def encode(self) -> bytes:
        numbers = (self.ue_id, self.version, self.resource)
        return field(1, self.authority or None) + b"".join(
            field(number, value or None) for number, value in enumerate(numbers, 2)
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        authority = message_in(found, 1) or b""
        ue_id, version, resource = (number_in(found, number) or 0 for number in (2, 3, 4))
        return cls(authority.decode(), ue_id, version, resource)

    @property
    def chunks(self) -> str:
        """Its five chunks in a Zenoh key: the type before the instance, upper-case hex."""
        return f"{self.authority}/{self.ue_id & 0xFFFF:X}/{self.ue_id >> 16:X}/{self.version:X}/{self.resource:X}"

    def __str__(self) -> str:
        return f"//{self.authority}/{self.ue_id:X}/{self.version:X}/{self.resource:X}"


NO_SINK: Final = "{}/{}/{}/{}/{}"


def key(source: Uri, sink: Uri | None = None) -> str:
    """The Zenoh key of a message: 11 chunks."""
    return f"up/{source.chunks}/{sink.chunks if sink else NO_SINK}"


class Attributes(NamedTuple):
    """UAttributes, in the order of their field numbers."""

    id: Id
    type: int
    source: Uri
    sink: Uri | None = None
    priority: int = 0
    ttl: int | None = None
    permission_level: int | None = None
    commstatus: int | None = None
    reqid: Id | None = None
    token: str | None = None
    traceparent: str | None = None
    payload_format: int = 0

    def encode(self) -> bytes:
        return b"".join(
            (
                field(1, self.id.encode()),
                field(2, self.type or None),
                field(3, self.source.encode()),
                field(4, self.sink.encode() if self.sink else None),
                field(5, self.priority or None),
                field(6, self.ttl),
                field(7, self.permission_level),
                field(8, self.commstatus),
                field(9, self.reqid.encode() if self.reqid else None),
                field(10, self.token),
                field(11, self.traceparent),
                field(12, self.payload_format or None),
            )
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        sink, reqid, token, trace = (message_in(found, number) for number in (4, 9, 10, 11))
        return cls(
            id=Id.decode(message_in(found, 1) or b""),
            type=number_in(found, 2) or 0,
            source=Uri.decode(message_in(found, 3) or b""),
            sink=None if sink is None else Uri.decode(sink),
            priority=number_in(found, 5) or 0,
            ttl=number_in(found, 6),
            permission_level=number_in(found, 7),
            commstatus=number_in(found, 8),
            reqid=None if reqid is None else Id.decode(reqid),
            token=None if token is None else token.decode(),
            traceparent=None if trace is None else trace.decode(),
            payload_format=number_in(found, 12) or 0,
        )

    @property
    def attachment(self) -> bytes:
        """The Zenoh attachment: the major version of uProtocol, then the attributes."""
        return b"\x01" + self.encode()

    @property
    def key(self) -> str:
        return key(self.source, self.sink)


class Status(NamedTuple):
    """UStatus: the content of an error Response."""

    code: int
    message: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        return cls(number_in(found, 1) or 0, (message_in(found, 2) or b"").decode())


# --- uSubscription version 3 --------------------------------------------------------------------------------

SUBSCRIBE, UNSUBSCRIBE, FETCH_SUBSCRIPTIONS, FETCH_SUBSCRIBERS = 1, 2, 3, 8


def subscription_request(
    topic: Uri | bytes,
    *,
    max_frequency: float | None = None,
    sample_period_ms: int | None = None,
    expire_ms: int | None = None,
) -> bytes:
    """SubscriptionRequest: the rate as a double in Hz or as uint32 in ms, both in field 3 of the attributes."""
    expire = None if expire_ms is None else field(1, expire_ms // 1_000) + field(2, expire_ms % 1_000 * 10**6)
    attributes = field(1, expire) + field(3, max_frequency) + field(3, sample_period_ms)
    return topic_request(topic) + field(3, attributes or None)


def topic_request(topic: Uri | bytes) -> bytes:
    """UnsubscribeRequest, FetchSubscribersRequest and FetchSubscriptionsRequest by topic: all have it in field 1."""
    return field(1, topic if isinstance(topic, bytes) else topic.encode())


def subscriber_request(subscriber: Uri | bytes) -> bytes:
    """FetchSubscriptionsRequest by subscriber."""
    return field(2, subscriber_info(subscriber))


def subscriber_info(subscriber: Uri | bytes) -> bytes:
    return field(1, subscriber if isinstance(subscriber, bytes) else subscriber.encode())


class SubscriptionResponse(NamedTuple):
    """SubscriptionResponse."""

    state: int
    topic: Uri

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        status = fields(message_in(found, 1) or b"")
        return cls(number_in(status, 1) or 0, Uri.decode(message_in(found, 3) or b""))


class SubscriptionEntry(NamedTuple):
    """One entry of FetchSubscriptionsResponse; `attributes` are raw, None where the field is missing."""

    topic: Uri
    subscriber: Uri
    state: int
    attributes: bytes | None

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = fields(data)
        subscriber = fields(message_in(found, 2) or b"")
        status = fields(message_in(found, 3) or b"")
        return cls(
            Uri.decode(message_in(found, 1) or b""),
            Uri.decode(message_in(subscriber, 1) or b""),
            number_in(status, 1) or 0,
            message_in(found, 4),
        )


def subscriptions_in(payload: bytes) -> list[SubscriptionEntry]:
    """FetchSubscriptionsResponse."""
    return [SubscriptionEntry.decode(each) for each in fields(payload).get(1, []) if isinstance(each, bytes)]


def subscribers_in(payload: bytes) -> list[Uri]:
    """FetchSubscribersResponse."""
    infos = [fields(each) for each in fields(payload).get(1, []) if isinstance(each, bytes)]
    return [Uri.decode(message_in(info, 1) or b"") for info in infos]


def pack_any(name: str, value: bytes) -> bytes:
    """google.protobuf.Any around a message of uSubscription version 3."""
    return field(1, f"type.googleapis.com/uprotocol.core.usubscription.v3.{name}") + field(2, value or None)


def unpack_any(name: str, data: bytes) -> bytes:
    """The message in an Any; ValueError if it has another type."""
    found = fields(data)
    url = (message_in(found, 1) or b"").decode()
    if url.rpartition("/")[2] != f"uprotocol.core.usubscription.v3.{name}":
        raise ValueError(f"Any of {url}")
    return message_in(found, 2) or b""


# --- SOME/IP ------------------------------------------------------------------------------------------------

E_OK, E_NOT_OK, E_UNKNOWN_SERVICE, E_UNKNOWN_METHOD, E_NOT_READY, E_NOT_REACHABLE = range(6)
E_TIMEOUT, E_WRONG_PROTOCOL_VERSION, E_WRONG_INTERFACE_VERSION, E_MALFORMED_MESSAGE = range(6, 10)
E_WRONG_MESSAGE_TYPE = 10

SOMEIP_REQUEST, SOMEIP_REQUEST_NO_RETURN, SOMEIP_NOTIFICATION = 0x00, 0x01, 0x02
SOMEIP_RESPONSE, SOMEIP_ERROR = 0x80, 0x81


def someip(
    service: int,
    method: int,
    message_type: int,
    payload: bytes = b"",
    *,
    client: int = 0,
    session: int = 1,
    interface_version: int = 1,
    return_code: int = E_OK,
    length: int | None = None,
    protocol_version: int = 1,
) -> bytes:
    """A SOME/IP message; `length` and `protocol_version` can be wrong values."""
    size = 8 + len(payload) if length is None else length
    header = struct.pack(
        ">HHIHHBBBB",
        service,
        method,
        size,
        client,
        session,
        protocol_version,
        interface_version,
        message_type,
        return_code,
    )
    return header + payload


def event(service: int, number: int, payload: bytes = b"", *, session: int = 1) -> bytes:
    """A NOTIFICATION of version 1 of a service."""
    return someip(service, number, SOMEIP_NOTIFICATION, payload, session=session)
