# SPDX-License-Identifier: Apache-2.0
"""Folders in command line options and in the arguments of a job."""

import re
from pathlib import Path
from typing import Final

from ustreamer_pipeline.errors import UsageError

_SCHEME: Final = re.compile(r"[^/]*:")
"""As Hadoop finds the scheme of a URL: a colon before the first slash."""


def is_url(name: str) -> bool:
    return _SCHEME.match(name) is not None


def local_folder(name: str | Path) -> Path:
    """The path of a folder that this process writes itself. Raises UsageError for a URL."""
    if is_url(str(Path(name))):
        raise UsageError(f"{name}: expected a folder of a local or mounted file system, and not a URL")
    return Path(name)
