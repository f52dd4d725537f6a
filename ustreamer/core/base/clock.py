# SPDX-License-Identifier: Apache-2.0
"""The clock that callers pass to the core: `ustreamer.host.runtime.clock` has the real one, tests use a manual one."""

from collections.abc import Callable
from typing import NamedTuple


class Clock(NamedTuple):
    """Two readings of time: `monotonic_ns` for intervals and queues, `wall_ms` (since the epoch) for message ages."""

    monotonic_ns: Callable[[], int]
    wall_ms: Callable[[], int]


class ManualClock:
    """A clock that moves by calls only, for tests and simulations of users and plugin authors."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self.now_ns = 0
        self._wall_at_zero_ms = wall_ms

    def advance(self, *, s: float = 0, ms: float = 0, ns: int = 0) -> None:
        """Move both readings forward."""
        self.now_ns += round(s * 1e9) + round(ms * 1e6) + ns

    def step(self, *, s: float = 0, ms: float = 0) -> None:
        """Step the wall clock forward, or back if negative. The monotonic reading does not change."""
        self._wall_at_zero_ms += round(s * 1e3) + round(ms)

    def clock(self) -> Clock:
        return Clock(lambda: self.now_ns, lambda: self._wall_at_zero_ms + self.now_ns // 1_000_000)
