# SPDX-License-Identifier: Apache-2.0
"""A deleted and recreated interface has another index and no group members."""

import subprocess
from pathlib import Path

import pytest

from tests.e2e.rigs.cable import in_own_namespace, unsupported_reason


def test_service_discovery_continues_on_a_recreated_interface() -> None:
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
