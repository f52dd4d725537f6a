# SPDX-License-Identifier: Apache-2.0
"""Compaction: the same rows in fewer files, despite concurrent readers, late recordings and kills."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from tests.sample_recordings import NOON_MS, Record, make_row
from ustreamer_pipeline.bronze.manifest import Manifest
from ustreamer_pipeline.cli import main
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.ingest import compact as compact_module
from ustreamer_pipeline.ingest.compact import compact
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.snapshot import TableFile
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import read_file
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import DELIVERIES, GAPS, LEAPS, SUBSCRIPTIONS, WIDE

DAYS = ("2023-11-14", "2023-11-15")
# Vehicles start within one minute, so 70 s of driving put midnight into every drive: each gateway has two dates.
FLEET = Fleet(vehicles=4, seconds=70, topics=2, segment_rows=1_000, start_ms=1_700_006_400_000 - 65_000)
TABLES = (DELIVERIES, SUBSCRIPTIONS)


def silent(text: str) -> AbstractContextManager[None]:
    return nullcontext()


Compact = Callable[..., Any]


@pytest.fixture
def compact_lake(spark: SparkSession, lake: Path) -> Compact:
    return partial(compact, spark, str(lake), silent)


@pytest.fixture(scope="module")
def made(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake of four gateways and two dates, shared: tests use copies."""
    recordings, lake = tmp_path_factory.mktemp("recordings"), tmp_path_factory.mktemp("lake")
    assert sum(write_fleet(FLEET, recordings)) > 500
    ingest(spark, [str(recordings)], str(lake))
    return lake


@pytest.fixture
def lake(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "lake"))


def rows_of(spark: SparkSession, lake: Path) -> dict[str, tuple[Any, ...]]:
    """The number of rows of each table and the sum of their hashes, whatever their order."""
    found = {}
    for table in TABLES:
        hashed = f.xxhash64(*table.names).cast("decimal(38,0)")
        found[table.name] = tuple(table.read_table(spark, lake).agg(f.count("*"), f.sum(hashed)).collect()[0])
    return found


def manifest_of(lake: Path) -> Manifest:
    return Manifest.load(storage_of(str(lake)))


def compacted_days(lake: Path) -> list[str]:
    return [day_text(day) for day in manifest_of(lake).large]


def files_of(spark: SparkSession, lake: Path) -> list[str]:
    return sorted(DELIVERIES.read_table(spark, lake).inputFiles())


def test_every_table_has_the_same_rows_in_fewer_files(
    spark: SparkSession, lake: Path, compact_lake: Compact
) -> None:
    before, small = rows_of(spark, lake), files_of(spark, lake)
    assert len(small) == 8
    done = compact_lake()
    # The last date is left out: recordings of it may still come.
    assert (done.dates, done.small, done.large) == (1, 8, 2)
    assert rows_of(spark, lake) == before
    now = files_of(spark, lake)
    assert (len(now), sum("/compacted/" in each for each in now)) == (5, 1)
    assert compact_lake(until=DAYS[1]).dates == 1
    assert rows_of(spark, lake) == before
    assert len(files_of(spark, lake)) == 2
    assert all(Path(each.removeprefix("file://")).exists() for each in small), (
        "a replay reads the small files"
    )


def test_rows_of_a_gateway_stay_together_and_in_order_and_files_have_the_given_size(
    spark: SparkSession, lake: Path, compact_lake: Compact
) -> None:
    size = max(Path(each.removeprefix("file://")).stat().st_size for each in files_of(spark, lake))
    compact_lake(until=DAYS[1], file_bytes=2 * size)
    large = [each for each in files_of(spark, lake) if f"/{DAYS[1]}-" in each]
    assert 1 < len(large) < 4
    gateways = []
    for each in large:
        rows = pq.read_table(each.removeprefix("file://"), columns=["gateway", "run", "received_ns", "seq"])
        keys = list(zip(*rows.to_pydict().values(), strict=True))
        assert keys == sorted(keys)
        gateways += sorted({key[0] for key in keys})
    assert sorted(gateways) == sorted(set(gateways)), "no gateway is in two files"


def test_a_compacted_date_is_not_written_again(lake: Path, compact_lake: Compact) -> None:
    compact_lake(until=DAYS[1])
    places = {path: path.stat().st_mtime_ns for path in (lake / "compacted").rglob("*.parquet")}
    number = manifest_of(lake).number
    done = compact_lake(until=DAYS[1], keep_s=0)
    assert (done.dates, done.removed) == (0, 0)
    assert {path: path.stat().st_mtime_ns for path in (lake / "compacted").rglob("*.parquet")} == places
    assert manifest_of(lake).number == number


def test_a_late_recording_is_read_at_once_and_compacted_the_next_time(
    spark: SparkSession, lake: Path, compact_lake: Compact, record: Record
) -> None:
    compact_lake(until=DAYS[1])
    early = DELIVERIES.read_table(spark, lake)  # a reader that reads again later
    count = early.count()
    recording = record([make_row(0), make_row(1)], gateway="late.hpc")
    assert ingest(spark, [str(recording)], str(lake)).rows == 2
    assert NOON_MS // 86_400_000 == 19_675, "on the first of the dates"
    assert compacted_days(lake) == [DAYS[1]]
    assert DELIVERIES.read_table(spark, lake).count() == count + 2
    assert compact_lake(until=DAYS[1]).removed == 0
    assert early.count() == count, "its files are still there"
    assert DELIVERIES.read_table(spark, lake).count() == count + 2
    assert len(files_of(spark, lake)) == 2
    assert compact_lake(keep_s=0).removed == 2
    assert DELIVERIES.read_table(spark, lake).count() == count + 2


def test_a_compaction_killed_before_its_commit_has_no_effect(
    spark: SparkSession, lake: Path, compact_lake: Compact, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = DELIVERIES.read_table(spark, lake).count()

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(compact_module, "commit", killed)
        with pytest.raises(KeyboardInterrupt):
            compact_lake()
    assert DELIVERIES.read_table(spark, lake).count() == before
    assert compacted_days(lake) == []
    assert len(list((lake / "compacted").rglob("*.parquet"))) == 2
    done = compact_lake(keep_s=0)
    assert (done.dates, done.removed) == (1, 2)
    assert DELIVERIES.read_table(spark, lake).count() == before


def test_a_date_with_an_unfinished_ingest_is_not_compacted(lake: Path, compact_lake: Compact) -> None:
    manifest = manifest_of(lake)
    manifest.pending.add(("v0000001.hpc", 19_675))
    assert manifest.save(storage_of(str(lake)))
    assert compact_lake(until=DAYS[1]).dates == 1
    assert compacted_days(lake) == [DAYS[1]]


def test_a_date_of_one_file_is_not_compacted(spark: SparkSession, tmp_path: Path, record: Record) -> None:
    lake = str(tmp_path / "one")
    ingest(spark, [str(record([make_row(0)]))], lake)
    assert compact(spark, lake, silent, until=DAYS[1]).dates == 0


def test_a_damaged_file_is_named_and_nothing_is_changed(
    spark: SparkSession, lake: Path, compact_lake: Compact
) -> None:
    first = min((lake / DELIVERIES.folder).rglob("*.parquet"))
    whole = first.read_bytes()
    first.write_bytes(whole[:100])
    with pytest.raises(DamagedError, match=f"{first.name}: "):
        compact_lake()
    assert compacted_days(lake) == []
    first.write_bytes(whole)
    assert compact_lake().dates == 1


def test_a_column_missing_in_an_older_file_is_null(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(pa.table({"run": [1, 2], "table": ["gaps", "gaps"]}), path)
    file = TableFile(WIDE.name, "v%1", 19_675, path.name, 2, 0)
    (batch,) = read_file(storage_of(str(tmp_path)), file, WIDE)
    assert batch.schema.names == WIDE.names
    found = [{key: value for key, value in row.items() if value is not None} for row in batch.to_pylist()]
    assert [(row["run"], row["gateway"], str(row["date"]), len(row)) for row in found] == [
        (1, "v%1", DAYS[0], 4),
        (2, "v%1", DAYS[0], 4),
    ]
    assert {"from_ns", "leap_ms"} <= {*GAPS.names, *LEAPS.names} <= {*WIDE.names}


def test_the_command_reports_its_result(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compact", str(lake), "--until", "yesterday"]) == 2
    assert main(["compact", str(lake), "--file-mb", "0"]) == 2
    assert main(["compact", str(lake), "--keep-hours", "nan"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert errors[1:] == [
        "ustreamer-pipeline compact: --file-mb 0: expected 1 or more",
        "ustreamer-pipeline compact: --keep-hours nan: expected 0 or more",
    ]
    assert main(["compact", str(lake), "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert (done["dates"], done["small"], done["large"], done["removed"]) == (1, 8, 2, 0)
    assert main(["compact", str(lake)]) == 0
    assert capsys.readouterr().out.startswith("dates  0 compacted, 0 rows")
