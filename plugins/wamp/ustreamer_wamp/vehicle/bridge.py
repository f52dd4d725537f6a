# SPDX-License-Identifier: Apache-2.0
"""The bridge of a realm to the vehicle: rates of sessions as uEntities, subscriptions at uSubscription, and events.

Runs on the loop's thread. Other threads may only test membership in `VehicleBridge.rates`.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ustreamer.core.base.log_limit import limited
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp import errors
from ustreamer_wamp.broker import BrokerSubscription
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.events import Publication, WampEvent
from ustreamer_wamp.realm import JoinedSession, Realm, SubscribeCallback
from ustreamer_wamp.uri import Match
from ustreamer_wamp.vehicle.batch import VehicleEvent, rate_entity
from ustreamer_wamp.vehicle.mapping import (
    SCHEME,
    Decode,
    WampEventTemplate,
    args_of,
    may_name_topics,
    message_of,
    topic_of,
    uuri_of,
)
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import Pattern, PatternSink
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

log = logging.getLogger("ustreamer.wamp")

_MAX_TEMPLATES: Final = 4096
_LAST_INSTANCE: Final = 0xFFFE
MAX_RATES: Final = 64
"""Different rates at one time; a further one becomes the next lower power of two, as a period in ns."""
_OTHERS_TOPICS: Final = "topics of others are published by others"

_Name: TypeAlias = tuple[str, Match]
"""Topic and policy of a subscription."""


class SessionRate:
    """The subscriptions of one rate: a uEntity, and the sessions that hold each subscription."""

    __slots__ = ("entity", "period_ns", "references", "sessions")

    def __init__(self, entity: UUri, period_ns: int) -> None:
        self.entity = entity
        self.period_ns = period_ns
        self.sessions: dict[_Name, dict[JoinedSession, Callable[[WampEvent], None]]] = {}
        """The sessions with a granted subscription, and their `write_event`."""
        self.references: Counter[_Name] = Counter()
        """The number of these sessions, and of their pending requests."""


class _Request(NamedTuple):
    """A SUBSCRIBE that waits for the answer of uSubscription."""

    rate: SessionRate
    done: SubscribeCallback


class _Holding:
    """One subscription of one session: its rate, from the first answer on, and the pending requests."""

    __slots__ = ("pending", "rate")

    def __init__(self) -> None:
        self.rate: SessionRate | None = None
        self.pending: list[_Request] = []


class VehicleBridge:
    """The `ustreamer_wamp.realm.Backend` of a realm on a streamer.

    Sessions that subscribe a topic at one rate share one subscriber: the uEntity of the rate (`SessionRate`). So a
    publication is delivered here once for each rate, for any number of sessions.
    """

    def __init__(
        self,
        authority: str,
        ids: UuidSource,
        usubscription: UsubscriptionClient,
        pattern_subscriptions: PatternSubscriptions,
        patterns: PatternSink,
        inject: Callable[[UMessage], bool],
        decoder: Callable[[UUri], Decode | None],
        counts: Counter[str],
    ) -> None:
        """`authority` is that of the sessions; `decoder` decodes payloads.

        `inject` dispatches a message; it returns False if the streamer is too slow.
        """
        self._authority = authority
        self._ids = ids
        self.usubscription = usubscription
        usubscription.on_subscription_ended = self._on_subscription_ended
        self.pattern_subscriptions = pattern_subscriptions
        self._patterns = patterns
        self._inject = inject
        self._decoder = decoder
        self._counts = counts
        self.rates: dict[UUri, SessionRate] = {}
        """The rates in use, by uEntity. Other threads may test for membership."""
        self._rate_by_period: dict[int, SessionRate] = {}
        self._holdings: dict[JoinedSession, dict[_Name, _Holding]] = {}
        self._last_instance = 0
        self._accepts_publications = True
        self._templates: dict[UAttributes, WampEventTemplate] = {}

    # --- subscriptions of sessions --------------------------------------------------------------------------

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        uuri = uuri_of(topic) if match == "exact" else None
        if uuri is None and not (match != "exact" and may_name_topics(topic, match)):
            done(None)  # a topic of the realm and not of the vehicle
            return
        name, rate = (topic, match), self._rate_of(period_ns)
        rate.references[name] += 1
        holders = rate.sessions.get(name, {})
        is_another = bool(holders) and session not in holders
        if uuri is None:
            pattern = Pattern(rate.entity, topic, match)
            self._patterns.add_pattern(pattern, rate.period_ns)
            self.pattern_subscriptions.add_pattern(pattern, rate.period_ns)
            self._hold(session, name, rate)
            if is_another:
                self.pattern_subscriptions.repeat_pattern(pattern)
            done(None)
            return
        request = _Request(rate, done)
        self._holdings.setdefault(session, {}).setdefault(name, _Holding()).pending.append(request)
        answered = partial(self._on_answer, session, name, request)
        self.pattern_subscriptions.subscribe(rate.entity, uuri, rate.period_ns, answered, again=is_another)

    def _on_answer(
        self, session: JoinedSession, name: _Name, request: _Request, refusal: WampRefusal | None
    ) -> None:
        holding = self._holdings.get(session, {}).get(name)
        if holding is None or request not in holding.pending:
            return  # ended meanwhile
        holding.pending.remove(request)
        if refusal is None:
            self._hold(session, name, request.rate)
        else:
            self._drop_reference(request.rate, name)  # uSubscription has nothing to end
            self._forget_if_empty(session, name)
        request.done(refusal)

    def _hold(self, session: JoinedSession, name: _Name, rate: SessionRate) -> None:
        """A request is granted: its reference is that of the session from now on."""
        holding = self._holdings.setdefault(session, {}).setdefault(name, _Holding())
        before, holding.rate = holding.rate, rate
        if before is not None and before is not rate:
            del before.sessions[name][session]
        rate.sessions.setdefault(name, {})[session] = session.frame_sink.write_event
        if before is not None:
            self._release(before, name)

    def close_subscription(self, session: JoinedSession, topic: str, match: Match) -> None:
        self._end_holding(session, (topic, match))

    def on_session_closed(self, session: JoinedSession) -> None:
        for name in list(self._holdings.get(session, ())):
            self._end_holding(session, name)

    def _end_holding(self, session: JoinedSession, name: _Name) -> None:
        """End one subscription of a session; its pending requests are answered first."""
        held = self._holdings.get(session, {})
        holding = held.pop(name, None)
        if holding is None:
            return
        if not held:
            del self._holdings[session]
        for request in holding.pending:
            request.done(None)
            self._release(request.rate, name)
        if holding.rate is not None:
            del holding.rate.sessions[name][session]
            self._release(holding.rate, name)

    def _forget_if_empty(self, session: JoinedSession, name: _Name) -> None:
        held = self._holdings[session]
        if held[name].rate is None and not held[name].pending:
            del held[name]
            if not held:
                del self._holdings[session]

    def _release(self, rate: SessionRate, name: _Name) -> None:
        """Release a subscription of a rate; the last release ends it in the vehicle."""
        topic, match = name
        if not self._drop_reference(rate, name):
            return
        if match != "exact":
            self._patterns.remove_pattern(Pattern(rate.entity, topic, match))
            self.pattern_subscriptions.remove_pattern(Pattern(rate.entity, topic, match))
        elif (uuri := uuri_of(topic)) is not None:
            self.pattern_subscriptions.unsubscribe(rate.entity, uuri)

    def _drop_reference(self, rate: SessionRate, name: _Name) -> bool:
        """Whether it was the last one."""
        rate.references[name] -= 1
        if rate.references[name]:
            return False
        del rate.references[name]
        rate.sessions.pop(name, None)
        if not rate.references:
            del self.rates[rate.entity], self._rate_by_period[rate.period_ns]
        return True

    def _on_subscription_ended(self, entity: UUri, topic: UUri, why: str) -> None:
        self.pattern_subscriptions.on_subscription_ended(entity, topic)
        rate, name = self.rates.get(entity), _exact(topic)
        sessions = [] if rate is None else list(rate.sessions.get(name, ()))
        for session in sessions:
            self._end_holding(session, name)
            session.on_subscription_revoked(name[0], why)

    def _rate_of(self, period_ns: int) -> SessionRate:
        """The rate with this period; above MAX_RATES, the next lower one of a coarse scale."""
        if period_ns and period_ns not in self._rate_by_period and len(self.rates) >= MAX_RATES:
            period_ns = 1 << (period_ns - 1).bit_length()
        rate = self._rate_by_period.get(period_ns)
        if rate is None:
            rate = self._rate_by_period[period_ns] = SessionRate(self._unused_entity(), period_ns)
            self.rates[rate.entity] = rate
        return rate

    def _unused_entity(self) -> UUri:
        """A uEntity for a rate; numbers are reused as late as possible."""
        while True:
            self._last_instance = self._last_instance % _LAST_INSTANCE + 1
            found = rate_entity(self._authority, self._last_instance)
            if found not in self.rates and not self.usubscription.has_subscriptions(found):
                return found

    # --- publications of clients ----------------------------------------------------------------------------

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WampRefusal | None:
        """Dispatch a publication of an entity behind this endpoint; the reason of a refusal."""
        if not topic.startswith(SCHEME):
            return None
        uuri = uuri_of(topic)
        if uuri is None:
            return WampRefusal(
                errors.INVALID_URI, f"{topic!r}: what begins with {SCHEME!r} is a uProtocol topic"
            )
        if uuri.authority_name != self._authority:
            self._counts["refused_source"] += 1
            text = f"{topic!r}: only topics of {self._authority!r} may be published here; {_OTHERS_TOPICS}"
            return WampRefusal(errors.NOT_AUTHORIZED, text)
        if not self._accepts_publications:
            self._counts["refused_stopping"] += 1
            return WampRefusal(errors.UNAVAILABLE, "the streamer stops")
        try:
            message = message_of(self._ids.next(), uuri, list(args), dict(kwargs))
        except UStatusError as error:
            return WampRefusal(errors.INVALID_ARGUMENT, error.message)
        if not self._inject(message):
            self._counts["refused_overload"] += 1
            return WampRefusal(
                errors.TOO_MANY, "the streamer is too slow for the publications of all clients"
            )
        return None

    def refuse_publications(self) -> None:
        """The streamer stops: accept no more publications of clients."""
        self._accepts_publications = False

    # --- messages from the vehicle --------------------------------------------------------------------------

    def deliver_events(self, realm: Realm, batch: Sequence[VehicleEvent]) -> None:
        """Send each message to the sessions of its rate, which share its frames."""
        # By id and topic: publishers choose the ids.
        event_cache: dict[tuple[UUID, UUri], tuple[Publication, dict[int, WampEvent]]] = {}
        for entity, message, value in batch:
            rate = self.rates.get(entity)
            if rate is None:
                self._counts["events_no_subscriber"] += 1
                continue
            id_and_topic = (message.id, message.attributes.source)
            known = event_cache.get(id_and_topic)
            if known is None:
                publication = self._publication(realm, message, value)
                known = event_cache[id_and_topic] = publication, {}
                if realm.broker.matching(publication.topic):  # else nothing would update or end it
                    realm.retained.retain(publication)
            publication, events = known
            wanted = False
            for subscription, sessions in _holders(realm, rate, publication.topic):
                wanted = True
                event = events.get(subscription.id)
                if event is None:
                    event = WampEvent(publication, subscription.id, subscription.match)
                    events[subscription.id] = event
                for session in sessions:
                    session.frame_sink.send_event(event)
            if not wanted:  # unsubscribed while the message was queued
                self._counts["events_no_subscriber"] += 1

    # Fast path of deliver_events, which is its oracle; compared by
    # plugins/wamp/tests/vehicle/test_bridge_events.py::test_a_lone_event_has_the_results_of_a_batch
    def deliver_lone_event(self, realm: Realm, entity: UUri, message: UMessage, value: bytes | None) -> None:
        """As `deliver_events` of one event that no other one follows at once: each session writes it at once.

        `entity`, `message` and `value` are those of a `VehicleEvent`.
        """
        rate, wanted = self.rates.get(entity), False
        if rate is not None:
            publication = self._publication(realm, message, value)
            subscriptions = realm.broker.matching(publication.topic)
            if subscriptions:
                realm.retained.retain(publication)
            for subscription in subscriptions:
                sessions = rate.sessions.get((subscription.topic, subscription.match))
                if sessions:
                    wanted = True
                    event = WampEvent(publication, subscription.id, subscription.match)
                    for write_event in sessions.values():
                        write_event(event)
        if not wanted:
            self._counts["events_no_subscriber"] += 1

    def report_dropped(self, realm: Realm, dropped: Mapping[tuple[UUri, UUri], int]) -> None:
        """Report to sessions how many of their events an overloaded router has dropped, by uEntity and topic."""
        for (entity, topic), events in dropped.items():
            rate = self.rates.get(entity)
            if rate is not None:
                for _, sessions in _holders(realm, rate, topic_of(topic)):
                    for session in sessions:
                        session.frame_sink.report_dropped(events)

    def _publication(self, realm: Realm, message: UMessage, value: bytes | None) -> Publication:
        template = self._templates.get(message.attributes) or self._template_of(message.attributes)
        args, failed = template.args(message) if value is None else args_of(message, value)
        if failed:
            self._counts["not_decoded"] += 1
        size = len(message.payload) + 1024
        return Publication(
            realm.new_id(), template.topic, args, template.kwargs(message), size=size, live=True
        )

    def _template_of(self, attributes: UAttributes) -> WampEventTemplate:
        template = WampEventTemplate(attributes, self._decoder_of(attributes.source))
        if attributes.is_cacheable:
            if len(self._templates) >= _MAX_TEMPLATES:
                del self._templates[next(iter(self._templates))]
            self._templates[attributes] = template
        return template

    def _decoder_of(self, topic: UUri) -> Decode | None:
        try:
            return self._decoder(topic)
        except Exception:  # an error of a plugin: show the payload undecoded
            self._counts["decoder_errors"] += 1
            log.exception("wamp.decoder_failed", extra={"topic": str(topic), **limited()})
            return None

    def on_addressed_message(self, message: UMessage) -> None:
        """Take a message to the uEntity of a session: Responses and Updates of uSubscription. Others are ignored."""
        if message.attributes.type is UMessageType.RESPONSE:
            self.usubscription.on_response(message)
        elif self.usubscription.is_subscription_update(message):
            self.usubscription.on_subscription_update(message)
        else:
            self._counts["notifications_ignored"] += 1

    def tick(self, now_ns: int) -> None:
        self.usubscription.tick(now_ns)
        self.pattern_subscriptions.tick(now_ns)


def _exact(topic: UUri) -> _Name:
    return topic_of(topic), "exact"


def _holders(
    realm: Realm, rate: SessionRate, topic: str
) -> Iterator[tuple[BrokerSubscription[JoinedSession], Mapping[JoinedSession, Callable[[WampEvent], None]]]]:
    """The subscriptions that match a topic, each with its sessions at this rate."""
    for subscription in realm.broker.matching(topic):
        sessions = rate.sessions.get((subscription.topic, subscription.match))
        if sessions:
            yield subscription, sessions
