# SPDX-License-Identifier: Apache-2.0
from collections.abc import Hashable
from typing import TypeVar

from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.base.keyed_deadlines import KeyedDeadlines

K = TypeVar("K", bound=Hashable)


def due(deadlines: KeyedDeadlines[K], now: int) -> list[K]:
    return list(iter(lambda: deadlines.pop_due(now), None))


def test_keys_are_due_in_order_once_and_a_moved_one_at_its_new_time() -> None:
    deadlines: KeyedDeadlines[str] = KeyedDeadlines()
    for key, at in (("c", 30), ("a", 10), ("b", 20), ("a", 25)):
        deadlines.schedule(key, at)
    deadlines.cancel("c")
    deadlines.cancel("nobody")

    assert (deadlines.next_ns, len(deadlines), "a" in deadlines, "c" in deadlines) == (20, 2, True, False)
    assert due(deadlines, 19) == []
    assert due(deadlines, 25) == ["b", "a"]
    assert (due(deadlines, 1_000), deadlines.next_ns) == ([], None)


def test_an_earlier_deadline_replaces_a_later_one_and_not_the_other_way() -> None:
    deadlines: KeyedDeadlines[str] = KeyedDeadlines()
    deadlines.schedule_earlier("a", 20)
    deadlines.schedule_earlier("a", 30)
    assert deadlines.next_ns == 20
    deadlines.schedule_earlier("a", 10)
    assert due(deadlines, 10) == ["a"]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50), st.booleans()), max_size=400))
def test_as_a_plain_table_would(steps: list[tuple[int, int, bool]]) -> None:
    deadlines: KeyedDeadlines[int] = KeyedDeadlines()
    table: dict[int, int] = {}
    for key, number, is_set in steps:
        if is_set:
            deadlines.schedule(key, number)
            table[key] = number
        else:
            deadlines.cancel(key)
            table.pop(key, None)
        assert deadlines.next_ns == min(table.values(), default=None)
        assert len(deadlines._heap) <= 2 * len(table) + 65
    assert sorted(due(deadlines, 50)) == sorted(table)
