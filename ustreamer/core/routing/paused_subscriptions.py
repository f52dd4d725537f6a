# SPDX-License-Identifier: Apache-2.0
"""Who has asked not to be sent a topic for now (DSP-16): a subscription directory without those wishes."""

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
MAX_PAUSED_PER_SUBSCRIBER: Final = 1_000  # so that one subscriber does not use up everybody's


class PausedDirectory:
    """Another directory but for the wishes of subscribers that have paused a topic. Safe from any thread.

    `version` is the other one's: a pause is told to whoever keeps plans (`Dispatcher.invalidate_routes`), so that nothing more is
    read for every message. Who shares a multicast domain with a subscriber that has not paused hears the topic on.
    """

    def __init__(self, directory: SubscriptionDirectory) -> None:
        self.inner = directory
        """The other one, whose `version` is cheaper to read there than here."""
        self._lock = Lock()
        # Replaced, never changed: routing reads them without the lock. By subscriber, and of each the patterns.
        self._paused: dict[UUri, frozenset[UUri]] = {}

    @property
    def version(self) -> int:
        return self.inner.version

    def watch(self, on_change: SubscriptionWatch) -> None:
        """Watch the other one; a pause is no change of a subscription."""
        watch_directory(self.inner, on_change)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """As SubscriptionDirectory says; without the wishes that are paused."""
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
        """Leave `subscriber` out of what goes to `topic`, a pattern or one; whether that is news.

        Raises UStatusError(RESOURCE_EXHAUSTED) above MAX_PAUSED of all, or MAX_PAUSED_PER_SUBSCRIBER of one subscriber.
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
        """Undo a `pause` of the same two; whether there was one."""
        with self._lock:
            before = self._paused.get(subscriber, frozenset())
            if topic not in before:
                return False
            rest = before - {topic}
            others = {each: topics for each, topics in self._paused.items() if each != subscriber}
            self._paused = {**others, subscriber: rest} if rest else others
        return True

    def paused_by(self, subscriber: UUri) -> Sequence[UUri]:
        """What `subscriber` has paused, in a stable order."""
        return sorted(self._paused.get(subscriber, ()))

    def all_paused(self) -> Iterator[tuple[UUri, UUri]]:
        """Every pair of topic and subscriber, in the order of topics and then of subscribers."""
        yield from sorted(
            (topic, subscriber) for subscriber, topics in self._paused.items() for topic in topics
        )


def _covers(patterns: Iterable[UUri], topic: UUri) -> bool:
    return any(pattern.matches(topic) for pattern in patterns)


def _too_many(what: str) -> UStatusError:
    return UStatusError(UCode.RESOURCE_EXHAUSTED, f"{what} are stopped: expected no more; start one of them")
