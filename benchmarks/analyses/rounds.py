# SPDX-License-Identifier: Apache-2.0
"""Rounds of all engines in alternation: an answer and its cost each."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from benchmarks.analyses import by_spark
from benchmarks.analyses.answers import SCENARIOS, Answer, difference, links_of
from benchmarks.analyses.ingest import other_answers
from benchmarks.harness import process_tree
from benchmarks.whatif import with_other

OTHERS: Final = ("duckdb", "polars")


@dataclass(frozen=True)
class EngineRound:
    """An answer and its cost. `peak_mb` is that of all processes of the engine."""

    answer: Answer
    seconds: float
    cpu_s: float
    peak_mb: float
    shuffled_mb: float = 0.0


def spark_round(spark: SparkSession, task: str, lake: Path) -> EngineRound:
    process_tree.reset_peaks()
    before, shuffled = process_tree.cpu_s(), by_spark.shuffled_bytes(spark)
    began = time.monotonic()
    answer = by_spark.answers(spark, task, lake)
    seconds = time.monotonic() - began
    return EngineRound(
        answer,
        seconds,
        process_tree.cpu_s() - before,
        process_tree.peak_mb() - process_tree.own_peak_mb(),
        (by_spark.shuffled_bytes(spark) - shuffled) / 1e6,
    )


def other_round(name: str, task: str, lake: Path, cores: int) -> EngineRound:
    """DuckDB or Polars in a new process, without its start: no engine keeps memory of another one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured_here, name, task, lake, cores).result()


def _measured_here(name: str, task: str, lake: Path, cores: int) -> EngineRound:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    work = _work(name, task, lake, cores)
    process_tree.reset_peaks()
    began, before = time.monotonic(), process_tree.cpu_s()
    answer = work()
    seconds, cpu_s = time.monotonic() - began, process_tree.cpu_s() - before
    # An ingest has a process for each core.
    peak_mb = process_tree.own_peak_mb() + cores * process_tree.exited_peak_mb()
    return EngineRound(answer, seconds, cpu_s, peak_mb)


def _work(name: str, task: str, lake: Path, cores: int) -> Callable[[], Answer]:
    if task == "ingest":
        return partial(other_answers, name, lake, cores)
    if task == "whatif":
        import_module(name)
        return lambda: links_of(with_other(name, lake, SCENARIOS, cores))
    module = import_module(f"benchmarks.analyses.by_{name}")
    return partial(module.answers, task, lake, *((cores,) if name == "duckdb" else ()))


def compared(
    spark: SparkSession,
    task: str,
    lake: Path,
    cores: int,
    repeats: int,
    others: Sequence[str] = OTHERS,
) -> dict[str, list[EngineRound]]:
    """The rounds of each engine, in alternation. Raises SystemExit if answers differ."""
    engines: dict[str, Callable[[], EngineRound]] = {"spark": partial(spark_round, spark, task, lake)}
    engines |= {name: partial(other_round, name, task, lake, cores) for name in others if find_spec(name)}
    by_spark.answers(spark, task, lake)  # a warm-up: compilation and class loading of Spark are not measured
    rounds: dict[str, list[EngineRound]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            rounds[name].append(engine())
    for name, mine in rounds.items():
        for each in mine:
            if (differs := difference(rounds["spark"][0].answer, each.answer)) is not None:
                raise SystemExit(f"{task}: spark and {name} differ in {differs}")
    return rounds
