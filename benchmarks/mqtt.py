# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.mqtt`: from one MQTT broker to another, next to a bare forwarder with the same client library.

Notifications wait at the first broker (QoS 1) and leave the second one to a sink. The streamer and the bare forwarder
take turns, each as a process of its own. The bare forwarder publishes each packet again, with its topic and properties,
and checks nothing. Figures of a round: messages per second from the first to the last one at the sink, CPU time per
message, lost ones, repeated ones, and those out of order. The ratio is the median of all rounds. It needs mosquitto.
"""

import argparse
import json
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from ustreamer_mqtt.properties import encode, pack, with_length
from ustreamer_mqtt.topics import topic_of

from benchmarks.harness.child_process import Child, console_script
from tests.e2e.rigs.ports import tcp_ports
from tests.mqtt_rig import MOSQUITTO, Mosquitto
from ustreamer.uprotocol.umessage import notification
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

_SINK_AUTHORITY: Final = "dst"
_PAYLOAD_BYTES: Final = 64
_DEADLINE_S: Final = 60.0
_WINDOW: Final = 512
_CONFIG: Final = """\
authority = "gateway"
state_dir = "state"

[endpoints.source]
transport = "mqtt"
broker = "mqtt://127.0.0.1:{source}"
authorities = ["streamer.src"]
client_id = "streamer"

[endpoints.target]
transport = "mqtt"
broker = "mqtt://127.0.0.1:{target}"
authorities = ["dst"]
client_id = "streamer"

[plugins.mqtt]
"""
_BROKER: Final = ("max_inflight_messages 256", "log_type none")


def _packet(kind: int, body: bytes) -> bytes:
    return bytes([kind]) + with_length(body)


def _text(value: str) -> bytes:
    data = value.encode()
    return len(data).to_bytes(2, "big") + data


class RawClient:
    """A connection with packets made by hand, which costs little CPU: many generators would be slower than the streamer."""

    def __init__(self, port: int, client_id: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), _DEADLINE_S)
        self._buffer = bytearray()
        self._socket.sendall(_packet(0x10, _text("MQTT") + b"\x05\x02\x00\x3c\x00" + _text(client_id)))
        self._next_packet()

    def subscribe(self, topic_filter: str) -> None:
        """With QoS 0: the sink acknowledges nothing."""
        self._socket.sendall(_packet(0x82, b"\x00\x01\x00" + _text(topic_filter) + b"\x00"))
        self._next_packet()

    def publish_all(self, packets: Sequence[bytes]) -> None:
        """Send packets of QoS 1, and wait for all acknowledgements."""
        for at in range(0, len(packets), _WINDOW):
            part = packets[at : at + _WINDOW]
            self._socket.sendall(b"".join(part))
            for _ in part:
                self._next_packet()

    def next_payload(self) -> bytes:
        """The last bytes of the next PUBLISH packet."""
        return self._next_packet()[-_PAYLOAD_BYTES:]

    def _next_packet(self) -> bytes:
        while True:
            length, at = 0, 1
            while at < len(self._buffer):
                byte = self._buffer[at]
                length |= (byte & 0x7F) << 7 * (at - 1)
                at += 1
                if byte < 0x80:
                    if len(self._buffer) >= at + length:
                        found = bytes(self._buffer[: at + length])
                        del self._buffer[: at + length]
                        return found
                    break
            data = self._socket.recv(1 << 16)
            assert data, "the broker closed the connection"
            self._buffer += data

    def close(self) -> None:
        self._socket.close()


class Forwarder:
    """A forwarder between the two brokers: its process, and the authority whose messages it takes."""

    def __init__(
        self, name: str, child: Child, brokers: tuple[Mosquitto, Mosquitto], stack: ExitStack
    ) -> None:
        self.name = name
        self._child = child
        self._authority = f"{name}.src"
        self._ids = UuidSource(lambda: time.time_ns() // 1_000_000)
        self._generator = RawClient(brokers[0].port, f"generator-{name}")
        self._sink = RawClient(brokers[1].port, f"sink-{name}")
        stack.callback(self._generator.close)
        stack.callback(self._sink.close)
        self._sink.subscribe(f"{self._authority}/#")

    def _packets(self, number: int) -> list[bytes]:
        source, sink = UUri(self._authority, 0x10A1, 1, 0x8003), UUri(_SINK_AUTHORITY, 0x20, 1, 0)
        topic = _text(topic_of(source, sink))
        found = []
        for index in range(number):
            message = notification(self._ids.next(), source, sink, b"%064d" % index)
            mid = (index % _WINDOW + 1).to_bytes(2, "big")
            properties = pack(encode(message.id, message.attributes))
            found.append(_packet(0x32, topic + mid + properties + message.payload))
        return found

    def measure(self, messages: int) -> dict[str, float]:
        packets, numbers, times = self._packets(messages), list[int](), list[float]()
        cpu_ns = self._child.cpu_ns

        def read() -> None:
            while len(set(numbers)) < messages:
                numbers.append(int(self._sink.next_payload()))
                times.append(time.monotonic())

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        self._generator.publish_all(packets)
        reader.join(_DEADLINE_S)
        spent_us = (self._child.cpu_ns - cpu_ns) / 1000
        in_order = list(dict.fromkeys(numbers))
        return {
            "per_s": round((len(numbers) - 1) / (times[-1] - times[0])),
            "cpu_us": round(spent_us / messages, 1),
            "lost": messages - len(in_order),
            "repeated": len(numbers) - len(in_order),
            "out_of_order": sum(late < early for early, late in pairwise(in_order)),
        }


def _forwarders(directory: Path, stack: ExitStack) -> list[Forwarder]:
    ports = tcp_ports(2)
    source, target = (stack.enter_context(Mosquitto(directory, _BROKER, port)) for port in ports)
    config = directory / "streamer.toml"
    config.write_text(_CONFIG.format(source=source.port, target=target.port), encoding="utf-8")
    commands = {
        "streamer": [console_script("ustreamer"), "run", str(config)],
        "bare": [
            sys.executable,
            "-m",
            "benchmarks.traffic.bare_mqtt_forwarder",
            *map(str, ports),
            "bare.src/#",
        ],
    }
    found = []
    for name, command in commands.items():
        child = Child(name, command, directory)
        stack.callback(child.stop)
        child.wait_line("READY", _DEADLINE_S)
        found.append(Forwarder(name, child, (source, target), stack))
    return found


def measured(directory: Path, messages: int, rounds: int) -> dict[str, Any]:
    """The medians of both forwarders, the sums of lost, repeated and disordered messages, and the ratios."""
    with ExitStack() as stack:
        forwarders = _forwarders(directory, stack)
        for each in forwarders:
            each.measure(min(messages, 500))
        turns = [{each.name: each.measure(messages) for each in forwarders} for _ in range(rounds)]
    figures: dict[str, Any] = {"messages": messages, "rounds": rounds}
    for each in forwarders:
        own = [turn[each.name] for turn in turns]
        figures[each.name] = {
            "per_s": median(turn["per_s"] for turn in own),
            "cpu_us": median(turn["cpu_us"] for turn in own),
            **{name: sum(turn[name] for turn in own) for name in ("lost", "repeated", "out_of_order")},
        }
    ratios = [turn["streamer"]["per_s"] / turn["bare"]["per_s"] for turn in turns]
    figures["ratio"] = round(median(ratios), 2)
    figures["cpu_ratio"] = round(
        median(turn["streamer"]["cpu_us"] / turn["bare"]["cpu_us"] for turn in turns), 2
    )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    if MOSQUITTO is None:
        print("needs the broker mosquitto", file=sys.stderr)
        return 69
    with tempfile.TemporaryDirectory() as directory:
        found = measured(Path(directory), arguments.messages, arguments.rounds)
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
