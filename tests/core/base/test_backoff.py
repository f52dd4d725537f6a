# SPDX-License-Identifier: Apache-2.0
"""The pause before a retry: doubling, maximum and jitter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.backoff import backoff_ns, jittered_ns

MS = 1_000_000


@pytest.mark.parametrize(
    ("earlier_failures", "longest_ms"),
    [(0, 100), (1, 200), (2, 400), (5, 3200), (6, 5000), (7, 5000), (10**6, 5000)],
)
def test_the_pause_doubles_with_each_failure_up_to_its_maximum(
    earlier_failures: int, longest_ms: int
) -> None:
    assert backoff_ns(100, 5000, earlier_failures) == longest_ms * MS
    assert backoff_ns(100, 5000, earlier_failures, 1.0) == longest_ms * MS // 2


@given(st.integers(0, 100), st.floats(0, 1))
def test_a_pause_is_never_shorter_than_half_the_first_nor_longer_than_the_maximum(
    earlier_failures: int, jitter: float
) -> None:
    assert 50 * MS <= backoff_ns(100, 5000, earlier_failures, jitter) <= 5000 * MS


@pytest.mark.parametrize(("jitter", "pause_ms"), [(0.0, 1000), (0.5, 750), (1.0, 500)])
def test_jitter_takes_up_to_half_of_a_pause_off(jitter: float, pause_ms: int) -> None:
    assert jittered_ns(1000, jitter) == pause_ms * MS
