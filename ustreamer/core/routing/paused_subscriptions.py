# SPDX-License-Identifier: Apache-2.0
"""A subscription directory that marks the subscriptions that their subscribers have paused (DSP-16)."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import Final

from ustreamer.core.routing.subscriptions import (
    PausedSubscription,
    Subscription,
    SubscriptionDirectory,
    SubscriptionWatch,
    watch_directory,
    watch_subscribes,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

MAX_PAUSED: Final = 10_000
MAX_PAUSED_PER_SUBSCRIBER: Final = 1_000  # one subscriber must not use up the limit of all

Pause = tuple[UUri, UUri]
"""A topic or pattern, and the subscriber that paused it."""


class PausedDirectory:
    """The inner directory with paused subscriptions marked. Safe from any thread.

    `version` is that of the inner directory. After a pause the caller updates the deliveries
    (`Dispatcher.update_paused`), so a pause costs nothing per message. In a multicast domain a paused subscriber
    still receives a topic that another subscriber there has not paused.
    """

    def __init__(
        self, directory: SubscriptionDirectory, save: Callable[[Iterable[Pause]], None] = lambda pauses: None
    ) -> None:
        """`save` keeps all pauses for `restore` after a restart; it raises UStatusError if it cannot."""
        self._save = save
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

    def watch_subscribes(self, on_subscribe: Callable[[Subscription], None]) -> None:
        """Watch the Subscribes at the inner directory."""
        watch_subscribes(self.inner, on_subscribe)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """The subscriptions of `topic`; those that are paused are marked."""
        subscriptions = self.inner.subscribers(topic)
        paused = self._paused
        if not paused:
            return subscriptions
        return [
            PausedSubscription(each.topic, each.subscriber, each.period_ns)
            if _covers(paused.get(each.subscriber, ()), topic)
            else each
            for each in subscriptions
        ]

    def pause(self, topic: UUri, subscriber: UUri) -> bool:
        """Pause the subscriptions of `subscriber` to `topic`, an address or a pattern; False if they were paused.

        Raises UStatusError(RESOURCE_EXHAUSTED) above MAX_PAUSED, or MAX_PAUSED_PER_SUBSCRIBER of this subscriber, and
        if the pause cannot be saved: then nothing has changed.
        """
        with self._lock:
            before = self._paused.get(subscriber, frozenset())
            if topic in before:
                return False
            if len(before) >= MAX_PAUSED_PER_SUBSCRIBER:
                raise _too_many(f"{MAX_PAUSED_PER_SUBSCRIBER} topics of {subscriber}")
            if sum(map(len, self._paused.values())) >= MAX_PAUSED:
                raise _too_many(f"{MAX_PAUSED} topics of all subscribers")
            paused = {**self._paused, subscriber: before | {topic}}
            self._save(_pairs(paused))
            self._paused = paused
        return True

    def resume(self, topic: UUri, subscriber: UUri) -> bool:
        """Undo a `pause` with the same arguments; whether there was one.

        Raises UStatusError if that cannot be saved: the pause has ended, but returns with a restart.
        """
        with self._lock:
            before = self._paused.get(subscriber, frozenset())
            if topic not in before:
                return False
            rest = before - {topic}
            others = {each: topics for each, topics in self._paused.items() if each != subscriber}
            self._paused = {**others, subscriber: rest} if rest else others
            self._save(_pairs(self._paused))
        return True

    def restore(self, pauses: Iterable[Pause]) -> None:
        """Take over the pauses of an earlier process. Called before the first message."""
        for topic, subscriber in pauses:
            self._paused[subscriber] = self._paused.get(subscriber, frozenset()) | {topic}

    def paused_by(self, subscriber: UUri) -> Sequence[UUri]:
        """The topics and patterns that `subscriber` has paused, in a stable order."""
        return sorted(self._paused.get(subscriber, ()))

    def all_paused(self) -> Iterator[Pause]:
        """All pauses, ordered by topic and then by subscriber."""
        yield from _pairs(self._paused)


def _pairs(paused: Mapping[UUri, frozenset[UUri]]) -> list[Pause]:
    return sorted((topic, subscriber) for subscriber, topics in paused.items() for topic in topics)


def _covers(patterns: Iterable[UUri], topic: UUri) -> bool:
    return any(pattern.matches(topic) for pattern in patterns)


def _too_many(what: str) -> UStatusError:
    return UStatusError(
        UCode.RESOURCE_EXHAUSTED, f"{what} are stopped already, which is the limit; start one of them first"
    )
