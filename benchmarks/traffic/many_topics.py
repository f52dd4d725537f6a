# SPDX-License-Identifier: Apache-2.0
"""Generators and sinks for traffic with many topics (`benchmarks.traffic.models`).

    python -m benchmarks.traffic.many_topics KIND COUNTERS MODEL ARGUMENTS

    zenoh       ZENOH_PORT METHOD_AUTHORITY [PRIORITY]
    udp         TARGET_PORT UDP_PORT...
    zenoh-sink  ZENOH_PORT TOPIC_AUTHORITY SINK_AUTHORITY [subscribe]
    udp-sink    UDP_PORT

The generators read the commands of `benchmarks.traffic.generators`. Each service is an ECU with its own UDP port. A
sink checks each message and answers requests with their payload; a line on its stdin requests a report.
"""

import socket
import sys
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any, Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import (
    AGES_ENABLED,
    NEWEST_PLUS_1,
    OUT_OF_ORDER,
    RECEIVED,
    SEND_ENABLED,
    SENT,
    STEADY_SENT,
    SharedCounters,
)
from benchmarks.traffic import sockets, wire
from benchmarks.traffic.checks import CallCounts, TopicCounts
from benchmarks.traffic.generators import Generator, serve_commands
from benchmarks.traffic.models import CALLER, ECU_CALLER, TrafficModel, method, model_named
from benchmarks.traffic.subscriber import ModelSubscriber

_CHANNEL: Final = 65_536
_TTL_MS: Final = 10_000
_POLL_S: Final = 0.0005
_PAUSE_S: Final = 0.0001
_STALL_NS: Final = 100_000_000
_NS_PER_S: Final = 1_000_000_000
_MESSAGE_MAX: Final = 2_048
_TYPE_OFFSET: Final = 14
_REQUEST, _RESPONSE = 0x00, 0x80
_NUMBER_MASK: Final = (1 << 62) - 1


class TopicsGenerator(Generator):
    """Sends the messages of a model."""

    def __init__(self, counters: SharedCounters, model: TrafficModel) -> None:
        super().__init__(counters)
        self._sequence, self._call = model.sequence, model.call
        self._paddings = [bytes(model.size(topic) - wire.TAIL.size) for topic in range(model.topics + 1)]
        self._steady, self._steady_count = model.steady, 0
        cycle = model.counts(0, len(model.sequence))
        self._steady_share = sum(compress(cycle, model.steady)) / len(model.sequence)
        self.calls = CallCounts()

    @abstractmethod
    def send_message(self, topic: int, body: bytes, number: int) -> None:
        """Send one message; a request if `topic` is `model.call`."""

    def send_windowed(self, window: int, seconds: float) -> None:
        """Keep at most `window` messages in transit. Only messages of steady topics are counted, and scaled to all.

        A newer message does not prove that older ones arrived: forwarders may reorder topics. If none arrives for
        `_STALL_NS`, all messages in transit count as lost.
        """
        counters = self.counters
        since_ns = now_ns = time.monotonic_ns()
        end_ns = now_ns + round(seconds * _NS_PER_S)
        received = counters[RECEIVED]
        lost = self._steady_count - received
        room = window * self._steady_share - self.burst
        while counters[SEND_ENABLED] and now_ns < end_ns:
            before, received, now_ns = received, counters[RECEIVED], time.monotonic_ns()
            if received > before:
                since_ns = now_ns
            elif now_ns - since_ns > _STALL_NS:
                lost, since_ns = self._steady_count - received, now_ns
            if self._steady_count - received - lost > room:
                time.sleep(_PAUSE_S)
                continue
            self.send_burst()
            counters[SENT] = self.number

    def send_burst(self) -> None:
        self._send(self.burst, 0)

    def send_one(self) -> None:
        self._send(1, time.monotonic_ns())

    def _send(self, count: int, stamp_ns: int) -> None:
        sequence, length, paddings = self._sequence, len(self._sequence), self._paddings
        send, pack, call = self.send_message, wire.TAIL.pack, self._call
        for number in range(self.number, self.number + count):
            topic = sequence[number % length]
            self._steady_count += self._steady[topic]
            if topic == call:
                self.calls.on_request(number)
            send(topic, paddings[topic] + pack(number, stamp_ns), number)
        self.number += count
        self.counters[STEADY_SENT] = self._steady_count

    def _on_response(self, body: bytes) -> None:
        if len(body) < wire.TAIL.size:
            return  # an error response has no payload
        number, stamp_ns = wire.TAIL.unpack(body[-wire.TAIL.size :])
        self.calls.on_response(number, time.monotonic_ns() - stamp_ns if stamp_ns else None)

    def report(self) -> object:
        return self.calls.report()


class Application(TopicsGenerator):
    """An application that publishes over Zenoh, and calls a method of another network."""

    def __init__(
        self,
        counters: SharedCounters,
        model: TrafficModel,
        port: int,
        authority: str,
        priority: int = wire.CS1,
    ) -> None:
        super().__init__(counters, model)
        self._session = sockets.zenoh_client(port)
        topics = [model.address(each) for each in range(model.topics)]
        called = method(authority)
        keys = [*map(wire.publish_key, topics), wire.unicast_key(CALLER, called)]
        tails = [
            *(wire.publish_tail(each, priority) for each in topics),
            wire.request_tail(CALLER, called, _TTL_MS),
        ]
        self._parts: list[tuple[Callable[..., Any], bytes]] = [
            (sockets.blocking_publisher(self._session, key).put, tail)
            for key, tail in zip(keys, tails, strict=True)
        ]
        if model.calls:
            answers = self._session.declare_subscriber(
                wire.unicast_key(called, CALLER), FifoChannel(_CHANNEL)
            )
            threading.Thread(target=self._receive_responses, args=(answers,), daemon=True).start()

    def send_message(self, topic: int, body: bytes, number: int) -> None:
        put, tail = self._parts[topic]
        put(body, attachment=wire.attachment_head(time.time_ns() // 1_000_000, number) + tail)

    def _receive_responses(self, answers: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
        while True:
            sample = answers.recv()
            body, attachment = sample.payload.to_bytes(), sample.attachment
            number = int.from_bytes(wire.reqid_lsb(attachment.to_bytes()), "little") if attachment else 0
            if body[-16:-8] == (number & _NUMBER_MASK).to_bytes(8):
                self._on_response(body)


class Ecus(TopicsGenerator):
    """ECUs that send SOME/IP notifications. The first ECU also calls a method of an application."""

    def __init__(self, counters: SharedCounters, model: TrafficModel, target: int, *ports: int) -> None:
        super().__init__(counters, model)
        self._sockets = [sockets.udp_socket(port, target) for port in ports]
        topics = [model.address(each) for each in range(model.topics)]
        self._parts = [
            (self._sockets[number // model.service_topics].send, topic.service, topic.resource)
            for number, topic in enumerate(topics)
        ]
        if model.calls:
            threading.Thread(target=self._receive_responses, daemon=True).start()

    def send_message(self, topic: int, body: bytes, number: int) -> None:
        session = wire.session(number)
        if topic == self._call:
            called = method(wire.STREAMER)
            self._sockets[0].send(
                wire.someip_request(called.service, called.resource, ECU_CALLER.service, session, body)
            )
            return
        send, service, event = self._parts[topic]
        send(wire.someip_event(service, event, session, body))

    def _receive_responses(self) -> None:
        recv = self._sockets[0].recv
        while True:
            datagram = recv(_MESSAGE_MAX)
            if datagram[_TYPE_OFFSET] == _RESPONSE:
                self._on_response(datagram[wire.SOMEIP_HEADER.size :])


class TopicsSink:
    """Counts the messages, notes their ages, and checks their order."""

    def __init__(self, counters: SharedCounters, model: TrafficModel) -> None:
        counters[AGES_ENABLED] = 1
        self.counters = counters
        self.topics = TopicCounts(model)

    def run(self, recv: Callable[[], bytes], try_recv: Callable[[], bytes | None]) -> None:
        """Receive messages: each at once while ages are noted, otherwise all waiting ones every half millisecond."""
        counters = self.counters
        while True:
            if not counters[AGES_ENABLED]:
                time.sleep(_POLL_S)
            message: bytes | None = recv() if counters[AGES_ENABLED] else try_recv()
            while message is not None:
                self._take(message)
                message = try_recv()

    def _take(self, message: bytes) -> None:
        counters, now_ns = self.counters, time.monotonic_ns()
        number, stamp_ns = wire.TAIL.unpack(message[-wire.TAIL.size :])
        if stamp_ns and counters[AGES_ENABLED]:
            counters.record_age(now_ns - stamp_ns)
        if self.topics.on_message(number, now_ns):
            counters[OUT_OF_ORDER] += 1
        counters[RECEIVED] = self.topics.steady_count
        counters[NEWEST_PLUS_1] = max(counters[NEWEST_PLUS_1], number + 1)


def run_zenoh_sink(
    counters: SharedCounters,
    model: TrafficModel,
    port: int,
    authority: str,
    own_authority: str,
    *options: str,
) -> None:
    session, sink = sockets.zenoh_client(port), TopicsSink(counters, model)
    address = wire.Address(own_authority, 0x10A1, 1, 0)
    subscriber = ModelSubscriber(session, model, authority, address)
    sockets.exit_with_parent(lambda: {**sink.topics.report(), "switches": subscriber.switch_count})
    if model.calls:
        threading.Thread(target=_answer_calls, args=(session, method(own_authority)), daemon=True).start()
    if "subscribe" in options:
        subscriber.subscribe_all()
        subscriber.switch_in_background(counters)
    # Not the change topics of uSubscription, which have the versions 3 and 4.
    samples = session.declare_subscriber(
        f"up/{authority}/*/*/{wire.MAJOR:X}/*/{{}}/{{}}/{{}}/{{}}/{{}}", FifoChannel(_CHANNEL)
    )

    def recv() -> bytes:
        return samples.recv().payload.to_bytes()

    def try_recv() -> bytes | None:
        sample = samples.try_recv()
        return None if sample is None else sample.payload.to_bytes()

    sockets.print_ready()
    sink.run(recv, try_recv)


def _answer_calls(session: zenoh.Session, called: wire.Address) -> None:
    """Answer each request with its payload; the key contains the source."""
    requests = session.declare_subscriber(f"up/*/*/*/*/*/{called.chunks}", FifoChannel(_CHANNEL))
    callers: dict[str, tuple[Callable[..., Any], bytes]] = {}
    while True:
        sample = requests.recv()
        key, attachment = str(sample.key_expr), sample.attachment
        if key not in callers:
            authority, entity, _, version, resource = key.split("/")[1:6]
            source = wire.Address(authority, int(entity, 16), int(version, 16), int(resource, 16))
            publisher = sockets.blocking_publisher(session, wire.unicast_key(called, source))
            callers[key] = publisher.put, wire.response_tail(called, source, _TTL_MS)
        put, tail = callers[key]
        assert attachment is not None
        head = wire.attachment_head(time.time_ns() // 1_000_000, time.monotonic_ns())
        put(sample.payload, attachment=head + tail + wire.reqid(attachment.to_bytes()))


def run_udp_sink(counters: SharedCounters, model: TrafficModel, port: int) -> None:
    sink, sock = TopicsSink(counters, model), sockets.udp_socket(port)
    sockets.exit_with_parent(sink.topics.report)

    def receive(flags: int) -> bytes:
        """The next notification; requests are answered with their payload."""
        while True:
            datagram, address = sock.recvfrom(_MESSAGE_MAX, flags)
            if datagram[_TYPE_OFFSET] != _REQUEST:
                return datagram
            sock.sendto(datagram[:_TYPE_OFFSET] + bytes([_RESPONSE]) + datagram[_TYPE_OFFSET + 1 :], address)

    def try_recv() -> bytes | None:
        try:
            return receive(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    sockets.print_ready()
    sink.run(lambda: receive(0), try_recv)


def main(kind: str, counters_path: str, model_name: str, port: str, *rest: str) -> None:
    counters, model = SharedCounters(Path(counters_path)), model_named(model_name)
    match kind:
        case "zenoh":
            authority, *priority = rest
            serve_commands(Application(counters, model, int(port), authority, *map(int, priority)))
        case "udp":
            serve_commands(Ecus(counters, model, int(port), *map(int, rest)))
        case "zenoh-sink":
            run_zenoh_sink(counters, model, int(port), *rest)
        case "udp-sink":
            run_udp_sink(counters, model, int(port))
        case _:
            raise ValueError(f"{kind!r}: expected zenoh, udp, zenoh-sink or udp-sink")


if __name__ == "__main__":
    main(*sys.argv[1:])
