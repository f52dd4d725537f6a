# SPDX-License-Identifier: Apache-2.0
"""docs/tutorial.md is true: its commands run in order, in one shell, and print what the page shows."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rigs.ports import tcp_ports, udp_ports

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/tutorial.md").read_text(encoding="utf-8")
STEPS = re.findall(r"^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", PAGE, re.DOTALL | re.MULTILINE)


def free_ports() -> dict[str, int]:
    """For each port of the page, a free one."""
    (tcp,), (streamer, ecu) = tcp_ports(1), udp_ports(2)
    return {"7447": tcp, "30500": streamer, "30501": ecu}


def matches(line: str, output: str) -> bool:
    """True if the output has this line; `...` stands for any text."""
    pattern = ".*".join(re.escape(part) for part in line.split("..."))
    return re.search(rf"^{pattern}$", output, re.MULTILINE) is not None


def on_free_ports(text: str, ports: dict[str, int]) -> str:
    for shown, free in ports.items():
        text = re.sub(rf"\b{shown}\b", str(free), text)
    return text


def run_in_order(commands: list[str], folder: Path) -> list[str]:
    """The output of each block. One shell runs all; what it starts in the background ends with it."""
    mark = "---- end of block ----"
    script = "set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n" + "".join(
        f"{block}echo '{mark}'\n" for block in commands
    )
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(timeout=90)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        output, _ = shell.communicate()
    *blocks, rest = output.split(f"{mark}\n")
    assert shell.returncode == 0, [*blocks[-1:], rest]
    return blocks


def test_the_page_shows_the_commands_of_every_day() -> None:
    shown = set(re.findall(r"^ustreamer ([a-z]+)", "\n".join(block for block, _ in STEPS), re.MULTILINE))
    assert shown == {
        "check",
        "demo",
        "explain",
        "recordings",
        "routes",
        "run",
        "subscriptions",
        "tap",
        "top",
        "why",
    }


def test_the_commands_of_the_page_print_what_it_shows(tmp_path: Path) -> None:
    ports = free_ports()
    (tmp_path / ".venv").symlink_to(sys.prefix)  # all that the commands need of a folder
    outputs = run_in_order([on_free_ports(block, ports) for block, _ in STEPS], tmp_path)
    missing = [
        f"no line {line!r} in:\n{output}"
        for (_, expected), output in zip(STEPS, outputs, strict=True)
        for line in expected.splitlines()
        if not matches(line, output)
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize(("line", "found"), [("a ... 0", True), ("a ... 1", False), ("b", False)])
def test_a_line_that_is_not_printed_is_found(line: str, found: bool) -> None:
    assert matches(line, "x\na 5 0\nb c\n") is found
