# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.conformance`: rewrites the pages of conformance from the tags and the results of their tests."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.conformance import report, someip_report
from tests.conformance.rules import RULES_FILE, SOMEIP_RULES_FILE
from tests.conformance.run import RunOutcome, run_tests
from tests.conformance.tags import CaseRef
from tests.conformance.trace import Trace, build_traces

REPO: Final = Path(__file__).resolve().parents[2]
PAGES: Final = {
    RULES_FILE: (report.PAGE_FILE, report.render_page),
    SOMEIP_RULES_FILE: (someip_report.PAGE_FILE, someip_report.render_page),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages and report every problem. Returns 1 for an uncovered rule, a test that did not pass or an
    invalid tag.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=REPO, help="the tree to look at (default: the one that this is part of)"
    )
    root: Path = parser.parse_args(argv).root.resolve()
    traces = build_traces(root)
    run_outcomes = dict(run_tests(root, sorted({test for found in traces.values() for test in found.tests})))
    run_outcomes |= run_cases([case for found in traces.values() for case in found.cases])
    problems = 0
    for file, found in traces.items():
        page, render = PAGES[file]
        outcomes = report.outcomes_by_rule(found, run_outcomes)
        (root / page).parent.mkdir(exist_ok=True)
        (root / page).write_text(render(found, outcomes), encoding="utf-8")
        wrong = _problems(found, outcomes, run_outcomes)
        problems += len(wrong)
        print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
        cases = f", {len(found.cases)} cases" if found.cases else ""
        print(f"{page}: {len(found.rules.all)} rules, {len(found.tests)} tests{cases}, {len(wrong)} wrong")
    return 1 if problems else 0


def run_cases(cases: Sequence[CaseRef]) -> Mapping[CaseRef, RunOutcome]:
    """The outcomes of these cases of the kit, against a started streamer."""
    if not cases:
        return {}
    # After the tests: pytest refuses to run with a part of the streamer that was imported before.
    from tests.conformance.subject import judge

    return judge(cases)


def _problems(
    found: Trace, outcomes: Mapping[str, RunOutcome], run_outcomes: Mapping[CaseRef, RunOutcome]
) -> list[str]:
    # A test that did not run would be hidden by another passed test of the same rule.
    expected = (*found.tests, *found.cases)
    not_run = [f"{each.nodeid}: not run" for each in expected if run_outcomes[each] == RunOutcome()]
    failures = [
        f"{id}: {outcome.failure_reason} ({outcome})"
        for id, outcome in outcomes.items()
        if outcome.failure_reason
    ]
    return [*found.invalid_tags, *found.gaps, *not_run, *failures]


if __name__ == "__main__":
    sys.exit(main())
