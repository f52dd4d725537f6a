# SPDX-License-Identifier: Apache-2.0
"""An interface that goes and is made anew: it has another number, no members, and nothing that was said of the old one."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.rigs.cable import in_own_namespace, unsupported_reason


def test_service_discovery_goes_on_at_an_interface_that_was_made_anew() -> None:
    why = unsupported_reason()
    if why:
        pytest.skip(f"no network namespaces on this machine: {why}")
    done = subprocess.run(
        in_own_namespace("tests.transports.someip.discovery.recreated_interface"),
        cwd=Path(__file__).parents[4],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
