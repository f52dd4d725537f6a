# SPDX-License-Identifier: Apache-2.0
"""Round robin over the subscriber queues of an endpoint, and the times of their next service."""

from collections import OrderedDict
from typing import Final

from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.subscriber_queue import SubscriberQueue

MIN_QUANTUM: Final = 8
"""The minimum number of messages per turn, however many queues are ready."""


class RoundRobin:
    """Serves ready subscriber queues in turn; idle queues cost nothing. Not thread-safe.

    In one turn a queue may send its quantum: the caller's limit divided by the number of ready queues, at least
    `MIN_QUANTUM`. So each of n ready queues has a turn within the caller's limit, or within n times `MIN_QUANTUM` messages
    if that is more.
    """

    def __init__(self) -> None:
        self.ready: OrderedDict[SubscriberQueue, None] = OrderedDict()
        """The queues that may have a message to send, in order of service."""
        self.due: DeadlineQueue[SubscriberQueue] = DeadlineQueue()
        """The queues with a time of service; no queue is due before its `next_due`."""

    # --- turns of the scheduler -----------------------------------------------------------------------------

    def add_ready(self, queue: SubscriberQueue) -> None:
        """Append `queue` to the round; a queue that is in it keeps its position."""
        self.ready[queue] = None

    def remove_ready(self, queue: SubscriberQueue) -> None:
        self.ready.pop(queue, None)

    def next_turn(self, limit: int) -> tuple[SubscriberQueue, int] | None:
        """The next queue and its quantum; None if no queue is ready. The queue moves to the end of the round."""
        ready = self.ready
        while ready:
            queue = next(iter(ready))
            if queue.waiting.messages:
                ready.move_to_end(queue)
                return queue, limit if len(ready) == 1 else min(limit, max(MIN_QUANTUM, limit // len(ready)))
            del ready[queue]  # its messages have been evicted since
        return None

    # --- times --------------------------------------------------------------------------------------------------------

    def schedule_service(self, queue: SubscriberQueue) -> None:
        """Record when `queue` is due. Call again after each service, and when the due time may have become earlier."""
        due_ns = queue.due_ns
        if due_ns != NEVER_NS:
            self.due.schedule_earlier(queue, due_ns)

    def remove(self, queue: SubscriberQueue) -> None:
        """Remove an empty queue, also its time of service."""
        self.remove_ready(queue)
        self.due.cancel(queue)

    def pop_due(self, now_ns: int) -> SubscriberQueue | None:
        """The queue that has been due for longest, or None. Call `schedule_service` after its service."""
        while (queue := self.due.pop_due(now_ns)) is not None:
            if queue.due_ns <= now_ns:
                return queue
            self.schedule_service(queue)
        return None
