# SPDX-License-Identifier: Apache-2.0
"""Messages to the uSubscription of another device, in each version of the interface."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from google.protobuf.message import Message

from ustreamer.core.routing import usubscription_codec
from ustreamer.core.routing.usubscription_codec import Status, sample_period_ms_of, timestamp_of
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests import v3, v4
from ustreamer_usubscription.requests.requests import subscribe_attributes_of

FETCH_SUBSCRIPTIONS: Final = 3
"""The same method in both versions."""


class ClientCodec(msgspec.Struct, frozen=True):
    """The client side of one version of the interface."""

    encode_subscribe: Callable[[SubscriptionRecord], Message]
    encode_unsubscribe: Callable[[UUri], Message]
    encode_fetch: Callable[[UUri], Message]
    """FetchSubscriptions of a topic."""


def subscribe_status_in(response: UMessage, version: int) -> Status:
    """The status in the answer to a Subscribe in `version`; INVALID_ARGUMENT if it cannot be decoded.

    The response is decoded in the version of the call, whatever its source address.
    """
    return usubscription_codec.status_in(version, response.payload, response.attributes.payload_format)


# --- version 3 --------------------------------------------------------------------------------------------------------


def _encode_subscribe_v3(subscription: SubscriptionRecord) -> Message:
    request = pb3.SubscriptionRequest(topic=subscription.topic.to_pb())
    attributes = subscribe_attributes_of(subscription)
    if attributes.ByteSize():
        request.attributes.CopyFrom(attributes)
    return request


def _encode_unsubscribe_v3(topic: UUri) -> Message:
    return pb3.UnsubscribeRequest(topic=topic.to_pb())


def _encode_fetch_v3(topic: UUri) -> Message:
    return pb3.FetchSubscriptionsRequest(topic=topic.to_pb())


# --- version 4 --------------------------------------------------------------------------------------------------------


def _encode_subscribe_v4(subscription: SubscriptionRecord) -> Message:
    request = pb4.SubscribeRequest(topic=subscription.topic.to_pb())
    if subscription.expire_ms is not None:
        request.expiration.CopyFrom(timestamp_of(subscription.expire_ms))
    sample_period = sample_period_ms_of(subscription.period_ns)
    if sample_period is not None:
        request.sample_period = sample_period
    return request


def _encode_unsubscribe_v4(topic: UUri) -> Message:
    return pb4.UnsubscribeRequest(topic=topic.to_pb())


def _encode_fetch_v4(topic: UUri) -> Message:
    return pb4.FetchSubscriptionsRequest(topic_filter=topic.to_pb())


CLIENT_CODECS: Final[Mapping[int, ClientCodec]] = {
    v3.VERSION: ClientCodec(_encode_subscribe_v3, _encode_unsubscribe_v3, _encode_fetch_v3),
    v4.VERSION: ClientCodec(_encode_subscribe_v4, _encode_unsubscribe_v4, _encode_fetch_v4),
}
