# SPDX-License-Identifier: Apache-2.0
"""Half a minute without an egress, at 200 messages a second: everything is accounted for, arrives in order, and once.

The outages run side by side, each with a streamer of its own. The negative control is the same outage with a replay
window of 0: what was put into the dying link is then lost, and the books do not know it.
"""

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple, Self

import pytest

from tests.e2e import wire
from tests.e2e.peers import DEADLINE_S, Inbox, Metronome, SomeipPeer, ZenohPeer
from tests.e2e.relay import Relay
from tests.e2e.streamer import START_S, StreamerProcess, assert_law
from tests.e2e.vehicle import SPEED, free_ports
from tests.e2e.wire import Uri

HZ: Final = 200
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
LEASE_S: Final = 10.0

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
{ends} = ["tcp/127.0.0.1:{ports.backbone}"]
replay_ms = {replay_ms}

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {ports.someip}

[[endpoints.chassis.services]]
service = 0x1234
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ports.ecu}"

[egress.backbone]
queue_messages = 100_000
queue_bytes = 100_000_000
max_age_ms = 600_000

[plugins.usubscription]
"""


class Outcome(NamedTuple):
    """What the ECU sent, what the subscriber heard in order, and the streamer's last word on it."""

    sent: int
    heard: list[int]
    ledger: dict[str, int]
    replayed: int

    @property
    def first_heard(self) -> list[int]:
        return list(dict.fromkeys(self.heard))

    @property
    def lost(self) -> list[int]:
        return sorted(set(range(self.sent)) - set(self.heard))

    @property
    def duplicates(self) -> int:
        return len(self.heard) - len(self.first_heard)

    def __str__(self) -> str:
        return (
            f"sent {self.sent}, heard {len(self.first_heard)}, lost {len(self.lost)} {self.lost[:3]}, "
            f"duplicates {self.duplicates}, replayed {self.replayed}, ledger {self.ledger}"
        )


class Child:
    """A subscriber or a router in a process of its own."""

    def __init__(self, mode: str, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.listener", mode, str(port)],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self._pipe = self._process.stdout
        self.lines: Inbox[str] = Inbox(f"{mode} at {port}")
        self._reader = Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        for line in self._pipe:
            self.lines.add(line)

    def ready(self) -> Self:
        self.lines.one(lambda line: line == "READY\n", START_S)
        return self

    def wait_heard(self, number: int) -> None:
        self.lines.one(lambda line: line == f"{number}\n", START_S)

    @property
    def heard(self) -> list[int]:
        return [int(line) for line in self.lines.all() if line != "READY\n"]

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            self._reader.join(DEADLINE_S)
            self._pipe.close()


class Scene:
    """A streamer between an ECU and one network, and the children that make up the network."""

    def __init__(self, directory: Path, stack: ExitStack, ends: str, replay_ms: int) -> None:
        self.ports = free_ports()
        self._stack = stack
        self._subscribers: list[Child] = []
        directory.mkdir()
        self._config = directory / "outage.toml"
        text = _CONFIG.format(ends=ends, ports=self.ports, replay_ms=replay_ms)
        self._config.write_text(text, encoding="utf-8")

    def child(self, mode: str, port: int) -> Child:
        child = Child(mode, port)
        self._stack.callback(child.kill)
        return child.ready()

    def subscriber(self, port: int | None = None) -> None:
        self._subscribers.append(self.child("client", port or self.ports.backbone))

    def router(self) -> Child:
        return self.child("router", self.ports.backbone)

    def kill_subscriber(self) -> None:
        self._subscribers[-1].kill()

    def play(
        self,
        seconds: float,
        joins: Callable[[], None],
        begin: Callable[[], object],
        end: Callable[[], object],
    ) -> Outcome:
        """Events at 200 Hz before, during and after an outage of so many seconds."""
        pause = Event()
        with StreamerProcess(self._config, "--drain", "30") as process:
            with ZenohPeer(self.ports.backbone, "hpc.vin1") as app:
                app.subscribe(TOPIC)
            joins()
            with SomeipPeer(self.ports.ecu) as ecu:

                def beat(number: int) -> None:
                    datagram = wire.event(SPEED, 0x8001, b"%d" % number, session=number % 0xFFFF + 1)
                    ecu.send(datagram, self.ports.someip)

                with Metronome(HZ, beat) as metronome:
                    self._subscribers[-1].wait_heard(HZ)
                    begin()
                    pause.wait(seconds)
                    end()
                    self._subscribers[-1].wait_heard(metronome.beats + HZ)
                sent = metronome.beats
                self._subscribers[-1].wait_heard(sent - 1)
            process.stop()
        [stopped] = [line for line in process.log if line["event"] == "stopped"]
        heard = [number for each in self._subscribers for number in each.heard]
        return Outcome(sent, heard, process.ledger, stopped["endpoints"]["backbone"]["replayed"])


def subscriber_killed(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    with ExitStack() as stack:
        scene = Scene(directory, stack, "listen", replay_ms)
        return scene.play(seconds, scene.subscriber, scene.kill_subscriber, scene.subscriber)


def router_killed(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    with ExitStack() as stack:
        scene = Scene(directory, stack, "connect", replay_ms)
        router = scene.router()
        return scene.play(seconds, scene.subscriber, router.kill, scene.router)


def packets_dropped(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    with ExitStack() as stack:
        scene = Scene(directory, stack, "listen", replay_ms)
        cable = stack.enter_context(Relay(scene.ports.backbone))
        return scene.play(seconds, lambda: scene.subscriber(cable.port), cable.cut, cable.heal)


Outage = Callable[[Path, float, int], Outcome]
OUTAGES: Final[dict[str, Outage]] = {
    "subscriber killed": subscriber_killed,
    "router killed": router_killed,
    "packets dropped": packets_dropped,
}
REPLAY_MS: Final = 15_000


def played(directory: Path, seconds: float) -> dict[str, Outcome]:
    """All outages, side by side, and the last of them without a replay window."""
    with ThreadPoolExecutor() as side_by_side:
        futures = {
            name: side_by_side.submit(outage, directory / name.replace(" ", "-"), seconds, REPLAY_MS)
            for name, outage in OUTAGES.items()
        }
        futures["control"] = side_by_side.submit(packets_dropped, directory / "control", seconds, 0)
        return {name: future.result() for name, future in futures.items()}


@pytest.fixture(scope="module")
def half_a_minute(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    return played(tmp_path_factory.mktemp("outages"), 30)


def assert_at_least_once(outcome: Outcome) -> None:
    """accepted = delivered + dead-lettered + expired; duplicates under 1 %; none out of order."""
    ledger = outcome.ledger
    assert_law(ledger)
    ended = ledger["dead_lettered"] + ledger["expired"]
    assert len(outcome.lost) <= ended, outcome
    assert len(outcome.first_heard) + ended >= outcome.sent, outcome
    assert outcome.duplicates < outcome.sent / 100, outcome
    assert outcome.first_heard == sorted(outcome.first_heard), outcome


@pytest.mark.parametrize("name", OUTAGES)
def test_an_outage_of_half_a_minute_loses_nothing_and_keeps_the_order(
    half_a_minute: dict[str, Outcome], name: str
) -> None:
    assert_at_least_once(half_a_minute[name])


def test_without_a_replay_window_what_was_put_into_a_dying_link_is_lost(
    half_a_minute: dict[str, Outcome],
) -> None:
    control = half_a_minute["control"]
    assert_law(control.ledger)  # the books cannot know
    assert control.ledger["expired"] == control.ledger["dead_lettered"] == 0
    # All that was put until the lease was over.
    assert len(control.lost) > HZ * LEASE_S / 2, control
    assert half_a_minute["packets dropped"].replayed > HZ * LEASE_S / 2


@pytest.mark.soak
def test_an_outage_of_five_minutes_loses_nothing_and_keeps_the_order(tmp_path: Path) -> None:
    outcomes = played(tmp_path, 300)
    for name in OUTAGES:
        assert_at_least_once(outcomes[name])
    assert outcomes["control"].lost
