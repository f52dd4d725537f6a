# SPDX-License-Identifier: Apache-2.0
"""Texts of Zenoh errors without the positions in Zenoh's source files."""

import re
from typing import Final

_RAISED_AT: Final = r"\s+at \S+\.rs:\d+\.?"


def zenoh_error_text(error: BaseException) -> str:
    """The readable text of `error` on one line."""
    return " ".join(re.sub(_RAISED_AT, "", str(error)).split())


def is_panic(error: BaseException) -> bool:
    """Whether Zenoh's Rust code failed: pyo3 raises a BaseException of a class that cannot be imported."""
    return type(error).__name__ == "PanicException"
