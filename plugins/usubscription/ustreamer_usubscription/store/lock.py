# SPDX-License-Identifier: Apache-2.0
"""One streamer per state directory."""

import contextlib
import fcntl
import os
from pathlib import Path

from ustreamer.uprotocol.ustatus import UCode, UStatusError


class StoreInUse(UStatusError):
    """Another process, or another store in this one, has the state directory. UNAVAILABLE; `pid` is the holder's."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(
            UCode.UNAVAILABLE,
            f"{path} is held by process {pid or 'unknown'}: expected no other streamer on this state_dir",
        )
        self.pid = pid


class StoreLock:
    """A lock file that says who holds it; empty when its last holder let go of it in an orderly way.

    The kernel frees the lock of a process that dies, so there is nothing to clean up.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    def acquire(self) -> bool:
        """Take the lock; whether its last holder died with it. Raises StoreInUse, OSError."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = _read_pid(descriptor)
            os.close(descriptor)
            raise StoreInUse(self.path, pid) from None
        self._descriptor = descriptor
        holder_died = os.fstat(descriptor).st_size > 0
        with contextlib.suppress(OSError):  # a full disk: what is stored can be served all the same
            os.pwrite(descriptor, b"%-10d\n" % os.getpid(), 0)
        return holder_died

    def release(self, *, orderly: bool = True) -> None:
        """Let go; not `orderly`: as a process that dies would. May be repeated."""
        if self._descriptor is not None:
            if orderly:
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(path: Path) -> int | None:
    """The process that holds the lock file now; None if nobody does."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read_pid(descriptor) or 0
    finally:
        os.close(descriptor)
    return None


def _read_pid(descriptor: int) -> int | None:
    text = os.pread(descriptor, 32, 0).strip()
    return int(text) if text.isdigit() else None
