# SPDX-License-Identifier: Apache-2.0
"""The service discovery of one network as one value: messages and times in, actions out.

No socket, no thread, no clock.

The caller owns the sockets. It calls `feed` with every message that arrives at the service discovery port, and
`on_timer` at `next_deadline_ns`. Every call returns ordered actions. One thread at a time.

    discovery.link_up(now)                            the initial wait begins
    discovery.feed(message, peer, multicast, now)     -> [PeerRebooted(...), ServiceFound(...), Send(...), ...]
    discovery.on_timer(now)                           -> [Send(...), ServiceLost(...), ...]

A received message passes these checks in order; a failed check emits an `SdInputRefused` with the reason:

    1  not the looped-back own multicast                         6  neither late nor a duplicate (sessions.py)
    2  from one of the configured networks                       7  a reboot ends the peer's offers and subscriptions
    3  the peer table has space (peers.py)                       8  entry by entry, in order: client.py or server.py
    4  the rate limit of the peer, counted in entries
    5  the codec
"""

import zlib
from collections.abc import Callable, Hashable, Iterable
from typing import cast

from ustreamer.core.peers.election import Announcement
from ustreamer.transports.someip.protocol.addresses import Address, format_address
from ustreamer.transports.someip.protocol.codec import SomeIpMessage
from ustreamer.transports.someip.sd.action_buffer import ActionBuffer
from ustreamer.transports.someip.sd.actions import Action, PeerRebooted, SdRefusal, SdSubscription
from ustreamer.transports.someip.sd.client import SdClient
from ustreamer.transports.someip.sd.codec import (
    ENTRY_SIZE,
    Entry,
    EntryType,
    EventgroupEntry,
    MalformedSdMessage,
    ServiceEntry,
    decode_sd_message,
)
from ustreamer.transports.someip.sd.codec import SdMessage as Message
from ustreamer.transports.someip.sd.endpoints import NetworkPolicy
from ustreamer.transports.someip.sd.eventgroups import EventgroupProtocols, EventgroupState
from ustreamer.transports.someip.sd.peer_announcer import PeerAnnouncer
from ustreamer.transports.someip.sd.peer_options import MalformedAnnouncement, decode_streamer_mark
from ustreamer.transports.someip.sd.peers import SdPeer, SdPeers
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.server import SdServer
from ustreamer.transports.someip.sd.sessions import SessionVerdict, session_and_reboot_flag
from ustreamer.transports.someip.sd.settings import OfferedService, SdSettings, ServiceKey, WantedService
from ustreamer.transports.someip.sd.standby import TrustCheck

_IGNORED = {SessionVerdict.LATE: SdRefusal.SD_LATE, SessionVerdict.DUPLICATE: SdRefusal.SD_DUPLICATE}


# [impl->RPC-361, SD-425, SD-1195]
class Discovery:
    """Service discovery on one network. `rng` returns random numbers from 0 to 1."""

    def __init__(self, settings: SdSettings, rng: Callable[[], float]) -> None:
        self._settings = settings
        self._networks = NetworkPolicy(settings.networks)
        self._actions = ActionBuffer(settings, rng, self._next_session)
        self._server = SdServer(self._actions)
        self._client = SdClient(self._actions, self._networks)
        peer_discovery = settings.streamer
        self._announcer = None if peer_discovery is None else PeerAnnouncer(self._actions, peer_discovery)
        limits = settings.limits
        self._peers = SdPeers(limits.peers, limits.peer_entries_burst, self._in_use)
        self._multicasts_sent = 0
        self._reboots = 0

    # --- life ---------------------------------------------------------------------------------------------------------

    # [impl->SD-65]
    def link_up(self, now_ns: int) -> list[Action]:
        """The link is up: start all phases."""
        delay_ns = self._actions.initial_delay_ns()
        self._server.link_up(delay_ns, now_ns)
        self._client.link_up(delay_ns, now_ns)
        if self._announcer is not None:
            self._announcer.link_up(delay_ns, now_ns)
        return self._actions.drain()

    def link_down(self) -> list[Action]:
        """The link is down. Session numbers continue where they were."""
        self._server.link_down()
        self._client.link_down()
        if self._announcer is not None:
            self._announcer.link_down()
        return self._actions.drain()

    # [impl->SD-821]
    def close(self) -> list[Action]:
        """Send all StopOffers and StopSubscribes."""
        if self._announcer is not None:
            self._announcer.close()
        self._client.close()
        self._server.close()
        return self._actions.drain()

    @property
    def next_deadline_ns(self) -> int | None:
        """The next time to call `on_timer`; None if no deadline is scheduled."""
        return self._actions.deadlines.next_due

    def on_timer(self, now_ns: int) -> list[Action]:
        """Process all due deadlines."""
        while (found := self._actions.deadlines.pop_due(now_ns)) is not None:
            due, key = found
            cast(Callable[[Hashable, int], None], due)(key, now_ns)
        return self._actions.drain()

    # --- service requests ---------------------------------------------------------------------------------------------

    # [impl->SD-17, SD-22]
    def offer_service(self, service: OfferedService, now_ns: int) -> list[Action]:
        """Start to offer a service."""
        self._server.offer_service(service, now_ns)
        return self._actions.drain()

    # [impl->SD-22]
    def stop_offer(self, key: ServiceKey) -> list[Action]:
        """Stop offering a service."""
        self._server.stop_offer(key)
        return self._actions.drain()

    def decide_subscriptions(
        self, accepted: Iterable[SdSubscription] = (), refused: Iterable[SdSubscription] = ()
    ) -> list[Action]:
        """Decide requested subscriptions (`SubscriptionRequested`), if possible all of one message in one call.

        Subscriptions that ended meanwhile are skipped. An accepted subscription may be refused later.
        """
        for subscription in accepted:
            self._server.accept_subscription(subscription)
        for subscription in refused:
            self._server.refuse_subscription(subscription)
        return self._actions.drain()

    # [impl->SD-17, SD-18]
    def request_service(self, wanted: WantedService, now_ns: int) -> list[Action]:
        """Request a remote service."""
        self._client.request_service(wanted, now_ns)
        return self._actions.drain()

    # [impl->SD-18]
    def release_service(self, wanted: WantedService) -> list[Action]:
        """Release a remote service and end its subscriptions."""
        self._client.release_service(wanted)
        return self._actions.drain()

    # [impl->SD-203]
    def subscribe(
        self,
        wanted: WantedService,
        eventgroup: int,
        now_ns: int,
        *,
        reliable: bool = False,
        mixed: bool = False,
    ) -> list[Action]:
        """Subscribe to an event group of a service while the service is available.

        Over TCP if `reliable`, and then over UDP as well if `mixed`.
        """
        self._client.subscribe(wanted, eventgroup, EventgroupProtocols(reliable, mixed), now_ns)
        return self._actions.drain()

    # [impl->SD-203]
    def unsubscribe(self, wanted: WantedService, eventgroup: int) -> list[Action]:
        """End a subscription to an event group."""
        self._client.unsubscribe(wanted, eventgroup)
        return self._actions.drain()

    def request_values(self, key: ServiceKey, eventgroup: int, now_ns: int) -> list[Action]:
        """Subscribe an active event group again for the values of its fields."""
        self._client.request_values(key, eventgroup, now_ns)
        return self._actions.drain()

    def renew_subscription(self, key: ServiceKey, eventgroup: int, now_ns: int) -> list[Action]:
        """End an active subscription at the server and subscribe again."""
        self._client.renew_subscription(key, eventgroup, now_ns)
        return self._actions.drain()

    def on_connected(self, key: ServiceKey, local: Address, now_ns: int) -> list[Action]:
        """The connection of a `ConnectRequested` is open; `local` is its local end."""
        self._client.on_connected(key, local, now_ns)
        return self._actions.drain()

    def on_disconnected(self, key: ServiceKey) -> list[Action]:
        """The connection is closed, or the connect failed."""
        self._client.on_disconnected(key)
        return self._actions.drain()

    # --- peer streamers -----------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement], now_ns: int) -> list[Action]:
        """Replace the announcements to other streamers."""
        if self._announcer is not None:
            self._announcer.announce(announcements, now_ns)
        return self._actions.drain()

    def set_trust_check(self, trust_check: TrustCheck, now_ns: int) -> list[Action]:
        """Set the trust check for competing offers; call again whenever its results may have changed."""
        if self._server.competing_offers is not None:
            self._server.competing_offers.trust_check = trust_check
            self._server.recheck_all_standby(now_ns)
        return self._actions.drain()

    # --- input --------------------------------------------------------------------------------------------------------

    def feed(
        self, message: SomeIpMessage, peer: Address, multicast: bool, now_ns: int, waited_ns: int = 0
    ) -> list[Action]:
        """Process a message from `peer`, sent to the group or by unicast, that arrived `waited_ns` ago.

        Session numbers are judged by the arrival time: a receiver delay must not look like a late message or a reboot.
        """
        if peer != self._settings.own:
            self._feed(message, peer, multicast, now_ns, waited_ns)
        return self._actions.drain()

    # [impl->SD-862]
    def _feed(
        self, message: SomeIpMessage, peer: Address, multicast: bool, now_ns: int, waited_ns: int
    ) -> None:
        if peer[0] not in self._networks:
            self._actions.emit_refused(SdRefusal.SD_NETWORK, peer, "not in a trusted network")
            return
        known = self._admitted(message.payload, peer, now_ns)
        if known is None:
            return
        try:
            sd_message, refused = decode_sd_message(message)
        except MalformedSdMessage as error:
            self._actions.emit_refused(error.reason, peer, str(error))
            return
        if self._settings.sd_endpoint_options and sd_message.sd_endpoint is not None:
            named = self._peer_at_sd_endpoint(sd_message.sd_endpoint.address, peer, now_ns)
            if named is None:
                return
            known, peer = named, named.address
        verdict = known.sessions.observe(
            message.session, sd_message.reboot, multicast, zlib.crc32(message.payload), now_ns - waited_ns
        )
        if verdict in _IGNORED:
            self._actions.emit_refused(_IGNORED[verdict], peer, f"session {message.session}")
            return
        if verdict is SessionVerdict.REBOOT:
            self._on_peer_rebooted(peer, now_ns)
        for each in refused:
            self._actions.emit_refused(each.problem, peer, str(each))
            refused_entry = each.entry
            if (
                isinstance(refused_entry, EventgroupEntry)
                and refused_entry.type == EntryType.SUBSCRIBE
                and not multicast
            ):
                self._server.refuse_entry(refused_entry, peer)
        for entry in sd_message.entries:
            self._on_entry(entry, sd_message, peer, multicast, now_ns)
        self._server.on_message_end(peer)

    def _admitted(self, payload: bytes, peer: Address, now_ns: int) -> SdPeer | None:
        known = self._peers.on_message(peer, now_ns)
        if known is None:
            self._actions.emit_refused(SdRefusal.SD_PEER_LIMIT, peer, f"{len(self._peers)} peers are known")
            return None
        # Before the decoder: the cost of a message is its number of entries, which the header contains.
        entries = min(len(payload), int.from_bytes(payload[4:8], "big")) // ENTRY_SIZE
        limits = self._settings.limits
        if not known.allow(max(entries, 1), limits.peer_entries_per_s, limits.peer_entries_burst, now_ns):
            self._actions.emit_refused(
                SdRefusal.SD_RATE, peer, f"{entries} entries, above {limits.peer_entries_per_s} per s"
            )
            return None
        return known

    # [impl->SD-1084]
    def _peer_at_sd_endpoint(self, address: Address, peer: Address, now_ns: int) -> SdPeer | None:
        if address[0] not in self._networks or address == self._settings.own:
            self._actions.emit_refused(
                SdRefusal.SD_NETWORK, peer, f"sd endpoint option {format_address(address)}"
            )
            return None
        known = self._peers.on_message(address, now_ns)
        if known is None:
            self._actions.emit_refused(
                SdRefusal.SD_PEER_LIMIT, peer, f"sd endpoint option {format_address(address)}"
            )
        return known

    # [impl->SD-871]
    def _on_peer_rebooted(self, peer: Address, now_ns: int) -> None:
        self._reboots += 1
        self._actions.emit(PeerRebooted(peer))
        self._server.on_peer_rebooted(peer, now_ns)
        self._client.on_peer_rebooted(peer, now_ns)
        if self._announcer is not None:
            self._announcer.on_peer_rebooted(peer, now_ns)

    def _on_entry(
        self, entry: Entry, sd_message: Message, peer: Address, multicast: bool, now_ns: int
    ) -> None:
        if isinstance(entry, ServiceEntry):
            if entry.type == EntryType.FIND:
                self._server.on_find(entry, peer, multicast, now_ns)
                if self._announcer is not None:
                    self._announcer.on_find(entry, peer, multicast, now_ns)
            elif not self._is_from_streamer(entry, peer, now_ns):
                self._client.on_offer(entry, peer, multicast, sd_message.initial_data, now_ns)
        elif entry.type == EntryType.SUBSCRIBE:
            self._server.on_subscribe(entry, peer, multicast, sd_message.initial_data, now_ns)
        else:
            self._client.on_ack(entry, peer, multicast, now_ns)

    def _is_from_streamer(self, entry: ServiceEntry, peer: Address, now_ns: int) -> bool:
        """Whether the Offer comes from another streamer and must not be processed as an ECU's."""
        settings = self._settings.streamer
        if settings is None or self._announcer is None:
            return False
        try:
            router_id = decode_streamer_mark(entry.options)
        except MalformedAnnouncement as error:
            self._actions.emit_refused(SdRefusal.SD_ANNOUNCEMENT_MALFORMED, peer, str(error))
            return True
        if router_id is None and peer[0] not in settings.streamer_hosts:
            return False
        if router_id is not None:
            if entry.service == settings.service:
                self._announcer.on_offer(entry, router_id, peer, now_ns)
                return True
            if router_id != settings.own_id and self._server.on_competing_offer(
                entry, router_id, peer, now_ns
            ):
                return True
        key = ServiceKey(entry.service, entry.instance, entry.major)
        if key in settings.accept_relayed:
            return False
        if self._client.is_requested(key, entry.minor):
            self._actions.emit_refused(
                SdRefusal.SD_RELAYED, peer, f"Offer of {key} by streamer {router_id or peer[0]}"
            )
        return True

    # --- statistics ---------------------------------------------------------------------------------------------------

    def offer_phase(self, key: ServiceKey) -> Phase:
        """The phase of an own offer."""
        return self._server.offer_phase(key)

    def find_phase(self, wanted: WantedService) -> Phase:
        """The phase of a Find."""
        return self._client.find_phase(wanted)

    def eventgroup_state(self, key: ServiceKey, eventgroup: int) -> EventgroupState | None:
        """The state of a subscription; None if the service is unavailable."""
        return self._client.eventgroup_state(key, eventgroup)

    def unwanted_offers(self) -> list[ServiceKey]:
        """The latest Offers that no service request matches. From any thread."""
        return list(self._client.unwanted_offers)

    def statistics(self) -> dict[str, int]:
        """Current table sizes, and the reboots and unrequested offers since the start."""
        return {
            "sd_peers": len(self._peers),
            "sd_reboots": self._reboots,
            **({} if self._announcer is None else self._announcer.statistics()),
            **self._server.statistics(),
            **self._client.statistics(),
        }

    def _next_session(self, to: Address | None) -> tuple[int, bool]:
        if to is not None:
            return self._peers.next_session(to)
        self._multicasts_sent += 1
        return session_and_reboot_flag(self._multicasts_sent)

    def _in_use(self, peer: Address) -> bool:
        announces = self._announcer is not None and self._announcer.depends_on(peer)
        return announces or self._server.depends_on(peer) or self._client.depends_on(peer)
