# SPDX-License-Identifier: Apache-2.0
"""Notifies the service manager of the machine: ready, reloading, stopping, and that the process makes progress.

The protocol is that of systemd, sd_notify(3): datagrams of lines `NAME=value` to the socket in NOTIFY_SOCKET. With
WATCHDOG_USEC, systemd kills and restarts a process that sends no WATCHDOG=1 for this time. It is sent only while each
receiving thread makes progress, so a thread that hangs ends the process.
"""

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ustreamer.host.observe.health import ThreadWatch
from ustreamer.transport_port import ReceivingThread

NOTIFY_SOCKET: Final = "NOTIFY_SOCKET"
_NS_PER_US: Final = 1000

log = logging.getLogger("ustreamer.observe")

ReadThreads = Callable[[], Iterable[tuple[str, ReceivingThread]]]
"""Each receiving thread, with the name of its endpoint."""


class ServiceManager:
    """The notifications of one process. All calls come from its main thread; none raises or waits."""

    def __init__(
        self, environment: Mapping[str, str], threads: ReadThreads, monotonic_ns: Callable[[], int]
    ) -> None:
        self._address = _address(environment[NOTIFY_SOCKET])
        self._has_watchdog = _has_watchdog(environment)
        self._threads = threads
        self._monotonic_ns = monotonic_ns
        self._watch = ThreadWatch()
        self._failed = False

    def ready(self) -> None:
        """Every endpoint is up, or a reload has ended."""
        self._notify("READY=1")

    def reloading(self) -> None:
        """A reload has begun; `ready` follows."""
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={self._monotonic_ns() // _NS_PER_US}")

    def stopping(self) -> None:
        """The stop has begun."""
        self._notify("STOPPING=1")

    def tick(self) -> None:
        """Call it about twice a second: notifies that the process is alive, unless a receiving thread hangs."""
        if self._has_watchdog and not self._watch.hanging(self._threads(), self._monotonic_ns(), after_ns=1):
            self._notify("WATCHDOG=1")

    def _notify(self, text: str) -> None:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix_socket:
                unix_socket.setblocking(False)
                unix_socket.sendto(text.encode(), self._address)
        except OSError as error:
            if not self._failed:
                self._failed = True
                log.warning("observe.not_notified", extra={"socket": self._address, "reason": str(error)})


def _address(name: str) -> str:
    """The address of the socket; `@` stands for the first byte of an abstract one."""
    return "\0" + name[1:] if name.startswith("@") else name


def _has_watchdog(environment: Mapping[str, str]) -> bool:
    """Whether the watchdog is switched on, and for this process."""
    pid = environment.get("WATCHDOG_PID", "")
    return environment.get("WATCHDOG_USEC", "0") != "0" and pid in ("", str(os.getpid()))
