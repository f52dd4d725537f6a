# SPDX-License-Identifier: Apache-2.0
"""The rule `changes`: the changes of subscriptions in a run have contiguous numbers, and each number is there once.

In: rows of the small tables of one run. Out: what is wrong with the numbers. Pure.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Row = Mapping[str, Any]


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
    missing = sorted(_expected_numbers(in_order, counted) - counted.keys())
    # The number of changes in damaged bytes is unknown.
    announced = sum(row["changes"] or 0 for row in gaps)
    if len(missing) > announced and all(row["changes"] is not None for row in gaps):
        numbers = f"{missing[0]}" if len(missing) == 1 else f"{missing[0]} to {missing[-1]}"
        found = f"{len(missing)} missing, {announced} of them announced"
        time_us = max(row["began_us"] for row in in_order if row["first_change"] <= missing[0])
        yield NumberFault(time_us, f"changes {numbers}, or a gap that counts them", found)


def _expected_numbers(in_order: Sequence[Row], counted: Mapping[int, int]) -> set[int]:
    """The numbers of these recordings. A recording that was cut off ends with its last known change."""
    expected: set[int] = set()
    for row, after in zip(in_order, [*in_order[1:], None], strict=True):
        end = row["next_change"]
        if end is None and after is not None and row["number"] + 1 == after["number"]:
            end = after["first_change"]
        elif end is None:
            known = [each for each in counted if after is None or each < after["first_change"]]
            end = max(known, default=-1) + 1
        expected.update(range(row["first_change"], end))
    return expected
