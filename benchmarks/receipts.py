# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.receipts`: the cost of receipts between two streamers.

An application sends Notifications over Zenoh to a first streamer, that one to a second one, and that one to another
application. There are two such pairs, without and with receipts. They take turns. The figures are the CPU time of each
streamer for a message, the messages that arrive in a second, and the ratios of the two pairs: the median of all rounds.
Each payload has a number: a round ends with an error if messages are missing, come twice or out of order.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import zenoh

from benchmarks.harness.child_process import Child, console_script
from tests.e2e.rigs.ports import tcp_ports
from ustreamer.transports.zenoh.decoder import VERSION_BYTE
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.uprotocol.umessage import notification
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import encode

BURST: Final = 50
_SOURCE: Final = UUri("hpc", 0x10A1, 1, 0x8003)
_SINK: Final = UUri("cloud", 0x20, 1, 0)
_SIZE: Final = 64
_NUMBER_BYTES: Final = 8
_DEADLINE_S: Final = 30.0
_SENDER: Final = """\
authority = "hpc.streamer"
state_dir = "sender"

[endpoints.inside]
transport = "zenoh"
authorities = ["hpc"]
listen = ["tcp/127.0.0.1:{inside}"]

[endpoints.link]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{link}"]
receipts = {receipts}
durable = {durable}
"""
_RECEIVER: Final = """\
authority = "cloud.streamer"
state_dir = "receiver"

[endpoints.link]
transport = "zenoh"
authorities = ["hpc"]
connect = ["tcp/127.0.0.1:{link}"]
receipts = {receipts}
durable = {durable}

[endpoints.apps]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{apps}"]
"""


class Round(NamedTuple):
    """Figures of one pair. `sender` and `receiver` are the CPU time of a message, in us."""

    messages_per_s: float
    sender: float
    receiver: float


class Pair:
    """Two streamers, and the applications at both ends in this process."""

    def __init__(self, directory: Path, stack: ExitStack, *, receipts: bool, durable: bool) -> None:
        directory.mkdir()
        inside, link, apps = tcp_ports(3)
        values = {"inside": inside, "link": link, "apps": apps}
        flags = {"receipts": str(receipts).lower(), "durable": str(durable).lower()}
        self.streamers: list[Child] = []
        for name, text in ("sender", _SENDER), ("receiver", _RECEIVER):
            config = directory / f"{name}.toml"
            config.write_text(text.format(**values, **flags))
            command = [console_script("ustreamer"), "run", str(config)]
            child = Child(name, command, directory)
            stack.callback(child.stop)
            child.wait_line("READY", _DEADLINE_S)
            self.streamers.append(child)
        self.received: list[int] = []
        self._sent = 0
        self._ids = UuidSource(lambda: time.time_ns() // 1_000_000)
        self._key = message_key(_SOURCE, _SINK, "hpc")
        far = stack.enter_context(_session(apps))
        far.declare_subscriber(f"up/*/*/*/*/*/{self._key.split('/', 6)[6]}", self._on_sample)
        near = stack.enter_context(_session(inside))
        self._publisher = near.declare_publisher(
            self._key, congestion_control=zenoh.CongestionControl.BLOCK, priority=zenoh.Priority.DATA_LOW
        )
        for wait_ms in count():
            assert wait_ms < 10_000, "no message arrives"
            self.send(self.messages(1))
            time.sleep(0.005)
            if self.received:
                break

    def _on_sample(self, sample: zenoh.Sample) -> None:
        self.received.append(int.from_bytes(sample.payload.to_bytes()[:_NUMBER_BYTES]))

    def send(self, messages: Iterable[tuple[bytes, bytes]]) -> None:
        for payload, attachment in messages:
            self._publisher.put(payload, attachment=attachment)

    def messages(self, count: int) -> list[tuple[bytes, bytes]]:
        """The payloads and attachments of new messages."""
        found = []
        for _ in range(count):
            self._sent += 1
            payload = self._sent.to_bytes(_NUMBER_BYTES).ljust(_SIZE, b"x")
            each = notification(self._ids.next(), _SOURCE, _SINK, payload)
            found.append((payload, VERSION_BYTE + encode(each.id, each.attributes)))
        return found

    def measure(self, hz: float, count: int) -> Round:
        """Send `count` messages at a rate, 0 for as fast as possible, until all have arrived."""
        messages, expected = self.messages(count), [*range(self._sent - count + 1, self._sent + 1)]
        before, first, begin = [each.cpu_ns for each in self.streamers], len(self.received), time.monotonic()
        for at in range(0, count, BURST):
            if hz:
                time.sleep(max(0.0, begin + at / hz - time.monotonic()))
            self.send(messages[at : at + BURST])
        while expected[-1] not in self.received[-BURST:] or len(self.received) < first + count:
            assert time.monotonic() < begin + count / (hz or 1e4) + _DEADLINE_S, "messages are missing"
            time.sleep(0.001)
        per_s = count / (time.monotonic() - begin)
        after = [each.cpu_ns for each in self.streamers]
        received = [each for each in self.received[first:] if each >= expected[0]]
        assert received == expected, "messages came twice or out of order"
        return Round(
            per_s, *((late - early) / 1_000 / count for early, late in zip(before, after, strict=True))
        )


def _session(port: int) -> zenoh.Session:
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    return zenoh.open(config)


def measured(directory: Path, hz: float, messages: int, rounds: int, *, durable: bool) -> dict[str, Any]:
    with ExitStack() as stack:
        pairs = [
            Pair(directory / f"receipts-{each}", stack, receipts=each, durable=durable)
            for each in (False, True)
        ]
        found = [[pair.measure(hz, messages) for pair in pairs] for _ in range(rounds)]
    figures: dict[str, Any] = {"hz": hz, "durable": durable}
    for name in Round._fields:
        without, with_receipts = ([getattr(each[pair], name) for each in found] for pair in (0, 1))
        ratios = [late / early for early, late in zip(without, with_receipts, strict=True)]
        figures[name] = {
            "without": median(without),
            "with": median(with_receipts),
            "ratio": median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
        }
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.receipts", description=__doc__)
    parser.add_argument(
        "--hz", type=float, nargs="+", default=[0, 10_000, 1_000], help="0: as fast as possible"
    )
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--durable", action="store_true")
    arguments = parser.parse_args(argv)
    for hz in arguments.hz:
        messages = min(arguments.messages, int(4 * hz) or arguments.messages)
        with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
            found = measured(Path(directory), hz, messages, arguments.rounds, durable=arguments.durable)
        print(json.dumps(found, indent=1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
