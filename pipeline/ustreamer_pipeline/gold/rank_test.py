# SPDX-License-Identifier: Apache-2.0
"""The Mann-Whitney U test of two samples, and Holm's correction for many tests. Pure.

The test compares ranks, so it needs no distribution of the values, and one gateway with an extreme value changes
little. It is two-sided, with the normal approximation, corrected for ties and for continuity.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

MIN_SAMPLES: Final = 4
"""With fewer gateways on a side, no difference could be significant at 5 %."""

Values = npt.NDArray[np.float64]


def mann_whitney(one: Values, other: Values) -> float | None:
    """The p-value: the probability of such a difference without a cause. None for too few values."""
    n, m = len(one), len(other)
    if min(n, m) < MIN_SAMPLES:
        return None
    both = np.concatenate([one, other])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    u = float(ranks[:n].sum()) - n * (n + 1) / 2
    size = n + m
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    variance = n * m / 12 * (size + 1 - ties / (size * (size - 1)))
    if variance <= 0:
        return 1.0  # all values are equal
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values, corrected by Holm: below 0.05, the risk that any of them is chance is below 5 %."""
    known = sorted((p, at) for at, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    greatest = 0.0
    for place, (p, at) in enumerate(known):
        greatest = max(greatest, min(1.0, p * (len(known) - place)))
        adjusted[at] = greatest
    return adjusted
