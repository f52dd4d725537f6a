# SPDX-License-Identifier: Apache-2.0
"""Announcements between streamers on one network, in memory and bounded. No I/O.

Input: own announcements, Offers and Finds of other streamers, timers. Output: Offers and `PeerAnnouncementsChanged`.
The streamer offers a service that represents itself (`peer_options.py`), in the phases of any Offer (`phases.py`), and
sends one Find for other streamers when the link comes up. A peer's announcements are valid until a StopOffer, ttl
expiry, reboot or restart. Announcements in several parts become valid when all parts have arrived.
"""

from collections.abc import Hashable
from typing import Final, cast

from ustreamer.core.peers.election import Announcement, RouterId
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, ActionBuffer
from ustreamer.transports.someip.sd.actions import PeerAnnouncementsChanged, SdRefusal
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    ANY_MAJOR,
    ANY_MINOR,
    ENTRY_SIZE,
    EntryType,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, write_option
from ustreamer.transports.someip.sd.peer_options import (
    MAX_GENERATION,
    AnnouncementPart,
    MalformedAnnouncement,
    decode_announcement_part,
    encode_announcements,
    roles_and_subjects,
    streamer_mark,
)
from ustreamer.transports.someip.sd.phases import next_phase
from ustreamer.transports.someip.sd.settings import PeerDiscoverySettings

MAX_PEER_STREAMERS: Final = 32
"""Maximum known streamers on one network."""
MAX_ANNOUNCEMENTS: Final = 4_096
"""Maximum announcements of all streamers together, including incomplete ones."""
UPDATE_DELAY_NS: Final = 20_000_000
"""The delay between a change and its report. Each report rebuilds all cached routes, and a hostile peer may change its
announcements continuously.
"""

_MAJOR: Final = 1
_HEADER: Final = 16 + 12  # SOME/IP and service discovery
_OPTION: Final = 4 + 1  # its head, and the terminating 0
_Key = tuple[Address, RouterId, str]
_Version = tuple[int, int]


class _PeerState:
    """The announcements of one streamer for one network: the valid ones and the incomplete ones."""

    def __init__(self) -> None:
        self.announcements: frozenset[Announcement] = frozenset()
        self.complete: _Version | None = None
        self.version: _Version | None = None
        self.parts: dict[int, frozenset[Announcement]] = {}

    @property
    def size(self) -> int:
        return len(self.announcements) + sum(map(len, self.parts.values()))


class PeerAnnouncer:
    """Announces the own streamer and collects the announcements of peers. Owned by `Discovery`."""

    def __init__(self, actions: ActionBuffer, settings: PeerDiscoverySettings) -> None:
        self._actions = actions
        self._settings = settings
        self._up = False
        self._announced: frozenset[Announcement] = frozenset()
        self._entries: list[ServiceEntry] = []
        self._generation = 0
        self._sent = 0
        self._pending_answers: dict[Address, None] = {}
        self._peers: dict[_Key, _PeerState] = {}
        self._reported: frozenset[Announcement] = frozenset()
        self._dropped = 0

    @property
    def service(self) -> int:
        """The service id that represents a streamer."""
        return self._settings.service

    # --- own announcements --------------------------------------------------------------------------------------------

    def announce(self, announcements: frozenset[Announcement], now_ns: int) -> None:
        """Replace the announcements."""
        if announcements == self._announced:
            return
        self._announced = announcements
        if not announcements:
            self._stop()
            return
        self._generation = self._generation % MAX_GENERATION + 1
        endpoint = next(iter(announcements)).endpoint
        endpoint_option = Endpoint(*self._actions.settings.events)
        max_bytes = (
            self._actions.settings.limits.datagram
            - _HEADER
            - ENTRY_SIZE
            - len(write_option(endpoint_option))
            - _OPTION
        )
        options, self._dropped = encode_announcements(
            self._settings.own_id, endpoint, self._generation, roles_and_subjects(announcements), max_bytes
        )
        self._entries = [
            self._entry(number, endpoint_option, option) for number, option in enumerate(options)
        ]
        if self._up:
            self._start(now_ns, 0)

    # [impl->SD-1227]
    def _entry(self, number: int, endpoint_option: Endpoint, announcement: Configuration) -> ServiceEntry:
        # One instance per part: to other SD stacks these are different services.
        instance = (int(self._settings.own_id.instance, 16) + number) % 0xFFFE + 1
        ttl = self._actions.timings.ttl_offer_s
        return ServiceEntry(
            EntryType.OFFER, self.service, instance, _MAJOR, 0, ttl, (endpoint_option, announcement)
        )

    def _start(self, now_ns: int, delay_ns: int) -> None:
        self._sent = 0
        self._actions.deadlines.schedule((self._announce_due, None), now_ns + delay_ns)

    def _announce_due(self, _: Hashable, now_ns: int) -> None:
        for entry in self._entries:
            self._actions.enqueue(None, entry)
        self._sent += 1
        _, pause_ms = next_phase(self._sent, self._actions.timings)
        if pause_ms:
            self._actions.deadlines.schedule((self._announce_due, None), now_ns + pause_ms * NS_PER_MS)

    def _stop(self) -> None:
        self._actions.deadlines.cancel((self._announce_due, None))
        if self._entries and self._sent:
            first = self._entries[0]
            stop = ServiceEntry(
                EntryType.OFFER,
                self.service,
                first.instance,
                _MAJOR,
                0,
                0,
                (streamer_mark(self._settings.own_id),),
            )
            self._actions.enqueue(None, stop)
        self._entries, self._sent = [], 0

    def on_find(self, entry: ServiceEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Answer a Find for streamers."""
        if entry.service != self.service or not entry.ttl or not self._sent:
            return
        self._pending_answers[peer] = None
        delay_ns = self._actions.response_delay_ns() if multicast else 0
        self._actions.deadlines.schedule_earlier((self._answer_due, peer), now_ns + delay_ns)

    def _answer_due(self, hashed: Hashable, now_ns: int) -> None:
        peer = cast(Address, hashed)
        del self._pending_answers[peer]
        for entry in self._entries:
            self._actions.enqueue(peer, entry)

    # --- life ---------------------------------------------------------------------------------------------------------

    def link_up(self, delay_ns: int, now_ns: int) -> None:
        """The link is up: send a Find for streamers and start to announce."""
        self._up = True
        self._actions.deadlines.schedule((self._find_due, None), now_ns + delay_ns)
        if self._entries:
            self._start(now_ns, delay_ns)

    def _find_due(self, _: Hashable, now_ns: int) -> None:
        ttl = self._actions.timings.ttl_find_s
        self._actions.enqueue(
            None, ServiceEntry(EntryType.FIND, self.service, ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, ttl)
        )

    def link_down(self) -> None:
        """The link is down: all peers are unknown."""
        self._up, self._sent = False, 0
        for due in (self._announce_due, self._find_due):
            self._actions.deadlines.cancel((due, None))
        for peer in self._pending_answers:
            self._actions.deadlines.cancel((self._answer_due, peer))
        self._pending_answers.clear()
        for key in self._peers:
            self._actions.deadlines.cancel((self._expired, key))
        self._peers.clear()
        self._report_due(None, 0)

    def close(self) -> None:
        self._announced = frozenset()
        self._stop()

    # --- announcements of peers ---------------------------------------------------------------------------------------

    def on_offer(self, entry: ServiceEntry, router_id: RouterId, peer: Address, now_ns: int) -> None:
        """Process an Offer or a StopOffer of the service that represents a streamer."""
        if entry.ttl == 0:
            for key in [each for each in self._peers if each[:2] == (peer, router_id)]:
                self._remove_peer(key, now_ns)
            return
        try:
            part = decode_announcement_part(router_id, entry.options)
        except MalformedAnnouncement as error:
            self._actions.emit_refused(SdRefusal.SD_ANNOUNCEMENT_MALFORMED, peer, str(error))
            return
        key = (peer, router_id, part.endpoint)
        known = self._peers.get(key)
        if known is None:
            if len(self._peers) >= MAX_PEER_STREAMERS:
                self._actions.emit_refused(
                    SdRefusal.SD_STREAMER_LIMIT, peer, f"{MAX_PEER_STREAMERS} streamers are known"
                )
                return
            known = self._peers[key] = _PeerState()
        if (part.generation, part.parts) != known.complete and not self._collect_part(
            known, part, peer, now_ns
        ):
            return
        due = (self._expired, key)
        if entry.ttl == TTL_FOREVER:
            self._actions.deadlines.cancel(due)
        else:
            self._actions.deadlines.schedule(due, now_ns + entry.ttl * NS_PER_S)

    def _collect_part(self, known: _PeerState, part: AnnouncementPart, peer: Address, now_ns: int) -> bool:
        """Store a part of an incomplete announcement; returns False if the limit is reached."""
        version = (part.generation, part.parts)
        if known.version != version:
            known.version, known.parts = version, {}
        known.parts.pop(part.part, None)
        if sum(each.size for each in self._peers.values()) + len(part.claims) > MAX_ANNOUNCEMENTS:
            self._actions.emit_refused(
                SdRefusal.SD_STREAMER_LIMIT, peer, f"{MAX_ANNOUNCEMENTS} announcements are known"
            )
            return False
        router_id = part.router_id
        is_trusted = router_id.authority in self._settings.trusted_authorities
        known.parts[part.part] = frozenset(
            Announcement(router_id.instance, part.endpoint, router_id.authority, role, subject, is_trusted)
            for role, subject in part.claims
        )
        if len(known.parts) == part.parts:
            known.announcements = frozenset[Announcement]().union(*known.parts.values())
            known.complete, known.parts = version, {}
            self._schedule_report(now_ns)
        return True

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        self._remove_peer(cast(_Key, hashed), now_ns)

    def on_peer_rebooted(self, peer: Address, now_ns: int) -> None:
        """A reboot voids the announcements of `peer`."""
        for key in [each for each in self._peers if each[0] == peer]:
            self._remove_peer(key, now_ns)

    def _remove_peer(self, key: _Key, now_ns: int) -> None:
        del self._peers[key]
        self._actions.deadlines.cancel((self._expired, key))
        self._schedule_report(now_ns)

    def _schedule_report(self, now_ns: int) -> None:
        self._actions.deadlines.schedule_earlier((self._report_due, None), now_ns + UPDATE_DELAY_NS)

    def _report_due(self, _: Hashable, now_ns: int) -> None:
        announcements = frozenset[Announcement]().union(
            *(each.announcements for each in self._peers.values())
        )
        if announcements != self._reported:
            self._reported = announcements
            self._actions.emit(PeerAnnouncementsChanged(announcements))

    def depends_on(self, peer: Address) -> bool:
        """Whether the announcer holds state that belongs to `peer`."""
        return peer in self._pending_answers or any(key[0] == peer for key in self._peers)

    def statistics(self) -> dict[str, int]:
        """`sd_streamers`: known streamers. `sd_announcements_dropped`: own announcements above the size limit."""
        return {"sd_streamers": len(self._peers), "sd_announcements_dropped": self._dropped}
