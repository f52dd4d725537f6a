# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.timers import Timers


def test_an_action_is_not_due_before_its_time() -> None:
    timers, calls = Timers(), list[str]()
    timers.schedule(100, lambda: calls.append("a"))
    assert timers.pop_due(99) == []
    assert len(timers) == 1
    for action in timers.pop_due(100):
        action()
    assert calls == ["a"]
    assert len(timers) == 0


def test_the_next_time_is_that_of_the_first_action() -> None:
    timers = Timers()
    times = [timers.next_due_ns]
    for when in (300, 100, 200):
        timers.schedule(when, lambda: None)
        times.append(timers.next_due_ns)
    timers.pop_due(100)
    times.append(timers.next_due_ns)
    assert times == [None, 300, 100, 100, 200]


def test_an_action_scheduled_by_a_due_action_waits_for_the_next_poll() -> None:
    timers, calls = Timers(), list[str]()
    timers.schedule(1, lambda: timers.schedule(1, lambda: calls.append("second")))
    for action in timers.pop_due(5):
        action()
    assert calls == []
    for action in timers.pop_due(5):
        action()
    assert calls == ["second"]


@given(st.lists(st.integers(0, 20), max_size=30), st.lists(st.integers(0, 20), max_size=5))
def test_actions_are_due_once_in_order_of_time_and_then_of_request(
    whens: list[int], readings: list[int]
) -> None:
    timers, calls = Timers(), list[tuple[int, int]]()
    for order, when in enumerate(whens):
        timers.schedule(when, lambda order=order, when=when: calls.append((when, order)))  # type: ignore[misc]
    for now in sorted(readings):
        for action in timers.pop_due(now):
            action()
    latest = max(readings, default=-1)
    assert calls == sorted((when, order) for order, when in enumerate(whens) if when <= latest)
    assert len(timers) == sum(when > latest for when in whens)


def test_an_action_that_is_scheduled_twice_is_due_twice() -> None:
    timers, calls = Timers(), list[int]()

    def action() -> None:
        calls.append(1)

    timers.schedule(1, action)
    timers.schedule(1, action)
    for each in timers.pop_due(1):
        each()
    assert calls == [1, 1]
