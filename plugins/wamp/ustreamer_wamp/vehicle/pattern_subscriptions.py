# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of sessions by name and by pattern, as subscriptions of single topics at uSubscription. No I/O.

uSubscription has no patterns (except every instance of an entity, in version 4). A pattern is expanded to the known
topics of other devices that match: those in the configuration, and those discovered since the start. A discovered
topic is added to matching patterns; the end of a pattern ends all its topics.

Topics of served authorities are not included: their messages arrive here without a subscription.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable
from typing import Final

from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_wamp.broker import Broker, matches
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.realm import SubscribeCallback
from ustreamer_wamp.vehicle.mapping import INSTANCE, instances_of, topic_of
from ustreamer_wamp.vehicle.patterns import Pattern
from ustreamer_wamp.vehicle.usubscription_client import UsubscriptionClient

MAX_OBSERVED_TOPICS: Final = 4_096
"""Discovered topics kept at most, the latest ones; senders choose their number."""
MAX_RETRY_TOPICS: Final = 256
"""Refused or excess topics of one rate that are retried."""
_RETRY_INTERVAL_NS: Final = 60_000_000_000


class _NamedSubscription:
    """A topic that sessions of one rate subscribed by name: its acknowledged and its desired rate."""

    __slots__ = ("granted_ns", "requested_ns")

    def __init__(self) -> None:
        self.requested_ns: int | None = None
        self.granted_ns: int | None = None

    @property
    def period_ns(self) -> int | None:
        return self.granted_ns if self.requested_ns is None else self.requested_ns


class PatternSubscriptions:
    """The subscriptions of all sessions, topic by topic.

    Belongs to one thread, except the lookup of unknown topics.
    """

    def __init__(
        self, usubscription: UsubscriptionClient, limit: int, local_authorities: Collection[str]
    ) -> None:
        """`limit`: topics subscribed at most for each pattern of a rate; served authorities are excluded."""
        self._usubscription = usubscription
        self._local_authorities = frozenset(local_authorities)
        self._limit = limit
        self._patterns: Broker[UUri] = Broker()
        self._periods: dict[Pattern, int] = {}
        self._named: dict[UUri, dict[UUri, _NamedSubscription]] = {}
        self._pattern_topics: dict[
            UUri, dict[UUri, int]
        ] = {}  # topics subscribed for patterns, with their rate
        self._configured: dict[UUri, str] = {}
        self._observed: OrderedDict[UUri, str] = OrderedDict()
        self._retries: dict[UUri, dict[UUri, None]] = {}
        self._next_retry_ns = 0

    # --- topics ---------------------------------------------------------------------------------------------

    def configure(self, topics: Iterable[UUri]) -> None:
        """Add configured topics of other devices, permanently."""
        for topic in topics:
            if topic.authority_name not in self._local_authorities:
                self._configured[topic] = topic_of(topic)
                self._subscribe_matching(topic, self._configured[topic])

    def is_unknown(self, topic: UUri) -> bool:
        """Whether `topic` is an unknown topic of another device. Safe from any thread."""
        return (
            topic not in self._observed
            and topic not in self._configured
            and topic.authority_name not in self._local_authorities
        )

    def observe(self, topic: UUri) -> None:
        """Add a discovered topic of another device."""
        if not self.is_unknown(topic):
            return
        name = self._observed[topic] = topic_of(topic)
        if len(self._observed) > MAX_OBSERVED_TOPICS:
            self._observed.popitem(last=False)
        self._subscribe_matching(topic, name)

    def _subscribe_matching(self, topic: UUri, name: str) -> None:
        for pattern in self._patterns.matching(name):
            for entity in list(pattern.subscribers):
                self._reconcile(entity, topic, name)

    # --- by name --------------------------------------------------------------------------------------------

    def subscribe(
        self, entity: UUri, topic: UUri, period_ns: int, done: SubscribeCallback, *, again: bool = False
    ) -> None:
        """Subscribe `entity` to `topic`, as `UsubscriptionClient.subscribe`."""
        named = self._named.setdefault(entity, {}).setdefault(topic, _NamedSubscription())
        named.requested_ns = period_ns

        def answered(refusal: WampRefusal | None) -> None:
            # All callers of a topic are answered together, so the answer is for the last request.
            if refusal is None and named.requested_ns is not None:
                named.granted_ns = named.requested_ns
            named.requested_ns = None
            if refusal is not None and named.granted_ns is None:
                self._remove_named(entity, topic, named)
            done(refusal)

        held = self._pattern_topics.get(entity, {}).get(topic)
        self._usubscription.subscribe(entity, topic, _fastest(period_ns, held), answered, again=again)

    def _remove_named(self, entity: UUri, topic: UUri, named: _NamedSubscription | None) -> None:
        topics = self._named.get(entity, {})
        if named is None or topics.get(topic) is named:
            topics.pop(topic, None)
            if not topics:
                self._named.pop(entity, None)

    def unsubscribe(self, entity: UUri, topic: UUri) -> None:
        """Unsubscribe; waiting callers are called. A matching pattern of `entity` keeps the subscription."""
        self._remove_named(entity, topic, None)
        held = self._pattern_topics.get(entity, {}).get(topic)
        if held is None:
            self._usubscription.unsubscribe(entity, topic)
        else:
            self._usubscription.subscribe_nowait(entity, topic, held)

    # --- by patterns ----------------------------------------------------------------------------------------

    def add_pattern(self, pattern: Pattern, period_ns: int) -> None:
        """Subscribe `pattern.entity` to all known topics that match, and to later ones."""
        if self._periods.get(pattern) == period_ns:
            return
        self._periods[pattern] = period_ns
        self._patterns.subscribe(pattern.entity, pattern.topic, pattern.match, 0)
        every_instance = instances_of(pattern.topic, pattern.match)
        if every_instance is not None and every_instance.authority_name not in self._local_authorities:
            self._reconcile(pattern.entity, every_instance, pattern.topic)
        for known in (self._configured, self._observed):
            for topic, name in known.items():
                if matches(pattern.topic, pattern.match, name):
                    self._reconcile(pattern.entity, topic, name)

    def repeat_pattern(self, pattern: Pattern) -> None:
        """Subscribe the topics of a pattern again, as another session has subscribed it."""
        for topic, period_ns in list(self._pattern_topics.get(pattern.entity, {}).items()):
            if matches(pattern.topic, pattern.match, _name_of(topic)):
                self._usubscription.subscribe(pattern.entity, topic, period_ns, again=True)

    def remove_pattern(self, pattern: Pattern) -> None:
        """Remove a pattern; topics of other patterns stay subscribed."""
        if self._periods.pop(pattern, None) is None:
            return
        subscription = self._patterns.find(pattern.topic, pattern.match)
        if subscription is not None:
            self._patterns.unsubscribe(pattern.entity, subscription.id)
        for topic in list(self._pattern_topics.get(pattern.entity, ())):
            name = _name_of(topic)
            if matches(pattern.topic, pattern.match, name):
                self._reconcile(pattern.entity, topic, name)
        if not self._patterns.subscriptions_of(pattern.entity):
            self._retries.pop(pattern.entity, None)

    def _period(self, entity: UUri, topic: UUri, name: str) -> int | None:
        """The shortest period of the patterns of `entity` that match the topic; None without a match."""
        found = [
            self._periods[Pattern(entity, each.topic, each.match)]
            for each in self._patterns.matching(name)
            if entity in each.subscribers and (topic.ue_instance != ANY_INSTANCE or each.topic == name)
        ]
        return min(found, default=None)

    def _reconcile(self, entity: UUri, topic: UUri, name: str) -> None:
        """Request the subscription of one topic for the patterns of `entity`, if it has changed."""
        period_ns = self._period(entity, topic, name)
        held = self._pattern_topics.setdefault(entity, {})
        before = held.get(topic)
        if period_ns != before:
            if period_ns is None:
                del held[topic]
                self._release(entity, topic)
            elif before is None and len(held) >= self._limit * len(self._patterns.subscriptions_of(entity)):
                self._schedule_retry(entity, topic)
            else:
                held[topic] = period_ns
                self._subscribe_for_pattern(entity, topic, period_ns)
        if not held:
            self._pattern_topics.pop(entity, None)

    def _release(self, entity: UUri, topic: UUri) -> None:
        named = self._named.get(entity, {}).get(topic)
        period_ns = None if named is None else named.period_ns
        if period_ns is None:
            self._usubscription.unsubscribe(entity, topic)
        else:
            self._usubscription.subscribe(entity, topic, period_ns)

    def _subscribe_for_pattern(self, entity: UUri, topic: UUri, period_ns: int) -> None:
        def answered(refusal: WampRefusal | None) -> None:
            if refusal is not None:
                self._retry_lost(entity, topic)

        named = self._named.get(entity, {}).get(topic)
        self._usubscription.subscribe(
            entity, topic, _fastest(period_ns, None if named is None else named.period_ns), answered
        )

    def _retry_lost(self, entity: UUri, topic: UUri) -> None:
        held = self._pattern_topics.get(entity, {})
        if held.pop(topic, None) is not None:
            self._schedule_retry(entity, topic)
            if not held:
                self._pattern_topics.pop(entity, None)

    def _schedule_retry(self, entity: UUri, topic: UUri) -> None:
        topics = self._retries.setdefault(entity, {})
        if len(topics) < MAX_RETRY_TOPICS:
            topics[topic] = None

    # --- ended subscriptions --------------------------------------------------------------------------------

    def on_subscription_ended(self, entity: UUri, topic: UUri) -> None:
        """uSubscription has ended a subscription. For patterns, it is retried."""
        self._remove_named(entity, topic, None)
        self._retry_lost(entity, topic)

    def tick(self, now_ns: int) -> None:
        """Retry refused topics, once a minute."""
        if now_ns < self._next_retry_ns:
            return
        self._next_retry_ns = now_ns + _RETRY_INTERVAL_NS
        retries, self._retries = self._retries, {}
        for entity, topics in retries.items():
            for topic in topics:
                self._reconcile(entity, topic, _name_of(topic))

    @property
    def topic_count(self) -> int:
        """The number of topics subscribed for patterns, summed over rates. Safe from any thread."""
        return sum(map(len, list(self._pattern_topics.values())))

    @property
    def waiting_topic_count(self) -> int:
        """The number of refused or excess topics. Safe from any thread."""
        return sum(map(len, list(self._retries.values())))


def _fastest(one: int, other: int | None) -> int:
    return one if other is None else min(one, other)  # 0, no limit, is the fastest


def _name_of(topic: UUri) -> str:
    """As `topic_of`; every instance of an entity becomes its wildcard."""
    if topic.ue_instance != ANY_INSTANCE:
        return topic_of(topic)
    components = topic_of(topic).split(".")
    components[INSTANCE] = ""
    return ".".join(components)
