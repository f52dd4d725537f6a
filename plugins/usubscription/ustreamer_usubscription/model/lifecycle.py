# SPDX-License-Identifier: Apache-2.0
"""The state machine of subscriptions: what a topic is to those who subscribed it.

A client-topic relation that there is has the state of its topic; one that there is not is UNSUBSCRIBED (X-2). So a remote
topic has a state of its own, which outlives its last client until the other uSubscription has been told; a local one is
SUBSCRIBED as long as anybody subscribes it, and need not be remembered.

[impl->dsn~usubscription-state-machine~1]
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from ustreamer.core.routing.usubscription_codec import Status


class LifecycleEvent(Enum):
    """What may happen to a topic."""

    CLIENT_SUBSCRIBED = auto()
    """A client subscribes, be it the first or another one."""
    LAST_CLIENT_LEFT = auto()
    """The last client has gone: unsubscribed, expired, or reset."""
    REMOTE_SUBSCRIBED = auto()
    """The topic's own uSubscription answered SUBSCRIBED."""
    REMOTE_PENDING = auto()
    """The topic's own uSubscription answered SUBSCRIBE_PENDING: it waits for another one in turn."""
    REMOTE_REFUSED = auto()
    """The topic's own uSubscription answered a Subscribe with UNSUBSCRIBED or with an error."""
    REMOTE_UNSUBSCRIBED = auto()
    """The topic's own uSubscription answered an Unsubscribe, whatever it said."""


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
"""What is not in here changes nothing: a further client of a topic, or an answer that came too late to matter."""


def next_status(status: Status, event: LifecycleEvent, *, remote: bool) -> Status:
    """The state of a topic that had `status` when `event` came."""
    return (REMOTE_TRANSITIONS if remote else LOCAL_TRANSITIONS).get((status, event), status)
