# SPDX-License-Identifier: Apache-2.0
"""The sublist against its oracle: a list that is searched with `UUri.matches`."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.core.routing.sublist import Sublist
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from _typeshed import TraceFunction

# Few values for each part, so that random patterns and addresses meet often.
addresses = st.builds(
    UUri,
    st.sampled_from(["", "a", "b"]),
    st.sampled_from([1, 2, 0x10001, 0x10002]),
    st.sampled_from([1, 2]),
    st.sampled_from([0x8000, 0x8001]),
)
patterns = st.builds(
    UUri,
    st.sampled_from(["", "a", "b", "*"]),
    st.sampled_from([1, 2, 0x10001, 0xFFFF, 0x1FFFF, 0xFFFF0001, 0xFFFFFFFF]),
    st.sampled_from([1, 2, 0xFF]),
    st.sampled_from([0x8000, 0x8001, 0xFFFF]),
)
values = st.integers(0, 3)
changes = st.lists(st.tuples(st.booleans(), patterns | addresses, values), max_size=40)


class Naive:
    """Pairs in order of insertion."""

    def __init__(self) -> None:
        self.pairs: list[tuple[UUri, int]] = []

    def insert(self, pattern: UUri, value: int) -> bool:
        new = (pattern, value) not in self.pairs
        if new:
            self.pairs.append((pattern, value))
        return new

    def remove(self, pattern: UUri, value: int) -> bool:
        known = (pattern, value) in self.pairs
        if known:
            self.pairs.remove((pattern, value))
        return known

    def match(self, address: UUri) -> list[int]:
        return [value for pattern, value in self.pairs if pattern.matches(address)]


# [utest->dsn~uri-pattern-matching~2]
@settings(max_examples=100, deadline=None)
@given(changes, st.lists(addresses | patterns, min_size=1, max_size=8))
def test_a_match_equals_a_search_through_all_patterns(
    changes: list[tuple[bool, UUri, int]], sent_request: list[UUri]
) -> None:
    sublist, naive = Sublist[int](), Naive()
    for adds, pattern, value in changes:
        same, as_naive = (
            (sublist.insert(pattern, value), naive.insert(pattern, value))
            if adds
            else (sublist.remove(pattern, value), naive.remove(pattern, value))
        )
        assert same is as_naive
    assert len(sublist) == len(naive.pairs)
    assert Counter(sublist) == Counter(value for _, value in naive.pairs)
    for address in sent_request:
        assert Counter(sublist.match(address)) == Counter(naive.match(address))


def test_exact_values_come_first_and_each_group_in_order_of_insertion() -> None:
    sublist, address = Sublist[str](), UUri("a", 1, 1, 0x8000)
    for pattern, value in [(ANY, "any 1"), (address, "exact 2"), (ANY, "any 0"), (address, "exact 1")]:
        sublist.insert(pattern, value)
    assert sublist.match(address) == ["exact 2", "exact 1", "any 1", "any 0"]


@pytest.mark.parametrize("pattern", [UUri("a", 1, 1, 0x8000), UUri("a", 0xFFFF0001, 1, 0x8000), ANY])
def test_a_value_is_inserted_once_and_removed_once(pattern: UUri) -> None:
    sublist = Sublist[str]()
    assert [sublist.insert(pattern, "x"), sublist.insert(pattern, "x")] == [True, False]
    assert [sublist.remove(pattern, "x"), sublist.remove(pattern, "x")] == [True, False]
    assert sublist.match(UUri("a", 1, 1, 0x8000)) == []


def test_a_removed_value_leaves_no_memory_behind() -> None:
    sublist = Sublist[int]()
    pairs = [(UUri("a", n, 1, 0x8000), n) for n in range(50)] + [
        (UUri("*", n, 1, 0x8000), n) for n in range(50)
    ]
    for pattern, value in pairs:
        sublist.insert(pattern, value)
    for pattern, value in pairs:
        assert sublist.remove(pattern, value)
        assert not sublist.remove(pattern, value)
    assert not sublist._exact
    assert not sublist._wild


# -------------------------------------------------------------------------------------------------- the cost of a match


def steps_of(work: Callable[[], object]) -> int:
    """The number of interpreter instructions of `work`: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, argument: object) -> "TraceFunction":
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    outer = sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # 3.12 reports opcodes only if a frame wanted them before settrace
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(outer)
    assert count, "no instruction was counted"
    return count


def sublist_of(*patterns: UUri) -> Sublist[int]:
    made = Sublist[int]()
    for number, pattern in enumerate(patterns):
        made.insert(pattern, number)
    return made


ADDRESS = UUri("a", 1, 1, 0x8000)
EXACT = [UUri("a", 1, 1, 0x8000 + n) for n in range(2000)]


def test_an_exact_match_costs_the_same_for_one_pattern_and_for_two_thousand() -> None:
    few, many = sublist_of(ADDRESS), sublist_of(*EXACT)
    assert few.match(ADDRESS) == many.match(ADDRESS) == [0]
    assert steps_of(lambda: many.match(ADDRESS)) == steps_of(lambda: few.match(ADDRESS))


def test_exact_patterns_do_not_slow_a_wildcard_match() -> None:
    few, many = sublist_of(ADDRESS, ANY), sublist_of(*EXACT, ANY)
    assert steps_of(lambda: many.match(ADDRESS)) == steps_of(lambda: few.match(ADDRESS))


def test_the_cost_of_a_match_grows_with_wildcard_masks_and_not_with_patterns() -> None:
    one_mask = [UUri("*", 1, 1, 0x8000 + n) for n in range(2000)]
    few, many = sublist_of(one_mask[0]), sublist_of(*one_mask)
    two_masks = sublist_of(*one_mask, UUri("a", 1, 0xFF, 0x8000))
    assert steps_of(lambda: many.match(ADDRESS)) == steps_of(lambda: few.match(ADDRESS))
    assert steps_of(lambda: two_masks.match(ADDRESS)) > steps_of(lambda: many.match(ADDRESS))
