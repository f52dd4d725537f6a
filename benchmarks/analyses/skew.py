# SPDX-License-Identifier: Apache-2.0
"""One gateway with 100 times the rows of the others: `python -m benchmarks.analyses.skew [--rows N]`.

The time of a whole audit, report and what-if on such a lake, and on one of the same size with equal gateways, in
alternating rounds. A gateway of the skewed lake has the length of drive of all others times 100.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession
from ustreamer_pipeline.fleet.fleet import Fleet, write_fleet
from ustreamer_pipeline.gold.audit import audit, load
from ustreamer_pipeline.ingest.ingest import ingest
from ustreamer_pipeline.lake.snapshot import load_snapshot
from ustreamer_pipeline.replay.files import event_files_of, files_of, rows_of
from ustreamer_pipeline.replay.whatif import fleet_links, whatif
from ustreamer_pipeline.replay.whatif_scenarios import sweep
from ustreamer_pipeline.report.report import report
from ustreamer_pipeline.session import session

from benchmarks.harness import process_tree
from benchmarks.pipeline import ROWS_PER_SECOND

SKEW: Final = 100
OTHERS: Final = 20
"""Gateways besides the large one, which so has five sixths of all rows."""
LIMITS_HZ: Final = (5.0, 50.0)
HEAD: Final = """\
| task | rows | s even | s skewed | relative | CPU even, s | CPU skewed, s |
|---|---|---|---|---|---|---|"""


def make_lakes(spark: SparkSession, rows: int, directory: Path, cores: int) -> dict[str, Path]:
    """A lake with equal gateways, and one with a large gateway."""
    seconds = rows / (SKEW + OTHERS) / ROWS_PER_SECOND
    even, small, large = (directory / name for name in ("even", "small", "large"))
    for fleet, folder in (
        (Fleet(vehicles=SKEW + OTHERS, seconds=seconds), even),
        (Fleet(vehicles=OTHERS + 1, seconds=seconds), small),
        (Fleet(vehicles=1, seconds=SKEW * seconds), large),
    ):
        for _ in write_fleet(fleet, folder, cores):
            pass
    (name,) = (path.name for path in large.iterdir())
    shutil.rmtree(small / name)
    lakes = {"even": directory / "lake-even", "skewed": directory / "lake-skewed"}
    ingest(spark, [str(even)], str(lakes["even"]))
    ingest(spark, [str(small), str(large)], str(lakes["skewed"]))
    return lakes


def _audit(spark: SparkSession, lake: Path) -> None:
    found = audit(load(spark, str(lake)))
    if not found.clean:
        raise SystemExit(f"{lake}: {found.counts}")


def _report(spark: SparkSession, lake: Path) -> None:
    report(spark, str(lake))


def _whatif(spark: SparkSession, lake: Path) -> None:
    snapshot = load_snapshot(lake)
    files, events = files_of(snapshot), event_files_of(snapshot)
    result = whatif(spark, files, sweep(LIMITS_HZ), events, counts=rows_of(snapshot))
    fleet_links(result).collect()


TASKS: Final[Mapping[str, Callable[[SparkSession, Path], None]]] = {
    "audit": _audit,
    "report": _report,
    "whatif": _whatif,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.analyses.skew", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, metavar="N", help="of each lake (1e7)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--memory", default="2g", metavar="SIZE", help="heap of Spark (2g)")
    parser.add_argument("--dir", metavar="DIRECTORY", help="for some 300 bytes a row")
    options = parser.parse_args(argv)
    with (
        tempfile.TemporaryDirectory(prefix="ustreamer-skew-", dir=options.dir) as directory,
        session("benchmark", cores=options.cores, memory=options.memory) as spark,
    ):
        lakes = make_lakes(spark, options.rows, Path(directory), options.cores)
        print(HEAD, flush=True)
        for task, work in TASKS.items():
            cost: dict[str, list[tuple[float, float]]] = {name: [] for name in lakes}
            for number in range(options.repeats + 1):
                for name, lake in lakes.items():
                    began, cpu_s = time.monotonic(), process_tree.cpu_s()
                    work(spark, lake)
                    if number:  # the first round is a warm-up
                        cost[name].append((time.monotonic() - began, process_tree.cpu_s() - cpu_s))
            rows = sum(rows_of(load_snapshot(lakes["skewed"])).values())
            print(_line(task, rows, cost), flush=True)
    return 0


def _line(task: str, rows: int, cost: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    seconds, cpu_s = (
        [statistics.median(each[at] for each in cost[name]) for name in ("even", "skewed")] for at in (0, 1)
    )
    cells = [
        *(task, f"{rows:,}"),
        *(f"{each:.2f}" for each in seconds),
        f"{seconds[1] / seconds[0]:.2f}",
        *(f"{each:.1f}" for each in cpu_s),
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
