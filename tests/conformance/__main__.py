# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.conformance`: docs/conformance.md anew, from the tags and from what their tests say now."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance import report
from tests.conformance.run import Outcome, run
from tests.conformance.trace import trace

REPO: Final = Path(__file__).resolve().parents[2]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page, whatever is in it; 1 if a rule is not covered, a test did not pass or a tag is wrong, each said."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=REPO, help="the tree to look at (default: the one that this is part of)"
    )
    root: Path = parser.parse_args(argv).root.resolve()
    found = trace(root)
    ran = run(root, found.tests)
    outcomes = report.by_rule(found, ran)
    page = root / report.PLACE
    page.parent.mkdir(exist_ok=True)
    page.write_text(report.render(found, outcomes), encoding="utf-8")
    # Beside a test that passed, another one of the same rule that was not run would not be noticed.
    idle = [f"{test.nodeid}: not run" for test, outcome in ran.items() if outcome == Outcome()]
    complaints = [
        f"{id}: {outcome.complaint} ({outcome})" for id, outcome in outcomes.items() if outcome.complaint
    ]
    wrong = [*found.wrong_tags, *found.gaps, *idle, *complaints]
    print(*wrong, sep="\n", end="\n" * bool(wrong), file=sys.stderr)
    print(f"{report.PLACE}: {len(found.rules.all)} rules, {len(found.tests)} tests, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
