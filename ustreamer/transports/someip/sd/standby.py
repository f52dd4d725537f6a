# SPDX-License-Identifier: Apache-2.0
"""Competing offers of the same instance by several streamers: SOME/IP permits one Offer, so one streamer offers.

An offering streamer continues, and a streamer that receives a competing Offer stands by: a restart or an additional
streamer changes nothing. Two streamers can start at the same time; the tie-break of the election then decides. When the
offering streamer stops, reboots or is silent for its ttl, the others wait for a random time and the first one offers.

Offers are unauthenticated. Standing by for a forged one would silence the service. A competing streamer must therefore
be trusted to carry the service (`PeerRouters.is_trusted`). For an untrusted one, the standby lasts at most
`ttl_offer_s`, in which its announcement may arrive on the other side. An already offering streamer ignores it.
"""

from collections.abc import Callable, Hashable
from typing import Final, cast

from ustreamer.core.peers.election import RouterId, election_key
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.action_buffer import NS_PER_S, ActionBuffer
from ustreamer.transports.someip.sd.actions import SdRefusal
from ustreamer.transports.someip.sd.config import TTL_FOREVER
from ustreamer.transports.someip.sd.settings import PeerDiscoverySettings, ServiceKey

MAX_COMPETING_OFFERS: Final = 16
"""Maximum competing offers per service."""

TrustCheck = Callable[[RouterId, str], bool]
"""Returns whether a streamer is trusted to carry an authority."""

_Competitor = tuple[Address, RouterId]


class CompetingOffers:
    """The competing offers per service. `recheck` is called when an offer ends or the trust timeout passes."""

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
        """Until it is set, every streamer is trusted."""

    def on_offer(self, key: ServiceKey, router_id: RouterId, peer: Address, ttl: int, now_ns: int) -> None:
        """Process an Offer or a StopOffer of a service that is also an own one."""
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
        """Whether another streamer has the right to offer a service of `authority`, as far as known."""
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
        """Whether the own streamer loses the tie-break against `router_id`."""
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
        """All competing offers of `peer` end."""
        for key, offers in list(self._offers.items()):
            for competitor in [each for each in offers if each[0] == peer]:
                self._withdraw(key, competitor, now_ns)

    def clear(self) -> None:
        """The link is down: all competing offers end."""
        for key, offers in self._offers.items():
            for competitor in offers:
                self._actions.deadlines.cancel((self._expired, (key, competitor)))
            self._actions.deadlines.cancel((self._trust_timeout_due, key))
        self._offers.clear()
        self._suspected_since_ns.clear()

    def depends_on(self, peer: Address) -> bool:
        """Whether a competing offer belongs to `peer`."""
        return any(competitor[0] == peer for offers in self._offers.values() for competitor in offers)
