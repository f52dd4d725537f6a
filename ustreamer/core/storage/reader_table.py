# SPDX-License-Identifier: Apache-2.0
"""The file lock.mdb of a store: LMDB maps its reader table for writing.

LMDB makes the file without blocks. The first write to a mapped page without a block on a full disk is a SIGBUS, which
ends the process. With all blocks allocated, no later state of the disk does that: full, failing, or read-only.
"""

import os
from typing import Final

LOCK_FILE: Final = "lock.mdb"
DATA_FILE: Final = "data.mdb"
"""The other file of a store."""
_TABLE_BYTES: Final = 8192  # of LMDB for 126 readers, the default of `lmdb.open`
_BLOCK_BYTES: Final = 512  # the unit of st_blocks


def allocate_reader_table(directory: str, mode: int = 0o600, *, create: bool = True) -> None:
    """Allocate every block of the reader table. Raises OSError, on a full disk too, and if `create` is false and
    there is no table.

    Call it before `lmdb.open` and not while this process has the environment open: closing a file releases the locks
    that the process has on it.
    """
    path = f"{directory}/{LOCK_FILE}"
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), mode)
    try:
        stat = os.fstat(descriptor)
        size = max(stat.st_size, _TABLE_BYTES)
        # Not for a whole file: where a file system has no fallocate, libc writes to the file that others use.
        if stat.st_blocks * _BLOCK_BYTES < size:
            os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)
