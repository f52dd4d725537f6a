# SPDX-License-Identifier: Apache-2.0
"""A publisher and receivers as processes that can be stopped; plain Zenoh sessions.

    python -m tests.e2e.delivery.stall_processes publish HZ PORT
    python -m tests.e2e.delivery.stall_processes receive PORT...

Each prints READY and works until it reads a line. It then prints one line of JSON: the number of messages sent, or
for each port the [number, sent at (s, monotonic), age in s] of the received messages.
"""

import json
import struct
import sys
import time
from functools import partial
from typing import Final

import zenoh

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, eventually, wait_declared
from tests.e2e.rigs.wire import Attributes, Uri

TOPIC: Final = Uri("hpc.vin1", 0x2222, 1, 0x8001)
SIZE: Final = 60_000
_STAMP: Final = struct.Struct(">Qd")
_BUFFER: Final = 65_536  # megabytes of socket buffers would hide a stopped process


def client_session(port: int, buffer: int | None = None) -> zenoh.Session:
    """A client of the listener at `port`, with a receive buffer of that size."""
    config = zenoh.Config()
    config.insert_json5("mode", '"client"')
    config.insert_json5("connect/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("transport/shared_memory/enabled", "false")  # else 60 kB cross the socket as 75 bytes
    if buffer is not None:
        config.insert_json5("transport/link/tcp/so_rcvbuf", str(buffer))
    return zenoh.open(config)


def small_buffer_session(port: int) -> zenoh.Session:
    """A client of the listener at `port`, with small buffers only."""
    return client_session(port, _BUFFER)


def publish_until_stopped(hz: float, port: int) -> int:
    """Publish TOPIC until stopped. Returns the number of messages."""
    source = small_buffer_session(port)
    publisher = source.declare_publisher(
        wire.key(TOPIC),
        priority=zenoh.Priority.DATA_LOW,
        congestion_control=zenoh.CongestionControl.BLOCK,
    )
    padding = bytes(SIZE - _STAMP.size)

    def beat(number: int) -> None:
        attributes = Attributes(wire.new_id(), wire.PUBLISH, TOPIC, priority=wire.CS1)
        publisher.put(_STAMP.pack(number, time.monotonic()) + padding, attachment=attributes.attachment)

    eventually(lambda: publisher.matching_status.matching, True)  # type: ignore[attr-defined]
    print("READY", flush=True)
    with Metronome(hz, beat) as metronome:
        sys.stdin.readline()
    return metronome.beats


def receive_until_stopped(ports: list[int]) -> list[list[tuple[int, float, float]]]:
    """Record the messages of TOPIC on each session until stopped."""
    received: list[list[tuple[int, float, float]]] = [[] for _ in ports]

    def record(index: int, sample: zenoh.Sample) -> None:
        number, sent = _STAMP.unpack_from(sample.payload.to_bytes())
        received[index].append((number, sent, time.monotonic() - sent))

    sessions = [small_buffer_session(port) for port in ports]
    for index, each in enumerate(sessions):
        each.declare_subscriber(wire.key(TOPIC), partial(record, index))
        wait_declared(each)
    print("READY", flush=True)
    sys.stdin.readline()
    return received


def main(role: str, *numbers: str) -> None:
    result: object
    match role:
        case "publish":
            hz, port = numbers
            result = publish_until_stopped(float(hz), int(port))
        case "receive":
            result = receive_until_stopped([int(port) for port in numbers])
        case _:
            raise ValueError(f"{role!r}: expected publish or receive")
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
