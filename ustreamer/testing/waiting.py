# SPDX-License-Identifier: Apache-2.0
"""Waiting for other threads and processes: a condition with a deadline, never a fixed time."""

import os
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ustreamer.host.runtime.clock import SYSTEM_CLOCK

T = TypeVar("T")

DEADLINE_S: Final = float(os.environ.get("USTREAMER_TEST_DEADLINE_S", "30"))
"""A generous limit in seconds: only a failing test waits for it. The environment variable sets another one."""


def poll_interval_s(waited_s: float) -> float:
    """The time to the next poll: a tenth of the wait so far, from 1 to 50 ms. A poll can cost as much as the work."""
    return min(max(0.001, waited_s / 10), 0.05)


def wait_until(condition: Callable[[], T], what: str = "a condition", within_s: float = DEADLINE_S) -> T:
    """Poll `condition` until it is true and return its result. Fails after the deadline."""
    began = SYSTEM_CLOCK.monotonic_ns() / 1e9
    while not (found := condition()):
        waited_s = SYSTEM_CLOCK.monotonic_ns() / 1e9 - began
        assert waited_s < within_s, f"waited {within_s:g} s for {what}"
        time.sleep(poll_interval_s(waited_s))
    return found
