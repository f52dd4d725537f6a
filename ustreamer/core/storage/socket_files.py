# SPDX-License-Identifier: Apache-2.0
"""Whether a Unix socket may be bound at a path: only a stale socket file may be removed there."""

import socket
import stat
from contextlib import suppress
from pathlib import Path

from ustreamer.core.storage.write_access import write_obstacle


def socket_obstacle(path: Path) -> str:
    """The reason why no socket may be bound at a path, and what is expected; empty if there is none.

    The socket file of a killed process is none, because no process listens there. A symbolic link is no socket.
    """
    if not path.parent.is_dir():
        return f"{path.parent} is no directory"
    if obstacle := write_obstacle(path.parent):
        return obstacle
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return f"{path} is no socket: expected a free path, or a stale socket"
        return "" if is_stale(path) else f"another process listens at {path}"
    except FileNotFoundError:
        return ""


def lock_obstacle(path: Path) -> str:
    """As `socket_obstacle`, for the empty lock file next to a socket: its owner creates and removes it."""
    with suppress(FileNotFoundError):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size:
            return f"{path} is no lock file of a socket: expected a free path"
    return ""


def is_stale(path: Path) -> bool:
    """Whether no process listens at a socket file. Raises FileNotFoundError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a process with a full backlog listens, too
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return True
        except FileNotFoundError:
            raise
        except OSError:  # its backlog is full, it is of another user, or it is a socket for datagrams
            return False
    return False
