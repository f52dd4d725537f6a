# SPDX-License-Identifier: Apache-2.0
"""README fits a screen and leads on. The commands and configurations of the first pages are true."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ustreamer.host.cli.main import parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMAND_LINE = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
CONFIGURATION = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
INSTALL = (ROOT / "docs/install.md").read_text(encoding="utf-8")
SCREEN_LINES = 60
BIN = Path(sys.executable).parent


def fenced(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_readme_is_one_screen_with_purpose_limits_and_the_two_commands() -> None:
    assert len(README.splitlines()) <= SCREEN_LINES
    for words in ("make demo", "make test", "**It is**", "**It is not**"):
        assert words in README


def test_the_smallest_configuration_is_the_file_it_names() -> None:
    shown = fenced(CONFIGURATION.split("## The smallest file")[1], "toml")[0]
    assert shown in (ROOT / "configs/minimal.toml").read_text(encoding="utf-8")


def commands() -> list[str]:
    shown = "\n".join(fenced(README + COMMAND_LINE, "sh"))
    return [
        line.split("#")[0].strip() for line in shown.splitlines() if line.startswith(".venv/bin/ustreamer")
    ]


def test_the_first_pages_show_commands_that_this_test_runs() -> None:
    assert {shlex.split(command)[1] for command in commands()} == {
        "check",
        "run",
        "plugins",
        "demo",
        "recordings",
        "subscriptions",
        "dead-letters",
        "top",
        "why",
    }


@pytest.mark.parametrize("command", sorted({c for c in commands() if c.split()[1] in {"check", "plugins"}}))
def test_a_command_of_the_first_pages_works(command: str) -> None:
    program, *arguments = shlex.split(command)
    assert program == ".venv/bin/ustreamer"
    done = subprocess.run(
        [BIN / "ustreamer", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def subcommands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    return {
        name: each
        for action in of._actions
        if isinstance(action, argparse._SubParsersAction)
        for name, each in action.choices.items()
    }


def test_the_page_of_commands_names_every_command() -> None:
    for name, command in subcommands(parser()).items():
        for path in [f"{name} {action}" for action in subcommands(command)] or [name]:
            words = path.split()
            named = f"ustreamer {path}" in COMMAND_LINE or (
                f"ustreamer {words[0]}" in COMMAND_LINE and f"`{words[-1]}" in COMMAND_LINE
            )
            assert named, path


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_every_link_of_the_readme_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_the_name_someip_py_is_explained_in_two_sentences() -> None:
    paragraph = INSTALL.split("## Dependencies")[1].split("##")[0]
    assert "`someip-py` is supported and not depended on" in paragraph
