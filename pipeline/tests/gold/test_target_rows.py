# SPDX-License-Identifier: Apache-2.0
"""Groups of the rows of publications, compared with loops over the rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_pipeline.gold.rules.dead_letters import _are_in
from ustreamer_pipeline.gold.rules.target_rows import examples, places_by_value
from ustreamer_pipeline.gold.rules.target_stretches import _MAX_BITS, _may_be_doubled

SMALL = st.integers(0, 5)


@given(st.lists(st.tuples(SMALL, SMALL, SMALL, SMALL), max_size=300))
def test_an_example_is_the_first_row_by_seq_of_its_group(drawn: list[tuple[int, int, int, int]]) -> None:
    table = np.array(drawn, dtype=np.int64).reshape(-1, 4).T
    rows = {"seq": table[2], "arrived_ns": table[3], "received_us": np.arange(len(drawn))}
    expected = {}
    for values in dict.fromkeys(each[:2] for each in drawn):
        mine = [at for at, each in enumerate(drawn) if each[:2] == values]
        first = min(mine, key=lambda at: (drawn[at][2], at))
        expected[values] = first, (drawn[first][2], first, min(drawn[at][3] for at in mine), len(mine))
    assert {
        values: (at, tuple(each)) for values, at, each in examples([table[0], table[1]], rows)
    } == expected


@given(st.lists(st.integers(0, 1 << 17), max_size=50))
def test_the_places_of_a_value_are_in_order(column: list[int]) -> None:
    found = {value: at.tolist() for value, at in places_by_value(np.array(column, dtype=np.int64))}
    assert found == {
        value: [at for at, each in enumerate(column) if each == value] for value in dict.fromkeys(column)
    }


@given(st.lists(st.lists(st.integers(0, 45), min_size=1, max_size=60), min_size=1, max_size=5))
def test_a_target_that_is_there_twice_is_seen(places: list[list[int]]) -> None:
    starts = np.cumsum([0, *map(len, places[:-1])])
    found = _may_be_doubled(np.array([each for mine in places for each in mine], dtype=np.int64), starts)
    is_doubled = any(len(set(mine)) < len(mine) for mine in places)
    assert found == (is_doubled or max(map(max, places)) >= _MAX_BITS)


@pytest.mark.parametrize("letters", [[], [3], [1, 3, 9]])
def test_rows_with_a_dead_letter_are_found(letters: list[int]) -> None:
    numbers = np.array([9, 3, 4, 3, 0, 10])
    assert _are_in(numbers, np.array(letters, dtype=np.int64)).tolist() == [
        each in letters for each in numbers.tolist()
    ]
