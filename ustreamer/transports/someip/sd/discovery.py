# SPDX-License-Identifier: Apache-2.0
"""Service discovery as one value: messages and times in, actions out. No socket, no thread, no clock.

Whoever owns the sockets calls `feed` with every message that came to service discovery's port, and `on_timer` at
`next_deadline_ns`; every call returns what is to be done, in order. One thread at a time.

    discovery.link_up(now)                            the initial wait begins
    discovery.feed(message, peer, multicast, now)     -> [PeerRebooted(...), ServiceFound(...), Send(...), ...]
    discovery.on_timer(now)                           -> [Send(...), ServiceLost(...), ...]

What is heard passes these doors, in this order; what is held up at one is a `Refused` that says why:

    1  not our own multicast, which comes back to us             6  neither late nor a duplicate (sessions.py)
    2  from one of the configured networks                       7  a reboot ends what its peer offered and subscribed
    3  there is room for its peer (peers.py)                     8  entry by entry, in order: client.py or server.py
    4  its peer's rate, counted in entries
    5  the codec
"""

import zlib
from collections.abc import Callable, Hashable, Iterable
from typing import cast

from ustreamer.core.peers.election import Announcement
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import SomeIpMessage
from ustreamer.transports.someip.sd.action_buffer import Desk
from ustreamer.transports.someip.sd.actions import (
    Action,
    PeerRebooted,
    Refusal,
    Subscription,
)
from ustreamer.transports.someip.sd.client import Client
from ustreamer.transports.someip.sd.codec import (
    ENTRY_SIZE,
    Entry,
    EntryType,
    EventgroupEntry,
    MalformedDiscovery,
    ServiceEntry,
    decode_message,
)
from ustreamer.transports.someip.sd.codec import Discovery as Message
from ustreamer.transports.someip.sd.endpoints import Neighbourhood, shown
from ustreamer.transports.someip.sd.eventgroups import State
from ustreamer.transports.someip.sd.peer_announcer import Streamers
from ustreamer.transports.someip.sd.peer_options import MalformedWords, read_mark
from ustreamer.transports.someip.sd.peers import Peer, Peers
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.server import Server
from ustreamer.transports.someip.sd.sessions import Heard, numbered
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey, Settings, WantedService
from ustreamer.transports.someip.sd.standby import Brings

_UNHEARD = {Heard.LATE: Refusal.SD_LATE, Heard.DUPLICATE: Refusal.SD_DUPLICATE}


class Discovery:
    """Service discovery on one network. `dice` gives numbers from 0 to 1."""

    def __init__(self, settings: Settings, dice: Callable[[], float]) -> None:
        self._settings = settings
        self._neighbourhood = Neighbourhood(settings.networks)
        self._desk = Desk(settings, dice, self._number)
        self._server = Server(self._desk)
        self._client = Client(self._desk, self._neighbourhood)
        streamer = settings.streamer
        self._streamers = None if streamer is None else Streamers(self._desk, streamer)
        limits = settings.limits
        self._peers = Peers(limits.peers, limits.peer_entries_burst, self._in_use)
        self._multicasts = 0
        self._reboots = 0

    # --- life -------------------------------------------------------------------------------------------------------------

    def link_up(self, now_ns: int) -> list[Action]:
        """The network is there: begin."""
        delay_ns = self._desk.initial_delay()
        self._server.link_up(delay_ns, now_ns)
        self._client.link_up(delay_ns, now_ns)
        if self._streamers is not None:
            self._streamers.link_up(delay_ns, now_ns)
        return self._desk.done()

    def link_down(self) -> list[Action]:
        """The network is gone; session numbers go on where they were."""
        self._server.link_down()
        self._client.link_down()
        if self._streamers is not None:
            self._streamers.link_down()
        return self._desk.done()

    def close(self) -> list[Action]:
        """Say goodbye: StopOffers and StopSubscribes."""
        if self._streamers is not None:
            self._streamers.close()
        self._client.close()
        self._server.close()
        return self._desk.done()

    @property
    def next_deadline_ns(self) -> int | None:
        """When `on_timer` has something to do; None if nothing is due ever."""
        return self._desk.deadlines.next_ns

    def on_timer(self, now_ns: int) -> list[Action]:
        """Do what is due."""
        while (found := self._desk.deadlines.pop_due(now_ns)) is not None:
            due, key = found
            cast(Callable[[Hashable, int], None], due)(key, now_ns)
        return self._desk.done()

    # --- wishes -----------------------------------------------------------------------------------------------------------

    def offer(self, service: OfferedService, now_ns: int) -> list[Action]:
        """Offer a service of ours from now on."""
        self._server.offer(service, now_ns)
        return self._desk.done()

    def withdraw(self, key: ServiceKey, now_ns: int) -> list[Action]:
        """Offer it no more."""
        self._server.withdraw(key, now_ns)
        return self._desk.done()

    def decide(
        self, accepted: Iterable[Subscription] = (), refused: Iterable[Subscription] = ()
    ) -> list[Action]:
        """Say what becomes of subscriptions that `SubscriptionAsked` asked about, all of one message at once if possible.

        Those that are over meanwhile are passed over. A subscription that was accepted may be refused later.
        """
        for subscription in accepted:
            self._server.accept(subscription)
        for subscription in refused:
            self._server.refuse(subscription)
        return self._desk.done()

    def want(self, wanted: WantedService, now_ns: int) -> list[Action]:
        """Look for a service of others."""
        self._client.want(wanted, now_ns)
        return self._desk.done()

    def release(self, wanted: WantedService) -> list[Action]:
        """Look for it no more, and end our subscriptions to it."""
        self._client.release(wanted)
        return self._desk.done()

    def subscribe(
        self, wanted: WantedService, eventgroup: int, now_ns: int, *, reliable: bool = False
    ) -> list[Action]:
        """Subscribe an event group of a service, whenever it is there; over TCP if `reliable`."""
        self._client.subscribe(wanted, eventgroup, reliable, now_ns)
        return self._desk.done()

    def unsubscribe(self, wanted: WantedService, eventgroup: int) -> list[Action]:
        """End a subscription of ours."""
        self._client.unsubscribe(wanted, eventgroup)
        return self._desk.done()

    def connected(self, key: ServiceKey, local: Address, now_ns: int) -> list[Action]:
        """The connection that `ConnectWanted` asked for is open; `local` is our end of it."""
        self._client.connected(key, local, now_ns)
        return self._desk.done()

    def disconnected(self, key: ServiceKey) -> list[Action]:
        """The connection is gone, or could not be opened."""
        self._client.disconnected(key)
        return self._desk.done()

    # --- other streamers ----------------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement], now_ns: int) -> list[Action]:
        """Tell other streamers these things about us from now on, and no others."""
        if self._streamers is not None:
            self._streamers.say(announcements, now_ns)
        return self._desk.done()

    def believe(self, brings: Brings, now_ns: int) -> list[Action]:
        """Go by `brings` in giving way to other streamers; to be said again when it may say something else."""
        if self._server.rivals is not None:
            self._server.rivals.brings = brings
            self._server.recheck_all(now_ns)
        return self._desk.done()

    # --- in ---------------------------------------------------------------------------------------------------------------

    def feed(
        self, message: SomeIpMessage, peer: Address, multicast: bool, now_ns: int, waited_ns: int = 0
    ) -> list[Action]:
        """Take in a message from `peer`, sent to the group or to us alone, which came `waited_ns` ago.

        That is for the session numbers: what we were too busy to read at once is not late, and no ECU has rebooted.
        """
        if peer != self._settings.own:
            self._feed(message, peer, multicast, now_ns, waited_ns)
        return self._desk.done()

    def _feed(
        self, message: SomeIpMessage, peer: Address, multicast: bool, now_ns: int, waited_ns: int
    ) -> None:
        if peer[0] not in self._neighbourhood:
            self._desk.refuse(Refusal.SD_NETWORK, peer, "in no network of ours")
            return
        known = self._admitted(message.payload, peer, now_ns)
        if known is None:
            return
        try:
            heard, refused = decode_message(message)
        except MalformedDiscovery as error:
            self._desk.refuse(error.reason, peer, str(error))
            return
        if self._settings.sd_endpoint_options and heard.sd_endpoint is not None:
            named = self._named(heard.sd_endpoint.address, peer, now_ns)
            if named is None:
                return
            known, peer = named, named.address
        verdict = known.sessions.heard(
            message.session, heard.reboot, multicast, zlib.crc32(message.payload), now_ns - waited_ns
        )
        if verdict in _UNHEARD:
            self._desk.refuse(_UNHEARD[verdict], peer, f"session {message.session}")
            return
        if verdict is Heard.REBOOT:
            self._rebooted(peer, now_ns)
        for each in refused:
            self._desk.refuse(each.problem, peer, str(each))
            wrong = each.entry
            if isinstance(wrong, EventgroupEntry) and wrong.type == EntryType.SUBSCRIBE and not multicast:
                self._server.nack(wrong, peer)
        for entry in heard.entries:
            self._entry(entry, heard, peer, multicast, now_ns)

    def _admitted(self, payload: bytes, peer: Address, now_ns: int) -> Peer | None:
        known = self._peers.heard(peer, now_ns)
        if known is None:
            self._desk.refuse(Refusal.SD_PEER_LIMIT, peer, f"{len(self._peers)} peers are known")
            return None
        # Before anything is decoded: what a message costs is its entries, and it says itself how many it has.
        entries = min(len(payload), int.from_bytes(payload[4:8], "big")) // ENTRY_SIZE
        limits = self._settings.limits
        if not known.may(max(entries, 1), limits.peer_entries_per_s, limits.peer_entries_burst, now_ns):
            self._desk.refuse(
                Refusal.SD_RATE, peer, f"{entries} entries, above {limits.peer_entries_per_s} per s"
            )
            return None
        return known

    def _named(self, address: Address, peer: Address, now_ns: int) -> Peer | None:
        if address[0] not in self._neighbourhood or address == self._settings.own:
            self._desk.refuse(Refusal.SD_NETWORK, peer, f"speaks for {shown(address)}")
            return None
        known = self._peers.heard(address, now_ns)
        if known is None:
            self._desk.refuse(Refusal.SD_PEER_LIMIT, peer, f"speaks for {shown(address)}")
        return known

    def _rebooted(self, peer: Address, now_ns: int) -> None:
        self._reboots += 1
        self._desk.tell(PeerRebooted(peer))
        self._server.rebooted(peer, now_ns)
        self._client.rebooted(peer, now_ns)
        if self._streamers is not None:
            self._streamers.forget(peer, now_ns)

    def _entry(self, entry: Entry, heard: Message, peer: Address, multicast: bool, now_ns: int) -> None:
        if isinstance(entry, ServiceEntry):
            if entry.type == EntryType.FIND:
                self._server.find(entry, peer, multicast, now_ns)
                if self._streamers is not None:
                    self._streamers.find(entry, peer, multicast, now_ns)
            elif not self._is_a_streamers(entry, peer, now_ns):
                self._client.offer(entry, peer, multicast, heard.initial_data, now_ns)
        elif entry.type == EntryType.SUBSCRIBE:
            self._server.subscribe(entry, peer, multicast, heard.initial_data, now_ns)
        else:
            self._client.answer(entry, peer, multicast, now_ns)

    def _is_a_streamers(self, entry: ServiceEntry, peer: Address, now_ns: int) -> bool:
        """Whether an Offer is dealt with as another streamer's, and is not to be taken for an ECU's."""
        streamer = self._settings.streamer
        if streamer is None or self._streamers is None:
            return False
        try:
            who = read_mark(entry.options)
        except MalformedWords as error:
            self._desk.refuse(Refusal.SD_STREAMER_WORDS, peer, str(error))
            return True
        if who is None and peer[0] not in streamer.hosts:
            return False
        if who is not None:
            if entry.service == streamer.service:
                self._streamers.hear(entry, who, peer, now_ns)
                return True
            if who != streamer.me and self._server.rival(entry, who, peer, now_ns):
                return True
        key = ServiceKey(entry.service, entry.instance, entry.major)
        if key in streamer.relayed:
            return False
        if self._client.wants(key, entry.minor):
            self._desk.refuse(Refusal.SD_RELAYED, peer, f"Offer of {key} by streamer {who or peer[0]}")
        return True

    # --- reading ----------------------------------------------------------------------------------------------------------

    def offer_phase(self, key: ServiceKey) -> Phase:
        """The phase of an offer of ours."""
        return self._server.phase(key)

    def find_phase(self, wanted: WantedService) -> Phase:
        """The phase of a Find of ours."""
        return self._client.phase(wanted)

    def eventgroup_state(self, key: ServiceKey, eventgroup: int) -> State | None:
        """The state of a subscription of ours; None if its service is not there."""
        return self._client.state(key, eventgroup)

    def statistics(self) -> dict[str, int]:
        """What is kept now, and the reboots and unwanted offers since the start."""
        return {
            "sd_peers": len(self._peers),
            "sd_reboots": self._reboots,
            **({} if self._streamers is None else self._streamers.statistics()),
            **self._server.statistics(),
            **self._client.statistics(),
        }

    def _number(self, to: Address | None) -> tuple[int, bool]:
        if to is not None:
            return self._peers.number(to)
        self._multicasts += 1
        return numbered(self._multicasts)

    def _in_use(self, peer: Address) -> bool:
        announces = self._streamers is not None and self._streamers.uses(peer)
        return announces or self._server.uses(peer) or self._client.uses(peer)
