# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.scorecard [R1 R2 ...]`: the reliability scorecard, one line per row.

    id n figure limit verdict seed seconds

Tier P is made for a pull request: minutes on two cores. Tiers N and R take hours. Rows that measure time run first,
alone; of the others two run at a time. `--json` appends one record per row to a file. Exit code 1 if a row fails or is not
run.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.scorecard.rows import ROWS, TIERS
from tests.scorecard.run import PASS, Record, run_row


def machine() -> dict[str, Any]:
    """The cores that this process may use, and the load of the machine."""
    return {"cores": len(os.sched_getaffinity(0)), "load": round(os.getloadavg()[0], 1)}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.scorecard", description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", metavar="R1", help="the rows to run; all if none is named")
    parser.add_argument("--tier", choices=TIERS, default="P", help="pull request, nightly or release")
    parser.add_argument("--json", type=Path, metavar="FILE", help="append a record per row to this file")
    parser.add_argument("--seed", type=int, default=1, help="of rows with random input (1)")
    parser.add_argument("--jobs", type=int, default=2, help="rows at a time, where they measure no time (2)")
    options = parser.parse_args(arguments)
    if unknown := [each for each in options.rows if each not in ROWS]:
        parser.error(f"no row {', '.join(unknown)} (there are {', '.join(ROWS)})")
    return options


def run_rows(names: Sequence[str], tier: str, seed: int, jobs: int) -> Iterator[Record]:
    """The records of the rows: first those that measure time, one by one."""

    def run(name: str) -> Record:
        return run_row(name, ROWS[name], tier, seed)

    yield from map(run, [name for name in names if ROWS[name].timed])
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(run, [name for name in names if not ROWS[name].timed])


def append(file: Path, record: Record) -> None:
    with file.open("a", encoding="utf-8") as opened:
        opened.write(json.dumps(record._asdict() | machine()) + "\n")


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    began = time.monotonic()
    records = []
    for record in run_rows(options.rows or list(ROWS), options.tier, options.seed, options.jobs):
        records.append(record)
        print(record.line(), flush=True)
        if options.json:
            append(options.json, record)
    bad = [each.id for each in records if each.verdict != PASS]
    seconds = time.monotonic() - began
    about = machine()
    print(
        f"{len(records) - len(bad)} of {len(records)} rows pass, tier {options.tier}, {seconds:.0f} s, "
        f"{about['cores']} cores, load {about['load']}" + (f"; not: {' '.join(bad)}" if bad else "")
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
