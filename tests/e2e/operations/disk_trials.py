# SPDX-License-Identifier: Apache-2.0
"""One trial of a full disk: a streamer with every kind of store on a small disk, and traffic at all its endpoints.

The oracle is black-box: answers to calls, received events, statistics, the log, and the commands next to it.
"""

import json
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, get_args

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import (
    USUBSCRIPTION,
    SomeipNode,
    ZenohEntity,
    ZenohSample,
    ecu_response,
    eventually,
)
from tests.e2e.rigs.failing_disk import FailingDisk
from tests.e2e.rigs.small_disk import SmallDisk
from tests.e2e.rigs.streamer import VERDICTS, StreamerProcess, run_command, statistics
from tests.e2e.rigs.vehicle import CLIMATE, SPEED, VehiclePorts, free_ports
from tests.e2e.rigs.wire import Uri

Disk: TypeAlias = SmallDisk | FailingDisk
Moment = Literal["start", "restart", "dead letter", "running", "stop", "kill"]
_BLOCK: Final = 4_096
MOMENTS: Final = get_args(Moment)
LEFT: Final = [kilobytes << 10 for kilobytes in (0, 3, 6, 9, 12, 16, 20)]
MEMORY: Final = 10
"""Messages that a durable endpoint holds in memory while the disk refuses them."""
_TOPIC: Final = Uri("chassis", SPEED, 1, 0x8001)
_METHOD: Final = Uri("chassis", CLIMATE, 1, 1)
_NO_ROUTE: Final = Uri("chassis", 0x3FFF, 1, 1)
_RESOURCE_EXHAUSTED: Final = 8
_OK, _UNAVAILABLE, _NOT_DRAINED = 0, 69, 75

_CONFIG: Final = """\
authority = "hpc.vin1"
state_dir = "{state}"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
listen = ["tcp/127.0.0.1:{ports.backbone}"]

[endpoints.cloud]
transport = "zenoh"
authorities = ["cloud"]
listen = ["tcp/127.0.0.1:{ports.cloud}"]
durable = true

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {ports.someip}
sd = false

[[endpoints.chassis.services]]
service = 0x1234
instance = 1
major = 1
events = [{{ id = 0x8001, eventgroup = 1 }}]
remote = "127.0.0.1:{ports.ecu}"

[[endpoints.chassis.services]]
service = 0x3001
instance = 1
major = 1
methods = [0x0001]
remote = "127.0.0.1:{ports.ecu}"

[egress.cloud]
queue_messages = {memory}
max_age_ms = 600_000

[plugins.usubscription]
[plugins.recorder]
keep_free_bytes = 0
segment_bytes = 786_816
max_bytes = 1_573_632
"""


class DiskTrial:
    """A streamer whose state directory is on `disk`, an ECU, and an application at `backbone`."""

    def __init__(self, directory: Path, disk: Disk, ecu: SomeipNode, ports: VehiclePorts) -> None:
        self.disk = disk
        self._ports = ports
        self._ecu = ecu
        self._state = disk.outer / "state"
        self._state.mkdir()
        self.config = directory / "disk.toml"
        text = _CONFIG.format(ports=ports, state=disk.inner / "state", memory=MEMORY)
        self.config.write_text(text, encoding="utf-8")
        self.processes: list[StreamerProcess] = []
        self.events_sent = 0

    # --- the parts of a trial -----------------------------------------------------------------------------------

    def start(self) -> StreamerProcess:
        self.processes.append(StreamerProcess(self.config, "--drain", "1", prefix=self.disk.prefix))
        return self.processes[-1].wait_ready()

    @contextmanager
    def app(self) -> Iterator[ZenohEntity]:
        with ZenohEntity(self._ports.backbone, "hpc.vin1", 0x10A0) as app:
            yield app

    def subscribe_cloud_and_leave(self) -> None:
        """Let a client behind the durable endpoint subscribe and leave."""
        process = self.processes[-1]
        with ZenohEntity(self._ports.cloud, "cloud", 0x20A0) as client:
            client.subscribe(_TOPIC)
        process.stderr.wait_one(lambda line: "link_down" in line and '"cloud"' in line)

    def statistics(self) -> dict[str, Any]:
        return statistics(self._state)

    def send_events(self, count: int) -> None:
        for _ in range(count):
            self._ecu.send_to_port(
                wire.event(SPEED, _TOPIC.resource, b"%d" % self.events_sent), self._ports.someip
            )
            self.events_sent += 1

    def check_traffic(self, app: ZenohEntity, *, subscribed: bool, count: int = 10) -> None:
        """Every call is answered, every event arrives in order, and every lost message is reported."""
        before = len(app.events(_TOPIC))
        for _ in range(count):
            self.send_events(1)
            answer = app.call(_METHOD, b"22 C")
            assert answer.head.commstatus in {None, wire.OK}, answer.status
            refused = app.call(_NO_ROUTE, b"lost")
            assert refused.status.code == wire.NOT_FOUND
        if subscribed:
            found = app.wait_events(_TOPIC, before + count)
            numbers = [int(each.payload) for each in found]
            assert numbers == sorted(set(numbers)), numbers
        self.check_letters_reported()

    def check_letters_reported(self) -> None:
        """Each dead letter of the ledger is on disk or counted as not persisted."""

        def reported() -> bool:
            found = self.statistics()
            letters = found["dead_letters"]
            total = letters["persisted"] + letters["not_persisted"] + letters["suppressed"]
            return is_each_reported(found["ledger"], total) and not letters["waiting"]

        eventually(reported, True)

    def check_commands(self) -> None:
        """The commands that read a store next to the streamer end in order and find what it counts."""
        self.check_letters_listed()
        self._command("top")
        codes = {_OK} if self.has_store else {_UNAVAILABLE}
        if "usubscription" in self.degraded():  # the streamer removes it and makes it again until it has room
            codes = {_OK, _UNAVAILABLE}
        self._command("subscriptions", "ls", "--json", codes=codes)

    def check_letters_listed(self) -> None:
        listed = self._command("dead-letters", "ls", "--json")
        assert len(json.loads(listed)) == self.statistics()["dead_letters"]["stored"]

    @property
    def has_store(self) -> bool:
        return (self._state / "usubscription").exists()

    def _command(self, *arguments: str, codes: Container[int] = (_OK,)) -> str:
        words = [each for each in arguments if not each.startswith("-")]
        options = [each for each in arguments if each.startswith("-")]
        done = run_command(*words, self.config, *options, prefix=self.disk.prefix)
        assert done.returncode in codes, f"{arguments}: {done.returncode}\n{done.stderr}"
        return done.stdout

    def degraded(self) -> set[str]:
        """The names of the stores that the disk refuses, as an operator sees them."""
        stores = self.statistics()["stores"].items()
        return {Path(path).name for path, store in stores if store["degraded"]}

    def try_subscribe(self, app: ZenohEntity) -> bool:
        """Whether a Subscribe is accepted; if not, it is refused for lack of room."""
        answer = app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(_TOPIC))
        return self._is_accepted(answer)

    @staticmethod
    def _is_accepted(answer: ZenohSample) -> bool:
        if answer.head.commstatus in {None, wire.OK}:
            return True
        assert answer.head.commstatus == _RESOURCE_EXHAUSTED, answer.status
        return False

    def unsubscribe(self, app: ZenohEntity) -> bool:
        """Whether an Unsubscribe is accepted; if not, it is refused for lack of room."""
        answer = app.call(USUBSCRIPTION.at(wire.UNSUBSCRIBE), wire.topic_request(_TOPIC))
        return self._is_accepted(answer)

    def check_recovery(self, app: ZenohEntity) -> None:
        """With room, every store is written again, and a new dead letter is stored."""
        self.disk.free()
        # The recorder tries again after 10 s.
        eventually(lambda: len(self.degraded() - {"recordings"}), 0)
        persisted = self.statistics()["dead_letters"]["persisted"]
        app.call(_NO_ROUTE, b"kept")
        eventually(lambda: self.statistics()["dead_letters"]["persisted"], persisted + 1)
        assert self.try_subscribe(app)
        self.check_traffic(app, subscribed=True)
        self.check_letters_listed()

    def stop(self) -> dict[str, Any]:
        """SIGTERM: a balanced ledger, and every message reported that is neither sent nor on disk.

        Returns the last log record.
        """
        process = self.processes[-1]
        process.send_sigterm()
        code = process.wait_exit()
        ledger = process.ledger
        assert ledger["received"] == sum(ledger[verdict] for verdict in VERDICTS), ledger
        assert "Traceback" not in process.output, process.output
        assert not list(self._state.rglob("*.damaged-*")), "a whole store was taken for a damaged one"
        [stopped] = [line for line in process.log_records if line["event"] == "streamer.stopped"]
        letters = stopped["dead_letters"]
        total = letters["persisted"] + letters["not_persisted"] + letters["suppressed"] + letters["waiting"]
        assert is_each_reported(ledger, total), stopped
        assert ledger["queued"] == stopped["persisted"], stopped
        assert code == (_NOT_DRAINED if stopped["unsent"] else _OK), f"{code}\n{process.output}"
        found: dict[str, Any] = stopped
        return found


def is_each_reported(ledger: dict[str, int], letters: int) -> bool:
    """Whether each dead-lettered message has a letter. On a slow machine a message with a ttl may expire, and has one too."""
    return 0 <= letters - ledger["dead_lettered"] <= ledger["expired"]


@contextmanager
def disk_trial(directory: Path, disk: Disk) -> Iterator[DiskTrial]:
    """The parts of one trial, without a streamer; at the end all its processes have ended."""
    ports = free_ports()
    with SomeipNode(ports.ecu, responder=ecu_response) as ecu:
        trial = DiskTrial(directory, disk, ecu, ports)
        try:
            yield trial
        finally:
            for process in trial.processes:
                if process.is_alive:
                    process.kill()


def run_trial(trial: DiskTrial, moment: Moment, left: int) -> None:
    """Fill the disk except for `left` bytes at `moment`; the streamer stays alive, reports, recovers and stops."""
    disk = trial.disk
    if moment in {"stop", "kill"}:
        _run_end_trial(trial, moment, left)
        return
    if moment == "restart":
        trial.start()
        trial.subscribe_cloud_and_leave()
        trial.stop()
    if moment in {"start", "restart"}:
        disk.fill(left)
    trial.start()
    with trial.app() as app:
        if moment not in {"start", "restart"}:
            trial.subscribe_cloud_and_leave()
            assert trial.try_subscribe(app)
        if moment == "running":
            trial.check_traffic(app, subscribed=True)
        disk.fill(left)
        subscribed = trial.try_subscribe(app)
        if not subscribed:
            assert "usubscription" in trial.degraded()
        free_bytes = disk.free_bytes
        trial.check_traffic(
            app, subscribed=subscribed or moment in {"dead letter", "running"}, count=2 * MEMORY
        )
        if moment != "running":  # after earlier letters, some more may fit
            # After a restart, all messages of the spool may fit into the room that the first process has left there.
            refused = {"dead-letters"} if moment in {"start", "restart"} else {"dead-letters", "cloud"}
            eventually(lambda: trial.degraded() >= refused, True)
            # Refused writes take nothing; the recorder deletes old files. One that fits may come after the reading.
            eventually(lambda: disk.free_bytes >= free_bytes - _BLOCK, True)
        trial.check_commands()
        trial.check_recovery(app)
    disk.fill(left)
    trial.stop()
    disk.fill(left)
    trial.start()
    trial.stop()


def _run_end_trial(trial: DiskTrial, moment: Moment, left: int) -> None:
    """The streamer ends on the full disk; the next start finds whole stores."""
    trial.start()
    trial.subscribe_cloud_and_leave()
    with trial.app() as app:
        assert trial.try_subscribe(app)
        trial.disk.fill(left)
        trial.send_events(2 * MEMORY)
        app.wait_events(_TOPIC, 2 * MEMORY)
        if moment == "stop":
            trial.stop()
        else:
            trial.processes[-1].kill()
    trial.disk.fill(left)
    trial.start()
    with trial.app() as app:
        trial.check_traffic(app, subscribed=True)
        trial.check_commands()
    trial.stop()


def run_read_only_trial(trial: DiskTrial, disk: SmallDisk) -> None:
    """The kernel makes ext4 read-only while the streamer runs; after a repair a start finds what was on disk."""
    trial.start()
    trial.subscribe_cloud_and_leave()
    with trial.app() as app:
        assert trial.try_subscribe(app)
        trial.check_traffic(app, subscribed=True)
        eventually(lambda: trial.statistics()["dead_letters"]["waiting"], 0)
        eventually(lambda: trial.statistics()["endpoints"]["cloud"]["spool_committed"], 10)
        persisted = trial.statistics()["dead_letters"]["persisted"]
        assert persisted
        disk.fail()
        trial.check_traffic(app, subscribed=True, count=2 * MEMORY)
        assert trial.degraded() >= {"dead-letters", "cloud"}
        assert not trial.unsubscribe(app)
        assert trial.degraded() >= {"dead-letters", "cloud", "usubscription"}
        trial.check_commands()
    stopped = trial.stop()
    assert (stopped["dead_letters"]["persisted"], stopped["persisted"]) == (persisted, 10), stopped
    disk.repair()
    trial.start()
    with trial.app() as app:
        # The store is read after READY: by a process of its own, which a busy machine delays.
        eventually(lambda: trial.statistics()["dead_letters"]["stored"] >= persisted, True)
        trial.check_traffic(app, subscribed=True)
        trial.check_commands()
    trial.stop()
