# SPDX-License-Identifier: Apache-2.0
"""The scorecard's own code: figures, limits, verdicts and the table. No row is run here."""

import ast
from pathlib import Path

import pytest

from tests.scorecard.rows import ROWS, Row, Run
from tests.scorecard.run import FAIL, NOT_RUN, PASS, figures_of, missed_limits, read_results, verdict_of

REPO = Path(__file__).parents[2]
NODES = sorted({node for row in ROWS.values() for run in row.runs.values() for node in run.tests})
ROW = Row("nothing is lost", "lost=0", "", {"P": Run(("tests",))})

REPORT = """<testsuites><testsuite>
<testcase name="good"><system-out>kills=5 lost=0
p95_ms=12.5</system-out></testcase>
<testcase name="bad"><failure message="AssertionError: 3 lost&#10;more">trace</failure></testcase>
<testcase name="skipped"><skipped message="no namespaces"/></testcase>
</testsuite></testsuites>"""


def test_counts_add_up_and_of_times_and_ratios_the_largest_counts() -> None:
    found = figures_of(["\nkills=5 lost=0 p95_ms=12.5; ratio x", "kills=2 lost=1 p95_ms=3"])
    assert found == {"kills": 7, "lost": 1, "p95_ms": 12.5}


@pytest.mark.parametrize("text", ["Lost=1", "lost=", "a.lost=1", "lost=0x1", "lost==1", "lost=1=2"])
def test_other_texts_are_no_figures(text: str) -> None:
    assert figures_of([text]) == {}


@pytest.mark.parametrize(
    ("limit", "missed"),
    [
        ("", []),
        ("lost=0 ready_ms<=1000 images>=5", []),
        ("lost=1", ["lost=1"]),
        ("ready_ms<=999.5", ["ready_ms<=999.5"]),
        ("images>=6", ["images>=6"]),
        ("unknown=0", ["unknown=0"]),
    ],
)
def test_a_limit_is_missed_by_its_figure_or_without_one(limit: str, missed: list[str]) -> None:
    assert missed_limits(limit, {"lost": 0, "ready_ms": 1000, "images": 5}) == missed


def test_a_report_of_pytest_is_read(tmp_path: Path) -> None:
    file = tmp_path / "report.xml"
    file.write_text(REPORT, encoding="utf-8")
    results = read_results(file)
    assert results.passed == 1
    assert results.failures == ["bad: AssertionError: 3 lost"]
    assert results.skips == ["no namespaces"]
    assert figures_of(results.outputs) == {"kills": 5, "lost": 0, "p95_ms": 12.5}
    assert verdict_of(ROW, results, {"lost": 0})[0] == FAIL
    no_failure = results._replace(failures=[])
    assert verdict_of(ROW, no_failure, {"lost": 0}) == (NOT_RUN, "no namespaces")
    good = no_failure._replace(skips=[])
    assert verdict_of(ROW, good, {"lost": 0}) == (PASS, "")
    assert verdict_of(ROW, good, {"lost": 1}) == (FAIL, "missed lost=0")
    assert verdict_of(ROW, good._replace(passed=0), {"lost": 0})[0] == NOT_RUN


def test_a_tier_without_tests_of_its_own_runs_those_of_the_shorter_one() -> None:
    row = Row("", "", "", {"P": Run(("short",)), "N": Run(("long",))})
    assert [row.run_of(tier).tests for tier in ("P", "N", "R")] == [("short",), ("long",), ("long",)]


def test_there_are_28_rows_in_order_and_each_has_a_short_run_and_a_control() -> None:
    assert list(ROWS) == [f"R{number}" for number in range(1, 29)]
    assert [name for name, row in ROWS.items() if "P" not in row.runs or not row.control] == []


@pytest.mark.parametrize("node", NODES)
def test_each_test_of_the_table_exists(node: str) -> None:
    file, _, name = node.partition("::")
    path = REPO / file
    assert path.exists()
    if name:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = {each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
        assert name.partition("[")[0] in functions
