# SPDX-License-Identifier: Apache-2.0
"""Payloads of requests and responses, and the rules for their fields, common to both interface versions."""

from collections.abc import Callable, Container
from typing import Final, TypeVar

import msgspec
from google.protobuf.message import Message

from ustreamer.core.routing.identity import Peer
from ustreamer.core.routing.usubscription_codec import (
    expire_ms_of,
    period_ns_of,
    sample_period_ms_of,
    timestamp_of,
    unpack_payload,
)
from ustreamer.uprotocol.pb import uri
from ustreamer.uprotocol.pb.usubscription_v3 import SubscribeAttributes
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import FIRST_TOPIC, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests.policy import SubscriptionPolicy

DEFAULT_POLICY: Final = SubscriptionPolicy(UsubscriptionConfig(), "")
"""The policy of an empty configuration."""

UNVERIFIED: Final = Peer("")
"""A caller that no network has verified."""

M = TypeVar("M", bound=Message)

MAX_DETAILS: Final = 4096
"""Bytes of details that a subscriber may leave for the producer, stored with the subscription."""


class CallContext(msgspec.Struct, frozen=True):
    """A request and its context.

    `id` and `caller` are those of the message. `authority` is that of the called service, and replaces an empty
    authority in a payload (X-18); `serves` are those with local topics. `permission_level` is the caller's.
    `started_ms` is the time at which the service started, by the wall clock of now.
    """

    id: UUID
    caller: UUri
    authority: str
    serves: Container[str]
    payload: bytes = b""
    payload_format: UPayloadFormat = UPayloadFormat.UNSPECIFIED
    permission_level: int | None = None
    policy: SubscriptionPolicy = DEFAULT_POLICY
    started_ms: int = 0
    peer_of: Callable[[UUri], Peer] = lambda _: UNVERIFIED

    @property
    def peer(self) -> Peer:
        """The verified sender."""
        return self.peer_of(self.caller)


# --- payloads ---------------------------------------------------------------------------------------------------------


def unpack_request(kind: type[M], call: CallContext) -> M:
    """The request message of a call; INVALID_ARGUMENT if it cannot be decoded.

    up-rust wraps requests in Any, up-python does not, and SOME/IP has no field for it: UNSPECIFIED is read as
    PROTOBUF.
    """
    return unpack_payload(kind, call.payload, call.payload_format)


# --- addresses --------------------------------------------------------------------------------------------------------


def specific_uuri(field: str, message: uri.UUri, call: CallContext) -> UUri:
    """The address of one entity or topic; INVALID_ARGUMENT naming the part that is malformed or a wildcard.

    [impl->dsn~usubscription-uri-version-major~1] [impl->LIF-9] A wildcard version is refused here, too.
    """
    address = UUri.from_pb(message).with_authority(call.authority)
    part = address.wildcard()
    if part is not None:
        raise invalid_argument(f"{field} {address}: its {part} is a wildcard, expected a specific one")
    return address


def topic_uuri(message: uri.UUri, call: CallContext) -> UUri:
    """The topic in a request; INVALID_ARGUMENT naming the invalid part (X-17 to X-19)."""
    topic = specific_uuri("topic", message, call)
    check_topic_resource(topic)
    return topic


def check_topic_resource(topic: UUri) -> None:
    """INVALID_ARGUMENT for the address of a method or of an entity (X-19)."""
    if not topic.is_topic:
        raise invalid_argument(
            f"topic {topic}: resource {topic.resource_id:X} is not a topic, expected {FIRST_TOPIC:X}..FFFE"
        )


# --- attributes of a subscription -------------------------------------------------------------------------------------


def subscription_record(topic: UUri, subscriber: UUri, attributes: SubscribeAttributes) -> SubscriptionRecord:
    """The requested subscription; INVALID_ARGUMENT naming the invalid attribute."""
    expire_ms = expire_ms_of(attributes.expire) if attributes.HasField("expire") else None
    return SubscriptionRecord(topic, subscriber, period_ns_of(attributes), expire_ms, _details(attributes))


def _details(attributes: SubscribeAttributes) -> bytes:
    if not attributes.details:
        return b""
    details = SubscribeAttributes(details=attributes.details).SerializeToString()
    if len(details) > MAX_DETAILS:
        raise invalid_argument(f"details: {len(details)} bytes, at most {MAX_DETAILS} are kept")
    return details


def subscribe_attributes_of(entry: SubscriptionRecord) -> SubscribeAttributes:
    """The attributes of a subscription, in the current interface.

    The period is sent as `sample_period_ms`; `max_frequency` is read and never written.
    """
    attributes = SubscribeAttributes.FromString(entry.details)
    if entry.expire_ms is not None:
        attributes.expire.CopyFrom(timestamp_of(entry.expire_ms))
    sample_period_ms = sample_period_ms_of(entry.period_ns)
    if sample_period_ms is not None:
        attributes.sample_period_ms = sample_period_ms
    return attributes
