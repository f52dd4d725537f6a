# SPDX-License-Identifier: Apache-2.0
"""The interface between routing and subscription services: a topic goes in, its subscriptions go out."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from enum import IntEnum
from itertools import chain
from typing import Final, Protocol, runtime_checkable

import msgspec

from ustreamer.core.routing.sublist import Sublist
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuri import UUri

UNLIMITED: Final = 0
MAX_PERIOD_NS: Final = 10**18  # 31 years
_NS_PER_S: Final = 1_000_000_000


class Subscription(msgspec.Struct, frozen=True):
    """One subscriber of one topic. `period_ns` is the shortest time between two messages; 0: no limit."""

    topic: UUri
    subscriber: UUri
    period_ns: int = UNLIMITED


class PausedSubscription(Subscription, frozen=True):
    """A subscription whose dispatch the subscriber has stopped. Only `PausedDirectory` makes one."""


class SubscriptionDirectory(Protocol):
    """The subscriptions that routing reads when it builds a route, never per message.

    `version` grows with every change. The ingress reads it for every message, so keep it a plain attribute. A route of
    another version is built again. `subscribers` may be called from any thread and must not block on I/O.
    """

    @property
    def version(self) -> int:
        """Grows with every change."""
        ...

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """All current subscriptions of `topic`, in a stable order."""


class Change(IntEnum):
    """A change of a subscription. PRESENT: it existed when the watch began. CHANGED: it has another period."""

    PRESENT = 0
    SUBSCRIBED = 1
    CHANGED = 2
    UNSUBSCRIBED = 3


class SubscriptionWatch(Protocol):
    """Receives subscriptions on the thread that changes them; it must return at once.

    With UNSUBSCRIBED it receives the subscription before the change.
    """

    def __call__(self, subscription: Subscription, change: Change, /) -> None: ...


@runtime_checkable
class WatchableDirectory(Protocol):
    """A directory that reports its changes."""

    def watch(self, on_change: SubscriptionWatch, max_topics: int | None = None) -> None:
        """Call `on_change` for every present subscription, now or when it is loaded, and for every change.

        Called before the directory is in use. A change is in effect when it is reported. `max_topics` bounds the
        topics whose present subscriptions are reported.
        """
        ...


@runtime_checkable
class SubscribeReporter(Protocol):
    """A directory that reports each Subscribe, also a repeated one that changes no subscription."""

    def watch_subscribes(self, on_subscribe: Callable[[Subscription], None]) -> None:
        """Call `on_subscribe` after each Subscribe, on the thread that processes it; it must return at once."""
        ...


def watch_subscribes(directory: SubscriptionDirectory, on_subscribe: Callable[[Subscription], None]) -> None:
    """Watch the Subscribes at `directory` if it is a SubscribeReporter."""
    if isinstance(directory, SubscribeReporter):
        directory.watch_subscribes(on_subscribe)


def watch_directory(
    directory: SubscriptionDirectory, on_change: SubscriptionWatch, max_topics: int | None = None
) -> None:
    """Watch `directory` if it is a WatchableDirectory."""
    if isinstance(directory, WatchableDirectory):
        directory.watch(on_change, max_topics)


def period_of(max_frequency: float) -> int:
    """The period in ns of a frequency in Hz; raises INVALID_ARGUMENT unless it is a positive finite number.

    60 Hz is 16 666 667 ns, never 17 ms (58.8 Hz). The period is rounded up, so the rate never exceeds the limit.
    """
    if not _NS_PER_S / MAX_PERIOD_NS <= max_frequency < math.inf:
        raise invalid_argument(f"max_frequency {max_frequency} Hz: expected a finite number of at least 1e-9")
    return math.ceil(_NS_PER_S / max_frequency)


def fastest_period(periods: Iterable[int]) -> int:
    """The period that serves all subscribers with these `periods`: the shortest, or no limit if one has no limit."""
    return min(periods, default=UNLIMITED)  # UNLIMITED is 0, so it wins


class RecentSubscriptionChange(msgspec.Struct, frozen=True):
    """A subscription changed to this status of uSubscription, at this wall-clock time. `reason` can be empty."""

    topic: UUri
    subscriber: UUri
    status: str
    time_ms: int
    reason: str = ""


@runtime_checkable
class ListableDirectory(Protocol):
    """A directory that lists its contents, for reports. From any thread, never for a message."""

    def list_subscriptions(self) -> Iterator[Subscription]:
        """All subscriptions, in no order; one that changes meanwhile may be missing."""
        ...

    def recent_changes(self) -> Sequence[RecentSubscriptionChange]:
        """The latest changes, oldest first."""
        ...


NO_ANSWER: Final = "no answer"


class ServiceOutage(msgspec.Struct, frozen=True):
    """A service whose `method` gives no list of its subscriptions since this wall-clock time.

    `reason` is the name of the code of its answer, or NO_ANSWER.
    """

    method: UUri
    since_ms: int
    reason: str


@runtime_checkable
class FollowingDirectory(Protocol):
    """A directory that may follow a service in another process."""

    def outage(self) -> ServiceOutage | None:
        """Why this directory may miss subscriptions; None if it follows the service, or has its own. From any thread."""
        ...


class StaticDirectory:
    """Subscriptions from the configuration, such as SOME/IP receivers without service discovery."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self.version = 0
        self.replace_all(subscriptions)

    def replace_all(self, subscriptions: Iterable[Subscription]) -> None:
        """Take other subscriptions, without another version: the caller drops all routes."""
        by_topic: Sublist[Subscription] = Sublist()
        for subscription in subscriptions:
            by_topic.insert(subscription.topic, subscription)
        self._by_topic = by_topic
        self._is_empty = not any(True for _ in by_topic)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return () if self._is_empty else self._by_topic.match(topic)

    def watch(self, on_change: SubscriptionWatch, max_topics: int | None = None) -> None:
        topics = set[UUri]()
        for each in self._by_topic:
            topics.add(each.topic)
            if max_topics is not None and len(topics) > max_topics:
                return
            on_change(each, Change.PRESENT)

    def list_subscriptions(self) -> Iterator[Subscription]:
        return iter(self._by_topic)

    def recent_changes(self) -> Sequence[RecentSubscriptionChange]:
        return ()


class DirectoryBehind:
    """The subscriptions of `directory` whose subscribers live behind one of the `endpoints`."""

    def __init__(
        self,
        directory: SubscriptionDirectory,
        endpoints: AbstractSet[str],
        endpoint_of: Callable[[UUri], str | None],
    ) -> None:
        self._directory = directory
        self._endpoints = endpoints
        self._endpoint_of = endpoint_of

    @property
    def version(self) -> int:
        return self._directory.version

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        found = self._directory.subscribers(topic)
        return [each for each in found if self._endpoint_of(each.subscriber) in self._endpoints]


class MergedDirectory:
    """Several directories as one; a subscriber in two directories counts once, with the faster subscription."""

    def __init__(
        self, directories: Sequence[SubscriptionDirectory], unversioned: Sequence[SubscriptionDirectory] = ()
    ) -> None:
        """`unversioned` directories report changes by a callback, so their `version` is not read."""
        self._directories = (*directories, *unversioned)
        # A static directory never changes, so its version is not read per message.
        self._changing = tuple(each for each in directories if not isinstance(each, StaticDirectory))

    @property
    def version_source(self) -> SubscriptionDirectory:
        """The object whose `version` is read per message: the only changing directory, or this one."""
        return self._changing[0] if len(self._changing) == 1 else self

    @property
    def version(self) -> int:
        return sum([directory.version for directory in self._changing])

    def watch(self, on_change: SubscriptionWatch, max_topics: int | None = None) -> None:
        """Watch each directory separately: a subscription in two directories is reported twice."""
        for directory in self._directories:
            watch_directory(directory, on_change, max_topics)

    def watch_subscribes(self, on_subscribe: Callable[[Subscription], None]) -> None:
        for directory in self._directories:
            watch_subscribes(directory, on_subscribe)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        merged: dict[UUri, Subscription] = {}
        for directory in self._directories:
            for subscription in directory.subscribers(topic):
                known = merged.get(subscription.subscriber)
                if known is None or subscription.period_ns < known.period_ns:
                    merged[subscription.subscriber] = subscription
        return list(merged.values())

    def list_subscriptions(self) -> Iterator[Subscription]:
        return chain.from_iterable(each.list_subscriptions() for each in self._listable())

    def recent_changes(self) -> Sequence[RecentSubscriptionChange]:
        return [change for each in self._listable() for change in each.recent_changes()]

    def outage(self) -> ServiceOutage | None:
        following = (each.outage() for each in self._directories if isinstance(each, FollowingDirectory))
        return next((each for each in following if each is not None), None)

    def _listable(self) -> list[ListableDirectory]:
        return [each for each in self._directories if isinstance(each, ListableDirectory)]


def merge_directories(
    directories: Sequence[SubscriptionDirectory], unversioned: Sequence[SubscriptionDirectory] = ()
) -> SubscriptionDirectory:
    """One directory for all: a single directory unchanged, so that its plain `version` is read per message."""
    if len(directories) == 1 and not unversioned:
        return directories[0]
    return MergedDirectory(directories, unversioned)
