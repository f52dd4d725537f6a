# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.conformance`: rewrites docs/conformance.md from the tags and the results of their tests."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance import report
from tests.conformance.run import RunOutcome, run_tests
from tests.conformance.trace import build_trace

REPO: Final = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page and report every problem. Returns 1 for an uncovered rule, a test that did not pass or an
    invalid tag.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=REPO, help="the tree to look at (default: the one that this is part of)"
    )
    root: Path = parser.parse_args(argv).root.resolve()
    found = build_trace(root)
    run_outcomes = run_tests(root, found.tests)
    outcomes = report.outcomes_by_rule(found, run_outcomes)
    page = root / report.PAGE_FILE
    page.parent.mkdir(exist_ok=True)
    page.write_text(report.render_page(found, outcomes), encoding="utf-8")
    # A test that did not run would be hidden by another passed test of the same rule.
    not_run = [f"{test.nodeid}: not run" for test, outcome in run_outcomes.items() if outcome == RunOutcome()]
    failures = [
        f"{id}: {outcome.failure_reason} ({outcome})"
        for id, outcome in outcomes.items()
        if outcome.failure_reason
    ]
    problems = [*found.invalid_tags, *found.gaps, *not_run, *failures]
    print(*problems, sep="\n", end="\n" * bool(problems), file=sys.stderr)
    print(
        f"{report.PAGE_FILE}: {len(found.rules.all)} rules, {len(found.tests)} tests, {len(problems)} wrong"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
