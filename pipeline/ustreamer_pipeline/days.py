# SPDX-License-Identifier: Apache-2.0
"""Dates in command line options."""

import datetime as dt
from typing import Final

from ustreamer_pipeline.errors import UsageError

LAST_DATE: Final = "9999-12-31"
"""The default of `--until`: no limit. An empty `--since` is none either."""


def day(option: str, text: str) -> str:
    """`text` if it is an ISO date or empty. Raises UsageError."""
    try:
        return dt.date.fromisoformat(text).isoformat() if text else ""
    except ValueError as error:
        raise UsageError(f"{option} {text}: expected a date, as 2026-11-21") from error
