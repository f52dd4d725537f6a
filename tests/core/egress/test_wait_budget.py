# SPDX-License-Identifier: Apache-2.0
"""The waiting time for an egress queue: unlimited where the streamer is slow, bounded where the receiver is."""

from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.egress.wait_budget import EARNED_NS, FULL_NS, STALL_NS, WaitBudget

TICK_NS = 1_000_000


def waited_ns(budget: WaitBudget, ticks: int, per_tick: float, *, has_room: bool) -> int:
    """The sum of the waits that the budget allows in this time; the receiver takes `per_tick` messages in each tick."""
    total = 0
    for tick in range(1, ticks + 1):
        if budget.may_wait(int(tick * per_tick)):
            budget.charge(TICK_NS, int(tick * per_tick), has_room=has_room)
            total += TICK_NS
    return total


def test_while_the_transport_has_room_and_messages_leave_waiting_is_free() -> None:
    assert waited_ns(WaitBudget(), 10_000, 1, has_room=True) == 10_000 * TICK_NS


def test_a_receiver_that_takes_nothing_is_waited_for_once() -> None:
    budget = WaitBudget()
    assert waited_ns(budget, 10_000, 0, has_room=False) == FULL_NS
    assert not budget.may_wait(0)


def test_a_send_that_hangs_although_the_transport_reports_room_is_no_reason_to_wait() -> None:
    assert FULL_NS < waited_ns(WaitBudget(), 10_000, 0, has_room=True) <= FULL_NS + STALL_NS


def test_a_receiver_that_takes_10_000_messages_per_second_pays_for_all_waiting() -> None:
    assert waited_ns(WaitBudget(), 10_000, 10, has_room=False) == 10_000 * TICK_NS


def test_a_receiver_that_returns_is_waited_for_again() -> None:
    budget = WaitBudget()
    waited_ns(budget, 1_000, 0, has_room=False)
    assert not budget.may_wait(0)
    assert budget.may_wait(1)


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=400))
def test_a_receiver_without_room_delays_the_input_by_what_it_takes_and_one_full_budget(
    ticks: list[tuple[int, bool]],
) -> None:
    """For any pattern: the charged waits are at most the earned time, one full budget, and one tick."""
    budget, taken, waited = WaitBudget(), 0, 0
    for messages, asks in ticks:
        taken += messages
        if asks and budget.may_wait(taken):
            budget.charge(TICK_NS, taken, has_room=False)
            waited += TICK_NS
    assert waited <= FULL_NS + taken * EARNED_NS + TICK_NS
