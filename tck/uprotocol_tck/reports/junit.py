# SPDX-License-Identifier: Apache-2.0
"""The report for continuous integration: JUnit XML."""

from collections import Counter
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from uprotocol_tck.reports.text import plain_text
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
        skipped=str(counts[Verdict.NOT_APPLICABLE] + counts[Verdict.NOT_JUDGED]),
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
            ET.SubElement(element, "failure", message=plain_text(each.reason)).text = plain_text(
                f"{case.sentence}\n{', '.join(case.rules)}\n{each.reason}"
            )
        elif each.verdict is not Verdict.PASSED:
            ET.SubElement(element, "skipped", message=plain_text(f"{each.verdict}: {each.reason}"))
    ET.indent(suite)
    text: bytes = ET.tostring(suite, encoding="utf-8", xml_declaration=True)
    return text + b"\n"
