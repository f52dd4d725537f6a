# SPDX-License-Identifier: Apache-2.0
"""Recordings to tables, as a batch and as a stream with a checkpoint. Both process files in the same way.

1. Land: every new or changed file is checked and copied into bronze. The manifest notes the gateway days it affects.
2. Rebuild: the tables of those days are rebuilt as a whole from bronze and replace the old ones.

Either step may be killed at any moment: the next run repeats the steps that are not noted as done, with the same
result.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

from ustreamer_pipeline import compacted
from ustreamer_pipeline.bronze.landing import landed_from_json, landing_task
from ustreamer_pipeline.bronze.manifest import Manifest, Unit, lake_lock, list_recordings, require_folder
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.recording.layout import SUFFIXES
from ustreamer_pipeline.recording.rows import EPOCH, day_text
from ustreamer_pipeline.schemas import DELIVERIES, QUARANTINE, SPREAD, UNKNOWN_GATEWAY, WIDE, Table
from ustreamer_pipeline.silver.silver import (
    UnitPlan,
    deliveries,
    event_rows,
    event_table,
    pack_tasks,
    plan_unit,
    quarantine_rows,
    recorded,
    with_bad_reason,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

WAVE_FILES: Final = 10_000
"""Files that land before the manifest is saved: the maximum work to repeat after a crash."""
WAVE_UNITS: Final = 2_000
"""Gateway days that are rebuilt before the manifest is saved."""
_TASK_BYTES: Final = 64 << 20
STREAMED: Final = ".streamed.jsonl"
"""A file in the lake: results of the batches of a running stream."""

Progress = Callable[[str], AbstractContextManager[None]]


def _silent(text: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass
class Ingested:
    """Result of one run. `rows` = `silver` + `quarantined`, or the run fails.

    `files` were found, `landed` of them had new content, `refused` were unreadable. `days` of gateways were rebuilt,
    with `rows` recorded deliveries.
    """

    files: int = 0
    landed: int = 0
    refused: int = 0
    days: int = 0
    rows: int = 0
    silver: int = 0
    quarantined: int = 0

    def add(self, other: "Ingested") -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


def ingest(
    spark: "SparkSession", folders: Sequence[str], lake: str, progress: Progress = _silent
) -> Ingested:
    """Import new recordings below `folders`, and complete an interrupted run.

    Raises UnavailableError for a missing folder or a concurrent ingest, DamagedError for an unreadable manifest or
    rows missing in the tables.
    """
    with lake_lock(lake):
        manifest = Manifest.load(lake)
        done = Ingested()
        found = [(path, size, mtime) for path, size, mtime in list_recordings(folders, SUFFIXES)]
        done.files = len(found)
        done.add(_land(spark, [f for f in found if manifest.is_new(*f)], manifest, lake, progress))
        done.add(_rebuild_days(spark, manifest, lake, progress))
        return done


def ingest_stream(
    spark: "SparkSession", folder: str, lake: str, checkpoint: str, progress: Progress = _silent
) -> Ingested:
    """The same through Structured Streaming: imports all existing recordings, then returns.

    The checkpoint remembers the names of finished files. It cannot track files that still change (open files,
    incomplete copies); a final run reads those again by the manifest. Files are found in `folder` and its subfolders.
    Raises UnavailableError if the folder does not exist, and the errors of `ingest`.
    """
    require_folder(folder)
    counts = Path(lake) / STREAMED
    counts.unlink(missing_ok=True)

    def take(batch: "DataFrame", epoch: int) -> None:
        # With Spark Connect this runs in a server process: its result comes back through a file.
        paths = [unquote(urlparse(row.path).path) for row in batch.collect()]
        taken = ingest(batch.sparkSession, paths, lake, progress)
        with counts.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(vars(taken))}\n")

    files = (
        spark.readStream.format("binaryFile")
        .schema("path string, modificationTime timestamp, length bigint, content binary")
        .option("pathGlobFilter", "*.useg")
        .option("recursiveFileLookup", "true")
        .option("maxFilesPerTrigger", str(WAVE_FILES))
        .load(folder)
    )
    query = (
        files.select("path")  # without reading the content
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = Ingested()
    if counts.exists():
        for line in counts.read_text(encoding="utf-8").splitlines():
            done.add(Ingested(**json.loads(line)))
        counts.unlink()
    rest = ingest(spark, [folder], lake, progress)
    rest.files -= done.files  # already counted by the stream
    done.add(rest)
    return done


# -------------------------------------------------------------------------------------------------------------- land

FoundFile = tuple[str, int, int]


def _land(
    spark: "SparkSession", found: list[FoundFile], manifest: Manifest, lake: str, progress: Progress
) -> Ingested:
    done = Ingested()
    for wave in _chunks(found, WAVE_FILES):
        packed = _pack_into_tasks(wave)
        numbers = spark.range(0, len(packed), 1, len(packed))
        with progress(f"landing {len(wave)} recordings"):
            landed = numbers.mapInArrow(landing_task(packed, lake), "landed string").collect()
        refused = manifest.refused
        for row in sorted(landed, key=lambda row: str(row.landed)):
            one = landed_from_json(json.loads(row.landed))
            done.landed += manifest.record_landed(one)
            done.refused += one.refused is not None
        if manifest.refused != refused:
            _quarantine_files(spark, manifest, lake)
        manifest.save(lake)
    return done


def _pack_into_tasks(found: list[FoundFile]) -> list[list[str]]:
    """Paths of each task. Files of one name may be copies of one recording: they land in sequence."""
    by_name: dict[str, list[FoundFile]] = {}
    for one in found:
        by_name.setdefault(Path(one[0]).name.removesuffix(".open"), []).append(one)
    packed: list[list[str]] = []
    room = 0
    for _, same in sorted(by_name.items()):
        size = sum(size for _, size, _ in same)
        if room < size or not packed:
            packed.append([])
            room = _TASK_BYTES
        packed[-1] += [path for path, _, _ in same]
        room -= size
    return packed


def _quarantine_files(spark: "SparkSession", manifest: Manifest, lake: str) -> None:
    """Unreadable files as rows of the quarantine: one partition, rebuilt."""
    rows = [
        (
            seen.path,
            None,
            0,
            f"{seen.refused}; {f'kept as {seen.copy}' if seen.copy else 'not kept'}",
            bytes.fromhex(seen.raw),
            EPOCH,
            UNKNOWN_GATEWAY,
        )
        for seen in manifest.refused
    ]
    _remove(lake, QUARANTINE, {(UNKNOWN_GATEWAY, 0)})
    if rows:
        _write(spark.createDataFrame(rows, QUARANTINE.ddl).coalesce(1), QUARANTINE, lake)


# -------------------------------------------------------------------------------------------------------------- make


def _rebuild_days(spark: "SparkSession", manifest: Manifest, lake: str, progress: Progress) -> Ingested:
    """Rebuild the tables of all pending days."""
    done = Ingested()
    by_unit = manifest.by_unit()
    for wave in _chunks(sorted(manifest.pending), WAVE_UNITS):
        units = [plan_unit(manifest, unit, by_unit.get(unit, [])) for unit in wave]
        faults = any(segment.faults for unit in wave for segment in by_unit.get(unit, []))
        with progress(f"making {len(wave)} days of gateways"):
            done.add(_rebuild_wave(spark, units, lake, faults=faults))
        manifest.pending -= set(wave)
        manifest.save(lake)
    return done


def _rebuild_wave(spark: "SparkSession", units: list[UnitPlan], lake: str, *, faults: bool) -> Ingested:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    packed = pack_tasks(units)
    touched = {(unit.gateway, unit.day) for unit in units}
    compacted.invalidate(lake, {day_text(day) for _, day in touched})
    expected = sum(unit.rows for unit in units)
    counted = Observation()
    counts = (f.count(f.lit(1)).alias("rows"), f.count("bad").alias("bad"))
    _write(
        deliveries(with_bad_reason(recorded(spark, packed, lake)).observe(counted, *counts)), DELIVERIES, lake
    )
    rows, bad = counted.get["rows"], counted.get["bad"]
    if rows != expected:
        raise DamagedError(f"{lake}: {rows} of {expected} rows came out of bronze; is a file of it gone?")
    small = event_rows(spark, packed, lake)
    _remove(lake, WIDE, touched)
    _write(small.where(f.col("table") != QUARANTINE.name), WIDE, lake)
    _remove(lake, QUARANTINE, touched)
    if bad or faults:
        again = quarantine_rows(with_bad_reason(recorded(spark, packed, lake, detail=True)))
        _write(again.unionByName(event_table(small, QUARANTINE)), QUARANTINE, lake)
    return Ingested(days=len(units), rows=rows, silver=rows - bad, quarantined=bad)


def _write(frame: "DataFrame", table: Table, lake: str) -> None:
    """Replace only the partitions that the frame has rows for."""
    (
        compressed(frame.write, table)
        .mode("overwrite")
        .option("partitionOverwriteMode", "dynamic")
        .partitionBy(*table.partitioned_by)
        .parquet(table.path(lake))
    )


def compressed(writer: "DataFrameWriter", table: Table) -> "DataFrameWriter":
    """Options measured as small and fast for this table (docs/scale.md)."""
    spread = {f"parquet.enable.dictionary#{name}": "false" for name in SPREAD if name in table.names}
    # The default of 3 is slower and not smaller.
    return writer.options(**spread).option("parquet.compression.codec.zstd.level", "1")


def _remove(lake: str, table: Table, units: set[Unit]) -> None:
    """Remove the partitions of units that may get no new rows."""
    for date in {day_text(day) for _, day in units}:
        folder = Path(table.path(lake)) / f"date={date}"
        removed = {gateway for gateway, day in units if day_text(day) == date}
        for partition in folder.glob("gateway=*"):
            if unquote(partition.name.removeprefix("gateway=")) in removed:
                shutil.rmtree(partition)


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
