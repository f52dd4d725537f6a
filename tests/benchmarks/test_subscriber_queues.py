# SPDX-License-Identifier: Apache-2.0
"""The comparison of lanes and threads runs, and each way sends everything."""

import pytest

from benchmarks.subscriber_queues import SubscriberQueueBench, measured


@pytest.mark.parametrize("threads", [False, True])
def test_each_way_is_measured(threads: bool) -> None:
    found = measured(threads=threads, subscribers=3, rounds=1, paced=20)
    assert list(found) == ["memory", "cpu", "p99", "flood", "first"]
    assert all(found[name] > 0 for name in ("cpu", "p99", "flood", "first"))


def test_everybody_gets_what_is_released() -> None:
    bench = SubscriberQueueBench(4, threads=False)
    bench.flood_round(10)
    bench.close_queues()
    assert sorted(subscriber for subscriber, _ in bench.sink.sent if subscriber) == sorted(
        bench.subscribers * 10
    )
