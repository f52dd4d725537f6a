# SPDX-License-Identifier: Apache-2.0
"""What the sessions of a realm share: the broker, what is retained, and the sessions that tell of subscriptions.

Time, dice and the way into the vehicle are given (`Surroundings`); nothing here does I/O.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from ustreamer_wamp.auth import Authenticator
from ustreamer_wamp.broker import Broker, Subscription
from ustreamer_wamp.errors import Refusal
from ustreamer_wamp.events import Event, LastValues, Publication
from ustreamer_wamp.messages import Reply
from ustreamer_wamp.uri import Match
from ustreamer_wamp.users import Principal

_NS_PER_S: Final = 10**9


class Limits(msgspec.Struct, frozen=True):
    """Bounds of a session; times in ns."""

    subscriptions: int = 1024
    hello_ns: int = 10 * _NS_PER_S
    goodbye_ns: int = 5 * _NS_PER_S
    sequential_ids: bool = False


class Outlet(Protocol):
    """The connection under a session. All three return at once; what they are given goes out in order."""

    def reply(self, message: Reply) -> None:
        """Send an answer, which is never dropped."""

    def event(self, event: Event) -> None:
        """Send an event, or drop it if the client is too slow."""

    def close(self, code: int, reason: str) -> None:
        """End the connection, when all replies are out, with this WebSocket code."""


class Member(Protocol):
    """A session as its realm sees it."""

    id: int
    outlet: Outlet
    principal: Principal | None

    def revoked(self, topic: str, why: str) -> None:
        """Events of a topic that it has subscribed will not come any more."""


Done = Callable[[Refusal | None], None]


class Gate(Protocol):
    """The way into the vehicle, and what it says of a topic: called for every SUBSCRIBE, UNSUBSCRIBE and PUBLISH."""

    def open(self, member: Member, topic: str, match: Match, period_ns: int, done: Done) -> None:
        """Have the events of `topic` come for `member`, at most one in `period_ns`; `done` is called once, soon."""

    def close(self, member: Member, topic: str, match: Match) -> None:
        """Undo `open`; whoever waits for a `done` of this topic is called before it returns."""

    def left(self, member: Member) -> None:
        """The session is over, and with it what it has asked for and has no answer to yet."""

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refusal | None:
        """Take what a client has published; why not, if it cannot be taken."""


class OpenGate:
    """The gate of a realm without a vehicle: everything is allowed, nothing is passed on."""

    def open(self, member: Member, topic: str, match: Match, period_ns: int, done: Done) -> None:
        done(None)

    def close(self, member: Member, topic: str, match: Match) -> None:
        """Nothing was opened."""

    def left(self, member: Member) -> None:
        """Nobody is known."""

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refusal | None:
        return None


class Surroundings(msgspec.Struct, frozen=True):
    """What is given: clocks, dice (`bits(n)`: n random bits that nobody can guess), bounds, and the gate."""

    monotonic_ns: Callable[[], int]
    wall_ms: Callable[[], int]
    bits: Callable[[int], int]
    limits: Limits
    gate: Gate


class Realm:
    """One realm: everybody in it can hear everybody else, as far as they may."""

    def __init__(
        self,
        name: str,
        authenticator: Authenticator,
        surroundings: Surroundings,
        counts: Counter[str] | None = None,
    ) -> None:
        self.name = name
        self.authenticator = authenticator
        self.around = surroundings
        self.broker: Broker[Member] = Broker()
        self.members: dict[int, Member] = {}
        self.retained = LastValues()
        self.counts: Counter[str] = Counter() if counts is None else counts

    def new_id(self) -> int:
        """An id of global scope: random, of 1 to 2^53."""
        return self.around.bits(53) + 1

    def join(self, member: Member) -> None:
        self.members[member.id] = member

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(
        self, member: Member, topic: str, match: Match, answer: Callable[[int], None], *, get_retained: bool
    ) -> None:
        """Let `member` hold the subscription, have `answer` called with its id, and only then send anything about it."""
        before = self.broker.find(topic, match)
        held = before is not None and member in before.holders
        subscription, created = self.broker.subscribe(member, topic, match, self.around.wall_ms())
        answer(subscription.id)
        if get_retained:
            for publication in self.retained.matching(topic, match):
                member.outlet.event(Event(publication, subscription.id, match, {"retained": True}))
        if created:
            details = {
                "id": subscription.id,
                "created": iso(subscription.created_ms),
                "uri": topic,
                "match": match,
            }
            self._tell("on_create", member.id, details)
        if not held:
            self._tell("on_subscribe", member.id, subscription.id)

    def unsubscribe(self, member: Member, id: int, answer: Callable[[], None]) -> bool:
        """Undo it; False if `member` holds no such subscription."""
        subscription = self.broker.held_by(member).get(id)
        if subscription is None:
            return False
        # First, so that what waits for this topic is answered before it ends.
        self.around.gate.close(member, subscription.topic, subscription.match)
        self.broker.unsubscribe(member, id)
        self._let_go(subscription)
        answer()
        self._told_of_end(member, subscription)
        return True

    def leave(self, member: Member) -> None:
        """End all that a session holds; nothing is sent to it from here on."""
        if self.members.pop(member.id, None) is None:
            return
        ended = self.broker.drop(member)
        for subscription in ended:
            self.around.gate.close(member, subscription.topic, subscription.match)
        self.around.gate.left(member)
        for subscription in ended:
            self._let_go(subscription)
            self._told_of_end(member, subscription)

    def _let_go(self, subscription: Subscription[Member]) -> None:
        """Keep no last value that nobody renews any more."""
        if not subscription.holders:
            for kept in list(self.retained.matching(subscription.topic, subscription.match)):
                if not self.broker.matching(kept.topic):
                    self.not_renewed(kept.topic)

    def not_renewed(self, topic: str) -> None:
        """Forget the last value of a topic, if that was the vehicle's."""
        for kept in list(self.retained.matching(topic, "exact")):
            if kept.live:
                self.retained.forget(topic)

    def _told_of_end(self, member: Member, subscription: Subscription[Member]) -> None:
        self._tell("on_unsubscribe", member.id, subscription.id)
        if not subscription.holders:
            self._tell("on_delete", member.id, subscription.id)

    def _tell(self, what: str, *args: object) -> None:
        """A meta event, if anybody wants it."""
        topic = f"wamp.subscription.{what}"
        if self.broker.matching(topic):
            self.spread(Publication(self.new_id(), topic, list(args), {}))

    # --- events -------------------------------------------------------------------------------------------------------

    def spread(
        self,
        publication: Publication,
        without: Member | None = None,
        wanted: Callable[[Member], bool] | None = None,
    ) -> None:
        """Send a publication to everybody who subscribed its topic, but not to `without` and those who are not `wanted`."""
        for subscription in self.broker.matching(publication.topic):
            event = Event(publication, subscription.id, subscription.match)
            holders: Iterable[Member] = subscription.holders
            if wanted is not None or without in subscription.holders:
                holders = [
                    each for each in holders if each is not without and (wanted is None or wanted(each))
                ]
            for member in holders:
                member.outlet.event(event)


def iso(wall_ms: int) -> str:
    """A time as ISO 8601 has it, in UTC."""
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
