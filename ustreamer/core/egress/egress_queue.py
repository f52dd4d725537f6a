# SPDX-License-Identifier: Apache-2.0
"""The messages that wait to be sent to one endpoint, in one subscriber queue per unicast subscriber.

In: `push`. Out: `pop_batch`, and the evicted messages that `push` returns. Each subscriber queue has its own classes,
order, retry time and bounds (subscriber_queue.py); the bounds of the endpoint apply to all of them together. The
endpoint queue of the host owns one `EgressQueue`, holds its lock, and sends what `pop_batch` returns.
"""

from collections.abc import Hashable, Iterator

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.scheduler import RoundRobin
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class EgressQueue:
    """Bounded subscriber queues, each with seven priority classes; a class keeps order of arrival. Not thread-safe.

    The classes of a subscriber queue share its sends by WEIGHTS, higher classes first; subscriber queues are served in
    round robin. Blocked messages count against the bounds, which thus bound the number of closed routes. An empty
    subscriber queue is removed, so the bounds also limit the number of subscriber queues.
    """

    def __init__(self, limits: EgressLimits) -> None:
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Messages that are not blocked."""
        self.evicted_by_subscriber_limit = 0
        """Messages evicted or refused because of the bounds of their subscriber."""
        self._class_messages = [0] * CLASSES
        self._class_bytes = [0] * CLASSES
        # The unsendable part of these: blocked messages, and messages of paused subscriber queues.
        self._unsendable_messages = [0] * CLASSES
        self._unsendable_bytes = [0] * CLASSES
        self._closed_routes: dict[Hashable, dict[SubscriberQueue, None]] = {}
        self.scheduler = RoundRobin()
        """The subscriber queues with messages to send, and the times of service."""
        self.shared_queue = SubscriberQueue(None, self)
        """The queue of all messages that are not for one subscriber. Never removed."""
        self._subscriber_queues: dict[UUri, SubscriberQueue] = {}
        self.serving: SubscriberQueue | None = None
        """The queue of the last popped messages, until `end_turn`."""
        self.set_limits(limits)

    def set_limits(self, limits: EgressLimits) -> None:
        """Apply other limits; queued messages above them stay until they are sent or evicted."""
        self._limits = limits
        self.subscriber_limit_messages, self.subscriber_limit_bytes = limits.per_subscriber

    # --- enqueue ------------------------------------------------------------------------------------------------------

    def push(
        self,
        delivery: Delivery,
        message: UMessage,
        now_ns: int,
        attempts: int = 0,
        deadline_ns: int = NEVER_NS,
    ) -> list[QueuedMessage]:
        """Enqueue `message`, which was tried `attempts` times just now, and return the messages evicted for it.

        If the bounds of the subscriber or the endpoint are exceeded, the newest messages of the lowest classes below
        that of `message` are evicted, from that subscriber or from all. In each class unsendable messages are
        first. Unsendable messages of the class of `message` can be evicted too, if `message` is sendable. If even that is
        not enough, nothing is evicted and only `message` is returned.

        An excess over the bounds stays, as after a restart or with new limits: `message` gets room, and no more.
        """
        tried_ns = now_ns if attempts else 0
        size = len(message.payload) + OVERHEAD_BYTES
        item = QueuedMessage(delivery, message, now_ns, size, attempts, tried_ns, tried_ns, deadline_ns)
        queue = self._queue_for(delivery.subscriber)
        if self._fits(size) and self._fits_subscriber_limit(queue, size):
            self._enqueue(queue, item)
            return []
        return self._push_evicting(queue, item)

    def restore(self, item: QueuedMessage) -> None:
        """Append a message that an earlier process accepted, regardless of the limits."""
        self._append(self._queue_for(item.delivery.subscriber), item)

    def _queue_for(self, subscriber: UUri | None) -> SubscriberQueue:
        if subscriber is None:
            return self.shared_queue
        queue = self._subscriber_queues.get(subscriber)
        if queue is None:
            queue = self._subscriber_queues[subscriber] = SubscriberQueue(subscriber, self)
        return queue

    def _enqueue(self, queue: SubscriberQueue, item: QueuedMessage) -> None:
        """Append `item` to its class, or to its stream if that is blocked."""
        if queue.blocked.messages and self._enqueue_blocked(queue, item):
            return
        self._append(queue, item)

    def _enqueue_blocked(self, queue: SubscriberQueue, item: QueuedMessage) -> bool:
        """Append `item` to its blocked stream, which wakes no thread; False if the stream is not entirely blocked."""
        if queue is self.serving or queue.waiting.messages_in(item.message.attributes.priority_class):
            return False
        return queue.blocked.enqueue_blocked(item)

    def _append(self, queue: SubscriberQueue, item: QueuedMessage) -> None:
        rank = item.message.attributes.priority_class
        queue.waiting.append(rank, item)
        if queue.paused_until_ns:
            self._count_unsendable(queue, rank, 1, item.size)
        elif queue.waiting.messages == 1:
            self.scheduler.add_ready(queue)

    # --- eviction -----------------------------------------------------------------------------------------------------

    def _fits(self, size: int, messages: int = 0) -> bool:
        """True if one more message fits the endpoint's bounds after the queue has changed by `size` and `messages`.

        `size` has the bytes of that message. Evictions and an excess over the bounds are subtracted from both.
        """
        limits = self._limits
        return self.messages + messages < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _fits_subscriber_limit(self, queue: SubscriberQueue, size: int, messages: int = 0) -> bool:
        """As `_fits`, for the bounds of its subscriber."""
        return queue is self.shared_queue or (
            queue.messages + messages < self.subscriber_limit_messages
            and queue.bytes + size <= self.subscriber_limit_bytes
        )

    def _excess(self) -> tuple[int, int]:
        """The messages and bytes above the endpoint's bounds."""
        limits = self._limits
        return max(0, self.messages - limits.queue_messages), max(0, self.bytes - limits.queue_bytes)

    def _subscriber_excess(self, queue: SubscriberQueue) -> tuple[int, int]:
        """As `_excess`, for the bounds of a subscriber."""
        return (
            max(0, queue.messages - self.subscriber_limit_messages),
            max(0, queue.bytes - self.subscriber_limit_bytes),
        )

    def _push_evicting(self, queue: SubscriberQueue, item: QueuedMessage) -> list[QueuedMessage]:
        rank, size = item.message.attributes.priority_class, item.size
        is_unsendable = self._is_paused(queue) or queue.is_stream_blocked(item.delivery, item.message)
        blocked_below = rank if is_unsendable else rank + 1
        (above, above_bytes), (own_above, own_above_bytes) = self._excess(), self._subscriber_excess(queue)
        evictable, freed = queue.evictable_below(rank, blocked_below)
        item.evicted_by_subscriber_limit = not self._fits_subscriber_limit(
            queue, size - freed - own_above_bytes, -evictable - own_above
        )
        evictable, freed = self._evictable_below(rank, blocked_below)
        if item.evicted_by_subscriber_limit or not self._fits(size - freed - above_bytes, -evictable - above):
            self.evicted_by_subscriber_limit += item.evicted_by_subscriber_limit
            self._remove_if_empty(queue)
            return [item]
        evicted: list[tuple[SubscriberQueue, QueuedMessage]] = []
        while not self._fits_subscriber_limit(queue, size - own_above_bytes, -own_above):
            evicted.append((queue, self._pop_newest(queue, self._lowest_class_of(queue, blocked_below))))
            evicted[-1][1].evicted_by_subscriber_limit = True
            self.evicted_by_subscriber_limit += 1
        while not self._fits(size - above_bytes, -above):
            victim, lowest = self._eviction_victim(rank, blocked_below)
            evicted.append((victim, self._pop_newest(victim, lowest)))
        self._enqueue(queue, item)
        for victim, _ in evicted:
            self._remove_if_empty(victim)
        return [each for _, each in evicted]

    def _evictable_below(self, rank: int, blocked_below: int) -> tuple[int, int]:
        """Messages and bytes of all subscriber queues that can be evicted for a message of class `rank`."""
        messages, size = sum(self._class_messages[:rank]), sum(self._class_bytes[:rank])
        if blocked_below > rank:
            messages, size = messages + self._unsendable_messages[rank], size + self._unsendable_bytes[rank]
        return messages, size

    @staticmethod
    def _lowest_class_of(queue: SubscriberQueue, below: int) -> int:
        """The lowest class in which a subscriber queue has messages."""
        return next(
            rank
            for rank in range(below)
            if queue.blocked.messages_in(rank) or queue.waiting.messages_in(rank)
        )

    def _eviction_victim(self, rank: int, blocked_below: int) -> tuple[SubscriberQueue, int]:
        """The subscriber queue and class of the next eviction: the oldest queue with messages of that class."""
        for lowest in range(blocked_below):
            if self._unsendable_messages[lowest]:
                for queue in self._all_queues():
                    has_unsendable = queue.blocked.messages_in(lowest) or (
                        self._is_paused(queue) and queue.waiting.messages_in(lowest)
                    )
                    if has_unsendable:
                        return queue, lowest
            if lowest < rank and self._class_messages[lowest]:
                return next((each, lowest) for each in self._all_queues() if each.waiting.messages_in(lowest))
        raise AssertionError("push has counted the evictable messages")

    def _pop_newest(self, queue: SubscriberQueue, rank: int) -> QueuedMessage:
        if queue.blocked.messages_in(rank):
            return queue.blocked.pop_newest(rank)
        item = queue.waiting.pop_newest(rank)
        self._count_unsendable(queue, rank, -1, -item.size)
        return item

    def _all_queues(self) -> Iterator[SubscriberQueue]:
        yield from self._subscriber_queues.values()
        yield self.shared_queue

    # --- dequeue ------------------------------------------------------------------------------------------------------

    def pop_batch(self, limit: int = 1) -> list[QueuedMessage]:
        """Pop up to `limit` messages of the next queue in turn, by class weights; fewer if other queues are ready."""
        turn = self.scheduler.next_turn(limit)
        if turn is None:
            return []
        queue, quantum = turn
        self._set_serving(queue)
        return queue.waiting.pop_batch(quantum)

    def pop_all(self) -> list[QueuedMessage]:
        """Pop everything, queue by queue, blocked messages first."""
        popped = []
        for queue in list(self._all_queues()):
            popped += queue.blocked.pop_expired(lambda _: True)
            self.resume(queue)
            popped += queue.waiting.pop_batch(queue.waiting.messages)
            self._remove_if_empty(queue)
        return popped

    def requeue(self, items: list[QueuedMessage]) -> None:
        """Put popped messages back in their order. May exceed the limits by the messages in flight."""
        if items:
            queue = self._queue_for(items[0].delivery.subscriber)
            queue.waiting.requeue(items)
            self.scheduler.add_ready(queue)

    def end_turn(self) -> None:
        """Declare that no popped message will be requeued or blocked any more."""
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
            self.scheduler.remove(queue)
            self._subscriber_queues.pop(subscriber, None)

    def __len__(self) -> int:
        return self.messages

    # --- order --------------------------------------------------------------------------------------------------------

    def may_bypass(self, delivery: Delivery, message: UMessage) -> bool:
        """True if no queued message must be sent before `message`. Other subscribers' queues do not matter."""
        subscriber = delivery.subscriber
        queue = self.shared_queue if subscriber is None else self._subscriber_queues.get(subscriber)
        return queue is None or queue.may_bypass(delivery, message)

    def is_empty_for(self, subscriber: UUri | None) -> bool:
        """True if no message waits for this subscriber and its queue is not paused."""
        queue = self.shared_queue if subscriber is None else self._subscriber_queues.get(subscriber)
        return queue is None or not (queue.messages or queue.paused_until_ns)

    # --- pause and block ----------------------------------------------------------------------------------------------

    def pause(self, queue: SubscriberQueue, until_ns: int) -> None:
        """Change a READY subscriber queue to PAUSED: it sends nothing before `until_ns`."""
        queue.paused_until_ns = until_ns
        self.scheduler.remove_ready(queue)
        self._count_all_unsendable(queue, 1)
        self.scheduler.schedule_service(queue)

    def resume(self, queue: SubscriberQueue) -> None:
        """Change a PAUSED subscriber queue to READY."""
        if not queue.paused_until_ns:
            return
        self._count_all_unsendable(queue, -1)
        queue.paused_until_ns = 0
        if queue.waiting.messages:
            self.scheduler.add_ready(queue)

    def resume_all(self) -> None:
        for queue in self._all_queues():
            self.resume(queue)

    def on_link_up(self, now_ns: int) -> None:
        """Resume all queues, make all closed routes due, and reset failure counts."""
        for queue in self._all_queues():
            queue.failures = 0
            self.resume(queue)
            queue.blocked.retry_all_routes(now_ns)
            self.scheduler.schedule_service(queue)

    @property
    def is_failing(self) -> bool:
        """True if the last send to any subscriber was UNAVAILABLE."""
        return any(queue.failures for queue in self._all_queues())

    @property
    def has_sendable(self) -> bool:
        """True if a message waits for a subscriber whose last send was not UNAVAILABLE."""
        return any(queue.waiting.messages and not queue.failures for queue in self._all_queues())

    def block(self, queue: SubscriberQueue, item: QueuedMessage, route: Hashable, try_ns: int) -> None:
        """Block the popped `item` of `queue` until `route` opens; see `BlockedRoutes.block`."""
        queue.blocked.block(item, route, try_ns)
        queue.expiry_scan_ns = min(queue.expiry_scan_ns, item.deadline_ns + 1)
        self.scheduler.schedule_service(queue)

    def release_route(self, queue: SubscriberQueue, route: Hashable) -> None:
        """The route is open: move its messages back to the front of the queue."""
        for rank, items in reversed(queue.blocked.release_route(route)):
            queue.waiting.prepend(rank, items)
        if queue.waiting.messages and not queue.paused_until_ns:
            self.scheduler.add_ready(queue)

    def retry_route(self, route: Hashable, now_ns: int = 0) -> bool:
        """Make a closed route due at `now_ns` and reset its failures; False if it was not closed."""
        waiting = self._closed_routes.get(route, ())
        for queue in waiting:
            queue.blocked.retry_route(route, now_ns)
            self.scheduler.schedule_service(queue)
        return bool(waiting)

    # --- times --------------------------------------------------------------------------------------------------------

    def pop_due(self, now_ns: int) -> SubscriberQueue | None:
        """A subscriber queue that is due for service, or None; call `scheduler.schedule_service` afterwards."""
        queue = self.scheduler.pop_due(now_ns)
        if queue is not None:
            self._set_serving(queue)
        return queue

    # --- counting -----------------------------------------------------------------------------------------------------

    @property
    def blocked(self) -> int:
        """Messages that wait for a route to open."""
        return self.messages - self.waiting

    @property
    def sendable(self) -> int:
        """Messages that wait for their turn only: neither blocked nor in a paused subscriber queue."""
        return 0 if self.shared_queue.paused_until_ns else self.messages - sum(self._unsendable_messages)

    @property
    def is_half_full(self) -> bool:
        return 2 * self.messages > self._limits.queue_messages or 2 * self.bytes > self._limits.queue_bytes

    @property
    def closed_routes(self) -> int:
        return len(self._closed_routes)

    def closed_route_keys(self) -> list[Hashable]:
        return list(self._closed_routes)

    def blocked_messages_of(self, address: UUri) -> tuple[int, int]:
        """As `BlockedRoutes.of_address`, of all subscriber queues."""
        found = [each.blocked.of_address(address) for each in self._all_queues()]
        return sum(count for count, _ in found), min(oldest_ns for _, oldest_ns in found)

    def subscriber_queues(self) -> list[SubscriberQueue]:
        """The queues of subscribers that have messages. From any thread: the copy is one atomic step."""
        return [queue for queue in list(self._subscriber_queues.values()) if queue.messages]

    @property
    def limits(self) -> EgressLimits:
        return self._limits

    @property
    def oldest_received_ns(self) -> int | None:
        """When the oldest message was received; None for an empty queue. From any thread."""
        queues = [self.shared_queue, *self.subscriber_queues()]
        heads = (item for queue in queues for item in (*queue.waiting.heads(), *queue.blocked.heads()))
        return min((item.received_ns for item in heads), default=None)

    @property
    def oldest_unblocked_ns(self) -> int | None:
        """As `oldest_received_ns`, without messages that wait for a closed route."""
        queues = [self.shared_queue, *self.subscriber_queues()]
        heads = (item for queue in queues for item in queue.waiting.heads())
        return min((item.received_ns for item in heads), default=None)

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

    def _is_paused(self, queue: SubscriberQueue) -> bool:
        """True if `queue` is paused. A pause of the shared queue stops all, so it makes no message evictable."""
        return bool(queue.paused_until_ns) and queue is not self.shared_queue

    def _count_unsendable(self, queue: SubscriberQueue, rank: int, messages: int, size: int) -> None:
        if self._is_paused(queue):
            self._unsendable_messages[rank] += messages
            self._unsendable_bytes[rank] += size

    def _count_all_unsendable(self, queue: SubscriberQueue, sign: int) -> None:
        for rank in range(CLASSES):
            self._count_unsendable(
                queue, rank, sign * queue.waiting.messages_in(rank), sign * queue.waiting.bytes_in(rank)
            )
