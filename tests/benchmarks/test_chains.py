# SPDX-License-Identifier: Apache-2.0
"""The rates behind real streamers in a row are measured, and the figures are plausible. No test asserts a share."""

from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.chains import figures, publisher
from benchmarks.chains.figures import BOUND
from benchmarks.chains.rows import ROWS, TOPICS, ChainTopic
from benchmarks.chains.testbed import Arrival

MS = 1_000_000


def test_three_streamers_in_a_row_are_measured(tmp_path: Path) -> None:
    rows = figures.measured(tmp_path, 0.5)
    someip = sum(ROWS[topic.row].is_someip for topic in TOPICS)
    assert len(rows) == 2 * len(TOPICS) - someip
    assert {row["streamers"] for row in rows} == {1, 2, 3}
    for row in rows:
        assert row["published"] == int(row["published_hz"] * 0.5)
        assert 0 < row["delivered"] <= row["published"]
        assert row["in_order"]
        assert row["certain_burst"] <= min(BOUND, row["burst"] + 0.001)
    assert figures.table(rows).count("Hz +-") == len(ROWS)


@pytest.mark.parametrize("bunched", [False, True])
@pytest.mark.parametrize("topic", [TOPICS[0], TOPICS[-1]])
def test_a_message_is_sent_when_created_or_after_the_stall(topic: ChainTopic, bunched: bool) -> None:
    times = list(publisher._times(topic, 3.0, bunched=bunched))
    waits = [sent_ns - created_ns for sent_ns, created_ns, _ in times]
    assert min(waits) == 0
    assert max(waits) <= 60 * MS
    assert any(waits) is bunched
    assert all(earlier[1] < later[1] and earlier[0] <= later[0] for earlier, later in pairwise(times))


def test_a_burst_is_the_excess_of_the_worst_window() -> None:
    def excess(*times_ms: int, waits_ms: int = 0, from_sending: bool = False) -> float:
        arrivals = [Arrival(0, (each - waits_ms) * MS, each * MS) for each in times_ms]
        return figures.burst(arrivals, 100, from_sending=from_sending)

    assert excess(0, 10, 20, 30) == pytest.approx(1)
    assert excess(0, 100, 101, 102) == pytest.approx(2.8)
    assert excess(0, 100, 200) == pytest.approx(1)
    assert excess() == 0
    # What arrives at once after a delay was sent, and passed, before.
    assert excess(0, 100, 101, 102, waits_ms=5) == pytest.approx(2.8)
    assert excess(0, 100, 101, 102, waits_ms=5, from_sending=True) == pytest.approx(2.3)


def test_a_row_needs_its_share_its_order_and_its_bound() -> None:
    topic = next(each for each in TOPICS if ROWS[each.row].limit_hz == 77)

    def is_exact(numbers: list[int], burst: int = 0) -> bool:
        times = [0] * burst + [number * 13 * MS for number in range(len(numbers))]
        arrivals = [Arrival(number, at, at) for number, at in zip(numbers, times, strict=False)]
        return figures.is_exact(figures._figures(topic, 1_000, arrivals, bunched=False))

    assert is_exact(list(range(770)))
    assert is_exact(list(range(770)), burst=1)
    assert not is_exact(list(range(770)), burst=2)
    assert not is_exact(list(range(762)))
    assert not is_exact([1, 0, *range(2, 770)])
    assert not is_exact([0, 0, *range(2, 770)])
