# SPDX-License-Identifier: Apache-2.0
"""One streamer per state directory: who holds the lock may use, and replace, all that is in it."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ustreamer.uprotocol.ustatus import UCode, UStatusError

LOCK: Final = "ustreamer.lock"


class StateLock:
    """The lock file of a state directory, held within a `with` block; it says who holds it.

    The kernel frees the lock of a process that dies, so there is nothing to clean up.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock and make the directory. Raises UStatusError(UNAVAILABLE): somebody has it, or it cannot be made."""
        path = self.state_dir / LOCK
        try:
            self.state_dir.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise UStatusError(
                UCode.UNAVAILABLE, f"state_dir {self.state_dir}: cannot be used: {error}"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).strip().decode(errors="replace") or "unknown"
            os.close(descriptor)
            text = f"{path} is held by process {holder}: expected no other streamer on this state_dir"
            raise UStatusError(UCode.UNAVAILABLE, text) from None
        self._descriptor = descriptor
        with contextlib.suppress(OSError):  # a full disk: the lock holds all the same
            os.pwrite(descriptor, b"%-10d\n" % os.getpid(), 0)

    def release(self) -> None:
        """Let go. May be repeated."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
