# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a row in one pytest, and makes a record from their verdicts and figures.

A figure is a text `name=number` on the standard output of a test. Counts of several tests add up; of times and ratios
the largest counts.
"""

import operator
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple
from xml.etree import ElementTree as ET

from tests.scorecard.rows import Row, Run

REPO: Final = Path(__file__).parents[2]
TRIALS, SEED = "SCORECARD_TRIALS", "SCORECARD_SEED"
"""Environment of the tests in this folder."""
PASS, FAIL, NOT_RUN = "PASS", "FAIL", "NOT RUN"
_MAXIMA: Final = ("_s", "_ms", "_ratio", "_percent", "_mb")
_FIGURE: Final = re.compile(r"(?<![\w=.])([a-z]\w*)=(-?\d+(?:\.\d+)?)(?![\w=])")
_LIMIT: Final = re.compile(r"(\w+)(<=|>=|=)(-?[\d.]+)")
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "=": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
}

Figures = dict[str, float]


class Record(NamedTuple):
    """The result of one row; `figures` by name, and the reason of a verdict other than PASS."""

    id: str
    tier: str
    n: float
    unit: str
    figures: Figures
    limit: str
    verdict: str
    reason: str
    seed: str
    seconds: float
    command: str
    promise: str
    control: str

    def line(self) -> str:
        """`id n figure limit verdict seed seconds`."""
        figures = " ".join(f"{name}={value:g}" for name, value in self.figures.items() if name != self.unit)
        reason = f" ({self.reason})" if self.reason else ""
        return (
            f"{self.id:<4}{self.n:g} {self.unit}  {figures or '-'}  limit {self.limit or '-'}  "
            f"{self.verdict}{reason}  seed {self.seed}  {self.seconds:.1f} s"
        )


def figures_of(outputs: Iterable[str]) -> Figures:
    """The figures that tests printed."""
    found: Figures = {}
    for name, text in (figure for output in outputs for figure in _FIGURE.findall(output)):
        value, earlier = float(text), found.get(name, 0.0)
        found[name] = max(earlier, value) if name.endswith(_MAXIMA) else earlier + value
    return found


def missed_limits(limit: str, figures: Mapping[str, float]) -> list[str]:
    """The limits that a figure does not meet, or that have no figure."""
    return [
        f"{name}{sign}{bound}"
        for name, sign, bound in _LIMIT.findall(limit)
        if name not in figures or not _COMPARE[sign](figures[name], float(bound))
    ]


class Results(NamedTuple):
    """The outcome of a pytest: passed tests, reasons of failures and of skips, and standard outputs."""

    passed: int
    failures: list[str]
    skips: list[str]
    outputs: list[str]


def read_results(report: Path) -> Results:
    """Read the JUnit XML of a pytest."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failures = [
        f"{case.get('name')}: {(bad.get('message') or '').splitlines()[0][:160]}"
        for case in cases
        for bad in (*case.iter("failure"), *case.iter("error"))
    ]
    skips = [skip.get("message") or "" for case in cases for skip in case.iter("skipped")]
    outputs = [each.text or "" for case in cases for each in case.iter("system-out")]
    good = [case for case in cases if {each.tag for each in case} <= {"system-out", "system-err"}]
    return Results(len(good), failures, skips, outputs)


def verdict_of(row: Row, results: Results, figures: Figures) -> tuple[str, str]:
    """The verdict of a row, and its reason if it is not PASS. A failure counts more than a skip."""
    if results.failures:
        return FAIL, "; ".join(results.failures)
    if results.skips:
        return NOT_RUN, results.skips[0]
    if not results.passed:
        return NOT_RUN, "no test was selected"
    missed = missed_limits(row.limit, figures)
    return (FAIL, "missed " + " ".join(missed)) if missed else (PASS, "")


def pytest_arguments(run: Run, seed: int) -> list[str]:
    arguments = ["-q", "-m", "", "-p", "no:cacheprovider", "-o", "junit_logging=system-out"]
    return [*arguments, "--timeout", "7200", f"--hypothesis-seed={seed}", *run.tests]


def run_row(name: str, row: Row, tier: str, seed: int) -> Record:
    """Run one row to its end."""
    run = row.run_of(tier)
    arguments = pytest_arguments(run, seed)
    env = os.environ | {TRIALS: str(run.trials), SEED: str(seed)}
    began = time.monotonic()
    with TemporaryDirectory(prefix="scorecard-") as directory:
        report = Path(directory) / "report.xml"
        command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}"]
        done = subprocess.run(
            [*command, f"--basetemp={directory}/tests"],
            cwd=REPO,
            env=env,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if report.exists():
            results = read_results(report)
        else:
            results = Results(0, [f"pytest ended with {done.returncode}: {done.stdout[-300:]}"], [], [])
    figures = figures_of(results.outputs)
    verdict, reason = verdict_of(row, results, figures)
    n = figures.get(row.unit, 0.0) if row.unit != "tests" else results.passed
    return Record(
        name,
        tier,
        n,
        row.unit,
        figures,
        row.limit,
        verdict,
        " ".join(reason.split()),
        str(seed) if row.seeded else "fixed",
        round(time.monotonic() - began, 1),
        f"python -m tests.scorecard {name} --tier {tier} --seed {seed}",
        row.promise,
        row.control,
    )
