# SPDX-License-Identifier: Apache-2.0
"""A lane: the egress queue of one endpoint, its lock, and the thread that sends what waits in it.

A message is sent on the caller's thread as long as nothing waits and the transport has room for it: what it says it takes
without waiting (`EndpointTransport.room`). UDP always does; a Zenoh put may wait for seconds, but not while the kernel's
buffers have room. All else is queued for the lane's own thread, so that only its own endpoint suffers. The two threads
would hand the interpreter to each other for every message: 22-32 us of CPU per message from SOME/IP to Zenoh, and 9 without.

A send that is UNAVAILABLE holds up the whole lane; one that is RouteUnavailable parks the messages of its stream, and all
others go on. What is parked is tried when the transport says that its route is open, or after pauses of its own. What is for a
subscriber that has ended (SubscriberGone) is nobody's.
"""

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import accumulate
from threading import Condition, RLock, Thread

import msgspec

from ustreamer.core.chain import BulkTransmit, Delivery, Transmit
from ustreamer.core.clock import Clock
from ustreamer.core.egress import (
    NEVER_NS,
    OVERHEAD_BYTES,
    EgressLimits,
    EgressQueue,
    Queued,
    retry_delay_ns,
)
from ustreamer.core.expiry import Expiry
from ustreamer.core.faults import said
from ustreamer.core.ledger import Ledger, Verdict
from ustreamer.hookspecs import UNBOUNDED, EndpointTransport, RouteUnavailable, SubscriberGone
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.lanes")

_BATCH = 64  # messages taken under one locking; the same in the air at most when a link dies
_CREDIT = 1 << 16  # bytes: some 250 small messages for one question of 5 us
_SWEEP_NS = 50_000_000  # between two looks at what is parked for what has grown too old
_NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000

Undelivered = Callable[[Queued, UStatus], None]


class LaneStatistics(msgspec.Struct, frozen=True):
    """A lane at one moment. `retries` counts sends that were answered UNAVAILABLE.

    Of those queued, `parked` wait for one of `closed_routes` and hold up nobody else.
    """

    endpoint: str
    queued: int
    queued_bytes: int
    delivered: int
    dead_lettered: int
    expired: int
    retries: int
    parked: int
    closed_routes: int
    kept: int = 0
    """Of those queued, how many are on disk."""


class Lane:
    """The egress of one endpoint; implements `ustreamer.core.chain.Egress`."""

    def __init__(
        self,
        name: str,
        transport: EndpointTransport,
        limits: EgressLimits,
        clock: Clock,
        undelivered: Undelivered,
        rng: Callable[[], float] = random.random,
        expiry: Expiry | None = None,
        queue: EgressQueue | None = None,
    ) -> None:
        """`expiry` is the streamer's, which remembers leaps of the clock; without one the lane has its own."""
        self.name = name
        self.unicast = transport.unicast
        self.ledger = Ledger()
        self._transport = transport
        self._credit = 0  # bytes that may be sent on the caller's thread before the transport is asked again
        self._ask_ns = 0
        self._limits = limits
        self._clock = clock
        self._undelivered = undelivered
        self._rng = rng
        self._expiry = expiry or Expiry(clock)
        self._queue = EgressQueue(limits) if queue is None else queue
        # The methods of a Condition are Python: entering it costs 0.47 us, and its lock 0.15.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._in_air = 0
        self._idle = True
        self._closing = False
        self._over: UStatus | None = None  # said of what is not sent at once, from `try_once` on
        self._failures = 0
        self._link_ups = 0
        self._openings = 0
        self._sweep_ns = NEVER_NS
        self._told_of_routes = False
        self._retries = 0
        self._reported: set[type[Exception]] = set()
        self._thread = Thread(target=self._run, name=f"egress {name}", daemon=True)

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        return self._transport.transmitter(subscriber)

    def bulk_transmitter(self, subscriber: UUri | None) -> BulkTransmit:
        return self._transport.bulk_transmitter(subscriber)

    # --- taking over ----------------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        """Take `message` over. Never waits; what does not fit is a dead letter with RESOURCE_EXHAUSTED (DSP-4, DSP-5)."""
        with self._lock:
            attempts = 0
            size = len(message.payload) + OVERHEAD_BYTES
            queue = self._queue
            if (
                (not (queue.messages or self._in_air) or self._may_go_first(delivery, message))
                and (self._credit >= size or self._has_room(size, now_ns))
                and not (message.attributes.ttl and self._is_late(message))
            ):
                self._credit -= size
                refusal = self._transmit(delivery, message)
                if refusal is None:
                    delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns, None, 1, now_ns)
                    return
                if isinstance(refusal, SubscriberGone):
                    verdict, why = Verdict.NO_SUBSCRIBER, refusal.status
                    delivery.settle(self.ledger, message, verdict, now_ns, now_ns, why, 1, now_ns)
                    return
                # Left to the sending thread, which knows how to fail.
                attempts = 1
                self._retries += refusal.code is UCode.UNAVAILABLE
            max_age_ns = self._limits.max_age_ms * _NS_PER_MS
            deadline_ns = self._expiry.deadline_ns(message, now_ns, max_age_ns)
            displaced = queue.push(delivery, message, now_ns, attempts, deadline_ns)
            if self._idle:
                self._changed.notify()
            for item in displaced:
                self._settle(item, Verdict.DEAD_LETTERED, now_ns, self._full)
        for item in displaced:
            self._undelivered(item, self._full)

    def offer_all(
        self, delivery: Delivery, messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> None:
        """As `offer` of each at its time; what can be sent at once is one sending."""
        with self._lock:
            taken = self._sent_at_once(delivery, messages, times_ns, ageing=ageing)
        for message, at_ns in zip(messages[taken:], times_ns[taken:], strict=True):
            self.offer(delivery, message, at_ns)

    def _sent_at_once(
        self, delivery: Delivery, messages: Sequence[UMessage], times_ns: Sequence[int], *, ageing: bool
    ) -> int:
        """Send those, from the first on, that may go first, have room, are not late and are taken; how many."""
        if delivery.transmit_all is None or self._queue.messages or self._in_air:
            return 0
        size = self._size(messages)
        if self._credit < size:
            self._has_room(min(size, _CREDIT), times_ns[-1])
        if self._credit >= size:
            return self._sent_together(delivery, messages, times_ns, size, ageing=ageing)
        taken = 0
        while number := self._number_with_room(messages[taken:], times_ns[-1]):
            end = taken + number
            going = messages[taken:end]
            sent = self._sent_together(delivery, going, times_ns[taken:end], self._size(going), ageing=ageing)
            taken += sent
            if sent < number:
                break
        return taken

    def _number_with_room(self, messages: Sequence[UMessage], now_ns: int) -> int:
        """How many of `messages` the credit is good for; a new one is asked for if it is none."""
        sizes = list(accumulate(map(self._size, zip(messages))))
        if sizes and self._credit < sizes[0]:
            self._has_room(min(sizes[-1], _CREDIT), now_ns)
        return bisect_right(sizes, self._credit)

    def _sent_together(
        self,
        delivery: Delivery,
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        size: int,
        *,
        ageing: bool,
    ) -> int:
        """Send those, from the first on, that are not late and are taken; how many."""
        assert delivery.transmit_all is not None  # as a lane has one
        going: Iterable[UMessage] = messages
        if ageing:
            going = self._expiry.in_time(messages)
        try:
            taken = delivery.transmit_all(going)
        except Exception as error:  # noqa: BLE001  # as below; how many were sent, nobody knows: rather twice than lost
            self._report(error)
            return 0
        if taken < len(messages):
            messages, times_ns = messages[:taken], times_ns[:taken]
            size = self._size(messages)
        self._credit -= size
        delivery.settle_delivered(self.ledger, messages, times_ns)
        return taken

    @staticmethod
    def _size(messages: Sequence[UMessage]) -> int:
        return sum([len(message.payload) for message in messages]) + OVERHEAD_BYTES * len(messages)

    @property
    def _full(self) -> UStatus:
        bounds = f"{self._limits.queue_messages} messages or {self._limits.queue_bytes} bytes"
        return UStatus(UCode.RESOURCE_EXHAUSTED, f"egress queue of endpoint {self.name!r} is full ({bounds})")

    def _may_go_first(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether nothing waits, or is in the air, that `message` must not overtake."""
        queue = self._queue
        return not (queue.waiting or self._in_air or (queue.parked and queue.would_join(delivery, message)))

    def _has_room(self, size: int, now_ns: int) -> bool:
        """Ask the transport anew what it takes without waiting; not more often than every ms where it said no."""
        if now_ns < self._ask_ns:
            return False
        room = self._transport.room()
        # Cut up, 64 messages of 1 kB from UDP to UDP cost 0.3 us more each: 2.1 in place of 1.8.
        self._credit = room if room >= UNBOUNDED else min(room, _CREDIT)
        if self._credit < size:
            self._ask_ns = now_ns + _NS_PER_MS
            return False
        return True

    def _is_late(self, message: UMessage) -> bool:
        """Whether the ttl ran out since the ingress looked at it: a filter may have held the message."""
        return self._expiry.is_expired(message.id.time_ms, message.attributes.ttl or 0)

    def _transmit(self, delivery: Delivery, message: UMessage) -> UStatusError | None:
        """Hand `message` to the transport; what it says if it does not take it."""
        try:
            delivery.transmit(message)
        except UStatusError as error:
            return error
        # A mistake in a transport must end neither its lane nor somebody's ingress.
        except Exception as error:  # noqa: BLE001
            self._report(error)
            return UStatusError(UCode.INTERNAL, f"endpoint {self.name!r}: {said(error)}")
        return None

    def _report(self, error: Exception) -> None:
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.error("egress_failed", exc_info=error, extra={"endpoint": self.name})

    # --- sending --------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Queue what an earlier process has kept; nothing here."""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self._send_all(batch)
            else:  # before the next batch: what is released goes in front of it
                self._look_after_parked()
                self._send_all(self._taken())

    def _next_batch(self) -> list[Queued] | None:
        """Wait for messages and take some out; none if those that are parked come first, None when the lane closes."""
        # In one go: to give the lock away in between costs a change of threads under load.
        with self._lock:
            while not self._closing:
                left_ns = None
                if self._queue.parked:
                    until_ns = min(self._queue.next_due_ns, self._sweep_ns)
                    left_ns = until_ns - self._clock.monotonic_ns()
                    if left_ns <= 0:
                        self._idle = False
                        return []
                if self._queue.waiting:
                    self._idle = False
                    return self._taken()
                self._idle = True
                self._changed.notify_all()  # for `wait_empty`
                self._changed.wait(None if left_ns is None else left_ns / _NS_PER_S)
            return None

    def _taken(self) -> list[Queued]:
        with self._lock:
            batch = [] if self._closing else self._queue.take(_BATCH)
            self._in_air = len(batch)
            return batch

    def _send_all(self, batch: list[Queued]) -> None:
        for position, item in enumerate(batch):
            if self._closing:
                self._keep(batch[position:])
                return
            if self._queue.parked and self._joined(item):
                continue
            link_ups, openings = self._link_ups, self._openings
            refusal = self._send(item)
            if refusal is None:
                continue
            if isinstance(refusal, RouteUnavailable):
                self._park(item, refusal, openings)
            elif refusal.code is UCode.UNAVAILABLE:
                self._keep(batch[position:])
                self._pause(refusal.status, link_ups)
                return

    def _send(self, item: Queued) -> UStatusError | None:
        """Send one message and settle it; if it is not delivered, why: UNAVAILABLE means that it is still ours."""
        now_ns = self._clock.monotonic_ns()
        if now_ns > item.deadline_ns:
            return self._expire(item)
        item.attempts += 1
        item.first_attempt_ns = item.first_attempt_ns or now_ns
        item.last_attempt_ns = now_ns
        refusal = self._transmit(item.delivery, item.message)
        if refusal is not None:
            if isinstance(refusal, SubscriberGone):
                with self._lock:
                    self._settle(item, Verdict.NO_SUBSCRIBER, self._clock.monotonic_ns(), refusal.status)
                    self._in_air -= 1
            elif refusal.code is not UCode.UNAVAILABLE:
                self._fail(item, Verdict.DEAD_LETTERED, refusal.status)
            return refusal
        with self._lock:
            self._settle(item, Verdict.DELIVERED, self._clock.monotonic_ns(), None)
            self._in_air -= 1
        self._failures = 0
        return None

    def _expire(self, item: Queued) -> UStatusError:
        error = UStatusError(UCode.DEADLINE_EXCEEDED, f"waited too long for {self.name!r}")
        self._fail(item, Verdict.EXPIRED, error.status)
        return error

    def _fail(self, item: Queued, verdict: Verdict, status: UStatus) -> None:
        self._undelivered(item, status)  # first, or `wait_empty` would not wait for the answer to a requester
        with self._lock:
            self._settle(item, verdict, self._clock.monotonic_ns(), status)
            self._in_air -= 1

    def _settle(self, item: Queued, verdict: Verdict, now_ns: int, reason: UStatus | None) -> None:
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

    def _keep(self, unsent: list[Queued]) -> None:
        with self._lock:
            over = self._over
            if over is None:
                self._queue.put_back(unsent)
                self._in_air = 0
                return
        for item in unsent:
            self._fail(item, Verdict.DEAD_LETTERED, over)

    def _pause(self, status: UStatus, link_ups: int) -> None:
        """The link takes nothing now: wait before the next try, longer each time in a row, at most until it comes up.

        `link_ups` is from before the refused send: a link that came up since then ends the pause before it begins.
        """
        if not self._failures:
            log.warning("egress_unavailable", extra={"endpoint": self.name, "reason": str(status)})
        with self._lock:
            self._retries += 1
            if link_ups != self._link_ups:
                return
            self._failures += 1
            until_ns = self._clock.monotonic_ns() + retry_delay_ns(self._limits, self._failures, self._rng)
            while not self._ending and link_ups == self._link_ups:
                left_ns = until_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return
                self._changed.wait(left_ns / _NS_PER_S)

    @property
    def _ending(self) -> bool:
        return self._closing or self._over is not None

    # --- routes that are closed -----------------------------------------------------------------------------------------

    def _joined(self, item: Queued) -> bool:
        """Whether `item` now waits behind others of its stream."""
        with self._lock:
            joined = self._queue.join(item)
            self._in_air -= joined
            return joined

    def _park(self, item: Queued, refusal: RouteUnavailable, openings: int) -> None:
        """Have `item` wait for its route. `openings` is from before the send: what has opened since is tried at once."""
        if not self._told_of_routes:
            self._told_of_routes = True
            log.warning("route_unavailable", extra={"endpoint": self.name, "reason": str(refusal)})
        with self._lock:
            self._retries += 1
            now_ns = self._clock.monotonic_ns()
            try_ns = now_ns
            if openings == self._openings:
                failures = self._queue.failed(refusal.route)
                try_ns += retry_delay_ns(self._limits, failures, self._rng)
            self._queue.park(item, refusal.route, try_ns)
            self._in_air -= 1
            self._sweep_ns = min(self._sweep_ns, item.deadline_ns + 1)

    def _look_after_parked(self) -> None:
        if not self._queue.parked:
            return
        if self._clock.monotonic_ns() >= self._sweep_ns:
            self._sweep()
        with self._lock:
            due = self._queue.due(self._clock.monotonic_ns())
        for route in due:
            if self._closing or not self._tried(route):
                return

    def _sweep(self) -> None:
        """End what has grown too old at the head of a parked stream."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            over = self._queue.take_parked(lambda item: now_ns > item.deadline_ns)
            self._in_air = len(over)
            ends = (item.deadline_ns + 1 for item in self._queue.parked_heads())
            self._sweep_ns = max(min(ends, default=NEVER_NS), now_ns + _SWEEP_NS)
        for item in over:
            self._expire(item)

    def _tried(self, route: Hashable) -> bool:
        """Try the first message that waits for `route`, and release the others if it is taken; False if the link is down."""
        while True:
            with self._lock:
                item = self._queue.head_of(route)
                self._in_air = 0 if item is None else 1
            if item is None:
                return True
            link_ups, openings = self._link_ups, self._openings
            refusal = self._send(item)
            if refusal is None:
                with self._lock:
                    self._queue.release(route)
                    self._told_of_routes = self._queue.closed_routes > 0
                return True
            if isinstance(refusal, RouteUnavailable):
                self._park(item, refusal, openings)
                return True
            if refusal.code is UCode.UNAVAILABLE:
                if self._over is not None:
                    self._fail(item, Verdict.DEAD_LETTERED, self._over)
                    continue
                with self._lock:
                    self._queue.park(item, route, self._clock.monotonic_ns())
                    self._in_air = 0
                self._pause(refusal.status, link_ups)
                return False

    def route_open(self, route: Hashable) -> None:
        """A route that a send was refused for is open again: what waits for it is tried at once. From any thread."""
        with self._lock:
            self._openings += 1
            if self._queue.open(route):
                self._changed.notify_all()

    def use(self, limits: EgressLimits) -> None:
        """Go by other limits from the next message on; what waits already stays, also if it is too much."""
        with self._lock:
            self._limits = limits
            self._queue.use(limits)

    def link_up(self) -> None:
        """The link came up: what waits for the next try is tried at once, and failures count anew. From any thread."""
        with self._lock:
            self._link_ups += 1
            self._credit = self._ask_ns = 0  # of another connection
            self._openings += 1
            self._failures = 0
            self._queue.open_all()
            self._changed.notify_all()

    # --- stopping and reading -------------------------------------------------------------------------------------------

    def wait_empty(self, deadline_ns: int) -> bool:
        """Wait until nothing is queued or in the air, at most until the monotonic `deadline_ns`; whether it is so."""
        with self._lock:
            while self.queued:
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(left_ns / _NS_PER_S)
            return True

    def wait_sent(self, deadline_ns: int) -> bool:
        """As `wait_empty`, but not for what is parked: nobody is there to take it."""
        with self._lock:
            while self._queue.waiting or self._in_air:
                left_ns = deadline_ns - self._clock.monotonic_ns()
                if left_ns <= 0:
                    return False
                self._changed.wait(left_ns / _NS_PER_S)
            return True

    @property
    def parked(self) -> int:
        """Messages that wait for somebody to be there."""
        return self._queue.parked

    @property
    def owed(self) -> int:
        """Messages that a stop would have to wait for: those that could still be sent."""
        return self.queued - self.parked

    @property
    def kept(self) -> int:
        """Messages that wait on disk, where a stop leaves them."""
        return 0

    def take_back(self, status: UStatus) -> list[Queued]:
        """Make a dead letter of all that waits, but for what is in the air; the caller tells whom it concerns."""
        with self._lock:
            given_up = [*self._queue.take_parked(lambda _: True), *self._queue.take(len(self._queue))]
            for item in given_up:
                self._settle(item, Verdict.DEAD_LETTERED, self._clock.monotonic_ns(), status)
        return given_up

    def try_once(self, status: UStatus) -> None:
        """From now on what is not taken at the first try is a dead letter with `status`."""
        with self._lock:
            self._over = status
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """End the sending thread; what still waits stays queued, for the books."""
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def queued(self) -> int:
        """Messages that wait or are in the air."""
        return len(self._queue) + self._in_air

    def counters(self) -> Mapping[str, int]:
        """What a lane counts beyond its statistics, under the names of its endpoint."""
        return {}

    def statistics(self) -> LaneStatistics:
        with self._lock:
            return LaneStatistics(
                endpoint=self.name,
                queued=self.queued,
                queued_bytes=self._queue.bytes,
                delivered=self.ledger.settled[Verdict.DELIVERED],
                dead_lettered=self.ledger.settled[Verdict.DEAD_LETTERED],
                expired=self.ledger.settled[Verdict.EXPIRED],
                retries=self._retries,
                parked=self._queue.parked,
                closed_routes=self._queue.closed_routes,
                kept=self.kept,
            )
