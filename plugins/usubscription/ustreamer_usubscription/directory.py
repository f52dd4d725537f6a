# SPDX-License-Identifier: Apache-2.0
"""All subscriptions in memory: the directory that routing asks, and what answers are made from."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock

from ustreamer.core.routing.subscriptions import Change, SubscriptionWatch
from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri
from ustreamer_usubscription.model.declared_topics import any_instance
from ustreamer_usubscription.model.subscription import Pair, Tracked
from ustreamer_usubscription.store.compact_index import Packed
from ustreamer_usubscription.store.deadlines import Deadlines


class Directory:
    """A `SubscriptionDirectory` with one writer and any number of readers.

    Readers need no lock: what `subscribers` returns is never changed but replaced, and `version` grows after that. All
    orders are those of UUri texts, as in the store, so they are the same after a restart. Everything but `version` and
    `subscribers` belongs to the writer's thread.

    What was loaded is decoded topic by topic, when a topic is first asked for, so that routing begins 0.6 s after the
    start with a million subscriptions instead of 3. A question about all of them decodes all, once.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_topic: dict[UUri, tuple[Tracked, ...]] = {}
        # What was loaded: it holds for the topics that are not in _by_topic, where () stands for those that have gone since.
        self._packed = Packed()
        self._unpacking = Lock()  # for changes of _by_topic while there is anything packed
        self._by_subscriber: dict[UUri, dict[UUri, Tracked]] | None = None  # made when first asked for
        self._watches: list[SubscriptionWatch] = []
        self._count = 0
        self._wild = 0  # topics with an instance wildcard
        # In order; None when a topic has come or gone since it was made.
        self._topics: list[UUri] | None = None
        self._deadlines: Deadlines[Pair] = Deadlines(self._expiry_of, self._expiries)

    # --- routing ------------------------------------------------------------------------------------------------------

    def subscribers(self, topic: UUri) -> tuple[Tracked, ...]:
        """The subscriptions of `topic`, in order, and then those of this topic of every instance. Safe from any thread.

        One dict lookup, however many there are, and a second only while there is any subscription of the latter kind: the
        instance is the only part of a topic that may be a wildcard, so the pattern to look for is known.
        """
        found = self.exactly(topic)
        if not self._wild or topic.ue_instance == ANY_INSTANCE:
            return found
        everywhere = self.exactly(any_instance(topic))
        return (*found, *everywhere) if everywhere else found

    def exactly(self, topic: UUri) -> tuple[Tracked, ...]:
        """The subscriptions of just this topic, in order."""
        row = self._by_topic.get(topic)
        return self._unpacked(topic) if row is None else row

    def _unpacked(self, topic: UUri) -> tuple[Tracked, ...]:
        if not self._packed:
            return ()
        with self._unpacking:
            row = self._by_topic.get(topic)
            if row is None:
                row = self._packed.row(topic)
                if row:
                    self._by_topic[topic] = row
        return row

    def _unpack_all(self) -> None:
        """Decode what is still packed: 2 us for each subscription, once; routing goes on meanwhile."""
        if not self._packed:
            return
        for topic in self._packed.topics():
            self._unpacked(topic)
        with self._unpacking:
            self._packed = Packed()
            self._by_topic = {topic: row for topic, row in self._by_topic.items() if row}

    # --- answers ------------------------------------------------------------------------------------------------------

    def find(self, pair: Pair) -> Tracked | None:
        topic, subscriber = pair
        row = self.exactly(topic)
        at = bisect_left(row, str(subscriber), key=_subscriber_text)
        return row[at] if at < len(row) and row[at].subscriber == subscriber else None

    def subscribed_by(self, subscriber: UUri) -> list[Tracked]:
        """The subscriptions of one subscriber, in order of topic."""
        if self._by_subscriber is None:
            self._by_subscriber = {}
            for entry in self._every():
                self._index(entry)
        return sorted(self._by_subscriber.get(subscriber, {}).values(), key=_topic_text)

    def __iter__(self) -> Iterator[Tracked]:
        """All subscriptions, in order of topic and then of subscriber."""
        self._unpack_all()
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
        return self._deadlines.next()

    def pop_expired(self, now_ms: int) -> list[Tracked]:
        """The subscriptions that have ended since the last call; what they are to become is for `apply`."""
        found = map(self.find, self._deadlines.pop_before(now_ms))
        return [entry for entry in found if entry is not None]

    # --- changes ------------------------------------------------------------------------------------------------------

    def load(self, packed: Packed) -> None:
        """Take over everything that a store holds. Only for an empty directory."""
        self._packed = packed
        self._count = len(packed)
        self._wild = packed.wild_topics()
        self._deadlines.load(_expiries(packed.expiring()))
        self.version += 1
        if self._watches:  # 2 us for each, and none is kept
            for topic in packed.topics():
                for entry in packed.row(topic):
                    self._tell(entry, Change.PRESENT)

    def watch(self, told: SubscriptionWatch) -> None:
        """Have `told` called for all that is loaded and for every change that routing sees. Called before `load`."""
        self._watches.append(told)

    def _tell(self, entry: Tracked, change: Change) -> None:
        for told in self._watches:
            told(entry, change)

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
        before = self.exactly(topic)
        row, differs, renewed = list(before), False, list[tuple[int, Pair]]()
        for subscriber, entry in wishes:
            at = bisect_left(row, str(subscriber), key=_subscriber_text)
            old = row[at] if at < len(row) and row[at].subscriber == subscriber else None
            row[at : at + (old is not None)] = [] if entry is None else [entry]
            if _period(old) != _period(entry):
                differs = True
                self._tell_of(old, entry)
            if entry is not None:
                self._index(entry)
                renewed += [(entry.expire_ms, entry.pair)] if entry.expire_ms is not None else []
            elif old is not None:
                self._unindex(old)
        self._replace(topic, before, tuple(row))
        for expire_ms, pair in renewed:
            self._deadlines.add(expire_ms, pair)
        return differs

    def _tell_of(self, old: Tracked | None, new: Tracked | None) -> None:
        if new is not None:
            self._tell(new, Change.SUBSCRIBED if old is None else Change.CHANGED)
        elif old is not None:
            self._tell(old, Change.UNSUBSCRIBED)

    def _replace(self, topic: UUri, before: tuple[Tracked, ...], after: tuple[Tracked, ...]) -> None:
        with self._unpacking:
            if after or (self._packed and topic in self._packed):
                self._by_topic[topic] = after
            else:
                self._by_topic.pop(topic, None)
        if bool(before) != bool(after):
            self._topics = None
            self._wild += (bool(after) - bool(before)) * (topic.ue_instance == ANY_INSTANCE)
        self._count += len(after) - len(before)

    def _index(self, entry: Tracked) -> None:
        if self._by_subscriber is not None:
            self._by_subscriber.setdefault(entry.subscriber, {})[entry.topic] = entry

    def _unindex(self, entry: Tracked) -> None:
        if self._by_subscriber is None:
            return
        topics = self._by_subscriber[entry.subscriber]
        del topics[entry.topic]
        if not topics:
            del self._by_subscriber[entry.subscriber]

    def _expiry_of(self, pair: Pair) -> int | None:
        entry = self.find(pair)
        return None if entry is None else entry.expire_ms

    def _expiries(self) -> Iterable[tuple[int, Pair]]:
        return _expiries(self._every())

    def _every(self) -> Iterable[Tracked]:
        self._unpack_all()
        return (entry for row in self._by_topic.values() for entry in row)


def _expiries(entries: Iterable[Tracked]) -> Iterator[tuple[int, Pair]]:
    return ((entry.expire_ms, entry.pair) for entry in entries if entry.expire_ms is not None)


def _period(entry: Tracked | None) -> int | None:
    return None if entry is None else entry.period_ns


def _topic_text(entry: Tracked) -> str:
    return str(entry.topic)


def _subscriber_text(entry: Tracked) -> str:
    return str(entry.subscriber)
