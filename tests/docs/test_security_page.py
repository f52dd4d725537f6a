# SPDX-License-Identifier: Apache-2.0
"""SECURITY.md names tests for each attack that succeeded once, in footnotes, and each named test exists."""

import re

import pytest

from tests.docs.test_delivery_page import REPO, footnotes, functions_in

PAGE = (REPO / "SECURITY.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Attacks that succeeded once")[2].partition("\n## ")[0]
NOTES = footnotes(SECTION)
ROWS = [line for line in SECTION.splitlines() if line.startswith("| ")][1:]


def test_each_of_the_eleven_attacks_names_a_test() -> None:
    assert len(ROWS) == 11
    used = [re.findall(r"\[\^(\w+)\]", row) for row in ROWS]
    assert [len(each) for each in used] == [1] * 11
    assert {each for [each] in used} == NOTES.keys()
    assert [note for note, tests in NOTES.items() if not tests] == []


@pytest.mark.parametrize(
    ("file", "test"), sorted({each for tests in NOTES.values() for each in tests}), ids=lambda part: part
)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_in(file)
