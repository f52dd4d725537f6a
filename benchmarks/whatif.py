# SPDX-License-Identifier: Apache-2.0
"""`whatif` and DuckDB on the same files of silver: `python -m benchmarks.whatif [--rows N...] [--scenarios K...]`.

Both replay every message with a limit: by the recorded limits, which must reproduce the recorded verdicts, and by K
others. DuckDB sorts the rows by target and time, and a compiled loop (numba if installed, otherwise the kernel of the
pipeline) replays them: the fastest exact method found for it. Rounds alternate, medians are compared, and the results
must be equal byte by byte.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
from pyspark.sql import SparkSession
from ustreamer_pipeline.fleet.fleet import write_fleet
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.replay.files import files_of
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


def with_spark(spark: SparkSession, lake: Path, scenarios: int) -> ScenarioTotals:
    result = whatif(spark, files_of(str(lake)), sweep(LIMITS_HZ[:scenarios])).persist()
    try:
        different = result.selectExpr("sum(differing) n").collect()[0].n
        if different:
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


def with_duckdb(lake: Path, scenarios: int, cores: int, gate_kernel_call: GateKernel) -> ScenarioTotals:
    """The same analysis. A gate belongs to one gateway, run and delivery, as in Spark."""
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
        found = connection.execute(query).fetchnumpy()
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


def compared(
    spark: SparkSession, lake: Path, scenarios: int, cores: int, repeats: int
) -> dict[str, float | int]:
    """Run both in alternating rounds; seconds are medians. Raises SystemExit if results differ."""
    engines: dict[str, Callable[[], ScenarioTotals]] = {
        "spark": partial(with_spark, spark, lake, scenarios),
        "duckdb": partial(with_duckdb, lake, scenarios, cores, gate_kernel()),
    }
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    cpu: dict[str, list[float]] = {name: [] for name in engines}
    answers: dict[str, ScenarioTotals] = {}
    peaks = dict.fromkeys(engines, 0.0)
    for _ in range(repeats):
        for name, engine in engines.items():
            process_tree.reset_peaks()
            began, before = time.monotonic(), process_tree.cpu_s()
            answers[name] = engine()
            seconds[name].append(time.monotonic() - began)
            cpu[name].append(process_tree.cpu_s() - before)
            # DuckDB runs in this process. Spark is the JVM and its workers; a third of a worker's memory is Python
            # libraries.
            own = process_tree.own_peak_mb()
            peaks[name] = max(peaks[name], own if name == "duckdb" else process_tree.peak_mb() - own)
    if answers["spark"] != answers["duckdb"]:
        raise SystemExit(f"answers differ:\n{answers['spark']}\n{answers['duckdb']}")
    found: dict[str, float | int] = {}
    for name in engines:
        found[f"{name}_s"] = round(statistics.median(seconds[name]), 3)
        found[f"{name}_least_s"], found[f"{name}_most_s"] = (
            round(min(seconds[name]), 3),
            round(max(seconds[name]), 3),
        )
        found[f"{name}_cpu_s"] = round(statistics.median(cpu[name]), 3)
        found[f"{name}_mb"] = round(peaks[name])
    found["ratio"] = round(found["spark_s"] / found["duckdb_s"], 2)
    found["cpu_ratio"] = round(found["spark_cpu_s"] / max(found["duckdb_cpu_s"], 0.01), 2)
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
