# SPDX-License-Identifier: Apache-2.0
"""The examples run, and their configurations are valid."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.rigs.ports import udp_ports
from tests.e2e.rigs.streamer import run_command

REPO = Path(__file__).parents[3]
_RUN_S = 120.0


def test_the_vehicle_shows_each_of_its_ecus() -> None:
    [port] = udp_ports(1)
    done = subprocess.run(
        [sys.executable, "-m", "examples.vehicle", "--events", "5", "--sd-port", str(port)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "a late subscriber has the light: [b'\\x01']" in done.stdout
    assert "last one has 5000 bytes" in done.stdout
    assert " valid, 0 invalid" in done.stdout


def test_the_vehicle_reports_an_ecu_that_is_missing() -> None:
    [port] = udp_ports(1)
    command = [sys.executable, "-m", "examples.vehicle", "--events", "1000000", "--seconds", "1"]
    done = subprocess.run(
        [*command, "--sd-port", str(port)],
        cwd=REPO,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        check=False,
    )
    assert done.returncode == 1
    assert "missing: brakes, E2E P04: " in done.stderr


@pytest.mark.parametrize("file", sorted((REPO / "examples").glob("*/*.toml")), ids=str)
def test_the_configurations_of_examples_are_valid(file: Path) -> None:
    checked = run_command("check", "--offline", "--strict", file)
    assert checked.returncode == 0, checked.stderr
