# SPDX-License-Identifier: Apache-2.0
"""docs/troubleshooting.md is true: its commands exist, its causes are causes, and each symptom has a mend."""

import re
import shlex
from pathlib import Path

import pytest

from ustreamer.host.cli.main import parser

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = PAGE.split("\n## ")[1:]
DIAGNOSIS = "".join(
    path.read_text(encoding="utf-8") for path in sorted((ROOT / "ustreamer/host/diagnosis").glob("*.py"))
)
PLACES = {
    "TOPIC": "//chassis/1234/1/8001",
    "METHOD": "//chassis/1234/1/1",
    "SUBSCRIBER": "//hpc.vin1/10A1/1/0",
    "CALLER": "//hpc.vin1/10A1/1/0",
}


def commands() -> list[str]:
    return sorted(
        set(re.findall(r"(?:^|`)(ustreamer (?!why --json)[^`\n]+)", PAGE, re.MULTILINE))
        - {"ustreamer.lock is held"}
    )


def causes() -> list[str]:
    paragraphs = re.findall(r"^\*\*Causes?\*\*:(.*?)\n\n", PAGE, re.DOTALL | re.MULTILINE)
    words = {word for text in paragraphs for word in re.findall(r"`([a-z_]+)`", text)}
    return sorted(words - {"unaccounted", "skipped", "damaged", "torn", "ledger_agrees", "no", "reload"})


@pytest.mark.parametrize("command", commands())
def test_the_command_line_accepts_a_command_of_the_page(command: str) -> None:
    arguments = [PLACES.get(word, word) for word in shlex.split(command)][1:]
    parser(arguments[0]).parse_args(arguments)


@pytest.mark.parametrize("cause", causes())
def test_a_cause_of_the_page_is_a_cause_of_why(cause: str) -> None:
    assert f'"{cause}"' in DIAGNOSIS or cause.startswith("refused_")


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=lambda text: text.splitlines()[0])
def test_a_symptom_has_a_command_and_a_mend(symptom: str) -> None:
    assert re.search(r"ustreamer \w+", symptom)
    assert re.search(r"\*\*Mend\*\*:|\| mend \|", symptom, re.IGNORECASE)
