# SPDX-License-Identifier: Apache-2.0
"""Sends events to ECUs that subscribed by service discovery: by unicast to each, or once to a multicast group.

Each subscriber is a separate delivery target. Where a group uses multicast, the target of the first subscriber sends
for all, and the targets of the others send nothing. The last value of a field is kept for later subscribers: a *field
keeper* is a subscriber of all fields that has no ECU (`docs/decisions/0032-fields.md`).
"""

import logging
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Final

from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.ports import SendOne
from ustreamer.transport_port import SubscriberEnded
from ustreamer.transports.someip.discovery.ecu_subscribers import EventSink
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.dscp import with_dscp
from ustreamer.transports.someip.protocol.field_values import FieldValues
from ustreamer.transports.someip.protocol.mapping import EventReceiver
from ustreamer.transports.someip.sd.actions import SdSubscription
from ustreamer.transports.someip.sd.offered_groups import EventgroupMulticast, OfferedEventgroups
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.someip")

MAX_ORPHANS: Final = 1_024
"""Limit between two ticks of the receiving thread; a dropped orphan is noted again with its next event."""

_Group = tuple[ServiceKey, int]
_MulticastPlan = Mapping[UUri, tuple[_Group, ...] | None]
"""For each subscriber, the groups to which its target sends for all; None: unicast to the subscriber only."""


# [impl->SD-1168]
class EventPublisher:
    """Any thread may use `event_sender` and its result; the rest belongs to the receiving thread."""

    def __init__(
        self, offers: Mapping[ServiceKey, OfferedEventgroups], make_sender: Callable[[EventReceiver], SendOne]
    ) -> None:
        """`make_sender` returns the sender to one receiver; the sender raises UStatusError on failure."""
        self._offers = offers
        self._make_sender = make_sender
        self._unicasts: dict[UUri, SendOne] = {}
        self._multicasts: dict[_Group, SendOne] = {}
        self._members: dict[_Group, dict[SdSubscription, UUri]] = {}
        self._leaders: dict[_Group, UUri] = {}  # of groups that use multicast now
        self._multicast_plans: dict[UUri, _MulticastPlan] = {}  # of topics that use multicast now
        self._groups_of: dict[UUri, tuple[_Group, ...]] = {}
        self.values: Final = FieldValues(())
        for key, offer in offers.items():
            self.add_offer(key, offer)
        self._field_keepers: set[UUri] = set()
        self._orphans: dict[tuple[UUri, UUri], None] = {}
        # Held while a field is sent: an initial event must not follow a newer value.
        self._field_lock = Lock()
        self.initial_events = self.initial_events_failed = 0

    def add_offer(self, key: ServiceKey, offer: OfferedEventgroups) -> None:
        """Publish the events of one more service, which is among the offers."""
        for number, topics in offer.eventgroups.items():
            for topic in topics:
                self._groups_of[topic] = (*self._groups_of.get(topic, ()), (key, number))
        self.values.add_fields(offer.fields)

    # --- subscribers --------------------------------------------------------------------------------------------------

    # [impl->SD-787, SD-788]
    def add_sink(self, sink: EventSink) -> None:
        """Send events for `sink` to its destination."""
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
            EventReceiver(sink.subscriber, with_dscp(address, offer.dscp), 0, offer.events, over_tcp, tcp)
        )

    def add_field_keeper(self, subscriber: UUri) -> None:
        """Keep the values of the fields that `subscriber` receives. It has no destination."""
        self._field_keepers.add(subscriber)

    def remove_sink(self, sink: EventSink) -> None:
        self._unicasts.pop(sink.subscriber, None)

    def subscribers_of(self, topic: UUri) -> list[UUri]:
        """The uEntities that subscribed to an event group of `topic`. Thread-safe."""
        members = [self._members.get(group, {}) for group in self._groups_of.get(topic, ())]
        return list(dict.fromkeys(subscriber for each in members for subscriber in list(each.values())))

    def on_subscription_accepted(self, subscription: SdSubscription, sink: EventSink) -> None:
        """The subscription is active: it counts for the multicast threshold of its group."""
        group = (subscription.key, subscription.eventgroup)
        self._members.setdefault(group, {})[subscription] = sink.subscriber
        self._elect_leader(group)

    def on_subscription_ended(self, subscription: SdSubscription) -> None:
        """The subscription has ended."""
        group = (subscription.key, subscription.eventgroup)
        members = self._members.get(group, {})
        members.pop(subscription, None)
        self._elect_leader(group)
        if not members:
            self._members.pop(group, None)

    # [impl->RPC-813, SD-823]
    def _elect_leader(self, group: _Group) -> None:
        """Choose the sending subscriber of the group, if the group uses multicast now."""
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
        """The plan of topics in these groups; None if no group uses multicast.

        A subscriber that receives a topic by multicast gets no unicast copy, even through a second group that uses
        unicast.
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

    # [impl->RPC-811, RPC-807]
    def event_sender(self, subscriber: UUri) -> SendOne:
        """The sender to the current destination of `subscriber`; raises SubscriberEnded without a destination."""
        if subscriber in self._field_keepers:
            return self.values.keep

        def transmit(message: UMessage) -> None:
            unicast = self._unicasts.get(subscriber)
            if unicast is None:
                self._note_orphan(subscriber, message.attributes.source)
                raise SubscriberEnded(subscriber)
            if message.attributes.source in self.values.fields:
                self._send_field(message, subscriber, unicast)
            else:
                self._send(message, subscriber, unicast)

        return transmit

    def _note_orphan(self, subscriber: UUri, topic: UUri) -> None:
        if len(self._orphans) < MAX_ORPHANS:
            self._orphans[subscriber, topic] = None

    def pop_orphans(self) -> list[tuple[UUri, UUri]]:
        """Each (subscriber, topic) once that got an event without a sink: subscriptions of a killed streamer."""
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

    # [impl->RPC-635]
    def _send_field(self, message: UMessage, subscriber: UUri, unicast: SendOne) -> None:
        with self._field_lock:
            self._send(message, subscriber, unicast)
            # The keeper may have an older value for a moment, and no initial event may follow a newer value.
            self.values.keep_if_newer(message)

    # [impl->RPC-812, SD-833, SD-1167, SD-793]
    def send_initial_events(self, subscription: SdSubscription, sink: EventSink) -> None:
        """Send the current field values of a group to one subscriber. The next change mends a failed send."""
        offer, unicast = self._offers.get(subscription.key), self._unicasts.get(sink.subscriber)
        if offer is None or unicast is None:
            return
        for topic in offer.eventgroups.get(subscription.eventgroup, ()):
            with self._field_lock:
                value = self.values.find(topic)
                if value is None:
                    continue
                try:
                    (self._joining_sender(topic, sink) or unicast)(value)
                    self.initial_events += 1
                except UStatusError as error:
                    self.initial_events_failed += 1
                    about = {"topic": str(topic), "subscriber": str(sink.subscriber)}
                    extra = {**about, "reason": error.message, **limited(topic)}
                    log.warning("someip.initial_event_failed", extra=extra)

    def _joining_sender(self, topic: UUri, sink: EventSink) -> SendOne | None:
        """The sender of an initial event with E2E protection, if the next event comes by multicast: its counter is then
        that of the multicast group.
        """
        destination, plan = sink.destination, self._multicast_plans.get(topic)
        offer = self._offers[destination.service]
        is_protected = offer.events[topic].e2e is not None
        if plan is None or plan.get(sink.subscriber) is None or destination.udp is None or not is_protected:
            return None
        group = next(each for each in self._groups_of[topic] if each in self._leaders)
        joined = offer.multicast[group[1]].group
        address = with_dscp(destination.udp, offer.dscp)
        return self._make_sender(EventReceiver(sink.subscriber, address, 0, offer.events, joins=joined))

    def statistics(self) -> dict[str, int]:
        """`sd_multicast_topics` now; `initial_events` sent and not sent; `field_values` cached and not cached."""
        return {
            "sd_multicast_topics": len(self._multicast_plans),
            "initial_events": self.initial_events,
            "initial_events_failed": self.initial_events_failed,
            "field_values": len(self.values),
            "field_values_dropped": self.values.dropped,
        }


def _group_receiver(offer: OfferedEventgroups, multicast: EventgroupMulticast) -> EventReceiver:
    provider = next(iter(offer.events)).with_resource(0)
    address = with_dscp(multicast.group, offer.dscp)
    return EventReceiver(provider, address, 0, offer.events)


def _send_nothing(message: UMessage) -> None:
    """No send: this subscriber receives the multicast group and named no own endpoint."""
