# SPDX-License-Identifier: Apache-2.0
"""Other streamers on the same network, and which of us carries what from there. Decides; is told who is there.

Every streamer announces on each of its networks who it is, which authorities it carries messages to from there, and which
live there. So of those between the same networks exactly one takes what names its sink, and answers if it cannot be
delivered; the others leave it alone. Publications go through the streamers that were asked for them: `ustreamer.core.peers.topic_advertisements`.

Announcements are words, and who carries may also drop. So a claim that would keep a message from being forwarded is believed
of a streamer that is seen on both sides, or that the transport vouches for. What only keeps an answer back needs no proof.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from hashlib import blake2b
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.routing.forwarding import ForwardingRole
from ustreamer.uprotocol.uuri import ANY_AUTHORITY

_MAX_CACHED_ROLES: Final = 4096
"""Pairs of authorities whose standing is kept; a sender chooses them."""


class AnnouncementRole(StrEnum):
    """What an announcement says about its subject, an authority."""

    IDENTITY = "is"
    """The announcer's own; said last, when it is ready for messages."""
    CARRIES = "carries"
    """Messages to it are taken from this network to another."""
    LOCAL = "here"
    """It lives on this network."""


class Announcement(msgspec.Struct, frozen=True):
    """One thing that a streamer says of itself on one network. `*` as `subject` is everyone whom it does not name.

    `instance` is a process, `endpoint` the announcing one of its endpoints, `authority` the streamer's own. `vouched` is
    said by the transport that brought it, of an announcer who need not be seen on the other side to be believed.
    """

    instance: str
    endpoint: str
    authority: str
    role: AnnouncementRole
    subject: str
    trusted: bool = False


class RouterId(NamedTuple):
    """A streamer: its own authority, and the process, so that two by one name are still two."""

    authority: str
    instance: str


class PeerChanges(NamedTuple):
    """What has changed: who has come to a network and who has gone, and which of our endpoints turn out to share one."""

    joined: tuple[RouterId, ...]
    departed: tuple[RouterId, ...]
    shared_endpoints: tuple[str, ...]
    changed: bool


class _Claims(msgspec.Struct, frozen=True):
    """What one streamer says of one network."""

    carries: frozenset[str]
    local: frozenset[str]
    trusted: bool = False

    def serves_locally(self, authority: str) -> bool:
        """Whether `authority` lives on this network, by name or as one of all others."""
        return authority in self.local or (ANY_AUTHORITY in self.local and authority not in self.carries)

    def carries_to(self, authority: str) -> int:
        """How surely messages to `authority` are carried away: 2 by its name, 1 with all others, 0 not at all."""
        if authority in self.carries:
            return 2
        return int(ANY_AUTHORITY in self.carries and authority not in self.local)

    def feeds_into(self, other: "_Claims") -> bool:
        """Whether some authority behind this streamer lives on the network for the other one."""
        return any(other.serves_locally(each) for each in self.carries)


class _View(msgspec.Struct, frozen=True):
    """All of this at one moment; replaced, never changed, for routing reads it without a lock."""

    own_claims: Mapping[str, _Claims]
    home_endpoints: Mapping[str, str]
    peer_claims: Mapping[str, Mapping[RouterId, _Claims]]
    shared_networks: Mapping[str, frozenset[str]]
    cached_roles: dict[tuple[str, str, str | None], ForwardingRole]


class PeerRouters:
    """The streamers on each of our networks. Safe from any thread."""

    def __init__(self, authority: str, instance: str = "") -> None:
        """`instance` differs from that of every other process that could be met; it is used in the keys of networks."""
        self._local_id = RouterId(authority, instance)
        self._lock = Lock()
        self._announcements: dict[str, frozenset[Announcement]] = {}
        self._view = _View({}, {}, {}, {}, {})

    @property
    def authority(self) -> str:
        """Our own."""
        return self._local_id.authority

    @property
    def local_id(self) -> RouterId:
        """As the others see us."""
        return self._local_id

    def configure(self, authorities: Mapping[str, Sequence[str]]) -> None:
        """State who lives behind each of our endpoints."""
        home_endpoints = {authority: endpoint for endpoint, each in authorities.items() for authority in each}
        own_claims = {
            endpoint: _Claims(frozenset(home_endpoints) - frozenset(local), frozenset(local))
            for endpoint, local in authorities.items()
        }
        with self._lock:
            self._view = self._build_view(own_claims, home_endpoints)

    def own_announcements(self, endpoint: str) -> frozenset[Announcement]:
        """What we have to say on the network of `endpoint`."""
        own_claims = self._view.own_claims.get(endpoint)
        if own_claims is None:
            return frozenset()
        subjects = [
            (AnnouncementRole.IDENTITY, self._local_id.authority),
            *((AnnouncementRole.CARRIES, each) for each in own_claims.carries),
            *((AnnouncementRole.LOCAL, each) for each in own_claims.local),
        ]
        local_id = self._local_id
        return frozenset(
            Announcement(local_id.instance, endpoint, local_id.authority, *each) for each in subjects
        )

    def on_announcements(self, endpoint: str, announcements: frozenset[Announcement]) -> PeerChanges:
        """Take note of all that is announced on the network of `endpoint` at this moment."""
        with self._lock:
            before = self._view
            self._announcements[endpoint] = announcements
            self._view = now = self._build_view(before.own_claims, before.home_endpoints)
        old, new = before.peer_claims.get(endpoint, {}), now.peer_claims.get(endpoint, {})
        joined, departed = (
            tuple(each for each in new if each not in old),
            tuple(each for each in old if each not in new),
        )
        shared_endpoints = tuple(each for each in now.shared_networks if each not in before.shared_networks)
        return PeerChanges(
            joined, departed, shared_endpoints, old != new or before.shared_networks != now.shared_networks
        )

    def _build_view(self, own_claims: Mapping[str, _Claims], home_endpoints: Mapping[str, str]) -> _View:
        peer_claims = {}
        own_endpoints: dict[str, set[str]] = {}
        for endpoint, announcements in self._announcements.items():
            own_endpoints[endpoint] = {
                each.endpoint for each in announcements if each.instance == self._local_id.instance
            }
            if claims := _claims_by_router(
                each for each in announcements if each.instance != self._local_id.instance
            ):
                peer_claims[endpoint] = claims
        shared_networks = {}
        for endpoint, seen_endpoints in own_endpoints.items():
            # Both ways: somebody on one network can say there what he likes, but not on the other.
            shared = frozenset(
                each for each in seen_endpoints - {endpoint} if endpoint in own_endpoints.get(each, ())
            )
            if shared:
                shared_networks[endpoint] = shared
        return _View(own_claims, home_endpoints, peer_claims, shared_networks, {})

    # --- whose a message is -------------------------------------------------------------------------------------------

    def forwarding_role(self, ingress: str, source: str, sink: str | None) -> ForwardingRole:
        """Whose a message between these authorities is that was heard at `ingress`. Without a sink: of a publication, or of what is for us.

        Every streamer there that sees the same comes to the same result: one has it.
        """
        view = self._view
        if ingress not in view.peer_claims and ingress not in view.shared_networks:
            return ForwardingRole.FORWARD
        key = ingress, source, sink
        role = view.cached_roles.get(key)
        if role is None:
            role = self._elect(view, *key)
            if len(view.cached_roles) >= _MAX_CACHED_ROLES:
                view.cached_roles.clear()
            view.cached_roles[key] = role
        return role

    def _elect(self, view: _View, ingress: str, source: str, sink: str | None) -> ForwardingRole:
        own_claims = view.own_claims[ingress]
        peer_claims = view.peer_claims.get(ingress, {})
        if not own_claims.serves_locally(source):
            return self._role_for_unknown_source(view, ingress, source, sink)
        if sink is None or own_claims.serves_locally(sink):
            return ForwardingRole.FORWARD
        own_strength = own_claims.carries_to(sink)
        if not own_strength:
            known = any(each.carries_to(sink) or each.serves_locally(sink) for each in peer_claims.values())
            return (
                ForwardingRole.DEFER
                if known or not self._is_responder(peer_claims, sink)
                else ForwardingRole.FORWARD
            )
        competitors = {
            router: each.carries_to(sink)
            for router, each in peer_claims.items()
            if each.carries_to(sink)
            and each.serves_locally(source)
            and _is_trusted_for(view, router, each, sink)
        }
        best = max(
            {self._local_id: own_strength, **competitors}.items(),
            key=lambda each: (each[1], *election_key(each[0], sink)),
        )
        return ForwardingRole.FORWARD if best[0] == self._local_id else ForwardingRole.DEFER

    def _role_for_unknown_source(
        self, view: _View, ingress: str, source: str, sink: str | None
    ) -> ForwardingRole:
        """A source that does not live there for us: forwarded by another, or somebody whom we do not know, or a spoof."""
        peer_claims = view.peer_claims.get(ingress, {})
        if _home_endpoint(view, source) in view.shared_networks.get(ingress, ()):
            return ForwardingRole.DEFER  # what another endpoint of ours has heard as well, or has put there
        carriers = {router: each for router, each in peer_claims.items() if each.carries_to(source)}
        if any(_is_trusted_for(view, router, each, source) for router, each in carriers.items()):
            return ForwardingRole.DEFER
        if sink is None:
            return ForwardingRole.FORWARD
        is_local_elsewhere = any(
            each.serves_locally(source) and (each.carries_to(sink) or each.serves_locally(sink))
            for each in peer_claims.values()
        )
        return (
            ForwardingRole.FORWARD_SILENTLY
            if carriers or is_local_elsewhere or not self._is_responder(peer_claims, sink)
            else ForwardingRole.FORWARD
        )

    def _is_responder(self, peer_claims: Mapping[RouterId, _Claims], sink: str) -> bool:
        """Whether it is ours to say that nobody carries to `sink`."""
        return max((self._local_id, *peer_claims), key=lambda who: election_key(who, sink)) == self._local_id

    # --- who puts what it hears elsewhere -----------------------------------------------------------------------------

    def may_arrive_via_peer(self, endpoint: str, authority: str) -> bool:
        """Whether another streamer on the network of `endpoint` has `authority` elsewhere, and so may bring what it publishes."""
        return any(each.carries_to(authority) for each in self._view.peer_claims.get(endpoint, {}).values())

    def is_trusted(self, endpoint: str, router: RouterId, authority: str) -> bool:
        """Whether `who` can be believed to bring what `authority` publishes onto the network of `endpoint`.

        It has to be there, and to be seen where `authority` lives, so that it hears what it promises to bring.
        """
        view = self._view
        claims = view.peer_claims.get(endpoint, {}).get(router)
        if claims is None or not claims.carries_to(authority):
            return False
        return _is_trusted_for(view, router, claims, authority)

    # --- what goes round ----------------------------------------------------------------------------------------------

    def loop_endpoints(self) -> frozenset[str]:
        """Endpoints at which what we sent may come in again, as if it were new.

        That is where another endpoint of ours is heard, and where somebody brings what lives there for us, if somebody takes
        from another network of ours.
        """
        view = self._view
        loop_endpoints = {
            endpoint
            for endpoint, peer_claims in view.peer_claims.items()
            if any(each.feeds_into(view.own_claims[endpoint]) for each in peer_claims.values())
            and view.peer_claims.keys() - {endpoint}
        }
        return frozenset(loop_endpoints | view.shared_networks.keys())

    def shared_network_endpoints(self) -> Mapping[str, frozenset[str]]:
        """Endpoints that share their network with others of ours, and which."""
        return self._view.shared_networks

    def peers_at(self, endpoint: str) -> tuple[RouterId, ...]:
        """The streamers on the network of `endpoint`, but for this one."""
        return tuple(self._view.peer_claims.get(endpoint, ()))


def _claims_by_router(announcements: Iterable[Announcement]) -> dict[RouterId, _Claims]:
    """What each streamer says that has said all."""
    by_router: dict[RouterId, list[Announcement]] = {}
    for each in announcements:
        by_router.setdefault(RouterId(each.authority, each.instance), []).append(each)

    def subjects(announced: list[Announcement], role: AnnouncementRole) -> frozenset[str]:
        return frozenset(each.subject for each in announced if each.role is role)

    return {
        router: _Claims(
            subjects(each, AnnouncementRole.CARRIES),
            subjects(each, AnnouncementRole.LOCAL),
            any(a.trusted for a in each),
        )
        for router, each in by_router.items()
        if router.authority in subjects(each, AnnouncementRole.IDENTITY)
    }


def _home_endpoint(view: _View, authority: str) -> str:
    """Our endpoint behind which `authority` lives; "" if we do not know."""
    return view.home_endpoints.get(authority, view.home_endpoints.get(ANY_AUTHORITY, ""))


def _is_trusted_for(view: _View, router: RouterId, claims: _Claims, authority: str) -> bool:
    """Whether `who` can be believed to carry between here and `authority`: it is where that lives for us, and says so."""
    if claims.trusted:
        return True
    claims_at_home = view.peer_claims.get(_home_endpoint(view, authority), {}).get(router)
    return claims_at_home is not None and claims_at_home.serves_locally(authority)


def election_key(router: RouterId, sink: str) -> tuple[bool, bytes, str]:
    """Who comes first for `sink`, or a topic: whose own it is, else by lot. With every one that goes, only its share moves.

    The lot is by name, so that a streamer that restarts has the share it had.
    """
    tie_break = blake2b(f"{router.authority}/{sink}".encode(), digest_size=8).digest()
    return router.authority == sink, tie_break, router.instance
