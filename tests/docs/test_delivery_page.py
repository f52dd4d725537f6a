# SPDX-License-Identifier: Apache-2.0
"""docs/delivery.md names a test for each guarantee, in a footnote, and each named test exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/delivery.md").read_text(encoding="utf-8")
PROMISES = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


def footnotes(page: str = PAGE) -> dict[str, list[tuple[str, str]]]:
    """Of each footnote, the tests: (file, name). A name belongs to the file above it."""
    found: dict[str, list[tuple[str, str]]] = {}
    note = file = ""
    for line in page.splitlines():
        if begin := re.fullmatch(r"\[\^(\w+)\]:", line):
            note = begin[1]
            found[note] = []
        elif named := re.fullmatch(r"    `([\w/]+\.py)`", line):
            file = named[1]
        elif named := re.fullmatch(r"    `(test_\w+)`", line):
            found[note].append((file, named[1]))
    return found


NAMED = sorted({test for tests in footnotes().values() for test in tests})


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda part: part)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_in(file)


def test_each_guarantee_names_a_test() -> None:
    assert len(PROMISES) > 15
    notes = footnotes()
    assert [
        line for line in PROMISES if not any(notes[each] for each in re.findall(r"\[\^(\w+)\]", line))
    ] == []


def test_each_footnote_is_used_and_names_a_test() -> None:
    used = set(re.findall(r"(?<!\n)\[\^(\w+)\]", PAGE))
    assert used == footnotes().keys()
    assert [note for note, tests in footnotes().items() if not tests] == []
