# SPDX-License-Identifier: Apache-2.0
"""How long the receiving side may wait for an egress queue. Pure: callers pass durations and counts.

A queue fills for one of two reasons. The streamer is slower than the input: then the receiving side waits, and the
transport pushes back on the senders. Or the receiver is slow: then the receiving side must not wait, because it also
serves other receivers. The budget tells the two apart.
"""

from typing import Final

EARNED_NS: Final = 100_000
"""Waiting time that the receiver earns with each message it takes. 10 000 messages/s earn the whole time."""
FULL_NS: Final = 50_000_000
"""The largest budget: the longest wait for a receiver that takes nothing."""
STALL_NS: Final = 500_000_000
"""While the transport has room, a wait is free for this time after the last message that left the queue.

A busy machine withholds the CPU from the send thread for less. A receiver cannot cause such a stall: a transport that
waits for its receiver has no room.
"""


class WaitBudget:
    """The waiting time that is left for one egress queue. Not thread-safe.

    A wait is free while the transport has room and messages leave the queue: the streamer is the slow part. Any other
    wait costs its duration. Each message that the receiver takes earns `EARNED_NS`, up to `FULL_NS` in all. So a
    receiver without room that takes r messages/s delays the input for at most r / 10 000 of the time, plus `FULL_NS`
    once (tests/core/egress/test_wait_budget.py).
    """

    __slots__ = ("_left_ns", "_stalled_ns", "_taken")

    def __init__(self) -> None:
        self._left_ns = FULL_NS
        self._stalled_ns = 0
        self._taken = 0

    def may_wait(self, taken: int) -> bool:
        """Whether a wait is allowed now. `taken` counts all messages that the receiver has taken so far."""
        self._earn(taken)
        return self._left_ns > 0

    def charge(self, waited_ns: int, taken: int, *, has_room: bool) -> None:
        """Charge a wait of `waited_ns`. `has_room`: at its end the transport took messages without waiting."""
        if not self._earn(taken):
            self._stalled_ns += waited_ns
        if not (has_room and self._stalled_ns < STALL_NS):
            self._left_ns -= waited_ns

    def _earn(self, taken: int) -> bool:
        """Add what the messages taken since the last call earn; returns whether there are any."""
        newly_taken, self._taken = taken - self._taken, taken
        if not newly_taken:
            return False
        self._left_ns = min(FULL_NS, self._left_ns + newly_taken * EARNED_NS)
        self._stalled_ns = 0
        return True
