# SPDX-License-Identifier: Apache-2.0
"""Event rates."""

from typing import Final

_NS_PER_S: Final = 1_000_000_000


class RateMeter:
    """Counts events and the time from the first to the last one."""

    __slots__ = ("events", "first_ns", "last_ns")

    def __init__(self, events: int = 0, first_ns: int = 0, last_ns: int = 0) -> None:
        self.events = events
        self.first_ns = first_ns
        self.last_ns = last_ns

    def record_event(self, now_ns: int) -> None:
        if not self.events:
            self.first_ns = now_ns
        self.events += 1
        self.last_ns = now_ns

    @property
    def hz(self) -> float:
        """Intervals per second between the first and the last event, independent of the window's start; 0 below two
        events.
        """
        span_ns = self.last_ns - self.first_ns
        return (self.events - 1) * _NS_PER_S / span_ns if span_ns > 0 else 0.0

    def copy(self) -> "RateMeter":
        return RateMeter(self.events, self.first_ns, self.last_ns)
