# SPDX-License-Identifier: Apache-2.0
"""`whatif`, DuckDB and Polars on the same files of silver: `python -m benchmarks.whatif [--rows N...] [--scenarios K...]`.

All replay every message with a limit: by the recorded limits, which must reproduce the recorded verdicts, and by K
others. DuckDB and Polars (if installed) sort the rows by target and time, and a compiled loop (numba if installed,
otherwise the kernel of the pipeline) replays them: the fastest exact method found for them. Rounds alternate, medians
are compared, and the results must be equal byte by byte.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from pyspark.sql import SparkSession
from ustreamer_pipeline.fleet.fleet import write_fleet
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.replay.files import files_of, rows_of
from ustreamer_pipeline.replay.gate import LONG_AGO, Limit, decide, retuned
from ustreamer_pipeline.replay.whatif import DEFAULT_TOLERANCE, fleet_links, whatif
from ustreamer_pipeline.replay.whatif_scenarios import period_of, sweep
from ustreamer_pipeline.schemas import DELIVERIES
from ustreamer_pipeline.session import session

from benchmarks.harness import process_tree
from benchmarks.pipeline import fleet_of

ROWS: Final = (1_000_000, 10_000_000)
LIMITS_HZ: Final = (10.0, 1.0, 2.0, 5.0, 20.0, 30.0, 50.0, 75.0)
REPEATS: Final = 3

ScenarioTotals = dict[tuple[int, str], tuple[int, int]]
"""Messages and bytes by scenario and link."""
GateKernel = Callable[[Any, int, Limit], tuple[Any, int]]


def with_spark(
    spark: SparkSession, lake: Path, scenarios: int, *, as_recorded: bool = True
) -> ScenarioTotals:
    """Totals by Spark. `as_recorded`: raises SystemExit if a replayed verdict differs from the recorded one."""
    result = whatif(
        spark, files_of(str(lake)), sweep(LIMITS_HZ[:scenarios]), counts=rows_of(load_snapshot(lake))
    ).persist()
    try:
        different = result.selectExpr("sum(differing) n").collect()[0].n
        if different and as_recorded:
            raise SystemExit(f"{different} verdicts differ from the recorded ones")
        return {(row.number, row.egress): (row.messages, row.bytes) for row in fleet_links(result).collect()}
    finally:
        result.unpersist()


def gate_kernel() -> GateKernel:
    """Decides the messages of one gate; compiled and warmed up if numba is installed."""
    if find_spec("numba") is None:
        return decide
    import numba

    @numba.njit(cache=False)
    def compiled(times, due, period, early, carry, pause):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        passed = np.zeros(len(times), np.bool_)
        fresh = due == LONG_AGO
        for index in range(len(times)):
            late = pause + 1 if fresh else times[index] - due
            if late < -early:
                continue
            passed[index] = True
            fresh = False
            if late <= carry:
                due += period
            elif late <= pause:
                due = times[index]
            else:
                due = times[index] + period
        return passed, due

    def call(times: Any, due: int, limit: Limit) -> tuple[Any, int]:
        passed, after = compiled(times, due, limit.period, limit.early, limit.carry, limit.pause)
        return passed, int(after)

    call(np.zeros(2, dtype=np.int64), LONG_AGO, Limit.for_period(1, DEFAULT_TOLERANCE))
    return call


@dataclass(frozen=True)
class SortedRows:
    """Rows with a target, sorted by gate and time: a column each, and the names of the links by their number."""

    links: list[str]
    columns: dict[str, Any]


def sorted_by_duckdb(lake: Path, cores: int) -> SortedRows:
    """A gate belongs to one gateway, run and delivery, as in Spark."""
    files = f"{lake}/{DELIVERIES.folder}/*/*/*.parquet"
    with duckdb.connect(config={"threads": cores}) as connection:
        table = (
            f"read_parquet('{files}', hive_partitioning = true) WHERE delivery > 0 AND verdict <> 'DENIED'"
        )
        names = connection.execute(f"SELECT DISTINCT egress FROM {table} ORDER BY 1").fetchall()  # noqa: S608
        links = [name for (name,) in names]
        # A link as a number: texts would cost numpy more than DuckDB needs for the rest.
        query = f"""
            SELECT hash(gateway, run, delivery) AS gate, received_ns, period_ns, tuned_ns, size,
                   list_position({links}, egress) - 1 AS egress, verdict <> 'THROTTLED' AS passed, type = 'PUBLISH' AS published
            FROM {table} ORDER BY gate, received_ns"""  # noqa: S608  # names of our own
        return SortedRows(links, connection.execute(query).fetchnumpy())


def sorted_by_polars(lake: Path, _cores: int) -> SortedRows:
    """The same. Polars takes the number of threads from POLARS_MAX_THREADS, at its import."""
    import polars as pl

    files = f"{lake}/{DELIVERIES.folder}/*/*/*.parquet"
    table = pl.scan_parquet(files, hive_partitioning=True).filter(
        (pl.col("delivery") > 0) & (pl.col("verdict") != "DENIED")
    )
    links = table.select(pl.col("egress").unique().sort()).collect()["egress"].to_list()
    rows = table.select(
        pl.struct("gateway", "run", "delivery").hash().alias("gate"),
        *("received_ns", "period_ns", "tuned_ns", "size"),
        pl.col("egress").replace_strict(links, range(len(links)), return_dtype=pl.Int64),
        (pl.col("verdict") != "THROTTLED").alias("passed"),
        (pl.col("type") == "PUBLISH").alias("published"),
    ).sort("gate", "received_ns")
    found = rows.collect(engine="streaming")
    return SortedRows(links, {name: found[name].to_numpy() for name in found.columns})


SORTED_BY: Final = {"duckdb": sorted_by_duckdb, "polars": sorted_by_polars}


def with_sorted(
    rows: SortedRows,
    scenarios: int,
    gate_kernel_call: GateKernel,
) -> ScenarioTotals:
    """The same analysis of rows that another engine has sorted."""
    links, found = rows.links, rows.columns
    egress = np.asarray(found["egress"]).astype(np.int64)
    gates = found["gate"]
    # Another gate, or another limit of the gate.
    starts = np.flatnonzero(
        (np.diff(gates, prepend=gates[0] + np.uint64(1)) != 0) | (np.diff(found["period_ns"], prepend=0) != 0)
    )
    parts = list(zip(starts.tolist(), [*starts[1:].tolist(), len(egress)], strict=True))
    answer: ScenarioTotals = {}
    for number in range(scenarios + 1):
        passed = np.ones(len(egress), dtype=np.bool_)
        gate, due, before = None, LONG_AGO, None
        for start, end in parts:
            if gates[start] != gate:
                gate, due, before = gates[start], LONG_AGO, None
            period = period_of(LIMITS_HZ[number - 1]) if number else int(found["period_ns"][start])
            if not found["published"][start] or not period:
                due, before = LONG_AGO, None
                continue
            limit = Limit.for_period(period, DEFAULT_TOLERANCE)
            if before is not None and due != LONG_AGO:
                due = retuned(due, before, limit, int(found["tuned_ns"][start]))
            passed[start:end], due = gate_kernel_call(found["received_ns"][start:end], due, limit)
            before = limit
        unlimited = ~found["published"]
        passed[unlimited] = found["passed"][unlimited]
        messages = np.bincount(egress, passed, len(links))
        carried = np.bincount(egress, passed * found["size"], len(links))
        for at, name in enumerate(links):
            answer[number, name] = int(messages[at]), int(carried[at])
    return answer


@dataclass(frozen=True)
class EngineRound:
    """An answer and its cost. `peak_mb` is that of all processes of the engine."""

    answer: ScenarioTotals
    seconds: float
    cpu_s: float
    peak_mb: float


def spark_round(spark: SparkSession, lake: Path, scenarios: int) -> EngineRound:
    """Spark is the JVM and its workers; a third of a worker's memory is Python libraries."""
    process_tree.reset_peaks()
    began, before = time.monotonic(), process_tree.cpu_s()
    answer = with_spark(spark, lake, scenarios)
    seconds, cpu_s = time.monotonic() - began, process_tree.cpu_s() - before
    return EngineRound(answer, seconds, cpu_s, process_tree.peak_mb() - process_tree.own_peak_mb())


def sorted_round(name: str, lake: Path, scenarios: int, cores: int) -> EngineRound:
    """DuckDB or Polars in a new process, without its start: no engine keeps memory of another one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_measured_here, name, lake, scenarios, cores).result()


def _measured_here(name: str, lake: Path, scenarios: int, cores: int) -> EngineRound:
    os.environ["POLARS_MAX_THREADS"] = str(cores)
    import_module(name)
    kernel = gate_kernel()
    process_tree.reset_peaks()
    began, before = time.monotonic(), process_tree.cpu_s()
    answer = with_sorted(SORTED_BY[name](lake, cores), scenarios, kernel)
    seconds, cpu_s = time.monotonic() - began, process_tree.cpu_s() - before
    return EngineRound(answer, seconds, cpu_s, process_tree.own_peak_mb())


def with_other(name: str, lake: Path, scenarios: int, cores: int) -> ScenarioTotals:
    """Totals by DuckDB or Polars, in this process."""
    return with_sorted(SORTED_BY[name](lake, cores), scenarios, gate_kernel())


def compared(
    spark: SparkSession, lake: Path, scenarios: int, cores: int, repeats: int
) -> dict[str, float | int]:
    """Run all in alternating rounds; seconds are medians. Raises SystemExit if results differ."""
    engines: dict[str, Callable[[], EngineRound]] = {"spark": partial(spark_round, spark, lake, scenarios)}
    for name in SORTED_BY:
        if find_spec(name) is not None:
            engines[name] = partial(sorted_round, name, lake, scenarios, cores)
    rounds = [{name: engine() for name, engine in engines.items()} for _ in range(repeats)]
    found: dict[str, float | int] = {}
    for name in engines:
        mine = [each[name] for each in rounds]
        if mine[-1].answer != rounds[-1]["spark"].answer:
            raise SystemExit(f"answers differ:\n{rounds[-1]['spark'].answer}\n{name}: {mine[-1].answer}")
        seconds = [each.seconds for each in mine]
        found[f"{name}_s"] = round(statistics.median(seconds), 3)
        found[f"{name}_least_s"], found[f"{name}_most_s"] = round(min(seconds), 3), round(max(seconds), 3)
        found[f"{name}_cpu_s"] = round(statistics.median(each.cpu_s for each in mine), 3)
        found[f"{name}_mb"] = round(max(each.peak_mb for each in mine))
    for name in engines.keys() - {"spark"}:
        prefix = "" if name == "duckdb" else f"{name}_"
        found[f"{prefix}ratio"] = round(found["spark_s"] / found[f"{name}_s"], 2)
        found[f"{prefix}cpu_ratio"] = round(found["spark_cpu_s"] / max(found[f"{name}_cpu_s"], 0.01), 2)
    return found


def generate_lake(spark: SparkSession, count: int, directory: Path, cores: int) -> Path:
    """Silver of a generated fleet with about this many rows."""
    recordings, lake = directory / f"recordings-{count}", directory / f"lake-{count}"
    for _ in write_fleet(fleet_of(count), recordings, cores):
        pass
    ingest(spark, [str(recordings)], str(lake))
    return lake


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.whatif", description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=list(ROWS), metavar="N", help="sizes (1e6 and 1e7)"
    )
    parser.add_argument(
        "--scenarios", type=int, nargs="+", default=[1, 8], metavar="K", help="in one pass (1 and 8)"
    )
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--memory", default="2g", metavar="SIZE", help="heap of Spark (2g)")
    parser.add_argument("--lake", type=Path, metavar="FOLDER", help="this one instead of generated ones")
    parser.add_argument("--dir", metavar="DIRECTORY", help="for some 100 bytes a row")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="ustreamer-whatif-", dir=options.dir) as directory,
        session("benchmark", cores=options.cores, memory=options.memory) as spark,
    ):
        for count in [0] if options.lake else options.rows:
            lake = options.lake or generate_lake(spark, count, Path(directory), options.cores)
            rows = DELIVERIES.read_table(spark, lake).count()
            with_spark(
                spark, lake, 1
            )  # a warm-up: the first compilation and class loading of Spark is not measured
            for scenarios in options.scenarios:
                found = compared(spark, lake, scenarios, options.cores, options.repeats)
                row = {
                    "rows": rows,
                    "scenarios": scenarios,
                    **found,
                }
                print(json.dumps(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
