# SPDX-License-Identifier: Apache-2.0
"""Counts the Python calls that a message costs: `python -m benchmarks.call_counts [--list]`.

A whole streamer with uSubscription runs in this process between two in-process networks, on a clock that stands
still. After a warm-up, one event, one Subscribe of a new topic (local, remote) and one call are sent. Each is counted
in all threads of the streamer, from the send until its effects have ceased: calls of Python functions in this
project's files, the listener and transport of the application included. `--list` prints each function and its calls.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

from ustreamer.core.base.clock import ManualClock
from ustreamer.host.runtime.process import load
from ustreamer.host.runtime.streamer import Streamer
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, UUri

CONFIG: Final = """
authority = "hpc"
state_dir = "{state}"
[endpoints.backbone]
transport = "local"
network = "call-counts-backbone"
authorities = ["cloud"]
[endpoints.chassis]
transport = "local"
network = "call-counts-chassis"
authorities = ["chassis"]
[plugins.usubscription]
"""
APP: Final = UUri("cloud", 0x42, 1, 0)
TOPIC: Final = UUri("chassis", 0x1234, 1, 0x8001)
METHOD: Final = UUri("chassis", 0x1234, 1, 1)
SUBSCRIBE: Final = UUri("hpc", 0, 3, 1)
ROOT: Final = Path(__file__).parent.parent
WARM_UP: Final = 5
DEADLINE_S: Final = 10.0
QUIET_S: Final = 0.05


class CallCount(NamedTuple):
    """The calls that one message caused, by (file, function)."""

    calls: Counter[tuple[str, str]]

    @property
    def total(self) -> int:
        return self.calls.total()

    @property
    def files(self) -> int:
        return len({file for file, _ in self.calls})


class Profiler:
    """A profile function for all threads that start after it; counts while `active`."""

    def __init__(self) -> None:
        self.active = False
        self.calls: Counter[tuple[str, str]] = Counter()
        self._names: dict[object, tuple[str, str] | None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event != "call" or not self.active:
            return
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code.co_filename, code.co_qualname)
        name = self._names[code]
        if name is not None:
            self.calls[name] += 1

    @staticmethod
    def _name(file: str, function: str) -> tuple[str, str] | None:
        path = Path(file)
        if not path.is_relative_to(ROOT) or path == Path(__file__) or ".venv" in path.parts:
            return None
        if function.startswith("ManualClock."):
            return None  # the system's clock is a function in C
        return str(path.relative_to(ROOT)), function


class CallCounter:
    """A running streamer, an application behind each of its endpoints, and the profiler."""

    def __init__(self, directory: Path) -> None:
        self._profiler = Profiler()
        threading.setprofile(self._profiler)
        path = directory / "streamer.toml"
        path.write_text(CONFIG.format(state=directory / "state"))
        loaded = load(path)
        clock = ManualClock().clock()
        self._ids = UuidSource(clock.wall_ms)
        self.streamer = Streamer(loaded.config, loaded.kinds, loaded.plugin_classes, clock)
        self._cloud = self._application("call-counts-backbone", "cloud")
        self._chassis = self._application("call-counts-chassis", "chassis")
        self._received = 0
        self._topics = iter(range(0x8002, 0xFFFE))
        everything = UUri(ANY_AUTHORITY, ANY_ENTITY, ANY_VERSION, 0)
        self._cloud.register_listener(ANY, None, self._on_received)
        self._cloud.register_listener(ANY, everything, self._on_received)
        self._chassis.register_listener(ANY, METHOD, self._on_request)
        self.streamer.start()
        self.subscribe(TOPIC)

    @staticmethod
    def _application(network: str, authority: str) -> LocalTransport:
        transport = LocalTransport(LocalNetwork.named(network), authority)
        transport.open()
        return transport

    def _on_received(self, message: UMessage) -> None:
        self._received += message.attributes.type is not UMessageType.NOTIFICATION

    def _on_request(self, message: UMessage) -> None:
        self._chassis.send(response(self._ids.next(), message, b"42", UPayloadFormat.RAW))

    def event(self) -> CallCount:
        """A publication of a subscribed topic, until the subscriber has it."""
        message = publish(self._ids.next(), TOPIC, b"21.5")
        return self._count(lambda: self._chassis.send(message))

    def call(self) -> CallCount:
        """A Request to the other network and its Response."""
        message = request(self._ids.next(), APP, METHOD, b"21", UPayloadFormat.RAW, ttl=5_000)
        return self._count(lambda: self._cloud.send(message))

    def subscribe_local(self) -> CallCount:
        """A Subscribe of a topic of the streamer's own authority."""
        return self.subscribe(UUri("hpc", TOPIC.ue_id, 1, next(self._topics)))

    def subscribe_remote(self) -> CallCount:
        """A Subscribe of a topic of another authority, whose uSubscription is called, too."""
        return self.subscribe(UUri(TOPIC.authority_name, TOPIC.ue_id, 1, next(self._topics)))

    def subscribe(self, topic: UUri) -> CallCount:
        """A Subscribe of a topic without subscribers, until its Response, its Updates and its timer are done."""
        payload = pb.SubscriptionRequest(topic=topic.to_pb()).SerializeToString()
        message = request(self._ids.next(), APP, SUBSCRIBE, payload, UPayloadFormat.PROTOBUF, ttl=5_000)
        return self._count(lambda: self._cloud.send(message))

    def _count(self, send: Callable[[], None]) -> CallCount:
        self._profiler.calls = Counter()
        self._received = 0
        self._profiler.active = True
        sys.setprofile(self._profiler)
        try:
            send()
        finally:
            sys.setprofile(None)
            self._wait_quiet()
            self._profiler.active = False
        return CallCount(self._profiler.calls)

    def _wait_quiet(self) -> None:
        """Wait for the reply, and then until no thread has made a call for QUIET_S."""
        end, since, calls = time.monotonic() + DEADLINE_S, time.monotonic(), -1
        while not self._received or time.monotonic() - since < QUIET_S:
            assert time.monotonic() < end, f"waited {DEADLINE_S} s for the message"
            if self._profiler.calls.total() != calls:
                since, calls = time.monotonic(), self._profiler.calls.total()
            time.sleep(0.001)

    def close(self) -> None:
        self.streamer.stop()
        self._cloud.close()
        self._chassis.close()
        threading.setprofile(None)


def count_calls() -> dict[str, CallCount]:
    """The calls of an event, a Subscribe of either kind and a call, when all routes are cached."""
    with tempfile.TemporaryDirectory() as directory:
        counter = CallCounter(Path(directory))
        try:
            measured = {}
            for name, count in (
                ("event", counter.event),
                ("Subscribe", counter.subscribe_local),
                ("Subscribe of a remote topic", counter.subscribe_remote),
                ("call", counter.call),
            ):
                for _ in range(WARM_UP):
                    count()
                measured[name] = count()
            return measured
        finally:
            counter.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.call_counts")
    parser.add_argument("--list", action="store_true", help="print each function and its calls")
    arguments = parser.parse_args()
    for name, count in count_calls().items():
        print(f"{name:28}{count.total:5} calls {count.files:3} files")
        if arguments.list:
            for (file, function), calls in sorted(count.calls.items(), key=lambda item: -item[1]):
                print(f"    {calls:4}  {file}: {function}")


if __name__ == "__main__":
    main()
