# SPDX-License-Identifier: Apache-2.0
"""What of a lane waits for its route: it holds up nobody else, and keeps its order.

What only its route keeps from being sent is parked, beside what may be sent; whatever follows it on the same stream (one
subscriber, source, sink and class) waits behind it.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import islice
from typing import Protocol

import msgspec

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, Queued, stream_of
from ustreamer.uprotocol.umessage import UMessage


class _Stream(msgspec.Struct):
    """The messages of one stream that wait for their route, in order of arrival; never empty while it is parked."""

    route: Hashable
    items: deque[Queued]


class _Route(msgspec.Struct):
    """A route that is closed, and its streams by class and name, those that were parked first in front."""

    try_ns: int
    failures: int = 0
    streams: dict[tuple[int, Hashable], _Stream] = msgspec.field(default_factory=dict)


class Tally(Protocol):
    """Whoever keeps count of what is parked, and of the routes that it waits for."""

    def count_parked(self, rank: int, messages: int, size: int) -> None: ...

    def route_closed(self, route: Hashable) -> None: ...

    def route_gone(self, route: Hashable) -> None:
        """It has opened, or nothing waits for it any more."""
        ...


class Parked:
    """Streams by class and name, and the routes that they wait for. Not locked."""

    __slots__ = (
        "_class_bytes",
        "_class_messages",
        "_routes",
        "_streams",
        "_tally",
        "bytes",
        "messages",
        "next_due_ns",
    )

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._streams: tuple[dict[Hashable, _Stream], ...] = tuple({} for _ in range(CLASSES))
        self._class_messages = [0] * CLASSES
        self._class_bytes = [0] * CLASSES
        self._routes: dict[Hashable, _Route] = {}
        self.messages = 0
        self.bytes = 0
        self.next_due_ns = NEVER_NS
        """No closed route is to be tried before this time."""

    @property
    def closed_routes(self) -> int:
        return len(self._routes)

    def number(self, rank: int) -> int:
        """How many messages of a class are parked."""
        return self._class_messages[rank]

    def below(self, rank: int) -> tuple[int, int]:
        """Messages and bytes of all classes below this one."""
        return sum(self._class_messages[:rank]), sum(self._class_bytes[:rank])

    # --- streams --------------------------------------------------------------------------------------------------------

    def park(self, item: Queued, route: Hashable, try_ns: int) -> None:
        """Have `item`, which was taken out just now, wait for `route`, to be tried again at `try_ns`.

        It heads its stream: whoever takes out a later one of it asks `join` first.
        """
        rank, name = item.message.attributes.priority_class, stream_of(item.delivery, item.message)
        stream = self._streams[rank].get(name)
        if stream is None:
            stream = self._streams[rank][name] = _Stream(route, deque())
        elif stream.route != route:
            self._leave(rank, name, stream)
            stream.route = route
        closed = self._routes.get(route)
        if closed is None:
            closed = self._close(route)
        closed.try_ns = try_ns
        self.next_due_ns = min(self.next_due_ns, try_ns)
        closed.streams[rank, name] = stream
        stream.items.appendleft(item)
        self._count(rank, 1, item.size)

    def would_join(self, delivery: Delivery, message: UMessage) -> bool:
        """Whether messages of its stream are parked, so that it must not be sent before them."""
        streams = self._streams[message.attributes.priority_class]
        return bool(streams) and stream_of(delivery, message) in streams

    def join(self, item: Queued) -> bool:
        """Have `item` wait behind those of its stream that are parked; False if none are."""
        rank = item.message.attributes.priority_class
        streams = self._streams[rank]
        stream = streams.get(stream_of(item.delivery, item.message)) if streams else None
        if stream is None:
            return False
        stream.items.append(item)
        self._count(rank, 1, item.size)
        return True

    def pop_youngest(self, rank: int) -> Queued:
        """Take out what came last, of a class that has something, for the route that has been closed for longest."""
        name, stream = next(iter(self._streams[rank].items()))
        item = stream.items.pop()
        self._count(rank, -1, -item.size)
        self._forget_if_empty(rank, name, stream)
        return item

    def take_over(self, is_over: Callable[[Queued], bool], limit: int | None = None) -> list[Queued]:
        """Take out what heads a stream and is over; no more than `limit`."""
        return list(islice(self._all_over(is_over), limit))

    def _all_over(self, is_over: Callable[[Queued], bool]) -> Iterator[Queued]:
        for rank, streams in enumerate(self._streams):
            for name, stream in list(streams.items()):
                while stream.items and is_over(stream.items[0]):
                    item = stream.items.popleft()
                    self._count(rank, -1, -item.size)
                    self._forget_if_empty(rank, name, stream)
                    yield item

    def heads(self) -> Iterator[Queued]:
        """What heads each stream."""
        return (stream.items[0] for streams in self._streams for stream in streams.values())

    # --- routes ---------------------------------------------------------------------------------------------------------

    def failed(self, route: Hashable) -> int:
        """Count one more failure in a row of `route`; how many there are."""
        closed = self._routes.get(route) or self._close(route)
        closed.failures += 1
        return closed.failures

    def open(self, route: Hashable, now_ns: int = 0) -> bool:
        """Have a closed route tried at once, its failures counted anew; whether it was closed."""
        closed = self._routes.get(route)
        if closed is not None:
            closed.failures = 0
            closed.try_ns = min(closed.try_ns, now_ns)
            self.next_due_ns = min(self.next_due_ns, now_ns)
        return closed is not None

    def open_all(self, now_ns: int = 0) -> None:
        for route in self._routes:
            self.open(route, now_ns)

    def due(self, now_ns: int) -> list[Hashable]:
        """The closed routes whose time for the next try has come."""
        if now_ns < self.next_due_ns:
            return []
        # Those that are due are part of it: whoever does not get to trying them asks again.
        self.next_due_ns = min((closed.try_ns for closed in self._routes.values()), default=NEVER_NS)
        return [route for route, closed in self._routes.items() if closed.try_ns <= now_ns]

    def head_of(self, route: Hashable) -> Queued | None:
        """Take out the first message that waits for `route`, to try it; None if none does.

        Goes on until there is none, or one was sent (`release`), or is to wait on (`park`): until then failures count on.
        """
        closed = self._routes.get(route)
        if closed is None:
            return None
        if not closed.streams:
            self._drop(route)
            return None
        (rank, name), stream = next(iter(closed.streams.items()))
        item = stream.items.popleft()
        self._count(rank, -1, -item.size)
        if not stream.items:
            del self._streams[rank][name], closed.streams[rank, name]
        return item

    def release(self, route: Hashable) -> list[tuple[int, deque[Queued]]]:
        """The route is open: take out what waits for it, by class and stream, those first that were parked first."""
        closed = self._routes.get(route)
        if closed is None:
            return []
        self._drop(route)
        released = []
        for (rank, name), stream in closed.streams.items():
            self._count(rank, -len(stream.items), -sum(each.size for each in stream.items))
            del self._streams[rank][name]
            released.append((rank, stream.items))
        return released

    def _forget_if_empty(self, rank: int, name: Hashable, stream: _Stream) -> None:
        if not stream.items:
            del self._streams[rank][name]
            self._leave(rank, name, stream)

    def _leave(self, rank: int, name: Hashable, stream: _Stream) -> None:
        closed = self._routes[stream.route]
        del closed.streams[rank, name]
        if not closed.streams:
            self._drop(stream.route)

    def _close(self, route: Hashable) -> _Route:
        closed = self._routes[route] = _Route(NEVER_NS)
        self._tally.route_closed(route)
        return closed

    def _drop(self, route: Hashable) -> None:
        del self._routes[route]
        self._tally.route_gone(route)

    def _count(self, rank: int, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        self._class_messages[rank] += messages
        self._class_bytes[rank] += size
        self._tally.count_parked(rank, messages, size)
