# SPDX-License-Identifier: Apache-2.0
"""The pages about delivery name a test for each guarantee, in a footnote, and each named test exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PATHS = [REPO / "docs/delivery.md", *sorted((REPO / "docs/delivery").glob("*.md"))]
PAGES = {path.name: path.read_text(encoding="utf-8") for path in PATHS}


def footnotes(page: str) -> dict[str, list[tuple[str, str]]]:
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


NAMED = sorted({test for page in PAGES.values() for tests in footnotes(page).values() for test in tests})


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda part: part)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    assert test in functions_in(file)


@pytest.mark.parametrize(("page", "count"), [("delivery.md", 35), ("mqtt.md", 14), ("disks.md", 5)])
def test_each_guarantee_names_a_test(page: str, count: int) -> None:
    """Each row of the table but its head is a guarantee."""
    promises = [line for line in PAGES[page].splitlines() if line.startswith("| ")][1:]
    assert len(promises) >= count
    notes = footnotes(PAGES[page])
    assert [
        line for line in promises if not any(notes[each] for each in re.findall(r"\[\^(\w+)\]", line))
    ] == []


@pytest.mark.parametrize("page", PAGES)
def test_each_footnote_is_used_and_names_a_test(page: str) -> None:
    used = set(re.findall(r"(?<!\n)\[\^(\w+)\]", PAGES[page]))
    notes = footnotes(PAGES[page])
    assert used == notes.keys()
    assert [note for note, tests in notes.items() if not tests] == []
