# SPDX-License-Identifier: Apache-2.0
"""What is said to a uSubscription, and what its answers mean. Pure."""

import struct

from google.protobuf.message import DecodeError

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status
from ustreamer_wamp import errors
from ustreamer_wamp.errors import Refusal


def subscribe(topic: UUri, period_ns: int) -> bytes:
    payload: bytes = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
    if period_ns:
        # SubscribeAttributes.max_frequency, a double of number 3: ours is a parser that has sample_period_ms there, which
        # cannot say 60 Hz.
        attributes = b"\x19" + struct.pack("<d", 1e9 / period_ns)
        payload += b"\x1a" + bytes([len(attributes)]) + attributes
    return payload


def unsubscribe(topic: UUri) -> bytes:
    payload: bytes = pb.UnsubscribeRequest(topic=topic.to_pb()).SerializeToString()
    return payload


def failure_in(message: UMessage, is_subscribe: bool) -> UStatus | None:
    """Why a call failed, by its answer; None if it did not."""
    code = message.attributes.commstatus
    if code:
        try:
            return decode_status(message.payload)
        except UStatusError:
            return UStatus(code)
    if not is_subscribe:
        return None
    answer = pb.SubscriptionResponse()
    try:
        answer.ParseFromString(message.payload)
    except DecodeError as error:
        return UStatus(UCode.INTERNAL, f"an answer that is no SubscriptionResponse: {error}")
    if answer.status.state == pb.SubscriptionStatus.UNSUBSCRIBED:
        return UStatus(UCode.FAILED_PRECONDITION, answer.status.message or "not subscribed")
    return None


def stands(message: UMessage) -> bool:
    """Whether the answer to a FetchSubscriptions for one topic and one subscriber says that there is such a subscription."""
    if message.attributes.commstatus:
        return False
    found = pb4.FetchSubscriptionsResponse()
    try:
        found.ParseFromString(message.payload)
    except DecodeError:
        return False
    return len(found.subscriptions) > 0


def refusal_of(status: UStatus) -> Refusal:
    """What a client is told of a failure in the vehicle."""
    if status.code is UCode.PERMISSION_DENIED:
        return Refusal(errors.NOT_AUTHORIZED, status.message)
    return Refusal(f"up.error.{status.code.name.lower()}", status.message)
