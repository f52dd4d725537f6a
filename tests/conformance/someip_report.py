# SPDX-License-Identifier: Apache-2.0
"""The page docs/someip-conformance.md: a table for each chapter of the open SOME/IP specification.

Rules and evidence in, Markdown out. Equal trees and outcomes give equal bytes, as in `report.py`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.conformance.report import MISSING, table_row
from tests.conformance.rules import SpecRule
from tests.conformance.run import RunOutcome
from tests.conformance.trace import Trace

PAGE_FILE: Final = Path("docs/someip-conformance.md")
"""Path of the page in a tree."""

_DOCUMENTS: Final = {
    "RPC": "RPC and on-wire format (someip)",
    "SD": "Service discovery (someipsd)",
    "TP": "Segmented messages (someiptp)",
    "COMPAT": "Compatibility (someipcompat)",
    "IDS": "Reserved identifiers (someipids)",
}
_RESULT: Final = re.compile(
    r"^\| ((?:RPC|SD|TP|COMPAT|IDS)-\d+) \|.*\| ((?:passed|failed|skipped) [^|]+) \|$", re.MULTILINE
)

_PAGE_HEAD: Final = """\
<!-- SPDX-License-Identifier: Apache-2.0 -->
<!-- Made by `make conformance`; a test compares all but the results with the sources. -->
# Conformance to SOME/IP

Every numbered item of the [open SOME/IP specification](https://github.com/some-ip-com/open-someip-spec): with the code
that meets it, the tests that show it and their result when this page was made, or with the reason why it does not
apply. SD-764 is `feat_req_someipsd_764` there. The summaries are ours; the text of the specification counts.

Code and tests carry the ids as tags, as in [conformance.md](conformance.md). The items are in
[someip.toml](../tests/conformance/someip.toml). Paths of code begin at `ustreamer/transports/someip`, paths of tests at
`tests/transports/someip` or `tests`. A word in italics in place of code is the reason why an item does not apply.
"""


def render_page(trace: Trace, outcomes: Mapping[str, RunOutcome]) -> str:
    """The page. `outcomes` are by item; an item without an outcome was not run."""
    return "\n".join(_page(trace, outcomes)) + "\n"


def parse_outcomes(page: str) -> dict[str, RunOutcome]:
    """Outcomes on a page, by item."""
    return {id: RunOutcome.parse(text) for id, text in _RESULT.findall(page)}


def _page(trace: Trace, outcomes: Mapping[str, RunOutcome]) -> Iterator[str]:
    yield _PAGE_HEAD
    yield from _totals(trace)
    yield "\n## Not met\n"
    unmet = [each for each in trace.rules.all if each.unmet]
    yield from _table(
        ("item", "rule", "what is missing"), ((each.id, each.says, each.unmet) for each in unmet)
    )
    yield "\n## Why items do not apply\n"
    counts = Counter(each.excluded for each in trace.rules.all)
    reasons = [(key, text, str(counts[key])) for key, text in trace.rules.reasons.items()]
    others = sum(count for key, count in counts.items() if key and key not in trace.rules.reasons)
    yield from _table(("reason", "meaning", "items"), [*reasons, ("others", "At the item.", str(others))])
    for specification in trace.rules.specifications:
        yield f"\n## {specification.title}\n"
        rows = (_cells(each, trace, outcomes) for each in trace.rules.rules[specification.name])
        yield from _table(("item", "rule", "code", "tests", "result"), rows)


def _totals(trace: Trace) -> Iterator[str]:
    rows = []
    for prefix, title in _DOCUMENTS.items():
        rules = [each for each in trace.rules.all if each.id.startswith(f"{prefix}-")]
        rows.append((title, _counts(rules, trace)))
    rows.append(("together", _counts(trace.rules.all, trace)))
    head = (
        "document",
        "items",
        "met",
        "not met",
        "missing code or test",
        "information",
        "do not apply otherwise",
    )
    yield from _table(head, ((title, *map(str, counts)) for title, counts in rows))


def _counts(rules: list[SpecRule], trace: Trace) -> tuple[int, ...]:
    missing = sum(bool(trace.evidence[each.id].missing(each)) for each in rules)
    unmet = sum(bool(each.unmet) for each in rules)
    information = sum(each.excluded == "info" for each in rules)
    excluded = sum(bool(each.excluded) for each in rules)
    met = len(rules) - unmet - missing - excluded
    return len(rules), met, unmet, missing, information, excluded - information


def _cells(rule: SpecRule, trace: Trace, outcomes: Mapping[str, RunOutcome]) -> tuple[str, ...]:
    if rule.excluded or rule.unmet:
        return rule.id, rule.says, f"*{rule.excluded or 'not met'}*", "", ""
    evidence = trace.evidence[rule.id]
    code = [_reference(each.file, each.symbol) for each in evidence.code]
    tests = [_reference(each.file, each.name) for each in evidence.tests]
    result = str(outcomes.get(rule.id, RunOutcome()))
    return rule.id, rule.says, "<br>".join(code) or MISSING, "<br>".join(tests) or MISSING, result


def _reference(file: str, name: str) -> str:
    short = file.removeprefix("ustreamer/transports/someip/").removeprefix("tests/")
    return f"`{short.removeprefix('transports/someip/')}` `{name}`"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield table_row(*head)
    yield "|" + "---|" * len(head)
    yield from (table_row(*row) for row in rows)
