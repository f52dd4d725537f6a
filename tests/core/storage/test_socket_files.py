# SPDX-License-Identifier: Apache-2.0
"""Paths of Unix sockets: only a stale socket file, and an empty lock file, may be replaced."""

import os
import socket
from pathlib import Path

import pytest

from ustreamer.core.storage.socket_files import lock_obstacle, socket_obstacle


def bound(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket:
    opened = socket.socket(socket.AF_UNIX, kind)
    opened.bind(str(path))
    return opened


def test_a_free_path_and_the_socket_of_a_killed_process_have_no_obstacle(tmp_path: Path) -> None:
    assert socket_obstacle(tmp_path / "s") == ""
    bound(tmp_path / "s").close()
    assert (tmp_path / "s").is_socket()
    assert socket_obstacle(tmp_path / "s") == ""
    assert (tmp_path / "s").is_socket()


@pytest.mark.parametrize("kind", ["file", "directory", "pipe", "link", "dangling link"])
def test_what_is_no_socket_is_an_obstacle_and_stays(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "s"
    match kind:
        case "file":
            path.write_text("kept")
        case "directory":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "link":
            (tmp_path / "target").touch()
            path.symlink_to(tmp_path / "target")
        case _:
            path.symlink_to(tmp_path / "none")
    assert socket_obstacle(path) == f"{path} is no socket: expected a free path, or a stale socket"
    assert os.path.lexists(path)


def test_a_listening_socket_is_an_obstacle_also_with_a_full_backlog(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with (
        bound(path) as listening,
        socket.socket(socket.AF_UNIX) as first,
        socket.socket(socket.AF_UNIX) as second,
    ):
        listening.listen(0)
        for each in (first, second):
            each.setblocking(False)
            each.connect_ex(str(path))
        assert socket_obstacle(path) == f"another process listens at {path}"


def test_a_socket_for_datagrams_is_an_obstacle(tmp_path: Path) -> None:
    with bound(tmp_path / "s", socket.SOCK_DGRAM):
        assert socket_obstacle(tmp_path / "s") == f"another process listens at {tmp_path}/s"


def test_a_missing_directory_is_an_obstacle(tmp_path: Path) -> None:
    assert socket_obstacle(tmp_path / "none" / "s") == f"{tmp_path}/none is no directory"


def test_only_an_empty_file_is_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "s.lock"
    assert lock_obstacle(path) == ""
    path.touch()
    assert lock_obstacle(path) == ""
    path.write_text("kept")
    assert lock_obstacle(path) == f"{path} is no lock file of a socket: expected a free path"
    path.unlink()
    path.mkdir()
    assert lock_obstacle(path)
