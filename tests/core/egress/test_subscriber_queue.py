# SPDX-License-Identifier: Apache-2.0
"""Subscriber queues of an endpoint: bounds, eviction, turns and pauses; and a comparison with a simple model."""

from collections import defaultdict
from collections.abc import Hashable
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.core.egress.test_egress_queue import NO_OWNER, OTHER, TOPIC, NullEgress, names, on
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import OVERHEAD_BYTES, EgressLimits, QueuedMessage
from ustreamer.core.egress.scheduler import MIN_QUANTUM, RoundRobin
from ustreamer.core.egress.subscriber_queue import SubscriberQueue
from ustreamer.uprotocol.uuri import UUri

ANN, BOB, CAT = (UUri("dash", entity, 1, 0) for entity in (1, 2, 3))
NS_PER_S = 1_000_000_000


def to(subscriber: UUri | None) -> Delivery:
    return Delivery(NO_OWNER, NullEgress(), TOPIC, subscriber)


FOR = {subscriber: to(subscriber) for subscriber in (ANN, BOB, CAT, None)}


def bounded(messages: int = 100, own: int = 10, size: int = 10**9, own_size: int = 10**9) -> EgressLimits:
    return EgressLimits(
        queue_messages=messages, queue_bytes=size, subscriber_messages=own, subscriber_bytes=own_size
    )


def push(queue: EgressQueue, subscriber: UUri | None, rank: int, number: int, size: int = 0) -> list[str]:
    return names(queue.push(FOR[subscriber], on(TOPIC, rank, number, size), number))


def filled(limits: EgressLimits, *pushed: tuple[UUri | None, int]) -> EgressQueue:
    """A queue with a message of each class for each subscriber, numbered in their order."""
    queue = EgressQueue(limits)
    for number, (subscriber, rank) in enumerate(pushed):
        assert push(queue, subscriber, rank, number) == []
    return queue


def queue_of(queue: EgressQueue, subscriber: UUri) -> SubscriberQueue:
    [found] = [own_queue for own_queue in queue.subscriber_queues() if own_queue.subscriber == subscriber]
    return found


def taken(queue: EgressQueue, limit: int = 64) -> list[str]:
    """All messages that can be popped, in turns."""
    all_of_it = []
    while batch := queue.pop_batch(limit):
        assert len({item.delivery.subscriber for item in batch}) == 1
        all_of_it += batch
    queue.end_turn()
    return names(all_of_it)


# -------------------------------------------------------------------------------------------------------------- bounds


def test_one_subscriber_gets_half_of_the_endpoint_queue_by_default() -> None:
    assert EgressLimits().per_subscriber == (5_000, 8_000_000)
    assert EgressLimits(queue_messages=1, queue_bytes=1).per_subscriber == (1, 1)
    assert EgressLimits(subscriber_messages=7, subscriber_bytes=9).per_subscriber == (7, 9)


def test_a_subscriber_can_fill_its_own_bounds_but_not_the_endpoint() -> None:
    queue = EgressQueue(bounded(messages=9, own=3))
    for number in range(3):
        assert push(queue, ANN, 1, number) == []
    assert push(queue, ANN, 1, 3) == ["CS1.3"]
    assert push(queue, ANN, 0, 4) == ["CS0.4"]
    assert push(queue, BOB, 0, 5) == []
    for number in range(6, 11):
        assert push(queue, None, 0, number) == []  # messages without subscriber have the rest
    assert push(queue, None, 0, 11) == ["CS0.11"]
    assert (len(queue), queue.evicted_by_subscriber_limit) == (9, 2)


def test_a_subscriber_is_bounded_by_bytes_as_well() -> None:
    queue = EgressQueue(bounded(own_size=2 * (100 + OVERHEAD_BYTES)))
    for number in range(2):
        assert push(queue, ANN, 1, number, 100) == []
    assert push(queue, ANN, 1, 2) == ["CS1.2"]
    assert push(queue, BOB, 1, 3, 100) == []


def test_an_evicted_message_names_the_exceeded_bounds() -> None:
    queue = filled(bounded(messages=3, own=2), (ANN, 1), (ANN, 0), (BOB, 1))
    [own] = queue.push(FOR[ANN], on(TOPIC, 4, 10), 10)
    [of_all] = queue.push(FOR[BOB], on(TOPIC, 4, 11), 11)
    assert (names([own]), own.evicted_by_subscriber_limit) == (["CS0.1"], True)
    assert (names([of_all]), of_all.evicted_by_subscriber_limit) == (["CS1.0"], False)


def test_above_subscriber_bounds_only_messages_of_that_subscriber_are_evicted() -> None:
    queue = filled(bounded(messages=6, own=3), (BOB, 0), (None, 0), (ANN, 1), (ANN, 2), (ANN, 1))
    assert push(queue, ANN, 4, 10) == ["CS1.4"]
    assert push(queue, ANN, 4, 11) == ["CS1.2"]
    assert push(queue, ANN, 4, 12) == ["CS2.3"]
    assert push(queue, ANN, 4, 13) == ["CS4.13"]
    assert queue.evicted_by_subscriber_limit == 4
    assert sorted(taken(queue)) == ["CS0.0", "CS0.1", "CS4.10", "CS4.11", "CS4.12"]


def test_subscriber_bounds_are_checked_before_endpoint_bounds_and_no_eviction_is_in_vain() -> None:
    size = 100 + OVERHEAD_BYTES
    queue = EgressQueue(bounded(size=4 * size, own_size=2 * size))
    for number, (subscriber, rank) in enumerate([(BOB, 5), (BOB, 5), (ANN, 0), (ANN, 5)]):
        assert push(queue, subscriber, rank, number, 100) == []
    # Evicting its own CS0 satisfies the subscriber bounds, but not the endpoint bounds.
    assert push(queue, ANN, 4, 9, 101) == ["CS4.9"]
    assert push(queue, ANN, 4, 9, 100) == ["CS0.2"]
    assert len(queue) == 4


def test_blocked_messages_of_a_subscriber_are_evicted_for_its_sendable_ones() -> None:
    queue = filled(bounded(own=2), (ANN, 1), (ANN, 1))
    for item in queue.pop_batch(9):
        if not serving_queue(queue).blocked.enqueue_blocked(item):
            queue.block(serving_queue(queue), item, "R", 0)
    queue.end_turn()
    assert push(queue, ANN, 1, 2) == ["CS1.2"]  # of the same stream
    assert names(queue.push(FOR[ANN], on(OTHER, 1, 3), 3)) == ["CS1.1"]


def test_a_full_endpoint_evicts_unsendable_messages_first() -> None:
    queue = filled(bounded(messages=5), (BOB, 0), (CAT, 1), (ANN, 1), (ANN, 1), (CAT, 0))
    queue.pause(queue_of(queue, ANN), NS_PER_S)
    assert push(queue, BOB, 1, 10) == ["CS0.0"]  # a lower class is evicted first, for any subscriber
    assert push(queue, BOB, 1, 11) == ["CS0.4"]
    assert push(queue, BOB, 1, 12) == ["CS1.3"]  # of its own class, messages of a disconnected subscriber
    assert push(queue, ANN, 1, 13) == ["CS1.13"]  # which evicts no message of its own class
    queue.resume(queue_of(queue, ANN))
    assert push(queue, BOB, 1, 14) == ["CS1.14"]
    assert sorted(taken(queue)) == ["CS1.1", "CS1.10", "CS1.11", "CS1.12", "CS1.2"]


def test_new_bounds_apply_from_the_next_message() -> None:
    queue = filled(bounded(own=3), (ANN, 1), (ANN, 1), (ANN, 1))
    queue.set_limits(bounded(own=2))
    assert push(queue, ANN, 1, 3) == ["CS1.3"]
    assert push(queue, ANN, 2, 4) == ["CS1.2"]
    queue.set_limits(bounded(own=4))
    assert push(queue, ANN, 1, 5) == []


def test_a_subscriber_queue_exists_while_it_has_messages() -> None:
    queue = filled(bounded(), (ANN, 1), (BOB, 1), (CAT, 1))
    queue.pop_batch()
    queue.end_turn()
    assert [own_queue.subscriber for own_queue in queue.subscriber_queues()] == [BOB, CAT]
    queue.pause(queue_of(queue, BOB), NS_PER_S)
    assert taken(queue) == ["CS1.2"]
    assert names(queue.pop_all()) == ["CS1.1"]
    assert (queue.subscriber_queues(), len(queue), queue._subscriber_queues, bool(queue.scheduler.ready)) == (
        [],
        0,
        {},
        False,
    )
    assert queue.pop_due(2 * NS_PER_S) is None


def test_a_subscriber_queue_emptied_by_eviction_is_removed() -> None:
    queue = filled(bounded(messages=2), (ANN, 0), (BOB, 1))
    assert push(queue, BOB, 1, 9) == ["CS0.0"]
    assert list(queue._subscriber_queues) == [BOB]


# ------------------------------------------------------------------------------------------------- scheduling


def test_a_flood_for_one_subscriber_delays_another_by_at_most_one_turn() -> None:
    queue = filled(EgressLimits(), *[(ANN, 1)] * 5_000)
    assert len(queue.pop_batch(64)) == 64  # as long as no other subscriber waits
    push(queue, BOB, 1, 9_001)
    order = taken(queue)
    assert order.index("CS1.9001") <= 64
    assert len(order) == 5_000 - 64 + 1


def test_with_many_subscribers_turns_are_short_and_each_gets_one() -> None:
    subscribers = [UUri("dash", entity, 1, 0) for entity in range(1, 101)]
    queue = EgressQueue(EgressLimits(queue_messages=10**6))
    deliveries = [to(subscriber) for subscriber in subscribers]
    for number in range(50):
        for delivery in deliveries:
            assert queue.push(delivery, on(TOPIC, 1, number), number) == []
    first = [queue.pop_batch(64) for _ in subscribers]
    assert {len(batch) for batch in first} == {MIN_QUANTUM}
    assert {batch[0].delivery.subscriber for batch in first} == set(subscribers)


def test_two_subscribers_share_one_batch() -> None:
    queue = filled(EgressLimits(), *[(ANN, 1), (None, 1)] * 200)
    assert [len(queue.pop_batch(64)) for _ in range(4)] == [32] * 4


def test_each_subscriber_queue_has_its_own_classes_and_shares() -> None:
    queue = filled(EgressLimits(), *[(ANN, 6)] * 300, *[(ANN, 0)] * 5, (BOB, 0))
    order = taken(queue, 65)
    assert order.index("CS0.305") <= 65
    of_ann = [name for name in order if name != "CS0.305"]
    assert [place for place, name in enumerate(of_ann) if name[:3] == "CS0"][:2] == [64, 129]


# -------------------------------------------------------------------------------------------------------------- pauses


def test_a_paused_subscriber_queue_delays_no_other() -> None:
    queue = filled(bounded(), (ANN, 1), (BOB, 1), (ANN, 5), (None, 1))
    queue.pause(queue_of(queue, ANN), NS_PER_S)
    push(queue, ANN, 6, 10)
    assert sorted(taken(queue)) == ["CS1.1", "CS1.3"]
    assert (queue.scheduler.due.next_due, queue.pop_due(NS_PER_S - 1)) == (NS_PER_S, None)
    due = queue.pop_due(NS_PER_S)
    assert due is queue_of(queue, ANN)
    queue.resume(due)
    assert taken(queue) == ["CS6.10", "CS5.2", "CS1.0"]


def test_requeued_messages_wait_in_place_until_their_queue_resumes() -> None:
    queue = filled(bounded(), (ANN, 1), (ANN, 1), (BOB, 1))
    batch = queue.pop_batch(9)
    queue.requeue(batch)
    queue.pause(queue_of(queue, ANN), NS_PER_S)
    assert taken(queue) == ["CS1.2"]
    queue.on_link_up(0)
    assert taken(queue) == ["CS1.0", "CS1.1"]


def test_link_up_ends_all_pauses_and_resets_failures() -> None:
    queue = filled(bounded(), (ANN, 1), (BOB, 1), (None, 1))
    for own_queue in (*queue.subscriber_queues(), queue.shared_queue):
        own_queue.failures = 3
        queue.pause(own_queue, NS_PER_S)
    assert (taken(queue), queue.is_failing) == ([], True)
    queue.on_link_up(0)
    assert not queue.is_failing
    assert sorted(taken(queue)) == ["CS1.0", "CS1.1", "CS1.2"]


def test_an_opened_route_is_retried_in_every_waiting_queue() -> None:
    queue = filled(bounded(), (ANN, 1), (BOB, 1), (CAT, 1))
    for route in ("R", "R", "S"):
        [item] = queue.pop_batch(1)
        assert queue.serving is not None
        queue.block(queue.serving, item, route, NS_PER_S)
    queue.end_turn()
    assert (queue.closed_routes, queue.pop_due(NS_PER_S - 1)) == (2, None)
    assert queue.retry_route("R", 5)
    due = [queue.pop_due(5), queue.pop_due(5), queue.pop_due(5)]
    assert [each and each.subscriber for each in due] == [ANN, BOB, None]
    assert not queue.retry_route("T")


def test_only_messages_of_the_same_queue_must_not_be_overtaken() -> None:
    queue = filled(bounded(), (ANN, 1), (BOB, 1))
    message = on(TOPIC, 6, 9)
    assert [queue.may_bypass(FOR[each], message) for each in (ANN, BOB, CAT, None)] == [
        False,
        False,
        True,
        True,
    ]
    assert [queue.is_empty_for(each) for each in (ANN, BOB, CAT, None)] == [False, False, True, True]
    [item] = queue.pop_batch(1)
    queue.block(serving_queue(queue), item, "R", 0)
    assert queue.may_bypass(FOR[ANN], on(OTHER, 1, 9))  # another stream, and possibly another route
    assert not queue.may_bypass(FOR[ANN], on(TOPIC, 1, 9))
    assert not queue.is_empty_for(ANN)
    queue.pause(serving_queue(queue), NS_PER_S)
    assert not queue.may_bypass(FOR[ANN], on(OTHER, 1, 9))


def serving_queue(queue: EgressQueue) -> SubscriberQueue:
    assert queue.serving is not None
    return queue.serving


def test_a_message_behind_a_blocked_stream_wakes_no_thread() -> None:
    queue = filled(bounded(), (ANN, 1))
    [item] = queue.pop_batch(1)
    queue.block(serving_queue(queue), item, "R", NS_PER_S)
    assert push(queue, ANN, 1, 1) == []
    assert queue.scheduler.ready  # others of its stream may be in flight
    [item] = queue.pop_batch(1)
    assert serving_queue(queue).blocked.enqueue_blocked(item)
    queue.end_turn()
    assert queue.pop_batch() == []
    assert push(queue, ANN, 1, 2) == []
    assert not queue.scheduler.ready
    queue.release_route(queue_of(queue, ANN), "R")
    assert taken(queue) == ["CS1.0", "CS1.1", "CS1.2"]


def test_a_queue_is_due_at_the_earliest_of_its_scheduled_times() -> None:
    turns, queue = RoundRobin(), EgressQueue(bounded())
    queues = [SubscriberQueue(subscriber, queue) for subscriber in (ANN, BOB)]
    for now_ns in range(10, 10_000, 10):
        for own_queue in queues:
            own_queue.paused_until_ns = now_ns + 10**6  # a long pause
            turns.schedule_service(own_queue)
            own_queue.paused_until_ns = now_ns  # that ends at once
            turns.schedule_service(own_queue)
        assert turns.pop_due(now_ns) is not None
        assert turns.pop_due(now_ns) is not None
    for own_queue in queues:
        turns.remove(own_queue)
    assert turns.pop_due(10**9) is None


# --------------------------------------------------------------------------------------------------------------- model

LIMITS = bounded(messages=14, own=6, size=14 * 250, own_size=6 * 260)


class ModelMessage(NamedTuple):
    """A message of the model: all fields that decide about it, independent of the queue's data structures."""

    number: int
    subscriber: UUri | None
    topic: UUri
    rank: int
    size: int


class Scenario(RuleBasedStateMachine):
    """The endpoint queue's use of an egress queue, next to a list of all queued messages."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = EgressQueue(LIMITS)
        self.numbers = count()
        self.inside: dict[int, ModelMessage] = {}
        self.blocked_items: set[int] = set()
        self.paused: set[UUri | None] = set()
        self.sent: dict[Hashable, list[int]] = defaultdict(list)

    # --- expected state of the model ------------------------------------------------------------------------

    def _of(self, subscriber: UUri | None) -> list[ModelMessage]:
        return [each for each in self.inside.values() if each.subscriber == subscriber]

    def _cannot_be_sent(self, each: ModelMessage) -> bool:
        away = each.subscriber is not None and each.subscriber in self.paused
        return away or each.number in self.blocked_items

    def _may_go(self, new: ModelMessage) -> list[ModelMessage]:
        """The messages that can be evicted for it."""
        stream = [
            each
            for each in self.inside.values()
            if each.number in self.blocked_items and each[1:4] == new[1:4]
        ]
        held = bool(stream) or (new.subscriber is not None and new.subscriber in self.paused)
        return [
            each
            for each in self.inside.values()
            if each.rank < new.rank or (each.rank == new.rank and not held and self._cannot_be_sent(each))
        ]

    @staticmethod
    def _too_much(waiting: list[ModelMessage], own: bool) -> bool:
        messages, size = (6, 6 * 260) if own else (14, 14 * 250)
        return len(waiting) > messages or sum(each.size for each in waiting) > size

    # --- steps --------------------------------------------------------------------------------------------------------

    @rule(
        subscriber=st.sampled_from([ANN, ANN, BOB, CAT, None]),
        topic=st.sampled_from([TOPIC, OTHER]),
        rank=st.sampled_from([0, 1, 4]),
        payload=st.sampled_from([0, 50, 300]),
    )
    def push(self, subscriber: UUri | None, topic: UUri, rank: int, payload: int) -> None:
        new = ModelMessage(next(self.numbers), subscriber, topic, rank, payload + OVERHEAD_BYTES)
        displaced = self.queue.push(FOR[subscriber], on(topic, rank, new.number, payload), new.number)
        may_go = self._may_go(new)
        own_may_go = [each for each in may_go if each.subscriber == subscriber]
        all_messages = [*self.inside.values(), new]
        own = [*self._of(subscriber), new] if subscriber is not None else []
        if [item.received_ns for item in displaced] == [new.number]:
            in_own = self._too_much([each for each in own if each not in own_may_go], own=True)
            assert displaced[0].evicted_by_subscriber_limit == in_own
            assert in_own or self._too_much([each for each in all_messages if each not in may_go], own=False)
            return
        removed = [self.inside.pop(item.received_ns) for item in displaced]
        for_its_own = [
            each for each, item in zip(removed, displaced, strict=True) if item.evicted_by_subscriber_limit
        ]
        for_all = [
            each
            for each, item in zip(removed, displaced, strict=True)
            if not item.evicted_by_subscriber_limit
        ]
        self._check_victims(for_its_own, own_may_go, own, own=True)
        left = [each for each in all_messages if each not in for_its_own]
        self._check_victims(for_all, [each for each in may_go if each not in for_its_own], left, own=False)
        self.blocked_items -= {each.number for each in removed}
        self.inside[new.number] = new
        streams = {
            (each.subscriber, each.topic, each.rank)
            for each in map(self.inside.get, self.blocked_items)
            if each
        }
        if (subscriber, topic, rank) in streams:
            self._find_out_where(new)

    def _find_out_where(self, new: ModelMessage) -> None:
        """With its stream, or on its way there: both are right."""
        own_queue = self._queue(new.subscriber)
        blocked_items = {
            item.received_ns
            for stream in own_queue.blocked._streams[new.rank].values()
            for item in stream.items
        }
        self.blocked_items |= blocked_items & {new.number}

    def _check_victims(
        self,
        removed: list[ModelMessage],
        may_go: list[ModelMessage],
        waiting: list[ModelMessage],
        *,
        own: bool,
    ) -> None:
        """They were evictable, lowest class first, of these the newest of a stream; and no more than needed."""
        assert set(removed) <= set(may_go)
        assert not self._too_much([each for each in waiting if each not in removed], own)
        if removed:
            assert self._too_much([each for each in waiting if each not in removed[:-1]], own)
        stay = [each for each in may_go if each not in removed]
        for each in removed:
            assert all(other.rank >= each.rank for other in stay)
            # Blocked messages of a stream precede its later messages.
            same_class = [
                other
                for other in stay
                if other[1:4] == each[1:4]
                and (other.number in self.blocked_items) == (each.number in self.blocked_items)
            ]
            assert all(other.number < each.number for other in same_class)

    def _queue(self, subscriber: UUri | None) -> SubscriberQueue:
        return self.queue.shared_queue if subscriber is None else queue_of(self.queue, subscriber)

    @rule(
        limit=st.integers(1, 5),
        closed=st.booleans(),
        refused_from=st.integers(0, 6),
        pauses=st.booleans(),
    )
    def send(self, limit: int, closed: bool, refused_from: int, pauses: bool) -> None:
        batch = self.queue.pop_batch(limit)
        sender = self.queue.serving
        for position, item in enumerate(batch):
            assert sender is not None
            assert item.delivery.subscriber == sender.subscriber not in self.paused
            if position == refused_from:
                self.queue.requeue(batch[position:])
                if pauses:
                    self.queue.pause(sender, 1)
                    self.paused.add(sender.subscriber)
                break
            if sender.blocked.messages and sender.blocked.enqueue_blocked(item):
                self.blocked_items.add(item.received_ns)
            elif closed and item.message.attributes.source == OTHER:
                self.queue.block(sender, item, OTHER, 0)
                self.blocked_items.add(item.received_ns)
            else:
                self._send(item)
        self.queue.end_turn()

    def _send(self, item: QueuedMessage) -> None:
        held = self.inside.pop(item.received_ns)
        assert held.number not in self.blocked_items
        self.sent[held[1:4]].append(held.number)

    @rule(subscriber=st.sampled_from([ANN, BOB, CAT, None]))
    def resume(self, subscriber: UUri | None) -> None:
        if subscriber in self.paused and (subscriber is None or self._of(subscriber)):
            self.queue.resume(self._queue(subscriber))
        self.paused.discard(subscriber)

    @rule(subscriber=st.sampled_from([ANN, BOB, CAT, None]), opens=st.booleans())
    def try_the_route(self, subscriber: UUri | None, opens: bool) -> None:
        if subscriber in self.paused or not (self._of(subscriber) or subscriber is None):
            return
        own_queue = self._queue(subscriber)
        item = own_queue.blocked.pop_head(OTHER)
        if item is None:
            return
        if not opens:
            self.queue.block(own_queue, item, OTHER, 0)
            return
        self.blocked_items -= {each.number for each in self._of(subscriber)}
        self._send(item)
        self.queue.release_route(own_queue, OTHER)
        self.queue._remove_if_empty(own_queue)

    # --- invariants -----------------------------------------------------------------------------------------

    @invariant()
    def all_of_it_is_there_and_counted(self) -> None:
        queue = self.queue
        assert len(queue) == len(self.inside) == queue.waiting + queue.blocked
        assert (queue.bytes, queue.blocked) == (
            sum(each.size for each in self.inside.values()),
            len(self.blocked_items),
        )
        for rank in (0, 1, 4):
            held = [each for each in self.inside.values() if each.rank == rank and self._cannot_be_sent(each)]
            assert queue._unsendable_messages[rank] == len(held)
            assert queue._unsendable_bytes[rank] == sum(each.size for each in held)
        queues = {
            own_queue.subscriber: (own_queue.messages, own_queue.bytes)
            for own_queue in queue.subscriber_queues()
        }
        theirs = {each.subscriber for each in self.inside.values()} - {None}
        assert queues == {
            who: (len(self._of(who)), sum(each.size for each in self._of(who))) for who in theirs
        }
        self.paused &= {*queues, None}  # an empty subscriber queue is removed together with its pause

    @invariant()
    def bounds_hold(self) -> None:
        assert not self._too_much(list(self.inside.values()), own=False)
        for subscriber in (ANN, BOB, CAT):
            assert not self._too_much(self._of(subscriber), own=True)

    @invariant()
    def each_stream_is_in_order(self) -> None:
        for numbers in self.sent.values():
            assert numbers == sorted(numbers)

    def teardown(self) -> None:
        """Each sendable subscriber receives all remaining messages in order."""
        for own_queue in [*self.queue.subscriber_queues(), self.queue.shared_queue]:
            self.queue.resume(own_queue)
            self.queue.release_route(own_queue, OTHER)
        self.blocked_items.clear()
        while batch := self.queue.pop_batch(3):
            for item in batch:
                self._send(item)
        assert not self.inside
        self.each_stream_is_in_order()


def test_evictions_and_sends_equal_those_of_a_simple_model() -> None:
    run_state_machine_as_test(
        Scenario, settings=settings(max_examples=100, stateful_step_count=40, deadline=None)
    )


@pytest.mark.parametrize("subscriber", [ANN, None])
def test_restored_messages_are_accepted_above_the_bounds(
    subscriber: UUri | None,
) -> None:
    queue = EgressQueue(bounded(messages=4, own=2))
    for number in range(6):
        queue.restore(QueuedMessage(FOR[subscriber], on(TOPIC, 1, number), number, OVERHEAD_BYTES))
    assert push(queue, subscriber, 1, 9) == ["CS1.9"]
    assert taken(queue) == [f"CS1.{number}" for number in range(6)]
