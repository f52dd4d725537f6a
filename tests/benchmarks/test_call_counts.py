# SPDX-License-Identifier: Apache-2.0
"""The Python calls that a Subscribe costs are bounded. A count, not a time: it does not depend on the machine."""

from pathlib import Path

from benchmarks.call_counts import CallCounter


def test_a_subscribe_costs_at_most_600_calls(tmp_path: Path) -> None:
    counter = CallCounter(tmp_path)
    try:
        counts = [counter.subscribe_local().total for _ in range(5)]
    finally:
        counter.close()
    assert min(counts) <= 600, counts  # the others woke a thread once more
    assert min(counts) > 100, "the profiler missed a thread"
