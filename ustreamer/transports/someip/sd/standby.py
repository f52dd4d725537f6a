# SPDX-License-Identifier: Apache-2.0
"""Other streamers that offer what we offer: SOME/IP knows no two offers of one instance, so one of us does.

Who offers goes on to, and whoever hears it stands by: a restart, or one more streamer, changes nothing. If two do, because they
have not heard of each other in time, one gives way, by lot. When who offers stops, is silent for its ttl or reboots, those that
stand by wait for a random time, and the first of them offers.

An Offer is a word, and who gives way to it may give way to nobody. So another streamer has to be believed to bring what it offers
(`Neighbours.believes`); for who is not believed we stand by for `ttl_offer_s`, in which it may show up on the other side, and to
who offers already it means nothing.
"""

from collections.abc import Callable, Hashable
from typing import Final, cast

from ustreamer.core.peers.election import Who, weight
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_S, Desk
from ustreamer.transports.someip.sd.actions import Refusal
from ustreamer.transports.someip.sd.codec import FOREVER
from ustreamer.transports.someip.sd.settings import ServiceKey, Streamer

MAX_RIVALS: Final = 16
"""Kept for one service."""

Brings = Callable[[Who, str], bool]
"""Whether a streamer can be believed to bring what an authority has."""

_Rival = tuple[Address, Who]


class Rivals:
    """Who else offers what. `lapsed` is called when fewer do, or somebody was in doubt for long enough."""

    def __init__(self, desk: Desk, streamer: Streamer, lapsed: Callable[[ServiceKey, int], None]) -> None:
        self._desk = desk
        self._me = streamer.me
        self._vouched = streamer.vouched
        self._lapsed = lapsed
        self._there: dict[ServiceKey, dict[_Rival, None]] = {}
        self._doubted_ns: dict[ServiceKey, int] = {}
        self.brings: Brings | None = None
        """Until it is set, everybody is believed."""

    def hear(self, key: ServiceKey, who: Who, peer: Address, ttl: int, now_ns: int) -> None:
        """An Offer or a StopOffer of a service that we offer as well."""
        rival = (peer, who)
        if ttl == 0:
            self._forget(key, rival, now_ns)
            return
        there = self._there.setdefault(key, {})
        if rival not in there and len(there) >= MAX_RIVALS:
            self._desk.refuse(
                Refusal.SD_STREAMER_LIMIT, peer, f"Offer of {key}: {MAX_RIVALS} streamers offer it"
            )
            return
        there[rival] = None
        due = (self._expired, (key, rival))
        if ttl == FOREVER:
            self._desk.deadlines.cancel(due)
        else:
            self._desk.deadlines.set(due, now_ns + ttl * NS_PER_S)

    def hold(self, key: ServiceKey, authority: str, now_ns: int) -> bool:
        """Whether a service that is `authority`'s is another one's to offer, as far as that is known."""
        there = self._there.get(key)
        if not there or any(self.believes(who, authority) for _, who in there):
            self._doubted_ns.pop(key, None)
            return bool(there)
        over_ns = self._doubted_ns.setdefault(key, now_ns) + self._patience_ns
        if now_ns >= over_ns:
            return False
        self._desk.deadlines.set((self._doubt_over, key), over_ns)
        return True

    @property
    def _patience_ns(self) -> int:
        ttl = self._desk.timings.ttl_offer_s
        return (ttl if ttl != FOREVER else 3) * NS_PER_S

    def believes(self, who: Who, authority: str) -> bool:
        return self.brings is None or who.authority in self._vouched or self.brings(who, authority)

    def comes_first(self, key: ServiceKey, who: Who) -> bool:
        """Whether it is we who give way if both of us offer it."""
        return weight(who, str(key)) > weight(self._me, str(key))

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        key, rival = cast(tuple[ServiceKey, _Rival], hashed)
        self._forget(key, rival, now_ns)

    def _doubt_over(self, key: Hashable, now_ns: int) -> None:
        self._lapsed(cast(ServiceKey, key), now_ns)

    def _forget(self, key: ServiceKey, rival: _Rival, now_ns: int) -> None:
        there = self._there.get(key, {})
        if rival not in there:
            return
        del there[rival]
        self._desk.deadlines.cancel((self._expired, (key, rival)))
        if not there:
            del self._there[key]
        self._lapsed(key, now_ns)

    def forget(self, peer: Address, now_ns: int) -> None:
        """It has rebooted."""
        for key, there in list(self._there.items()):
            for rival in [each for each in there if each[0] == peer]:
                self._forget(key, rival, now_ns)

    def clear(self) -> None:
        """The link is gone."""
        for key, there in self._there.items():
            for rival in there:
                self._desk.deadlines.cancel((self._expired, (key, rival)))
            self._desk.deadlines.cancel((self._doubt_over, key))
        self._there.clear()
        self._doubted_ns.clear()

    def uses(self, peer: Address) -> bool:
        """Whether something here depends on what is known of `peer`."""
        return any(rival[0] == peer for there in self._there.values() for rival in there)
