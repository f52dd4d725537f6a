# SPDX-License-Identifier: Apache-2.0
"""Recordings to tables with Spark: the same recordings give the same tables, in any order and any number of runs."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from tests.sample_lakes import contents
from tests.sample_recordings import MS, NOON_MS, TARGET, TOPIC, Record, make_row
from ustreamer_pipeline import cli
from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.ingest import ingest as ingest_module
from ustreamer_pipeline.ingest.ingest import Ingested, ingest, ingest_stream
from ustreamer_pipeline.lake.storage import LocalStorage
from ustreamer_pipeline.lake.tables import write_units
from ustreamer_pipeline.schemas import (
    DEAD_LETTERS,
    DELIVERIES,
    EVENTS,
    GAPS,
    QUARANTINE,
    SEGMENTS,
    SILVER,
    WIDE,
)
from ustreamer_pipeline.silver.silver import UnitPlan, plan_unit
from ustreamer_recorder.events import Letter

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.uuid import UUID

FLEET = Fleet(
    vehicles=3, seconds=3, topics=8, outages=2_000, killed=50, segment_rows=200, start_ms=1_699_999_999_000
)
MIDNIGHT_MS = 12 * 3_600_000.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of three vehicles, shared: tests use copies."""
    place = tmp_path_factory.mktemp("fleet")
    assert sum(write_fleet(FLEET, place)) > 1_000
    return place


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, fleet: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[Any]]:
    """The tables of that fleet after one ingest of all recordings."""
    lake = str(tmp_path_factory.mktemp("lake"))
    done = ingest(spark, [str(fleet)], lake)
    assert done.rows == done.silver > 1_000
    return contents(lake)


def test_a_gateways_day_is_one_file_in_order_of_run_time_and_number(
    tables: dict[str, list[Any]], spark: SparkSession
) -> None:
    names = [name for name in DELIVERIES.names if name not in DELIVERIES.partitioned_by]
    keys = [names.index(name) + 1 for name in ("run", "received_ns", "seq")]
    by_partition: dict[str, list[tuple[Any, ...]]] = {}
    for row in tables["deliveries"]:
        by_partition.setdefault(row[0], []).append(tuple(row[key] for key in keys))
    assert by_partition.keys() == {f"date=2023-11-14/gateway=v000000{n}.hpc" for n in range(3)}
    assert all(rows == sorted(rows) for rows in by_partition.values())
    seqs = [row[2] for rows in by_partition.values() for row in rows]
    assert len(set(seqs)) < len(seqs), "several gateways"
    assert any(rows != sorted(rows, key=lambda row: row[2]) for rows in by_partition.values()), (
        "not the order of verdicts"
    )


def test_the_tables_have_every_field_of_the_recording(
    spark: SparkSession, record: Record, tmp_path: Path
) -> None:
    request = UUID(NOON_MS << 16 | 0x7ABC, 0b10 << 62 | 77)
    rows = [
        make_row(0, 1, verdict=Verdict.THROTTLED, first_attempt_ns=0, attempts=0, settled_ns=MS + 500),
        make_row(
            1,
            2,
            verdict=Verdict.EXPIRED,
            ttl_ms=0,
            code=4,
            reason="late",
            first_attempt_ns=0,
            settled_ns=9 * MS,
        ),
        Letter(1, make_row(1).id, 9 * MS, TARGET, TOPIC, None, 0, 20, 4, "late", b"\x00payload"),
        make_row(
            2, 3, type=UMessageType.RESPONSE, sink="//s/1/1/0", request=request, held=True, arrived_ns=MS
        ),
    ]
    lake = str(tmp_path / "lake")
    path = record(rows)
    assert ingest(spark, [str(path.parent)], lake) == Ingested(files=1, landed=1, days=1, rows=3, silver=3)
    throttled, expired, answer = (
        row.asDict() for row in DELIVERIES.read_table(spark, lake).orderBy("seq").collect()
    )
    us = NOON_MS * 1000
    assert (throttled["verdict"], throttled["ttl_ms"], throttled["code"], throttled["queue_wait_us"]) == (
        "THROTTLED",
        None,
        None,
        0,
    )
    assert (throttled["received_us"], str(throttled["date"]), throttled["gateway"]) == (
        us + 1_000,
        "2023-11-14",
        "hpc.vin1",
    )
    assert (expired["verdict"], expired["ttl_ms"], expired["code"], expired["reason"]) == (
        "EXPIRED",
        0,
        4,
        "late",
    )
    assert (expired["queue_wait_us"], expired["latency_us"]) == (7_000, 7_000)
    assert (answer["type"], answer["sink"], answer["held"], answer["latency_us"]) == (
        "RESPONSE",
        "//s/1/1/0",
        True,
        2_002,
    )
    assert answer["queue_wait_us"] == 1, "the time in a filter is no time in a queue"
    assert (answer["request_msb"], answer["request_lsb"] + 2**64) == (request.msb, request.lsb)
    assert (throttled["request_msb"], throttled["held"], throttled["topic"]) == (None, False, TOPIC)
    (letter,) = DEAD_LETTERS.read_table(spark, lake).collect()
    assert (letter.seq, letter.endpoint, bytes(letter.payload), letter.time_us) == (
        1,
        "backbone",
        b"\x00payload",
        us + 9_000,
    )
    (segment,) = SEGMENTS.read_table(spark, lake).collect()
    assert (segment.rows, segment.end, segment.next_seq) == (3, "STOPPED", 3)
    for table in SILVER:
        assert table.read_table(spark, lake).columns == table.names


def test_a_second_run_changes_no_file(spark: SparkSession, record: Record, tmp_path: Path) -> None:
    lake, path = tmp_path / "lake", record([make_row(0)])
    ingest(spark, [str(path.parent)], str(lake))
    before = {file: file.stat().st_mtime_ns for file in lake.rglob("*")}
    assert ingest(spark, [str(path.parent)], str(lake)) == Ingested(files=1)
    assert {file: file.stat().st_mtime_ns for file in lake.rglob("*")} == before


def test_partial_late_and_repeated_recordings_give_the_same_tables(
    spark: SparkSession, fleet: Path, tables: dict[str, list[Any]], tmp_path: Path
) -> None:
    """First the later half of the files, two of them truncated and one still open; then all files; then copies of all."""
    coming, lake = tmp_path / "coming", str(tmp_path / "lake")
    every = sorted(fleet.rglob("*.useg"), key=lambda path: path.name)
    for index, path in enumerate(every[len(every) // 2 :]):
        place = coming / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes()
        if index == 1:
            place = place.with_name(f"{path.name}.open")
            data = data[: len(data) // 2] + bytes(50_000)
        place.write_bytes(data[: len(data) * 2 // 3] if index in {3, 5} else data)
    first = ingest(spark, [str(coming)], lake)
    assert 0 < first.rows == first.silver < len(tables["deliveries"])
    shutil.copytree(fleet, coming, dirs_exist_ok=True)
    for place in coming.rglob("*.open"):
        place.unlink()
    second = ingest(spark, [str(coming)], lake)
    assert second.landed >= len(every) // 2 + 3
    third = ingest(spark, [str(fleet)], lake)
    assert (third.files, third.landed, third.days) == (len(every), 0, 0)
    assert contents(lake) == tables


def test_a_stream_gives_the_same_tables(
    spark: SparkSession,
    fleet: Path,
    tables: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In several batches, with a file that is incomplete when the stream reads it and complete in the next run."""
    monkeypatch.setattr(ingest_module, "WAVE_FILES", 12)
    coming, lake, checkpoint = tmp_path / "coming", str(tmp_path / "lake"), str(tmp_path / "checkpoint")
    shutil.copytree(fleet, coming)
    half = max(coming.rglob("*.useg"), key=lambda path: path.stat().st_size)
    whole = half.read_bytes()
    half.write_bytes(whole[: len(whole) // 2])
    first = ingest_stream(spark, str(coming), lake, checkpoint)
    assert first.landed == first.files == len(list(fleet.rglob("*.useg")))
    half.write_bytes(whole)
    second = ingest_stream(spark, str(coming), lake, checkpoint)
    assert second.landed == 1
    assert contents(lake) == tables
    assert ingest_stream(spark, str(coming), lake, checkpoint).landed == 0


def test_a_stream_takes_an_earlier_day_that_comes_after_later_ones_and_after_a_failure(
    spark: SparkSession, fleet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the last segments of a day, then a day before it and the rest: between two tables the stream fails."""
    coming, lake, checkpoint = tmp_path / "coming", str(tmp_path / "lake"), str(tmp_path / "checkpoint")
    earlier = tmp_path / "earlier"
    assert sum(write_fleet(replace(FLEET, start_ms=FLEET.start_ms - 86_400_000), earlier)) > 1_000
    ingest(spark, [str(earlier), str(fleet)], str(tmp_path / "batch"))
    shutil.copytree(fleet, coming)
    for vehicle in coming.iterdir():
        min(vehicle.iterdir()).unlink()
    first = ingest_stream(spark, str(coming), lake, checkpoint)
    shutil.copytree(earlier, coming / "earlier")
    shutil.copytree(fleet, coming, dirs_exist_ok=True)
    before = contents(lake)

    def fail(frame: Any, table: Any, place: str) -> Any:
        if table is WIDE:
            raise RuntimeError("after the deliveries")
        return write_units(frame, table, place)

    with monkeypatch.context() as context:
        context.setattr(ingest_module, "write_units", fail)
        with pytest.raises(StreamingQueryException, match="after the deliveries"):
            ingest_stream(spark, str(coming), lake, checkpoint)
    assert contents(lake) == before
    expected = contents(str(tmp_path / "batch"))
    second = ingest_stream(spark, str(coming), lake, checkpoint)
    assert 0 < first.rows < second.rows == len(expected["deliveries"])
    assert contents(lake) == expected
    again = ingest_stream(spark, str(coming), lake, checkpoint)
    assert (again.landed, again.rows) == (0, 0)


@pytest.mark.parametrize("options", [[], ["--stream", "checkpoint"]])
def test_a_missing_folder_is_a_one_line_error(
    spark: SparkSession, tmp_path: Path, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    missing, lake = tmp_path / "none", tmp_path / "lake"
    assert cli.main(["ingest", *options, str(missing), str(lake)]) == 69
    assert capsys.readouterr().err == (
        f"ustreamer-pipeline ingest: {missing}: expected a folder of recordings, or one of them\n"
    )


class Killed(BaseException):
    """Ends a run as kill -9 does: no later step runs."""


@pytest.mark.parametrize("at", [1, 3, 4])
def test_after_a_kill_between_any_two_steps_the_next_run_gives_the_same_tables(
    spark: SparkSession,
    fleet: Path,
    tables: dict[str, list[Any]],
    tmp_path: Path,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lake = str(tmp_path / "lake")
    calls = 0

    def until(original: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **named: Any) -> Any:
            nonlocal calls
            if calls == at:
                raise Killed
            calls += 1
            return original(*args, **named)

        return step

    with monkeypatch.context() as context:
        for name in ("commit", "_rebuild_wave", "write_units"):
            context.setattr(ingest_module, name, until(getattr(ingest_module, name)))
        with pytest.raises(Killed):
            ingest(spark, [str(fleet)], lake)
    with pytest.raises(UnavailableError, match="none was completed: ingest again"):
        DELIVERIES.read_table(spark, lake)
    ingest(spark, [str(fleet)], lake)
    assert contents(lake) == tables


def test_two_ingests_at_once_on_two_machines_add_up_and_a_reader_sees_no_part_of_them(
    spark: SparkSession,
    fleet: Path,
    tables: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second one begins and ends while the first one writes, with other recordings of the same gateways and days."""
    lake = str(tmp_path / "lake")
    every = sorted(fleet.rglob("*.useg"), key=lambda path: path.name)
    halves = [[str(path) for path in every[start::2]] for start in (0, 1)]
    ingest(spark, halves[0][:1], lake)
    before = contents(lake)
    seen: list[dict[str, list[Any]]] = []

    def write_meanwhile(*args: Any) -> Any:
        if not seen:
            seen.append(contents(lake))
            ingest(spark, halves[1], lake)
            seen.append(contents(lake))
        return write_units(*args)

    # A lock of the file system tells nothing to another machine.
    monkeypatch.setattr(LocalStorage, "lock", lambda _: nullcontext())
    monkeypatch.setattr(ingest_module, "write_units", write_meanwhile)
    ingest(spark, halves[0], lake)
    assert seen[0] == before
    assert len(before["deliveries"]) < len(seen[1]["deliveries"]) <= len(tables["deliveries"])
    assert contents(lake) == tables


def test_a_stream_that_fails_before_its_tables_are_written_continues_from_its_checkpoint(
    spark: SparkSession,
    fleet: Path,
    tables: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The state of the next test, without a process: bronze is complete, and no table is."""
    lake, checkpoint = tmp_path / "lake", str(tmp_path / "checkpoint")

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("the end of this batch")

    with monkeypatch.context() as context:
        context.setattr(ingest_module, "_rebuild_wave", fail)
        with pytest.raises(StreamingQueryException, match="the end of this batch"):
            ingest_stream(spark, str(fleet), str(lake), checkpoint)
    assert '"pending"' in max((lake / "manifest").iterdir()).read_text(encoding="utf-8")
    assert ingest_stream(spark, str(fleet), str(lake), checkpoint).rows == len(tables["deliveries"])
    assert contents(str(lake)) == tables


def test_every_bad_row_and_file_is_in_quarantine_with_its_reason(
    spark: SparkSession, record: Record, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planted: dict[int, dict[str, Any]] = {
        1: {"priority": 7},
        2: {"code": 99},
        3: {"received_ns": MS - 1},
        4: {"settled_ns": MS - 1, "first_attempt_ns": 0},
        5: {"first_attempt_ns": 9 * MS},
        6: {"type": 0},
        7: {"source": None},
        8: {"target": msgspec.structs.replace(TARGET, target=8, period_ns=-1)},
        9: {"target": msgspec.structs.replace(TARGET, target=9, egress=None)},
    }
    rows = [make_row(seq, 1, **planted.get(seq, {})) for seq in range(12)]
    rows += [make_row(11, 1), make_row(12, MIDNIGHT_MS + 1)]
    path = record(rows)
    bad = path.with_name("0000000000000002-000000.useg")
    bad.write_bytes(b"junk")
    broken = bytearray(record([make_row(seq, 1) for seq in range(50)], run=3, block=10).read_bytes())
    broken[288 + 96 * 25] ^= 1
    path.with_name("0000000000000003-000000.useg").write_bytes(broken)
    lake = str(tmp_path / "lake")
    assert cli.main(["ingest", str(path.parent), lake]) == 0
    output = capsys.readouterr().out
    assert "recordings  3 seen, 2 with something new, 1 refused" in output
    assert "rows        54 recorded = 44 in silver + 10 in quarantine" in output
    assert DELIVERIES.read_table(spark, lake).count() == 44
    kept = QUARANTINE.read_table(spark, lake).collect()
    reasons = {row.reason for row in kept if row.rows}
    assert reasons == {
        "priority 7: expected 0 to 6",
        "code 99: expected 0 to 16, or 255",
        "received_ns 999999: expected arrived_ns or later",
        "settled_ns 999999: expected received_ns or later",
        "first_attempt_ns 9000000: expected between received_ns and settled_ns",
        "type 0: expected 1 to 4",
        "source: expected one",
        "seq 11: was there already",
        "period_ns -1: expected 0 to 1000000000000000000",
        "delivery 1: expected 0 for a target without an egress",
    }
    assert all(bytes(row.raw)[0] == 3 and len(row.raw) == 96 and row.offset for row in kept if row.rows)
    others = [(row.file, row.gateway) for row in kept if not row.rows]
    assert sorted(others) == sorted([(str(bad), "?"), ("0000000000000003-000000.useg", "hpc.vin1")])
    (gap,) = GAPS.read_table(spark, lake).collect()
    assert (gap.cause, gap.rows, gap.run) == ("DAMAGED", 10, 3)
    # A repaired copy of the file moves its rows from quarantine to silver.
    bad.unlink()
    record([make_row(seq, 1) for seq in range(50)], run=3, block=10, folder="again")
    assert ingest(spark, [str(tmp_path / "again")], lake).landed == 1
    assert DELIVERIES.read_table(spark, lake).count() == 54
    assert not GAPS.read_table(spark, lake).collect()
    assert QUARANTINE.read_table(spark, lake).where("file like '%3-000000.useg'").count() == 0


def test_a_damaged_bronze_file_is_named_and_no_row_is_removed(
    spark: SparkSession, record: Record, tmp_path: Path
) -> None:
    lake = tmp_path / "lake"
    path = record([make_row(0)])
    ingest(spark, [str(path.parent)], str(lake))
    (kept,) = lake.rglob("*.zst")
    kept.write_bytes(b"")
    record([make_row(1, 2)], number=1, first_seq=1)
    with pytest.raises(Exception, match=r"0000000000000001-000000\.useg|bytes of a header"):
        ingest(spark, [str(path.parent)], str(lake))
    assert DELIVERIES.read_table(spark, lake).count() == 1


def test_rows_missing_from_bronze_fail_the_run(
    spark: SparkSession, record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record([make_row(0), make_row(1)])

    def too_many(*args: Any) -> UnitPlan:
        return replace(plan_unit(*args), rows=3)

    monkeypatch.setattr(ingest_module, "plan_unit", too_many)
    with pytest.raises(DamagedError, match="2 of 3 rows came out of bronze"):
        ingest(spark, [str(path.parent)], str(tmp_path / "lake"))


def test_the_small_tables_are_in_one_file_per_gateways_day(
    spark: SparkSession, tables: dict[str, list[Any]]
) -> None:
    kinds = {row[1] for row in tables["events"]}
    assert kinds <= {table.name for table in EVENTS}
    assert {"subscriptions", "dead_letters", "epochs", "counters", "segments"} <= kinds
