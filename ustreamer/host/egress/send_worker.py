# SPDX-License-Identifier: Apache-2.0
"""The thread of an endpoint: it sends what waits, each lane in its turn, and tries again what was refused.

A send that is UNAVAILABLE pauses the lane it came from, that of one subscriber or that of the endpoint; one that is
RouteUnavailable parks the messages of its stream. All others go on. What is parked is tried when the transport says that its
route is open, or after pauses of its own. What is for a subscriber that has ended (SubscriberGone) is nobody's.
"""

import logging
from collections.abc import Callable, Hashable
from threading import Condition, RLock, Thread

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.plugin_errors import said
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import NEVER_NS, EgressLimits, Queued, retry_delay_ns
from ustreamer.core.egress.subscriber_queue import Sender
from ustreamer.hooks import RouteUnavailable, SubscriberGone
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError

log = logging.getLogger("ustreamer.lanes")

_BATCH = 64  # messages taken under one locking; the same in the air at most when a link dies
_SWEEP_NS = 50_000_000  # between two looks at what is parked for what has grown too old
_NS_PER_S = 1_000_000_000

Undelivered = Callable[[Queued, UStatus], None]


class Sending:
    """What of a lane its thread needs, and what that does. The queue is guarded by `_lock`."""

    def __init__(
        self,
        name: str,
        limits: EgressLimits,
        clock: Clock,
        undelivered: Undelivered,
        rng: Callable[[], float],
        queue: EgressQueue,
    ) -> None:
        self.name = name
        self.ledger = Ledger()
        self._limits = limits
        self._clock = clock
        self._undelivered = undelivered
        self._rng = rng
        self._queue = queue
        # The methods of a Condition are Python: entering it costs 0.47 us, and its lock 0.15.
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._in_air = 0
        self._idle = True
        self._closing = False
        self._over: UStatus | None = None  # said of what is not sent at once, from `try_once` on
        self._link_ups = 0
        self._opened: set[Hashable] = set()  # routes that have opened since the send that is under way began
        self._told_of_routes = False
        self._retries = 0
        self._reported: set[type[Exception]] = set()
        self._thread = Thread(target=self._run, name=f"egress {name}", daemon=True)

    def restore(self) -> None:
        """Queue what an earlier process has kept; nothing here."""

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            if batch:
                self._send_all(batch)
            else:  # one at a time, and a turn in between: however many there are, they hold up nobody
                self._look_after()
                self._send_all(self._taken())

    def _next_batch(self) -> list[Queued] | None:
        """Wait for messages and take some out; none if a lane is to be looked after first, None when all is to close."""
        # In one go: to give the lock away in between costs a change of threads under load.
        with self._lock:
            queue = self._queue
            queue.rest()
            while not self._closing:
                left_ns = queue.next_due_ns
                if left_ns != NEVER_NS:
                    left_ns -= self._clock.monotonic_ns()
                    if left_ns <= 0:
                        self._idle = False
                        return []
                if queue.has_turns() and (batch := self._taken()):
                    self._idle = False
                    return batch
                self._idle = True
                self._changed.notify_all()  # for `wait_empty`
                self._changed.wait(None if left_ns == NEVER_NS else left_ns / _NS_PER_S)
            return None

    def _taken(self) -> list[Queued]:
        with self._lock:
            batch = [] if self._closing else self._queue.take(_BATCH)
            self._in_air = len(batch)
            return batch

    def _send_all(self, batch: list[Queued]) -> None:
        """Send what was taken out of one lane."""
        sender = self._queue.serving
        for position, item in enumerate(batch):
            assert sender is not None
            if self._closing:
                self._keep(batch[position:])
                return
            if sender.parked.messages and self._joined(sender, item):
                continue
            link_ups = self._link_ups
            refusal = self._send(item)
            if refusal is None:
                sender.failures = 0
            elif isinstance(refusal, RouteUnavailable):
                self._park(sender, item, refusal, link_ups)
            elif refusal.code is UCode.UNAVAILABLE:
                self._keep(batch[position:])
                self._pause(sender, refusal.status, link_ups)
                return

    def _send(self, item: Queued) -> UStatusError | None:
        """Send one message and settle it; if it is not delivered, why: UNAVAILABLE means that it is still ours."""
        now_ns = self._clock.monotonic_ns()
        if now_ns > item.deadline_ns:
            return self._expire(item)
        if self._opened:
            self._opened.clear()
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

    # --- lanes that pause -----------------------------------------------------------------------------------------------

    def _pause(self, sender: Sender, status: UStatus, link_ups: int) -> None:
        """The lane's receiver takes nothing now: nothing of it is sent for a time, longer each time in a row.

        `link_ups` is from before the refused send: if the link came up since then, it is tried again at once.
        """
        with self._lock:
            if not self._queue.is_failing:
                log.warning("egress_unavailable", extra=self._named(sender, status))
            self._retries += 1
            if link_ups != self._link_ups or self._over is not None:
                return
            sender.failures += 1
            pause_ns = retry_delay_ns(self._limits, sender.failures, self._rng)
            self._queue.pause(sender, self._clock.monotonic_ns() + pause_ns)

    def _named(self, sender: Sender, status: UStatus) -> dict[str, str]:
        named = {"endpoint": self.name, "reason": str(status)}
        return named if sender.subscriber is None else named | {"subscriber": str(sender.subscriber)}

    def _look_after(self) -> None:
        """Do one thing for a lane whose time has come: try it or one of its routes, or end some that are too old."""
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            sender = self._queue.due(now_ns)
            if sender is None:
                return
            if sender.resume_ns and now_ns >= sender.resume_ns:
                self._queue.resume(sender)
            sweeps = sender.parked.messages and now_ns >= sender.sweep_ns
            routes = [] if sweeps or sender.resume_ns else sender.parked.due(now_ns)
        if sweeps:
            self._sweep(sender)
        elif routes:
            self._try(sender, routes[0])
        with self._lock:
            self._queue.looked_after(sender)

    # --- routes that are closed -----------------------------------------------------------------------------------------

    def _joined(self, sender: Sender, item: Queued) -> bool:
        """Whether `item` now waits behind others of its stream."""
        with self._lock:
            joined = sender.parked.join(item)
            self._in_air -= joined
            return joined

    def _park(self, sender: Sender, item: Queued, refusal: RouteUnavailable, link_ups: int) -> None:
        """Have `item` wait for its route; `link_ups` is from before the send: what has opened since is tried at once."""
        with self._lock:
            if not self._told_of_routes:
                self._told_of_routes = True
                log.warning("route_unavailable", extra=self._named(sender, refusal.status))
            self._retries += 1
            try_ns = self._clock.monotonic_ns()
            if link_ups == self._link_ups and refusal.route not in self._opened:
                failures = sender.parked.failed(refusal.route)
                try_ns += retry_delay_ns(self._limits, failures, self._rng)
            self._queue.park(sender, item, refusal.route, try_ns)
            self._in_air -= 1

    def _sweep(self, sender: Sender) -> None:
        """End what has grown too old at the head of a parked stream."""
        now_ns = self._clock.monotonic_ns()
        with self._lock:
            over = sender.parked.take_over(lambda item: now_ns > item.deadline_ns, _BATCH)
            self._in_air = len(over)
            if len(over) < _BATCH:
                ends = (item.deadline_ns + 1 for item in sender.parked.heads())
                sender.sweep_ns = max(min(ends, default=NEVER_NS), now_ns + _SWEEP_NS)
        for item in over:
            self._expire(item)

    def _try(self, sender: Sender, route: Hashable) -> None:
        """Try the first message that waits for `route`, and release the others if it is taken."""
        for _ in range(_BATCH):  # those that end otherwise
            with self._lock:
                item = None if self._closing else sender.parked.head_of(route)
                self._in_air = 0 if item is None else 1
            if item is None:
                return
            link_ups = self._link_ups
            refusal = self._send(item)
            if refusal is None:
                with self._lock:
                    self._queue.release(sender, route)
                    self._told_of_routes = self._queue.closed_routes > 0
                sender.failures = 0
                return
            if isinstance(refusal, RouteUnavailable):
                self._park(sender, item, refusal, link_ups)
                return
            if refusal.code is UCode.UNAVAILABLE:
                if self._over is not None:
                    self._fail(item, Verdict.DEAD_LETTERED, self._over)
                    continue
                with self._lock:
                    self._queue.park(sender, item, route, self._clock.monotonic_ns())
                    self._in_air = 0
                self._pause(sender, refusal.status, link_ups)
                return

    # --- the transport --------------------------------------------------------------------------------------------------

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
