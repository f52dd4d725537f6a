# SPDX-License-Identifier: Apache-2.0
"""Compaction: rewrites the small files of a finished date, one per gateway, into a few large files.

A table has one file per gateway and day, so that a day can be rebuilt alone and replayed in order. Opening a file
costs Spark 5 ms. Queries on the whole fleet therefore read the large files (`schemas.Table.read_table`).
The small files stay: a replay reads them, and a late recording replaces them. The date then counts as not compacted
until the next run.

Nothing is shuffled or sorted: a task reads its small files in sequence and writes one large file.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote
from uuid import uuid4

from ustreamer_pipeline import compacted
from ustreamer_pipeline.bronze.manifest import Manifest, lake_lock
from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.ingest.ingest import compressed
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import DELIVERIES, WIDE, Table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

FILE_BYTES: Final = 512 << 20
"""Size of a large file: opening it costs nothing relative to reading it, and a day of a large fleet has a file per
core.
"""
SMALL_BYTES: Final = 64 << 20
"""A date with files of this average size is not compacted."""
BATCH_ROWS: Final = 100_000

Progress = Callable[[str], AbstractContextManager[None]]


class SmallFile(NamedTuple):
    """A file of one gateway and date."""

    gateway: str
    path: str
    bytes: int


@dataclass
class Compacted:
    """Result of one run: dates written, their files before and after, their rows, and removed folders of earlier runs."""

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
    keep_s: float = compacted.KEEP_S,
) -> Compacted:
    """Compact every date up to `until` that has small files and is not compacted; by default all but the last date.

    Raises UnavailableError during an ingest or another compaction, DamagedError for an unreadable file.
    """
    with lake_lock(lake):
        done = Compacted()
        dates = compacted.load(lake)
        # What an ingest has begun to make and not finished is not whole.
        pending = {day_text(day) for _, day in Manifest.load(lake).pending}
        every = _dates(lake)
        last = until or (every[-2] if len(every) > 1 else "")
        for date in [each for each in every if each <= last and each not in dates and each not in pending]:
            small = {table: _small_files(lake, table, date) for table in (DELIVERIES, WIDE)}
            if not _is_worth_it(small[DELIVERIES]):
                continue
            with progress(f"compacting {date}"):
                dates[date] = {
                    table.name: _write_large(spark, lake, table, date, files, file_bytes, done)
                    for table, files in small.items()
                }
            compacted.save(lake, dates)
            done.dates += 1
        done.removed = compacted.clean(lake, keep_s)
        return done


def _dates(lake: str) -> list[str]:
    folders = Path(DELIVERIES.path(lake)).glob("date=*")
    return sorted(folder.name.removeprefix("date=") for folder in folders)


def _small_files(lake: str, table: Table, date: str) -> list[SmallFile]:
    """Sorted by gateway."""
    folder = Path(table.path(lake)) / f"date={date}"
    return sorted(
        SmallFile(unquote(path.parent.name.removeprefix("gateway=")), str(path), path.stat().st_size)
        for path in folder.glob("gateway=*/[!._]*.parquet")
    )


def _is_worth_it(files: Sequence[SmallFile]) -> bool:
    return len(files) > 1 and sum(file.bytes for file in files) < SMALL_BYTES * len(files)


def _pack_files(files: Sequence[SmallFile], file_bytes: int) -> list[list[SmallFile]]:
    packed: list[list[SmallFile]] = []
    room = 0
    for file in files:
        if not packed or room < file.bytes:
            packed.append([])
            room = file_bytes
        packed[-1].append(file)
        room -= file.bytes
    return packed


def _write_large(
    spark: "SparkSession",
    lake: str,
    table: Table,
    date: str,
    files: Sequence[SmallFile],
    file_bytes: int,
    done: Compacted,
) -> str:
    """Write the large files of a date into a new, unlisted folder and return it. Raises DamagedError if a row is
    missing.
    """
    folder = f"{compacted.FOLDER}/{table.name}/{date}-{uuid4().hex[:12]}"
    expected = sum(_rows_of(file.path) for file in files)
    packed = _pack_files(files, file_bytes)
    rows = spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(
        _read_task(packed, table, date), table.ddl
    )
    compressed(rows.write, table).parquet(f"{str(lake).rstrip('/')}/{folder}")
    large = list((Path(lake) / folder).glob("[!._]*.parquet"))
    found = sum(map(_rows_of, large))
    if found != expected:
        raise DamagedError(f"{lake}/{folder}: {found} rows: expected the {expected} of the small files")
    done.small += len(files)
    done.large += len(large)
    if table is DELIVERIES:
        done.rows += found
    return folder


def _rows_of(path: str | Path) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return int(pq.read_metadata(path).num_rows)
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(f"{path}: {error}") from error


def _read_task(packed: list[list[SmallFile]], table: Table, date: str) -> Any:
    """The function of a `mapInArrow` over numbers of packs."""

    def run(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for small in packed[number]:
                    yield from read_small(small, table, date)

    return run


def read_small(small: SmallFile, table: Table, date: str) -> "Iterator[pa.RecordBatch]":
    """The rows of a small file as the table has them: with its partition, and null where it is older than a column.

    Raises DamagedError that names the file.
    """
    import datetime as dt

    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([field.with_nullable(True) for field in table.arrow_schema()])
    constant = {"date": dt.date.fromisoformat(date), "gateway": small.gateway}
    try:
        with pq.ParquetFile(small.path) as file:
            names = [name for name in schema.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                columns = [
                    batch.column(field.name).cast(field.type)
                    if field.name in names
                    else pa.repeat(pa.scalar(constant.get(field.name), field.type), batch.num_rows)
                    for field in schema
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(f"{small.path}: {error}") from error
