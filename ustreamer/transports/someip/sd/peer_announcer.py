# SPDX-License-Identifier: Apache-2.0
"""Other streamers on the network: what we announce to them, and what they announce. In memory, bounded; no I/O.

We offer a service that stands for the streamer (words.py), in the phases of any Offer (phases.py), and look for that of others once
when the link comes up. What another one says is there until it stops, is silent for its ttl, reboots or is restarted; what
is said in several parts counts when all of them are there.
"""

from collections.abc import Hashable
from typing import Final, cast

from ustreamer.core.peers.election import Announcement, Who
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_MS, NS_PER_S, Desk
from ustreamer.transports.someip.sd.actions import Refusal, StreamersHeard
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    ANY_MAJOR,
    ANY_MINOR,
    ENTRY_SIZE,
    FOREVER,
    EntryType,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.options import Configuration, Endpoint, write_option
from ustreamer.transports.someip.sd.peer_options import (
    MAX_GENERATION,
    MalformedWords,
    Part,
    mark,
    read_part,
    words_of,
    write_parts,
)
from ustreamer.transports.someip.sd.phases import after
from ustreamer.transports.someip.sd.settings import Streamer

MAX_STREAMERS: Final = 32
"""That are known on one network."""
MAX_ANNOUNCEMENTS: Final = 4_096
"""Of all of them together, half said ones included."""
PAUSE_NS: Final = 20_000_000
"""Between a change and the telling of it: each telling makes all plans anew, and a hostile peer may change its mind all the time."""

_MAJOR: Final = 1
_HEADER: Final = 16 + 12  # of SOME/IP and of service discovery
_OPTION: Final = 4 + 1  # its head, and the 0 at its end
_Key = tuple[Address, Who, str]
_Version = tuple[int, int]


class _Heard:
    """What one streamer says of one network: what counts, and what is not complete."""

    def __init__(self) -> None:
        self.now: frozenset[Announcement] = frozenset()
        self.complete: _Version | None = None
        self.version: _Version | None = None
        self.got: dict[int, frozenset[Announcement]] = {}

    @property
    def size(self) -> int:
        return len(self.now) + sum(map(len, self.got.values()))


class Streamers:
    """Belongs to whoever has the Discovery."""

    def __init__(self, desk: Desk, streamer: Streamer) -> None:
        self._desk = desk
        self._streamer = streamer
        self._up = False
        self._said: frozenset[Announcement] = frozenset()
        self._entries: list[ServiceEntry] = []
        self._generation = 0
        self._sent = 0
        self._asked: dict[Address, None] = {}
        self._heard: dict[_Key, _Heard] = {}
        self._told: frozenset[Announcement] = frozenset()
        self._unsaid = 0

    @property
    def service(self) -> int:
        """The service that stands for a streamer."""
        return self._streamer.service

    # --- ours -----------------------------------------------------------------------------------------------------------

    def say(self, announcements: frozenset[Announcement], now_ns: int) -> None:
        """Announce these from now on, and no others."""
        if announcements == self._said:
            return
        self._said = announcements
        if not announcements:
            self._stop()
            return
        self._generation = self._generation % MAX_GENERATION + 1
        endpoint = next(iter(announcements)).endpoint
        place = Endpoint(*self._desk.settings.events)
        room = self._desk.settings.limits.datagram - _HEADER - ENTRY_SIZE - len(write_option(place)) - _OPTION
        options, self._unsaid = write_parts(
            self._streamer.me, endpoint, self._generation, words_of(announcements), room
        )
        self._entries = [self._entry(number, place, option) for number, option in enumerate(options)]
        if self._up:
            self._start(now_ns, 0)

    def _entry(self, number: int, place: Endpoint, words: Configuration) -> ServiceEntry:
        # An instance for each part: to whoever does not know what this is, they are different things.
        instance = (int(self._streamer.me.instance, 16) + number) % 0xFFFE + 1
        ttl = self._desk.timings.ttl_offer_s
        return ServiceEntry(EntryType.OFFER, self.service, instance, _MAJOR, 0, ttl, (place, words))

    def _start(self, now_ns: int, delay_ns: int) -> None:
        self._sent = 0
        self._desk.deadlines.set((self._say_due, None), now_ns + delay_ns)

    def _say_due(self, _: Hashable, now_ns: int) -> None:
        for entry in self._entries:
            self._desk.post(None, entry)
        self._sent += 1
        _, pause_ms = after(self._sent, self._desk.timings)
        if pause_ms:
            self._desk.deadlines.set((self._say_due, None), now_ns + pause_ms * NS_PER_MS)

    def _stop(self) -> None:
        self._desk.deadlines.cancel((self._say_due, None))
        if self._entries and self._sent:
            first = self._entries[0]
            stop = ServiceEntry(
                EntryType.OFFER, self.service, first.instance, _MAJOR, 0, 0, (mark(self._streamer.me),)
            )
            self._desk.post(None, stop)
        self._entries, self._sent = [], 0

    def find(self, entry: ServiceEntry, peer: Address, multicast: bool, now_ns: int) -> None:
        """Answer who looks for streamers."""
        if entry.service != self.service or not entry.ttl or not self._sent:
            return
        self._asked[peer] = None
        delay_ns = self._desk.answer_delay() if multicast else 0
        self._desk.deadlines.set_earlier((self._answer_due, peer), now_ns + delay_ns)

    def _answer_due(self, hashed: Hashable, now_ns: int) -> None:
        peer = cast(Address, hashed)
        del self._asked[peer]
        for entry in self._entries:
            self._desk.post(peer, entry)

    # --- life -----------------------------------------------------------------------------------------------------------

    def link_up(self, delay_ns: int, now_ns: int) -> None:
        """The network is there: look who else is, and say that we are."""
        self._up = True
        self._desk.deadlines.set((self._find_due, None), now_ns + delay_ns)
        if self._entries:
            self._start(now_ns, delay_ns)

    def _find_due(self, _: Hashable, now_ns: int) -> None:
        ttl = self._desk.timings.ttl_find_s
        self._desk.post(
            None, ServiceEntry(EntryType.FIND, self.service, ANY_INSTANCE, ANY_MAJOR, ANY_MINOR, ttl)
        )

    def link_down(self) -> None:
        """The network is gone, and everybody with it."""
        self._up, self._sent = False, 0
        for due in (self._say_due, self._find_due):
            self._desk.deadlines.cancel((due, None))
        for peer in self._asked:
            self._desk.deadlines.cancel((self._answer_due, peer))
        self._asked.clear()
        for key in self._heard:
            self._desk.deadlines.cancel((self._expired, key))
        self._heard.clear()
        self._tell_due(None, 0)

    def close(self) -> None:
        self._said = frozenset()
        self._stop()

    # --- others' --------------------------------------------------------------------------------------------------------

    def hear(self, entry: ServiceEntry, who: Who, peer: Address, now_ns: int) -> None:
        """An Offer or StopOffer of a streamer itself."""
        if entry.ttl == 0:
            for key in [each for each in self._heard if each[:2] == (peer, who)]:
                self._forget(key, now_ns)
            return
        try:
            part = read_part(who, entry.options)
        except MalformedWords as error:
            self._desk.refuse(Refusal.SD_STREAMER_WORDS, peer, str(error))
            return
        key = (peer, who, part.endpoint)
        known = self._heard.get(key)
        if known is None:
            if len(self._heard) >= MAX_STREAMERS:
                self._desk.refuse(Refusal.SD_STREAMER_LIMIT, peer, f"{MAX_STREAMERS} streamers are known")
                return
            known = self._heard[key] = _Heard()
        if (part.generation, part.parts) != known.complete and not self._collect(known, part, peer, now_ns):
            return
        due = (self._expired, key)
        if entry.ttl == FOREVER:
            self._desk.deadlines.cancel(due)
        else:
            self._desk.deadlines.set(due, now_ns + entry.ttl * NS_PER_S)

    def _collect(self, known: _Heard, part: Part, peer: Address, now_ns: int) -> bool:
        """Keep a part of what is not complete; whether there was room for it."""
        version = (part.generation, part.parts)
        if known.version != version:
            known.version, known.got = version, {}
        known.got.pop(part.part, None)
        if sum(each.size for each in self._heard.values()) + len(part.words) > MAX_ANNOUNCEMENTS:
            self._desk.refuse(Refusal.SD_STREAMER_LIMIT, peer, f"{MAX_ANNOUNCEMENTS} words are known")
            return False
        who = part.who
        vouched = who.authority in self._streamer.vouched
        known.got[part.part] = frozenset(
            Announcement(who.instance, part.endpoint, who.authority, role, subject, vouched)
            for role, subject in part.words
        )
        if len(known.got) == part.parts:
            known.now = frozenset[Announcement]().union(*known.got.values())
            known.complete, known.got = version, {}
            self._news(now_ns)
        return True

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        self._forget(cast(_Key, hashed), now_ns)

    def forget(self, peer: Address, now_ns: int) -> None:
        """It has rebooted: what it said is no longer so."""
        for key in [each for each in self._heard if each[0] == peer]:
            self._forget(key, now_ns)

    def _forget(self, key: _Key, now_ns: int) -> None:
        del self._heard[key]
        self._desk.deadlines.cancel((self._expired, key))
        self._news(now_ns)

    def _news(self, now_ns: int) -> None:
        self._desk.deadlines.set_earlier((self._tell_due, None), now_ns + PAUSE_NS)

    def _tell_due(self, _: Hashable, now_ns: int) -> None:
        there = frozenset[Announcement]().union(*(each.now for each in self._heard.values()))
        if there != self._told:
            self._told = there
            self._desk.tell(StreamersHeard(there))

    def uses(self, peer: Address) -> bool:
        """Whether something here depends on what is known of `peer`."""
        return peer in self._asked or any(key[0] == peer for key in self._heard)

    def statistics(self) -> dict[str, int]:
        """`sd_streamers` that are known, and `sd_unsaid` words of ours that found no room."""
        return {"sd_streamers": len(self._heard), "sd_unsaid": self._unsaid}
