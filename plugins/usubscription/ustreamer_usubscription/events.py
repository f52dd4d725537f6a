# SPDX-License-Identifier: Apache-2.0
"""What has happened to a subscription, as the history keeps it."""

from typing import Final, NamedTuple

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.model.subscription import Changed

MAX_WHY: Final = 200
"""Characters of a reason that are kept: it may be what another uSubscription said."""


class Event(NamedTuple):
    """A subscription came to have this status, at this wall-clock time, for this reason (for people, may be empty).

    `version` is that of the interface by which the subscriber asked.
    """

    time_ms: int
    topic: UUri
    subscriber: UUri
    status: Status
    why: str = ""
    version: int = 3


def event_of(changed: Changed, now_ms: int) -> Event:
    entry = changed.entry
    why = changed.why[:MAX_WHY]
    return Event(now_ms, entry.topic, entry.subscriber, changed.status, why, entry.version)
