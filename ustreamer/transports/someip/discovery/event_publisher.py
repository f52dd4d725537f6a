# SPDX-License-Identifier: Apache-2.0
"""How events reach ECUs that subscribed them by service discovery: by unicast to each, or once to a multicast group.

Every subscriber is a delivery target of its own. Where a group goes by multicast, the first subscriber's target sends for all,
and those of the others have nothing to do. Of a field the last value is kept, for who subscribes later.
"""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from ustreamer.core.delivery.ports import SendOne
from ustreamer.transport_port import SubscriberEnded
from ustreamer.transports.someip.discovery.ecu_subscribers import EventSink
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.offered_groups import EventgroupMulticast, OfferedEventgroups
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

MAX_FIELD_CACHE_BYTES: Final = 1 << 20
"""Of all values of fields together; a value that finds no room is not kept, and its new subscribers wait for the next one."""

MAX_ORPHANS: Final = 1_024
"""Noted between two turns of the receiving thread; what finds no room is noted with the next event."""

_Group = tuple[ServiceKey, int]
_MulticastPlan = Mapping[UUri, tuple[_Group, ...] | None]
"""To which groups each subscriber's target sends for all; None: to it alone."""


class EventPublisher:
    """`transmitter` and what it returns may be used by any thread, the rest belongs to the receiving one."""

    def __init__(
        self, offers: Mapping[ServiceKey, OfferedEventgroups], make_sender: Callable[[EventReceiver], SendOne]
    ) -> None:
        """`sender` makes what sends to one receiver; it raises UStatusError for what could not be sent."""
        self._offers = offers
        self._make_sender = make_sender
        self._unicasts: dict[UUri, SendOne] = {}
        self._multicasts: dict[_Group, SendOne] = {}
        self._members: dict[_Group, dict[SdSubscription, UUri]] = {}
        self._leaders: dict[_Group, UUri] = {}  # of groups that go by multicast now
        self._multicast_plans: dict[UUri, _MulticastPlan] = {}  # of topics that go by multicast now
        self._groups_of: dict[UUri, tuple[_Group, ...]] = {}
        for key, offer in offers.items():
            for number, topics in offer.eventgroups.items():
                for topic in topics:
                    self._groups_of[topic] = (*self._groups_of.get(topic, ()), (key, number))
        self._fields = frozenset(topic for offer in offers.values() for topic in offer.fields)
        self._field_values: dict[UUri, UMessage] = {}
        self._cached_bytes = 0
        self._orphans: dict[tuple[UUri, UUri], None] = {}
        # Held while a field is sent: an initial event must not come behind a newer value.
        self._field_lock = Lock()
        self.initial_events = self.values_dropped = 0

    # --- who ----------------------------------------------------------------------------------------------------------

    def add_sink(self, sink: EventSink) -> None:
        """Events for `receiver` go to its place from now on."""
        if sink.subscriber in self._unicasts:
            return
        destination, offer = sink.destination, self._offers[sink.destination.service]
        over_tcp = offer.over_tcp if destination.tcp is not None else frozenset()
        address = destination.udp or destination.tcp
        if address is None:
            self._unicasts[sink.subscriber] = _send_nothing
            return
        tcp = None if destination.tcp is None else TcpAddress(*destination.tcp)
        self._unicasts[sink.subscriber] = self._make_sender(
            EventReceiver(sink.subscriber, address, 0, offer.events, over_tcp, tcp)
        )

    def remove_sink(self, sink: EventSink) -> None:
        self._unicasts.pop(sink.subscriber, None)

    def subscribers_of(self, topic: UUri) -> list[UUri]:
        """Who has subscribed an event group of `topic`. Safe from any thread."""
        members = [self._members.get(group, {}) for group in self._groups_of.get(topic, ())]
        return list(dict.fromkeys(subscriber for each in members for subscriber in list(each.values())))

    def on_subscription_accepted(self, subscription: SdSubscription, sink: EventSink) -> None:
        """The subscription holds: it counts for the threshold of its group."""
        group = (subscription.key, subscription.eventgroup)
        self._members.setdefault(group, {})[subscription] = sink.subscriber
        self._elect_leader(group)

    def on_subscription_ended(self, subscription: SdSubscription) -> None:
        """It holds no more. Values that nobody hears of any longer are forgotten: they would be old."""
        group = (subscription.key, subscription.eventgroup)
        members = self._members.get(group, {})
        members.pop(subscription, None)
        self._elect_leader(group)
        if members:
            return
        self._members.pop(group, None)
        offer = self._offers.get(subscription.key)
        with self._field_lock:
            for topic in () if offer is None else offer.eventgroups.get(subscription.eventgroup, ()):
                if not any(each in self._members for each in self._groups_of[topic]):
                    self._drop_value(topic)

    def _elect_leader(self, group: _Group) -> None:
        """Say who sends for all, if the group goes by multicast now."""
        key, number = group
        offer = self._offers.get(key)
        if offer is None:
            return
        multicast, members = offer.multicast.get(number), self._members.get(group, {})
        has_no_unicast = any(each.udp is None and each.tcp is None for each in members)
        if (
            multicast is not None
            and members
            and (has_no_unicast or len(set(members.values())) >= multicast.threshold)
        ):
            if group not in self._multicasts:
                self._multicasts[group] = self._make_sender(_group_receiver(offer, multicast))
            self._leaders[group] = next(iter(members.values()))
        else:
            self._leaders.pop(group, None)
        topics = [topic for topic in offer.eventgroups.get(number, ()) if topic not in offer.over_tcp]
        plans = {
            groups: self._multicast_plan(groups) for groups in {self._groups_of[topic] for topic in topics}
        }
        for topic in topics:
            found = plans[self._groups_of[topic]]
            if found is None:
                self._multicast_plans.pop(topic, None)
            else:
                self._multicast_plans[topic] = found

    def _multicast_plan(self, groups: tuple[_Group, ...]) -> _MulticastPlan | None:
        """Of topics in these groups; None: none of them goes by multicast.

        Who hears a topic by multicast is sent it no other way, though it be in a second group that goes by unicast.
        """
        led = [group for group in groups if group in self._leaders]
        if not led:
            return None
        plan: dict[UUri, tuple[_Group, ...] | None] = {}
        for group in groups:
            plan.update(dict.fromkeys(self._members.get(group, {}).values()))
        for group in led:
            plan.update(dict.fromkeys(self._members[group].values(), ()))
        for group in led:
            plan[self._leaders[group]] = (*(plan[self._leaders[group]] or ()), group)
        return plan

    # --- sending ------------------------------------------------------------------------------------------------------

    def event_sender(self, subscriber: UUri) -> SendOne:
        """What sends events to `subscriber`, wherever that is when it is used; SubscriberGone if it is not there then."""

        def transmit(message: UMessage) -> None:
            unicast = self._unicasts.get(subscriber)
            if unicast is None:
                self._note_orphan(subscriber, message.attributes.source)
                raise SubscriberEnded(subscriber)
            if message.attributes.source in self._fields:
                self._send_field(message, subscriber, unicast)
            else:
                self._send(message, subscriber, unicast)

        return transmit

    def _note_orphan(self, subscriber: UUri, topic: UUri) -> None:
        if len(self._orphans) < MAX_ORPHANS:
            self._orphans[subscriber, topic] = None

    def pop_orphans(self) -> list[tuple[UUri, UUri]]:
        """Who was sent what though it is nobody's uEntity now: a subscription of a streamer that was killed. Each once."""
        orphans, self._orphans = self._orphans, {}
        return list(orphans)

    def _send(self, message: UMessage, subscriber: UUri, unicast: SendOne) -> None:
        plan = self._multicast_plans.get(message.attributes.source)
        groups = None if plan is None else plan.get(subscriber, ())
        if groups is None:
            unicast(message)
            return
        for group in groups:
            self._multicasts[group](message)

    def _send_field(self, message: UMessage, subscriber: UUri, unicast: SendOne) -> None:
        with self._field_lock:
            self._send(message, subscriber, unicast)
            topic = message.attributes.source
            self._drop_value(topic)
            if self._cached_bytes + len(message.payload) > MAX_FIELD_CACHE_BYTES:
                self.values_dropped += 1
                return
            self._field_values[topic] = message
            self._cached_bytes += len(message.payload)

    def _drop_value(self, topic: UUri) -> None:
        old = self._field_values.pop(topic, None)
        self._cached_bytes -= 0 if old is None else len(old.payload)

    def send_initial_events(self, subscription: SdSubscription, sink: EventSink) -> None:
        """The present values of the fields of a group, to one subscriber. What cannot be sent comes with the next change."""
        offer, unicast = self._offers.get(subscription.key), self._unicasts.get(sink.subscriber)
        if offer is None or unicast is None:
            return
        for topic in offer.eventgroups.get(subscription.eventgroup, ()):
            with self._field_lock:
                value = self._field_values.get(topic)
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
            "sd_multicast_topics": len(self._multicast_plans),
            "initial_events": self.initial_events,
            "field_values": len(self._field_values),
            "field_values_dropped": self.values_dropped,
        }


def _group_receiver(offer: OfferedEventgroups, multicast: EventgroupMulticast) -> EventReceiver:
    provider = next(iter(offer.events)).with_resource(0)
    address: Address = multicast.group
    return EventReceiver(provider, address, 0, offer.events)


def _send_nothing(message: UMessage) -> None:
    """Nothing: this subscriber hears the multicast group, and no address of its own was given."""
