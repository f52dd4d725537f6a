# SPDX-License-Identifier: Apache-2.0
"""The pipeline and DuckDB on the same recordings: `python -m benchmarks.pipeline [--rows N...]`.

DuckDB cannot read recordings, so both engines use the same numpy reader, in as many processes as Spark has threads.
Both check each row, name its codes, and write the table DELIVERIES as zstd Parquet, one ordered file per gateway and
day, and the small tables. A task is a function that returns its measurements; TASKS lists them by name.
"""

import argparse
import math
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from ustreamer_pipeline.bronze.landing import Landed, land, read_bronze, segment_file
from ustreamer_pipeline.bronze.manifest import Manifest, list_recordings
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.recording import events, rows
from ustreamer_pipeline.recording.rows import EPOCH
from ustreamer_pipeline.recording.segments import Segment, read_segment
from ustreamer_pipeline.schemas import DELIVERIES, RECORDED, TYPES, VERDICTS
from ustreamer_pipeline.session import session
from ustreamer_pipeline.silver.silver import UnitPlan, plan_unit

from benchmarks.harness import process_tree

ROWS: Final = (1_000_000, 10_000_000)
ROWS_PER_VEHICLE: Final = 500_000
ROWS_PER_SECOND: Final = 1_500
"""Approximate rows/s of a vehicle of `Fleet` with 30 topics."""


@dataclass(frozen=True)
class Measurement:
    """Cost of one task for one engine. `cpu_s` covers all its processes; `peak_mb` is an upper bound of their memory
    so far.

    The processes of Spark include this one. The processes of the other engines have ended.
    """

    task: str
    engine: str
    rows: int
    seconds: float
    cpu_s: float
    peak_mb: float


@dataclass(frozen=True)
class TaskWorkspace:
    """Folders of a task: read-only recordings, and a folder for each engine."""

    recordings: Path
    work_dir: Path
    cores: int


def fleet_of(count: int) -> Fleet:
    """A fleet with about this many rows: more vehicles, not longer drives."""
    vehicles = max(4, round(count / ROWS_PER_VEHICLE))
    return Fleet(vehicles=vehicles, seconds=max(1.0, count / vehicles / ROWS_PER_SECOND))


def measure_task(task: str, engine: str, work: Callable[[], int], processes: int = 0) -> Measurement:
    """Run the task with this number of processes; 0 uses the existing ones."""
    began, cpu = time.monotonic(), process_tree.cpu_s()
    count = work()
    seconds = time.monotonic() - began
    peak = process_tree.exited_peak_mb() * processes if processes else process_tree.peak_mb()
    return Measurement(task, engine, count, seconds, process_tree.cpu_s() - cpu, peak)


# ------------------------------------------------------------------------------------------------------------ ingest


def ingest_task(workspace: TaskWorkspace, spark: SparkSession) -> list[Measurement]:
    """Recordings to tables, by each engine into its own lake."""
    lakes = {engine: workspace.work_dir / f"lake-{engine}" for engine in ("spark", "duckdb")}
    by_duckdb = partial(ingest_with_duckdb, workspace.recordings, lakes["duckdb"], workspace.cores)
    return [
        measure_task(
            "ingest", "spark", lambda: ingest(spark, [str(workspace.recordings)], str(lakes["spark"])).rows
        ),
        measure_task("ingest", "duckdb", by_duckdb, workspace.cores),
    ]


def ingest_with_duckdb(recordings: Path, lake: Path, processes: int) -> int:
    """The same with DuckDB. Returns the number of rows."""
    return ingest_by_units(duckdb_unit, recordings, lake, processes)


def ingest_by_units(
    make_unit: Callable[[str, UnitPlan], int], recordings: Path, lake: Path, processes: int
) -> int:
    """Bronze, then `make_unit` of each gateway day, one process per core. Returns the number of rows."""
    manifest = Manifest()
    paths = [path for path, _, _ in list_recordings([str(recordings)], (".useg",))]
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for landed in pool.map(partial(landed_in, str(lake)), paths, chunksize=4):
            manifest.record_landed(landed)
        by_unit = manifest.by_unit()
        units = [plan_unit(manifest, unit, by_unit[unit]) for unit in sorted(by_unit)]
        return sum(pool.map(partial(make_unit, str(lake)), sorted(units, key=lambda unit: -unit.rows)))


def landed_in(lake: str, path: str) -> Landed:
    return land(path, lake)


def duckdb_unit(lake: str, unit: UnitPlan) -> int:
    """One gateway day: the rules of `silver.with_bad_reason` and `silver.deliveries` in DuckDB's SQL."""
    names = unit_folders(lake, unit)
    with duckdb.connect(config={"threads": 1}) as connection:
        recorded = pa.RecordBatchReader.from_batches(RECORDED.arrow_schema(), recorded_batches(lake, unit))
        connection.execute("SET enable_progress_bar = false")
        connection.register("recorded", recorded)
        target = names["deliveries"] / "part.parquet"
        connection.execute(
            f"COPY ({_SQL}) TO '{target}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
        small = pa.Table.from_batches(list(small_batches(lake, unit)))
        connection.register("small", small)
        connection.execute(
            f"COPY small TO '{names['events'] / 'part.parquet'}' (FORMAT parquet, COMPRESSION zstd)"
        )
    return int(pq.read_metadata(target).num_rows)


def unit_folders(lake: str, unit: UnitPlan) -> dict[str, Path]:
    """New folders for the tables of a unit."""
    folders = {
        name: Path(lake) / "silver" / name / f"date={_date(unit)}" / f"gateway={unit.gateway}"
        for name in ("deliveries", "events")
    }
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    return folders


def _date(unit: UnitPlan) -> str:
    import datetime as dt

    return str(EPOCH + dt.timedelta(days=unit.day))


def recorded_batches(lake: str, unit: UnitPlan) -> Iterator[pa.RecordBatch]:
    pool = rows.TextPool()
    parts = (
        rows.SegmentSource(
            lambda file=piece.file: _segment(lake, file),  # type: ignore[misc]
            piece.file,
            piece.floor,
            piece.later_from_ns,
        )
        for piece in unit.parts
    )
    for ready in rows.merge_day(parts, pool, unit.day):
        yield from rows.record_batches(ready, pool, unit.day, unit.gateway)


def small_batches(lake: str, unit: UnitPlan) -> Iterator[pa.RecordBatch]:
    for piece in unit.parts:
        segment = _segment(lake, piece.file)
        yield events.event_batch(list(events.find_event_rows(segment, piece.file, 0)), unit.day, unit.gateway)


def _segment(lake: str, file: str) -> Segment:
    return read_segment(read_bronze(storage_of(lake), file), segment_file(file))


def _named(code: str, names: tuple[str, ...]) -> str:
    return f"({list(names)})[{code}]"


_COLUMNS: Final = {
    "type": _named("type", TYPES),
    "ttl_ms": "CASE WHEN flags & 2 <> 0 THEN ttl_ms END",
    "verdict": _named("verdict + 1", VERDICTS),
    "code": "nullif(code, 255)",
    "queue_wait_us": "(coalesce(nullif(first_attempt_ns, 0), settled_ns) - received_ns) // 1000",
    "latency_us": "(settled_ns - arrived_ns) // 1000",
    "held": "flags & 1 <> 0",
    "request_msb": "CASE WHEN request_msb <> 0 THEN request_msb END",
    "request_lsb": "CASE WHEN request_msb <> 0 THEN request_lsb END",
}

_COLUMN_LIST: Final = ", ".join(f"{_COLUMNS.get(name, name)} AS {name}" for name in DELIVERIES.names[:-2])
_SQL: Final = f"""
SELECT {_COLUMN_LIST} FROM recorded
WHERE fault IS NULL AND verdict BETWEEN 0 AND 5 AND type BETWEEN 1 AND 4 AND priority <= 6 AND (code <= 16 OR code = 255)
  AND received_ns >= arrived_ns AND settled_ns >= received_ns AND source IS NOT NULL AND ingress IS NOT NULL
  AND (first_attempt_ns = 0 OR first_attempt_ns BETWEEN received_ns AND settled_ns)
"""  # noqa: S608 - of our own names only


# ----------------------------------------------------------------------------------------------------- all of them

TASKS: Final[dict[str, Callable[[TaskWorkspace, SparkSession], list[Measurement]]]] = {"ingest": ingest_task}


def run(
    counts: Sequence[int], tasks: Sequence[str], cores: int, directory: Path, spark: SparkSession
) -> list[Measurement]:
    """Run every task at every size, on generated recordings that are deleted afterwards."""
    measurements: list[Measurement] = []
    for count in counts:
        workspace = TaskWorkspace(directory / f"recordings-{count}", directory / f"work-{count}", cores)
        make = partial(_generate, count, workspace)
        measurements.append(measure_task("generate", "numpy", make, workspace.cores))
        for task in tasks:
            measurements += TASKS[task](workspace, spark)
        shutil.rmtree(workspace.recordings)
        shutil.rmtree(workspace.work_dir, ignore_errors=True)
    return measurements


def _generate(count: int, workspace: TaskWorkspace) -> int:
    return sum(write_fleet(fleet_of(count), workspace.recordings, workspace.cores))


def table(measurements: Sequence[Measurement]) -> str:
    """One line per measurement, with its growth relative to the previous size, and Spark relative to DuckDB."""
    lines = [
        f"{'task':10}{'engine':8}{'rows':>12}{'s':>9}{'rows/s':>12}{'cpu us/row':>12}{'peak MB':>9}  growth  spark/duckdb"
    ]
    before: dict[tuple[str, str], Measurement] = {}
    for one in measurements:
        last = before.get((one.task, one.engine))
        before[one.task, one.engine] = one
        growth = (
            ""
            if last is None
            else f"{math.log(one.seconds / last.seconds) / math.log(one.rows / last.rows):.2f}"
        )
        duckdb_rows = [
            other
            for other in measurements
            if (other.task, other.rows, other.engine) == (one.task, one.rows, "duckdb")
        ]
        ratio = f"{one.seconds / duckdb_rows[0].seconds:.1f}" if duckdb_rows and one.engine == "spark" else ""
        lines.append(
            f"{one.task:10}{one.engine:8}{one.rows:>12,}{one.seconds:>9.1f}{one.rows / one.seconds:>12,.0f}"
            f"{one.cpu_s / one.rows * 1e6:>12.2f}{one.peak_mb:>9,.0f}  {growth:6}  {ratio}"
        )
    return "\n".join(line.rstrip() for line in lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline", description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=list(ROWS), metavar="N", help="sizes (1e6 and 1e7)"
    )
    parser.add_argument("--task", choices=sorted(TASKS), nargs="+", default=sorted(TASKS))
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--memory", default="2g", metavar="SIZE", help="heap of Spark (2g)")
    parser.add_argument("--dir", metavar="DIRECTORY", help="for some 200 bytes a row")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="ustreamer-pipeline-", dir=options.dir) as directory:
        with session("benchmark", cores=options.cores, memory=options.memory) as spark:
            # A warm-up: the first compilation and class loading of Spark is not measured.
            run([20_000], options.task, options.cores, Path(directory), spark)
            measurements = run(options.rows, options.task, options.cores, Path(directory), spark)
        print(table(measurements))
    return 0


if __name__ == "__main__":
    sys.exit(main())
