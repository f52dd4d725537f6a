# SPDX-License-Identifier: Apache-2.0
"""Notifications of systemd, read from a real socket."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ustreamer.host.observe.service_manager import ServiceManager
from ustreamer.transport_port import ReceivingThread

MakeManager = Callable[..., "NotifiedManager"]


class NotifiedManager:
    """The socket of a service manager, and a process that notifies it."""

    def __init__(self, address: str, environment: Mapping[str, str]) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.setblocking(False)
        self.turns, self.waiting, self.now_ns = 0, False, 5_000_000_000
        self.process = ServiceManager(
            {"NOTIFY_SOCKET": address, **environment}, self._threads, lambda: self.now_ns
        )

    def _threads(self) -> Iterator[tuple[str, ReceivingThread]]:
        yield "backbone", ReceivingThread("receiver", 7, waiting=True)
        yield "chassis", ReceivingThread("receiver", self.turns, self.waiting)

    def tick(self) -> str:
        """What the process sends half a second after the last check."""
        self.now_ns += 500_000_000
        self.process.tick()
        return self.received()

    def received(self) -> str:
        try:
            return self.socket.recv(4096).decode()
        except BlockingIOError:
            return ""


@pytest.fixture
def address(tmp_path: Path) -> str:
    return str(tmp_path / "notify")


@pytest.fixture
def make_manager(address: str) -> Iterator[MakeManager]:
    managers: list[NotifiedManager] = []

    def make(environment: Mapping[str, str] | None = None, at: str = address) -> NotifiedManager:
        managers.append(NotifiedManager(at, environment or {}))
        return managers[-1]

    yield make
    for each in managers:
        each.socket.close()


@pytest.mark.parametrize("kind", ["path", "abstract"])
def test_the_life_of_a_process_is_notified(kind: str, address: str, make_manager: MakeManager) -> None:
    manager = make_manager(at=address if kind == "path" else f"@ustreamer-test-{os.getpid()}")
    manager.process.ready()
    assert manager.received() == "READY=1"
    manager.process.reloading()
    assert manager.received() == "RELOADING=1\nMONOTONIC_USEC=5000000"
    manager.process.stopping()
    assert manager.received() == "STOPPING=1"


@pytest.mark.parametrize(
    ("environment", "fed"),
    [
        ({"WATCHDOG_USEC": "7000000"}, True),
        ({"WATCHDOG_USEC": "7000000", "WATCHDOG_PID": str(os.getpid())}, True),
        ({"WATCHDOG_USEC": "7000000", "WATCHDOG_PID": "1"}, False),
        ({"WATCHDOG_USEC": "0"}, False),
        ({}, False),
    ],
)
def test_only_a_watchdog_of_this_process_is_fed(
    environment: Mapping[str, str], fed: bool, make_manager: MakeManager
) -> None:
    assert make_manager(environment).tick() == ("WATCHDOG=1" if fed else "")


def test_a_receiving_thread_without_progress_starves_the_watchdog(make_manager: MakeManager) -> None:
    manager = make_manager({"WATCHDOG_USEC": "7000000"})
    assert manager.tick() == "WATCHDOG=1"
    assert manager.tick() == ""  # no turn since the last check
    assert manager.tick() == ""
    manager.turns += 1
    assert manager.tick() == "WATCHDOG=1"
    manager.waiting = True
    assert [manager.tick() for _ in range(3)] == ["WATCHDOG=1"] * 3


def test_a_manager_that_is_gone_costs_one_log_line(
    address: str, make_manager: MakeManager, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make_manager()
    Path(address).unlink()
    manager.process.ready()
    manager.process.stopping()
    assert [each.getMessage() for each in caplog.records] == ["observe.not_notified"]
