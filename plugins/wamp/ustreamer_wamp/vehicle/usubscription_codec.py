# SPDX-License-Identifier: Apache-2.0
"""Requests to a uSubscription and the meaning of its answers. Pure.

Version 3 is used, for rates to the nanosecond; a topic of every instance of an entity exists in version 4 only
(X-16).
"""

import struct
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from ustreamer.core.routing.usubscription_codec import (
    VERSION_3,
    VERSION_4,
    Status,
    status_in,
    subscription_update_in,
    unpack_payload,
)
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer.uprotocol.wire import decode_status
from ustreamer_wamp import errors
from ustreamer_wamp.errors import WampRefusal

_NS_PER_MS: Final = 1_000_000
_LONGEST_MS: Final = 2**32 - 1


def version_for(topic: UUri) -> int:
    """The version of the interface that can express `topic`."""
    return VERSION_4 if topic.ue_instance == ANY_INSTANCE else VERSION_3


def encode_subscribe(topic: UUri, period_ns: int) -> bytes:
    if version_for(topic) == VERSION_4:
        return _encode_subscribe_4(topic, period_ns)
    payload: bytes = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
    if period_ns:
        # SubscribeAttributes.max_frequency, a double of number 3: our generated class has sample_period_ms there,
        # which cannot express 60 Hz.
        attributes = b"\x19" + struct.pack("<d", 1e9 / period_ns)
        payload += b"\x1a" + bytes([len(attributes)]) + attributes
    return payload


def _encode_subscribe_4(topic: UUri, period_ns: int) -> bytes:
    request = pb4.SubscribeRequest(topic=topic.to_pb())
    if period_ns:
        # Rounded up: the effective rate must not be faster than the requested one.
        request.sample_period = min(-(-period_ns // _NS_PER_MS), _LONGEST_MS)
    payload: bytes = request.SerializeToString()
    return payload


def encode_unsubscribe(topic: UUri) -> bytes:
    kind = pb4.UnsubscribeRequest if version_for(topic) == VERSION_4 else pb.UnsubscribeRequest
    payload: bytes = kind(topic=topic.to_pb()).SerializeToString()
    return payload


def call_failure_in(message: UMessage, topic: UUri, *, is_subscribe: bool) -> UStatus | None:
    """Why a call about `topic` failed, by its answer; None if it did not."""
    code = message.attributes.commstatus
    if code:
        try:
            return decode_status(message.payload)
        except UStatusError:
            return UStatus(code)
    if not is_subscribe:
        return None
    if version_for(topic) == VERSION_4:
        return _call_failure_in_4(message)
    answer = pb.SubscriptionResponse()
    try:
        answer.ParseFromString(message.payload)
    except DecodeError as error:
        return UStatus(UCode.INTERNAL, f"an answer that is no SubscriptionResponse: {error}")
    if answer.status.state == pb.SubscriptionStatus.UNSUBSCRIBED:
        return UStatus(UCode.FAILED_PRECONDITION, answer.status.message or "not subscribed")
    return None


def _call_failure_in_4(message: UMessage) -> UStatus | None:
    try:
        status = status_in(VERSION_4, message.payload, message.attributes.payload_format)
    except UStatusError as error:
        return UStatus(UCode.INTERNAL, f"an answer that is no SubscribeResponse: {error.message}")
    return UStatus(UCode.FAILED_PRECONDITION, "not subscribed") if status is Status.UNSUBSCRIBED else None


def subscribed_topic_in(message: UMessage) -> UUri | None:
    """The topic that the answer to a Subscribe is about, by that answer alone; None if it names none."""
    kind = pb4.SubscribeResponse if message.attributes.source.ue_version_major == VERSION_4 else None
    answer = (kind or pb.SubscriptionResponse)()
    try:
        answer.ParseFromString(message.payload)
        return UUri.from_pb(answer.topic) if answer.HasField("topic") else None
    except (DecodeError, UStatusError):
        return None


class StatusUpdate(NamedTuple):
    """The content of an Update. `why` may be empty."""

    topic: UUri
    has_ended: bool
    why: str


def status_update_in(message: UMessage) -> StatusUpdate | None:
    """The content of an Update; None if it cannot be decoded."""
    update = subscription_update_in(message)
    if update is None:
        return None
    why = ""
    if message.attributes.source.ue_version_major == VERSION_3:  # version 4 has no field for it
        why = unpack_payload(pb.Update, message.payload, message.attributes.payload_format).status.message
    return StatusUpdate(update.topic, update.status is Status.UNSUBSCRIBED, why)


def subscription_exists(message: UMessage) -> bool:
    """True if the response to a FetchSubscriptions for one topic and one subscriber contains a subscription."""
    if message.attributes.commstatus:
        return False
    found = pb4.FetchSubscriptionsResponse()
    try:
        found.ParseFromString(message.payload)
    except DecodeError:
        return False
    return len(found.subscriptions) > 0


def refusal_of(status: UStatus) -> WampRefusal:
    """The refusal for a failure in the vehicle."""
    if status.code is UCode.PERMISSION_DENIED:
        return WampRefusal(errors.NOT_AUTHORIZED, status.message)
    return WampRefusal(f"up.error.{status.code.name.lower()}", status.message)
