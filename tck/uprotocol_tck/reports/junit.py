# SPDX-License-Identifier: Apache-2.0
"""The report for continuous integration: JUnit XML."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from uprotocol_tck.runner import Outcome, Verdict


def junit_xml(outcomes: Sequence[Outcome], subject: str) -> bytes:
    """One test case for each case; the rule ids are properties of it."""
    counts = Counter(each.verdict for each in outcomes)
    suite = ET.Element(
        "testsuite",
        name=f"uprotocol-tck {subject}",
        tests=str(len(outcomes)),
        failures=str(counts[Verdict.FAILED]),
        errors="0",
        skipped=str(counts[Verdict.NOT_APPLICABLE]),
        time=f"{sum(each.seconds for each in outcomes):.3f}",
    )
    for each in outcomes:
        case = each.case
        element = ET.SubElement(
            suite,
            "testcase",
            classname=f"{case.subject}.{case.group}",
            name=case.name,
            time=f"{each.seconds:.3f}",
        )
        properties = ET.SubElement(element, "properties")
        for rule in case.rules:
            ET.SubElement(properties, "property", name="rule", value=rule)
        if each.verdict is Verdict.FAILED:
            ET.SubElement(element, "failure", message=_plain(each.reason)).text = _plain(
                f"{case.sentence}\n{', '.join(case.rules)}\n{each.reason}"
            )
        elif each.verdict is Verdict.NOT_APPLICABLE:
            ET.SubElement(element, "skipped", message=_plain(each.reason))
    ET.indent(suite)
    text: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"


def _plain(text: str) -> str:
    """Without the control characters that XML forbids: the text may come from the subject."""
    return "".join(each if each >= " " or each in "\n\t" else "?" for each in text)
