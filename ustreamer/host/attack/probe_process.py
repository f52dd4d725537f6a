# SPDX-License-Identifier: Apache-2.0
"""`python -m ustreamer.host.attack.probe_process`: sends and receives the messages of the vehicle path.

The first line of input is a `ProbePlan` as JSON. Each further line ends a window, whose figures are a line of output. A
process of its own, so that the work of an attacker does not delay what is measured.
"""

import socket
import struct
import sys
from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Final

import msgspec

from ustreamer.host.attack.probe import PROBE_ENTITY, PROBE_HZ, READY, ProbePlan
from ustreamer.host.attack.verdicts import StreamWindow, window
from ustreamer.host.demo.apps import DemoApp
from ustreamer.host.demo.chassis import PeriodicTicks
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.process import tune_interpreter
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode, next_session
from ustreamer.uprotocol import UMessage, UStatusError, UuidSource, UUri
from ustreamer.uprotocol.umessage import publish

_PAYLOAD: Final = struct.Struct(">4sQQ")  # mark, number, time of sending in ns
_MARK: Final = b"atkP"
_GRACE_S: Final = 0.5
_FIRST_MESSAGE_S: Final = 20.0


class Probe:
    """The stream: numbers sent, latencies received, and messages on the topic that the probe did not send."""

    def __init__(self, plan: ProbePlan) -> None:
        self._lock = Lock()
        self._latencies_ns: dict[int, int] = {}
        self._foreign = 0
        self._sent = self._taken = 0
        self._arrived = Event()
        self._stop = Event()
        self._sockets = {each: _bound(each) for each in plan.ecus}
        self._app = _app("probe", plan.home, PROBE_ENTITY, plan)
        self.topic = UUri.parse(plan.topic)
        self._send = self._event_sender(plan) if plan.event is not None else self._origin_sender(plan)

    def _event_sender(self, plan: ProbePlan) -> Callable[[bytes], None]:
        """Sends a payload as an event of an ECU."""
        assert plan.event is not None
        assert plan.ecu is not None
        assert plan.streamer is not None
        service, event, major = plan.event
        ecu, streamer, session = self._sockets[plan.ecu], plan.streamer, 0

        def send(payload: bytes) -> None:
            nonlocal session
            session = next_session(session)
            message = SomeIpMessage(service, event, 0, session, major, MessageType.NOTIFICATION, 0, payload)
            ecu.sendto(encode(message), streamer)

        return send

    def _origin_sender(self, plan: ProbePlan) -> Callable[[bytes], None]:
        """Publishes a payload on another Zenoh network."""
        assert plan.origin is not None
        source = _app("origin", plan.origin, self.topic.ue_id, plan)
        source.start()
        ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        return lambda payload: source.transport.send(publish(ids.next(), self.topic, payload))

    def start(self) -> None:
        """Subscribe, and send until a message arrives. Raises UStatusError."""
        self._app.start()
        self._app.subscribe(self.topic)
        self._app.transport.register_listener(self.topic, None, self._on_message)
        Thread(target=self._run, name="probe", daemon=True).start()
        if not self._arrived.wait(_FIRST_MESSAGE_S):
            raise TimeoutError(f"no message of {self.topic} arrives at {self._app.address}")

    def _run(self) -> None:
        now_ns = SYSTEM_CLOCK.monotonic_ns
        for _ in PeriodicTicks(PROBE_HZ, self._stop):
            with self._lock:
                number = self._sent
                self._sent += 1
            self._send(_PAYLOAD.pack(_MARK, number, now_ns()))

    def _on_message(self, message: UMessage) -> None:
        now_ns = SYSTEM_CLOCK.monotonic_ns()
        if len(message.payload) != _PAYLOAD.size or not message.payload.startswith(_MARK):
            with self._lock:
                self._foreign += 1
            return
        _, number, sent_ns = _PAYLOAD.unpack(message.payload)
        with self._lock:
            self._latencies_ns.setdefault(number, now_ns - sent_ns)
        self._arrived.set()

    def take(self) -> StreamWindow:
        """The window since the last call."""
        with self._lock:
            first, end, self._taken = self._taken, self._sent, self._sent
        deadline_ns = SYSTEM_CLOCK.monotonic_ns() + round(_GRACE_S * 1e9)
        pause = Event()
        while self._missing(first, end) and SYSTEM_CLOCK.monotonic_ns() < deadline_ns:
            pause.wait(0.01)
        with self._lock:
            latencies = [self._latencies_ns.pop(number, None) for number in range(first, end)]
            foreign, self._foreign = self._foreign, 0
        return window([each for each in latencies if each is not None], end - first, foreign)

    def _missing(self, first: int, end: int) -> bool:
        with self._lock:
            return any(number not in self._latencies_ns for number in range(first, end))


def _bound(address: tuple[str, int]) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _app(name: str, place: tuple[str, str], entity: int, plan: ProbePlan) -> DemoApp:
    authority, locator = place
    return DemoApp(name, UUri(authority, entity, 1, 0), locator, UUri.parse(plan.usubscription))


def main() -> None:
    plan = msgspec.json.decode(sys.stdin.readline(), type=ProbePlan)
    tune_interpreter()
    try:
        probe = Probe(plan)
        probe.start()
    except (OSError, TimeoutError, UStatusError) as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return
    probe.take()
    print(READY, end="", flush=True)
    for _ in sys.stdin:
        print(msgspec.json.encode(probe.take()).decode(), flush=True)


if __name__ == "__main__":
    main()
