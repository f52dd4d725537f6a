# SPDX-License-Identifier: Apache-2.0
"""Compaction: rewrites the small files of a finished date, one per gateway, into a few large files.

A table has one file per gateway and day, so that a day can be rebuilt alone and replayed in order. Opening a file
costs Spark 5 ms. Queries on the whole fleet therefore read the large files (`schemas.Table.read_table`).
The small files stay: a replay reads them, and a late recording replaces them. The date then counts as not compacted
until the next run.

Nothing is shuffled or sorted: a task reads its small files in sequence and writes one large file. A compaction also
removes files that no version of the manifest lists.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from ustreamer_pipeline.bronze.manifest import Manifest, commit, remove_dropped, remove_orphans
from ustreamer_pipeline.errors import DamagedError, damage_in_task
from ustreamer_pipeline.lake.snapshot import KEEP_S, TableFile
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import WRITTEN_DDL, Batches, FileWriter, pack, read_file, written
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import DELIVERIES, SAMPLED, WIDE, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_BYTES: Final = 512 << 20
"""Size of a large file: opening it costs nothing relative to reading it, and a day of a large fleet has a file per
core.
"""
SMALL_BYTES: Final = 64 << 20
"""A date with files of this average size is not compacted."""

Progress = Callable[[str], AbstractContextManager[None]]


@dataclass
class Compacted:
    """Result of one run: dates written, their files before and after, their rows, and removed files of earlier runs."""

    dates: int = 0
    small: int = 0
    large: int = 0
    rows: int = 0
    removed: int = 0


def compact(
    spark: "SparkSession",
    lake: str,
    progress: Progress,
    *,
    until: str = "",
    file_bytes: int = FILE_BYTES,
    keep_s: float = KEEP_S,
) -> Compacted:
    """Compact every date up to `until` that has small files and is not compacted; by default all but the last date.

    Raises UnavailableError during an ingest on this machine, DamagedError for an unreadable file.
    """
    storage = storage_of(lake)
    with storage.lock():
        done = Compacted()
        manifest = Manifest.load(storage)
        days = manifest.days()
        last = until or (day_text(days[-2]) if len(days) > 1 else "")
        # What an ingest has begun to make and not finished is not whole.
        pending = {day for _, day in manifest.pending}
        for day in days:
            if day_text(day) > last or day in pending or day in manifest.large:
                continue
            small = {table: manifest.small_files(table.name, day) for table in (DELIVERIES, WIDE, SAMPLED)}
            if not _is_worth_it(small[DELIVERIES]):
                continue
            with progress(f"compacting {day_text(day)}"):
                large = [
                    file
                    for table, files in small.items()
                    if files
                    for file in _write_large(spark, lake, table, files, file_bytes)
                ]
            manifest, is_listed = commit(storage, manifest, partial(_list_large, day, small, large))
            if is_listed:
                done.dates += 1
                done.small += sum(map(len, small.values()))
                done.large += len(large)
                done.rows += sum(file.rows for file in small[DELIVERIES])
        manifest, done.removed = remove_dropped(storage, manifest, keep_s)
        done.removed += remove_orphans(storage, manifest, keep_s)
        return done


def _list_large(
    day: int, small: dict[Table, list[TableFile]], large: list[TableFile], manifest: Manifest
) -> bool:
    """List the large files of a day, unless another writer has changed the day meanwhile."""
    if any(manifest.small_files(table.name, day) != files for table, files in small.items()):
        manifest.drop(large)
        return False
    manifest.drop(manifest.large.get(day, []))
    manifest.large[day] = sorted(large)
    return True


def _is_worth_it(files: Sequence[TableFile]) -> bool:
    return len(files) > 1 and sum(file.bytes for file in files) < SMALL_BYTES * len(files)


def _write_large(
    spark: "SparkSession", lake: str, table: Table, files: Sequence[TableFile], file_bytes: int
) -> list[TableFile]:
    """Write the rows of one day into new files. Raises DamagedError if a row is missing."""
    from pyspark.errors import PythonException

    packed = pack(files, file_bytes)

    def run(batches: Batches) -> Batches:
        storage = storage_of(lake)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                day = packed[number][0].day
                name = f"compacted/{table.name}/{day_text(day)}-{uuid4().hex}.parquet"
                writer = FileWriter(storage, table, name, partitioned=False)
                for small in packed[number]:
                    for rows in read_file(storage, small, table):
                        writer.add(rows)
                yield written([writer.close("", day)])

    try:
        made = spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(run, WRITTEN_DDL).collect()
    except PythonException as error:
        damage = damage_in_task(error)
        if damage is None:
            raise
        raise damage from error
    large = [TableFile(*row) for row in made]
    found, expected = sum(file.rows for file in large), sum(file.rows for file in files)
    if found != expected:
        raise DamagedError(
            f"{lake}: {found} rows in {table.name}: expected the {expected} of the small files"
        )
    return large
