# SPDX-License-Identifier: Apache-2.0
"""The examples as processes, on ports that are free here."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from examples.rig import Figures
from tests.e2e.rigs.ports import tcp_ports, udp_ports

REPO: Final = Path(__file__).parents[3]
RUN_S: Final = 110.0
PORT: Final = re.compile(r"(?:127\.0\.0\.1:|\bport = )(\d+)")


def ports_of(name: str) -> dict[int, int]:
    """For each port of the configurations of an example, a free one."""
    files = (REPO / "examples" / name).glob("*.toml")
    shown = {int(port) for file in files for port in PORT.findall(file.read_text(encoding="utf-8"))}
    return dict(zip(sorted(shown), [*tcp_ports(len(shown) - 1), *udp_ports(1)], strict=True))


def command_of(name: str, ports: Mapping[int, int], *arguments: str) -> list[str]:
    pairs = ",".join(f"{shown}={used}" for shown, used in ports.items())
    return [sys.executable, "-m", f"examples.{name}", "--ports", pairs, *arguments]


class ExampleRun(NamedTuple):
    """A run that has ended."""

    code: int
    output: str
    errors: str

    @property
    def rows(self) -> dict[str, Figures]:
        """The table that the example has printed."""
        lines = re.findall(r"^(\S.*?)" + r" +(-?\d+)" * len(Figures._fields) + "$", self.output, re.MULTILINE)
        return {name: Figures(*map(int, figures)) for name, *figures in lines}


def run_example(name: str, *arguments: str, ports: Mapping[int, int] | None = None) -> ExampleRun:
    done = subprocess.run(
        command_of(name, ports or ports_of(name), *arguments),
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    return ExampleRun(done.returncode, done.stdout, done.stderr)
