# SPDX-License-Identifier: Apache-2.0
"""How to talk to the uSubscription of another device, in each version of the interface.

Version 3 is what every device has; only a topic of every instance of an entity needs version 4 (X-16).
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from google.protobuf.message import Message

from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError, invalid
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription import v3, v4
from ustreamer_usubscription.messages import attributes_of, read, sample_period_of, timestamp_of
from ustreamer_usubscription.operations import USUBSCRIPTION
from ustreamer_usubscription.states import Status
from ustreamer_usubscription.tracked import Tracked
from ustreamer_usubscription.updates import CHANGE


class Told(NamedTuple):
    """What a notification of change says."""

    topic: UUri
    subscriber: UUri
    status: Status


class Language(NamedTuple):
    """One version of the interface, as a client speaks it."""

    subscribe: Callable[[Tracked], Message]
    unsubscribe: Callable[[UUri], Message]
    status: Callable[[bytes, UPayloadFormat], int]
    """The status in the answer to a Subscribe, as a number of version 3."""
    told: Callable[[bytes, UPayloadFormat], tuple[uri.UUri, uri.UUri, int]]


def version_for(topic: UUri) -> int:
    """The version in which to talk about `topic`."""
    return v4.VERSION if topic.ue_instance == ANY_INSTANCE else v3.VERSION


def status_in(answer: UMessage, topic: UUri) -> Status:
    """What the answer to a Subscribe for `topic` says; INVALID_ARGUMENT if that is nothing.

    It is read in the version of the call, whatever its source says.
    """
    language = LANGUAGES[version_for(topic)]
    return _status(language.status(answer.payload, answer.attributes.payload_format))


def is_change(message: UMessage) -> bool:
    """Whether a Notification is one of change from a uSubscription."""
    source = message.attributes.source
    return (
        source.ue_version_major in LANGUAGES
        and source.ue_id == USUBSCRIPTION
        and source.resource_id == CHANGE
    )


def told_in(message: UMessage) -> Told | None:
    """What a message says if it is a notification of change."""
    if not is_change(message):
        return None
    attributes = message.attributes
    language = LANGUAGES[attributes.source.ue_version_major]
    try:
        topic, subscriber, status = language.told(message.payload, attributes.payload_format)
        return Told(UUri.from_pb(topic), UUri.from_pb(subscriber), _status(status))
    except UStatusError:
        return None  # nobody waits for it, and nothing hangs on it: it is a hint


def _status(number: int) -> Status:
    try:
        return Status(number)
    except ValueError as error:
        raise invalid(
            f"status {number} of a subscription: expected 0..3 in version 3, 1..4 in version 4"
        ) from error


# --- version 3 --------------------------------------------------------------------------------------------------------


def _subscribe_3(wish: Tracked) -> Message:
    request = pb3.SubscriptionRequest(topic=wish.topic.to_pb())
    attributes = attributes_of(wish)
    if attributes.ByteSize():
        request.attributes.CopyFrom(attributes)
    return request


def _unsubscribe_3(topic: UUri) -> Message:
    return pb3.UnsubscribeRequest(topic=topic.to_pb())


def _status_3(payload: bytes, payload_format: UPayloadFormat) -> int:
    answer = read(pb3.SubscriptionResponse, payload, payload_format)
    if not answer.HasField("status"):  # its default would end everybody's subscription
        raise invalid(f"payload of {len(payload)} bytes: status of the subscription is missing")
    return int(answer.status.state)


def _told_3(payload: bytes, payload_format: UPayloadFormat) -> tuple[uri.UUri, uri.UUri, int]:
    update = read(pb3.Update, payload, payload_format)
    return update.topic, update.subscriber.uri, int(update.status.state)


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


def _status_4(payload: bytes, payload_format: UPayloadFormat) -> int:
    return int(read(pb4.SubscribeResponse, payload, payload_format).status) - 1


def _told_4(payload: bytes, payload_format: UPayloadFormat) -> tuple[uri.UUri, uri.UUri, int]:
    change = read(pb4.Subscription, payload, payload_format)
    return change.topic, change.subscriber, int(change.status) - 1


LANGUAGES: Final[Mapping[int, Language]] = {
    v3.VERSION: Language(_subscribe_3, _unsubscribe_3, _status_3, _told_3),
    v4.VERSION: Language(_subscribe_4, _unsubscribe_4, _status_4, _told_4),
}
