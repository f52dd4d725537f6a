# SPDX-License-Identifier: Apache-2.0
"""From the evidence about one address to a paragraph for people."""

from typing import Final

import msgspec

from ustreamer.host.diagnosis.evidence import Evidence
from ustreamer.host.diagnosis.findings import HEALTHY, DiagnosisFinding, duration, time_of_day
from ustreamer.host.diagnosis.methods import method_findings
from ustreamer.host.diagnosis.subscribers import subscriber_findings
from ustreamer.host.diagnosis.topics import topic_findings
from ustreamer.uprotocol.uuri import UUri

MAX_FINDINGS: Final = 5
_BY_CONFIGURATION: Final = {
    "unknown_authority",
    "subscriber_authority_unknown",
    "access_denied",
    "wrong_endpoint",
}


class Diagnosis(msgspec.Struct, frozen=True):
    """The findings about `subject`, the cause first. Without a problem the first one has the cause `healthy`.

    `running` is False if no streamer runs: then the findings are those of the configuration and the files alone.
    """

    subject: str
    kind: str
    running: bool
    findings: tuple[DiagnosisFinding, ...]

    @property
    def cause(self) -> DiagnosisFinding:
        return self.findings[0]


def kind_of(subject: UUri) -> str:
    """`topic`, `method` or `subscriber`."""
    return "topic" if subject.is_topic else "method" if subject.is_method else "subscriber"


def diagnose(evidence: Evidence) -> Diagnosis:
    """The findings for this evidence."""
    subject = evidence.subject
    kind = kind_of(subject)
    find = {"topic": topic_findings, "method": method_findings, "subscriber": subscriber_findings}[kind]
    findings = find(evidence)
    if evidence.file_problem:
        text = f"The configuration file cannot be loaded any more: {evidence.file_problem}."
        findings.append(
            DiagnosisFinding("file_invalid", text, None, "Mend it: the next start or reload is refused.")
        )
    elif evidence.unloaded_keys:
        keys = ", ".join(evidence.unloaded_keys[:3])
        text = f"The running streamer has not loaded the changed configuration file: {keys} differ."
        finding = DiagnosisFinding("not_reloaded", text, evidence.file_ms, "Run `ustreamer reload`.")
        findings.insert(0 if findings[0].cause in _BY_CONFIGURATION else len(findings), finding)
    unique = tuple({each.text: _bounded_time(each, evidence) for each in findings}.values())
    return Diagnosis(str(subject), kind, evidence.running, unique[:MAX_FINDINGS])


def _bounded_time(finding: DiagnosisFinding, evidence: Evidence) -> DiagnosisFinding:
    """The start of the streamer, or of its configuration, is only the time since when a problem is known."""
    if finding.since_ms not in (evidence.since_ms, evidence.loaded_ms):
        return finding
    if not evidence.running:
        return msgspec.structs.replace(finding, since_ms=None)
    return msgspec.structs.replace(finding, at_least=True)


def paragraph(diagnosis: Diagnosis, now_ms: int, place: str) -> str:
    """The diagnosis for people. `place` names the state directory, for a streamer that does not run."""
    parts = []
    if not diagnosis.running:
        parts.append(f"No streamer runs on {place}. By the configuration and its files alone:")
    for number, finding in enumerate(diagnosis.findings):
        if number == 1:
            parts.append("\nAlso:")
        parts.append(finding.text)
        if finding.cause == HEALTHY:
            continue
        if finding.since_ms is not None:
            parts.append(_times_text(finding.since_ms, finding, now_ms))
        if finding.advice:
            parts.append(f"{'What to do: ' if number == 0 else ''}{finding.advice}")
    return " ".join(parts).replace(" \n", "\n")


def _times_text(since_ms: int, finding: DiagnosisFinding, now_ms: int) -> str:
    if finding.until_ms is not None:
        return f"From {time_of_day(since_ms)} until {_time_text(finding.until_ms, now_ms)}."
    return f"{'At least since' if finding.at_least else 'Since'} {_time_text(since_ms, now_ms)}."


def _time_text(since_ms: int, now_ms: int) -> str:
    """A time with its age: 2026-11-23 22:51:45 UTC (12 s ago)."""
    return f"{time_of_day(since_ms)} ({duration(now_ms - since_ms)} ago)"
