# SPDX-License-Identifier: Apache-2.0
"""Calls to make at a given time, as a value: the timer thread of the host makes them, and in tests the test does."""

from collections.abc import Callable

from ustreamer.core.base.deadline_queue import DeadlineQueue

_Action = Callable[[], None]


class _Timer:
    """One request for a call: two requests for the same action are two calls."""

    __slots__ = ("action",)

    def __init__(self, action: _Action) -> None:
        self.action = action


class Timers:
    """Calls by monotonic time in ns. Not locked."""

    def __init__(self) -> None:
        self._queue: DeadlineQueue[_Timer] = DeadlineQueue()

    def schedule(self, when_ns: int, action: _Action) -> None:
        """Request a call of `action` at `when_ns`. There is no cancel: the action checks whether it is still needed."""
        self._queue.schedule(_Timer(action), when_ns)

    def pop_due(self, now_ns: int) -> list[_Action]:
        """Remove and return all due actions, in order of time and then of request."""
        return [timer.action for timer in self._queue.pop_all_due(now_ns)]

    @property
    def next_due_ns(self) -> int | None:
        """The time of the next call; None if there is none."""
        return self._queue.next_due

    def __len__(self) -> int:
        return len(self._queue)
