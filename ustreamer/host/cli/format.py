# SPDX-License-Identifier: Apache-2.0
"""How commands say things."""

from datetime import UTC, datetime


def format_time(wall_ms: int) -> str:
    """A time of the wall clock in ISO 8601, in UTC, to the millisecond."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
