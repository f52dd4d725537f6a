# SPDX-License-Identifier: Apache-2.0
"""The rig of all tests of the core: a dispatcher with queues, a directory, timers and a clock as values.

A `World` asserts the ledger law when its test ends.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Ledger, LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter, SendBatch, SendOne, Tap
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.dispatch.dispatcher_port import FilterFactory
from ustreamer.core.dispatch.ingress import Ingress
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import EgressLimits, QueuedMessage
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.forwarding import PeerForwarding
from ustreamer.core.peers.topic_advertisements import TopicAdvertisements
from ustreamer.core.routing.access import AccessPolicy
from ustreamer.core.routing.forwarding import FORWARD_ALL, ForwardingPolicy
from ustreamer.core.routing.identity import Authorise, IdentityTable
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID, UuidSource
from ustreamer.uprotocol.uuri import UUri

AUTHORITIES = {"hpc": "backbone", "cloud": "backbone", "chassis": "chassis", "dash": "dash"}
UNICAST = {"backbone": False, "chassis": True, "dash": True, SELF: False}
HOSTED = (UUri("hpc", 0, 3, 0), UUri("hpc", 4, 1, 0))  # core.usubscription and core.ustreamer


class Sent(NamedTuple):
    """A sent message and its subscriber (None: the sink of the message)."""

    subscriber: UUri | None
    message: UMessage


class Directory:
    """A subscription directory that changes by calls, and counts its queries."""

    def __init__(self) -> None:
        self.version = 0
        self.queries = 0
        self._subscriptions: dict[tuple[UUri, UUri], Subscription] = {}

    def subscribers(self, topic: UUri) -> list[Subscription]:
        self.queries += 1
        return [
            subscription for subscription in self._subscriptions.values() if subscription.topic.matches(topic)
        ]

    def subscribe(self, topic: UUri, subscriber: UUri, period_ns: int = 0) -> None:
        self._change({**self._subscriptions, (topic, subscriber): Subscription(topic, subscriber, period_ns)})

    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        self._change(
            {
                key: subscription
                for key, subscription in self._subscriptions.items()
                if key != (topic, subscriber)
            }
        )

    def touch(self) -> None:
        """Change the version and nothing else."""
        self._change(self._subscriptions)

    def _change(self, subscriptions: dict[tuple[UUri, UUri], Subscription]) -> None:
        self._subscriptions = subscriptions  # replaced, never changed: other threads may read it
        self.version += 1


class ListEgress:
    """An egress queue that sends into a list when `send` is called. `failure` is raised by every attempt."""

    def __init__(self, name: str, unicast: bool, limits: EgressLimits, world: "World") -> None:
        self.name = name
        self.unicast = unicast
        self.ledger = Ledger()
        self.sent: list[Sent] = []
        self.failure: UStatusError | None = None
        self.listening = True
        self._limits = limits
        self._queue = EgressQueue(limits)
        self._world = world
        self._lock = Lock()

    def has_listener(self, attributes: UAttributes) -> bool:
        return self.listening

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        def transmit(message: UMessage, /) -> None:
            if self.failure is not None:
                raise self.failure
            self.sent.append(Sent(subscriber, message))

        return transmit

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None:
        with self._lock:
            max_age_ns = self._limits.max_age_ms * 1_000_000
            deadline_ns = self._world.dispatcher.expiry.deadline_ns(message, now_ns, max_age_ns)
            displaced = self._queue.push(delivery, message, now_ns, deadline_ns=deadline_ns)
        for item in displaced:
            self._fail(item, Verdict.DEAD_LETTERED, UStatus(UCode.RESOURCE_EXHAUSTED, f"{self.name} is full"))

    def send(self) -> int:
        """Try to send all queued messages in order; returns how many left the queue."""
        done = 0
        while True:
            with self._lock:
                taken = self._queue.pop_batch()
            if not taken or not self._done_with(taken[0]):
                return done
            done += 1

    def _done_with(self, item: QueuedMessage) -> bool:
        """Send or fail one message; False if it is back in the queue for a retry."""
        clock = self._world.clock
        if clock.monotonic_ns() > item.deadline_ns:
            self._fail(item, Verdict.EXPIRED, UStatus(UCode.DEADLINE_EXCEEDED, "too old"))
            return True
        if item.delivery.is_still_paused():
            with self._lock:
                self._queue.requeue([item])
            return False
        item.attempts += 1
        item.first_attempt_ns = item.first_attempt_ns or clock.monotonic_ns()
        item.last_attempt_ns = clock.monotonic_ns()
        try:
            item.delivery.transmit(item.message)
        except UStatusError as error:
            if error.code is UCode.UNAVAILABLE:
                with self._lock:
                    self._queue.requeue([item])
                return False
            self._fail(item, Verdict.DEAD_LETTERED, error.status)
            return True
        self._settle(item, Verdict.DELIVERED, None)
        return True

    def _fail(self, item: QueuedMessage, verdict: Verdict, status: UStatus) -> None:
        self._settle(item, verdict, status)
        self._world.dispatcher.on_undelivered(item, status)  # without the lock: the contract

    def _settle(self, item: QueuedMessage, verdict: Verdict, status: UStatus | None) -> None:
        with self._lock:
            item.delivery.settle(
                self.ledger,
                item.message,
                verdict,
                item.received_ns,
                self._world.clock.monotonic_ns(),
                status,
                attempts=item.attempts,
                first_attempt_ns=item.first_attempt_ns,
            )

    @property
    def messages(self) -> list[UMessage]:
        return [each.message for each in self.sent]

    def __len__(self) -> int:
        """The number of queued messages."""
        return len(self._queue)


class BatchListEgress(ListEgress):
    """A `ListEgress` that accepts batches and records them."""

    def __init__(self, name: str, unicast: bool, limits: EgressLimits, world: "World") -> None:
        super().__init__(name, unicast, limits, world)
        self.batches: list[tuple[Sequence[UMessage], Sequence[int], bool]] = []  # times, has_ttl

    def batch_transmitter(self, subscriber: UUri | None) -> SendBatch:
        def transmit_all(messages: Iterable[UMessage], /) -> int:
            raise AssertionError("this queue sends single messages")

        return transmit_all

    def offer_batch(
        self,
        deliveries: Sequence[Delivery],
        messages: Sequence[UMessage],
        times_ns: Sequence[int],
        *,
        has_ttl: bool,
    ) -> None:
        assert has_ttl or not any(each.attributes.ttl for each in messages)
        self.batches.append((messages, times_ns, has_ttl))
        for delivery, message, at_ns in zip(deliveries, messages, times_ns, strict=True):
            self.offer(delivery, message, at_ns)


class TapCall(NamedTuple):
    """The arguments of a tap, without the times."""

    message: UMessage
    delivery: Delivery | None
    verdict: Verdict
    reason: UStatus | None
    attempts: int


class World:
    """Endpoints `backbone` (a multicast domain: authorities hpc, cloud), `chassis` and `dash` (unicast), and self.

    The streamer's own authority is hpc, and it hosts //hpc/0/3 and //hpc/4/1.
    """

    def __init__(
        self,
        filters: FilterFactory = lambda _: (),
        limits: EgressLimits = EgressLimits(),  # noqa: B008  frozen
        authorities: Mapping[str, str] = AUTHORITIES,
        unicast: Mapping[str, bool] = UNICAST,
        route_limit: int | None = None,
        taps: Iterable[Tap] = (),
        access: Mapping[str, AccessPolicy] | None = None,
        dedup_windows: Mapping[str, int] | None = None,
        peers: PeerRouters | None = None,
        topic_advertisements: TopicAdvertisements | None = None,
        egress_class: type[ListEgress] = ListEgress,
        identities: Mapping[str, IdentityTable] | None = None,
        authorise: Authorise | None = None,
        broadcast_topics: Iterable[UUri] = (),
    ) -> None:
        """`taps` are called before the one that fills `tap_calls`."""
        taps = (*taps, self._tap)
        self.time = ManualClock()
        self.clock = self.time.clock()
        self.directory = Directory()
        self.tap_calls: list[TapCall] = []
        self.times: list[tuple[int, int]] = []
        self.more_times: list[tuple[int, int]] = []
        self.egress = {name: egress_class(name, each, limits, self) for name, each in unicast.items()}
        self._ids = UuidSource(self.clock.wall_ms)
        self._timers = Timers()
        self._lock = Lock()
        authority_table = AuthorityTable(authorities, HOSTED)
        forwarding: ForwardingPolicy = FORWARD_ALL
        if peers is not None:
            advertisements = topic_advertisements or TopicAdvertisements(peers)
            forwarding = PeerForwarding(peers, advertisements, authority_table, unicast)
        router = Router(
            authority_table,
            self.directory,
            unicast,
            access,
            forwarding,
            identities,
            authorise,
            tuple(broadcast_topics),
        )
        self.dispatcher = Dispatcher(
            "hpc",
            self.clock,
            router,
            self.egress,
            filters=filters,
            taps=lambda _: taps,
            schedule=self._schedule,
            dedup_windows=dedup_windows,
        )
        if route_limit is not None:
            for name in authorities.values():
                small = Ingress(name, self.dispatcher, taps, route_limit)
                self.dispatcher._ingresses[name] = small

    def _tap(
        self,
        message: UMessage,
        delivery: Delivery | None,
        verdict: Verdict,
        reason: UStatus | None,
        attempts: int,
        arrived_ns: int,
        received_ns: int,
        first_attempt_ns: int,
        settled_ns: int,
    ) -> None:
        self.tap_calls.append(TapCall(message, delivery, verdict, reason, attempts))
        self.times.append((received_ns, settled_ns))
        self.more_times.append((arrived_ns, first_attempt_ns))

    def _schedule(self, when_ns: int, action: Callable[[], None]) -> None:
        with self._lock:
            self._timers.schedule(when_ns, action)

    def id(self) -> UUID:
        """A new message id with the present time."""
        return self._ids.next()

    def ingress(self, endpoint: str) -> Ingress:
        return self.dispatcher.ingress(endpoint)

    def receive(self, endpoint: str, message: UMessage) -> None:
        """Dispatch `message` at `endpoint`."""
        self.ingress(endpoint).dispatch(message)

    def fire(self) -> int:
        """Call the due timers; returns how many."""
        with self._lock:
            due = self._timers.pop_due(self.time.now_ns)
        for action in due:
            action()
        return len(due)

    def send(self, *endpoints: str) -> int:
        """Send from these queues (default: all); returns how many messages left."""
        return sum(self.egress[name].send() for name in endpoints or self.egress)

    def run(self) -> None:
        """Send and call due timers until nothing is left to do."""
        while self.send() or self.fire():
            pass

    def ledger(self) -> LedgerSnapshot:
        egresses = self.egress.values()
        return self.dispatcher.ledger_snapshot(
            [egress.ledger for egress in egresses], sum(len(egress) for egress in egresses)
        )

    def verdicts(self) -> list[Verdict]:
        """Every verdict so far, in order."""
        return [each.verdict for each in self.tap_calls]

    def check(self) -> None:
        """Assert the ledger law, and that taps saw every verdict of the ledger."""
        ledger_now = self.ledger()
        assert ledger_now.unaccounted == 0, ledger_now
        assert ledger_now.received == len(self.tap_calls) + ledger_now.queued, ledger_now


class HoldingFilter(Filter):
    """Holds the newest message for `wait_ns`."""

    def __init__(self, delivery: Delivery, wait_ns: int) -> None:
        self.delivery = delivery
        self.wait_ns = wait_ns
        self.held: UMessage | None = None
        self._due_ns = 0

    def admit(self, message: UMessage, now_ns: int) -> Verdict:
        if self.held is not None:
            self.delivery.dropped_held(self.held, now_ns)
        else:
            self._due_ns = now_ns + self.wait_ns
            self.delivery.wake_at(self._due_ns, self)
        self.held = message
        return Verdict.QUEUED

    def release_due(self, now_ns: int) -> UMessage | None:
        if now_ns < self._due_ns:
            return None
        held, self.held = self.held, None
        return held


class VerdictFilter(Filter):
    """Returns the given verdicts in turn, then None; records its calls."""

    def __init__(self, verdicts: Iterable[Verdict | None]) -> None:
        self._verdicts = iter(tuple(verdicts))
        self.calls: list[tuple[UMessage, int]] = []

    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        self.calls.append((message, now_ns))
        return next(self._verdicts, None)


@pytest.fixture
def build() -> Iterator[type[World]]:
    """Builds worlds; each asserts the ledger law when the test ends."""
    worlds: list[World] = []

    class Checked(World):
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[arg-type]
            worlds.append(self)

    yield Checked
    for each in worlds:
        each.check()


@pytest.fixture
def world(build: type[World]) -> World:
    """A world without filters, with queues of the default size."""
    return build()


@pytest.fixture(scope="session")
def unchecked() -> type[World]:
    """Builds worlds for a test that asserts the ledger law itself, such as a state machine."""
    return World


@pytest.fixture(scope="session")
def holding() -> type[HoldingFilter]:
    return HoldingFilter


@pytest.fixture(scope="session")
def answering() -> type[VerdictFilter]:
    """The class of filters with given verdicts."""
    return VerdictFilter


@pytest.fixture(scope="session")
def batch_egress() -> type[BatchListEgress]:
    """The class of queues that accept batches."""
    return BatchListEgress
