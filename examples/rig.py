# SPDX-License-Identifier: Apache-2.0
"""What the examples share: the command line, configurations on given ports, streamers as processes, and the figures."""

import argparse
import errno
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import zenoh

from ustreamer.host.demo.chassis import PeriodicTicks
from ustreamer.host.demo.ecu import EcuMethods, SimulatedEcu
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.testing.bench import StreamerBench
from ustreamer.testing.entity import Entity
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

_USTREAMER: Final = Path(sys.executable).with_name("ustreamer")
_SUBSCRIBE: Final = 1
_READY: Final = 0x8FFF
_PORT_ERRORS: Final = (errno.EADDRINUSE, errno.EACCES)
_OTHER_PORTS: Final = "--ports uses other ports"
_PAUSE_S: Final = 0.02
_STOP_S: Final = 30.0


# --- the command line -------------------------------------------------------------------------------------------------


def arguments_of(name: str, description: str | None, events: int) -> argparse.ArgumentParser:
    """The parser with the options of every example; an example may add its own."""
    parser = argparse.ArgumentParser(prog=f"python -m examples.{name}", description=description)
    parser.add_argument("--events", type=_count, default=events, help=f"number of publications ({events})")
    parser.add_argument(
        "--ports",
        type=_ports,
        default={},
        metavar="SHOWN=USED,...",
        help="ports in place of those in the configuration, for example 7447=20001,30500=20002",
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 on")
    return int(text)


def _ports(text: str) -> dict[int, int]:
    pairs = [pair.split("=") for pair in text.split(",")]
    if not all(len(pair) == 2 and all(map(_is_port, pair)) for pair in pairs):
        raise argparse.ArgumentTypeError(f"{text!r}: expected pairs of ports such as 7447=20001,30500=20002")
    return {int(shown): int(used) for shown, used in pairs}


def _is_port(text: str) -> bool:
    return text.isdecimal() and 0 < int(text) < 1 << 16


def on_ports(text: str, ports: Mapping[int, int]) -> str:
    """A configuration or a page on other ports."""
    return re.sub(r"\b\d{4,5}\b", lambda found: str(ports.get(int(found[0]), found[0])), text)


# --- processes and applications ---------------------------------------------------------------------------------------


class RunningStreamer:
    """`ustreamer run` in a process of its own. Its log and its state are in the folder of `config`."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.name = config.stem
        self._log = config.with_suffix(".log")
        command: list[str | Path] = [_USTREAMER, "run", config, "--log-format", "json"]
        with self._log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "READY\n":  # an empty line: the process has ended
            log = self._log.read_text(encoding="utf-8")
            raise SystemExit(f"{config.name} does not start; {_OTHER_PORTS}:\n{log}")

    def top(self) -> Any:
        """All counters, as `ustreamer top FILE --once --json` prints them."""
        command: list[str | Path] = [_USTREAMER, "top", self.config, "--once", "--json"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def received(self, topic: UUri) -> int:
        """The number of publications of a topic that it has received for a subscriber."""
        found = [each["received"] for each in self.top()["targets"] if each["topic"] == str(topic)]
        return max(found, default=0)

    def send_signal(self, number: int) -> None:
        self._process.send_signal(number)

    def stop(self) -> dict[str, int]:
        """Drain the queues, as a supervisor does by SIGTERM. Returns the ledger of the last line of the log."""
        self.send_signal(signal.SIGTERM)
        if code := self._process.wait(_STOP_S):
            raise SystemExit(f"{self.name} ended with {code}:\n{self._log.read_text(encoding='utf-8')}")
        ledger: dict[str, int] = json.loads(self._log.read_text(encoding="utf-8").splitlines()[-1])["ledger"]
        print(f"ledger of {self.name}: " + " ".join(f"{verdict}={n}" for verdict, n in ledger.items() if n))
        return ledger

    def close(self) -> None:
        """Kill it if it runs."""
        self._process.kill()
        self._process.wait(_STOP_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


class Example:
    """A temporary folder with the configurations of an example, and all that runs: `with Example(...) as example`."""

    def __init__(self, main_file: str, ports: Mapping[int, int]) -> None:
        self._folder = Path(main_file).parent
        self._ports = ports
        self._stack = ExitStack()
        prefix = f"ustreamer-{self._folder.name}-"
        self.directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix)))
        self._bench = self._stack.enter_context(StreamerBench(self.directory))
        signal.signal(signal.SIGTERM, _end)  # else the streamers stay

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
        if isinstance(error, KeyboardInterrupt):  # Ctrl-C is a usual end
            raise SystemExit(130) from None
        if isinstance(error, UStatusError) or (isinstance(error, OSError) and error.errno in _PORT_ERRORS):
            raise SystemExit(f"{error}; {_OTHER_PORTS}") from error

    def port(self, shown: int) -> int:
        """The port that is used in place of the one in the configuration."""
        return self._ports.get(shown, shown)

    def file(self, name: str) -> Path:
        """A copy of a file of the example, on the ports that are used."""
        copy = self.directory / name
        copy.write_text(on_ports((self._folder / name).read_text(encoding="utf-8"), self._ports), "utf-8")
        return copy

    def start(self, name: str) -> RunningStreamer:
        """Start a streamer with this configuration, and wait until it is ready."""
        streamer = RunningStreamer(self.file(f"{name}.toml"))
        self._stack.callback(streamer.close)
        print(f"{name} runs: ustreamer top {streamer.config}", flush=True)
        return streamer

    def zenoh_app(self, shown_port: int, authority: str, usubscription: str = "") -> Entity:
        """An application with a Zenoh session of its own. It subscribes at the uSubscription of this authority."""
        locator = f"tcp/127.0.0.1:{self.port(shown_port)}"
        return self._bench.zenoh_entity(locator, authority, usubscription=usubscription)

    def ecu(self, streamer_port: int, port: int, methods: EcuMethods | None = None) -> SimulatedEcu:
        """A SOME/IP ECU at the second port, which sends its events to the first one."""
        return self._bench.someip_ecu(self.port(streamer_port), methods, self.port(port))


def subscribe(application: Entity, topic: UUri, period_ms: int | None = None) -> bool:
    """Subscribe. Returns False while the device of the topic has not accepted (SUBSCRIBE_PENDING). May be repeated."""
    application.listen(topic)
    attributes = pb.SubscribeAttributes(sample_period_ms=period_ms)
    request = pb.SubscriptionRequest(topic=topic.to_pb(), attributes=attributes)
    answer = application.call_usubscription(_SUBSCRIBE, request)
    state = pb.SubscriptionResponse.FromString(answer.payload).status.state
    return state == pb.SubscriptionStatus.SUBSCRIBED


def wait_route(publisher: Entity, subscriber: Entity) -> None:
    """Publish on a topic of its own until it arrives.

    Zenoh needs some ms to report a subscriber to a publisher. Now it has, also for all topics subscribed before.
    """
    topic = publisher.address.with_resource(_READY)

    def has_arrived() -> bool:
        publisher.publish(topic)
        return any(message.attributes.source == topic for message in subscriber.received)

    if not (wait(lambda: subscribe(subscriber, topic)) and wait(has_arrived)):
        raise SystemExit(f"{topic} does not arrive at {subscriber.address}")


@contextmanager
def zenoh_router(port: int) -> Iterator[None]:
    """A Zenoh router in this process, in place of a `zenohd`."""
    config = zenoh.Config()
    config.insert_json5("mode", '"router"')
    config.insert_json5("listen/endpoints", json.dumps([f"tcp/127.0.0.1:{port}"]))
    config.insert_json5("scouting/multicast/enabled", "false")
    try:
        router = zenoh.open(config)
    except zenoh.ZError as error:
        raise SystemExit(f"no Zenoh router at port {port}: {error}; {_OTHER_PORTS}") from None
    with router:
        yield


def cycle(count: int, hz: float) -> Iterator[int]:
    """The numbers from 0 on, `hz` of them in a second, as a cyclic task of an ECU."""
    for number, _ in zip(range(count), PeriodicTicks(hz, Event()), strict=False):
        yield number


def wait(condition: Callable[[], bool], within_s: float = 30) -> bool:
    """Wait for a condition, or for the end of the time. Returns whether the condition is true."""
    until_ns = SYSTEM_CLOCK.monotonic_ns() + round(within_s * 1e9)
    pause = Event()
    while not (found := condition()) and SYSTEM_CLOCK.monotonic_ns() < until_ns:
        pause.wait(_PAUSE_S)
    return found


# --- figures ----------------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """Publications with numbers in their payloads: how many were sent, and what became of them."""

    published: int
    throttled: int
    received: int
    lost: int
    twice: int


def numbered(number: int) -> bytes:
    """The payload of a publication."""
    return number.to_bytes(4)


def numbers_at(application: Entity, topic: UUri) -> list[int]:
    """The numbers that it has received from a topic."""
    return [
        int.from_bytes(message.payload)
        for message in application.received
        if message.attributes.source == topic
    ]


def figures(published: range, received: Sequence[int], throttled: int = 0) -> Figures:
    """`throttled` of the publications were dropped for the rate of the subscriber, as the ledger of a streamer counts."""
    counted = [number for number in received if number in published]
    once = len(set(counted))
    return Figures(len(published), throttled, once, len(published) - throttled - once, len(counted) - once)


def show(rows: Mapping[str, Figures]) -> None:
    """Print a table."""
    print(f"{'':24}" + "".join(f"{name:>11}" for name in Figures._fields))
    for name, row in rows.items():
        print(f"{name:24}" + "".join(f"{value:>11}" for value in row), flush=True)
