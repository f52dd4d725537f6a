# SPDX-License-Identifier: Apache-2.0
"""The lock of a state directory: its holder may use and replace every file in the directory."""

from pathlib import Path
from typing import Final

from ustreamer.core.storage.environment import open_error
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.write_access import require_writable

LOCK: Final = "ustreamer.lock"


class StateLock(FileLock):
    """The `FileLock` of a state directory, which `acquire` creates if it is missing."""

    def __init__(self, state_dir: Path) -> None:
        super().__init__(state_dir / LOCK)

    def acquire(self) -> bool:
        """As `FileLock.acquire`. Raises NotWritable, or UStatusError(UNAVAILABLE) for another reason."""
        name = f"state_dir {self.path.parent}"
        require_writable(name, self.path.parent, self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return super().acquire()
        except OSError as error:
            raise open_error(error, f"{name}: cannot be used") from error
