# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of WAMP measures and a test can hold on a busy machine: the ratio of two servers that run at once."""

from contextlib import ExitStack

from benchmarks.wamp import Round, stalled
from benchmarks.wamp_servers import Server, free_port, ours

WINDOWS = 6
SECONDS = 2.0
TIMES = 1.2


def is_good(window: Round) -> bool:
    return window.ratio < TIMES


def test_ten_clients_that_do_not_read_cost_the_others_no_time() -> None:
    """One window may be disturbed, by something that comes between two events; not all of them."""
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            port = free_port()
            servers.append(Server("uStreamer", ours(port), port))
            stack.callback(servers[-1].close)
        stall = stalled(servers, SECONDS, WINDOWS, is_good)
    assert is_good(stall.rounds[-1]), [f"{each.ratio:.2f}" for each in stall.rounds]
    assert stall.lost == 0
    assert stall.dropped > 1000, "the ten had to stand still, or this shows nothing"
    assert stall.bytes < 5 << 20
