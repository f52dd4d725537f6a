# SPDX-License-Identifier: Apache-2.0
"""The LMDB environment of a store: durable commits, and the same behaviour on a full map and a full disk."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import lmdb

from ustreamer.core.storage.lmdb_tree import DATA_FILE
from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAP_SLACK: Final = 64 << 20
MAP_FACTOR: Final = (
    4  # a value just above 2 KB takes a page of 4 KB, and a page is free again two commits later
)

_PAGE: Final = 4096
_GROWTH: Final = 4 << 20
_FULL: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# LMDB reports every write that the file system cut short as EIO.
_NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_environment(path: Path, map_size: int, *, mode: int) -> lmdb.Environment:
    """Open or create an environment in which a commit survives a power cut."""
    # writemap would end the process with SIGBUS on a full disk; without sync an accepted record may be lost.
    return lmdb.open(str(path), map_size=map_size, sync=True, metasync=True, writemap=False, mode=mode)


def file_size(path: Path) -> int:
    """Bytes of the store's file; 0 if there is none."""
    file = path / DATA_FILE
    return file.stat().st_size if file.exists() else 0


def map_size_for(limit_bytes: int) -> int:
    """The map in which records of `limit_bytes` fit in any case."""
    return MAP_FACTOR * limit_bytes + MAP_SLACK


@contextmanager
def larger_map(path: Path, map_size: int, set_map_size: Callable[[int], None]) -> Iterator[None]:
    """Double the map meanwhile, so that records can be deleted from a full one.

    LMDB copies each page that it changes before it frees any; a copy of every page is the worst case. Afterwards LMDB
    makes the map no smaller than the used part.
    """
    set_map_size(2 * max(map_size, file_size(path)))
    try:
        yield
    finally:
        set_map_size(map_size)


def preallocate(env: lmdb.Environment, path: Path, values: Sequence[bytes], reserve: int) -> None:
    """Extend the file so that `reserve` bytes stay free after these values. Raises OSError where the disk is full."""
    stat = env.stat()
    used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
    needed = sum(2 * len(value) + _PAGE // 8 for value in values) + reserve + _PAGE * (used // 500 + 16)
    size = file_size(path)
    missing = used * _PAGE + needed - size
    if missing <= 0:
        return
    descriptor = os.open(path / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            os.posix_fallocate(descriptor, size, max(missing, _GROWTH))
        except OSError:
            os.posix_fallocate(descriptor, size, missing)
    finally:
        os.close(descriptor)


def write_error(error: Exception, text: str) -> UStatusError:
    """RESOURCE_EXHAUSTED where map or disk is full, INTERNAL for any other error of LMDB or the file system."""
    number = getattr(error, "code" if isinstance(error, lmdb.Error) else "errno", None)
    full = isinstance(error, _FULL) or number in _NO_SPACE_ERRNOS
    return UStatusError(UCode.RESOURCE_EXHAUSTED if full else UCode.INTERNAL, f"{text}: {error}")
