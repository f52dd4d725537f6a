# SPDX-License-Identifier: Apache-2.0
"""Files of silver, gateway by gateway and in order, read by the task that replays them.

The scan of Spark packs files into tasks by size. It would split the rows of a gateway and mix their order; the sort
that restores the order is most of the time of such a replay. Therefore Spark distributes file names, and each task
reads the files of its gateways in sequence, with one batch in memory.
"""

import heapq
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.errors import DamagedError, UnavailableError
from ustreamer_pipeline.lake.snapshot import Snapshot, snapshot_of
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.replay.order import KEY, Span, group_in_order, merge_files, span_of
from ustreamer_pipeline.replay.rows import TEXTS
from ustreamer_pipeline.schemas import DELIVERIES, WIDE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS: Final = 1 << 18
_ENCODED: Final = frozenset((*TEXTS, "sink", "topic"))


def read_gateway(
    uris: Sequence[str], columns: Sequence[str], batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Rows of one gateway in order, with dictionary-encoded texts. Raises DamagedError with the file name."""
    for files in group_in_order([(uri, file_span(uri)) for uri in uris]) if len(uris) > 1 else [list(uris)]:
        if len(files) == 1:
            yield from _read_file(files[0], columns, batch_rows)
            continue
        keyed = list(dict.fromkeys((*columns, *KEY)))
        for batch in merge_files([partial(_read_file, uri, keyed, batch_rows) for uri in files]):
            yield batch.select(list(columns))


def read_small_tables(
    uris: Sequence[str], columns: Sequence[str], tables: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """Rows of these small tables (all) of one gateway. Raises DamagedError with the file name."""
    for uri in uris:
        with _open_parquet(uri, ()) as file:
            _check(uri, file, columns)
            rows = file.read(columns=list(columns), use_threads=False)
            yield from (rows.filter(pc.field("table").isin(tables)) if tables else rows).to_pylist()


def file_span(uri: str) -> Span | None:
    """Span of the rows of a file; None without rows. Raises DamagedError with the file name."""
    with _open_parquet(uri, ()) as file:
        _check(uri, file, KEY)
        return span_of(file.metadata)


def _read_file(uri: str, columns: Sequence[str], batch_rows: int) -> Iterator[pa.RecordBatch]:
    with _open_parquet(uri, columns) as file:
        _check(uri, file, columns)
        # One thread: Spark already has one task per core.
        yield from file.iter_batches(batch_rows, columns=list(columns), use_threads=False)


def _check(uri: str, file: pq.ParquetFile, columns: Sequence[str]) -> None:
    missing = set(columns) - set(file.schema_arrow.names)
    if missing:
        raise DamagedError(f"{uri}: no column {', '.join(sorted(missing))}: ingest again")


@contextmanager
def _open_parquet(uri: str, columns: Sequence[str]) -> Iterator[pq.ParquetFile]:
    system, path = filesystem_of(uri)
    try:
        with system.open_input_file(path) as source:
            yield pq.ParquetFile(source, read_dictionary=[name for name in columns if name in _ENCODED])
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(f"{uri}: {error}") from error


def filesystem_of(uri: str) -> tuple[fs.FileSystem, str]:
    """File system and path of a file, from its name in Spark."""
    if "://" not in uri and not uri.startswith("file:"):
        return fs.LocalFileSystem(), uri
    parts = urlsplit(uri)
    if parts.scheme == "file":
        return fs.LocalFileSystem(), unquote(parts.path)
    system, path = fs.FileSystem.from_uri(re.sub(r"^s3[an]:", "s3:", uri))
    return system, path


def cores_of(spark: "SparkSession") -> int:
    """Number of tasks that run at once; 16 where the session cannot tell."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001  # Spark Connect has no SparkContext, and says so in a type of its own
        return 16


def spread(
    spark: "SparkSession", rows: Sequence[tuple[Any, ...]], schema: str, weights: Sequence[int]
) -> "DataFrame":
    """The rows as a frame, a few tasks per core. Their weights are spread evenly, and the largest are the first.

    So no task with a large gateway runs alone at the end.
    """
    count = max(1, min(len(rows), 4 * cores_of(spark)))
    tasks = [(0, task) for task in range(count)]
    placed = []
    for at in sorted(range(len(rows)), key=lambda at: -weights[at]):
        weight, task = heapq.heappop(tasks)
        heapq.heappush(tasks, (weight + max(weights[at], 1), task))
        placed.append((task, *rows[at]))
    table = spark.createDataFrame(placed, f"task int, {schema}")
    return table.repartitionById(count, "task").drop("task")


def event_files_of(lake: "str | Snapshot", since: str = "", until: str = LAST_DATE) -> dict[str, list[str]]:
    """Files of the small tables of a lake, by gateway; none if there are none."""
    return _by_gateway(snapshot_of(lake), WIDE.name, since, until)


def files_of(lake: "str | Snapshot", since: str = "", until: str = LAST_DATE) -> dict[str, list[str]]:
    """Files of the deliveries of a lake, by gateway and in order of days, which need not be the order of rows
    (`read_gateway`). `since` and `until` are inclusive. Raises UnavailableError if there are none.
    """
    snapshot = snapshot_of(lake)
    files = _by_gateway(snapshot, DELIVERIES.name, since, until)
    if not files:
        found = (
            f" between {since or 'the first day'} and {until}" if snapshot.files else " there: ingest first"
        )
        raise UnavailableError(f"{snapshot.lake}: no deliveries{found}")
    return files


def rows_of(snapshot: Snapshot, since: str = "", until: str = "9999") -> dict[str, int]:
    """Number of deliveries of each gateway between these dates, inclusive."""
    found: dict[str, int] = {}
    for file in snapshot.files_of(DELIVERIES.name):
        if since <= day_text(file.day) <= until:
            found[file.gateway] = found.get(file.gateway, 0) + file.rows
    return found


def _by_gateway(snapshot: Snapshot, table: str, since: str, until: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in snapshot.files_of(table):
        if since <= day_text(file.day) <= until:
            found.setdefault(file.gateway, []).append(snapshot.uri(file))
    return found
