# SPDX-License-Identifier: Apache-2.0
"""The egress queue of one endpoint, its lock, and the sends on the caller's thread.

In: messages with their deliveries (`offer`, `offer_batch`). Out: sends, verdicts in the ledger, undelivered messages.

A message is sent on the caller's thread while nothing waits and the transport has room for it.
`EndpointTransport.send_window` gives the room: the bytes that the transport takes without waiting. UDP always has
room. A Zenoh put may wait for seconds, but not while the kernel's buffers have room. All other messages are queued for
the send thread, so that a slow endpoint delays only itself. Exception: the backpressure of `wait_backlog`.

The reason for the direct send: otherwise two threads pass the interpreter lock back and forth for every message. That
cost 22 to 32 us of CPU per message from SOME/IP to Zenoh, the direct send 9 us.
"""

import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from heapq import nlargest
from itertools import accumulate
from threading import current_thread

import msgspec

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery, settle_all_delivered
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.core.delivery.ports import SendBatch, SendOne
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import NEVER_NS, OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.core.egress.wait_budget import WaitBudget
from ustreamer.host.egress.send_worker import OnUndelivered, SendWorker
from ustreamer.transport_port import UNBOUNDED, EndpointTransport, SubscriberEnded
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.utransport import BatchListener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

_FULLEST = 3
_BACKLOG = 128  # messages: one received batch. More sendable messages are a backlog.
_WAIT_TICK_S = 0.001
_MAX_WAIT_TICKS = 100
_NEXT_WAIT_NS = 5_000_000  # between two checks of a slow receiver; a check costs 15 us
_MAX_CREDIT = 1 << 18  # bytes: one `send_window` call (5 us) for about 1 000 small messages
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000


class SubscriberQueueStatistics(msgspec.Struct, frozen=True):
    """The queue of one subscriber. `failures` counts UNAVAILABLE sends in a row."""

    subscriber: UUri
    queued: int
    queued_bytes: int
    blocked: int
    failures: int


class EndpointQueueStatistics(msgspec.Struct, frozen=True):
    """The state of an endpoint queue at one moment. `retries` counts sends refused with UNAVAILABLE.

    Of the queued messages, `blocked` wait for one of `closed_routes`. They delay no other message.
    """

    endpoint: str
    queued: int
    queued_bytes: int
    delivered: int
    dead_lettered: int
    expired: int
    retries: int
    blocked: int
    closed_routes: int
    persisted: int = 0
    """Queued messages that are on disk."""
    evicted_subscriber_limit: int = 0
    """Messages dropped because of the limits of their subscriber."""
    subscribers: int = 0
    """Subscribers with waiting messages; each has its own subscriber queue."""
    fullest: tuple[SubscriberQueueStatistics, ...] = ()
    """The subscriber queues with the most messages, at most three."""


class EndpointQueue(SendWorker):
    """The egress of one endpoint; implements `ustreamer.core.delivery.ports.Egress`."""

    def __init__(
        self,
        name: str,
        transport: EndpointTransport,
        limits: EgressLimits,
        clock: Clock,
        on_undelivered: OnUndelivered,
        rng: Callable[[], float] = random.random,
        expiry: Expiry | None = None,
        queue: EgressQueue | None = None,
    ) -> None:
        """`expiry` is shared by the whole streamer and tracks clock steps. Without one the queue makes its own."""
        if queue is None:
            queue = EgressQueue(limits)
        super().__init__(name, limits, clock, on_undelivered, rng, queue)
        self.unicast = transport.unicast
        self._transport = transport
        self._credit = 0  # bytes that may be sent on the caller's thread before the next `send_window` call
        self._next_room_check_ns = 0
        self._expiry = expiry or Expiry(clock)
        self._wall_ms = clock.wall_ms
        self._wait_budget = WaitBudget()
        self._next_wait_ns = 0
        # After `close`: the status of a message that cannot be sent on the caller's thread.
        self._closed_status: UStatus | None = None
        self._waits = self._waited_ns = self._waits_refused = 0

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return self._transport.transmitter(subscriber)

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        return self._transport.batch_transmitter(subscriber)

    def has_listener(self, attributes: UAttributes) -> bool:
        return self._transport.has_listener(attributes)

    def listener(self, ingress: BatchListener) -> BatchListener:
        """The listener for messages that the endpoint receives, in front of its ingress."""
        return ingress

    # --- accepting messages ------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        """Send or queue `message`. Never waits.

        A message beyond the limits becomes a dead letter with RESOURCE_EXHAUSTED (DSP-4, DSP-5).
        """
        with self._lock:
            attempts = 0
            size = len(message.payload) + OVERHEAD_BYTES
            queue = self._queue
            if (
                not self._in_flight
                and not delivery.paused
                and (not queue.messages or queue.may_bypass(delivery, message))
                and (self._credit >= size or self._renew_credit(size, now_ns))
                and not (
                    message.attributes.ttl
                    and self._wall_ms() > (message.id.msb >> 16) + message.attributes.ttl
                    and self._is_expired(message)  # false after a clock step
                )
            ):
                self._credit -= size
                try:
                    delivery.transmit(message)
                except FOREIGN_ERRORS as error:  # see `_refusal`
                    refusal = self._refusal(error, delivery)
                    if isinstance(refusal, SubscriberEnded):
                        verdict, why = Verdict.NO_SUBSCRIBER, refusal.status
                        delivery.settle(self.ledger, message, verdict, now_ns, now_ns, why, 1, now_ns)
                        return
                    # The send thread repeats the send and handles its failure.
                    attempts = 1
                    self._retries += refusal.code is UCode.UNAVAILABLE
                else:
                    delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns, None, 1, now_ns)
                    return
            max_age_ns = self._limits.max_age_ms * _NS_PER_MS
            deadline_ns = self._expiry.deadline_ns(message, now_ns, max_age_ns)
            evicted = queue.push(delivery, message, now_ns, attempts, deadline_ns)
            if self._idle and queue.scheduler.ready:
                self._changed.notify()
            if queue.messages > _BACKLOG and now_ns >= self._next_wait_ns and queue.sendable > _BACKLOG:
                delivery.report_backlog(self)
            undelivered = [(item, self._full_status_for(item)) for item in evicted] if evicted else []
            for item, status in undelivered:
                self._settle(item, Verdict.DEAD_LETTERED, now_ns, status)
        for item, status in undelivered:
            self._on_undelivered(item, status)
        if self._closed_status is not None:
            self._abandon_rest(self._closed_status)

    # Fast path of offer, which is its oracle; compared by tests/host/egress/test_endpoint_queue_batches.py::
    # test_a_batch_is_sent_queued_and_counted_as_its_messages
    def offer_batch(
        self,
        deliveries: Sequence[Delivery],
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        *,
        has_ttl: bool,
    ) -> None:
        """As `offer` of each message at its time. Messages that can be sent at once go out in one batch."""
        with self._lock:
            taken = self._send_batch_inline(deliveries, messages, times_ns, has_ttl=has_ttl)
        if taken < len(messages):
            remaining = zip(deliveries[taken:], messages[taken:], times_ns[taken:], strict=True)
            for delivery, message, at_ns in remaining:
                self.offer(delivery, message, at_ns)

    def _send_batch_inline(
        self,
        deliveries: Sequence[Delivery],
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        *,
        has_ttl: bool,
    ) -> int:
        """Send a prefix of `messages` on the caller's thread; returns its length.

        The prefix ends at the first message that must wait, exceeds the room, is expired or is refused.
        """
        target = deliveries[0]
        if target.transmit_batch is None or self._in_flight:
            return 0
        if self._queue.messages and not self._queue.is_empty_for(target.subscriber):
            return 0
        size = self._size_of(messages)
        if self._credit < size:
            self._renew_credit(min(size, _MAX_CREDIT), times_ns[-1])
        if self._credit >= size:
            return self._transmit_batch(deliveries, messages, times_ns, size, has_ttl=has_ttl)
        taken = 0
        while number := self._count_within_credit(messages[taken:], times_ns[-1]):
            end = taken + number
            allowed = messages[taken:end]
            sent = self._transmit_batch(
                deliveries[taken:end], allowed, times_ns[taken:end], self._size_of(allowed), has_ttl=has_ttl
            )
            taken += sent
            if sent < number:
                break
        return taken

    def _count_within_credit(self, messages: Sequence[UMessage], now_ns: int) -> int:
        """How many of `messages` the credit covers. Renews the credit if it covers none."""
        # `zip` of one sequence yields a tuple of one message each.
        sizes = list(accumulate(map(self._size_of, zip(messages))))
        if sizes and self._credit < sizes[0]:
            self._renew_credit(min(sizes[-1], _MAX_CREDIT), now_ns)
        return bisect_right(sizes, self._credit)

    def _transmit_batch(
        self,
        deliveries: Sequence[Delivery],
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        size: int,
        *,
        has_ttl: bool,
    ) -> int:
        """Send a prefix of `messages`, up to the first expired or refused one; returns its length.

        The credit covers `size`, the bytes of all `messages`.
        """
        transmit_batch = deliveries[0].transmit_batch
        assert transmit_batch is not None  # the caller has checked it
        unexpired: Iterable[UMessage] = messages
        if has_ttl:
            unexpired = self._expiry.unexpired(messages)
        try:
            taken = transmit_batch(unexpired)
        except (
            FOREIGN_ERRORS
        ) as error:  # as in `_refusal`; the number sent is unknown: duplicates rather than losses
            self._log_error(error)
            return 0
        if taken < len(messages):
            deliveries, messages, times_ns = deliveries[:taken], messages[:taken], times_ns[:taken]
            size = self._size_of(messages)
        if taken:
            self._credit -= size
            settle_all_delivered(deliveries, self.ledger, messages, times_ns)
        return taken

    @staticmethod
    def _size_of(messages: Sequence[UMessage]) -> int:
        sizes = messages.sizes if type(messages) is MessageBatch else [len(each.payload) for each in messages]
        return sum(sizes) + OVERHEAD_BYTES * len(sizes)

    def _full_status_for(self, item: QueuedMessage) -> UStatus:
        """Why `item` was dropped."""
        if not item.evicted_by_subscriber_limit:
            return self._full_status
        bounds = (
            f"{self._queue.subscriber_limit_messages} messages or {self._queue.subscriber_limit_bytes} bytes"
        )
        text = f"egress queue of subscriber {item.delivery.subscriber} at endpoint {self.name!r} is full ({bounds})"
        return UStatus(UCode.RESOURCE_EXHAUSTED, text)

    @property
    def _full_status(self) -> UStatus:
        bounds = f"{self._limits.queue_messages} messages or {self._limits.queue_bytes} bytes"
        return UStatus(UCode.RESOURCE_EXHAUSTED, f"egress queue of endpoint {self.name!r} is full ({bounds})")

    def _renew_credit(self, size: int, now_ns: int) -> bool:
        """Renew the credit from the transport's send window. After a refusal, at most once per ms."""
        if now_ns < self._next_room_check_ns:
            return False
        room = self._send_window()
        # Credit limits split batches: 64 messages of 1 kB from UDP to UDP then cost 2.1 us each instead of 1.8.
        self._credit = room if room >= UNBOUNDED else min(room, _MAX_CREDIT)
        if self._credit < size:
            self._next_room_check_ns = now_ns + _NS_PER_MS
            return False
        return True

    def _send_window(self) -> int:
        """The send window of the transport; 0 if it cannot be read."""
        try:
            return self._transport.send_window()
        except FOREIGN_ERRORS as error:  # as in `_refusal`: the message waits
            self._log_error(error)
            return 0

    def _is_expired(self, message: UMessage) -> bool:
        """Whether the ttl ended after the ingress check: a filter may have held the message."""
        return self._expiry.is_expired(message.id.time_ms, message.attributes.ttl or 0)

    # --- backpressure ------------------------------------------------------------------------------------------------

    def wait_backlog(self) -> None:
        """Wait until the send thread has sent all sendable messages, unless the far receiver is the slow part.

        After that, messages are sent on the caller's thread again. A call waits for about 0.1 s at most, so that
        endpoints that feed each other cannot wait for each other forever.
        """
        if current_thread() is self._thread or not self._thread.is_alive():
            return
        budget, settled, monotonic_ns = self._wait_budget, self.ledger.settled, self._clock.monotonic_ns
        with self._lock:
            started_ns = now_ns = monotonic_ns()
            has_room = self._has_room_for_next()
            for _ in range(_MAX_WAIT_TICKS):
                if self._closing or self._is_drained():
                    break
                # No room: the far receiver has paused. Until the queue is half full, it absorbs the pause.
                absorbs_pause = not has_room and not self._queue.is_half_full
                if absorbs_pause or not budget.may_wait(settled[Verdict.DELIVERED]):
                    self._waits_refused += not absorbs_pause
                    self._next_wait_ns = now_ns + _NEXT_WAIT_NS
                    break
                self._changed.wait(_WAIT_TICK_S)
                since_ns, now_ns = now_ns, monotonic_ns()
                has_room = self._has_room_for_next()
                # A busy machine may wake this thread long after the receiver has taken everything.
                has_taken_all = self._is_drained()
                budget.charge(
                    now_ns - since_ns, settled[Verdict.DELIVERED], has_room=has_room or has_taken_all
                )
            if now_ns > started_ns:
                self._waits += 1
                self._waited_ns += now_ns - started_ns

    def _is_drained(self) -> bool:
        return not (self._queue.sendable or self._in_flight)

    def _has_room_for_next(self) -> bool:
        """Whether the transport takes a waiting message of average size without waiting."""
        queue = self._queue
        return self._send_window() > (queue.bytes // queue.messages if queue.messages else 0)

    # --- events of the transport, and a reload -----------------------------------------------------------------------

    def on_route_open(self, route: Hashable) -> None:
        """Retry the messages blocked on `route` at once: the transport reports it open. Called from any thread."""
        with self._lock:
            if self._in_flight:
                self._reopened_routes.add(route)
            if self._queue.retry_route(route, self._clock.monotonic_ns()):
                self._changed.notify_all()

    def retry_paused(self) -> None:
        """Retry the messages of paused deliveries at once: some may have been resumed. Called from any thread."""
        with self._lock:
            for route in self._queue.closed_route_keys():
                if isinstance(route, Delivery):
                    self.on_route_open(route)

    def set_limits(self, limits: EgressLimits) -> None:
        """Apply other limits from the next message on. Queued messages stay, even beyond the new limits."""
        with self._lock:
            self._limits = limits
            self._queue.set_limits(limits)

    def on_link_up(self) -> None:
        """Retry all waiting messages at once and reset the failure counts: the link is up. Called from any thread."""
        with self._lock:
            self._link_ups += 1
            self._credit = self._next_room_check_ns = 0  # the old values belong to an earlier connection
            self._queue.on_link_up(self._clock.monotonic_ns())
            self._changed.notify_all()

    # --- stopping and reading ----------------------------------------------------------------------------------------

    def safe_before_ns(self) -> int:
        """Messages received before this time are as safe as this endpoint keeps them: in memory, they are at once."""
        return NEVER_NS

    def wait_empty(self, deadline_ns: int) -> bool:
        """Wait until nothing is queued or in flight, at most until the monotonic `deadline_ns`; returns success."""
        with self._lock:
            while self.queued:
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(left_ns / _NS_PER_S)
            return True

    def wait_sent(self, deadline_ns: int) -> bool:
        """As `wait_empty`, but without blocked messages, which have no reachable receiver."""
        with self._lock:
            while self._queue.waiting or self._in_flight:
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(left_ns / _NS_PER_S)
            return True

    @property
    def blocked(self) -> int:
        """Messages that wait for a closed route."""
        return self._queue.blocked

    @property
    def sendable(self) -> int:
        """Messages that a stop waits for: those that can still be sent."""
        return self.queued - self.blocked

    @property
    def persisted(self) -> int:
        """Queued messages on disk, where a stop leaves them."""
        return 0

    def sent_message(self, delivery: Delivery, message: UMessage) -> QueuedMessage:
        """A message that was sent, with a deadline as if it had just been received."""
        now_ns = self._clock.monotonic_ns()
        deadline_ns = self._expiry.deadline_ns(message, now_ns, self._limits.max_age_ms * _NS_PER_MS)
        size = len(message.payload) + OVERHEAD_BYTES
        return QueuedMessage(delivery, message, now_ns, size, 1, now_ns, now_ns, deadline_ns)

    def abandon_all(self, status: UStatus) -> list[QueuedMessage]:
        """Settle all queued messages, except those in flight, as DEAD_LETTERED and return them.

        The caller reports them as undelivered. A broadcast, which has no subscriber, is NO_SUBSCRIBER instead.
        """
        with self._lock:
            return self._settle_abandoned(self._queue.pop_all(), status)

    def _settle_abandoned(self, items: Sequence[QueuedMessage], status: UStatus) -> list[QueuedMessage]:
        now_ns = self._clock.monotonic_ns()
        for item in items:
            verdict = Verdict.NO_SUBSCRIBER if item.delivery.broadcast else Verdict.DEAD_LETTERED
            self._settle(item, verdict, now_ns, status)
        return [item for item in items if not item.delivery.broadcast]

    def no_more_retries(self, status: UStatus) -> None:
        """From now on, make a dead letter with `status` of each refused message, and of those behind it in its batch.

        A message whose route is unavailable still waits.
        """
        with self._lock:
            self._no_retry_status = status
            self._queue.resume_all()
            self._changed.notify_all()

    def reclaim(
        self, sent: Sequence[QueuedMessage], stored: Collection[UUID] = ()
    ) -> Sequence[QueuedMessage]:
        """Settle sent messages that may not have arrived as DEAD_LETTERED instead of DELIVERED, and return them.

        The caller reports them as undelivered. Taps keep the first verdict. `stored`: see `Unconfirmed`.
        """
        with self._lock:
            self.ledger.settled[Verdict.DELIVERED] -= len(sent)
            self.ledger.settled[Verdict.DEAD_LETTERED] += len(sent)
        return sent

    def close(self, timeout_s: float, status: UStatus | None = None) -> None:
        """Stop the send thread. Waiting messages, and all that would wait from now on, become dead letters with `status`.

        Without `status` they stay queued, so the ledger counts them.
        """
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        self._closed_status = status
        if status is not None:
            self._abandon_rest(status)

    def _abandon_rest(self, status: UStatus) -> None:
        for item in self.abandon_all(status):
            self._on_undelivered(item, status)

    @property
    def queued(self) -> int:
        """Messages that wait or are in flight.

        Messages in flight are outside the queue limits: at most 64, while the send thread holds them.
        """
        return len(self._queue) + self._in_flight

    def ledger_reading(self) -> tuple[Ledger, int]:
        """The ledger and the number of queued messages, of one moment."""
        with self._lock:
            return self.ledger.copy(), self.queued

    def counters(self) -> Mapping[str, int]:
        """Counters beyond `statistics`, reported with the counters of the endpoint.

        `backpressure_waits` and `backpressure_ms`: how often and how long the input waited for this queue.
        `backpressure_refused`: how often the input did not wait any longer, because the receiver was slow.
        """
        return {
            "backpressure_waits": self._waits,
            "backpressure_ms": self._waited_ns // _NS_PER_MS,
            "backpressure_refused": self._waits_refused,
        }

    def statistics(self) -> EndpointQueueStatistics:
        with self._lock:
            return self.peek(_FULLEST)

    def peek(self, fullest: int) -> EndpointQueueStatistics:
        """As `statistics`, without the lock: two numbers can differ by the messages that move meanwhile.

        `fullest` is the number of subscriber queues.
        """
        subscriber_queues = self._queue.subscriber_queues()
        return EndpointQueueStatistics(
            endpoint=self.name,
            queued=self.queued,
            queued_bytes=self._queue.bytes,
            delivered=self.ledger.settled[Verdict.DELIVERED],
            dead_lettered=self.ledger.settled[Verdict.DEAD_LETTERED],
            expired=self.ledger.settled[Verdict.EXPIRED],
            retries=self._retries,
            blocked=self._queue.blocked,
            closed_routes=self._queue.closed_routes,
            persisted=self.persisted,
            evicted_subscriber_limit=self._queue.evicted_by_subscriber_limit,
            subscribers=len(subscriber_queues),
            fullest=tuple(
                map(
                    _subscriber_queue_statistics,
                    nlargest(fullest, subscriber_queues, key=lambda each: each.messages),
                )
            ),
        )

    def blocked_messages_of(self, address: UUri) -> tuple[int, int]:
        """The number of messages of `address` that wait for a closed route, and the age of the oldest in ns."""
        with self._lock:
            number, oldest_ns = self._queue.blocked_messages_of(address)
        return number, max(0, self._clock.monotonic_ns() - oldest_ns) if number else 0

    @property
    def oldest_unblocked_age_ns(self) -> int:
        """As `oldest_age_ns`, without messages that wait for a closed route."""
        received_ns = self._queue.oldest_unblocked_ns
        return 0 if received_ns is None else max(0, self._clock.monotonic_ns() - received_ns)

    @property
    def oldest_age_ns(self) -> int:
        """How long the oldest waiting message has waited; 0 without one. From any thread, without the lock."""
        received_ns = self._queue.oldest_received_ns
        return 0 if received_ns is None else max(0, self._clock.monotonic_ns() - received_ns)

    @property
    def limits(self) -> EgressLimits:
        """The limits in force; those of the spool for a durable queue."""
        return self._queue.limits


def _subscriber_queue_statistics(subscriber_queue: SubscriberQueue) -> SubscriberQueueStatistics:
    assert subscriber_queue.subscriber is not None  # only the shared queue has none
    waiting, blocked = subscriber_queue.messages, subscriber_queue.blocked.messages
    return SubscriberQueueStatistics(
        subscriber_queue.subscriber, waiting, subscriber_queue.bytes, blocked, subscriber_queue.failures
    )
