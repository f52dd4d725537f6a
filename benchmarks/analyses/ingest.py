# SPDX-License-Identifier: Apache-2.0
"""The task `ingest`: the same recordings to tables by each engine.

All engines read recordings with the Python of the pipeline, which no other engine can read. They differ in what
checks, names and writes the rows: DuckDB and Polars do so in one process per core, each for one gateway day at a time.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark.sql import SparkSession
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.schemas import DELIVERIES, TYPES, VERDICTS
from ustreamer_pipeline.silver.silver import UnitPlan

from benchmarks.analyses.answers import Answer, answer_of
from benchmarks.pipeline import (
    ingest_by_units,
    ingest_with_duckdb,
    recorded_batches,
    small_batches,
    unit_folders,
)


def recordings_of(lake: Path) -> Path:
    """The recordings that this lake was made from."""
    return lake.with_name(lake.name.replace("lake-", "recordings-", 1))


def answers(lake: Path, make: Callable[[Path, Path], object]) -> Answer:
    """Rows by verdict of the lake that `make` creates from recordings, in a folder that is removed."""
    with tempfile.TemporaryDirectory(dir=lake.parent) as place:
        made = Path(place) / "lake"
        make(recordings_of(lake), made)
        table = ds.dataset(made / DELIVERIES.folder, format="parquet").to_table(["verdict"])
        counts = table.group_by("verdict").aggregate([([], "count_all")])
        return answer_of({"verdicts": list(zip(*counts.to_pydict().values(), strict=True))})


def spark_answers(spark: SparkSession, lake: Path) -> Answer:
    return answers(lake, lambda recordings, made: ingest(spark, [str(recordings)], str(made)))


def other_answers(name: str, lake: Path, cores: int) -> Answer:
    make = {"duckdb": ingest_with_duckdb, "polars": ingest_with_polars}[name]
    return answers(lake, lambda recordings, made: make(recordings, made, cores))


# ------------------------------------------------------------------------------------------------------------ Polars


def ingest_with_polars(recordings: Path, lake: Path, processes: int) -> int:
    """As `ingest_with_duckdb`. Returns the number of rows."""
    return ingest_by_units(_polars_unit, recordings, lake, processes)


_WRITTEN: Final[dict[str, Any]] = {"compression": "zstd", "compression_level": 1}


def _polars_unit(lake: str, unit: UnitPlan) -> int:
    """One gateway day: the rules of `silver.with_bad_reason` and `silver.deliveries` in the frames of Polars."""
    import polars as pl

    folders = unit_folders(lake, unit)
    recorded: Any = pl.from_arrow(pa.Table.from_batches(list(recorded_batches(lake, unit))))
    first = pl.col("first_attempt_ns")
    good = recorded.lazy().filter(
        pl.col("fault").is_null()
        & pl.col("verdict").is_between(0, len(VERDICTS) - 1)
        & pl.col("type").is_between(1, len(TYPES))
        & (pl.col("priority") <= 6)
        & ((pl.col("code") <= 16) | (pl.col("code") == 255))
        & (pl.col("received_ns") >= pl.col("arrived_ns"))
        & (pl.col("settled_ns") >= pl.col("received_ns"))
        & pl.col("source").is_not_null()
        & pl.col("ingress").is_not_null()
        & ((first == 0) | first.is_between("received_ns", "settled_ns"))
    )
    began = pl.when(first != 0).then(first).otherwise("settled_ns")
    answers_one = pl.col("request_msb") != 0
    made = {
        "type": pl.col("type").replace_strict(range(1, len(TYPES) + 1), TYPES, return_dtype=pl.String),
        "verdict": pl.col("verdict").replace_strict(range(len(VERDICTS)), VERDICTS, return_dtype=pl.String),
        "ttl_ms": pl.when(pl.col("flags") & 2 != 0).then("ttl_ms"),
        "code": pl.when(pl.col("code") != 255).then("code"),
        "queue_wait_us": (began - pl.col("received_ns")) // 1_000,
        "latency_us": (pl.col("settled_ns") - pl.col("arrived_ns")) // 1_000,
        "held": pl.col("flags") & 1 != 0,
        "request_msb": pl.when(answers_one).then("request_msb"),
        "request_lsb": pl.when(answers_one).then("request_lsb"),
    }
    rows = good.select(made.get(name, pl.col(name)).alias(name) for name in DELIVERIES.names[:-2]).collect()
    rows.write_parquet(folders["deliveries"] / "part.parquet", **_WRITTEN)
    small: Any = pl.from_arrow(pa.Table.from_batches(list(small_batches(lake, unit))))
    small.write_parquet(folders["events"] / "part.parquet", **_WRITTEN)
    return int(rows.height)
