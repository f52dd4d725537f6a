# SPDX-License-Identifier: Apache-2.0
"""The LMDB environment of a store: durable commits, reserved space, and one error for every refusal to write."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import lmdb

from ustreamer.core.storage.errors import NotWritable
from ustreamer.core.storage.reader_table import DATA_FILE, allocate_reader_table
from ustreamer.core.storage.write_access import NO_ACCESS_ERRNOS
from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAP_SLACK: Final = 64 << 20
MAP_FACTOR: Final = 4
"""A value just above 2 KB takes a page of 4 KB, and a page is free again two commits later."""
RESERVE: Final = 2 << 20
"""Bytes in the file that only a deletion may use: twice the pages that `DELETE_BATCH` deletions touch.

A store with a small map reserves an eighth of the map.
"""
DELETE_BATCH: Final = 128

_PAGE: Final = 4096
_GROWTH: Final = 4 << 20
_FULL: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# LMDB reports every write that the file system cut short as EIO.
_NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def open_environment(path: Path, map_size: int, *, mode: int, shared: bool = True) -> lmdb.Environment:
    """Open or create an environment in which a commit survives a power cut. Raises lmdb.Error and OSError.

    `shared`: threads and commands read it meanwhile.
    """
    if shared:
        allocate_reader_table(str(path), mode)
    # writemap would end the process with SIGBUS on a full disk; without sync an accepted record may be lost.
    return lmdb.open(
        str(path), map_size=map_size, sync=True, metasync=True, writemap=False, mode=mode, lock=shared
    )


def open_read_only(path: Path, map_size: int) -> lmdb.Environment:
    """Open an environment for reading, while this process cannot write; it needs no space. Raises lmdb.Error."""
    return lmdb.open(str(path), map_size=map_size, readonly=True, lock=False)


def file_size(path: Path) -> int:
    """Bytes of the store's file; 0 if there is none."""
    file = path / DATA_FILE
    return file.stat().st_size if file.exists() else 0


def map_size_for(limit_bytes: int) -> int:
    """The map in which records of `limit_bytes` fit in any case."""
    return MAP_FACTOR * limit_bytes + MAP_SLACK


def preallocate(
    env: lmdb.Environment, path: Path, values: Sequence[bytes], reserve: int, known_size: int
) -> int:
    """Extend the file so that `reserve` bytes stay free after these values; return its size.

    `known_size`: the file has at least this size. Raises OSError where the disk is full.
    """
    stat = env.stat()
    used = _PAGE * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"])
    needed = 2 * sum(map(len, values)) + _PAGE // 8 * len(values) + reserve + used // 500 + 16 * _PAGE
    if used + needed <= known_size:
        return known_size
    size = file_size(path)
    missing = used + needed - size
    if missing <= 0:
        return size
    descriptor = os.open(path / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
    try:
        try:
            os.posix_fallocate(descriptor, size, max(missing, min(used, _GROWTH)))
        except OSError:
            os.posix_fallocate(descriptor, size, missing)
        return os.fstat(descriptor).st_size
    except OSError:
        with suppress(
            OSError
        ):  # ext4 keeps the part that had room: a refused write would take the rest of the disk
            os.ftruncate(descriptor, size)
        raise
    finally:
        os.close(descriptor)


def read_meta_pages(env: lmdb.Environment, path: Path) -> bytes:
    """Both meta pages of the store's file, for `restore_meta_pages`. 10 us."""
    with (path / DATA_FILE).open("rb", buffering=0) as file:
        return file.read(2 * int(env.stat()["psize"]))


def restore_meta_pages(path: Path, pages: bytes) -> None:
    """Undo a transaction whose meta page was written and not synced; `pages` are those before it.

    LMDB itself restores only two numbers in that page. The roots of the failed transaction stay, under the number of
    an older one. The next start takes that for damage: a flipped bit in the number of a whole page gives the same bytes.
    """
    with suppress(OSError):  # refused like the write of LMDB: then the page is as before
        descriptor = os.open(path / DATA_FILE, os.O_WRONLY | os.O_DSYNC | os.O_CLOEXEC)
        try:
            os.pwrite(descriptor, pages, 0)
        finally:
            os.close(descriptor)


def write_error(error: Exception, text: str) -> UStatusError:
    """The error of a commit that LMDB or the file system refuses.

    RESOURCE_EXHAUSTED where map or disk is full or where writing is not permitted now; else INTERNAL.
    """
    refused = is_disk_full(error) or _errno_of(error) in NO_ACCESS_ERRNOS
    return UStatusError(UCode.RESOURCE_EXHAUSTED if refused else UCode.INTERNAL, f"{text}: {error}")


def open_error(error: Exception, text: str) -> UStatusError:
    """The error of a store that cannot be opened: NotWritable where writing is not permitted, else UNAVAILABLE."""
    if _errno_of(error) in NO_ACCESS_ERRNOS:
        return NotWritable(f"{text}: {error}: expected permission to write")
    return UStatusError(UCode.UNAVAILABLE, f"{text}: {error}")


def is_disk_full(error: Exception) -> bool:
    """Whether a file system has no room for what is to be written, or cannot write at all."""
    return isinstance(error, _FULL) or _errno_of(error) in _NO_SPACE_ERRNOS


def _errno_of(error: Exception) -> int | None:
    return getattr(error, "code" if isinstance(error, lmdb.Error) else "errno", None)
