# SPDX-License-Identifier: Apache-2.0
"""The messages that wait for one subscriber, and whether they can be sent now.

    READY     messages are sent in turn with other subscriber queues (scheduler.py)
    PAUSED    a send was UNAVAILABLE: no send before `paused_until_ns`; the pause grows with each consecutive failure

In both states single streams can be blocked by their own routes (blocked_routes.py). One thread per endpoint sends: a
send to one subscriber never waits, so a thread per subscriber gains nothing. With 100 subscribers such threads cost
36 KB each instead of 7 KB, and 1.3 us of CPU per backlog message instead of 1.0 (`benchmarks/subscriber_queues.py`).
"""

from collections.abc import Hashable
from typing import Protocol

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.blocked_routes import BlockedRoutes
from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.priority_queue import WeightedPriorityQueue
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class SubscriberQueueCounters(Protocol):
    """The endpoint's counters of waiting and blocked messages."""

    def count_waiting(self, rank: int, messages: int, size: int) -> None: ...

    def count_blocked(self, rank: int, messages: int, size: int) -> None: ...

    def on_route_closed(self, route: Hashable, queue: "SubscriberQueue") -> None: ...

    def on_route_removed(self, route: Hashable, queue: "SubscriberQueue") -> None: ...


class SubscriberQueue:
    """The queue of one subscriber, or with `subscriber` None the shared queue of the endpoint. Not thread-safe."""

    __slots__ = (
        "_counters",
        "blocked",
        "expiry_scan_ns",
        "failures",
        "paused_until_ns",
        "subscriber",
        "waiting",
    )

    def __init__(self, subscriber: UUri | None, counters: SubscriberQueueCounters) -> None:
        self.subscriber = subscriber
        self._counters = counters
        self.waiting = WeightedPriorityQueue(counters)
        self.blocked = BlockedRoutes(self)
        self.failures = 0
        """Consecutive sends that were UNAVAILABLE."""
        self.paused_until_ns = 0
        """The end of the pause; 0 while READY."""
        self.expiry_scan_ns = NEVER_NS
        """The next scan of blocked messages for expired ones."""

    @property
    def messages(self) -> int:
        return self.waiting.messages + self.blocked.messages

    @property
    def bytes(self) -> int:
        return self.waiting.bytes + self.blocked.bytes

    @property
    def due_ns(self) -> int:
        """The time of the next service: end of the pause, retry of a route, or scan for expired blocked messages."""
        expiry_scan_ns = self.expiry_scan_ns if self.blocked.messages else NEVER_NS
        if self.paused_until_ns:
            return min(self.paused_until_ns, expiry_scan_ns)
        return min(self.blocked.next_due_ns, expiry_scan_ns) if self.blocked.messages else NEVER_NS

    def may_bypass(self, delivery: Delivery, message: UMessage) -> bool:
        """True if no message of this queue must be sent before `message`."""
        return not (
            self.paused_until_ns or self.waiting.messages or self.is_stream_blocked(delivery, message)
        )

    def is_stream_blocked(self, delivery: Delivery, message: UMessage) -> bool:
        """True if earlier messages of its stream are blocked."""
        return bool(self.blocked.messages) and self.blocked.is_blocked(delivery, message)

    # --- eviction -----------------------------------------------------------------------------------------------------

    def evictable_below(self, rank: int, blocked_below: int) -> tuple[int, int]:
        """Messages and bytes that can be evicted for a message of class `rank`: lower classes.

        `blocked_below` is the bound for blocked messages, which may be of the same class.
        """
        waiting, waiting_bytes = self.waiting.total_below(rank)
        blocked, blocked_bytes = self.blocked.total_below(blocked_below)
        return waiting + blocked, waiting_bytes + blocked_bytes

    # --- BlockedRouteCounters -----------------------------------------------------------------------------------------

    def count_blocked(self, rank: int, messages: int, size: int) -> None:
        self._counters.count_blocked(rank, messages, size)

    def on_route_closed(self, route: Hashable) -> None:
        self._counters.on_route_closed(route, self)

    def on_route_removed(self, route: Hashable) -> None:
        self._counters.on_route_removed(route, self)
