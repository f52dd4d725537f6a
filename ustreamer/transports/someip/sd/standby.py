# SPDX-License-Identifier: Apache-2.0
"""Other streamers that offer what we offer: SOME/IP knows no two offers of one instance, so one of us does.

Who offers goes on to, and whoever hears it stands by: a restart, or one more streamer, changes nothing. If two do, because they
have not heard of each other in time, one gives way, by lot. When who offers stops, is silent for its ttl or reboots, those that
stand by wait for a random time, and the first of them offers.

An Offer is a word, and who gives way to it may give way to nobody. So another streamer has to be believed to bring what it offers
(`PeerRouters.is_trusted`); for who is not believed we stand by for `ttl_offer_s`, in which it may show up on the other side, and to
who offers already it means nothing.
"""

from collections.abc import Callable, Hashable
from typing import Final, cast

from ustreamer.core.peers.election import RouterId, election_key
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_S, ActionBuffer
from ustreamer.transports.someip.sd.actions import SdRefusal
from ustreamer.transports.someip.sd.codec import TTL_FOREVER
from ustreamer.transports.someip.sd.settings import PeerDiscoverySettings, ServiceKey

MAX_COMPETING_OFFERS: Final = 16
"""Kept for one service."""

TrustCheck = Callable[[RouterId, str], bool]
"""Whether a streamer can be believed to bring what an authority has."""

_Competitor = tuple[Address, RouterId]


class CompetingOffers:
    """Who else offers what. `lapsed` is called when fewer do, or somebody was in doubt for long enough."""

    def __init__(
        self,
        actions: ActionBuffer,
        settings: PeerDiscoverySettings,
        recheck: Callable[[ServiceKey, int], None],
    ) -> None:
        self._actions = actions
        self._own_id = settings.own_id
        self._trusted = settings.trusted_authorities
        self._recheck = recheck
        self._offers: dict[ServiceKey, dict[_Competitor, None]] = {}
        self._suspected_since_ns: dict[ServiceKey, int] = {}
        self.trust_check: TrustCheck | None = None
        """Until it is set, everybody is believed."""

    def on_offer(self, key: ServiceKey, router_id: RouterId, peer: Address, ttl: int, now_ns: int) -> None:
        """An Offer or a StopOffer of a service that we offer as well."""
        competitor = (peer, router_id)
        if ttl == 0:
            self._withdraw(key, competitor, now_ns)
            return
        offers = self._offers.setdefault(key, {})
        if competitor not in offers and len(offers) >= MAX_COMPETING_OFFERS:
            self._actions.emit_refused(
                SdRefusal.SD_STREAMER_LIMIT,
                peer,
                f"Offer of {key}: {MAX_COMPETING_OFFERS} streamers offer it",
            )
            return
        offers[competitor] = None
        due = (self._expired, (key, competitor))
        if ttl == TTL_FOREVER:
            self._actions.deadlines.cancel(due)
        else:
            self._actions.deadlines.schedule(due, now_ns + ttl * NS_PER_S)

    def should_stand_by(self, key: ServiceKey, authority: str, now_ns: int) -> bool:
        """Whether a service that is `authority`'s is another one's to offer, as far as that is known."""
        offers = self._offers.get(key)
        if not offers or any(self.is_trusted(router_id, authority) for _, router_id in offers):
            self._suspected_since_ns.pop(key, None)
            return bool(offers)
        deadline_ns = self._suspected_since_ns.setdefault(key, now_ns) + self._trust_timeout_ns
        if now_ns >= deadline_ns:
            return False
        self._actions.deadlines.schedule((self._trust_timeout_due, key), deadline_ns)
        return True

    @property
    def _trust_timeout_ns(self) -> int:
        ttl = self._actions.timings.ttl_offer_s
        return (ttl if ttl != TTL_FOREVER else 3) * NS_PER_S

    def is_trusted(self, router_id: RouterId, authority: str) -> bool:
        return (
            self.trust_check is None
            or router_id.authority in self._trusted
            or self.trust_check(router_id, authority)
        )

    def yields_to(self, key: ServiceKey, router_id: RouterId) -> bool:
        """Whether it is we who give way if both of us offer it."""
        return election_key(router_id, str(key)) > election_key(self._own_id, str(key))

    def _expired(self, hashed: Hashable, now_ns: int) -> None:
        key, competitor = cast(tuple[ServiceKey, _Competitor], hashed)
        self._withdraw(key, competitor, now_ns)

    def _trust_timeout_due(self, key: Hashable, now_ns: int) -> None:
        self._recheck(cast(ServiceKey, key), now_ns)

    def _withdraw(self, key: ServiceKey, competitor: _Competitor, now_ns: int) -> None:
        offers = self._offers.get(key, {})
        if competitor not in offers:
            return
        del offers[competitor]
        self._actions.deadlines.cancel((self._expired, (key, competitor)))
        if not offers:
            del self._offers[key]
        self._recheck(key, now_ns)

    def on_peer_rebooted(self, peer: Address, now_ns: int) -> None:
        """It has rebooted."""
        for key, offers in list(self._offers.items()):
            for competitor in [each for each in offers if each[0] == peer]:
                self._withdraw(key, competitor, now_ns)

    def clear(self) -> None:
        """The link is gone."""
        for key, offers in self._offers.items():
            for competitor in offers:
                self._actions.deadlines.cancel((self._expired, (key, competitor)))
            self._actions.deadlines.cancel((self._trust_timeout_due, key))
        self._offers.clear()
        self._suspected_since_ns.clear()

    def depends_on(self, peer: Address) -> bool:
        """Whether something here depends on what is known of `peer`."""
        return any(competitor[0] == peer for offers in self._offers.values() for competitor in offers)
