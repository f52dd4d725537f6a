# SPDX-License-Identifier: Apache-2.0
"""Whether this process may write at a path, judged before the first write: a path in, the obstacle out."""

import errno
import os
from pathlib import Path
from typing import Final

from ustreamer.core.storage.errors import NotWritable

NO_ACCESS_ERRNOS: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""A write is refused by the mount, the permissions or the flags of a file."""


def require_writable(name: str, *paths: Path) -> None:
    """Raises NotWritable for the first path that this process may not write, or create; `name` begins the message."""
    for path in paths:
        if obstacle := write_obstacle(path):
            raise NotWritable(f"{name}: cannot be used: {obstacle}")


def write_obstacle(path: Path) -> str:
    """The reason why this process may not write or create a path, and what is expected; empty if there is none."""
    existing = next(each for each in (path, *path.parents) if os.access(each, os.F_OK))
    is_directory = existing.is_dir()
    if existing != path and not is_directory:
        return f"{existing} is a file: expected a directory"
    if obstacle := _length_obstacle(path, existing):
        return obstacle
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        return f"{existing} is on a file system that is mounted read-only: expected read-write"
    wanted = os.R_OK | os.W_OK | (os.X_OK if is_directory else 0)
    if os.access(existing, wanted, effective_ids=True):
        return ""
    stat = existing.stat()
    right = "read, write and search" if is_directory else "read and write"
    return (
        f"{existing} has owner {stat.st_uid}:{stat.st_gid} and mode {stat.st_mode & 0o7777:04o}: "
        f"expected {right} permission for user {os.geteuid()}, and no immutable flag"
    )


def _length_obstacle(path: Path, existing: Path) -> str:
    """The reason why a path below an existing one is too long for its file system; empty if it is not."""
    longest = os.pathconf(existing, "PC_NAME_MAX")
    for name in path.relative_to(existing).parts:
        size = len(os.fsencode(name))
        if size > longest:
            return f"the name {name[:20]}... has {size} bytes: expected at most {longest}"
    size, most = len(os.fsencode(path)), os.pathconf("/", "PC_PATH_MAX") - 1
    return f"the path has {size} bytes: expected at most {most}" if size > most else ""
