# SPDX-License-Identifier: Apache-2.0
"""The shared state of the sessions of a realm: broker, retained events, meta events.

Clocks, rng and the backend are passed in (`Env`). No I/O.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec

from ustreamer.core.base.intrusions import PeerRefusals
from ustreamer_wamp.auth import Authenticator, UserTable
from ustreamer_wamp.broker import Broker, BrokerSubscription
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.events import Publication, RetainedEvents, WampEvent
from ustreamer_wamp.messages import Reply
from ustreamer_wamp.uri import Match
from ustreamer_wamp.users import Principal

_NS_PER_S: Final = 10**9


class SessionLimits(msgspec.Struct, frozen=True):
    """Bounds of a session; times in ns."""

    subscriptions: int = 1024
    hello_timeout_ns: int = 10 * _NS_PER_S
    goodbye_timeout_ns: int = 5 * _NS_PER_S
    sequential_ids: bool = False


class FrameSink(Protocol):
    """The connection under a session. No method blocks; messages leave in order."""

    def send_reply(self, message: Reply) -> None:
        """Send an answer, which is never dropped."""

    def send_event(self, event: WampEvent) -> None:
        """Send an event, or drop it if the client is too slow."""

    @property
    def write_event(self) -> Callable[[WampEvent], None]:
        """As `send_event`, for an event that no other one follows at once. The same function for the whole session."""
        ...

    def report_dropped(self, events: int) -> None:
        """Report, with the next event, that events for this client were dropped before they reached it."""

    def close(self, code: int, reason: str) -> None:
        """End the connection, when all replies are out, with this WebSocket code."""


class JoinedSession(Protocol):
    """A session as its realm sees it."""

    id: int
    frame_sink: FrameSink
    principal: Principal | None

    def on_subscription_revoked(self, topic: str, why: str) -> None:
        """A subscription of this session has ended in the vehicle."""

    def on_users_changed(self, principal: Principal | None) -> None:
        """The users have changed: this session now has another principal, or none, and then it ends."""


SubscribeCallback = Callable[[WampRefusal | None], None]


class Backend(Protocol):
    """The vehicle behind a realm: called for every SUBSCRIBE, UNSUBSCRIBE and PUBLISH."""

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        """Request the events of `topic` for `session`, at most one in `period_ns`; `done` is called once."""

    def close_subscription(self, session: JoinedSession, topic: str, match: Match) -> None:
        """Undo `open_subscription`; pending `done` callbacks of this topic are called before it returns."""

    def on_session_closed(self, session: JoinedSession) -> None:
        """The session is closed: drop its subscriptions and pending requests."""

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WampRefusal | None:
        """Take a publication of a client; the reason if it is refused."""


class NullBackend:
    """The backend of a realm without a vehicle: it grants everything and forwards nothing."""

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        done(None)

    def close_subscription(self, session: JoinedSession, topic: str, match: Match) -> None:
        """No subscription exists."""

    def on_session_closed(self, session: JoinedSession) -> None:
        """No state exists."""

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WampRefusal | None:
        return None


class Env(msgspec.Struct, frozen=True):
    """Clocks, rng, limits and the backend.

    `random_bits(n)`: n unpredictable bits. `id_bits(n)`: n random bits for the ids of publications, which are not secret.
    """

    monotonic_ns: Callable[[], int]
    wall_ms: Callable[[], int]
    random_bits: Callable[[int], int]
    limits: SessionLimits
    backend: Backend
    id_bits: Callable[[int], int]


class Realm:
    """One realm: its sessions exchange events, within their permissions."""

    def __init__(
        self,
        name: str,
        authenticator: Authenticator,
        env: Env,
        counts: Counter[str] | None = None,
    ) -> None:
        self.refusals = PeerRefusals()
        """Refused connections, logins and requests by address."""
        self.name = name
        self.authenticator = authenticator
        self.env = env
        self.broker: Broker[JoinedSession] = Broker()
        self.sessions: dict[int, JoinedSession] = {}
        self.retained = RetainedEvents()
        self.counts: Counter[str] = Counter() if counts is None else counts

    def new_id(self) -> int:
        """The id of a publication: of global scope, random, of 1 to 2^53."""
        return self.env.id_bits(53) + 1

    def add_session(self, session: JoinedSession) -> None:
        self.sessions[session.id] = session

    def change_users(self, users: UserTable) -> None:
        """Take other users. Sessions whose login or subscriptions they do not permit end."""
        before, self.authenticator.users = self.authenticator.users, users
        for session in list(self.sessions.values()):
            if session.principal is not None:
                session.on_users_changed(users.renewed(session.principal, before))

    # --- subscriptions --------------------------------------------------------------------------------------

    def subscribe(
        self,
        session: JoinedSession,
        topic: str,
        match: Match,
        on_subscribed: Callable[[int], None],
        *,
        get_retained: bool,
    ) -> None:
        """Add `session` to the subscription; `on_subscribed` gets its id before any event is sent."""
        before = self.broker.find(topic, match)
        held = before is not None and session in before.subscribers
        subscription, created = self.broker.subscribe(session, topic, match, self.env.wall_ms())
        on_subscribed(subscription.id)
        if get_retained:
            for publication in self.retained.matching(topic, match):
                session.frame_sink.send_event(
                    WampEvent(publication, subscription.id, match, {"retained": True})
                )
        if created:
            details = {
                "id": subscription.id,
                "created": iso_timestamp(subscription.created_ms),
                "uri": topic,
                "match": match,
            }
            self._publish_meta_event("on_create", session.id, details)
        if not held:
            self._publish_meta_event("on_subscribe", session.id, subscription.id)

    def unsubscribe(self, session: JoinedSession, id: int, on_unsubscribed: Callable[[], None]) -> bool:
        """Undo it; False if `session` has no such subscription."""
        subscription = self.broker.subscriptions_of(session).get(id)
        if subscription is None:
            return False
        # First: pending requests for this topic are answered before its end.
        self.env.backend.close_subscription(session, subscription.topic, subscription.match)
        self.broker.unsubscribe(session, id)
        self._drop_unrenewed_values(subscription)
        on_unsubscribed()
        self._publish_unsubscribe_events(session, subscription)
        return True

    def remove_session(self, session: JoinedSession) -> None:
        """End all subscriptions of a session; nothing is sent to it any more."""
        if self.sessions.pop(session.id, None) is None:
            return
        ended = self.broker.remove_subscriber(session)
        for subscription in ended:
            self.env.backend.close_subscription(session, subscription.topic, subscription.match)
        self.env.backend.on_session_closed(session)
        for subscription in ended:
            self._drop_unrenewed_values(subscription)
            self._publish_unsubscribe_events(session, subscription)

    def _drop_unrenewed_values(self, subscription: BrokerSubscription[JoinedSession]) -> None:
        """Drop the last value of a topic without subscribers, which is not updated any more."""
        if not subscription.subscribers:
            for retained in list(self.retained.matching(subscription.topic, subscription.match)):
                if not self.broker.matching(retained.topic):
                    self.drop_live_value(retained.topic)

    def drop_live_value(self, topic: str) -> None:
        """Drop the last value of a topic if the vehicle published it."""
        for retained in list(self.retained.matching(topic, "exact")):
            if retained.live:
                self.retained.discard(topic)

    def _publish_unsubscribe_events(
        self, session: JoinedSession, subscription: BrokerSubscription[JoinedSession]
    ) -> None:
        self._publish_meta_event("on_unsubscribe", session.id, subscription.id)
        if not subscription.subscribers:
            self._publish_meta_event("on_delete", session.id, subscription.id)

    def _publish_meta_event(self, meta_event: str, *args: object) -> None:
        """Publish a meta event to those of its subscribers that may read subscriptions."""
        topic = f"wamp.subscription.{meta_event}"
        if self.broker.matching(topic):
            publication = Publication(self.new_id(), topic, list(args), {})
            self.fan_out(publication, is_eligible=_may_read_subscriptions)

    # --- events ---------------------------------------------------------------------------------------------

    def fan_out(
        self,
        publication: Publication,
        exclude: JoinedSession | None = None,
        is_eligible: Callable[[JoinedSession], bool] | None = None,
    ) -> None:
        """Send a publication to the subscribers of its topic, except `exclude` and those that are not `is_eligible`."""
        for subscription in self.broker.matching(publication.topic):
            event = WampEvent(publication, subscription.id, subscription.match)
            subscribers: Iterable[JoinedSession] = subscription.subscribers
            if is_eligible is not None or exclude in subscription.subscribers:
                subscribers = [
                    each
                    for each in subscribers
                    if each is not exclude and (is_eligible is None or is_eligible(each))
                ]
            for session in subscribers:
                session.frame_sink.send_event(event)


def _may_read_subscriptions(session: JoinedSession) -> bool:
    return session.principal is not None and session.principal.meta_api


def iso_timestamp(wall_ms: int) -> str:
    """A time as ISO 8601 has it, in UTC."""
    return (
        datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
