# SPDX-License-Identifier: Apache-2.0
"""A subscription, its observers and its changes, as values."""

from typing import TypeAlias

import msgspec

from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri

TopicEntityPair: TypeAlias = tuple[UUri, UUri]
"""(topic, subscriber) or (topic, entity): the identity of a subscription or a registration."""


class SubscriptionRecord(Subscription, frozen=True, gc=False):
    """A subscription with the fields that routing does not need.

    `expire_ms` is wall-clock time since the epoch, None for no expiry. `details` is a protobuf SubscribeAttributes
    with the subscriber's details for the producer only. `version` is that of the interface of the Subscribe, and of
    the Updates to the subscriber.
    """

    expire_ms: int | None = None
    details: bytes = b""
    version: int = 3

    @property
    def pair(self) -> TopicEntityPair:
        return self.topic, self.subscriber

    def is_expired(self, now_ms: int) -> bool:
        """Whether `expire_ms` has passed: at exactly that millisecond the subscription is still valid.

        [impl->req~usubscription-subscribe-no-expiration~1]
        """
        return self.expire_ms is not None and now_ms > self.expire_ms


class Observer(msgspec.Struct, frozen=True, gc=False):
    """An entity registered for changes of the subscriptions of `topic`, by interface `version`."""

    topic: UUri
    entity: UUri
    version: int = 3

    @property
    def pair(self) -> TopicEntityPair:
        return self.topic, self.entity


class SubscriptionStatusChange(msgspec.Struct, frozen=True):
    """A change of a subscription, with the observers of its topic at that time.

    `entry` is the new subscription or, if `status` is UNSUBSCRIBED, the ended one; `reason` is for people. The
    subscriber itself is notified if `notifies_subscriber`.
    """

    entry: SubscriptionRecord
    status: Status
    observers: tuple[Observer, ...] = ()
    reason: str = ""
    notifies_subscriber: bool = True
