# SPDX-License-Identifier: Apache-2.0
"""Attributes of a message as properties of a PUBLISH packet (`dsn~up-transport-mqtt5-attributes-mapping~1`). Pure.

The keys of user properties are the field numbers of `uattributes.proto`:

    uP 1                 version of uProtocol        5   priority "CS4"
    1  id, hyphenated                                6   ttl in ms, unless the interval has it
    2  type "pub.v1"                                 7   permission level, decimal
    3  source                                        8   commstatus, decimal
    4  sink                                          10  token       11  traceparent

Message Expiry Interval: the ttl in s, rounded up; the rest of it, if the message has waited. Correlation Data: reqid,
16 bytes. Content Type: the payload format, decimal. Fields of `uattributes.proto` that this version does not know
(`UAttributes.unknown`) have no place.
"""

import re
from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgspec

from ustreamer.uprotocol.bounded_cache import BoundedCache
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

VERSION: Final = "1"
_U32: Final = 0xFFFF_FFFF
_TYPES: Final = {
    UMessageType.PUBLISH: "pub.v1",
    UMessageType.REQUEST: "req.v1",
    UMessageType.RESPONSE: "res.v1",
    UMessageType.NOTIFICATION: "not.v1",
}
_TYPE_OF: Final = {text: type for type, text in _TYPES.items()}
_PRIORITY_OF: Final = {each.name: each for each in UPriority if each is not UPriority.UNSPECIFIED}
_REQID: Final = Struct(">QQ")
_LEN: Final = Struct(">H")
_PAIR: Final = b"\x26"
_MAX_TEXT: Final = 0xFFFF
_FOREIGN: Final = {"3": "source", "4": "sink", "10": "token", "11": "traceparent"}
"""By key: the user properties that have a text of the sender. The topic has the authorities of source and sink."""
# MQTT 5, 1.5.4: a broker may end the connection for these, and mosquitto does. It names no message then.
_FORBIDDEN: Final = re.compile(
    "[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
    + "]"
)
_CACHED: Final = 4_096


class PublishProperties(msgspec.Struct, frozen=True):
    """The properties of a PUBLISH packet that uProtocol uses. `user` has the pairs in their order, the id first."""

    user: tuple[tuple[str, str], ...]
    content_type: str | None = None
    correlation_data: bytes | None = None
    expiry_s: int | None = None


def encode(id: UUID, attributes: UAttributes, left_s: int | None = None) -> PublishProperties:
    """The properties of a message. Its addresses have an authority.

    `left_s`: the rest of its ttl, if it has waited. Property 6 has the whole ttl then: receivers add it to the time of
    the id, and else they would make it of the rest.

    [impl->dsn~up-transport-mqtt5-attributes-mapping~1]
    """
    ttl = attributes.ttl
    interval_s = interval_s_of(ttl)
    is_less = left_s is not None and left_s < interval_s
    user = [("uP", VERSION), ("1", str(id)), ("2", _TYPES[attributes.type]), ("3", str(attributes.source))]
    if attributes.sink is not None:
        user.append(("4", str(attributes.sink)))
    if attributes.priority:
        user.append(("5", attributes.priority.name))
    if ttl and (ttl % 1000 or is_less):
        user.append(("6", str(ttl)))
    for key, number in (("7", attributes.permission_level), ("8", attributes.commstatus)):
        if number is not None:
            user.append((key, str(int(number))))
    for key, text in (("10", attributes.token), ("11", attributes.traceparent)):
        if text:
            user.append((key, text))
    reqid = attributes.reqid
    return PublishProperties(
        tuple(user),
        str(int(attributes.payload_format)) if attributes.payload_format else None,
        None if reqid is None else _REQID.pack(reqid.msb, reqid.lsb),
        (left_s if is_less else interval_s) or None,
    )


def interval_s_of(ttl: int | None) -> int:
    """The Message Expiry Interval of a ttl in ms; 0: none."""
    return -(-ttl // 1000) if ttl else 0


def pack(properties: PublishProperties) -> bytes:
    """The block of properties, with its length in front. INVALID_ARGUMENT names a text that MQTT cannot carry."""
    return with_length(pack_fields(properties))


def pack_fields(properties: PublishProperties) -> bytes:
    parts = [b"".join((_PAIR, _text(key), _text(value, _FOREIGN.get(key)))) for key, value in properties.user]
    if properties.expiry_s is not None:
        parts.append(b"\x02" + properties.expiry_s.to_bytes(4, "big"))
    if properties.content_type is not None:
        parts.append(b"\x03" + _text(properties.content_type))
    if properties.correlation_data is not None:
        parts.append(b"\x09" + _LEN.pack(len(properties.correlation_data)) + properties.correlation_data)
    return b"".join(parts)


def _text(value: str, name: str | None = None) -> bytes:
    """A string with its length in front. `name` of one that others have written: it is checked."""
    if name is None:
        data = value.encode()
        return _LEN.pack(len(data)) + data
    is_plain = value.isascii() and value.isprintable()  # most are; the expression needs 20 times longer
    if not is_plain and (found := _FORBIDDEN.search(value)) is not None:
        raise invalid_argument(f"{name} has the character U+{ord(found[0]):04X}, which MQTT forbids")
    data = value.encode()
    if len(data) > _MAX_TEXT:
        raise invalid_argument(f"{name} has {len(data)} bytes, MQTT allows {_MAX_TEXT}")
    return _LEN.pack(len(data)) + data


def with_length(block: bytes) -> bytes:
    """`block` after its length, a variable byte integer."""
    length, head = len(block), bytearray()
    while length > 0x7F:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    head.append(length)
    return bytes(head) + block


class PropertiesDecoder:
    """Reads properties. Attributes that repeat from message to message are read once. Not locked."""

    def __init__(self, max_user_properties: int) -> None:
        self._max_user_properties = max_user_properties
        self._cached: BoundedCache[tuple[object, ...], UAttributes] = BoundedCache(_CACHED)

    def decode(
        self, properties: PublishProperties, source_authority: str, sink_authority: str | None
    ) -> tuple[UUID, UAttributes]:
        """Id and attributes of a message. The authorities of its topic replace empty ones.

        Raises UStatusError: INVALID_ARGUMENT that names the property, UNIMPLEMENTED for another version of uProtocol.
        """
        user = properties.user
        if len(user) > self._max_user_properties:
            raise invalid_argument(
                f"{len(user)} user properties, expected at most {self._max_user_properties}"
            )
        # Only what uProtocol uses: the cache must not keep what a sender adds.
        rest = [pair for pair in user if pair[0] in _KEYS_OF_ATTRIBUTES]
        ids = [value for key, value in user if key == "1"]
        if len(ids) != 1:
            raise invalid_argument(f"{len(ids)} user properties 1, the id: expected one")
        id = UUID.parse(ids[0])
        key = (
            *rest,
            properties.content_type,
            properties.expiry_s,
            properties.correlation_data,
            source_authority,
            sink_authority,
        )
        attributes = self._cached.get(key)
        if attributes is None:
            attributes = _attributes(_fields(rest), properties, source_authority, sink_authority)
            if attributes.is_cacheable:
                self._cached.add(key, attributes)
        return id, attributes


def _fields(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The user properties by key. None of them may repeat."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key in found:
            raise invalid_argument(f"user property {key} is there twice")
        found[key] = value
    version = found.get("uP")
    if version is None:
        raise invalid_argument("no user property uP: not a message of uProtocol")
    if version != VERSION:
        raise UStatusError(
            UCode.UNIMPLEMENTED, f"user property uP: version {version[:20]!r}, expected {VERSION}"
        )
    return found


_KEYS_OF_ATTRIBUTES: Final = frozenset({"uP", "2", "3", "4", "5", "6", "7", "8", "10", "11"})


def _attributes(
    fields: dict[str, str], properties: PublishProperties, source_authority: str, sink_authority: str | None
) -> UAttributes:
    type = _TYPE_OF.get(fields.get("2", ""))
    if type is None:
        raise invalid_argument(
            f"user property 2, the type: {_shown(fields.get('2'))}, expected pub.v1, req.v1, res.v1 or not.v1"
        )
    if "3" not in fields:
        raise invalid_argument("no user property 3, the source")
    source = UUri.parse(fields["3"]).with_authority(source_authority)
    sink = UUri.parse(fields["4"]) if "4" in fields else None
    if sink is not None and sink_authority is not None:
        sink = sink.with_authority(sink_authority)
    ttl = properties.expiry_s * 1000 if properties.expiry_s else None
    if "6" in fields:
        ttl = _number("6, the ttl", fields["6"], _U32)
    commstatus = _number("8, the commstatus", fields["8"], _U32) if "8" in fields else None
    return UAttributes(
        type=type,
        source=source,
        sink=sink,
        priority=_priority(fields.get("5")),
        ttl=None if ttl is None else min(ttl, _U32),
        permission_level=_number("7, the permission level", fields["7"], _U32) if "7" in fields else None,
        commstatus=None if commstatus is None else UCode.from_number(commstatus),
        reqid=_reqid(properties.correlation_data),
        token=fields.get("10"),
        traceparent=fields.get("11"),
        payload_format=_payload_format(properties.content_type),
    )


def _priority(text: str | None) -> UPriority:
    if text is None:
        return UPriority.UNSPECIFIED
    found = _PRIORITY_OF.get(text)
    if found is None:
        raise invalid_argument(f"user property 5, the priority: {_shown(text)}, expected CS0 to CS6")
    return found


def _reqid(data: bytes | None) -> UUID | None:
    if data is None:
        return None
    if len(data) != _REQID.size:
        raise invalid_argument(f"correlation data, the reqid: {len(data)} bytes, expected {_REQID.size}")
    return UUID(*_REQID.unpack(data))


def _payload_format(text: str | None) -> UPayloadFormat:
    if text is None:
        return UPayloadFormat.UNSPECIFIED
    number = _number("of the content type", text, max(UPayloadFormat), what="property")
    return UPayloadFormat(number)


def _number(name: str, text: str, largest: int, what: str = "user property") -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > largest:
        raise invalid_argument(f"{what} {name}: {_shown(text)}, expected a number of 0 to {largest}")
    return int(text)


def _shown(text: str | None) -> str:
    return "none" if text is None else repr(text[:40])
