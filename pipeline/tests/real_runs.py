# SPDX-License-Identifier: Apache-2.0
"""Recordings of real streamers: a process, sockets and peers, in a story of changes that a seed chooses.

A story has reloads, subscriptions with other limits, requests, an endpoint that goes away, and one end of three: a stop,
a kill, a kill with another run after it. Both modes of the throttle are in every second story.
"""

import contextlib
import multiprocessing
import random
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Final

from ustreamer_pipeline.recording.layout import DELIVERY
from ustreamer_pipeline.recording.segments import RecordingRefused, read_segment

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import (
    USUBSCRIPTION,
    Metronome,
    SomeipNode,
    ZenohEntity,
    ecu_response,
    eventually,
)
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import CLIMATE, Vehicle, free_ports, write_config
from tests.e2e.rigs.wire import Uri

STEPS: Final = 6
TOPICS: Final = 4
LIMITS_HZ: Final = (None, 5.0, 10.0, 20.0, 33.0, 60.0)
_SETTINGS: Final = """
tolerance = {tolerance}
mode = "{mode}"
latest = [{latest}]

[plugins.recorder]
flush_ms = 50
segment_s = 1
"""


def settled_rows(recordings: Path) -> int:
    """Deliveries in the recordings so far. A file that was just created has no header yet."""
    rows = 0
    for path in recordings.glob("*.useg*"):
        with contextlib.suppress(RecordingRefused, FileNotFoundError):
            rows += len(read_segment(path.read_bytes(), path.name).positions_of(DELIVERY))
    return rows


class Story:
    """One story. `play` returns the folder of its recordings."""

    def __init__(self, place: Path, seed: int) -> None:
        place.mkdir(parents=True)
        self._rng = random.Random(seed)
        self._ports = free_ports()
        self._config = write_config(place, self._ports)
        self._vehicle_text = self._config.read_text()
        self._mode = ("drop", "latest")[seed % 2]
        latest = self._rng.sample(range(1, TOPICS + 1), 2) if self._mode == "drop" else []
        self._latest = ", ".join(f'"//chassis/1234/1/{0x8000 + number:X}"' for number in latest)
        self._configure(0.1)
        self._recordings = place / "state" / "recordings"
        self._end = ("stop", "kill", "restart")[seed % 3]

    def _configure(self, tolerance: float) -> None:
        settings = _SETTINGS.format(tolerance=tolerance, mode=self._mode, latest=self._latest)
        self._config.write_text(f"{self._vehicle_text}\n{settings}")

    def play(self) -> Path:
        with (
            SomeipNode(self._ports.ecu, responder=ecu_response) as ecu,
            SomeipNode(self._ports.receiver) as receiver,
        ):
            for steps in (STEPS, 2) if self._end == "restart" else (STEPS,):
                process = StreamerProcess(self._config, "--drain", "2")
                try:
                    self._drive(process, Vehicle(self._ports, process.wait_ready(), ecu, receiver), steps)
                finally:
                    if process.is_alive:
                        process.kill()
        return self._recordings

    def _drive(self, process: StreamerProcess, vehicle: Vehicle, steps: int) -> None:
        topics = [vehicle.unused_topic() for _ in range(TOPICS)]

        def beat(number: int) -> None:
            for at, topic in enumerate(topics):
                if number % (at + 1) == 0:
                    vehicle.send_event(topic, b"%d" % number)

        with (
            ZenohEntity(self._ports.backbone, "hpc.vin1", 0x10A0) as app,
            ZenohEntity(self._ports.backbone, "hpc.vin1", 0x10A1) as other,
            contextlib.ExitStack() as cloud_stack,
            Metronome(self._rng.choice([50, 100, 150]), beat),
        ):
            entities = [
                app,
                other,
                cloud_stack.enter_context(ZenohEntity(self._ports.cloud, "cloud", 0x2001)),
            ]
            _subscribe(app, topics[0], None)
            self._subscribe(entities, topics)
            self._wait_rows(20)
            for _ in range(steps):
                self._step(process, entities, topics, cloud_stack)
            if self._end != "stop" and steps == STEPS:
                process.kill()
        if process.is_alive:
            process.send_sigterm()
            code = process.wait_exit()
            assert code in {0, 75}, (
                process.output
            )  # 75: a message for a peer that has left was not sent in time

    def _step(
        self,
        process: StreamerProcess,
        entities: list[ZenohEntity],
        topics: list[Uri],
        cloud_stack: contextlib.ExitStack,
    ) -> None:
        kinds = ["subscribe", "unsubscribe", "reload", "call", "wait", "leave"]
        kind = self._rng.choices(kinds, [40, 15, 15, 10, 10, 10])[0]
        if kind == "subscribe":
            self._subscribe(entities, topics)
        elif kind == "unsubscribe":
            request = wire.topic_request(self._rng.choice(topics[1:]))
            self._rng.choice(entities).call(USUBSCRIPTION.at(wire.UNSUBSCRIBE), request)
        elif kind == "reload":
            self._reload(process, self._rng.choice([0.0, 0.1, 0.3, 0.5]))
        elif kind == "call":
            entities[0].call(Uri("chassis", CLIMATE, 1, 1), b"x")
        elif kind == "leave" and len(entities) == 3:
            del entities[2]
            cloud_stack.close()
        # More than a second after a change its effect is certain (gold/topic_subscribers.py).
        self._wait_rows(self._rng.choice([40, 400]))

    def _subscribe(self, entities: list[ZenohEntity], topics: list[Uri]) -> None:
        topic, limit = self._rng.choice(topics[1:]), self._rng.choice(LIMITS_HZ)
        _subscribe(self._rng.choice(entities), topic, limit)

    def _reload(self, process: StreamerProcess, tolerance: float) -> None:
        def is_reloaded(line: str) -> bool:
            return '"streamer.reloaded"' in line

        reloads = len(process.stderr.items(is_reloaded))
        self._configure(tolerance)
        process.send_sighup()
        process.stderr.wait_count(is_reloaded, reloads + 1)

    def _wait_rows(self, more: int) -> None:
        rows = settled_rows(self._recordings) + more
        eventually(lambda: settled_rows(self._recordings) >= rows, True)


def _subscribe(entity: ZenohEntity, topic: Uri, limit_hz: float | None) -> None:
    """Without the wait for an update: a subscription that an earlier run kept gets none."""
    request = wire.subscription_request(topic, max_frequency=limit_hz)
    answer = entity.call(USUBSCRIPTION.at(wire.SUBSCRIBE), request)
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def record_stories(place: Path, seeds: range, at_once: int = 4) -> Path:
    """Play a story for each seed, some at once, as they mostly wait. Returns the folder with all recordings."""
    with ProcessPoolExecutor(at_once, multiprocessing.get_context("spawn")) as pool:
        for _ in pool.map(_record_story, repeat(place), seeds):
            pass
    return place


def _record_story(place: Path, seed: int) -> None:
    Story(place / f"{seed}", seed).play()
