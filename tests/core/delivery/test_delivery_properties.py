# SPDX-License-Identifier: Apache-2.0
"""The delivery guarantees in random scenarios: the real core, the real endpoint queues, the real throttle.

Random networks, subscriptions with and without a rate, messages of every type, links and routes that fail, slow
links, clock steps. Endpoint queues run here without threads until they would wait, so a scenario can be repeated and
the ledger law is exact after every step.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import ClassVar, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from ustreamer_throttle.plugin import ThrottleConfig, ThrottlePlugin

from tests.core.conftest import Directory
from ustreamer.core.base.clock import Clock
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.egress.limits import OVERHEAD_BYTES, EgressLimits
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.hooks import PluginContext
from ustreamer.host.egress.endpoint_queue import EndpointQueue
from ustreamer.transport_port import EndpointTransport, RouteUnavailable
from ustreamer.uprotocol.pb import ustreamer_v1 as pb
from ustreamer.uprotocol.uattributes import UMessageType, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.utransport import Listener
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

NAMES = ("north", "south", "west")  # endpoints; behind each lives the authority of the same name
DEAD_LETTERS = dead_letter_topic("hpc")
OWN = 5  # messages of one subscriber that may wait
LIMITS = EgressLimits(
    queue_messages=12, subscriber_messages=OWN, retry_first_ms=5, retry_max_ms=20, max_age_ms=300
)
NS_PER_MS = 1_000_000
SLOW_MS = 7  # a put that waits


# --------------------------------------------------------------------------------------------------------- the fakes


class SteppingClock:
    """A manual clock; `step_ms` moves the wall clock only."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ahead_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ahead_ms + self.now_ns // NS_PER_MS

    def clock(self) -> Clock:
        return Clock(lambda: self.now_ns, self.wall_ms)


class Sent(NamedTuple):
    """A message that a transport accepted: its subscriber (None: the named recipient), and when the send began."""

    message: UMessage
    subscriber: UUri | None
    began_ns: int
    wall_ms: int


class Wire(EndpointTransport):
    """Accepts messages, or raises its `fault`; a closed route always fails."""

    def __init__(self, time: SteppingClock) -> None:
        self.fault: UCode | None = None
        self.slow = False
        self.closed: set[Hashable] = set()
        self.away: set[UUri | None] = set()  # disconnected subscribers
        self.sent: list[Sent] = []
        self._time = time

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        def transmit(message: UMessage, /) -> None:
            taken = Sent(message, subscriber, self._time.now_ns, self._time.wall_ms())
            if self.slow:
                self._time.now_ns += SLOW_MS * NS_PER_MS
            if self.fault is not None:
                raise UStatusError(self.fault, "fault of the test")
            if subscriber in self.away:
                raise UStatusError(UCode.UNAVAILABLE, "takes nothing at present")
            if message.attributes.source in self.closed:
                raise RouteUnavailable(message.attributes.source, "no receiver")
            self.sent.append(taken)

        return transmit

    def send(self, message: UMessage) -> None:
        self.transmitter(None)(message)

    def register_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def unregister_listener(
        self, source_filter: UUri, sink_filter: UUri | None, listener: Listener
    ) -> None: ...

    def open(self) -> None: ...

    def stop_receiving(self) -> None: ...

    def close(self) -> None: ...

    def statistics(self) -> dict[str, int]:
        return {}


class Sessions(Wire):
    unicast: ClassVar[bool] = True


class Multicast(Wire):
    inline: ClassVar[bool] = True


class Datagrams(Wire):
    unicast: ClassVar[bool] = True
    inline: ClassVar[bool] = True


class Stream(Wire):
    """Accepts a few small messages per `send_window` without waiting."""

    def send_window(self) -> int:
        return 3 * OVERHEAD_BYTES


KINDS: tuple[type[Wire], ...] = (Wire, Sessions, Multicast, Datagrams, Stream)


class WouldWait(BaseException):
    """No Exception subclass: an endpoint queue handles exceptions of a transport."""


class NoWaiting(threading.Condition):
    """The condition of an endpoint queue; a wait ends the run of the queue."""

    def wait(self, timeout: float | None = None) -> bool:
        raise WouldWait


class Outcome(NamedTuple):
    """One call of a tap."""

    message: UMessage
    delivery: Delivery | None
    verdict: Verdict


class Gateway:
    """A dispatcher with its endpoint queues and throttle, driven by the test."""

    def __init__(self, kinds: Iterable[type[Wire]], mode: str, everyone: str | None) -> None:
        self.time = SteppingClock()
        self.timers = Timers()
        self.directory = Directory()
        self.outcomes: list[Outcome] = []
        clock = self.time.clock()
        self.wires: dict[str, Wire] = {name: kind(self.time) for name, kind in zip(NAMES, kinds, strict=True)}
        self.wires[SELF] = Wire(self.time)
        living = {name: name for name in NAMES} | {"hpc": "north"} | ({"*": everyone} if everyone else {})
        self.places = AuthorityTable(living, [UUri("hpc", 4, 1), UUri("hpc", 0, 3)])
        throttle = ThrottlePlugin(
            ThrottleConfig(mode="latest" if mode == "latest" else "drop"),
            PluginContext("hpc", ("hpc",), Path("state"), clock, self.timers.schedule),
        )

        def filters(delivery: Delivery) -> list[Filter]:
            limit = throttle.ustreamer_filters(delivery)
            return [] if limit is None else [limit]

        self.queues: dict[str, EndpointQueue] = {}
        unicast = {name: wire.unicast for name, wire in self.wires.items()}
        self.dispatcher = Dispatcher(
            "hpc",
            clock,
            Router(self.places, self.directory, unicast),
            self.queues,
            filters=filters,
            taps=lambda _: (self._tap,),
            schedule=self.timers.schedule,
        )
        for name, wire in self.wires.items():
            queue = EndpointQueue(name, wire, LIMITS, clock, self.dispatcher.on_undelivered, rng=lambda: 0.5)
            queue._changed = NoWaiting(queue._lock)
            self.queues[name] = queue

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
        self.outcomes.append(Outcome(message, delivery, verdict))

    def run(self, name: str) -> None:
        """Run an endpoint queue until it would wait."""
        try:
            self.queues[name]._run()
        except WouldWait:
            return
        raise AssertionError(f"the queue {name!r} is closed")

    def advance(self, ms: int) -> None:
        """Advance the time and run everything that becomes due."""
        self.time.now_ns += ms * NS_PER_MS
        for action in self.timers.pop_due(self.time.now_ns):
            action()

    def ledger(self) -> LedgerSnapshot:
        queues = self.queues.values()
        return self.dispatcher.ledger_snapshot(
            [queue.ledger for queue in queues], sum(queue.queued for queue in queues)
        )

    def run_until_idle(self) -> None:
        """Mend everything, and wait until nothing is queued."""
        for name, wire in self.wires.items():
            wire.fault, wire.slow, wire.away = None, False, set()
            routes, wire.closed = wire.closed, set()
            for route in routes:
                self.queues[name].on_route_open(route)
        for _ in range(60):  # above max_age_ms, and every ttl
            self.advance(10)
            for name in self.queues:
                self.run(name)
        assert self.ledger().queued == 0


# -------------------------------------------------------------------------------------------------- scenarios

# Few of each, so that stories are about the same streams again and again.
FAR = ("south", "south", "west")
endpoints = st.sampled_from([*FAR, *FAR, "north", SELF])
topics = st.builds(
    UUri, st.sampled_from(["north", "north", "hpc", "west"]), st.just(1), st.just(1), st.just(0x8000)
)
subscribers = st.builds(
    UUri, st.sampled_from([*FAR, *FAR, "north"]), st.sampled_from([1, 2]), st.just(3), st.just(0)
)
callers = st.builds(UUri, st.sampled_from(["north", "west"]), st.just(1), st.just(3), st.just(0))
sinks = st.sampled_from(
    [
        *[UUri(name, 1, 3) for name in (*FAR, *FAR, "north")],
        UUri("hpc", 4, 1),  # hosted here
        UUri("mars", 1, 1),  # at no endpoint, or at the endpoint with the wildcard
    ]
)
periods_ms = st.sampled_from([0, 0, 10, 25])
priorities = st.sampled_from([UPriority.CS4] * 8 + [*UPriority])
ttls = st.sampled_from([None, None, None, 20, 60])
ages_ms = st.sampled_from([0, 0, 0, 0, 15, 70])


class Sketch(NamedTuple):
    """Received messages: `copies` of one message, each with its own id."""

    kind: UMessageType
    topic: UUri
    caller: UUri
    sink: UUri
    priority: UPriority
    ttl: int | None
    age_ms: int
    copies: int


sketches = st.builds(
    Sketch,
    st.sampled_from([UMessageType.PUBLISH, UMessageType.NOTIFICATION, UMessageType.REQUEST]),
    topics,
    callers,
    sinks,
    priorities,
    ttls,
    ages_ms,
    st.integers(1, 4),
)
bursts = st.lists(sketches, min_size=1, max_size=5)


class Delivering(RuleBasedStateMachine):
    @initialize(
        kinds=st.lists(st.sampled_from(KINDS), min_size=3, max_size=3),
        mode=st.sampled_from(["drop", "latest"]),
        everyone=st.sampled_from([None, *NAMES]),
        subscriptions=st.lists(
            st.tuples(topics | st.just(DEAD_LETTERS), subscribers, periods_ms), max_size=6
        ),
    )
    def build(
        self,
        kinds: list[type[Wire]],
        mode: str,
        everyone: str | None,
        subscriptions: list[tuple[UUri, UUri, int]],
    ) -> None:
        self.gateway = Gateway(kinds, mode, everyone)
        for topic, subscriber, period_ms in subscriptions:
            self.gateway.directory.subscribe(topic, subscriber, period_ms * NS_PER_MS)
        self.count = 0
        self.made_ns: dict[UUID, int] = {}
        self.arrived: dict[UUID, int] = {}
        self.asked: list[UMessage] = []
        self.batches: dict[str, list[UMessage]] | None = None

    # --- input ----------------------------------------------------------------------------------------------

    def _id(self, age_ms: int) -> UUID:
        self.count += 1
        time = self.gateway.time
        id = UUID((time.wall_ms() - age_ms) << 16 | 0x7000, 1 << 63 | self.count)
        self.made_ns[id] = time.now_ns - age_ms * NS_PER_MS
        self.arrived[id] = self.count
        return id

    def _receive(self, message: UMessage) -> None:
        home = self.gateway.places.endpoint_of(message.attributes.source)
        assert home is not None
        if self.batches is None:
            self.gateway.dispatcher.ingress(home).dispatch(message)
        else:
            self.batches[home].append(message)

    @rule(topic=topics | st.just(DEAD_LETTERS), subscriber=subscribers, period_ms=periods_ms)
    def subscribe(self, topic: UUri, subscriber: UUri, period_ms: int) -> None:
        self.gateway.directory.subscribe(topic, subscriber, period_ms * NS_PER_MS)

    @rule(topic=topics, subscriber=subscribers)
    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        self.gateway.directory.unsubscribe(topic, subscriber)

    @rule(burst=bursts, together=st.booleans())
    def receive(self, burst: list[Sketch], together: bool = True) -> None:
        """Dispatch message by message, or all messages of an endpoint as one batch."""
        self.batches = defaultdict(list) if together else None
        for sketch in burst:
            for _ in range(sketch.copies):
                self._receive_one(sketch)
        for home, messages in (self.batches or {}).items():
            self.gateway.dispatcher.ingress(home).on_batch(messages)
        self.batches = None

    def _receive_one(self, sketch: Sketch) -> None:
        kind, topic, caller, sink, priority, ttl, age_ms, _ = sketch
        match kind:
            case UMessageType.PUBLISH:
                self._receive(publish(self._id(age_ms), topic, priority=priority, ttl=ttl))
            case UMessageType.NOTIFICATION:
                self._receive(notification(self._id(age_ms), topic, sink, priority=priority, ttl=ttl))
            case _:
                self._call(caller, sink.with_resource(1), max(priority, UPriority.CS4), ttl or 60, age_ms)

    def _call(self, caller: UUri, method: UUri, priority: UPriority, ttl: int, age_ms: int) -> None:
        places = self.gateway.places
        if places.endpoint_of(caller) == places.endpoint_of(method):
            return  # a matter of that network alone
        asked = request(self._id(age_ms), caller, method, ttl=ttl, priority=priority)
        self.asked.append(asked)
        self._receive(asked)

    # --- outcomes -------------------------------------------------------------------------------------------

    @rule(
        endpoint=endpoints,
        fault=st.sampled_from([None, None, UCode.UNAVAILABLE, UCode.UNAVAILABLE, UCode.INTERNAL]),
    )
    def change_the_link(self, endpoint: str, fault: UCode | None) -> None:
        self.gateway.wires[endpoint].fault = fault

    @rule(
        endpoint=endpoints,
        route=st.none() | topics | callers,
        before=bursts,
        while_away=bursts,
        back=bursts,
        notified=st.booleans(),
    )
    def disconnect_and_return(
        self,
        endpoint: str,
        route: UUri | None,
        before: list[Sketch],
        while_away: list[Sketch],
        back: list[Sketch],
        notified: bool,
    ) -> None:
        """The link, or one route of it."""
        self.receive(before)
        if route is None:
            self.change_the_link(endpoint, UCode.UNAVAILABLE)
        else:
            self.close_a_route(endpoint, route)
        self.run(endpoint)
        self.receive(while_away)
        self.run(endpoint)
        if route is not None:
            self.open_all_routes(endpoint, notified)
        elif notified:
            self.link_up(endpoint)
        else:
            self.change_the_link(endpoint, None)
        self.receive(back)
        self.run(endpoint)

    @rule(endpoint=endpoints)
    def link_up(self, endpoint: str) -> None:
        self.gateway.wires[endpoint].fault = None
        self.gateway.queues[endpoint].on_link_up()

    @rule(endpoint=endpoints, slow=st.booleans())
    def change_the_speed(self, endpoint: str, slow: bool) -> None:
        self.gateway.wires[endpoint].slow = slow

    @rule(endpoint=endpoints, route=topics | callers)
    def close_a_route(self, endpoint: str, route: UUri) -> None:
        self.gateway.wires[endpoint].closed.add(route)

    @rule(endpoint=endpoints, notified=st.booleans())
    def open_all_routes(self, endpoint: str, notified: bool) -> None:
        wire = self.gateway.wires[endpoint]
        routes, wire.closed = wire.closed, set()
        for route in routes if notified else ():
            self.gateway.queues[endpoint].on_route_open(route)

    @rule(endpoint=endpoints, subscriber=subscribers)
    def disconnect(self, endpoint: str, subscriber: UUri) -> None:
        self.gateway.wires[endpoint].away.add(subscriber)

    @rule(
        endpoint=st.sampled_from(["south", "west"]),
        removed=st.sampled_from([1, 2]),
        copies=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        priority=priorities,
    )
    def publish_while_one_of_two_is_away(
        self, endpoint: str, removed: int, copies: list[int], priority: UPriority
    ) -> None:
        topic = UUri("north", 1, 1, 0x8000)
        for entity in (1, 2):
            self.gateway.directory.subscribe(topic, UUri(endpoint, entity, 3, 0))
        self.disconnect(endpoint, UUri(endpoint, removed, 3, 0))
        no_receiver = UUri("mars", 1, 1)
        for each in copies:
            self.receive(
                [Sketch(UMessageType.PUBLISH, topic, no_receiver, no_receiver, priority, None, 0, each)]
            )
            self.run(endpoint)

    @rule(endpoint=endpoints)
    def return_all(self, endpoint: str) -> None:
        self.gateway.wires[endpoint].away.clear()

    @rule(endpoint=endpoints)
    def run(self, endpoint: str) -> None:
        """A queue without refused sends becomes empty, whatever other subscribers refuse."""
        self.gateway.run(endpoint)
        queue, wire = self.gateway.queues[endpoint], self.gateway.wires[endpoint]
        for sender in (*queue._queue.subscriber_queues(), queue._queue.shared_queue):
            waits_for_its_time = sender.paused_until_ns > self.gateway.time.now_ns
            assert waits_for_its_time or not sender.waiting.messages, (
                sender.subscriber,
                sender.paused_until_ns,
            )
            if (
                wire.fault is None
                and wire.away
                and sender.subscriber not in wire.away
                and not sender.failures
            ):
                assert not sender.waiting.messages

    @rule()
    def run_all(self) -> None:
        for name in self.gateway.queues:
            self.gateway.run(name)

    @rule(ms=st.sampled_from([1, 5, 10, 40, 120]))
    def wait(self, ms: int) -> None:
        self.gateway.advance(ms)

    @rule(step_ms=st.sampled_from([-86_400_000, -3_600_000, -30, 30, 3_600_000, 800_000_000_000]))
    def clock_step(self, step_ms: int) -> None:
        self.gateway.time.ahead_ms += step_ms

    @rule()
    def run_until_idle(self) -> None:
        self.gateway.run_until_idle()
        self._check_everything()

    # --- guarantees -----------------------------------------------------------------------------------------

    @invariant()
    def the_ledger_balances(self) -> None:
        ledger = self.gateway.ledger()
        assert ledger.unaccounted == 0, ledger
        assert ledger.received == len(self.gateway.outcomes) + ledger.queued, ledger

    @invariant()
    def no_queue_exceeds_its_bounds(self) -> None:
        """Counted message by message over each endpoint queue; messages in flight may exceed the bounds."""
        for queue in self.gateway.queues.values():
            of_each: Counter[UUri | None] = Counter()
            for sender in (*queue._queue.subscriber_queues(), queue._queue.shared_queue):
                waiting = [item for each in sender.waiting._classes for item in each]
                streams = [stream for each in sender.blocked._streams for stream in each.values()]
                waiting += [item for stream in streams for item in stream.items]
                assert {item.delivery.subscriber for item in waiting} <= {sender.subscriber}
                of_each[sender.subscriber] += len(waiting)
                assert (sender.subscriber is None) or len(waiting) == sender.messages <= OWN
            assert of_each.total() == queue.queued <= LIMITS.queue_messages

    def _check_ttls(self) -> None:
        """By wall time and by elapsed time: after a clock step the two differ, and either may be right."""
        for wire in self.gateway.wires.values():
            for sent in wire.sent:
                ttl = sent.message.attributes.ttl
                if ttl and sent.message.id in self.made_ns:
                    really_ms = (sent.began_ns - self.made_ns[sent.message.id]) / NS_PER_MS
                    by_wall_ms = sent.wall_ms - sent.message.id.time_ms
                    assert min(really_ms, by_wall_ms) <= ttl, (sent, really_ms, by_wall_ms)

    def _check_order(self) -> None:
        for name, wire in self.gateway.wires.items():
            streams: dict[Hashable, list[int]] = defaultdict(list)
            for sent in wire.sent:
                attributes = sent.message.attributes
                if sent.message.id in self.arrived:
                    stream: Hashable = (
                        attributes.source,
                        attributes.sink,
                        attributes.priority,
                        sent.subscriber,
                    )
                    streams[stream].append(self.arrived[sent.message.id])
            for each, numbers in streams.items():
                assert numbers == sorted(set(numbers)), (name, numbers, each)

    def teardown(self) -> None:
        if hasattr(self, "gateway"):
            self.gateway.run_until_idle()
            self._check_everything()

    def _check_everything(self) -> None:
        """Once everything has ended."""
        outcomes = self.gateway.outcomes
        ended = Counter((outcome.message.id, id(outcome.delivery)) for outcome in outcomes)
        assert set(ended.values()) <= {1}
        self._check_requests(outcomes)
        # The sent messages only grow, so these two rules are checked at the end and not after each step.
        self._check_ttls()
        self._check_order()
        self._check_letters(outcomes)

    def _check_requests(self, outcomes: list[Outcome]) -> None:
        """Each was delivered, or got one error Response; never both, never neither."""
        delivered = Counter(each.message.id for each in outcomes if each.verdict is Verdict.DELIVERED)
        refused = Counter(
            each.message.attributes.reqid
            for each in outcomes
            if each.message.attributes.type is UMessageType.RESPONSE
        )
        for asked in self.asked:
            assert delivered[asked.id] + refused[asked.id] == 1, (
                delivered[asked.id],
                refused[asked.id],
                asked,
            )

    def _check_letters(self, outcomes: list[Outcome]) -> None:
        """One letter per failed or expired delivery; none for a throttled one, none for another letter."""
        letters = {
            each.message.id: each.message
            for each in outcomes
            if each.message.attributes.source == DEAD_LETTERS
        }
        about = Counter(_about(letter) for letter in letters.values())
        failed = Counter(
            each.message.id
            for each in outcomes
            if each.verdict in (Verdict.DEAD_LETTERED, Verdict.EXPIRED) and each.message.id not in letters
        )
        assert about == failed
        throttled = [each for each in outcomes if each.verdict is Verdict.THROTTLED]
        assert all(each.message.attributes.type is UMessageType.PUBLISH for each in throttled)


def _about(letter: UMessage) -> UUID:
    id = pb.DeadLetter.FromString(letter.payload).attributes.id
    return UUID(id.msb, id.lsb)


def test_the_ledger_balances_order_holds_and_no_expired_message_is_delivered() -> None:
    run_state_machine_as_test(
        Delivering, settings=settings(max_examples=90, stateful_step_count=30, deadline=None)
    )


def test_a_batch_message_that_expires_during_earlier_sends_is_not_sent() -> None:
    gateway = Gateway((Wire, Datagrams, Wire), "drop", None)
    topic, wire = UUri("north", 1, 1, 0x8000), gateway.wires["south"]
    gateway.directory.subscribe(topic, UUri("south", 1, 3, 0))
    wire.slow = True
    ids = [UUID(gateway.time.wall_ms() << 16 | 0x7000, 1 << 63 | number) for number in range(6)]
    messages = [publish(ids[0], topic), *(publish(id, topic, ttl=2 * SLOW_MS + 1) for id in ids[1:])]
    gateway.dispatcher.ingress("north").on_batch(messages)
    assert [sent.message for sent in wire.sent] == messages[:3]
    gateway.run("south")
    ended = [outcome.verdict for outcome in gateway.outcomes if outcome.message.id in ids]
    assert ended == [Verdict.DELIVERED] * 3 + [Verdict.EXPIRED] * 3
