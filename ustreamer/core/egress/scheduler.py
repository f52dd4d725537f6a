# SPDX-License-Identifier: Apache-2.0
"""Round robin over the subscriber queues of an endpoint, and a heap of the times of their next service."""

from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final

from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.subscriber_queue import SubscriberQueue

MIN_QUANTUM: Final = 8
"""The minimum number of messages per turn, however many queues are ready."""

_MAX_STALE_FACTOR: Final = 4  # heap entries per valid entry; above it the heap is rebuilt


class RoundRobin:
    """Serves ready subscriber queues in turn; idle queues cost nothing. Not thread-safe.

    A turn is the caller's limit divided by the number of ready queues, but at least `MIN_QUANTUM`. After that limit, or
    n times `MIN_QUANTUM` messages, each of n ready queues has had a turn.
    """

    def __init__(self) -> None:
        self._ready: dict[SubscriberQueue, None] = {}  # in order of service
        self._due: list[tuple[int, int, SubscriberQueue]] = []
        self._numbers = count()  # ties: first scheduled, first served
        self._scheduled = 0

    # --- turns of the scheduler -----------------------------------------------------------------------------

    def add_ready(self, queue: SubscriberQueue) -> None:
        """Append `queue` to the round; a queue that is in it keeps its position."""
        self._ready[queue] = None

    def remove_ready(self, queue: SubscriberQueue) -> None:
        self._ready.pop(queue, None)

    def next_turn(self, limit: int) -> tuple[SubscriberQueue, int] | None:
        """The next queue and its quantum; None if no queue is ready. The queue moves to the end of the round."""
        ready = self._ready
        while ready:
            queue = next(iter(ready))
            if len(ready) == 1:
                if queue.waiting.messages:
                    return queue, limit
                del ready[queue]
                break
            del ready[queue]
            if queue.waiting.messages:  # its messages may have been evicted since
                ready[queue] = None
                return queue, min(limit, max(MIN_QUANTUM, limit // len(ready)))
        return None

    @property
    def has_ready(self) -> bool:
        """True if a queue may have a message to send."""
        return bool(self._ready)

    # --- times --------------------------------------------------------------------------------------------------------

    def schedule_service(self, queue: SubscriberQueue) -> None:
        """Record when `queue` is due. Call again after each service, and when the due time may have become earlier."""
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
        """Forget an empty queue."""
        self.remove_ready(queue)
        self._unschedule_service(queue)

    def _unschedule_service(self, queue: SubscriberQueue) -> None:
        self._scheduled -= queue.scheduled_ns != NEVER_NS
        queue.scheduled_ns = NEVER_NS

    @property
    def next_due_ns(self) -> int:
        """A lower bound of the next due time."""
        return self._due[0][0] if self._due else NEVER_NS

    def pop_due(self, now_ns: int) -> SubscriberQueue | None:
        """The queue that has been due for longest, or None. Call `schedule_service` after its service."""
        while self._due and self._due[0][0] <= now_ns:
            due_ns, _, queue = heappop(self._due)
            if queue.scheduled_ns != due_ns:
                continue
            self._unschedule_service(queue)
            if queue.due_ns <= now_ns:
                return queue
            self.schedule_service(queue)
        return None
