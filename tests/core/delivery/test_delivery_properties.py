# SPDX-License-Identifier: Apache-2.0
"""What is promised of a delivery, in any story: the real core, the real lanes, the real throttle.

Random networks, subscriptions with and without a rate, messages of every kind, links and routes that fail, slow links, clocks
that leap. The threads of the lanes are taken out: a lane runs here until it would wait, so a story can be told again, and the
ledger law is exact after every step of it.
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
from ustreamer.core.base.deadline_queue import DeadlineQueue
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import LedgerSnapshot, Verdict
from ustreamer.core.delivery.ports import Filter, SendOne
from ustreamer.core.dispatch.dispatcher import Dispatcher
from ustreamer.core.egress.dead_letter import dead_letter_topic
from ustreamer.core.egress.limits import OVERHEAD_BYTES, EgressLimits
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.hooks import EndpointTransport, PluginContext, RouteUnavailable
from ustreamer.host.egress.endpoint_queue import EndpointQueue
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
    """Moves when told to; `leap_ms` moves the wall clock only."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.ahead_ms = 1_700_000_000_000

    def wall_ms(self) -> int:
        return self.ahead_ms + self.now_ns // NS_PER_MS

    def clock(self) -> Clock:
        return Clock(lambda: self.now_ns, self.wall_ms)


class Sent(NamedTuple):
    """A message that a transport has taken: for which subscriber (None: whoever it names), and when that began."""

    message: UMessage
    subscriber: UUri | None
    began_ns: int
    wall_ms: int


class Wire(EndpointTransport):
    """Takes messages, or fails as its `fault` says; a route that is closed fails whatever that is."""

    def __init__(self, time: SteppingClock) -> None:
        self.fault: UCode | None = None
        self.slow = False
        self.closed: set[Hashable] = set()
        self.away: set[UUri | None] = set()  # subscribers that take nothing
        self.sent: list[Sent] = []
        self._time = time

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        def transmit(message: UMessage, /) -> None:
            taken = Sent(message, subscriber, self._time.now_ns, self._time.wall_ms())
            if self.slow:
                self._time.now_ns += SLOW_MS * NS_PER_MS
            if self.fault is not None:
                raise UStatusError(self.fault, "as the story has it")
            if subscriber in self.away:
                raise UStatusError(UCode.UNAVAILABLE, "takes nothing at present")
            if message.attributes.source in self.closed:
                raise RouteUnavailable(message.attributes.source, "nobody there")
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
    """Takes a few small messages without waiting, each time that it is asked."""

    def send_window(self) -> int:
        return 3 * OVERHEAD_BYTES


KINDS: tuple[type[Wire], ...] = (Wire, Sessions, Multicast, Datagrams, Stream)


class WouldWait(BaseException):
    """No Exception: a lane answers those of a transport."""


class NoWaiting(threading.Condition):
    """What a lane waits on, and would then give way to others."""

    def wait(self, timeout: float | None = None) -> bool:
        raise WouldWait


class Outcome(NamedTuple):
    """What a tap was told."""

    message: UMessage
    delivery: Delivery | None
    verdict: Verdict


class Gateway:
    """A dispatcher, its lanes and its throttle, in the hands of whoever tells the story."""

    def __init__(self, kinds: Iterable[type[Wire]], mode: str, everyone: str | None) -> None:
        self.time = SteppingClock()
        self.timers = DeadlineQueue()
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

        self.lanes: dict[str, EndpointQueue] = {}
        unicast = {name: wire.unicast for name, wire in self.wires.items()}
        self.dispatcher = Dispatcher(
            "hpc",
            clock,
            Router(self.places, self.directory, unicast),
            self.lanes,
            filters=filters,
            taps=lambda _: (self._tap,),
            schedule=self.timers.schedule,
        )
        for name, wire in self.wires.items():
            lane = EndpointQueue(name, wire, LIMITS, clock, self.dispatcher.on_undelivered, rng=lambda: 0.5)
            lane._changed = NoWaiting(lane._lock)
            self.lanes[name] = lane

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
        """Let the thread of a lane go on until it would wait."""
        try:
            self.lanes[name]._run()
        except WouldWait:
            return
        raise AssertionError(f"the lane {name!r} has ended")

    def advance(self, ms: int) -> None:
        """Let time pass, and do what falls due in it."""
        self.time.now_ns += ms * NS_PER_MS
        for action in self.timers.pop_due(self.time.now_ns):
            action()

    def ledger(self) -> LedgerSnapshot:
        lanes = self.lanes.values()
        return self.dispatcher.ledger_snapshot(
            [lane.ledger for lane in lanes], sum(lane.queued for lane in lanes)
        )

    def run_until_idle(self) -> None:
        """Mend everything, and wait until nothing is queued."""
        for name, wire in self.wires.items():
            wire.fault, wire.slow, wire.away = None, False, set()
            routes, wire.closed = wire.closed, set()
            for route in routes:
                self.lanes[name].on_route_open(route)
        for _ in range(60):  # above max_age_ms, and every ttl
            self.advance(10)
            for name in self.lanes:
                self.run(name)
        assert self.ledger().queued == 0


# --------------------------------------------------------------------------------------------------------- the stories

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
        UUri("mars", 1, 1),  # nowhere, or behind the endpoint of everyone else
    ]
)
periods_ms = st.sampled_from([0, 0, 10, 25])
priorities = st.sampled_from([UPriority.CS4] * 8 + [*UPriority])
ttls = st.sampled_from([None, None, None, 20, 60])
ages_ms = st.sampled_from([0, 0, 0, 0, 15, 70])


class Sketch(NamedTuple):
    """What comes in: `copies` of one message, each with an id of its own."""

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
        wishes=st.lists(st.tuples(topics | st.just(DEAD_LETTERS), subscribers, periods_ms), max_size=6),
    )
    def build(
        self,
        kinds: list[type[Wire]],
        mode: str,
        everyone: str | None,
        wishes: list[tuple[UUri, UUri, int]],
    ) -> None:
        self.gateway = Gateway(kinds, mode, everyone)
        for topic, subscriber, period_ms in wishes:
            self.gateway.directory.subscribe(topic, subscriber, period_ms * NS_PER_MS)
        self.count = 0
        self.made_ns: dict[UUID, int] = {}
        self.arrived: dict[UUID, int] = {}
        self.asked: list[UMessage] = []
        self.helpings: dict[str, list[UMessage]] | None = None

    # --- what comes in ------------------------------------------------------------------------------------------------

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
        if self.helpings is None:
            self.gateway.dispatcher.ingress(home).dispatch(message)
        else:
            self.helpings[home].append(message)

    @rule(topic=topics | st.just(DEAD_LETTERS), subscriber=subscribers, period_ms=periods_ms)
    def subscribe(self, topic: UUri, subscriber: UUri, period_ms: int) -> None:
        self.gateway.directory.subscribe(topic, subscriber, period_ms * NS_PER_MS)

    @rule(topic=topics, subscriber=subscribers)
    def unsubscribe(self, topic: UUri, subscriber: UUri) -> None:
        self.gateway.directory.unsubscribe(topic, subscriber)

    @rule(burst=bursts, together=st.booleans())
    def receive(self, burst: list[Sketch], together: bool = True) -> None:
        """Message by message, or what came in at an endpoint in one helping."""
        self.helpings = defaultdict(list) if together else None
        for sketch in burst:
            for _ in range(sketch.copies):
                self._receive_one(sketch)
        for home, messages in (self.helpings or {}).items():
            self.gateway.dispatcher.ingress(home).on_batch(messages)
        self.helpings = None

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

    # --- what happens to it -------------------------------------------------------------------------------------------

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
        told=st.booleans(),
    )
    def be_away_for_a_while(
        self,
        endpoint: str,
        route: UUri | None,
        before: list[Sketch],
        while_away: list[Sketch],
        back: list[Sketch],
        told: bool,
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
            self.open_all_routes(endpoint, told)
        elif told:
            self.come_up(endpoint)
        else:
            self.change_the_link(endpoint, None)
        self.receive(back)
        self.run(endpoint)

    @rule(endpoint=endpoints)
    def come_up(self, endpoint: str) -> None:
        self.gateway.wires[endpoint].fault = None
        self.gateway.lanes[endpoint].on_link_up()

    @rule(endpoint=endpoints, slow=st.booleans())
    def change_the_speed(self, endpoint: str, slow: bool) -> None:
        self.gateway.wires[endpoint].slow = slow

    @rule(endpoint=endpoints, route=topics | callers)
    def close_a_route(self, endpoint: str, route: UUri) -> None:
        self.gateway.wires[endpoint].closed.add(route)

    @rule(endpoint=endpoints, told=st.booleans())
    def open_all_routes(self, endpoint: str, told: bool) -> None:
        wire = self.gateway.wires[endpoint]
        routes, wire.closed = wire.closed, set()
        for route in routes if told else ():
            self.gateway.lanes[endpoint].on_route_open(route)

    @rule(endpoint=endpoints, subscriber=subscribers)
    def go_away(self, endpoint: str, subscriber: UUri) -> None:
        self.gateway.wires[endpoint].away.add(subscriber)

    @rule(
        endpoint=st.sampled_from(["south", "west"]),
        gone=st.sampled_from([1, 2]),
        copies=st.lists(st.integers(1, 4), min_size=1, max_size=4),
        priority=priorities,
    )
    def publish_while_one_of_two_is_away(
        self, endpoint: str, gone: int, copies: list[int], priority: UPriority
    ) -> None:
        # One without rates: what a filter holds when its limit is lifted is overtaken by what comes then.
        topic = UUri("north", 1, 1, 0x8001)
        for entity in (1, 2):
            self.gateway.directory.subscribe(topic, UUri(endpoint, entity, 3, 0))
        self.go_away(endpoint, UUri(endpoint, gone, 3, 0))
        nobody = UUri("mars", 1, 1)
        for each in copies:
            self.receive([Sketch(UMessageType.PUBLISH, topic, nobody, nobody, priority, None, 0, each)])
            self.run(endpoint)

    @rule(endpoint=endpoints)
    def all_come_back(self, endpoint: str) -> None:
        self.gateway.wires[endpoint].away.clear()

    @rule(endpoint=endpoints)
    def run(self, endpoint: str) -> None:
        """A lane that was never refused has nothing left that waits: whoever else takes nothing is no matter of it."""
        self.gateway.run(endpoint)
        lane, wire = self.gateway.lanes[endpoint], self.gateway.wires[endpoint]
        for sender in (*lane._queue.subscriber_queues(), lane._queue.shared_queue):
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
        for name in self.gateway.lanes:
            self.gateway.run(name)

    @rule(ms=st.sampled_from([1, 5, 10, 40, 120]))
    def wait(self, ms: int) -> None:
        self.gateway.advance(ms)

    @rule(leap_ms=st.sampled_from([-86_400_000, -3_600_000, -30, 30, 3_600_000, 800_000_000_000]))
    def leap(self, leap_ms: int) -> None:
        self.gateway.time.ahead_ms += leap_ms

    @rule()
    def fall_quiet(self) -> None:
        self.gateway.run_until_idle()
        self._check_the_whole_story()

    # --- what is promised ---------------------------------------------------------------------------------------------

    @invariant()
    def the_books_balance(self) -> None:
        books = self.gateway.ledger()
        assert books.unaccounted == 0, books
        assert books.received == len(self.gateway.outcomes) + books.queued, books

    @invariant()
    def nobody_has_more_waiting_than_is_allowed(self) -> None:
        """Counted anew, message by message, of all that is in a lane; what was in the air may come on top of it."""
        for lane in self.gateway.lanes.values():
            of_each: Counter[UUri | None] = Counter()
            for sender in (*lane._queue.subscriber_queues(), lane._queue.shared_queue):
                waiting = [item for each in sender.waiting._classes for item in each]
                streams = [stream for each in sender.blocked._streams for stream in each.values()]
                waiting += [item for stream in streams for item in stream.items]
                assert {item.delivery.subscriber for item in waiting} <= {sender.subscriber}
                of_each[sender.subscriber] += len(waiting)
                assert (sender.subscriber is None) or len(waiting) == sender.messages <= OWN
            assert of_each.total() == lane.queued <= LIMITS.queue_messages

    def _check_ttls(self) -> None:
        """By the wall clock and by the time that has really passed: after a leap the two differ, and either may be right."""
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
            self._check_the_whole_story()

    def _check_the_whole_story(self) -> None:
        """Once everything has ended."""
        outcomes = self.gateway.outcomes
        ended = Counter((outcome.message.id, id(outcome.delivery)) for outcome in outcomes)
        assert set(ended.values()) <= {1}
        self._check_requests(outcomes)
        # What was sent only grows, so these two rules are checked once per sequence and not after each step.
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
        """One for each delivery that failed or expired; none for what was throttled, none for another letter."""
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
        Delivering, settings=settings(max_examples=110, stateful_step_count=30, deadline=None)
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
