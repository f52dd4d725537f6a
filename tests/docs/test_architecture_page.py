# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md follows one event through functions that exist, in the files that it names."""

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/architecture.md").read_text(encoding="utf-8")
CALL_TREE = PAGE.split("## Follow one event")[1].split("```\n")[1]
CALLS = re.findall(r"^ *(\S+) +(\S+\.py)  ", CALL_TREE, re.MULTILINE)


def functions_of(file: str) -> set[str]:
    """The functions and methods of a file: `name`, or `Class.name`."""
    tree = ast.parse((REPO / "ustreamer" / file).read_text(encoding="utf-8"))
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for owner in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
        found |= {f"{owner.name}.{node.name}" for node in owner.body if isinstance(node, ast.FunctionDef)}
    return found


def test_each_line_of_the_call_tree_is_a_function_in_a_file() -> None:
    assert len(CALLS) == len(CALL_TREE.splitlines()) > 10


@pytest.mark.parametrize(("function", "file"), CALLS)
def test_each_function_of_the_call_tree_exists(function: str, file: str) -> None:
    assert function in functions_of(file)
