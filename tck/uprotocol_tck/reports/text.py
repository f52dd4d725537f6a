# SPDX-License-Identifier: Apache-2.0
"""The report for a terminal."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from uprotocol_tck.case import Case
from uprotocol_tck.runner import Outcome, Verdict

_MARKS: Final = {
    Verdict.PASSED: "ok  ",
    Verdict.FAILED: "FAIL",
    Verdict.NOT_APPLICABLE: "n/a ",
    Verdict.NOT_JUDGED: "??  ",
}
JUDGED: Final = {Verdict.PASSED, Verdict.FAILED}


def outcome_lines(outcome: Outcome) -> Iterator[str]:
    """One case: its verdict, and for a failure its sentence, its rules and the reason."""
    case = outcome.case
    if outcome.verdict is Verdict.NOT_APPLICABLE:
        yield f"{_MARKS[outcome.verdict]} {case.name}  needs {plain_text(outcome.reason)}"
        return
    if outcome.verdict is Verdict.NOT_JUDGED:
        yield f"{_MARKS[outcome.verdict]} {case.name}  not judged: {plain_text(outcome.reason)}"
        return
    yield f"{_MARKS[outcome.verdict]} {case.name}  {outcome.seconds:.2f} s"
    if outcome.verdict is Verdict.FAILED:
        yield f"       rule:     {case.sentence}"
        yield f"       ids:      {', '.join(case.rules)}"
        yield from textwrap.indent(f"found:    {plain_text(outcome.reason)}", "       ").splitlines()


def summary(outcomes: Sequence[Outcome]) -> str:
    """One line; the last of the report."""
    counts = Counter(each.verdict for each in outcomes)
    rules = {rule for each in outcomes if each.verdict in JUDGED for rule in each.case.rules}
    verdicts = ", ".join(f"{counts[each]} {each}" for each in Verdict)
    return f"{len(outcomes)} cases: {verdicts}; {len(rules)} rules judged"


def plain_text(text: str) -> str:
    """Without control characters: the text may come from the subject, and go to a terminal."""
    return "".join(each if each.isprintable() or each in "\n\t" else "?" for each in text)


def case_lines(cases: Sequence[Case]) -> Iterator[str]:
    """The list of cases."""
    for case in cases:
        yield f"{case.subject:14}{case.name}"
        yield f"              {case.sentence}"
        yield f"              {', '.join(case.rules)}"
