# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the report, and the counters that processes share."""

import json
from pathlib import Path

import msgspec
import pytest

from benchmarks.harness.child_process import ChildError
from benchmarks.harness.measure import Load, Round, percentile
from benchmarks.harness.report import Ratio, RigResult, Spread
from benchmarks.harness.shared_counters import AGE_COUNT, MAX_AGES, RECEIVED, SharedCounters
from benchmarks.harness.testbed import Direction, Subject, ledger_from_log

ROUND = Round(
    messages_per_s=100_000.0,
    cpu_us=5.0,
    p50_us=150.0,
    p99_us=900.0,
    p999_us=1_900.0,
    fast_p50_us=90.0,
    fast_p99_us=200.0,
    fast_p999_us=400.0,
    lost=0,
    sent=250_000,
    forwarder_cores=0.9,
    generator_cores=0.3,
    sink_cores=0.4,
    other_cores=0.1,
    paced_cpu_us=90.0,
)


def row(subject: Subject, *rates: float) -> RigResult:
    rounds = [msgspec.structs.replace(ROUND, messages_per_s=rate) for rate in rates]
    return RigResult.of(Direction.SOMEIP_TO_ZENOH, subject, 64, rounds)


@pytest.mark.parametrize(
    ("values", "part", "expected"),
    [
        ([7], 0.5, 7),
        ([1, 2], 0.5, 1),
        ([1, 2, 3], 0.5, 2),
        (list(range(1, 101)), 0.5, 50),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 1001)), 0.99, 990),
        ([1, 2, 3], 1.0, 3),
    ],
)
def test_a_percentile_is_the_smallest_value_that_covers_its_part(
    values: list[int], part: float, expected: int
) -> None:
    assert percentile(values, part) == expected


def test_a_ratio_compares_each_round_with_the_adjacent_one() -> None:
    # The machine is twice as fast in the second half: the ratio of medians would compare different rounds.
    bare, streamer = row(Subject.BARE, 100, 100, 200), row(Subject.STREAMER, 50, 80, 100)
    assert Ratio.of(streamer, bare).messages_per_s == Spread(0.5, 0.5, 0.8)


def test_unequal_numbers_of_rounds_are_an_error() -> None:
    with pytest.raises(ValueError, match="longer"):
        Ratio.of(row(Subject.STREAMER, 1.0), row(Subject.BARE, 1.0, 2.0))


def test_loss_adds_up_over_the_rounds() -> None:
    rounds = [msgspec.structs.replace(ROUND, lost=lost) for lost in (1, 0, 4)]
    summed = RigResult.of(Direction.UDP, Subject.DIRECT, 64, rounds)
    assert (summed.lost, summed.sent) == (5, 750_000)


LEDGER = {"received": 9, "delivered": 5, "throttled": 1, "expired": 0, "dead_lettered": 1, "denied": 0}


@pytest.mark.parametrize(("queued", "unaccounted"), [(2, 0), (0, 2), (4, -2)])
def test_the_final_ledger_is_read_and_added_up(queued: int, unaccounted: int) -> None:
    ledger = {**LEDGER, "queued": queued}
    log = [
        '{"event": "streamer.started"}',
        json.dumps({"event": "streamer.stopped", "ledger": ledger}),
        '{"event": "later"}',
    ]
    assert ledger_from_log(log) == {**ledger, "unaccounted": unaccounted}


def test_a_missing_ledger_is_an_error() -> None:
    with pytest.raises(ChildError, match="no ledger in 1 lines"):
        ledger_from_log(['{"event": "streamer.started"}'])


def test_a_load_above_the_capacity_of_the_counters_is_refused() -> None:
    with pytest.raises(ValueError, match="the shared counters can hold"):
        Load(paced_messages=MAX_AGES + 1)


def test_every_process_that_maps_the_counters_sees_them(tmp_path: Path) -> None:
    writer, reader = SharedCounters(tmp_path / "counters"), SharedCounters(tmp_path / "counters")
    writer[RECEIVED] += 7
    writer.record_age(150_000)
    assert (reader[RECEIVED], reader[AGE_COUNT], reader.ages_ns()) == (7, 1, [150_000])


def test_ages_above_the_capacity_are_not_noted(tmp_path: Path) -> None:
    counters = SharedCounters(tmp_path / "counters")
    counters[AGE_COUNT] = MAX_AGES - 1
    counters.record_age(1)
    counters.record_age(2)
    assert (counters[AGE_COUNT], counters.ages_ns()[-1]) == (MAX_AGES, 1)
