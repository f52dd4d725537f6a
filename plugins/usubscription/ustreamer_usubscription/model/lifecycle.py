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


class Event(Enum):
    """What may happen to a topic."""

    WANTED = auto()
    """A client subscribes, be it the first or another one."""
    UNWANTED = auto()
    """The last client has gone: unsubscribed, expired, or reset."""
    GRANTED = auto()
    """The topic's own uSubscription answered SUBSCRIBED."""
    DEFERRED = auto()
    """The topic's own uSubscription answered SUBSCRIBE_PENDING: it waits for another one in turn."""
    REFUSED = auto()
    """The topic's own uSubscription answered a Subscribe with UNSUBSCRIBED or with an error."""
    RELEASED = auto()
    """The topic's own uSubscription answered an Unsubscribe, whatever it said."""


_U, _S = Status.UNSUBSCRIBED, Status.SUBSCRIBED
_SUB, _UNSUB = Status.SUBSCRIBE_PENDING, Status.UNSUBSCRIBE_PENDING

LOCAL: Final[Mapping[tuple[Status, Event], Status]] = {
    (_U, Event.WANTED): _S,
    (_S, Event.UNWANTED): _U,
}

# [impl->req~usubscription-subscribe-remote-pending~1] [impl->req~usubscription-subscribe-remote-response~1]
# [impl->req~usubscription-subscribe-unsubscribe-pending~1] [impl->req~usubscription-unsubscribe-subscribe-pending~1]
# [impl->req~usubscription-unsubscribe-remote-unsubscribed~1]
REMOTE: Final[Mapping[tuple[Status, Event], Status]] = {
    (_U, Event.WANTED): _SUB,
    (_SUB, Event.GRANTED): _S,
    (_SUB, Event.REFUSED): _U,
    (_SUB, Event.UNWANTED): _UNSUB,
    (_S, Event.DEFERRED): _SUB,
    (_S, Event.REFUSED): _U,
    (_S, Event.UNWANTED): _UNSUB,
    (_UNSUB, Event.WANTED): _SUB,
    (_UNSUB, Event.RELEASED): _U,
}
"""What is not in here changes nothing: a further client of a topic, or an answer that came too late to matter."""


def step(status: Status, event: Event, *, remote: bool) -> Status:
    """The state of a topic that had `status` when `event` came."""
    return (REMOTE if remote else LOCAL).get((status, event), status)
