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
from ustreamer_wamp.errors import Refusal
from ustreamer_wamp.realm import Done
from ustreamer_wamp.vehicle.mapping import INSTANCE, instances_of, topic_of
from ustreamer_wamp.vehicle.patterns import Pattern
from ustreamer_wamp.vehicle.usubscription_client import Wishes

SEEN: Final = 4_096
"""Topics that are remembered because they came by, the latest ones; who sends chooses how many there are."""
AGAIN: Final = 256
"""Topics of one session that could not be had, or were one too many, and are tried again."""
_AGAIN_NS: Final = 60_000_000_000


class _Named:
    """A topic that a session has subscribed by its name: at which rate, and at which it wants to."""

    __slots__ = ("asked", "granted")

    def __init__(self) -> None:
        self.asked: int | None = None
        self.granted: int | None = None

    @property
    def period_ns(self) -> int | None:
        return self.granted if self.asked is None else self.asked


class Reach:
    """The subscriptions of all sessions, topic by topic. Belongs to one thread, but for `is_news`."""

    def __init__(self, wishes: Wishes, limit: int, serves: Collection[str]) -> None:
        """`limit` topics are subscribed at most for the patterns of one session; `serves` are authorities of no concern."""
        self._wishes = wishes
        self._serves = frozenset(serves)
        self._limit = limit
        self._patterns: Broker[UUri] = Broker()
        self._periods: dict[Pattern, int] = {}
        self._named: dict[UUri, dict[UUri, _Named]] = {}
        self._held: dict[UUri, dict[UUri, int]] = {}  # what patterns have subscribed, and at which rate
        self._configured: dict[UUri, str] = {}
        self._seen: OrderedDict[UUri, str] = OrderedDict()
        self._again: dict[UUri, dict[UUri, None]] = {}
        self._again_ns = 0

    # --- topics ---------------------------------------------------------------------------------------------------------

    def configure(self, topics: Iterable[UUri]) -> None:
        """Know these, as far as they are of other devices, from the start and for ever."""
        for topic in topics:
            if topic.authority_name not in self._serves:
                self._configured[topic] = topic_of(topic)
                self._spread(topic, self._configured[topic])

    def is_news(self, topic: UUri) -> bool:
        """Whether `topic` is of another device and not known. From any thread."""
        return (
            topic not in self._seen
            and topic not in self._configured
            and topic.authority_name not in self._serves
        )

    def learn(self, topic: UUri) -> None:
        """Know a topic, which has come by, if it is of another device."""
        if not self.is_news(topic):
            return
        name = self._seen[topic] = topic_of(topic)
        if len(self._seen) > SEEN:
            self._seen.popitem(last=False)
        self._spread(topic, name)

    def _spread(self, topic: UUri, name: str) -> None:
        for pattern in self._patterns.matching(name):
            for entity in list(pattern.holders):
                self._settle(entity, topic, name)

    # --- by name --------------------------------------------------------------------------------------------------------

    def want(self, entity: UUri, topic: UUri, period_ns: int, done: Done) -> None:
        """Have `entity` subscribe `topic`, as `Wishes.want`."""
        named = self._named.setdefault(entity, {}).setdefault(topic, _Named())
        named.asked = period_ns

        def answered(refusal: Refusal | None) -> None:
            # All who wait for a topic are answered at once, so what was asked last is what this is about.
            if refusal is None and named.asked is not None:
                named.granted = named.asked
            named.asked = None
            if refusal is not None and named.granted is None:
                self._forget_name(entity, topic, named)
            done(refusal)

        held = self._held.get(entity, {}).get(topic)
        self._wishes.want(entity, topic, _fastest(period_ns, held), answered)

    def _forget_name(self, entity: UUri, topic: UUri, named: _Named | None) -> None:
        topics = self._named.get(entity, {})
        if named is None or topics.get(topic) is named:
            topics.pop(topic, None)
            if not topics:
                self._named.pop(entity, None)

    def forget(self, entity: UUri, topic: UUri) -> None:
        """Undo `want`; whoever waits for it is called. If a pattern of `entity` stands for the topic, it goes on for that."""
        self._forget_name(entity, topic, None)
        held = self._held.get(entity, {}).get(topic)
        if held is None:
            self._wishes.forget(entity, topic)
        else:
            self._wishes.keep(entity, topic, held)

    # --- by patterns ----------------------------------------------------------------------------------------------------

    def put(self, pattern: Pattern, period_ns: int) -> None:
        """Have `pattern.entity` subscribe all known topics that the pattern stands for, from now on."""
        if self._periods.get(pattern) == period_ns:
            return
        self._periods[pattern] = period_ns
        self._patterns.subscribe(pattern.entity, pattern.topic, pattern.match, 0)
        every_instance = instances_of(pattern.topic, pattern.match)
        if every_instance is not None and every_instance.authority_name not in self._serves:
            self._settle(pattern.entity, every_instance, pattern.topic)
        for known in (self._configured, self._seen):
            for topic, name in known.items():
                if matches(pattern.topic, pattern.match, name):
                    self._settle(pattern.entity, topic, name)

    def remove(self, pattern: Pattern) -> None:
        """Undo `put`; what other patterns stand for as well goes on for those."""
        if self._periods.pop(pattern, None) is None:
            return
        subscription = self._patterns.find(pattern.topic, pattern.match)
        if subscription is not None:
            self._patterns.unsubscribe(pattern.entity, subscription.id)
        for topic in list(self._held.get(pattern.entity, ())):
            name = _name_of(topic)
            if matches(pattern.topic, pattern.match, name):
                self._settle(pattern.entity, topic, name)

    def _period(self, entity: UUri, topic: UUri, name: str) -> int | None:
        """The shortest of those patterns of `entity` that stand for the topic; None if none does."""
        found = [
            self._periods[Pattern(entity, each.topic, each.match)]
            for each in self._patterns.matching(name)
            if entity in each.holders and (topic.ue_instance != ANY_INSTANCE or each.topic == name)
        ]
        return min(found, default=None)

    def _settle(self, entity: UUri, topic: UUri, name: str) -> None:
        """Have uSubscription told what the patterns of `entity` come to for one topic, if that has changed."""
        period_ns = self._period(entity, topic, name)
        held = self._held.setdefault(entity, {})
        before = held.get(topic)
        if period_ns != before:
            if period_ns is None:
                del held[topic]
                self._let_go(entity, topic)
            elif before is None and len(held) >= self._limit:
                self._try_again(entity, topic)
            else:
                held[topic] = period_ns
                self._ask(entity, topic, period_ns)
        if not held:
            self._held.pop(entity, None)

    def _let_go(self, entity: UUri, topic: UUri) -> None:
        named = self._named.get(entity, {}).get(topic)
        period_ns = None if named is None else named.period_ns
        if period_ns is None:
            self._wishes.forget(entity, topic)
        else:
            self._wishes.want(entity, topic, period_ns, lambda refusal: None)

    def _ask(self, entity: UUri, topic: UUri, period_ns: int) -> None:
        def answered(refusal: Refusal | None) -> None:
            if refusal is not None:
                self._lost(entity, topic)

        named = self._named.get(entity, {}).get(topic)
        self._wishes.want(
            entity, topic, _fastest(period_ns, None if named is None else named.period_ns), answered
        )

    def _lost(self, entity: UUri, topic: UUri) -> None:
        held = self._held.get(entity, {})
        if held.pop(topic, None) is not None:
            self._try_again(entity, topic)
            if not held:
                self._held.pop(entity, None)

    def _try_again(self, entity: UUri, topic: UUri) -> None:
        topics = self._again.setdefault(entity, {})
        if len(topics) < AGAIN:
            topics[topic] = None

    # --- what ends ------------------------------------------------------------------------------------------------------

    def ended(self, entity: UUri, topic: UUri) -> None:
        """A subscription has ended without our doing. Patterns try it again some time."""
        self._forget_name(entity, topic, None)
        self._lost(entity, topic)

    def forget_all(self, entity: UUri) -> None:
        """Undo all that `entity` wants."""
        for ended in self._patterns.drop(entity):
            self._periods.pop(Pattern(entity, ended.topic, ended.match), None)
        for each in (self._named, self._held, self._again):
            each.pop(entity, None)
        self._wishes.forget_all(entity)

    def tick(self, now_ns: int) -> None:
        """Try again what could not be had, once a minute."""
        if now_ns < self._again_ns:
            return
        self._again_ns = now_ns + _AGAIN_NS
        again, self._again = self._again, {}
        for entity, topics in again.items():
            for topic in topics:
                self._settle(entity, topic, _name_of(topic))

    @property
    def topics(self) -> int:
        """How many topics are subscribed for patterns, each session's counted by itself. From any thread."""
        return sum(map(len, list(self._held.values())))

    @property
    def waiting(self) -> int:
        """How many more would be, but were refused, or are more than the limit. From any thread."""
        return sum(map(len, list(self._again.values())))


def _fastest(one: int, other: int | None) -> int:
    return one if other is None else min(one, other)  # 0, no limit, is the fastest


def _name_of(topic: UUri) -> str:
    """As `topic_of`; of every instance of an entity, the wildcard that stands for it."""
    if topic.ue_instance != ANY_INSTANCE:
        return topic_of(topic)
    components = topic_of(topic).split(".")
    components[INSTANCE] = ""
    return ".".join(components)
