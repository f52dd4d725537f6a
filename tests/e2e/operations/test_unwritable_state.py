# SPDX-License-Identifier: Apache-2.0
"""A state directory that the streamer may not write: refused at the start; while running like a full disk."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.core.storage.refused_writes import run_on_small_disk, run_without_privileges
from tests.e2e.delivery.test_durable import DurableScenario, stop_and_check
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import USUBSCRIPTION, SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import COMMAND, statistics
from tests.e2e.rigs.vehicle import SPEED, free_ports
from tests.e2e.rigs.wire import Uri

BAD_CONFIG = 78
RESOURCE_EXHAUSTED = 8
TOPIC = Uri("chassis", SPEED, 1, 0x8001)


@contextmanager
def durable_scenario(directory: Path) -> Iterator[DurableScenario]:
    ports = free_ports()
    with SomeipNode(ports.ecu) as ecu:
        scene = DurableScenario(directory, ecu, ports)
        scene.configure(durable=True, queue_messages=50)
        yield scene
        scene.kill_all()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[DurableScenario]:
    with durable_scenario(tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def used_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a streamer that ran once; every file of its state exists."""
    directory = tmp_path_factory.mktemp("used")
    with durable_scenario(directory) as scene, scene.start():
        pass
    return directory / "durable.toml"


# --- at the start -----------------------------------------------------------------------------------------------

RUN = """
import subprocess, sys
done = subprocess.run(sys.argv[1:], capture_output=True, text=True)
assert "Traceback" not in done.stderr, done.stderr
print(done.returncode, done.stderr.splitlines()[-1])
"""
RUN_READ_ONLY = f"""
import shutil, subprocess, sys
disk, config, *command = sys.argv[1:]
shutil.copy(config, disk)
subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
sys.argv[1:] = command
{RUN}
"""


def test_a_read_only_file_system_is_an_error_of_the_configuration(
    tmp_path: Path, scene: DurableScenario
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    config = tmp_path / "durable.toml"
    for action in ("run", "check"):
        output = run_on_small_disk(
            RUN_READ_ONLY, disk, "4m", str(config), str(COMMAND), action, f"{disk}/{config.name}"
        )
        assert output.startswith(f"{BAD_CONFIG} ")
        assert (
            f"state_dir {disk}/state: cannot be used: {disk} is on a file system that is mounted read-only"
            in (output.replace("state_dir: ", "state_dir ").replace("state cannot", "state: cannot"))
        )


@pytest.mark.parametrize(
    "name",
    [
        "",
        "ustreamer.lock",
        "spool",
        "spool/backbone/data.mdb",
        "usubscription",
        "usubscription/data.mdb",
        "dead-letters",
    ],
)
def test_a_path_without_permission_is_an_error_of_the_configuration(used_config: Path, name: str) -> None:
    state = used_config.parent / "state"
    path = state / name
    mode = path.stat().st_mode
    path.chmod(mode & ~0o222)
    output = run_without_privileges(RUN, str(COMMAND), "run", str(used_config))
    path.chmod(mode)
    assert output.startswith(f"{BAD_CONFIG} FAILED_PRECONDITION: ")
    assert f"{path} has owner {os.geteuid()}:" in output
    assert f"permission for user {os.geteuid()}" in output
    assert not list(state.rglob("*.damaged-*"))


# --- while running ----------------------------------------------------------------------------------------------


@contextmanager
def immutable(*paths: Path) -> Iterator[None]:
    """Let the kernel refuse every write to these paths with EPERM, for root and for open files too."""
    names = list(map(str, paths))
    if subprocess.run(["chattr", "+i", *names], capture_output=True, check=False).returncode:
        pytest.skip("needs root and a file system with the immutable flag: chattr +i")
    try:
        yield
    finally:
        subprocess.run(["chattr", "-i", *names], check=True)


def test_a_lost_permission_is_reported_as_a_full_disk_and_every_store_recovers(
    tmp_path: Path, scene: DurableScenario
) -> None:
    """Of 200 messages 50 wait in memory for the disk and 150 are dead letters: none is lost without a report."""
    process = scene.start_subscribed()
    state = tmp_path / "state"
    stores = [state / name / "data.mdb" for name in ("spool/backbone", "usubscription", "dead-letters")]
    with immutable(*stores, state):
        for _ in range(200):
            scene.send_one_event()
        scene.wait_queue(queued=50, persisted=0)
        eventually(lambda: statistics(state)["dead_letters"]["not_persisted"], 150)
        process.stderr.wait_one(lambda line: '"egress.not_persisted"' in line)
    scene.wait_queue(queued=50, persisted=50)
    for _ in range(40):
        scene.send_one_event()
    scene.wait_queue(queued=90, persisted=90)

    other = TOPIC._replace(resource=0x8002)
    with ZenohEntity(scene.ports.backbone, "hpc.vin1") as app:
        with immutable(stores[1]):
            answer = app.call(USUBSCRIPTION.at(wire.SUBSCRIBE), wire.subscription_request(other))
            assert answer.head.commstatus == RESOURCE_EXHAUSTED, answer.status
        app.subscribe(other)
    events = [line["event"] for line in process.log_records]
    assert (events.count("egress.not_persisted"), events.count("dead_letters.not_persisted")) == (1, 1)
    with immutable(*stores, state / "ustreamer.lock", state / "usubscription.lock", state):
        ledger = stop_and_check(process)
    assert ledger["dead_lettered"] == 150, ledger
    # On a busy machine the end of the application looks like a kill: its two answers have then not arrived for sure.
    at_stop = [line for line in process.log_records[len(events) :] if line["event"] == "egress.not_persisted"]
    assert [line for line in at_stop if line["messages"] > 2] == []
    assert "Traceback" not in process.output
