# SPDX-License-Identifier: Apache-2.0
"""The tasks of the pipeline by Spark, DuckDB and Polars on the same files: `python -m benchmarks.analyses [--rows N...]`.

DuckDB and Polars (if installed) are one process; Spark is a JVM and its workers. Rounds alternate, medians are
compared, and all engines must give the same answer. The output is a table, with a line for each engine.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from ustreamer_pipeline.schemas import DELIVERIES
from ustreamer_pipeline.session import session

from benchmarks.analyses.answers import COLUMNS, Answer
from benchmarks.analyses.lakes import lake_of_deliveries, lake_of_signals
from benchmarks.analyses.rounds import OTHERS, EngineRound, compared

ROWS: Final = (1_000_000, 10_000_000)
REPEATS: Final = 3
HEAD: Final = """\
| task | rows | engine | s | CPU, s | MB | MB shuffled | s of Spark relative to it | CPU of Spark relative to it |
|---|---|---|---|---|---|---|---|---|"""


def lines(task: str, rows: int, rounds: Mapping[str, Sequence[EngineRound]]) -> list[str]:
    """A line of the table for each engine: medians, and the range of the seconds."""

    def median(name: str, figure: str) -> float:
        return float(statistics.median(getattr(each, figure) for each in rounds[name]))

    found = []
    for name, mine in rounds.items():
        seconds = sorted(each.seconds for each in mine)
        cells = [
            *(task, f"{rows:,}", name),
            f"{median(name, 'seconds'):.2f} ({seconds[0]:.2f} to {seconds[-1]:.2f})",
            f"{median(name, 'cpu_s'):.1f}",
            f"{max(each.peak_mb for each in mine):,.0f}",
            *([f"{median(name, 'shuffled_mb'):,.1f}", "", ""] if name == "spark" else [""]),
        ]
        if name != "spark":
            cells += [
                f"{median('spark', figure) / max(median(name, figure), 0.01):.2g}"
                for figure in ("seconds", "cpu_s")
            ]
        found.append(f"| {' | '.join(cells)} |")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analyses", description=__doc__)
    parser.add_argument(
        "--rows", type=int, nargs="+", default=list(ROWS), metavar="N", help="sizes (1e6 and 1e7)"
    )
    parser.add_argument("--task", choices=sorted(COLUMNS), nargs="+", default=sorted(COLUMNS))
    parser.add_argument("--engine", choices=OTHERS, nargs="+", default=list(OTHERS), help="besides Spark")
    parser.add_argument("--repeats", type=int, default=REPEATS, metavar="N")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--memory", default="2g", metavar="SIZE", help="heap of Spark (2g)")
    parser.add_argument("--dir", metavar="DIRECTORY", help="for some 200 bytes a row")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="ustreamer-analyses-", dir=options.dir) as directory,
        session("benchmark", cores=options.cores, memory=options.memory) as spark,
    ):
        print(HEAD, flush=True)
        for count in options.rows:
            lakes: dict[str, Path] = {}
            for task in options.task:
                kind = "signals" if task == "signals" else "deliveries"
                if kind not in lakes:
                    lakes[kind] = make_lake(spark, kind, count, Path(directory), options.cores)
                rounds = compared(spark, task, lakes[kind], options.cores, options.repeats, options.engine)
                rows = count if kind == "signals" else _rows(spark, lakes[kind])
                print("\n".join(lines(task, rows, rounds)), flush=True)
                _print_sizes(rounds["spark"][0].answer)
    return 0


def make_lake(spark: SparkSession, kind: str, count: int, directory: Path, cores: int) -> Path:
    """A lake with about this many deliveries or values of signals."""
    if kind == "signals":
        return lake_of_signals(count, directory)
    return lake_of_deliveries(spark, count, directory, cores)


def _rows(spark: SparkSession, lake: Path) -> int:
    return DELIVERIES.read_table(spark, lake).count()


def _print_sizes(answer: Answer) -> None:
    """To stderr: how many rows were equal in each table."""
    print(
        ", ".join(f"{name}: {len(rows)} rows" for name, rows in answer.items()), file=sys.stderr, flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
