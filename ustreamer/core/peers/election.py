# SPDX-License-Identifier: Apache-2.0
"""The election between peer streamers on one network: announcements go in, the forwarding role for a message goes out.

Every streamer announces on each of its networks its identity, the authorities it carries messages to, and the
authorities that live there. Of the streamers between the same networks exactly one forwards a message with a sink,
and sends the error response if it cannot be delivered. The peers drop that message. Publications go through the
streamers with a subscription: `ustreamer.core.peers.topic_advertisements`.

Announcements are unauthenticated, and a false one could make all streamers drop a message. So this streamer defers
only to a peer that it sees on both networks, or that the transport trusts. Suppressing an error response needs no
such proof.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.core.routing.forwarding import ForwardingRole
from ustreamer.uprotocol.uuri import ANY_AUTHORITY

_MAX_CACHED_ROLES: Final = 4096
"""The bound of the role cache; senders choose the pairs of authorities in it."""


class AnnouncementRole(StrEnum):
    """The relation between the announcing streamer and the subject, an authority."""

    IDENTITY = "is"
    """The streamer's own authority; announced last, when it is ready for messages."""
    CARRIES = "carries"
    """The streamer forwards messages to it from this network to another one."""
    LOCAL = "here"
    """It lives on this network."""


class Announcement(msgspec.Struct, frozen=True):
    """One claim of a streamer on one network. `*` as `subject` stands for all authorities that it does not name.

    `instance` is the process, `endpoint` the announcing endpoint, `authority` the streamer's own. The receiving
    transport sets `trusted` for a streamer that is trusted without being seen on the other network.
    """

    instance: str
    endpoint: str
    authority: str
    role: AnnouncementRole
    subject: str
    trusted: bool = False


class RouterId(NamedTuple):
    """A streamer: its own authority and its process, so that two processes with one authority differ."""

    authority: str
    instance: str


class PeerChanges(NamedTuple):
    """A change on a network: joined and departed peers, and own endpoints that newly share their network."""

    joined: tuple[RouterId, ...]
    departed: tuple[RouterId, ...]
    shared_endpoints: tuple[str, ...]
    changed: bool


class _Claims(msgspec.Struct, frozen=True):
    """The claims of one streamer on one network."""

    carries: frozenset[str]
    local: frozenset[str]
    trusted: bool = False

    def serves_locally(self, authority: str) -> bool:
        """Whether `authority` lives on this network, by its name or by `*`."""
        return authority in self.local or (ANY_AUTHORITY in self.local and authority not in self.carries)

    def carries_to(self, authority: str) -> int:
        """How the streamer carries messages to `authority`: 2 by its name, 1 by `*`, 0 not at all."""
        if authority in self.carries:
            return 2
        return int(ANY_AUTHORITY in self.carries and authority not in self.local)

    def feeds_into(self, other: "_Claims") -> bool:
        """Whether an authority that this streamer carries to is local for the other streamer."""
        return any(other.serves_locally(each) for each in self.carries)


class _View(msgspec.Struct, frozen=True):
    """All claims at one moment, read without a lock: replaced, never changed. Only `cached_roles` grows, by single steps."""

    own_claims: Mapping[str, _Claims]
    home_endpoints: Mapping[str, str]
    peer_claims: Mapping[str, Mapping[RouterId, _Claims]]
    shared_networks: Mapping[str, frozenset[str]]
    cached_roles: dict[tuple[str, str, str | None], ForwardingRole]


class PeerRouters:
    """The peers on each network of this streamer. Safe from any thread."""

    def __init__(self, authority: str, instance: str = "") -> None:
        """`instance` is unique among all processes on the networks; transports use it in their keys."""
        self._local_id = RouterId(authority, instance)
        self._lock = Lock()
        self._announcements: dict[str, frozenset[Announcement]] = {}
        self._view = _View({}, {}, {}, {}, {})

    @property
    def authority(self) -> str:
        """The authority of this streamer."""
        return self._local_id.authority

    @property
    def local_id(self) -> RouterId:
        """The id of this streamer, as its peers see it."""
        return self._local_id

    def configure(self, authorities: Mapping[str, Sequence[str]]) -> None:
        """Set the authorities behind each endpoint of this streamer."""
        home_endpoints = {authority: endpoint for endpoint, each in authorities.items() for authority in each}
        own_claims = {
            endpoint: _Claims(frozenset(home_endpoints) - frozenset(local), frozenset(local))
            for endpoint, local in authorities.items()
        }
        with self._lock:
            self._view = self._build_view(own_claims, home_endpoints)

    def own_announcements(self, endpoint: str) -> frozenset[Announcement]:
        """The announcements of this streamer on the network of `endpoint`."""
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
        """Replace the announcements on the network of `endpoint` by these."""
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
            # In both directions, because a node on one network can forge announcements there, but not on the other.
            shared = frozenset(
                each for each in seen_endpoints - {endpoint} if endpoint in own_endpoints.get(each, ())
            )
            if shared:
                shared_networks[endpoint] = shared
        return _View(own_claims, home_endpoints, peer_claims, shared_networks, {})

    # --- the election -------------------------------------------------------------------------------------------------

    def forwarding_role(self, ingress: str, source: str, sink: str | None) -> ForwardingRole:
        """The role for a message between these authorities that came in at `ingress`.

        `sink` is None for a publication, and for a message to this streamer. All streamers with the same view elect the
        same one.
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
        """The role if the source is not local there: a peer forwarded it, or the source is unknown or spoofed."""
        peer_claims = view.peer_claims.get(ingress, {})
        if _home_endpoint(view, source) in view.shared_networks.get(ingress, ()):
            return ForwardingRole.DEFER  # another endpoint of this streamer received or sent it
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
        """Whether this streamer sends the error response if no streamer carries to `sink`."""
        return (
            max((self._local_id, *peer_claims), key=lambda router: election_key(router, sink))
            == self._local_id
        )

    # --- publications through peers -----------------------------------------------------------------------------------

    def may_arrive_via_peer(self, endpoint: str, authority: str) -> bool:
        """Whether a peer on the network of `endpoint` carries to `authority`, so it may forward its publications."""
        return any(each.carries_to(authority) for each in self._view.peer_claims.get(endpoint, {}).values())

    def is_trusted(self, endpoint: str, router: RouterId, authority: str) -> bool:
        """Whether `router` is trusted to forward publications of `authority` to the network of `endpoint`.

        The peer must be on that network, and be seen on the network of `authority`, so that it receives them.
        """
        view = self._view
        claims = view.peer_claims.get(endpoint, {}).get(router)
        if claims is None or not claims.carries_to(authority):
            return False
        return _is_trusted_for(view, router, claims, authority)

    # --- loops --------------------------------------------------------------------------------------------------------

    def loop_endpoints(self) -> frozenset[str]:
        """Endpoints at which messages that this streamer sent may come in again, as if they were new.

        That is an endpoint that shares its network with another endpoint of this streamer. It is also one where a peer
        forwards from authorities that are local there, if there is a peer on another network too.
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
        """Endpoints that share their network with other endpoints of this streamer, and those endpoints."""
        return self._view.shared_networks

    def peers_at(self, endpoint: str) -> tuple[RouterId, ...]:
        """The peers on the network of `endpoint`."""
        return tuple(self._view.peer_claims.get(endpoint, ()))


def _claims_by_router(announcements: Iterable[Announcement]) -> dict[RouterId, _Claims]:
    """The claims of each streamer that has announced its identity, which comes last."""
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
    """The endpoint of this streamer behind which `authority` lives; "" if unknown."""
    return view.home_endpoints.get(authority, view.home_endpoints.get(ANY_AUTHORITY, ""))


def _is_trusted_for(view: _View, router: RouterId, claims: _Claims, authority: str) -> bool:
    """Whether `router` is trusted to carry to `authority`: it is seen on the network where that authority lives."""
    if claims.trusted:
        return True
    claims_at_home = view.peer_claims.get(_home_endpoint(view, authority), {}).get(router)
    return claims_at_home is not None and claims_at_home.serves_locally(authority)


def election_key(router: RouterId, sink: str) -> tuple[bool, bytes, str]:
    """The precedence of a streamer for `sink` or a topic: its own authority first, else a hash (rendezvous hashing).

    When a streamer leaves, only its share moves. The hash is over the name, so a restarted streamer has its share
    again.
    """
    from hashlib import blake2b  # loads OpenSSL, 3.4 MB, which a streamer without peers does not need

    tie_break = blake2b(f"{router.authority}/{sink}".encode(), digest_size=8).digest()
    return router.authority == sink, tie_break, router.instance
