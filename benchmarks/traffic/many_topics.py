# SPDX-License-Identifier: Apache-2.0
"""Generator, sink and bare forwarder for traffic with many topics, from one Zenoh network to another.

    python -m benchmarks.traffic.many_topics generator BOARD MODEL ZENOH_PORT
    python -m benchmarks.traffic.many_topics sink BOARD MODEL ZENOH_PORT [subscribe]
    python -m benchmarks.traffic.many_topics bare ZENOH_PORT OTHER_ZENOH_PORT

The sink checks each message: a number at or below the last one of its topic is out of order.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import (
    AGES_ENABLED,
    NEWEST_PLUS_1,
    OUT_OF_ORDER,
    RECEIVED,
    SharedCounters,
)
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.generators import Generator, serve_commands
from benchmarks.traffic.models import MODELS, TrafficModel

_CHANNEL: Final = 1_024
_SINK_CHANNEL: Final = 65_536
_EVERY_TOPIC: Final = "up/{}/*/*/*/*/{{}}/{{}}/{{}}/{{}}/{{}}"
_TTL_MS: Final = 60_000
_SUBSCRIBES_IN_FLIGHT: Final = 64
_SUBSCRIBE_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.0005


class TopicsGenerator(Generator):
    """An application that publishes on all topics of a model."""

    def __init__(self, counters: SharedCounters, model: TrafficModel, port: int) -> None:
        super().__init__(counters)
        self._session = sockets.zenoh_client(port)
        self._sequence = model.sequence
        topics = [model.address(each) for each in range(model.topics)]
        self._parts: list[tuple[Callable[..., Any], bytes, bytes]] = [
            (
                sockets.blocking_publisher(self._session, wire.publish_key(topic)).put,
                bytes(model.size(number) - wire.TAIL.size),
                wire.publish_tail(topic),
            )
            for number, topic in enumerate(topics)
        ]

    def send_burst(self) -> None:
        self._send(self.burst, 0)

    def send_one(self) -> None:
        self._send(1, time.monotonic_ns())

    def _send(self, count: int, stamp_ns: int) -> None:
        parts, sequence, pack, head = self._parts, self._sequence, wire.TAIL.pack, wire.attachment_head
        wall_ms = time.time_ns() // 1_000_000
        for number in range(self.number, self.number + count):
            put, padding, tail = parts[sequence[number % len(sequence)]]
            put(padding + pack(number, stamp_ns), attachment=head(wall_ms, number) + tail)
        self.number += count


def run_sink(counters: SharedCounters, model: TrafficModel, session: zenoh.Session) -> None:
    """Count the messages, note their ages, and count those out of order."""
    subscriber = session.declare_subscriber(_EVERY_TOPIC.format(wire.STREAMER), FifoChannel(_SINK_CHANNEL))
    sockets.print_ready()
    recv, try_recv, unpack = subscriber.recv, subscriber.try_recv, wire.TAIL.unpack
    sequence, newest = model.sequence, [-1] * model.topics
    length = len(sequence)
    while True:
        if not counters[AGES_ENABLED]:
            time.sleep(_POLL_S)
        sample: zenoh.Sample | None = recv() if counters[AGES_ENABLED] else try_recv()
        received = disordered = 0
        while sample is not None:
            number, stamp_ns = unpack(sample.payload.to_bytes()[-wire.TAIL.size :])
            if stamp_ns and counters[AGES_ENABLED]:
                counters.record_age(time.monotonic_ns() - stamp_ns)
            topic = sequence[number % length]
            disordered += number <= newest[topic]
            newest[topic] = number
            received += 1
            counters[NEWEST_PLUS_1] = max(counters[NEWEST_PLUS_1], number + 1)
            sample = try_recv()
        counters[RECEIVED] += received
        counters[OUT_OF_ORDER] += disordered


def subscribe(session: zenoh.Session, model: TrafficModel) -> list[object]:
    """Subscribe all topics at the streamer. Raises TimeoutError if one is not granted.

    The returned objects receive responses and notifications; unread ones would wait in the streamer.
    """
    subscriber = wire.REMOTE_SUBSCRIBER
    changes = session.declare_subscriber(wire.unicast_key(wire.CHANGES, subscriber), lambda _: None)
    answers = session.declare_subscriber(
        wire.unicast_key(wire.SUBSCRIBE, subscriber), FifoChannel(_SINK_CHANNEL)
    )
    requests = sockets.blocking_publisher(session, wire.unicast_key(subscriber, wire.SUBSCRIBE))
    tail = wire.request_tail(subscriber, wire.SUBSCRIBE, _TTL_MS)
    waiting = {number: wire.subscription_request(model.address(number)) for number in range(model.topics)}
    in_flight: dict[bytes, int] = {}
    deadline = time.monotonic() + _SUBSCRIBE_WITHIN_S
    retry_s = time.monotonic()
    while waiting or in_flight:
        now_s = time.monotonic()
        if now_s > deadline:
            raise TimeoutError(
                f"Subscribe: {len(waiting) + len(in_flight)} of {model.topics} topics not granted"
            )
        if now_s - retry_s > 1.0:  # the session may not have known its peers yet
            waiting |= {
                number: wire.subscription_request(model.address(number)) for number in in_flight.values()
            }
            in_flight.clear()
        while waiting and len(in_flight) < _SUBSCRIBES_IN_FLIGHT:
            number, body = waiting.popitem()
            head = wire.attachment_head(time.time_ns() // 1_000_000, number + 1)
            in_flight[head[-8:]] = number
            requests.put(body, attachment=head + tail)
        answer = answers.try_recv()
        if answer is None:
            time.sleep(_POLL_S)
            continue
        retry_s = now_s
        attachment = answer.attachment
        if attachment is not None and wire.is_subscribed(answer.payload.to_bytes()):
            in_flight.pop(wire.reqid_lsb(attachment.to_bytes()), None)
    return [changes, answers]


def run_bare(zenoh_port: int, other_port: int) -> None:
    """Put every sample unchanged to the same key of another network, by one publisher for each key."""
    source, target = sockets.zenoh_peer(zenoh_port), sockets.zenoh_peer(other_port)
    publishers: dict[str, Callable[..., Any]] = {}
    subscriber = source.declare_subscriber(_EVERY_TOPIC.format(wire.STREAMER), FifoChannel(_CHANNEL))
    sockets.print_ready()
    while True:
        sample = subscriber.recv()
        key = str(sample.key_expr)
        put = publishers.get(key)
        if put is None:
            put = publishers[key] = sockets.blocking_publisher(target, key).put
        put(sample.payload, attachment=sample.attachment)


def main(*arguments: str) -> None:
    match arguments:
        case ["generator", board, model, port]:
            serve_commands(TopicsGenerator(SharedCounters(Path(board)), MODELS[model], int(port)))
        case ["sink", board, model, port, *options]:
            sockets.exit_with_parent()
            counters, session = SharedCounters(Path(board)), sockets.zenoh_client(int(port))
            counters[AGES_ENABLED] = 1
            _subscribers = subscribe(session, MODELS[model]) if options else []
            run_sink(counters, MODELS[model], session)
        case ["bare", port, other]:
            sockets.exit_with_parent()
            run_bare(int(port), int(other))
        case _:
            raise ValueError(f"{arguments}: expected generator, sink or bare, and their arguments")


if __name__ == "__main__":
    main(*sys.argv[1:])
