# SPDX-License-Identifier: Apache-2.0
"""The answers of the pipeline itself."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from ustreamer_pipeline.gold.audit import findings, load
from ustreamer_pipeline.lake.snapshot import snapshot_of
from ustreamer_pipeline.replay.files import files_of, rows_of
from ustreamer_pipeline.report import series, tables
from ustreamer_pipeline.report.gateway_pass import partial_tables
from ustreamer_pipeline.views import register_signal_views, signal_view

from benchmarks.analyses.answers import (
    COLUMNS,
    RULES,
    SCENARIOS,
    SIGNALS,
    STEP_S,
    Answer,
    Row,
    answer_of,
    links_of,
)
from benchmarks.analyses.ingest import spark_answers
from benchmarks.analyses.lakes import TOPIC
from benchmarks.whatif import with_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def answers(spark: SparkSession, task: str, lake: Path) -> Answer:
    """The tables of a task. They are collected as rows, as the pipeline itself does."""
    if task == "ingest":
        return spark_answers(spark, lake)
    if task == "whatif":
        return links_of(with_spark(spark, lake, SCENARIOS, as_recorded=False))
    frames = {"audit": _audit, "report": _report, "signals": _signals}[task](spark, lake)
    try:
        return answer_of({name: _rows(frame, COLUMNS[task][name]) for name, frame in frames.items()})
    finally:
        spark.catalog.clearCache()


def _rows(frame: "DataFrame", columns: Sequence[str]) -> list[Row]:
    return [tuple(row) for row in frame.select(*columns).collect()]


def _audit(spark: SparkSession, lake: Path) -> "dict[str, DataFrame]":
    return {"findings": findings(load(spark, str(lake)), RULES)}


def _report(spark: SparkSession, lake: Path) -> "dict[str, DataFrame]":
    """One pass over the files, as for the page; it makes the latencies too."""
    partials = partial_tables(spark, files_of(str(lake)), {}, counts=rows_of(snapshot_of(lake))).persist()
    return {
        "gateways": tables.gateways(partials),
        "over_time": tables.over_time(partials, STEP_S),
        "losses": tables.losses(partials),
        "throttle": tables.throttle(partials),
        "queues": tables.queues(partials),
        "talkers": tables.talkers(partials),
    }


def _signals(spark: SparkSession, lake: Path) -> "dict[str, DataFrame]":
    """The series of a report, and the view with a column for each signal, by gateway."""
    by_time = series.signals(spark, snapshot_of(lake), [(TOPIC, name) for name in SIGNALS], STEP_S)
    register_signal_views(spark, lake)
    wide = spark.table(signal_view(TOPIC)).groupBy("gateway")
    messages = wide.agg(f.count("*").alias("messages"), *(f.max(name).alias(name) for name in SIGNALS))
    return {"series": by_time, "messages": messages}


def shuffled_bytes(spark: SparkSession) -> int:
    """Bytes that the tasks of this session have written for shuffles so far."""
    # No public call of pyspark has it where the web page of Spark is off.
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)  # noqa: SLF001
    return sum(int(executors.apply(at).totalShuffleWrite()) for at in range(executors.size()))
