# SPDX-License-Identifier: Apache-2.0
"""Messages that passed a gate and wait for their time to leave, after the network delivered a bunch.

A gate sets a time to leave for each message (`Gate.leaves_ns`), for a punctual timer. Timers are late. So a pacer has a
second gate on the times at which messages really leave: they never leave faster than the limit allows.

While the process is frozen (SIGSTOP, or a machine that is too busy), timers are late and messages wait longer than
planned. The limit permits no catching up. So the oldest waiting messages are dropped when the newest one would wait for
longer than `max_delay`. While messages wait longer than planned, one in `DELAYED_MESSAGES` is dropped, as a gate does.
"""

import copy
from collections import deque
from typing import Final, Generic

from ustreamer_throttle.gate import DELAYED_MESSAGES, MAX_WAITING, NS_PER_MS, Gate, T

MAX_WAITING_BYTES: Final = 262_144
"""Payload bytes that wait at most for one target of one topic. A message with more bytes waits alone."""
LATE_TIMER_NS: Final = 20 * NS_PER_MS
"""By how much longer than planned a message may wait. A timer of a busy machine may be this late."""


class Pacer(Generic[T]):
    """Holds items in order. Not thread-safe."""

    __slots__ = ("_bytes", "_gate", "_late", "_waiting", "release_gate")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.release_gate: Gate | None = None
        """The gate of the times at which items really leave. If this and `Gate.departure_gate` are None, none waits."""
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._late = 0  # items in succession that wait longer than planned

    @property
    def due_ns(self) -> int | None:
        """When to call `release`; None while nothing waits."""
        if not self._waiting or self.release_gate is None:
            return None
        return self.release_gate.due_ns

    def offer(self, item: T, size: int, now_ns: int) -> bool:
        """Whether an item that passed the gate leaves now; else it waits. Call `drop_excess` after it."""
        if self.release_gate is None:
            if self._gate.departure_gate is not None:  # the first message of a bunch, which need not wait
                self.release_gate = copy.copy(self._gate.departure_gate)
            return True
        if not self._waiting and self.release_gate.admit(now_ns):
            self._end()
            return True
        self._waiting.append((item, size))
        self._bytes += size
        is_late = now_ns + self._longest_wait_ns(now_ns) > max(self._gate.leaves_ns, now_ns) + LATE_TIMER_NS
        self._late = self._late + 1 if is_late else 0
        return False

    def drop_excess(self, now_ns: int) -> list[T]:
        """Remove and return the oldest items, as far as the others would else exceed a bound. The newest one stays."""
        dropped = list[T]()
        if self._late >= DELAYED_MESSAGES and len(self._waiting) > 1:
            self._late = 0
            dropped.append(self._pop())
        while len(self._waiting) > 1 and (
            len(self._waiting) > MAX_WAITING
            or self._bytes > MAX_WAITING_BYTES
            or self._longest_wait_ns(now_ns) > self._gate.max_wait_ns + LATE_TIMER_NS
        ):
            dropped.append(self._pop())
        return dropped

    def _longest_wait_ns(self, now_ns: int) -> int:
        """How long the newest item waits, if timers are punctual."""
        gate = self.release_gate
        if gate is None or not self._waiting:
            return 0
        return max(gate.due_ns - now_ns, 0) + (len(self._waiting) - 1) * gate.period_ns

    def _pop(self) -> T:
        item, size = self._waiting.popleft()
        self._bytes -= size
        return item

    def release(self, now_ns: int) -> T | None:
        """The oldest item, from `due_ns` on."""
        if not self._waiting or self.release_gate is None or not self.release_gate.admit(now_ns):
            return None
        item = self._pop()
        self._end()
        return item

    def set_tolerance(self, tolerance: float) -> None:
        """See `Gate.set_tolerance`."""
        if self.release_gate is not None:
            self.release_gate.set_tolerance(tolerance)

    def retune(self, period_ns: int, now_ns: int) -> None:
        """See `Gate.retune`. Call `drop_excess` after it: with a slower limit the newest item may wait for too long."""
        if self.release_gate is not None:
            self.release_gate.retune(period_ns, now_ns)

    def _end(self) -> None:
        gate, release_gate = self._gate, self.release_gate
        if (
            release_gate is not None
            and gate.departure_gate is None
            and not self._waiting
            and gate.keeps_bound_after(release_gate)
        ):
            self.release_gate = None
