# SPDX-License-Identifier: Apache-2.0
"""All subscriptions in memory: the directory that routing asks, and what answers are made from."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.deadlines import Deadlines
from ustreamer_usubscription.topics import any_instance
from ustreamer_usubscription.tracked import Pair, Tracked


class Directory:
    """A `SubscriptionDirectory` with one writer and any number of readers.

    Readers need no lock: what `subscribers` returns is never changed but replaced, and `version` grows after that. All
    orders are those of UUri texts, as in the store, so they are the same after a restart. Everything but `version` and
    `subscribers` belongs to the writer's thread.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_topic: dict[UUri, tuple[Tracked, ...]] = {}
        self._by_subscriber: dict[UUri, dict[UUri, Tracked]] = {}
        self._count = 0
        self._wild = 0  # topics with an instance wildcard
        # In order; None when a topic has come or gone since it was made.
        self._topics: list[UUri] | None = None
        self._deadlines = Deadlines(self.find, self._every)

    # --- routing ------------------------------------------------------------------------------------------------------

    def subscribers(self, topic: UUri) -> Sequence[Tracked]:
        """The subscriptions of `topic`, in order, and then those of this topic of every instance. Safe from any thread.

        One dict lookup, however many there are, and a second only while there is any subscription of the latter kind: the
        instance is the only part of a topic that may be a wildcard, so the pattern to look for is known.
        """
        found = self._by_topic.get(topic, ())
        if not self._wild or topic.ue_instance == ANY_INSTANCE:
            return found
        everywhere = self._by_topic.get(any_instance(topic), ())
        return (*found, *everywhere) if everywhere else found

    def exactly(self, topic: UUri) -> Sequence[Tracked]:
        """The subscriptions of just this topic, in order."""
        return self._by_topic.get(topic, ())

    # --- answers ------------------------------------------------------------------------------------------------------

    def find(self, pair: Pair) -> Tracked | None:
        topic, subscriber = pair
        return self._by_subscriber.get(subscriber, {}).get(topic)

    def subscribed_by(self, subscriber: UUri) -> list[Tracked]:
        """The subscriptions of one subscriber, in order of topic."""
        return sorted(self._by_subscriber.get(subscriber, {}).values(), key=_topic_text)

    def __iter__(self) -> Iterator[Tracked]:
        """All subscriptions, in order of topic and then of subscriber."""
        if self._topics is None:
            self._topics = sorted(self._by_topic, key=str)
        for topic in self._topics:
            yield from self._by_topic[topic]

    @property
    def count(self) -> int:
        """How many subscriptions there are."""
        return self._count

    # --- expiry -------------------------------------------------------------------------------------------------------

    def next_expiry_ms(self) -> int | None:
        """The wall-clock time after which a subscription ends; None if none will."""
        return self._deadlines.next_ms()

    def pop_expired(self, now_ms: int) -> list[Tracked]:
        """The subscriptions that have ended since the last call; what they are to become is for `apply`."""
        return self._deadlines.pop_expired(now_ms)

    # --- changes ------------------------------------------------------------------------------------------------------

    def load(self, entries: Iterable[Tracked]) -> None:
        """Take over everything that a store holds, in its order. Only for an empty directory."""
        for topic, group in groupby(entries, key=_topic):
            row = tuple(group)
            self._by_topic[topic] = row
            self._count += len(row)
            self._wild += topic.ue_instance == ANY_INSTANCE
            for entry in row:
                self._index(entry)
        self._deadlines.rebuild()
        self.version += 1

    def apply(self, changes: Mapping[Pair, Tracked | None]) -> None:
        """Put each subscription in place of its predecessor; None ends it. The version grows if routing may differ."""
        by_topic: dict[UUri, list[tuple[UUri, Tracked | None]]] = {}
        for (topic, subscriber), entry in changes.items():
            by_topic.setdefault(topic, []).append((subscriber, entry))
        differs = [self._apply_to(topic, wishes) for topic, wishes in by_topic.items()]
        if any(differs):
            self.version += 1

    def _apply_to(self, topic: UUri, wishes: Iterable[tuple[UUri, Tracked | None]]) -> bool:
        """Change one topic's subscriptions; whether routing may differ. O(subscribers) for all `wishes` together."""
        before = self._by_topic.get(topic, ())
        row, differs = list(before), False
        for subscriber, entry in wishes:
            at = bisect_left(row, str(subscriber), key=_subscriber_text)
            old = row[at] if at < len(row) and row[at].subscriber == subscriber else None
            row[at : at + (old is not None)] = [] if entry is None else [entry]
            differs |= _period(old) != _period(entry)
            if entry is not None:
                self._index(entry)
                self._deadlines.add(entry)
            elif old is not None:
                self._unindex(old)
        self._replace(topic, before, tuple(row))
        return differs

    def _replace(self, topic: UUri, before: tuple[Tracked, ...], after: tuple[Tracked, ...]) -> None:
        if after:
            self._by_topic[topic] = after
        else:
            self._by_topic.pop(topic, None)
        if bool(before) != bool(after):
            self._topics = None
            self._wild += (bool(after) - bool(before)) * (topic.ue_instance == ANY_INSTANCE)
        self._count += len(after) - len(before)

    def _index(self, entry: Tracked) -> None:
        self._by_subscriber.setdefault(entry.subscriber, {})[entry.topic] = entry

    def _unindex(self, entry: Tracked) -> None:
        topics = self._by_subscriber[entry.subscriber]
        del topics[entry.topic]
        if not topics:
            del self._by_subscriber[entry.subscriber]

    def _every(self) -> Iterable[Tracked]:
        return (entry for topics in self._by_subscriber.values() for entry in topics.values())


def _period(entry: Tracked | None) -> int | None:
    return None if entry is None else entry.period_ns


def _topic(entry: Tracked) -> UUri:
    return entry.topic


def _topic_text(entry: Tracked) -> str:
    return str(entry.topic)


def _subscriber_text(entry: Tracked) -> str:
    return str(entry.subscriber)
