# SPDX-License-Identifier: Apache-2.0
"""The whole chain: a streamer under load is killed and restarted; its recordings become tables; the tables match its
ledger.
"""

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.gold.audit import RULES
from ustreamer_pipeline.recording.layout import DELIVERY
from ustreamer_pipeline.recording.segments import RecordingRefused, read_segment
from ustreamer_pipeline.schemas import COUNTERS, DELIVERIES, VERDICTS

from tests.e2e.rigs.entities import Metronome, SomeipNode, ZenohEntity, eventually
from tests.e2e.rigs.streamer import StreamerProcess, statistics
from tests.e2e.rigs.vehicle import Vehicle, free_ports, write_config

HZ = 20
COUNTS = [verdict.lower() for verdict in VERDICTS]


def drive(place: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Run a streamer twice. Returns the ledger of the first run shortly before its kill, and of the second run after
    its stop.
    """
    ports = free_ports()
    config = write_config(place, ports)
    config.write_text(f"{config.read_text()}\n[plugins.recorder]\nflush_ms = 50\n")
    recordings = place / "state" / "recordings"
    with SomeipNode(ports.ecu) as ecu, SomeipNode(ports.receiver) as receiver:
        first = StreamerProcess(config)
        vehicle = Vehicle(ports, first.wait_ready(), ecu, receiver)
        topics = [vehicle.unused_topic() for _ in range(3)]

        def beat(number: int) -> None:
            for each in topics:
                vehicle.send_event(each, b"%d" % number)

        with ZenohEntity(ports.backbone, "hpc.vin1", 0x10A0) as app:
            app.subscribe(topics[0])
            app.subscribe(topics[1], max_frequency=float(HZ))
            with Metronome(300, beat):
                app.wait_events(topics[0], 150)
                before_kill: dict[str, int] = statistics(place / "state")["ledger"]
                eventually(lambda: settled(recordings) >= sum(before_kill[each] for each in COUNTS), True)
                first.kill()  # while events come in
        second = StreamerProcess(config)
        Vehicle(ports, second.wait_ready(), ecu, receiver)
        with ZenohEntity(ports.backbone, "hpc.vin1", 0x10A0) as app, Metronome(300, beat):
            app.wait_events(topics[0], 120)
        second.stop()
    return before_kill, second.ledger


def settled(recordings: Path) -> int:
    """Deliveries in the recordings so far. A file that was just created has no header yet."""
    rows = 0
    for path in recordings.glob("*.useg*"):
        with contextlib.suppress(RecordingRefused, FileNotFoundError):
            rows += len(read_segment(path.read_bytes(), path.name).positions_of(DELIVERY))
    return rows


def rows_of(spark: SparkSession, lake: Path) -> list[dict[str, Any]]:
    """By run, the oldest first."""
    counted = (
        DELIVERIES.read_table(spark, lake).groupBy("run").pivot("verdict", list(VERDICTS)).count().na.fill(0)
    )
    return [
        {name: row[verdict] for name, verdict in zip(COUNTS, VERDICTS, strict=True)}
        for row in counted.orderBy("run").collect()
    ]


@pytest.mark.timeout(400)
def test_the_tables_match_the_ledger_of_the_dispatcher(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    before_kill, ledger = drive(tmp_path)
    recordings, lake, out = tmp_path / "state" / "recordings", tmp_path / "lake", tmp_path / "out"
    assert main(["ingest", str(recordings), str(lake)]) == 0
    once = rows_of(spark, lake)
    assert main(["ingest", str(recordings), str(lake)]) == 0
    killed, stopped = rows_of(spark, lake)
    assert [killed, stopped] == once
    # The killed run has all flushed rows, the stopped run has all rows.
    assert all(killed[name] >= before_kill[name] for name in COUNTS)
    assert stopped == {name: ledger[name] for name in COUNTS}
    assert min(stopped["delivered"], stopped["throttled"], killed["throttled"]) > 50
    last = COUNTERS.read_table(spark, lake).where("final").collect()
    assert [{name: row[name] for name in COUNTS} for row in last] == [stopped]

    capsys.readouterr()
    assert main(["audit", str(lake), "--json"]) == 0
    audited = json.loads(capsys.readouterr().out)
    assert audited["counts"] == dict.fromkeys(RULES, 0)
    assert audited["rows"] == sum(map(sum, (each.values() for each in once)))

    assert main(["whatif", str(lake), "--hz", f"{HZ / 2:g},0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["check"]["differing"], answer["check"]["unknown"]) == (0, 0)
    assert answer["check"]["decided"] > 300
    links = {(row["scenario"], row["egress"]): row for row in answer["links"]}
    recorded, halved, unlimited = (
        links[name, "backbone"] for name in ("recorded", f"{HZ / 2:g} Hz", "no limit")
    )
    assert recorded["messages"] == recorded["recorded"]
    assert halved["messages"] < recorded["messages"] < unlimited["messages"] == unlimited["offered"]

    assert main(["report", str(lake), str(out)]) == 0
    totals = json.loads((out / "report.json").read_text())["totals"]
    assert {name: totals[name] for name in COUNTS} == {name: killed[name] + stopped[name] for name in COUNTS}
    assert "<svg" in (out / "report.html").read_text()
