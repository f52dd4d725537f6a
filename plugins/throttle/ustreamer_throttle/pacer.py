# SPDX-License-Identifier: Apache-2.0
"""Messages that passed a gate and wait for their time to leave, after the network delivered a bunch.

A gate sets a time to leave for each message (`Gate.leaves_ns`), for a punctual timer. Timers are late. So a pacer has a
second gate on the times at which messages really leave: they never leave faster than the limit allows.

After a stop of the process (SIGSTOP, or a machine that is too busy) timers are late by so much that messages wait
longer than planned. The limit allows no faster sending later. So a message that would wait for more than the longest
delay is dropped. While messages wait longer than planned, one in `DELAYED_MESSAGES` is dropped, as a gate does.
"""

import copy
from collections import deque
from typing import Final, Generic

from ustreamer_throttle.gate import DELAYED_MESSAGES, MAX_WAITING, NS_PER_MS, Gate, T

MAX_WAITING_BYTES: Final = 262_144
"""Payload bytes that wait at most for one target of one topic. A message with more bytes waits alone."""
LATE_TIMER_NS: Final = 20 * NS_PER_MS
"""By how much longer than planned a message may wait: a timer of a busy machine is so late."""


class Pacer(Generic[T]):
    """Holds items in order. Not thread-safe."""

    __slots__ = ("_bytes", "_gate", "_late", "_waiting", "departure_gate")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.departure_gate: Gate | None = None
        """The gate of the times at which items really leave. If this and `Gate.departure_gate` are None, none waits."""
        self._waiting: deque[tuple[T, int]] = deque()
        self._bytes = 0
        self._late = 0  # items in succession that waited longer than planned

    @property
    def due_ns(self) -> int | None:
        """When to call `release`; None while nothing waits."""
        if not self._waiting or self.departure_gate is None:
            return None
        return self.departure_gate.due_ns

    def offer(self, item: T, size: int, now_ns: int) -> bool | None:
        """True if an item that passed the gate leaves now, False if it waits, None if there is no room for it."""
        if self.departure_gate is None:
            if self._gate.departure_gate is not None:  # the first message of a bunch, which need not wait
                self.departure_gate = copy.copy(self._gate.departure_gate)
            return True
        if not self._waiting and self.departure_gate.admit(now_ns):
            self._end()
            return True
        if not self._has_room(size, self.departure_gate, now_ns):
            return None
        self._waiting.append((item, size))
        self._bytes += size
        return False

    def _has_room(self, size: int, departure_gate: Gate, now_ns: int) -> bool:
        if len(self._waiting) >= MAX_WAITING or (self._waiting and self._bytes + size > MAX_WAITING_BYTES):
            return False
        leaves_ns = max(departure_gate.due_ns, now_ns) + len(self._waiting) * departure_gate.period_ns
        if leaves_ns - now_ns > self._longest_ns:
            return False
        is_late = leaves_ns > max(self._gate.leaves_ns, now_ns) + LATE_TIMER_NS
        self._late = (self._late + 1) % DELAYED_MESSAGES if is_late else 0
        return not is_late or self._late > 0

    def release(self, now_ns: int) -> T | None:
        """The oldest item, from `due_ns` on."""
        if not self._waiting or self.departure_gate is None or not self.departure_gate.admit(now_ns):
            return None
        item, size = self._waiting.popleft()
        self._bytes -= size
        self._end()
        return item

    def set_tolerance(self, tolerance: float) -> None:
        """See `Gate.set_tolerance`."""
        if self.departure_gate is not None:
            self.departure_gate.set_tolerance(tolerance)

    def retune(self, period_ns: int, now_ns: int) -> list[T]:
        """See `Gate.retune`; call it after that of the gate.

        Returns the oldest items, which leave no more: with a slower limit the newest one would wait for too long.
        """
        if self.departure_gate is None:
            return []
        self.departure_gate.retune(period_ns, now_ns)
        first_ns = max(self.departure_gate.due_ns - now_ns, 0)
        room = 1 + max(0, self._longest_ns - first_ns) // period_ns
        dropped = [self._waiting.popleft() for _ in range(len(self._waiting) - room)]
        self._bytes -= sum(size for _, size in dropped)
        return [item for item, _ in dropped]

    @property
    def _longest_ns(self) -> int:
        return self._gate.max_wait_ns + LATE_TIMER_NS

    def _end(self) -> None:
        gate, departure_gate = self._gate, self.departure_gate
        if (
            departure_gate is not None
            and gate.departure_gate is None
            and not self._waiting
            and gate.keeps_bound_after(departure_gate)
        ):
            self.departure_gate = None
