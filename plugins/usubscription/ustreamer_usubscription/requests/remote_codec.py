# SPDX-License-Identifier: Apache-2.0
"""How to talk to the uSubscription of another device, in each version of the interface.

Version 3 is what every device has; only a topic of every instance of an entity needs version 4 (X-16).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import Message

from ustreamer.core.routing import usubscription_codec
from ustreamer.core.routing.usubscription_codec import Status, sample_period_of, timestamp_of
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.model.subscription import Tracked
from ustreamer_usubscription.requests import v3, v4
from ustreamer_usubscription.requests.requests import attributes_of


class Language(NamedTuple):
    """One version of the interface, as a client speaks it."""

    subscribe: Callable[[Tracked], Message]
    unsubscribe: Callable[[UUri], Message]


def version_for(topic: UUri) -> int:
    """The version in which to talk about `topic`."""
    return v4.VERSION if topic.ue_instance == ANY_INSTANCE else v3.VERSION


def status_in(answer: UMessage, topic: UUri) -> Status:
    """What the answer to a Subscribe for `topic` says; INVALID_ARGUMENT if that is nothing.

    It is read in the version of the call, whatever its source says.
    """
    return usubscription_codec.status_in(version_for(topic), answer.payload, answer.attributes.payload_format)


# --- version 3 --------------------------------------------------------------------------------------------------------


def _subscribe_3(wish: Tracked) -> Message:
    request = pb3.SubscriptionRequest(topic=wish.topic.to_pb())
    attributes = attributes_of(wish)
    if attributes.ByteSize():
        request.attributes.CopyFrom(attributes)
    return request


def _unsubscribe_3(topic: UUri) -> Message:
    return pb3.UnsubscribeRequest(topic=topic.to_pb())


# --- version 4 --------------------------------------------------------------------------------------------------------


def _subscribe_4(wish: Tracked) -> Message:
    request = pb4.SubscribeRequest(topic=wish.topic.to_pb())
    if wish.expire_ms is not None:
        request.expiration.CopyFrom(timestamp_of(wish.expire_ms))
    sample_period = sample_period_of(wish.period_ns)
    if sample_period is not None:
        request.sample_period = sample_period
    return request


def _unsubscribe_4(topic: UUri) -> Message:
    return pb4.UnsubscribeRequest(topic=topic.to_pb())


LANGUAGES: Final[Mapping[int, Language]] = {
    v3.VERSION: Language(_subscribe_3, _unsubscribe_3),
    v4.VERSION: Language(_subscribe_4, _unsubscribe_4),
}
