# SPDX-License-Identifier: Apache-2.0
"""What Zenoh's errors say, without where in its own sources they were raised."""

import re
from typing import Final

import zenoh

_RAISED_AT: Final = re.compile(r"\s+at \S+\.rs:\d+\.?")


def zenoh_error_text(error: zenoh.ZError) -> str:
    """The text of `error` for people, on one line."""
    return " ".join(_RAISED_AT.sub("", str(error)).split())
