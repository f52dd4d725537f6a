# SPDX-License-Identifier: Apache-2.0
"""The replay decides as the gate of the gateway, for any arrivals and any split into batches."""

import copy
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ustreamer_pipeline.replay.gate import LONG_AGO, Limit, Times, decide, reference_after, retuned
from ustreamer_pipeline.replay.target_replay import GateState
from ustreamer_throttle.gate import Gate, GateMemory

PERIODS = st.sampled_from([1, 7, 100, 1_000, 16_666_667, 10**9])
TOLERANCES = st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5])


def by_the_gate(gate: Gate, times: Times) -> list[bool]:
    return [gate.admit(now) for now in times.tolist()]


def arrivals(period: int, gaps: list[float], start: int = 10**12) -> Times:
    return start + np.cumsum(np.array([int(gap * period) for gap in gaps], dtype=np.int64))


@st.composite
def stories(draw: st.DrawFn) -> list[float]:
    """Gaps in periods: bursts, rates near the limit, slow publishers, and pauses."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    gaps: list[float] = []
    for _ in range(draw(st.integers(1, 6))):
        low, high = draw(
            st.sampled_from([(0, 0), (0, 0.1), (0.8, 1.2), (0.3, 1.0), (0, 4), (1, 1), (2, 9), (0.5, 0.5)])
        )
        gaps += [rng.uniform(low, high) for _ in range(draw(st.sampled_from([1, 3, 60, 200])))]
    return gaps


@settings(max_examples=300, deadline=None)
@given(PERIODS, TOLERANCES, stories(), st.lists(st.floats(0, 1), max_size=4))
def test_the_replay_decides_as_the_gate_for_any_batches(
    period: int, tolerance: float, gaps: list[float], cuts: list[float]
) -> None:
    times = arrivals(period, gaps)
    gate, limit, due = Gate(period, tolerance), Limit.for_period(period, tolerance), LONG_AGO
    for batch in np.split(times, sorted(int(cut * len(times)) for cut in cuts)):
        expected = by_the_gate(gate, batch)
        passed, due = decide(batch, due, limit)
        assert passed.tolist() == expected
        assert due - limit.early == gate.due_ns


MAX_DELAY = 100_000_000


@st.composite
def lagging_messages(draw: st.DrawFn) -> tuple[Times, Times]:
    """Arrivals, and ids with creation times: no lag, some ms of it, a stall, or a clock that steps."""
    rng = random.Random(draw(st.integers(0, 2**32)))
    made, now, times, msbs = 1_700_000_000_000_000_000, 0, list[int](), list[int]()
    clock_ns = 0
    for _ in range(draw(st.integers(1, 6))):
        gap_ms, lag_ms, step_ms = draw(
            st.tuples(
                st.sampled_from([1, 10, 100, 700]),
                st.sampled_from([0, 0.4, 3, 40]),
                st.sampled_from([0, 0, 0, -60]),
            )
        )
        clock_ns += step_ms * 1_000_000
        for _ in range(draw(st.sampled_from([1, 60, 200]))):
            made += int(gap_ms * 1e6)
            now = max(now, made + int(rng.uniform(0, lag_ms) * 1e6))
            times.append(now - 1_600_000_000_000_000_000)
            msbs.append((made + clock_ns) // 1_000_000 << 16 | rng.randrange(1 << 16))
    return np.array(times, dtype=np.int64), np.array(msbs, dtype=np.int64)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([4_000_000, 10_000_000, 300_000_000]),
    lagging_messages(),
    st.lists(st.floats(0, 1), max_size=4),
)
def test_ids_are_replayed_as_by_the_gate_for_any_batches(
    period: int, messages: tuple[Times, Times], cuts: list[float]
) -> None:
    gate, state = Gate(period, 0.1, MAX_DELAY), GateState()
    state.set_limit(period, 0.1, 0, MAX_DELAY)
    places = sorted(int(cut * len(messages[0])) for cut in cuts)
    for times, msbs in zip(*(np.split(each, places) for each in messages), strict=True):
        expected = [gate.admit(*each) for each in zip(times.tolist(), msbs.tolist(), strict=True)]
        assert state.decide(times, msbs).tolist() == expected
        assert state.due_ns == gate.due_ns
        if gate.departure_gate is None:
            assert state.memory == gate.memory


@pytest.mark.parametrize("first_ms", [1_700_000_000_000, (1 << 48) - 2_000])
def test_the_reference_is_found_in_ids_of_any_time(first_ms: int) -> None:
    """A column of ids is signed."""
    rng = random.Random(first_ms)
    times = 10**15 + np.cumsum([rng.randrange(1_500_000_000) for _ in range(300)])
    made = [first_ms + number * 5 + rng.randrange(4) << 16 | rng.randrange(1 << 16) for number in range(300)]
    msbs = np.array(made, dtype=np.uint64).view(np.int64)
    gate = Gate(1_000, 0.1)  # above 1 kHz ids are not judged, and each message passes
    for each in zip(times.tolist(), made, strict=True):
        assert gate.admit(*each)
    assert reference_after(times, msbs, GateMemory(gate.memory.due_ns)) == gate.memory


@settings(max_examples=100, deadline=None)
@given(TOLERANCES, stories(), st.lists(PERIODS, min_size=2, max_size=5), st.floats(0, 3))
def test_a_change_of_the_limit_is_replayed_as_by_the_gate(
    tolerance: float, gaps: list[float], periods: list[int], wait: float
) -> None:
    gate, limit, due = Gate(periods[0], tolerance), Limit.for_period(periods[0], tolerance), LONG_AGO
    now = 10**12
    for period in periods:
        now += int(wait * period)
        gate.retune(period, now)
        due = retuned(due, limit, Limit.for_period(period, tolerance), now)
        limit = Limit.for_period(period, tolerance)
        times = arrivals(period, gaps, now)
        passed, due = decide(times, due, limit)
        assert passed.tolist() == by_the_gate(gate, times)
        assert due - limit.early == gate.due_ns
        now = int(times[-1])


@settings(max_examples=50, deadline=None)
@given(PERIODS, TOLERANCES, st.integers(0, 2**32))
def test_a_clock_that_steps_back_is_replayed_as_well(period: int, tolerance: float, seed: int) -> None:
    rng = random.Random(seed)
    times = arrivals(period, [rng.uniform(0, 2) for _ in range(100)])
    earlier = times - int(rng.uniform(0, 40) * period)
    gate, limit = Gate(period, tolerance), Limit.for_period(period, tolerance)
    expected = by_the_gate(gate, times), by_the_gate(gate, earlier)
    first, due = decide(times, LONG_AGO, limit)
    second, due = decide(earlier, due, limit)
    assert (first.tolist(), second.tolist(), due - limit.early) == (*expected, gate.due_ns)


@pytest.mark.parametrize("gap", [0.01, 0.4, 0.999, 1.0, 1.001, 2.0, 2.5, 2.6, 7.0])
@pytest.mark.parametrize("tolerance", [0.0, 0.1])
def test_steady_publishers_of_every_speed(gap: float, tolerance: float) -> None:
    times = arrivals(1_000_000, [gap] * 3_000)
    gate = Gate(1_000_000, tolerance)
    passed, due = decide(times, LONG_AGO, Limit.for_period(1_000_000, tolerance))
    assert passed.tolist() == by_the_gate(copy.copy(gate), times)
    assert by_the_gate(gate, times)
    assert due - Limit.for_period(1_000_000, tolerance).early == gate.due_ns


def test_an_empty_batch_changes_nothing() -> None:
    passed, due = decide(np.array([], dtype=np.int64), 5, Limit.for_period(10, 0.1))
    assert (passed.tolist(), due) == ([], 5)
