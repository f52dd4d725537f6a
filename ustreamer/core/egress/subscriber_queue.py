# SPDX-License-Identifier: Apache-2.0
"""The sender of one lane: what waits for one subscriber, and whether it may be sent now.

    READY     what waits is sent in turn with the lanes of others (`turns`)
    PAUSED    a send was UNAVAILABLE: nothing is sent before `resume_ns`; later each time in a row

Beside either, single streams may be parked for routes of their own (`parked`). The thread that sends is the endpoint's: a send
to one subscriber never waits, so a thread for each would have nothing to wait for. With 100 of them it costs 36 KB of memory for
each instead of 7, and 1.3 us of CPU per message of a backlog instead of 1.0 (`benchmarks/subscriber_queues.py`).
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
    """Whoever keeps count of all that waits for an endpoint."""

    def count_waiting(self, rank: int, messages: int, size: int) -> None: ...

    def count_blocked(self, rank: int, messages: int, size: int) -> None: ...

    def on_route_closed(self, route: Hashable, queue: "SubscriberQueue") -> None: ...

    def on_route_removed(self, route: Hashable, queue: "SubscriberQueue") -> None: ...


class SubscriberQueue:
    """Not locked. `subscriber` is None for what is not for one subscriber alone: the lane of the endpoint itself."""

    __slots__ = (
        "_counters",
        "blocked",
        "expiry_scan_ns",
        "failures",
        "paused_until_ns",
        "scheduled_ns",
        "subscriber",
        "waiting",
    )

    def __init__(self, subscriber: UUri | None, counters: SubscriberQueueCounters) -> None:
        self.subscriber = subscriber
        self._counters = counters
        self.waiting = WeightedPriorityQueue(counters)
        self.blocked = BlockedRoutes(self)
        self.failures = 0
        """Sends in a row that were UNAVAILABLE."""
        self.paused_until_ns = 0
        """Until when it is PAUSED; 0: it is READY."""
        self.expiry_scan_ns = NEVER_NS
        """When to look for what has grown too old among what is parked."""
        self.scheduled_ns = NEVER_NS
        """When `RoundRobin` will say that it is due."""

    @property
    def messages(self) -> int:
        return self.waiting.messages + self.blocked.messages

    @property
    def bytes(self) -> int:
        return self.waiting.bytes + self.blocked.bytes

    @property
    def due_ns(self) -> int:
        """When it is to be looked after: its pause is over, a route to be tried, or something parked too old."""
        expiry_scan_ns = self.expiry_scan_ns if self.blocked.messages else NEVER_NS
        if self.paused_until_ns:
            return min(self.paused_until_ns, expiry_scan_ns)
        return min(self.blocked.next_due_ns, expiry_scan_ns) if self.blocked.messages else NEVER_NS

    def may_bypass(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether nothing waits here that `message` must not overtake."""
        return not (
            self.paused_until_ns or self.waiting.messages or self.is_stream_blocked(delivery, message)
        )

    def is_stream_blocked(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether others of its stream are parked."""
        return bool(self.blocked.messages) and self.blocked.is_blocked(delivery, message)

    # --- who makes room -------------------------------------------------------------------------------------------------

    def evictable_below(self, rank: int, blocked_below: int) -> tuple[int, int]:
        """Messages and bytes that may have to go for one of class `rank`."""
        waiting, waiting_bytes = self.waiting.total_below(rank)
        blocked, blocked_bytes = self.blocked.total_below(blocked_below)
        return waiting + blocked, waiting_bytes + blocked_bytes

    # --- as the tally of what is parked here ----------------------------------------------------------------------------

    def count_blocked(self, rank: int, messages: int, size: int) -> None:
        self._counters.count_blocked(rank, messages, size)

    def on_route_closed(self, route: Hashable) -> None:
        self._counters.on_route_closed(route, self)

    def on_route_removed(self, route: Hashable) -> None:
        self._counters.on_route_removed(route, self)
