# SPDX-License-Identifier: Apache-2.0
"""The WAMP benchmark: the ratio of two servers that run at the same time, which a busy machine does not change."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from benchmarks.traffic.wamp_servers import WampServerProcess, free_port, own_command
from benchmarks.wamp import StallRound, measure_stall

AT_LEAST, AT_MOST = 5, 25
"""Rounds. The p99 of a round is its slowest event or two, so a short pause of the machine may hit one server only."""
SECONDS = 1.0
TIMES = 1.2


def is_good(rounds: Sequence[StallRound]) -> bool:
    """Whether half of at least AT_LEAST rounds are below the bound: pauses hit both servers equally often."""
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
def test_pauses_in_some_rounds_do_not_decide(ratios: list[float], good: bool) -> None:
    assert is_good([StallRound(1000.0, ratio * 1000.0) for ratio in ratios]) is good


def test_ten_clients_that_do_not_read_do_not_delay_the_others() -> None:
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            port = free_port()
            servers.append(WampServerProcess("uStreamer", own_command(port), port))
            stack.callback(servers[-1].close)
        stall = measure_stall(servers, SECONDS, AT_MOST, is_good)
    ratio = statistics.median(each.ratio for each in stall.rounds)
    print(f"lost={stall.lost} stalled_dropped={stall.dropped} rss_delta_mb={stall.bytes / (1 << 20):.1f}")
    print(f"rounds={len(stall.rounds)} others_p99_ratio={ratio:.2f}")
    assert is_good(stall.rounds), [f"{each.ratio:.2f}" for each in stall.rounds]
    assert stall.lost == 0
    assert stall.dropped > 1000, "the ten clients did not block, so the test proves nothing"
    assert stall.bytes < 5 << 20
