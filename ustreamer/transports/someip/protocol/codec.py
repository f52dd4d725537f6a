# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP header: bytes in, values out. No sockets, no clock, no state.

    offset  0        2        4        8       10        12        13         14      15      16
            service  method   length   client  session   protocol  interface  type    return  payload
            u16      u16      u32      u16     u16       version   version            code

All numbers are big-endian. `length` counts from offset 8, so a whole message takes length + 8 bytes. One
datagram may hold several messages, back to back.

Errors, with an example of each:

    ValueError
    ├── MalformedMessage      received bytes that are not SOME/IP; `reason` labels a counter
    │   │                     resume_at is None: the start of the next message is unknown, decoding stops
    │   ├── truncated_header          7 bytes of a port scan
    │   ├── trailing_bytes            a sender pads its datagram to 64 bytes, or its length is too low
    │   ├── protocol_version          2: its header layout is unknown, so its length is not trusted
    │   ├── length_too_small          7: does not even cover client id to return code
    │   ├── length_beyond_datagram    a sender counts the whole message instead of from offset 8
    │   ├── refusal_limit             more messages behind 128 refused ones of a datagram: they are not read
    │   │                     resume_at is an offset: this message is refused, decoding continues behind it
    │   └── unknown_message_type      0x55, with a valid length
    └── UnencodableMessage    an outgoing value does not fit its field: session 0x10000

Return codes are never a reason to refuse: E2E results (0x0B-0x0F) and service-specific codes (0x20-0x5E) pass
unchanged. TP segments are decoded as messages whose payload starts with the TP header.
"""

# Cost in us per message, one core of a 2-core x86 VM, CPython 3.11, best of 21:
#   payload                             64 B     1 kB
#   pack_header(...) + payload          0.18     0.21
#   encode                              0.23     0.28
#   decode                              0.43     0.53     from a memoryview 0.60 and 0.75
#   split, of one message               0.54     0.67
#   split, each of eight messages       0.45     0.58
# Without MAX_REFUSALS, 65 520 bytes of unknown types cost split 4.9 ms, and all later datagrams waited.
# Measured with, for example:
#   python -m timeit -r 21 -n 100000 -s 'from ustreamer.transports.someip.protocol import codec as c' \
#     -s 'event = c.encode(c.SomeIpMessage(0x1234, 0x8778, 0, 1, 1, 2, 0, bytes(64)))' 'c.split(event)'

import struct
from collections.abc import Iterator
from enum import IntEnum, StrEnum

import msgspec

HEADER_LENGTH = 16
# [impl->RPC-90]
PROTOCOL_VERSION = 1
MIN_LENGTH = 8
"""Smallest value of the length field: client id to return code, no payload."""
MAX_PAYLOAD_LENGTH = 0xFFFF_FFFF - MIN_LENGTH
"""Limit of the length field. Datagrams and streams have much lower limits of their own."""
MAX_REFUSALS = 128
"""Refused messages of one datagram. What is behind them is not read."""
MAX_SESSION = 0xFFFF
EVENT_BIT = 0x8000
# [impl->RPC-761]
TP_BIT = 0x20
SD_SERVICE = 0xFFFF
SD_METHOD = 0x8100

_HEADER = struct.Struct(">HHIHHBBBB")


# [impl->RPC-95]
class MessageType(IntEnum):
    """The message types of the standard. Bit 0x20 marks a TP segment, bit 0x40 an ACK (obsolete)."""

    REQUEST = 0x00
    REQUEST_NO_RETURN = 0x01
    NOTIFICATION = 0x02
    RESPONSE = 0x80
    ERROR = 0x81

    TP_REQUEST = 0x20
    TP_REQUEST_NO_RETURN = 0x21
    TP_NOTIFICATION = 0x22
    TP_RESPONSE = 0xA0
    TP_ERROR = 0xA1

    REQUEST_ACK = 0x40
    REQUEST_NO_RETURN_ACK = 0x41
    NOTIFICATION_ACK = 0x42
    RESPONSE_ACK = 0xC0
    ERROR_ACK = 0xC1


# Plain ints: the lookup costs 0.01 us, among IntEnum members 0.05, and MessageType(number) 0.3.
_MESSAGE_TYPES = frozenset(int(member) for member in MessageType)


# [impl->RPC-371]
class ReturnCode(IntEnum):
    """The named return codes. 0x10-0x1F are reserved, 0x20-0x5E belong to the service."""

    E_OK = 0x00
    E_NOT_OK = 0x01
    E_UNKNOWN_SERVICE = 0x02
    E_UNKNOWN_METHOD = 0x03
    E_NOT_READY = 0x04
    E_NOT_REACHABLE = 0x05
    E_TIMEOUT = 0x06
    E_WRONG_PROTOCOL_VERSION = 0x07
    E_WRONG_INTERFACE_VERSION = 0x08
    E_MALFORMED_MESSAGE = 0x09
    E_WRONG_MESSAGE_TYPE = 0x0A
    E_E2E_REPEATED = 0x0B
    E_E2E_WRONG_SEQUENCE = 0x0C
    E_E2E = 0x0D
    E_E2E_NOT_AVAILABLE = 0x0E
    E_E2E_NO_NEW_DATA = 0x0F


class MalformedReason(StrEnum):
    """Reason of a refusal: seven values, so that a counter can use it as a label."""

    TRUNCATED_HEADER = "truncated_header"
    TRAILING_BYTES = "trailing_bytes"
    PROTOCOL_VERSION = "protocol_version"
    LENGTH_TOO_SMALL = "length_too_small"
    LENGTH_BEYOND_DATAGRAM = "length_beyond_datagram"
    UNKNOWN_MESSAGE_TYPE = "unknown_message_type"
    REFUSAL_LIMIT = "refusal_limit"


_MALFORMED_TEXT = {
    MalformedReason.TRUNCATED_HEADER: "{value} bytes, expected at least 16: one header",
    MalformedReason.TRAILING_BYTES: "{value} bytes left over, expected none or at least 16: one more header",
    MalformedReason.PROTOCOL_VERSION: "protocol version {value}, expected 1",
    MalformedReason.LENGTH_TOO_SMALL: "length {value}, expected at least 8: it counts from the client id",
    MalformedReason.LENGTH_BEYOND_DATAGRAM: "length {value}, expected at most {room}: the datagram's end",
    MalformedReason.UNKNOWN_MESSAGE_TYPE: "message type {value:#04x}, expected one of "
    + ", ".join(f"{number:#04x}" for number in sorted(_MESSAGE_TYPES)),
    MalformedReason.REFUSAL_LIMIT: f"{{value}} bytes behind {MAX_REFUSALS} refused messages, not read",
}


class MalformedMessage(ValueError):
    """The bytes at `offset` of a datagram of `size` bytes are no valid message.

    `value` is the wrong number: the bytes left, or the value of the field that `reason` names.
    `resume_at` is the start of the next message; None if that is unknown.
    """

    def __init__(
        self, reason: MalformedReason, offset: int, value: int, size: int, resume_at: int | None = None
    ) -> None:
        super().__init__(reason, offset, value, size, resume_at)
        self.reason = reason
        self.offset = offset
        self.value = value
        self.size = size
        self.resume_at = resume_at

    def __str__(self) -> str:
        # Formatted on demand: a datagram can hold 128 refused messages, and a log shows only a few.
        text = _MALFORMED_TEXT[self.reason].format(
            value=self.value, room=self.size - self.offset - HEADER_LENGTH + MIN_LENGTH
        )
        return f"message at offset {self.offset}: {text}"


class UnencodableMessage(ValueError):
    """The value of `field` does not fit the bits of its header field: 0 to `limit`."""

    def __init__(self, field: str, value: object, limit: int) -> None:
        super().__init__(field, value, limit)
        self.field = field
        self.value = value
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.field} {self.value!r}, expected an integer from 0 to {self.limit:#x}"


class SomeIpMessage(msgspec.Struct, frozen=True, gc=False):
    """One SOME/IP message. Numbers are as on the wire; the payload is opaque.

    message_type and return_code are ints, equal to a `MessageType` and, if the code has a name, a `ReturnCode`.
    session is 1 to 0xFFFF, or 0 if the sender does not use sessions.
    """

    service: int
    method: int
    client: int
    session: int
    interface_version: int
    message_type: int
    return_code: int = ReturnCode.E_OK
    payload: bytes = b""

    # [impl->RPC-59]
    @property
    def message_id(self) -> int:
        return self.service << 16 | self.method

    # [impl->RPC-83]
    @property
    def request_id(self) -> int:
        """The Request ID. A response repeats it; it is unique per server while the request is pending."""
        return self.client << 16 | self.session

    # [impl->RPC-67]
    @property
    def is_event(self) -> bool:
        """Whether `method` is an event id. `message_type` is the kind of the message."""
        return self.method & EVENT_BIT != 0

    @property
    def is_tp(self) -> bool:
        """Whether this is one segment of a longer message."""
        return self.message_type & TP_BIT != 0

    # [impl->RPC-107, RPC-727]
    @property
    def is_error(self) -> bool:
        """Whether this is a failed response: ERROR, or RESPONSE with a code other than E_OK."""
        message_type = self.message_type & ~TP_BIT
        return message_type == MessageType.ERROR or (
            message_type == MessageType.RESPONSE and self.return_code != ReturnCode.E_OK
        )


# [impl->RPC-649, RPC-677]
def next_session(session: int) -> int:
    """The session id after `session`: 1 to 0xFFFF, then 1 again. 0 is the initial value."""
    return session % MAX_SESSION + 1


# In the order of the parameters of pack_header.
_FIELD_LIMITS = {
    "service": 0xFFFF,
    "method": 0xFFFF,
    "client": 0xFFFF,
    "session": MAX_SESSION,
    "interface_version": 0xFF,
    "message_type": 0xFF,
    "return_code": 0xFF,
    "payload_length": MAX_PAYLOAD_LENGTH,
}


# [impl->RPC-539, RPC-625, RPC-42, RPC-675, RPC-44, RPC-45, RPC-77]
def pack_header(
    service: int,
    method: int,
    client: int,
    session: int,
    interface_version: int,
    message_type: int,
    return_code: int,
    payload_length: int,
) -> bytes:
    """The 16 header bytes in front of a payload of `payload_length` bytes.

    Raises UnencodableMessage if a value does not fit its field.
    """
    try:
        return _HEADER.pack(
            service,
            method,
            payload_length + MIN_LENGTH,
            client,
            session,
            PROTOCOL_VERSION,
            interface_version,
            message_type,
            return_code,
        )
    except struct.error as exc:
        raise _unencodable(
            service, method, client, session, interface_version, message_type, return_code, payload_length
        ) from exc


def _unencodable(*values: object) -> UnencodableMessage:
    """The error for the first argument of pack_header that struct rejects."""
    return next(
        UnencodableMessage(field, value, limit)
        for (field, limit), value in zip(_FIELD_LIMITS.items(), values, strict=True)
        if not (isinstance(value, int) and 0 <= value <= limit)
    )


# [impl->RPC-165, RPC-584, RPC-585]
def encode(message: SomeIpMessage) -> bytes:
    """The bytes of `message`. Raises UnencodableMessage if a value does not fit its field."""
    payload = message.payload
    header = pack_header(
        message.service,
        message.method,
        message.client,
        message.session,
        message.interface_version,
        message.message_type,
        message.return_code,
        len(payload),
    )
    return header + payload


# [impl->RPC-664, RPC-319, COMPAT-1201]
def split(datagram: bytes | memoryview) -> tuple[list[SomeIpMessage], list[MalformedMessage]]:
    """The messages of `datagram` and the refusals, each in order. Up to `MAX_REFUSALS`, an error hides no message.

    Every byte belongs to a message or to a refusal. Only the last refusal can have `resume_at` None; it then covers
    the rest of the datagram. A memoryview must be one of bytes. Payloads are copies: the buffer may be reused.
    """
    messages: list[SomeIpMessage] = []
    refused: list[MalformedMessage] = []
    for offset, found in read_messages(datagram):
        if isinstance(found, SomeIpMessage):
            messages.append(found)
        elif len(refused) < MAX_REFUSALS:
            refused.append(found)
        else:
            refused.append(refusal_limit(datagram, offset))
            break
    return messages, refused


def read_messages(
    datagram: bytes | memoryview,
) -> Iterator[tuple[int, SomeIpMessage | MalformedMessage]]:
    """Each message of `datagram`, or its refusal, with its offset. The caller keeps to `MAX_REFUSALS`."""
    size = len(datagram)
    offset = 0
    while True:
        found = _read(datagram, offset)
        yield offset, found
        if isinstance(found, SomeIpMessage):
            offset += HEADER_LENGTH + len(found.payload)
        elif found.resume_at is None:
            return
        else:
            offset = found.resume_at
        if offset == size:
            return


def refusal_limit(datagram: bytes | memoryview, offset: int) -> MalformedMessage:
    """The refusal of the rest of a datagram, from `offset`, behind `MAX_REFUSALS` refused messages."""
    size = len(datagram)
    return MalformedMessage(MalformedReason.REFUSAL_LIMIT, offset, size - offset, size)


def decode(datagram: bytes | memoryview, offset: int = 0) -> tuple[SomeIpMessage, int]:
    """The message at `offset` of `datagram`, and the offset behind it. Raises MalformedMessage."""
    found = _read(datagram, offset)
    if isinstance(found, SomeIpMessage):
        return found, offset + HEADER_LENGTH + len(found.payload)
    raise found


# [impl->RPC-42, RPC-675, RPC-44, RPC-47, RPC-77]
def _read(datagram: bytes | memoryview, offset: int) -> SomeIpMessage | MalformedMessage:
    """The message at `offset`, or the refusal.

    Returned, not raised: a raised error in the list of split would hold the frame that holds the list.
    """
    size = len(datagram)
    if size - offset < HEADER_LENGTH:
        return MalformedMessage(
            MalformedReason.TRAILING_BYTES if 0 < offset < size else MalformedReason.TRUNCATED_HEADER,
            offset,
            size - offset,
            size,
        )
    (
        service,
        method,
        length,
        client,
        session,
        protocol_version,
        interface_version,
        message_type,
        return_code,
    ) = _HEADER.unpack_from(datagram, offset)
    end = offset + HEADER_LENGTH - MIN_LENGTH + length
    if (
        protocol_version != PROTOCOL_VERSION
        or length < MIN_LENGTH
        or end > size
        or message_type not in _MESSAGE_TYPES
    ):
        return _malformed(offset, size, protocol_version, length, message_type)
    payload = datagram[offset + HEADER_LENGTH : end]
    if not isinstance(payload, bytes):
        # After the check: bytes() of bytes changes nothing and costs 0.05 us.
        payload = bytes(payload)
    return SomeIpMessage(
        service, method, client, session, interface_version, message_type, return_code, payload
    )


# [impl->RPC-798, RPC-721, RPC-719, RPC-718]
def _malformed(
    offset: int, size: int, protocol_version: int, length: int, message_type: int
) -> MalformedMessage:
    """The first error of a header, most basic check first: each check relies on the ones before it."""
    end = offset + HEADER_LENGTH - MIN_LENGTH + length
    if protocol_version != PROTOCOL_VERSION:
        return MalformedMessage(MalformedReason.PROTOCOL_VERSION, offset, protocol_version, size)
    if length < MIN_LENGTH:
        return MalformedMessage(MalformedReason.LENGTH_TOO_SMALL, offset, length, size)
    if end > size:
        return MalformedMessage(MalformedReason.LENGTH_BEYOND_DATAGRAM, offset, length, size)
    return MalformedMessage(MalformedReason.UNKNOWN_MESSAGE_TYPE, offset, message_type, size, end)
