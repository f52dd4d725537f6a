# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.switching`: time from Subscribe() to the first message, and from Unsubscribe() to the last,
under load.

An ECU sends the topic at a constant pace, and a second application stays subscribed on the first network. The
measured application is behind another Zenoh endpoint. Times are from the put of the request to the receipt of a
message. The reference is the response to the same request.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.shared_counters import AGES_ENABLED, SEND_ENABLED
from benchmarks.harness.testbed import BenchRig, Ports
from benchmarks.traffic import sockets, wire

LOAD_HZ: Final = 10_000.0

_TIMEOUT_S: Final = 10.0
_SILENCE_S: Final = 0.1
_CHANNEL: Final = 4_096
_TTL_MS: Final = 5_000


class Application:
    """Subscribes and unsubscribes the ECU's topic from behind the second endpoint, and notes receive times."""

    def __init__(self, port: int) -> None:
        self.session = sockets.zenoh_client(port)
        subscriber, topic = wire.REMOTE_SUBSCRIBER, wire.ECU_TOPIC
        declare = self.session.declare_subscriber
        self._changes = declare(wire.unicast_key(wire.CHANGES, subscriber), FifoChannel(_CHANNEL))
        self._messages = declare(wire.publish_key(topic), FifoChannel(_CHANNEL))
        self._requests = {
            method: (
                sockets.blocking_publisher(self.session, wire.unicast_key(subscriber, method)),
                declare(wire.unicast_key(method, subscriber), FifoChannel(16)),
                wire.request_tail(subscriber, method, _TTL_MS),
            )
            for method in (wire.SUBSCRIBE, wire.UNSUBSCRIBE)
        }

    def _send_request(self, method: wire.Address) -> int:
        """Send a request. Returns its time in ns."""
        publisher, _, tail = self._requests[method]
        wall_ns = time.time_ns()
        head = wire.attachment_head(wall_ns // 1_000_000, wall_ns & 0xFFFF_FFFF)
        began_ns = time.monotonic_ns()
        publisher.put(wire.subscription_request(wire.ECU_TOPIC), attachment=head + tail)
        return began_ns

    def _response_ns(self, method: wire.Address) -> int:
        """Time of the response."""
        _wait_sample(self._requests[method][1])
        return time.monotonic_ns()

    def wait_connected(self) -> None:
        """Repeat the request until a response arrives: the session may not have discovered its peers yet."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._requests[wire.UNSUBSCRIBE][1].try_recv() is None:
            assert time.monotonic() < deadline, f"no answer from the streamer within {_TIMEOUT_S:g} s"
            self._send_request(wire.UNSUBSCRIBE)
            time.sleep(0.1)
        time.sleep(_SILENCE_S)
        while self._requests[wire.UNSUBSCRIBE][1].try_recv() is not None:
            pass

    def time_subscribe(self) -> tuple[float, float]:
        """Milliseconds to the first message, and to the response."""
        began_ns = self._send_request(wire.SUBSCRIBE)
        _wait_sample(self._messages)
        first_ns = time.monotonic_ns()
        return (first_ns - began_ns) / 1e6, (self._response_ns(wire.SUBSCRIBE) - began_ns) / 1e6

    def time_unsubscribe(self) -> tuple[float, float]:
        """Milliseconds to the last message, and to the response."""
        while self._messages.try_recv() is not None:
            pass
        began_ns = last_ns = self._send_request(wire.UNSUBSCRIBE)
        answer_ns = 0
        answers = self._requests[wire.UNSUBSCRIBE][1]
        while not answer_ns or time.monotonic_ns() - max(last_ns, answer_ns) < _SILENCE_S * 1e9:
            assert time.monotonic_ns() - began_ns < _TIMEOUT_S * 1e9, "it does not stop"
            if self._messages.try_recv() is not None:
                last_ns = time.monotonic_ns()
            elif not answer_ns and answers.try_recv() is not None:
                answer_ns = time.monotonic_ns()
            else:
                time.sleep(0.00005)
        return (last_ns - began_ns) / 1e6, (answer_ns - began_ns) / 1e6


def _wait_sample(samples: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]") -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while samples.try_recv() is None:
        assert time.monotonic() < deadline, f"nothing within {_TIMEOUT_S:g} s"
        time.sleep(0.00005)


def measured(directory: Path, times: int = 20) -> dict[str, Any]:
    with BenchRig(directory, 64) as stage:
        ports, other = Ports.free(), Ports.free()
        rig = stage.with_second_zenoh(ports, other.zenoh)
        rig.counters[AGES_ENABLED] = rig.counters[SEND_ENABLED] = 0
        application = Application(other.zenoh)
        try:
            application.wait_connected()
            seconds = times * (4 * _SILENCE_S + 0.2) + 2 * _TIMEOUT_S  # a busy machine needs more
            rig.generator.send_command(f"pace {LOAD_HZ} {round(LOAD_HZ * seconds)}")
            time.sleep(_SILENCE_S)
            rounds = [(*application.time_subscribe(), *application.time_unsubscribe()) for _ in range(times)]
        finally:
            application.session.close()  # type: ignore[no-untyped-call]
    first, subscribed, last, unsubscribed = zip(*rounds, strict=True)
    return {
        "times": times,
        "load_hz": LOAD_HZ,
        "subscribe_to_first_ms": _spread(first),
        "subscribe_to_answer_ms": _spread(subscribed),
        "unsubscribe_to_last_ms": _spread(last),
        "unsubscribe_to_answer_ms": _spread(unsubscribed),
        "first_by_answer": median(a / b for a, b in zip(first, subscribed, strict=True)),
        "last_by_answer": median(a / b for a, b in zip(last, unsubscribed, strict=True)),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values)}


def table(figures: dict[str, Any]) -> str:
    def line(what: str, name: str) -> str:
        spread = figures[f"{name}_ms"]
        return f"{what:<34}{spread['median']:>9.2f} ms ({spread['min']:.2f}-{spread['max']:.2f})"

    return "\n".join(
        [
            line("Subscribe() to the first message", "subscribe_to_first"),
            line("Subscribe() to its answer", "subscribe_to_answer"),
            line("Unsubscribe() to the last message", "unsubscribe_to_last"),
            line("Unsubscribe() to its answer", "unsubscribe_to_answer"),
            f"by the answer: {figures['first_by_answer']:.2f} and {figures['last_by_answer']:.2f}",
            f"{figures['times']} times, at {figures['load_hz']:,.0f} messages/s",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.switching", description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        figures = measured(Path(directory), arguments.times)
    print(json.dumps(figures, indent=1) if arguments.json else table(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
