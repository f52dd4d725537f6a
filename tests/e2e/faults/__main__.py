# SPDX-License-Identifier: Apache-2.0
"""Random schedules of real faults, each proven by `ustreamer recordings prove`.

    python -m tests.e2e.faults --seeds 100 [--first 0] [--parallel 3] [--keep DIRECTORY]

prints one line for each seed, and each unexplained message of a seed that failed. Exit code 1 if a seed failed.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.e2e.faults.run import RunOutcome, run_in_namespaces
from tests.e2e.faults.schedules import Schedule, schedule_of
from tests.e2e.rigs.cable import unsupported_reason

RUN_S: Final = 180.0
"""The longest run: set-up, faults, 40 s of recovery twice, and the proof."""
_SHOWN: Final = 5


def run_schedules(schedules: Sequence[Schedule], parallel: int, directory: Path) -> Iterator[RunOutcome]:
    """Run these schedules, `parallel` at a time. Files of good runs are removed."""

    def run(schedule: Schedule) -> RunOutcome:
        place = directory / f"seed-{schedule.seed}"
        place.mkdir(parents=True)
        outcome = run_in_namespaces(schedule, place, RUN_S)
        if outcome.is_good:
            shutil.rmtree(place)
        return outcome

    with ThreadPoolExecutor(parallel) as pool:
        yield from pool.map(run, schedules)


def describe(outcome: RunOutcome) -> Iterator[str]:
    """The lines about one run."""
    counts = {
        each["receiver"]: {key: value for key, value in each.items() if isinstance(value, int) and value}
        for each in outcome.proof
        if each["kind"] == "receiver"
    }
    yield f"{'ok    ' if outcome.is_good else 'FAILED'} {outcome.schedule} {counts}"
    if outcome.is_good:
        return
    yield from (f"       problem: {each}" for each in outcome.problems)
    unexplained = [each for each in outcome.proof if each["kind"] == "unexplained"]
    reasons = Counter((each["receiver"], each["reason"]) for each in unexplained)
    for (receiver, reason), count in reasons.items():
        yield f"       {count} unexplained for {receiver}: {reason}"
    yield from (f"       {each['time']} {each['id']} for {each['receiver']}" for each in unexplained[:_SHOWN])
    yield from (f"       files: {each}" for each in outcome.proof if each["kind"] == "files")
    for each in outcome.stopped:
        endpoints = {
            name: {key: value for key, value in counters.items() if isinstance(value, int) and value}
            for name, counters in each["endpoints"].items()
        }
        counters = {name: endpoints.get(name) for name in ("backbone", "chassis")}
        yield (
            f"       stopped: exit code {each['exit_code']}, unsent {each['unsent']}, persisted {each['persisted']}, "
            f"{each['ledger']}, {counters}"
        )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.faults", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="how many seeds (10)")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    parser.add_argument("--parallel", type=int, default=3, metavar="N", help="runs at a time (3)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where the files of failed runs stay")
    parsed = parser.parse_args(arguments)
    if reason := unsupported_reason():
        print(f"no network namespace: {reason}", file=sys.stderr)
        return 1
    directory = parsed.keep or Path(tempfile.mkdtemp(prefix="faults-"))
    failed = []
    schedules = [schedule_of(seed) for seed in range(parsed.first, parsed.first + parsed.seeds)]
    for outcome in run_schedules(schedules, parsed.parallel, directory.absolute()):
        print(*describe(outcome), sep="\n", flush=True)
        if not outcome.is_good:
            failed.append(outcome.seed)
    print(
        f"{parsed.seeds - len(failed)} of {parsed.seeds} seeds without an unexplained message; failed: {failed}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
