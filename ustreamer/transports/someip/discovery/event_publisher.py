# SPDX-License-Identifier: Apache-2.0
"""How events reach ECUs that subscribed them by service discovery: by unicast to each, or once to a multicast group.

Every subscriber is a delivery target of its own. Where a group goes by multicast, the first subscriber's target sends for all,
and those of the others have nothing to do. Of a field the last value is kept, for who subscribes later.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from ustreamer.core.delivery.delivery import Transmit
from ustreamer.hooks import SubscriberGone
from ustreamer.transports.someip.discovery.ecu_subscribers import Receiver
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import Subscription
from ustreamer.transports.someip.sd.offered_groups import Multicast, Offer
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

MAX_KEPT_BYTES: Final = 1 << 20
"""Of all values of fields together; a value that finds no room is not kept, and its new subscribers wait for the next one."""

MAX_STRAYS: Final = 1_024
"""Noted between two turns of the receiving thread; what finds no room is noted with the next event."""

_Group = tuple[ServiceKey, int]
_Ways = Mapping[UUri, tuple[_Group, ...] | None]
"""To which groups each subscriber's target sends for all; None: to it alone."""


class SubscribedEvents:
    """`transmitter` and what it returns may be used by any thread, the rest belongs to the receiving one."""

    def __init__(
        self, offers: Mapping[ServiceKey, Offer], sender: Callable[[EventReceiver], Transmit]
    ) -> None:
        """`sender` makes what sends to one receiver; it raises UStatusError for what could not be sent."""
        self._offers = offers
        self._sender = sender
        self._unicasts: dict[UUri, Transmit] = {}
        self._multicasts: dict[_Group, Transmit] = {}
        self._members: dict[_Group, dict[Subscription, UUri]] = {}
        self._leaders: dict[_Group, UUri] = {}  # of groups that go by multicast now
        self._ways: dict[UUri, _Ways] = {}  # of topics that go by multicast now
        self._groups_of: dict[UUri, tuple[_Group, ...]] = {}
        for key, offer in offers.items():
            for number, topics in offer.eventgroups.items():
                for topic in topics:
                    self._groups_of[topic] = (*self._groups_of.get(topic, ()), (key, number))
        self._fields = frozenset(topic for offer in offers.values() for topic in offer.fields)
        self._values: dict[UUri, UMessage] = {}
        self._kept = 0
        self._strays: dict[tuple[UUri, UUri], None] = {}
        # Held while a field is sent: an initial event must not come behind a newer value.
        self._field_lock = Lock()
        self.initial_events = self.values_dropped = 0

    # --- who ----------------------------------------------------------------------------------------------------------

    def add(self, receiver: Receiver) -> None:
        """Events for `receiver` go to its place from now on."""
        if receiver.subscriber in self._unicasts:
            return
        place, offer = receiver.place, self._offers[receiver.place.service]
        over_tcp = offer.over_tcp if place.tcp is not None else frozenset()
        address = place.udp or place.tcp
        if address is None:
            self._unicasts[receiver.subscriber] = _nowhere
            return
        tcp = None if place.tcp is None else TcpAddress(*place.tcp)
        self._unicasts[receiver.subscriber] = self._sender(
            EventReceiver(receiver.subscriber, address, 0, offer.events, over_tcp, tcp)
        )

    def remove(self, receiver: Receiver) -> None:
        self._unicasts.pop(receiver.subscriber, None)

    def subscribers_of(self, topic: UUri) -> list[UUri]:
        """Who has subscribed an event group of `topic`. Safe from any thread."""
        members = [self._members.get(group, {}) for group in self._groups_of.get(topic, ())]
        return list(dict.fromkeys(subscriber for each in members for subscriber in list(each.values())))

    def accepted(self, subscription: Subscription, receiver: Receiver) -> None:
        """The subscription holds: it counts for the threshold of its group."""
        group = (subscription.key, subscription.eventgroup)
        self._members.setdefault(group, {})[subscription] = receiver.subscriber
        self._elect(group)

    def ended(self, subscription: Subscription) -> None:
        """It holds no more. Values that nobody hears of any longer are forgotten: they would be old."""
        group = (subscription.key, subscription.eventgroup)
        members = self._members.get(group, {})
        members.pop(subscription, None)
        self._elect(group)
        if members:
            return
        self._members.pop(group, None)
        offer = self._offers.get(subscription.key)
        with self._field_lock:
            for topic in () if offer is None else offer.eventgroups.get(subscription.eventgroup, ()):
                if not any(each in self._members for each in self._groups_of[topic]):
                    self._drop(topic)

    def _elect(self, group: _Group) -> None:
        """Say who sends for all, if the group goes by multicast now."""
        key, number = group
        offer = self._offers.get(key)
        if offer is None:
            return
        way, members = offer.multicast.get(number), self._members.get(group, {})
        nowhere_else = any(each.udp is None and each.tcp is None for each in members)
        if way is not None and members and (nowhere_else or len(set(members.values())) >= way.threshold):
            if group not in self._multicasts:
                self._multicasts[group] = self._sender(_group_receiver(offer, way))
            self._leaders[group] = next(iter(members.values()))
        else:
            self._leaders.pop(group, None)
        topics = [topic for topic in offer.eventgroups.get(number, ()) if topic not in offer.over_tcp]
        ways = {groups: self._find_ways(groups) for groups in {self._groups_of[topic] for topic in topics}}
        for topic in topics:
            found = ways[self._groups_of[topic]]
            if found is None:
                self._ways.pop(topic, None)
            else:
                self._ways[topic] = found

    def _find_ways(self, groups: tuple[_Group, ...]) -> _Ways | None:
        """Of topics in these groups; None: none of them goes by multicast.

        Who hears a topic by multicast is sent it no other way, though it be in a second group that goes by unicast.
        """
        led = [group for group in groups if group in self._leaders]
        if not led:
            return None
        ways: dict[UUri, tuple[_Group, ...] | None] = {}
        for group in groups:
            ways.update(dict.fromkeys(self._members.get(group, {}).values()))
        for group in led:
            ways.update(dict.fromkeys(self._members[group].values(), ()))
        for group in led:
            ways[self._leaders[group]] = (*(ways[self._leaders[group]] or ()), group)
        return ways

    # --- sending ------------------------------------------------------------------------------------------------------

    def transmitter(self, subscriber: UUri) -> Transmit:
        """What sends events to `subscriber`, wherever that is when it is used; SubscriberGone if it is not there then."""

        def transmit(message: UMessage) -> None:
            unicast = self._unicasts.get(subscriber)
            if unicast is None:
                self._note_stray(subscriber, message.attributes.source)
                raise SubscriberGone(subscriber)
            if message.attributes.source in self._fields:
                self._send_field(message, subscriber, unicast)
            else:
                self._send(message, subscriber, unicast)

        return transmit

    def _note_stray(self, subscriber: UUri, topic: UUri) -> None:
        if len(self._strays) < MAX_STRAYS:
            self._strays[subscriber, topic] = None

    def take_strays(self) -> list[tuple[UUri, UUri]]:
        """Who was sent what though it is nobody's uEntity now: a subscription of a streamer that was killed. Each once."""
        strays, self._strays = self._strays, {}
        return list(strays)

    def _send(self, message: UMessage, subscriber: UUri, unicast: Transmit) -> None:
        ways = self._ways.get(message.attributes.source)
        groups = None if ways is None else ways.get(subscriber, ())
        if groups is None:
            unicast(message)
            return
        for group in groups:
            self._multicasts[group](message)

    def _send_field(self, message: UMessage, subscriber: UUri, unicast: Transmit) -> None:
        with self._field_lock:
            self._send(message, subscriber, unicast)
            topic = message.attributes.source
            self._drop(topic)
            if self._kept + len(message.payload) > MAX_KEPT_BYTES:
                self.values_dropped += 1
                return
            self._values[topic] = message
            self._kept += len(message.payload)

    def _drop(self, topic: UUri) -> None:
        old = self._values.pop(topic, None)
        self._kept -= 0 if old is None else len(old.payload)

    def send_values(self, subscription: Subscription, receiver: Receiver) -> None:
        """The present values of the fields of a group, to one subscriber. What cannot be sent comes with the next change."""
        offer, unicast = self._offers.get(subscription.key), self._unicasts.get(receiver.subscriber)
        if offer is None or unicast is None:
            return
        for topic in offer.eventgroups.get(subscription.eventgroup, ()):
            with self._field_lock:
                value = self._values.get(topic)
                if value is None:
                    continue
                try:
                    unicast(value)
                    self.initial_events += 1
                except UStatusError:
                    continue

    def statistics(self) -> dict[str, int]:
        """`sd_multicast_topics` that go by multicast now; `initial_events` sent, `field_values` kept and those that found no room."""
        return {
            "sd_multicast_topics": len(self._ways),
            "initial_events": self.initial_events,
            "field_values": len(self._values),
            "field_values_dropped": self.values_dropped,
        }


def _group_receiver(offer: Offer, way: Multicast) -> EventReceiver:
    nobody = next(iter(offer.events)).with_resource(0)
    address: Address = way.group
    return EventReceiver(nobody, address, 0, offer.events)


def _nowhere(message: UMessage) -> None:
    """Nothing: this subscriber hears the multicast group, and no address of its own was given."""
