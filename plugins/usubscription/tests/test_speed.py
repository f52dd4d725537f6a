# SPDX-License-Identifier: Apache-2.0
"""What it costs, measured: `make soak ARGS="-s -k speed"` prints the figures that the README quotes.

Ratios are asserted, not times: they hold on any machine.
"""

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.store import Store, put
from ustreamer_usubscription.tracked import Tracked

from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import Desk

pytestmark = pytest.mark.soak

PER_TOPIC = 10


def entry(number: int) -> Tracked:
    topic = UUri("chassis", number // PER_TOPIC // 0x4000, 1, 0x8000 + number // PER_TOPIC % 0x4000)
    return Tracked(topic, UUri("hpc.vin1", 1 + number % 50_000, 1, 0), 10_000_000)


def test_speed_of_subscribing_alone_and_in_company(make_desk: "Callable[..., Desk]") -> None:
    desk = make_desk().start()

    def one_at_a_time(seconds: float) -> float:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            desk.subscribe(caller=UUri("device1", done, 1, 0))
            done += 1
        return done / seconds

    def company(seconds: float, clients: int) -> float:
        """Each of so many clients has one request under way at any time."""
        done, end = 0, time.perf_counter() + seconds
        waiting = [
            desk.post(1, desk.subscription_request(), caller=UUri("device1", n, 2, 0)) for n in range(clients)
        ]
        while time.perf_counter() < end:
            for place, reqid in enumerate(waiting):
                desk.answer(reqid)
                done += 1
                caller = UUri("device1", done, 3, 0)
                waiting[place] = desk.post(1, desk.subscription_request(), caller=caller)
        return done / seconds

    alone = one_at_a_time(3)
    before = desk.statistics("transactions")
    together = company(3, 64)
    shared = together * 3 / (desk.statistics("transactions") - before)
    print(f"\nSubscribe: alone {alone:,.0f}/s; 64 clients {together:,.0f}/s, {shared:.1f} per transaction")
    assert shared > 8


def test_speed_of_a_lookup_among_a_thousand_and_a_hundred_thousand() -> None:
    def lookup_ns(count: int) -> float:
        directory = Directory()
        directory.load(sorted(map(entry, range(count)), key=lambda e: (str(e.topic), str(e.subscriber))))
        topics = [entry(number).topic for number in range(0, count, count // 1000)]
        for topic in topics:
            hash(topic)
        rounds = []
        for _ in range(20):
            start = time.perf_counter_ns()
            for topic in topics:
                directory.subscribers(topic)
            rounds.append((time.perf_counter_ns() - start) / len(topics))
        return statistics.median(rounds)

    figures = {count: lookup_ns(count) for count in (1_000, 100_000)}
    print(
        "\nsubscribers(topic): " + ", ".join(f"{ns:.0f} ns among {count:,}" for count, ns in figures.items())
    )
    assert figures[100_000] < 3 * figures[1_000]


def test_speed_of_a_start_with_a_hundred_thousand(tmp_path: "Path") -> None:
    count = 100_000
    store = Store(tmp_path / "store", 512 << 20)
    store.open()
    store.commit(
        [
            put(each)
            for each in sorted(map(entry, range(count)), key=lambda e: (str(e.topic), str(e.subscriber)))
        ]
    )
    assert store._env is not None
    start = time.perf_counter()
    with store._env.begin() as txn, txn.cursor() as cursor:
        assert sum(1 for _ in cursor) == count + 1
    scan = time.perf_counter() - start
    directory = Directory()
    start = time.perf_counter()
    directory.load(store.load())
    load = time.perf_counter() - start
    store.close()
    print(
        f"\nstart with {count:,}: bare scan {scan:.2f} s, loaded {load:.2f} s ({load / count * 1e6:.1f} us each)"
    )
    assert directory.count == count
