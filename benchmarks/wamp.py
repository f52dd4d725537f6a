# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.wamp`: the WAMP router of the streamer and Crossbar: server cost of an event per subscriber.

One publisher and 1, 10 and 100 subscribers over WebSocket, in JSON, 128 bytes per event. Both servers run at the same
time and get load in turn. The figure is the CPU time of the server's processes, which does not depend on other load.
Crossbar has its own environment below build/, created by the first run; it is no dependency of the project.

A second part runs two streamer routers at once: the latency of 90 clients, where ten further clients read, and where
they do not.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, NamedTuple

from benchmarks.traffic.wamp_clients import TOPIC, SubscriberClients, WampClient, text_frame
from benchmarks.traffic.wamp_servers import (
    WampServerProcess,
    crossbar_command,
    crossbar_python,
    free_port,
    own_command,
    serve_wamp,
)

SUBSCRIBERS: Final = (1, 10, 100)
WINDOW: Final = 100
STALLED: Final = 10


@contextmanager
def open_readers(port: int, subscribers: int) -> Iterator[SubscriberClients]:
    made = SubscriberClients(port, subscribers)
    try:
        yield made
    finally:
        made.close()


def per_delivery_us(server: WampServerProcess, subscribers: int, seconds: float) -> float:
    """CPU time of the server for each event that a subscriber got, in us."""
    payload = text_frame(
        json.dumps([16, 1, {}, TOPIC, [], {"id": "x" * 36, "a": 1.5, "b": 12345, "c": True}]).encode()
    )
    with open_readers(server.port, subscribers) as made:
        publisher = WampClient(server.port, publisher=True)
        _flow(publisher, made, payload, seconds / 4)
        before, counted = server.cpu_ns(), sum(made.counts)
        _flow(publisher, made, payload, seconds)
        spent, got = server.cpu_ns() - before, sum(made.counts) - counted
        publisher.socket.close()
    return spent / got / 1000


def _flow(publisher: WampClient, made: SubscriberClients, payload: bytes, seconds: float) -> None:
    """Publish in windows: the next one starts when the slowest subscriber has the whole previous one."""
    end = time.monotonic() + seconds
    goal = max(made.counts)
    while time.monotonic() < end:
        publisher.send_bytes(payload * WINDOW)
        goal += WINDOW
        _wait_until(partial(made.all_received, goal))


def _wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError("events are missing")
        time.sleep(0.0002)


def p99_us(
    servers: Sequence[WampServerProcess],
    made: Sequence[SubscriberClients],
    seconds: float,
    hertz: float = 50.0,
) -> list[float]:
    """The p99 latency of each server, publish to receive, alternating event by event.

    Other load on the machine thus affects all servers equally.
    """
    publishers = [WampClient(each.port, publisher=True) for each in servers]
    for each in made:
        each.latencies_ns = []
    began, pause = time.monotonic(), 1 / hertz / len(servers)
    for number in range(round(seconds / pause)):
        time.sleep(max(0.0, began + number * pause - time.monotonic()))
        message = [16, 1, {}, TOPIC, [], {"sent": time.monotonic_ns(), "x": "x" * 60}]
        publishers[number % len(servers)].send_bytes(text_frame(json.dumps(message).encode()))
    time.sleep(0.2)
    for publisher in publishers:
        publisher.socket.close()
    found = []
    for each in made:
        latencies, each.latencies_ns = each.latencies_ns or [], None
        found.append(statistics.quantiles(latencies, n=100)[98] / 1000)
    return found


def _fill_socket_buffers(server: WampServerProcess, made: SubscriberClients) -> None:
    """Send more than the kernel buffers for clients that do not read: 4 MB for the server, little for the client."""
    publisher = WampClient(server.port, publisher=True)
    payload = text_frame(json.dumps([16, 1, {}, TOPIC, ["x" * 60_000]]).encode())
    goal = max(made.counts)
    for _ in range(100):  # 6 MB for each
        publisher.send_bytes(payload)
        goal += 1
        _wait_until(partial(made.all_received, goal))
    publisher.socket.close()


def _wait_quiet(made: SubscriberClients) -> None:
    """Wait until no event arrives for a while."""
    before = -1
    while before != (before := sum(made.counts)):
        time.sleep(0.2)


class StallRound(NamedTuple):
    """p99 of 90 clients, in us: of a server whose other ten clients read, and of one whose other ten do not."""

    reading_us: float
    not_reading_us: float

    @property
    def ratio(self) -> float:
        return self.not_reading_us / self.reading_us


class StallResult(NamedTuple):
    """Result. `bytes` is the memory growth of the server whose ten clients stopped reading.

    `dropped` counts events that those ten did not get, `lost` events that others did not get. The kernel buffers
    fewer events than are sent.
    """

    rounds: list[StallRound]
    bytes: int
    dropped: int
    lost: int


def measure_stall(
    servers: Sequence[WampServerProcess],
    seconds: float,
    rounds: int,
    enough: Callable[[Sequence[StallRound]], bool] = lambda _: False,
) -> StallResult:
    """Two servers with 100 clients each; ten clients of the second stop reading.

    Runs until the rounds are `enough`.
    """
    with open_readers(servers[0].port, 100) as all_read, open_readers(servers[1].port, 100) as ten_do_not:
        both = (all_read, ten_do_not)
        for server, each in zip(servers, both, strict=True):
            each.timed = range(STALLED, 100)
            _fill_socket_buffers(server, each)
        p99_us(servers, both, seconds / 2)  # warm
        before = servers[1].rss()
        for index in range(STALLED):
            ten_do_not.pause_reading(index)
        for server, each in zip(servers, both, strict=True):
            _fill_socket_buffers(server, each)
        measured: list[StallRound] = []
        while len(measured) < rounds and not enough(measured):
            measured.append(StallRound(*p99_us(servers, both, seconds)))
        grown = servers[1].rss() - before
        for index in range(STALLED):
            ten_do_not.resume_reading(index)
        _wait_quiet(ten_do_not)
        missing = [max(ten_do_not.counts) - count for count in ten_do_not.counts]
        return StallResult(measured, grown, sum(missing[:STALLED]), sum(missing[STALLED:]))


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wamp", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-crossbar", action="store_true")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.serve:
        serve_wamp(arguments.serve)
    with ExitStack() as stack:
        port, other = free_port(), free_port()
        servers = [WampServerProcess("uStreamer", own_command(port), port)]
        stack.callback(servers[0].close)
        if not arguments.without_crossbar:
            servers.append(WampServerProcess("Crossbar", crossbar_command(crossbar_python(), other), other))
            stack.callback(servers[1].close)
        print("CPU time of the server per delivered event, us")
        for subscribers in SUBSCRIBERS:
            runs: dict[str, list[float]] = {each.name: [] for each in servers}
            for _ in range(arguments.repeats):
                for each in servers:
                    runs[each.name].append(per_delivery_us(each, subscribers, arguments.seconds))
            medians = {name: statistics.median(values) for name, values in runs.items()}
            shown = "  ".join(f"{name} {value:8.2f}" for name, value in medians.items())
            times = f"  {medians['Crossbar'] / medians['uStreamer']:5.1f} times" if len(medians) > 1 else ""
            print(f"{subscribers:4d} subscribers  {shown}{times}", flush=True)
        port = free_port()
        second = WampServerProcess("uStreamer", own_command(port), port)
        stack.callback(second.close)
        stall = measure_stall([servers[0], second], arguments.seconds, arguments.repeats)
        ratios = ", ".join(f"{each.ratio:.2f}" for each in stall.rounds)
        print(
            f"p99 of 90 clients at 50 Hz: {statistics.median(each.reading_us for each in stall.rounds):.0f} us where the "
            f"other ten read, {statistics.median(each.not_reading_us for each in stall.rounds):.0f} us where they do not "
            f"({ratios} times); memory grown by {stall.bytes / 2**20:.1f} MB"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
