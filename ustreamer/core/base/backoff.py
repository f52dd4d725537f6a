# SPDX-License-Identifier: Apache-2.0
"""The pause before a retry: doubles with each failure up to a maximum, and is shortened at random. Pure.

Callers pass the randomness. Without it, all gateways that lost the same peer would return to it at once.
"""

from typing import Final

_NS_PER_MS: Final = 1_000_000
_MAX_DOUBLINGS: Final = 20  # bounds the shift; a maximum of hours is reached before


def backoff_ns(first_ms: int, max_ms: int, earlier_failures: int, jitter: float = 0.0) -> int:
    """The pause in ns after a failure that follows `earlier_failures` in a row; `jitter` as in `jittered_ns`."""
    return jittered_ns(min(max_ms, first_ms << min(earlier_failures, _MAX_DOUBLINGS)), jitter)


def jittered_ns(pause_ms: int, jitter: float) -> int:
    """The pause in ns; `jitter` (0 to 1) takes up to half of it off."""
    return round(pause_ms * (1 - jitter / 2) * _NS_PER_MS)
