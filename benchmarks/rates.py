# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.rates`: how many of a publisher's messages a limit lets through, live, beside the usual limiter.

An application publishes ten topics over Zenoh, each at a rate with some jitter, to a running streamer. Each topic has one
SOME/IP receiver with a limit of its own, which gets min(published, limit) if the limiter is right. Beside it: what a limiter
that passes a message when `now - last >= period` makes of the very times at which the messages were published. Exit code 1 if
a row is not within 0.99 and 1.01.

    python -m benchmarks.rates publish ZENOH_PORT SECONDS    the application; prints what it did as JSON
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

from benchmarks import links, wire
from benchmarks.children import Child, console_script, module
from benchmarks.rigs import Ports

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
LEAST: Final = 0.99
MOST: Final = 1.01

_LATE: Final = 0.25
"""Of a period: a publisher so late has been stopped by the machine, and what it then catches up with is too fast."""
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
listen = ["tcp/{links.LOOPBACK}:{{zenoh}}"]

[endpoints.chassis]
transport = "someip"
authorities = ["{wire.ECU}"]
bind = "{links.LOOPBACK}"
port = {{someip}}
sd = false

[plugins.usubscription]
[plugins.throttle]
"""
_OFFER: Final = f"""
[[endpoints.chassis.services]]
service = {{service:#06x}}
major = {wire.MAJOR}
events = [{{{{ id = {wire.EVENT:#06x} }}}}]
offered = true
provider = "up://{wire.STREAMER}/{{service:X}}/{wire.MAJOR}/0"
receivers = [{{{{ address = "{links.LOOPBACK}:{{receiver}}", max_frequency = {{limit}} }}}}]
"""


def topic(row: int) -> wire.Address:
    return wire.Address(wire.STREAMER, _SERVICE + row, wire.MAJOR, wire.EVENT)


def offers(receiver: int) -> str:
    """The services of all rows, each with its limit."""
    return "".join(
        _OFFER.format(service=_SERVICE + row, receiver=receiver, limit=float(limit))
        .replace("{{", "{")
        .replace("}}", "}")
        for row, (_, _, limit) in enumerate(ROWS)
    )


class NowLast:
    """The limiter of the field: a message passes if the last that passed is a period ago."""

    def __init__(self, limit_hz: float) -> None:
        self.passed = 0
        self._period_ns = round(_NS_PER_S / limit_hz)
        self._last_ns = -_NS_PER_S * 3_600

    def see(self, now_ns: int) -> None:
        if now_ns - self._last_ns >= self._period_ns:
            self._last_ns = now_ns
            self.passed += 1


def publish(port: int, seconds: float) -> list[dict[str, float]]:
    """Publish all rows for so long; what was published, and what the usual limiter would have passed, each in messages."""
    session = links.zenoh_client(port)
    puts, tails = [], []
    for row in range(len(ROWS)):
        puts.append(links.publisher(session, wire.publish_key(topic(row))).put)
        tails.append(wire.publish_tail(topic(row)))
    beside = [NowLast(limit) for _, _, limit in ROWS]
    published, late = [0] * len(ROWS), [0] * len(ROWS)
    dice = random.Random(1)
    links.ready()
    sys.stdin.readline()
    began_ns = time.monotonic_ns()
    # Jitter is around a fixed grid, as the facts have it.
    due = [(began_ns, row, 0) for row in range(len(ROWS))]
    heapq.heapify(due)
    while due:
        when_ns, row, number = due[0]
        left_ns = when_ns - time.monotonic_ns()
        if left_ns > 0:
            time.sleep(left_ns / _NS_PER_S)
            continue
        now_ns = time.monotonic_ns()
        if number and now_ns - began_ns > seconds * _NS_PER_S:  # the first of each comes first, however late
            break
        head = wire.attachment_head(time.time_ns() // 1_000_000, published[row])
        puts[row](bytes(16), attachment=head + tails[row])
        published[row] += 1
        beside[row].see(now_ns)
        hz, jitter, _ = ROWS[row]
        period_ns = _NS_PER_S / hz
        late[row] += now_ns - when_ns > _LATE * period_ns
        next_ns = began_ns + round(period_ns * (number + 1 + dice.uniform(-jitter, jitter)))
        heapq.heapreplace(due, (next_ns, row, number + 1))
    seconds = (time.monotonic_ns() - began_ns) / _NS_PER_S
    return [
        {"published": count, "late": delayed, "now_last": limiter.passed, "seconds": seconds}
        for count, delayed, limiter in zip(published, late, beside, strict=True)
    ]


def _count(sink: socket.socket, counts: list[int]) -> None:
    """Count what has arrived, by its service."""
    while True:
        try:
            datagram = sink.recv(2_048)
        except BlockingIOError:
            return
        counts[int.from_bytes(datagram[:2]) - _SERVICE] += 1


def measured(directory: Path, seconds: float = 20.0) -> list[dict[str, Any]]:
    ports = Ports.free()
    config = directory / "streamer.toml"
    text = CONFIG.format(**msgspec.structs.asdict(ports)) + offers(ports.receiver)
    config.write_text(text, encoding="utf-8")
    sink = links.udp(ports.receiver)
    sink.setblocking(False)
    children: list[Child] = []
    try:
        children.append(Child("streamer", [console_script("ustreamer"), "run", str(config)], directory))
        children[0].expect("READY", _START_S)
        publisher = Child("publisher", module("rates", "publish", ports.zenoh, seconds), directory)
        children.append(publisher)
        publisher.expect("READY", _START_S)
        time.sleep(_GRACE_S)  # a subscriber's declaration is on its way
        counts = [0] * len(ROWS)
        publisher.say("go")
        done = None
        while done is None:
            time.sleep(0.05)
            _count(sink, counts)
            done = publisher.line()
        time.sleep(_GRACE_S)
        _count(sink, counts)
    finally:
        for child in reversed(children):
            child.end()
        sink.close()
    return [
        _row(row, told, delivered)
        for row, (told, delivered) in enumerate(zip(json.loads(done), counts, strict=True))
    ]


def _row(row: int, told: dict[str, float], delivered: int) -> dict[str, Any]:
    hz, jitter, limit = ROWS[row]
    # The first message passes at once, so one more than the limit's share is right.
    due = min(told["published"], limit * told["seconds"] + 1)
    return {
        "published_hz": hz,
        "jitter": jitter,
        "limit_hz": limit,
        **told,
        "delivered": delivered,
        "fidelity": delivered / due,
        "now_last_fidelity": told["now_last"] / due,
    }


def is_met(rows: Sequence[dict[str, Any]]) -> bool:
    return all(LEAST <= row["fidelity"] <= MOST for row in rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{'published, jitter':<20}{'limit':>8}{'delivered':>12}{'fidelity':>10}{'now - last':>12}{'late':>8}"
    ]
    lines += [
        f"{row['published_hz']:>5} Hz +-{row['jitter'] * 100:>3.0f} %     {row['limit_hz']:>5} Hz"
        f"{row['delivered'] / row['seconds']:>9.1f} Hz{row['fidelity']:>10.3f}{row['now_last_fidelity']:>12.3f}"
        f"{row['late'] / row['published'] * 100:>6.1f} %"
        for row in rows
    ]
    return "\n".join(
        [
            *lines,
            f"expected: {LEAST} to {MOST} in every row; late: the publisher was kept from publishing for more than {_LATE} of a",
            "period, and caught up faster than any limit allows: with more than 1 % of that, the machine was measured",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["publish"]:
        print(json.dumps(publish(int(arguments[1]), float(arguments[2]))), flush=True)
        links.end()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rates", description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(Path(directory), options.seconds)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return int(not is_met(rows))


if __name__ == "__main__":
    sys.exit(main())
