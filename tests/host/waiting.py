# SPDX-License-Identifier: Apache-2.0
"""Waiting for other threads, for all tests of the host: a condition with a deadline, never a fixed time."""

import time
from collections.abc import Callable

DEADLINE_S = 30.0


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until `holds` is true, at most for the deadline."""
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end, f"waited {DEADLINE_S} s for {what}"
        time.sleep(0.001)
