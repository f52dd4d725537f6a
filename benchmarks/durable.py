# SPDX-License-Identifier: Apache-2.0
"""Cost of a durable queue relative to a plain one, and the loss by a kill: `python -m benchmarks.durable
[DIRECTORY]`.

    path     messages/s through a queue with its link up, 64 pending: offered on one thread, sent by the queue's thread
    flood    the same without a window: messages that wait long are written, and the disk sets the pace
    away     messages/s that a queue accepts while its link is down; a plain queue keeps them in memory only
    back     messages/s that a queue sends from its store
    window   time that a waiting message is in memory only: the loss by a kill
    memory   bytes of memory per message that is on disk only

Both queues alternate; ratios are of medians.
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

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, Tap
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.egress.durable_queue import DurableQueue
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.process import tune_interpreter
from ustreamer.transport_port import EndpointTransport
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

ROUNDS: Final = 5
MESSAGES: Final = 20_000
PAYLOAD_BYTES: Final = 100
WINDOW: Final = 64
PACED_S: Final = 3.0
PACE_S: Final = 0.001
TOPIC: Final = UUri("chassis", 0x1234, 1, 0x8001)
LIMITS: Final = EgressLimits(
    queue_messages=1_000_000, queue_bytes=1 << 32, spool_messages=1_000_000, spool_bytes=1 << 32
)


class SwitchableTransport(EndpointTransport):
    """Accepts every message at once while it is up."""

    def __init__(self, *, up: bool) -> None:
        self.up = up
        self.received = 0

    def send(self, message: UMessage) -> None:
        if not self.up:
            raise UStatusError(UCode.UNAVAILABLE, "the link is down")
        self.received += 1

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


class IngressStub:
    """The owner of deliveries: the part of an ingress that a delivery needs."""

    name = "chassis"
    taps: tuple[Tap, ...] = ()
    held = 0

    def __init__(self) -> None:
        self.ledger = Ledger()

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...

    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None: ...

    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...

    def on_tap_error(self, tap: Tap, error: BaseException) -> None: ...

    def on_backlog(self, egress: BackloggedEgress) -> None: ...

    def is_paused(self, delivery: Delivery) -> bool:
        return False


class QueueRig:
    """A queue on a sink; durable if it has a directory."""

    def __init__(self, directory: Path | None, *, up: bool, limits: EgressLimits = LIMITS) -> None:
        self.sink = SwitchableTransport(up=up)
        if directory is None:
            self.queue = EndpointQueue("backbone", self.sink, limits, SYSTEM_CLOCK, _unexpected_undelivered)
        else:
            self.queue = DurableQueue(
                "backbone",
                self.sink,
                limits,
                SYSTEM_CLOCK,
                _unexpected_undelivered,
                directory / "spool",
                _no_restored_delivery,
            )
        self.delivery = Delivery(IngressStub(), self.queue, TOPIC)
        self.queue.restore()
        self.queue.start()

    def offer(self, messages: list[UMessage]) -> None:
        now_ns = SYSTEM_CLOCK.monotonic_ns
        for message in messages:
            self.delivery.offer(message, now_ns())

    def raise_link(self) -> None:
        self.sink.up = True
        self.queue.on_link_up()


def _unexpected_undelivered(item: object, status: UStatus) -> None:
    raise AssertionError(status)


def _no_restored_delivery(ingress: str, topic: UUri | None, subscriber: UUri | None) -> Delivery:
    raise AssertionError("the spool is new")


def messages(count: int) -> list[UMessage]:
    made = SYSTEM_CLOCK.wall_ms() << 16 | 0x7000
    payload = bytes(PAYLOAD_BYTES)
    first = publish(UUID(made, 1 << 63), TOPIC, payload)
    return [UMessage(UUID(made, 1 << 63 | n), first.attributes, payload) for n in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.0005)


def forward_rate(directory: Path | None, window: int) -> float:
    rig, offered = QueueRig(directory, up=True), messages(MESSAGES)
    start = time.perf_counter()
    for sent in range(0, MESSAGES, window):
        rig.offer(offered[sent : sent + window])
        while rig.sink.received < min(sent + window, MESSAGES):
            time.sleep(0)
    elapsed_s = time.perf_counter() - start
    rig.queue.close(5)
    return MESSAGES / elapsed_s


def outage_and_recovery(directory: Path | None) -> tuple[float, float]:
    rig, offered = QueueRig(directory, up=False), messages(MESSAGES)
    start = time.perf_counter()
    rig.offer(offered)
    wait_until(lambda: directory is None or rig.queue.persisted == MESSAGES)
    away = time.perf_counter() - start
    start = time.perf_counter()
    rig.raise_link()
    wait_until(lambda: rig.sink.received == MESSAGES)
    back = time.perf_counter() - start
    rig.queue.close(5)
    return MESSAGES / away, MESSAGES / back


def windows_ms(directory: Path) -> list[float]:
    """Time in memory of each message at 1000 messages/s."""
    rig = QueueRig(directory, up=False)
    queue = rig.queue
    assert isinstance(queue, DurableQueue)
    offered_at: list[float] = []
    found: list[float] = []
    end = time.perf_counter() + PACED_S
    while (now := time.perf_counter()) < end:
        rig.offer(messages(1))
        offered_at.append(now)
        time.sleep(PACE_S)
        seen = time.perf_counter()
        found += [1e3 * (seen - at) for at in offered_at[len(found) : queue.committed]]
    rig.queue.close(5)
    return found


def memory_bytes(directory: Path) -> float:
    limits = EgressLimits(queue_messages=1_000, spool_messages=1_000_000, spool_bytes=1 << 32)
    rig = QueueRig(directory, up=False, limits=limits)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(10):
        offered = messages(900)
        rig.offer(offered)
        wait_until(lambda: rig.queue.sendable == 0)
        del offered
    took = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    rig.queue.close(5)
    return took / 9_000


def main(directory_path: str | None = None) -> None:
    tune_interpreter()
    rates: dict[str, dict[str, list[float]]] = {
        name: {"plain": [], "durable": []} for name in ("path", "flood", "away", "back")
    }
    with tempfile.TemporaryDirectory(dir=directory_path) as directory:
        for number in range(ROUNDS):
            for kind in ("plain", "durable"):
                at = None if kind == "plain" else Path(directory) / f"{number}"
                rates["path"][kind].append(forward_rate(at and at / "path", WINDOW))
                rates["flood"][kind].append(forward_rate(at and at / "flood", MESSAGES))
                accepted_rate, sent_rate = outage_and_recovery(at and at / "away")
                rates["away"][kind].append(accepted_rate)
                rates["back"][kind].append(sent_rate)
        windows = windows_ms(Path(directory) / "window")
        memory = memory_bytes(Path(directory) / "memory")
    print(f"{PAYLOAD_BYTES} bytes of payload, {MESSAGES} messages, {ROUNDS} rounds; {os.cpu_count()} cores")
    print(f"{'':8} {'plain/s':>10} {'durable/s':>10} {'ratio':>6}")
    for name, found in rates.items():
        plain, durable = (statistics.median(found[kind]) for kind in ("plain", "durable"))
        print(f"{name:8} {plain:>10,.0f} {durable:>10,.0f} {durable / plain:>6.2f}")
    marks = statistics.quantiles(windows, n=100)
    print(f"window   p50 {marks[49]:.1f} ms  p99 {marks[98]:.1f} ms  max {max(windows):.1f} ms")
    print(f"memory   {memory:,.0f} bytes for each message on disk only")


if __name__ == "__main__":
    main(*sys.argv[1:])
