# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.chains publish ZENOH_PORT SOMEIP_PORT ECU_PORT`: one line of JSON for each command."""

import json
import random
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.chains.rows import ROWS, TOPICS, ChainTopic
from benchmarks.traffic import sockets, wire

_STALL_EVERY_NS: Final = 300_000_000
_STALL_NS: Final = 60_000_000
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000


class Publisher:
    """Publishes by the clock: every message at its time, or after the stall in which it was created."""

    def __init__(self, zenoh_port: int, someip_port: int, ecu_port: int) -> None:
        self._ecu = sockets.udp_socket(ecu_port, someip_port)
        self._session = sockets.zenoh_client(zenoh_port)
        self._publishers = {
            topic: sockets.blocking_publisher(self._session, wire.publish_key(topic.address))
            for topic in TOPICS
            if not ROWS[topic.row].is_someip
        }
        self._tails = {topic: wire.publish_tail(topic.address) for topic in self._publishers}

    def run(self, topics: Sequence[ChainTopic], seconds: float, *, bunched: bool) -> list[int]:
        """Returns the number of messages of each topic."""
        schedule = sorted(each for topic in topics for each in _times(topic, seconds, bunched=bunched))
        counts = dict.fromkeys(topics, 0)
        began_ns, wall_ns = time.monotonic_ns(), time.time_ns()
        for sent_ns, created_ns, topic in schedule:
            while (left_ns := began_ns + sent_ns - time.monotonic_ns()) > 0:
                time.sleep(left_ns / _NS_PER_S)
            self._send(topic, counts[topic], (wall_ns + created_ns) // _NS_PER_MS)
            counts[topic] += 1
        return list(counts.values())

    def _send(self, topic: ChainTopic, number: int, wall_ms: int) -> None:
        body = wire.TAIL.pack(number, time.monotonic_ns())
        publisher = self._publishers.get(topic)
        if publisher is not None:
            unique = TOPICS.index(topic) << 32 | number  # equal ids would be duplicates, also on two topics
            publisher.put(body, attachment=wire.attachment_head(wall_ms, unique) + self._tails[topic])
        else:
            address = topic.address
            self._ecu.send(wire.someip_event(address.service, address.resource, wire.session(number), body))


def _times(topic: ChainTopic, seconds: float, *, bunched: bool) -> Iterator[tuple[int, int, ChainTopic]]:
    """When each message of a topic is sent and created, in ns from the start."""
    row, rng = ROWS[topic.row], random.Random(topic.depth)
    period_ns = _NS_PER_S / row.hz
    for number in range(int(row.hz * seconds)):
        created_ns = round((number + 1 + rng.uniform(-row.jitter, row.jitter)) * period_ns)
        is_held = bunched and created_ns % _STALL_EVERY_NS > _STALL_EVERY_NS - _STALL_NS
        sent_ns = (created_ns // _STALL_EVERY_NS + 1) * _STALL_EVERY_NS if is_held else created_ns
        yield sent_ns, created_ns, topic


def serve_publisher(ports: Sequence[int]) -> None:
    """Run the commands of stdin until it closes."""
    publisher = Publisher(*ports)
    sockets.print_ready()
    for line in sys.stdin:
        topics, seconds, bunched = json.loads(line)
        counts = publisher.run([ChainTopic(*each) for each in topics], seconds, bunched=bunched)
        print(json.dumps(counts), flush=True)
    sockets.exit_now()
