# SPDX-License-Identifier: Apache-2.0
"""Seven priority classes alone: contents and counters. Shares: test_egress_queue.py."""

import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.core.egress.test_egress_queue import TOPIC, message, names
from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.egress.limits import CLASSES, OVERHEAD_BYTES, QueuedMessage
from ustreamer.core.egress.priority_queue import WeightedPriorityQueue

if TYPE_CHECKING:
    from tests.core.conftest import World


class Counting:
    """The counters of one queue."""

    def __init__(self) -> None:
        self.messages = [0] * CLASSES
        self.bytes = [0] * CLASSES

    def count_waiting(self, rank: int, messages: int, size: int) -> None:
        self.messages[rank] += messages
        self.bytes[rank] += size


@pytest.fixture
def delivery(world: "World") -> Delivery:
    return Delivery(world.ingress("chassis"), world.egress["backbone"], TOPIC)


def queued(delivery: Delivery, rank: int, number: int, size: int = 0) -> QueuedMessage:
    return QueuedMessage(delivery, message(rank, number, size), number, size + OVERHEAD_BYTES)


@pytest.fixture
def rapid_switches() -> Iterator[None]:
    """Threads alternate as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("rapid_switches")
def test_the_heads_can_be_read_while_another_thread_changes_the_queue(delivery: Delivery) -> None:
    queue, item, ending = WeightedPriorityQueue(Counting()), queued(delivery, 0, 1), threading.Event()

    def change() -> None:
        while not ending.is_set():
            queue.append(0, item)
            queue.pop_newest(0)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        found = {len(queue.heads()) for _ in range(100_000)}
    finally:
        ending.set()
        changing.join()
    assert found <= {0, 1}


def test_class_counts_and_bytes_match_after_any_operation(delivery: Delivery) -> None:
    counters = Counting()
    classes = WeightedPriorityQueue(counters)
    for number, (rank, size) in enumerate([(0, 10), (4, 20), (0, 30), (1, 0), (4, 5)]):
        classes.append(rank, queued(delivery, rank, number, size))
    assert (counters.messages, counters.bytes[0], counters.bytes[4]) == ([2, 1, 0, 0, 2, 0, 0], 440, 425)
    assert names([classes.pop_newest(0)]) == ["CS0.2"]
    taken = classes.pop_batch(2)
    classes.requeue(taken[1:])
    classes.prepend(4, deque([queued(delivery, 4, 7), queued(delivery, 4, 8)]))
    assert (
        [classes.messages_in(rank) for rank in range(CLASSES)] == counters.messages == [1, 1, 0, 0, 3, 0, 0]
    )
    assert [classes.bytes_in(rank) for rank in range(CLASSES)] == counters.bytes
    assert (classes.messages, classes.bytes) == (5, sum(counters.bytes))
    assert classes.total_below(4) == (2, 410)
    assert names(classes.pop_batch(9)) == ["CS4.7", "CS4.8", "CS4.4", "CS1.3", "CS0.0"]
    assert (sum(counters.messages), sum(counters.bytes)) == (0, 0)
