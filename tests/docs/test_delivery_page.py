# SPDX-License-Identifier: Apache-2.0
"""docs/delivery.md names a test for each promise, and each test that it names is there."""

import ast
import re
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/delivery.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))
PROMISES = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize(("file", "test"), NAMED, ids=lambda part: part)
def test_each_test_that_is_named_exists(file: str, test: str) -> None:
    tree = ast.parse((REPO / file).read_text(encoding="utf-8"))
    assert test in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_each_promise_names_a_test() -> None:
    assert len(PROMISES) > 15
    assert [line for line in PROMISES if ".py::test_" not in line.rpartition(" | ")[2]] == []
