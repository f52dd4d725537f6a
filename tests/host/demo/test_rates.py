# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.host.demo.rates import RateMeter

S = 1_000_000_000
MS = 1_000_000


def counted(*times_ns: int) -> RateMeter:
    rate = RateMeter()
    for now_ns in times_ns:
        rate.record_event(now_ns)
    return rate


@pytest.mark.parametrize(
    ("times_ns", "hz"),
    [
        ([], 0.0),
        ([5], 0.0),
        ([5, 5], 0.0),  # no time passed, so there is no rate
        ([0, S], 1.0),
        ([0, S // 2], 2.0),
        ([7, 7 + 10 * MS, 7 + 20 * MS], 100.0),
        ([0, 1 * MS, 40 * MS], 50.0),  # their distribution has no effect
        ([3 * S, 7 * S], 0.25),
    ],
)
def test_a_rate_is_intervals_per_second_from_the_first_event_to_the_last(
    times_ns: list[int], hz: float
) -> None:
    rate = counted(*times_ns)
    assert rate.hz == pytest.approx(hz)
    assert rate.events == len(times_ns)


def test_a_first_event_at_time_0_counts_as_the_first() -> None:
    rate = counted(0, S, 2 * S)
    assert (rate.first_ns, rate.last_ns, rate.hz) == (0, 2 * S, 1.0)


@given(start_ns=st.integers(0, 10**18), period_ns=st.integers(1, 10**10), events=st.integers(2, 50))
def test_an_even_beat_has_the_rate_of_its_period_wherever_the_window_began(
    start_ns: int, period_ns: int, events: int
) -> None:
    assert counted(*(start_ns + n * period_ns for n in range(events))).hz == pytest.approx(S / period_ns)


def test_a_copy_counts_on_its_own() -> None:
    rate = counted(0, S)
    copy = rate.copy()
    rate.record_event(3 * S)
    assert (copy.events, copy.hz) == (2, 1.0)
    assert (rate.events, rate.last_ns) == (3, 3 * S)
