# SPDX-License-Identifier: Apache-2.0
"""The egress queue: order, bounds, eviction and blocked routes."""

from collections import Counter
from collections.abc import Sequence
from itertools import count, cycle
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ports import DeliveryOwner, SendOne
from ustreamer.core.egress.egress_queue import EgressQueue
from ustreamer.core.egress.limits import (
    CLASSES,
    OVERHEAD_BYTES,
    WEIGHTS,
    EgressLimits,
    QueuedMessage,
)
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)


@pytest.fixture
def delivery(world: "World") -> Delivery:
    return Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)


def message(rank: int, number: int = 0, size: int = 0) -> UMessage:
    """A message of class CS<rank> with its own id."""
    id = UUID(0x018D548EA8E07000, 1 << 63 | number)
    return publish(id, TOPIC, bytes(size), priority=UPriority(rank + 1))


def names(items: Sequence[QueuedMessage]) -> list[str]:
    """Class and number of each item: `CS4.1`."""
    return [
        f"CS{each.message.attributes.priority_class}.{each.message.id.lsb & 0xFFFF_FFFF}" for each in items
    ]


def pushed(delivery: Delivery, limits: EgressLimits, *ranks: int, size: int = 0) -> EgressQueue:
    """A queue with messages of these classes, numbered in order of arrival."""
    queue = EgressQueue(limits)
    for number, rank in enumerate(ranks):
        assert queue.push(delivery, message(rank, number, size), number) == []
    return queue


def bounded(messages: int = 100, size: int = 10**9) -> EgressLimits:
    return EgressLimits(queue_messages=messages, queue_bytes=size)


def test_default_limits_equal_those_of_the_configuration() -> None:
    assert EgressLimits() == EgressLimits(
        queue_messages=10_000,
        queue_bytes=16_000_000,
        retry_first_ms=100,
        retry_max_ms=5_000,
        max_age_ms=30_000,
    )


# -------------------------------------------------------------------------------------------------------------- order


def test_higher_classes_leave_first_and_a_class_is_fifo(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(), 1, 6, 0, 1, 6, 4)
    assert names(queue.pop_batch(4)) == ["CS6.1", "CS6.4", "CS4.5", "CS1.0"]
    assert names(queue.pop_batch(10)) == ["CS1.3", "CS0.2"]
    assert queue.pop_batch() == []


@pytest.mark.parametrize("rank", range(CLASSES))
def test_every_priority_has_its_class(delivery: Delivery, rank: int) -> None:
    queue = pushed(delivery, bounded(), *(r for r in range(CLASSES) if r != rank), rank)
    assert f"CS{rank}.{CLASSES - 1}" == names(queue.pop_batch(CLASSES))[CLASSES - 1 - rank]


def test_requeued_messages_keep_their_position(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(), 4, 1, 4, 1, 4)
    taken = queue.pop_batch(4)
    assert names(taken) == ["CS4.0", "CS4.2", "CS4.4", "CS1.1"]
    assert queue.push(delivery, message(4, 9), 9) == []
    queue.requeue(taken[1:])
    assert names(queue.pop_batch(10)) == ["CS4.2", "CS4.4", "CS4.9", "CS1.1", "CS1.3"]


def test_a_queued_message_has_its_delivery_time_and_size(delivery: Delivery) -> None:
    queue = EgressQueue(bounded())
    queue.push(delivery, message(1, size=50), 77)
    (item,) = queue.pop_batch()
    assert (item.delivery, item.received_ns, item.size) == (delivery, 77, 50 + OVERHEAD_BYTES)
    assert (item.attempts, item.first_attempt_ns, item.last_attempt_ns) == (0, 0, 0)


def test_attempts_before_queueing_are_counted(delivery: Delivery) -> None:
    queue = EgressQueue(bounded())
    queue.push(delivery, message(1), 77, attempts=1)
    (item,) = queue.pop_batch()
    assert (item.attempts, item.first_attempt_ns, item.last_attempt_ns) == (1, 77, 77)


# ------------------------------------------------------------------------------------------------------------- shares


def flood(delivery: Delivery, counts: Sequence[int]) -> EgressQueue:
    """A queue with that many messages of each class, CS0 first; numbered within their class."""
    queue = EgressQueue(bounded(messages=10**6))
    for rank, many in enumerate(counts):
        for number in range(many):
            assert queue.push(delivery, message(rank, number), number) == []
    return queue


def drained(queue: EgressQueue, limit: int) -> list[QueuedMessage]:
    """All waiting messages, popped in batches."""
    taken: list[QueuedMessage] = []
    while batch := queue.pop_batch(limit):
        assert len(batch) <= limit
        taken += batch
    return taken


def test_the_weight_of_a_class_doubles_with_its_importance() -> None:
    assert WEIGHTS == (1, 2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("limit", [1, 5, 64, 127])
def test_each_class_gets_its_share_under_a_flood_of_all(delivery: Delivery, limit: int) -> None:
    rounds = 5
    queue = flood(delivery, [rounds * WEIGHTS[-1]] * CLASSES)
    taken = drained(queue, limit)[: rounds * sum(WEIGHTS)]
    assert Counter(map(rank_of, taken)) == {rank: rounds * weight for rank, weight in enumerate(WEIGHTS)}


def test_cs5_gets_sixteen_times_the_share_of_a_cs1_flood(delivery: Delivery) -> None:
    taken = drained(flood(delivery, [0, 1000, 0, 0, 0, 1000]), 64)
    assert Counter(map(rank_of, taken[:340])) == {5: 320, 1: 20}


def test_a_flood_of_cs6_does_not_starve_cs0(delivery: Delivery) -> None:
    queue = flood(delivery, [3, 0, 0, 0, 0, 0, 10_000])
    places = [place for place, item in enumerate(drained(queue, 64)) if rank_of(item) == 0]
    assert places == [64, 129, 194]


def test_a_new_message_of_a_high_class_precedes_a_flood(delivery: Delivery) -> None:
    queue = flood(delivery, [1000, 1000])
    for number in range(50):
        queue.pop_batch(7)
        queue.push(delivery, message(5, number), 0)
        assert names(queue.pop_batch(1)) == [f"CS5.{number}"]


def test_a_class_alone_uses_no_credit(delivery: Delivery) -> None:
    queue = flood(delivery, [0, 0, 100])
    queue.pop_batch(90)
    queue.push(delivery, message(1, 0), 0)
    assert names(queue.pop_batch(6)) == ["CS2.90", "CS2.91", "CS2.92", "CS2.93", "CS1.0", "CS2.94"]


def test_an_unsent_message_uses_no_credit(delivery: Delivery) -> None:
    queue = flood(delivery, [10, 10, 10])
    for _ in range(20):  # tries on a link that is down
        taken = queue.pop_batch(5)
        assert names(taken) == ["CS2.0", "CS2.1", "CS2.2", "CS2.3", "CS1.0"]
        queue.requeue(taken)


@settings(max_examples=70, deadline=None)
@given(
    counts=st.lists(st.integers(0, 200), min_size=CLASSES, max_size=CLASSES),
    limits=st.lists(st.integers(1, 130), min_size=1, max_size=10),
)
def test_batch_size_changes_neither_order_nor_shares(
    counts: list[int], limits: list[int], unchecked: "type[World]"
) -> None:
    world = unchecked()
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)
    queue, taken = flood(delivery, counts), list[QueuedMessage]()
    for limit in cycle(limits):
        if not queue:
            break
        taken += queue.pop_batch(limit)
    assert names(taken) == names(drained(flood(delivery, counts), 1))
    for rank, many in enumerate(counts):
        places = [place for place, item in enumerate(taken) if rank_of(item) == rank]
        assert [taken[place].received_ns for place in places] == list(range(many))  # in order of arrival
        for number, place in enumerate(places):
            assert place < (number // WEIGHTS[rank] + 1) * sum(WEIGHTS)


# -------------------------------------------------------------------------------------------------------------- bounds


def test_a_full_queue_refuses_a_message_of_the_lowest_class(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(messages=3), 1, 1, 4)
    assert names(queue.push(delivery, message(1, 9), 9)) == ["CS1.9"]
    assert names(queue.push(delivery, message(0, 9), 9)) == ["CS0.9"]
    assert names(queue.pop_batch(9)) == ["CS4.2", "CS1.0", "CS1.1"]


def test_the_newest_of_the_lowest_class_is_evicted_first(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(messages=4), 1, 0, 0, 2)
    assert names(queue.push(delivery, message(6, 10), 9)) == ["CS0.2"]
    assert names(queue.push(delivery, message(6, 11), 9)) == ["CS0.1"]
    assert names(queue.push(delivery, message(6, 12), 9)) == ["CS1.0"]
    assert names(queue.push(delivery, message(2, 13), 9)) == ["CS2.13"]
    assert names(queue.pop_batch(9)) == ["CS6.10", "CS6.11", "CS6.12", "CS2.3"]


def test_above_new_limits_each_message_makes_room_for_itself_only(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(messages=4), 1, 1, 0, 0)
    queue.set_limits(bounded(messages=2))
    assert len(queue) == 4
    assert names(queue.push(delivery, message(0, 9), 9)) == ["CS0.9"]
    assert names(queue.push(delivery, message(1, 9), 9)) == ["CS0.3"]
    assert names(queue.push(delivery, message(4, 9), 9)) == ["CS0.2"]
    assert names(queue.push(delivery, message(1, 8), 9)) == ["CS1.8"]
    queue.set_limits(bounded(messages=5))
    assert queue.push(delivery, message(0, 8), 9) == []
    assert names(queue.pop_batch(9)) == ["CS4.9", "CS1.0", "CS1.1", "CS0.8", "CS1.9"]


def test_above_new_limits_of_bytes_each_message_makes_room_for_itself_only(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(), 1, 0, 0, 0, size=100)
    queue.set_limits(bounded(size=100 + OVERHEAD_BYTES))
    assert names(queue.push(delivery, message(4, 9, size=200), 9)) == ["CS0.3", "CS0.2"]
    assert queue.bytes == 3 * OVERHEAD_BYTES + 400


def test_above_the_limits_restored_messages_make_room_for_one_message_only(delivery: Delivery) -> None:
    queue = EgressQueue(bounded(messages=2))
    for number in range(5):
        queue.restore(QueuedMessage(delivery, message(0, number), 0, OVERHEAD_BYTES))
    assert names(queue.push(delivery, message(4, 9), 9)) == ["CS0.4"]
    assert len(queue) == 5


def test_bytes_are_bounded_and_every_message_has_an_overhead(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(size=2 * (100 + OVERHEAD_BYTES)), 1, 1, size=100)
    assert queue.bytes == 2 * (100 + OVERHEAD_BYTES)
    assert names(queue.push(delivery, message(1, 9), 9)) == ["CS1.9"]
    queue.pop_batch()
    assert queue.push(delivery, message(1, 9, size=100), 9) == []
    assert (queue.messages, queue.bytes, len(queue)) == (2, 2 * (100 + OVERHEAD_BYTES), 2)


def test_a_large_message_evicts_only_as_many_as_needed(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(size=4 * (100 + OVERHEAD_BYTES)), 0, 0, 1, 1, size=100)
    assert names(queue.push(delivery, message(4, 9, size=700), 9)) == ["CS0.1", "CS0.0", "CS1.3"]
    assert names(queue.pop_batch(9)) == ["CS4.9", "CS1.2"]


def test_a_message_that_cannot_fit_evicts_nothing(delivery: Delivery) -> None:
    limit = 3 * (100 + OVERHEAD_BYTES)
    queue = pushed(delivery, bounded(size=limit), 0, 5, 0, size=100)
    assert names(queue.push(delivery, message(4, 9, size=2 * (100 + OVERHEAD_BYTES)), 9)) == ["CS4.9"]
    assert names(queue.push(delivery, message(6, 10, size=limit), 9)) == ["CS6.10"]
    assert len(queue) == 3


@pytest.mark.parametrize("size", [0, 1000])
def test_a_message_larger_than_the_queue_is_refused(delivery: Delivery, size: int) -> None:
    queue = EgressQueue(bounded(size=size + OVERHEAD_BYTES - 1))
    assert names(queue.push(delivery, message(6, 1, size), 0)) == ["CS6.1"]
    assert (queue.messages, queue.bytes) == (0, 0)


def test_requeued_messages_in_flight_may_exceed_the_limits(delivery: Delivery) -> None:
    queue = pushed(delivery, bounded(messages=1), 1)
    taken = queue.pop_batch()
    assert queue.push(delivery, message(1, 9), 9) == []
    queue.requeue(taken)
    assert (queue.messages, queue.bytes) == (2, 2 * OVERHEAD_BYTES)
    assert names(queue.pop_batch(9)) == ["CS1.0", "CS1.9"]
    assert (queue.messages, queue.bytes) == (0, 0)


def test_with_a_batch_put_back_each_message_makes_room_for_itself_only(delivery: Delivery) -> None:
    """A queue with its unsent batch put back is above its limits, and more messages arrive."""
    queue = pushed(delivery, bounded(messages=2), 1)
    taken = queue.pop_batch()
    for number in (10, 11):
        assert queue.push(delivery, message(4, number), 9) == []
    queue.requeue(taken)
    assert names(queue.push(delivery, message(2, 12), 9)) == ["CS1.0"]
    assert names(queue.push(delivery, message(2, 13), 9)) == ["CS2.13"]
    assert names(queue.pop_batch(9)) == ["CS4.10", "CS4.11", "CS2.12"]


ranks, sizes = st.integers(0, CLASSES - 1), st.sampled_from([0, 100, 300])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), ranks, sizes),
        st.tuples(st.just("take"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("put back"), st.integers(0, 4), st.just(0)),
    ),
    max_size=40,
)


def rank_of(item: QueuedMessage) -> int:
    return item.message.attributes.priority_class


@settings(max_examples=120, deadline=None)
@given(steps=steps, messages=st.integers(1, 5), size=st.sampled_from([350, 800, 10**6]))
def test_every_message_is_in_one_place_and_order_holds(
    steps: list[tuple[str, int, int]], messages: int, size: int, unchecked: "type[World]"
) -> None:
    world = unchecked()
    delivery = Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)
    queue, arrivals, removed = EgressQueue(bounded(messages, size)), list[str](), list[str]()
    in_air: list[QueuedMessage] = []
    for number, (step, count_or_rank, payload) in enumerate(steps):
        if step == "push":
            newcomer = message(count_or_rank, number, payload)
            before, bytes_before = queue.messages, queue.bytes
            displaced = queue.push(delivery, newcomer, number)
            arrivals.append(f"CS{count_or_rank}.{number}")
            removed += names(displaced)
            if displaced and displaced[0].message is not newcomer:
                assert all(rank_of(each) < count_or_rank for each in displaced)
            # What was put back can exceed the limits. The excess does not grow, and does not shrink by evictions.
            assert queue.messages <= max(messages, before)
            assert queue.bytes <= max(size, bytes_before)
            if displaced and displaced[0].message is not newcomer:
                free_messages = max(messages, before) - queue.messages
                free_bytes = max(size, bytes_before) - queue.bytes
                assert not free_messages or free_bytes < displaced[-1].size
        elif step == "take":
            in_air += queue.pop_batch(count_or_rank)
        else:
            # The endpoint queue puts back the end of a batch; the messages before it have been sent.
            sent, back = in_air[:count_or_rank], in_air[count_or_rank:]
            removed += names(sent)
            queue.requeue(back)
            in_air = []
    rest = queue.pop_batch(10**6)
    assert (queue.messages, queue.bytes) == (0, 0)
    assert sorted(arrivals) == sorted([*removed, *names(in_air), *names(rest)])
    for rank in range(CLASSES):
        received = [each.received_ns for each in rest if rank_of(each) == rank]
        assert received == sorted(received)


# --------------------------------------------------------------------------------------------- blocked routes

OTHER = UUri("chassis", 0x1234, 1, 0x8002)


def on(topic: UUri, rank: int, number: int, size: int = 0) -> UMessage:
    id = UUID(0x018D548EA8E07000, 1 << 63 | number)
    return publish(id, topic, bytes(size), priority=UPriority(rank + 1))


def blocked(delivery: Delivery, limits: EgressLimits, *streams: tuple[UUri, int, int]) -> EgressQueue:
    """A queue with messages (topic, class, number) that all wait for the route "R"."""
    queue = EgressQueue(limits)
    for topic, rank, number in streams:
        assert queue.push(delivery, on(topic, rank, number), number) == []
        (item,) = queue.pop_batch()
        if not queue.shared_queue.blocked.enqueue_blocked(item):
            queue.block(queue.shared_queue, item, "R", 0)
    return queue


def test_blocked_messages_count_against_the_bounds_and_are_not_popped(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(messages=2), (TOPIC, 1, 0), (TOPIC, 1, 1))
    assert (queue.messages, queue.bytes, queue.waiting, queue.blocked) == (2, 2 * OVERHEAD_BYTES, 0, 2)
    assert queue.pop_batch(9) == []
    assert names(queue.push(delivery, on(TOPIC, 1, 2), 0)) == ["CS1.2"]


def test_released_messages_return_to_the_front_of_their_class(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(), (TOPIC, 1, 0), (OTHER, 1, 1), (TOPIC, 1, 2), (TOPIC, 4, 3))
    queue.push(delivery, on(OTHER, 1, 4), 0)
    assert names([queue.shared_queue.blocked.pop_head("R")]) == ["CS1.0"]  # type: ignore[list-item]
    queue.release_route(queue.shared_queue, "R")
    assert (queue.blocked, queue.closed_routes, queue.waiting) == (0, 0, 4)
    assert names(queue.pop_batch(9)) == ["CS4.3", "CS1.2", "CS1.1", "CS1.4"]


def test_blocked_messages_are_evicted_first_also_for_their_own_class(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(messages=4), (TOPIC, 1, 0), (TOPIC, 1, 1))
    for number in (2, 3):
        queue.push(delivery, on(OTHER, 1, number), 0)
    assert names(queue.push(delivery, on(OTHER, 4, 4), 0)) == ["CS1.1"]
    assert names(queue.push(delivery, on(OTHER, 1, 5), 0)) == ["CS1.0"]
    assert (queue.blocked, queue.closed_routes) == (0, 0)
    assert names(queue.push(delivery, on(OTHER, 1, 6), 0)) == ["CS1.6"]
    assert names(queue.push(delivery, on(OTHER, 2, 7), 0)) == ["CS1.5"]


def test_a_message_evicts_none_of_its_own_stream(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(messages=2), (TOPIC, 1, 0), (OTHER, 1, 1))
    assert names(queue.push(delivery, on(TOPIC, 1, 2), 0)) == ["CS1.2"]
    assert queue.blocked == 2


def test_a_route_is_due_at_its_time_and_its_failures_count_until_it_opens(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(), (TOPIC, 1, 0))
    assert queue.shared_queue.blocked.count_failure("R") == 1
    for failures in (2, 3):
        item = queue.shared_queue.blocked.pop_head("R")
        assert item is not None
        assert queue.shared_queue.blocked.count_failure("R") == failures
        queue.block(queue.shared_queue, item, "R", 10 * failures)
        due_ns = queue.scheduler.due.next_due
        assert due_ns is not None
        assert due_ns <= 10 * failures
        assert queue.shared_queue.blocked.due_routes(10 * failures - 1) == []
        assert queue.shared_queue.blocked.due_routes(10 * failures) == ["R"]
        assert queue.pop_due(10 * failures) is queue.shared_queue
        queue.scheduler.schedule_service(queue.shared_queue)
    assert queue.retry_route("R")
    assert queue.pop_due(0) is queue.shared_queue
    assert queue.shared_queue.blocked.due_routes(0) == ["R"]
    assert queue.shared_queue.blocked.count_failure("R") == 1
    assert not queue.retry_route("another")


def test_a_route_without_messages_is_removed(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(), (TOPIC, 1, 0))
    assert queue.shared_queue.blocked.pop_head("R") is not None
    assert queue.shared_queue.blocked.pop_head("R") is None
    assert queue.closed_routes == 0
    queue = blocked(delivery, bounded(), (TOPIC, 1, 0), (TOPIC, 1, 1), (OTHER, 1, 2))
    assert names(queue.shared_queue.blocked.pop_expired(lambda item: item.received_ns < 1)) == ["CS1.0"]
    assert sorted(names(list(queue.shared_queue.blocked.heads()))) == ["CS1.1", "CS1.2"]
    assert names(queue.shared_queue.blocked.pop_expired(lambda item: True)) == ["CS1.1", "CS1.2"]
    assert (len(queue), queue.bytes, queue.closed_routes) == (0, 0, 0)


def test_a_stream_can_change_its_blocking_route(delivery: Delivery) -> None:
    queue = blocked(delivery, bounded(), (TOPIC, 1, 0), (TOPIC, 1, 1))
    item = queue.shared_queue.blocked.pop_head("R")
    assert item is not None
    queue.block(queue.shared_queue, item, "S", 5)
    assert queue.closed_routes == 1
    queue.release_route(queue.shared_queue, "R")
    assert queue.pop_batch(9) == []
    queue.release_route(queue.shared_queue, "S")
    assert names(queue.pop_batch(9)) == ["CS1.0", "CS1.1"]


class NullEgress:
    """An egress without `offer`: a queue reads only the subscriber of a delivery."""

    name, unicast = "backbone", False

    def offer(self, delivery: Delivery, message: UMessage, now_ns: int) -> None: ...

    def transmitter(self, subscriber: UUri | None) -> SendOne:
        return lambda message: None


NO_OWNER = cast("DeliveryOwner", None)


class BlockedQueueMachine(RuleBasedStateMachine):
    """The endpoint queue's use of an egress queue: streams keep order, and each message is in one place."""

    def __init__(self) -> None:
        super().__init__()
        self.delivery = Delivery(NO_OWNER, NullEgress(), TOPIC)
        self.queue = EgressQueue(bounded(messages=12))
        self.numbers = count()
        self.inside: set[int] = set()
        self.sent: dict[tuple[UUri, int], list[int]] = {}

    def _on_evicted(self, items: Sequence[QueuedMessage]) -> None:
        self.inside -= {each.received_ns for each in items}

    def _send(self, item: QueuedMessage) -> None:
        self._on_evicted([item])
        attributes = item.message.attributes
        self.sent.setdefault((attributes.source, rank_of(item)), []).append(item.received_ns)

    @rule(topic=st.sampled_from([TOPIC, OTHER]), rank=st.sampled_from([0, 1, 4]))
    def push(self, topic: UUri, rank: int) -> None:
        number = next(self.numbers)
        self.inside.add(number)
        self._on_evicted(self.queue.push(self.delivery, on(topic, rank, number), number))

    @rule(limit=st.integers(1, 5), closed=st.booleans(), refused_from=st.integers(0, 5))
    def send(self, limit: int, closed: bool, refused_from: int) -> None:
        batch = self.queue.pop_batch(limit)
        for position, item in enumerate(batch):
            if position == refused_from:
                self.queue.requeue(batch[position:])
                return
            if self.queue.shared_queue.blocked.enqueue_blocked(item):
                continue
            if closed and item.message.attributes.source == OTHER:
                self.queue.block(self.queue.shared_queue, item, OTHER, 0)
            else:
                self._send(item)

    @rule(opens=st.booleans())
    def tries(self, opens: bool) -> None:
        item = self.queue.shared_queue.blocked.pop_head(OTHER)
        if item is None:
            return
        if opens:
            self._send(item)
            self.queue.release_route(self.queue.shared_queue, OTHER)
        else:
            self.queue.block(self.queue.shared_queue, item, OTHER, 0)

    @rule(before=st.integers(0, 200))
    def expires(self, before: int) -> None:
        self._on_evicted(self.queue.shared_queue.blocked.pop_expired(lambda item: item.received_ns < before))

    @invariant()
    def everything_is_in_one_place_and_in_order(self) -> None:
        assert len(self.queue) == len(self.inside) == self.queue.waiting + self.queue.blocked
        assert self.queue.bytes == OVERHEAD_BYTES * len(self.inside)
        assert len(self.queue) <= 12 + 5
        for numbers in self.sent.values():
            assert numbers == sorted(numbers)


TestBlockedQueue = BlockedQueueMachine.TestCase
TestBlockedQueue.settings = settings(max_examples=70, deadline=None)


# ------------------------------------------------------------------------------------ abandoning and retrying


def test_a_message_keeps_its_deadline_in_every_state(delivery: Delivery) -> None:
    queue = EgressQueue(EgressLimits())
    queue.push(delivery, message(1), 77, deadline_ns=99)
    [item] = queue.pop_batch()
    queue.block(queue.shared_queue, item, "route", 5)
    queue.release_route(queue.shared_queue, "route")
    [item] = queue.pop_batch()
    queue.requeue([item])
    assert [each.deadline_ns for each in queue.pop_batch()] == [99]
