# SPDX-License-Identifier: Apache-2.0
"""What the core asks of a subscription service: who subscribed this topic, and has anything changed since?"""

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final, Protocol, runtime_checkable

import msgspec

from ustreamer.core.routing.sublist import Sublist
from ustreamer.uprotocol.ustatus import invalid_argument
from ustreamer.uprotocol.uuri import UUri

UNLIMITED: Final = 0
MAX_PERIOD_NS: Final = 10**18  # 31 years
_NS_PER_S: Final = 1_000_000_000


class Subscription(msgspec.Struct, frozen=True):
    """One subscriber's wish for one topic. `period_ns` is the shortest time between two messages; 0 is no limit."""

    topic: UUri
    subscriber: UUri
    period_ns: int = UNLIMITED


class SubscriptionDirectory(Protocol):
    """The bookkeeping that routing asks. It is asked when a plan is built, never per message.

    `version` grows with every change; it is read for every message (so keep it a plain attribute), and a plan made
    under another version is made again. `subscribers` may be called from any thread and must not block on I/O.
    """

    @property
    def version(self) -> int: ...

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        """All current subscriptions of `topic`, in a stable order."""


class Change(IntEnum):
    """What happened to a subscription. PRESENT: it was there when the watching began; CHANGED: it has another period."""

    PRESENT = 0
    SUBSCRIBED = 1
    CHANGED = 2
    UNSUBSCRIBED = 3


class SubscriptionWatch(Protocol):
    """Is told of subscriptions, on the thread that changes them: it takes a note and returns.

    Of one that is UNSUBSCRIBED it is told what stood before.
    """

    def __call__(self, subscription: Subscription, change: Change, /) -> None: ...


@runtime_checkable
class WatchableDirectory(Protocol):
    """A directory that tells of its changes."""

    def watch(self, on_change: SubscriptionWatch) -> None:
        """Have `told` called for every subscription that is there, now or when they are loaded, and for every change.

        Called before the directory is in use.
        """
        ...


def watch_directory(directory: SubscriptionDirectory, on_change: SubscriptionWatch) -> None:
    """Watch `directory`; nothing is heard of one that is not Watchable."""
    if isinstance(directory, WatchableDirectory):
        directory.watch(on_change)


def period_of(max_frequency: float) -> int:
    """The period in ns of a frequency in Hz; INVALID_ARGUMENT unless it is a positive finite number.

    60 Hz is 16 666 667 ns, never 17 ms (58.8 Hz); the period is rounded up, so the rate is never above the limit.
    """
    if not _NS_PER_S / MAX_PERIOD_NS <= max_frequency < math.inf:
        raise invalid_argument(f"max_frequency {max_frequency} Hz: expected a finite number of at least 1e-9")
    return math.ceil(_NS_PER_S / max_frequency)


def fastest_period(periods: Iterable[int]) -> int:
    """The period that serves everybody who asked for one of `periods`: the shortest, or no limit if one has none."""
    return min(periods, default=UNLIMITED)  # UNLIMITED is 0, so it wins


class StaticDirectory:
    """Subscriptions that are fixed by the configuration, such as SOME/IP receivers without service discovery."""

    def __init__(self, subscriptions: Iterable[Subscription]) -> None:
        self.version = 0
        self._by_topic: Sublist[Subscription] = Sublist()
        for subscription in subscriptions:
            self._by_topic.insert(subscription.topic, subscription)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return self._by_topic.match(topic)

    def watch(self, on_change: SubscriptionWatch) -> None:
        for each in self._by_topic:
            on_change(each, Change.PRESENT)


class MergedDirectory:
    """Several directories as one; a subscriber that two of them know counts once, with its faster wish."""

    def __init__(
        self, directories: Sequence[SubscriptionDirectory], unversioned: Sequence[SubscriptionDirectory] = ()
    ) -> None:
        """`unversioned` are those that tell of changes in another way, so that nobody has to look."""
        self._directories = (*directories, *unversioned)
        # What never changes need not be asked for every message.
        self._changing = tuple(each for each in directories if not isinstance(each, StaticDirectory))

    @property
    def version_source(self) -> SubscriptionDirectory:
        """The only one with a version that changes, or itself: what to look at for every message."""
        return self._changing[0] if len(self._changing) == 1 else self

    @property
    def version(self) -> int:
        return sum([directory.version for directory in self._changing])

    def watch(self, on_change: SubscriptionWatch) -> None:
        """Each of them on its own: who is in two is told of twice."""
        for directory in self._directories:
            watch_directory(directory, on_change)

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        merged: dict[UUri, Subscription] = {}
        for directory in self._directories:
            for subscription in directory.subscribers(topic):
                known = merged.get(subscription.subscriber)
                if known is None or subscription.period_ns < known.period_ns:
                    merged[subscription.subscriber] = subscription
        return list(merged.values())


def merge_directories(
    directories: Sequence[SubscriptionDirectory], unversioned: Sequence[SubscriptionDirectory] = ()
) -> SubscriptionDirectory:
    """One directory for all: the only one itself, so that its plain `version` is what is read for every message."""
    if len(directories) == 1 and not unversioned:
        return directories[0]
    return MergedDirectory(directories, unversioned)
