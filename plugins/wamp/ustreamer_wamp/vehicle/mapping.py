# SPDX-License-Identifier: Apache-2.0
"""UUris as WAMP URIs, and messages as the arguments of an EVENT.

    //vcu.my_vin/10AB/3/80CD    up.vcu_2emy_5fvin.10ab.0.3.80cd
                                up.<authority>.<type>.<instance>.<version>.<resource>

The order is that of uProtocol's Zenoh and MQTT mappings: type and instance are two components, so each can be a
wildcard. Numbers are lower-case hexadecimal without leading zeros. Of an authority, a to z and 0 to 9 are unchanged,
and every other byte is `_` and two digits. A UUri has exactly one such URI; any other text is not a uProtocol topic.
"""

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ustreamer.uprotocol.uattributes import UAttributes, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UStatusError, invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, ANY_INSTANCE, UUri, check_authority
from ustreamer_wamp.codec import checked
from ustreamer_wamp.uri import Match

SCHEME: Final = "up."
INSTANCE: Final = 3
"""The index of the component with the instance of an entity."""
_COMPONENTS: Final = 6
_OTHER: Final = re.compile(rb"[^a-z0-9]")
_ESCAPED: Final = re.compile(r"_([0-9a-f]{2})")
_TOPIC: Final = re.compile(
    r"up\.((?:[a-z0-9]|_[0-9a-f]{2})+)\.(0|[1-9a-f][0-9a-f]{0,3})\.(0|[1-9a-f][0-9a-f]{0,3})"
    r"\.(0|[1-9a-f][0-9a-f]?)\.([1-9a-f][0-9a-f]{0,3})"
)

Decode = Callable[[bytes], object]
"""Decodes a payload to named values; may raise any exception."""


def topic_of(uuri: UUri) -> str:
    """The WAMP URI of a topic."""
    return (
        f"up.{_escaped(uuri.authority_name)}.{uuri.ue_type:x}.{uuri.ue_instance:x}"
        f".{uuri.ue_version_major:x}.{uuri.resource_id:x}"
    )


def uuri_of(topic: str) -> UUri | None:
    """The topic of a WAMP URI; None if it is not a uProtocol topic."""
    match = _TOPIC.fullmatch(topic)
    if match is None:
        return None
    try:
        authority = _ESCAPED.sub(lambda each: chr(int(each[1], 16)), match[1])
        check_authority(authority, topic)
    except UStatusError:
        return None
    type, instance, version, resource = (int(digits, 16) for digits in match.groups()[1:])
    uuri = UUri(authority, instance << 16 | type, version, resource)
    # Only the canonical text: no needless escapes, and no wildcard, which is an empty component here.
    fits = (
        uuri.is_topic and authority != ANY_AUTHORITY and uuri.wildcard() is None and topic_of(uuri) == topic
    )
    return uuri if fits else None


def _escaped(authority: str) -> str:
    return _OTHER.sub(lambda each: b"_%02x" % each[0][0], authority.encode()).decode()


def may_name_topics(pattern: str, match: Match) -> bool:
    """Whether a prefix or wildcard can match a uProtocol topic."""
    if match == "prefix":
        return pattern.startswith(SCHEME) or SCHEME.startswith(pattern)
    components = pattern.split(".")
    return len(components) == _COMPONENTS and components[0] in ("", "up")


def instances_of(pattern: str, match: Match) -> UUri | None:
    """The topic of every instance of one entity, if the pattern matches exactly those; else None."""
    components = pattern.split(".")
    if match != "wildcard" or len(components) != _COMPONENTS or components[INSTANCE]:
        return None
    components[INSTANCE] = "0"
    one = uuri_of(".".join(components))
    if one is None:
        return None
    ue_id = ANY_INSTANCE << 16 | one.ue_type
    return UUri(one.authority_name, ue_id, one.ue_version_major, one.resource_id)


# --- messages as events -------------------------------------------------------------------------------------


class WampEventTemplate:
    """The event arguments of messages with equal attributes; built once for all of them."""

    __slots__ = ("_decode", "_kwargs", "topic")

    def __init__(self, attributes: UAttributes, decode: Decode | None) -> None:
        self.topic = topic_of(attributes.source)
        self._decode = decode or _BY_FORMAT.get(attributes.payload_format)
        self._kwargs = {
            "id": "",  # that of each message
            "source": str(attributes.source),
            "type": attributes.type.name.lower(),
            "priority": f"CS{attributes.priority_class}",
            "format": attributes.payload_format.name,
        }
        if attributes.ttl:
            self._kwargs["ttl"] = attributes.ttl  # type: ignore[assignment]  # it is a dict of any values
        if attributes.traceparent:
            self._kwargs["traceparent"] = attributes.traceparent

    def args(self, message: UMessage) -> tuple[list[Any], bool]:
        """The arguments, and whether decoding failed, so that the payload is bytes."""
        if not message.payload:
            return [], False
        if self._decode is not None:
            try:
                return [checked(self._decode(message.payload))], False
            except Exception:  # noqa: BLE001  # foreign code and foreign bytes: shown undecoded
                return [message.payload], True
        return [message.payload], False

    def kwargs(self, message: UMessage) -> dict[str, Any]:
        """The keyword arguments: the attributes, with the id of this message."""
        kwargs = self._kwargs.copy()
        kwargs["id"] = str(message.id)
        return kwargs


def pack_value(decode: Decode, payload: bytes) -> bytes:
    """The value of a payload as MessagePack, for another process; empty if it cannot be decoded."""
    try:
        return msgspec.msgpack.encode(checked(decode(payload)))
    except Exception:  # noqa: BLE001  # as in `WampEventTemplate.args`
        return b""


def args_of(message: UMessage, value: bytes) -> tuple[list[Any], bool]:
    """As `WampEventTemplate.args`, from the result of `pack_value` for a message with a payload."""
    return ([msgspec.msgpack.decode(value)], False) if value else ([message.payload], True)


_BY_FORMAT: Final[dict[UPayloadFormat, Decode]] = {
    UPayloadFormat.JSON: msgspec.json.decode,
    UPayloadFormat.TEXT: bytes.decode,
}


# --- events as messages -------------------------------------------------------------------------------------

_PRIORITIES: Final = {f"CS{number}": UPriority(number + 1) for number in range(7)}
_FORMATS: Final = {each.name: each for each in UPayloadFormat}


def message_of(id: UUID, topic: UUri, args: list[Any], kwargs: dict[str, Any]) -> UMessage:
    """The publication of a client: one argument at most, and optionally `format`, `priority` and `ttl` (ms).

    Bytes are the payload (RAW unless `format` is given), a string is TEXT, anything else is written as JSON.
    Raises UStatusError(INVALID_ARGUMENT) naming what is wrong.
    """
    if len(args) > 1:
        raise invalid_argument(f"{len(args)} arguments: expected one, the payload, or none")
    payload, made = _payload(args[0]) if args else (b"", UPayloadFormat.UNSPECIFIED)
    wanted = kwargs.get("format")
    if wanted is not None and wanted not in _FORMATS:
        raise invalid_argument(f"format {wanted!r}: expected one of {', '.join(_FORMATS)}")
    if wanted is not None and not isinstance(args[0] if args else b"", bytes):
        raise invalid_argument("format: only for a payload of bytes")
    priority = kwargs.get("priority", "CS1")
    if priority not in _PRIORITIES:
        raise invalid_argument(f"priority {priority!r}: expected one of {', '.join(_PRIORITIES)}")
    ttl = kwargs.get("ttl")
    if ttl is not None and (type(ttl) is not int or not 0 < ttl < 2**32):
        raise invalid_argument(f"ttl {ttl!r}: expected ms, an integer of 1 to {2**32 - 1}")
    form = made if wanted is None else _FORMATS[wanted]
    return publish(id, topic, payload, form, priority=_PRIORITIES[priority], ttl=ttl)


def _payload(value: object) -> tuple[bytes, UPayloadFormat]:
    match value:
        case bytes():
            return value, UPayloadFormat.RAW
        case str():
            return value.encode(), UPayloadFormat.TEXT
    return msgspec.json.encode(value), UPayloadFormat.JSON
