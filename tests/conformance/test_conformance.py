# SPDX-License-Identifier: Apache-2.0
"""The pages of conformance match the sources, and the command that writes them reports every fault."""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.conformance import __main__ as command
from tests.conformance import report, someip_report
from tests.conformance.rules import RULES_FILE, SOMEIP_RULES_FILE, Specification, SpecRule, SpecRules
from tests.conformance.run import RunOutcome
from tests.conformance.tags import CaseRef, SourceModule, read_module
from tests.conformance.trace import Trace, build_trace, build_traces

REPO = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def traces() -> dict[Path, Trace]:
    return build_traces(REPO)


@pytest.fixture(scope="module")
def found(traces: dict[Path, Trace]) -> Trace:
    return traces[RULES_FILE]


@pytest.fixture(scope="module")
def page() -> str:
    return (REPO / report.PAGE_FILE).read_text(encoding="utf-8")


# --- this repository --------------------------------------------------------------------------------------------------


@pytest.fixture(
    params=[(RULES_FILE, report), (SOMEIP_RULES_FILE, someip_report)], ids=["usubscription", "someip"]
)
def both(request: pytest.FixtureRequest, traces: dict[Path, Trace]) -> tuple[Trace, ModuleType, str]:
    """Each list of rules: its trace, the module of its page, and the page."""
    file, module = request.param
    return traces[file], module, (REPO / module.PAGE_FILE).read_text(encoding="utf-8")


def test_the_page_matches_the_rules_code_and_tests_of_this_tree(both: tuple[Trace, ModuleType, str]) -> None:
    found, module, page = both
    assert page == module.render_page(found, module.parse_outcomes(page)), "run `make conformance`"


def test_the_page_shows_passed_tests_only(both: tuple[Trace, ModuleType, str]) -> None:
    found, module, page = both
    outcomes = module.parse_outcomes(page)
    judged = {id for id, evidence in found.evidence.items() if evidence.tests or evidence.cases}
    assert outcomes.keys() == judged
    assert {id: str(each) for id, each in outcomes.items() if each.failure_reason} == {}


def test_every_tag_names_a_rule_at_a_valid_place(found: Trace) -> None:
    assert found.invalid_tags == ()


def test_every_rule_is_covered(both: tuple[Trace, ModuleType, str]) -> None:
    assert both[0].gaps == []


def test_the_list_has_every_item_of_the_someip_specification(traces: dict[Path, Trace]) -> None:
    """The numbers were counted in the specification."""
    rules = traces[SOMEIP_RULES_FILE].rules
    documents = Counter(rule.id.partition("-")[0] for rule in rules.all)
    assert documents == {"RPC": 248, "SD": 327, "TP": 40, "COMPAT": 15, "IDS": 8}
    assert sum(rule.excluded == "info" for rule in rules.all) == 166
    assert [rule.id for rule in rules.all if rule.unmet] == [
        "RPC-701",
        "RPC-702",
        "RPC-680",
        "RPC-598",
    ]


def test_the_list_has_every_rule_of_the_specifications(found: Trace) -> None:
    """The numbers were counted in the specifications. An id of two versions counts in the first."""
    assert {name: len(rules) for name, rules in found.rules.rules.items()} == {
        "v3": 54,
        "lifecycle": 20,
        "v4": 36,
        "dispatchers": 27,
        "wamp": 17,
        "uri": 11,
        "uuid": 4,
        "uattributes": 27,
        "umessage": 7,
        "zenoh": 6,
        "transport": 27,
        "mqtt5": 6,
        "communication": 15,
    }
    assert [rule.id for rule in found.rules.rules["lifecycle"]] == [f"LIF-{n}" for n in range(1, 21)]
    shape = re.compile(r"(req|dsn|aou)~[a-z0-9_-]+~[12]|(LIF|DSP|WSU)-\d+")
    assert [rule.id for rule in found.rules.all if not shape.fullmatch(rule.id)] == []


def test_every_rule_without_a_case_of_the_kit_has_a_reason_or_other_tests(found: Trace) -> None:
    without = [rule for rule in found.rules.all if not found.evidence[rule.id].cases]
    assert [
        rule.id for rule in without if not (rule.inside or rule.excluded or rule.shown_by or rule.note)
    ] == []
    assert [rule.id for rule in found.rules.all if rule.inside and found.evidence[rule.id].cases] == []


def test_few_rules_are_excepted_and_the_page_has_the_reasons(found: Trace, page: str) -> None:
    excepted = [rule for rule in found.rules.all if rule.note]
    assert [rule.id for rule in excepted if not rule.needs] == ["LIF-8"]
    assert len(excepted) <= 5
    for rule in excepted:
        assert f"* `{rule.id}`: {rule.note}" in " ".join(page.split())


# --- a small tree ------------------------------------------------------------------------------------------------

RULES = """\
[[specifications]]
name = "one"
title = "One"
source = "Test data."

[[rules.one]]
id = "req~one-kept~1"
says = "It is kept."

[[rules.one]]
id = "LIF-1"
says = "It is undefined."
needs = []
note = "Left open."
"""
CODE = 'def keep() -> None:\n    """[impl->req~one-kept~1]"""\n'
TEST = 'def test_it_is_kept() -> None:\n    """[utest->req~one-kept~1]"""\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A complete tree: one rule, its code, its test."""
    for name, text in (
        (str(RULES_FILE), RULES),
        ("plugins/one/ustreamer_one/keep.py", CODE),
        ("plugins/one/tests/test_keep.py", TEST),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def conform(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, with a pytest without plugins: loading them takes longer than the tests."""
    return subprocess.run(
        [sys.executable, "-m", "tests.conformance", "--root", str(root)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


def put(root: Path, name: str, old: str, new: str) -> None:
    text = (root / name).read_text(encoding="utf-8")
    assert old in text
    (root / name).write_text(text.replace(old, new), encoding="utf-8")


def test_a_complete_tree_gets_its_page_and_only_tests_of_listed_rules_run(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tree / TEST_FILE).open("a", encoding="utf-8") as file:
        file.write("\n\ndef test_of_nothing():\n    raise OSError\n")
    done = conform(tree)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^1 passed, 1 deselected", done.stdout, re.MULTILINE)
    assert done.stdout.endswith("docs/conformance.md: 2 rules, 1 tests, 0 wrong\n")
    page = (tree / report.PAGE_FILE).read_text(encoding="utf-8")
    assert (
        "### `req~one-kept~1`\n\nIt is kept.\n\n"
        "* code: [keep.py](../plugins/one/ustreamer_one/keep.py)\n  `keep`\n"
        "* test: [test_keep.py](../plugins/one/tests/test_keep.py)\n  `test_it_is_kept`\n"
        "* result: passed 1\n"
    ) in page
    assert "| One | 2 | 2 | 0 | 1 | 0 |" in page.splitlines()
    assert page.splitlines()[-1] == "* `LIF-1`: Left open."
    assert str(tree) not in page
    monkeypatch.setattr(command, "run_tests", all_pass)
    assert command.main(["--root", str(tree)]) == 0
    assert (tree / report.PAGE_FILE).read_text(encoding="utf-8") == page


SOURCE_FILE, TEST_FILE = "plugins/one/ustreamer_one/keep.py", "plugins/one/tests/test_keep.py"
FAULTS = {
    "no code": (SOURCE_FILE, "[impl->req~one-kept~1]", "", "req~one-kept~1: no code is tagged"),
    "no test": (TEST_FILE, "[utest->req~one-kept~1]", "", "req~one-kept~1: no test is tagged"),
    "a typing error": (
        TEST_FILE,
        "[utest->req~one-kept~1]",
        "[utest->req~one-kept~1] [utest->req~one-kpet~1]",
        f"{TEST_FILE}:2: [utest->req~one-kpet~1]: no such rule, did you mean req~one-kept~1?",
    ),
    "a test for code": (
        TEST_FILE,
        "[utest",
        "[utest->req~one-kept~1] [impl",
        f"{TEST_FILE}:2: [impl->req~one-kept~1]: expected itest or utest here",
    ),
    "a test's tag on code": (
        SOURCE_FILE,
        "[impl",
        "[impl->req~one-kept~1] [utest",
        f"{SOURCE_FILE}:2: [utest->req~one-kept~1]: expected impl here",
    ),
    "a tag on no test": (
        TEST_FILE,
        "def test_",
        "def helper() -> None:\n    # [utest->LIF-1]\n    pass\n\n\ndef test_",
        f"{TEST_FILE}:2: [utest->LIF-1]: is on helper, expected a test",
    ),
    "a kind that is none": (
        SOURCE_FILE,
        "[impl",
        "[impl->req~one-kept~1] [imple",
        f"{SOURCE_FILE}:2: [imple->req~one-kept~1]: expected impl here",
    ),
}


def all_pass(_: Path, tests: Iterable[CaseRef]) -> Mapping[CaseRef, RunOutcome]:
    """Replaces the run of tests: every test passes."""
    return {test: RunOutcome(1) for test in tests}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named_and_the_page_is_still_written(
    tree: Path, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, old, new, message = FAULTS[fault]
    put(tree, file, old, new)
    monkeypatch.setattr(command, "run_tests", all_pass)
    assert command.main(["--root", str(tree)]) == 1
    assert capsys.readouterr().err == f"{message}\n"
    assert "`req~one-kept~1`" in (tree / report.PAGE_FILE).read_text(encoding="utf-8")


BROKEN_SET_UP = "import pytest\n\n@pytest.fixture\ndef broken():\n    raise OSError\n\n"
BROKEN_TEAR_DOWN = "import pytest\n\n@pytest.fixture\ndef broken():\n    yield\n    raise OSError\n\n"
# The code above a test, the code in the test, and the outcome.
OUTCOMES = {
    "a parameter fails": (
        "import pytest\n\n@pytest.mark.parametrize('broken', [1, 2, 3])\n",
        "assert broken != 2",
        "a test failed (passed 2, failed 1)",
    ),
    "the set-up fails": (BROKEN_SET_UP, "pass", "a test failed (failed 1)"),
    "the tear-down fails": (BROKEN_TEAR_DOWN, "pass", "a test failed (failed 1)"),
    "it is skipped": (
        "import pytest\n\n@pytest.fixture\ndef broken():\n    pytest.skip('no')\n\n",
        "pass",
        "no test passed (skipped 1)",
    ),
    "its file cannot be imported": ("import nothing_of_that_name\n\n", "pass", "no test passed (not run)"),
}


def test_rules_without_passed_tests_are_named_with_the_outcomes(tree: Path) -> None:
    for number, (above, body, _) in enumerate(OUTCOMES.values()):
        with (tree / RULES_FILE).open("a", encoding="utf-8") as file:
            file.write(
                f'[[rules.one]]\nid = "req~{number}~1"\nsays = "It is."\nneeds = ["test"]\nnote = "No."\n'
            )
        source = f"{above}# [utest->req~{number}~1]\ndef test_it(broken):\n    {body}\n"
        (tree / f"plugins/one/tests/test_{number}.py").write_text(source, encoding="utf-8")
    done = conform(tree)
    messages = [f"req~{number}~1: {outcome}" for number, (*_, outcome) in enumerate(OUTCOMES.values())]
    assert (done.returncode, done.stderr.splitlines()) == (
        1,
        ["plugins/one/tests/test_4.py::test_it: not run", *messages],
    )
    shown = {
        id: str(each) for id, each in report.parse_outcomes((tree / report.PAGE_FILE).read_text()).items()
    }
    assert shown == {
        "req~one-kept~1": "passed 1",
        **{id: text.strip("()") for line in messages for id, _, text in [re.split(r": | (?=\()", line)]},
    }


SOMEIP_RULES = """\
[reasons]
info = "It explains."

[[specifications]]
name = "sd"
title = "SD"

[rules]
sd = [
    { id = "SD-1", says = "It is kept." },
    { id = "SD-2", says = "It is explained.", excluded = "info" },
    { id = "SD-3", says = "It is left out.", unmet = "all of it" },
]
"""


@pytest.mark.parametrize(
    ("tagged", "gaps"), [("SD-1", []), ("SD-1, SD-2", ["SD-2: does not apply, but is tagged"])]
)
def test_an_item_is_met_or_unmet_or_does_not_apply(tree: Path, tagged: str, gaps: list[str]) -> None:
    (tree / SOMEIP_RULES_FILE).write_text(SOMEIP_RULES, encoding="utf-8")
    put(tree, SOURCE_FILE, "[impl", f"[impl->{tagged}] [impl")
    put(tree, TEST_FILE, "[utest", "[utest->SD-1] [utest")
    trace = build_traces(tree)[SOMEIP_RULES_FILE]
    assert trace.gaps == gaps
    outcomes = {"SD-1": RunOutcome(2)}
    page = someip_report.render_page(trace, outcomes)
    assert someip_report.parse_outcomes(page) == outcomes
    keep, test = (
        "`plugins/one/ustreamer_one/keep.py` `keep`",
        "`plugins/one/tests/test_keep.py` `test_it_is_kept`",
    )
    assert page.splitlines()[-3:] == [
        f"| SD-1 | It is kept. | {keep} | {test} | passed 2 |",
        "| SD-2 | It is explained. | *info* |  |  |",
        "| SD-3 | It is left out. | *not met* |  |  |",
    ]
    assert "| SD-3 | It is left out. | all of it |" in page


# --- cases of the kit -------------------------------------------------------------------------------------------------

EITHER_RULES = """\
[[specifications]]
name = "two"
title = "Two"
either = true

[[rules.two]]
id = "TWO-1"
says = "It is judged."

[[rules.two]]
id = "TWO-2"
says = "It is shown."
shown_by = ["plugins/one/tests/test_keep.py::test_it_is_kept"]

[[rules.two]]
id = "TWO-3"
says = "It is not for us."
excluded = "It permits everything."
"""
CASES = """\
@case("TWO-1", versions=(3, 4))
def it_is_judged(world):
    pass
"""
CASES_FILE = "tck/uprotocol_tck/cases/judging.py"


@pytest.fixture
def judged_tree(tree: Path) -> Path:
    """A tree with a specification whose rules need a case or a test."""
    text = (tree / RULES_FILE).read_text(encoding="utf-8")
    (tree / RULES_FILE).write_text(f"{text}\n{EITHER_RULES}", encoding="utf-8")
    (tree / CASES_FILE).parent.mkdir(parents=True)
    (tree / CASES_FILE).write_text(CASES, encoding="utf-8")
    return tree


def test_a_case_or_a_test_or_a_reason_is_enough(judged_tree: Path) -> None:
    trace = build_trace(judged_tree)
    assert (trace.gaps, trace.invalid_tags, trace.cases) == ([], (), [CaseRef(CASES_FILE, "it_is_judged")])
    outcomes = {"TWO-1": RunOutcome(2), "req~one-kept~1": RunOutcome(1)}
    page = report.render_page(trace, outcomes)
    assert report.parse_outcomes(page) == outcomes
    assert (
        "* case: [judging.py](../tck/uprotocol_tck/cases/judging.py)\n  `it_is_judged`\n* result: passed 2\n"
        in page
    )
    assert "  `test_it_is_kept`\n* result: by `make test`\n" in page
    assert "| Two | 3 | 3 | 0 | 1 | 1 |" in page.splitlines()
    assert page.splitlines()[-1] == "* `TWO-3`: It permits everything."


@pytest.mark.parametrize(
    ("file", "old", "new", "messages"),
    [
        (CASES_FILE, '"TWO-1"', '"LIF-1"', ["TWO-1: no case and no test"]),
        (CASES_FILE, '"TWO-1"', '"TWO-1", "TWO-9"', [f"{CASES_FILE}::it_is_judged: TWO-9: no such rule"]),
        (CASES_FILE, '"TWO-1"', '"TWO-1", "TWO-3"', ["TWO-3: does not apply, but is tagged"]),
        (
            str(RULES_FILE),
            "::test_it_is_kept",
            "::test_it_was",
            ["TWO-2: shown by plugins/one/tests/test_keep.py::test_it_was, which does not exist"],
        ),
    ],
)
def test_a_rule_without_evidence_and_an_unknown_rule_or_test_are_faults(
    judged_tree: Path, file: str, old: str, new: str, messages: list[str]
) -> None:
    put(judged_tree, file, old, new)
    trace = build_trace(judged_tree)
    assert [*trace.invalid_tags, *trace.gaps] == messages


def test_a_case_that_did_not_run_and_one_that_failed_are_reported(
    judged_tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_tests", all_pass)
    for outcome, message in (
        (RunOutcome(), "no test passed (not run)"),
        (RunOutcome(1, 1), "a test failed (passed 1, failed 1)"),
        (RunOutcome(0, 0, 1), "no test passed (skipped 1)"),
    ):
        monkeypatch.setattr(command, "run_cases", lambda cases, found=outcome: dict.fromkeys(cases, found))
        assert command.main(["--root", str(judged_tree)]) == 1
        assert f"TWO-1: {message}" in capsys.readouterr().err


def test_a_reason_is_a_known_key_or_a_sentence() -> None:
    with pytest.raises(ValueError, match="rule a: excluded 'no'"):
        SpecRules((ONE,), {"one": (SpecRule("a", "A.", excluded="no"),)}, {"info": "It explains."})


def test_missing_code_and_tests_are_on_the_page_without_a_run(tree: Path) -> None:
    put(tree, TEST_FILE, "[utest->req~one-kept~1]", "")
    page = report.render_page(build_trace(tree), {})
    assert "  `keep`\n* test: **missing**\n* result: **missing**\n" in page
    assert "| One | 2 | 1 | 1 | 1 | 0 |" in page.splitlines()
    assert report.parse_outcomes(page) == {}


# --- places of tags --------------------------------------------------------------------------------------------

TAGGED = '''\
"""Of the file. [utest->HEAD-1]"""
# [utest->HEAD-2]
import os

LIMIT = 3  # [utest->CONST-1]
OTHER = 4
"""[utest->CONST-2]"""


# [utest->ABOVE-1, ABOVE-3]
# [utest->ABOVE-2]
@decorated
# [utest->BETWEEN-1]
async def test_one():
    """Says

    [utest->DOC-1] twice. [itest->DOC-2]
    """
    text = "[utest->STRING-1]"
    # [utest->BODY-1]
    assert text  # [utest->LINE-1]


# [utest->LATE-1]

class TestLink:
    """[utest->CLASS-1]"""

    # [utest->METHOD-1]
    def test_two(self):
        pass

    def help(self):
        # [utest->HELP-1]
        pass
'''
PLACES = {
    "HEAD-1": ["test_one", "TestLink::test_two"],
    "HEAD-2": ["test_one", "TestLink::test_two"],
    "CONST-1": [],
    "CONST-2": [],
    "ABOVE-1": ["test_one"],
    "ABOVE-3": ["test_one"],
    "ABOVE-2": ["test_one"],
    "BETWEEN-1": ["test_one"],
    "DOC-1": ["test_one"],
    "DOC-2": ["test_one"],
    "BODY-1": ["test_one"],
    "LINE-1": ["test_one"],
    "LATE-1": [],
    "CLASS-1": ["TestLink::test_two"],
    "METHOD-1": ["TestLink::test_two"],
    "HELP-1": [],
}


def about(module: SourceModule) -> dict[str, list[str]]:
    return {tag.rule: [test.name for test in module.tests_of(tag)] for tag in module.tags}


def test_a_tag_belongs_to_its_function_class_or_module() -> None:
    module = read_module("tests/test_x.py", TAGGED)
    assert about(module) == PLACES
    symbols = {tag.rule: tag.symbol for tag in module.tags}
    assert (symbols["CONST-1"], symbols["CONST-2"], symbols["LATE-1"]) == ("LIMIT", "OTHER", "")
    assert (symbols["METHOD-1"], symbols["HELP-1"]) == ("TestLink.test_two", "TestLink.help")
    lines = TAGGED.splitlines()
    assert [tag.rule for tag in module.tags if tag.rule not in lines[tag.line - 1]] == []


def test_a_file_that_pytest_does_not_collect_has_no_tests() -> None:
    assert read_module("tests/conftest.py", TAGGED).tests == ()


# --- lists and outcomes -----------------------------------------------------------------------------------------------

ONE = Specification("one", "One", "Test data.")


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ([SpecRule("a", "A."), SpecRule("a", "B.")], "rule a: listed twice"),
        ([SpecRule("a", "A.", also="two")], "rule a: also 'two', expected one of \\['one'\\]"),
        (
            [SpecRule("a", "A.", needs=("impl",))],
            "rule a: needs \\['impl'\\], and a note exactly if not both",
        ),
        (
            [SpecRule("a", "A.", note="No.")],
            "rule a: needs \\['impl', 'test'\\], and a note exactly if not both",
        ),
    ],
)
def test_a_contradictory_list_is_refused(rules: list[SpecRule], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        SpecRules((ONE,), {"one": tuple(rules)})


def test_a_list_of_unknown_specifications_or_keys_is_refused(tree: Path) -> None:
    with pytest.raises(ValueError, match="specifications \\['one'\\], but rules of \\['two'\\]"):
        SpecRules((ONE,), {"two": ()})
    put(tree, str(RULES_FILE), "says", "syas")
    with pytest.raises(msgspec.ValidationError, match="syas"):
        build_trace(tree)


@pytest.mark.parametrize(
    "outcome", [RunOutcome(), RunOutcome(3), RunOutcome(1, 2), RunOutcome(0, 0, 1), RunOutcome(1, 1, 1)]
)
def test_an_outcome_is_parsed_from_its_text(outcome: RunOutcome) -> None:
    assert RunOutcome.parse(str(outcome)) == outcome


@pytest.mark.parametrize("text", ["", "passed", "passed x", "won 1", "passed 1 2"])
def test_an_invalid_outcome_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        RunOutcome.parse(text)
