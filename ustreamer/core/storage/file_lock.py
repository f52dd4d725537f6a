# SPDX-License-Identifier: Apache-2.0
"""A lock file: one process, and one object in that process, owns the files next to it."""

import contextlib
import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from ustreamer.uprotocol.ustatus import UCode, UStatusError

_PID_BYTES = 32
_LOCKS = Path("/proc/locks")


class FileLockHeld(UStatusError):
    """Another process, or another lock in this process, holds the file. UNAVAILABLE; `pid` is the holder's."""

    def __init__(self, path: Path, pid: int | None, expected: str) -> None:
        super().__init__(
            UCode.UNAVAILABLE, f"{path} is held by process {pid or 'unknown'}: expected {expected}"
        )
        self.pid = pid


class FileLock:
    """An exclusive lock on `path`. The file holds the holder's pid and is empty after an orderly release.

    The kernel releases the lock of a killed process, so no clean-up is needed. `expected` ends the error text of
    `FileLockHeld`. Constructing the lock touches no file.
    """

    def __init__(
        self, path: Path, expected: str = "no other streamer on this state_dir", *, mode: int = 0o640
    ) -> None:
        self.path = path
        self._expected = expected
        self._mode = mode
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Acquire the lock; true if the last holder was killed. Raises FileLockHeld, and OSError for the file."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._mode)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise FileLockHeld(self.path, pid, self._expected) from None
        self._descriptor = descriptor
        holder_killed = os.fstat(descriptor).st_size > 0
        with contextlib.suppress(OSError):  # on a full disk the lock holds without its pid
            os.pwrite(descriptor, b"%-10d\n" % os.getpid(), 0)
        return holder_killed

    def release(self, *, orderly: bool = True) -> None:
        """Release the lock. Not `orderly`: leave the pid, as a killed process does. May be repeated."""
        if self._descriptor is not None:
            if orderly:
                with contextlib.suppress(OSError):  # on a read-only file system the pid stays
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


def lock_holder(path: Path) -> int | None:
    """The pid that holds the lock file now; 0 if the pid is unknown, None if the lock is free.

    By the kernel's list of locks: to try the lock could make a process fail that starts just now.
    """
    try:
        inode = str(path.stat().st_ino)
        locks = [line.split() for line in _LOCKS.read_text(encoding="ascii").splitlines()]
    except OSError:
        return None
    # 1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF
    pids = (each[4] for each in locks if each[1] == "FLOCK" and each[5].rpartition(":")[2] == inode)
    return next((max(0, int(each)) for each in pids), None)


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, _PID_BYTES, 0).strip()
    return int(text) if text.isdigit() else None
