# SPDX-License-Identifier: Apache-2.0
"""docs/reliability.md has every row of the scorecard, with its promise and figures, and a test for each cell of the
table of faults.
"""

import ast
import re
from pathlib import Path

import pytest

from tests.docs.test_delivery_page import footnotes
from tests.scorecard.rows import ROWS

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/reliability.md").read_text(encoding="utf-8")
TABLE = PAGE.split("\n## Figures")[0]
FAULTS = "".join(PAGE.split("| fault |")[1:])
CELLS = [
    cell.strip()
    for line in re.findall(r"^\| [a-z].*\|$", FAULTS, re.MULTILINE)
    for cell in line.strip("|").split("|")[1:]
]
NAMED = sorted({test for tests in footnotes(PAGE).values() for test in tests})


def test_the_rows_of_the_page_are_those_of_the_program() -> None:
    rows = re.findall(r"^\| (R\d+) \| (.*) \| (PASS|FAIL|NOT RUN) \|$", TABLE, re.MULTILINE)
    assert [(name, promise) for name, promise, _ in rows] == [(n, row.promise) for n, row in ROWS.items()]


def test_each_row_has_its_command_its_figures_and_its_limit() -> None:
    block = PAGE.split("```\n")[1]
    found = dict(re.findall(r"^\$ python -m tests\.scorecard (R\d+)\n((?:  .*\n)+)", block, re.MULTILINE))
    assert list(found) == list(ROWS)
    for name, row in ROWS.items():
        text = " ".join(found[name].split())
        assert re.match(rf"\d+ {row.unit}\b", text), name
        assert text.partition("limit ")[2] == row.limit, name


def test_each_cell_of_the_table_of_faults_names_a_test_or_none() -> None:
    assert len(CELLS) > 50
    notes = footnotes(PAGE)
    unfounded = [cell for cell in CELLS if cell not in {"-", "open"} and "[^" not in cell]
    assert unfounded == []
    used = {note for cell in CELLS for note in re.findall(r"\[\^(\w+)\]", cell)}
    assert used == notes.keys()
    assert [note for note, tests in notes.items() if not tests] == []


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda part: part)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
