# SPDX-License-Identifier: Apache-2.0
"""The page docs/conformance.md. Equal trees and outcomes give equal bytes: no dates, no times, no line numbers."""

import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.conformance import kit_report
from tests.conformance.rules import Specification, SpecRule
from tests.conformance.run import RunOutcome
from tests.conformance.tags import CaseRef
from tests.conformance.trace import Evidence, Trace

PAGE_FILE: Final = Path("docs/conformance.md")
"""Path of the page, one level below the root of a tree."""

_REPO: Final = Path(__file__).resolve().parents[2]
MISSING: Final = "**missing**"
_NOT_NEEDED: Final = "see [exceptions](#exceptions)"
_BY_TESTS: Final = "by `make test`"
_RESULT: Final = re.compile(r"^### `([^`]+)`.*?^\* result: ([^\n]+)$", re.MULTILINE | re.DOTALL)
_COLUMNS: Final = 118

_PAGE_HEAD: Final = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `make conformance`; a test compares all but the results with the sources. -->
# Conformance

Each rule of the specifications that the streamer and [plugins/usubscription](../plugins/usubscription/README.md) claim
to meet: the code that meets it, the cases of the [test kit](../tck/README.md) that judge it from outside, the tests
that show it, and the results when this page was made. Code and tests carry the ids as tags, `[impl->ID]`,
`[utest->ID]` and `[itest->ID]` (over real sockets). `make conformance` runs the tests, and the kit against a started
streamer. It fails if a rule has no code or no test, if a test or a case fails, or if a tag or a case names no rule. The
rules are in [rules.toml](../tests/conformance/rules.toml).

The rules of SOME/IP are in [someip-conformance.md](someip-conformance.md). The kit was tried, too:
[conformance-kit.md](conformance-kit.md).
"""

_LEGEND: Final = """\
A test or a case counts once for each of its parameters. A rule of uSubscription needs code and a test. A rule of
another specification needs a case or a test. "v4 too" marks a rule that version 4 has under the same id. X-n numbers
the places where the specifications contradict each other or themselves; the text after it is our resolution.
"""


def render_page(trace: Trace, outcomes: Mapping[str, RunOutcome]) -> str:
    """The page. `outcomes` are by rule; a rule without an outcome was not run."""
    return "\n".join(_page(trace, outcomes)) + "\n"


def outcomes_by_rule(trace: Trace, outcomes: Mapping[CaseRef, RunOutcome]) -> dict[str, RunOutcome]:
    """Combined outcomes of the tests and the cases of each rule that has some."""
    return {
        id: RunOutcome.total_of(outcomes[each] for each in (*evidence.tests, *evidence.cases))
        for id, evidence in trace.evidence.items()
        if evidence.tests or evidence.cases
    }


def parse_outcomes(page: str) -> dict[str, RunOutcome]:
    """Outcomes on a page, by rule."""
    texts = dict(_RESULT.findall(page))
    no_outcomes = {MISSING, _NOT_NEEDED, _BY_TESTS}
    return {id: RunOutcome.parse(text) for id, text in texts.items() if text not in no_outcomes}


def _page(trace: Trace, outcomes: Mapping[str, RunOutcome]) -> Iterator[str]:
    yield _PAGE_HEAD
    yield from kit_report.summary_items(kit_report.load_results(_REPO))
    yield ""
    yield from _summary(trace)
    yield ""
    yield _LEGEND.rstrip()
    for specification in trace.rules.specifications:
        yield f"\n## {specification.title}\n"
        yield from _wrapped(specification.source)
        for rule in trace.rules.rules[specification.name]:
            yield from _section(rule, trace, outcomes.get(rule.id, RunOutcome()))
    yield "\n## Exceptions\n"
    for rule in trace.rules.all:
        if reason := rule.note or rule.excluded or rule.inside:
            yield from _wrapped(f"* `{rule.id}`: {reason}", "  ")


def _summary(trace: Trace) -> Iterator[str]:
    yield "| specification | rules | covered | missing | exceptions | judged by the kit |"
    yield "|---|---:|---:|---:|---:|---:|"
    total = [0] * 5
    for specification in trace.rules.specifications:
        counts = _counts(specification, trace)
        total = [a + b for a, b in zip(total, counts, strict=True)]
        yield table_row(specification.title, *map(str, counts))
    yield table_row("together", *map(str, total))


def _counts(specification: Specification, trace: Trace) -> list[int]:
    """Numbers of rules, of covered rules, of uncovered rules, of exceptions, and of rules with a case of the kit."""
    rules = trace.rules.rules[specification.name]
    missing = sum(bool(trace.missing(rule)) for rule in rules)
    exceptions = sum(bool(rule.note or rule.excluded) for rule in rules)
    judged = sum(bool(trace.evidence[rule.id].cases) for rule in rules)
    return [len(rules), len(rules) - missing, missing, exceptions, judged]


def _section(rule: SpecRule, trace: Trace, outcome: RunOutcome) -> Iterator[str]:
    evidence = trace.evidence[rule.id]
    yield f"\n### `{rule.id}`" + (f" ({rule.also} too)" if rule.also else "")
    yield ""
    yield from _wrapped(rule.says)
    yield ""
    either = trace.rules.needs_either(rule)
    code = [_link(each.file, each.symbol) for each in evidence.code]
    tests = [_link(each.file, each.name) for each in evidence.tests]
    shown = [_link(file, name) for file, _, name in (each.partition("::") for each in rule.shown_by)]
    yield from (f"* code: {each}" for each in code or ([] if either else [_missing_text(rule, "impl")]))
    yield from (f"* case: {_link(each.file, each.name)}" for each in evidence.cases)
    needs_test = not (either and (evidence.cases or shown))
    yield from (f"* test: {each}" for each in [*tests, *shown] or [_missing_text(rule, "test")] * needs_test)
    yield f"* result: {_result_text(rule, evidence, outcome)}"


def _result_text(rule: SpecRule, evidence: Evidence, outcome: RunOutcome) -> str:
    if evidence.tests or evidence.cases:
        return str(outcome)
    return _BY_TESTS if rule.shown_by else _missing_text(rule, "test")


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, _COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _missing_text(rule: SpecRule, need: str) -> str:
    return MISSING if need in rule.needs and not rule.excluded else _NOT_NEEDED


def _link(file: str, name: str) -> str:
    """The file name identifies a file for the reader; the link has the whole path."""
    short = Path(file).name
    return f"[{short}](../{file})" + (f"\n  `{name}`" if name else "")


def table_row(*cells: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"
