# SPDX-License-Identifier: Apache-2.0
"""The state machine of a subscription to an event group of a remote service.

A subscription exists while a wanted service is offered (`phases.py` has the table of the Finds):

    state       | Offer              Ack          Nack       ttl expired    connected      disconnected
    ------------+------------------------------------------------------------------------------------------
    CONNECTING  | -                  -            -          -              PENDING, sent  -
    PENDING     | sent again         SUBSCRIBED   REFUSED    -              -              CONNECTING
    SUBSCRIBED  | sent again         SUBSCRIBED   REFUSED    PENDING        -              CONNECTING
    REFUSED     | PENDING, sent      SUBSCRIBED   REFUSED    -              -              CONNECTING

Only subscriptions over TCP use CONNECTING; a group with events over both protocols is one of them. A Subscribe that follows a multicast Offer can still be unanswered at the
next Offer, after `request_response_delay_max_ms`. The client then sends a StopSubscribe and the Subscribe again, so
that
the server sends the current field values once more.
"""

from enum import StrEnum
from typing import Final, NamedTuple

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.endpoints import EntryEndpoints


class EventgroupState(StrEnum):
    CONNECTING = "connecting"
    PENDING = "pending"
    SUBSCRIBED = "subscribed"
    REFUSED = "refused"


class EventgroupTrigger(StrEnum):
    OFFER = "offer"
    ACK = "ack"
    NACK = "nack"
    EXPIRED = "expired"
    CONNECTED = "connected"
    DISCONNECTED = "disconnected"


# [impl->SD-442]
TRANSITIONS: Final = {
    (EventgroupState.CONNECTING, EventgroupTrigger.CONNECTED): EventgroupState.PENDING,
    (EventgroupState.PENDING, EventgroupTrigger.OFFER): EventgroupState.PENDING,
    (EventgroupState.PENDING, EventgroupTrigger.ACK): EventgroupState.SUBSCRIBED,
    (EventgroupState.PENDING, EventgroupTrigger.NACK): EventgroupState.REFUSED,
    (EventgroupState.PENDING, EventgroupTrigger.DISCONNECTED): EventgroupState.CONNECTING,
    (EventgroupState.SUBSCRIBED, EventgroupTrigger.OFFER): EventgroupState.SUBSCRIBED,
    (EventgroupState.SUBSCRIBED, EventgroupTrigger.ACK): EventgroupState.SUBSCRIBED,
    (EventgroupState.SUBSCRIBED, EventgroupTrigger.NACK): EventgroupState.REFUSED,
    (EventgroupState.SUBSCRIBED, EventgroupTrigger.EXPIRED): EventgroupState.PENDING,
    (EventgroupState.SUBSCRIBED, EventgroupTrigger.DISCONNECTED): EventgroupState.CONNECTING,
    (EventgroupState.REFUSED, EventgroupTrigger.OFFER): EventgroupState.PENDING,
    (EventgroupState.REFUSED, EventgroupTrigger.ACK): EventgroupState.SUBSCRIBED,
    (EventgroupState.REFUSED, EventgroupTrigger.NACK): EventgroupState.REFUSED,
    (EventgroupState.REFUSED, EventgroupTrigger.DISCONNECTED): EventgroupState.CONNECTING,
}
"""A combination that is missing here changes nothing."""


class EventgroupProtocols(NamedTuple):
    """The protocols of the events of a group: UDP, TCP if `reliable`, UDP as well if `mixed`."""

    reliable: bool
    mixed: bool = False


class EventgroupSubscription:
    """A subscription to one event group: over UDP, over TCP (`reliable`), or over both (`mixed`)."""

    def __init__(self, protocols: EventgroupProtocols) -> None:
        self.reliable, self.mixed = protocols
        self.state = EventgroupState.CONNECTING if self.reliable else EventgroupState.PENDING
        self.sent = False
        self.sent_ns = 0
        self.tries = 0  # since the last answer
        self.awaits_multicast = False  # an answer to a Subscribe that followed a multicast Offer
        self.multicast: Address | None = None

    @property
    def names_udp(self) -> bool:
        """Whether the Subscribe names the UDP endpoint."""
        return self.mixed or not self.reliable

    def is_offered_at(self, endpoints: EntryEndpoints) -> bool:
        """Whether the service has an endpoint for each protocol of the group."""
        has_udp, has_tcp = endpoints.udp is not None, endpoints.tcp is not None
        return (has_udp or not self.names_udp) and (has_tcp or not self.reliable)
