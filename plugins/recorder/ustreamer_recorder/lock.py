# SPDX-License-Identifier: Apache-2.0
"""One streamer per directory of recordings: two would delete each other's to keep below `max_bytes`."""

import fcntl
import os
from pathlib import Path
from typing import Final

from ustreamer.uprotocol.ustatus import UCode, UStatusError

LOCK_NAME: Final = ".lock"


class DirectoryLock:
    """Held for life; the kernel frees that of a process that dies."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / LOCK_NAME
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Raises UStatusError(UNAVAILABLE) naming who has it; OSError if there can be no such file."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            text = f"{self._path} is held by process {pid}: expected no other streamer that records there"
            raise UStatusError(UCode.UNAVAILABLE, text) from None
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
        except OSError:  # a full disk: the lock holds all the same
            pass
        self._descriptor = descriptor

    def release(self) -> None:
        """May be repeated."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
