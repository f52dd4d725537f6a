# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.chains`: the delivered share of a limited topic behind one, two and three streamers in a row.

    publisher, ECU -> streamer 1 -> streamer 2 -> streamer 3 -> application
                               application     application

Four processes and real links: Zenoh over TCP, and SOME/IP over UDP for the last row. Each topic ends behind one
streamer. That streamer has the limit of the row; each streamer before it has 1.5 times the limit of the next one.

The publisher creates messages at the times of a grid with jitter; the ids have these times. *Bunched*: it sends nothing
in the last 60 ms of every 0.3 s and then sends what it created meanwhile. A SOME/IP event has no creation time, so the
last row is steady only.

`share` is delivered / min(published, limit * time). `burst` is the most by which any window of T seconds holds more
messages than limit * T. By arrival at the application it is a figure only: a machine that delays an arrival adds
limit * delay. What holds on any machine is demanded: a window from the sending of its first message to the arrival of
its last one has at most limit * T + 2.5 messages, because both passed the gate in between. Exit code 1 if not so, if a
share is below 0.99, or if messages arrive out of order.

    python -m benchmarks.chains publish ZENOH_PORT SOMEIP_PORT ECU_PORT    the publisher; one line of JSON per command
"""

import argparse
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NamedTuple

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.harness.child_process import Child, ChildError, console_script, module_command
from benchmarks.traffic import sockets, wire

STREAMERS: Final = ("a1.vin1", "a2.vin1", "a3.vin1")
"""Their authorities, in the order of the row."""
_APPLICATIONS: Final = ("a2.vin1", "a3.vin1", "b.vin1")
"""The authority of the application behind each streamer."""
MIN_SHARE: Final = 0.99
BOUND: Final = 2.5
"""Messages above limit * T in any window (ustreamer_throttle.gate)."""
_HEADROOM: Final = 1.5
_STALL_EVERY_NS: Final = 300_000_000
_STALL_NS: Final = 60_000_000
_SERVICE: Final = 0x5000
_SOMEIP_SERVICE: Final = 0x5100
_NS_PER_S: Final = 1_000_000_000
_NS_PER_MS: Final = 1_000_000
_START_S: Final = 30.0
_SETTLE_S: Final = 1.0
_CHANNEL: Final = 65_536
_TTL_MS: Final = 5_000


class Row(NamedTuple):
    """A kind of publisher and a limit."""

    hz: float
    jitter: float
    """A fraction of the period."""
    limit_hz: float
    is_someip: bool = False


ROWS: Final = (
    Row(100, 0, 100),
    Row(100, 0.01, 77),
    Row(100, 0.20, 90),
    Row(100, 0.20, 40),
    Row(1000, 0.01, 60),
    Row(250, 0.20, 33),
    Row(100, 0.20, 100, is_someip=True),
)
DEPTHS: Final = (1, 2, 3)


class ChainTopic(NamedTuple):
    """A topic of a row that ends behind `depth` streamers, the last of which has mode latest or drop."""

    row: int
    depth: int
    latest: bool

    @property
    def address(self) -> wire.Address:
        number = 0x8001 + self.depth * 2 + self.latest
        if ROWS[self.row].is_someip:
            return wire.Address(wire.ECU, _SOMEIP_SERVICE + self.row, wire.MAJOR, number)
        return wire.Address(STREAMERS[0], _SERVICE + self.row, wire.MAJOR, number)

    def limit_hz(self, streamer: int) -> float:
        """The limit at a streamer, the first of which has number 1."""
        return ROWS[self.row].limit_hz * _HEADROOM ** (self.depth - streamer)


TOPICS: Final = [
    ChainTopic(row, depth, latest) for row in range(len(ROWS)) for depth in DEPTHS for latest in (False, True)
]


# --- the streamers ----------------------------------------------------------------------------------------------------


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


# --- the publisher ----------------------------------------------------------------------------------------------------


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


# --- figures ----------------------------------------------------------------------------------------------------------


def burst(arrivals: Sequence[Arrival], limit_hz: float, *, from_sending: bool) -> float:
    """The most by which any closed window holds more messages than limit * T.

    A window begins with the arrival of its first message, or with its sending.
    """
    begins = [each.sent_ns if from_sending else each.arrived_ns for each in arrivals]
    first = [index - began_ns * limit_hz / _NS_PER_S for index, began_ns in enumerate(begins)]
    last = [index - each.arrived_ns * limit_hz / _NS_PER_S for index, each in enumerate(arrivals)]
    return 1 + max(
        (lead - least for lead, least in zip(last, accumulate(first, min), strict=True)), default=-1
    )


def _figures(topic: ChainTopic, published: int, arrivals: list[Arrival], *, bunched: bool) -> dict[str, Any]:
    row = ROWS[topic.row]
    numbers = [each.number for each in arrivals]
    possible = min(published, row.limit_hz * published / row.hz)
    return {
        "published_hz": row.hz,
        "jitter": row.jitter,
        "limit_hz": row.limit_hz,
        "from": "someip" if row.is_someip else "zenoh",
        "streamers": topic.depth,
        "mode": "latest" if topic.latest else "drop",
        "bunched": bunched,
        "published": published,
        "delivered": len(arrivals),
        "share": len(arrivals) / possible,
        "burst": burst(arrivals, row.limit_hz, from_sending=False),
        "certain_burst": burst(arrivals, row.limit_hz, from_sending=True),
        "in_order": numbers == sorted(set(numbers)),
    }


def measured(directory: Path, seconds: float = 12.0) -> list[dict[str, Any]]:
    rows = []
    with running_chain(directory, TOPICS) as chain:
        for bunched in (False, True):
            for latest in (False, True):
                topics = [
                    each
                    for each in TOPICS
                    if each.latest is latest and not (bunched and ROWS[each.row].is_someip)
                ]
                counts = chain.publish(topics, seconds, bunched=bunched)
                rows += [
                    _figures(topic, count, chain.arrivals(topic), bunched=bunched)
                    for topic, count in zip(topics, counts, strict=True)
                ]
    return rows


def is_exact(row: dict[str, Any]) -> bool:
    return bool(row["share"] >= MIN_SHARE and row["certain_burst"] <= BOUND and row["in_order"])


def table(rows: Sequence[dict[str, Any]]) -> str:
    columns = [(bunched, mode) for bunched in (False, True) for mode in ("drop", "latest")]
    heads = [f"{'bunched' if bunched else 'steady'}, {mode}" for bunched, mode in columns]
    lines = [f"{'published, jitter':<26}{'limit':>7}" + "".join(f"{each:>19}" for each in heads)]
    for row in ROWS:
        name = f"{row.hz:>4} Hz +-{row.jitter * 100:>2.0f} %" + (" SOME/IP" if row.is_someip else "")
        cells = [_cell(row, rows, bunched, mode) for bunched, mode in columns]
        lines.append(f"{name:<26}{row.limit_hz:>4} Hz" + "".join(f"{each:>19}" for each in cells))
    by_arrival, certain = (max(row[name] for row in rows) for name in ("burst", "certain_burst"))
    inexact = sum(not is_exact(row) for row in rows)
    return "\n".join(
        [
            *lines,
            "delivered of min(published, limit) behind one, two and three streamers",
            f"largest burst of a window by arrival: {by_arrival:.2f}; from sending to arrival: {certain:.2f}",
            f"expected: a share of at least {MIN_SHARE}, in order, from sending to arrival at most {BOUND}; not so: {inexact} of {len(rows)}",
        ]
    )


def _cell(row: Row, rows: Sequence[dict[str, Any]], bunched: bool, mode: str) -> str:
    wanted = row.hz, row.jitter, row.limit_hz, "someip" if row.is_someip else "zenoh", bunched, mode
    keys = "published_hz", "jitter", "limit_hz", "from", "bunched", "mode"
    return (
        " ".join(f"{each['share']:.3f}" for each in rows if tuple(each[key] for key in keys) == wanted) or "-"
    )


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["publish"]:
        serve_publisher([int(each) for each in arguments[1:]])
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chains", description=__doc__)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="ustreamer-benchmark-") as directory:
        rows = measured(Path(directory), options.seconds)
    print(json.dumps(rows, indent=1) if options.json else table(rows))
    return int(not all(map(is_exact, rows)))


if __name__ == "__main__":
    sys.exit(main())
