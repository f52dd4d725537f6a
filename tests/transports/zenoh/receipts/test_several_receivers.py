# SPDX-License-Identifier: Apache-2.0
"""The promises to each of several receivers hold under random faults. The model knows puts, tokens and receptions only.

A message is promised to a receiver if the sender knew the receiver's token at the put, or learned it within 0.5 s after
the route opened. It arrives, or it is counted if the receiver was away for longer than the window. A restart of a durable
sender changes nothing; a kill loses the messages of the last moments.
"""

from random import Random

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.transports.zenoh.receipts.receivers_rig import MS, TICK_MS, TOPICS, Network, Put, Receiver
from ustreamer.testing.durable_contract import RecordedSentStore
from ustreamer.transports.zenoh.receipts.receipt_keys import receipt_id

WINDOW_MS = 4_000
ABOUT_MS = 600
"""A receiver that is away for the window, give or take this, may count as having left."""
ENDED_MS = 1_100
"""A second and two ticks: for so long the sender cannot know an ended topic from one of a receiver that leaves."""
FIRST_PUTS_MS = 450
"""`DISCOVERY_NS`, without a tick."""
OVERDUE_MS = 600
"""A message without a receipt is on disk after 500 ms and two ticks."""
SMALL_BYTES = 3 * 201
"""Room for three messages: then each message arrives, or it is counted."""
topics = st.integers(0, len(TOPICS) - 1)
receivers = st.integers(0, 2)
times_ms = st.sampled_from([50, 200, 700, 1_500, 3_000, 6_000])
numbers = st.integers(0, 3)

Promise = tuple[Put, Receiver]


class ReceiversMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.promised: set[Promise] = set()
        self.excused: set[Promise] = set()
        """The receiver has ended the subscription since, or a kill of the sender lost the message."""
        self.countable: set[Promise] = set()
        """The receiver was away for about the window: these arrive, or they are counted."""
        self.network: Network

    @initialize(
        number=st.integers(1, 3),
        latency_ms=st.sampled_from([1, 20, 400]),
        has_store=st.booleans(),
        seed=st.integers(0, 9),
        ms=times_ms,
        is_small=st.booleans(),
        stops=st.booleans(),
    )
    def begin(
        self,
        number: int,
        latency_ms: int,
        has_store: bool,
        seed: int,
        ms: int,
        is_small: bool,
        stops: bool,
    ) -> None:
        store = RecordedSentStore() if has_store else None
        self.network = Network(number, SMALL_BYTES if is_small else 16_000_000, WINDOW_MS, store)
        self.is_small, self.stops = is_small, stops
        random = Random(seed)
        self.network.latency_ms = lambda: random.randint(1, latency_ms)
        self.network.reconnect_ms = lambda: random.randint(1, 5 * latency_ms)
        self.network.on_unsent_put = self._promise
        self.away_ns = dict.fromkeys(self.network.receivers, 0)
        self.ended_ns: dict[Receiver, dict[int, int]] = {each: {} for each in self.network.receivers}
        """When a receiver unsubscribed topics, of the last second before it left. They count as topics that it had."""
        for each in self.network.receivers:
            for topic in range(len(TOPICS)):
                self.network.subscribe(each, topic)
        self.advance(ms)

    # --- the model ----------------------------------------------------------------------------------------------------

    def advance(self, ms: int, *, monitor: bool = True) -> None:
        for _ in range(0, ms, TICK_MS):
            self.network.advance(TICK_MS, monitor=monitor)
            self._promise_first_puts()
            for each in self.network.receivers:
                self._note_away(each)

    def _note_away(self, receiver: Receiver) -> None:
        ended_ns = self.ended_ns[receiver]
        if receiver.known_tokens:
            self.away_ns[receiver] = 0
            since_ns = self.network.now_ns - ENDED_MS * MS
            self.ended_ns[receiver] = {topic: at_ns for topic, at_ns in ended_ns.items() if at_ns > since_ns}
        elif any(self.network.is_open(each) for each in (*receiver.known_since_ns, *ended_ns)):
            self.away_ns[receiver] += TICK_MS * MS
        if self._is_leaving(receiver):
            unsent = {receipt_id(each.id) for each in self.network.unsent}
            missing = self.missing(receiver)
            # What is not put yet waits for the receivers that are known at its put.
            self.excused |= {each for each in missing if each[0].id in unsent}
            self.countable |= missing
            receiver.known_since_ns.clear()
            ended_ns.clear()

    def _is_leaving(self, receiver: Receiver) -> bool:
        return self.away_ns[receiver] > (WINDOW_MS - ABOUT_MS) * MS

    def missing(self, receiver: Receiver) -> set[Promise]:
        return {
            (put, each) for put, each in self.promised if each is receiver and put.id not in receiver.received
        }

    def _promise_first_puts(self) -> None:
        for each in () if self.is_small else self.network.receivers:
            for topic in each.subscribed & each.known_since_ns.keys():
                opened_ns = self.network.opened_ns(topic)
                if 0 <= each.known_since_ns[topic] - opened_ns < FIRST_PUTS_MS * MS:
                    since_ns = max(opened_ns, each.subscribed_ns[topic])
                    puts = (put for put in self.network.puts if put.topic == topic and put.at_ns >= since_ns)
                    self.promised |= {(put, each) for put in puts}

    # --- rules --------------------------------------------------------------------------------------------------------

    @rule(topic=topics, number=numbers)
    def put(self, topic: int, number: int) -> None:
        for _ in range(number):
            if self.network.is_open(topic):
                self._promise(self.network.put(topic))
            elif self.network.store is not None:
                self.network.enqueue(topic)

    def _promise(self, put: Put) -> None:
        self.promised |= {
            (put, each)
            for each in self.network.receivers
            if put.topic in each.wanted and put.topic in each.known_since_ns and not self._is_leaving(each)
        }

    def put_all(self, number: int) -> None:
        for topic in range(len(TOPICS)):
            self.put(topic, number)

    def receiver(self, number: int) -> Receiver:
        return self.network.receivers[number % len(self.network.receivers)]

    @rule(ms=times_ms)
    def wait(self, ms: int) -> None:
        self.advance(ms)

    @rule(number=numbers, ms=st.sampled_from([50, 700, 3_000]))
    def block_the_monitor(self, number: int, ms: int) -> None:
        """Its thread waits for a put, for less than the window."""
        self.put_all(number)
        self.advance(ms, monitor=False)
        self.put_all(number)
        self.advance(TICK_MS)

    @rule(number=receivers, topic=topics)
    def subscribe(self, number: int, topic: int) -> None:
        self.network.subscribe(self.receiver(number), topic)

    @rule(number=receivers, topic=topics)
    def unsubscribe(self, number: int, topic: int) -> None:
        receiver = self.receiver(number)
        self.excused |= {each for each in self.missing(receiver) if each[0].topic == topic}
        receiver.known_since_ns.pop(topic, None)
        self.ended_ns[receiver][topic] = self.network.now_ns
        self.network.unsubscribe(receiver, topic)

    @rule(topic=topics, subscribes=st.booleans())
    def plain_subscriber(self, topic: int, subscribes: bool) -> None:
        """It keeps the route of a topic open while receivers are away."""
        if subscribes:
            self.network.subscribe(self.network.plain, topic)
        else:
            self.network.unsubscribe(self.network.plain, topic)

    @rule(number=receivers, puts=st.tuples(numbers, numbers))
    def kill(self, number: int, puts: tuple[int, int]) -> None:
        before, after = puts
        self.put_all(before)
        self.network.kill(self.receiver(number))
        self.put_all(after)

    @rule(number=receivers)
    def start(self, number: int) -> None:
        self.network.start(self.receiver(number))

    @rule(number=numbers)
    def kill_the_router(self, number: int) -> None:
        self.put_all(number)
        self.network.kill_router()

    @precondition(lambda self: self.network.router is None)
    @rule()
    def start_the_router(self) -> None:
        self.network.start_router()

    @rule(number=numbers)
    def freeze_the_router(self, number: int) -> None:
        self.network.freeze_router()
        self.put_all(number)

    @rule()
    def resume_the_router(self) -> None:
        self.network.resume_router()

    @rule(puts=numbers, ms=times_ms)
    def router_outage(self, puts: int, ms: int) -> None:
        self.kill_the_router(puts)
        self.advance(ms)
        if self.network.router is None:
            self.network.start_router()

    @rule(number=receivers, puts=st.tuples(numbers, numbers), ms=st.tuples(times_ms, times_ms))
    def restart(self, number: int, puts: tuple[int, int], ms: tuple[int, int]) -> None:
        self.kill(number, puts)
        for each in ms:
            self.advance(each)
            self.put_all(puts[1])
        self.start(number)

    @precondition(lambda self: self.network.store is not None)
    @rule(is_killed=st.booleans())
    def restart_the_sender(self, is_killed: bool) -> None:
        """What is on its disk stays promised to the receivers that it knew. The rest is lost with a kill."""
        network = self.network
        network.restart_sender(is_killed=is_killed)
        on_disk = {receipt_id(each.id) for each in network.unsent}
        missing = set[Promise]().union(*map(self.missing, network.receivers))
        gone = {each for each in missing if each[0].id not in on_disk}
        if is_killed:
            since_ns = network.now_ns - OVERDUE_MS * MS
            young = {each for each in gone if network.last_put_ns[each[0].id] > since_ns}
            self.excused |= gone if self.is_small else young  # a small memory evicts some before
        if not self.is_small:
            assert gone <= self.excused | self.countable
        for each in network.receivers:
            self.away_ns[each] = 0

    @rule(number=receivers, puts=numbers, is_killed=st.booleans(), ms=times_ms)
    def restart_the_sender_while_a_receiver_is_away(
        self, number: int, puts: int, is_killed: bool, ms: int
    ) -> None:
        if self.network.store is None:
            return
        self.kill(number, (0, puts))
        self.advance(700)
        self.restart_the_sender(is_killed)
        self.advance(ms)
        self.start(number)

    @rule(drops=st.booleans())
    def drop_receipts(self, drops: bool) -> None:
        self.network.drops_receipts = drops

    # --- the end ------------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        """Stop at once, or repair everything and wait."""
        network = self.network
        reported = frozenset[bytes]()
        if self.stops:
            end = network.losses.unconfirmed()
            on_disk = [*(each.id for each in (*end.messages, *network.unsent)), *end.stored]
            reported = frozenset(map(receipt_id, on_disk))
        else:
            self._repair()
        lost = set().union(*map(self.missing, network.receivers)) - self.excused
        lost = {each for each in lost if each[0].id not in reported}
        assert self.is_small or lost <= self.countable
        # A stop and an eviction count a put once, for all receivers.
        ids = {put.id for put, _ in lost}
        assert len(ids) <= network.counted_before + network.awaited.missing + network.losses.not_retransmitted
        if not self.stops:
            self._subscribe_all()
            assert network.awaited.count == 0

    def _repair(self) -> None:
        network = self.network
        network.drops_receipts = False
        network.resume_router()
        if network.router is None:
            network.start_router()
        for each in network.receivers:
            network.start(each)
        self.advance(20_000)

    def _subscribe_all(self) -> None:
        """Then no put waits for a subscriber any more. The last probe comes after 17 minutes."""
        for each in self.network.receivers:
            for topic in range(len(TOPICS)):
                self.network.subscribe(each, topic)
        for _ in range(1_100):
            self.network.advance(1_000)
            if not self.network.awaited.count:
                return


def test_each_receiver_gets_its_messages_or_they_are_counted() -> None:
    run_state_machine_as_test(
        ReceiversMachine,
        settings=settings(
            max_examples=50, stateful_step_count=20, deadline=None, phases=set(Phase) - {Phase.explain}
        ),
    )


def test_a_put_that_is_evicted_just_after_its_route_closed_does_not_wait_for_ever() -> None:
    """Found by the state machine: a tick later the loss is collected, and the memory has it no more."""
    machine = ReceiversMachine()
    machine.begin(number=2, latency_ms=20, has_store=False, seed=0, ms=50, is_small=True, stops=False)
    machine.restart(number=0, puts=(0, 1), ms=(50, 50))
    machine.kill(number=1, puts=(0, 0))
    machine.unsubscribe(number=0, topic=0)
    machine.wait(ms=50)
    machine.teardown()


def test_a_stop_counts_what_a_receiver_lacks_that_has_left() -> None:
    """Found by the state machine: its route is closed at the stop, and the next process does not know the receiver."""
    machine = ReceiversMachine()
    machine.begin(number=3, latency_ms=400, has_store=True, seed=0, ms=50, is_small=False, stops=False)
    machine.unsubscribe(number=0, topic=0)
    machine.unsubscribe(number=0, topic=1)
    machine.kill(number=1, puts=(0, 0))
    machine.restart(number=0, puts=(0, 1), ms=(700, 3_000))
    machine.router_outage(puts=0, ms=50)
    machine.restart_the_sender_while_a_receiver_is_away(number=0, puts=0, is_killed=False, ms=1_500)
    machine.teardown()


def test_a_topic_that_ended_just_before_its_receiver_left_counts_for_the_time_of_the_absence() -> None:
    """Found by the state machine: only this topic has another subscriber, so the absence lasts longer than the window."""
    machine = ReceiversMachine()
    machine.begin(number=3, latency_ms=1, has_store=False, seed=0, ms=50, is_small=False, stops=False)
    machine.unsubscribe(number=2, topic=1)
    machine.unsubscribe(number=1, topic=0)
    machine.kill(number=1, puts=(0, 0))
    machine.restart(number=0, puts=(0, 1), ms=(50, 3_000))
    machine.wait(ms=1_500)
    machine.teardown()
