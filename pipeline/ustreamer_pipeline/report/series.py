# SPDX-License-Identifier: Apache-2.0
"""Signals over time: one pass over the files of signals.

Tasks read the files through pyarrow, which keeps texts encoded, and yield sums for each batch, so no value is shuffled.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from ustreamer_pipeline.days import LAST_DATE
from ustreamer_pipeline.groups import Groups, stable_order, starts_of_equal
from ustreamer_pipeline.lake.snapshot import Snapshot, TableFile
from ustreamer_pipeline.lake.storage import storage_of
from ustreamer_pipeline.lake.tables import TASK_BYTES, Batches, pack, read_file
from ustreamer_pipeline.recording.rows import day_text
from ustreamer_pipeline.replay.rows import Dictionary, int_column
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

    files = [*snapshot.large_of(SAMPLED.name), *snapshot.small_of(SAMPLED.name)]
    packed = pack([file for file in files if since <= day_text(file.day) <= until], TASK_BYTES)
    lake, wanted = snapshot.lake, frozenset(chosen)

    def work(batches: Batches) -> Batches:
        storage = storage_of(lake)
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            for file in packed[number]:
                columns = [
                    *(name for name in _TEXTS if not _is_constant(file, name)),
                    "time_us",
                    "value_double",
                ]
                for rows in read_file(storage, file, SAMPLED, columns=columns, encoded=_TEXTS):
                    yield _sums(rows, file, wanted, width_s)

    return (
        spark.range(0, len(packed), 1, max(len(packed), 1))
        .mapInArrow(work, _DDL)
        .groupBy("topic", "signal", "time_s")
        .agg(
            f.max("unit").alias("unit"),
            (f.sum("total") / f.sum("values")).alias("average"),
            f.min("lowest").alias("lowest"),
            f.max("highest").alias("highest"),
            f.sum("values").alias("values"),
            f.countDistinct("gateway").alias("gateways"),
        )
        .orderBy("topic", "signal", "time_s")
    )


def _is_constant(file: TableFile, name: str) -> bool:
    """Whether the folder of a file names the value of this column: not for files of many gateways."""
    return name == "gateway" and bool(file.gateway)


def _sums(
    rows: pa.RecordBatch, file: TableFile, wanted: frozenset[tuple[str, str]], width_s: int
) -> pa.RecordBatch:
    """Sums of the wanted values of a batch, by topic, signal, unit, gateway and time step."""
    dictionary = Dictionary()
    codes = {
        name: np.full(rows.num_rows, dictionary.number(file.gateway))
        if _is_constant(file, name)
        else dictionary.codes(rows.column(name))
        for name in _TEXTS
    }
    is_wanted = np.zeros(rows.num_rows, dtype=np.bool_)
    for topic, name in wanted:
        is_signal = codes["signal"] == dictionary.number(name)
        is_wanted |= is_signal & (codes["topic"] == dictionary.number(topic)) if topic else is_signal
    is_wanted &= codes["table"] == dictionary.number(SIGNALS.name)
    column = rows.column("value_double")
    at = np.flatnonzero(is_wanted & column.is_valid().to_numpy(zero_copy_only=False))
    if not len(at):
        return pa.RecordBatch.from_pylist([], schema=_PARTIAL)
    step = int_column(rows, "time_us")[at] // (width_s * 1_000_000)
    first = int(step.min())
    groups = Groups()
    number = groups.numbers([*(codes[name][at] for name in _KEY), step - first])
    order = stable_order(number)
    starts = starts_of_equal(number[order])
    values = column.to_numpy(zero_copy_only=False)[at][order]
    *texts, steps = zip(*groups.combinations, strict=True)
    columns = [
        *([dictionary.text(code) for code in text] for text in texts),
        [(first + each) * width_s for each in steps],
        np.diff(starts, append=len(at)),
        np.add.reduceat(values, starts),
        np.fmin.reduceat(values, starts),  # as in Spark, NaN is the greatest number
        np.maximum.reduceat(values, starts),
    ]
    arrays = [pa.array(each, field.type) for each, field in zip(columns, _PARTIAL, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_PARTIAL)
