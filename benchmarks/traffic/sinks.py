# SPDX-License-Identifier: Apache-2.0
"""The sinks: count the received messages or, message by message, record their age.

    python -m benchmarks.traffic.sinks udp COUNTERS UDP_PORT              (udp-anywhere: at all addresses)
    python -m benchmarks.traffic.sinks zenoh-client COUNTERS ZENOH_PORT [other] [subscribe]
    python -m benchmarks.traffic.sinks zenoh-peer COUNTERS ZENOH_PORT

While counting they read only every half millisecond, so neither side has a wake-up per message. While recording ages,
a sink without messages waits in the receiving call and costs nothing.
"""

import sys
import time
from pathlib import Path
from typing import Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import AGES_ENABLED, NEWEST_PLUS_1, RECEIVED, SharedCounters
from benchmarks.traffic import sockets, wire

_POLL_S: Final = 0.0005
_CHANNEL: Final = 65_536  # above any window: the channel of the sink never blocks a forwarder
_RPC_TTL_MS: Final = 2_000
_SUBSCRIBE_WITHIN_S: Final = 20.0
_MESSAGE_MAX: Final = 2_048


def run_udp(counters: SharedCounters, port: int, host: str = sockets.LOOPBACK) -> None:
    """Count and time datagrams."""
    sink = sockets.udp_socket(port, host=host)
    sockets.print_ready()
    recv, recv_into = sink.recv, sink.recv_into
    buffer = bytearray(_MESSAGE_MAX)
    tail = wire.TAIL
    while True:
        sink.setblocking(True)
        while counters[AGES_ENABLED]:
            message = recv(_MESSAGE_MAX)
            _record_age(counters, message)
        sink.setblocking(False)
        while not counters[AGES_ENABLED]:
            count = size = 0
            try:
                while True:
                    size = recv_into(buffer)
                    count += 1
            except BlockingIOError:
                pass
            if count:
                _count_received(counters, count, tail.unpack_from(buffer, size - tail.size)[0])
            time.sleep(_POLL_S)


def run_zenoh(counters: SharedCounters, session: zenoh.Session, key: str) -> None:
    """Count and time samples."""
    subscriber = session.declare_subscriber(key, FifoChannel(_CHANNEL))
    sockets.print_ready()
    recv, try_recv = subscriber.recv, subscriber.try_recv
    while True:
        while counters[AGES_ENABLED]:
            _record_age(counters, recv().payload.to_bytes())
        while not counters[AGES_ENABLED]:
            count, newest = 0, None
            while (sample := try_recv()) is not None:
                count += 1
                newest = sample
            if newest is not None:
                _count_received(counters, count, _number(newest.payload.to_bytes()))
            time.sleep(_POLL_S)


def _number(message: bytes) -> int:
    number: int = wire.TAIL.unpack_from(message, len(message) - wire.TAIL.size)[0]
    return number


def _record_age(counters: SharedCounters, message: bytes) -> None:
    now_ns = time.monotonic_ns()
    number, stamp_ns = wire.TAIL.unpack_from(message, len(message) - wire.TAIL.size)
    if stamp_ns:
        counters.record_age(now_ns - stamp_ns)
    _count_received(counters, 1, number)


def _count_received(counters: SharedCounters, count: int, newest: int) -> None:
    counters[RECEIVED] += count
    counters[NEWEST_PLUS_1] = max(counters[NEWEST_PLUS_1], newest + 1)


def subscribe(session: zenoh.Session, topic: wire.Address, subscriber: wire.Address) -> object:
    """Subscribe `topic` at the streamer. Raises TimeoutError with the last response if it is not granted.

    The returned object receives responses and notifications; unread ones would wait in the streamer.
    """
    changes = session.declare_subscriber(wire.unicast_key(wire.CHANGES, subscriber), FifoChannel(16))
    answers = session.declare_subscriber(wire.unicast_key(wire.SUBSCRIBE, subscriber), FifoChannel(16))
    request_publisher = sockets.blocking_publisher(session, wire.unicast_key(subscriber, wire.SUBSCRIBE))
    tail = wire.request_tail(subscriber, wire.SUBSCRIBE, _RPC_TTL_MS)
    deadline = time.monotonic() + _SUBSCRIBE_WITHIN_S
    last = "no answer"
    while time.monotonic() < deadline:
        # The session may not have discovered its peers yet, so the request is repeated.
        sent_ns = time.time_ns()
        request_publisher.put(
            wire.subscription_request(topic),
            attachment=wire.attachment_head(sent_ns // 1_000_000, sent_ns & 0xFFFF_FFFF) + tail,
        )
        time.sleep(0.1)
        while (answer := answers.try_recv()) is not None:
            last = answer.payload.to_bytes().hex()
            if wire.is_subscribed(answer.payload.to_bytes()):
                return answers, changes
    raise TimeoutError(
        f"Subscribe to {topic}: expected SUBSCRIBED within {_SUBSCRIBE_WITHIN_S:g} s, got {last}"
    )


def main(kind: str, counters_path: str, port: str, *options: str) -> None:
    counters = SharedCounters(Path(counters_path))
    counters[AGES_ENABLED] = 1
    match kind:
        case "udp":
            run_udp(counters, int(port))
        case "udp-anywhere":
            run_udp(counters, int(port), "")
        case "zenoh-client":
            session = sockets.zenoh_client(int(port))
            other = "other" in options
            topic, subscriber = (
                (wire.APP_TOPIC, wire.REMOTE_SUBSCRIBER) if other else (wire.ECU_TOPIC, wire.SUBSCRIBER)
            )
            if "subscribe" in options:
                _subscribers = subscribe(session, topic, subscriber)
            run_zenoh(counters, session, wire.publish_key(topic))
        case "zenoh-peer":
            run_zenoh(counters, sockets.zenoh_peer(int(port)), wire.publish_key(wire.APP_TOPIC))
        case _:
            raise ValueError(f"{kind!r}: expected udp, udp-anywhere, zenoh-client or zenoh-peer")


if __name__ == "__main__":
    sockets.exit_with_parent()
    main(*sys.argv[1:])
