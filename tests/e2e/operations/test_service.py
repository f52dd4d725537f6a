# SPDX-License-Identifier: Apache-2.0
"""A streamer process as a service of systemd: notifications, the watchdog, and the unit file.

The service manager is a socket of the test, except where `systemd-analyze` reads the unit.
"""

import shutil
import socket
import subprocess
from pathlib import Path
from threading import Thread
from typing import Final

import pytest

from tests.e2e.rigs import vehicle as rig
from tests.e2e.rigs.entities import Inbox, SomeipNode, ZenohEntity, ecu_response
from tests.e2e.rigs.hanging_plugin import HANG, SECTION, install_hanging_plugin
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle
from tests.waiting import wait_until

FED: Final = "WATCHDOG=1"
SILENCE_S: Final = 3.0
"""Longer than the second after which each receiving thread has a turn, or waits."""
UNIT: Final = Path(__file__).parents[3] / "deploy/systemd/ustreamer.service"


class Notifications:
    """What a process tells its service manager."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self.texts: Inbox[str] = Inbox("notifications")
        Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            for line in self._socket.recv(4096).decode().splitlines():
                self.texts.append(line)

    def wait(self, text: str, count: int = 1) -> None:
        self.texts.wait_count(lambda line: line == text, count)

    def count(self, text: str) -> int:
        return self.texts.items().count(text)

    def is_starved(self) -> bool:
        """Wait for `SILENCE_S`; whether the watchdog was not fed in that time."""
        before = self.count(FED)
        try:
            self.texts.wait_count(lambda line: line == FED, before + 1, within=SILENCE_S)
        except AssertionError:
            return True
        return False


@pytest.fixture
def notifications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Notifications:
    """A service manager with a watchdog, for processes started from now on."""
    path = tmp_path / "notify"
    monkeypatch.setenv("NOTIFY_SOCKET", str(path))
    monkeypatch.setenv("WATCHDOG_USEC", "7000000")
    return Notifications(path)


def test_start_reload_and_stop_are_notified_and_the_watchdog_is_fed(
    tmp_path: Path, notifications: Notifications
) -> None:
    config = rig.write_config(tmp_path, rig.free_ports())
    with StreamerProcess(config) as process:
        notifications.wait("READY=1")
        notifications.wait(FED, 3)
        process.send_sighup()
        notifications.wait("READY=1", 2)
        assert notifications.count("RELOADING=1") == 1
    notifications.wait("STOPPING=1")


def test_a_receiving_thread_that_hangs_starves_the_watchdog(
    tmp_path: Path, notifications: Notifications, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_hanging_plugin(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    ports = rig.free_ports()
    config = rig.write_config(tmp_path, ports)
    config.write_text(config.read_text(encoding="utf-8") + SECTION, encoding="utf-8")
    process = StreamerProcess(config).wait_ready()
    try:
        with (
            SomeipNode(ports.ecu, responder=ecu_response) as ecu,
            SomeipNode(ports.receiver) as receiver,
            ZenohEntity(ports.backbone, "hpc.vin1") as app,
        ):
            vehicle = Vehicle(ports, process, ecu, receiver)
            topic = vehicle.unused_topic()
            app.subscribe(topic)
            vehicle.send_event(topic, b"first")
            app.wait_events(topic, 1)
            notifications.wait(FED, notifications.count(FED) + 2)
            vehicle.send_event(topic, HANG)
            wait_until(notifications.is_starved, "a watchdog that is not fed")
            assert process.is_alive
    finally:
        process.kill()


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / UNIT.name
    # Its program is not installed where the tests run.
    unit.write_text(UNIT.read_text(encoding="utf-8").replace("/usr/bin/ustreamer", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, check=False
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_a_refused_system_call_is_an_error_and_ends_no_process() -> None:
    assert "\nSystemCallErrorNumber=EPERM\n" in UNIT.read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_the_unit_permits_what_the_process_of_wamp_sessions_calls() -> None:
    permitted: set[str] = set()
    for line in UNIT.read_text(encoding="utf-8").splitlines():
        names = line.removeprefix("SystemCallFilter=")
        if names != line:
            found = {call for name in names.removeprefix("~").split() for call in system_calls(name)}
            permitted = permitted - found if names.startswith("~") else permitted | found
    assert "recvmmsg" in permitted
    assert "setpriority" in permitted, "os.nice"
    assert "sched_setscheduler" not in permitted


def system_calls(name: str) -> set[str]:
    """The system calls of a group of systemd, or one call."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    text = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    members = [line.strip() for line in text.splitlines()[1:] if line.strip() and "#" not in line]
    return {call for member in members for call in system_calls(member)}
