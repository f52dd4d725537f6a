# SPDX-License-Identifier: Apache-2.0
"""The client side of service discovery: Finds, received Offers and subscriptions to the services of ECUs.

Input: service requests, Offers, Acks and timers. Output: actions. `phases.py` has the table of the Finds,
`eventgroups.py` that of the subscriptions.
"""

from collections.abc import Hashable, Iterable
from typing import Final, cast

from ustreamer.core.base.backoff import backoff_ns
from ustreamer.transports.someip.protocol.addresses import Address, format_address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, ActionBuffer
from ustreamer.transports.someip.sd.actions import (
    ConnectRequested,
    EndReason,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    SdRefusal,
    ServiceFound,
    ServiceLost,
)
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    INITIAL_DATA,
    EntryType,
    EventgroupEntry,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.endpoints import (
    EntryEndpoints,
    NetworkPolicy,
    entry_endpoints,
)
from ustreamer.transports.someip.sd.eventgroups import (
    TRANSITIONS,
    EventgroupProtocols,
    EventgroupState,
    EventgroupSubscription,
    EventgroupTrigger,
)
from ustreamer.transports.someip.sd.options import Endpoint, L4Protocol, Option
from ustreamer.transports.someip.sd.phases import Phase, next_phase
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService
from ustreamer.uprotocol.bounded_cache import BoundedCache

_MAX_UNWANTED: Final = 64
_END_REASONS: Final = {
    EventgroupTrigger.EXPIRED: EndReason.EXPIRED,
    EventgroupTrigger.DISCONNECTED: EndReason.DISCONNECTED,
}


class _FindState:
    def __init__(self) -> None:
        self.phase = Phase.DOWN
        self.sent = 0
        self.eventgroups: dict[int, EventgroupProtocols] = {}


class _RemoteService:
    """A wanted service with a valid Offer."""

    def __init__(self, peer: Address, endpoints: EntryEndpoints) -> None:
        self.peer = peer
        self.endpoints = endpoints
        self.minor = 0
        self.supports_initial_data = False
        self.groups: dict[int, EventgroupSubscription] = {}
        self.tcp_local: Address | None = None  # local end of the TCP connection
        self.connecting = False
        self.by_multicast = False  # whether the Offer that triggers the next Subscribe was multicast


# [impl->SD-634, SD-812]
class SdClient:
    """The wanted services and the Offers of other hosts for them."""

    def __init__(self, actions: ActionBuffer, networks: NetworkPolicy) -> None:
        self._actions = actions
        self._networks = networks
        self._family = 6 if ":" in actions.settings.own[0] else 4
        self._up = False
        self._wanted: dict[WantedService, _FindState] = {}
        self._by_service: dict[int, list[WantedService]] = {}
        self._remotes: dict[ServiceKey, _RemoteService] = {}
        self._by_peer: dict[Address, dict[ServiceKey, None]] = {}
        self._unrequested_offers = 0
        self.unwanted_offers: BoundedCache[ServiceKey, None] = BoundedCache(_MAX_UNWANTED)
        """Offers of other services, instances or versions than the wanted ones. Other threads may copy it."""

    # --- service requests ---------------------------------------------------------------------------------------------

    def request_service(self, wanted: WantedService, now_ns: int) -> None:
        """Request a service: send Finds and process Offers for it."""
        if wanted in self._wanted:
            return
        self._wanted[wanted] = _FindState()
        self._by_service.setdefault(wanted.service, []).append(wanted)
        if self._up:
            self._start_finding((wanted,), now_ns, self._actions.initial_delay_ns())

    # [impl->SD-822]
    def release_service(self, wanted: WantedService) -> None:
        """Release a service and end the subscriptions that no other request needs."""
        if wanted not in self._wanted:
            return
        for eventgroup in list(self._wanted[wanted].eventgroups):
            self.unsubscribe(wanted, eventgroup)
        del self._wanted[wanted]
        self._actions.deadlines.cancel((self._find_due, wanted))
        others = self._by_service[wanted.service]
        others.remove(wanted)
        if not others:
            del self._by_service[wanted.service]
        for key, remote in list(self._remotes.items()):
            if not any(self._matching(key, remote.minor)):
                self._remove_service(key)

    # [impl->SD-422, SD-430]
    def subscribe(
        self, wanted: WantedService, eventgroup: int, protocols: EventgroupProtocols, now_ns: int
    ) -> None:
        """Subscribe to an event group of every instance of `wanted`."""
        self.request_service(wanted, now_ns)
        self._wanted[wanted].eventgroups[eventgroup] = protocols
        for key, remote in self._remotes.items():
            if wanted.matches(key, remote.minor) and eventgroup not in remote.groups:
                self._add_group(key, remote, eventgroup, protocols)
                self._send_subscribes(key, remote, (eventgroup,), now_ns)

    def unsubscribe(self, wanted: WantedService, eventgroup: int) -> None:
        """End the subscription where no other request needs it."""
        record = self._wanted.get(wanted)
        if record is None or record.eventgroups.pop(eventgroup, None) is None:
            return
        for key, remote in self._remotes.items():
            if eventgroup in remote.groups and eventgroup not in self._eventgroups(key, remote.minor):
                self._stop_group(key, remote, eventgroup)

    def request_values(self, key: ServiceKey, eventgroup: int, now_ns: int) -> None:
        """Subscribe again, so that the server sends the values of the fields of an active subscription."""
        remote = self._remotes.get(key)
        by_flag = remote is not None and remote.supports_initial_data and self._actions.settings.initial_data
        self._subscribe_again(key, eventgroup, now_ns, stops=not by_flag, wants_values=by_flag)

    # [impl->SD-439]
    def renew_subscription(self, key: ServiceKey, eventgroup: int, now_ns: int) -> None:
        """End an active subscription at the server and subscribe again: no event arrives."""
        self._subscribe_again(key, eventgroup, now_ns, stops=True, wants_values=False)

    def _subscribe_again(
        self, key: ServiceKey, eventgroup: int, now_ns: int, *, stops: bool, wants_values: bool
    ) -> None:
        remote = self._remotes.get(key)
        group = None if remote is None else remote.groups.get(eventgroup)
        if remote is None or group is None or group.state is not EventgroupState.SUBSCRIBED:
            return
        if stops:
            self._actions.enqueue(remote.peer, self._entry(key, remote, eventgroup, 0, False))
        ttl = self._actions.timings.ttl_subscribe_s
        self._actions.enqueue(remote.peer, self._entry(key, remote, eventgroup, ttl, wants_values))
        self._set_ack_timeout(key, eventgroup, group, now_ns)

    def on_connected(self, key: ServiceKey, local: Address, now_ns: int) -> None:
        """The connection of a `ConnectRequested` is open; `local` is its local end."""
        remote = self._remotes.get(key)
        if remote is None:
            return
        remote.tcp_local, remote.connecting = local, False
        groups = [number for number, group in remote.groups.items() if group.reliable]
        for number in groups:
            self._apply_trigger(key, number, remote.groups[number], EventgroupTrigger.CONNECTED)
        self._send_subscribes(key, remote, groups, now_ns)

    def on_disconnected(self, key: ServiceKey) -> None:
        """The connection is closed, or the connect failed. The next Offer requests another connection."""
        remote = self._remotes.get(key)
        if remote is None:
            return
        remote.tcp_local, remote.connecting = None, False
        for number, group in remote.groups.items():
            if group.reliable:
                self._actions.deadlines.cancel((self._resubscribe_due, (key, number)))
                self._actions.deadlines.cancel((self._expired, (key, number)))
                group.sent, group.awaits_multicast = False, False
                self._apply_trigger(key, number, group, EventgroupTrigger.DISCONNECTED)

    # --- finds --------------------------------------------------------------------------------------------------------

    # [impl->SD-72, SD-440]
    def link_up(self, delay_ns: int, now_ns: int) -> None:
        self._up = True
        self._start_finding(self._wanted, now_ns, delay_ns)

    # [impl->SD-1193, SD-632]
    def link_down(self) -> None:
        """The link is down: all Offers are void."""
        self._up = False
        for wanted, record in self._wanted.items():
            record.phase, record.sent = Phase.DOWN, 0
            self._actions.deadlines.cancel((self._find_due, wanted))
        for key in list(self._remotes):
            self._lose_service(key, EndReason.LINK)

    def close(self) -> None:
        """Send a StopSubscribe for every subscription."""
        for wanted in list(self._wanted):
            self.release_service(wanted)
        self._up = False

    def _start_finding(self, services: Iterable[WantedService], now_ns: int, delay_ns: int) -> None:
        for wanted in services:
            record = self._wanted[wanted]
            record.phase, record.sent = Phase.INITIAL_WAIT, 0
            self._actions.deadlines.schedule((self._find_due, wanted), now_ns + delay_ns)

    # [impl->SD-238, SD-239, SD-866, SD-877, COMPAT-802]
    def _find_due(self, hashed: Hashable, now_ns: int) -> None:
        wanted = cast(WantedService, hashed)
        record = self._wanted[wanted]
        # A request for any instance sends one Find in any case: the number of instances is unknown.
        once = wanted.instance == ANY_INSTANCE and record.sent == 0
        if not once and any(wanted.matches(key, remote.minor) for key, remote in self._remotes.items()):
            record.phase = Phase.MAIN
            return
        ttl = self._actions.timings.ttl_find_s
        self._actions.enqueue(
            None,
            ServiceEntry(EntryType.FIND, wanted.service, wanted.instance, wanted.major, wanted.minor, ttl),
        )
        record.sent += 1
        record.phase, pause_ms = next_phase(record.sent, self._actions.timings)
        if record.phase is Phase.REPETITION:
            self._actions.deadlines.schedule((self._find_due, wanted), now_ns + pause_ms * NS_PER_MS)

    # [impl->SD-867]
    def _stop_finding(self, wanted: WantedService) -> None:
        record = self._wanted[wanted]
        if wanted.instance != ANY_INSTANCE or record.sent:
            record.phase = Phase.MAIN
            self._actions.deadlines.cancel((self._find_due, wanted))

    # --- offers -------------------------------------------------------------------------------------------------------

    # [impl->SD-631, SD-766, SD-624, SD-834, SD-428, SD-431, SD-1169, SD-816]
    def on_offer(
        self, entry: ServiceEntry, peer: Address, multicast: bool, supports_initial_data: bool, now_ns: int
    ) -> None:
        """Process an Offer or a StopOffer.

        `supports_initial_data`: the sender supports the initial-data flag.
        """
        key = ServiceKey(entry.service, entry.instance, entry.major)
        requests = list(self._matching(key, entry.minor))
        if not requests:
            self._on_unwanted(key, entry.ttl)
            return
        if not self._up:
            return
        remote = self._remotes.get(key)
        if remote is not None and remote.peer != peer:
            detail = f"{'Offer' if entry.ttl else 'StopOffer'} of {key}, which {format_address(remote.peer)} offers"
            self._actions.emit_refused(SdRefusal.SD_OFFER_FOREIGN, peer, detail)
            return
        if entry.ttl == 0:
            if remote is not None:
                self._lose_service(key, EndReason.STOPPED)
            return
        endpoints = self._validated_endpoints(key, entry, peer, remote)
        if endpoints is None:
            return
        if remote is None:
            if len(self._remotes) >= self._actions.settings.limits.services:
                detail = f"Offer of {key}: {len(self._remotes)} services are known"
                self._actions.emit_refused(SdRefusal.SD_OFFER_LIMIT, peer, detail)
                return
            remote = self._remotes[key] = _RemoteService(peer, endpoints)
            self._by_peer.setdefault(peer, {})[key] = None
            self._report_found(key, entry, remote, peer)
        elif remote.endpoints != endpoints:
            remote.endpoints = endpoints
            self._report_found(key, entry, remote, peer)
        remote.minor, remote.supports_initial_data = entry.minor, supports_initial_data
        for wanted in requests:
            self._stop_finding(wanted)
        self._set_expiry((self._offer_expired, key), entry.ttl, now_ns)
        for number, protocols in self._eventgroups(key, entry.minor).items():
            if number not in remote.groups:
                self._add_group(key, remote, number, protocols)
        remote.by_multicast = multicast
        if multicast and remote.groups:
            delay_ns = self._actions.response_delay_ns()
            self._actions.deadlines.schedule_earlier((self._subscribe_due, key), now_ns + delay_ns)
        else:
            self._subscribe_due(key, now_ns)

    def _on_unwanted(self, key: ServiceKey, ttl: int) -> None:
        if ttl:
            self._unrequested_offers += 1
            self.unwanted_offers.add(key, None)
        else:
            self.unwanted_offers.pop(key, None)

    def _report_found(
        self, key: ServiceKey, entry: ServiceEntry, remote: _RemoteService, peer: Address
    ) -> None:
        self._actions.emit(ServiceFound(key, entry.minor, remote.endpoints.udp, remote.endpoints.tcp, peer))

    # [impl->SD-1135]
    def _validated_endpoints(
        self, key: ServiceKey, entry: ServiceEntry, peer: Address, remote: _RemoteService | None
    ) -> EntryEndpoints | None:
        endpoints = entry_endpoints(entry.options, self._family)
        if isinstance(endpoints, str):
            self._actions.emit_refused(SdRefusal.SD_ENDPOINTS, peer, f"Offer of {key}: {endpoints}")
            return None
        endpoints = EntryEndpoints(endpoints.udp, endpoints.tcp)
        addresses = [each for each in (endpoints.udp, endpoints.tcp) if each is not None]
        if not addresses:
            self._actions.emit_refused(SdRefusal.SD_ENDPOINTS, peer, f"Offer of {key}: no endpoint")
            return None
        for address in addresses:
            if address[0] not in self._networks:
                detail = f"Offer of {key} at {format_address(address)}, which is not in a trusted network"
                self._actions.emit_refused(SdRefusal.SD_NETWORK, peer, detail)
                return None
            if address in {self._actions.settings.own, self._actions.settings.events}:
                self._actions.emit_refused(
                    SdRefusal.SD_ENDPOINTS,
                    peer,
                    f"Offer of {key} at the own address {format_address(address)}",
                )
                return None
        if remote is not None:
            # Another protocol may be added later. An endpoint in use changes only after a StopOffer, a ttl expiry or a
            # reboot of the peer.
            old = remote.endpoints
            if (old.udp or endpoints.udp) != endpoints.udp or (old.tcp or endpoints.tcp) != endpoints.tcp:
                detail = f"Offer of {key} at {_format_endpoints(endpoints)}, which is in use at {_format_endpoints(old)}"
                self._actions.emit_refused(SdRefusal.SD_OFFER_CHANGED, peer, detail)
                return None
        return endpoints

    def _offer_expired(self, key: Hashable, now_ns: int) -> None:
        self._lose_service(cast(ServiceKey, key), EndReason.EXPIRED)
        self._restart_finding(cast(ServiceKey, key), now_ns)

    def on_peer_rebooted(self, peer: Address, now_ns: int) -> None:
        """All Offers of `peer` are void until `peer` offers again."""
        for key in list(self._by_peer.get(peer, ())):
            self._lose_service(key, EndReason.REBOOTED)
            self._restart_finding(key, now_ns)

    def _restart_finding(self, key: ServiceKey, now_ns: int) -> None:
        requests = [
            wanted for wanted in self._by_service.get(key.service, ()) if _matches_any_minor(wanted, key)
        ]
        self._start_finding(requests, now_ns, self._actions.initial_delay_ns())

    # [impl->SD-831]
    def _lose_service(self, key: ServiceKey, why: EndReason) -> None:
        remote = self._remove_service(key)
        for number, group in remote.groups.items():
            if group.state is EventgroupState.SUBSCRIBED:
                self._actions.emit(EventgroupLost(key, number, why))
        self._actions.emit(ServiceLost(key, why))

    def _remove_service(self, key: ServiceKey) -> _RemoteService:
        remote = self._remotes.pop(key)
        of_peer = self._by_peer[remote.peer]
        del of_peer[key]
        if not of_peer:
            del self._by_peer[remote.peer]
        for number in remote.groups:
            self._actions.deadlines.cancel((self._resubscribe_due, (key, number)))
            self._actions.deadlines.cancel((self._expired, (key, number)))
        self._actions.deadlines.cancel((self._offer_expired, key))
        self._actions.deadlines.cancel((self._subscribe_due, key))
        return remote

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def _add_group(
        self, key: ServiceKey, remote: _RemoteService, number: int, protocols: EventgroupProtocols
    ) -> None:
        group = remote.groups[number] = EventgroupSubscription(protocols)
        if not group.is_offered_at(remote.endpoints):
            group.state = EventgroupState.REFUSED
            self._actions.emit(EventgroupRefused(key, number))
        elif group.reliable and remote.tcp_local is not None:
            group.state = EventgroupState.PENDING

    def _subscribe_due(self, hashed: Hashable, now_ns: int) -> None:
        key = cast(ServiceKey, hashed)
        self._actions.deadlines.cancel((self._subscribe_due, key))
        remote = self._remotes[key]
        for number, group in remote.groups.items():
            if group.is_offered_at(remote.endpoints):
                connects = group.reliable and remote.tcp_local is None
                self._apply_trigger(
                    key,
                    number,
                    group,
                    EventgroupTrigger.DISCONNECTED if connects else EventgroupTrigger.OFFER,
                )
        self._send_subscribes(key, remote, remote.groups, now_ns, by_multicast=remote.by_multicast)

    # [impl->SD-767]
    def _send_subscribes(
        self,
        key: ServiceKey,
        remote: _RemoteService,
        numbers: Iterable[int],
        now_ns: int,
        *,
        by_multicast: bool = False,
    ) -> None:
        """Send a Subscribe for each of `numbers` that is ready, and request the connection for the others."""
        for number in numbers:
            group = remote.groups[number]
            if group.state is EventgroupState.CONNECTING:
                self._connect(key, remote)
            elif group.state is not EventgroupState.REFUSED:
                self._send_subscribe(key, remote, number, by_multicast, now_ns)
                self._set_ack_timeout(key, number, group, now_ns)

    # [impl->RPC-646, SD-762]
    def _connect(self, key: ServiceKey, remote: _RemoteService) -> None:
        if remote.endpoints.tcp is not None and remote.tcp_local is None and not remote.connecting:
            remote.connecting = True
            self._actions.emit(ConnectRequested(key, remote.endpoints.tcp))

    # [impl->SD-321, SD-1191, SD-1192, SD-1193, SD-844, SD-1178, SD-1171, SD-1176, SD-1194]
    def _send_subscribe(
        self, key: ServiceKey, remote: _RemoteService, number: int, by_multicast: bool, now_ns: int
    ) -> None:
        group = remote.groups[number]
        # Some servers repeat Offers after 10 ms, which is too early to count an answer as lost.
        timeout_ns = self._actions.timings.request_response_delay_max_ms * NS_PER_MS
        overdue = group.awaits_multicast and now_ns - group.sent_ns >= timeout_ns
        unanswered = by_multicast and overdue
        first = group.state is EventgroupState.PENDING and group.tries == 0
        wants_values = (
            remote.supports_initial_data and self._actions.settings.initial_data and (first or unanswered)
        )
        entry = self._entry(key, remote, number, self._actions.timings.ttl_subscribe_s, wants_values)
        if unanswered and not wants_values:
            self._actions.enqueue(remote.peer, self._entry(key, remote, number, 0, False), entry)
        else:
            self._actions.enqueue(remote.peer, entry)
        group.sent, group.sent_ns, group.awaits_multicast = True, now_ns, by_multicast

    # [impl->SD-828]
    def _set_ack_timeout(
        self, key: ServiceKey, number: int, group: EventgroupSubscription, now_ns: int
    ) -> None:
        first_ms = self._actions.timings.ack_timeout_ms
        timeout_ns = backoff_ns(first_ms, 8 * first_ms, group.tries)
        self._actions.deadlines.schedule((self._resubscribe_due, (key, number)), now_ns + timeout_ns)
        group.tries += 1

    # [impl->SD-848, SD-322, SD-682, SD-786, SD-814, COMPAT-1216, COMPAT-804]
    def _entry(
        self, key: ServiceKey, remote: _RemoteService, number: int, ttl: int, wants_values: bool
    ) -> EventgroupEntry:
        group = remote.groups[number]
        udp, options = Endpoint(*self._actions.settings.events), list[Option]()
        if group.names_udp or remote.tcp_local is None:
            options.append(udp)
        if group.reliable and remote.tcp_local is not None:
            options.append(Endpoint(*remote.tcp_local, protocol=int(L4Protocol.TCP)))
        return EventgroupEntry(
            EntryType.SUBSCRIBE,
            key.service,
            key.instance,
            key.major,
            number,
            ttl,
            reserved=INITIAL_DATA if wants_values else 0,
            options=tuple(options),
        )

    def _resubscribe_due(self, hashed: Hashable, now_ns: int) -> None:
        """Repeat a Subscribe: the answer is missing, or half of the ttl has passed without an Offer."""
        key, number = cast(tuple[ServiceKey, int], hashed)
        self._send_subscribes(key, self._remotes[key], (number,), now_ns)

    # [impl->SD-818, SD-829]
    def on_ack(self, entry: EventgroupEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Process an Ack or a Nack."""
        key = ServiceKey(entry.service, entry.instance, entry.major)
        remote = self._remotes.get(key)
        group = None if remote is None else remote.groups.get(entry.eventgroup)
        what = f"{'Ack' if entry.ttl else 'Nack'} of {key} event group {entry.eventgroup:#06x}"
        if multicast:
            self._actions.emit_refused(SdRefusal.SD_MULTICAST, peer, f"{what} by multicast")
            return
        if remote is None or group is None or remote.peer != peer or not group.sent or entry.counter:
            self._actions.emit_refused(SdRefusal.SD_ACK_UNEXPECTED, peer, what)
            return
        found = entry_endpoints(entry.options, self._family)
        if isinstance(found, str):
            self._actions.emit_refused(SdRefusal.SD_ENDPOINTS, peer, f"{what}: {found}")
            return
        group.tries, group.awaits_multicast = 0, False
        if entry.ttl == 0:
            self._actions.deadlines.cancel((self._resubscribe_due, (key, entry.eventgroup)))
            self._actions.deadlines.cancel((self._expired, (key, entry.eventgroup)))
            self._apply_trigger(key, entry.eventgroup, group, EventgroupTrigger.NACK)
            return
        is_changed = group.state is not EventgroupState.SUBSCRIBED or group.multicast != found.multicast
        group.multicast = found.multicast
        self._apply_trigger(key, entry.eventgroup, group, EventgroupTrigger.ACK)
        self._set_expiry((self._expired, (key, entry.eventgroup)), entry.ttl, now_ns)
        if entry.ttl == TTL_FOREVER:
            self._actions.deadlines.cancel((self._resubscribe_due, (key, entry.eventgroup)))
        else:
            renewal_ns = now_ns + entry.ttl * NS_PER_S // 2
            self._actions.deadlines.schedule((self._resubscribe_due, (key, entry.eventgroup)), renewal_ns)
        if is_changed:
            self._actions.emit(EventgroupSubscribed(key, entry.eventgroup, found.multicast))

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        key, number = cast(tuple[ServiceKey, int], hashed)
        self._apply_trigger(key, number, self._remotes[key].groups[number], EventgroupTrigger.EXPIRED)

    def _apply_trigger(
        self, key: ServiceKey, number: int, group: EventgroupSubscription, trigger: EventgroupTrigger
    ) -> None:
        before = group.state
        group.state = TRANSITIONS.get((before, trigger), before)
        if group.state is before:
            return
        if group.state is EventgroupState.REFUSED:
            self._actions.emit(EventgroupRefused(key, number))
        elif before is EventgroupState.SUBSCRIBED:
            self._actions.emit(EventgroupLost(key, number, _END_REASONS[trigger]))

    # [impl->SD-332, SD-333, SD-1177, SD-433]
    def _stop_group(self, key: ServiceKey, remote: _RemoteService, number: int) -> None:
        if remote.groups[number].sent:
            self._actions.enqueue(remote.peer, self._entry(key, remote, number, 0, False))
        del remote.groups[number]
        self._actions.deadlines.cancel((self._resubscribe_due, (key, number)))
        self._actions.deadlines.cancel((self._expired, (key, number)))

    # --- tables -------------------------------------------------------------------------------------------------------

    def _matching(self, key: ServiceKey, minor: int) -> Iterable[WantedService]:
        return (each for each in self._by_service.get(key.service, ()) if each.matches(key, minor))

    def _eventgroups(self, key: ServiceKey, minor: int) -> dict[int, EventgroupProtocols]:
        found: dict[int, EventgroupProtocols] = {}
        for wanted in self._matching(key, minor):
            found.update(self._wanted[wanted].eventgroups)
        return found

    def _set_expiry(self, due: tuple[object, Hashable], ttl: int, now_ns: int) -> None:
        if ttl == TTL_FOREVER:
            self._actions.deadlines.cancel(due)
        else:
            self._actions.deadlines.schedule(due, now_ns + ttl * NS_PER_S)

    def is_requested(self, key: ServiceKey, minor: int) -> bool:
        """Whether an Offer of `key` matches a request."""
        return any(True for _ in self._matching(key, minor))

    def depends_on(self, peer: Address) -> bool:
        """Whether the client holds state that belongs to `peer`."""
        return peer in self._by_peer

    def find_phase(self, wanted: WantedService) -> Phase:
        """The phase of a Find; DOWN if there is none."""
        record = self._wanted.get(wanted)
        return Phase.DOWN if record is None else record.phase

    def eventgroup_state(self, key: ServiceKey, eventgroup: int) -> EventgroupState | None:
        """The state of a subscription; None if the service is unavailable or the event group is not requested."""
        remote = self._remotes.get(key)
        group = None if remote is None else remote.groups.get(eventgroup)
        return None if group is None else group.state

    def statistics(self) -> dict[str, int]:
        # Each copy is one atomic step, because other threads read statistics.
        groups = [group for remote in list(self._remotes.values()) for group in list(remote.groups.values())]
        return {
            "sd_wanted": len(self._wanted),
            "sd_found": len(self._remotes),
            "sd_subscribed": sum(group.state is EventgroupState.SUBSCRIBED for group in groups),
            "sd_unwanted_offers": self._unrequested_offers,
        }


def _matches_any_minor(wanted: WantedService, key: ServiceKey) -> bool:
    return wanted.matches(key, wanted.minor)


def _format_endpoints(found: EntryEndpoints) -> str:
    return " and ".join(format_address(address) for address in (found.udp, found.tcp) if address is not None)
