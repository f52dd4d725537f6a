# SPDX-License-Identifier: Apache-2.0
"""Texts of Zenoh errors without the positions in Zenoh's source files."""

import re
from typing import Final

import zenoh

_RAISED_AT: Final = r"\s+at \S+\.rs:\d+\.?"


def zenoh_error_text(error: zenoh.ZError) -> str:
    """The readable text of `error` on one line."""
    return " ".join(re.sub(_RAISED_AT, "", str(error)).split())
