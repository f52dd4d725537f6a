# SPDX-License-Identifier: Apache-2.0
"""Waiting for other threads and processes: a condition with a deadline, never a fixed time."""

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

DEADLINE_S: Final = 30.0
"""A generous limit: only a failing test waits for it."""


def wait_until(condition: Callable[[], T], what: str = "a condition", within_s: float = DEADLINE_S) -> T:
    """Poll `condition` until it is true and return its result. Fails after the deadline."""
    deadline = time.monotonic() + within_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {within_s:g} s for {what}"
        time.sleep(0.001)
    return found
