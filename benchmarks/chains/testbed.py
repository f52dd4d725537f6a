# SPDX-License-Identifier: Apache-2.0
"""Three streamers in a row, a publisher before them and an application behind each."""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.chains.rows import DEPTHS, ROWS, STREAMERS, TOPICS, ChainTopic
from benchmarks.harness.child_process import Child, ChildError, console_script, module_command
from benchmarks.traffic import sockets, wire

_APPLICATIONS: Final = ("a2.vin1", "a3.vin1", "b.vin1")
"""The authority of the application behind each streamer."""
_NS_PER_MS: Final = 1_000_000
_START_S: Final = 30.0
_SETTLE_S: Final = 1.0
_CHANNEL: Final = 65_536
_TTL_MS: Final = 5_000


class ChainPorts(NamedTuple):
    publisher: int
    links: tuple[int, int, int]
    """Behind each streamer."""
    someip: int
    ecu: int


def free_ports() -> ChainPorts:
    kinds = [socket.SOCK_STREAM] * 4 + [socket.SOCK_DGRAM] * 2
    with ExitStack() as opened:
        found = []
        for kind in kinds:
            each = opened.enter_context(socket.socket(socket.AF_INET, kind))
            each.bind((sockets.LOOPBACK, 0))
            found.append(each.getsockname()[1])
    return ChainPorts(found[0], (found[1], found[2], found[3]), found[4], found[5])


def config_toml(number: int, ports: ChainPorts) -> str:
    """The configuration of a streamer, the first of which has number 1."""
    before, behind = STREAMERS[: number - 1], (*STREAMERS[number:], _APPLICATIONS[-1])
    if number == 1:
        up = _zenoh_toml("up", STREAMERS[:1], "listen", ports.publisher) + _someip_toml(ports)
    else:
        up = _zenoh_toml("up", (*before, wire.ECU), "connect", ports.links[number - 2])
    latest = [
        f"//{topic.authority}/{topic.service:X}/{topic.version}/{topic.resource:X}"
        for topic in (each.address for each in TOPICS if each.latest and each.depth == number)
    ]
    return "\n".join(
        [
            f'authority = "{STREAMERS[number - 1]}"\nstate_dir = "state{number}"',
            up,
            _zenoh_toml("down", behind, "listen", ports.links[number - 1]),
            f"[plugins.usubscription]\n[plugins.throttle]\nlatest = {json.dumps(latest)}\n",
        ]
    )


def _zenoh_toml(name: str, authorities: Sequence[str], key: str, port: int) -> str:
    return (
        f'[endpoints.{name}]\ntransport = "zenoh"\nmode = "peer"\nauthorities = {json.dumps(authorities)}\n'
        f'{key} = ["tcp/{sockets.LOOPBACK}:{port}"]\n'
    )


def _someip_toml(ports: ChainPorts) -> str:
    topics = [each.address for each in TOPICS if ROWS[each.row].is_someip]
    events = ", ".join(f"{{ id = {each.resource:#06x} }}" for each in topics)
    return (
        f'[endpoints.chassis]\ntransport = "someip"\nauthorities = ["{wire.ECU}"]\nsd = false\n'
        f'bind = "{sockets.LOOPBACK}"\nport = {ports.someip}\n[[endpoints.chassis.services]]\n'
        f"service = {topics[0].service:#06x}\nmajor = {wire.MAJOR}\nevents = [{events}]\n"
        f'remote = "{sockets.LOOPBACK}:{ports.ecu}"\n'
    )


# --- the applications -------------------------------------------------------------------------------------------------


class Arrival(NamedTuple):
    number: int
    """As published."""
    sent_ns: int
    arrived_ns: int


class Application:
    """Subscribes topics at the streamer in front of it, and notes their messages."""

    def __init__(self, number: int, port: int) -> None:
        """It is behind the streamer with this number, the first of which has 1."""
        self._number = number
        self.session = sockets.zenoh_client(port)
        subscriber = wire.Address(_APPLICATIONS[number - 1], 0x10A1, 1, 0)
        method = wire.Address(STREAMERS[number - 1], 0, 3, 1)
        self._tail = wire.request_tail(subscriber, method, _TTL_MS)
        self._requests = sockets.blocking_publisher(self.session, wire.unicast_key(subscriber, method))
        declare = self.session.declare_subscriber
        self._answers = declare(wire.unicast_key(method, subscriber), FifoChannel(_CHANNEL))
        self.arrivals: dict[ChainTopic, list[Arrival]] = {}
        self._subscribers: list[object] = []

    def listen(self, topic: ChainTopic) -> None:
        """Note the messages of a topic from now on."""
        noted = self.arrivals[topic] = []

        def note(sample: zenoh.Sample) -> None:
            number, sent_ns = wire.TAIL.unpack(sample.payload.to_bytes())
            noted.append(Arrival(number, sent_ns, time.monotonic_ns()))

        key = wire.publish_key(topic.address)
        self._subscribers.append(self.session.declare_subscriber(key, note))

    def subscribe(self, topic: ChainTopic) -> None:
        """Subscribe with the limit of the streamer. Raises ChildError if it is not granted."""
        body = wire.subscription_request(topic.address, topic.limit_hz(self._number))
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline:
            head = wire.attachment_head(time.time_ns() // _NS_PER_MS, time.monotonic_ns())
            self._requests.put(body, attachment=head + self._tail)
            retry_s = time.monotonic() + 1.0  # the session may not have known its peers yet
            while time.monotonic() < retry_s:
                answer = self._answers.try_recv()
                if answer is not None and answer.payload.to_bytes()[:1] == b"\x0a":
                    return
                time.sleep(0.001)
        raise ChildError(f"{topic}: streamer {self._number} did not grant the subscription")


class Chain:
    """Three streamers in a row, a publisher before them and an application behind each."""

    def __init__(self, directory: Path, exit_stack: ExitStack, topics: Sequence[ChainTopic]) -> None:
        ports = free_ports()
        for number in DEPTHS:
            config = directory / f"streamer{number}.toml"
            config.write_text(config_toml(number, ports), encoding="utf-8")
            command = [console_script("ustreamer"), "run", str(config)]
            streamer = Child(f"streamer{number}", command, directory)
            exit_stack.callback(streamer.stop)
            streamer.wait_line("READY", _START_S)
        self.applications = [Application(number, ports.links[number - 1]) for number in DEPTHS]
        for application in self.applications:
            exit_stack.callback(application.session.close)
        for topic in topics:
            self.applications[topic.depth - 1].listen(topic)
            for application in self.applications[: topic.depth]:
                application.subscribe(topic)
        arguments = ports.publisher, ports.someip, ports.ecu
        self._publisher = Child("publisher", module_command("chains", "publish", *arguments), directory)
        exit_stack.callback(self._publisher.stop)
        self._publisher.wait_line("READY", _START_S)
        time.sleep(_SETTLE_S)  # declarations are on their way, and so are the calls of each uSubscription

    def publish(self, topics: Sequence[ChainTopic], seconds: float, *, bunched: bool) -> list[int]:
        """Publish for this time. Returns the number of messages of each topic."""
        for topic in topics:
            self.arrivals(topic).clear()
        self._publisher.send_command(json.dumps([topics, seconds, bunched]))
        done = None
        deadline = time.monotonic() + 2 * seconds + _START_S
        while done is None:
            if time.monotonic() > deadline:
                raise ChildError(f"publisher: not done in time{self._publisher.log_tail()}")
            time.sleep(0.05)
            done = self._publisher.poll_line()
        time.sleep(_SETTLE_S)
        published: list[int] = json.loads(done)
        return published

    def arrivals(self, topic: ChainTopic) -> list[Arrival]:
        return self.applications[topic.depth - 1].arrivals[topic]


@contextmanager
def running_chain(directory: Path, topics: Sequence[ChainTopic]) -> Iterator[Chain]:
    with ExitStack() as exit_stack:
        yield Chain(directory, exit_stack, topics)
