# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.conformance.kit_trials mutants|alarms`: is the test kit `tck/` worth its verdicts?

`mutants`: does the kit find defects that were put in? Each mutant is a copy of the streamer with one changed place.
`alarms`: does the kit fail a correct streamer on a busy machine? Both rewrite docs/conformance-kit.md.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tests.conformance import kit_report
from tests.conformance.kit_report import RESULTS_FILE, AlarmResult, KitResults
from tests.conformance.mutants import MUTANTS, Mutant
from tests.conformance.subject import run_kit, running_subject

_REPO: Final = Path(__file__).parents[2]
_PLUGINS: Final = ("payloads", "recorder", "throttle", "usubscription", "wamp", "mqtt")
_COPIED: Final = ("ustreamer", *(f"plugins/{each}/ustreamer_{each}" for each in _PLUGINS))
_DEADLINE: Final = ("--deadline", "5")
_BUSY_LOOP: Final = (sys.executable, "-c", "while True: pass")


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Mapping[str, str]]:
    """The environment of a streamer with this change."""
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory)
        for name in _COPIED:
            shutil.copytree(_REPO / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        path = source / mutant.path
        text = path.read_text(encoding="utf-8")
        if text.count(mutant.old) != 1:
            raise ValueError(f"{mutant.name}: {text.count(mutant.old)} places match, expected 1")
        path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
        folders = (source, *(source / "plugins" / each for each in _PLUGINS))
        yield {"PYTHONPATH": os.pathsep.join(map(str, folders)), "PYTHONDONTWRITEBYTECODE": "1"}


def failed_cases(mutant: Mutant) -> list[str]:
    """The cases that fail a mutant: the first failure ends the run."""
    with mutated(mutant) as environment, running_subject(environment) as streamer:
        run = run_kit(streamer, "--fail-fast", *_DEADLINE)
    if not run.summary:
        raise AssertionError(f"{mutant.name}: the kit did not end\n{run.output}")
    return sorted({re.sub(r"\[v\d\]$", "", each) for each in run.failed})


def judge_mutants(mutants: Sequence[Mutant], jobs: int) -> dict[str, list[str]]:
    """The cases that find each mutant, by its name."""
    found: dict[str, list[str]] = {}
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, cases in zip(mutants, pool.map(failed_cases, mutants), strict=True):
            found[mutant.name] = cases
            print(f"{mutant.name}: {', '.join(cases) or 'NOT FOUND'}", flush=True)
    return found


def count_alarms(runs: int, busy_loops: int) -> AlarmResult:
    """Run the whole kit so often against the unchanged streamer, next to busy loops."""
    failed: list[str] = []
    cases = 0
    longest_s = 0.0
    loops = [subprocess.Popen(_BUSY_LOOP) for _ in range(busy_loops)]
    try:
        for number in range(runs):
            with running_subject() as streamer:
                began = time.monotonic()
                run = run_kit(streamer)
                longest_s = max(longest_s, time.monotonic() - began)
            if not run.summary:
                raise AssertionError(f"the kit did not end\n{run.output}")
            cases = int(run.summary.partition(" ")[0])
            failed += run.failed
            print(f"{number + 1}: {run.output if run.failed else run.summary}", flush=True)
    finally:
        for each in loops:
            each.kill()
            each.wait()
    return AlarmResult(runs, busy_loops, cases, sorted(failed), round(longest_s))


def main(arguments: Sequence[str]) -> int:
    """Returns 1 for a mutant that was not found without a reason, or for a false alarm."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kit_trials", description=__doc__)
    parser.add_argument("trial", choices=["mutants", "alarms"])
    parser.add_argument("--only", default="", help="mutants with this text in their names")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="busy loops")
    options = parser.parse_args(arguments)
    changed: dict[str, object] = {}
    if options.trial == "alarms":
        changed["alarms"] = count_alarms(options.runs, options.busy)
    else:
        mutants = [each for each in MUTANTS if options.only in each.name]
        changed["found_by"] = kit_report.load_results(_REPO).found_by | judge_mutants(mutants, options.jobs)
    results = msgspec.structs.replace(kit_report.load_results(_REPO), **changed)
    _write(results)
    faults = kit_report.faults(results)
    print(*faults, kit_report.mutant_summary(results), sep="\n")
    return 1 if faults else 0


def _write(results: KitResults) -> None:
    text = json.dumps(msgspec.to_builtins(results), indent=2)
    (_REPO / RESULTS_FILE).write_text(f"{text}\n", encoding="utf-8")
    (_REPO / kit_report.PAGE_FILE).write_text(kit_report.render_page(results), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
