# SPDX-License-Identifier: Apache-2.0
"""Who subscribed what: subscriptions by topic and policy, and which of them a published topic matches.

An id belongs to (topic, policy) as long as anybody holds it, and is shared by all who do. Ids are small counters, which
are short on the wire and exact in JavaScript; none is given out twice.
"""

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from ustreamer_wamp.uri import Match

Holder = TypeVar("Holder")

CACHED_TOPICS: Final = 4096
"""Answers that are kept; which topics there are is up to the publishers."""


class Subscription(Generic[Holder]):
    """One topic under one policy, and who holds it, in order of coming."""

    __slots__ = ("created_ms", "holders", "id", "match", "topic")

    def __init__(self, id: int, topic: str, match: Match, created_ms: int) -> None:
        self.id = id
        self.topic = topic
        self.match: Match = match
        self.created_ms = created_ms
        self.holders: dict[Holder, None] = {}

    def __repr__(self) -> str:
        return f"<Subscription {self.id} {self.match} {self.topic!r}: {len(self.holders)} holders>"


class Broker(Generic[Holder]):
    """The subscriptions of a realm. Decides nothing about who may; does not send."""

    def __init__(self) -> None:
        self._last_id = 0
        self._by_id: dict[int, Subscription[Holder]] = {}
        self._exact: dict[str, Subscription[Holder]] = {}
        # By length, so that a question costs one lookup per length in use and not one comparison per subscription.
        self._prefix: dict[int, dict[str, Subscription[Holder]]] = {}
        # By which components count, as in `ustreamer.core.routing.sublist`: one lookup per shape in use.
        self._wildcard: dict[tuple[bool, ...], dict[tuple[str, ...], Subscription[Holder]]] = {}
        self._held: dict[Holder, dict[int, Subscription[Holder]]] = {}
        self._answers: dict[str, tuple[Subscription[Holder], ...]] = {}

    # --- changes ------------------------------------------------------------------------------------------------------

    def subscribe(
        self, holder: Holder, topic: str, match: Match, now_ms: int
    ) -> tuple[Subscription[Holder], bool]:
        """The subscription, which `holder` holds from now on (or did already), and whether it is new to everybody."""
        subscription = self.find(topic, match)
        created = subscription is None
        if subscription is None:
            self._last_id += 1
            subscription = Subscription(self._last_id, topic, match, now_ms)
            self._by_id[subscription.id] = subscription
            table, key = self._place(topic, match)
            table[key] = subscription
            self._answers.clear()
        subscription.holders[holder] = None
        self._held.setdefault(holder, {})[subscription.id] = subscription
        return subscription, created

    def unsubscribe(self, holder: Holder, id: int) -> Subscription[Holder] | None:
        """The subscription that `holder` has given up; None if it did not hold that one."""
        held = self._held.get(holder, {})
        subscription = held.pop(id, None)
        if subscription is None:
            return None
        if not held:
            del self._held[holder]
        del subscription.holders[holder]
        if not subscription.holders:
            self._forget(subscription)
        return subscription

    def drop(self, holder: Holder) -> list[Subscription[Holder]]:
        """End everything that `holder` holds; what that was."""
        held = list(self._held.get(holder, {}).values())
        for subscription in held:
            self.unsubscribe(holder, subscription.id)
        return held

    def _forget(self, subscription: Subscription[Holder]) -> None:
        del self._by_id[subscription.id]
        topic, match = subscription.topic, subscription.match
        table, key = self._place(topic, match)
        del table[key]
        if match == "prefix" and not table:
            del self._prefix[len(topic)]
        elif match == "wildcard" and not table:
            del self._wildcard[_mask(topic)]
        self._answers.clear()

    def _place(self, topic: str, match: Match) -> tuple[dict[object, Subscription[Holder]], object]:
        """The table in which a subscription stands, and under which key."""
        table: dict[object, Subscription[Holder]]
        if match == "exact":
            table, key = self._exact, topic  # type: ignore[assignment]  # its keys are strings
            return table, key
        if match == "prefix":
            table = self._prefix.setdefault(len(topic), {})  # type: ignore[assignment]  # as above
            return table, topic
        mask = _mask(topic)
        table = self._wildcard.setdefault(mask, {})  # type: ignore[assignment]  # its keys are tuples of strings
        return table, _fixed(topic.split("."), mask)

    # --- questions ----------------------------------------------------------------------------------------------------

    def find(self, topic: str, match: Match) -> Subscription[Holder] | None:
        """The subscription of just this topic and policy."""
        if match == "exact":
            return self._exact.get(topic)
        if match == "prefix":
            return self._prefix.get(len(topic), {}).get(topic)
        mask = _mask(topic)
        return self._wildcard.get(mask, {}).get(_fixed(topic.split("."), mask))

    def get(self, id: int) -> Subscription[Holder] | None:
        return self._by_id.get(id)

    def matching(self, topic: str) -> tuple[Subscription[Holder], ...]:
        """The subscriptions that an event on `topic` is for. 0.1 us once it was asked before."""
        found = self._answers.get(topic)
        if found is None:
            if len(self._answers) >= CACHED_TOPICS:
                self._answers.clear()
            found = self._answers[topic] = tuple(self._match(topic))
        return found

    def _match(self, topic: str) -> Iterator[Subscription[Holder]]:
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

    def held_by(self, holder: Holder) -> dict[int, Subscription[Holder]]:
        """By id. To be read only."""
        return self._held.get(holder, {})

    def __iter__(self) -> Iterator[Subscription[Holder]]:
        """All of them, oldest first."""
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)


def matches(pattern: str, match: Match, topic: str) -> bool:
    """Whether `topic` is one of those that `pattern` stands for under this policy."""
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
