# SPDX-License-Identifier: Apache-2.0
"""Time steps of a report: of common widths, and at most STEPS of them.

The width belongs to the times of the whole fleet, which are known after the pass over all gateways. A gateway therefore
counts in steps of its own that divide every width the fleet may have: those of its own times, or narrower.
"""

from typing import Final, TypeVar

from ustreamer_pipeline.replay.rows import Ints

WIDTHS_S: Final = (1, 2, 5, 10, 30, 60, 300, 900, 3_600, 21_600, 86_400)
"""Widths of time steps with common names."""
STEPS: Final = 120
"""Maximum time steps of a plot; narrower steps are noise."""
_MERGED_S: Final = tuple(
    width for width in WIDTHS_S if all(wider % width == 0 for wider in WIDTHS_S if wider >= width)
)
"""Widths that divide all wider ones: all but 2 s."""

Seconds = TypeVar("Seconds", int, Ints)


def step_width_s(seconds: float) -> int:
    """The narrowest width that divides `seconds` into at most STEPS steps."""
    return next((width for width in WIDTHS_S if seconds / width <= STEPS), WIDTHS_S[-1])


def merged_width_s(seconds: float) -> int:
    """The widest width that divides the width of every fleet with these seconds or more."""
    return max(width for width in _MERGED_S if width <= step_width_s(seconds))


def step_of(time_s: Seconds, width: int) -> Seconds:
    """The beginning of the step of a time, both in s since 1970; `width` is in s."""
    return time_s // width * width
