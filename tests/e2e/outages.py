# SPDX-License-Identifier: Apache-2.0
"""Outages of an egress at 200 messages a second: what the ECU sent, what the subscriber heard, what the books say.

    python -m tests.e2e.outages cable DIRECTORY SECONDS REPLAY_MS    packets are dropped
    python -m tests.e2e.outages stall DIRECTORY SECONDS REPLAY_MS    a router stands still while what has waited is sent

run in a network namespace of their own and print the outcome as JSON.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple, Self

from tests.e2e import wire
from tests.e2e.cable import NEAR, Cable, alone, obstacle, small_buffers
from tests.e2e.peers import DEADLINE_S, Inbox, Metronome, SomeipPeer, ZenohPeer
from tests.e2e.relay import Relay
from tests.e2e.streamer import START_S, StreamerProcess
from tests.e2e.vehicle import SPEED, free_ports
from tests.e2e.wire import Uri

HZ: Final = 200
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
LEASE_S: Final = 10.0
NOTICED_S: Final = 4.0
STALL_S: Final = 7.5
"""Longer than a put waits before Zenoh closes the link (5 s), and shorter than the lease."""
_AROUND_S: Final = 90.0  # what an outage takes beside itself, at most

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
{ends} = {locators}
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

    def __init__(self, mode: str, port: int, prefix: Sequence[str] = (), host: str = "127.0.0.1") -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.e2e.listener", mode, str(port), host],
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            text=True,
            errors="backslashreplace",  # or what is garbled would end the thread that reads
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

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            self._reader.join(DEADLINE_S)
            self._pipe.close()


class Scene:
    """A streamer between an ECU and one network, and the children that make up the network."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        ends: str,
        replay_ms: int,
        hosts: Sequence[str] = ("127.0.0.1",),
    ) -> None:
        self.ports = free_ports()
        self._stack = stack
        self._subscribers: list[Child] = []
        directory.mkdir()
        self._config = directory / "outage.toml"
        locators = json.dumps([f"tcp/{host}:{self.ports.backbone}" for host in hosts])
        text = _CONFIG.format(ends=ends, locators=locators, ports=self.ports, replay_ms=replay_ms)
        self._config.write_text(text, encoding="utf-8")

    def child(self, mode: str, port: int, prefix: Sequence[str] = (), host: str = "127.0.0.1") -> Child:
        child = Child(mode, port, prefix, host)
        self._stack.callback(child.kill)
        return child.ready()

    def subscriber(
        self, port: int | None = None, prefix: Sequence[str] = (), host: str = "127.0.0.1"
    ) -> None:
        self._subscribers.append(self.child("client", port or self.ports.backbone, prefix, host))

    def router(self) -> Child:
        return self.child("router", self.ports.backbone)

    def wait_heard(self, number: int) -> None:
        self._subscribers[-1].wait_heard(number)

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


def swallowed(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    """Something on the way acknowledges everything, and loses it."""
    with ExitStack() as stack:
        scene = Scene(directory, stack, "listen", replay_ms)
        relay = stack.enter_context(Relay(scene.ports.backbone))
        return scene.play(seconds, lambda: scene.subscriber(relay.port), relay.cut, relay.heal)


def packets_dropped(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    """A cable is cut, at any moment; where there can be none, `swallowed` stands in."""
    if obstacle():
        return swallowed(directory, seconds, replay_ms)
    return _played_alone("cable", directory, seconds, replay_ms)


def router_stalled(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    """A router that comes back after an outage stands still for longer than a put waits, before it has got everything.

    With small buffers, where there can be a namespace for them: as they are, the kernel may take it all.
    """
    if obstacle():
        return _stalled(directory, seconds, replay_ms)
    return _played_alone("stall", directory, seconds, replay_ms)


def _played_alone(what: str, directory: Path, seconds: float, replay_ms: int) -> Outcome:
    done = subprocess.run(
        alone("tests.e2e.outages", what, str(directory), str(seconds), str(replay_ms)),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=seconds + _AROUND_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Outcome(*json.loads(done.stdout))


def _cable_cut(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        scene = Scene(directory, stack, "listen", replay_ms, ("127.0.0.1", NEAR))
        joins = lambda: scene.subscriber(prefix=cable.there, host=NEAR)  # noqa: E731
        return scene.play(seconds, joins, cable.cut, cable.heal)


def _stalled(directory: Path, seconds: float, replay_ms: int) -> Outcome:
    with ExitStack() as stack:
        scene = Scene(directory, stack, "connect", replay_ms)
        first = scene.router()

        def end() -> None:
            second = scene.router()
            scene.wait_heard(int(seconds * HZ / 3))
            second.freeze()
            Event().wait(STALL_S)
            second.thaw()

        return scene.play(seconds, scene.subscriber, first.kill, end)


Outage = Callable[[Path, float, int], Outcome]

if __name__ == "__main__":
    if sys.argv[1] == "stall":
        small_buffers()
    play = {"cable": _cable_cut, "stall": _stalled}[sys.argv[1]]
    print(json.dumps(play(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
