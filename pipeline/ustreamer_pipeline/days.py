# SPDX-License-Identifier: Apache-2.0
"""Days as a user writes them."""

import datetime as dt

from ustreamer_pipeline.errors import UsageError


def day(option: str, text: str) -> str:
    """`text` if it is a date, or empty. Raises UsageError."""
    try:
        return dt.date.fromisoformat(text).isoformat() if text else ""
    except ValueError as error:
        raise UsageError(f"{option} {text}: expected a date, as 2026-11-21") from error
