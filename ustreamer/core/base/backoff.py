# SPDX-License-Identifier: Apache-2.0
"""The pause before a retry: it doubles with each failure up to a maximum and is shortened at random. Pure.

The caller passes the random number. Without it, all gateways that lost the same peer would return to it at once.
"""

from typing import Final

_NS_PER_MS: Final = 1_000_000
_MAX_DOUBLINGS: Final = 20  # bounds the shift: 1 s doubled 20 times is 12 days


def backoff_ns(first_ms: int, max_ms: int, earlier_failures: int, jitter: float = 0.0) -> int:
    """The pause in ns after a failure that follows `earlier_failures` in a row; `jitter` as in `jittered_ns`."""
    return jittered_ns(min(max_ms, first_ms << min(earlier_failures, _MAX_DOUBLINGS)), jitter)


def jittered_ns(pause_ms: int, jitter: float) -> int:
    """The pause in ns; `jitter` (0 to 1) shortens `pause_ms` by up to half."""
    return round(pause_ms * (1 - jitter / 2) * _NS_PER_MS)
