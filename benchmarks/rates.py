# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.rates`: the live share of messages that a rate limit passes, next to the usual limiter.

An application publishes ten topics over Zenoh, each at a rate with jitter, to a running streamer. Each topic has one
SOME/IP receiver with its own limit, which gets min(published, limit) if the limiter is exact. The usual limiter,
which passes a message when `now - last >= period`, is computed for the same publication times.

A busy machine stops the publisher or the streamer for some periods. The delayed messages then arrive at once, and a
limiter without catch-up cannot pass them: with 3 % late messages, 1 to 2 % less than min(published, limit) is
possible.
Therefore `plugins/recorder` records the arrival times, and `IdealLimiter`, which is no part of the streamer, computes
the maximum for them. A row divides the delivered messages by the smaller of both values, and shows both; on a quiet
machine they are equal. Exit code 1 if a row is not within 0.99 and 1.01.

    python -m benchmarks.rates publish ZENOH_PORT SECONDS    the application; prints its result as JSON
"""

import argparse
import heapq
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from ustreamer_recorder.events import Row
from ustreamer_recorder.reader import read_segment

from benchmarks.harness.child_process import Child, console_script, module_command
from benchmarks.harness.testbed import Ports
from benchmarks.traffic import sockets, wire
from ustreamer.uprotocol.uuri import UUri

ROWS: Final = (
    (100, 0.01, 100),
    (100, 0.01, 77),
    (100, 0.01, 40),
    (100, 0.01, 30),
    (1000, 0.01, 60),
    (99, 0.01, 100),
    (100, 0.20, 100),
    (100, 0.20, 90),
    (100, 0.20, 40),
    (99, 0.20, 100),
)
"""Published Hz, jitter as a fraction of the period, limit in Hz."""
MIN_FIDELITY: Final = 0.99
MAX_FIDELITY: Final = 1.01

_LATE_PERIODS: Final = 0.25
"""Fraction of a period: a later publisher was stopped by the machine, and catches up too fast."""
_TOLERANCE_PERIODS: Final = 0.1  # of a period, as the throttle has it by default
_PAUSE_PERIODS: Final = 2.5  # periods without a message
_SERVICE: Final = 0x5000
_START_S: Final = 30.0
_NS_PER_S: Final = 1_000_000_000
_GRACE_S: Final = 0.5

CONFIG: Final = f"""\
authority = "{wire.STREAMER}"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["{wire.STREAMER}"]
mode = "peer"
listen = ["tcp/{sockets.LOOPBACK}:{{zenoh}}"]

[endpoints.chassis]
transport = "someip"
authorities = ["{wire.ECU}"]
bind = "{sockets.LOOPBACK}"
port = {{someip}}
sd = false

[plugins.usubscription]
[plugins.throttle]
[plugins.recorder]
"""
_SERVICE_TOML: Final = f"""
[[endpoints.chassis.services]]
service = {{service:#06x}}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.STREAMER}/{{service:X}}/{wire.MAJOR}/0"
receivers = [{{{{ address = "{sockets.LOOPBACK}:{{receiver}}", max_frequency = {{limit}} }}}}]
"""


def topic(row: int) -> wire.Address:
    return wire.Address(wire.STREAMER, _SERVICE + row, wire.MAJOR, wire.EVENT)


def services_toml(receiver: int) -> str:
    """The services of all rows, each with its limit."""
    return "".join(
        _SERVICE_TOML.format(service=_SERVICE + row, receiver=receiver, limit=float(limit))
        .replace("{{", "{")
        .replace("}}", "}")
        for row, (_, _, limit) in enumerate(ROWS)
    )


class NaiveLimiter:
    """The usual limiter: passes a message one period after the last one that passed."""

    def __init__(self, limit_hz: float) -> None:
        self.passed = 0
        self._period_ns = round(_NS_PER_S / limit_hz)
        self._last_ns = -_NS_PER_S * 3_600

    def on_message(self, now_ns: int) -> None:
        if now_ns - self._last_ns >= self._period_ns:
            self._last_ns = now_ns
            self.passed += 1


class IdealLimiter:
    """Maximum of any limiter: at most T / period + 2 + tolerance per window, and no catch-up after a pause.

    The first rule is the generic cell rate algorithm with a limit of `(1 + tolerance) * period`. It passes every
    conforming message, and so the maximum. After a pause only the tolerance remains.
    """

    def __init__(self, limit_hz: float) -> None:
        self.passed = 0
        self._period_ns = _NS_PER_S / limit_hz
        self._ahead_ns = self._period_ns * (1 + _TOLERANCE_PERIODS)
        self._theoretical_ns = self._seen_ns = -float("inf")

    def on_message(self, now_ns: int) -> None:
        """Process a message; times are ascending."""
        if now_ns - self._seen_ns > _PAUSE_PERIODS * self._period_ns:
            self._theoretical_ns = now_ns + self._period_ns
        self._seen_ns = now_ns
        if now_ns >= self._theoretical_ns - self._ahead_ns:
            self._theoretical_ns = max(self._theoretical_ns, now_ns) + self._period_ns
            self.passed += 1


def publish(port: int, seconds: float) -> list[dict[str, float]]:
    """Publish all rows for this time. Returns the published messages and those that the usual limiter would pass."""
    session = sockets.zenoh_client(port)
    puts, tails = [], []
    for row in range(len(ROWS)):
        puts.append(sockets.blocking_publisher(session, wire.publish_key(topic(row))).put)
        tails.append(wire.publish_tail(topic(row)))
    naive_limiters = [NaiveLimiter(limit) for _, _, limit in ROWS]
    published, late = [0] * len(ROWS), [0] * len(ROWS)
    rng = random.Random(1)
    sockets.print_ready()
    sys.stdin.readline()
    began_ns = time.monotonic_ns()
    # Jitter around a fixed grid.
    schedule = [(began_ns, row, 0) for row in range(len(ROWS))]
    heapq.heapify(schedule)
    while schedule:
        when_ns, row, number = schedule[0]
        left_ns = when_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / _NS_PER_S)
            continue
        now_ns = time.monotonic_ns()
        # the first message precedes the others, even if late
        if number and now_ns - began_ns > seconds * _NS_PER_S:
            break
        head = wire.attachment_head(time.time_ns() // 1_000_000, published[row])
        puts[row](bytes(16), attachment=head + tails[row])
        published[row] += 1
        naive_limiters[row].on_message(now_ns)
        hz, jitter, _ = ROWS[row]
        period_ns = _NS_PER_S / hz
        late[row] += now_ns - when_ns > _LATE_PERIODS * period_ns
        next_ns = began_ns + round(period_ns * (number + 1 + rng.uniform(-jitter, jitter)))
        heapq.heapreplace(schedule, (next_ns, row, number + 1))
    seconds = (time.monotonic_ns() - began_ns) / _NS_PER_S
    return [
        {"published": count, "late": delayed, "now_last": limiter.passed, "seconds": seconds}
        for count, delayed, limiter in zip(published, late, naive_limiters, strict=True)
    ]


def _count_received(sink: socket.socket, counts: list[int]) -> None:
    """Count arrivals by service."""
    while True:
        try:
            datagram = sink.recv(2_048)
        except BlockingIOError:
            return
        counts[int.from_bytes(datagram[:2]) - _SERVICE] += 1


def measured(directory: Path, seconds: float = 20.0) -> list[dict[str, Any]]:
    ports = Ports.free()
    config = directory / "streamer.toml"
    text = CONFIG.format(**msgspec.structs.asdict(ports)) + services_toml(ports.receiver)
    config.write_text(text, encoding="utf-8")
    sink = sockets.udp_socket(ports.receiver)
    sink.setblocking(False)
    children: list[Child] = []
    try:
        children.append(Child("streamer", [console_script("ustreamer"), "run", str(config)], directory))
        children[0].wait_line("READY", _START_S)
        publisher = Child("publisher", module_command("rates", "publish", ports.zenoh, seconds), directory)
        children.append(publisher)
        publisher.wait_line("READY", _START_S)
        time.sleep(_GRACE_S)  # a subscriber's declaration is on its way
        counts = [0] * len(ROWS)
        publisher.send_command("go")
        done = None
        while done is None:
            time.sleep(0.05)
            _count_received(sink, counts)
            done = publisher.poll_line()
        time.sleep(_GRACE_S)
        _count_received(sink, counts)
    finally:
        for child in reversed(children):
            child.stop()
        sink.close()
    arrivals = _arrival_times(directory)
    return [
        _row(row, published, delivered, arrivals[row])
        for row, (published, delivered) in enumerate(zip(json.loads(done), counts, strict=True))
    ]


def _arrival_times(directory: Path) -> list[list[int]]:
    """Arrival times of the messages of each row, from the recording, delivered or not."""
    arrivals: list[list[int]] = [[] for _ in ROWS]
    for path in directory.rglob("*.useg"):
        for event in read_segment(path.read_bytes(), path.name):
            if isinstance(event, Row) and event.target.egress == "chassis":
                arrivals[UUri.parse(event.source).ue_id - _SERVICE].append(event.arrived_ns)
    return [sorted(each) for each in arrivals]


def _row(row: int, published: dict[str, float], delivered: int, arrivals: Sequence[int]) -> dict[str, Any]:
    hz, jitter, limit = ROWS[row]
    # The first message passes at once, so one message above the share of the limit is correct.
    nominal = min(published["published"], limit * published["seconds"] + 1)
    ideal = IdealLimiter(limit)
    for now_ns in arrivals:
        ideal.on_message(now_ns)
    expected = min(nominal, ideal.passed)
    return {
        "published_hz": hz,
        "jitter": jitter,
        "limit_hz": limit,
        **published,
        "delivered": delivered,
        "arrived": len(arrivals),
        "possible": ideal.passed,
        "fidelity": delivered / expected,
        "nominal_fidelity": delivered / nominal,
        "now_last_fidelity": published["now_last"] / nominal,
    }


def is_within_limits(rows: Sequence[dict[str, Any]]) -> bool:
    return all(MIN_FIDELITY <= row["fidelity"] <= MAX_FIDELITY for row in rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'published, jitter':<20}{'limit':>8}{'delivered':>12}{'fidelity':>10}{'nominal':>10}{'now - last':>12}{'late':>8}"
    ]
    lines += [
        f"{row['published_hz']:>5} Hz +-{row['jitter'] * 100:>3.0f} %     {row['limit_hz']:>5} Hz"
        f"{row['delivered'] / row['seconds']:>9.1f} Hz{row['fidelity']:>10.3f}{row['nominal_fidelity']:>10.3f}{row['now_last_fidelity']:>12.3f}"
        f"{row['late'] / row['published'] * 100:>6.1f} %"
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            f"expected: a fidelity of {MIN_FIDELITY} to {MAX_FIDELITY} in every row, by the smaller of min(published, limit), which is nominal, and of what",
            "the ideal limiter could pass of what arrived when it arrived; now - last: nominal, too; late: the publisher was kept from",
            f"publishing for more than {_LATE_PERIODS} of a period, and caught up faster than any limit allows",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["publish"]:
        print(json.dumps(publish(int(arguments[1]), float(arguments[2]))), flush=True)
        sockets.exit_now()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rates", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(Path(directory), options.seconds)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return int(not is_within_limits(rows))


if __name__ == "__main__":
    sys.exit(main())
