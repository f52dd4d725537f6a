# SPDX-License-Identifier: Apache-2.0
"""Text formats that several commands share."""

from datetime import UTC, datetime


def format_time(wall_ms: int) -> str:
    """A wall clock time in ISO 8601, in UTC, with milliseconds."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
