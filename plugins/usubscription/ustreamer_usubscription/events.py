# SPDX-License-Identifier: Apache-2.0
"""A change of a subscription, as a value of the history."""

from typing import Final, NamedTuple

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange

MAX_REASON_CHARS: Final = 200
"""Characters of a reason that are kept: another uSubscription may have sent it."""


class SubscriptionEvent(NamedTuple):
    """A subscription changed to this status, at this wall-clock time, for this reason (free text, may be empty).

    `version` is the version of the interface that the subscriber used.
    """

    time_ms: int
    topic: UUri
    subscriber: UUri
    status: Status
    reason: str = ""
    version: int = 3


def subscription_event_of(change: SubscriptionStatusChange, now_ms: int) -> SubscriptionEvent:
    entry = change.entry
    reason = change.reason[:MAX_REASON_CHARS]
    return SubscriptionEvent(now_ms, entry.topic, entry.subscriber, change.status, reason, entry.version)
