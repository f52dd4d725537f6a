# SPDX-License-Identifier: Apache-2.0
"""The comparison of queues and threads runs, and each variant sends every message."""

import pytest

from benchmarks.subscriber_queues import SubscriberQueueBench, measured


@pytest.mark.parametrize("threads", [False, True])
def test_each_variant_is_measured(threads: bool) -> None:
    found = measured(threads=threads, subscribers=3, rounds=1, paced=20)
    assert list(found) == ["memory", "cpu", "p99", "flood", "first"]
    assert all(found[name] > 0 for name in ("cpu", "p99", "flood", "first"))


def test_every_subscriber_gets_the_released_messages() -> None:
    bench = SubscriberQueueBench(4, threads=False)
    bench.flood_round(10)
    bench.close_queues()
    assert sorted(subscriber for subscriber, _ in bench.sink.sent if subscriber) == sorted(
        bench.subscribers * 10
    )
