# SPDX-License-Identifier: Apache-2.0
"""UUri, UUID, UAttributes and UStatus, from the text of up-spec alone."""

import random
import time
from enum import IntEnum
from typing import Final, NamedTuple, Self

from uprotocol_tck.protobuf import Fields, MalformedProtobuf, field, fixed64


class Kind(IntEnum):
    """UMessageType."""

    UNSPECIFIED = 0
    PUBLISH = 1
    REQUEST = 2
    RESPONSE = 3
    NOTIFICATION = 4


class Priority(IntEnum):
    """UPriority."""

    UNSPECIFIED = 0
    CS0 = 1
    CS1 = 2
    CS2 = 3
    CS3 = 4
    CS4 = 5
    CS5 = 6
    CS6 = 7


class Code(IntEnum):
    """UCode."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


PROTOBUF: Final = 2
"""UPayloadFormat of a plain protobuf message."""
RAW: Final = 6
"""UPayloadFormat of bytes without a structure."""

ANY_AUTHORITY: Final = "*"
ANY_TYPE: Final = 0xFFFF
ANY_ENTITY: Final = 0xFFFF_FFFF
ANY_VERSION: Final = 0xFF
ANY_RESOURCE: Final = 0xFFFF
MAX_AUTHORITY: Final = 128
MIN_TOPIC, MAX_TOPIC, MAX_METHOD = 0x8000, 0xFFFE, 0x7FFF


class Uuid(NamedTuple):
    """UUID, as uuid.proto has it."""

    msb: int
    lsb: int

    def encode(self) -> bytes:
        return fixed64(1, self.msb) + fixed64(2, self.lsb)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = Fields(data)
        return cls(found.fixed64(1), found.fixed64(2))

    @property
    def is_version_7(self) -> bool:
        """RFC 9562: version 7 and the variant of that text."""
        return self.msb >> 12 & 0xF == 7 and self.lsb >> 62 == 0b10

    @property
    def time_ms(self) -> int:
        return self.msb >> 16


def new_uuid(age_ms: int = 0) -> Uuid:
    """A UUID version 7 of this moment, or of `age_ms` before it."""
    made_ms = time.time_ns() // 1_000_000 - age_ms
    return Uuid(made_ms << 16 | 7 << 12 | random.getrandbits(12), 0b10 << 62 | random.getrandbits(62))


class Uri(NamedTuple):
    """UUri; `ue_id` is instance << 16 | type."""

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
        found = Fields(data)
        ue_id, version, resource = (found.number(number) or 0 for number in (2, 3, 4))
        return cls(found.text(1) or "", ue_id, version, resource)

    @property
    def chunks(self) -> str:
        """The five segments of a Zenoh key. The wildcard of a field is the segment `*`."""
        kind, instance = self.ue_id & 0xFFFF, self.ue_id >> 16
        numbers = (
            (kind, ANY_TYPE),
            (instance, ANY_TYPE),
            (self.version, ANY_VERSION),
            (self.resource, ANY_RESOURCE),
        )
        return "/".join(
            [self.authority, *("*" if value == wildcard else f"{value:X}" for value, wildcard in numbers)]
        )

    def __str__(self) -> str:
        return f"//{self.authority}/{self.ue_id:X}/{self.version:X}/{self.resource:X}"


ANYTHING: Final = Uri(ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, ANY_RESOURCE)
"""The pattern that every address matches."""


def parse_uri(text: str) -> Uri:
    """An address with an authority: `//authority/entity/version/resource`. Raises ValueError."""
    parts = text.removeprefix("up:").split("/")
    if len(parts) != 6 or parts[:2] != ["", ""]:
        raise ValueError(f"{text!r}: expected //authority/entity/version/resource")
    entity, version, resource = (int(each, 16) for each in parts[3:])
    if not (0 <= entity <= ANY_ENTITY and 0 <= version <= ANY_VERSION and 0 <= resource <= ANY_RESOURCE):
        raise ValueError(f"{text!r}: expected at most 8, 2 and 4 digits for entity, version and resource")
    return Uri(parts[2], entity, version, resource)


def zenoh_key(source: Uri, sink: Uri | None = None) -> str:
    """The Zenoh key of a message, or the key expression of a pattern: 11 segments."""
    return f"up/{source.chunks}/{sink.chunks if sink else '{}/{}/{}/{}/{}'}"


class Attributes(NamedTuple):
    """UAttributes, in the order of their field numbers."""

    id: Uuid
    kind: int
    source: Uri
    sink: Uri | None = None
    priority: int = Priority.UNSPECIFIED
    ttl: int | None = None
    permission_level: int | None = None
    commstatus: int | None = None
    reqid: Uuid | None = None
    token: str | None = None
    traceparent: str | None = None
    payload_format: int = 0

    def encode(self) -> bytes:
        return b"".join(
            (
                field(1, self.id.encode()),
                field(2, self.kind or None),
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
        """Raises MalformedProtobuf."""
        found = Fields(data)
        sink, reqid = found.data(4), found.data(9)
        return cls(
            id=Uuid.decode(found.data(1) or b""),
            kind=found.number(2) or 0,
            source=Uri.decode(found.data(3) or b""),
            sink=None if sink is None else Uri.decode(sink),
            priority=found.number(5) or 0,
            ttl=found.number(6),
            permission_level=found.number(7),
            commstatus=found.number(8),
            reqid=None if reqid is None else Uuid.decode(reqid),
            token=found.text(10),
            traceparent=found.text(11),
            payload_format=found.number(12) or 0,
        )

    @property
    def key(self) -> str:
        return zenoh_key(self.source, self.sink)

    @property
    def code(self) -> Code:
        """The outcome of a Response; a missing commstatus means OK. Raises MalformedProtobuf for an unknown number."""
        number = self.commstatus or 0
        if number not in {*Code}:
            raise MalformedProtobuf(f"the commstatus {number} is no UCode")
        return Code(number)

    @property
    def code_text(self) -> str:
        """As `code`, for people: it never raises."""
        number = self.commstatus or 0
        return Code(number).name if number in {*Code} else f"commstatus {number}"


class Status(NamedTuple):
    """UStatus: the payload of a Response that reports an error."""

    code: int
    message: str

    @classmethod
    def decode(cls, data: bytes) -> Self:
        found = Fields(data)
        return cls(found.number(1) or 0, found.text(2) or "")
