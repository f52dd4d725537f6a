# SPDX-License-Identifier: Apache-2.0
"""The side that wants: Finds in their phases, what others offer, and our subscriptions to it.

The states of our subscriptions are in eventgroups.py.
"""

from collections.abc import Hashable, Iterable
from typing import Final, cast

from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, Desk
from ustreamer.transports.someip.sd.actions import (
    ConnectWanted,
    Ended,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    Refusal,
    ServiceFound,
    ServiceLost,
)
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    FOREVER,
    INITIAL_DATA,
    EntryType,
    EventgroupEntry,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.endpoints import Neighbourhood, Places, places, shown
from ustreamer.transports.someip.sd.eventgroups import TRANSITIONS, Event, Group, State
from ustreamer.transports.someip.sd.options import Endpoint, Option, Protocol
from ustreamer.transports.someip.sd.phases import Phase, after
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService

_WHY: Final = {
    Event.EXPIRED: Ended.EXPIRED,
    Event.DISCONNECTED: Ended.DISCONNECTED,
}
_MOST_DOUBLINGS: Final = 3


class _Wanted:
    def __init__(self) -> None:
        self.phase = Phase.DOWN
        self.sent = 0
        self.eventgroups: dict[int, bool] = {}  # event group -> over TCP


class _Remote:
    """A wanted service that is offered."""

    def __init__(self, peer: Address, found: Places) -> None:
        self.peer = peer
        self.places = found
        self.minor = 0
        self.knows_initial = False
        self.groups: dict[int, Group] = {}
        self.stream: Address | None = None  # our end of the TCP connection
        self.connecting = False
        self.by_multicast = False  # the Offer that the next Subscribe is for


class Client:
    """What others offer that we want."""

    def __init__(self, desk: Desk, neighbourhood: Neighbourhood) -> None:
        self._desk = desk
        self._neighbourhood = neighbourhood
        self._family = 6 if ":" in desk.settings.own[0] else 4
        self._up = False
        self._wanted: dict[WantedService, _Wanted] = {}
        self._by_service: dict[int, list[WantedService]] = {}
        self._remotes: dict[ServiceKey, _Remote] = {}
        self._by_peer: dict[Address, dict[ServiceKey, None]] = {}
        self._unwanted = 0

    # --- wishes -----------------------------------------------------------------------------------------------------------

    def want(self, wanted: WantedService, now_ns: int) -> None:
        """Look for a service from now on."""
        if wanted in self._wanted:
            return
        self._wanted[wanted] = _Wanted()
        self._by_service.setdefault(wanted.service, []).append(wanted)
        if self._up:
            self._start((wanted,), now_ns, self._desk.initial_delay())

    def release(self, wanted: WantedService) -> None:
        """Look for it no more, and end our subscriptions to what only it wanted."""
        if wanted not in self._wanted:
            return
        for eventgroup in list(self._wanted[wanted].eventgroups):
            self.unsubscribe(wanted, eventgroup)
        del self._wanted[wanted]
        self._desk.deadlines.cancel((self._find_due, wanted))
        others = self._by_service[wanted.service]
        others.remove(wanted)
        if not others:
            del self._by_service[wanted.service]
        for key, remote in list(self._remotes.items()):
            if not any(self._fitting(key, remote.minor)):
                self._forget(key)

    def subscribe(self, wanted: WantedService, eventgroup: int, reliable: bool, now_ns: int) -> None:
        """Subscribe an event group of every instance of `wanted`, over TCP if `reliable`."""
        self.want(wanted, now_ns)
        self._wanted[wanted].eventgroups[eventgroup] = reliable
        for key, remote in self._remotes.items():
            if wanted.fits(key, remote.minor) and eventgroup not in remote.groups:
                self._add_group(key, remote, eventgroup, reliable)
                self._send(key, remote, (eventgroup,), now_ns)

    def unsubscribe(self, wanted: WantedService, eventgroup: int) -> None:
        """End it, where nobody else wants it."""
        record = self._wanted.get(wanted)
        if record is None or record.eventgroups.pop(eventgroup, None) is None:
            return
        for key, remote in self._remotes.items():
            if eventgroup in remote.groups and eventgroup not in self._eventgroups(key, remote.minor):
                self._stop_group(key, remote, eventgroup)

    def connected(self, key: ServiceKey, local: Address, now_ns: int) -> None:
        """The connection that `ConnectWanted` asked for is open; `local` is our end of it."""
        remote = self._remotes.get(key)
        if remote is None:
            return
        remote.stream, remote.connecting = local, False
        groups = [number for number, group in remote.groups.items() if group.reliable]
        for number in groups:
            self._turn(key, number, remote.groups[number], Event.CONNECTED)
        self._send(key, remote, groups, now_ns)

    def disconnected(self, key: ServiceKey) -> None:
        """It is gone, or could not be opened; the next Offer asks for another one."""
        remote = self._remotes.get(key)
        if remote is None:
            return
        remote.stream, remote.connecting = None, False
        for number, group in remote.groups.items():
            if group.reliable:
                self._desk.deadlines.cancel((self._answer_late, (key, number)))
                self._desk.deadlines.cancel((self._expired, (key, number)))
                group.sent, group.awaits_multicast = False, False
                self._turn(key, number, group, Event.DISCONNECTED)

    # --- finds ------------------------------------------------------------------------------------------------------------

    def link_up(self, delay_ns: int, now_ns: int) -> None:
        self._up = True
        self._start(self._wanted, now_ns, delay_ns)

    def link_down(self) -> None:
        """The link is gone, and with it all that was offered."""
        self._up = False
        for wanted, record in self._wanted.items():
            record.phase, record.sent = Phase.DOWN, 0
            self._desk.deadlines.cancel((self._find_due, wanted))
        for key in list(self._remotes):
            self._lose(key, Ended.LINK)

    def close(self) -> None:
        """Say that all our subscriptions stop."""
        for wanted in list(self._wanted):
            self.release(wanted)
        self._up = False

    def _start(self, wishes: Iterable[WantedService], now_ns: int, delay_ns: int) -> None:
        for wanted in wishes:
            record = self._wanted[wanted]
            record.phase, record.sent = Phase.INITIAL_WAIT, 0
            self._desk.deadlines.set((self._find_due, wanted), now_ns + delay_ns)

    def _find_due(self, wish: Hashable, now_ns: int) -> None:
        wanted = cast(WantedService, wish)
        record = self._wanted[wanted]
        # Of any instance, one Find is sent whatever is known: nobody knows how many there are.
        once = wanted.instance == ANY_INSTANCE and record.sent == 0
        if not once and any(wanted.fits(key, remote.minor) for key, remote in self._remotes.items()):
            record.phase = Phase.MAIN
            return
        ttl = self._desk.timings.ttl_find_s
        self._desk.post(
            None,
            ServiceEntry(EntryType.FIND, wanted.service, wanted.instance, wanted.major, wanted.minor, ttl),
        )
        record.sent += 1
        record.phase, pause_ms = after(record.sent, self._desk.timings)
        if record.phase is Phase.REPETITION:
            self._desk.deadlines.set((self._find_due, wanted), now_ns + pause_ms * NS_PER_MS)

    def _stop_finding(self, wanted: WantedService) -> None:
        record = self._wanted[wanted]
        if wanted.instance != ANY_INSTANCE or record.sent:
            record.phase = Phase.MAIN
            self._desk.deadlines.cancel((self._find_due, wanted))

    # --- offers -----------------------------------------------------------------------------------------------------------

    def offer(
        self, entry: ServiceEntry, peer: Address, multicast: bool, knows_initial: bool, now_ns: int
    ) -> None:
        """Offer or StopOffer; `knows_initial`: the sender understands the flag for initial data."""
        key = ServiceKey(entry.service, entry.instance, entry.major)
        wishes = list(self._fitting(key, entry.minor))
        if not wishes or not self._up:
            self._unwanted += 1
            return
        remote = self._remotes.get(key)
        if remote is not None and remote.peer != peer:
            detail = f"{'Offer' if entry.ttl else 'StopOffer'} of {key}, which {shown(remote.peer)} offers"
            self._desk.refuse(Refusal.SD_OFFER_FOREIGN, peer, detail)
            return
        if entry.ttl == 0:
            if remote is not None:
                self._lose(key, Ended.STOPPED)
            return
        found = self._believed(key, entry, peer, remote)
        if found is None:
            return
        if remote is None:
            if len(self._remotes) >= self._desk.settings.limits.services:
                detail = f"Offer of {key}: {len(self._remotes)} services are known"
                self._desk.refuse(Refusal.SD_OFFER_LIMIT, peer, detail)
                return
            remote = self._remotes[key] = _Remote(peer, found)
            self._by_peer.setdefault(peer, {})[key] = None
            self._found(key, entry, remote, peer)
        elif remote.places != found:
            remote.places = found
            self._found(key, entry, remote, peer)
        remote.minor, remote.knows_initial = entry.minor, knows_initial
        for wanted in wishes:
            self._stop_finding(wanted)
        self._set_expiry((self._offer_expired, key), entry.ttl, now_ns)
        for number, reliable in self._eventgroups(key, entry.minor).items():
            if number not in remote.groups:
                self._add_group(key, remote, number, reliable)
        remote.by_multicast = multicast
        if multicast and remote.groups:
            delay_ns = self._desk.answer_delay()
            self._desk.deadlines.set_earlier((self._subscribe_due, key), now_ns + delay_ns)
        else:
            self._subscribe_due(key, now_ns)

    def _found(self, key: ServiceKey, entry: ServiceEntry, remote: _Remote, peer: Address) -> None:
        self._desk.tell(ServiceFound(key, entry.minor, remote.places.udp, remote.places.tcp, peer))

    def _believed(
        self, key: ServiceKey, entry: ServiceEntry, peer: Address, remote: _Remote | None
    ) -> Places | None:
        found = places(entry.options, self._family)
        if isinstance(found, str):
            self._desk.refuse(Refusal.SD_ENDPOINTS, peer, f"Offer of {key}: {found}")
            return None
        found = Places(found.udp, found.tcp)
        addresses = [each for each in (found.udp, found.tcp) if each is not None]
        if not addresses:
            self._desk.refuse(Refusal.SD_ENDPOINTS, peer, f"Offer of {key}: no endpoint")
            return None
        for address in addresses:
            if address[0] not in self._neighbourhood:
                detail = f"Offer of {key} at {shown(address)}, which is in no network of ours"
                self._desk.refuse(Refusal.SD_NETWORK, peer, detail)
                return None
            if address in {self._desk.settings.own, self._desk.settings.events}:
                self._desk.refuse(Refusal.SD_ENDPOINTS, peer, f"Offer of {key} at our own {shown(address)}")
                return None
        if remote is not None:
            # Another protocol may come up later. What is in use stays where it is until its peer says StopOffer, falls
            # silent for its ttl or reboots.
            old = remote.places
            if (old.udp or found.udp) != found.udp or (old.tcp or found.tcp) != found.tcp:
                detail = f"Offer of {key} at {_all(found)}, which is in use at {_all(old)}"
                self._desk.refuse(Refusal.SD_OFFER_CHANGED, peer, detail)
                return None
        return found

    def _offer_expired(self, key: Hashable, now_ns: int) -> None:
        self._lose(cast(ServiceKey, key), Ended.EXPIRED)
        self._search_again(cast(ServiceKey, key), now_ns)

    def rebooted(self, peer: Address, now_ns: int) -> None:
        """All that `peer` offered is gone, until it offers it again."""
        for key in list(self._by_peer.get(peer, ())):
            self._lose(key, Ended.REBOOTED)
            self._search_again(key, now_ns)

    def _search_again(self, key: ServiceKey, now_ns: int) -> None:
        wishes = [wanted for wanted in self._by_service.get(key.service, ()) if _names(wanted, key)]
        self._start(wishes, now_ns, self._desk.initial_delay())

    def _lose(self, key: ServiceKey, why: Ended) -> None:
        remote = self._forget(key)
        for number, group in remote.groups.items():
            if group.state is State.SUBSCRIBED:
                self._desk.tell(EventgroupLost(key, number, why))
        self._desk.tell(ServiceLost(key, why))

    def _forget(self, key: ServiceKey) -> _Remote:
        remote = self._remotes.pop(key)
        of_peer = self._by_peer[remote.peer]
        del of_peer[key]
        if not of_peer:
            del self._by_peer[remote.peer]
        for number in remote.groups:
            self._desk.deadlines.cancel((self._answer_late, (key, number)))
            self._desk.deadlines.cancel((self._expired, (key, number)))
        self._desk.deadlines.cancel((self._offer_expired, key))
        self._desk.deadlines.cancel((self._subscribe_due, key))
        return remote

    # --- our subscriptions ------------------------------------------------------------------------------------------------

    def _add_group(self, key: ServiceKey, remote: _Remote, number: int, reliable: bool) -> None:
        group = remote.groups[number] = Group(reliable)
        if (remote.places.tcp if reliable else remote.places.udp) is None:
            group.state = State.REFUSED
            self._desk.tell(EventgroupRefused(key, number))
        elif reliable and remote.stream is not None:
            group.state = State.PENDING

    def _subscribe_due(self, hashed: Hashable, now_ns: int) -> None:
        key = cast(ServiceKey, hashed)
        self._desk.deadlines.cancel((self._subscribe_due, key))
        remote = self._remotes[key]
        for number, group in remote.groups.items():
            if (remote.places.tcp if group.reliable else remote.places.udp) is not None:
                connects = group.reliable and remote.stream is None
                self._turn(key, number, group, Event.DISCONNECTED if connects else Event.OFFER)
        self._send(key, remote, remote.groups, now_ns, by_multicast=remote.by_multicast)

    def _send(
        self,
        key: ServiceKey,
        remote: _Remote,
        numbers: Iterable[int],
        now_ns: int,
        *,
        by_multicast: bool = False,
    ) -> None:
        """Send a Subscribe for each of `numbers` that is ready for it, and ask for the connection of those that are not."""
        for number in numbers:
            group = remote.groups[number]
            if group.state is State.CONNECTING:
                self._connect(key, remote)
            elif group.state is not State.REFUSED:
                self._send_one(key, remote, number, by_multicast, now_ns)
                self._await_answer(key, number, group, now_ns)

    def _connect(self, key: ServiceKey, remote: _Remote) -> None:
        if remote.places.tcp is not None and remote.stream is None and not remote.connecting:
            remote.connecting = True
            self._desk.tell(ConnectWanted(key, remote.places.tcp))

    def _send_one(
        self, key: ServiceKey, remote: _Remote, number: int, by_multicast: bool, now_ns: int
    ) -> None:
        group = remote.groups[number]
        # Offers are repeated after 10 ms by some, which is too soon to miss an answer.
        patience_ns = self._desk.timings.request_response_delay_max_ms * NS_PER_MS
        overdue = group.awaits_multicast and now_ns - group.sent_ns >= patience_ns
        unanswered = by_multicast and overdue
        first = group.state is State.PENDING and group.tries == 0
        wants_values = remote.knows_initial and self._desk.settings.initial_data and (first or unanswered)
        entry = self._entry(key, remote, number, self._desk.timings.ttl_subscribe_s, wants_values)
        if unanswered and not wants_values:
            self._desk.post(remote.peer, self._entry(key, remote, number, 0, False), entry)
        else:
            self._desk.post(remote.peer, entry)
        group.sent, group.sent_ns, group.awaits_multicast = True, now_ns, by_multicast

    def _await_answer(self, key: ServiceKey, number: int, group: Group, now_ns: int) -> None:
        timeout_ns = self._desk.timings.ack_timeout_ms * NS_PER_MS
        self._desk.deadlines.set(
            (self._answer_late, (key, number)), now_ns + (timeout_ns << min(group.tries, _MOST_DOUBLINGS))
        )
        group.tries += 1

    def _entry(
        self, key: ServiceKey, remote: _Remote, number: int, ttl: int, wants_values: bool
    ) -> EventgroupEntry:
        options: tuple[Option, ...] = (Endpoint(*self._desk.settings.events),)
        if remote.groups[number].reliable and remote.stream is not None:
            options = (Endpoint(*remote.stream, protocol=int(Protocol.TCP)),)
        return EventgroupEntry(
            EntryType.SUBSCRIBE,
            key.service,
            key.instance,
            key.major,
            number,
            ttl,
            reserved=INITIAL_DATA if wants_values else 0,
            options=options,
        )

    def _answer_late(self, hashed: Hashable, now_ns: int) -> None:
        """No answer came; or it did and the ttl is half over, and no Offer had us send it again meanwhile."""
        key, number = cast(tuple[ServiceKey, int], hashed)
        self._send(key, self._remotes[key], (number,), now_ns)

    def answer(self, entry: EventgroupEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Ack or Nack."""
        key = ServiceKey(entry.service, entry.instance, entry.major)
        remote = self._remotes.get(key)
        group = None if remote is None else remote.groups.get(entry.eventgroup)
        what = f"{'Ack' if entry.ttl else 'Nack'} of {key} event group {entry.eventgroup:#06x}"
        if multicast:
            self._desk.refuse(Refusal.SD_MULTICAST, peer, f"{what} by multicast")
            return
        if remote is None or group is None or remote.peer != peer or not group.sent or entry.counter:
            self._desk.refuse(Refusal.SD_ACK_UNASKED, peer, what)
            return
        found = places(entry.options, self._family)
        if isinstance(found, str):
            self._desk.refuse(Refusal.SD_ENDPOINTS, peer, f"{what}: {found}")
            return
        group.tries, group.awaits_multicast = 0, False
        if entry.ttl == 0:
            self._desk.deadlines.cancel((self._answer_late, (key, entry.eventgroup)))
            self._desk.deadlines.cancel((self._expired, (key, entry.eventgroup)))
            self._turn(key, entry.eventgroup, group, Event.NACK)
            return
        news = group.state is not State.SUBSCRIBED or group.multicast != found.multicast
        group.multicast = found.multicast
        self._turn(key, entry.eventgroup, group, Event.ACK)
        self._set_expiry((self._expired, (key, entry.eventgroup)), entry.ttl, now_ns)
        if entry.ttl == FOREVER:
            self._desk.deadlines.cancel((self._answer_late, (key, entry.eventgroup)))
        else:
            again_ns = now_ns + entry.ttl * NS_PER_S // 2
            self._desk.deadlines.set((self._answer_late, (key, entry.eventgroup)), again_ns)
        if news:
            self._desk.tell(EventgroupSubscribed(key, entry.eventgroup, found.multicast))

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        key, number = cast(tuple[ServiceKey, int], hashed)
        self._turn(key, number, self._remotes[key].groups[number], Event.EXPIRED)

    def _turn(self, key: ServiceKey, number: int, group: Group, event: Event) -> None:
        before = group.state
        group.state = TRANSITIONS.get((before, event), before)
        if group.state is before:
            return
        if group.state is State.REFUSED:
            self._desk.tell(EventgroupRefused(key, number))
        elif before is State.SUBSCRIBED:
            self._desk.tell(EventgroupLost(key, number, _WHY[event]))

    def _stop_group(self, key: ServiceKey, remote: _Remote, number: int) -> None:
        if remote.groups[number].sent:
            self._desk.post(remote.peer, self._entry(key, remote, number, 0, False))
        del remote.groups[number]
        self._desk.deadlines.cancel((self._answer_late, (key, number)))
        self._desk.deadlines.cancel((self._expired, (key, number)))

    # --- tables -----------------------------------------------------------------------------------------------------------

    def _fitting(self, key: ServiceKey, minor: int) -> Iterable[WantedService]:
        return (each for each in self._by_service.get(key.service, ()) if each.fits(key, minor))

    def _eventgroups(self, key: ServiceKey, minor: int) -> dict[int, bool]:
        found: dict[int, bool] = {}
        for wanted in self._fitting(key, minor):
            found.update(self._wanted[wanted].eventgroups)
        return found

    def _set_expiry(self, due: tuple[object, Hashable], ttl: int, now_ns: int) -> None:
        if ttl == FOREVER:
            self._desk.deadlines.cancel(due)
        else:
            self._desk.deadlines.set(due, now_ns + ttl * NS_PER_S)

    def wants(self, key: ServiceKey, minor: int) -> bool:
        """Whether an Offer of `key` would be taken."""
        return any(True for _ in self._fitting(key, minor))

    def uses(self, peer: Address) -> bool:
        """Whether something here depends on what is known of `peer`."""
        return peer in self._by_peer

    def phase(self, wanted: WantedService) -> Phase:
        """The phase of a Find; DOWN if there is none."""
        record = self._wanted.get(wanted)
        return Phase.DOWN if record is None else record.phase

    def state(self, key: ServiceKey, eventgroup: int) -> State | None:
        """The state of a subscription of ours; None if its service is not there, or nobody wants it."""
        remote = self._remotes.get(key)
        group = None if remote is None else remote.groups.get(eventgroup)
        return None if group is None else group.state

    def statistics(self) -> dict[str, int]:
        # Copied in one step each: other threads ask as well.
        groups = [group for remote in list(self._remotes.values()) for group in list(remote.groups.values())]
        return {
            "sd_wanted": len(self._wanted),
            "sd_found": len(self._remotes),
            "sd_subscribed": sum(group.state is State.SUBSCRIBED for group in groups),
            "sd_unwanted_offers": self._unwanted,
        }


def _names(wanted: WantedService, key: ServiceKey) -> bool:
    return wanted.fits(key, wanted.minor)


def _all(found: Places) -> str:
    return " and ".join(shown(address) for address in (found.udp, found.tcp) if address is not None)
