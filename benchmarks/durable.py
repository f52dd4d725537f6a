# SPDX-License-Identifier: Apache-2.0
"""What a durable lane costs beside a plain one, and how much a kill can take: `python -m benchmarks.durable [DIRECTORY]`.

    path     messages per second through a lane whose link is up, 64 under way: offered on one thread, taken by the lane's own
    flood    the same, all at once: what waits for long is written, and then the disk sets the pace
    away     messages per second that a lane takes over while its link is down; a plain one keeps them in memory only
    back     messages per second that a lane sends of what it has kept
    window   how long a message that waits is in memory only: what a kill can take
    memory   bytes of memory per message that is on disk only

The two lanes take turns; ratios are of medians.
"""

import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ustreamer.core.delivery.delivery import Delivery, Filter, Tap
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.hooks import EndpointTransport
from ustreamer.host.egress.durable_queue import DurableLane
from ustreamer.host.egress.endpoint_queue import Lane
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.process import tune_interpreter
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

ROUNDS: Final = 5
MESSAGES: Final = 20_000
SIZE: Final = 100
UNDER_WAY: Final = 64
PACED_S: Final = 3.0
PACE_S: Final = 0.001
TOPIC: Final = UUri("chassis", 0x1234, 1, 0x8001)
LIMITS: Final = EgressLimits(
    queue_messages=1_000_000, queue_bytes=1 << 32, spool_messages=1_000_000, spool_bytes=1 << 32
)


class Sink(EndpointTransport):
    """Takes everything while it is up, in no time."""

    def __init__(self, *, up: bool) -> None:
        self.up = up
        self.taken = 0

    def send(self, message: UMessage) -> None:
        if not self.up:
            raise UStatusError(UCode.UNAVAILABLE, "the link is down")
        self.taken += 1

    def register_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def unregister_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def open(self) -> None: ...

    def stop_receiving(self) -> None: ...

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]:
        return {}


class Source:
    """The owner of the deliveries: as much of an ingress as a delivery needs."""

    name = "chassis"
    taps: tuple[Tap, ...] = ()
    held = 0

    def __init__(self) -> None:
        self.ledger = Ledger()

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...

    def stopped(self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus) -> None: ...

    def filter_failed(self, plugin: object, error: Exception) -> None: ...

    def tap_failed(self, tap: Tap, error: Exception) -> None: ...


class Rig:
    """A lane on a sink; durable if it has a directory."""

    def __init__(self, directory: Path | None, *, up: bool, limits: EgressLimits = LIMITS) -> None:
        self.sink = Sink(up=up)
        if directory is None:
            self.lane = Lane("backbone", self.sink, limits, SYSTEM_CLOCK, _never)
        else:
            self.lane = DurableLane(
                "backbone", self.sink, limits, SYSTEM_CLOCK, _never, directory / "spool", _nothing_is_kept
            )
        self.delivery = Delivery(Source(), self.lane, TOPIC)
        self.lane.restore()
        self.lane.start()

    def offer(self, messages: list[UMessage]) -> None:
        now_ns = SYSTEM_CLOCK.monotonic_ns
        for message in messages:
            self.delivery.offer(message, now_ns())

    def come_up(self) -> None:
        self.sink.up = True
        self.lane.link_up()


def _never(item: object, status: UStatus) -> None:
    raise AssertionError(status)


def _nothing_is_kept(ingress: str, topic: UUri | None, subscriber: UUri | None) -> Delivery:
    raise AssertionError("the spool is new")


def messages(count: int) -> list[UMessage]:
    made = SYSTEM_CLOCK.wall_ms() << 16 | 0x7000
    payload = bytes(SIZE)
    first = publish(UUID(made, 1 << 63), TOPIC, payload)
    return [UMessage(UUID(made, 1 << 63 | n), first.attributes, payload) for n in range(count)]


def until(holds: Callable[[], bool]) -> None:
    while not holds():
        time.sleep(0.0005)


def rate(directory: Path | None, under_way: int) -> float:
    rig, offered = Rig(directory, up=True), messages(MESSAGES)
    start = time.perf_counter()
    for sent in range(0, MESSAGES, under_way):
        rig.offer(offered[sent : sent + under_way])
        while rig.sink.taken < min(sent + under_way, MESSAGES):
            time.sleep(0)
    took = time.perf_counter() - start
    rig.lane.close(5)
    return MESSAGES / took


def away_and_back(directory: Path | None) -> tuple[float, float]:
    rig, offered = Rig(directory, up=False), messages(MESSAGES)
    start = time.perf_counter()
    rig.offer(offered)
    until(lambda: directory is None or rig.lane.kept == MESSAGES)
    away = time.perf_counter() - start
    start = time.perf_counter()
    rig.come_up()
    until(lambda: rig.sink.taken == MESSAGES)
    back = time.perf_counter() - start
    rig.lane.close(5)
    return MESSAGES / away, MESSAGES / back


def windows_ms(directory: Path) -> list[float]:
    """At 1000 messages a second, how long each was in memory only."""
    rig = Rig(directory, up=False)
    lane = rig.lane
    assert isinstance(lane, DurableLane)
    offered_at: list[float] = []
    found: list[float] = []
    end = time.perf_counter() + PACED_S
    while (now := time.perf_counter()) < end:
        rig.offer(messages(1))
        offered_at.append(now)
        time.sleep(PACE_S)
        seen = time.perf_counter()
        found += [1e3 * (seen - at) for at in offered_at[len(found) : lane.committed]]
    rig.lane.close(5)
    return found


def memory_bytes(directory: Path) -> float:
    limits = EgressLimits(queue_messages=1_000, spool_messages=1_000_000, spool_bytes=1 << 32)
    rig = Rig(directory, up=False, limits=limits)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        offered = messages(900)
        rig.offer(offered)
        until(lambda: rig.lane.owed == 0)
        del offered
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    rig.lane.close(5)
    return took / 9_000


def main(where: str | None = None) -> None:
    tune_interpreter()
    rates: dict[str, dict[str, list[float]]] = {
        name: {"plain": [], "durable": []} for name in ("path", "flood", "away", "back")
    }
    with tempfile.TemporaryDirectory(dir=where) as directory:
        for number in range(ROUNDS):
            for kind in ("plain", "durable"):
                at = None if kind == "plain" else Path(directory) / f"{number}"
                rates["path"][kind].append(rate(at and at / "path", UNDER_WAY))
                rates["flood"][kind].append(rate(at and at / "flood", MESSAGES))
                taken, sent = away_and_back(at and at / "away")
                rates["away"][kind].append(taken)
                rates["back"][kind].append(sent)
        windows = windows_ms(Path(directory) / "window")
        memory = memory_bytes(Path(directory) / "memory")
    print(f"{SIZE} bytes of payload, {MESSAGES} messages, {ROUNDS} rounds; {os.cpu_count()} cores")
    print(f"{'':8} {'plain/s':>10} {'durable/s':>10} {'ratio':>6}")
    for name, found in rates.items():
        plain, durable = (statistics.median(found[kind]) for kind in ("plain", "durable"))
        print(f"{name:8} {plain:>10,.0f} {durable:>10,.0f} {durable / plain:>6.2f}")
    marks = statistics.quantiles(windows, n=100)
    print(f"window   p50 {marks[49]:.1f} ms  p99 {marks[98]:.1f} ms  max {max(windows):.1f} ms")
    print(f"memory   {memory:,.0f} bytes for each message on disk only")


if __name__ == "__main__":
    main(*sys.argv[1:])
