# SPDX-License-Identifier: Apache-2.0
"""Which lane of an endpoint sends next, and which is to be looked after when."""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.subscriber_queue import SubscriberQueue

MIN_QUANTUM: Final = 8
"""What a lane may send in a turn, however many others wait for theirs."""

_MAX_STALE_FACTOR: Final = 4  # entries for each that counts, above which they are sorted out


class RoundRobin:
    """Lanes that have something to send take turns; those that have not cost nothing. Not locked.

    A turn is what may be sent in one go, shared among the lanes, but `LEAST` at the least: so n lanes that have something
    to send have each had a turn when so much, or n times `LEAST`, was sent.
    """

    def __init__(self) -> None:
        self._ready: dict[SubscriberQueue, None] = {}  # the one in front is next
        self._due: list[tuple[int, int, SubscriberQueue]] = []
        self._numbers = count()  # who was scheduled first is first
        self._scheduled = 0

    # --- turns ----------------------------------------------------------------------------------------------------------

    def add_ready(self, queue: SubscriberQueue) -> None:
        """Have `sender` take its turn, behind all others; it keeps its place if it has one."""
        self._ready[queue] = None

    def remove_ready(self, queue: SubscriberQueue) -> None:
        self._ready.pop(queue, None)

    def next_turn(self, limit: int) -> tuple[SubscriberQueue, int] | None:
        """Whose turn it is, and how much may be sent in it; None if nobody waits. It is then behind all others."""
        ready = self._ready
        while ready:
            queue = next(iter(ready))
            if len(ready) == 1:
                if queue.waiting.messages:
                    return queue, limit
                del ready[queue]
                break
            del ready[queue]
            if queue.waiting.messages:  # or it had to make room since
                ready[queue] = None
                return queue, min(limit, max(MIN_QUANTUM, limit // len(ready)))
        return None

    @property
    def has_ready(self) -> bool:
        """Whether somebody may have something to send."""
        return bool(self._ready)

    # --- times ----------------------------------------------------------------------------------------------------------

    def schedule_service(self, queue: SubscriberQueue) -> None:
        """Note when `sender` is due. To be repeated whenever that may have become earlier, and once it was looked after."""
        due_ns = queue.due_ns
        if due_ns >= queue.scheduled_ns:
            return
        self._scheduled += queue.scheduled_ns == NEVER_NS
        queue.scheduled_ns = due_ns
        if len(self._due) > _MAX_STALE_FACTOR * (self._scheduled + MIN_QUANTUM):
            self._due = [entry for entry in self._due if entry[2].scheduled_ns == entry[0]]
            heapify(self._due)
        heappush(self._due, (due_ns, next(self._numbers), queue))

    def remove(self, queue: SubscriberQueue) -> None:
        """It has nothing any more."""
        self.remove_ready(queue)
        self._unschedule_service(queue)

    def _unschedule_service(self, queue: SubscriberQueue) -> None:
        self._scheduled -= queue.scheduled_ns != NEVER_NS
        queue.scheduled_ns = NEVER_NS

    @property
    def next_due_ns(self) -> int:
        """When the next one is due, or earlier."""
        return self._due[0][0] if self._due else NEVER_NS

    def pop_due(self, now_ns: int) -> SubscriberQueue | None:
        """One that is to be looked after now, those first that have been due for longest. Then `schedule` it again."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, queue = heappop(self._due)
            if queue.scheduled_ns != due_ns:
                continue
            self._unschedule_service(queue)
            if queue.due_ns <= now_ns:
                return queue
            self.schedule_service(queue)
        return None
