# SPDX-License-Identifier: Apache-2.0
"""A code block has one command in a line: a program that wraps paragraphs has joined none."""

import re
from pathlib import Path

import pytest

from tests.docs.test_site import ROOT, pages

COMMAND = re.compile(
    r"(?:^|(?<=\s))(?:ustreamer(?:-pipeline)? [a-z-]+|spark-submit|(?:\S*/)?pip install|make [a-z]+|git clone)(?=\s|$)"
)
CODE = re.compile(r"^( *)```(?:sh|console)?\n(.*?)^\1```|((?:^    .*\n)+)", re.DOTALL | re.MULTILINE)


def joined_commands(text: str) -> list[str]:
    """Lines of the code blocks of a page in which a second command follows the first without an operator."""
    lines = [line for block in CODE.finditer(text) for line in (block[2] or block[3] or "").splitlines()]
    plain = [re.sub(r"(?:^| )#.*|`[^`]*`", "", line).strip() for line in lines]
    return [
        line
        for line in plain
        if any(
            len(COMMAND.findall(part)) > 1 or (re.match(r"\w+=\$\(.*\)\S* +\S", part))
            for part in re.split(r"&&|\|\||;", line)
        )
    ]


@pytest.mark.parametrize("page", pages())
def test_a_line_of_a_code_block_has_one_command(page: str) -> None:
    assert joined_commands(Path(ROOT / page).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "line",
    [
        "pip install ustreamer-pipeline[s3] ustreamer-pipeline ingest RECORDINGS LAKE",
        "MAIN=$(python -c 'print(1)')/__main__.py spark-submit --master ... $MAIN",
    ],
)
@pytest.mark.parametrize("block", ["```sh\n{}\n```\n", "    {}\n"])
def test_joined_commands_are_found(line: str, block: str) -> None:
    assert joined_commands(block.format(line)) == [line]
