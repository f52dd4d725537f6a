# SPDX-License-Identifier: Apache-2.0
"""The states of a subscription of ours to an event group.

It exists while a wanted service is offered (phases.py has the table of the Finds):

    state       | Offer              Ack          Nack       its ttl over   connected      disconnected
    ------------+------------------------------------------------------------------------------------------
    CONNECTING  | -                  -            -          -              PENDING, sent  -
    PENDING     | sent again         SUBSCRIBED   REFUSED    -              -              CONNECTING
    SUBSCRIBED  | sent again         SUBSCRIBED   REFUSED    PENDING        -              CONNECTING
    REFUSED     | PENDING, sent      SUBSCRIBED   REFUSED    -              -              CONNECTING

CONNECTING is for those that need TCP. A Subscribe that was sent for an Offer by multicast and has no answer when the next
one comes (and an answer had time to come: `request_response_delay_max_ms`) is sent again behind a StopSubscribe, so that the
server sends the present values of fields once more.
"""

from enum import StrEnum
from typing import Final

from ustreamer.transports.someip.protocol.addresses import Address


class State(StrEnum):
    CONNECTING = "connecting"
    PENDING = "pending"
    SUBSCRIBED = "subscribed"
    REFUSED = "refused"


class Event(StrEnum):
    OFFER = "offer"
    ACK = "ack"
    NACK = "nack"
    EXPIRED = "expired"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


TRANSITIONS: Final = {
    (State.CONNECTING, Event.CONNECTED): State.PENDING,
    (State.PENDING, Event.OFFER): State.PENDING,
    (State.PENDING, Event.ACK): State.SUBSCRIBED,
    (State.PENDING, Event.NACK): State.REFUSED,
    (State.PENDING, Event.DISCONNECTED): State.CONNECTING,
    (State.SUBSCRIBED, Event.OFFER): State.SUBSCRIBED,
    (State.SUBSCRIBED, Event.ACK): State.SUBSCRIBED,
    (State.SUBSCRIBED, Event.NACK): State.REFUSED,
    (State.SUBSCRIBED, Event.EXPIRED): State.PENDING,
    (State.SUBSCRIBED, Event.DISCONNECTED): State.CONNECTING,
    (State.REFUSED, Event.OFFER): State.PENDING,
    (State.REFUSED, Event.ACK): State.SUBSCRIBED,
    (State.REFUSED, Event.NACK): State.REFUSED,
    (State.REFUSED, Event.DISCONNECTED): State.CONNECTING,
}
"""What is not in here changes nothing."""


class Group:
    """A subscription of ours."""

    def __init__(self, reliable: bool) -> None:
        self.reliable = reliable
        self.state = State.CONNECTING if reliable else State.PENDING
        self.sent = False
        self.sent_ns = 0
        self.tries = 0  # since the last answer
        self.awaits_multicast = False  # an answer, to a Subscribe that was sent for an Offer by multicast
        self.multicast: Address | None = None
