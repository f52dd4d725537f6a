# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of WAMP measures and a test can hold on a busy machine: the ratio of two servers that run at once."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from benchmarks.traffic.wamp_servers import WampServerProcess, free_port, own_command
from benchmarks.wamp import StallRound, measure_stall

AT_LEAST, AT_MOST = 5, 25
"""Rounds. The p99 of one is its slowest event or two: what comes between these two by chance is in one of the servers only."""
SECONDS = 1.5
TIMES = 1.2


def is_good(rounds: Sequence[StallRound]) -> bool:
    """Whether half of the rounds, and of no few, are below the bound: chance hits either server as often as the other."""
    return len(rounds) >= AT_LEAST and statistics.median(each.ratio for each in rounds) < TIMES


@pytest.mark.parametrize(
    ("ratios", "good"),
    [
        ([0.9] * 4, False),
        ([0.9] * 5, True),
        ([0.9, 7.0, 0.9, 5.0, 0.9], True),
        ([1.3, 0.1, 1.3, 0.1, 1.3], False),
        ([1.25] * AT_MOST, False),
    ],
)
def test_chance_in_some_rounds_decides_nothing(ratios: list[float], good: bool) -> None:
    assert is_good([StallRound(1000.0, ratio * 1000.0) for ratio in ratios]) is good


def test_ten_clients_that_do_not_read_cost_the_others_no_time() -> None:
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            port = free_port()
            servers.append(WampServerProcess("uStreamer", own_command(port), port))
            stack.callback(servers[-1].close)
        stall = measure_stall(servers, SECONDS, AT_MOST, is_good)
    assert is_good(stall.rounds), [f"{each.ratio:.2f}" for each in stall.rounds]
    assert stall.lost == 0
    assert stall.dropped > 1000, "the ten had to stand still, or this shows nothing"
    assert stall.bytes < 5 << 20
