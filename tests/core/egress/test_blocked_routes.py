# SPDX-License-Identifier: Apache-2.0
"""Blocked messages alone: by class, by route, and bounded expiry. In a queue: test_egress_queue.py."""

from collections.abc import Hashable
from time import thread_time_ns
from typing import TYPE_CHECKING

import pytest

from tests.core.egress.test_egress_queue import OTHER, TOPIC, names, on
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.blocked_routes import BlockedRoutes
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, QueuedMessage
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World


class Counting:
    def __init__(self) -> None:
        self.messages = [0] * CLASSES
        self.bytes = 0
        self.routes: set[Hashable] = set()

    def count_blocked(self, rank: int, messages: int, size: int) -> None:
        self.messages[rank] += messages
        self.bytes += size

    def on_route_closed(self, route: Hashable) -> None:
        self.routes.add(route)

    def on_route_removed(self, route: Hashable) -> None:
        self.routes.remove(route)


@pytest.fixture
def delivery(world: "World") -> Delivery:
    return Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)


@pytest.fixture
def counters() -> Counting:
    return Counting()


@pytest.fixture
def blocked(delivery: Delivery, counters: Counting) -> BlockedRoutes:
    """On TOPIC 0 to 9 of class 1, on OTHER 10 of class 4; for one route each."""
    waiting = BlockedRoutes(counters)
    for number in range(10):
        item = QueuedMessage(delivery, on(TOPIC, 1, number), number, OVERHEAD_BYTES)
        if not waiting.enqueue_blocked(item):
            waiting.block(item, "R", 5)
    waiting.block(QueuedMessage(delivery, on(OTHER, 4, 10), 10, OVERHEAD_BYTES), "S", 7)
    return waiting


def test_pop_expired_returns_at_most_its_limit(blocked: BlockedRoutes, counters: Counting) -> None:
    assert names(blocked.pop_expired(lambda item: True, 4)) == ["CS1.0", "CS1.1", "CS1.2", "CS1.3"]
    assert (blocked.messages, blocked.messages_in(1), counters.messages[1]) == (7, 6, 6)
    assert names(blocked.pop_expired(lambda item: True, 6)) == [f"CS1.{number}" for number in range(4, 10)]
    assert (blocked.closed_routes, counters.routes) == (1, {"S"})
    assert names(blocked.pop_expired(lambda item: True)) == ["CS4.10"]
    assert (blocked.messages, blocked.bytes, counters.bytes, blocked.closed_routes) == (0, 0, 0, 0)


def test_a_retried_route_is_due_at_once_and_not_before_others(blocked: BlockedRoutes) -> None:
    assert (blocked.due_routes(4), blocked.due_routes(6)) == ([], ["R"])
    assert blocked.retry_route("S", 6)
    assert blocked.due_routes(6) == ["R", "S"]
    assert blocked.next_due_ns == 5


def test_a_route_ends_when_all_its_messages_have_failed(blocked: BlockedRoutes, counters: Counting) -> None:
    blocked.pop_head("S")
    blocked.remove_if_empty("R")
    blocked.remove_if_empty("S")
    assert (blocked.closed_routes, counters.routes) == (1, {"R"})
    blocked.remove_if_empty("S")


def test_released_messages_are_grouped_by_stream_and_no_longer_counted(
    blocked: BlockedRoutes, counters: Counting
) -> None:
    [(rank, items)] = blocked.release_route("R")
    assert (rank, len(items)) == (1, 10)
    assert (blocked.messages, counters.messages, blocked.total_below(CLASSES)) == (
        1,
        [0, 0, 0, 0, 1, 0, 0],
        (1, OVERHEAD_BYTES),
    )
    assert blocked.release_route("R") == []
    assert names([blocked.pop_newest(4)]) == ["CS4.10"]
    assert blocked.due_routes(NEVER_NS) == []


def test_blocked_messages_are_counted_by_each_of_their_addresses(blocked: BlockedRoutes) -> None:
    assert (blocked.of_address(TOPIC), blocked.of_address(OTHER)) == ((10, 0), (1, 10))
    assert blocked.of_address(TOPIC.with_resource(0x8FFF)) == (0, NEVER_NS)


def test_a_stream_of_a_long_queue_is_emptied_as_fast_as_that_of_a_short_one(delivery: Delivery) -> None:
    def pop_us(streams: int) -> float:
        waiting = BlockedRoutes(Counting())
        for number in range(streams):
            topic = UUri("chassis", number + 1, 1, 0x8001)
            waiting.block(QueuedMessage(delivery, on(topic, 1, number), number, OVERHEAD_BYTES), "R", 5)
        began_ns = thread_time_ns()
        while waiting.messages:
            waiting.pop_head("R")
        return (thread_time_ns() - began_ns) / streams / 1_000

    short = min(pop_us(500) for _ in range(5))
    assert pop_us(20_000) < 5 * short
