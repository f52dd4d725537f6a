# SPDX-License-Identifier: Apache-2.0
"""Runs tests and counts their outcomes."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conformance.tags import CaseRef


class RunOutcome(NamedTuple):
    """Outcome of one test with all parameters, or of several tests."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __str__(self) -> str:
        """For example `passed 3, failed 1`; `not run` without any result."""
        return ", ".join(f"{name} {n}" for name, n in self._asdict().items() if n) or "not run"

    @classmethod
    def parse(cls, text: str) -> "RunOutcome":
        """The inverse of str. Raises ValueError for any other text."""
        if text == "not run":
            return cls()
        counts = dict(part.split(" ") for part in text.split(", "))
        if not counts.keys() <= set(cls._fields):
            raise ValueError(f"outcome {text!r}: expected {cls(1, 1, 1)}, or parts of it")
        return cls(**{name: int(n) for name, n in counts.items()})

    @classmethod
    def total_of(cls, outcomes: Iterable["RunOutcome"]) -> "RunOutcome":
        """Several as one."""
        return cls(*map(sum, zip(cls(), *outcomes, strict=True)))

    @property
    def failure_reason(self) -> str | None:
        """Reason why the outcome proves nothing; None if a test passed and none failed."""
        if self.failed:
            return "a test failed"
        return None if self.passed else "no test passed"


class _Selection:
    """A pytest plugin that runs only selected tests and counts them; the worst stage of a test counts."""

    def __init__(self, wanted: Iterable[CaseRef]) -> None:
        self._wanted = {test.nodeid for test in wanted}
        self._stages: dict[str, set[str]] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        others = [item for item in items if _case_id(item.nodeid) not in self._wanted]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if _case_id(item.nodeid) in self._wanted]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._stages.setdefault(report.nodeid, set()).add(report.outcome)

    def outcomes(self) -> dict[str, RunOutcome]:
        """Outcomes by test, parameters combined."""
        found: dict[str, RunOutcome] = {}
        for nodeid, stages in self._stages.items():
            worst = next(each for each in ("failed", "skipped", "passed") if each in stages)
            test = _case_id(nodeid)
            found[test] = RunOutcome.total_of([found.get(test, RunOutcome()), RunOutcome(**{worst: 1})])
        return found


def _case_id(nodeid: str) -> str:
    return nodeid.partition("[")[0]


def run_tests(root: Path, tests: Iterable[CaseRef]) -> Mapping[CaseRef, RunOutcome]:
    """Run these tests of a tree in this process. A test that pytest did not reach counts as not run."""
    wanted = list(tests)
    selection = _Selection(wanted)
    files = sorted({str(root / test.file) for test in wanted})
    if files:
        # Files, not single tests: pytest stops if one of those is missing. Without the cache, so that `pytest --lf`
        # ignores this run.
        options = [f"--rootdir={root}", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
        pytest.main([*options, *files], plugins=[selection])
    outcomes = selection.outcomes()
    return {test: outcomes.get(test.nodeid, RunOutcome()) for test in wanted}
