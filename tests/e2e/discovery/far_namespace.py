# SPDX-License-Identifier: Apache-2.0
"""The far end of a `Cable`: its addresses and sockets, link changes, and an ECU in a process that a test can kill.

    python -m tests.e2e.discovery.far_namespace HOST SD_PORT

runs the ECU, an `SdEcu`. Input: JSON lines `[number, method, arguments...]`. Output: results, notifications and
datagrams.
"""

import contextlib
import ctypes
import itertools
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from tests.e2e.rigs.cable import Cable, run_system_command
from tests.e2e.rigs.entities import DEADLINE_S, Inbox
from tests.e2e.rigs.sd_ecu import SdEcu, SdNotification
from tests.e2e.rigs.streamer import START_S

ADDRESS_FORMAT: Final = "192.0.2.{}"
_CLONE_NEWNET: Final = 0x4000_0000
_FOREVER_S: Final = 1e6


class FarNamespace:
    """Operations at the far end of a cable, from this process."""

    def __init__(self, cable: Cable) -> None:
        self._cable = cable

    def add_address(self, number: int) -> str:
        """Add an address to the far end."""
        new_address = ADDRESS_FORMAT.format(number)
        run_system_command(*self._cable.far_prefix, "ip", "address", "add", f"{new_address}/24", "dev", "far")
        return new_address

    def set_link(self, up: bool) -> None:
        """Set the link state of the far end: without it, the near end has no carrier."""
        run_system_command(*self._cable.far_prefix, "ip", "link", "set", "far", "up" if up else "down")

    def open_socket(self, kind: socket.SocketKind, address: tuple[str, int]) -> socket.socket:
        """Open and bind a socket in the far namespace."""
        opened_sockets: list[socket.socket] = []

        def make() -> None:  # a thread can enter the namespace for good, and its sockets stay there
            namespace = os.open(self._cable.far_namespace, os.O_RDONLY)
            try:
                libc = ctypes.CDLL(None, use_errno=True)
                assert libc.setns(namespace, _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
            finally:
                os.close(namespace)
            opened_sockets.append(socket.socket(socket.AF_INET, kind))

        thread = Thread(target=make)
        thread.start()
        thread.join(DEADLINE_S)
        [opened] = opened_sockets
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.settimeout(DEADLINE_S)
        return opened


def set_near_link(up: bool) -> None:
    """Set the state of the near interface."""
    run_system_command("ip", "link", "set", "near", "up" if up else "down")


class Datagram(NamedTuple):
    """A datagram that arrived at the ECU's data socket."""

    raw: bytes
    sender: tuple[str, int]


class FarEcu:
    """An `SdEcu` at the far end, in its own process."""

    _numbers = itertools.count(1)

    def __init__(self, cable: Cable, host: str, sd_port: int) -> None:
        self.notifications: Inbox[SdNotification] = Inbox(f"ecu {host} at the far end")
        self.datagrams: Inbox[Datagram] = Inbox(f"data of ecu {host} at the far end")
        self._results: Inbox[list[Any]] = Inbox(f"answers of ecu {host} at the far end")
        self._process = subprocess.Popen(
            [
                *cable.far_prefix,
                sys.executable,
                "-m",
                "tests.e2e.discovery.far_namespace",
                host,
                str(sd_port),
            ],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self._results.wait_one(lambda each: each[0] == 0, START_S)
        self.address: tuple[str, int] = (host, ready[1])

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            kind, *rest = json.loads(line)
            if kind == "seen":
                self.notifications.append(SdNotification(*rest))
            elif kind == "data":
                raw, host, port = rest
                self.datagrams.append(Datagram(bytes.fromhex(raw), (host, port)))
            else:
                self._results.append([kind, *rest])

    def call_method(self, method: str, *arguments: Any) -> Any:
        """Call a method of the ECU, wait for its end and return its result."""
        number = next(self._numbers)
        assert self._process.stdin
        self._process.stdin.write(json.dumps([number, method, *arguments]) + "\n")
        self._process.stdin.flush()
        return self._results.wait_one(lambda each: each[0] == number)[1]

    def offer(self, service: int, *eventgroups: int) -> None:
        self.call_method("offer", service, *eventgroups)

    def send(self, datagram: bytes, destination: tuple[str, int]) -> None:
        """Send from the ECU's data socket."""
        self.call_method("send", datagram.hex(), *destination)

    def kill(self) -> None:
        """SIGKILL, as a power loss. Idempotent."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(DEADLINE_S)
            self._reader.join(DEADLINE_S)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


class _EcuProcess:
    """The ECU process of a `FarEcu`."""

    def __init__(self, host: str, sd_port: int) -> None:
        self._lock = Lock()
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # failed sends while the link is down
        logging.getLogger("someip").setLevel(logging.CRITICAL)
        self._ecu = SdEcu(host, sd_port)
        threads = (
            Thread(target=self._forward_inbox, args=("seen", self._ecu.notifications), daemon=True),
            Thread(target=self._forward_inbox, args=("data", self._ecu.data_socket.inbox), daemon=True),
        )
        for each in threads:
            each.start()

    def _write_line(self, *fields: Any) -> None:
        with self._lock:
            print(json.dumps(fields), flush=True)

    def _forward_inbox(self, kind: str, inbox: Inbox[Any]) -> None:
        known = 0
        while True:
            items = inbox.wait_count(count=known + 1, within=_FOREVER_S)
            for each in items[known:]:
                self._write_line(kind, *(each if kind == "seen" else (each.raw.hex(), *each.sender)))
            known = len(items)

    def run_commands(self, lines: Iterable[str]) -> None:
        self._write_line(0, self._ecu.data_socket.address[1])
        for line in lines:
            number, method, *arguments = json.loads(line)
            owner = self if hasattr(self, method) else self._ecu
            self._write_line(number, getattr(owner, method)(*arguments))

    def send(self, raw: str, host: str, port: int) -> None:
        self._ecu.data_socket.send_to(bytes.fromhex(raw), (host, port))

    def near_wrap(self) -> None:
        """Move all session counters to two before the wrap."""
        counters = self._ecu.sd.session_storage.outgoing
        for remote in list(counters):
            counters[remote] = (True, 0xFFFE)

    def wait_wrapped(self) -> None:
        """Wait until the multicast session number has wrapped and the reboot flag is cleared."""
        until = time.monotonic() + DEADLINE_S
        while self._ecu.sd.session_storage.outgoing[None][0]:
            assert time.monotonic() < until, "no session number has wrapped"
            time.sleep(0.01)


if __name__ == "__main__":
    _EcuProcess(sys.argv[1], int(sys.argv[2])).run_commands(sys.stdin)
