# SPDX-License-Identifier: Apache-2.0
"""Which ECUs are sent which events that are offered here: what they subscribe, what our uSubscription says to it, until when.

    SubscriptionAsked -> Admission.asked -> subscribers.py: a request to our uSubscription
    its answer        -> Admission.take_verdicts -> an Ack and subscribed_events.py, or a Nack

Belongs to the receiving thread.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ustreamer.transports.someip.discovery.ecu_subscribers import EcuSubscribers, Receiver
from ustreamer.transports.someip.discovery.event_publisher import SubscribedEvents
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.sd.actions import Subscription, SubscriptionAsked
from ustreamer.transports.someip.sd.offered_groups import Offer
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

Decide = Callable[[Sequence[Subscription], Sequence[Subscription]], None]
"""Sends an Ack to those that were accepted, and a Nack to those that were refused."""


class Streams(Protocol):
    """The TCP connections of the endpoint, as far as events go over them."""

    def is_connected(self, address: TcpAddress, /) -> bool:
        """Whether there is one with `address`."""

    def keep(self, address: TcpAddress, /) -> None:
        """Events go there: silence is no reason to close it."""


class Admission:
    """From what an ECU subscribes to the events that it is sent. A refused ECU may subscribe again."""

    def __init__(
        self,
        offers: Mapping[ServiceKey, Offer],
        subscribers: EcuSubscribers,
        events: SubscribedEvents,
        streams: Streams,
        decide: Decide,
    ) -> None:
        self._offers = offers
        self._subscribers = subscribers
        self._events = events
        self._streams = streams
        self._decide = decide
        self._receivers: dict[Subscription, tuple[Receiver, bool]] = {}
        """With each, whether it has asked for the values that fields have."""

    # --- what service discovery says ----------------------------------------------------------------------------------

    def asked(self, asked: SubscriptionAsked) -> None:
        subscription = asked.subscription
        offer = self._offers[subscription.key]
        topics = offer.eventgroups[subscription.eventgroup]
        if not self._reachable(subscription, offer, topics):
            self._refuse(subscription)
            return
        receiver = self._subscribers.asked(subscription, topics, asked.ttl_s)
        if receiver is not None:
            self._receivers[subscription] = (receiver, asked.initial_data)
            self._events.add(receiver)

    def _reachable(self, subscription: Subscription, offer: Offer, topics: Iterable[UUri]) -> bool:
        """Whether the Subscribe names what its events need: an endpoint over UDP, or a connection that there is."""
        tcp = None if subscription.tcp is None else TcpAddress(*subscription.tcp)
        by_multicast = subscription.eventgroup in offer.multicast
        for topic in topics:
            if topic not in offer.over_tcp:
                if subscription.udp is None and not by_multicast:
                    return False
            elif tcp is None or not self._streams.is_connected(tcp):
                return False
            else:
                self._streams.keep(tcp)
        return True

    def ended(self, subscription: Subscription) -> None:
        self._subscribers.ended(subscription)
        self._forget(subscription)

    def stream_gone(self, peer: TcpAddress) -> None:
        """The connection is there no more over which `peer` was sent events."""
        for subscription in [each for each in self._receivers if each.tcp == tuple(peer)]:
            self._refuse(subscription)

    def send_values(self, subscription: Subscription) -> None:
        """Send the values that the fields have now."""
        found = self._receivers.get(subscription)
        if found is not None:
            self._events.send_values(subscription, found[0])

    # --- what our uSubscription says ----------------------------------------------------------------------------------

    def take_verdicts(self) -> None:
        """Tell the ECUs what became of their subscriptions, and send to those that were accepted."""
        accepted, refused = self._subscribers.take_verdicts()
        for subscription in accepted:
            self._events.accepted(subscription, self._receivers[subscription][0])
        if accepted or refused:
            self._decide(accepted, refused)
        for subscription in accepted:  # behind the Ack
            _, wants_values = self._receivers[subscription]
            if wants_values:
                self.send_values(subscription)
        for subscription in refused:
            self._forget(subscription)

    def requests(self) -> list[UMessage]:
        """What our uSubscription is to be told now. To those that it has let go nothing is sent any more."""
        for subscriber, topic in self._events.take_strays():
            self._subscribers.let_go(subscriber, topic)
        requests = self._subscribers.requests()
        for receiver in self._subscribers.take_gone():
            self._events.remove(receiver)
        return requests

    def _refuse(self, subscription: Subscription) -> None:
        """Nack, now or after it was accepted."""
        self.ended(subscription)
        self._decide((), [subscription])

    def _forget(self, subscription: Subscription) -> None:
        if self._receivers.pop(subscription, None) is not None:
            self._events.ended(subscription)
