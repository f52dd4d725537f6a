# SPDX-License-Identifier: Apache-2.0
"""Timers as a value: what is due when. Something else (a thread, a test) brings the time and makes the calls."""

import heapq
import itertools
from collections.abc import Callable

_Action = Callable[[], None]


class DeadlineQueue:
    """Calls to be made at monotonic times in ns. Not locked."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, _Action]] = []
        self._order = itertools.count()

    def schedule(self, when_ns: int, action: _Action) -> None:
        """Ask for `action()` at `when_ns`. There is no cancelling: an action checks whether it is still wanted."""
        heapq.heappush(self._heap, (when_ns, next(self._order), action))

    def pop_due(self, now_ns: int) -> list[_Action]:
        """Take out all actions whose time has come, in order."""
        actions = []
        while self._heap and self._heap[0][0] <= now_ns:
            actions.append(heapq.heappop(self._heap)[2])
        return actions

    @property
    def next_due_ns(self) -> int | None:
        """When the next action is due; None if there is none."""
        return self._heap[0][0] if self._heap else None

    def __len__(self) -> int:
        return len(self._heap)
