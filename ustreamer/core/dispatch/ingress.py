# SPDX-License-Identifier: Apache-2.0
"""Routes messages and runs their filters (stages 4 to 6 of docs/architecture.md).

In: the messages of an endpoint. Out: the messages that passed their filters, to the egress queues.

The path of a message is `Ingress.dispatch` from top to bottom; `Ingress.on_batch` is the path of a batch. The ingress
looks up the cached route of a message, or builds it. An ingress is a monitor: with one lock, its routes, filters and
counters have one writer at a time.

Lock order: any ingress, then the ingress of the streamer itself, then an endpoint queue. Other locks are held for single
operations, and nothing is locked within them.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager
from threading import Lock, RLock
from typing import NamedTuple

import msgspec

from ustreamer.core.base.intrusions import PeerRefusals
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, Verdict
from ustreamer.core.delivery.outgoing_batch import OutgoingBatch
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS, PluginErrors, describe_error
from ustreamer.core.delivery.ports import BackloggedEgress, Filter, Tap
from ustreamer.core.dispatch.dedup_window import DedupWindow
from ustreamer.core.dispatch.delivery_registry import DeliveryRegistry, TargetStatistics
from ustreamer.core.dispatch.dispatcher_port import DispatcherPort
from ustreamer.core.dispatch.recent_denials import RecentDenial, RecentDenials
from ustreamer.core.egress.dead_letter import DeadLetter, dead_letter_topic
from ustreamer.core.routing.forwarding import ForwardingShare, Target
from ustreamer.core.routing.route_cache import (
    CachedRoute,
    ObservedRoute,
    RouteCache,
    batch_cache_key,
    cache_key,
)
from ustreamer.core.routing.router import DEFERRED, SELF, InvalidMessage, Router, RoutingDecision
from ustreamer.uprotocol.batch import MessageBatch
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage, error_response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

_UNSEEN = -1
"""No version of a directory."""
_MS_PER_DAY = 86_400_000
_CLOSE_S = 2.0
_REASONS = (
    "invalid",
    "spoofed",
    "identity",
    "access",
    "authorisation",
    "duplicate",
    "deferred_to_peer",
)
"""The counters of messages that are not accepted, or that are denied."""


class ThrottledValue(NamedTuple):
    """A publication for one subscriber that a limit throttled."""

    topic: UUri
    passed: int
    """How many messages had passed the limit."""
    period_ns: int


class Ingress:
    """The entry of all messages of one endpoint: `dispatch` is the listener that its transport calls."""

    def __init__(
        self, name: str, dispatcher: DispatcherPort, taps: tuple[Tap, ...] = (), route_limit: int = 16_384
    ) -> None:
        self.name = name
        self.taps = taps
        # Innermost in the lock order: a failing tap is removed under the lock of an endpoint queue.
        self._taps_lock = Lock()
        self.ledger = Ledger()
        self.plugin_errors = PluginErrors(name)
        self.held = 0  # messages that filters hold at present
        self.refused: dict[str, int] = dict.fromkeys(_REASONS, 0)
        self.denied_by_authority = PeerRefusals()
        self._denials = RecentDenials(name)
        self._dispatcher = dispatcher
        self._router = dispatcher.router
        self._closed: RoutingDecision | None = None
        self._directory = dispatcher.router.version_source
        self._monotonic_ns, self._wall_ms = dispatcher.clock
        self._is_expired = dispatcher.expiry.is_expired
        self._lock = RLock()
        self._routes = RouteCache(route_limit)
        # With a dedup window `_routes` stays empty, so every message passes through `_route_for`, and the routes are in
        # `_routes_after_dedup`. An endpoint without a dedup window has no cost.
        self._dedup_window: DedupWindow | None = None
        self._routes_after_dedup = RouteCache(route_limit)
        self._deliveries = DeliveryRegistry(self, dispatcher, route_limit, self._on_topic_evicted)
        self._backlogs: set[BackloggedEgress] = set()

    def dispatch(self, message: UMessage) -> None:
        """Decide about `message` and pass it to its targets. Never raises.

        Backpressure: the next call first waits for each egress queue with a backlog, about 0.1 s at most for each. A
        slow receiver causes waits within its `WaitBudget` only.
        """
        if self._backlogs:
            self._wait_backlogs()
        attributes = message.attributes
        id = message.id
        with self._lock:
            # Read under the lock: with two threads, the time that filters receive must not run backwards.
            now_ns = self._monotonic_ns()
            version: int | None = None  # no cached route is valid, and no route is cached
            try:
                version = self._directory.version
            except FOREIGN_ERRORS as error:
                self.plugin_errors.record_directory_error(self._directory, error)
            route = self._routes.get(attributes if attributes.reqid is None else cache_key(attributes))
            if (
                route is None
                or route.version != version
                or id.msb & 0xF000 != 0x7000
                or id.lsb >> 62 != 0b10  # UUID.is_valid inlined: 0.1 us instead of 0.3
            ):
                route = self._route_for(message, version, now_ns)
                if route is None:
                    return
            deliveries = route.deliveries
            if not deliveries:
                # Before the ttl: a denied message is DENIED, not EXPIRED, and a deferred one belongs to a peer.
                self._settle_without_target(message, route.decision, now_ns)
                return
            if (
                attributes.ttl
                and self._wall_ms() > (id.msb >> 16) + attributes.ttl
                and self._is_expired(id.msb >> 16, attributes.ttl)  # false after a clock step
            ):
                self._drop_expired(message, now_ns)
                return
            self.ledger.received += len(deliveries)
            for delivery in deliveries:
                delivery.received += 1
                if not delivery.filter_calls or delivery.apply_filters(message, now_ns):
                    delivery.egress.offer(delivery, message, now_ns)

    __call__ = dispatch

    # Fast path of dispatch, which is its oracle; compared by
    # tests/core/dispatch/test_batches.py::test_a_batch_has_the_results_of_its_single_messages
    def on_batch(self, messages: Sequence[UMessage]) -> None:
        """As `dispatch` of each message; the order of messages to one target is the same.

        The batch shares lock, clock reading and counters: 0.5 us per message instead of 0.85. Queue and transport save
        more. All messages arrived before the call, so they share one directory version and one time. Only filters
        get a time per message. A batch of equal attributes needs one decision (`_dispatch_column_batch`).
        """
        if self._backlogs:
            self._wait_backlogs()
        routes, batches = self._routes, list[OutgoingBatch]()
        received, has_ttl = 0, False
        with self._lock:
            version: int | None = None  # no cached route is valid, and no route is cached
            try:
                version = self._directory.version
            except FOREIGN_ERRORS as error:
                self.plugin_errors.record_directory_error(self._directory, error)
            if type(messages) is MessageBatch and self._dispatch_column_batch(messages, version):
                return
            now_ns, wall_ms = self._monotonic_ns(), self._wall_ms()
            try:
                for message in messages:
                    attributes = message.attributes
                    id = message.id
                    route = routes.get(attributes if attributes.reqid is None else cache_key(attributes))
                    if (
                        route is None
                        or route.version != version
                        or id.msb & 0xF000 != 0x7000
                        or id.lsb >> 62 != 0b10  # UUID.is_valid
                    ):
                        route = self._route_for(message, version, now_ns)
                        if route is None:
                            continue
                    deliveries = route.deliveries
                    if not deliveries:
                        self._settle_without_target(message, route.decision, now_ns)
                        continue
                    if attributes.ttl:
                        has_ttl = True
                        if wall_ms > (id.msb >> 16) + attributes.ttl and self._is_expired(
                            id.msb >> 16, attributes.ttl
                        ):
                            self._drop_expired(message, now_ns)
                            continue
                    received += len(deliveries)
                    for delivery in deliveries:
                        delivery.received += 1
                        if delivery.filter_calls:
                            now_ns = self._monotonic_ns()
                            if not delivery.apply_filters(message, now_ns):
                                continue
                        outgoing = delivery.outgoing
                        if not outgoing.items:
                            batches.append(outgoing)
                        outgoing.items.append((delivery, message, now_ns))
            finally:  # an exception must not hold back the messages decided before it
                self.ledger.received += received
                for outgoing in batches:
                    outgoing.flush(has_ttl=has_ttl)

    # Fast path of dispatch, which is its oracle; compared by
    # tests/core/dispatch/test_batches.py::test_a_batch_has_the_results_of_its_single_messages
    def _dispatch_column_batch(self, batch: MessageBatch, version: int | None) -> bool:
        """Dispatch a batch as a whole; False, without any effect, if each message needs its own decision.

        That is so without a valid cached route or a target, with a filter, and if a message may have expired. As a
        whole, a batch costs 0.05 us per message instead of 0.35.
        """
        attributes = batch.attributes
        route = self._routes.get(batch_cache_key(batch))
        if route is None or route.version != version or not route.deliveries:
            return False
        if any(delivery.filter_calls for delivery in route.deliveries):
            return False
        if attributes.ttl and self._wall_ms() > (min(batch.ids.msb_lsb_columns()[0]) >> 16) + attributes.ttl:
            return False
        now_ns = self._monotonic_ns()
        self.ledger.received += len(batch) * len(route.deliveries)
        for delivery in route.deliveries:
            delivery.offer_batch(batch, now_ns)
        return True

    # --- backpressure -------------------------------------------------------------------------------------------------

    def on_backlog(self, egress: BackloggedEgress) -> None:
        """The queue of `egress` has a backlog: the next call waits for it. Called under the lock of this ingress."""
        self._backlogs.add(egress)

    def _wait_backlogs(self) -> None:
        """Wait for each egress queue with a backlog. No lock is held: other threads can route, reload and read."""
        for egress in tuple(self._backlogs):
            egress.wait_backlog()
            self._backlogs.discard(egress)

    # --- routes -------------------------------------------------------------------------------------------------------

    def _route_for(self, message: UMessage, version: int | None, now_ns: int) -> CachedRoute | None:
        """The route of a message without a valid cached route; None if the message is not accepted."""
        if self._dedup_window is None:
            return self._build_route(message, self._routes, version, now_ns)
        if not self._dedup_window.first_seen(message.id):
            self.refused["duplicate"] += 1  # not accepted, so not in the ledger
            return None
        route = self._routes_after_dedup.get(cache_key(message.attributes))
        if route is None or route.version != version or not message.id.is_valid:
            route = self._build_route(message, self._routes_after_dedup, version, now_ns)
        return route

    def _build_route(
        self,
        message: UMessage,
        routes: RouteCache,
        version: int | None,
        now_ns: int,
    ) -> CachedRoute | None:
        """Build a route; cache it in `routes` if more messages may share it. None for an invalid message.

        `version` was read before: a change of subscriptions since then makes the route stale, not wrong.
        """
        attributes, key = message.attributes, cache_key(message.attributes)
        try:
            if not message.id.is_valid:
                raise InvalidMessage(UCode.INVALID_ARGUMENT, f"id {message.id}: expected a version 7 UUID")
            stale = routes.get(key)
            if stale is not None and attributes.type is not UMessageType.PUBLISH and version is not None:
                # A change of subscriptions changes the targets of publications only.
                route = routes[key] = CachedRoute(version, stale.deliveries, stale.decision, stale.first_ms)
                return route
            decision = self._router.decide(self.name, attributes)
            if decision.verdict is Verdict.DENIED:
                self._dispatcher.on_denied(self.name, attributes, decision)
            if self._closed is not None and decision.targets:
                decision = self._closed
        except InvalidMessage as refused:
            self._refuse(message, refused.status)
            return None
        except FOREIGN_ERRORS as error:  # foreign code: the directory is a plugin's
            self.plugin_errors.record_directory_error(self._directory, error)
            # No peer may rely on this streamer for the topic.
            self._withdraw({attributes.source})
            text = f"subscription directory {describe_error(self._directory, error)}"
            return CachedRoute(
                version, (), RoutingDecision((), Verdict.DEAD_LETTERED, UStatus(UCode.INTERNAL, text))
            )
        deliveries, decision = self._deliveries_of(attributes, decision, now_ns)
        route = CachedRoute(version, deliveries, decision, self._wall_ms())
        if version is not None and (attributes.is_cacheable or key is not attributes):
            routes.add(key, route)
        return route

    def _clear_routes(self) -> None:
        self._routes.clear()
        self._routes_after_dedup.clear()

    def _on_topic_evicted(self, topic: UUri) -> None:
        self._withdraw({topic})
        for routes in (self._routes, self._routes_after_dedup):
            routes.index_sources()
        self._drop_routes_of({topic})

    def _withdraw(self, topics: AbstractSet[UUri]) -> None:
        until_ns = self._router.forwarding.withdraw(topics, self._monotonic_ns())
        if until_ns:
            self._dispatcher.schedule(until_ns, lambda: self._end_grace(frozenset(topics)))

    def _drop_routes_of(self, topics: AbstractSet[UUri]) -> None:
        for routes in (self._routes, self._routes_after_dedup):
            routes.drop_sources(topics)

    def _deliveries_of(
        self, attributes: UAttributes, decision: RoutingDecision, now_ns: int
    ) -> tuple[tuple[Delivery, ...], RoutingDecision]:
        """The deliveries of a route and its decision. Filters of deferred targets keep their state."""
        if attributes.type is not UMessageType.PUBLISH:
            return tuple(
                self._deliveries.for_unicast(each.endpoint, now_ns) for each in decision.targets
            ), decision
        if decision.reason is not None or decision.deferred:
            self._update_unsent(attributes.source, decision, now_ns)
            return (), decision
        share = self._forwarding_share(attributes.source, decision.targets, now_ns)
        deliveries = self._deliveries.for_topic(attributes.source, share.targets, now_ns)
        if not share.deferred:
            return deliveries, decision
        forwarded = tuple(each for each in deliveries if each.endpoint not in share.deferred)
        return forwarded, decision if forwarded else DEFERRED

    def _update_unsent(self, topic: UUri, decision: RoutingDecision, now_ns: int) -> None:
        """Update the deliveries of a topic of which a message was denied or deferred; peers are not told."""
        if topic in self._deliveries.topics:
            # A plugin denies this message. Others of the topic keep their targets, and the state of their limits.
            is_alone = decision.denied_as == "authorisation"
            targets = self._router.subscribed_targets(self.name, topic) if is_alone else ()
            self._deliveries.for_topic(topic, targets, now_ns)

    def _forwarding_share(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        """The targets that this streamer serves itself; all targets of its own publications, which no peer has."""
        if self.name == SELF:
            return ForwardingShare(targets)
        share = self._router.forwarding.assign(topic, targets, now_ns)
        if share.grace_until_ns:
            self._dispatcher.schedule(share.grace_until_ns, lambda: self._end_grace(frozenset([topic])))
        return share

    def send_to_subscriber(
        self, read: Callable[[], Iterable[UMessage]], subscriber: UUri, passed: int | None = None
    ) -> list[ThrottledValue]:
        """Send the publications that `read` returns to one subscriber; in a multicast domain, to all there.

        `read` is called while no message is dispatched here, so that no newer message of a topic is sent before them.
        Returns those that the limit of their target throttled. `passed` is the number in such a result: nothing is sent
        if a message has passed the limit since.
        """
        throttled: list[ThrottledValue] = []
        with self._lock:
            if self._closed is not None:
                return throttled
            endpoint = self._router.authority_table.endpoint_of(subscriber)
            for message in read():
                now_ns, topic = self._monotonic_ns(), message.attributes.source
                for delivery in self._subscribed_deliveries(message.attributes, now_ns):
                    if delivery.endpoint != endpoint or delivery.subscriber not in {None, subscriber}:
                        continue
                    # Also what a filter holds: it leaves within a period.
                    before = delivery.received - delivery.throttled
                    if passed is not None and before > passed:
                        continue
                    self.ledger.received += 1
                    delivery.offer(message, now_ns)
                    is_throttled = delivery.received - delivery.throttled == before
                    if is_throttled and delivery.period_ns and not delivery.holds_messages:
                        throttled.append(ThrottledValue(topic, before, delivery.period_ns))
        return throttled

    def _subscribed_deliveries(self, attributes: UAttributes, now_ns: int) -> tuple[Delivery, ...]:
        try:
            decision = self._router.decide(self.name, attributes)
        except FOREIGN_ERRORS:  # foreign code, or an invalid message: dispatch reports it
            return ()
        return self._deliveries_of(attributes, decision, now_ns)[0]

    def defers_to_peer(self, attributes: UAttributes, endpoint: str) -> bool:
        """Whether another streamer forwards a message with these attributes to `endpoint`, or to all its targets."""
        with self._lock:
            try:
                decision = self._router.decide(self.name, attributes)
            except FOREIGN_ERRORS:  # foreign code, or an invalid message: dispatch reports it
                return False
            if attributes.type is not UMessageType.PUBLISH or not decision.targets:
                return decision.deferred
            deferred = self._forwarding_share(
                attributes.source, decision.targets, self._monotonic_ns()
            ).deferred
            return endpoint in deferred or all(each.endpoint in deferred for each in decision.targets)

    def share_topic(self, topic: UUri, *, with_peers: bool = True) -> tuple[Target, ...]:
        """The targets of the next message on `topic`. `with_peers`: advertise or withdraw the topic now."""
        with self._lock:
            try:
                decision = self._router.decide(
                    self.name, UAttributes(type=UMessageType.PUBLISH, source=topic)
                )
            except FOREIGN_ERRORS:  # foreign code, or no topic: dispatch reports it
                return ()
            if decision.reason is not None or decision.deferred:
                return ()
            if with_peers:
                self._forwarding_share(topic, decision.targets, self._monotonic_ns())
            return decision.targets

    def _end_grace(self, topics: frozenset[UUri]) -> None:
        for topic in topics:
            self._router.forwarding.end_grace(topic, self._monotonic_ns())
        self.invalidate_topics(topics)

    # --- another router -----------------------------------------------------------------------------------------------

    def invalidate_routes(self) -> None:
        """Drop every cached route: the next message builds it again. Deliveries and the state of filters stay."""
        with self._lock:
            self._clear_routes()

    def update_paused(self, topic: UUri) -> None:
        """Drop every cached route. Pause or resume the deliveries of `topic`, an address or a pattern."""
        with self._lock:
            self._clear_routes()
            for each in self._deliveries:
                if each.topic is not None and topic.matches(each.topic):
                    each.set_paused(self.is_paused(each))

    def is_paused(self, delivery: Delivery) -> bool:
        """Whether the target of a delivery has subscribers, and all have paused its topic. From any thread."""
        if delivery.topic is None:
            return False
        try:
            targets = self._router.subscribed_targets(self.name, delivery.topic)
        except FOREIGN_ERRORS as error:  # foreign code: nothing has resumed it
            self.plugin_errors.record_directory_error(self._directory, error)
            return delivery.paused
        target = delivery.endpoint, delivery.subscriber
        return any(each.paused and (each.endpoint, each.subscriber) == target for each in targets)

    def invalidate_topics(self, topics: frozenset[UUri]) -> None:
        """Drop the cached routes of these topics: the next message builds them again."""
        with self._lock:
            affected = topics & self._deliveries.topics
            if affected:
                self._drop_routes_of(affected)

    def set_dedup_window(self, window: int) -> None:
        """Drop messages whose id is among the last `window` ids; 0: accept all.

        For a network that delivers a message twice. An unchanged `window` keeps the remembered ids.
        """
        with self._lock:
            if window != (self._dedup_window.size if self._dedup_window else 0):
                self._dedup_window = DedupWindow(window) if window else None
                self._clear_routes()

    def locked(self) -> AbstractContextManager[object]:
        """A context manager: no message is dispatched here within its block."""
        return self._lock

    def try_lock(self, timeout_s: float) -> bool:
        """Dispatch no message until `unlock`. False, and no lock, if a call of `dispatch` takes longer than this."""
        return self._lock.acquire(timeout=timeout_s)

    def unlock(self) -> None:
        self._lock.release()

    def set_router(self, router: Router) -> None:
        """Decide by `router`, and rebuild the filters of every target. Called within `locked`."""
        self._router = router
        self._directory = router.version_source
        self._clear_routes()
        self._denials.clear()
        self._deliveries.rebuild_filters(self._monotonic_ns())

    def close(self, reason: UStatus) -> None:
        """From now on, make a dead letter with `reason` of each message that has a target, and of all held messages.

        No effect if a running call of `dispatch` does not end, in a plugin or in a send: it holds the lock, so no other
        call begins.
        """
        if not self.try_lock(_CLOSE_S):
            return
        try:
            self._closed = RoutingDecision((), Verdict.DEAD_LETTERED, reason)
            self._clear_routes()
            self.abandon_held(reason)
        finally:
            self.unlock()

    # --- messages without a target ------------------------------------------------------------------------------------

    def _refuse(self, message: UMessage, status: UStatus) -> None:
        self.refused["invalid"] += 1
        self._dispatcher.respond_error(message, status, self.name)

    def _drop_expired(self, message: UMessage, now_ns: int) -> None:
        text = f"ttl of {message.attributes.ttl} ms had run out on arrival at {self.name!r}"
        days = (self._wall_ms() - message.id.time_ms) // _MS_PER_DAY
        if days > 0:
            text += f"; by its id it was made {days} days ago: is the clock of its sender set?"
        expired = RoutingDecision((), Verdict.EXPIRED, UStatus(UCode.DEADLINE_EXCEEDED, text))
        self._settle_without_target(message, expired, now_ns)

    def _settle_without_target(self, message: UMessage, decision: RoutingDecision, now_ns: int) -> None:
        """Settle a message without a target as one delivery. A deferred message is no delivery."""
        if decision.deferred:
            self.refused["deferred_to_peer"] += 1
            return
        self.ledger.received += 1
        self.ledger.settle(decision.verdict)
        for tap in self.taps:
            try:
                tap(message, None, decision.verdict, decision.reason, 0, now_ns, now_ns, 0, now_ns)
            except FOREIGN_ERRORS as error:  # foreign code, as in Delivery.settle
                self.on_tap_error(tap, error)
        if decision.reason is None or decision.verdict is Verdict.NO_SUBSCRIBER:
            return
        if decision.verdict is Verdict.DENIED:
            self.refused[decision.denied_as] += 1
            self.denied_by_authority.add(decision.denied_as, message.attributes.source.authority_name)
            self._denials.add(message.attributes, decision, self._wall_ms())
        else:
            self._dispatcher.dead_letter(message, decision.reason, self.name, 0, now_ns, now_ns, self.name)
        if not decision.silent:
            self._dispatcher.respond_error(message, decision.reason, self.name)

    # --- verdicts and errors of plugins -------------------------------------------------------------------------------

    def on_filter_stop(
        self, message: UMessage, delivery: Delivery, verdict: Verdict, reason: UStatus
    ) -> None:
        """A filter failed or denied a message, or it expired there: make a dead letter, unless denied, and an error
        Response.
        """
        if verdict is Verdict.DEAD_LETTERED or verdict is Verdict.EXPIRED:
            now_ns = self._monotonic_ns()
            self._dispatcher.dead_letter(message, reason, delivery.endpoint, 0, now_ns, now_ns, self.name)
        self._dispatcher.respond_error(message, reason, self.name)

    def on_filter_error(self, plugin: object, error: BaseException) -> None:
        self.plugin_errors.record_filter_error(plugin, error)

    def on_tap_error(self, tap: Tap, error: BaseException) -> None:
        if self.plugin_errors.record_tap_error(tap, error):
            self._drop_tap(tap)

    def _drop_tap(self, tap: Tap) -> None:
        with self._taps_lock:
            self.taps = tuple(each for each in self.taps if each is not tap)
        self.plugin_errors.forget_tap(tap)

    def add_tap(self, tap: Tap) -> None:
        """Call `tap` with every verdict from now on."""
        with self._lock, self._taps_lock:
            self.taps = (*self.taps, tap)

    def remove_tap(self, tap: Tap) -> None:
        """Remove `tap`. A call of it on another thread may still be in progress."""
        with self._lock:
            self._drop_tap(tap)
            if not self.taps:
                for each in self._deliveries:
                    each.clear_arrivals()

    # --- messages that a filter holds ---------------------------------------------------------------------------------

    def wake_at(self, when_ns: int, delivery: Delivery, holder: Filter) -> None:
        """Make `holder` release its message at `when_ns`."""
        self._dispatcher.schedule(when_ns, lambda: self._release_held(delivery, holder))

    def _release_held(self, delivery: Delivery, holder: Filter) -> None:
        with self._lock:
            now_ns = self._monotonic_ns()
            try:
                subscribed = delivery.topic is None or self._is_still_subscribed(
                    delivery, delivery.topic, now_ns
                )
            except FOREIGN_ERRORS as error:  # foreign code; there was a subscription when it came in
                self.plugin_errors.record_directory_error(self._directory, error)
                subscribed = True
            delivery.release_held(holder, now_ns, subscribed=subscribed)

    def _is_still_subscribed(self, delivery: Delivery, topic: UUri, now_ns: int) -> bool:
        """Whether the target of a held message still has a subscription."""
        targets = self._forwarding_share(
            topic, self._router.subscribed_targets(self.name, topic), now_ns
        ).targets
        if topic in self._deliveries.topics:
            # A target that came back has a new delivery.
            return delivery in self._deliveries.for_topic(topic, targets, now_ns)
        # The topic was evicted at the limit, which is no reason to lose a message.
        return any(
            (each.endpoint, each.subscriber) == (delivery.endpoint, delivery.subscriber) for each in targets
        )

    def abandon_held(self, reason: UStatus) -> list[UMessage]:
        """Make dead letters of all held messages, with error responses; returns those messages."""
        with self._lock:
            return [
                each
                for delivery in self._deliveries.with_held_messages()
                for each in delivery.abandon_held(self._monotonic_ns(), reason)
            ]

    # --- reading ------------------------------------------------------------------------------------------------------

    def target_statistics(self, topic: UUri | None = None) -> list[TargetStatistics]:
        """A snapshot of the targets of all topics, or of one."""
        with self._lock:
            return self._deliveries.statistics(topic)

    def observed_routes(self, address: UUri) -> list[ObservedRoute]:
        """What was decided for the latest messages from `address` or to it, as long as the decisions are cached."""
        with self._lock:  # 1 ms for 16 384 routes
            cached = [*self._routes.items(), *self._routes_after_dedup.items()]
        found = []
        for key, route in cached:
            source, sink, ttl = (
                (key.source, key.sink, key.ttl) if isinstance(key, UAttributes) else (*key, None)
            )
            if address in (source, sink):
                is_current = route.version != _UNSEEN
                found.append(
                    ObservedRoute(self.name, source, sink, route.decision, ttl, route.first_ms, is_current)
                )
        return found

    def mark_routes_unseen(self, sink: UUri) -> None:
        """Until their next message, the routes to `sink` are not current in `observed_routes`."""
        with self._lock:
            for routes in (self._routes, self._routes_after_dedup):
                for key, route in list(routes.items()):
                    if isinstance(key, UAttributes) and key.sink == sink:
                        routes[key] = msgspec.structs.replace(route, version=_UNSEEN)

    @property
    def forgets_routes(self) -> bool:
        """Whether `observed_routes` may miss messages, as the cache is full. From any thread."""
        return self._routes.is_full or self._routes_after_dedup.is_full

    def recent_denials(self, address: UUri) -> list[RecentDenial]:
        """The messages from `address` or to it that were denied lately by the present rules, the latest last."""
        with self._lock:
            return self._denials.about(address)

    def busiest_targets(self, number: int) -> list[TargetStatistics]:
        """The targets with the most received messages. From any thread, without the lock."""
        return self._deliveries.busiest(number)


class LocalIngress(Ingress):
    """The ingress of the streamer itself: hosted services, error Responses, dead letters."""

    def __init__(self, dispatcher: DispatcherPort, taps: tuple[Tap, ...] = ()) -> None:
        super().__init__(SELF, dispatcher, taps)
        self._ids = UuidSource(self._wall_ms)
        self._topic = dead_letter_topic(dispatcher.authority)
        self._response_deliveries: dict[str, Delivery] = {}

    def on_backlog(self, egress: BackloggedEgress) -> None:
        """Ignored: timers and send threads dispatch here, and they must not wait for a queue."""

    def respond_error(self, request: UMessage, status: UStatus, endpoint: str) -> None:
        """Send an error Response to `endpoint`, at which the request came in. Its source does not matter."""
        with self._lock:
            delivery = self._response_deliveries.get(endpoint)
            if delivery is None:
                delivery = self._response_deliveries[endpoint] = Delivery(
                    self, self._dispatcher.egress[endpoint]
                )
            self.ledger.received += 1
            delivery.offer(error_response(self._ids.next(), request, status), self._monotonic_ns())

    def publish_dead_letter(self, letter: DeadLetter) -> None:
        """Publish a dead letter to the subscribers of the dead-letter topic."""
        with self._lock:
            self.dispatch(letter.to_message(self._ids.next(), self._topic))
