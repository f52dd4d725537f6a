# SPDX-License-Identifier: Apache-2.0
"""A change of a subscription, as messages to its subscriber, its observers and the change topic."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from google.protobuf.message import Message

from ustreamer.core.routing.usubscription_codec import CHANGE_RESOURCE, USUBSCRIPTION
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange
from ustreamer_usubscription.requests import v3, v4

SUBSCRIBER_TTL_MS: Final = 10_000
"""The ttl of an Update to the subscriber itself, which may start to listen after its Subscribe, or never."""

_ENCODERS: Final[Mapping[int, Callable[[SubscriptionStatusChange], Message]]] = {
    v3.VERSION: v3.encode_update,
    v4.VERSION: v4.encode_change,
}


def change_topics(authority: str) -> list[UUri]:
    """The change topic of each interface version of core.usubscription at `authority`."""
    return [_change_topic(authority, version) for version in _ENCODERS]


def _change_topic(authority: str, version: int) -> UUri:
    return UUri(authority, USUBSCRIPTION, version, CHANGE_RESOURCE)


def update_messages(
    change: SubscriptionStatusChange, authority: str, next_id: Callable[[], UUID]
) -> Iterator[UMessage]:
    """A Notification to the subscriber, one to each observer, and a Publish of the same (X-7).

    A subscriber gets an Update without a registration, and many do not listen: after `SUBSCRIBER_TTL_MS` the Update
    expires and is no dead letter. An observer has registered, so an undeliverable Update to it is kept like any other
    message. Each gets the Update of its interface version; both versions are published. The source is
    core.usubscription at `authority`, with the priority of the standard for its traffic (X-24).

    [impl->dsn~usubscription-change-notification-type~1] [impl->dsn~usubscription-change-notification-topic~1]
    [impl->req~usubscription-change-notification~1] [impl->req~usubscription-change-notification-resource~1]
    [impl->req~usubscription-change-topic~1] [impl->LIF-10] [impl->LIF-11] [impl->LIF-13]
    [impl->dsn~usubscription-change-notification-update~1] [impl->req~usubscription-register-notifications~1]
    """
    for version, encode in _ENCODERS.items():
        source = _change_topic(authority, version)
        payload = encode(change).SerializeToString()
        ttls: dict[UUri, int | None] = {}
        if change.notifies_subscriber and change.entry.version == version:
            ttls[change.entry.subscriber] = SUBSCRIBER_TTL_MS
        # A subscriber that is an observer, too, gets one.
        ttls |= {each.entity: None for each in change.observers if each.version == version}
        for entity, ttl in ttls.items():
            yield notification(
                next_id(),
                source,
                entity.with_resource(0),
                payload,
                UPayloadFormat.PROTOBUF,
                priority=UPriority.CS2,
                ttl=ttl,
            )
        yield publish(next_id(), source, payload, UPayloadFormat.PROTOBUF, priority=UPriority.CS2)
