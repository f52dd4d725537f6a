# SPDX-License-Identifier: Apache-2.0
"""The send thread of an endpoint: it sends from the subscriber queues in turn and retries refused sends.

In: batches from the endpoint's `EgressQueue`. Out: sends of the transport, verdicts, retry times.

A send refused with UNAVAILABLE pauses the queue of its subscriber, or the shared queue of the endpoint. A send refused
with RouteUnavailable blocks the messages of its stream. All other messages continue. Blocked messages are retried when
the transport reports their route open, or after a retry delay. A Request from another endpoint becomes a dead letter
once the transport is sure that no receiver exists (`RouteUnavailable.absent_from_ns`). A message for an ended
subscriber (SubscriberEnded) gets the verdict NO_SUBSCRIBER, as does a broadcast that is refused.
"""

import logging
from collections.abc import Callable, Hashable
from threading import Condition, RLock, Thread
from typing import ClassVar, Final

from ustreamer.core.base.backoff import backoff_ns
from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS, safe_str
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import NEVER_NS, EgressLimits, QueuedMessage
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.core.routing.router import SELF
from ustreamer.transport_port import RouteUnavailable, SubscriberEnded
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError

log = logging.getLogger("ustreamer.egress")

_BATCH = 64  # messages taken under one lock; also the most in flight when a link goes down
_EXPIRY_SCAN_NS = 50_000_000  # between two expiry scans of blocked messages
_NS_PER_S = 1_000_000_000
_SETTLED: Final = UStatusError(UCode.NOT_FOUND, "the receiver does not exist, and the message is settled")
"""`_send` returns it in place of a RouteUnavailable, for which a caller would block the message."""

OnUndelivered = Callable[[QueuedMessage, UStatus], None]


class _DeliveryPaused(RouteUnavailable):
    """The subscribers of a delivery have stopped the dispatch. The route is the delivery."""

    def __init__(self, delivery: Delivery) -> None:
        super().__init__(delivery, f"the dispatch of {delivery.topic} is stopped by its subscribers")


class _RefusedBroadcast(SubscriberEnded):
    """A broadcast that is not tried again: its verdict is NO_SUBSCRIBER, whatever the reason."""

    def __init__(self, text: str) -> None:
        super(SubscriberEnded, self).__init__(UCode.NOT_FOUND, text)


class SendWorker:
    """The state of the send thread, and its loop. `_lock` guards the queue."""

    refuses_absent: ClassVar[bool] = True
    """Whether a Request without a receiver gets an error Response before its ttl ends. False for a durable queue."""

    def __init__(
        self,
        name: str,
        limits: EgressLimits,
        clock: Clock,
        on_undelivered: OnUndelivered,
        rng: Callable[[], float],
        queue: EgressQueue,
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        self._limits = limits
        self._clock = clock
        self._on_undelivered = on_undelivered
        self._rng = rng
        self._queue = queue
        # The methods of a Condition are Python code: entering it costs 0.47 us, entering its lock 0.15 us.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._in_flight = 0
        self._idle = True
        self._closing = False
        # After `no_more_retries`: the status of a message that fails its first try.
        self._no_retry_status: UStatus | None = None
        self._link_ups = 0
        self._reopened_routes: set[Hashable] = set()  # routes opened during the current send
        self._route_logged = 0  # the highest log level of a closed route, since all routes were open
        self._retries = 0
        self._logged_errors: set[type[BaseException]] = set()
        self._thread = Thread(target=self._run, name=f"egress {name}", daemon=True)

    def restore(self) -> None:
        """Queue the messages of an earlier process. An endpoint without a spool has none."""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self._send_batch(batch)
            else:
                # One due queue per batch: many due queues cannot delay the others.
                self._service_due()
                self._send_batch(self._take_batch())

    def _next_batch(self) -> list[QueuedMessage] | None:
        """Wait for messages and take a batch. Empty if a queue is due for service first, None when closing."""
        # Under one lock: releasing it in between would cost a thread switch under load.
        with self._lock:
            queue = self._queue
            queue.end_turn()
            while not self._closing:
                left_ns = queue.scheduler.due.next_due
                if left_ns is not None:
                    left_ns -= self._clock.monotonic_ns()
                    if left_ns <= 0:
                        self._idle = False
                        return []
                if queue.scheduler.ready and (batch := self._take_batch()):
                    self._idle = False
                    return batch
                self._idle = True
                self._changed.notify_all()  # for `wait_empty`
                self._changed.wait(None if left_ns is None else left_ns / _NS_PER_S)
            return None

    def _take_batch(self) -> list[QueuedMessage]:
        with self._lock:
            batch = [] if self._closing else self._queue.pop_batch(_BATCH)
            self._in_flight = len(batch)
            return batch

    def _send_batch(self, batch: list[QueuedMessage]) -> None:
        """Send a batch taken from one subscriber queue."""
        subscriber_queue = self._queue.serving
        for position, item in enumerate(batch):
            assert subscriber_queue is not None
            if self._closing:
                self._requeue(batch[position:])
                return
            if subscriber_queue.blocked.messages and self._enqueue_blocked(subscriber_queue, item):
                continue
            link_ups = self._link_ups
            refusal = self._send(item)
            if refusal is None:
                subscriber_queue.failures = 0
            elif isinstance(refusal, RouteUnavailable):
                self._block(subscriber_queue, item, refusal, link_ups)
            elif refusal.code is UCode.UNAVAILABLE:
                self._requeue(batch[position:])
                self._pause(subscriber_queue, refusal.status, link_ups)
                return

    def _send(self, item: QueuedMessage) -> UStatusError | None:
        """Send one message and settle it; returns the refusal, if any.

        After UNAVAILABLE the message is not settled: the caller queues or blocks it again.
        """
        now_ns = self._clock.monotonic_ns()
        if now_ns > item.deadline_ns:
            return self._expire(item)
        if item.delivery.paused and item.delivery.is_still_paused():
            return _DeliveryPaused(item.delivery)
        if self._reopened_routes:
            self._reopened_routes.clear()
        item.attempts += 1
        item.first_attempt_ns = item.first_attempt_ns or now_ns
        item.last_attempt_ns = now_ns
        try:
            item.delivery.transmit(item.message)
        except FOREIGN_ERRORS as error:  # see `_refusal`
            refusal = self._refusal(error, item.delivery)
            if isinstance(refusal, SubscriberEnded):
                with self._lock:
                    self._settle(item, Verdict.NO_SUBSCRIBER, self._clock.monotonic_ns(), refusal.status)
                    self._in_flight -= 1
            elif isinstance(refusal, RouteUnavailable) and self._is_absent(item, refusal, now_ns):
                self._fail(item, Verdict.DEAD_LETTERED, refusal.status)
                return _SETTLED
            elif refusal.code is not UCode.UNAVAILABLE:
                self._fail(item, Verdict.DEAD_LETTERED, refusal.status)
            return refusal
        with self._lock:
            self._settle(item, Verdict.DELIVERED, self._clock.monotonic_ns(), None)
            self._in_flight -= 1
        return None

    def _is_absent(self, item: QueuedMessage, refusal: RouteUnavailable, now_ns: int) -> bool:
        """Whether `item` is a Request without a receiver. See `_absent_from_ns`."""
        absent_from_ns = self._absent_from_ns(item, refusal)
        return absent_from_ns is not None and now_ns >= absent_from_ns

    def _absent_from_ns(self, item: QueuedMessage, refusal: RouteUnavailable) -> int | None:
        """The time from which `item` is not tried again; None: it is tried until its deadline.

        Requests of the services in this process are tried until their deadline: the device may just be starting.
        """
        is_foreign = self.refuses_absent and item.delivery.ingress != SELF
        is_refusable = item.delivery.broadcast or (
            is_foreign and item.message.attributes.type is UMessageType.REQUEST
        )
        return refusal.absent_from_ns if is_refusable else None

    def _expire(self, item: QueuedMessage) -> UStatusError:
        error = UStatusError(UCode.DEADLINE_EXCEEDED, f"waited too long for endpoint {self.name!r}")
        self._fail(item, Verdict.EXPIRED, error.status)
        return error

    def _fail(self, item: QueuedMessage, verdict: Verdict, status: UStatus) -> None:
        # Before the message is settled: `wait_empty` must also wait for the error response to a requester.
        self._on_undelivered(item, status)
        with self._lock:
            self._settle(item, verdict, self._clock.monotonic_ns(), status)
            self._in_flight -= 1

    def _settle(self, item: QueuedMessage, verdict: Verdict, now_ns: int, reason: UStatus | None) -> None:
        item.delivery.settle(
            self.ledger,
            item.message,
            verdict,
            item.received_ns,
            now_ns,
            reason,
            item.attempts,
            item.first_attempt_ns,
        )

    def _requeue(self, unsent: list[QueuedMessage]) -> None:
        with self._lock:
            no_retry_status = self._no_retry_status
            if no_retry_status is None:
                self._queue.requeue(unsent)
                self._in_flight = 0
                return
        for item in unsent:
            self._fail(item, Verdict.DEAD_LETTERED, no_retry_status)

    # --- paused subscriber queues ------------------------------------------------------------------------------------

    def _pause(self, subscriber_queue: SubscriberQueue, status: UStatus, link_ups: int) -> None:
        """Pause a subscriber queue after UNAVAILABLE, longer after each failure in a row.

        `link_ups` is the count before the refused send. If the link came up since then, there is no pause.
        """
        with self._lock:
            if not self._queue.is_failing:
                log.warning("egress.unavailable", extra=self._log_fields(subscriber_queue, status))
            self._retries += 1
            if link_ups != self._link_ups or self._no_retry_status is not None:
                return
            pause_ns = self._backoff_ns(subscriber_queue.failures)
            subscriber_queue.failures += 1
            self._queue.pause(subscriber_queue, self._clock.monotonic_ns() + pause_ns)

    def _backoff_ns(self, earlier_failures: int) -> int:
        limits = self._limits
        return backoff_ns(limits.retry_first_ms, limits.retry_max_ms, earlier_failures, self._rng())

    def _log_fields(self, subscriber_queue: SubscriberQueue, status: UStatus) -> dict[str, object]:
        subscriber = subscriber_queue.subscriber
        fields: dict[str, object] = {
            "endpoint": self.name,
            "reason": str(status),
            **limited(self.name, subscriber),
        }
        return fields if subscriber is None else fields | {"subscriber": str(subscriber)}

    def _service_due(self) -> None:
        """Service one due queue: retry it or one of its routes, or expire some of its messages."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            subscriber_queue = self._queue.pop_due(now_ns)
            if subscriber_queue is None:
                return
            if subscriber_queue.paused_until_ns and now_ns >= subscriber_queue.paused_until_ns:
                self._queue.resume(subscriber_queue)
            scan_expired = subscriber_queue.blocked.messages and now_ns >= subscriber_queue.expiry_scan_ns
            routes = (
                []
                if scan_expired or subscriber_queue.paused_until_ns
                else subscriber_queue.blocked.due_routes(now_ns)
            )
        if scan_expired:
            self._expire_blocked(subscriber_queue)
        elif routes:
            self._try_route(subscriber_queue, routes[0])
        with self._lock:
            self._queue.scheduler.schedule_service(subscriber_queue)

    # --- blocked routes ----------------------------------------------------------------------------------------------

    def _enqueue_blocked(self, subscriber_queue: SubscriberQueue, item: QueuedMessage) -> bool:
        """Whether `item` now waits behind blocked messages of its stream."""
        with self._lock:
            blocked = subscriber_queue.blocked.enqueue_blocked(item)
            self._in_flight -= blocked
            return blocked

    def _block(
        self, subscriber_queue: SubscriberQueue, item: QueuedMessage, refusal: RouteUnavailable, link_ups: int
    ) -> None:
        """Block `item` on its route. `link_ups` is the count before the send.

        A route that opened since then is retried at once.
        """
        is_pause = isinstance(refusal, _DeliveryPaused)
        with self._lock:
            if not (is_pause or item.delivery.broadcast):
                self._log_closed_route(subscriber_queue, refusal)
            self._retries += not is_pause
            try_ns = self._clock.monotonic_ns()
            if link_ups == self._link_ups and refusal.route not in self._reopened_routes:
                try_ns += self._backoff_ns(subscriber_queue.blocked.count_failure(refusal.route) - 1)
                absent_from_ns = self._absent_from_ns(item, refusal)
                if absent_from_ns is not None:
                    try_ns = min(try_ns, absent_from_ns)
            self._queue.block(subscriber_queue, item, refusal.route, try_ns)
            self._in_flight -= 1

    def _log_closed_route(self, subscriber_queue: SubscriberQueue, refusal: RouteUnavailable) -> None:
        """Log the first closed route: at info while its receiver is expected, at warning once it is late."""
        is_ordinary = self._clock.monotonic_ns() < refusal.expected_until_ns
        level = logging.INFO if is_ordinary else logging.WARNING
        if level <= self._route_logged:
            return
        self._route_logged = level
        fields = self._log_fields(subscriber_queue, refusal.status)
        if is_ordinary:
            log.info("egress.route_unavailable", extra=fields)
        else:
            log.warning("egress.route_unavailable", extra=fields)

    def _expire_blocked(self, subscriber_queue: SubscriberQueue) -> None:
        """Expire the messages at the head of blocked streams whose deadline has passed."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            expired = subscriber_queue.blocked.pop_expired(lambda item: now_ns > item.deadline_ns, _BATCH)
            self._in_flight = len(expired)
            if len(expired) < _BATCH:
                ends = (item.deadline_ns + 1 for item in subscriber_queue.blocked.heads())
                subscriber_queue.expiry_scan_ns = max(min(ends, default=NEVER_NS), now_ns + _EXPIRY_SCAN_NS)
        for item in expired:
            self._expire(item)

    def _try_route(self, subscriber_queue: SubscriberQueue, route: Hashable) -> None:
        """Send the first message blocked on `route`, and release the others if the send succeeds."""
        for _ in range(_BATCH):  # an expired or failed message is followed by the next one
            with self._lock:
                item = None if self._closing else subscriber_queue.blocked.pop_head(route)
                self._in_flight = 0 if item is None else 1
            if item is None:
                break
            link_ups = self._link_ups
            refusal = self._send(item)
            if refusal is None:
                with self._lock:
                    self._queue.release_route(subscriber_queue, route)
                subscriber_queue.failures = 0
                break
            if isinstance(refusal, RouteUnavailable):
                self._block(subscriber_queue, item, refusal, link_ups)
                return
            if refusal.code is UCode.UNAVAILABLE:
                if self._no_retry_status is not None:
                    self._fail(item, Verdict.DEAD_LETTERED, self._no_retry_status)
                    continue
                with self._lock:
                    self._queue.block(subscriber_queue, item, route, self._clock.monotonic_ns())
                    self._in_flight = 0
                self._pause(subscriber_queue, refusal.status, link_ups)
                return
        with self._lock:
            subscriber_queue.blocked.remove_if_empty(route)
            if not self._queue.closed_routes:
                self._route_logged = 0

    # --- the transport -----------------------------------------------------------------------------------------------

    def _refusal(self, error: BaseException, delivery: Delivery) -> UStatusError:
        """The refusal of a send that raised. A defect in a transport stops neither a send thread nor an ingress."""
        if not isinstance(error, UStatusError):
            self._log_error(error)
            error = UStatusError(UCode.INTERNAL, f"endpoint {self.name!r}: {safe_str(error)}")
        if delivery.broadcast and not self._is_retried_broadcast(error):
            return _RefusedBroadcast(f"broadcast of {delivery.topic} was not sent: {error.message}")
        return error

    def _is_retried_broadcast(self, refusal: UStatusError) -> bool:
        """Whether a refused broadcast is tried again, because a listener of its route is expected."""
        if not isinstance(refusal, RouteUnavailable) or self._no_retry_status is not None:
            return False
        absent_from_ns = refusal.absent_from_ns
        return absent_from_ns is None or self._clock.monotonic_ns() < absent_from_ns

    def _log_error(self, error: BaseException) -> None:
        if type(error) not in self._logged_errors:
            self._logged_errors.add(type(error))
            log.error("egress.failed", exc_info=error, extra={"endpoint": self.name})
