# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.deadline_queue import DeadlineQueue


def test_nothing_is_due_before_its_time() -> None:
    queue, calls = DeadlineQueue(), list[str]()
    queue.schedule(100, lambda: calls.append("a"))
    assert queue.pop_due(99) == []
    assert len(queue) == 1
    for action in queue.pop_due(100):
        action()
    assert calls == ["a"]
    assert len(queue) == 0


def test_the_next_time_is_that_of_the_first_action() -> None:
    queue = DeadlineQueue()
    times = [queue.next_due_ns]
    for when in (300, 100, 200):
        queue.schedule(when, lambda: None)
        times.append(queue.next_due_ns)
    queue.pop_due(100)
    times.append(queue.next_due_ns)
    assert times == [None, 300, 100, 100, 200]


def test_what_a_due_action_schedules_waits_for_the_next_asking() -> None:
    queue, calls = DeadlineQueue(), list[str]()
    queue.schedule(1, lambda: queue.schedule(1, lambda: calls.append("second")))
    for action in queue.pop_due(5):
        action()
    assert calls == []
    for action in queue.pop_due(5):
        action()
    assert calls == ["second"]


@given(st.lists(st.integers(0, 20), max_size=30), st.lists(st.integers(0, 20), max_size=5))
def test_actions_come_once_in_order_of_time_and_then_of_asking(whens: list[int], readings: list[int]) -> None:
    queue, calls = DeadlineQueue(), list[tuple[int, int]]()
    for order, when in enumerate(whens):
        queue.schedule(when, lambda order=order, when=when: calls.append((when, order)))  # type: ignore[misc]
    for now in sorted(readings):
        for action in queue.pop_due(now):
            action()
    latest = max(readings, default=-1)
    assert calls == sorted((when, order) for order, when in enumerate(whens) if when <= latest)
    assert len(queue) == sum(when > latest for when in whens)
