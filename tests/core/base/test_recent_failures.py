# SPDX-License-Identifier: Apache-2.0
"""Failures by kind, subject and peer: counted in series, bounded, with their times."""

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.recent_failures import (
    CURRENT_MS,
    MAX_RECORDS,
    RecentFailure,
    RecentFailures,
    RisingCounters,
    refusals_of,
)

START_MS = 1_700_000_000_000


def test_a_series_has_its_count_and_its_first_and_last_time() -> None:
    clock = ManualClock(START_MS)
    failures = RecentFailures(clock.clock().wall_ms)
    for _ in range(3):
        failures.add("event_version", (1, 2), "10.0.0.1", 7)
        clock.advance(s=1)
    failures.add("event_version", (1, 3), "10.0.0.1")
    expected = RecentFailure("event_version", 3, START_MS, START_MS + 2_000, "10.0.0.1", "7")
    assert failures.about((1, 2)) == [expected]
    assert expected.is_current(START_MS + 2_000 + CURRENT_MS)
    assert not expected.is_current(START_MS + 2_001 + CURRENT_MS)


def test_a_new_series_begins_after_a_minute_without_a_failure() -> None:
    clock = ManualClock(START_MS)
    failures = RecentFailures(clock.clock().wall_ms)
    failures.add("no_answer", count=5)
    clock.advance(s=3_600)
    failures.add("no_answer")
    [found] = failures.about(None)
    assert (found.count, found.first_ms, found.last_ms) == (1, START_MS + 3_600_000, START_MS + 3_600_000)


def test_the_records_are_bounded_and_the_latest_stay() -> None:
    failures = RecentFailures(lambda: START_MS)
    for number in range(MAX_RECORDS + 10):
        failures.add("event_unknown", number)
        failures.add("event_unknown", 0)
    assert failures.about(0)
    assert not failures.about(5)
    assert failures.about(MAX_RECORDS + 9)


def test_counters_that_rise_make_failures_of_their_endpoint() -> None:
    clock = ManualClock(START_MS)
    rising = RisingCounters(clock.clock().wall_ms)
    for count in (0, 2, 2, 5, 1, 2):  # the counter of a plugin's process can begin again
        rising.observe("a", refusals_of({"refused_invalid": count, "received": 9}))
        clock.advance(s=1)
    [found] = rising.about("a")
    assert (found.kind, found.count) == ("invalid", 6)
    assert (found.first_ms, found.last_ms) == (START_MS + 1_000, START_MS + 5_000)
    assert not rising.about("b")
