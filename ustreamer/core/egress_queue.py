# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent to an endpoint, bounded by messages and bytes, the important first.

A lane of the host owns one queue, holds its lock, and sends what `take` gives.
"""

from collections.abc import Callable, Hashable, Iterator

from ustreamer.core.chain import Delivery
from ustreamer.core.classes import Classes
from ustreamer.core.egress import NEVER_NS, OVERHEAD_BYTES, EgressLimits, Queued
from ustreamer.core.parked import Parked
from ustreamer.uprotocol.umessage import UMessage


class EgressQueue:
    """A bounded queue in seven priority classes; within a class order of arrival is kept. Not locked.

    The classes share what is sent by WEIGHTS, the more important first: no flood of one class starves another. What is
    parked counts into the bounds, and so bounds the number of routes.
    """

    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        self.messages = 0
        self.bytes = 0
        self.waiting = 0
        """Messages that `take` can give: all but those that are parked."""
        self._classes = Classes(self)
        self._parked = Parked(self)

    def use(self, limits: EgressLimits) -> None:
        """Go by other limits; what is in the queue stays until it is taken, or has to make room."""
        self._limits = limits

    def push(
        self,
        delivery: Delivery,
        message: UMessage,
        now_ns: int,
        attempts: int = 0,
        deadline_ns: int = NEVER_NS,
    ) -> list[Queued]:
        """Take `message` in, which was tried `attempts` times just now; what had to go for it is returned.

        When the queue is full, the youngest of the lowest classes below the newcomer's make room, the parked first; so do
        the parked of its own class, unless it would be one of them. If that is not enough, the newcomer itself is returned.
        """
        tried_ns = now_ns if attempts else 0
        size = len(message.payload) + OVERHEAD_BYTES
        item = Queued(delivery, message, now_ns, size, attempts, tried_ns, tried_ns, deadline_ns)
        rank = message.attributes.priority_class
        limits = self._limits
        if (
            self.messages < limits.queue_messages and self.bytes + size <= limits.queue_bytes
        ):  # `_fits`, 0.1 us less
            self._place(rank, item)
            return []
        parked_below = rank if self._parked.would_join(delivery, message) else rank + 1
        waiting, waiting_bytes = self._classes.below(rank)
        parked, parked_bytes = self._parked.below(parked_below)
        if not self._fits(size - waiting_bytes - parked_bytes, waiting + parked):
            return [item]
        displaced = []
        while not self._fits(size):
            displaced.append(self._youngest_below(rank, parked_below))
        self._place(rank, item)
        return displaced

    def restore(self, item: Queued) -> None:
        """Take in, behind all others of its class, what an earlier process has accepted: whatever the limits are now."""
        self._classes.append(item.message.attributes.priority_class, item)

    def _place(self, rank: int, item: Queued) -> None:
        self._classes.append(rank, item)

    def _fits(self, size: int, going: int = 0) -> bool:
        """Whether a message adding `size` bytes has room when `going` others leave."""
        limits = self._limits
        return self.messages - going < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _youngest_below(self, rank: int, parked_below: int) -> Queued:
        for lowest in range(parked_below):
            if self._parked.number(lowest):
                return self._parked.pop_youngest(lowest)
            if lowest < rank and self._classes.number(lowest):
                return self._classes.pop_youngest(lowest)
        raise AssertionError("push has counted what may go")

    def take(self, limit: int = 1) -> list[Queued]:
        """Take out up to `limit` messages: the most important of those classes that have not had their share."""
        return self._classes.take(limit)

    def put_back(self, items: list[Queued]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        self._classes.put_back(items)

    def __len__(self) -> int:
        return self.messages

    def count_waiting(self, rank: int, messages: int, size: int) -> None:
        self.waiting += messages
        self.messages += messages
        self.bytes += size

    def count_parked(self, rank: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size

    # --- parking --------------------------------------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """Messages that wait for a route of theirs."""
        return self.messages - self.waiting

    @property
    def closed_routes(self) -> int:
        return self._parked.closed_routes

    def park(self, item: Queued, route: Hashable, try_ns: int) -> None:
        """Have `item`, which `take` or `head_of` gave, wait for `route`; see `Parked.park`."""
        self._parked.park(item, route, try_ns)

    def join(self, item: Queued) -> bool:
        """Have `item`, which `take` gave, wait behind those of its stream that are parked; False if none are."""
        return self._parked.join(item)

    def would_join(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether messages of its stream are parked, so that it must not be sent before them."""
        return self._parked.would_join(delivery, message)

    def failed(self, route: Hashable) -> int:
        """Count one more failure in a row of `route`; how many there are."""
        return self._parked.failed(route)

    def open(self, route: Hashable) -> bool:
        """Have a closed route tried at once, its failures counted anew; whether it was closed."""
        return self._parked.open(route)

    def open_all(self) -> None:
        self._parked.open_all()

    def due(self, now_ns: int) -> list[Hashable]:
        """The closed routes whose time for the next try has come."""
        return self._parked.due(now_ns)

    @property
    def next_due_ns(self) -> int:
        """No closed route is to be tried before this time."""
        return self._parked.next_due_ns

    def head_of(self, route: Hashable) -> Queued | None:
        """Take out the first message that waits for `route`, to try it; see `Parked.head_of`."""
        return self._parked.head_of(route)

    def release(self, route: Hashable) -> None:
        """The route is open: what waits for it is in front of the queue again."""
        for rank, items in reversed(self._parked.release(route)):
            self._classes.put_in_front(rank, items)

    def take_parked(self, is_over: Callable[[Queued], bool]) -> list[Queued]:
        """Take out what heads a parked stream and is over."""
        return self._parked.take_over(is_over)

    def parked_heads(self) -> Iterator[Queued]:
        """What heads each parked stream."""
        return self._parked.heads()
