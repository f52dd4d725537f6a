# SPDX-License-Identifier: Apache-2.0
"""Hop 7: what waits to be sent, bounded by messages and bytes, the important first, retried with growing pauses.

A lane of the host owns one queue, holds its lock, and sends what `take` gives. What only its route keeps from being
sent (one subscriber of many is away) is parked: it waits beside the queue, and whatever follows it on the same stream
(one subscriber, source, sink and class) waits behind it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Final

import msgspec

from ustreamer.core.chain import Delivery
from ustreamer.uprotocol.umessage import UMessage

CLASSES: Final = 7  # CS0..CS6
WEIGHTS: Final = (1, 2, 4, 8, 16, 32, 64)
"""What each class, CS0 to CS6, may send before all that wait have had their turn: at most 126 others are before CS0."""
NEVER_NS: Final = 1 << 62
_MOST_IMPORTANT_FIRST: Final = tuple(reversed(range(CLASSES)))
OVERHEAD_BYTES: Final = 200  # what a queued message occupies beside its payload, measured with tracemalloc


class EgressLimits(msgspec.Struct, frozen=True):
    """How much may wait, how long, and when it is tried again."""

    queue_messages: int = 10_000
    queue_bytes: int = 16_000_000
    retry_first_ms: int = 100
    retry_max_ms: int = 5_000
    max_age_ms: int = 30_000
    """Bound for messages without ttl, from the moment they were received."""
    spool_messages: int = 100_000
    """In place of `queue_messages` where an endpoint is durable; that is then what may be in memory."""
    spool_bytes: int = 256_000_000


class Queued(msgspec.Struct):
    """A message that waits for its delivery. Times are monotonic ns. After its deadline it must not be sent (DSP-4, DSP-27)."""

    delivery: Delivery
    message: UMessage
    received_ns: int
    size: int
    attempts: int = 0
    first_attempt_ns: int = 0
    last_attempt_ns: int = 0
    deadline_ns: int = NEVER_NS
    """Until when it may wait; no leap of the wall clock moves it (`ustreamer.core.expiry`)."""
    ticket: bytes | None = None
    """Its key on disk, b"" while it is on its way there; None in a lane that keeps nothing."""
    absent: bool = False
    """`message` has the attributes only; the rest is on disk."""
    in_hand: bool = False
    """Its lane has asked for the whole message, so that it must not become absent."""


class _Stream(msgspec.Struct):
    """The messages of one stream that wait for their route, in order of arrival; never empty while it is parked."""

    route: Hashable
    items: deque[Queued]


class _Route(msgspec.Struct):
    """A route that is closed, and its streams by class and name, those that were parked first in front."""

    try_ns: int
    failures: int = 0
    streams: dict[tuple[int, Hashable], _Stream] = msgspec.field(default_factory=dict)


class EgressQueue:
    """A bounded queue in seven priority classes; within a class order of arrival is kept. Not locked.

    The classes share what is sent by WEIGHTS, the more important first: no flood of one class starves another. What is
    parked counts into the bounds, and so bounds the number of routes.
    """

    def __init__(self, limits: EgressLimits) -> None:
        self._limits = limits
        self._credit = list(WEIGHTS)
        self._classes: tuple[deque[Queued], ...] = tuple(deque() for _ in range(CLASSES))
        # By class, so that a full queue need not be walked through for every newcomer.
        self._class_bytes = [0] * CLASSES
        self._parked: tuple[dict[Hashable, _Stream], ...] = tuple({} for _ in range(CLASSES))
        self._parked_messages = [0] * CLASSES
        self._parked_bytes = [0] * CLASSES
        self._routes: dict[Hashable, _Route] = {}
        self._soonest_ns = NEVER_NS
        self.waiting = 0
        """Messages that `take` can give: all but those that are parked."""
        self.messages = 0
        self.bytes = 0

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
            self._classes[rank].append(item)
            self._count(rank, 1, size)
            return []
        parked_below = rank if _stream_of(item) in self._parked[rank] else rank + 1
        going = sum(map(len, self._classes[:rank])) + sum(self._parked_messages[:parked_below])
        freed = sum(self._class_bytes[:rank]) + sum(self._parked_bytes[:parked_below])
        if not self._fits(size - freed, going):
            return [item]
        displaced = []
        while not self._fits(size):
            displaced.append(self._youngest_below(rank, parked_below))
        self._classes[rank].append(item)
        self._count(rank, 1, size)
        return displaced

    def restore(self, item: Queued) -> None:
        """Take in, behind all others of its class, what an earlier process has accepted: whatever the limits are now."""
        rank = item.message.attributes.priority_class
        self._classes[rank].append(item)
        self._count(rank, 1, item.size)

    def _fits(self, size: int, going: int = 0) -> bool:
        """Whether a message adding `size` bytes has room when `going` others leave."""
        limits = self._limits
        return self.messages - going < limits.queue_messages and self.bytes + size <= limits.queue_bytes

    def _youngest_below(self, rank: int, parked_below: int) -> Queued:
        for lowest in range(parked_below):
            if self._parked[lowest]:  # of the route that has been closed for longest
                name, stream = next(iter(self._parked[lowest].items()))
                item = stream.items.pop()
                self._count_parked(lowest, -1, -item.size)
                self._forget_if_empty(lowest, name, stream)
                return item
            if lowest < rank and self._classes[lowest]:
                item = self._classes[lowest].pop()
                self._count(lowest, -1, -item.size)
                return item
        raise AssertionError("push has counted what may go")

    def take(self, limit: int = 1) -> list[Queued]:
        """Take out up to `limit` messages: the most important of those classes that have not had their share."""
        for rank in _MOST_IMPORTANT_FIRST:
            waiting = self._classes[rank]
            if waiting:
                if len(waiting) != self.waiting:
                    return self._share(limit)
                return self._move(rank, limit)  # nobody to share with, which is the rule
        return []

    def _share(self, limit: int) -> list[Queued]:
        taken: list[Queued] = []
        credit = self._credit
        ranks = _MOST_IMPORTANT_FIRST
        while True:
            for rank in ranks:
                if credit[rank] and self._classes[rank]:
                    moved = self._move(rank, min(credit[rank], limit - len(taken)))
                    credit[rank] -= len(moved)
                    taken += moved
                    if len(taken) == limit:
                        return taken
            ranks = tuple(rank for rank in ranks if self._classes[rank])
            if not ranks:
                return taken
            credit[:] = WEIGHTS  # all who still wait have had their share

    def _move(self, rank: int, most: int) -> list[Queued]:
        """Take up to `most` messages out of a class."""
        waiting = self._classes[rank]
        if len(waiting) <= most:
            moved = list(waiting)
            waiting.clear()
            size = self._class_bytes[rank]
        else:
            moved = [waiting.popleft() for _ in range(most)]
            size = sum([item.size for item in moved])
        self._count(rank, -len(moved), -size)
        return moved

    def put_back(self, items: list[Queued]) -> None:
        """Return what `take` gave, in its order, to where it was. May exceed the limits by what was in the air."""
        for item in reversed(items):
            rank = item.message.attributes.priority_class
            self._classes[rank].appendleft(item)
            self._count(rank, 1, item.size)
            # Not sent, so no part of its share: what is important is the first again to be tried.
            self._credit[rank] = min(self._credit[rank] + 1, WEIGHTS[rank])

    def _count(self, rank: int, messages: int, size: int) -> None:
        self.waiting += messages
        self.messages += messages
        self.bytes += size
        self._class_bytes[rank] += size

    def __len__(self) -> int:
        return self.messages

    # --- parking --------------------------------------------------------------------------------------------------------

    @property
    def parked(self) -> int:
        """Messages that wait for a route of theirs."""
        return self.messages - self.waiting

    @property
    def closed_routes(self) -> int:
        return len(self._routes)

    def park(self, item: Queued, route: Hashable, try_ns: int) -> None:
        """Have `item`, which `take` or `head_of` gave, wait for `route`, to be tried again at `try_ns`.

        It heads its stream: whoever takes out a later one of it asks `join` first.
        """
        rank, name = item.message.attributes.priority_class, _stream_of(item)
        stream = self._parked[rank].get(name)
        if stream is None:
            stream = self._parked[rank][name] = _Stream(route, deque())
        elif stream.route != route:
            self._leave(rank, name, stream)
            stream.route = route
        closed = self._routes.get(route)
        if closed is None:
            closed = self._routes[route] = _Route(try_ns)
        closed.try_ns = try_ns
        self._soonest_ns = min(self._soonest_ns, try_ns)
        closed.streams[rank, name] = stream
        stream.items.appendleft(item)
        self._count_parked(rank, 1, item.size)

    def join(self, item: Queued) -> bool:
        """Have `item`, which `take` gave, wait behind those of its stream that are parked; False if none are."""
        rank = item.message.attributes.priority_class
        stream = self._parked[rank].get(_stream_of(item)) if self._parked[rank] else None
        if stream is None:
            return False
        stream.items.append(item)
        self._count_parked(rank, 1, item.size)
        return True

    def would_join(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether messages of its stream are parked, so that it must not be sent before them."""
        streams = self._parked[message.attributes.priority_class]
        return bool(streams) and _stream(delivery, message) in streams

    def failed(self, route: Hashable) -> int:
        """Count one more failure in a row of `route`; how many there are."""
        closed = self._routes.setdefault(route, _Route(0))
        closed.failures += 1
        return closed.failures

    def open(self, route: Hashable) -> bool:
        """Have a closed route tried at once, its failures counted anew; whether it was closed."""
        closed = self._routes.get(route)
        if closed is not None:
            closed.try_ns = closed.failures = self._soonest_ns = 0
        return closed is not None

    def open_all(self) -> None:
        for route in self._routes:
            self.open(route)

    def due(self, now_ns: int) -> list[Hashable]:
        """The closed routes whose time for the next try has come."""
        if now_ns < self._soonest_ns:
            return []
        # Those that are due are part of it: whoever does not get to trying them asks again.
        self._soonest_ns = min((closed.try_ns for closed in self._routes.values()), default=NEVER_NS)
        return [route for route, closed in self._routes.items() if closed.try_ns <= now_ns]

    @property
    def next_due_ns(self) -> int:
        """No closed route is to be tried before this time."""
        return self._soonest_ns

    def head_of(self, route: Hashable) -> Queued | None:
        """Take out the first message that waits for `route`, to try it; None if none does.

        Goes on until there is none, or one was sent (`release`), or is to wait on (`park`): until then failures count on.
        """
        closed = self._routes.get(route)
        if closed is None:
            return None
        if not closed.streams:
            del self._routes[route]
            return None
        (rank, name), stream = next(iter(closed.streams.items()))
        item = stream.items.popleft()
        self._count_parked(rank, -1, -item.size)
        if not stream.items:
            del self._parked[rank][name], closed.streams[rank, name]
        return item

    def release(self, route: Hashable) -> None:
        """The route is open: what waits for it is in front of the queue again."""
        closed = self._routes.pop(route, None)
        for (rank, name), stream in reversed(closed.streams.items() if closed else ()):
            size = sum(each.size for each in stream.items)
            self._count_parked(rank, -len(stream.items), -size)
            self._count(rank, len(stream.items), size)
            self._classes[rank].extendleft(reversed(stream.items))
            del self._parked[rank][name]

    def take_parked(self, is_over: Callable[[Queued], bool]) -> list[Queued]:
        """Take out what heads a parked stream and is over."""
        over: list[Queued] = []
        for rank, streams in enumerate(self._parked):
            for name, stream in list(streams.items()):
                while stream.items and is_over(stream.items[0]):
                    item = stream.items.popleft()
                    self._count_parked(rank, -1, -item.size)
                    over.append(item)
                self._forget_if_empty(rank, name, stream)
        return over

    def parked_heads(self) -> Iterator[Queued]:
        """What heads each parked stream."""
        return (stream.items[0] for streams in self._parked for stream in streams.values())

    def _forget_if_empty(self, rank: int, name: Hashable, stream: _Stream) -> None:
        if not stream.items:
            del self._parked[rank][name]
            self._leave(rank, name, stream)

    def _leave(self, rank: int, name: Hashable, stream: _Stream) -> None:
        closed = self._routes[stream.route]
        del closed.streams[rank, name]
        if not closed.streams:
            del self._routes[stream.route]

    def _count_parked(self, rank: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self._parked_messages[rank] += messages
        self._parked_bytes[rank] += size


def _stream(delivery: Delivery, message: UMessage) -> Hashable:
    """What keeps its order of arrival within a class, whatever becomes of other messages."""
    attributes = message.attributes
    return delivery.subscriber, attributes.source, attributes.sink


def _stream_of(item: Queued) -> Hashable:
    return _stream(item.delivery, item.message)


def retry_delay_ns(limits: EgressLimits, failures: int, rng: Callable[[], float]) -> int:
    """How long to wait after the nth failure in a row: doubled each time up to the limit, and jittered by 0.5-1.0.

    The jitter (`rng` gives 0..1) keeps many gateways from knocking at a returning peer in step.
    """
    doubled = min(limits.retry_max_ms, limits.retry_first_ms << min(failures - 1, 20))
    return round(doubled * (0.5 + rng() / 2) * 1_000_000)
