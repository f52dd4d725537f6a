# SPDX-License-Identifier: Apache-2.0
"""A lane: the egress queue of one endpoint, its lock, and the thread that sends what waits in it.

An `inline` lane sends on the caller's thread as long as nothing waits (UDP cannot block), and queues only what the
socket refused for now. Every other lane always queues: a Zenoh put in BLOCK mode may wait for seconds, and only its own
endpoint may suffer for it.
"""

import logging
import random
from collections.abc import Callable
from threading import Condition, RLock, Thread

import msgspec

from ustreamer.core.chain import Delivery, Transmit
from ustreamer.core.clock import Clock
from ustreamer.core.egress import EgressLimits, EgressQueue, Queued, is_too_old, retry_delay_ns
from ustreamer.core.ledger import Ledger, Verdict
from ustreamer.hookspecs import EndpointTransport
from ustreamer.uprotocol.uattributes import is_expired
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuri import UUri

log = logging.getLogger("ustreamer.lanes")

_BATCH = 64  # messages taken under one locking; the same in the air at most when a link dies
_NS_PER_S = 1_000_000_000

Undelivered = Callable[[Queued, UStatus], None]


class LaneStatistics(msgspec.Struct, frozen=True):
    """A lane at one moment. `retries` counts sends that were answered UNAVAILABLE."""

    endpoint: str
    queued: int
    queued_bytes: int
    delivered: int
    dead_lettered: int
    expired: int
    retries: int


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
    ) -> None:
        self.name = name
        self.unicast = transport.unicast
        self.ledger = Ledger()
        self._transport = transport
        self._inline = transport.inline
        self._limits = limits
        self._clock = clock
        self._undelivered = undelivered
        self._rng = rng
        self._queue = EgressQueue(limits)
        # The methods of a Condition are Python: entering it costs 0.47 us, and its lock 0.15.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._in_air = 0
        self._idle = True
        self._closing = False
        self._over: UStatus | None = None  # said of what is not sent at once, from `try_once` on
        self._failures = 0
        self._link_ups = 0
        self._retries = 0
        self._reported: set[type[Exception]] = set()
        self._thread = Thread(target=self._run, name=f"egress {name}", daemon=True)

    def transmitter(self, subscriber: UUri | None) -> Transmit:
        return self._transport.transmitter(subscriber)

    # --- taking over ----------------------------------------------------------------------------------------------------

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        """Take `message` over. Never waits; what does not fit is a dead letter with RESOURCE_EXHAUSTED (DSP-4, DSP-5)."""
        with self._lock:
            attempts = 0
            if self._inline and not self.queued and not self._is_late(message):
                refusal = self._sent_inline(delivery, message, now_ns)
                if refusal is None:
                    return
                attempts = 1
                self._retries += refusal is UCode.UNAVAILABLE
            displaced = self._queue.push(delivery, message, now_ns, attempts)
            if self._idle:
                self._changed.notify()
            for item in displaced:
                self._settle(item, Verdict.DEAD_LETTERED, now_ns, self._full)
        for item in displaced:
            self._undelivered(item, self._full)

    @property
    def _full(self) -> UStatus:
        bounds = f"{self._limits.queue_messages} messages or {self._limits.queue_bytes} bytes"
        return UStatus(UCode.RESOURCE_EXHAUSTED, f"egress queue of endpoint {self.name!r} is full ({bounds})")

    def _is_late(self, message: UMessage) -> bool:
        """Whether the ttl ran out since the ingress looked at it: a filter may have held the message."""
        ttl = message.attributes.ttl
        return bool(ttl) and is_expired(message.id.time_ms, ttl, self._clock.wall_ms())

    def _sent_inline(self, delivery: Delivery, message: UMessage, now_ns: int) -> UCode | None:
        """Try to send at once; why not, if it fails: that is left to the sending thread, which knows how to fail."""
        refusal = self._transmit(delivery, message)
        if refusal is None:
            delivery.settle(self.ledger, message, Verdict.DELIVERED, now_ns, now_ns, attempts=1)
        return None if refusal is None else refusal.code

    def _transmit(self, delivery: Delivery, message: UMessage) -> UStatus | None:
        """Hand `message` to the transport; what it says if it does not take it."""
        try:
            delivery.transmit(message)
        except UStatusError as error:
            return error.status
        except (
            Exception
        ) as error:  # a mistake in a transport must end neither its lane nor somebody's ingress
            if type(error) not in self._reported:
                self._reported.add(type(error))
                log.exception("egress_failed", extra={"endpoint": self.name})
            return UStatus(UCode.INTERNAL, f"endpoint {self.name!r}: {type(error).__name__}: {error}")
        return None

    # --- sending --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while batch := self._next_batch():
            self._send_all(batch)

    def _next_batch(self) -> list[Queued]:
        """Wait for messages and take some out; none at all when the lane closes."""
        with self._lock:
            while not self._queue and not self._closing:
                self._idle = True
                self._changed.notify_all()  # for `wait_empty`
                self._changed.wait()
            self._idle = False
            batch = [] if self._closing else self._queue.take(_BATCH)
            self._in_air = len(batch)
            return batch

    def _send_all(self, batch: list[Queued]) -> None:
        for position, item in enumerate(batch):
            if self._closing:
                self._keep(batch[position:])
                return
            link_ups = self._link_ups
            status = self._send(item)
            if status is not None and status.code is UCode.UNAVAILABLE:
                self._keep(batch[position:])
                self._pause(status, link_ups)
                return

    def _send(self, item: Queued) -> UStatus | None:
        """Send one message and settle it; the status if it is still ours because trying again can help."""
        now_ns = self._clock.monotonic_ns()
        if is_too_old(item, self._limits, now_ns, self._clock.wall_ms()):
            self._fail(
                item, Verdict.EXPIRED, UStatus(UCode.DEADLINE_EXCEEDED, f"waited too long for {self.name!r}")
            )
            return None
        item.attempts += 1
        item.first_attempt_ns = item.first_attempt_ns or now_ns
        item.last_attempt_ns = now_ns
        refusal = self._transmit(item.delivery, item.message)
        if refusal is not None:
            if refusal.code is not UCode.UNAVAILABLE:
                self._fail(item, Verdict.DEAD_LETTERED, refusal)
            return refusal
        with self._lock:
            self._settle(item, Verdict.DELIVERED, self._clock.monotonic_ns(), None)
            self._in_air -= 1
        self._failures = 0
        return None

    def _fail(self, item: Queued, verdict: Verdict, status: UStatus) -> None:
        self._undelivered(item, status)  # first, or `wait_empty` would not wait for the answer to a requester
        with self._lock:
            self._settle(item, verdict, self._clock.monotonic_ns(), status)
            self._in_air -= 1

    def _settle(self, item: Queued, verdict: Verdict, now_ns: int, reason: UStatus | None) -> None:
        item.delivery.settle(
            self.ledger, item.message, verdict, item.received_ns, now_ns, reason, attempts=item.attempts
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

    def link_up(self) -> None:
        """The link came up: what waits for the next try is tried at once, and failures count anew. From any thread."""
        with self._lock:
            self._link_ups += 1
            self._failures = 0
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

    def take_back(self, status: UStatus) -> list[Queued]:
        """Make a dead letter of all that waits, but for what is in the air; the caller tells whom it concerns."""
        with self._lock:
            given_up = self._queue.take(len(self._queue))
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
            )
