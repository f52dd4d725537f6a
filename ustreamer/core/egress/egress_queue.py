# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent to an endpoint, in a lane of its own for each subscriber that is sent to by itself.

Every lane has its classes, its order, its retry clock and its bounds (`sender`), and all of them share those of the endpoint.
A lane of the host owns one queue, holds its lock, and sends what `take` gives.
"""

from collections.abc import Hashable, Iterator

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.scheduler import RoundRobin
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class EgressQueue:
    """A bounded queue of lanes, each in seven priority classes; within a class order of arrival is kept. Not locked.

    The classes of a lane share what it sends by WEIGHTS, the more important first; lanes take turns. What is parked counts
    into the bounds, and so bounds the number of routes; a lane is there as long as something waits in it, so the bounds are
    those of the number of lanes as well.
    """

    def __init__(self, limits: EgressLimits) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Messages that are not parked."""
        self.evicted_by_subscriber_limit = 0
        """Messages that had to go because of the bounds of their subscriber."""
        self._class_messages = [0] * CLASSES
        self._class_bytes = [0] * CLASSES
        # Of these, what cannot be sent at present: what is parked, or for a subscriber whose lane is paused.
        self._unsendable_messages = [0] * CLASSES
        self._unsendable_bytes = [0] * CLASSES
        self._closed_routes: dict[Hashable, dict[SubscriberQueue, None]] = {}
        self._scheduler = RoundRobin()
        self.shared_queue = SubscriberQueue(None, self)
        """The lane of all that is not for one subscriber alone. It is always there."""
        self._subscriber_queues: dict[UUri, SubscriberQueue] = {}
        self.serving: SubscriberQueue | None = None
        """The lane of what was taken out last, until `rest`."""
        self.set_limits(limits)

    def set_limits(self, limits: EgressLimits) -> None:
        """Go by other limits; what is in the queue stays until it is taken, or has to make room."""
        self._limits = limits
        self.subscriber_limit_messages, self.subscriber_limit_bytes = limits.per_subscriber

    # --- taking in ------------------------------------------------------------------------------------------------------

    def push(
        self,
        delivery: Delivery,
        message: UMessage,
        now_ns: int,
        attempts: int = 0,
        deadline_ns: int = NEVER_NS,
    ) -> list[QueuedMessage]:
        """Take `message` in, which was tried `attempts` times just now; what had to go for it is returned.

        When the bounds of its subscriber are exceeded, or those of the endpoint, the youngest of the lowest classes below
        the newcomer's make room, of that subscriber or of all; first what cannot be sent at present, and also that of the
        newcomer's own class, unless it could not be sent either. If that is not enough, the newcomer itself is returned.
        """
        tried_ns = now_ns if attempts else 0
        size = len(message.payload) + OVERHEAD_BYTES
        item = QueuedMessage(delivery, message, now_ns, size, attempts, tried_ns, tried_ns, deadline_ns)
        limits = self._limits
        queue = self._queue_for(delivery.subscriber)
        if (
            self.messages < limits.queue_messages and self.bytes + size <= limits.queue_bytes
        ) and (  # `_fits` and `_fits_own`, 0.2 us less
            queue is self.shared_queue
            or (
                queue.waiting.messages + queue.blocked.messages < self.subscriber_limit_messages
                and queue.waiting.bytes + queue.blocked.bytes + size <= self.subscriber_limit_bytes
            )
        ):
            self._enqueue(queue, item)
            return []
        return self._push_evicting(queue, item)

    def restore(self, item: QueuedMessage) -> None:
        """Take in, behind all others of its class, what an earlier process has accepted: whatever the limits are now."""
        self._append(self._queue_for(item.delivery.subscriber), item)

    def _queue_for(self, subscriber: UUri | None) -> SubscriberQueue:
        if subscriber is None:
            return self.shared_queue
        queue = self._subscriber_queues.get(subscriber)
        if queue is None:
            queue = self._subscriber_queues[subscriber] = SubscriberQueue(subscriber, self)
        return queue

    def _enqueue(self, queue: SubscriberQueue, item: QueuedMessage) -> None:
        """Have `item` wait behind all others of its class."""
        if queue.blocked.messages and self._enqueue_blocked(queue, item):
            return
        self._append(queue, item)

    def _enqueue_blocked(self, queue: SubscriberQueue, item: QueuedMessage) -> bool:
        """Have `item` wait with its stream, so that nobody is woken for it; False if that is not parked as a whole."""
        if queue is self.serving or queue.waiting.messages_in(item.message.attributes.priority_class):
            return False
        return queue.blocked.enqueue_blocked(item)

    def _append(self, queue: SubscriberQueue, item: QueuedMessage) -> None:
        rank = item.message.attributes.priority_class
        queue.waiting.append(rank, item)
        if queue.paused_until_ns:
            self._count_unsendable(queue, rank, 1, item.size)
        elif queue.waiting.messages == 1:
            self._scheduler.add_ready(queue)

    # --- making room ----------------------------------------------------------------------------------------------------

    def _fits(self, size: int, evicting: int = 0) -> bool:
        """Whether a message adding `size` bytes has room when `going` others leave."""
        limits = self._limits
        return self.messages - evicting < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _fits_subscriber_limit(self, queue: SubscriberQueue, size: int, evicting: int = 0) -> bool:
        """The same of the bounds of its subscriber."""
        return queue is self.shared_queue or (
            queue.messages - evicting < self.subscriber_limit_messages
            and queue.bytes + size <= self.subscriber_limit_bytes
        )

    def _push_evicting(self, queue: SubscriberQueue, item: QueuedMessage) -> list[QueuedMessage]:
        rank, size = item.message.attributes.priority_class, item.size
        is_blocked = self._is_blocked(queue) or queue.is_stream_blocked(item.delivery, item.message)
        blocked_below = rank if is_blocked else rank + 1
        evicting, freed = queue.evictable_below(rank, blocked_below)
        item.evicted_by_subscriber_limit = not self._fits_subscriber_limit(queue, size - freed, evicting)
        evicting, freed = self._evictable_below(rank, blocked_below)
        if item.evicted_by_subscriber_limit or not self._fits(size - freed, evicting):
            self.evicted_by_subscriber_limit += item.evicted_by_subscriber_limit
            self._remove_if_empty(queue)
            return [item]
        evicted: list[tuple[SubscriberQueue, QueuedMessage]] = []
        while not self._fits_subscriber_limit(queue, size):
            evicted.append((queue, self._pop_newest(queue, self._lowest_class_of(queue, blocked_below))))
            evicted[-1][1].evicted_by_subscriber_limit = True
            self.evicted_by_subscriber_limit += 1
        while not self._fits(size):
            victim, lowest = self._eviction_victim(rank, blocked_below)
            evicted.append((victim, self._pop_newest(victim, lowest)))
        self._enqueue(queue, item)
        for victim, _ in evicted:
            self._remove_if_empty(victim)
        return [each for _, each in evicted]

    def _evictable_below(self, rank: int, blocked_below: int) -> tuple[int, int]:
        """Messages and bytes of all lanes that may have to go for one of class `rank`."""
        messages, size = sum(self._class_messages[:rank]), sum(self._class_bytes[:rank])
        if blocked_below > rank:
            messages, size = messages + self._unsendable_messages[rank], size + self._unsendable_bytes[rank]
        return messages, size

    @staticmethod
    def _lowest_class_of(queue: SubscriberQueue, below: int) -> int:
        """The lowest class of which a lane has something."""
        return next(
            rank
            for rank in range(below)
            if queue.blocked.messages_in(rank) or queue.waiting.messages_in(rank)
        )

    def _eviction_victim(self, rank: int, blocked_below: int) -> tuple[SubscriberQueue, int]:
        """Who makes room, and in which class: the lane that has waited for longest of those that have what is to go first."""
        for lowest in range(blocked_below):
            if self._unsendable_messages[lowest]:
                for queue in self._all_queues():
                    has_blocked = queue.blocked.messages_in(lowest) or (
                        self._is_blocked(queue) and queue.waiting.messages_in(lowest)
                    )
                    if has_blocked:
                        return queue, lowest
            if lowest < rank and self._class_messages[lowest]:
                return next((each, lowest) for each in self._all_queues() if each.waiting.messages_in(lowest))
        raise AssertionError("push has counted what may go")

    def _pop_newest(self, queue: SubscriberQueue, rank: int) -> QueuedMessage:
        if queue.blocked.messages_in(rank):
            return queue.blocked.pop_newest(rank)
        item = queue.waiting.pop_newest(rank)
        self._count_unsendable(queue, rank, -1, -item.size)
        return item

    def _all_queues(self) -> Iterator[SubscriberQueue]:
        yield from self._subscriber_queues.values()
        yield self.shared_queue

    # --- taking out -----------------------------------------------------------------------------------------------------

    def pop_batch(self, limit: int = 1) -> list[QueuedMessage]:
        """Take out up to `limit` messages of the lane whose turn it is: the most important of those classes that have not
        had their share. Fewer, where other lanes have something to send.
        """
        turn = self._scheduler.next_turn(limit)
        if turn is None:
            return []
        queue, share = turn
        self._set_serving(queue)
        return queue.waiting.pop_batch(share)

    def pop_all(self) -> list[QueuedMessage]:
        """Take out everything, lane by lane; first what is parked."""
        popped = []
        for queue in list(self._all_queues()):
            popped += queue.blocked.pop_expired(lambda _: True)
            self.resume(queue)
            popped += queue.waiting.pop_batch(queue.waiting.messages)
            self._remove_if_empty(queue)
        return popped

    def requeue(self, items: list[QueuedMessage]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        if items:
            queue = self._queue_for(items[0].delivery.subscriber)
            queue.waiting.requeue(items)
            self._scheduler.add_ready(queue)

    def end_turn(self) -> None:
        """Nothing that was taken out will be put back or parked any more."""
        if self.serving is not None:
            served, self.serving = self.serving, None
            self._remove_if_empty(served)

    def _set_serving(self, queue: SubscriberQueue) -> None:
        if queue is not self.serving:
            self.end_turn()
            self.serving = queue

    def _remove_if_empty(self, queue: SubscriberQueue) -> None:
        subscriber = queue.subscriber
        if subscriber is not None and not queue.messages and queue is not self.serving:
            self._scheduler.remove(queue)
            self._subscriber_queues.pop(subscriber, None)

    def __len__(self) -> int:
        return self.messages

    # --- who must not be overtaken ----------------------------------------------------------------------------------------

    def may_bypass(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether nothing waits that `message` must not overtake: the lanes of others do not concern it."""
        subscriber = delivery.subscriber
        queue = self.shared_queue if subscriber is None else self._subscriber_queues.get(subscriber)
        return queue is None or queue.may_bypass(delivery, message)

    def is_empty_for(self, subscriber: UUri | None) -> bool:
        """Whether nothing waits for this subscriber."""
        queue = self.shared_queue if subscriber is None else self._subscriber_queues.get(subscriber)
        return queue is None or not (queue.messages or queue.paused_until_ns)

    # --- pausing, parking -------------------------------------------------------------------------------------------------

    def pause(self, queue: SubscriberQueue, until_ns: int) -> None:
        """Have a lane send nothing before this time: it was READY, and is PAUSED."""
        queue.paused_until_ns = until_ns
        self._scheduler.remove_ready(queue)
        self._count_all_unsendable(queue, 1)
        self._scheduler.schedule_service(queue)

    def resume(self, queue: SubscriberQueue) -> None:
        """Have a lane that is PAUSED be READY."""
        if not queue.paused_until_ns:
            return
        self._count_all_unsendable(queue, -1)
        queue.paused_until_ns = 0
        if queue.waiting.messages:
            self._scheduler.add_ready(queue)

    def resume_all(self) -> None:
        for queue in self._all_queues():
            self.resume(queue)

    def on_link_up(self, now_ns: int) -> None:
        """All that waits for a time may be tried now, and failures count anew."""
        for queue in self._all_queues():
            queue.failures = 0
            self.resume(queue)
            queue.blocked.retry_all_routes(now_ns)
            self._scheduler.schedule_service(queue)

    @property
    def is_failing(self) -> bool:
        """Whether the last send to somebody was UNAVAILABLE."""
        return any(queue.failures for queue in self._all_queues())

    @property
    def has_sendable(self) -> bool:
        """Whether something waits for somebody to whom the last send was not UNAVAILABLE."""
        return any(queue.waiting.messages and not queue.failures for queue in self._all_queues())

    def block(self, queue: SubscriberQueue, item: QueuedMessage, route: Hashable, try_ns: int) -> None:
        """Have `item`, which was taken out of this lane, wait for `route`; see `BlockedRoutes.block`."""
        queue.blocked.block(item, route, try_ns)
        queue.expiry_scan_ns = min(queue.expiry_scan_ns, item.deadline_ns + 1)
        self._scheduler.schedule_service(queue)

    def release_route(self, queue: SubscriberQueue, route: Hashable) -> None:
        """The route is open: what waits for it is in front of its lane again."""
        for rank, items in reversed(queue.blocked.release_route(route)):
            queue.waiting.prepend(rank, items)
        if queue.waiting.messages and not queue.paused_until_ns:
            self._scheduler.add_ready(queue)

    def retry_route(self, route: Hashable, now_ns: int = 0) -> bool:
        """Have a closed route tried at once, its failures counted anew; whether it was closed."""
        waiting = self._closed_routes.get(route, ())
        for queue in waiting:
            queue.blocked.retry_route(route, now_ns)
            self._scheduler.schedule_service(queue)
        return bool(waiting)

    # --- times ------------------------------------------------------------------------------------------------------------

    @property
    def next_due_ns(self) -> int:
        """No lane is to be looked after before this time."""
        return self._scheduler.next_due_ns

    def pop_due(self, now_ns: int) -> SubscriberQueue | None:
        """A lane that is to be looked after now; then tell `looked_after`."""
        queue = self._scheduler.pop_due(now_ns)
        if queue is not None:
            self._set_serving(queue)
        return queue

    def serviced(self, queue: SubscriberQueue) -> None:
        self._scheduler.schedule_service(queue)

    # --- counting ---------------------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> int:
        """Messages that wait for a route of theirs."""
        return self.messages - self.waiting

    @property
    def closed_routes(self) -> int:
        return len(self._closed_routes)

    def has_ready(self) -> bool:
        """Whether a lane may have something to send."""
        return self._scheduler.has_ready

    def subscriber_queues(self) -> list[SubscriberQueue]:
        """Those of subscribers for whom something waits."""
        return [queue for queue in self._subscriber_queues.values() if queue.messages]

    def count_waiting(self, rank: int, messages: int, size: int) -> None:
        self.waiting += messages
        self.messages += messages
        self.bytes += size
        self._class_messages[rank] += messages
        self._class_bytes[rank] += size

    def count_blocked(self, rank: int, messages: int, size: int) -> None:
        self.count_waiting(rank, messages, size)
        self.waiting -= messages
        self._unsendable_messages[rank] += messages
        self._unsendable_bytes[rank] += size

    def on_route_closed(self, route: Hashable, queue: SubscriberQueue) -> None:
        self._closed_routes.setdefault(route, {})[queue] = None

    def on_route_removed(self, route: Hashable, queue: SubscriberQueue) -> None:
        waiting = self._closed_routes[route]
        del waiting[queue]
        if not waiting:
            del self._closed_routes[route]

    def _is_blocked(self, queue: SubscriberQueue) -> bool:
        """Whether nothing of this lane can be sent at present. With that of the endpoint, nobody's could: no reason to go."""
        return bool(queue.paused_until_ns) and queue is not self.shared_queue

    def _count_unsendable(self, queue: SubscriberQueue, rank: int, messages: int, size: int) -> None:
        if self._is_blocked(queue):
            self._unsendable_messages[rank] += messages
            self._unsendable_bytes[rank] += size

    def _count_all_unsendable(self, queue: SubscriberQueue, sign: int) -> None:
        for rank in range(CLASSES):
            self._count_unsendable(
                queue, rank, sign * queue.waiting.messages_in(rank), sign * queue.waiting.bytes_in(rank)
            )
