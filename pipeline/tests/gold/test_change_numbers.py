# SPDX-License-Identifier: Apache-2.0
"""A missing or doubled number of a subscription change is a fault, unless something explains it."""

from typing import Any

import pytest
from ustreamer_pipeline.gold.change_numbers import change_faults


def segment(number: int, first: int, following: int | None) -> dict[str, Any]:
    return {"number": number, "began_us": number, "first_change": first, "next_change": following}


def changes(*numbers: int) -> list[dict[str, Any]]:
    return [{"number": number, "time_us": 100 + number} for number in numbers]


def found(*args: Any) -> list[tuple[str, str]]:
    return [(fault.expected, fault.found) for fault in change_faults(*args)]


WHOLE = [segment(0, 0, 2), segment(1, 2, 5)]


@pytest.mark.parametrize(
    ("segments", "numbers", "announced"),
    [
        (WHOLE, (0, 1, 2, 3, 4), []),
        (WHOLE[1:], (2, 3, 4), []),  # the oldest recordings are deleted first
        (WHOLE, (0, 1, 2, 4), [1]),
        (WHOLE, (0, 4), [None]),  # damaged bytes
        ([segment(0, 0, 2), segment(1, 2, None)], (0, 1, 2), []),  # killed
        ([segment(0, 0, None), segment(1, 2, 3)], (0, 1, 2), []),
        ([segment(0, 0, 2), segment(2, 4, 5)], (0, 1, 4), []),  # a missing recording is a fault of `segments`
        ([segment(0, 0, None), segment(2, 4, 5)], (0, 1, 4), []),
        ([segment(0, 0, 0)], (), []),
    ],
)
def test_what_is_explained_is_no_fault(
    segments: list[dict[str, Any]], numbers: tuple[int, ...], announced: list[int | None]
) -> None:
    assert found(segments, changes(*numbers), [{"changes": count} for count in announced]) == []


@pytest.mark.parametrize(
    ("segments", "numbers", "fault"),
    [
        (WHOLE, (0, 1, 2, 3), ("changes 4, or a gap that counts them", "1 missing, 0 of them announced")),
        (WHOLE, (1, 4), ("changes 0 to 3, or a gap that counts them", "3 missing, 0 of them announced")),
        (WHOLE, (0, 1, 2, 2, 3, 4), ("change 2 once", "twice")),
        (
            [segment(0, 0, 2), segment(1, 3, 5)],
            (0, 1, 3, 4),
            ("change 2 first, as the recording before ends", "change 3"),
        ),
        (
            [segment(0, 0, None), segment(1, 2, 3)],
            (0, 2),
            ("changes 1, or a gap that counts them", "1 missing, 0 of them announced"),
        ),
        (
            [segment(0, 0, 1 << 62)],  # more numbers than fit in memory
            (0, 1),
            (
                f"changes 2 to {(1 << 62) - 1}, or a gap that counts them",
                f"{(1 << 62) - 2} missing, 0 of them announced",
            ),
        ),
    ],
)
def test_what_is_not_explained_is_named(
    segments: list[dict[str, Any]], numbers: tuple[int, ...], fault: tuple[str, str]
) -> None:
    assert found(segments, changes(*numbers), []) == [fault]
