# SPDX-License-Identifier: Apache-2.0
"""The files of the tables: written by tasks, one file per unit; read by Spark, or by tasks where Spark has no access.

Spark writes no file itself. A task of Python gets the rows of whole units, one unit after the other, and writes each
unit through pyarrow under a new name. A commit then lists these names in the manifest. So a task that runs twice, or a
run that is ended, leaves files that no version lists.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote
from uuid import uuid4

import numpy as np

from ustreamer_pipeline.errors import DamagedError
from ustreamer_pipeline.lake.snapshot import Snapshot, TableFile
from ustreamer_pipeline.lake.storage import Storage, storage_of
from ustreamer_pipeline.signal_counts import READS as SIGNAL_COLUMNS
from ustreamer_pipeline.signal_counts import TEXTS as SIGNAL_TEXTS
from ustreamer_pipeline.signal_counts import SignalCount, SignalCounts, from_metadata, to_metadata

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from ustreamer_pipeline.schemas import Table

SPREAD: Final = (
    *("seq", "id_msb", "id_lsb", "received_us", "received_ns", "arrived_ns", "settled_ns"),
    *("queue_wait_us", "latency_us", "request_msb", "request_lsb"),
)
"""Columns with nearly unique values: a dictionary makes files one fifth larger and costs time."""
GROUP_ROWS: Final = 1 << 18
BATCH_ROWS: Final = 100_000
TASK_BYTES: Final = 64 << 20
_EPOCH: Final = dt.date(1970, 1, 1)
WRITTEN_DDL: Final = "table string, gateway string, day int, name string, rows bigint, bytes bigint"

Batches = Iterator["pa.RecordBatch"]
Task = Callable[[Batches], Batches]


# ------------------------------------------------------------------------------------------------------------- write


class FileWriter:
    """One new file of a table, while its rows come. `partitioned`: without the columns that the folder names."""

    def __init__(self, storage: Storage, table: "Table", name: str, *, partitioned: bool = True) -> None:
        import pyarrow.parquet as pq

        self._schema = file_schema(table, partitioned=partitioned)
        self._sink = storage.system.open_output_stream(storage.prepare(name), compression=None)
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[each for each in self._schema.names if each not in SPREAD],
        )
        self._waiting: list[pa.RecordBatch] = []
        self._signals = SignalCounts() if set(SIGNAL_COLUMNS) <= set(self._schema.names) else None
        self._table, self._name = table, name
        self.rows = 0

    def add(self, batch: "pa.RecordBatch") -> None:
        import pyarrow as pa

        columns = [batch.column(name) for name in self._schema.names]
        self._waiting.append(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self.rows += batch.num_rows
        if self._signals is not None:
            self._signals.add(batch)
        if sum(each.num_rows for each in self._waiting) >= GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting), row_group_size=2 * GROUP_ROWS)
            self._waiting.clear()

    def close(self, gateway: str, day: int) -> TableFile:
        self._flush()
        if self._signals is not None:
            self._writer.add_key_value_metadata(to_metadata(self._signals))
        self._writer.close()
        size = self._sink.tell()
        self._sink.close()
        return TableFile(self._table.name, gateway, day, self._name, self.rows, size)


def file_schema(table: "Table", *, partitioned: bool = True) -> "pa.Schema":
    import pyarrow as pa

    without = table.partitioned_by if partitioned else ()
    return pa.schema([each.with_nullable(True) for each in table.arrow_schema() if each.name not in without])


def unit_name(table: "Table", gateway: str, day: int) -> str:
    """A new name for the file of a unit."""
    place = f"date={date_of(day)}/gateway={quote(gateway, safe='')}"
    return f"{table.folder}/{place}/{uuid4().hex}.parquet"


def date_of(day: int) -> dt.date:
    """The date of a number of days since 1970."""
    return _EPOCH + dt.timedelta(days=day)


def write_units(frame: "DataFrame", table: "Table", lake: str) -> list[TableFile]:
    """Write the rows of whole units, which are together in a partition of `frame`. Returns the new files."""
    rows = frame.mapInArrow(_write_task(table, lake), WRITTEN_DDL).collect()
    return sorted(TableFile(*row) for row in rows)


def write_rows(
    storage: Storage, table: "Table", gateway: str, day: int, rows: Sequence[dict[str, Any]]
) -> TableFile:
    """Write the file of a unit from a few rows, on the driver."""
    import pyarrow as pa

    writer = FileWriter(storage, table, unit_name(table, gateway, day))
    writer.add(pa.RecordBatch.from_pylist(list(rows), schema=file_schema(table)))
    return writer.close(gateway, day)


def _write_task(table: "Table", lake: str) -> Task:
    def run(batches: Batches) -> Batches:
        storage = storage_of(lake)
        unit: tuple[str, int] | None = None
        writer: FileWriter | None = None
        for batch in batches:
            for gateway, day, rows in _split_units(batch):
                if writer is None or unit != (gateway, day):
                    if writer is not None and unit is not None:
                        yield written([writer.close(*unit)])
                    unit, writer = (gateway, day), FileWriter(storage, table, unit_name(table, gateway, day))
                writer.add(rows)
        if writer is not None and unit is not None:
            yield written([writer.close(*unit)])

    return run


def written(files: Iterable[TableFile]) -> "pa.RecordBatch":
    """The result of a task that wrote files."""
    import pyarrow as pa

    types = (pa.string(), pa.string(), pa.int32(), pa.string(), pa.int64(), pa.int64())
    schema = pa.schema(list(zip(TableFile._fields, types, strict=True)))
    return pa.RecordBatch.from_pylist([file._asdict() for file in files], schema=schema)


def _split_units(batch: "pa.RecordBatch") -> Iterator[tuple[str, int, "pa.RecordBatch"]]:
    if not batch.num_rows:
        return
    import pyarrow as pa

    gateways = batch.column("gateway").dictionary_encode()
    codes, days = gateways.indices.to_numpy(), batch.column("date").cast(pa.int32()).to_numpy()
    cuts = np.flatnonzero((np.diff(codes) != 0) | (np.diff(days) != 0)) + 1
    for start, end in pairwise([0, *cuts.tolist(), batch.num_rows]):
        gateway = gateways.dictionary[int(codes[start])].as_py()
        yield gateway, int(days[start]), batch.slice(start, end - start)


# -------------------------------------------------------------------------------------------------------------- read


def read_snapshot(spark: "SparkSession", snapshot: Snapshot, table: "Table") -> "DataFrame":
    """The rows of a table: compacted days from their large files."""
    small, large = snapshot.small_of(table.name), snapshot.large_of(table.name)
    if not small and not large:
        return spark.createDataFrame([], table.ddl)
    if not snapshot.storage.is_local:
        return scan(spark, snapshot.lake, table, pack([*large, *small], TASK_BYTES))
    frames = []
    for files, partitioned in ((small, True), (large, False)):
        if files:
            reader = spark.read.schema(table.ddl)
            if partitioned:
                reader = reader.option("basePath", snapshot.storage.path(table.folder))
            frames.append(reader.parquet(*(snapshot.storage.path(file.name) for file in files)))
    return frames[0] if len(frames) == 1 else frames[0].unionByName(frames[1])


def scan(
    spark: "SparkSession", lake: str, table: "Table", packed: Sequence[Sequence[TableFile]]
) -> "DataFrame":
    """The rows of files that tasks read through pyarrow, pack by pack and in order."""

    def run(batches: Batches) -> Batches:
        storage = storage_of(lake)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file in packed[number]:
                    yield from read_file(storage, file, table)

    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(run, table.ddl)


def pack(files: Sequence[TableFile], most_bytes: int) -> list[list[TableFile]]:
    """Files in order, packed to about this size."""
    packed: list[list[TableFile]] = []
    room = 0
    for file in files:
        if not packed or room < file.bytes:
            packed.append([])
            room = most_bytes
        packed[-1].append(file)
        room -= file.bytes
    return packed


def signals_of(storage: Storage, file: TableFile, table: "Table") -> list[SignalCount]:
    """The signals of a file, from its metadata, or counted for an older file. Raises DamagedError that names it."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with storage.system.open_input_file(storage.path(file.name)) as source:
            found = from_metadata(pq.read_metadata(source).metadata)
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(f"{storage.path(file.name)}: {error}") from error
    if found is None:
        counts = SignalCounts()
        for rows in read_file(storage, file, table, SIGNAL_COLUMNS, SIGNAL_TEXTS):
            counts.add(rows)
        found = list(counts)
    return found


def read_file(
    storage: Storage,
    file: TableFile,
    table: "Table",
    columns: Collection[str] | None = None,
    encoded: Collection[str] = (),
) -> Batches:
    """The rows of a file as the table has them: with its partition, and null where it is older than a column.

    `columns` are the ones to read (all). `encoded` are texts that stay encoded with a dictionary.
    Raises DamagedError that names the file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        each.with_type(pa.dictionary(pa.int32(), each.type)) if each.name in encoded else each
        for each in file_schema(table, partitioned=False)
        if columns is None or each.name in columns
    )
    constant = {"date": date_of(file.day), "gateway": file.gateway}
    try:
        with storage.system.open_input_file(storage.path(file.name)) as source:
            metadata = pq.read_metadata(source)
            names = [name for name in schema.names if name in metadata.schema.names]
            texts = [name for name in encoded if name in names]
            with pq.ParquetFile(source, metadata=metadata, read_dictionary=texts) as parquet:
                for batch in parquet.iter_batches(BATCH_ROWS, columns=names, use_threads=False):
                    arrays = [
                        batch.column(field.name).cast(field.type)
                        if field.name in names
                        else pa.repeat(pa.scalar(constant.get(field.name), field.type), batch.num_rows)
                        for field in schema
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
    except (OSError, pa.ArrowException) as error:
        raise DamagedError(f"{storage.path(file.name)}: {error}") from error
