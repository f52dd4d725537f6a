# SPDX-License-Identifier: Apache-2.0
"""Text formats that several commands share."""

import os
import sys
from datetime import UTC, datetime
from typing import Final

RED: Final = 31
GREEN: Final = 32
YELLOW: Final = 33
"""Colours of ECMA-48 (SGR)."""


def format_time(wall_ms: int) -> str:
    """A wall clock time in ISO 8601, in UTC, with milliseconds."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")


def use_colour() -> bool:
    """Whether stdout shows colours: a terminal, and the user has not set NO_COLOR."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, colour: int) -> str:
    """The text in a colour of a terminal."""
    return f"\x1b[{colour}m{text}\x1b[0m"
