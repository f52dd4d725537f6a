# SPDX-License-Identifier: Apache-2.0
"""Payloads of core.usubscription, versions 3 and 4: bytes in, checked values out, and the reverse.

The service, its clients and its proxies use it. It holds no state of subscriptions.
"""

import struct
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ustreamer.core.routing.subscriptions import UNLIMITED, period_of
from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.pb.google_timestamp import Timestamp
from ustreamer.uprotocol.pb.usubscription_v3 import SubscribeAttributes
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatusError, invalid_argument
from ustreamer.uprotocol.uuri import UUri

M = TypeVar("M", bound=Message)

USUBSCRIPTION: Final = 0
"""[impl->req~usubscription-uentity_id~1] ue_id of every core.usubscription: type 0, instance 0."""

VERSION_3: Final = 3
VERSION_4: Final = 4

CHANGE_RESOURCE: Final = 0x8000
"""The resource of topic SubscriptionChange, in every version."""


class UsubscriptionMethod(IntEnum):
    """The methods with the same number in both versions."""

    SUBSCRIBE = 1
    UNSUBSCRIBE = 2


NOT_DELIVERED: Final = frozenset({UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED})
"""Codes of a dispatcher on the path; every other code comes from the uSubscription and is final (X-26)."""


class Status(IntEnum):
    """The state of a subscription; the numbers are those of version 3."""

    UNSUBSCRIBED = 0
    SUBSCRIBE_PENDING = 1
    SUBSCRIBED = 2
    UNSUBSCRIBE_PENDING = 3


NS_PER_MS: Final = 1_000_000
_TYPE_PREFIX: Final = "type.googleapis.com/"
_TIMESTAMP_SECONDS: Final = range(-62_135_596_800, 253_402_300_800)  # years 1 to 9999, as protobuf has it
_PERIOD_FIELD: Final = SubscribeAttributes.SAMPLE_PERIOD_MS_FIELD_NUMBER
_FIXED64: Final = 1
_MAX_PERIOD_MS: Final = 0xFFFF_FFFF

# --- payloads ---------------------------------------------------------------------------------------------------------


def unpack_payload(kind: type[M], payload: bytes, payload_format: UPayloadFormat) -> M:
    """The message of type `kind` in a payload; raises INVALID_ARGUMENT for an invalid payload."""
    match payload_format:
        case UPayloadFormat.PROTOBUF | UPayloadFormat.UNSPECIFIED:
            return _parse(kind, payload)
        case UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
            # An empty payload is an empty message, wrapped or not.
            return _unwrap(kind, _parse(Any, payload)) if payload else kind()
        case other:
            raise invalid_argument(
                f"payload format {other.name}: expected PROTOBUF or PROTOBUF_WRAPPED_IN_ANY"
            )


def _unwrap(kind: type[M], wrapped: Any) -> M:
    name = wrapped.type_url.rpartition("/")[2]
    if name != kind.DESCRIPTOR.full_name:
        raise invalid_argument(
            f"payload: Any of type {wrapped.type_url!r}, expected {kind.DESCRIPTOR.full_name}"
        )
    return _parse(kind, wrapped.value)


def _parse(kind: type[M], data: bytes) -> M:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise invalid_argument(
            f"payload of {len(data)} bytes: not a {kind.DESCRIPTOR.full_name} ({error})"
        ) from error
    return message


def pack_payload(message: Message, request_format: UPayloadFormat) -> tuple[bytes, UPayloadFormat]:
    """A response in the format of its request: wrapped in Any, or else PROTOBUF.

    The format is set for an empty response too: up-rust rejects a response without it.
    """
    data = message.SerializeToString()
    if request_format is not UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
        return data, UPayloadFormat.PROTOBUF
    wrapped = Any(type_url=_TYPE_PREFIX + message.DESCRIPTOR.full_name, value=data)
    return wrapped.SerializeToString(), request_format


# --- attributes of a subscription -------------------------------------------------------------------------------------


def period_ns_of(attributes: SubscribeAttributes) -> int:
    """The requested period.

    Field 3 is `sample_period_ms` (uint32) or, in a draft, `max_frequency` (double, Hz); where a message has both, the
    slower one holds (X-11).
    """
    sampled = (
        attributes.sample_period_ms * NS_PER_MS if attributes.HasField("sample_period_ms") else UNLIMITED
    )
    unknown = UnknownFieldSet(attributes)
    frequencies = [
        unknown[i].data
        for i in range(len(unknown))
        if unknown[i].field_number == _PERIOD_FIELD and unknown[i].wire_type == _FIXED64
    ]
    if not frequencies:
        return sampled
    # Of several values the last one holds, as for any field.
    [hertz] = struct.unpack("<d", struct.pack("<Q", frequencies[-1]))
    return max(sampled, period_of(hertz))


def expire_ms_of(expire: Timestamp) -> int:
    """The end of a subscription in ms since the epoch, rounded up."""
    seconds, nanos = expire.seconds, expire.nanos
    if seconds not in _TIMESTAMP_SECONDS or not 0 <= nanos < 1_000_000_000:
        raise invalid_argument(
            f"expire {seconds} s {nanos} ns: expected the years 1 to 9999 and 0..999999999 ns"
        )
    return seconds * 1000 - -nanos // NS_PER_MS


def timestamp_of(expire_ms: int) -> Timestamp:
    seconds, ms = divmod(expire_ms, 1000)
    return Timestamp(seconds=seconds, nanos=ms * NS_PER_MS)


def sample_period_ms_of(period_ns: int) -> int | None:
    """A period in ms, rounded down so that a subscription with it does not starve a reader.

    None, to be left out, for less than a millisecond: every message. The period of 1e-9 Hz exceeds a uint32 and becomes
    the longest one, 49 days.
    """
    return min(period_ns // NS_PER_MS, _MAX_PERIOD_MS) or None


# --- requests of a client ---------------------------------------------------------------------------------------------


class SubscribeRequest(msgspec.Struct, frozen=True):
    """The content of a Subscribe. `expire_ms` is wall-clock time, None: no end; `period_ns` 0 is every message."""

    topic: UUri
    expire_ms: int | None = None
    period_ns: int = UNLIMITED


def subscribe_in(version: int, payload: bytes, payload_format: UPayloadFormat) -> SubscribeRequest:
    """The content of a Subscribe of `version`; raises INVALID_ARGUMENT that names the invalid field."""
    if version == VERSION_3:
        request_v3 = unpack_payload(pb3.SubscriptionRequest, payload, payload_format)
        attributes = request_v3.attributes
        expire_ms = expire_ms_of(attributes.expire) if attributes.HasField("expire") else None
        return SubscribeRequest(_topic_in(request_v3), expire_ms, period_ns_of(attributes))
    request_v4 = unpack_payload(pb4.SubscribeRequest, payload, payload_format)
    expire_ms = expire_ms_of(request_v4.expiration) if request_v4.HasField("expiration") else None
    return SubscribeRequest(_topic_in(request_v4), expire_ms, request_v4.sample_period * NS_PER_MS)


def unsubscribe_in(version: int, payload: bytes, payload_format: UPayloadFormat) -> UUri:
    """The topic of an Unsubscribe of `version`; raises INVALID_ARGUMENT if it is missing."""
    if version == VERSION_3:
        return _topic_in(unpack_payload(pb3.UnsubscribeRequest, payload, payload_format))
    return _topic_in(unpack_payload(pb4.UnsubscribeRequest, payload, payload_format))


def _topic_in(
    request: pb3.SubscriptionRequest | pb3.UnsubscribeRequest | pb4.SubscribeRequest | pb4.UnsubscribeRequest,
) -> UUri:
    if not request.HasField("topic"):
        raise invalid_argument("topic: missing")
    return UUri.from_pb(request.topic)


def subscribe_request(subscription: SubscribeRequest) -> Message:
    """A Subscribe of version 3."""
    request = pb3.SubscriptionRequest(topic=subscription.topic.to_pb())
    if subscription.expire_ms is not None:
        request.attributes.expire.CopyFrom(timestamp_of(subscription.expire_ms))
    return request


def unsubscribe_request(topic: UUri) -> Message:
    """An Unsubscribe of version 3."""
    return pb3.UnsubscribeRequest(topic=topic.to_pb())


# --- messages of a uSubscription --------------------------------------------------------------------------------------


class SubscriptionUpdate(msgspec.Struct, frozen=True):
    """The content of a notification of SubscriptionChange."""

    topic: UUri
    subscriber: UUri
    status: Status


class _VersionCodec(msgspec.Struct, frozen=True):
    status: Callable[[bytes, UPayloadFormat], int]
    update: Callable[[bytes, UPayloadFormat], tuple[uri.UUri, uri.UUri, int]]


def subscribe_response(version: int, topic: UUri, status: Status, reason: str = "") -> Message:
    """The response to a Subscribe of `version`."""
    if version == VERSION_3:
        status_pb = pb3.SubscriptionStatus(state=int(status), message=reason)
        return pb3.SubscriptionResponse(status=status_pb, topic=topic.to_pb())
    return pb4.SubscribeResponse(topic=topic.to_pb(), status=_in_version_4(status))


def unsubscribe_response(version: int) -> Message:
    """The response to an Unsubscribe of `version`: an empty response means UNSUBSCRIBED (X-3)."""
    return pb3.UnsubscribeResponse() if version == VERSION_3 else pb4.UnsubscribeResponse()


def update_message(version: int, topic: UUri, subscriber: UUri, status: Status, reason: str = "") -> Message:
    """The payload of topic SubscriptionChange of `version`."""
    if version == VERSION_3:
        return pb3.Update(
            topic=topic.to_pb(),
            subscriber=pb3.SubscriberInfo(uri=subscriber.to_pb()),
            status=pb3.SubscriptionStatus(state=int(status), message=reason),
        )
    return pb4.Subscription(topic=topic.to_pb(), subscriber=subscriber.to_pb(), status=_in_version_4(status))


def _in_version_4(status: Status) -> int:
    return status + 1  # version 3 has no UNSPECIFIED


def status_in(version: int, payload: bytes, payload_format: UPayloadFormat) -> Status:
    """The status in the response to a Subscribe of `version`; raises INVALID_ARGUMENT if there is none."""
    return _status(_VERSION_CODECS[version].status(payload, payload_format))


def is_update(message: UMessage) -> bool:
    """Whether a Notification is a SubscriptionChange of a uSubscription."""
    source = message.attributes.source
    return (
        source.ue_version_major in _VERSION_CODECS
        and source.ue_id == USUBSCRIPTION
        and source.resource_id == CHANGE_RESOURCE
    )


def subscription_update_in(message: UMessage) -> SubscriptionUpdate | None:
    """The content of a SubscriptionChange; None for any other message and for an invalid payload."""
    if not is_update(message):
        return None
    attributes = message.attributes
    codec = _VERSION_CODECS[attributes.source.ue_version_major]
    try:
        topic, subscriber, status = codec.update(message.payload, attributes.payload_format)
        return SubscriptionUpdate(UUri.from_pb(topic), UUri.from_pb(subscriber), _status(status))
    except UStatusError:
        return None  # a hint only: no component waits for it


def _status(number: int) -> Status:
    try:
        return Status(number)
    except ValueError as error:
        raise invalid_argument(
            f"status {number} of a subscription: expected 0..3 in version 3, 1..4 in version 4"
        ) from error


def _status_3(payload: bytes, payload_format: UPayloadFormat) -> int:
    response = unpack_payload(pb3.SubscriptionResponse, payload, payload_format)
    if not response.HasField("status"):  # the default value would end the subscription of every subscriber
        raise invalid_argument(f"payload of {len(payload)} bytes: status of the subscription is missing")
    return int(response.status.state)


def _update_3(payload: bytes, payload_format: UPayloadFormat) -> tuple[uri.UUri, uri.UUri, int]:
    update = unpack_payload(pb3.Update, payload, payload_format)
    return update.topic, update.subscriber.uri, int(update.status.state)


def _status_4(payload: bytes, payload_format: UPayloadFormat) -> int:
    return int(unpack_payload(pb4.SubscribeResponse, payload, payload_format).status) - 1


def _update_4(payload: bytes, payload_format: UPayloadFormat) -> tuple[uri.UUri, uri.UUri, int]:
    update = unpack_payload(pb4.Subscription, payload, payload_format)
    return update.topic, update.subscriber, int(update.status) - 1


_VERSION_CODECS: Final[Mapping[int, _VersionCodec]] = {
    VERSION_3: _VersionCodec(_status_3, _update_3),
    VERSION_4: _VersionCodec(_status_4, _update_4),
}
