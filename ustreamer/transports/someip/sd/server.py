# SPDX-License-Identifier: Apache-2.0
"""The server side of service discovery: Offers, answers to Finds, and subscriptions of other hosts.

Input: offered services, Finds, Subscribes, decisions and timers. Output: actions. `phases.py` has the table of the
Offers.
The table of a subscription:

    state    | Subscribe        accept        refuse    StopSubscribe, ttl, reboot, link, withdrawn    decision timeout
    ---------+-------------------------------------------------------------------------------------------------------------
    none     | requested: PENDING -           -         -                                              -
    PENDING  | PENDING          Ack: ACTIVE   Nack      ended                                          Nack, ended
    ACTIVE   | Ack: ACTIVE      -             -         ended                                          -
"""

from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Final, cast

from ustreamer.core.peers.election import RouterId
from ustreamer.transports.someip.protocol.addresses import Address, format_address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, ActionBuffer
from ustreamer.transports.someip.sd.actions import (
    EndReason,
    InitialDataRequested,
    OfferRoleChanged,
    SdRefusal,
    SdSubscription,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    ANY_MAJOR,
    ANY_MINOR,
    EntryType,
    EventgroupEntry,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.endpoints import EntryEndpoints, entry_endpoints
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole, L4Protocol, Option
from ustreamer.transports.someip.sd.peer_options import streamer_mark
from ustreamer.transports.someip.sd.phases import Phase, next_phase
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey
from ustreamer.transports.someip.sd.standby import CompetingOffers

_FIND_MARGIN_NS: Final = 50_000_000
"""Tolerated delay of an answer to a Find: a busy streamer needs some ms."""


# [impl->SD-849, SD-756, SD-757, SD-814]
class _OfferState:
    def __init__(self, service: OfferedService, extra: tuple[Option, ...]) -> None:
        self.service = service
        self.find_sent = False
        self.phase = Phase.DOWN
        self.sent = 0
        self.eventgroups = dict(service.eventgroups)
        endpoints = [
            Endpoint(*address, protocol=int(protocol))
            for address, protocol in ((service.udp, L4Protocol.UDP), (service.tcp, L4Protocol.TCP))
            if address is not None
        ]
        self.options: tuple[Option, ...] = (*endpoints, *service.options, *extra)

    # [impl->SD-253, COMPAT-803]
    def entry(self, ttl: int) -> ServiceEntry:
        key = self.service.key
        return ServiceEntry(
            EntryType.OFFER, key.service, key.instance, key.major, self.service.minor, ttl, self.options
        )

    def matches(self, find: ServiceEntry) -> bool:
        key = self.service.key
        return (
            find.service == key.service
            and find.instance in {ANY_INSTANCE, key.instance}
            and find.major in {ANY_MAJOR, key.major}
            and find.minor in {ANY_MINOR, self.service.minor}
        )


# [impl->SD-625, SD-626, SD-442]
class SubscriberState(StrEnum):
    PENDING = "pending"
    ACTIVE = "active"


class _Subscriber:
    def __init__(self, entry: EventgroupEntry) -> None:
        self.state = SubscriberState.PENDING
        self.entry = entry
        self.received_ns = 0


# [impl->SD-811]
class SdServer:
    """The offered services and their subscribers."""

    def __init__(self, actions: ActionBuffer) -> None:
        self._actions = actions
        peer_discovery = actions.settings.streamer
        self.competing_offers = (
            None if peer_discovery is None else CompetingOffers(actions, peer_discovery, self.recheck_standby)
        )
        self._streamer_options = () if peer_discovery is None else (streamer_mark(peer_discovery.own_id),)
        self._family = 6 if ":" in actions.settings.own[0] else 4
        self._up = False
        self._offers: dict[ServiceKey, _OfferState] = {}
        self._pending_offers: dict[Address, dict[ServiceKey, None]] = {}
        self._subscribers: dict[Address, dict[SdSubscription, _Subscriber]] = {}
        self._subscription_count = 0
        self._waiting_nacks: dict[Address, list[EventgroupEntry]] = {}
        """Nacks of messages with undecided Subscribes: all answers to a message share one message."""

    # --- offers -------------------------------------------------------------------------------------------------------

    # [impl->COMPAT-800]
    def offer_service(self, service: OfferedService, now_ns: int) -> None:
        """Start to offer a service; an already offered service restarts its phases."""
        if service.key in self._offers:
            self.stop_offer(service.key)
        self._offers[service.key] = _OfferState(service, self._streamer_options)
        if self._up:
            self._start_offering((service.key,), now_ns)

    # [impl->SD-261, SD-262, SD-820, SD-830]
    def stop_offer(self, key: ServiceKey) -> None:
        """Stop offering a service; its subscriptions end."""
        offer = self._offers.pop(key, None)
        if offer is None:
            return
        self._actions.deadlines.cancel((self._offer_due, key))
        if offer.sent:
            self._actions.enqueue(None, offer.entry(0))
        self._withdraw_subscriptions(key)

    def _withdraw_subscriptions(self, key: ServiceKey) -> None:
        for subscription in [s for of in self._subscribers.values() for s in of if s.key == key]:
            self._end_subscription(subscription, EndReason.WITHDRAWN)

    # [impl->SD-72, SD-429, SD-436]
    def link_up(self, delay_ns: int, now_ns: int) -> None:
        """Start all offers after the same delay, so that the offers share messages."""
        self._up = True
        self._start_offering(self._offers, now_ns, delay_ns)

    # [impl->SD-437, SD-633]
    def link_down(self) -> None:
        """The link is down: all subscriptions end."""
        self._up = False
        for key, offer in self._offers.items():
            self._set_phase(offer, Phase.DOWN)
            offer.sent = 0
            self._actions.deadlines.cancel((self._offer_due, key))
        for peer in self._pending_offers:
            self._actions.deadlines.cancel((self._answer_due, peer))
        self._pending_offers.clear()
        for peer in list(self._subscribers):
            self.end_subscriptions_of(peer, EndReason.LINK)
        if self.competing_offers is not None:
            self.competing_offers.clear()

    def close(self) -> None:
        """Send a StopOffer for every service."""
        for key in list(self._offers):
            self.stop_offer(key)
        self._up = False

    def _start_offering(self, keys: Iterable[ServiceKey], now_ns: int, delay_ns: int | None = None) -> None:
        delay_ns = self._actions.initial_delay_ns() if delay_ns is None else delay_ns
        for key in keys:
            offer = self._offers[key]
            self._set_phase(offer, Phase.INITIAL_WAIT)
            offer.sent, offer.find_sent = 0, False
            self._actions.deadlines.schedule((self._offer_due, key), now_ns + delay_ns)

    # [impl->SD-252, SD-80, SD-79, SD-81]
    def _offer_due(self, key: Hashable, now_ns: int) -> None:
        offer = self._offers[cast(ServiceKey, key)]
        if (
            offer.sent == 0
            and self.competing_offers is not None
            and self._must_wait(offer, self.competing_offers, now_ns)
        ):
            return
        self._actions.enqueue(None, offer.entry(self._actions.timings.ttl_offer_s))
        offer.sent += 1
        offer.phase, pause_ms = next_phase(offer.sent, self._actions.timings)
        if pause_ms or offer.phase is not Phase.MAIN:
            self._actions.deadlines.schedule((self._offer_due, key), now_ns + pause_ms * NS_PER_MS)

    # --- competing offers of peer streamers ---------------------------------------------------------------------------

    def _must_wait(self, offer: _OfferState, competing_offers: CompetingOffers, now_ns: int) -> bool:
        """Whether another streamer offers the service, or a Find must first detect competing offers."""
        key = offer.service.key
        if not offer.find_sent:
            offer.phase, offer.find_sent = Phase.LISTENING, True
            ttl = self._actions.timings.ttl_find_s
            self._actions.enqueue(
                None, ServiceEntry(EntryType.FIND, key.service, key.instance, key.major, ANY_MINOR, ttl)
            )
            find_timeout_ns = (
                self._actions.timings.request_response_delay_max_ms * NS_PER_MS + _FIND_MARGIN_NS
            )
            self._actions.deadlines.schedule((self._offer_due, key), now_ns + find_timeout_ns)
            return True
        if competing_offers.should_stand_by(key, offer.service.authority, now_ns):
            self._stand_by(offer)
            return True
        self._set_phase(offer, Phase.REPETITION)
        return False

    def on_competing_offer(
        self, entry: ServiceEntry, router_id: RouterId, peer: Address, now_ns: int
    ) -> bool:
        """Process a competing Offer or StopOffer; returns whether the service is an own one."""
        key = ServiceKey(entry.service, entry.instance, entry.major)
        offer = self._offers.get(key)
        if offer is None or self.competing_offers is None or not self._up:
            return offer is not None
        self.competing_offers.on_offer(key, router_id, peer, entry.ttl, now_ns)
        offers_too = offer.sent and entry.ttl
        if offers_too and self.competing_offers.is_trusted(router_id, offer.service.authority):
            if self.competing_offers.yields_to(key, router_id):
                self._actions.enqueue(None, offer.entry(0))
                self._withdraw_subscriptions(key)
                self._stand_by(offer)
            else:
                self._pending_offers.setdefault(peer, {})[key] = None
                self._actions.deadlines.schedule_earlier(
                    (self._answer_due, peer), now_ns + self._actions.response_delay_ns()
                )
        return True

    def _stand_by(self, offer: _OfferState) -> None:
        self._actions.deadlines.cancel((self._offer_due, offer.service.key))
        offer.sent = 0
        self._set_phase(offer, Phase.STANDBY)

    def _set_phase(self, offer: _OfferState, phase: Phase) -> None:
        if (offer.phase is Phase.STANDBY) != (phase is Phase.STANDBY):
            self._actions.emit(OfferRoleChanged(offer.service.key, phase is not Phase.STANDBY))
        offer.phase = phase

    def recheck_standby(self, key: ServiceKey, now_ns: int) -> None:
        """Re-evaluate a standby: a competing offer ended or lost its trust."""
        offer = self._offers.get(key)
        if offer is None or self.competing_offers is None or offer.phase is not Phase.STANDBY:
            return
        due = (self._offer_due, key)
        if not self.competing_offers.should_stand_by(key, offer.service.authority, now_ns):
            self._actions.deadlines.schedule_earlier(due, now_ns + self._actions.initial_delay_ns())

    def recheck_all_standby(self, now_ns: int) -> None:
        """Re-evaluate all standbys after a change of trust."""
        for key in self._offers:
            self.recheck_standby(key, now_ns)

    # --- finds --------------------------------------------------------------------------------------------------------

    # [impl->SD-83, SD-624, SD-106, SD-878, SD-879]
    def on_find(self, entry: ServiceEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Answer a Find by unicast Offers: at once, or after a random delay if several servers may answer."""
        if entry.ttl == 0:
            return
        keys = [
            key
            for key, offer in self._offers.items()
            if offer.phase in {Phase.REPETITION, Phase.MAIN} and offer.matches(entry)
        ]
        if not keys:
            return
        self._pending_offers.setdefault(peer, {}).update(dict.fromkeys(keys))
        if multicast:
            self._actions.deadlines.schedule_earlier(
                (self._answer_due, peer), now_ns + self._actions.response_delay_ns()
            )
        else:
            self._actions.deadlines.cancel((self._answer_due, peer))
            self._answer_due(peer, now_ns)

    # [impl->SD-824]
    def _answer_due(self, peer: Hashable, now_ns: int) -> None:
        address = cast(Address, peer)
        for key in self._pending_offers.pop(address):
            offer = self._offers.get(key)
            if offer is not None:
                self._actions.enqueue(address, offer.entry(self._actions.timings.ttl_offer_s))

    # --- subscriptions ------------------------------------------------------------------------------------------------

    # [impl->SD-818, SD-1194]
    def on_subscribe(
        self, entry: EventgroupEntry, peer: Address, multicast: bool, supports_initial_data: bool, now_ns: int
    ) -> None:
        """Process a Subscribe or a StopSubscribe.

        `supports_initial_data`: the sender supports the initial-data flag.
        """
        if multicast:
            self._actions.emit_refused(
                SdRefusal.SD_MULTICAST, peer, f"Subscribe of {_describe(entry)} by multicast"
            )
            return
        endpoints = entry_endpoints(entry.options, self._family)
        if entry.ttl == 0:
            self._on_stop_subscribe(entry, endpoints, peer)
            return
        problem = self._refusal_of(entry, endpoints, peer)
        if problem is not None or isinstance(endpoints, str):
            reason, detail = problem or (SdRefusal.SD_ENDPOINTS, str(endpoints))
            self._actions.emit_refused(reason, peer, f"Subscribe of {_describe(entry)}: {detail}")
            self.refuse_entry(entry, peer)
            return
        subscription = SdSubscription(
            peer, _service_key(entry), entry.eventgroup, entry.counter, endpoints.udp, endpoints.tcp
        )
        subscriber = self._subscribers.get(peer, {}).get(subscription)
        if subscriber is None:
            self._request_decision(subscription, entry, supports_initial_data, now_ns)
            return
        subscriber.entry, subscriber.received_ns = entry, now_ns
        if subscriber.state is SubscriberState.ACTIVE:
            self._ack(subscription, subscriber)
            if supports_initial_data and entry.initial_data:
                self._actions.emit_after(InitialDataRequested(subscription))

    def refuse_entry(self, entry: EventgroupEntry, peer: Address) -> None:
        """Refuse a Subscribe of the present message; `on_message_end` follows."""
        self._waiting_nacks.setdefault(peer, []).append(entry)

    # [impl->SD-836]
    def on_message_end(self, peer: Address) -> None:
        """All entries of a message are processed: its Nacks leave now, or with the first decision for `peer`."""
        subscribers = self._subscribers.get(peer, {}).values()
        if peer in self._waiting_nacks and not any(
            each.state is SubscriberState.PENDING for each in subscribers
        ):
            self._send_waiting_nacks(peer)

    def _send_waiting_nacks(self, peer: Address) -> None:
        for entry in self._waiting_nacks.pop(peer, ()):
            self.nack(entry, peer)

    # [impl->SD-1144, SD-1137, SD-1164, SD-798]
    def _refusal_of(
        self, entry: EventgroupEntry, endpoints: EntryEndpoints | str, peer: Address
    ) -> tuple[SdRefusal, str] | None:
        offer = self._offers.get(_service_key(entry))
        if offer is None or offer.phase in {Phase.DOWN, Phase.STANDBY}:
            return SdRefusal.SD_SUBSCRIBE_UNKNOWN, "not offered"
        if entry.eventgroup not in offer.eventgroups:
            return SdRefusal.SD_SUBSCRIBE_UNKNOWN, "no such event group"
        if isinstance(endpoints, str):
            return SdRefusal.SD_ENDPOINTS, endpoints
        if endpoints.udp is None and endpoints.tcp is None and offer.eventgroups[entry.eventgroup] is None:
            return SdRefusal.SD_ENDPOINTS, "no endpoint, expected one over UDP or TCP"
        for address in (endpoints.udp, endpoints.tcp):
            # A Subscribe that names another host would redirect all events to that host.
            if address is not None and address[0] != peer[0]:
                return (
                    SdRefusal.SD_ENDPOINTS,
                    f"endpoint {format_address(address)}, expected one of {peer[0]}",
                )
        return None

    # [impl->SD-1188, SD-432, SD-833]
    def _request_decision(
        self, subscription: SdSubscription, entry: EventgroupEntry, supports_initial_data: bool, now_ns: int
    ) -> None:
        limits = self._actions.settings.limits
        peer = subscription.peer
        of_peer = len(self._subscribers.get(peer, ()))
        if self._subscription_count >= limits.subscriptions or of_peer >= limits.peer_subscriptions:
            detail = f"{self._subscription_count} subscriptions, {of_peer} of this peer"
            self._actions.emit_refused(
                SdRefusal.SD_SUBSCRIBE_LIMIT, peer, f"Subscribe of {_describe(entry)}: {detail}"
            )
            self.nack(entry, peer)
            return
        subscriber = _Subscriber(entry)
        subscriber.received_ns = now_ns
        self._subscribers.setdefault(peer, {})[subscription] = subscriber
        self._subscription_count += 1
        timeout_ns = self._actions.timings.decision_timeout_ms * NS_PER_MS
        self._actions.deadlines.schedule((self._subscriber_due, subscription), now_ns + timeout_ns)
        multicast = self._offers[subscription.key].eventgroups[subscription.eventgroup]
        initial = entry.initial_data if supports_initial_data else True
        self._actions.emit(SubscriptionRequested(subscription, entry.ttl, initial, multicast))

    # [impl->SD-613, SD-441]
    def accept_subscription(self, subscription: SdSubscription) -> None:
        """Accept a requested subscription; no effect if the subscription ended meanwhile."""
        subscriber = self._subscribers.get(subscription.peer, {}).get(subscription)
        if subscriber is not None and subscriber.state is SubscriberState.PENDING:
            subscriber.state = SubscriberState.ACTIVE
            self._ack(subscription, subscriber)
            self._send_waiting_nacks(subscription.peer)

    def refuse_subscription(self, subscription: SdSubscription) -> None:
        """Refuse a requested or an accepted subscription; the next Subscribe requests a new decision."""
        subscriber = self._subscribers.get(subscription.peer, {}).get(subscription)
        if subscriber is not None:
            self._remove_subscription(subscription)
            self.nack(subscriber.entry, subscription.peer)

    # [impl->SD-854, SD-763, SD-789, SD-814]
    def _ack(self, subscription: SdSubscription, subscriber: _Subscriber) -> None:
        entry = subscriber.entry
        multicast = self._offers[subscription.key].eventgroups[subscription.eventgroup]
        options = () if multicast is None else (Endpoint(*multicast, role=int(EndpointRole.MULTICAST)),)
        self._actions.enqueue(subscription.peer, _ack_entry(entry, entry.ttl, options))
        due = (self._subscriber_due, subscription)
        if entry.ttl == TTL_FOREVER:
            self._actions.deadlines.cancel(due)
        else:
            self._actions.deadlines.schedule(due, subscriber.received_ns + entry.ttl * NS_PER_S)

    # [impl->SD-618]
    def nack(self, entry: EventgroupEntry, peer: Address) -> None:
        """Send a Nack for a Subscribe. A StopSubscribe has no answer."""
        if entry.ttl:
            self._actions.enqueue(peer, _ack_entry(entry, 0, ()))

    # [impl->SD-1297]
    def _on_stop_subscribe(
        self, entry: EventgroupEntry, endpoints: EntryEndpoints | str, peer: Address
    ) -> None:
        stopped = (_service_key(entry), entry.eventgroup, entry.counter)
        for subscription in list(self._subscribers.get(peer, ())):
            if (subscription.key, subscription.eventgroup, subscription.counter) != stopped:
                continue
            # A StopSubscribe names the endpoints of its Subscribe; without endpoints it ends all of them.
            named = (endpoints.udp, endpoints.tcp) if isinstance(endpoints, EntryEndpoints) else (None, None)
            if named in {(None, None), (subscription.udp, subscription.tcp)}:
                self._end_subscription(subscription, EndReason.STOPPED)

    # [impl->SD-445]
    def _subscriber_due(self, key: Hashable, now_ns: int) -> None:
        subscription = cast(SdSubscription, key)
        subscriber = self._subscribers[subscription.peer][subscription]
        if subscriber.state is SubscriberState.ACTIVE:
            self._end_subscription(subscription, EndReason.EXPIRED)
            return
        self._actions.emit_refused(
            SdRefusal.SD_SUBSCRIBE_UNDECIDED, subscription.peer, f"Subscribe of {_describe(subscriber.entry)}"
        )
        self.nack(subscriber.entry, subscription.peer)
        self._end_subscription(subscription, EndReason.UNDECIDED)

    def on_peer_rebooted(self, peer: Address, now_ns: int) -> None:
        """All subscriptions and competing offers of `peer` end."""
        self.end_subscriptions_of(peer, EndReason.REBOOTED)
        if self.competing_offers is not None:
            self.competing_offers.on_peer_rebooted(peer, now_ns)

    def end_subscriptions_of(self, peer: Address, why: EndReason) -> None:
        """End all subscriptions of `peer`."""
        for subscription in list(self._subscribers.get(peer, ())):
            self._end_subscription(subscription, why)

    def _end_subscription(self, subscription: SdSubscription, why: EndReason) -> None:
        self._remove_subscription(subscription)
        self._actions.emit(SubscriptionEnded(subscription, why))

    def _remove_subscription(self, subscription: SdSubscription) -> None:
        of_peer = self._subscribers[subscription.peer]
        del of_peer[subscription]
        if not of_peer:
            del self._subscribers[subscription.peer]
        self._subscription_count -= 1
        self._send_waiting_nacks(subscription.peer)
        self._actions.deadlines.cancel((self._subscriber_due, subscription))

    # --- statistics ---------------------------------------------------------------------------------------------------

    def depends_on(self, peer: Address) -> bool:
        """Whether the server holds state that belongs to `peer`."""
        competes = self.competing_offers is not None and self.competing_offers.depends_on(peer)
        return competes or peer in self._subscribers or peer in self._pending_offers

    def offer_phase(self, key: ServiceKey) -> Phase:
        """The phase of an offer; DOWN if there is none."""
        offer = self._offers.get(key)
        return Phase.DOWN if offer is None else offer.phase

    def statistics(self) -> dict[str, int]:
        standby = sum(offer.phase is Phase.STANDBY for offer in list(self._offers.values()))
        return {
            "sd_offers": len(self._offers),
            "sd_offers_standby": standby,
            "sd_subscribers": self._subscription_count,
        }


def _service_key(entry: EventgroupEntry) -> ServiceKey:
    return ServiceKey(entry.service, entry.instance, entry.major)


def _describe(entry: EventgroupEntry) -> str:
    return f"{_service_key(entry)} event group {entry.eventgroup:#06x}"


# [impl->SD-614, SD-619]
def _ack_entry(entry: EventgroupEntry, ttl: int, options: tuple[Option, ...]) -> EventgroupEntry:
    return EventgroupEntry(
        EntryType.ACK,
        entry.service,
        entry.instance,
        entry.major,
        entry.eventgroup,
        ttl,
        entry.counter,
        entry.reserved,
        options,
    )
