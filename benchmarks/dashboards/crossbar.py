# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.dashboards.crossbar`: CPU time of a SOME/IP event for dashboards, with the streamer and with Crossbar.

An ECU sends a SOME/IP event to 1, 10 and 100 dashboards at 200, 100 and 20 Hz, in JSON over WebSocket:

    streamer    ECU -> streamer (uSubscription, throttle) -> its process of the sessions -> dashboards
    Crossbar    ECU -> bridge (`benchmarks.traffic.wamp_bridge`) -> Crossbar -> dashboards
    bare        ECU -> two Python processes that only forward (`benchmarks.traffic.bare_wamp_forwarder`) -> dashboards

All run at the same time and get events in turn. The figure is the user and system time of each process for an event.
The time of the same processes without events is measured before each round and subtracted; `idle` is this time, in
CPU percent. `lost` are the events that neither arrived nor were reported as dropped. The order of these figures is
that of the ways above.
"""

import argparse
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from benchmarks.dashboards import TOPIC
from benchmarks.harness.child_process import Child, console_script, module_command
from benchmarks.harness.shared_counters import SharedCounters
from benchmarks.harness.testbed import CONFIG, free_ports
from benchmarks.traffic.wamp_servers import WampServerProcess, crossbar_command, crossbar_python, process_tree

LOADS: Final = ((1, 200.0), (10, 100.0), (100, 20.0))
"""Dashboards and Hz."""
PAYLOAD: Final = 64
_CLIENT_PROCESSES: Final = 2
_SETTLE_S: Final = 30.0
_WARM_UP_EVENTS: Final = 20
_CPUCLOCK_SCHED: Final = 2
_CONFIG: Final = (
    CONFIG[: CONFIG.index("[endpoints.backbone]")]
    + CONFIG[CONFIG.index("[endpoints.chassis]") :]
    + """
[plugins.wamp]
listen = "ws://127.0.0.1:{wamp}/ws"
anonymous = true
"""
)
"""The streamer of the other benchmarks, without a Zenoh network."""


class Cost(msgspec.Struct, frozen=True):
    """One round: CPU time of each process for an event in us, of all processes without events in percent."""

    event_us: Mapping[str, float]
    idle_percent: float
    lost: int


class Way:
    """One way from the ECU to the dashboards, and the processes whose CPU time counts."""

    def __init__(
        self, start: Callable[..., Child], directory: Path, name: str, wamp: int, dashboards: int
    ) -> None:
        """`start` starts a process that ends with the benchmark. The ways of a comparison have different names."""
        self.name = name
        self.dashboards = dashboards
        self.ecu, self.receiver = free_ports([socket.SOCK_DGRAM] * 2)
        self.pids: dict[str, list[int]] = {}
        """The measured processes by name."""
        self._start = start
        self._wamp = wamp
        self._counters = SharedCounters(directory / f"{name}.counters")
        self._clients: list[Child] = []

    def connect(self) -> None:
        """Start the dashboards and the ECU, and send the first events."""
        processes = min(_CLIENT_PROCESSES, self.dashboards)
        self._clients = [
            self._start(
                f"{self.name}-clients-{each}",
                [
                    sys.executable,
                    "-m",
                    "benchmarks.dashboards",
                    "--clients",
                    str(self._wamp),
                    str(self.dashboards // processes),
                ],
            )
            for each in range(processes)
        ]
        generator = module_command(
            "traffic.generators", "udp", self._counters.path, PAYLOAD, self.ecu, self.receiver
        )
        self._generator = self._start(f"{self.name}-ecu", generator)
        self._send(50.0, _WARM_UP_EVENTS)

    def run(self, hz: float, seconds: float) -> Cost:
        began, before = time.monotonic(), self._cpu_ns()
        time.sleep(seconds / 2)
        idle_s, at_start = time.monotonic() - began, self._cpu_ns()
        idle = {name: (at_start[name] - before[name]) / idle_s for name in before}  # ns for each s
        began = time.monotonic()
        events = round(hz * seconds)
        lost = self._send(hz, events)
        spent_s, after = time.monotonic() - began, self._cpu_ns()
        cost = {name: (after[name] - at_start[name] - idle[name] * spent_s) / events / 1e3 for name in after}
        return Cost(cost, sum(idle.values()) / 1e7, lost)

    def _send(self, hz: float, events: int) -> int:
        """Send events and wait for them; the number of those that did not arrive and were not reported as dropped."""
        self._generator.send_command(f"pace {hz} {events}")
        self._generator.wait_line("DONE", 30 + 10 * events / hz)
        missing = events * self.dashboards
        deadline = time.monotonic() + _SETTLE_S
        while missing and time.monotonic() < deadline:
            time.sleep(0.05)
            for each in self._clients:
                received, dropped, _ = each.request_report()
                missing -= received + dropped
        return missing

    def _cpu_ns(self) -> dict[str, int]:
        return {
            name: sum(time.clock_gettime_ns(~each << 3 | _CPUCLOCK_SCHED) for each in pids)
            for name, pids in self.pids.items()
        }


class Comparison:
    """The ways with a number of dashboards: `with Comparison(directory, dashboards) as comparison`."""

    def __init__(
        self, directory: Path, dashboards: int, start_crossbar: Callable[[int], WampServerProcess]
    ) -> None:
        """`start_crossbar` starts a WAMP router at a port."""
        self._directory = directory
        self._dashboards = dashboards
        self._start_crossbar = start_crossbar
        self._stack = ExitStack()
        self.ways: list[Way] = []

    def __enter__(self) -> Self:
        with self._stack:
            self.ways = [self._streamer(), self._crossbar(), self._bare()]
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, name: str, command: Sequence[str]) -> Child:
        child = Child(name, command, self._directory)
        self._stack.callback(child.stop)
        child.wait_line("READY", 60.0)
        return child

    def _streamer(self) -> Way:
        (wamp,) = free_ports([socket.SOCK_STREAM])
        way = Way(self._start, self._directory, "streamer", wamp, self._dashboards)
        (offered,) = free_ports([socket.SOCK_DGRAM])
        config = self._directory / "streamer.toml"
        ports = {"wamp": wamp, "someip": way.receiver, "ecu": way.ecu, "receiver": offered}
        config.write_text(_CONFIG.format(**ports), encoding="utf-8")
        streamer = self._start(
            "streamer", [console_script("ustreamer"), "run", str(config), "--log-format", "json"]
        )
        _, *sessions = process_tree(streamer.pid)
        way.pids = {"streamer": [streamer.pid], "sessions": sessions}
        way.connect()
        return way

    def _crossbar(self) -> Way:
        (wamp,) = free_ports([socket.SOCK_STREAM])
        way = Way(self._start, self._directory, "crossbar", wamp, self._dashboards)
        crossbar = self._start_crossbar(wamp)
        self._stack.callback(crossbar.close)
        command = module_command("traffic.wamp_bridge", wamp, way.receiver, TOPIC)
        bridge = self._start("bridge", command)
        way.pids = {"crossbar": process_tree(crossbar.pid), "bridge": [bridge.pid]}
        way.connect()
        return way

    def _bare(self) -> Way:
        (wamp,) = free_ports([socket.SOCK_STREAM])
        way = Way(self._start, self._directory, "bare", wamp, self._dashboards)
        command = module_command("traffic.bare_wamp_forwarder", wamp, way.receiver, self._dashboards)
        way.pids = {"bare": process_tree(self._start("bare", command).pid)}
        way.connect()
        return way


class Result(msgspec.Struct, frozen=True):
    """Medians of the rounds with a number of dashboards: us for an event by process, idle CPU percent by way."""

    dashboards: int
    hz: float
    event_us: Mapping[str, float]
    idle_percent: Sequence[float]
    lost: Sequence[int]

    def crossbar_ratio(self, *processes: str) -> float:
        """How many times the processes cost less than Crossbar without the bridge."""
        return self.event_us["crossbar"] / sum(self.event_us[each] for each in processes)


def start_crossbar(port: int) -> WampServerProcess:
    return WampServerProcess("Crossbar", crossbar_command(crossbar_python(), port), port)


def measure(
    directory: Path,
    dashboards: int,
    hz: float,
    seconds: float,
    rounds: int,
    router: Callable[[int], WampServerProcess] = start_crossbar,
) -> Result:
    """Alternate rounds of all ways."""
    with Comparison(directory, dashboards, router) as comparison:
        costs = [[way.run(hz, seconds) for way in comparison.ways] for _ in range(rounds)]
    by_way = list(zip(*costs, strict=True))
    event_us = {
        name: statistics.median(each.event_us[name] for each in way)
        for way in by_way
        for name in way[0].event_us
    }
    idle = [statistics.median(each.idle_percent for each in way) for way in by_way]
    return Result(dashboards, hz, event_us, idle, [sum(each.lost for each in way) for way in by_way])


_COLUMNS: Final = (
    "dashboards",
    "Hz",
    "streamer",
    "sessions",
    "Crossbar",
    "bridge",
    "bare",
    "times",
    "bare times",
)


def show(result: Result) -> str:
    """One line; `times` is the cost of Crossbar without the bridge, divided by that of both processes of the streamer."""
    times, bare_times = result.crossbar_ratio("streamer", "sessions"), result.crossbar_ratio("bare")
    cells = [
        f"{result.dashboards}",
        f"{result.hz:.0f}",
        *(f"{each:.0f}" for each in result.event_us.values()),
    ]
    cells += [f"{times:.1f}", f"{bare_times:.1f}"]
    idle, lost = " ".join(f"{each:.1f}" for each in result.idle_percent), " ".join(map(str, result.lost))
    return "".join(f"{each:>11}" for each in cells) + f"   idle {idle} %, lost {lost}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dashboards.crossbar", description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments: Any = parser.parse_args(argv)
    print("".join(f"{each:>11}" for each in _COLUMNS), flush=True)
    for dashboards, hz in LOADS:
        with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
            result = measure(Path(directory), dashboards, hz, arguments.seconds, arguments.rounds)
        print(show(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
