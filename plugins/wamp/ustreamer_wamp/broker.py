# SPDX-License-Identifier: Apache-2.0
"""Subscriptions of a realm by topic and policy, and the match of a published topic.

An id belongs to (topic, policy) while it has a holder, and all holders share it. Ids are small counters, which
are short on the wire and exact in JavaScript; none is given out twice.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from ustreamer_wamp.uri import Match

SubscriberT = TypeVar("SubscriberT")

MAX_CACHED_TOPICS: Final = 4096
"""Cached matches at most; publishers choose the number of topics."""


class BrokerSubscription(Generic[SubscriberT]):
    """One topic under one policy, and its holders in order of arrival."""

    __slots__ = ("created_ms", "id", "match", "subscribers", "topic")

    def __init__(self, id: int, topic: str, match: Match, created_ms: int) -> None:
        self.id = id
        self.topic = topic
        self.match: Match = match
        self.created_ms = created_ms
        self.subscribers: dict[SubscriberT, None] = {}

    def __repr__(self) -> str:
        return f"<Subscription {self.id} {self.match} {self.topic!r}: {len(self.subscribers)} holders>"


class Broker(Generic[SubscriberT]):
    """The subscriptions of a realm, without permissions and without I/O."""

    def __init__(self) -> None:
        self._last_id = 0
        self._by_id: dict[int, BrokerSubscription[SubscriberT]] = {}
        self._exact: dict[str, BrokerSubscription[SubscriberT]] = {}
        # By length: a match costs one lookup per length in use, not one comparison per subscription.
        self._prefix: dict[int, dict[str, BrokerSubscription[SubscriberT]]] = {}
        # By which components count, as in `ustreamer.core.routing.sublist`: one lookup per shape in use.
        self._wildcard: dict[tuple[bool, ...], dict[tuple[str, ...], BrokerSubscription[SubscriberT]]] = {}
        self._by_subscriber: dict[SubscriberT, dict[int, BrokerSubscription[SubscriberT]]] = {}
        self._match_cache: dict[str, tuple[BrokerSubscription[SubscriberT], ...]] = {}

    # --- changes --------------------------------------------------------------------------------------------

    def subscribe(
        self, subscriber: SubscriberT, topic: str, match: Match, now_ms: int
    ) -> tuple[BrokerSubscription[SubscriberT], bool]:
        """Add `holder`; the subscription, and whether it is the first holder."""
        subscription = self.find(topic, match)
        created = subscription is None
        if subscription is None:
            self._last_id += 1
            subscription = BrokerSubscription(self._last_id, topic, match, now_ms)
            self._by_id[subscription.id] = subscription
            table, key = self._index_slot(topic, match)
            table[key] = subscription
            self._match_cache.clear()
        subscription.subscribers[subscriber] = None
        self._by_subscriber.setdefault(subscriber, {})[subscription.id] = subscription
        return subscription, created

    def unsubscribe(self, subscriber: SubscriberT, id: int) -> BrokerSubscription[SubscriberT] | None:
        """Remove `holder`; the subscription, or None if it was no holder."""
        held = self._by_subscriber.get(subscriber, {})
        subscription = held.pop(id, None)
        if subscription is None:
            return None
        if not held:
            del self._by_subscriber[subscriber]
        del subscription.subscribers[subscriber]
        if not subscription.subscribers:
            self._remove(subscription)
        return subscription

    def remove_subscriber(self, subscriber: SubscriberT) -> list[BrokerSubscription[SubscriberT]]:
        """Remove `holder` from all its subscriptions; these."""
        held = list(self._by_subscriber.get(subscriber, {}).values())
        for subscription in held:
            self.unsubscribe(subscriber, subscription.id)
        return held

    def _remove(self, subscription: BrokerSubscription[SubscriberT]) -> None:
        del self._by_id[subscription.id]
        topic, match = subscription.topic, subscription.match
        table, key = self._index_slot(topic, match)
        del table[key]
        if match == "prefix" and not table:
            del self._prefix[len(topic)]
        elif match == "wildcard" and not table:
            del self._wildcard[_mask(topic)]
        self._match_cache.clear()

    def _index_slot(
        self, topic: str, match: Match
    ) -> tuple[dict[object, BrokerSubscription[SubscriberT]], object]:
        """The table that contains a subscription, and its key in the table."""
        table: dict[object, BrokerSubscription[SubscriberT]]
        if match == "exact":
            table, key = self._exact, topic  # type: ignore[assignment]  # its keys are strings
            return table, key
        if match == "prefix":
            table = self._prefix.setdefault(len(topic), {})  # type: ignore[assignment]  # as above
            return table, topic
        mask = _mask(topic)
        table = self._wildcard.setdefault(mask, {})  # type: ignore[assignment]  # its keys are tuples of strings
        return table, _fixed(topic.split("."), mask)

    # --- lookups --------------------------------------------------------------------------------------------

    def find(self, topic: str, match: Match) -> BrokerSubscription[SubscriberT] | None:
        """The subscription of just this topic and policy."""
        if match == "exact":
            return self._exact.get(topic)
        if match == "prefix":
            return self._prefix.get(len(topic), {}).get(topic)
        mask = _mask(topic)
        return self._wildcard.get(mask, {}).get(_fixed(topic.split("."), mask))

    def get(self, id: int) -> BrokerSubscription[SubscriberT] | None:
        return self._by_id.get(id)

    def matching(self, topic: str) -> tuple[BrokerSubscription[SubscriberT], ...]:
        """The subscriptions that match `topic`. 0.1 us from the cache."""
        found = self._match_cache.get(topic)
        if found is None:
            if len(self._match_cache) >= MAX_CACHED_TOPICS:
                del self._match_cache[next(iter(self._match_cache))]
            found = self._match_cache[topic] = tuple(self._match(topic))
        return found

    def _match(self, topic: str) -> Iterator[BrokerSubscription[SubscriberT]]:
        if topic in self._exact:
            yield self._exact[topic]
        for length, prefixes in self._prefix.items():
            # A prefix of characters, not of components: "com.a" matches "com.ab".
            if length <= len(topic) and topic[:length] in prefixes:
                yield prefixes[topic[:length]]
        if not self._wildcard:
            return
        components = topic.split(".")
        for mask, patterns in self._wildcard.items():
            if len(mask) == len(components):
                found = patterns.get(_fixed(components, mask))
                if found is not None:
                    yield found

    def subscriptions_of(self, subscriber: SubscriberT) -> dict[int, BrokerSubscription[SubscriberT]]:
        """By id. To be read only."""
        return self._by_subscriber.get(subscriber, {})

    def __iter__(self) -> Iterator[BrokerSubscription[SubscriberT]]:
        """All of them, oldest first."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)


def matches(pattern: str, match: Match, topic: str) -> bool:
    """Whether `topic` matches `pattern` under this policy."""
    if match == "exact":
        return pattern == topic
    if match == "prefix":
        return topic.startswith(pattern)
    wanted, components = pattern.split("."), topic.split(".")
    return len(wanted) == len(components) and all(
        not part or part == component for part, component in zip(wanted, components, strict=True)
    )


def _mask(pattern: str) -> tuple[bool, ...]:
    return tuple(bool(component) for component in pattern.split("."))


def _fixed(components: list[str], mask: tuple[bool, ...]) -> tuple[str, ...]:
    return tuple(component for component, counts in zip(components, mask, strict=True) if counts)
