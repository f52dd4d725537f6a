# SPDX-License-Identifier: Apache-2.0
"""Traffic of a vehicle: 200 topics of 8 services in a random order, small and medium payloads.

    python -m benchmarks.traffic.mixed udp    BOARD TARGET_PORT UDP_PORT...
    python -m benchmarks.traffic.mixed zenoh  BOARD ZENOH_PORT
    python -m benchmarks.traffic.mixed sink   BOARD ZENOH_PORT

A topic with a short period is sent more often. Each service is an ECU with its own UDP port. Commands as for
`benchmarks.traffic.generators`; the sink subscribes every topic of the ECUs.
"""

import random
import sys
import time
from abc import abstractmethod
from pathlib import Path
from typing import Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import AGES_ENABLED, SharedCounters
from benchmarks.traffic import sinks, sockets, wire
from benchmarks.traffic.generators import Generator, serve_commands, wall_ms

SERVICES: Final = 8
EVENTS: Final = 25
"""Events of each service."""

_TOPICS: Final = SERVICES * EVENTS
_PAYLOADS: Final = (16, 16, 20, 24, 24, 32, 32, 48, 64, 64, 128, 256, 512, 1_024)
_PERIODS_MS: Final = (10, 20, 20, 50, 100, 100)
_ORDER_LENGTH: Final = 4_096
_RPC_TTL_MS: Final = 2_000
_SUBSCRIBE_WITHIN_S: Final = 20.0

_rng: Final = random.Random(7)
_SIZES: Final = _rng.choices(_PAYLOADS, k=_TOPICS)
_ORDER: Final = _rng.choices(
    range(_TOPICS), weights=[1 / period for period in _rng.choices(_PERIODS_MS, k=_TOPICS)], k=_ORDER_LENGTH
)


def event_ids() -> list[int]:
    """The event ids of each service."""
    return [wire.EVENT + number for number in range(EVENTS)]


def topics(authority: str, first_service: int) -> list[wire.Address]:
    """All topics of an authority whose services begin with this one."""
    return [
        wire.Address(authority, first_service + service, wire.MAJOR, event)
        for service in range(SERVICES)
        for event in event_ids()
    ]


class MixedGenerator(Generator):
    """Sends the topics in their order."""

    @abstractmethod
    def send_topic(self, topic: int, body: bytes, number: int) -> None:
        """Send one message of the topic with this index."""

    def send_burst(self) -> None:
        for _ in range(self.burst):
            self._send(0)

    def send_one(self) -> None:
        self._send(time.monotonic_ns())

    def _send(self, stamp_ns: int) -> None:
        topic = _ORDER[self.number % _ORDER_LENGTH]
        self.send_topic(topic, wire.payload(_SIZES[topic], self.number, stamp_ns), self.number)
        self.number += 1


class MixedEcus(MixedGenerator):
    """ECUs that send SOME/IP notifications."""

    def __init__(self, counters: SharedCounters, target: int, *ports: int) -> None:
        super().__init__(counters)
        self._sends = [sockets.udp_socket(port, target).send for port in ports]

    def send_topic(self, topic: int, body: bytes, number: int) -> None:
        service, event = divmod(topic, EVENTS)
        self._sends[service](
            wire.someip_event(wire.SERVICE + service, wire.EVENT + event, wire.session(number), body)
        )


class MixedApplication(MixedGenerator):
    """An application that publishes all topics over Zenoh."""

    def __init__(self, counters: SharedCounters, port: int) -> None:
        super().__init__(counters)
        self._session = sockets.zenoh_client(port)
        published = topics(wire.STREAMER, wire.OFFERED)
        keys = map(wire.publish_key, published)
        self._puts = [sockets.blocking_publisher(self._session, key).put for key in keys]
        self._tails = list(map(wire.publish_tail, published))

    def send_topic(self, topic: int, body: bytes, number: int) -> None:
        self._puts[topic](body, attachment=wire.attachment_head(wall_ms(), number) + self._tails[topic])


def run_sink(counters: SharedCounters, port: int) -> None:
    """Subscribe all topics of the ECUs, then count and time samples."""
    session = sockets.zenoh_client(port)
    _subscribed = _subscribe_all(session)
    sinks.run_zenoh(counters, session, f"up/{wire.ECU}/*/0/{wire.MAJOR:X}/*/{{}}/{{}}/{{}}/{{}}/{{}}")


def _subscribe_all(session: zenoh.Session) -> object:
    """Raises TimeoutError if a subscription is not granted. The result receives later messages to the subscriber."""
    wanted = topics(wire.ECU, wire.SERVICE)
    sinks.subscribe(session, wanted[0], wire.SUBSCRIBER)  # waits until the session knows its peers
    changes, answers = (
        session.declare_subscriber(wire.unicast_key(source, wire.SUBSCRIBER), FifoChannel(2 * _TOPICS))
        for source in (wire.CHANGES, wire.SUBSCRIBE)
    )
    publisher = sockets.blocking_publisher(session, wire.unicast_key(wire.SUBSCRIBER, wire.SUBSCRIBE))
    tail = wire.request_tail(wire.SUBSCRIBER, wire.SUBSCRIBE, _RPC_TTL_MS)
    for number, topic in enumerate(wanted):
        head = wire.attachment_head(wall_ms(), time.monotonic_ns() + number)
        publisher.put(wire.subscription_request(topic), attachment=head + tail)
    deadline, granted = time.monotonic() + _SUBSCRIBE_WITHIN_S, 0
    while granted < len(wanted):
        if time.monotonic() > deadline:
            raise TimeoutError(f"Subscribe: {granted} of {len(wanted)} granted in {_SUBSCRIBE_WITHIN_S:g} s")
        answer = answers.try_recv()
        if answer is None:
            time.sleep(0.01)
        else:
            granted += wire.is_subscribed(answer.payload.to_bytes())
    return changes, answers


def main(kind: str, counters_path: str, *numbers: str) -> None:
    counters, ports = SharedCounters(Path(counters_path)), list(map(int, numbers))
    match kind:
        case "udp":
            serve_commands(MixedEcus(counters, *ports))
        case "zenoh":
            serve_commands(MixedApplication(counters, *ports))
        case "sink":
            sockets.exit_with_parent()
            counters[AGES_ENABLED] = 1
            run_sink(counters, *ports)
        case _:
            raise ValueError(f"{kind!r}: expected udp, zenoh or sink")


if __name__ == "__main__":
    main(*sys.argv[1:])
