# SPDX-License-Identifier: Apache-2.0
"""One subscription as this service knows it."""

from typing import TypeAlias

from ustreamer.core.subscriptions import Subscription
from ustreamer.uprotocol.uuri import UUri

Pair: TypeAlias = tuple[UUri, UUri]
"""(topic, subscriber): what identifies a subscription."""


class Tracked(Subscription, frozen=True, gc=False):
    """A subscription with what routing does not ask for.

    `expire_ms` is wall-clock time since the epoch, None for ever. `details` is a protobuf SubscribeAttributes with the
    details that the subscriber gave for the producer, and nothing else.
    """

    expire_ms: int | None = None
    details: bytes = b""

    @property
    def pair(self) -> Pair:
        return self.topic, self.subscriber

    def expired(self, now_ms: int) -> bool:
        """Whether `expire_ms` has passed: at that very millisecond the subscription still stands."""
        return self.expire_ms is not None and now_ms > self.expire_ms
