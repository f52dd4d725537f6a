# SPDX-License-Identifier: Apache-2.0
"""The list of cases, the runner and the reports."""

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast
from xml.etree import ElementTree as ET

import pytest
from uprotocol_tck.case import (
    Case,
    CaseFailed,
    Findings,
    Need,
    NotApplicable,
    NotJudged,
    check_equal,
    registered_cases,
)
from uprotocol_tck.cases import CHAPTERS, load_cases
from uprotocol_tck.cli import main
from uprotocol_tck.protobuf import MalformedProtobuf
from uprotocol_tck.reports.junit import junit_xml
from uprotocol_tck.reports.page import html_page
from uprotocol_tck.reports.text import outcome_lines, summary
from uprotocol_tck.runner import GONE, INTERRUPTED, Outcome, Session, Verdict, run_cases, selected
from uprotocol_tck.shared_restart import SharedRestart
from uprotocol_tck.stop import Stop
from uprotocol_tck.world import Names, World

KIT = Path(__file__).parents[1]
PRODUCT = ("ustreamer",)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    load_cases()
    return registered_cases()


# --- apart from every product -----------------------------------------------------------------------------------------


def test_the_kit_imports_nothing_of_the_product_it_judges() -> None:
    """Loaded in a process of its own, with every chapter."""
    script = (
        "import sys; from uprotocol_tck.cases import load_cases; import uprotocol_tck.cli; load_cases();"
        f"print(sorted(name for name in sys.modules if name.startswith({PRODUCT!r})))"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_kit_imports_the_standard_library_and_zenoh_only() -> None:
    imported = set()
    for file in KIT.glob("uprotocol_tck/**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    assert imported - sys.stdlib_module_names == {"uprotocol_tck", "zenoh"}


# --- the list of cases ------------------------------------------------------------------------------------------------


def test_every_case_has_a_sentence_rules_and_a_name_of_its_own(cases: list[Case]) -> None:
    names = [each.name for each in cases]
    assert len(set(names)) == len(names) > 100
    assert [each.name for each in cases if not each.rules or not each.sentence.endswith(".")] == []
    assert [each.name for each in cases if len(set(each.rules)) < len(each.rules)] == []


def test_every_file_of_cases_is_a_chapter(cases: list[Case]) -> None:
    files = {path.stem for path in (KIT / "uprotocol_tck/cases").glob("*.py")} - {"__init__"}
    assert files == set(CHAPTERS) == {each.group for each in cases}


def test_cases_are_selected_by_subject_name_and_rule(cases: list[Case]) -> None:
    by_rule = selected(cases, ["usubscription", "streamer"], ["req~usubscription-reset~1"])
    assert {each.group for each in by_rule} == {"resetting"}
    assert {each.subject for each in selected(cases, ["streamer"], [])} == {"streamer"}
    assert len(selected(cases, ["usubscription"], ["subscriptions_remain"])) == 2


def test_fresh_addresses_differ() -> None:
    names = Names(7)
    assert len({names.entity("a") for _ in range(1_000)}) == 1_000


# --- the runner -------------------------------------------------------------------------------------------------------


class _NoNetwork(Session):
    """A session whose worlds have no network: the bodies below use none."""

    def __init__(self, *, answers: bool = True, note: Callable[[str], None] = lambda _: None) -> None:
        self.stop = Stop()
        self.is_answering = answers
        self._note = note

    def answers(self) -> bool:
        return self.is_answering

    @contextmanager
    def without_other_runs(self) -> Iterator[None]:
        self._note("no other run")
        yield

    def world(self, version: int, restart: SharedRestart | None = None) -> World:
        return cast("World", _NoWorld())


class _NoWorld:
    def close(self) -> None:
        pass


def _case(
    body: Callable[[], None],
    *,
    needs: tuple[Need, ...] = (),
    alone: bool = False,
    disturbs: bool = False,
) -> Case:
    sentence = "It holds <always>."
    return Case(body.__name__, ("R-1",), "streamer", sentence, lambda _: body(), needs, 0, alone, disturbs)


def passes() -> None:
    pass


def fails() -> None:
    check_equal(1, 2, "the number")


def is_malformed() -> None:
    raise MalformedProtobuf("field 1 is <no> text\x07")


def breaks() -> None:
    raise RuntimeError("a defect of the kit")


def cannot() -> None:
    raise NotApplicable("no such method")


def may_not() -> None:
    raise NotJudged("no right to publish")


BODIES = {
    passes: (Verdict.PASSED, ""),
    fails: (Verdict.FAILED, "the number: 1, expected 2"),
    is_malformed: (Verdict.FAILED, "a payload of another type than the rule has: field 1 is <no> text\x07"),
    breaks: (Verdict.FAILED, "the case itself failed"),
    cannot: (Verdict.NOT_APPLICABLE, "no such method"),
    may_not: (Verdict.NOT_JUDGED, "no right to publish"),
}


def _outcomes() -> list[Outcome]:
    return run_cases(_NoNetwork(), [_case(each) for each in BODIES], {})


def test_each_end_of_a_case_has_its_verdict() -> None:
    found = _outcomes()
    assert [each.verdict for each in found] == [verdict for verdict, _ in BODIES.values()]
    for outcome, (_, reason) in zip(found, BODIES.values(), strict=True):
        assert outcome.reason.startswith(reason)


def test_a_case_with_a_missing_need_is_not_run_and_says_why() -> None:
    (found,) = run_cases(
        _NoNetwork(), [_case(fails, needs=(Need.VERSION_4,))], {Need.VERSION_4: "UNIMPLEMENTED"}
    )
    assert found.verdict is Verdict.NOT_APPLICABLE
    assert found.reason == "the subject speaks uSubscription version 4 (UNIMPLEMENTED)"


def test_cases_that_run_alone_run_after_all_others() -> None:
    order: list[str] = []

    def first() -> None:
        order.append("alone")

    def second() -> None:
        order.append("together")

    run_cases(_NoNetwork(), [_case(first, alone=True), _case(second)], {})
    assert order == ["together", "alone"]


def test_a_case_that_disturbs_other_runs_is_the_last_and_waits_for_them() -> None:
    order: list[str] = []

    def disturbs() -> None:
        order.append("disturbs")

    def second() -> None:
        order.append("alone")

    cases = [_case(disturbs, alone=True, disturbs=True), _case(second, alone=True)]
    run_cases(_NoNetwork(note=order.append), cases, {})
    assert order == ["alone", "no other run", "disturbs"]


def test_after_the_subject_has_stopped_nothing_is_judged() -> None:
    """Any of the cases that run next to each other may have ended it."""
    many = [_case(passes), _case(fails), *(_case(passes) for _ in range(100)), _case(passes, alone=True)]
    session = _NoNetwork(answers=False)
    found = run_cases(session, many, {}, jobs=1)
    assert [each.verdict for each in found[:2]] == [Verdict.PASSED, Verdict.NOT_JUDGED]
    assert found[1].reason == f"{GONE}; the case found: the number: 1, expected 2"
    assert (found[-1].verdict, found[-1].reason) == (Verdict.NOT_JUDGED, f"{GONE}, since fails")
    assert len(found) == len(many)
    assert session.stop.reason == f"{GONE}, since fails"


def test_a_case_that_runs_alone_and_ends_the_subject_has_failed() -> None:
    found = run_cases(_NoNetwork(answers=False), [_case(fails, alone=True), _case(passes, alone=True)], {})
    assert [each.verdict for each in found] == [Verdict.FAILED, Verdict.NOT_JUDGED]


def test_an_interrupted_run_has_its_verdicts_so_far() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    session = _NoNetwork()
    found = run_cases(session, [_case(passes), _case(interrupted, alone=True), _case(passes, alone=True)], {})
    assert [each.verdict for each in found] == [Verdict.PASSED, Verdict.NOT_JUDGED, Verdict.NOT_JUDGED]
    assert session.stop.reason == INTERRUPTED


def test_the_first_failure_can_end_the_run() -> None:
    cases = [_case(fails), _case(passes, alone=True)]
    assert len(run_cases(_NoNetwork(), cases, {}, fail_fast=True)) == 1
    assert len(run_cases(_NoNetwork(), cases, {})) == 2
    many = [_case(fails), *(_case(passes) for _ in range(100))]
    assert len(run_cases(_NoNetwork(), many, {}, jobs=1, fail_fast=True)) < len(many)


def test_findings_name_every_failed_row() -> None:
    findings = Findings()
    for row in (1, 2, 3):
        with findings.of(f"row {row}"):
            check_equal(row, 2, "the number")
    with pytest.raises(
        CaseFailed, match="row 1: the number: 1, expected 2; row 3: the number: 3, expected 2"
    ):
        findings.judge()


# --- reports ----------------------------------------------------------------------------------------------------------


def test_the_text_has_the_sentence_the_rules_and_the_reason_of_a_failure() -> None:
    found = _outcomes()
    lines = list(outcome_lines(found[1]))
    assert lines[0].startswith("FAIL fails")
    assert [line.strip() for line in lines[1:]] == [
        "rule:     It holds <always>.",
        "ids:      R-1",
        "found:    the number: 1, expected 2",
    ]
    assert list(outcome_lines(found[5])) == ["??   may_not  not judged: no right to publish"]
    assert summary(found) == "6 cases: 1 passed, 3 failed, 1 not applicable, 1 not judged; 1 rules judged"


def test_the_text_has_no_control_characters_of_the_subject() -> None:
    lines = list(outcome_lines(_outcomes()[2]))
    assert lines[-1].endswith("field 1 is <no> text?")


def test_the_xml_is_valid_and_counts_what_failed() -> None:
    suite = ET.fromstring(junit_xml(_outcomes(), "streamer"))
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["6", "3", "2"]
    assert [each.get("name") for each in suite.iter("testcase")] == [each.__name__ for each in BODIES]
    assert [each.get("value") for each in suite.iter("property")] == ["R-1"] * 6
    assert [each.get("message") for each in suite.iter("skipped")] == [
        "not applicable: no such method",
        "not judged: no right to publish",
    ]
    messages = [each.get("message") for each in suite.iter("failure")]
    assert messages[:2] == [
        "the number: 1, expected 2",
        "a payload of another type than the rule has: field 1 is <no> text?",
    ]


def test_the_page_is_one_file_and_escapes_what_the_subject_sent() -> None:
    page = html_page(_outcomes(), "streamer", "//a & b")
    assert "field 1 is &lt;no&gt; text" in page
    assert "<no>" not in page
    assert "//a &amp; b" in page
    assert not any(each in page for each in ("src=", "href=", "@import", "url("))
    assert page.count('<tr class="failed">') == 3


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_lists_its_cases(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--subject", "streamer", "DSP-20"]) == 0
    assert "publications_are_forwarded_at_the_rate_of_the_subscriber" in capsys.readouterr().out


def test_a_network_without_a_node_ends_with_69(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--connect", "tcp/127.0.0.1:1"]) == 69
    printed = capsys.readouterr()
    assert "tcp/127.0.0.1:1" in printed.err
    assert ".rs:" not in printed.err
    assert " 0 passed, 0 failed, 0 not applicable" in printed.out


def test_without_an_answer_the_reports_have_every_case_as_not_judged(tmp_path: Path) -> None:
    junit, page = tmp_path / "result.xml", tmp_path / "result.html"
    assert main(["--connect", "tcp/127.0.0.1:1", "--junit", str(junit), "--page", str(page)]) == 69
    suite = ET.parse(junit).getroot()
    assert suite.get("tests") == suite.get("skipped")
    reasons = {each.get("message") for each in suite.iter("skipped")}
    assert len(reasons) == 1
    assert str(reasons.pop()).startswith("not judged: --connect tcp/127.0.0.1:1: no node of Zenoh answers")
    assert page.read_text(encoding="utf-8").count("not judged: --connect tcp/127.0.0.1:1: no node") == int(
        suite.get("tests", 0)
    )


def test_a_report_that_was_not_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--connect", "tcp/127.0.0.1:1", "--junit", "/dev/full"]) == 69
    assert "--junit /dev/full was not written: No space left on device" in capsys.readouterr().err
