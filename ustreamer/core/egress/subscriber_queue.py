# SPDX-License-Identifier: Apache-2.0
"""The sender of one lane: what waits for one subscriber, and whether it may be sent now.

    READY     what waits is sent in turn with the lanes of others (`turns`)
    PAUSED    a send was UNAVAILABLE: nothing is sent before `resume_ns`; later each time in a row

Beside either, single streams may be parked for routes of their own (`parked`). The thread that sends is the endpoint's: a send
to one subscriber never waits, so a thread for each would have nothing to wait for. With 100 of them it costs 36 KB of memory for
each instead of 7, and 1.3 us of CPU per message of a backlog instead of 1.0 (`benchmarks/subscriber_lanes.py`).
"""

from collections.abc import Hashable
from typing import Protocol

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.blocked_routes import Parked
from ustreamer.core.egress.limits import NEVER_NS
from ustreamer.core.egress.priority_queue import Classes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class Tally(Protocol):
    """Whoever keeps count of all that waits for an endpoint."""

    def count_waiting(self, rank: int, messages: int, size: int) -> None: ...

    def count_parked(self, rank: int, messages: int, size: int) -> None: ...

    def route_closed(self, route: Hashable, sender: "Sender") -> None: ...

    def route_gone(self, route: Hashable, sender: "Sender") -> None: ...


class Sender:
    """Not locked. `subscriber` is None for what is not for one subscriber alone: the lane of the endpoint itself."""

    __slots__ = (
        "_tally",
        "failures",
        "parked",
        "resume_ns",
        "scheduled_ns",
        "subscriber",
        "sweep_ns",
        "waiting",
    )

    def __init__(self, subscriber: UUri | None, tally: Tally) -> None:
        self.subscriber = subscriber
        self._tally = tally
        self.waiting = Classes(tally)
        self.parked = Parked(self)
        self.failures = 0
        """Sends in a row that were UNAVAILABLE."""
        self.resume_ns = 0
        """Until when it is PAUSED; 0: it is READY."""
        self.sweep_ns = NEVER_NS
        """When to look for what has grown too old among what is parked."""
        self.scheduled_ns = NEVER_NS
        """When `Turns` will say that it is due."""

    @property
    def messages(self) -> int:
        return self.waiting.messages + self.parked.messages

    @property
    def bytes(self) -> int:
        return self.waiting.bytes + self.parked.bytes

    @property
    def due_ns(self) -> int:
        """When it is to be looked after: its pause is over, a route to be tried, or something parked too old."""
        sweep_ns = self.sweep_ns if self.parked.messages else NEVER_NS
        if self.resume_ns:
            return min(self.resume_ns, sweep_ns)
        return min(self.parked.next_due_ns, sweep_ns) if self.parked.messages else NEVER_NS

    def lets_pass(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether nothing waits here that `message` must not overtake."""
        return not (self.resume_ns or self.waiting.messages or self.would_park(delivery, message))

    def would_park(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether others of its stream are parked."""
        return bool(self.parked.messages) and self.parked.would_join(delivery, message)

    # --- who makes room -------------------------------------------------------------------------------------------------

    def below(self, rank: int, parked_below: int) -> tuple[int, int]:
        """Messages and bytes that may have to go for one of class `rank`."""
        waiting, waiting_bytes = self.waiting.below(rank)
        parked, parked_bytes = self.parked.below(parked_below)
        return waiting + parked, waiting_bytes + parked_bytes

    # --- as the tally of what is parked here ----------------------------------------------------------------------------

    def count_parked(self, rank: int, messages: int, size: int) -> None:
        self._tally.count_parked(rank, messages, size)

    def route_closed(self, route: Hashable) -> None:
        self._tally.route_closed(route, self)

    def route_gone(self, route: Hashable) -> None:
        self._tally.route_gone(route, self)
