# SPDX-License-Identifier: Apache-2.0
"""Payloads of requests and answers, and the rules for what stands in them, whatever the version of the interface."""

import struct
from collections.abc import Container
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ustreamer.core.subscriptions import UNLIMITED, period_of
from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.pb.google_timestamp import Timestamp
from ustreamer.uprotocol.pb.usubscription_v3 import SubscribeAttributes
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import invalid
from ustreamer.uprotocol.uuri import FIRST_TOPIC, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.policy import Policy
from ustreamer_usubscription.tracked import Tracked

M = TypeVar("M", bound=Message)

EVERYTHING: Final = Policy(UsubscriptionConfig(), "")
"""The policy of a configuration that says nothing."""

MAX_DETAILS: Final = 4096
"""Bytes that a subscriber may leave for the producer, which are kept with the subscription."""

NS_PER_MS: Final = 1_000_000
_TYPE_PREFIX: Final = "type.googleapis.com/"
_TIMESTAMP_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)  # years 1 to 9999, as protobuf has it
_PERIOD_FIELD: Final = SubscribeAttributes.SAMPLE_PERIOD_MS_FIELD_NUMBER
_FIXED64: Final = 1
_LONGEST_PERIOD_MS: Final = 0xFFFF_FFFF


class Call(msgspec.Struct, frozen=True):
    """A request, and what is needed to understand it.

    `caller` is UAttributes.source. `authority` is the one at which the service was called, and stands in for an empty
    authority in a payload (X-18); `serves` are those whose topics are local. `permission_level` is the caller's.
    """

    caller: UUri
    authority: str
    serves: Container[str]
    payload: bytes = b""
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED
    permission_level: int | None = None
    policy: Policy = EVERYTHING


# --- payloads ---------------------------------------------------------------------------------------------------------


def unpack(kind: type[M], call: Call) -> M:
    """The request message in a call; INVALID_ARGUMENT if it is none.

    up-rust wraps requests in Any, up-python does not, and SOME/IP cannot say which: UNSPECIFIED is read as PROTOBUF.
    """
    return read(kind, call.payload, call.payload_format)


def read(kind: type[M], payload: bytes, payload_format: UPayloadFormat) -> M:
    """The message in a payload; INVALID_ARGUMENT if it is none."""
    match payload_format:
        case UPayloadFormat.PROTOBUF | UPayloadFormat.UNSPECIFIED:
            return _parse(kind, payload)
        case UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
            # Nothing at all is an empty message, wrapped or not.
            return _unwrap(kind, _parse(Any, payload)) if payload else kind()
        case other:
            raise invalid(f"payload format {other.name}: expected PROTOBUF or PROTOBUF_WRAPPED_IN_ANY")


def _unwrap(kind: type[M], wrapped: Any) -> M:
    name = wrapped.type_url.rpartition("/")[2]
    if name != kind.DESCRIPTOR.full_name:
        raise invalid(f"payload: Any of type {wrapped.type_url!r}, expected {kind.DESCRIPTOR.full_name}")
    return _parse(kind, wrapped.value)


def _parse(kind: type[M], data: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise invalid(f"payload of {len(data)} bytes: not a {kind.DESCRIPTOR.full_name} ({error})") from error
    return message


def pack(answer: Message, asked_in: UPayloadFormat) -> tuple[bytes, UPayloadFormat]:
    """An answer in the style of its request: wrapped in Any, or else PROTOBUF.

    The format is set for an empty answer too: without it up-rust refuses to read one.
    """
    data = answer.SerializeToString()
    if asked_in is not UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
        return data, UPayloadFormat.PROTOBUF
    wrapped = Any(type_url=_TYPE_PREFIX + answer.DESCRIPTOR.full_name, value=data)
    return wrapped.SerializeToString(), asked_in


# --- addresses --------------------------------------------------------------------------------------------------------


def specific(what: str, message: uri.UUri, call: Call) -> UUri:
    """The address of one entity or topic; INVALID_ARGUMENT naming the part that is malformed or a wildcard.

    [impl->dsn~usubscription-uri-version-major~1] [impl->LIF-9] A wildcard version is refused here, too.
    """
    address = UUri.from_pb(message).with_authority(call.authority)
    part = address.wildcard()
    if part is not None:
        raise invalid(f"{what} {address}: its {part} is a wildcard, expected a specific one")
    return address


def topic_of(message: uri.UUri, call: Call) -> UUri:
    """The topic that a request names; INVALID_ARGUMENT naming the part that is not as it must be (X-17 to X-19)."""
    topic = specific("topic", message, call)
    check_topic_resource(topic)
    return topic


def check_topic_resource(topic: UUri) -> None:
    """INVALID_ARGUMENT for the address of a method or of an entity (X-19)."""
    if not topic.is_topic:
        raise invalid(
            f"topic {topic}: resource {topic.resource_id:X} is not a topic, expected {FIRST_TOPIC:X}..FFFE"
        )


# --- attributes of a subscription -------------------------------------------------------------------------------------


def track(topic: UUri, subscriber: UUri, wish: SubscribeAttributes) -> Tracked:
    """The subscription that is asked for; INVALID_ARGUMENT naming the attribute that makes no sense."""
    expire_ms = expire_ms_of(wish.expire) if wish.HasField("expire") else None
    return Tracked(topic, subscriber, _period_ns(wish), expire_ms, _details(wish))


def _period_ns(wish: SubscribeAttributes) -> int:
    """The shortest interval asked for.

    Field 3 is `sample_period_ms` (uint32) or, in a draft, `max_frequency` (double, Hz); where a message has both, the
    slower one holds (X-11).
    """
    sampled = wish.sample_period_ms * NS_PER_MS if wish.HasField("sample_period_ms") else UNLIMITED
    unknown = UnknownFieldSet(wish)
    frequencies = [
        unknown[i].data
        for i in range(len(unknown))
        if unknown[i].field_number == _PERIOD_FIELD and unknown[i].wire_type == _FIXED64
    ]
    if not frequencies:
        return sampled
    # Of several the last one holds, as for any field.
    [hertz] = struct.unpack("<d", struct.pack("<Q", frequencies[-1]))
    return max(sampled, period_of(hertz))


def expire_ms_of(expire: Timestamp) -> int:
    """When a subscription ends, in whole ms and never early."""
    seconds, nanos = expire.seconds, expire.nanos
    if seconds not in _TIMESTAMP_SECONDS or not 0 <= nanos < 1_000_000_000:
        raise invalid(f"expire {seconds} s {nanos} ns: expected the years 1 to 9999 and 0..999999999 ns")
    return seconds * 1000 - -nanos // NS_PER_MS


def timestamp_of(expire_ms: int) -> Timestamp:
    seconds, ms = divmod(expire_ms, 1000)
    return Timestamp(seconds=seconds, nanos=ms * NS_PER_MS)


def _details(wish: SubscribeAttributes) -> bytes:
    if not wish.details:
        return b""
    details = SubscribeAttributes(details=wish.details).SerializeToString()
    if len(details) > MAX_DETAILS:
        raise invalid(f"details: {len(details)} bytes, at most {MAX_DETAILS} are kept")
    return details


def attributes_of(entry: Tracked) -> SubscribeAttributes:
    """What was asked for, in the words of today's interface.

    The period goes out as `sample_period_ms`; `max_frequency` is read and never written.
    """
    attributes = SubscribeAttributes.FromString(entry.details)
    if entry.expire_ms is not None:
        attributes.expire.CopyFrom(timestamp_of(entry.expire_ms))
    sample_period_ms = sample_period_of(entry.period_ns)
    if sample_period_ms is not None:
        attributes.sample_period_ms = sample_period_ms
    return attributes


def sample_period_of(period_ns: int) -> int | None:
    """A period in ms, rounded down so that nobody who subscribes by it starves a reader.

    Below a millisecond it is None, to be left out, which means every message. A max_frequency of 1e-9 Hz is more than a
    uint32 holds: that is told as the longest period that there is, 49 days.
    """
    return min(period_ns // NS_PER_MS, _LONGEST_PERIOD_MS) or None
