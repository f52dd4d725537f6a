# SPDX-License-Identifier: Apache-2.0
"""The properties of a limiter for any arrivals and clock: the exact rate, no burst, no catching up."""

import copy
import math
import random
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache
from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_throttle.gate import (
    DEFAULT_TOLERANCE,
    MAX_PERIOD_NS,
    MAX_TOLERANCE,
    PAUSE,
    Gate,
    Sampler,
)

from ustreamer.core.routing.subscriptions import period_of

SECOND = 1_000_000_000
SECONDS = 60
SEEDS = range(3)


# --- publishers and limiters ------------------------------------------------------------------------------


class Row(NamedTuple):
    published: int  # Hz
    jitter: float  # uniform, +- this fraction of the publisher's period
    limit: int  # Hz


TABLE = [
    Row(100, 0.01, 100),
    Row(100, 0.01, 77),
    Row(100, 0.01, 40),
    Row(100, 0.01, 30),
    Row(1000, 0.01, 60),
    Row(99, 0.01, 100),
    Row(100, 0.20, 100),
    Row(100, 0.20, 90),
    Row(100, 0.20, 40),
    Row(99, 0.20, 100),
    Row(20, 0.01, 20),
    Row(101, 0.20, 100),  # just above the limit: the dropped messages must not exceed the surplus
    Row(70, 0.20, 100),  # slower than the limit, but with gaps shorter than its period
]


@cache
def around_a_grid(row: Row, seed: int) -> list[int]:
    """A timer that fires late or early but never drifts."""
    rng = random.Random(seed)
    period = SECOND / row.published
    phase = rng.random()
    return [
        int((phase + k + rng.uniform(-row.jitter, row.jitter)) * period)
        for k in range(1, row.published * SECONDS)
    ]


@cache
def gap_by_gap(row: Row, seed: int) -> list[int]:
    """A loop that sleeps between messages: its jitter adds up."""
    rng = random.Random(seed)
    period = SECOND / row.published
    arrivals, now = [], 0.0
    while (now := now + period * (1 + rng.uniform(-row.jitter, row.jitter))) < SECONDS * SECOND:
        arrivals.append(int(now))
    return arrivals


Publisher = Callable[[Row, int], list[int]]
Limiter = Callable[[int, list[int]], list[int]]
PUBLISHERS = [around_a_grid, gap_by_gap]


def through_a_gate(period: int, arrivals: list[int], tolerance: float = DEFAULT_TOLERANCE) -> list[int]:
    gate = Gate(period, tolerance)
    return [now for now in arrivals if gate.admit(now)]


def now_minus_last(period: int, arrivals: list[int]) -> list[int]:
    """The limiter in use elsewhere; the reason for ours."""
    passed: list[int] = []
    for now in arrivals:
        if not passed or now - passed[-1] >= period:
            passed.append(now)
    return passed


def sampled(
    gate: Gate, arrivals: list[int], timer_lateness: Callable[[], int] = lambda: 0
) -> Iterator[tuple[int, int]]:
    """(time, index of the arrival) of each message that a Sampler with a timer passes."""
    sampler = Sampler[int](gate)
    timer = 0
    for index, now in enumerate(arrivals):
        if sampler.due_ns is not None and timer <= now:
            yield timer, released_by(sampler, timer)
        nothing_held = sampler.due_ns is None
        passes, _ = sampler.offer(index, now)
        if passes:
            yield now, index
        elif nothing_held and sampler.due_ns is not None:
            timer = sampler.due_ns + timer_lateness()
    if sampler.due_ns is not None:
        yield timer, released_by(sampler, timer)


def released_by(sampler: Sampler[int], now: int) -> int:
    item = sampler.release(now)
    assert item is not None
    return item


def through_a_sampler(period: int, arrivals: list[int]) -> list[int]:
    return [now for now, _ in sampled(Gate(period, DEFAULT_TOLERANCE), arrivals)]


def burst(passed: list[int], period: int) -> Fraction:
    """The most by which any closed window holds more messages than periods."""
    leads = [index * period - now for index, now in enumerate(passed)]
    rises = (lead - lowest for lead, lowest in zip(leads, accumulate(leads, min), strict=True))
    return Fraction(max(rises, default=-period), period) + 1


def bound(tolerance: float) -> Fraction:
    """The limit that no burst may exceed."""
    return 2 + Fraction(tolerance) if tolerance else Fraction(1)


def shortfall(limiter: Limiter, row: Row, publisher: Publisher) -> float:
    """The fraction of min(published, limit) that is not delivered."""
    delivered = wanted = 0
    for seed in SEEDS:
        arrivals = publisher(row, seed)
        delivered += len(limiter(period_of(row.limit), arrivals))
        wanted += min(len(arrivals), row.limit * SECONDS)
    return 1 - delivered / wanted


# --- the rate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("publisher", PUBLISHERS)
@pytest.mark.parametrize("limiter", [through_a_gate, through_a_sampler])
@pytest.mark.parametrize("row", TABLE)
def test_delivered_is_the_lesser_of_published_and_limit(
    limiter: Limiter, row: Row, publisher: Publisher
) -> None:
    assert shortfall(limiter, row, publisher) < 0.01
    for seed in SEEDS:
        passed = limiter(period_of(row.limit), publisher(row, seed))
        assert burst([now * row.limit for now in passed], SECOND) <= bound(DEFAULT_TOLERANCE)


@pytest.mark.parametrize("row", TABLE)
def test_the_limiter_in_use_elsewhere_fails_the_table(row: Row) -> None:
    assert shortfall(now_minus_last, row, around_a_grid) > 0.01


@pytest.mark.parametrize("limiter", [through_a_gate, through_a_sampler])
@pytest.mark.parametrize(
    ("published", "limit"), [(100, 100), (1000, 60), (100, 40), (100, 77), (99, 100), (3, 1)]
)
def test_without_jitter_the_rate_is_exact(limiter: Limiter, published: int, limit: int) -> None:
    arrivals = [k * SECOND // published for k in range(published * SECONDS)]
    delivered = [now for now in limiter(period_of(limit), arrivals) if now < SECONDS * SECOND]
    assert abs(len(delivered) - min(published, limit) * SECONDS) <= 1  # the first may be one more


def test_a_publisher_that_sends_in_pairs_receives_its_rate() -> None:
    arrivals = [k // 2 * SECOND // 50 for k in range(100 * SECONDS)]
    assert len(arrivals) - len(through_a_gate(period_of(100), arrivals)) == 1
    assert len(now_minus_last(period_of(100), arrivals)) == len(arrivals) // 2


@pytest.mark.parametrize(
    ("max_frequency", "period"),
    [
        (60, 16_666_667),
        (100, 10_000_000),
        (77, 12_987_013),
        (0.1, 10 * SECOND),
        (1e9, 1),
        (5e9, 1),
        (1e-9, MAX_PERIOD_NS),
    ],
)
def test_a_period_is_exact_to_the_nanosecond(max_frequency: float, period: int) -> None:
    assert period_of(max_frequency) == period


@given(st.floats(1e-6, 1e9))
def test_a_period_is_never_too_short_and_too_long_by_less_than_a_nanosecond(max_frequency: float) -> None:
    assert 0 <= period_of(max_frequency) - 1e9 / max_frequency < 1


# --- decisions, one by one --------------------------------------------------------------------------------


def admitted_at(*arrivals: int, period: int = 100, tolerance: float = DEFAULT_TOLERANCE) -> list[bool]:
    gate = Gate(period, tolerance)
    return [gate.admit(now) for now in arrivals]


@pytest.mark.parametrize("first", [0, 1, 55, -1000, 10**18])
def test_the_first_message_passes_and_starts_the_grid(first: int) -> None:
    assert admitted_at(first, first + 89, first + 90) == [True, False, True]


@pytest.mark.parametrize("period", [10, 100])
def test_after_a_pause_a_burst_does_not_catch_up(period: int) -> None:
    assert admitted_at(0, 1000, 1001, 1002, period=period) == [True, True, False, False]


def test_a_message_may_be_early_by_the_tolerance_and_no_more() -> None:
    assert admitted_at(0, 89) == [True, False]
    assert admitted_at(0, 90) == [True, True]
    assert admitted_at(0, 50, tolerance=0.5) == [True, True]
    assert admitted_at(0, 99, 100, 100, 199, 200, tolerance=0.0) == [True, False, True, False, False, True]


def test_lateness_of_up_to_a_period_is_carried() -> None:
    assert admitted_at(0, 160, 189, 190) == [True, True, False, True]


def test_no_more_than_one_period_of_lateness_is_carried() -> None:
    assert admitted_at(0, 350, 350, 439, 440) == [True, True, True, False, True]


def test_a_pause_is_lateness_of_more_than_two_and_a_half_periods() -> None:
    assert PAUSE == 2.5
    assert admitted_at(0, 350, 350) == [True, True, True]
    assert admitted_at(0, 351, 351) == [True, True, False]


def test_a_gate_rejects_an_invalid_limit() -> None:
    with pytest.raises(
        ValueError, match="^period_ns 0: must be within 1 and 1000000000000000000; no limit needs no gate"
    ):
        Gate(0, DEFAULT_TOLERANCE)
    with pytest.raises(ValueError, match="^period_ns -5: "):
        Gate(-5, DEFAULT_TOLERANCE)
    with pytest.raises(ValueError, match="^period_ns 1000000000000000001: "):
        Gate(MAX_PERIOD_NS + 1, DEFAULT_TOLERANCE)
    with pytest.raises(ValueError, match="^period_ns 0: "):
        Gate(10, DEFAULT_TOLERANCE).retune(0, now_ns=0)


@pytest.mark.parametrize("tolerance", [-0.1, 0.51, math.nan])
def test_a_gate_rejects_a_tolerance_out_of_range(tolerance: float) -> None:
    with pytest.raises(ValueError, match=f"^tolerance {tolerance!r}: must be within 0 and 0.5$"):
        Gate(100, tolerance)


def test_a_rejected_change_does_not_change_the_limit() -> None:
    gate = Gate(100, DEFAULT_TOLERANCE)
    assert gate.admit(0)
    with pytest.raises(ValueError, match="period_ns 0"):
        gate.retune(0, now_ns=10)
    assert gate.due_ns == 90
    assert [gate.admit(89), gate.admit(90), gate.due_ns] == [False, True, 190]


@pytest.mark.parametrize(
    ("period", "at", "due"),
    [
        (1000, 0, 900),  # just passed: the whole new period is left
        (1000, 50, 450),  # half of the old period was left, so half of the new one is
        (10, 50, 54),
        (50, 0, 45),
        (1000, 100, 0),  # it was due already, and stays so
    ],
)
def test_a_change_of_the_limit_applies_at_once(period: int, at: int, due: int) -> None:
    gate = Gate(100, DEFAULT_TOLERANCE)
    assert gate.admit(0)
    gate.retune(period, now_ns=at)
    assert gate.due_ns == due


def test_another_tolerance_holds_at_once_and_the_due_time_stays() -> None:
    gate = Gate(100, 0)
    assert gate.admit(0)
    assert gate.due_ns == 100
    gate.set_tolerance(0.2)
    assert [gate.due_ns, gate.admit(79), gate.admit(80), gate.due_ns] == [80, False, True, 180]
    with pytest.raises(ValueError, match="^tolerance 0.6: "):
        gate.set_tolerance(0.6)
    assert gate.due_ns == 180


def test_a_change_before_the_first_message_is_no_pause_to_wait_for() -> None:
    gate = Gate(MAX_PERIOD_NS, DEFAULT_TOLERANCE)
    for period in (1, MAX_PERIOD_NS, 100):
        gate.retune(period, now_ns=0)
    assert [gate.admit(now) for now in (5, 94, 95)] == [True, False, True]


@pytest.mark.parametrize("step", [1, 50, 150, 10**15])
def test_a_clock_that_steps_back_blocks_for_no_longer_than_a_period(step: int) -> None:
    gate = Gate(100, DEFAULT_TOLERANCE)
    assert gate.admit(0)
    assert [gate.admit(-step), gate.admit(-step + 100), gate.admit(-step + 101)] == [False, True, False]


def test_a_clock_that_steps_back_does_not_shorten_the_wait() -> None:
    assert admitted_at(0, 50, 149, tolerance=0.5) == [True, True, False]
    assert admitted_at(0, 50, 49, 148, 149, tolerance=0.5) == [True, True, False, False, True]


# --- any arrivals, any clock ------------------------------------------------------------------------------

PERIODS = [1_000, 1_300, 10_000, 97_000]
PERIODTHS = math.lcm(*PERIODS)  # parts of a period, so that a sum over different periods is an integer
TOLERANCES = [0.0, 0.01, DEFAULT_TOLERANCE, 0.25, MAX_TOLERANCE]


class Wait(NamedTuple):
    """The clock moves by a number of periods of the current limit, forward or back; then a message arrives."""

    periods: Fraction


class Retune(NamedTuple):
    """The clock moves on, then the limit changes."""

    periods: Fraction
    period: int


def hundredths(low: int, high: int) -> st.SearchStrategy[Fraction]:
    return st.integers(low, high).map(lambda n: Fraction(n, 100))


FORWARD = st.one_of(
    st.sampled_from([Fraction(0), Fraction(1)]),
    hundredths(0, 30),  # a burst
    hundredths(80, 120),  # about the limit
    hundredths(40, 300),
    hundredths(240, 2000),  # pauses
)
PERIOD = st.sampled_from(PERIODS)
TOLERANCE = st.sampled_from(TOLERANCES)
WAITS = st.lists(FORWARD.map(Wait), min_size=1, max_size=60)
ANYTHING = st.lists(
    st.one_of(
        FORWARD.map(Wait),
        FORWARD.map(Wait),
        hundredths(-500, 0).map(Wait),
        st.builds(Retune, FORWARD, PERIOD),
    ),
    min_size=1,
    max_size=60,
)
Tape = list[Wait | Retune] | list[Wait]


class Step(NamedTuple):
    now: int
    elapsed: int  # in PERIODTHS: the number of elapsed periods, each counted with its length at that time
    admitted: bool


class Played:
    """A gate after a tape: its period, its clock, and every decision it took."""

    def __init__(self, period: int, tolerance: float, tape: Tape) -> None:
        self.gate = Gate(period, tolerance)
        self.period = period
        self.now = 0
        self.steps: list[Step] = []
        elapsed = 0
        for event in tape:
            moved = int(event.periods * self.period)
            self.now += moved
            elapsed += max(0, moved) * (PERIODTHS // self.period)
            if isinstance(event, Retune):
                self.gate.retune(event.period, self.now)
                self.period = event.period
            else:
                self.steps.append(Step(self.now, elapsed, self.gate.admit(self.now)))

    def burst(self) -> Fraction:
        return burst([step.elapsed for step in self.steps if step.admitted], PERIODTHS)


@given(PERIOD, TOLERANCE, WAITS)
def test_no_window_holds_more_than_the_bound(period: int, tolerance: float, tape: list[Wait]) -> None:
    assert Played(period, tolerance, tape).burst() <= bound(tolerance) <= 2.5


@given(PERIOD, TOLERANCE, ANYTHING)
def test_neither_changes_of_the_limit_nor_clock_steps_buy_a_message(
    period: int, tolerance: float, tape: Tape
) -> None:
    """A step back is not elapsed time: only forward movement of the clock counts."""
    changes = sum(isinstance(event, Retune) for event in tape)
    rounding = Fraction(changes, min(PERIODS))  # of the tolerance to whole ns: under one at each change
    assert Played(period, tolerance, tape).burst() <= bound(tolerance) + rounding


@given(PERIOD, TOLERANCE, ANYTHING)
def test_nothing_waits_longer_than_a_period(period: int, tolerance: float, tape: Tape) -> None:
    played = Played(period, tolerance, tape)
    assert played.gate.admit(played.now) or played.gate.admit(played.now + played.period)


@given(PERIOD, TOLERANCE, ANYTHING)
def test_after_a_pause_only_one_message_of_a_burst_passes(period: int, tolerance: float, tape: Tape) -> None:
    played = Played(period, tolerance, tape)
    played.gate.admit(played.now)  # whatever the clock did, this is the last message before the pause
    again = played.now + math.ceil((PAUSE + 1 + tolerance) * played.period) + 1
    soon = again + math.ceil((1 - tolerance) * played.period) - 1
    assert played.gate.admit(again)
    assert not any(played.gate.admit(now) for now in range(again, soon, played.period // 10))


@given(PERIOD, TOLERANCE, WAITS)
def test_due_is_the_earliest_time_at_which_a_message_passes(
    period: int, tolerance: float, tape: list[Wait]
) -> None:
    gate = Played(period, tolerance, tape).gate
    assert not copy.copy(gate).admit(gate.due_ns - 1)
    assert copy.copy(gate).admit(gate.due_ns)


@given(PERIOD, WAITS)
def test_strict_every_gap_is_at_least_a_period(period: int, tape: list[Wait]) -> None:
    steps = Played(period, 0.0, tape).steps
    assert [step.now for step in steps if step.admitted] == now_minus_last(
        period, [step.now for step in steps]
    )


@given(PERIOD, TOLERANCE, WAITS)
def test_a_publisher_with_gaps_of_at_least_the_period_is_never_throttled(
    period: int, tolerance: float, tape: list[Wait]
) -> None:
    slow = [Wait(wait.periods + 1) for wait in tape]
    assert all(step.admitted for step in Played(period, tolerance, slow).steps)


# --- latest: sample and hold ------------------------------------------------------------------------------


def test_latest_passes_the_first_and_holds_the_newest_until_it_is_due() -> None:
    sampler = Sampler[str](Gate(100, DEFAULT_TOLERANCE))
    assert (sampler.offer("a", 0), sampler.due_ns) == ((True, None), None)
    assert (sampler.offer("b", 10), sampler.due_ns) == ((False, None), 90)
    assert (sampler.offer("c", 20), sampler.due_ns) == ((False, "b"), 90)
    assert (sampler.release(89), sampler.due_ns) == (None, 90)
    assert (sampler.release(90), sampler.due_ns) == ("c", None)
    assert (sampler.release(1000), sampler.due_ns) == (None, None)
    assert sampler.offer("d", 1000) == (True, None)  # a timer that finds nothing held counts for nothing


def test_latest_a_timer_that_is_late_loses_to_a_newer_item() -> None:
    sampler = Sampler[str](Gate(100, DEFAULT_TOLERANCE))
    sampler.offer("a", 0)
    sampler.offer("b", 10)
    assert sampler.offer("c", 95) == (True, "b")
    assert sampler.release(300) is None


def test_latest_returns_its_held_message_unsent() -> None:
    sampler = Sampler[str](Gate(100, DEFAULT_TOLERANCE))
    sampler.offer("a", 0)
    sampler.offer("b", 10)
    assert [sampler.cancel(), sampler.cancel(), sampler.due_ns] == ["b", None, None]
    assert sampler.offer("c", 90) == (True, None)  # withdrawn messages were not counted


def test_latest_a_change_of_the_limit_moves_the_held_message() -> None:
    sampler = Sampler[str](Gate(1000, DEFAULT_TOLERANCE))
    sampler.offer("a", 0)
    sampler.offer("b", 10)
    sampler.gate.retune(100, now_ns=500)
    assert sampler.due_ns == 540
    assert sampler.release(540) == "b"


def times(tape: list[Wait], period: int) -> list[int]:
    return [step.now for step in Played(period, 0.0, tape).steps]


@given(PERIOD, TOLERANCE, WAITS, st.randoms(use_true_random=False), st.sampled_from([0.0, 0.1, 1.5]))
def test_latest_releases_the_last_item_in_order_and_within_the_bound(
    period: int, tolerance: float, tape: list[Wait], rng: random.Random, lateness: float
) -> None:
    arrivals = times(tape, period)
    out = list(sampled(Gate(period, tolerance), arrivals, lambda: int(rng.random() * lateness * period)))
    items = [item for _, item in out]
    sent_at = [now for now, _ in out]
    assert items[0] == 0
    assert items[-1] == len(arrivals) - 1
    assert items == sorted(set(items))
    assert all(now >= arrivals[item] for now, item in out)
    assert burst(sent_at, period) <= bound(tolerance)


@given(PERIOD, TOLERANCE, WAITS)
def test_latest_an_item_is_held_for_no_longer_than_a_period(
    period: int, tolerance: float, tape: list[Wait]
) -> None:
    arrivals = times(tape, period)
    assert all(now - arrivals[item] <= period for now, item in sampled(Gate(period, tolerance), arrivals))


@given(PERIOD, TOLERANCE, ANYTHING)
def test_latest_every_item_leaves_exactly_once(period: int, tolerance: float, tape: Tape) -> None:
    sampler = Sampler[int](Gate(period, tolerance))
    now, offered, left = 0, 0, list[int | None]()
    for event in tape:
        now += int(event.periods * period)
        if isinstance(event, Retune):
            left.append(sampler.release(now))
            continue
        passes, displaced = sampler.offer(offered, now)
        left += [displaced, offered if passes else None]
        offered += 1
    left.append(sampler.cancel())
    assert sorted(item for item in left if item is not None) == list(range(offered))


def test_a_timer_from_before_a_lower_tolerance_leaves_no_trace() -> None:
    gate = Gate(1000, 0.5)
    sampler = Sampler[str](gate)
    assert sampler.offer("a", 0) == (True, None)
    assert sampler.offer("b", 500) == (True, None)
    assert sampler.offer("c", 600) == (False, None)
    gate.set_tolerance(0.0)
    due = sampler.due_ns
    assert due == 2000
    assert sampler.release(900) is None  # more than a period before, as if the clock had stepped back
    assert sampler.due_ns == due
    assert sampler.release(due) == "c"
