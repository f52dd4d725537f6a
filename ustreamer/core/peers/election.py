# SPDX-License-Identifier: Apache-2.0
"""Other streamers on the same network, and which of us carries what from there. Decides; is told who is there.

Every streamer announces on each of its networks who it is, which authorities it carries messages to from there, and which
live there. So of those between the same networks exactly one takes what names its sink, and answers if it cannot be
delivered; the others leave it alone. Publications go through the streamers that were asked for them: `ustreamer.core.peers.topic_advertisements`.

Announcements are words, and who carries may also drop. So a claim that would keep a message from being forwarded is believed
of a streamer that is seen on both sides, or that the transport vouches for. What only keeps an answer back needs no proof.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from hashlib import blake2b
from threading import Lock
from typing import Final, NamedTuple

import msgspec

from ustreamer.uprotocol.uuri import ANY_AUTHORITY

_KEPT_ANSWERS: Final = 4096
"""Pairs of authorities whose standing is kept; a sender chooses them."""


class Role(StrEnum):
    """What an announcement says about its subject, an authority."""

    IS = "is"
    """The announcer's own; said last, when it is ready for messages."""
    CARRIES = "carries"
    """Messages to it are taken from this network to another."""
    HERE = "here"
    """It lives on this network."""


class Announcement(msgspec.Struct, frozen=True):
    """One thing that a streamer says of itself on one network. `*` as `subject` is everyone whom it does not name.

    `instance` is a process, `endpoint` the announcing one of its endpoints, `authority` the streamer's own. `vouched` is
    said by the transport that brought it, of an announcer who need not be seen on the other side to be believed.
    """

    instance: str
    endpoint: str
    authority: str
    role: Role
    subject: str
    vouched: bool = False


class Who(NamedTuple):
    """A streamer: its own authority, and the process, so that two by one name are still two."""

    authority: str
    instance: str


class Standing(Enum):
    """What a message heard on a network is to us."""

    OURS = "ours"
    """To be dealt with as if nobody else were there."""
    SILENT = "silent"
    """The same, but whatever comes of it, another one answers."""
    LEFT = "left"
    """Another one's, who brought it or takes it."""


class Heard(NamedTuple):
    """What has changed: who has come to a network and who has gone, and which of our endpoints turn out to share one."""

    came: tuple[Who, ...]
    went: tuple[Who, ...]
    doubled: tuple[str, ...]
    changed: bool


class _Claims(msgspec.Struct, frozen=True):
    """What one streamer says of one network."""

    carries: frozenset[str]
    here: frozenset[str]
    vouched: bool = False

    def places(self, authority: str) -> bool:
        """Whether `authority` lives on this network, by name or as one of all others."""
        return authority in self.here or (ANY_AUTHORITY in self.here and authority not in self.carries)

    def takes(self, authority: str) -> int:
        """How surely messages to `authority` are carried away: 2 by its name, 1 with all others, 0 not at all."""
        if authority in self.carries:
            return 2
        return int(ANY_AUTHORITY in self.carries and authority not in self.here)

    def feeds(self, other: "_Claims") -> bool:
        """Whether some authority behind this streamer lives on the network for the other one."""
        return any(other.places(each) for each in self.carries)


class _View(msgspec.Struct, frozen=True):
    """All of this at one moment; replaced, never changed, for routing reads it without a lock."""

    mine: Mapping[str, _Claims]
    home: Mapping[str, str]
    others: Mapping[str, Mapping[Who, _Claims]]
    doubled: Mapping[str, frozenset[str]]
    kept: dict[tuple[str, str, str | None], Standing]


class Neighbours:
    """The streamers on each of our networks. Safe from any thread."""

    def __init__(self, authority: str, instance: str = "") -> None:
        """`instance` differs from that of every other process that could be met; it is used in the keys of networks."""
        self._me = Who(authority, instance)
        self._lock = Lock()
        self._heard: dict[str, frozenset[Announcement]] = {}
        self._view = _View({}, {}, {}, {}, {})

    @property
    def authority(self) -> str:
        """Our own."""
        return self._me.authority

    @property
    def me(self) -> Who:
        """As the others see us."""
        return self._me

    def settle(self, authorities: Mapping[str, Sequence[str]]) -> None:
        """State who lives behind each of our endpoints."""
        named = {who: endpoint for endpoint, each in authorities.items() for who in each}
        mine = {
            endpoint: _Claims(frozenset(named) - frozenset(here), frozenset(here))
            for endpoint, here in authorities.items()
        }
        with self._lock:
            self._view = self._seen(mine, named)

    def announcements(self, endpoint: str) -> frozenset[Announcement]:
        """What we have to say on the network of `endpoint`."""
        mine = self._view.mine.get(endpoint)
        if mine is None:
            return frozenset()
        said = [
            (Role.IS, self._me.authority),
            *((Role.CARRIES, each) for each in mine.carries),
            *((Role.HERE, each) for each in mine.here),
        ]
        who = self._me
        return frozenset(Announcement(who.instance, endpoint, who.authority, *each) for each in said)

    def hear(self, endpoint: str, announcements: frozenset[Announcement]) -> Heard:
        """Take note of all that is announced on the network of `endpoint` at this moment."""
        with self._lock:
            before = self._view
            self._heard[endpoint] = announcements
            self._view = now = self._seen(before.mine, before.home)
        old, new = before.others.get(endpoint, {}), now.others.get(endpoint, {})
        came, went = (
            tuple(each for each in new if each not in old),
            tuple(each for each in old if each not in new),
        )
        doubled = tuple(each for each in now.doubled if each not in before.doubled)
        return Heard(came, went, doubled, old != new or before.doubled != now.doubled)

    def _seen(self, mine: Mapping[str, _Claims], home: Mapping[str, str]) -> _View:
        others = {}
        ours: dict[str, set[str]] = {}
        for endpoint, announcements in self._heard.items():
            ours[endpoint] = {each.endpoint for each in announcements if each.instance == self._me.instance}
            if claims := _claims(each for each in announcements if each.instance != self._me.instance):
                others[endpoint] = claims
        doubled = {}
        for endpoint, heard in ours.items():
            # Both ways: somebody on one network can say there what he likes, but not on the other.
            shared = frozenset(each for each in heard - {endpoint} if endpoint in ours.get(each, ()))
            if shared:
                doubled[endpoint] = shared
        return _View(mine, home, others, doubled, {})

    # --- whose a message is -------------------------------------------------------------------------------------------

    def standing(self, ingress: str, source: str, sink: str | None) -> Standing:
        """Whose a message between these authorities is that was heard at `ingress`. Without a sink: of a publication, or of what is for us.

        Every streamer there that sees the same comes to the same result: one has it.
        """
        view = self._view
        if ingress not in view.others and ingress not in view.doubled:
            return Standing.OURS
        question = ingress, source, sink
        standing = view.kept.get(question)
        if standing is None:
            standing = self._decide(view, *question)
            if len(view.kept) >= _KEPT_ANSWERS:
                view.kept.clear()
            view.kept[question] = standing
        return standing

    def _decide(self, view: _View, ingress: str, source: str, sink: str | None) -> Standing:
        mine = view.mine[ingress]
        others = view.others.get(ingress, {})
        if not mine.places(source):
            return self._of_a_stranger(view, ingress, source, sink)
        if sink is None or mine.places(sink):
            return Standing.OURS
        level = mine.takes(sink)
        if not level:
            known = any(each.takes(sink) or each.places(sink) for each in others.values())
            return Standing.LEFT if known or not self._speaks(others, sink) else Standing.OURS
        rivals = {
            who: each.takes(sink)
            for who, each in others.items()
            if each.takes(sink) and each.places(source) and _is_seen_to(view, who, each, sink)
        }
        best = max({self._me: level, **rivals}.items(), key=lambda each: (each[1], *weight(each[0], sink)))
        return Standing.OURS if best[0] == self._me else Standing.LEFT

    def _of_a_stranger(self, view: _View, ingress: str, source: str, sink: str | None) -> Standing:
        """A source that does not live there for us: forwarded by another, or somebody whom we do not know, or a spoof."""
        others = view.others.get(ingress, {})
        if _home(view, source) in view.doubled.get(ingress, ()):
            return Standing.LEFT  # what another endpoint of ours has heard as well, or has put there
        bringers = {who: each for who, each in others.items() if each.takes(source)}
        if any(_is_seen_to(view, who, each, source) for who, each in bringers.items()):
            return Standing.LEFT
        if sink is None:
            return Standing.OURS
        concerns = any(
            each.places(source) and (each.takes(sink) or each.places(sink)) for each in others.values()
        )
        return Standing.SILENT if bringers or concerns or not self._speaks(others, sink) else Standing.OURS

    def _speaks(self, others: Mapping[Who, _Claims], sink: str) -> bool:
        """Whether it is ours to say that nobody carries to `sink`."""
        return max((self._me, *others), key=lambda who: weight(who, sink)) == self._me

    # --- who puts what it hears elsewhere -----------------------------------------------------------------------------

    def may_be_brought(self, endpoint: str, authority: str) -> bool:
        """Whether another streamer on the network of `endpoint` has `authority` elsewhere, and so may bring what it publishes."""
        return any(each.takes(authority) for each in self._view.others.get(endpoint, {}).values())

    def believes(self, endpoint: str, who: Who, authority: str) -> bool:
        """Whether `who` can be believed to bring what `authority` publishes onto the network of `endpoint`.

        It has to be there, and to be seen where `authority` lives, so that it hears what it promises to bring.
        """
        view = self._view
        claims = view.others.get(endpoint, {}).get(who)
        if claims is None or not claims.takes(authority):
            return False
        return _is_seen_to(view, who, claims, authority)

    # --- what goes round ----------------------------------------------------------------------------------------------

    def loops(self) -> frozenset[str]:
        """Endpoints at which what we sent may come in again, as if it were new.

        That is where another endpoint of ours is heard, and where somebody brings what lives there for us, if somebody takes
        from another network of ours.
        """
        view = self._view
        fed = {
            endpoint
            for endpoint, others in view.others.items()
            if any(each.feeds(view.mine[endpoint]) for each in others.values())
            and view.others.keys() - {endpoint}
        }
        return frozenset(fed | view.doubled.keys())

    def same_network(self) -> Mapping[str, frozenset[str]]:
        """Endpoints that share their network with others of ours, and which."""
        return self._view.doubled

    def at(self, endpoint: str) -> tuple[Who, ...]:
        """The streamers on the network of `endpoint`, but for this one."""
        return tuple(self._view.others.get(endpoint, ()))


def _claims(announcements: Iterable[Announcement]) -> dict[Who, _Claims]:
    """What each streamer says that has said all."""
    said: dict[Who, list[Announcement]] = {}
    for each in announcements:
        said.setdefault(Who(each.authority, each.instance), []).append(each)

    def subjects(of: list[Announcement], role: Role) -> frozenset[str]:
        return frozenset(each.subject for each in of if each.role is role)

    return {
        who: _Claims(subjects(each, Role.CARRIES), subjects(each, Role.HERE), any(a.vouched for a in each))
        for who, each in said.items()
        if who.authority in subjects(each, Role.IS)
    }


def _home(view: _View, authority: str) -> str:
    """Our endpoint behind which `authority` lives; "" if we do not know."""
    return view.home.get(authority, view.home.get(ANY_AUTHORITY, ""))


def _is_seen_to(view: _View, who: Who, claims: _Claims, authority: str) -> bool:
    """Whether `who` can be believed to carry between here and `authority`: it is where that lives for us, and says so."""
    if claims.vouched:
        return True
    there = view.others.get(_home(view, authority), {}).get(who)
    return there is not None and there.places(authority)


def weight(who: Who, sink: str) -> tuple[bool, bytes, str]:
    """Who comes first for `sink`, or a topic: whose own it is, else by lot. With every one that goes, only its share moves.

    The lot is by name, so that a streamer that restarts has the share it had.
    """
    lot = blake2b(f"{who.authority}/{sink}".encode(), digest_size=8).digest()
    return who.authority == sink, lot, who.instance
