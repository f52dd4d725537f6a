# SPDX-License-Identifier: Apache-2.0
"""Recordings to tables, as a batch and as a stream with a checkpoint. Both process files in the same way.

1. Land: every new or changed file is checked and copied into bronze. The manifest notes the gateway days it affects.
2. Rebuild: the tables of those days are rebuilt as a whole from bronze, in new files. A commit lists these instead of
   the old ones.

Either step may be killed at any moment: the next run repeats the steps that are not noted as done, with the same
result. Two runs at once, on any machines, add up: a day is listed only if it has all that bronze had at the commit.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlparse

from ustreamer_pipeline.bronze.landing import Landed, landed_from_json, landing_task
from ustreamer_pipeline.bronze.manifest import (
    REFUSED_FILES,
    Manifest,
    Unit,
    commit,
    list_recordings,
    remove_dropped,
    require_folder,
)
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.lake.snapshot import TableFile
from ustreamer_pipeline.lake.storage import Storage, storage_of
from ustreamer_pipeline.lake.tables import write_rows, write_units
from ustreamer_pipeline.recording.layout import SUFFIXES
from ustreamer_pipeline.schemas import DELIVERIES, QUARANTINE, SAMPLED, WIDE
from ustreamer_pipeline.silver.silver import (
    UnitPlan,
    deliveries,
    event_rows,
    event_table,
    pack_tasks,
    plan_unit,
    quarantine_rows,
    recorded,
    sample_rows,
    with_bad_reason,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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

    Raises UsageError for an unknown kind of lake, UnavailableError for a missing folder or another writer on this
    machine, DamagedError for an unreadable manifest or rows missing in the tables.
    """
    storage = storage_of(lake)
    with storage.lock():
        manifest = Manifest.load(storage)
        found = [(path, size, mtime) for path, size, mtime in list_recordings(folders, SUFFIXES)]
        done = Ingested(files=len(found))
        new = [each for each in found if manifest.is_new(*each)]
        manifest = _land(spark, new, manifest, lake, progress, done)
        manifest = _rebuild_days(spark, manifest, lake, progress, done)
        remove_dropped(storage, manifest)
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
    storage = storage_of(lake)
    storage.remove(STREAMED)

    def take(batch: "DataFrame", epoch: int) -> None:
        # With Spark Connect this runs in a server process: its result comes back through a file.
        paths = [unquote(urlparse(row.path).path) for row in batch.collect()]
        taken = ingest(batch.sparkSession, paths, lake, progress)
        storage_of(lake).write(STREAMED, f"{_streamed(lake)}{json.dumps(vars(taken))}\n".encode())

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
    for line in _streamed(lake).splitlines():
        done.add(Ingested(**json.loads(line)))
    storage.remove(STREAMED)
    rest = ingest(spark, [folder], lake, progress)
    rest.files -= done.files  # already counted by the stream
    done.add(rest)
    return done


def _streamed(lake: str) -> str:
    try:
        return storage_of(lake).read(STREAMED).decode()
    except FileNotFoundError:
        return ""


# -------------------------------------------------------------------------------------------------------------- land

FoundFile = tuple[str, int, int]


def _land(
    spark: "SparkSession",
    found: list[FoundFile],
    manifest: Manifest,
    lake: str,
    progress: Progress,
    done: Ingested,
) -> Manifest:
    for wave in _chunks(found, WAVE_FILES):
        packed = _pack_into_tasks(wave)
        numbers = spark.range(0, len(packed), 1, len(packed))
        with progress(f"landing {len(wave)} recordings"):
            rows = numbers.mapInArrow(landing_task(packed, lake), "landed string").collect()
        landed = [landed_from_json(json.loads(line)) for line in sorted(str(row.landed) for row in rows)]
        manifest, new = commit(storage_of(lake), manifest, partial(_record_landed, landed))
        done.landed += sum(new)
        done.refused += sum(one.refused is not None for one in landed)
    return manifest


def _record_landed(landed: list[Landed], manifest: Manifest) -> list[bool]:
    return [manifest.record_landed(one) for one in landed]


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


# -------------------------------------------------------------------------------------------------------------- make


def _rebuild_days(
    spark: "SparkSession", manifest: Manifest, lake: str, progress: Progress, done: Ingested
) -> Manifest:
    """Rebuild the tables of all pending days, also of those that another writer makes pending meanwhile."""
    storage = storage_of(lake)
    if REFUSED_FILES in manifest.pending:
        manifest = _rebuild_refused(storage, manifest)
    while manifest.pending:
        wave = sorted(manifest.pending)[:WAVE_UNITS]
        by_unit = manifest.by_unit()
        units = [plan_unit(manifest, unit, by_unit.get(unit, [])) for unit in wave]
        faults = any(segment.faults for unit in wave for segment in by_unit.get(unit, []))
        sampled = [
            unit for unit in units if any(each.sampled for each in by_unit.get((unit.gateway, unit.day), []))
        ]
        with progress(f"making {len(wave)} days of gateways"):
            files, made = _rebuild_wave(spark, units, lake, faults=faults)
            if sampled:
                files += write_units(sample_rows(spark, pack_tasks(sampled), lake), SAMPLED, lake)
        done.add(made)
        manifest, _ = commit(storage, manifest, partial(_list_files, units, files))
    return manifest


def _list_files(units: list[UnitPlan], files: list[TableFile], manifest: Manifest) -> None:
    """List the new files of units. A unit that another writer has changed meanwhile stays as it is, and pending."""
    by_unit = manifest.by_unit()
    made: dict[Unit, list[TableFile]] = {}
    for file in files:
        made.setdefault((file.gateway, file.day), []).append(file)
    for unit in units:
        key = unit.gateway, unit.day
        if plan_unit(manifest, key, by_unit.get(key, [])) == unit:
            manifest.replace_files(key, made.get(key, []))
        else:
            manifest.drop(made.get(key, []))


def _rebuild_refused(storage: Storage, manifest: Manifest) -> Manifest:
    """Unreadable files as rows of the quarantine."""

    def rebuild(newest: Manifest) -> None:
        rows = [
            {
                "file": seen.path,
                "offset": None,
                "rows": 0,
                "reason": f"{seen.refused}; {f'kept as {seen.copy}' if seen.copy else 'not kept'}",
                "raw": bytes.fromhex(seen.raw),
            }
            for seen in newest.refused
        ]
        files = [write_rows(storage, QUARANTINE, *REFUSED_FILES, rows)] if rows else []
        newest.replace_files(REFUSED_FILES, files)

    return commit(storage, manifest, rebuild)[0]


def _rebuild_wave(
    spark: "SparkSession", units: list[UnitPlan], lake: str, *, faults: bool
) -> tuple[list[TableFile], Ingested]:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    packed = pack_tasks(units)
    expected = sum(unit.rows for unit in units)
    counted = Observation()
    counts = (f.count(f.lit(1)).alias("rows"), f.count("bad").alias("bad"))
    checked = with_bad_reason(recorded(spark, packed, lake)).observe(counted, *counts)
    files = write_units(deliveries(checked), DELIVERIES, lake)
    rows, bad = counted.get["rows"], counted.get["bad"]
    if rows != expected:
        raise DamagedError(f"{lake}: {rows} of {expected} rows came out of bronze; is a file of it gone?")
    small = event_rows(spark, packed, lake)
    files += write_units(small.where(f.col("table") != QUARANTINE.name), WIDE, lake)
    if bad or faults:
        again = quarantine_rows(with_bad_reason(recorded(spark, packed, lake, detail=True)))
        files += write_units(again.unionByName(event_table(small, QUARANTINE)), QUARANTINE, lake)
    return files, Ingested(days=len(units), rows=rows, silver=rows - bad, quarantined=bad)


def _chunks(items: Sequence[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
