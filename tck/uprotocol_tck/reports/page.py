# SPDX-License-Identifier: Apache-2.0
"""The report as one HTML file without external resources."""

from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from uprotocol_tck.runner import Outcome, Verdict

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
h2 { margin-top: 2rem } code { font-size: 0.85em } p.facts { color: #555 }
table { border-collapse: collapse; width: 100% }
td, th { padding: 0.35rem 0.6rem; text-align: left; vertical-align: top }
tr { border-bottom: 1px solid #ddd } td.verdict { white-space: nowrap; font-weight: 600 }
.passed td.verdict { color: #17702e } .failed td.verdict { color: #b3161b } .na td.verdict { color: #666 }
.failed { background: #fdf0f0 } .na { color: #666 } pre { white-space: pre-wrap; margin: 0.3rem 0 0 }
label { margin-right: 1rem } body.only-failed tr.passed, body.only-failed tr.na { display: none }
"""
_SCRIPT: Final = """
document.getElementById("only").addEventListener("change", event =>
    document.body.classList.toggle("only-failed", event.target.checked));
"""
_CLASSES: Final = {
    Verdict.PASSED: "passed",
    Verdict.FAILED: "failed",
    Verdict.NOT_APPLICABLE: "na",
    Verdict.NOT_JUDGED: "na",
}
_PREFIXES: Final = {Verdict.NOT_APPLICABLE: "needs ", Verdict.NOT_JUDGED: "not judged: "}


def html_page(outcomes: Sequence[Outcome], subject: str, facts: str) -> str:
    """The page; `facts` is one line about the run: where the subject was, and when."""
    return "\n".join(_page(outcomes, subject, facts)) + "\n"


def _page(outcomes: Sequence[Outcome], subject: str, facts: str) -> Iterator[str]:
    counts = Counter(each.verdict for each in outcomes)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f"<title>uProtocol conformance: {escape(subject)}</title><style>{_STYLE}</style></head><body>"
    yield f"<h1>uProtocol conformance: {escape(subject)}</h1><p class=facts>{escape(facts)}</p>"
    yield f"<p>{', '.join(f'<b>{counts[each]}</b> {each}' for each in Verdict)}."
    yield "A case that is not applicable needs what the subject or the command line does not have."
    yield "A case that is not judged could not be tried in this run; its reason says why.</p>"
    yield '<p><label><input type="checkbox" id="only"> only failures</label></p>'
    for group in dict.fromkeys(each.case.group for each in outcomes):
        yield f"<h2>{escape(group.replace('_', ' '))}</h2><table>"
        yield "<tr><th>verdict</th><th>case</th><th>rules</th><th>s</th></tr>"
        for each in outcomes:
            if each.case.group == group:
                yield from _row(each)
        yield "</table>"
    yield f"<script>{_SCRIPT}</script></body></html>"


def _row(outcome: Outcome) -> Iterator[str]:
    case = outcome.case
    version = f" (version {case.version})" if case.version else ""
    yield f'<tr class="{_CLASSES[outcome.verdict]}"><td class="verdict">{outcome.verdict}</td>'
    yield f"<td>{escape(case.sentence)}{version}<br><code>{escape(case.name)}</code>"
    if outcome.reason:
        prefix = _PREFIXES.get(outcome.verdict, "")
        yield f"<pre>{escape(prefix + outcome.reason)}</pre>"
    yield f"</td><td><code>{'<br>'.join(escape(rule) for rule in case.rules)}</code></td>"
    yield f"<td>{outcome.seconds:.2f}</td></tr>"
