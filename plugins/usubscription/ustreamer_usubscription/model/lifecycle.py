# SPDX-License-Identifier: Apache-2.0
"""The state machine of subscriptions: the state of a topic for its subscribers.

An existing client-topic relation has the state of its topic; a missing one is UNSUBSCRIBED (X-2). So a remote topic
has a state, which outlives its last client until the other uSubscription has acknowledged the Unsubscribe. A local
topic is SUBSCRIBED while it has a subscription, and its state is not stored.

[impl->dsn~usubscription-state-machine~1]
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from ustreamer.core.routing.usubscription_codec import Status


class LifecycleEvent(Enum):
    """The events of a topic."""

    CLIENT_SUBSCRIBED = auto()
    """A client subscribes, the first or a further one."""
    LAST_CLIENT_LEFT = auto()
    """The last client left: unsubscribed, expired, or reset."""
    REMOTE_SUBSCRIBED = auto()
    """The topic's own uSubscription answered SUBSCRIBED."""
    REMOTE_PENDING = auto()
    """The topic's own uSubscription answered SUBSCRIBE_PENDING: it waits for a further device."""
    REMOTE_REFUSED = auto()
    """The topic's own uSubscription answered a Subscribe with UNSUBSCRIBED or with an error."""
    REMOTE_UNSUBSCRIBED = auto()
    """The topic's own uSubscription answered an Unsubscribe, with success or an error."""


_U, _S = Status.UNSUBSCRIBED, Status.SUBSCRIBED
_SUB, _UNSUB = Status.SUBSCRIBE_PENDING, Status.UNSUBSCRIBE_PENDING

LOCAL_TRANSITIONS: Final[Mapping[tuple[Status, LifecycleEvent], Status]] = {
    (_U, LifecycleEvent.CLIENT_SUBSCRIBED): _S,
    (_S, LifecycleEvent.LAST_CLIENT_LEFT): _U,
}

# [impl->req~usubscription-subscribe-remote-pending~1] [impl->req~usubscription-subscribe-remote-response~1]
# [impl->req~usubscription-subscribe-unsubscribe-pending~1] [impl->req~usubscription-unsubscribe-subscribe-pending~1]
# [impl->req~usubscription-unsubscribe-remote-unsubscribed~1]
REMOTE_TRANSITIONS: Final[Mapping[tuple[Status, LifecycleEvent], Status]] = {
    (_U, LifecycleEvent.CLIENT_SUBSCRIBED): _SUB,
    (_SUB, LifecycleEvent.REMOTE_SUBSCRIBED): _S,
    (_SUB, LifecycleEvent.REMOTE_REFUSED): _U,
    (_SUB, LifecycleEvent.LAST_CLIENT_LEFT): _UNSUB,
    (_S, LifecycleEvent.REMOTE_PENDING): _SUB,
    (_S, LifecycleEvent.REMOTE_REFUSED): _U,
    (_S, LifecycleEvent.LAST_CLIENT_LEFT): _UNSUB,
    (_UNSUB, LifecycleEvent.CLIENT_SUBSCRIBED): _SUB,
    (_UNSUB, LifecycleEvent.REMOTE_UNSUBSCRIBED): _U,
}
"""A missing pair changes nothing: a further client of a topic, or a late answer."""


def next_status(status: Status, event: LifecycleEvent, *, remote: bool) -> Status:
    """The state after `event` of a topic that had `status`."""
    return (REMOTE_TRANSITIONS if remote else LOCAL_TRANSITIONS).get((status, event), status)
