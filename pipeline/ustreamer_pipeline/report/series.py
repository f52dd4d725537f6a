# SPDX-License-Identifier: Apache-2.0
"""Signals over time: one pass over the files of signals.

Tasks read the files through pyarrow, which keeps texts encoded, and yield sums for each batch, so no value is shuffled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.columns import Dictionary, int_column
from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.groups import Groups, Ints, stable_order, starts_of_equal
from ustreamer_pipeline.lake.snapshot import Snapshot, TableFile
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import TASK_BYTES, Batches, pack, read_file
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.schemas import SAMPLED, SIGNALS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TEXTS: Final = ("table", "topic", "signal", "unit", "gateway")
_KEY: Final = ("topic", "signal", "unit", "gateway")
_PARTIAL: Final = pa.schema(
    [
        *((name, pa.string()) for name in _KEY),
        *(("time_s", pa.int64()), ("values", pa.int64())),
        *((name, pa.float64()) for name in ("total", "lowest", "highest")),
    ]
)
_DDL: Final = (
    "topic string, signal string, unit string, gateway string, time_s bigint, `values` bigint, "
    "total double, lowest double, highest double"
)


def signals(
    spark: "SparkSession",
    snapshot: Snapshot,
    chosen: Sequence[tuple[str, str]],
    width_s: int,
    since: str = "",
    until: str = LAST_DATE,
) -> "DataFrame":
    """Chosen signals, as (topic, signal), by time step: average, extremes, values and gateways. Empty topic: any.

    `since` and `until` are dates, both inclusive.
    """
    from pyspark.sql import functions as f

    return (
        partials(spark, snapshot, chosen, width_s, since, until)
        .groupBy("topic", "signal", "time_s")
        .agg(
            f.max("unit").alias("unit"),
            (f.sum("total") / f.sum("values")).alias("average"),
            f.min("lowest").alias("lowest"),
            f.max("highest").alias("highest"),
            f.sum("values").alias("values"),
            f.countDistinct("gateway").alias("gateways"),
        )
    )


def partials(
    spark: "SparkSession",
    snapshot: Snapshot,
    chosen: Sequence[tuple[str, str]],
    width_s: int,
    since: str = "",
    until: str = "9999",
) -> "DataFrame":
    files = [*snapshot.large_of(SAMPLED.name), *snapshot.small_of(SAMPLED.name)]
    packed = pack([file for file in files if since <= day_text(file.day) <= until], TASK_BYTES)
    lake, wanted = snapshot.lake, frozenset(chosen)

    def work(batches: Batches) -> Batches:
        storage = storage_of(lake)
        sums = _Sums(wanted, width_s)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            for file in packed[number]:
                columns = [
                    *(name for name in _TEXTS if not _is_constant(file, name)),
                    "time_us",
                    "value_double",
                ]
                for rows in read_file(storage, file, SAMPLED, columns=columns, encoded=_TEXTS):
                    yield sums.of(rows, file)

    return spark.range(0, len(packed), 1, max(len(packed), 1)).mapInArrow(work, _DDL)


def _is_constant(file: TableFile, name: str) -> bool:
    """Whether the folder of a file names the value of this column: not for files of many gateways."""
    return name == "gateway" and bool(file.gateway)


class _Sums:
    """Sums of the wanted values of batches, by topic, signal, unit, gateway and time step."""

    def __init__(self, wanted: frozenset[tuple[str, str]], width_s: int) -> None:
        self._wanted, self._width_s = wanted, width_s
        self._dictionary = Dictionary()
        self._series = Groups()
        self._names: list[tuple[str | None, ...]] = []
        self._is_wanted = np.zeros(0, dtype=np.bool_)

    def of(self, rows: pa.RecordBatch, file: TableFile) -> pa.RecordBatch:
        series = self._series_of(rows, file)
        column = rows.column("value_double")
        is_wanted = self._is_wanted[series]
        if column.null_count:
            is_wanted &= column.is_valid().to_numpy(zero_copy_only=False)
        step = int_column(rows, "time_us") // (self._width_s * 1_000_000)
        values = column.to_numpy(zero_copy_only=False)
        if not is_wanted.all():
            at = np.flatnonzero(is_wanted)
            series, step, values = series[at], step[at], values[at]
        if not len(values):
            return pa.RecordBatch.from_pylist([], schema=_PARTIAL)
        first = int(step.min())
        groups = Groups()
        number = groups.numbers([series, step - first])
        order = stable_order(number)
        starts = starts_of_equal(number[order])
        values = values[order]
        numbers, steps = zip(*groups.combinations, strict=True)
        columns = [
            *zip(*(self._names[each][1:] for each in numbers), strict=True),
            [(first + each) * self._width_s for each in steps],
            np.diff(starts, append=len(order)),
            np.add.reduceat(values, starts),
            np.fmin.reduceat(values, starts),  # as in Spark, NaN is the greatest number
            np.maximum.reduceat(values, starts),
        ]
        arrays = [pa.array(each, field.type) for each, field in zip(columns, _PARTIAL, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=_PARTIAL)

    def _series_of(self, rows: pa.RecordBatch, file: TableFile) -> Ints:
        """The number of each row's series: of its texts."""
        dictionary = self._dictionary
        codes = [
            np.full(rows.num_rows, dictionary.number(file.gateway))
            if _is_constant(file, name)
            else dictionary.codes(rows.column(name))
            for name in _TEXTS
        ]
        series = self._series.numbers(codes)
        if len(self._names) < len(self._series):
            self._names = [tuple(map(dictionary.text, each)) for each in self._series.combinations]
            self._is_wanted = np.array([self._wants(*names[:3]) for names in self._names])
        return series

    def _wants(self, table: str | None, topic: str | None, name: str | None) -> bool:
        return table == SIGNALS.name and any(
            wanted == name and each in ("", topic) for each, wanted in self._wanted
        )
