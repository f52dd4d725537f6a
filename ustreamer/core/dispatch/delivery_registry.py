# SPDX-License-Identifier: Apache-2.0
"""The deliveries of one ingress: topics and targets go in, deliveries with their filters and counters go out.

A delivery outlives a cached route and ends with its last subscriber.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from weakref import WeakSet, WeakValueDictionary

import msgspec

from ustreamer.core.base.fair_eviction import FairEviction
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.outgoing_batch import OutgoingBatch
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS, describe_error
from ustreamer.core.delivery.ports import DeliveryOwner, Filter, ListenerEgress
from ustreamer.core.dispatch.dispatcher_port import DispatcherPort
from ustreamer.core.routing.forwarding import Target
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.uuri import UUri


class TargetStatistics(msgspec.Struct, frozen=True):
    """The counts of one target of one topic since its first subscription; `period_ns` 0 is no limit."""

    topic: UUri
    ingress: str
    endpoint: str
    subscriber: UUri | None
    period_ns: int
    received: int
    delivered: int
    throttled: int


class DeliveryRegistry:
    """Deliveries by topic and target, and of unicast messages by endpoint. Locked by its ingress."""

    def __init__(
        self,
        owner: DeliveryOwner,
        dispatcher: DispatcherPort,
        limit: int,
        on_evicted: Callable[[UUri], None],
    ) -> None:
        """At `limit` topics the oldest one is evicted; `on_evicted` receives it just before.

        An authority that has half of the topics gives up one of its own, so it displaces no topic of others.
        """
        self._owner = owner
        self._dispatcher = dispatcher
        self._limit = limit
        self._on_evicted = on_evicted
        self._by_topic: OrderedDict[UUri, tuple[Delivery, ...]] = OrderedDict()
        self._authorities: FairEviction[UUri] = FairEviction(limit)
        self._unicast: dict[str, Delivery] = {}
        # The timer of a held message keeps its delivery.
        self._removed: WeakSet[Delivery] = WeakSet()
        """Deliveries that held messages when their topic or target ended."""
        # Weak: an outgoing batch ends with its last delivery.
        self._outgoing: WeakValueDictionary[tuple[str, UUri | None], OutgoingBatch] = WeakValueDictionary()

    def __iter__(self) -> Iterator[Delivery]:
        yield from self._unicast.values()
        for each in self._by_topic.values():
            yield from each

    def with_held_messages(self) -> list[Delivery]:
        """The deliveries that hold messages, also those whose topic or target has ended."""
        return [each for each in chain(self, self._removed) if each.holds_messages]

    @property
    def topics(self) -> AbstractSet[UUri]:
        """The topics with deliveries."""
        return self._by_topic.keys()

    def for_topic(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> tuple[Delivery, ...]:
        """The deliveries of a topic. A target that had one keeps it, with its new period."""
        before = {(each.endpoint, each.subscriber): each for each in self._by_topic.get(topic, ())}
        deliveries = tuple(
            self._retargeted(before.get((target.endpoint, target.subscriber)), topic, target, now_ns)
            for target in targets
        )
        self._removed.update(set(before.values()).difference(deliveries))
        if deliveries:
            self._store(topic, deliveries)
        elif topic in self._by_topic:
            self._remove(topic)
        return deliveries

    def _store(self, topic: UUri, deliveries: tuple[Delivery, ...]) -> None:
        # Bounded, because under a wildcard subscription the sender chooses the number of topics. The routes of an evicted
        # topic are dropped too: the topic could otherwise have two deliveries, each with its own filter.
        if topic not in self._by_topic:
            if len(self._by_topic) >= self._limit:
                oldest = self._authorities.victim(topic.authority_name) or next(iter(self._by_topic))
                self._on_evicted(oldest)
                self._remove(oldest)
            self._authorities.add(topic.authority_name, topic)
        self._by_topic[topic] = deliveries

    def _remove(self, topic: UUri) -> None:
        self._removed.update(self._by_topic.pop(topic))
        self._authorities.remove(topic.authority_name, topic)

    def _retargeted(self, delivery: Delivery | None, topic: UUri, target: Target, now_ns: int) -> Delivery:
        """The delivery, or a new one for None, with the period and the state of `target`."""
        is_new = delivery is None
        if delivery is None:
            delivery = self._new_delivery(target.endpoint, topic, target.subscriber)
        delivery.set_paused(target.paused)
        if (delivery.period_ns, delivery.broadcast) == (target.period_ns, target.broadcast) and not is_new:
            return delivery
        delivery.period_ns, delivery.broadcast = target.period_ns, target.broadcast
        self._rebuild_filters_of(delivery, now_ns)
        return delivery

    def for_unicast(self, endpoint: str, now_ns: int) -> Delivery:
        """The delivery of messages that are routed to an endpoint by their sink."""
        delivery = self._unicast.get(endpoint)
        if delivery is None:
            delivery = self._unicast[endpoint] = self._new_delivery(endpoint)
            self._rebuild_filters_of(delivery, now_ns)
        return delivery

    def _new_delivery(
        self, endpoint: str, topic: UUri | None = None, subscriber: UUri | None = None
    ) -> Delivery:
        egress, target = self._dispatcher.egress[endpoint], (endpoint, subscriber)
        outgoing = self._outgoing.get(target)
        if outgoing is None:
            outgoing = self._outgoing[target] = OutgoingBatch(egress)
        return Delivery(self._owner, egress, topic, subscriber, outgoing=outgoing)

    def rebuild_filters(self, now_ns: int) -> None:
        """Make the filters of every target again."""
        for each in self:
            self._rebuild_filters_of(each, now_ns)

    def _rebuild_filters_of(self, delivery: Delivery, now_ns: int) -> None:
        delivery.period_since_ns = now_ns
        factory = self._dispatcher.filters
        egress, first = delivery.egress, list[Filter]()
        if delivery.broadcast and isinstance(egress, ListenerEgress):
            first.append(NoListenerFilter(egress))
        try:
            delivery.set_filters((*first, *factory(delivery)), now_ns)
        # Foreign code. Without its filters no message passes: a limit or a ban must hold.
        except FOREIGN_ERRORS as error:
            self._owner.on_filter_error(factory, error)
            delivery.set_filters((FailedFilter(describe_error(factory, error)),), now_ns)

    def statistics(self, topic: UUri | None = None) -> list[TargetStatistics]:
        """A snapshot of the targets of all topics, or of one. A network without a listener is no target."""
        topics = self._by_topic if topic is None else (topic,)
        return [
            _statistics_of(each, delivery)
            for each in topics
            for delivery in self._by_topic.get(each, ())
            if _is_reported(delivery)
        ]

    def busiest(self, number: int) -> list[TargetStatistics]:
        """The targets with the most received messages. From any thread: the copy is one atomic step."""
        if not number:
            return []
        deliveries = chain.from_iterable(list(self._by_topic.values()))
        found = nlargest(number, filter(_is_reported, deliveries), key=attrgetter("received"))
        return [_statistics_of(each.topic, each) for each in found if each.topic is not None]


def _is_reported(delivery: Delivery) -> bool:
    """False for a broadcast topic in a network where it has had no listener."""
    return bool(delivery.delivered) or not delivery.broadcast


def _statistics_of(topic: UUri, delivery: Delivery) -> TargetStatistics:
    return TargetStatistics(
        topic,
        delivery.ingress,
        delivery.endpoint,
        delivery.subscriber,
        delivery.period_ns,
        delivery.received,
        delivery.delivered,
        delivery.throttled,
    )


class NoListenerFilter(Filter):
    """Drops the messages of a broadcast topic without a listener, before they take a place in a queue."""

    def __init__(self, egress: ListenerEgress) -> None:
        self._egress = egress

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return None if self._egress.has_listener(message.attributes) else Verdict.NO_SUBSCRIBER


class FailedFilter(Filter):
    """Replaces filters that could not be made; fails every message."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        raise RuntimeError(f"no filters: {self._reason}")
