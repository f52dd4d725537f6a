# SPDX-License-Identifier: Apache-2.0
"""What is parked, by itself: by class, by route, and how much of it ends at a time. With a queue: `test_egress`."""

from collections.abc import Hashable
from typing import TYPE_CHECKING

import pytest

from tests.core.egress.test_egress_queue import OTHER, TOPIC, names, on
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.blocked_routes import BlockedRoutes
from ustreamer.core.egress.limits import CLASSES, NEVER_NS, OVERHEAD_BYTES, QueuedMessage

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
def told() -> Counting:
    return Counting()


@pytest.fixture
def parked(delivery: Delivery, told: Counting) -> BlockedRoutes:
    """On TOPIC 0 to 9 of class 1, on OTHER 10 of class 4; for one route each."""
    waiting = BlockedRoutes(told)
    for number in range(10):
        item = QueuedMessage(delivery, on(TOPIC, 1, number), number, OVERHEAD_BYTES)
        if not waiting.enqueue_blocked(item):
            waiting.block(item, "R", 5)
    waiting.block(QueuedMessage(delivery, on(OTHER, 4, 10), 10, OVERHEAD_BYTES), "S", 7)
    return waiting


def test_pop_expired_returns_at_most_its_limit(parked: BlockedRoutes, told: Counting) -> None:
    assert names(parked.pop_expired(lambda item: True, 4)) == ["CS1.0", "CS1.1", "CS1.2", "CS1.3"]
    assert (parked.messages, parked.messages_in(1), told.messages[1]) == (7, 6, 6)
    assert names(parked.pop_expired(lambda item: True, 6)) == [f"CS1.{number}" for number in range(4, 10)]
    assert (parked.closed_routes, told.routes) == (1, {"S"})
    assert names(parked.pop_expired(lambda item: True)) == ["CS4.10"]
    assert (parked.messages, parked.bytes, told.bytes, parked.closed_routes) == (0, 0, 0, 0)


def test_a_retried_route_is_due_at_once_and_not_before_others(parked: BlockedRoutes) -> None:
    assert (parked.due_routes(4), parked.due_routes(6)) == ([], ["R"])
    assert parked.retry_route("S", 6)
    assert parked.due_routes(6) == ["R", "S"]
    assert parked.next_due_ns == 5


def test_released_messages_are_grouped_by_stream_and_no_longer_counted(
    parked: BlockedRoutes, told: Counting
) -> None:
    [(rank, items)] = parked.release_route("R")
    assert (rank, len(items)) == (1, 10)
    assert (parked.messages, told.messages, parked.total_below(CLASSES)) == (
        1,
        [0, 0, 0, 0, 1, 0, 0],
        (1, OVERHEAD_BYTES),
    )
    assert parked.release_route("R") == []
    assert names([parked.pop_newest(4)]) == ["CS4.10"]
    assert parked.due_routes(NEVER_NS) == []
