# SPDX-License-Identifier: Apache-2.0
"""The bridge of a realm to the vehicle: sessions as uEntities, subscriptions at uSubscription, messages as events.

Runs on the loop's thread, except `PatternDirectory`, which the router reads.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ustreamer.core.base.log_limit import limited
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp import errors
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.events import Publication, WampEvent
from ustreamer_wamp.realm import JoinedSession, Realm, SubscribeCallback
from ustreamer_wamp.uri import Match
from ustreamer_wamp.vehicle.mapping import (
    SCHEME,
    Decode,
    WampEventTemplate,
    may_name_topics,
    message_of,
    topic_of,
    uuri_of,
)
from ustreamer_wamp.vehicle.pattern_subscriptions import PatternSubscriptions
from ustreamer_wamp.vehicle.patterns import Pattern, PatternDirectory
from ustreamer_wamp.vehicle.usubscription_client import ENTITY_TYPE, UsubscriptionClient

log = logging.getLogger("ustreamer.wamp")

_MAX_TEMPLATES: Final = 4096
_LAST_INSTANCE: Final = 0xFFFE
_OTHERS_TOPICS: Final = "topics of others are published by others"


class VehicleBridge:
    """The `ustreamer_wamp.realm.Backend` of a realm on a streamer."""

    def __init__(
        self,
        authority: str,
        ids: UuidSource,
        usubscription: UsubscriptionClient,
        pattern_subscriptions: PatternSubscriptions,
        patterns: PatternDirectory,
        inject: Callable[[UMessage], None],
        decoder: Callable[[UUri], Decode | None],
        counts: Counter[str],
    ) -> None:
        """`authority` is that of the sessions. `inject` dispatches a message; `decoder` decodes payloads."""
        self._authority = authority
        self._ids = ids
        self.usubscription = usubscription
        usubscription.on_subscription_ended = self._on_subscription_ended
        self.pattern_subscriptions = pattern_subscriptions
        self._patterns = patterns
        self._inject = inject
        self._decoder = decoder
        self._counts = counts
        self._entities: dict[JoinedSession, UUri] = {}
        self.sessions: dict[UUri, JoinedSession] = {}
        """The sessions with a uEntity. Other threads may test for membership."""
        self._last_instance = 0
        self._templates: dict[UAttributes, WampEventTemplate] = {}

    # --- the gate -------------------------------------------------------------------------------------------

    def open_subscription(
        self, session: JoinedSession, topic: str, match: Match, period_ns: int, done: SubscribeCallback
    ) -> None:
        if match != "exact":
            if may_name_topics(topic, match):
                pattern = Pattern(self._entity(session), topic, match)
                self._patterns.add_pattern(pattern, period_ns)
                self.pattern_subscriptions.add_pattern(pattern, period_ns)
            done(None)
            return
        uuri = uuri_of(topic)
        if uuri is None:  # a topic of the realm and not of the vehicle
            done(None)
        else:
            self.pattern_subscriptions.subscribe(self._entity(session), uuri, period_ns, done)

    def close_subscription(self, session: JoinedSession, topic: str, match: Match) -> None:
        entity = self._entities.get(session)
        if entity is None:
            return
        if match != "exact":
            self._patterns.remove_pattern(Pattern(entity, topic, match))
            self.pattern_subscriptions.remove_pattern(Pattern(entity, topic, match))
        elif (uuri := uuri_of(topic)) is not None:
            self.pattern_subscriptions.unsubscribe(entity, uuri)

    def on_session_closed(self, session: JoinedSession) -> None:
        entity = self._entities.pop(session, None)
        if entity is not None:
            del self.sessions[entity]
            self.pattern_subscriptions.unsubscribe_all(entity)  # pending ones, too

    def _on_subscription_ended(self, entity: UUri, topic: UUri, why: str) -> None:
        self.pattern_subscriptions.on_subscription_ended(entity, topic)
        session = self.sessions.get(entity)
        if session is not None:
            session.on_subscription_revoked(topic_of(topic), why)

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> WampRefusal | None:
        """Dispatch a publication of an entity behind this endpoint."""
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
        try:
            message = message_of(self._ids.next(), uuri, list(args), dict(kwargs))
        except UStatusError as error:
            return WampRefusal(errors.INVALID_ARGUMENT, error.message)
        self._inject(message)
        return None

    def _entity(self, session: JoinedSession) -> UUri:
        """The uEntity of a session, from its first subscription on; numbers are reused as late as possible."""
        entity = self._entities.get(session)
        while entity is None:
            self._last_instance = self._last_instance % _LAST_INSTANCE + 1
            found = UUri(self._authority, self._last_instance << 16 | ENTITY_TYPE, 1, 0)
            if found not in self.sessions and not self.usubscription.has_subscriptions(found):
                entity = found
                self._entities[session], self.sessions[entity] = entity, session
        return entity

    # --- messages from the vehicle --------------------------------------------------------------------------

    def deliver_events(self, realm: Realm, batch: Iterable[tuple[UUri, UMessage]]) -> None:
        """Send each message to its sessions, which share its frames."""
        event_cache: dict[int, tuple[Publication, dict[int, WampEvent]]] = {}
        for entity, message in batch:
            session = self.sessions.get(entity)
            if session is None:
                self._counts["events_no_subscriber"] += 1
                continue
            known = event_cache.get(id(message))
            if known is None:
                publication = self._publication(realm, message)
                known = event_cache[id(message)] = publication, {}
                if realm.broker.matching(publication.topic):  # else nothing would update or end it
                    realm.retained.retain(publication)
            publication, events = known
            wanted = False
            for subscription in realm.broker.matching(publication.topic):
                if session in subscription.subscribers:
                    wanted = True
                    event = events.get(subscription.id)
                    if event is None:
                        event = WampEvent(publication, subscription.id, subscription.match)
                        events[subscription.id] = event
                    session.frame_sink.send_event(event)
            if not wanted:  # unsubscribed while the message was queued
                self._counts["events_no_subscriber"] += 1

    def report_dropped(self, dropped: Mapping[UUri, int]) -> None:
        """Report to sessions how many of their events an overloaded router has dropped."""
        for entity, events in dropped.items():
            session = self.sessions.get(entity)
            if session is not None:
                session.frame_sink.report_dropped(events)

    def _publication(self, realm: Realm, message: UMessage) -> Publication:
        template = self._template_of(message.attributes)
        args, failed = template.args(message)
        self._counts["not_decoded"] += failed
        size = len(message.payload) + 1024
        return Publication(
            realm.new_id(), template.topic, args, template.kwargs(message), size=size, live=True
        )

    def _template_of(self, attributes: UAttributes) -> WampEventTemplate:
        template = self._templates.get(attributes)
        if template is None:
            template = WampEventTemplate(attributes, self._decoder_of(attributes.source))
            if attributes.is_cacheable:
                if len(self._templates) >= _MAX_TEMPLATES:
                    self._templates.clear()
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
