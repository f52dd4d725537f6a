# SPDX-License-Identifier: Apache-2.0
"""Events that wait in the socket while the streamer is stopped are judged by when they arrived at the host."""

import os
import signal
import time
from collections.abc import Callable, Collection
from pathlib import Path
from threading import Event, Thread
from typing import Final, NamedTuple

from tests.e2e.rigs.entities import SomeipNode, ZenohEntity, ZenohSample
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle, free_ports, write_config
from tests.e2e.rigs.wire import Uri

HZ: Final = 100
SECONDS: Final = 6
EVERY_S, STOPPED_S = 0.3, 0.06
ROUNDS: Final = 4
"""The share must be met in one of these: a busy machine also stops the ECU, whose events are then late indeed."""
SHARE: Final = 0.99
QUIET_S: Final = 2.0
LATE_S: Final = 0.004
"""An id has whole ms, and 2 ms count as now."""


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


def wait_events(app: ZenohEntity, topic: Uri, sent: Collection[bytes]) -> list[ZenohSample]:
    """The events of these, once all have arrived, or when no more arrive."""
    found, until = list[ZenohSample](), time.monotonic() + QUIET_S
    while len(found) < len(sent) and time.monotonic() < until:
        time.sleep(0.05)
        now = [each for each in app.events(topic) if each.payload in sent]
        if len(now) != len(found):
            found, until = now, time.monotonic() + QUIET_S
    return found


def test_events_that_wait_for_a_stopped_streamer_are_not_throttled(tmp_path: Path) -> None:
    ports = free_ports()
    with (
        StreamerProcess(write_config(tmp_path, ports)) as process,
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        ZenohEntity(ports.backbone, "hpc.vin1") as app,
    ):
        vehicle = Vehicle(ports, process, ecu, receiver)
        limited, unlimited = vehicle.unused_topic(), vehicle.unused_topic()
        app.subscribe(limited, max_frequency=float(HZ))
        app.subscribe(unlimited)

        def send(payload: bytes) -> None:
            vehicle.send_event(limited, payload)
            vehicle.send_event(unlimited, payload)

        count = HZ * SECONDS
        shares = list[float]()
        while len(shares) < ROUNDS and max(shares, default=0) < SHARE:
            with Stopper(process.pid):
                sent = send_steadily(send, len(shares) * count)
            everything = wait_events(app, unlimited, sent)
            assert [each.payload for each in everything] == list(sent)
            right = [sent[each.payload].is_received_at(each.head.id.time_ms) for each in everything]
            assert right.count(True) >= 0.98 * count
            delivered = [each.payload for each in wait_events(app, limited, sent)]
            assert delivered == [each for each in sent if each in set(delivered)]
            shares.append(len(delivered) / count)
        assert shares[-1] >= SHARE, shares
