# SPDX-License-Identifier: Apache-2.0
"""All subscriptions in memory: the directory that the router reads, and the source of Fetch responses."""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from threading import Lock
from typing import Final

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.routing.subscriptions import (
    Change,
    RecentSubscriptionChange,
    ServiceOutage,
    Subscription,
    SubscriptionWatch,
)
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.model.declared_topics import any_instance_pattern
from ustreamer_usubscription.model.subscription import (
    SubscriptionRecord,
    SubscriptionStatusChange,
    TopicEntityPair,
)
from ustreamer_usubscription.store.compact_index import CompactIndex

MAX_RECENT_CHANGES: Final = 1_024
"""Changes that are remembered for reports: 0.5 MB."""


class InMemoryDirectory:
    """A `SubscriptionDirectory` with one writer and any number of readers.

    Readers need no lock: tuples from `subscribers` are replaced, never changed, and `version` grows after that. All
    orders are those of UUri texts, as in the store, so a restart keeps them. Everything but `version` and
    `subscribers` belongs to the writer's thread.

    Loaded subscriptions are decoded topic by topic, at the first lookup of a topic: with a million subscriptions,
    routing begins 0.6 s after the start instead of 3. A query for all of them decodes all, once.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_topic: dict[UUri, tuple[SubscriptionRecord, ...]] = {}
        # The loaded subscriptions, valid for topics that are not in _by_topic. There, () marks topics without
        # subscriptions.
        self._compact = CompactIndex()
        self._is_compact = False  # whether _compact has any
        self._decode_lock = Lock()  # for changes of _by_topic while _compact is in use
        self._by_subscriber: dict[UUri, dict[UUri, SubscriptionRecord]] | None = (
            None  # built at the first query
        )
        self._watches: list[tuple[SubscriptionWatch, int | None]] = []
        self._subscribe_watches: list[Callable[[Subscription], None]] = []
        self._count = 0
        self._by_authority: Counter[str] | None = None  # subscriptions by authority; built at the first query
        self._wildcard_topics = 0  # topics with an instance wildcard
        # In order; None after a topic was added or removed.
        self._sorted_topics: list[UUri] | None = None
        self._deadlines: DeadlineQueue[TopicEntityPair] = DeadlineQueue()
        self._changes: deque[RecentSubscriptionChange] = deque(maxlen=MAX_RECENT_CHANGES)
        self._outage: ServiceOutage | None = None

    # --- routing ------------------------------------------------------------------------------------------------------

    def subscribers(self, topic: UUri) -> tuple[SubscriptionRecord, ...]:
        """The subscriptions of `topic`, in order, and then those of this topic of every instance.

        Safe from any thread.

        One dict lookup, and a second one only while there is any subscription of every instance: the instance is the
        only part of a topic that may be a wildcard, so the pattern is known.
        """
        found = self.exact_subscriptions(topic)
        if not self._wildcard_topics or topic.ue_instance == ANY_INSTANCE:
            return found
        any_instance_row = self.exact_subscriptions(any_instance_pattern(topic))
        return (*found, *any_instance_row) if any_instance_row else found

    def exact_subscriptions(self, topic: UUri) -> tuple[SubscriptionRecord, ...]:
        """The subscriptions of just this topic, in order."""
        row = self._by_topic.get(topic)
        if row is None:
            return self._decoded(topic) if self._is_compact else ()
        return row

    def _decoded(self, topic: UUri) -> tuple[SubscriptionRecord, ...]:
        with self._decode_lock:
            row = self._by_topic.get(topic)
            if row is None:
                row = self._compact.subscriptions_of(topic)
                if row:
                    self._by_topic[topic] = row
        return row

    def _decode_all(self) -> None:
        """Decode the rest: 2 us for each subscription, once. Routing continues meanwhile."""
        if not self._is_compact:
            return
        for topic in self._compact.topics():
            self._decoded(topic)
        with self._decode_lock:
            self._compact, self._is_compact = CompactIndex(), False
            self._by_topic = {topic: row for topic, row in self._by_topic.items() if row}

    # --- queries ------------------------------------------------------------------------------------------------------

    def find(self, pair: TopicEntityPair) -> SubscriptionRecord | None:
        topic, subscriber = pair
        row = self.exact_subscriptions(topic)
        if not row:
            return None
        index = bisect_left(row, str(subscriber), key=_subscriber_text)
        return row[index] if index < len(row) and row[index].subscriber == subscriber else None

    def subscribed_by(self, subscriber: UUri) -> list[SubscriptionRecord]:
        """The subscriptions of one subscriber, in order of topic."""
        if self._by_subscriber is None:
            self._by_subscriber = {}
            for entry in self._all_subscriptions():
                self._index(entry)
        return sorted(self._by_subscriber.get(subscriber, {}).values(), key=_topic_text)

    def __iter__(self) -> Iterator[SubscriptionRecord]:
        """All subscriptions, in order of topic and then of subscriber."""
        self._decode_all()
        if self._sorted_topics is None:
            self._sorted_topics = sorted(self._by_topic, key=str)
        for topic in self._sorted_topics:
            yield from self._by_topic[topic]

    @property
    def count(self) -> int:
        """The number of subscriptions."""
        return self._count

    def count_of(self, authority: str) -> int:
        """The number of subscriptions of the entities at one authority."""
        if self._by_authority is None:
            self._by_authority = self._count_by_authority()
        return self._by_authority[authority]

    def _count_by_authority(self) -> Counter[str]:
        """0.5 us for each subscription, once; loaded ones are not decoded."""
        by_topic = self._by_topic.copy()  # a reader may decode topics meanwhile
        counts = Counter(entry.subscriber.authority_name for row in by_topic.values() for entry in row)
        for topic, authorities in self._compact.subscriber_authorities():
            if topic not in by_topic:
                counts.update(authorities)
        return counts

    # --- reports ------------------------------------------------------------------------------------------------------

    def list_subscriptions(self) -> Iterator[SubscriptionRecord]:
        """All subscriptions, in no order. From any thread: loaded ones are decoded again and not kept."""
        with self._decode_lock:
            compact, by_topic = self._compact, self._by_topic.copy()
        yield from chain.from_iterable(by_topic.values())
        yield from (entry for entry in compact.read_all() if entry.topic not in by_topic)

    def add_changes(self, changes: Iterable[SubscriptionStatusChange], now_ms: int) -> None:
        """Remember the latest of these changes for `recent_changes`."""
        for each in deque(changes, MAX_RECENT_CHANGES):
            topic, subscriber = each.entry.pair
            self._changes.append(
                RecentSubscriptionChange(topic, subscriber, each.status.name, now_ms, each.reason)
            )

    def recent_changes(self) -> Sequence[RecentSubscriptionChange]:
        """The latest changes since the start, oldest first. From any thread."""
        return tuple(self._changes)

    def set_outage(self, outage: ServiceOutage | None) -> None:
        """The service that this directory follows does not answer, or does again."""
        self._outage = outage

    def outage(self) -> ServiceOutage | None:
        return self._outage

    # --- expiry -------------------------------------------------------------------------------------------------------

    def next_expiry_ms(self) -> int | None:
        """The wall-clock time after which the next subscription expires; None if none does."""
        return self._deadlines.next_due

    def pop_expired(self, now_ms: int) -> list[SubscriptionRecord]:
        """The subscriptions that expired since the last call; `apply` removes them."""
        found = map(self.find, self._deadlines.pop_all_due(now_ms - 1))
        return [entry for entry in found if entry is not None]

    # --- changes ------------------------------------------------------------------------------------------------------

    def load_stored(self, compact: CompactIndex) -> None:
        """Take the contents of a store. Only for an empty directory."""
        self._compact, self._is_compact = compact, len(compact) > 0
        self._count, self._by_authority = len(compact), None
        self._wildcard_topics = compact.wildcard_topic_count()
        self._deadlines = DeadlineQueue(_expiries(compact.expiring()))
        self.version += 1
        if self._watches:  # 2 us for each, and none is kept
            bounds = [max_topics for _, max_topics in self._watches]
            most = None if None in bounds else max(each for each in bounds if each is not None)
            for number, topic in enumerate(islice(compact.topics(), most)):
                watching = [watch for watch, bound in self._watches if bound is None or number < bound]
                for entry in compact.subscriptions_of(topic):
                    for on_change in watching:
                        on_change(entry, Change.PRESENT)

    def watch(self, on_change: SubscriptionWatch, max_topics: int | None = None) -> None:
        """Call `on_change` for loaded subscriptions, of `max_topics` at most, and for every change of routing.

        Called before `load_stored`.
        """
        self._watches.append((on_change, max_topics))

    def watch_subscribes(self, on_subscribe: Callable[[Subscription], None]) -> None:
        """As `SubscribeReporter.watch_subscribes`."""
        self._subscribe_watches.append(on_subscribe)

    def report_subscribes(self, entries: Iterable[SubscriptionRecord]) -> None:
        """Report subscriptions that were requested, again or for the first time; some may have ended since."""
        for entry in entries:
            for on_subscribe in self._subscribe_watches:
                on_subscribe(entry)

    def _notify_watches(self, entry: SubscriptionRecord, change: Change) -> None:
        for on_change, _ in self._watches:
            on_change(entry, change)

    def apply(self, changes: Mapping[TopicEntityPair, SubscriptionRecord | None]) -> None:
        """Replace each subscription; None ends it. The version grows if routing may differ."""
        by_topic: dict[UUri, list[tuple[UUri, SubscriptionRecord | None]]] = {}
        for (topic, subscriber), entry in changes.items():
            by_topic.setdefault(topic, []).append((subscriber, entry))
        changed = [
            each
            for topic, topic_changes in by_topic.items()
            for each in self._apply_to_topic(topic, topic_changes)
        ]
        if changed:
            self.version += 1  # before the reports: a change is in effect when it is reported
        for old, new in changed:
            self._notify_change(old, new)

    def _apply_to_topic(
        self, topic: UUri, topic_changes: Iterable[tuple[UUri, SubscriptionRecord | None]]
    ) -> list[tuple[SubscriptionRecord | None, SubscriptionRecord | None]]:
        """Change one topic's subscriptions. Returns the old and the new ones where routing may differ.

        O(subscribers) for all changes together.
        """
        before = self.exact_subscriptions(topic)
        row = list(before)
        changed: list[tuple[SubscriptionRecord | None, SubscriptionRecord | None]] = []
        for subscriber, entry in topic_changes:
            index = bisect_left(row, str(subscriber), key=_subscriber_text)
            old = row[index] if index < len(row) and row[index].subscriber == subscriber else None
            row[index : index + (old is not None)] = [] if entry is None else [entry]
            if entry is not None and entry.expire_ms is not None:
                self._deadlines.schedule(entry.pair, entry.expire_ms)
            elif old is not None and old.expire_ms is not None:
                self._deadlines.cancel(old.pair)
            if _period_ns_of(old) != _period_ns_of(entry):
                changed.append((old, entry))
            if entry is not None:
                self._index(entry)
            elif old is not None:
                self._unindex(old)
        self._replace(topic, before, tuple(row))
        return changed

    def _notify_change(self, old: SubscriptionRecord | None, new: SubscriptionRecord | None) -> None:
        if new is not None:
            self._notify_watches(new, Change.SUBSCRIBED if old is None else Change.CHANGED)
        elif old is not None:
            self._notify_watches(old, Change.UNSUBSCRIBED)

    def _replace(
        self, topic: UUri, before: tuple[SubscriptionRecord, ...], after: tuple[SubscriptionRecord, ...]
    ) -> None:
        with self._decode_lock:
            if after or (self._is_compact and topic in self._compact):
                self._by_topic[topic] = after
            else:
                self._by_topic.pop(topic, None)
        if bool(before) != bool(after):
            self._sorted_topics = None
            self._wildcard_topics += (bool(after) - bool(before)) * (topic.ue_instance == ANY_INSTANCE)
        self._count += len(after) - len(before)
        if self._by_authority is not None:
            for entry in after:
                self._by_authority[entry.subscriber.authority_name] += 1
            for entry in before:
                self._by_authority[entry.subscriber.authority_name] -= 1

    def _index(self, entry: SubscriptionRecord) -> None:
        if self._by_subscriber is not None:
            self._by_subscriber.setdefault(entry.subscriber, {})[entry.topic] = entry

    def _unindex(self, entry: SubscriptionRecord) -> None:
        if self._by_subscriber is None:
            return
        topics = self._by_subscriber[entry.subscriber]
        del topics[entry.topic]
        if not topics:
            del self._by_subscriber[entry.subscriber]

    def _all_subscriptions(self) -> Iterable[SubscriptionRecord]:
        self._decode_all()
        return (entry for row in self._by_topic.values() for entry in row)


def _expiries(entries: Iterable[SubscriptionRecord]) -> Iterator[tuple[int, TopicEntityPair]]:
    return ((entry.expire_ms, entry.pair) for entry in entries if entry.expire_ms is not None)


def _period_ns_of(entry: SubscriptionRecord | None) -> int | None:
    return None if entry is None else entry.period_ns


def _topic_text(entry: SubscriptionRecord) -> str:
    return str(entry.topic)


def _subscriber_text(entry: SubscriptionRecord) -> str:
    return str(entry.subscriber)
