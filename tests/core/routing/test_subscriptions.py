# SPDX-License-Identifier: Apache-2.0
import math
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ustreamer.core.routing.paused_subscriptions import PausedDirectory
from ustreamer.core.routing.subscriptions import (
    MAX_PERIOD_NS,
    UNLIMITED,
    Change,
    MergedDirectory,
    StaticDirectory,
    Subscription,
    SubscriptionDirectory,
    fastest_period,
    merge_directories,
    period_of,
    watch_directory,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

SPEED, DOORS = UUri("chassis", 0x1234, 1, 0x8001), UUri("chassis", 0x1234, 1, 0x8002)
ANY_CHASSIS = UUri("chassis", 0xFFFFFFFF, 0xFF, 0xFFFF)
CLOUD, DASH = UUri("cloud", 1, 1, 0), UUri("dash", 2, 1, 0)

# -------------------------------------------------------------------------------------------------------------- periods


@pytest.mark.parametrize(
    ("hertz", "period_ns"),
    [
        (1.0, 1_000_000_000),
        (60.0, 16_666_667),
        (3.0, 333_333_334),
        (0.5, 2_000_000_000),
        (0.1, 10_000_000_000),
        (1e9, 1),
        (7e8, 2),
        (1e300, 1),
        (1e-9, MAX_PERIOD_NS),
    ],
)
def test_a_frequency_is_a_period_rounded_up(hertz: float, period_ns: int) -> None:
    assert period_of(hertz) == period_ns


@pytest.mark.parametrize("hertz", [0.0, -0.0, -1.0, math.inf, -math.inf, math.nan, 9.9e-10, 5e-324])
def test_an_invalid_frequency_is_named_in_the_error(hertz: float) -> None:
    with pytest.raises(UStatusError) as refusal:
        period_of(hertz)
    assert refusal.value.code is UCode.INVALID_ARGUMENT
    assert refusal.value.message == f"max_frequency {hertz} Hz: expected a finite number of at least 1e-9"


@given(st.floats(1e-9, 1e12))
@example(249999999.99999997)
def test_the_rate_is_never_above_the_limit_and_less_than_a_nanosecond_below(hertz: float) -> None:
    period_ns = period_of(hertz)
    assert 1 <= period_ns <= MAX_PERIOD_NS
    rounding = 1 + 1e-12  # of the floating point division
    assert period_ns * hertz * rounding >= 1e9
    assert (period_ns - 1) * hertz < 1e9 * rounding


@pytest.mark.parametrize(
    ("periods", "shortest"),
    [([], UNLIMITED), ([7], 7), ([7, 5, 9], 5), ([7, UNLIMITED, 5], UNLIMITED), ([UNLIMITED], UNLIMITED)],
)
def test_the_fastest_period_serves_all_and_no_limit_wins(periods: list[int], shortest: int) -> None:
    assert fastest_period(iter(periods)) == shortest


# ---------------------------------------------------------------------------------------------------------- directories


def test_fixed_subscriptions_are_found_by_topic_and_by_pattern_in_a_stable_order() -> None:
    exact, other, wide = (
        Subscription(SPEED, CLOUD, 5),
        Subscription(DOORS, CLOUD),
        Subscription(ANY_CHASSIS, DASH),
    )
    directory = StaticDirectory([wide, other, exact])
    assert list(directory.subscribers(SPEED)) == [exact, wide]
    assert list(directory.subscribers(DOORS)) == [other, wide]
    assert list(directory.subscribers(UUri("cloud", 1, 1, 0x8000))) == []
    assert directory.version == 0


class Changing:
    """A directory with fixed subscriptions and a settable version."""

    def __init__(self, *subscriptions: Subscription) -> None:
        self.version = 0
        self._subscriptions = subscriptions

    def subscribers(self, topic: UUri) -> tuple[Subscription, ...]:
        return self._subscriptions


@pytest.mark.parametrize(
    ("first_ns", "second_ns", "kept_ns"), [(5, 7, 5), (7, 5, 5), (0, 5, 0), (5, 0, 0), (5, 5, 5)]
)
def test_a_subscriber_in_two_directories_counts_once_with_its_faster_subscription(
    first_ns: int, second_ns: int, kept_ns: int
) -> None:
    both = MergedDirectory(
        [
            Changing(Subscription(SPEED, CLOUD, first_ns), Subscription(SPEED, DASH, 9)),
            Changing(Subscription(SPEED, CLOUD, second_ns)),
        ]
    )
    assert list(both.subscribers(SPEED)) == [
        Subscription(SPEED, CLOUD, kept_ns),
        Subscription(SPEED, DASH, 9),
    ]


def test_a_change_of_any_directory_changes_the_version_of_all() -> None:
    first, second = Changing(), Changing()
    both = merge_directories([first, second])
    versions = [both.version]
    for each in (first, second, first):
        each.version += 1
        versions.append(both.version)
    assert len(set(versions)) == len(versions)


def test_a_single_directory_is_not_wrapped() -> None:
    only: SubscriptionDirectory = Changing()
    assert merge_directories([only]) is only


def test_without_any_directory_there_are_no_subscribers() -> None:
    empty = merge_directories([])
    assert empty.version == 0
    assert list(empty.subscribers(SPEED)) == []


# ------------------------------------------------------------------------------------------------------------- watching


class Silent:
    """A directory without `watch`."""

    version = 0

    def subscribers(self, topic: UUri) -> list[Subscription]:
        return []


def test_a_watch_of_a_merged_directory_receives_changes_of_each_watchable_one() -> None:
    subscriptions = [Subscription(SPEED, CLOUD, 5), Subscription(SPEED, DASH)]
    changes: list[tuple[Subscription, Change]] = []
    directories: list[SubscriptionDirectory] = [
        StaticDirectory(subscriptions),
        Silent(),
        StaticDirectory(subscriptions[:1]),
    ]
    watch_directory(
        PausedDirectory(merge_directories(directories)), lambda each, change: changes.append((each, change))
    )
    assert changes == [(each, Change.PRESENT) for each in (*subscriptions, subscriptions[0])]


# ---------------------------------------------------------------------------------------------- unversioned directories


class VersionCountingDirectory:
    """A directory that reports changes by a callback; its version must not be read."""

    def __init__(self, *subscriptions: Subscription) -> None:
        self._inner = StaticDirectory(subscriptions)

    @property
    def version(self) -> int:
        raise AssertionError("the version of an unversioned directory was read")

    def subscribers(self, topic: UUri) -> Sequence[Subscription]:
        return self._inner.subscribers(topic)


def test_an_unversioned_directory_is_read_but_its_version_is_not() -> None:
    both = merge_directories(
        [StaticDirectory([Subscription(SPEED, CLOUD, 5)])],
        [VersionCountingDirectory(Subscription(SPEED, DASH, 7), Subscription(SPEED, CLOUD, 2))],
    )
    assert {
        (subscription.subscriber, subscription.period_ns) for subscription in both.subscribers(SPEED)
    } == {(DASH, 7), (CLOUD, 2)}
    assert both.version == 0


def test_the_version_source_is_the_only_changing_directory() -> None:
    class Versioned:
        version = 4

        def subscribers(self, topic: UUri) -> Sequence[Subscription]:
            return ()

    one, other = Versioned(), Versioned()
    alone = merge_directories([one], [VersionCountingDirectory()])
    assert isinstance(alone, MergedDirectory)
    assert alone.version_source is one
    two = merge_directories([one, other], [VersionCountingDirectory()])
    assert isinstance(two, MergedDirectory)
    assert two.version_source is two
    assert two.version == 8
    assert merge_directories([one]) is one


def test_a_watch_reports_all_subscriptions_of_the_first_topics() -> None:
    subscriptions = [Subscription(topic, each) for topic in (SPEED, DOORS) for each in (CLOUD, DASH)]
    reported = list[Subscription]()
    StaticDirectory(subscriptions).watch(lambda each, _: reported.append(each), max_topics=1)
    assert reported == subscriptions[:2]
