# SPDX-License-Identifier: Apache-2.0
"""docs/plugins.md: the commands that start a plugin, and the tests of the kit, run as the page shows them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_plugins_page import PAGE
from tests.host.cli.test_new_command import installed
from ustreamer.testing.contract import TransportContract

BINARIES = Path(sys.executable).parent


def chapter(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def run(command: list[str], directory: Path, environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_commands_of_the_page_make_a_plugin_that_passes(tmp_path: Path) -> None:
    [block] = re.findall(r"```sh\n(.*?)```", chapter("Start a new plugin"), re.DOTALL)
    environment = dict(os.environ)
    programs = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        programs.append(program)
        if program == "pip":  # without an index: its entry points, as pip installs them
            [folder] = re.findall(r"^(\S+)\[test\]$", arguments[-1])
            environment = installed(tmp_path / folder, tmp_path / "site")
        else:
            run([str(BINARIES / program), *arguments], tmp_path, environment)
    assert programs == ["ustreamer", "pip", "pytest", "ustreamer"]


def test_the_page_names_the_command_for_a_transport(tmp_path: Path) -> None:
    [command] = re.findall(r"`(ustreamer new transport \S+)`", chapter("Start a new plugin"))
    run([str(BINARIES / "ustreamer"), *command.split()[1:]], tmp_path, dict(os.environ))
    [package] = (tmp_path / "ustreamer-tcp-link").glob("ustreamer_*")
    lines = [line for path in package.glob("*.py") for line in path.read_text(encoding="utf-8").splitlines()]
    [bound] = re.findall(r"over TCP, in (\d+) lines", chapter("Start a new plugin"))
    assert len(lines) <= int(bound)


@pytest.mark.parametrize("name", ["test_my_transport", "test_doors"])
def test_the_tests_of_the_page_pass(name: str, tmp_path: Path) -> None:
    for file in ("night", name):
        [source] = re.findall(rf"```python\n# {file}.py\n(.*?)```", PAGE, re.DOTALL)
        (tmp_path / f"{file}.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", f"{name}.py"]
    printed = run(command, tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)})
    assert "passed" in printed


def test_the_page_states_the_number_of_guarantees() -> None:
    tests = [name for name in dir(TransportContract) if name.startswith("test_")]
    [stated] = re.findall(r"(\d+) guarantees", chapter("Test your transport"))
    assert int(stated) <= len(tests) < int(stated) + 10
