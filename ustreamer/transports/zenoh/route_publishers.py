# SPDX-License-Identifier: Apache-2.0
"""The declared Zenoh publishers, one per route (source, sink, priority).

A publisher is used instead of `session.put`: it is no slower, and it reports whether a subscriber matches.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Final

import zenoh
from zenoh.handlers import Callback

from ustreamer.transport_port import EndpointContext
from ustreamer.transports.zenoh.keys import message_key
from ustreamer.uprotocol.uattributes import UAttributes, UPriority
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from ustreamer.transports.zenoh.receipts.awaited_receipts import AwaitedReceipts, Receiver


PRIORITIES: Final = {
    UPriority.UNSPECIFIED: zenoh.Priority.DATA_LOW,
    UPriority.CS0: zenoh.Priority.BACKGROUND,
    UPriority.CS1: zenoh.Priority.DATA_LOW,
    UPriority.CS2: zenoh.Priority.DATA,
    UPriority.CS3: zenoh.Priority.DATA_HIGH,
    UPriority.CS4: zenoh.Priority.INTERACTIVE_LOW,
    UPriority.CS5: zenoh.Priority.INTERACTIVE_HIGH,
    UPriority.CS6: zenoh.Priority.REAL_TIME,
}
"""[impl->dsn~up-transport-zenoh-message-priority-mapping~1]"""

DISCOVERY_NS: Final = 500_000_000
"""The time in which a new publisher learns of existing subscribers. Measured across two routers: 6 ms at most, and
340 ms on an overloaded machine."""

MAX_EXTRA: Final = 4_096
"""Publishers above the limit, which stay until their messages have arrived; 4 kB each."""

ZenohRoute = tuple[UUri, UUri | None, UPriority]
"""Source, sink and priority."""


class RoutePublisher:
    """The Zenoh publisher of one route.

    `zenoh` is the declared publisher, `put` its method. `headers` has the keys of its cached headers.
    `matches`: a subscriber matches, by the last report of Zenoh. `open`: a subscriber matches, and nothing is left to
    retransmit. Of one that is not open, `lost_ns` is the time at which the last subscriber left, `to_retransmit` has the
    possibly lost puts with their times, and from `absent_from_ns` on no subscriber is expected. `receivers` give receipts
    for its puts since `opened_ns`, or since they appeared. `used_ns` is the time of its last put, or of its declaration.
    """

    __slots__ = (
        "absent_from_ns",
        "headers",
        "lost_ns",
        "matches",
        "open",
        "opened_ns",
        "put",
        "receivers",
        "route",
        "to_retransmit",
        "used_ns",
        "zenoh",
    )

    def __init__(self, route: ZenohRoute, absent_from_ns: int) -> None:
        self.route = route
        self.absent_from_ns = absent_from_ns
        self.zenoh: zenoh.Publisher
        self.put: Callable[..., None]
        self.matches = self.open = False
        self.opened_ns = self.used_ns = 0
        self.headers: dict[UAttributes, None] = {}
        self.to_retransmit: list[tuple[int, UMessage]] = []
        self.lost_ns = 0
        self.receivers: tuple[Receiver, ...] = ()

    def has_subscriber(self) -> bool:
        """Whether a subscriber matches now."""
        # The stubs call the status a bool; it is an object, and always true.
        return bool(self.zenoh.matching_status.matching)  # type: ignore[attr-defined]

    def undeclare(self) -> None:
        """End it. No other thread may use it."""
        self.zenoh.undeclare()  # type: ignore[no-untyped-call]


def route_of(attributes: UAttributes) -> ZenohRoute:
    """The route of a message. Without a priority it has the route of CS1, as the two share a Zenoh priority."""
    # Not per header: messages of one topic with two ttls must keep their order.
    return attributes.source, attributes.sink, attributes.priority or UPriority.CS1


class RoutePublishers:
    """The publishers of one session: at most `limit`, and 4 096 more whose messages may not have arrived.

    The caller holds its put lock for all methods except three: `declare`, and `find` and `len`, which are atomic.
    """

    def __init__(
        self,
        session: zenoh.Session,
        context: EndpointContext,
        limit: int,
        awaited: "AwaitedReceipts | None" = None,
    ) -> None:
        self._session = session
        self._context = context
        self._monotonic_ns = context.clock.monotonic_ns
        self._awaited = awaited
        self.limit = limit
        self.on_matching: Callable[[RoutePublisher, bool], None] = lambda publisher, matching: None
        """Called on a thread of Zenoh: a first subscriber matches, or the last one has gone."""
        # Zenoh's threads wait for this lock: never held for long, and never during a call of Zenoh.
        self.state_lock: Final = Lock()
        """Protects `open` and `absent_from_ns` of all publishers."""
        self._by_route: dict[ZenohRoute, RoutePublisher] = {}
        self.by_use: Final[OrderedDict[RoutePublisher, None]] = OrderedDict()
        """The publishers, the least recently used one first."""

    def __len__(self) -> int:
        return len(self._by_route)

    def __iter__(self) -> Iterator[RoutePublisher]:
        return iter(self._by_route.values())

    def __contains__(self, publisher: RoutePublisher) -> bool:
        return self._by_route.get(publisher.route) is publisher

    def find(self, route: ZenohRoute) -> RoutePublisher | None:
        return self._by_route.get(route)

    def add(self, publisher: RoutePublisher) -> None:
        """Use a declared publisher from now on."""
        self._by_route[publisher.route] = publisher
        publisher.used_ns = self._monotonic_ns()
        self.by_use[publisher] = None
        publisher.receivers = tuple(self.receivers_of(publisher.route))

    @property
    def is_full(self) -> bool:
        """Whether the limit and all extra places are used."""
        return len(self) >= self.limit + MAX_EXTRA

    def pop_idle(
        self, since_ns: int, is_needed: Callable[[RoutePublisher], bool] = lambda publisher: False
    ) -> RoutePublisher | None:
        """Remove the least recently used one that was not used since `since_ns`, and has nothing to retransmit."""
        for each in self.by_use:
            if each.used_ns >= since_ns:
                return None
            if not each.to_retransmit and not is_needed(each):
                return self._remove(each)
        return None

    def pop_lost_before(
        self, before_ns: int, is_needed: Callable[[RoutePublisher], bool] = lambda publisher: False
    ) -> RoutePublisher | None:
        """Remove the least recently used one that lost its subscribers before this time and has messages to retransmit."""
        lost = (
            each
            for each in self.by_use
            if (each.to_retransmit or is_needed(each)) and not each.open and 0 < each.lost_ns < before_ns
        )
        found = next(lost, None)
        return None if found is None else self._remove(found)

    def _remove(self, publisher: RoutePublisher) -> RoutePublisher:
        del self._by_route[publisher.route], self.by_use[publisher]
        return publisher

    def declare(self, attributes: UAttributes, key: zenoh.KeyExpr | str | None = None) -> RoutePublisher:
        """A publisher for the route of these attributes; `add` must follow. Raises ZError.

        `key` saves time if the session knows it already.
        """
        publisher = RoutePublisher(route_of(attributes), self._monotonic_ns() + DISCOVERY_NS)

        def on_status(status: zenoh.MatchingStatus) -> None:
            publisher.matches = status.matching
            self.on_matching(publisher, status.matching)

        if key is None:
            key = message_key(attributes.source, attributes.sink, self._context.authority)
        publisher.zenoh = self._session.declare_publisher(
            key,
            priority=PRIORITIES[attributes.priority],
            # Zenoh's default DROP loses messages on a busy link.
            congestion_control=zenoh.CongestionControl.BLOCK,
            allowed_destination=zenoh.Locality.REMOTE,
        )
        publisher.put, publisher.opened_ns = publisher.zenoh.put, self._monotonic_ns()
        # Set before the listener exists: its first call, "a subscriber matches", then finds the route open.
        publisher.open = publisher.has_subscriber()
        publisher.zenoh.declare_matching_listener(Callback(on_status, indirect=False))
        if (
            not publisher.has_subscriber()
        ):  # no call reports a subscriber that left before the listener existed
            with self.state_lock:
                publisher.open = False
        return publisher

    def receivers_of(self, route: ZenohRoute) -> "dict[Receiver, int]":
        """The receivers that give receipts for `route`, each with the time at which it began."""
        if self._awaited is None:
            return {}
        source, sink, _ = route
        own = self._context.authority
        return self._awaited.receivers_of(source.with_authority(own), sink and sink.with_authority(own))
