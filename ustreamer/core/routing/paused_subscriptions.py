# SPDX-License-Identifier: Apache-2.0
"""A subscription directory without the subscriptions that their subscribers have paused (DSP-16)."""

from collections.abc import Iterable, Iterator, Sequence
from threading import Lock
from typing import Final

from ustreamer.core.routing.subscriptions import (
    Subscription,
    SubscriptionDirectory,
    SubscriptionWatch,
    watch_directory,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

MAX_PAUSED: Final = 10_000
MAX_PAUSED_PER_SUBSCRIBER: Final = 1_000  # one subscriber must not use up the limit of all


class PausedDirectory:
    """The inner directory without paused subscriptions. Safe from any thread.

    `version` is that of the inner directory. After a pause the caller invalidates the cached routes
    (`Dispatcher.invalidate_routes`), so a pause costs nothing per message. In a multicast domain a paused subscriber
    still receives a topic that another subscriber there has not paused.
    """

    def __init__(self, directory: SubscriptionDirectory) -> None:
        self.inner = directory
        """The wrapped directory; its `version` is cheaper to read than the one of this object."""
        self._lock = Lock()
        # Patterns by subscriber. Replaced, never changed: routing reads them without the lock.
        self._paused: dict[UUri, frozenset[UUri]] = {}

    @property
    def version(self) -> int:
        return self.inner.version

    def watch(self, on_change: SubscriptionWatch, max_topics: int | None = None) -> None:
        """Watch the inner directory; a pause does not change a subscription."""
        watch_directory(self.inner, on_change, max_topics)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """The subscriptions of `topic` that are not paused."""
        subscriptions = self.inner.subscribers(topic)
        paused = self._paused
        if not paused:
            return subscriptions
        return [
            subscription
            for subscription in subscriptions
            if not _covers(paused.get(subscription.subscriber, ()), topic)
        ]

    def pause(self, topic: UUri, subscriber: UUri) -> bool:
        """Pause the subscriptions of `subscriber` to `topic`, an address or a pattern; False if they were paused.

        Raises UStatusError(RESOURCE_EXHAUSTED) above MAX_PAUSED, or MAX_PAUSED_PER_SUBSCRIBER of this subscriber.
        """
        with self._lock:
            before = self._paused.get(subscriber, frozenset())
            if topic in before:
                return False
            if len(before) >= MAX_PAUSED_PER_SUBSCRIBER:
                raise _too_many(f"{MAX_PAUSED_PER_SUBSCRIBER} topics of {subscriber}")
            if sum(map(len, self._paused.values())) >= MAX_PAUSED:
                raise _too_many(f"{MAX_PAUSED} topics of all subscribers")
            self._paused = {**self._paused, subscriber: before | {topic}}
        return True

    def resume(self, topic: UUri, subscriber: UUri) -> bool:
        """Undo a `pause` with the same arguments; whether there was one."""
        with self._lock:
            before = self._paused.get(subscriber, frozenset())
            if topic not in before:
                return False
            rest = before - {topic}
            others = {each: topics for each, topics in self._paused.items() if each != subscriber}
            self._paused = {**others, subscriber: rest} if rest else others
        return True

    def paused_by(self, subscriber: UUri) -> Sequence[UUri]:
        """The topics and patterns that `subscriber` has paused, in a stable order."""
        return sorted(self._paused.get(subscriber, ()))

    def all_paused(self) -> Iterator[tuple[UUri, UUri]]:
        """Every pair of topic and subscriber, ordered by topic and then by subscriber."""
        yield from sorted(
            (topic, subscriber) for subscriber, topics in self._paused.items() for topic in topics
        )


def _covers(patterns: Iterable[UUri], topic: UUri) -> bool:
    return any(pattern.matches(topic) for pattern in patterns)


def _too_many(what: str) -> UStatusError:
    return UStatusError(UCode.RESOURCE_EXHAUSTED, f"{what} are stopped: expected no more; start one of them")
