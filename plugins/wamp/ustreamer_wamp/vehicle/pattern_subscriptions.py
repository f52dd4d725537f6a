# SPDX-License-Identifier: Apache-2.0
"""What sessions want, by names and by patterns, as the topics that uSubscription can be asked for. Does no I/O.

uSubscription has no word for a pattern (but for every instance of an entity, in version 4). A pattern therefore is as many
subscriptions as there are topics of other devices that are known and match: those that the configuration names, and those
that have come by since the start. It keeps in step: with a topic that becomes known it grows, and it ends as one.

Topics of authorities that the streamer serves are not among them. They come by anyway, and nobody is to be asked for them.
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
"""Topics that are remembered because they came by, the latest ones; who sends chooses how many there are."""
MAX_RETRY_TOPICS: Final = 256
"""Topics of one session that could not be had, or were one too many, and are tried again."""
_RETRY_INTERVAL_NS: Final = 60_000_000_000


class _NamedSubscription:
    """A topic that a session has subscribed by its name: at which rate, and at which it wants to."""

    __slots__ = ("granted_ns", "requested_ns")

    def __init__(self) -> None:
        self.requested_ns: int | None = None
        self.granted_ns: int | None = None

    @property
    def period_ns(self) -> int | None:
        return self.granted_ns if self.requested_ns is None else self.requested_ns


class PatternSubscriptions:
    """The subscriptions of all sessions, topic by topic. Belongs to one thread, but for `is_news`."""

    def __init__(
        self, usubscription: UsubscriptionClient, limit: int, local_authorities: Collection[str]
    ) -> None:
        """`limit` topics are subscribed at most for the patterns of one session; `serves` are authorities of no concern."""
        self._usubscription = usubscription
        self._local_authorities = frozenset(local_authorities)
        self._limit = limit
        self._patterns: Broker[UUri] = Broker()
        self._periods: dict[Pattern, int] = {}
        self._named: dict[UUri, dict[UUri, _NamedSubscription]] = {}
        self._pattern_topics: dict[
            UUri, dict[UUri, int]
        ] = {}  # what patterns have subscribed, and at which rate
        self._configured: dict[UUri, str] = {}
        self._observed: OrderedDict[UUri, str] = OrderedDict()
        self._retries: dict[UUri, dict[UUri, None]] = {}
        self._next_retry_ns = 0

    # --- topics ---------------------------------------------------------------------------------------------------------

    def configure(self, topics: Iterable[UUri]) -> None:
        """Know these, as far as they are of other devices, from the start and for ever."""
        for topic in topics:
            if topic.authority_name not in self._local_authorities:
                self._configured[topic] = topic_of(topic)
                self._subscribe_matching(topic, self._configured[topic])

    def is_unknown(self, topic: UUri) -> bool:
        """Whether `topic` is of another device and not known. From any thread."""
        return (
            topic not in self._observed
            and topic not in self._configured
            and topic.authority_name not in self._local_authorities
        )

    def observe(self, topic: UUri) -> None:
        """Know a topic, which has come by, if it is of another device."""
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

    # --- by name --------------------------------------------------------------------------------------------------------

    def subscribe(self, entity: UUri, topic: UUri, period_ns: int, done: SubscribeCallback) -> None:
        """Have `entity` subscribe `topic`, as `Wishes.subscribe`."""
        named = self._named.setdefault(entity, {}).setdefault(topic, _NamedSubscription())
        named.requested_ns = period_ns

        def answered(refusal: WampRefusal | None) -> None:
            # All who wait for a topic are answered at once, so what was asked last is what this is about.
            if refusal is None and named.requested_ns is not None:
                named.granted_ns = named.requested_ns
            named.requested_ns = None
            if refusal is not None and named.granted_ns is None:
                self._remove_named(entity, topic, named)
            done(refusal)

        held = self._pattern_topics.get(entity, {}).get(topic)
        self._usubscription.subscribe(entity, topic, _fastest(period_ns, held), answered)

    def _remove_named(self, entity: UUri, topic: UUri, named: _NamedSubscription | None) -> None:
        topics = self._named.get(entity, {})
        if named is None or topics.get(topic) is named:
            topics.pop(topic, None)
            if not topics:
                self._named.pop(entity, None)

    def unsubscribe(self, entity: UUri, topic: UUri) -> None:
        """Undo `want`; whoever waits for it is called. If a pattern of `entity` stands for the topic, it goes on for that."""
        self._remove_named(entity, topic, None)
        held = self._pattern_topics.get(entity, {}).get(topic)
        if held is None:
            self._usubscription.unsubscribe(entity, topic)
        else:
            self._usubscription.subscribe_nowait(entity, topic, held)

    # --- by patterns ----------------------------------------------------------------------------------------------------

    def add_pattern(self, pattern: Pattern, period_ns: int) -> None:
        """Have `pattern.entity` subscribe all known topics that the pattern stands for, from now on."""
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

    def remove_pattern(self, pattern: Pattern) -> None:
        """Undo `put`; what other patterns stand for as well goes on for those."""
        if self._periods.pop(pattern, None) is None:
            return
        subscription = self._patterns.find(pattern.topic, pattern.match)
        if subscription is not None:
            self._patterns.unsubscribe(pattern.entity, subscription.id)
        for topic in list(self._pattern_topics.get(pattern.entity, ())):
            name = _name_of(topic)
            if matches(pattern.topic, pattern.match, name):
                self._reconcile(pattern.entity, topic, name)

    def _period(self, entity: UUri, topic: UUri, name: str) -> int | None:
        """The shortest of those patterns of `entity` that stand for the topic; None if none does."""
        found = [
            self._periods[Pattern(entity, each.topic, each.match)]
            for each in self._patterns.matching(name)
            if entity in each.subscribers and (topic.ue_instance != ANY_INSTANCE or each.topic == name)
        ]
        return min(found, default=None)

    def _reconcile(self, entity: UUri, topic: UUri, name: str) -> None:
        """Have uSubscription told what the patterns of `entity` come to for one topic, if that has changed."""
        period_ns = self._period(entity, topic, name)
        held = self._pattern_topics.setdefault(entity, {})
        before = held.get(topic)
        if period_ns != before:
            if period_ns is None:
                del held[topic]
                self._release(entity, topic)
            elif before is None and len(held) >= self._limit:
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
            self._usubscription.subscribe(entity, topic, period_ns, lambda refusal: None)

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

    # --- what ends ------------------------------------------------------------------------------------------------------

    def on_subscription_ended(self, entity: UUri, topic: UUri) -> None:
        """A subscription has ended without our doing. Patterns try it again some time."""
        self._remove_named(entity, topic, None)
        self._retry_lost(entity, topic)

    def unsubscribe_all(self, entity: UUri) -> None:
        """Undo all that `entity` wants."""
        for ended in self._patterns.remove_subscriber(entity):
            self._periods.pop(Pattern(entity, ended.topic, ended.match), None)
        for each in (self._named, self._pattern_topics, self._retries):
            each.pop(entity, None)
        self._usubscription.unsubscribe_all(entity)

    def tick(self, now_ns: int) -> None:
        """Try again what could not be had, once a minute."""
        if now_ns < self._next_retry_ns:
            return
        self._next_retry_ns = now_ns + _RETRY_INTERVAL_NS
        retries, self._retries = self._retries, {}
        for entity, topics in retries.items():
            for topic in topics:
                self._reconcile(entity, topic, _name_of(topic))

    @property
    def topic_count(self) -> int:
        """How many topics are subscribed for patterns, each session's counted by itself. From any thread."""
        return sum(map(len, list(self._pattern_topics.values())))

    @property
    def waiting_topic_count(self) -> int:
        """How many more would be, but were refused, or are more than the limit. From any thread."""
        return sum(map(len, list(self._retries.values())))


def _fastest(one: int, other: int | None) -> int:
    return one if other is None else min(one, other)  # 0, no limit, is the fastest


def _name_of(topic: UUri) -> str:
    """As `topic_of`; of every instance of an entity, the wildcard that stands for it."""
    if topic.ue_instance != ANY_INSTANCE:
        return topic_of(topic)
    components = topic_of(topic).split(".")
    components[INSTANCE] = ""
    return ".".join(components)
