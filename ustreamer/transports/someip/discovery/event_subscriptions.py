# SPDX-License-Identifier: Apache-2.0
"""Admission of ECUs to offered events: from a Subscribe, through uSubscription, to an Ack or a Nack.

    SubscriptionRequested  -> EventgroupAdmission.on_subscribe    -> ecu_subscribers.py: a request to uSubscription
    its response           -> EventgroupAdmission.apply_decisions -> an Ack and event_publisher.py, or a Nack

Belongs to the receiving thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers, EventSink
from ustreamer.transports.someip.discovery.event_publisher import EventPublisher
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.sd.actions import SdSubscription, SubscriptionRequested
from ustreamer.transports.someip.sd.offered_groups import OfferedEventgroups
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

SendDecisions = Callable[[Sequence[SdSubscription], Sequence[SdSubscription]], None]
"""Sends an Ack to the accepted subscriptions and a Nack to the refused ones."""


class EventStreams(Protocol):
    """The part of the endpoint's TCP connections that events need."""

    def is_connected(self, address: TcpAddress, /) -> bool:
        """Whether a connection with `address` is open."""

    def exempt_from_idle(self, address: TcpAddress, /) -> None:
        """Disable the idle timeout of a connection that carries events."""


class EventgroupAdmission:
    """Connects the subscriptions of ECUs with the events they receive. A refused ECU may subscribe again."""

    def __init__(
        self,
        offers: Mapping[ServiceKey, OfferedEventgroups],
        subscribers: EcuSubscribers,
        events: EventPublisher,
        streams: EventStreams,
        send_decisions: SendDecisions,
    ) -> None:
        self._offers = offers
        self._subscribers = subscribers
        self._events = events
        self._streams = streams
        self._send_decisions = send_decisions
        self._sinks: dict[SdSubscription, tuple[EventSink, bool]] = {}
        """The sink of each subscription, and whether it requested the current field values."""

    # --- from service discovery ---------------------------------------------------------------------------------------

    # [impl->SD-1137]
    def on_subscribe(self, action: SubscriptionRequested) -> None:
        subscription = action.subscription
        offer = self._offers[subscription.key]
        topics = offer.eventgroups[subscription.eventgroup]
        if not self._is_reachable(subscription, offer, topics):
            self._refuse_subscription(subscription)
            return
        sink = self._subscribers.on_subscribe(subscription, topics, action.ttl_s)
        if sink is not None:
            self._sinks[subscription] = (sink, action.initial_data)
            self._events.add_sink(sink)
            self._subscribers.keep_fields(subscription.key, offer.fields)

    def _is_reachable(
        self, subscription: SdSubscription, offer: OfferedEventgroups, topics: Iterable[UUri]
    ) -> bool:
        """Whether the Subscribe names the required endpoints: UDP, or an open TCP connection."""
        tcp = None if subscription.tcp is None else TcpAddress(*subscription.tcp)
        by_multicast = subscription.eventgroup in offer.multicast
        for topic in topics:
            if topic not in offer.over_tcp:
                if subscription.udp is None and not by_multicast:
                    return False
            elif tcp is None or not self._streams.is_connected(tcp):
                return False
            else:
                self._streams.exempt_from_idle(tcp)
        return True

    def on_subscription_ended(self, subscription: SdSubscription) -> None:
        self._subscribers.on_subscription_ended(subscription)
        self._remove_sink(subscription)

    def on_tcp_disconnected(self, peer: TcpAddress) -> None:
        """The TCP connection that carried events to `peer` is closed."""
        for subscription in [each for each in self._sinks if each.tcp == tuple(peer)]:
            self._refuse_subscription(subscription)

    def on_unreachable(self, address: Address) -> None:
        """No socket is at the UDP endpoint of these subscriptions. Events in flight are not sent."""
        for subscription in [each for each in self._sinks if each.udp == address]:
            sink, _ = self._sinks[subscription]
            self._refuse_subscription(subscription)
            self._events.remove_sink(sink)

    def send_initial_events(self, subscription: SdSubscription) -> None:
        """Send the current field values."""
        found = self._sinks.get(subscription)
        if found is not None:
            self._events.send_initial_events(subscription, found[0])

    # --- from uSubscription -------------------------------------------------------------------------------------------

    # [impl->SD-204, SD-691]
    def apply_decisions(self) -> None:
        """Answer the decided subscriptions, and start sending to the accepted ones."""
        accepted, refused = self._subscribers.pop_decisions()
        for subscription in accepted:
            self._events.on_subscription_accepted(subscription, self._sinks[subscription][0])
        if accepted or refused:
            self._send_decisions(accepted, refused)
        for subscription in accepted:  # after the Ack
            _, wants_initial_events = self._sinks[subscription]
            if wants_initial_events:
                self.send_initial_events(subscription)
        for subscription in refused:
            self._remove_sink(subscription)

    def pop_requests(self) -> list[UMessage]:
        """Return the requests that uSubscription needs now. Released sinks receive no more events."""
        for subscriber, topic in self._events.pop_orphans():
            self._subscribers.unsubscribe_orphan(subscriber, topic)
        requests = self._subscribers.pop_requests()
        for sink in self._subscribers.pop_released_sinks():
            self._events.remove_sink(sink)
        return requests

    def _refuse_subscription(self, subscription: SdSubscription) -> None:
        """Send a Nack, before or after an accept."""
        self.on_subscription_ended(subscription)
        self._send_decisions((), [subscription])

    def _remove_sink(self, subscription: SdSubscription) -> None:
        if self._sinks.pop(subscription, None) is not None:
            self._events.on_subscription_ended(subscription)
