# SPDX-License-Identifier: Apache-2.0
"""Signals for Spark: which ones a lake has, and the messages of a topic with a column for each signal.

Tasks read the files through pyarrow. The messages are a data source of Spark, not a `mapInArrow`: Spark hands it the
filters of a query, so a query that names a date and a gateway reads only their files.
"""

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from ustreamer_pipeline.lake.snapshot import Snapshot, TableFile, snapshot_at
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import TASK_BYTES, Batches, date_of, pack, read_file, signals_of
from ustreamer_pipeline.schemas import SAMPLED
from ustreamer_pipeline.signal_counts import COUNTS, SignalCount, sum_counts
from ustreamer_pipeline.wide_signals import NUMBERS, WideColumn, WideMessages, wide_names

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_COMPARED: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    datasource.EqualTo: operator.eq,
    datasource.EqualNullSafe: operator.eq,
    datasource.GreaterThan: operator.gt,
    datasource.GreaterThanOrEqual: operator.ge,
    datasource.LessThan: operator.lt,
    datasource.LessThanOrEqual: operator.le,
    datasource.In: lambda value, values: value in values,
}


def find_signals(spark: "SparkSession", snapshot: Snapshot) -> list[SignalCount]:
    """The signals of a lake, each with its values in some of the files."""
    packed = pack(_files(snapshot), TASK_BYTES)
    lake = snapshot.lake

    def find(batches: Batches) -> Batches:
        import pyarrow as pa

        storage = storage_of(lake)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                found = sum_counts(
                    each for file in packed[number] for each in signals_of(storage, file, SAMPLED)
                )
                yield pa.RecordBatch.from_pylist([each._asdict() for each in found], schema=COUNTS)

    tasks = spark.range(0, len(packed), 1, max(len(packed), 1))
    ddl = ", ".join(f"{field.name} {'bigint' if field.type == 'int64' else 'string'}" for field in COUNTS)
    return sum_counts(SignalCount(*row) for row in tasks.mapInArrow(find, ddl).collect())


def _files(snapshot: Snapshot) -> list[TableFile]:
    return [*snapshot.large_of(SAMPLED.name), *snapshot.small_of(SAMPLED.name)]


def messages(
    spark: "SparkSession", snapshot: Snapshot, topic: str, columns: Sequence[WideColumn]
) -> "DataFrame":
    """The messages of a topic, with the columns of `wide_names`. Sets the filter pushdown of the session."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    spark.dataSource.register(WideSignals)
    return (
        spark.read.format(WideSignals.name())
        .option("lake", snapshot.lake)
        .option("version", str(snapshot.number))
        .option("topic", topic)
        .option("columns", json.dumps(columns))
        .load()
    )


class WideSignals(DataSource):
    """Messages of one topic. Options: see `messages`; `columns` is a list of WideColumn as JSON."""

    @classmethod
    def name(cls) -> str:
        return "ustreamer_signals"

    @property
    def _columns(self) -> list[WideColumn]:
        return [WideColumn(*each) for each in json.loads(self.options["columns"])]

    def schema(self) -> str:
        types = [
            *("string", "date"),
            *("bigint" for _ in NUMBERS),
            *(column.value.removeprefix("value_") for column in self._columns),
        ]
        return ", ".join(
            f"{name} {kind}" for name, kind in zip(wide_names(self._columns), types, strict=True)
        )

    def reader(self, schema: object) -> DataSourceReader:
        snapshot = snapshot_at(self.options["lake"], int(self.options["version"]))
        return _WideReader(snapshot, self.options["topic"], self._columns)


class _WideReader(DataSourceReader):
    def __init__(self, snapshot: Snapshot, topic: str, columns: Sequence[WideColumn]) -> None:
        self._lake, self._topic, self._columns = snapshot.lake, topic, columns
        self._files = _files(snapshot)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # its name in pyspark
        """Leave out files by date and gateway. Spark applies all filters to the rows as well."""
        self._files = [file for file in self._files if all(_may_match(each, file) for each in filters)]
        return filters

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(files) for files in pack(self._files, TASK_BYTES) or [[]]]

    def read(self, partition: InputPartition) -> Iterator["pa.RecordBatch"]:
        storage = storage_of(self._lake)
        for file in partition.value:
            rows = WideMessages(self._topic, self._columns, file)
            yield from rows.of(read_file(storage, file, SAMPLED, rows.reads, rows.encoded))


def _may_match(condition: Filter, file: TableFile) -> bool:
    """Whether the file may have rows that match; a file without a gateway has rows of several."""
    compare = _COMPARED.get(type(condition))
    known: dict[Any, object] = {("date",): date_of(file.day)}
    if file.gateway:
        known["gateway",] = file.gateway
    attribute, value = getattr(condition, "attribute", None), getattr(condition, "value", None)
    return compare is None or attribute not in known or compare(known[attribute], value)
