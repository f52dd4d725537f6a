# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.dashboards [TREE ...]`: what dashboards cost the vehicle, and how old their events are.

TREE is a checkout, by default this one. An ECU sends a SOME/IP event at a fixed rate to an application on Zenoh, next to
no and to all dashboards. Each checkout runs with the dashboards in the streamer's process and, if it can, in a process
of their own (`process = true`). Rounds alternate. The figures are the ages of the events, the CPU time for each sent
event, and the events that neither arrived nor were reported as dropped.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from base64 import b64decode
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from typing import Any, Final

import msgspec

from benchmarks.dashboards import TOPIC
from benchmarks.harness import measure
from benchmarks.harness.checkouts import CheckoutTestbed
from benchmarks.harness.child_process import Child
from benchmarks.harness.shared_counters import AGE_COUNT, AGES_ENABLED, SENT
from benchmarks.harness.testbed import CONFIG, Ports, Rig, Subject, free_ports
from benchmarks.traffic import wire
from benchmarks.traffic.wamp_clients import WampClient

PAYLOAD: Final = 64
CLIENT_PROCESSES: Final = 2
_SETTLE_S: Final = 60.0
_SECTION: Final = """
[plugins.wamp]
listen = "ws://127.0.0.1:{wamp}/ws"
anonymous = true
max_sessions = 10000
max_sessions_per_address = 10000
max_connects_per_s = 10000
ping_interval_s = 3600
"""


class Row(msgspec.Struct, frozen=True):
    """One round: ages in ms, CPU in us for each sent event."""

    streamer: str
    dashboards: int
    vehicle_p50_ms: float
    vehicle_p99_ms: float
    streamer_cpu_us: float
    sessions_cpu_us: float
    dashboard_p50_ms: float
    dashboard_p99_ms: float
    received: int
    dropped: int
    unreported: int


class Dashboards:
    """One process of clients. It counts, and notes the age of every event."""

    def __init__(self, port: int, count: int) -> None:
        self._selector = DefaultSelector()
        self._buffers = [bytearray() for _ in range(count)]
        self.received = self.dropped = 0
        self.ages_ns: list[int] = []
        self._clients = [WampClient(port) for _ in range(count)]
        for number, client in enumerate(self._clients):
            if client.request([32, 1, {}, TOPIC])[0] != 33:
                raise RuntimeError("not subscribed")
            client.socket.setblocking(False)
            self._selector.register(client.socket, EVENT_READ, number)
        self._selector.register(sys.stdin, EVENT_READ, None)

    def run(self) -> None:
        print("READY", flush=True)
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if not self._answer(sys.stdin.readline().strip()):
                        return
                else:
                    self._read(key.data)

    def _answer(self, command: str) -> bool:
        if command == "report":
            print(json.dumps([self.received, self.dropped, self.ages_ns]), flush=True)
            self.received = self.dropped = 0
            self.ages_ns = []
        return bool(command)

    def _read(self, number: int) -> None:
        buffer = self._buffers[number]
        try:
            buffer += self._clients[number].socket.recv(1 << 18)
        except BlockingIOError:
            return
        now_ns, at = time.monotonic_ns(), 0
        while len(buffer) - at >= 2:  # a ping has no more
            size, head = buffer[at + 1], 2
            if size == 126 and len(buffer) - at >= 4:
                size, head = int.from_bytes(buffer[at + 2 : at + 4], "big"), 4
            if len(buffer) - at < head + size:
                break
            if buffer[at] == 0x81:
                self._take(bytes(buffer[at + head : at + head + size]), now_ns)
            else:  # a ping
                self._clients[number].socket.send(b"\x8a\x80\0\0\0\0")
            at += head + size
        del buffer[:at]

    def _take(self, text: bytes, now_ns: int) -> None:
        event = msgspec.json.decode(text)
        self.received += 1
        self.dropped += event[3].get("_dropped", 0)
        payload = b64decode(event[4][0][1:])
        _, sent_ns = wire.TAIL.unpack_from(payload, len(payload) - wire.TAIL.size)
        self.ages_ns.append(now_ns - sent_ns)


class Stage:
    """One streamer, its traffic and its dashboards."""

    def __init__(self, testbed: CheckoutTestbed, name: str, *, process: bool | None, dashboards: int) -> None:
        """`process` None: a checkout without the key."""
        (port,) = free_ports([socket.SOCK_STREAM])
        ports = Ports.free()
        config = CONFIG + _SECTION.replace("{wamp}", str(port))
        if process is not None:
            config += f"process = {str(process).lower()}\n"
        self.name = f"{name} {'process' if process else 'thread'}"
        self.dashboards = dashboards
        streamer = testbed.start_streamer(f"{self.name} {dashboards}".replace(" ", "-"), config, ports)
        self.rig: Rig = testbed._someip_to_zenoh(Subject.STREAMER, ports, lambda: streamer, "subscribe")  # noqa: SLF001
        self._streamer: Child = streamer
        self._clients = [
            testbed.start_process(
                f"{self.name}-{dashboards}-{each}".replace(" ", "-"),
                [
                    sys.executable,
                    "-m",
                    "benchmarks.dashboards",
                    "--clients",
                    str(port),
                    str(dashboards // CLIENT_PROCESSES),
                ],
                within_s=300,
            )
            for each in range(CLIENT_PROCESSES if dashboards else 0)
        ]
        for each in self._clients:
            each.request_report()

    def run(self, hz: float, seconds: float) -> Row:
        counters = self.rig.counters
        for each in self._clients:
            each.request_report()
        counters[AGES_ENABLED], counters[AGE_COUNT] = 1, 0
        sent, cpu_ns, sessions_ns = counters[SENT], self._streamer.cpu_ns, self._sessions_cpu_ns()
        self.rig.generator.send_command(f"pace {hz} {round(hz * seconds)}")
        self.rig.generator.wait_line("DONE", 30 + 10 * seconds)
        measure.wait_quiet(counters)
        events = counters[SENT] - sent
        received, dropped, ages = self._wait_events(events)
        cpu_us = (self._streamer.cpu_ns - cpu_ns) / 1e3 / events
        sessions_us = (self._sessions_cpu_ns() - sessions_ns) / 1e3 / events
        vehicle = sorted(counters.ages_ns())
        return Row(
            self.name,
            self.dashboards,
            *_percentiles_ms(vehicle),
            cpu_us,
            sessions_us,
            *_percentiles_ms(sorted(ages)),
            received,
            dropped,
            events * self.dashboards - received - dropped,
        )

    def _wait_events(self, events: int) -> tuple[int, int, list[int]]:
        received, dropped, ages = 0, 0, list[int]()
        deadline = time.monotonic() + _SETTLE_S
        while received + dropped < events * self.dashboards and time.monotonic() < deadline:
            time.sleep(0.5)
            for each in self._clients:
                one = each.request_report()
                received, dropped, ages = received + one[0], dropped + one[1], ages + one[2]
        return received, dropped, ages

    def _sessions_cpu_ns(self) -> int:
        """CPU time of the child processes of the streamer."""
        pid = self._streamer.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return sum(time.clock_gettime_ns(~int(each) << 3 | 2) for each in children)


def _percentiles_ms(ascending: Sequence[int]) -> tuple[float, float]:
    if not ascending:
        return 0.0, 0.0
    return measure.percentile(ascending, 0.5) / 1e6, measure.percentile(ascending, 0.99) / 1e6


def _ways(tree: Path) -> Sequence[bool | None]:
    return (False, True) if (tree / "plugins/wamp/ustreamer_wamp/process").is_dir() else (None,)


def measured(
    directory: Path, trees: Sequence[Path], dashboards: int, hz: float, seconds: float, rounds: int
) -> list[Row]:
    with ExitStack() as stack:
        stages = []
        for number, tree in enumerate(trees):
            for process in _ways(tree):
                for count in (0, dashboards):
                    case = directory / f"{number}-{process}-{count}"
                    case.mkdir()
                    testbed = stack.enter_context(CheckoutTestbed(case, PAYLOAD))
                    testbed.tree = tree
                    stages.append(Stage(testbed, tree.absolute().name, process=process, dashboards=count))
        return [stage.run(hz, seconds) for _ in range(rounds) for stage in stages]


def table(rows: Sequence[Row]) -> str:
    titles = (
        "vehicle p50",
        "p99 ms",
        "CPU us",
        "child us",
        "dash p50",
        "p99 ms",
        "received",
        "dropped",
        "unreported",
    )
    lines = [f"{'streamer':<20}{'n':>6}" + "".join(f"{each:>12}" for each in titles)]
    for each in rows:
        name, count, *figures = msgspec.structs.astuple(each)
        shown = "".join(f"{one:>12.1f}" if isinstance(one, float) else f"{one:>12}" for one in figures)
        lines.append(f"{name[-20:]:<20}{count:>6}{shown}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboards", description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[Path()])
    parser.add_argument("--dashboards", type=int, default=1000)
    parser.add_argument("--hz", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments: Any = parser.parse_args(argv)
    if arguments.clients:
        Dashboards(*arguments.clients).run()
        os._exit(0)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(
            Path(directory),
            arguments.trees,
            arguments.dashboards,
            arguments.hz,
            arguments.seconds,
            arguments.rounds,
        )
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
