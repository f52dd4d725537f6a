# SPDX-License-Identifier: Apache-2.0
"""A process that is stopped again and again while events arrive, and the events."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

from tests.e2e.rigs.vehicle import VehiclePorts, write_config

HZ: Final = 100
SECONDS: Final = 6
EVERY_S, STOPPED_S = 0.3, 0.06
LATE_S: Final = 0.012
"""An id has whole ms, and 10 ms count as now."""


def config_with_receive_times(directory: Path, ports: VehiclePorts) -> Path:
    config = write_config(directory, ports)
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("sd = false", "sd = false\nreceive_times = true"), encoding="utf-8")
    return config


class Stopper:
    """Stops a process for 60 ms of every 0.3 s."""

    def __init__(self, pid: int) -> None:
        self._pid, self._ended = pid, Event()
        self._thread = Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S - STOPPED_S):
            os.kill(self._pid, signal.SIGSTOP)
            time.sleep(STOPPED_S)
            os.kill(self._pid, signal.SIGCONT)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


class SentEvent(NamedTuple):
    """The wall clock before and after the sending of an event. The host received it in between: loopback."""

    before_s: float
    after_s: float

    def is_received_at(self, time_ms: int) -> bool:
        return self.before_s - 0.001 <= time_ms / 1000 <= self.after_s + LATE_S


def send_steadily(send: Callable[[bytes], None], first: int) -> dict[bytes, SentEvent]:
    """Send numbered events by the clock."""
    began_s, sent = time.monotonic(), dict[bytes, SentEvent]()
    for number in range(HZ * SECONDS):
        time.sleep(max(0.0, began_s + number / HZ - time.monotonic()))
        payload, before_s = b"%d" % (first + number), time.time()
        send(payload)
        sent[payload] = SentEvent(before_s, time.time())
    return sent
