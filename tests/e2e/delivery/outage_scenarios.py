# SPDX-License-Identifier: Apache-2.0
"""Outages of an egress at 200 messages per second: the messages of the ECU, the messages at the subscriber, and the
ledger.

    python -m tests.e2e.delivery.outage_scenarios cable DIRECTORY SECONDS REPLAY_MS    packets are dropped
    python -m tests.e2e.delivery.outage_scenarios stall DIRECTORY SECONDS REPLAY_MS    the router stops during a drain

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

from tests.e2e.delivery.tcp_relay import TcpRelay
from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import NEAR_ADDRESS, Cable, in_own_namespace, shrink_tcp_buffers, unsupported_reason
from tests.e2e.rigs.entities import DEADLINE_S, Inbox, Metronome, SomeipNode, ZenohEntity
from tests.e2e.rigs.streamer import START_S, StreamerProcess
from tests.e2e.rigs.vehicle import SPEED, free_ports
from tests.e2e.rigs.wire import Uri

HZ: Final = 200
TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
LEASE_S: Final = 10.0
DETECTION_S: Final = 4.0
STALL_S: Final = 7.5
"""Longer than a put waits before Zenoh closes the link (5 s), and shorter than the lease."""
MAX_READ_UNWRITTEN: Final = 10
"""Events that Zenoh in a killed subscriber has read, and that its callback has not written yet: 50 ms of traffic. To
the streamer they have arrived.
"""
MAX_LOST_IN_KILL: Final = MAX_READ_UNWRITTEN + HZ // 20
"""These, and what the kernel of a frozen subscriber takes in 50 ms, until it is killed."""
_OVERHEAD_S: Final = 90.0  # maximum time of an outage test in addition to the outage

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
{ends} = {locators}
retransmit_ms = {retransmit_ms}
{settings}

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


_PATIENT: Final = """\
{
  transport: { link: { tx: { queue: { congestion_control: { block: { wait_before_close: 15000000 } } } } } },
}
"""


class OutageOutcome(NamedTuple):
    """Messages that the ECU sent, messages that the subscribers received in order, the final ledger, and counters."""

    sent: int
    received: list[int]
    ledger: dict[str, int]
    retransmitted: int
    sent_while_node_lost: int
    missed: list[int]
    """The number of messages that each subscriber missed."""

    @property
    def first_received(self) -> list[int]:
        return list(dict.fromkeys(self.received))

    @property
    def lost(self) -> list[int]:
        return sorted(set(range(self.sent)) - set(self.received))

    @property
    def duplicates(self) -> int:
        return len(self.received) - len(self.first_received)

    def __str__(self) -> str:
        return (
            f"sent {self.sent}, received {len(self.first_received)}, lost {len(self.lost)} {self.lost[:3]}, "
            f"duplicates {self.duplicates}, retransmitted {self.retransmitted}, ledger {self.ledger}"
        )


class ZenohProcess:
    """A subscriber or a router in a process of its own."""

    def __init__(self, mode: str, port: int, prefix: Sequence[str] = (), host: str = "127.0.0.1") -> None:
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.e2e.delivery.zenoh_process", mode, str(port), host],
            cwd=Path(__file__).parents[3],
            stdout=subprocess.PIPE,
            text=True,
            errors="backslashreplace",  # a garbled line would end the reading thread
        )
        assert self._process.stdout
        self._pipe = self._process.stdout
        self.lines: Inbox[str] = Inbox(f"{mode} at {port}")
        self._reader = Thread(target=self._read_lines, daemon=True)
        self._reader.start()

    def _read_lines(self) -> None:
        for line in self._pipe:
            self.lines.append(line)

    def wait_ready(self) -> Self:
        self.lines.wait_one(lambda line: line == "READY\n", START_S)
        return self

    def wait_received(self, number: int) -> None:
        self.lines.wait_one(lambda line: line == f"{number}\n", START_S)

    def wait_up_to_date(self, sent: Callable[[], int]) -> None:
        """Wait until nearly all of the `sent()` events are received: a process that is killed later loses the rest."""
        self.lines.wait_one(
            lambda line: line != "READY\n" and int(line) >= sent() - MAX_READ_UNWRITTEN, START_S
        )

    def freeze_up_to_date(self, sent: Callable[[], int]) -> None:
        """As `wait_up_to_date`, and freeze it then: a busy machine may make it late before it is killed."""
        while True:
            self.wait_up_to_date(sent)
            self.freeze()
            if self.received[-1] >= sent() - MAX_READ_UNWRITTEN:
                return
            self.thaw()

    @property
    def received(self) -> list[int]:
        return [int(line) for line in self.lines.items() if line != "READY\n"]

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


class OutageScenario:
    """A streamer between an ECU and one network, and the child processes of that network."""

    def __init__(
        self,
        directory: Path,
        stack: ExitStack,
        endpoint_key: str,
        retransmit_ms: int,
        hosts: Sequence[str] = ("127.0.0.1",),
        settings: str = "",
    ) -> None:
        """`settings`: further lines for the endpoint of the subscriber."""
        self.ports = free_ports()
        self._stack = stack
        self._subscribers: list[ZenohProcess] = []
        self._sent: Callable[[], int] = int
        """The number of events that were sent."""
        self.streamer_pid = 0
        directory.mkdir(parents=True)
        self._config = directory / "outage.toml"
        locators = json.dumps([f"tcp/{host}:{self.ports.backbone}" for host in hosts])
        text = _CONFIG.format(
            ends=endpoint_key,
            locators=locators,
            ports=self.ports,
            retransmit_ms=retransmit_ms,
            settings=settings,
        )
        self._config.write_text(text, encoding="utf-8")

    def start_process(
        self, mode: str, port: int, prefix: Sequence[str] = (), host: str = "127.0.0.1"
    ) -> ZenohProcess:
        child = ZenohProcess(mode, port, prefix, host)
        self._stack.callback(child.kill)
        return child.wait_ready()

    def start_subscriber(
        self, port: int | None = None, prefix: Sequence[str] = (), host: str = "127.0.0.1"
    ) -> None:
        self._subscribers.append(self.start_process("client", port or self.ports.backbone, prefix, host))

    def start_router(self, mode: str = "router") -> ZenohProcess:
        return self.start_process(mode, self.ports.backbone)

    def wait_received(self, number: int) -> None:
        self._subscribers[-1].wait_received(number)

    def freeze_subscriber(self) -> None:
        self._subscribers[-1].freeze()

    def thaw_subscriber(self) -> None:
        self._subscribers[-1].thaw()

    def kill_subscriber(self) -> None:
        self._subscribers[-1].freeze_up_to_date(self._sent)
        self._subscribers[-1].kill()

    def run_outage(
        self,
        seconds: float,
        join: Callable[[], None],
        start_outage: Callable[[], object],
        end_outage: Callable[[], object],
        hz: int = HZ,
    ) -> OutageOutcome:
        """Send events before, during and after an outage of `seconds`. The newest subscriber is waited for."""
        pause = Event()
        with StreamerProcess(self._config, "--drain", "30") as process:
            self.streamer_pid = process.pid
            with ZenohEntity(self.ports.backbone, "hpc.vin1") as app:
                app.subscribe(TOPIC)
            join()
            with SomeipNode(self.ports.ecu) as ecu:

                def beat(number: int) -> None:
                    datagram = wire.event(SPEED, 0x8001, b"%d" % number, session=number % 0xFFFF + 1)
                    ecu.send_to_port(datagram, self.ports.someip)

                with Metronome(hz, beat) as metronome:
                    self._sent = lambda: metronome.beats
                    self._subscribers[-1].wait_received(hz)
                    self._subscribers[-1].wait_up_to_date(self._sent)
                    start_outage()
                    pause.wait(seconds)
                    end_outage()
                    # A stop within a second after the end may report too much (docs/delivery/outages.md).
                    self._subscribers[-1].wait_received(metronome.beats + 2 * hz)
                sent = metronome.beats
                self._subscribers[-1].wait_received(sent - 1)
            process.stop()
        [stopped] = [line for line in process.log_records if line["event"] == "streamer.stopped"]
        received = [number for each in self._subscribers for number in each.received]
        backbone = stopped["endpoints"]["backbone"]
        missed = [
            len(set(range(min(each.received), sent)) - set(each.received)) for each in self._subscribers
        ]
        return OutageOutcome(
            sent,
            received,
            process.ledger,
            backbone["retransmitted"],
            backbone["sent_while_node_lost"],
            missed,
        )


def subscriber_killed(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", retransmit_ms)
        return scene.run_outage(
            seconds, scene.start_subscriber, scene.kill_subscriber, scene.start_subscriber
        )


def router_killed(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "connect", retransmit_ms)
        router = scene.start_router()
        return scene.run_outage(seconds, scene.start_subscriber, router.kill, scene.start_router)


def acknowledged_and_lost(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    """A relay acknowledges all packets and drops them."""
    with ExitStack() as stack:
        scene = OutageScenario(directory, stack, "listen", retransmit_ms)
        relay = stack.enter_context(TcpRelay(scene.ports.backbone))
        return scene.run_outage(seconds, lambda: scene.start_subscriber(relay.port), relay.cut, relay.heal)


def packets_dropped(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    """A cable is cut at any moment; without namespaces, `acknowledged_and_lost` replaces it."""
    if unsupported_reason():
        return acknowledged_and_lost(directory, seconds, retransmit_ms)
    return _run_in_namespace("cable", directory, seconds, retransmit_ms)


def router_stalled(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    """A router that restarts after an outage stops for longer than a put waits, before it has all messages.

    Its puts and those of the streamer wait longer (docs/delivery.md, Not promised). With small buffers in a namespace,
    if possible: otherwise the kernel may buffer all messages.
    """
    if unsupported_reason():
        return _stalled(directory, seconds, retransmit_ms)
    return _run_in_namespace("stall", directory, seconds, retransmit_ms)


def _run_in_namespace(scenario: str, directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    done = subprocess.run(
        in_own_namespace(
            "tests.e2e.delivery.outage_scenarios", scenario, str(directory), str(seconds), str(retransmit_ms)
        ),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=seconds + _OVERHEAD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return OutageOutcome(*json.loads(done.stdout))


def _cable_cut(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    with ExitStack() as stack:
        cable = stack.enter_context(Cable())
        scene = OutageScenario(directory, stack, "listen", retransmit_ms, ("127.0.0.1", NEAR_ADDRESS))
        join = lambda: scene.start_subscriber(prefix=cable.far_prefix, host=NEAR_ADDRESS)  # noqa: E731
        return scene.run_outage(seconds, join, cable.cut, cable.heal)


def _stalled(directory: Path, seconds: float, retransmit_ms: int) -> OutageOutcome:
    with ExitStack() as stack:
        scene = OutageScenario(
            directory, stack, "connect", retransmit_ms, settings='config = "patient.json5"\nscouting = false'
        )
        (directory / "patient.json5").write_text(_PATIENT, encoding="utf-8")
        first = scene.start_router()

        def end() -> None:
            second = scene.start_router("patient-router")
            scene.wait_received(int(seconds * HZ / 3))
            second.freeze()
            Event().wait(STALL_S)
            second.thaw()

        return scene.run_outage(seconds, scene.start_subscriber, first.kill, end)


Outage = Callable[[Path, float, int], OutageOutcome]

if __name__ == "__main__":
    if sys.argv[1] == "stall":
        shrink_tcp_buffers()
    play = {"cable": _cable_cut, "stall": _stalled}[sys.argv[1]]
    print(json.dumps(play(Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))))
