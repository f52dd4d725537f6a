# SPDX-License-Identifier: Apache-2.0
"""One schedule of faults against a real streamer, and the proof of its history.

    python -m tests.e2e.faults.run SCHEDULE DIRECTORY

runs a schedule in JSON in user, network and mount namespaces of its own and prints a `RunOutcome` as JSON. The streamer's state is on a
small tmpfs. A Zenoh application publishes for a SOME/IP receiver, and an ECU sends events for a Zenoh receiver at
the other end of a cable.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from tests.e2e.faults.receivers import LogFile, id_text
from tests.e2e.faults.schedules import Fault, Schedule
from tests.e2e.rigs import wire
from tests.e2e.rigs.cable import FAR_ADDRESS, NEAR_ADDRESS, Cable, run_system_command
from tests.e2e.rigs.entities import DEADLINE_S, Metronome, SomeipNode, ZenohEntity
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import COMMAND, START_S, StreamerProcess
from tests.e2e.rigs.subscriber import Subscriber
from tests.e2e.rigs.wire import Attributes, Uri
from tests.waiting import wait_until

REPO: Final = Path(__file__).parents[3]
SPEED: Final = Uri("chassis", 0x1234, 1, 0x8001)
"""Sent by the ECU, received on Zenoh."""
DIAL: Final = Uri("cloud", 0x8501, 1, 0x8001)
"""Published on Zenoh, received on SOME/IP."""
DISK_BYTES: Final = 24_000_000
RECOVERY_S: Final = 40.0
"""All nodes receive messages again within this time after the last fault."""
QUIET_S: Final = 2.0
"""A history ends when no receiver has received anything for this time."""
LINKING_S: Final = 0.5
"""An application publishes this time after its session has found the streamer again."""
_IN_NAMESPACES: Final = ("unshare", "--user", "--map-root-user", "--net", "--mount")

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "{state}"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
{backbone}
durable = {durable}

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{cloud}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
port_tcp = {someip_tcp}

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001 }}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x4002
major = 1
protocol = "{protocol}"
events = [{{ id = 0x8001 }}]
offered = true
provider = "//cloud/8501/1/0"
remote = "127.0.0.1:{receiver}"

[egress.backbone]
queue_messages = 100_000
queue_bytes = 100_000_000
max_age_ms = {max_age_ms}

[plugins.usubscription]
[plugins.recorder]
directory = "{recordings}"
keep_free_bytes = 0
"""


class RunOutcome(msgspec.Struct):
    """The proof of one run: the lines of `recordings prove --json`, and what else was wrong."""

    seed: int
    schedule: str
    exit_code: int = -1
    proof: list[dict[str, Any]] = []
    problems: list[str] = []
    sent: dict[str, int] = {}
    stopped: list[dict[str, Any]] = []
    """The last log record of each streamer that was stopped."""

    @property
    def is_good(self) -> bool:
        return self.exit_code == 0 and not self.problems


def run_in_namespaces(schedule: Schedule, directory: Path, timeout_s: float) -> RunOutcome:
    """Run a schedule in namespaces of its own."""
    text = msgspec.json.encode(schedule).decode()
    command = [*_IN_NAMESPACES, sys.executable, "-m", "tests.e2e.faults.run", text, str(directory)]
    try:
        done = subprocess.run(
            command, cwd=REPO, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return RunOutcome(schedule.seed, str(schedule), problems=[f"did not end within {timeout_s:g} s"])
    if done.returncode:
        return RunOutcome(schedule.seed, str(schedule), problems=[done.stderr[-3_000:]])
    return msgspec.json.decode(done.stdout, type=RunOutcome)


class Child:
    """A router or a receiver as a process that can be frozen, killed and started again."""

    def __init__(self, command: Sequence[str], output: Path) -> None:
        self._command = command
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, unless it runs. It may become ready much later: without its network it keeps trying."""
        if self._process is None:
            with self._output.open("ab") as output:
                self._process = subprocess.Popen(self._command, cwd=REPO, stdout=output, stderr=output)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(DEADLINE_S)
            self._process = None

    def freeze(self) -> None:
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._send(signal.SIGCONT)

    def end(self) -> None:
        """SIGTERM: a receiver writes the end of its log."""
        self._send(signal.SIGTERM)
        if self._process is not None:
            self._process.wait(DEADLINE_S)
            self._process = None

    def _send(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)


class Received:
    """The ids in a receiver's log so far."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self.newest_ms = 0
        self._offset = 0

    def update(self) -> None:
        """Read the new lines."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        ids = [each.split(b'"', 4)[3] for each in whole.splitlines() if each.startswith(b'{"id"')]
        self.lines += len(ids)
        # The first 48 bits of a UUID of version 7 are its time.
        self.newest_ms = max([self.newest_ms, *(int(each[:8] + each[9:13], 16) for each in ids)])


class FaultRun:
    """The vehicle of one schedule."""

    def __init__(self, schedule: Schedule, directory: Path, stack: ExitStack) -> None:
        self.schedule = schedule
        self.directory = directory
        self.outcome = RunOutcome(schedule.seed, str(schedule))
        self._state = directory / "state"
        self._state.mkdir()
        run_system_command("mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(self._state))
        self._cable = stack.enter_context(Cable())
        self._zenoh_port, self._cloud_port, self._tcp_port, receiver_tcp = tcp_ports(4)
        self._someip_port, self._ecu_port, receiver_udp = udp_ports(3)
        self._receiver_port = receiver_udp if schedule.protocol == "udp" else receiver_tcp
        self._config = self._write_config()
        self._stack = stack
        self._publisher: Any = None
        self._linked_at = 0.0
        self._last_lines: list[int] = []
        self._changed_at = 0.0
        self._router = self._start_router() if schedule.has_router else None
        self._streamer = StreamerProcess(self._config, "--drain", "5").wait_ready()
        self._stack.callback(self._kill_streamer)
        self._subscribe()
        self._dash = self._start_receiver("dash", "zenoh", SPEED)
        self._dial = self._start_receiver("dial", schedule.protocol, DIAL)
        self._received = [Received(directory / "dash.log"), Received(directory / "dial.log")]

    # --- set-up -----------------------------------------------------------------------------------------------------

    def _write_config(self) -> Path:
        if self.schedule.has_router:
            backbone = f'connect = ["tcp/{FAR_ADDRESS}:{self._zenoh_port}"]'
        else:
            hosts = ("127.0.0.1", NEAR_ADDRESS)
            backbone = f"listen = {json.dumps([f'tcp/{host}:{self._zenoh_port}' for host in hosts])}"
        path = self.directory / "faults.toml"
        path.write_text(
            _CONFIG.format(
                state=self._state,
                recordings=self.directory / "recordings",
                backbone=backbone,
                durable=str(self.schedule.durable).lower(),
                max_age_ms=self.schedule.max_age_ms,
                cloud=self._cloud_port,
                someip=self._someip_port,
                someip_tcp=self._tcp_port,
                ecu=self._ecu_port,
                protocol=self.schedule.protocol,
                receiver=self._receiver_port,
            ),
            encoding="utf-8",
        )
        return path

    def _child(self, name: str, *command: str, far: bool = False) -> Child:
        prefix = self._cable.far_prefix if far else ()
        child = Child([*prefix, sys.executable, "-m", *command], self.directory / f"{name}.out")
        self._stack.callback(child.kill)
        return child

    def _start_router(self) -> Child:
        module = "tests.e2e.delivery.zenoh_process"
        router = self._child("router", module, "router", str(self._zenoh_port), "0.0.0.0", far=True)
        wait_until(lambda: b"READY" in (self.directory / "router.out").read_bytes(), "the router", START_S)
        return router

    def _start_receiver(self, name: str, kind: str, topic: Uri) -> Child:
        if kind == "zenoh":
            host = "127.0.0.1" if self.schedule.has_router else NEAR_ADDRESS
            port = self._zenoh_port
        else:
            host, port = "127.0.0.1", self._tcp_port if kind == "tcp" else self._receiver_port
        module, log = "tests.e2e.faults.receivers", str(self.directory / f"{name}.log")
        child = self._child(name, module, kind, log, str(topic), host, str(port), far=kind == "zenoh")
        wait_until(lambda: b"READY" in (self.directory / f"{name}.out").read_bytes(), name, START_S)
        return child

    def _subscribe(self) -> None:
        host = FAR_ADDRESS if self.schedule.has_router else "127.0.0.1"
        app = Subscriber(self._zenoh_port, "hpc.vin1", host=host)
        app.wait_responding(app.usubscription.at(wire.FETCH_SUBSCRIBERS))
        app.subscribe_and_wait(SPEED)
        app.close()

    # --- the streamer -----------------------------------------------------------------------------------------------

    def _kill_streamer(self) -> None:
        if self._streamer.is_alive:
            self._streamer.kill()

    def _note_death(self) -> bool:
        """Note a streamer that ended without a request; whether it did."""
        if self._streamer.is_alive:
            return False
        code = self._streamer.wait_exit()
        last = self._streamer.output.strip().splitlines()[-1:]
        self.outcome.problems.append(f"the streamer died with exit code {code}: {last}")
        return True

    def _restart_streamer(self) -> None:
        self._streamer = StreamerProcess(self._config, "--drain", "5").wait_ready()

    def _end_streamer(self) -> None:
        """Wait for the end after SIGTERM. Exit code 75 reports messages that were not sent."""
        code = self._streamer.wait_exit()
        with (self.directory / "streamer.log").open("a", encoding="utf-8") as log:
            log.write(self._streamer.output)
        stopped = [each for each in self._streamer.log_records if each["event"] == "streamer.stopped"]
        self.outcome.stopped += [{"exit_code": code, **each} for each in stopped]
        if code not in {0, 75} or not stopped:
            self.outcome.problems.append(f"exit code {code} after SIGTERM: {self._streamer.output[-500:]}")

    # --- faults -----------------------------------------------------------------------------------------------------

    def _begin(self, kind: str) -> None:
        match kind.split(maxsplit=1):
            case ["freeze", "streamer"]:
                os.kill(self._streamer.pid, signal.SIGSTOP)
            case ["kill", "streamer"]:
                if not self._note_death():
                    self._streamer.kill()
            case ["stop", "streamer"]:
                if not self._note_death():
                    self._streamer.send_sigterm()
            case ["cut", _]:
                self._cable.cut()
            case ["fill", _]:
                self._fill_disk()
            case ["freeze", name]:
                self._children[name].freeze()
            case ["kill", name]:
                self._children[name].kill()

    def _end(self, kind: str) -> None:
        match kind.split(maxsplit=1):
            case ["freeze", "streamer"]:
                os.kill(self._streamer.pid, signal.SIGCONT)
            case ["kill", "streamer"]:
                self._restart_streamer()
            case ["stop", "streamer"]:
                if self._streamer.is_alive:
                    self._end_streamer()
                self._restart_streamer()
            case ["cut", _]:
                self._cable.heal()
            case ["fill", _]:
                (self._state / "ballast").unlink()
            case ["freeze", name]:
                self._children[name].thaw()
            case ["kill", name]:
                self._children[name].start()

    @property
    def _children(self) -> dict[str, Child]:
        found = {"receiver": self._dash, "someip receiver": self._dial}
        return found if self._router is None else found | {"router": self._router}

    def _fill_disk(self) -> None:
        with (self._state / "ballast").open("wb", buffering=0) as file, suppress(OSError):
            while True:
                file.write(bytes(4096))

    # --- the run ----------------------------------------------------------------------------------------------------

    def run(self) -> RunOutcome:
        """Run the schedule and prove the history."""
        log = LogFile(self.directory / "app.log")
        log.start(sender="app")
        with (
            ZenohEntity(self._cloud_port, DIAL.authority, DIAL.ue_id) as app,
            SomeipNode(self._ecu_port) as ecu,
            Metronome(self.schedule.hz, lambda number: self._send(number, log, app, ecu)) as metronome,
        ):
            self._play(self.schedule.faults)
            healed_ms = time.time_ns() // 1_000_000
            self._wait(lambda: self._newest_ms() > healed_ms, RECOVERY_S, "no recovery")
            metronome.stop()
            self.outcome.sent = {"ecu": metronome.beats}
            self._wait(self._is_quiet, RECOVERY_S, "no end")
        if not self._note_death():
            self._streamer.send_sigterm()
            self._end_streamer()
        for child in (self._dash, self._dial):
            child.end()
        self._prove()
        self._count_events()
        return self.outcome

    def _count_events(self) -> None:
        """Without a fault of the streamer, the files have every event of the ECU that the kernel did not drop."""
        if any(fault.kind.endswith(("streamer", "disk")) for fault in self.schedule.faults):
            return
        known = sum(each.get("messages", 0) for each in self.outcome.proof if each.get("receiver") == "dash")
        dropped = sum(each["endpoints"]["chassis"].get("udp_dropped", 0) for each in self.outcome.stopped)
        if known + dropped < self.outcome.sent["ecu"]:
            self.outcome.problems.append(f"{self.outcome.sent} events sent, {known} known, {dropped} dropped")

    def _send(self, number: int, log: LogFile, app: ZenohEntity, ecu: SomeipNode) -> None:
        ecu.send_to_port(
            wire.event(SPEED.ue_id, 0x8001, b"%d" % number, session=number % 0xFFFF + 1), self._someip_port
        )
        if self._publisher is None:
            self._publisher = app.session.declare_publisher(wire.key(DIAL))
        # Without a streamer nothing is sent. For a client, a subscriber of a lost node still matches, and a new link
        # loses what is sent before the node has declared its subscribers.
        now = time.monotonic()
        if not list(app.session.info.peers_zid()):
            self._linked_at = now + LINKING_S
        if self._publisher.matching_status.matching and now > self._linked_at:
            attributes = Attributes(wire.new_id(), wire.PUBLISH, DIAL, priority=wire.CS1)
            text = id_text(attributes.id)
            log.write({"id": text, "topic": str(DIAL)})
            self._publisher.put(text.encode(), attachment=attributes.attachment)

    def _play(self, faults: Sequence[Fault]) -> None:
        """Begin and end all faults at their times."""
        began = time.monotonic()
        steps: list[tuple[float, Callable[[str], None], str]] = []
        for fault in faults:
            steps.append((fault.at_s, self._begin, fault.kind))
            steps.append((fault.at_s + fault.seconds, self._end, fault.kind))
        for at_s, step, kind in sorted(steps, key=lambda each: each[0]):
            wait_until(lambda at_s=at_s: time.monotonic() - began >= at_s, kind)  # type: ignore[misc]
            step(kind)

    def _newest_ms(self) -> int:
        """The time of the newest message that all receivers have received."""
        for each in self._received:
            each.update()
        return min(each.newest_ms for each in self._received)

    def _is_quiet(self) -> bool:
        self._newest_ms()
        lines = [each.lines for each in self._received]
        now = time.monotonic()
        if lines != self._last_lines:
            self._last_lines, self._changed_at = lines, now
        return now - self._changed_at > QUIET_S

    def _wait(self, condition: Callable[[], bool], within_s: float, problem: str) -> None:
        """Wait for a condition; a streamer that dies meanwhile is a problem, as is the end of the time."""
        until = time.monotonic() + within_s
        while not condition():
            if not self._streamer.is_alive:
                self._note_death()
                self._restart_streamer()
            if time.monotonic() > until:
                received = {each.path.stem: each.lines for each in self._received}
                self.outcome.problems.append(f"{problem} within {within_s:g} s: received {received}")
                return
            time.sleep(0.05)

    def _prove(self) -> None:
        done = subprocess.run(
            [
                *(COMMAND, "recordings", "prove", self.directory / "recordings", "--state", self._state),
                *("--received", self.directory / "dash.log", self.directory / "dial.log"),
                *("--sent", self.directory / "app.log", "--json"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S * 2,
        )
        self.outcome.exit_code = done.returncode
        self.outcome.proof = [json.loads(line) for line in done.stdout.splitlines()]
        if done.stderr:
            self.outcome.problems.append(done.stderr)


def main(schedule: str, directory: str) -> None:
    run_system_command("ip", "link", "set", "lo", "up")
    with ExitStack() as stack:
        outcome = FaultRun(msgspec.json.decode(schedule, type=Schedule), Path(directory), stack).run()
    print(msgspec.json.encode(outcome).decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
