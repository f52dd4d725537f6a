# SPDX-License-Identifier: Apache-2.0
"""One thread for all subscribers of an endpoint, or one thread each: `python -m benchmarks.subscriber_queues`.

    queues    one `EndpointQueue` with a queue per subscriber
    threads   one `EndpointQueue`, and so one thread, per subscriber
    memory    KB of resident memory per subscriber with one waiting message
    cpu       us of CPU per message, user and system, with single messages for one subscriber after the other
    p99       us from offer to send in that case
    flood     us of CPU per message when 50 wait for each subscriber and all are released at once
    first     ms until each subscriber has the first of these

Sends never wait, as over SOME/IP. All messages are sent by the threads of the queues, none by the thread of the
caller. Each figure is the minimum of some alternating rounds in separate processes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, SendOne, Tap
from ustreamer.core.egress.limits import EgressLimits
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.process import tune_interpreter
from ustreamer.transport_port import EndpointTransport, RouteUnavailable
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UStatus
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

SUBSCRIBERS: Final = 100
ROUNDS: Final = 4
PROCESSES: Final = 4
PACED: Final = 2_000
PACE_S: Final = 0.0002
FLOOD: Final = 50
TOPIC: Final = UUri("chassis", 0x1234, 1, 0x8001)
LIMITS: Final = EgressLimits(queue_messages=1_000_000, queue_bytes=1 << 32)
BLOCKED_ROUTE: Final = "all of them"


class GatedTransport(EndpointTransport):
    """Accepts every message at once while it is open, and notes the time."""

    unicast = True

    def __init__(self) -> None:
        self.blocked = False
        self.sent: list[tuple[UUri | None, int]] = []

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        def transmit(message: UMessage, /) -> None:
            if self.blocked:
                raise RouteUnavailable(BLOCKED_ROUTE, "closed")
            self.sent.append((subscriber, time.perf_counter_ns()))

        return transmit

    def send(self, message: UMessage) -> None:
        self.transmitter(None)(message)

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


class QueueIngressStub:
    """The part of an ingress that a delivery needs."""

    name, held = "chassis", 0

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.taps: tuple[Tap, ...] = ()

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None: ...

    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None: ...

    def on_filter_error(self, plugin: object, error: BaseException) -> None: ...

    def on_tap_error(self, tap: Tap, error: BaseException) -> None: ...

    def on_backlog(self, egress: BackloggedEgress) -> None: ...

    def is_paused(self, delivery: Delivery) -> bool:
        return False


class SubscriberQueueBench:
    """Subscribers with one shared queue thread, or one thread each."""

    def __init__(self, subscribers: int, *, threads: bool) -> None:
        self.before_kb = resident_kb()
        self.sink = GatedTransport()
        self.queues = [
            EndpointQueue(f"queue {number}", self.sink, LIMITS, SYSTEM_CLOCK, lambda item, status: None)
            for number in range(subscribers if threads else 1)
        ]
        self.subscribers = [UUri("dash", number + 1, 1, 0) for number in range(subscribers)]
        source = QueueIngressStub()
        self.deliveries = [
            Delivery(source, self.queues[number % len(self.queues)], TOPIC, subscriber)
            for number, subscriber in enumerate(self.subscribers)
        ]
        self.message = publish(UUID(SYSTEM_CLOCK.wall_ms() << 16 | 0x7000, 0b10 << 62), TOPIC, bytes(100))
        for queue in self.queues:
            queue.start()

    def offer_to(self, number: int) -> None:
        self.deliveries[number].offer(self.message, time.monotonic_ns())

    def wait_sent(self, count: int) -> None:
        while len(self.sink.sent) < count:
            time.sleep(0.0005)

    def block_all(self, per_subscriber: int) -> None:
        """Queue this number of messages per subscriber."""
        self.sink.blocked = True
        for _ in range(per_subscriber):
            for number in range(len(self.subscribers)):
                self.offer_to(number)
        while sum(queue.blocked for queue in self.queues) < per_subscriber * len(self.subscribers):
            time.sleep(0.001)

    def memory_kb(self) -> float:
        self.block_all(1)
        return (resident_kb() - self.before_kb) / len(self.subscribers)

    def unblock(self) -> None:
        self.sink.blocked = False
        for queue in self.queues:
            queue.on_route_open(BLOCKED_ROUTE)

    def paced_round(self, messages: int, pace_s: float) -> tuple[float, float]:
        """us of CPU per message, and the 99th percentile of us to its send."""
        self.sink.sent.clear()
        offered = []
        busy_ns = time.process_time_ns()
        for n in range(messages):
            offered.append(time.perf_counter_ns())
            self.offer_to(n % len(self.subscribers))
            time.sleep(pace_s)
        self.wait_sent(messages)
        busy_ns = time.process_time_ns() - busy_ns
        waits = sorted(at - since for (_, at), since in zip(self.sink.sent, offered, strict=True))
        return busy_ns / messages / 1e3, waits[messages * 99 // 100] / 1e3

    def flood_round(self, per_subscriber: int) -> tuple[float, float]:
        """us of CPU per released message, and ms until every subscriber has its first one."""
        self.sink.sent.clear()
        self.block_all(per_subscriber)
        busy_ns, began_ns = time.process_time_ns(), time.perf_counter_ns()
        self.unblock()
        self.wait_sent(per_subscriber * len(self.subscribers))
        busy_ns = time.process_time_ns() - busy_ns
        firsts: dict[UUri | None, int] = {}
        for subscriber, at in self.sink.sent:
            firsts.setdefault(subscriber, at)
        return busy_ns / len(self.sink.sent) / 1e3, (max(firsts.values()) - began_ns) / 1e6

    def close_queues(self) -> None:
        for queue in self.queues:
            queue.close(1.0)


def resident_kb() -> int:
    """Resident memory of this process."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("Linux has a VmRSS")


def measured(
    *, threads: bool, subscribers: int = SUBSCRIBERS, rounds: int = ROUNDS, paced: int = PACED
) -> dict[str, float]:
    """All figures of one variant, in this process."""
    bench = SubscriberQueueBench(subscribers, threads=threads)
    found = {"memory": bench.memory_kb()}
    bench.unblock()
    bench.wait_sent(subscribers)
    paced_rounds = [bench.paced_round(paced, PACE_S) for _ in range(rounds)]
    floods = [bench.flood_round(FLOOD) for _ in range(rounds)]
    bench.close_queues()
    found["cpu"], found["p99"] = min(cpu for cpu, _ in paced_rounds), min(p99 for _, p99 in paced_rounds)
    found["flood"], found["first"] = min(cpu for cpu, _ in floods), min(first for _, first in floods)
    return found


def main(arguments: Sequence[str]) -> None:
    if arguments:
        tune_interpreter()
        print(json.dumps(measured(threads=arguments[0] == "threads")))
        return
    best: dict[str, dict[str, float]] = {"queues": {}, "threads": {}}
    for mode, least in list(best.items()) * PROCESSES:
        command = [sys.executable, "-m", "benchmarks.subscriber_queues", mode]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        for name, value in found.items():
            least[name] = min(value, least.get(name, value))
    for mode, least in best.items():
        print(f"{mode:8}", "  ".join(f"{name} {value:8.1f}" for name, value in least.items()))


if __name__ == "__main__":
    main(sys.argv[1:])
