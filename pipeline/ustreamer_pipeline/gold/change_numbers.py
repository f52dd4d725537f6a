# SPDX-License-Identifier: Apache-2.0
"""The rule `changes`: the changes of subscriptions in a run have contiguous numbers, and each number is there once.

In: rows of the small tables of one run. Out: what is wrong with the numbers. Pure.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Row = Mapping[str, Any]
_Span = tuple[int, int]
"""A number, and the number after the last one."""


class NumberFault(NamedTuple):
    """A fault of the numbers, at the time of a recording or a change."""

    time_us: int
    expected: str
    found: str


def change_faults(
    segments: Sequence[Row], changes: Sequence[Row], gaps: Sequence[Row]
) -> Iterator[NumberFault]:
    """Faults of one run. Missing recordings are no fault of it, and neither are changes that a gap counts."""
    in_order = sorted(segments, key=lambda row: row["number"])
    counted = Counter(row["number"] for row in changes)
    times = {row["number"]: row["time_us"] for row in changes}
    for number in sorted(number for number, times_found in counted.items() if times_found > 1):
        yield NumberFault(times[number], f"change {number} once", "twice")
    for before, after in pairwise(in_order):
        ended, begins = before["next_change"], after["first_change"]
        if before["number"] + 1 == after["number"] and ended not in (None, begins):
            expected = f"change {ended} first, as the recording before ends"
            yield NumberFault(after["began_us"], expected, f"change {begins}")
    missing = list(_without(_expected_numbers(in_order, counted), sorted(counted)))
    count = sum(end - first for first, end in missing)
    # The number of changes in damaged bytes is unknown.
    announced = sum(row["changes"] or 0 for row in gaps)
    if count > announced and all(row["changes"] is not None for row in gaps):
        first, last = missing[0][0], missing[-1][1] - 1
        numbers = f"{first}" if count == 1 else f"{first} to {last}"
        found = f"{count} missing, {announced} of them announced"
        time_us = max(row["began_us"] for row in in_order if row["first_change"] <= first)
        yield NumberFault(time_us, f"changes {numbers}, or a gap that counts them", found)


def _without(expected: Sequence[_Span], known: Sequence[int]) -> Iterator[_Span]:
    """The numbers of the spans that are not known, in order. A span may have more numbers than fit in memory."""
    until = 0
    for first, end in sorted(expected):
        begin = max(first, until)
        for number in known[bisect_left(known, begin) : bisect_left(known, end)]:
            if number > begin:
                yield begin, number
            begin = number + 1
        if end > begin:
            yield begin, end
        until = max(until, end)


def _expected_numbers(in_order: Sequence[Row], counted: Mapping[int, int]) -> list[_Span]:
    """The numbers of each recording. A recording that was cut off ends with its last known change."""
    expected: list[_Span] = []
    for row, after in zip(in_order, [*in_order[1:], None], strict=True):
        end = row["next_change"]
        if end is None and after is not None and row["number"] + 1 == after["number"]:
            end = after["first_change"]
        elif end is None:
            known = [each for each in counted if after is None or each < after["first_change"]]
            end = max(known, default=-1) + 1
        expected.append((row["first_change"], end))
    return expected
