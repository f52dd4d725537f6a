# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md names tests for each attack that succeeded once and for each quota, in footnotes, and each named test exists."""

import re

import pytest

from tests.docs.test_delivery_page import REPO, footnotes, functions_in

PAGE = (REPO / "SECURITY.md").read_text(encoding="utf-8")
SECTIONS = {
    title: PAGE.partition(f"## {title}")[2].partition("\n## ")[0]
    for title in ("Attacks that succeeded once", "Quotas")
}
NOTES = footnotes("".join(SECTIONS.values()))


@pytest.mark.parametrize(("title", "count"), [("Attacks that succeeded once", 11), ("Quotas", 9)])
def test_each_row_names_a_test(title: str, count: int) -> None:
    rows = [line for line in SECTIONS[title].splitlines() if line.startswith("| ")][1:]
    assert len(rows) == count
    used = [re.findall(r"\[\^(\w+)\]", row) for row in rows]
    assert [len(each) for each in used] == [1] * count
    notes = footnotes(SECTIONS[title])
    assert {each for [each] in used} == notes.keys()
    assert [note for note, tests in notes.items() if not tests] == []


@pytest.mark.parametrize(
    ("file", "test"), sorted({each for tests in NOTES.values() for each in tests}), ids=lambda part: part
)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_in(file)
