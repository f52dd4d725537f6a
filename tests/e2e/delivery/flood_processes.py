# SPDX-License-Identifier: Apache-2.0
"""A flooding publisher and counting receivers as processes; plain Zenoh sessions.

    python -m tests.e2e.delivery.flood_processes publish COUNT PORT
    python -m tests.e2e.delivery.flood_processes receive PORT

Both print READY. The publisher first publishes once per topic, then reads a line, and puts COUNT messages as fast as
Zenoh accepts them. The receiver works until it reads a line. At the end each prints one line of JSON: the number of
messages of the flood, or what `Counted` has.
"""

import json
import struct
import sys
from threading import Lock
from typing import Final, NamedTuple

import zenoh

from tests.e2e.delivery.stall_processes import client_session
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import eventually, wait_declared
from tests.e2e.rigs.wire import Attributes, Uri

TOPICS: Final = [Uri("hpc.vin1", 0x2222, 1, 0x8000 + number) for number in range(100)]
SIZE: Final = 1_000
"""Large enough that the buffers of the kernel fill."""
_NUMBER: Final = struct.Struct(">Q")


class Counted(NamedTuple):
    """The messages of the flood that a receiver got."""

    received: int
    disordered: int
    """Messages that arrived after a newer one of their topic."""
    first_seen: int
    """Topics of which at least one message arrived."""


def publish_flood(count: int, port: int) -> int:
    """Publish on all topics in turn. Message 0 of each topic precedes the flood."""
    session = client_session(port)
    publishers = [
        session.declare_publisher(wire.key(topic), congestion_control=zenoh.CongestionControl.BLOCK)
        for topic in TOPICS
    ]
    # One id for all messages of a topic: a new one for each would make this process slower than the streamer.
    attachments = [
        Attributes(wire.new_id(), wire.PUBLISH, topic, priority=wire.CS1).attachment for topic in TOPICS
    ]
    for publisher, attachment in zip(publishers, attachments, strict=True):
        eventually(lambda publisher=publisher: publisher.matching_status.matching, True)  # type: ignore[misc]
        publisher.put(_NUMBER.pack(0), attachment=attachment)
    print("READY", flush=True)
    sys.stdin.readline()
    padding = bytes(SIZE - _NUMBER.size)
    for number in range(1, count + 1):
        topic = number % len(TOPICS)
        publishers[topic].put(_NUMBER.pack(number) + padding, attachment=attachments[topic])
    print(json.dumps(count), flush=True)
    sys.stdin.readline()  # the session ends with the process, and its queue with the session
    return count


def receive_flood(port: int) -> Counted:
    """Count the messages until stopped."""
    lock, newest = Lock(), dict.fromkeys(map(wire.key, TOPICS), -1)
    counts = {"received": 0, "disordered": 0}

    def record(sample: zenoh.Sample) -> None:
        [number] = _NUMBER.unpack_from(sample.payload.to_bytes())
        key = str(sample.key_expr)
        with lock:
            counts["received"] += number > 0
            counts["disordered"] += number <= newest[key]
            newest[key] = number

    session = client_session(port)
    session.declare_subscriber("up/hpc.vin1/2222/*/*/*/{}/{}/{}/{}/{}", record)
    wait_declared(session)
    print("READY", flush=True)
    for _ in sys.stdin:  # each line asks for the counts
        with lock:
            seen = sum(number >= 0 for number in newest.values())
            print(json.dumps(Counted(**counts, first_seen=seen)), flush=True)
    return Counted(**counts, first_seen=0)


def main(role: str, *numbers: str) -> None:
    match role:
        case "publish":
            publish_flood(*map(int, numbers))
        case "receive":
            receive_flood(*map(int, numbers))
        case _:
            raise ValueError(f"{role!r}: expected publish or receive")


if __name__ == "__main__":
    main(*sys.argv[1:])
