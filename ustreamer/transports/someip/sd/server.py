# SPDX-License-Identifier: Apache-2.0
"""The side that offers: Offers in their phases, answers to Finds, and other people's subscriptions.

A subscription of somebody else, by what comes in (phases.py has the table of the Offers):

    state    | Subscribe        accept        refuse    StopSubscribe, ttl, reboot, link, withdrawn    no decision in time
    ---------+-------------------------------------------------------------------------------------------------------------
    none     | asked: ASKED     -             -         -                                              -
    ASKED    | ASKED            Ack: ACTIVE   Nack      ended                                          Nack, ended
    ACTIVE   | Ack: ACTIVE      -             -         ended                                          -
"""

from collections.abc import Hashable, Iterable
from enum import StrEnum
from typing import Final, cast

from ustreamer.core.peers.election import Who
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, Desk
from ustreamer.transports.someip.sd.actions import (
    Ended,
    InitialDataAsked,
    OfferTurned,
    Refusal,
    Subscription,
    SubscriptionAsked,
    SubscriptionEnded,
)
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    ANY_MAJOR,
    ANY_MINOR,
    FOREVER,
    EntryType,
    EventgroupEntry,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.endpoints import Places, places, shown
from ustreamer.transports.someip.sd.options import Endpoint, Option, Protocol, Role
from ustreamer.transports.someip.sd.peer_options import mark
from ustreamer.transports.someip.sd.phases import Phase, after
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey
from ustreamer.transports.someip.sd.standby import Rivals

_LISTEN_NS: Final = 50_000_000
"""For how long an answer to a Find may be late: a streamer that is busy needs some ms."""


class _Offer:
    def __init__(self, service: OfferedService, extra: tuple[Option, ...]) -> None:
        self.service = service
        self.listened = False
        self.phase = Phase.DOWN
        self.sent = 0
        self.eventgroups = dict(service.eventgroups)
        endpoints = [
            Endpoint(*address, protocol=int(protocol))
            for address, protocol in ((service.udp, Protocol.UDP), (service.tcp, Protocol.TCP))
            if address is not None
        ]
        self.options: tuple[Option, ...] = (*endpoints, *service.options, *extra)

    def entry(self, ttl: int) -> ServiceEntry:
        key = self.service.key
        return ServiceEntry(
            EntryType.OFFER, key.service, key.instance, key.major, self.service.minor, ttl, self.options
        )

    def fits(self, find: ServiceEntry) -> bool:
        key = self.service.key
        return (
            find.service == key.service
            and find.instance in {ANY_INSTANCE, key.instance}
            and find.major in {ANY_MAJOR, key.major}
            and find.minor in {ANY_MINOR, self.service.minor}
        )


class SubscriberState(StrEnum):
    ASKED = "asked"
    ACTIVE = "active"


class _Subscriber:
    def __init__(self, entry: EventgroupEntry) -> None:
        self.state = SubscriberState.ASKED
        self.entry = entry
        self.heard_ns = 0


class Server:
    """Offers of ours and their subscribers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        streamer = desk.settings.streamer
        self.rivals = None if streamer is None else Rivals(desk, streamer, self.recheck)
        self._extra = () if streamer is None else (mark(streamer.me),)
        self._family = 6 if ":" in desk.settings.own[0] else 4
        self._up = False
        self._offers: dict[ServiceKey, _Offer] = {}
        self._answers: dict[Address, dict[ServiceKey, None]] = {}
        self._subscribers: dict[Address, dict[Subscription, _Subscriber]] = {}
        self._number = 0

    # --- offers -----------------------------------------------------------------------------------------------------------

    def offer(self, service: OfferedService, now_ns: int) -> None:
        """Offer a service from now on; one that is offered already is offered anew."""
        if service.key in self._offers:
            self.withdraw(service.key, now_ns)
        self._offers[service.key] = _Offer(service, self._extra)
        if self._up:
            self._start((service.key,), now_ns)

    def withdraw(self, key: ServiceKey, now_ns: int) -> None:
        """Offer a service no more; its subscribers are gone with it."""
        offer = self._offers.pop(key, None)
        if offer is None:
            return
        self._desk.deadlines.cancel((self._offer_due, key))
        if offer.sent:
            self._desk.post(None, offer.entry(0))
        for subscription in [s for of in self._subscribers.values() for s in of if s.key == key]:
            self._end(subscription, Ended.WITHDRAWN)

    def link_up(self, delay_ns: int, now_ns: int) -> None:
        """All offers start, after the same delay, so that they share messages."""
        self._up = True
        self._start(self._offers, now_ns, delay_ns)

    def link_down(self) -> None:
        """The link is gone: so is everybody who subscribed."""
        self._up = False
        for key, offer in self._offers.items():
            self._turn(offer, Phase.DOWN)
            offer.sent = 0
            self._desk.deadlines.cancel((self._offer_due, key))
        for peer in self._answers:
            self._desk.deadlines.cancel((self._answer_due, peer))
        self._answers.clear()
        for peer in list(self._subscribers):
            self.forget(peer, Ended.LINK)
        if self.rivals is not None:
            self.rivals.clear()

    def close(self) -> None:
        """Say that all offers stop."""
        for key in list(self._offers):
            self.withdraw(key, 0)
        self._up = False

    def _start(self, keys: Iterable[ServiceKey], now_ns: int, delay_ns: int | None = None) -> None:
        delay_ns = self._desk.initial_delay() if delay_ns is None else delay_ns
        for key in keys:
            offer = self._offers[key]
            self._turn(offer, Phase.INITIAL_WAIT)
            offer.sent, offer.listened = 0, False
            self._desk.deadlines.set((self._offer_due, key), now_ns + delay_ns)

    def _offer_due(self, key: Hashable, now_ns: int) -> None:
        offer = self._offers[cast(ServiceKey, key)]
        if offer.sent == 0 and self.rivals is not None and self._waits(offer, self.rivals, now_ns):
            return
        self._desk.post(None, offer.entry(self._desk.timings.ttl_offer_s))
        offer.sent += 1
        offer.phase, pause_ms = after(offer.sent, self._desk.timings)
        if pause_ms or offer.phase is not Phase.MAIN:
            self._desk.deadlines.set((self._offer_due, key), now_ns + pause_ms * NS_PER_MS)

    # --- other streamers that offer the same --------------------------------------------------------------------------------

    def _waits(self, offer: _Offer, rivals: Rivals, now_ns: int) -> bool:
        """Whether another streamer offers it, or it is to be asked first."""
        key = offer.service.key
        if not offer.listened:
            offer.phase, offer.listened = Phase.LISTENING, True
            ttl = self._desk.timings.ttl_find_s
            self._desk.post(
                None, ServiceEntry(EntryType.FIND, key.service, key.instance, key.major, ANY_MINOR, ttl)
            )
            answered_ns = self._desk.timings.request_response_delay_max_ms * NS_PER_MS + _LISTEN_NS
            self._desk.deadlines.set((self._offer_due, key), now_ns + answered_ns)
            return True
        if rivals.hold(key, offer.service.authority, now_ns):
            self._stand_by(offer)
            return True
        self._turn(offer, Phase.REPETITION)
        return False

    def rival(self, entry: ServiceEntry, who: Who, peer: Address, now_ns: int) -> bool:
        """Hear that another streamer offers something, or stops to; whether it is something that we offer."""
        key = ServiceKey(entry.service, entry.instance, entry.major)
        offer = self._offers.get(key)
        if offer is None or self.rivals is None or not self._up:
            return offer is not None
        self.rivals.hear(key, who, peer, entry.ttl, now_ns)
        offers_too = offer.sent and entry.ttl
        if offers_too and self.rivals.believes(who, offer.service.authority):
            if self.rivals.comes_first(key, who):
                self._desk.post(None, offer.entry(0))
                for subscription in [s for of in self._subscribers.values() for s in of if s.key == key]:
                    self._end(subscription, Ended.WITHDRAWN)
                self._stand_by(offer)
            else:
                self._answers.setdefault(peer, {})[key] = None
                self._desk.deadlines.set_earlier((self._answer_due, peer), now_ns + self._desk.answer_delay())
        return True

    def _stand_by(self, offer: _Offer) -> None:
        self._desk.deadlines.cancel((self._offer_due, offer.service.key))
        offer.sent = 0
        self._turn(offer, Phase.STANDBY)

    def _turn(self, offer: _Offer, phase: Phase) -> None:
        if (offer.phase is Phase.STANDBY) != (phase is Phase.STANDBY):
            self._desk.tell(OfferTurned(offer.service.key, phase is not Phase.STANDBY))
        offer.phase = phase

    def recheck(self, key: ServiceKey, now_ns: int) -> None:
        """Fewer than before may offer what we stand by for, or somebody is believed no more."""
        offer = self._offers.get(key)
        if offer is None or self.rivals is None or offer.phase is not Phase.STANDBY:
            return
        due = (self._offer_due, key)
        if not self.rivals.hold(key, offer.service.authority, now_ns):
            self._desk.deadlines.set_earlier(due, now_ns + self._desk.initial_delay())

    def recheck_all(self, now_ns: int) -> None:
        """Others may be believed than before."""
        for key in self._offers:
            self.recheck(key, now_ns)

    # --- finds ------------------------------------------------------------------------------------------------------------

    def find(self, entry: ServiceEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Answer a Find with unicast Offers: at once, or with a delay if many may be answering."""
        if entry.ttl == 0:
            return
        keys = [
            key
            for key, offer in self._offers.items()
            if offer.phase in {Phase.REPETITION, Phase.MAIN} and offer.fits(entry)
        ]
        if not keys:
            return
        self._answers.setdefault(peer, {}).update(dict.fromkeys(keys))
        if multicast:
            self._desk.deadlines.set_earlier((self._answer_due, peer), now_ns + self._desk.answer_delay())
        else:
            self._desk.deadlines.cancel((self._answer_due, peer))
            self._answer_due(peer, now_ns)

    def _answer_due(self, peer: Hashable, now_ns: int) -> None:
        address = cast(Address, peer)
        for key in self._answers.pop(address):
            offer = self._offers.get(key)
            if offer is not None:
                self._desk.post(address, offer.entry(self._desk.timings.ttl_offer_s))

    # --- subscriptions ----------------------------------------------------------------------------------------------------

    def subscribe(
        self, entry: EventgroupEntry, peer: Address, multicast: bool, says_initial: bool, now_ns: int
    ) -> None:
        """Subscribe or StopSubscribe; `says_initial`: the sender understands the flag for initial data."""
        if multicast:
            self._desk.refuse(Refusal.SD_MULTICAST, peer, f"Subscribe of {_named(entry)} by multicast")
            return
        found = places(entry.options, self._family)
        if entry.ttl == 0:
            self._stop(entry, found, peer)
            return
        problem = self._problem(entry, found, peer)
        if problem is not None or isinstance(found, str):
            reason, detail = problem or (Refusal.SD_ENDPOINTS, str(found))
            self._desk.refuse(reason, peer, f"Subscribe of {_named(entry)}: {detail}")
            self.nack(entry, peer)
            return
        subscription = Subscription(peer, _key(entry), entry.eventgroup, entry.counter, found.udp, found.tcp)
        subscriber = self._subscribers.get(peer, {}).get(subscription)
        if subscriber is None:
            self._ask(subscription, entry, says_initial, now_ns)
            return
        subscriber.entry, subscriber.heard_ns = entry, now_ns
        if subscriber.state is SubscriberState.ACTIVE:
            self._ack(subscription, subscriber)
            if says_initial and entry.initial_data:
                self._desk.tell_later(InitialDataAsked(subscription))

    def _problem(
        self, entry: EventgroupEntry, found: Places | str, peer: Address
    ) -> tuple[Refusal, str] | None:
        offer = self._offers.get(_key(entry))
        if offer is None or offer.phase in {Phase.DOWN, Phase.STANDBY}:
            return Refusal.SD_SUBSCRIBE_UNKNOWN, "not offered"
        if entry.eventgroup not in offer.eventgroups:
            return Refusal.SD_SUBSCRIBE_UNKNOWN, "no such event group"
        if isinstance(found, str):
            return Refusal.SD_ENDPOINTS, found
        if found.udp is None and found.tcp is None and offer.eventgroups[entry.eventgroup] is None:
            return Refusal.SD_ENDPOINTS, "no endpoint, expected one over UDP or TCP"
        for address in (found.udp, found.tcp):
            # Whoever could name another host would have us send it all the events.
            if address is not None and address[0] != peer[0]:
                return Refusal.SD_ENDPOINTS, f"endpoint {shown(address)}, expected one of {peer[0]}"
        return None

    def _ask(
        self, subscription: Subscription, entry: EventgroupEntry, says_initial: bool, now_ns: int
    ) -> None:
        limits = self._desk.settings.limits
        peer = subscription.peer
        of_peer = len(self._subscribers.get(peer, ()))
        if self._number >= limits.subscriptions or of_peer >= limits.peer_subscriptions:
            detail = f"{self._number} subscriptions, {of_peer} of this peer"
            self._desk.refuse(Refusal.SD_SUBSCRIBE_LIMIT, peer, f"Subscribe of {_named(entry)}: {detail}")
            self.nack(entry, peer)
            return
        subscriber = _Subscriber(entry)
        subscriber.heard_ns = now_ns
        self._subscribers.setdefault(peer, {})[subscription] = subscriber
        self._number += 1
        timeout_ns = self._desk.timings.decision_timeout_ms * NS_PER_MS
        self._desk.deadlines.set((self._subscriber_due, subscription), now_ns + timeout_ns)
        multicast = self._offers[subscription.key].eventgroups[subscription.eventgroup]
        initial = entry.initial_data if says_initial else True
        self._desk.tell(SubscriptionAsked(subscription, entry.ttl, initial, multicast))

    def accept(self, subscription: Subscription) -> None:
        """The subscription that was asked about is granted; nothing if it is over meanwhile."""
        subscriber = self._subscribers.get(subscription.peer, {}).get(subscription)
        if subscriber is not None and subscriber.state is SubscriberState.ASKED:
            subscriber.state = SubscriberState.ACTIVE
            self._ack(subscription, subscriber)

    def refuse(self, subscription: Subscription) -> None:
        """It is not granted, or no longer: the next Subscribe is asked about again."""
        subscriber = self._subscribers.get(subscription.peer, {}).get(subscription)
        if subscriber is not None:
            self._remove(subscription)
            self.nack(subscriber.entry, subscription.peer)

    def _ack(self, subscription: Subscription, subscriber: _Subscriber) -> None:
        entry = subscriber.entry
        multicast = self._offers[subscription.key].eventgroups[subscription.eventgroup]
        options = () if multicast is None else (Endpoint(*multicast, role=int(Role.MULTICAST)),)
        self._desk.post(subscription.peer, _answer(entry, entry.ttl, options))
        due = (self._subscriber_due, subscription)
        if entry.ttl == FOREVER:
            self._desk.deadlines.cancel(due)
        else:
            self._desk.deadlines.set(due, subscriber.heard_ns + entry.ttl * NS_PER_S)

    def nack(self, entry: EventgroupEntry, peer: Address) -> None:
        """Refuse a Subscribe. A StopSubscribe has no answer."""
        if entry.ttl:
            self._desk.post(peer, _answer(entry, 0, ()))

    def _stop(self, entry: EventgroupEntry, found: Places | str, peer: Address) -> None:
        asked = (_key(entry), entry.eventgroup, entry.counter)
        for subscription in list(self._subscribers.get(peer, ())):
            if (subscription.key, subscription.eventgroup, subscription.counter) != asked:
                continue
            # It names the endpoints of its Subscribe; one that names none means all of them.
            named = (found.udp, found.tcp) if isinstance(found, Places) else (None, None)
            if named in {(None, None), (subscription.udp, subscription.tcp)}:
                self._end(subscription, Ended.STOPPED)

    def _subscriber_due(self, key: Hashable, now_ns: int) -> None:
        subscription = cast(Subscription, key)
        subscriber = self._subscribers[subscription.peer][subscription]
        if subscriber.state is SubscriberState.ACTIVE:
            self._end(subscription, Ended.EXPIRED)
            return
        self._desk.refuse(
            Refusal.SD_SUBSCRIBE_UNDECIDED, subscription.peer, f"Subscribe of {_named(subscriber.entry)}"
        )
        self.nack(subscriber.entry, subscription.peer)
        self._end(subscription, Ended.UNDECIDED)

    def rebooted(self, peer: Address, now_ns: int) -> None:
        """All that `peer` subscribed is over, and it offers nothing."""
        self.forget(peer, Ended.REBOOTED)
        if self.rivals is not None:
            self.rivals.forget(peer, now_ns)

    def forget(self, peer: Address, why: Ended) -> None:
        """End all subscriptions of `peer`."""
        for subscription in list(self._subscribers.get(peer, ())):
            self._end(subscription, why)

    def _end(self, subscription: Subscription, why: Ended) -> None:
        self._remove(subscription)
        self._desk.tell(SubscriptionEnded(subscription, why))

    def _remove(self, subscription: Subscription) -> None:
        of_peer = self._subscribers[subscription.peer]
        del of_peer[subscription]
        if not of_peer:
            del self._subscribers[subscription.peer]
        self._number -= 1
        self._desk.deadlines.cancel((self._subscriber_due, subscription))

    # --- reading ----------------------------------------------------------------------------------------------------------

    def uses(self, peer: Address) -> bool:
        """Whether something here depends on what is known of `peer`."""
        offers_too = self.rivals is not None and self.rivals.uses(peer)
        return offers_too or peer in self._subscribers or peer in self._answers

    def phase(self, key: ServiceKey) -> Phase:
        """The phase of an offer; DOWN if there is none."""
        offer = self._offers.get(key)
        return Phase.DOWN if offer is None else offer.phase

    def statistics(self) -> dict[str, int]:
        standby = sum(offer.phase is Phase.STANDBY for offer in list(self._offers.values()))
        return {
            "sd_offers": len(self._offers),
            "sd_offers_standby": standby,
            "sd_subscribers": self._number,
        }


def _key(entry: EventgroupEntry) -> ServiceKey:
    return ServiceKey(entry.service, entry.instance, entry.major)


def _named(entry: EventgroupEntry) -> str:
    return f"{_key(entry)} event group {entry.eventgroup:#06x}"


def _answer(entry: EventgroupEntry, ttl: int, options: tuple[Option, ...]) -> EventgroupEntry:
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
