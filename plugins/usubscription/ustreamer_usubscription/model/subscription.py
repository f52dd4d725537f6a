# SPDX-License-Identifier: Apache-2.0
"""A subscription, and who watches it, as this service knows them."""

from typing import TypeAlias

import msgspec

from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri

TopicEntityPair: TypeAlias = tuple[UUri, UUri]
"""(topic, subscriber) or (topic, entity): what identifies a subscription or a registration."""


class SubscriptionRecord(Subscription, frozen=True, gc=False):
    """A subscription with what routing does not ask for.

    `expire_ms` is wall-clock time since the epoch, None for ever. `details` is a protobuf SubscribeAttributes with the
    details that the subscriber gave for the producer, and nothing else. `version` is that of the interface by which the
    subscriber asked, and in whose words it is told of changes.
    """

    expire_ms: int | None = None
    details: bytes = b""
    version: int = 3

    @property
    def pair(self) -> TopicEntityPair:
        return self.topic, self.subscriber

    def is_expired(self, now_ms: int) -> bool:
        """Whether `expire_ms` has passed: at that very millisecond the subscription still stands.

        [impl->req~usubscription-subscribe-no-expiration~1]
        """
        return self.expire_ms is not None and now_ms > self.expire_ms


class Observer(msgspec.Struct, frozen=True, gc=False):
    """An entity that registered to be told when subscriptions of `topic` change, in the words of interface `version`."""

    topic: UUri
    entity: UUri
    version: int = 3

    @property
    def pair(self) -> TopicEntityPair:
        return self.topic, self.entity


class SubscriptionStatusChange(msgspec.Struct, frozen=True):
    """A change of a subscription, and who watched the topic when it came.

    `entry` is what stands now or, if `status` is UNSUBSCRIBED, what stood before; `why` is for people.
    """

    entry: SubscriptionRecord
    status: Status
    observers: tuple[Observer, ...] = ()
    reason: str = ""
