# SPDX-License-Identifier: Apache-2.0
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.deadline_queue import DeadlineQueue


def test_keys_are_due_once_in_order_and_a_moved_key_at_its_new_deadline() -> None:
    queue: DeadlineQueue[str] = DeadlineQueue()
    for key, at in (("c", 30), ("a", 10), ("b", 20), ("a", 25)):
        queue.schedule(key, at)
    queue.cancel("c")
    queue.cancel("unknown")
    assert (queue.next_due, len(queue), "a" in queue, "c" in queue) == (20, 2, True, False)
    assert queue.pop_all_due(19) == []
    assert queue.first_due(20) == "b"
    assert queue.pop_all_due(25) == ["b", "a"]
    assert (queue.pop_all_due(1_000), queue.next_due) == ([], None)


def test_an_earlier_deadline_replaces_a_later_one_and_not_the_reverse() -> None:
    queue: DeadlineQueue[str] = DeadlineQueue()
    queue.schedule_earlier("a", 20)
    queue.schedule_earlier("a", 30)
    assert queue.next_due == 20
    queue.schedule_earlier("a", 10)
    assert queue.pop_due(10) == "a"


def test_keys_without_an_order_can_share_a_deadline() -> None:
    queue = DeadlineQueue([(5, 2j), (5, 1j)])
    queue.schedule(3j, 5)
    assert queue.pop_all_due(5) == [2j, 1j, 3j]


def test_a_key_scheduled_again_for_the_same_time_moves_to_the_end() -> None:
    """A round of streams that send at one time: each has its turn."""
    queue = DeadlineQueue([(5, "a"), (5, "b")])
    queue.schedule("a", 5)
    assert queue.pop_all_due(5) == ["b", "a"]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), max_size=4, unique_by=lambda pair: pair[1]),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=400),
)
def test_the_queue_equals_a_table_of_deadlines(
    initial: list[tuple[int, int]], steps: list[tuple[int, int, bool]]
) -> None:
    queue = DeadlineQueue(initial)
    table = {key: at for at, key in initial}
    for key, at, is_set in steps:
        if is_set:
            queue.schedule(key, at)
            table[key] = at
        else:
            queue.cancel(key)
            table.pop(key, None)
        assert queue.next_due == min(table.values(), default=None)
        assert (
            len(queue._heap) <= 2 * len(table) + 65
        )  # the bound that keeps a moving key from filling memory
    assert sorted(queue.pop_all_due(50)) == sorted(table)


def test_moved_and_cancelled_keys_do_not_make_the_heap_grow() -> None:
    queue: DeadlineQueue[int] = DeadlineQueue()
    for at in range(500):
        queue.schedule(0, at)
        assert len(queue._heap) <= 67
    for key in range(500):
        queue.schedule(key, 1000)
    for key in range(499):
        queue.cancel(key)
    assert len(queue._heap) <= 67
    assert queue.pop_all_due(1000) == [499]
