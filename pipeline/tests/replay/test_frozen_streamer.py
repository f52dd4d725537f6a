# SPDX-License-Identifier: Apache-2.0
"""A real streamer that is frozen again and again: the replay makes the decisions of its limits from the recording.

The ids of SOME/IP events have the time at which the kernel received them, and the limits judge by it. A recording has
the ids and the times of arrival at the limit. `max_delay_ms` is so long that no message waits for longer: what the
vehicle drops for that reason passes in the replay.
"""

from collections import Counter
from pathlib import Path

import pyarrow as pa
from tests.replay.recorded_rows import SCHEMA, recorded_rows, recorded_settings
from ustreamer_pipeline.replay.replay import GatewayReplay, ReplayCheck
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments

from tests.e2e.rigs.entities import SomeipNode, ZenohEntity
from tests.e2e.rigs.stops import HZ, SECONDS, Stopper, config_with_receive_times, send_steadily
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.vehicle import Vehicle, free_ports

LIMITS_HZ = (133.0, 20.0)


def run_streamer(place: Path) -> Path:
    """Returns the folder of the recordings."""
    ports = free_ports()
    config = config_with_receive_times(place, ports)
    text = config.read_text().replace("[plugins.throttle]", "[plugins.throttle]\nmax_delay_ms = 1000")
    config.write_text(f"{text}\n[plugins.recorder]\n")
    with (
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(config) as process,
    ):
        vehicle = Vehicle(ports, process, ecu, receiver)
        topics, unlimited = [vehicle.unused_topic() for _ in LIMITS_HZ], vehicle.unused_topic()
        with ZenohEntity(ports.backbone, "hpc.vin1") as app:
            for topic, hz in zip(topics, LIMITS_HZ, strict=True):
                app.subscribe(topic, max_frequency=hz)
            app.subscribe(unlimited)

            def send(payload: bytes) -> None:
                for topic in (*topics, unlimited):
                    vehicle.send_event(topic, payload)

            with Stopper(process.pid):
                send_steadily(send, 0)
            app.wait_events(unlimited, HZ * SECONDS)
            process.stop()
    return place / "state" / "recordings"


def recorded_events(recordings: Path) -> list[object]:
    return [
        event
        for file in list_segments(recordings)
        for event in read_segment(file.path.read_bytes(), file.path.name)
    ]


def check_of(events: list[object]) -> ReplayCheck:
    """The check of the replay of a run."""
    replay = GatewayReplay([], recorded_settings(events), 0.1)
    replay.feed(pa.RecordBatch.from_pylist(recorded_rows(events), schema=SCHEMA))
    replay.finish()
    return replay.check


def test_no_verdict_differs_when_events_waited_for_a_frozen_streamer(tmp_path: Path) -> None:
    events = recorded_events(run_streamer(tmp_path))
    verdicts = Counter(row["verdict"] for row in recorded_rows(events) if row["period_ns"])
    assert min(verdicts["DELIVERED"], verdicts["THROTTLED"]) > HZ * SECONDS / 2, verdicts
    check = check_of(events)
    assert (check.differing, check.unknown) == (0, 0), check
    assert check.decided >= len(LIMITS_HZ) * HZ * SECONDS
