# SPDX-License-Identifier: Apache-2.0
"""An interface that goes and is made anew: it has another number, no members, and nothing that was said of the old one."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.cable import alone, obstacle


def test_service_discovery_goes_on_at_an_interface_that_was_made_anew() -> None:
    why = obstacle()
    if why:
        pytest.skip(f"no network namespaces on this machine: {why}")
    done = subprocess.run(
        alone("tests.transports.someip.interface_anew"),
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
