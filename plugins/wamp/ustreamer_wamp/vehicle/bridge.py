# SPDX-License-Identifier: Apache-2.0
"""Between a realm and the vehicle: sessions as uEntities, their subscriptions as wishes, messages as events.

Runs on the loop's thread, but for `Patterns`, which routing asks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer_wamp import errors
from ustreamer_wamp.errors import Refusal
from ustreamer_wamp.events import Event, Publication
from ustreamer_wamp.realm import Done, Member, Realm
from ustreamer_wamp.uri import Match
from ustreamer_wamp.vehicle.mapping import (
    SCHEME,
    Decode,
    Form,
    may_name_topics,
    message_of,
    topic_of,
    uuri_of,
)
from ustreamer_wamp.vehicle.pattern_subscriptions import Reach
from ustreamer_wamp.vehicle.patterns import Pattern, Patterns
from ustreamer_wamp.vehicle.usubscription_client import ENTITY_TYPE, Wishes

log = logging.getLogger("ustreamer.wamp")

_FORMS: Final = 4096
_LAST_INSTANCE: Final = 0xFFFE
_NOT_THERE: Final = "topics of others are published by others"


class Vehicle:
    """The `ustreamer_wamp.realm.Gate` of a realm on a streamer."""

    def __init__(
        self,
        authority: str,
        ids: UuidSource,
        wishes: Wishes,
        reach: Reach,
        patterns: Patterns,
        inject: Callable[[UMessage], None],
        decoder: Callable[[UUri], Decode | None],
        counts: Counter[str],
    ) -> None:
        """`authority` is that of the sessions. `inject` hands a message to the streamer; `decoder` makes payloads readable."""
        self._authority = authority
        self._ids = ids
        self.wishes = wishes
        wishes.ended = self._ended
        self.reach = reach
        self._patterns = patterns
        self._inject = inject
        self._decoder = decoder
        self._counts = counts
        self._entities: dict[Member, UUri] = {}
        self.members: dict[UUri, Member] = {}
        """The sessions that have subscribed something, by their uEntity. Other threads may look whether one is there."""
        self._last_instance = 0
        self._forms: dict[UAttributes, Form] = {}

    # --- the gate -----------------------------------------------------------------------------------------------------

    def open(self, member: Member, topic: str, match: Match, period_ns: int, done: Done) -> None:
        if match != "exact":
            if may_name_topics(topic, match):
                pattern = Pattern(self._entity(member), topic, match)
                self._patterns.put(pattern, period_ns)
                self.reach.put(pattern, period_ns)
            done(None)
            return
        uuri = uuri_of(topic)
        if uuri is None:  # a topic of the realm and not of the vehicle
            done(None)
        else:
            self.reach.want(self._entity(member), uuri, period_ns, done)

    def close(self, member: Member, topic: str, match: Match) -> None:
        entity = self._entities.get(member)
        if entity is None:
            return
        if match != "exact":
            self._patterns.remove(Pattern(entity, topic, match))
            self.reach.remove(Pattern(entity, topic, match))
        elif (uuri := uuri_of(topic)) is not None:
            self.reach.forget(entity, uuri)

    def left(self, member: Member) -> None:
        entity = self._entities.pop(member, None)
        if entity is not None:
            del self.members[entity]
            self.reach.forget_all(entity)  # also what is not answered yet

    def _ended(self, entity: UUri, topic: UUri, why: str) -> None:
        self.reach.ended(entity, topic)
        member = self.members.get(entity)
        if member is not None:
            member.revoked(topic_of(topic), why)

    def publish(self, topic: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refusal | None:
        """Into the vehicle, as what it is there: a publication of an entity behind this endpoint."""
        if not topic.startswith(SCHEME):
            return None
        uuri = uuri_of(topic)
        if uuri is None:
            return Refusal(errors.INVALID_URI, f"{topic!r}: what begins with {SCHEME!r} is a uProtocol topic")
        if uuri.authority_name != self._authority:
            self._counts["refused_source"] += 1
            text = f"{topic!r}: only topics of {self._authority!r} may be published here; {_NOT_THERE}"
            return Refusal(errors.NOT_AUTHORIZED, text)
        try:
            message = message_of(self._ids.next(), uuri, list(args), dict(kwargs))
        except UStatusError as error:
            return Refusal(errors.INVALID_ARGUMENT, error.message)
        self._inject(message)
        return None

    def _entity(self, member: Member) -> UUri:
        """The uEntity that a session is, from its first subscription on; numbers are used again as late as possible."""
        entity = self._entities.get(member)
        while entity is None:
            self._last_instance = self._last_instance % _LAST_INSTANCE + 1
            found = UUri(self._authority, self._last_instance << 16 | ENTITY_TYPE, 1, 0)
            if found not in self.members and not self.wishes.is_known(found):
                entity = found
                self._entities[member], self.members[entity] = entity, member
        return entity

    # --- what comes from the vehicle ----------------------------------------------------------------------------------

    def deliver(self, realm: Realm, batch: Iterable[tuple[UUri, UMessage]]) -> None:
        """Send each message to the session that it is for. Those of one message share its frames."""
        made: dict[int, tuple[Publication, dict[int, Event]]] = {}
        for entity, message in batch:
            member = self.members.get(entity)
            if member is None:
                self._counts["events_for_nobody"] += 1
                continue
            known = made.get(id(message))
            if known is None:
                publication = self._publication(realm, message)
                known = made[id(message)] = publication, {}
                if realm.broker.matching(publication.topic):  # or nobody renews it, and nothing ends it
                    realm.retained.keep(publication)
            publication, events = known
            wanted = False
            for subscription in realm.broker.matching(publication.topic):
                if member in subscription.holders:
                    wanted = True
                    event = events.get(subscription.id)
                    if event is None:
                        event = Event(publication, subscription.id, subscription.match)
                        events[subscription.id] = event
                    member.outlet.event(event)
            if not wanted:  # it has unsubscribed while this was on its way
                self._counts["events_for_nobody"] += 1

    def _publication(self, realm: Realm, message: UMessage) -> Publication:
        form = self._form(message.attributes)
        args, failed = form.args(message)
        self._counts["not_decoded"] += failed
        size = len(message.payload) + 1024
        return Publication(realm.new_id(), form.topic, args, form.kwargs(message), size=size, live=True)

    def _form(self, attributes: UAttributes) -> Form:
        form = self._forms.get(attributes)
        if form is None:
            form = Form(attributes, self._decoder_of(attributes.source))
            if attributes.repeats:
                if len(self._forms) >= _FORMS:
                    self._forms.clear()
                self._forms[attributes] = form
        return form

    def _decoder_of(self, topic: UUri) -> Decode | None:
        try:
            return self._decoder(topic)
        except Exception:  # a plugin's mistake, and no reason to show nothing
            self._counts["decoder_errors"] += 1
            log.exception("wamp.decoder_failed", extra={"topic": str(topic)})
            return None

    def answered(self, message: UMessage) -> None:
        """What is addressed to a session as a uEntity: answers to its calls, and what uSubscription tells. Else: ignored."""
        if message.attributes.type is UMessageType.RESPONSE:
            self.wishes.answered(message)
        elif self.wishes.is_update(message):
            self.wishes.changed(message)
        else:
            self._counts["notifications_ignored"] += 1

    def tick(self, now_ns: int) -> None:
        self.wishes.tick(now_ns)
        self.reach.tick(now_ns)
