# SPDX-License-Identifier: Apache-2.0
"""The file with the ids of the last received messages: restarts, its fixed size, and a disk that refuses."""

import errno
import os
from pathlib import Path

import pytest

from tests.core.storage.refused_writes import with_refused_writes
from ustreamer.core.base.clock import ManualClock
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.host.storage.received_ids import ID_BYTES, ReceivedIdFile


def ids(first: int, end: int) -> list[bytes]:
    return [b"%0*d" % (ID_BYTES, each) for each in range(first, end)]


def joined(first: int, end: int) -> bytes:
    return b"".join(ids(first, end))


def open_file(path: Path, states: StoreStates | None = None) -> tuple[ReceivedIdFile, list[bytes]]:
    file = ReceivedIdFile(path / "received" / "link", lambda: 0, states, capacity=10)
    return file, file.load()


def test_the_last_ids_are_there_after_a_kill_in_order(tmp_path: Path) -> None:
    file, found = open_file(tmp_path)
    assert found == []
    size = 0
    for first, end in ((1, 4), (4, 13), (13, 40), (40, 41)):
        file.add(joined(first, end))
        killed, found = open_file(tmp_path)
        assert found == ids(max(1, end - 10), end)
        killed.close()
        size = size or (tmp_path / "received" / "link").stat().st_size
        assert (tmp_path / "received" / "link").stat().st_size == size
    file.close()
    file.close()


def test_a_damaged_file_yields_other_ids_and_no_error(tmp_path: Path) -> None:
    file, _ = open_file(tmp_path)
    file.add(joined(1, 5))
    file.close()
    path = tmp_path / "received" / "link"
    path.write_bytes(b"\xff" * 20 + path.read_bytes()[20:])
    file, found = open_file(tmp_path)
    assert set(ids(2, 5)) < set(found)
    file.add(joined(5, 7))
    file.close()


def test_a_disk_that_refuses_is_reported_until_it_accepts(tmp_path: Path) -> None:
    states = StoreStates()
    file, _ = open_file(tmp_path, states)
    with_refused_writes(errno.ENOSPC, lambda: file.add(joined(1, 2)))
    [state] = states.snapshot().values()
    assert state.degraded
    file.add(joined(1, 2))
    [state] = states.snapshot().values()
    assert (state.refused, state.degraded) == (1, "")
    file.close()


def test_without_a_file_nothing_is_kept_until_it_can_be_opened(tmp_path: Path) -> None:
    states, time = StoreStates(), ManualClock()
    directory = tmp_path / "received"
    directory.write_bytes(b"")
    file = ReceivedIdFile(directory / "link", time.clock().monotonic_ns, states, capacity=10)
    assert file.load() == []
    directory.unlink()
    file.add(joined(1, 2))  # within a second of the last try
    [state] = states.snapshot().values()
    assert state.degraded
    assert not directory.exists()
    time.advance(s=1)
    file.add(joined(2, 3))
    [state] = states.snapshot().values()
    assert not state.degraded
    file.close()
    assert open_file(tmp_path)[1] == ids(2, 3)


def test_a_file_that_opens_in_part_keeps_its_newest_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, _ = open_file(tmp_path)
    file.add(joined(1, 8))
    file.close()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    time = ManualClock()
    file = ReceivedIdFile(tmp_path / "received" / "link", time.clock().monotonic_ns, capacity=10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        for _ in range(2):
            file.add(joined(100, 101))
            time.advance(s=2)
    file.add(joined(101, 103))
    file.close()
    assert open_file(tmp_path)[1] == [*ids(1, 8), *ids(101, 103)]
