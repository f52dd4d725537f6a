# SPDX-License-Identifier: Apache-2.0
"""The dispatcher: all ingresses, what they share, dead letters, error responses and the ledger.

Messages come in at `ustreamer.core.dispatch.ingress`; dead letters and error responses go out here.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from ustreamer.core.base.clock import Clock
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.expiry import Expiry
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, snapshot
from ustreamer.core.delivery.ports import Egress, Tap
from ustreamer.core.dispatch.delivery_registry import TargetStatistics
from ustreamer.core.dispatch.dispatcher_port import FilterFactory, Schedule
from ustreamer.core.dispatch.ingress import Ingress, LocalIngress, ThrottledValue
from ustreamer.core.egress.dead_letter import (
    DeadLetter,
    DeadLetterBuffer,
    DeadLetterRate,
    dead_letter_topic,
)
from ustreamer.core.egress.limits import QueuedMessage
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import SELF, Router, RoutingDecision
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

LOOP_WINDOW = 10_000
"""The dedup window of an endpoint in a loop: the ids of one second at 10 000 messages/s, 2 MB."""
_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
_BULK_CODES = frozenset([UCode.RESOURCE_EXHAUSTED, UCode.DEADLINE_EXCEEDED])
"""The codes of dead letters that can come in bulk: full queues and expired messages."""
_LOCK_S = 0.02  # a batch of 128 messages takes 1 to 3 ms
_MAX_BUSY_S = 6.0  # a put of Zenoh may block for 5 s
_DEAD_LETTER_BATCH = 100  # letters per timer call: 3 ms, by which other timers (a throttle's) can be late


class Dispatcher:
    """The routing core of a streamer: its ingresses, what they share, and the ledger."""

    def __init__(
        self,
        authority: str,
        clock: Clock,
        router: Router,
        egress: Mapping[str, Egress],
        *,
        filters: FilterFactory = lambda _: (),
        taps: Callable[[str], Iterable[Tap]] = lambda _: (),
        schedule: Schedule,
        on_dead_letter: Callable[[DeadLetter], None] = lambda _: None,
        on_denied: Callable[[str, UAttributes, RoutingDecision], None] = lambda *_: None,
        dedup_windows: Mapping[str, int] | None = None,
    ) -> None:
        """`egress` has one queue per endpoint name, SELF included; it may be filled after construction.

        `on_dead_letter` receives every dead letter, on the path and under locks: it must return at once and take no
        lock of an ingress. `on_denied` is called when a route is built that denies, with the name of its ingress, and
        must return at once. `dedup_windows` has the number of remembered ids by endpoint; 0: no dedup.
        """
        self.authority = authority
        self.clock = clock
        self.expiry = Expiry(clock)
        self.router = router
        self.egress = egress
        self.filters = filters
        self.schedule = schedule
        self.dead_letters = DeadLetterBuffer()
        self.dead_letter_rate = DeadLetterRate()
        self._dead_letter_topic = dead_letter_topic(authority)
        self._taps = taps
        self._on_dead_letter = on_dead_letter
        self.on_denied = on_denied
        self._dedup_windows = dict(dedup_windows or {})
        self._loop_endpoints: frozenset[str] = frozenset()
        self._tap_attachers: list[Callable[[Ingress], None]] = []
        self._local = LocalIngress(self, tuple(taps(SELF)))
        self._ingresses: dict[str, Ingress] = {SELF: self._local}

    def ingress(self, name: str) -> Ingress:
        """The ingress of the endpoint `name`, made at the first call."""
        known = self._ingresses.get(name)
        if known is None:
            known = self._ingresses[name] = Ingress(name, self, tuple(self._taps(name)))
            known.set_dedup_window(self._dedup_window_of(name))
            for add in self._tap_attachers:
                add(known)
        return known

    def restored_delivery(
        self, ingress: str, endpoint: str, topic: UUri | None, subscriber: UUri | None
    ) -> Delivery:
        """A delivery for messages that an earlier process accepted and kept. They have passed their filters.

        A message from an endpoint that no longer exists counts as the streamer's own.
        """
        owner = self.ingress(ingress) if ingress in self.egress else self._local
        delivery = Delivery(owner, self.egress[endpoint], topic, subscriber)
        # The directory may not be loaded yet: the first send asks it.
        delivery.set_paused(topic is not None)
        return delivery

    def _dedup_window_of(self, name: str) -> int:
        return self._dedup_windows.get(name, 0) or (LOOP_WINDOW if name in self._loop_endpoints else 0)

    # --- routes -------------------------------------------------------------------------------------------------------

    def invalidate_routes(self) -> None:
        """Build every route again with its next message, because the inputs of the router have changed."""
        for each in self._ingresses.values():
            each.invalidate_routes()

    def invalidate_topics(self, topics: frozenset[UUri]) -> None:
        """As `invalidate_routes`, for these topics only."""
        for each in self._ingresses.values():
            each.invalidate_topics(topics)

    def update_paused(self, topic: UUri) -> None:
        """A subscriber has stopped or started the dispatch of `topic`, an address or a pattern."""
        for each in self._ingresses.values():
            each.update_paused(topic)

    def share_topic(self, topic: UUri, *, with_peers: bool = True) -> tuple[Target, ...]:
        """Agree with peers on `topic` before its next message; see `Ingress.share_topic`.

        Makes no ingress: the timer thread calls this while the start makes them.
        """
        home = self._ingresses.get(self.router.authority_table.endpoint_of(topic) or "")
        return () if home is None else home.share_topic(topic, with_peers=with_peers)

    def send_to_subscriber(
        self,
        endpoint: str,
        read: Callable[[], Iterable[UMessage]],
        subscriber: UUri,
        passed: int | None = None,
    ) -> list[ThrottledValue]:
        """Send publications of `endpoint` to one subscriber; see `Ingress.send_to_subscriber`. Makes no ingress."""
        home = self._ingresses.get(endpoint)
        return [] if home is None else home.send_to_subscriber(read, subscriber, passed)

    def set_loop_endpoints(self, endpoints: frozenset[str]) -> None:
        """Set the endpoints where sent messages may come in again. They have a dedup window of at least LOOP_WINDOW."""
        self._loop_endpoints = endpoints
        for name, each in self._ingresses.items():
            each.set_dedup_window(self._dedup_window_of(name))

    def swap_router(self, router: Router, changes: Callable[[], None] = lambda: None) -> None:
        """Route by `router` from the next message on, and rebuild all filters.

        The swap is one step for all ingresses: no message is dispatched meanwhile, and earlier messages keep their old
        route. `changes` is called in this step, for example to change the filters; it must be quick.
        """
        # The local ingress is first in the dict, and is locked last.
        with ExitStack() as locks:
            for each in reversed(self._ingresses.values()):
                locks.enter_context(each.locked())
            changes()
            self.router = router
            for each in self._ingresses.values():
                each.set_router(router)

    def attach_taps(self, factory: Callable[[str], Tap]) -> Callable[[], None]:
        """Call the taps of `factory`, one per endpoint and SELF, with every verdict from now on.

        The returned function detaches them.
        """
        taps: list[tuple[Ingress, Tap]] = []

        def add(ingress: Ingress) -> None:
            taps.append((ingress, factory(ingress.name)))
            ingress.add_tap(taps[-1][1])

        def end() -> None:
            self._tap_attachers.remove(add)
            for ingress, tap in taps:
                ingress.remove_tap(tap)

        self._tap_attachers.append(add)
        for ingress in list(self._ingresses.values()):
            add(ingress)
        return end

    def watch_clock(self) -> None:
        """Check the clocks for a step now and every second from now on."""
        self.expiry.observe_clock()
        self.schedule(self.clock.monotonic_ns() + _NS_PER_S, self.watch_clock)

    # --- dead letters and error responses -----------------------------------------------------------------------------

    def respond_error(self, message: UMessage, status: UStatus, endpoint: str) -> None:
        """Send an error Response for a request that came in at `endpoint`; nothing for another message (DSP-17).

        The Response goes to that endpoint, whatever the source of the request is.
        """
        if _is_answerable_request(message):
            self._local.respond_error(message, status, endpoint)

    def dead_letter(
        self,
        message: UMessage,
        status: UStatus,
        endpoint: str,
        attempts: int,
        first_ns: int,
        last_ns: int,
        ingress: str,
    ) -> None:
        """Store a dead letter, and schedule its publication. A dead letter never makes another dead letter.

        Letters of full queues and of expired messages can come in bulk. Above the bounds of `DeadLetterRate` they are
        only counted.
        """
        if message.attributes.source == self._dead_letter_topic:
            self.dead_letters.unpublished += 1
            return
        self.dead_letter_rate.count(endpoint, status.code)
        now_ns = self.clock.monotonic_ns()
        if status.code in _BULK_CODES and not self.dead_letter_rate.admit(endpoint, now_ns, ingress):
            return
        wall_ms = self.clock.wall_ms()
        letter = DeadLetter(
            message,
            status,
            endpoint,
            attempts,
            wall_ms - (now_ns - first_ns) // _NS_PER_MS,
            wall_ms - (now_ns - last_ns) // _NS_PER_MS,
            ingress,
        )
        self._on_dead_letter(letter)
        was_empty = self.dead_letters.add_letter(letter)
        if was_empty:
            self.schedule(now_ns, self.publish_dead_letters)

    def on_undelivered(self, item: QueuedMessage, status: UStatus) -> None:
        """An egress queue abandoned a message: make a dead letter, and an error response for a request.

        Called without the lock of the queue. An expired Notification of the streamer's own makes no dead letter.
        """
        first_ns = item.first_attempt_ns or item.received_ns
        last_ns = item.last_attempt_ns or item.received_ns
        ingress = item.delivery.ingress
        if ingress == SELF and _is_expired_notification(item.message, status):
            return
        self.dead_letter(
            item.message, status, item.delivery.endpoint, item.attempts, first_ns, last_ns, ingress
        )
        self.respond_error(item.message, status, ingress)

    def abandon_held(self, reason: UStatus) -> list[UMessage]:
        """Make dead letters of all held messages, with error responses; returns those messages."""
        return [each for ingress in self._ingresses.values() for each in ingress.abandon_held(reason)]

    def close(self, reason: UStatus) -> None:
        """Close all ingresses. Without it a message that comes in from now on would wait forever."""
        for each in self._ingresses.values():
            each.close(reason)

    def publish_dead_letters(self) -> None:
        """Publish the buffered dead letters. Called from a timer, because a full queue may have made the letters."""
        letters = self.dead_letters.pop_letters(_DEAD_LETTER_BATCH)
        if self.dead_letters:  # before the first is published, in case that raises
            self.schedule(self.clock.monotonic_ns(), self.publish_dead_letters)
        for letter in letters:
            self._local.publish_dead_letter(letter)

    # --- the ledger ---------------------------------------------------------------------------------------------------

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """A context manager: within its block no ingress dispatches, so every received message has its outcome.

        Not for filters and taps, which run within a dispatch. An ingress that is busy for longer than `_LOCK_S`, in a
        plugin or in a send, is waited for alone: a slow endpoint delays no other. After `_MAX_BUSY_S` in all the block
        runs all the same, so that a stop ends; the messages in progress have no outcome then.
        """
        end_ns = self.clock.monotonic_ns() + round(_MAX_BUSY_S * 1e9)
        while True:
            with ExitStack() as locks:
                busy = self._lock_all(locks)
                if busy is None:
                    yield
                    return
            left_s = (end_ns - self.clock.monotonic_ns()) / 1e9
            if left_s <= 0 or not busy.try_lock(left_s):
                yield
                return
            busy.unlock()

    def _lock_all(self, locks: ExitStack) -> Ingress | None:
        """Lock all ingresses until the end of `locks`; returns the first one that is busy, if there is one."""
        # The local ingress is first in the dict, and is locked last.
        for each in reversed(tuple(self._ingresses.values())):
            if not each.try_lock(_LOCK_S):
                return each
            locks.callback(each.unlock)
        return None

    def ledger_snapshot(self, egress_ledgers: Iterable[Ledger], queued: int) -> LedgerSnapshot:
        """The ledger; `egress_ledgers` and `queued` come from the queues of the host.

        It is that of one moment within `at_rest`, if each queue was read under its lock there.
        """
        held = sum(ingress.held for ingress in self._ingresses.values())
        return snapshot(
            [*(ingress.ledger for ingress in self._ingresses.values()), *egress_ledgers], queued + held
        )

    def ingresses(self) -> tuple[Ingress, ...]:
        """All ingresses, that of the streamer itself first. From any thread."""
        return tuple(self._ingresses.values())

    def target_statistics(self) -> list[TargetStatistics]:
        """The counts of each target of each topic, of all ingresses."""
        return [target for ingress in self._ingresses.values() for target in ingress.target_statistics()]

    def refused_counts(self) -> dict[str, dict[str, int]]:
        """The messages that each ingress did not accept, by reason."""
        return {name: dict(ingress.refused) for name, ingress in self._ingresses.items()}

    def plugin_errors(self) -> dict[str, dict[str, int]]:
        """The errors of plugins by ingress, with the names of `PluginErrors.counts`."""
        return {name: ingress.plugin_errors.counts() for name, ingress in self._ingresses.items()}


def _is_expired_notification(message: UMessage, status: UStatus) -> bool:
    """Whether it is an expired Notification: hosted services notify many subscribers that may be absent (DSP-4)."""
    attributes = message.attributes
    expired = bool(attributes.ttl) and status.code is UCode.DEADLINE_EXCEEDED
    return expired and attributes.type is UMessageType.NOTIFICATION


def _is_answerable_request(message: UMessage) -> bool:
    """Whether an error Response to `message` has a valid requester and a valid method."""
    attributes = message.attributes
    sink = attributes.sink
    return (
        attributes.type is UMessageType.REQUEST
        and message.id.is_valid
        and attributes.source.resource_id == 0
        and attributes.source.wildcard() is None
        and sink is not None
        and sink.is_method
        and sink.wildcard() is None
    )
