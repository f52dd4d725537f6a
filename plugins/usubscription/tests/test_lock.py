# SPDX-License-Identifier: Apache-2.0
"""One streamer per state directory, and what the file tells of the last one."""

import os
from pathlib import Path

import pytest
from ustreamer_usubscription.lock import StoreInUse, StoreLock, holder


def test_a_second_holder_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    first = StoreLock(path)
    assert first.acquire() is False
    with pytest.raises(StoreInUse, match=f"held by process {os.getpid()}") as refused:
        StoreLock(path).acquire()
    assert (refused.value.pid, holder(path)) == (os.getpid(), os.getpid())
    first.release()
    assert (holder(path), StoreLock(path).acquire()) == (None, False)


@pytest.mark.parametrize(("orderly", "died"), [(True, False), (False, True)])
def test_the_next_holder_learns_whether_the_last_one_died(tmp_path: Path, orderly: bool, died: bool) -> None:
    lock = StoreLock(tmp_path / "lock")
    lock.acquire()
    lock.release(orderly=orderly)
    lock.release(orderly=orderly)
    assert lock.acquire() is died
    lock.release()


def test_where_there_is_no_file_nobody_holds_it(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") is None
