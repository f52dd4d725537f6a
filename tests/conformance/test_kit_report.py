# SPDX-License-Identifier: Apache-2.0
"""The page about the test kit matches the mutants and their stored results."""

from pathlib import Path

from msgspec.structs import replace

from tests.conformance.kit_report import (
    PAGE_FILE,
    AlarmResult,
    KitResults,
    alarm_summary,
    faults,
    load_results,
    mutant_summary,
    render_page,
)
from tests.conformance.mutants import MUTANTS
from tests.conformance.run import RunOutcome
from tests.conformance.subject import outcomes_in

REPO = Path(__file__).resolve().parents[2]
FOUND = {each.name: [] if each.unseen else ["a_case"] for each in MUTANTS}


def test_the_page_has_the_stored_results() -> None:
    text = (REPO / PAGE_FILE).read_text(encoding="utf-8")
    assert text == render_page(load_results(REPO)), "run `python -m tests.conformance.kit_trials mutants`"


def test_every_mutant_was_found_or_has_a_reason_and_no_run_had_a_false_alarm() -> None:
    results = load_results(REPO)
    assert faults(results) == []
    assert results.alarms.runs >= 20
    assert results.alarms.busy_loops == 2


def test_there_are_many_mutants_each_of_one_place() -> None:
    assert len({each.name for each in MUTANTS}) == len(MUTANTS) == 66
    counts = {each.name: (REPO / each.path).read_text(encoding="utf-8").count(each.old) for each in MUTANTS}
    assert {name: count for name, count in counts.items() if count != 1} == {}
    assert [each.name for each in MUTANTS if each.old == each.new] == []


def test_a_case_that_is_not_judged_counts_as_failed() -> None:
    output = "ok   first[v3]  0.01 s\nok   first[v4]  0.01 s\n??   second  0.00 s\nn/a  third  0.00 s\n"
    expected = {"first": RunOutcome(2), "second": RunOutcome(0, 1), "third": RunOutcome(0, 0, 1)}
    assert outcomes_in(output) == expected


def test_each_wrong_result_is_a_fault() -> None:
    complete = KitResults(found_by=FOUND)
    assert faults(complete) == []
    seen = next(each.name for each in MUTANTS if not each.unseen)
    unseen = next(each.name for each in MUTANTS if each.unseen)
    for found, fault in (
        ({**FOUND, seen: []}, f"{seen}: not found"),
        ({**FOUND, unseen: ["a_case"]}, f"{unseen}: found, but has a reason not to be"),
        ({name: cases for name, cases in FOUND.items() if name != seen}, f"{seen}: not run"),
        ({**FOUND, "another": ["a_case"]}, "another: no such mutant"),
    ):
        assert faults(replace(complete, found_by=found)) == [fault]
    assert faults(replace(complete, alarms=AlarmResult(1, 2, 3, ["a_case"], 4))) == ["a_case"]


def test_the_summaries_have_the_figures() -> None:
    results = KitResults(found_by=FOUND, alarms=AlarmResult(20, 2, 158, [], 31))
    assert mutant_summary(results) == "63 of 66 mutants found; 3 cannot be seen from outside."
    assert alarm_summary(results) == (
        "0 false alarms in 20 runs of 158 cases next to 2 busy loops; the longest run took 31 s."
    )
