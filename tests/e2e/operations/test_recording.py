# SPDX-License-Identifier: Apache-2.0
"""A recording streamer under load: killed, restarted and stopped. Its recordings are compared with its ledger."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from ustreamer_recorder.events import Damage, Event, Gap, Row, SubscriptionChange
from ustreamer_recorder.reader import read_segment
from ustreamer_recorder.segments import list_segments

from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import VERDICTS, StreamerProcess, run_command
from tests.e2e.rigs.vehicle import Vehicle, VehiclePorts, free_ports, write_config
from ustreamer.core.routing.subscriptions import Change

APP: Final = 0x10A0
FINAL: Final = VERDICTS[:6]
WINDOW_NS: Final = 5_000_000_000
"""Far more than flush_ms, for a busy machine."""


def recording_config(place: Path, ports: VehiclePorts, **keys: object) -> Path:
    file = write_config(place, ports)
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    file.write_text("\n".join([file.read_text(), "[plugins.recorder]", *lines, ""]))
    return file


def changes_in(events: list[Event | Damage]) -> list[tuple[Change, str]]:
    """Changes of topics of the ECU: services offered to the ECU have subscribers that the configuration fixes."""
    changes = [event for event in events if isinstance(event, SubscriptionChange)]
    return [(each.change, each.topic) for each in changes if each.topic.startswith("up://chassis/")]


def recorded(directory: Path) -> dict[int, list[Event | Damage]]:
    """Recorded rows of each run so far, oldest first."""
    runs: dict[int, list[Event | Damage]] = {}
    for file in list_segments(directory):
        runs.setdefault(file.run, []).extend(read_segment(file.path.read_bytes(), file.path.name))
    return runs


def verdicts(events: list[Event | Damage]) -> Counter[str]:
    return Counter(event.verdict.name.lower() for event in events if isinstance(event, Row))


def check(directory: Path) -> list[dict[str, Any]]:
    done = run_command("recordings", "check", directory, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_verdicts_before_a_kill_are_recorded_and_the_next_run_matches_its_ledger(
    tmp_path: Path,
) -> None:
    ports = free_ports()
    config = recording_config(tmp_path, ports, flush_ms=50)
    directory = tmp_path / "state" / "recordings"

    def rows_of_last_run() -> Counter[str]:
        return verdicts(list(recorded(directory).values())[-1])

    with SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver) as receiver:
        first = StreamerProcess(config)
        vehicle = Vehicle(ports, first.wait_ready(), ecu, receiver)
        topics = topic, limited, _ = [vehicle.unused_topic() for _ in range(3)]

        def beat(number: int) -> None:
            for each in topics:
                vehicle.send_event(each, b"%d" % number)

        with ZenohEntity(ports.backbone, "hpc.vin1", APP) as app:
            app.subscribe(topic)
            app.subscribe(limited, max_frequency=20.0)
            with Metronome(300, beat):
                app.wait_events(topic, 200)
                books = json.loads(run_command("top", config, "--json").stdout)["ledger"]
                eventually(lambda: all(rows_of_last_run()[each] >= books[each] for each in FINAL), True)
                killed_ns = time.monotonic_ns()
                first.kill()  # while events arrive
        assert min(books["delivered"], books["throttled"], books["no_subscriber"]) > 50
        [before] = recorded(directory).values()
        rows = [event for event in before if isinstance(event, Row)]
        assert [row.seq for row in rows] == list(range(len(rows)))
        assert not [event for event in before if isinstance(event, Gap)]
        assert all(event.torn for event in before if isinstance(event, Damage))
        assert all(verdicts(before)[each] >= books[each] for each in FINAL)
        assert killed_ns - rows[-1].settled_ns < WINDOW_NS
        wanted = [f"up:{each}" for each in (topic, limited)]
        assert changes_in(before) == [(Change.SUBSCRIBED, each) for each in wanted]
        limits = {row.target.period_ns for row in rows if row.target.topic == wanted[1]}
        assert limits == {50_000_000}

        second = StreamerProcess(config)
        Vehicle(ports, second.wait_ready(), ecu, receiver)
        with ZenohEntity(ports.backbone, "hpc.vin1", APP) as app, Metronome(300, beat):
            app.wait_events(topic, 100)
        second.stop()
    killed, stopped = check(directory)
    assert (killed["end"], killed["damaged"], killed["rows"]) == ("killed, or still running", 0, len(rows))
    assert (stopped["end"], stopped["ledger_agrees"], stopped["skipped"]) == ("stopped", True, 0)
    assert {each: stopped[each] for each in FINAL} == {each: second.ledger[each] for each in FINAL}
    assert stopped["rows"] == second.ledger["received"]
    after = list(recorded(directory).values())[1]
    assert changes_in(after) == [(Change.PRESENT, each) for each in wanted]


def test_a_second_streamer_with_the_same_recording_directory_does_not_start(tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two")]
    for place in places:
        place.mkdir()
    shared = str(tmp_path / "recordings")
    first, second = (recording_config(place, free_ports(), directory=shared) for place in places)
    with StreamerProcess(first):
        refused = run_command("run", second)
        assert refused.returncode == 69, refused.stderr
        assert "recordings/.lock is held by process" in refused.stderr
        assert "Traceback" not in refused.stderr
    with StreamerProcess(second):
        pass
    assert [run["end"] for run in check(tmp_path / "recordings")] == ["stopped", "stopped"]


def test_a_replayed_drive_gets_the_same_decisions(tmp_path: Path) -> None:
    """One topic without a limit, one whose limit passes the first event only, one without a subscription."""
    ports = free_ports()
    live, again = tmp_path / "live", tmp_path / "again"
    for place in (live, again):
        place.mkdir()
    keys: dict[str, object] = {"flush_ms": 50, "payloads": ["//chassis/1234/1/*"], "payload_hz": 1000.0}
    first, second = (recording_config(place, ports, **keys) for place in (live, again))
    with (
        SomeipNode(ports.ecu) as ecu,
        SomeipNode(ports.receiver) as receiver,
        StreamerProcess(first) as process,
        ZenohEntity(ports.backbone, "hpc.vin1", APP) as app,
    ):
        vehicle = Vehicle(ports, process, ecu, receiver)
        plain, limited, _ = topics = [vehicle.unused_topic() for _ in range(3)]
        app.subscribe(plain)
        app.subscribe(limited, max_frequency=0.01)
        for number in range(20):
            for topic in topics:
                vehicle.send_event(topic, b"%d" % number)
            app.wait_events(plain, number + 1)
        eventually(lambda: len(decisions(live)), 60)
    with StreamerProcess(second):
        command = ("recordings", "replay", live / "state" / "recordings", "--into", second)
        done = run_command(*command, "--speed", "2", "--json")
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout)
        eventually(lambda: len(decisions(again)), 60)
    assert (result["published"], result["subscription_changes"]) == (60, 2)
    assert decisions(again) == decisions(live)
    assert Counter(verdict for _, verdict, _ in decisions(live)) == {
        "DELIVERED": 21,
        "THROTTLED": 19,
        "NO_SUBSCRIBER": 20,
    }


def decisions(place: Path) -> list[tuple[str, str, int]]:
    """Topic, verdict and limit of each event of the ECU, by topic in the order of arrival."""
    [events] = recorded(place / "state" / "recordings").values()
    rows = [each for each in events if isinstance(each, Row) and "chassis/1234" in each.source]
    rows.sort(key=lambda row: (row.source, row.arrived_ns))
    return [(row.source, row.verdict.name, row.target.period_ns) for row in rows]
