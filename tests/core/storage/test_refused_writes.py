# SPDX-License-Identifier: Apache-2.0
"""A store on a disk that refuses writes: full, read-only, or without permission. Every refusal is the kernel's."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

import lmdb
import pytest

from tests.core.storage.number_store import deletions, key_of, number_store, numbers_in, record, records
from tests.core.storage.refused_writes import (
    run_on_small_disk,
    run_without_privileges,
    synced_descriptor,
    with_refused_writes,
)
from ustreamer.core.storage.lmdb_store import Change
from ustreamer.core.storage.reader_table import DATA_FILE
from ustreamer.core.storage.write_access import write_obstacle
from ustreamer.uprotocol.ustatus import UCode, UStatusError

NO_WRITES = ["EROFS", "EACCES", "EPERM", "ENOSPC", "EDQUOT", "EFBIG", "EIO"]


# --- while running ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NO_WRITES)
def test_a_refused_write_loses_nothing_and_the_store_recovers(tmp_path: Path, name: str) -> None:
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records(range(10)))
    for changes in (records([10]), deletions([3]), records(range(100, 120), 1_000_000)):
        error = with_refused_writes(getattr(errno, name), partial(store.commit, changes))
        assert isinstance(error, UStatusError)
        assert error.code is UCode.RESOURCE_EXHAUSTED
        assert f"{tmp_path}/s: {len(changes)} changes not made" in error.message
        assert numbers_in(store) == list(range(10))
    store.commit([*records([10]), *deletions([3])])
    store.close()
    assert store.open() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10]
    store.close()


@pytest.mark.parametrize("open_too", [False, True])
@pytest.mark.parametrize("name", ["EROFS", "EIO"])
def test_a_refused_meta_page_needs_no_restart(tmp_path: Path, name: str, open_too: bool) -> None:
    """LMDB refuses an environment after it: `PanicError`. Records are read meanwhile."""
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records(range(10)))
    error = with_refused_writes(
        getattr(errno, name), lambda: store.commit(records([10])), meta_pages_only=True, open_too=open_too
    )
    assert isinstance(error, UStatusError)
    assert error.code is UCode.RESOURCE_EXHAUSTED
    assert store.get(key_of(9)) == record(9)[1]  # before the next commit
    store.commit(records([11]))
    assert numbers_in(store) == [*range(10), 11]
    store.close()


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("changes", [records([10]), deletions([3])])
def test_a_transaction_whose_last_sync_failed_never_happened(
    tmp_path: Path, changes: list[Change], orderly: bool
) -> None:
    """LMDB leaves its roots in a meta page, under the number of an older transaction."""
    store = number_store(tmp_path / "s", refuse_damaged=True)
    store.open()
    for number in range(10):
        store.commit(records([number]))
    for _ in range(2):
        descriptor = synced_descriptor(tmp_path / "s" / DATA_FILE)
        error = with_refused_writes(errno.EIO, partial(store.commit, changes), descriptor=descriptor)
        assert isinstance(error, UStatusError)
    store.close(orderly=orderly)
    assert store.open() == list(range(10))
    store.close()


def test_a_store_on_a_read_only_disk_can_be_closed_and_is_verified_later(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records(range(10)))
    assert with_refused_writes(errno.EROFS, store.close) is None
    assert (tmp_path / "s.lock").stat().st_size > 0
    assert store.open() == list(range(10))
    store.close()


def test_an_invalid_record_is_an_internal_error(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s")
    store.open()
    with pytest.raises(UStatusError, match="1 changes not made") as refused:
        store.commit([(b"k" * 512, b"")])
    assert refused.value.code is UCode.INTERNAL
    store.close()


FULL = """
import random, sys
from pathlib import Path
from tests.core.storage.number_store import *
from ustreamer.uprotocol.ustatus import UCode, UStatusError

root, size = Path(sys.argv[1]), int(sys.argv[2])
(root / "more").write_bytes(b"x" * (4 << 20))
store = number_store(root / "s")
store.open()
def fill(count):
    try:
        while True:
            store.commit(records(range(count, count + 16), size))
            count += 16
    except UStatusError as error:
        assert error.code is UCode.RESOURCE_EXHAUSTED, error
    return count
count = fill(0)
with open(root / "others", "wb", buffering=0) as others:  # another program takes the rest
    try:
        while True:
            others.write(b"x" * 4096)
    except OSError:
        pass
count = fill(count)
assert count > 500, count
store.close()
assert store.open() == list(range(count))
shuffled = list(range(count))
random.Random(1).shuffle(shuffled)
store.commit(deletions(shuffled[:128]))
for at in range(128, count, 50):
    store.commit(deletions(shuffled[at : at + 50]))
assert numbers_in(store) == []
again = fill(0)  # although the disk is as full as before
assert again > count * 0.7, (count, again)
(root / "more").unlink()
assert fill(again) > again
print("ok")
"""


@pytest.mark.parametrize("size", [100, 1500, 9000])
def test_a_full_file_system_refuses_records_and_allows_deletions(tmp_path: Path, size: int) -> None:
    assert run_on_small_disk(FULL, tmp_path, "24m", str(size)) == "ok\n"


def test_a_store_whose_map_cannot_grow_is_read_and_written_as_before(tmp_path: Path) -> None:
    """LMDB closes the environment then. No process has so many addresses."""
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records(range(10)))
    size = store.map_size
    with pytest.raises(lmdb.Error):
        store.resize_map(1 << 48)
    assert store.map_size == size
    assert store.get(key_of(9)) == record(9)[1]
    store.commit(records([10]))
    assert numbers_in(store) == list(range(11))
    store.close()


# --- a disk that is full at the start ---------------------------------------------------------------------------

FULL_AT_START = """
import os, sys
from pathlib import Path
from tests.core.storage.number_store import *
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.uprotocol.ustatus import UCode, UStatusError

root, how = Path(sys.argv[1]), sys.argv[2]
kept = [1, 2] if how == "sparse" else []
states = StoreStates()
store = number_store(root / "s", states=states)
if kept:  # a store of an earlier version, whose reader table has no blocks
    store.open()
    store.commit(records(kept))
    store.close()
    os.truncate(root / "s" / "lock.mdb", 0)
(root / "ballast").write_bytes(b"x" * (os.statvfs(root).f_bavail * 4096))

def check_refusals():
    assert (numbers_in(store), store.get(key_of(1))) == (kept, record(1)[1] if kept else None)
    for changes in (records([3]), deletions([1]), records([3])):
        try:
            store.commit(changes)
        except UStatusError as error:
            assert error.code is UCode.RESOURCE_EXHAUSTED, error
            assert "No space left on device" in error.message or kept, error
        else:
            assert False, "not refused"
    store.resize_map(1 << 29)
    store.retry()
    assert numbers_in(store) == kept
    assert store.is_open and store.is_degraded

assert store.open() == kept
[state] = states.snapshot().values()
assert (state.refused, bool(state.degraded)) == (1, True)
check_refusals()
store.close()
assert (root / "s").exists() is bool(kept)  # commands see no damage
assert store.open() == kept
check_refusals()
(root / "ballast").unlink()
store.retry() if how == "retry" else store.commit(records([3]))
[state] = states.snapshot().values()
assert (state.refused, state.degraded) == (8, "")
assert numbers_in(store) == kept + ([] if how == "retry" else [3])
store.close()
assert store.open() == kept + ([] if how == "retry" else [3])
assert not store.is_degraded
store.close()
print("ok")
"""


@pytest.mark.parametrize("how", ["commit", "retry", "sparse"])
def test_a_store_without_room_opens_refuses_and_recovers(tmp_path: Path, how: str) -> None:
    assert run_on_small_disk(FULL_AT_START, tmp_path, "6m", how) == "ok\n"


DELETIONS = """
import os, sys
from pathlib import Path
from tests.core.storage.number_store import *
from ustreamer.uprotocol.ustatus import UStatusError

root = Path(sys.argv[1])
store = number_store(root / "s")
store.open()
store.commit(records(range(100)))
(root / "ballast").write_bytes(b"x" * (os.statvfs(root).f_bavail * 4096))
for number in range(3):
    try:
        store.commit(records(range(200, 400), 9000))
    except UStatusError as error:
        print(error.code.name, store.is_degraded)
    store.commit(deletions([number]))
    print(store.is_degraded)
store.commit(records([3]))
print(store.is_degraded)
"""


def test_deletions_do_not_end_the_degraded_state(tmp_path: Path) -> None:
    expected = ["RESOURCE_EXHAUSTED True", "True"] * 3 + ["False"]
    assert run_on_small_disk(DELETIONS, tmp_path, "8m").splitlines() == expected


# --- at start ---------------------------------------------------------------------------------------------------

READ_ONLY = """
import subprocess, sys
from pathlib import Path
from tests.core.storage.number_store import *
from ustreamer.core.storage.errors import NotWritable
from ustreamer.uprotocol.ustatus import UCode

root = Path(sys.argv[1])
def remount(how):
    subprocess.run(["mount", "-o", f"remount,{how}", str(root)], check=True)
store = number_store(root / "s")
for expected in ([], [1, 2]):
    remount("ro")
    try:
        store.open()
    except NotWritable as error:
        assert error.code is UCode.FAILED_PRECONDITION
        print(error.message)
    remount("rw")
    assert store.open() == expected
    store.commit(records([1, 2]))
    store.close()
assert sorted(path.name for path in root.iterdir()) == ["s", "s.lock"]
"""


def test_a_read_only_file_system_is_named_with_the_expected_mount(tmp_path: Path) -> None:
    output = run_on_small_disk(READ_ONLY, tmp_path, "24m").splitlines()
    obstacle = f"{tmp_path} is on a file system that is mounted read-only: expected read-write"
    text = f"store {tmp_path}/s: cannot be used: {obstacle}"
    assert output == [text, text]


OPEN = """
import sys
from pathlib import Path
from tests.core.storage.number_store import *
from ustreamer.uprotocol.ustatus import UStatusError

try:
    print(number_store(Path(sys.argv[1])).open())
except UStatusError as error:
    print(type(error).__name__, error.code.name, error.message)
"""


def make_unwritable(path: Path) -> None:
    path.chmod(0o555 if path.is_dir() else 0o444)


@pytest.mark.parametrize("name", ["below", "below/s", "below/s/data.mdb", "below/s/lock.mdb"])
def test_a_path_without_permission_is_named_with_the_expected_one(tmp_path: Path, name: str) -> None:
    store = number_store(tmp_path / "below" / "s")
    store.open()
    store.commit(records([1, 2]))
    store.close()
    path = tmp_path / name
    mode = path.stat().st_mode
    make_unwritable(path)
    output = run_without_privileges(OPEN, str(store.path))
    path.chmod(mode)
    assert output.startswith(
        f"NotWritable FAILED_PRECONDITION store {store.path}: cannot be used: {path} has owner "
    )
    assert "permission for user" in output
    # Nothing was damaged, and nothing was moved aside.
    assert {each.name for each in store.path.parent.iterdir()} == {"s", "s.lock"}
    assert run_without_privileges(OPEN, str(store.path)) == "[1, 2]\n"


def test_a_lock_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.lock").touch(0o400)
    output = run_without_privileges(OPEN, str(tmp_path / "s"))
    assert output.startswith("NotWritable FAILED_PRECONDITION")
    assert f"'{tmp_path}/s.lock': expected permission to write" in output


def test_an_unreadable_store_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records([1, 2]))
    store.close()
    (store.path / "data.mdb").chmod(0)
    assert run_without_privileges(OPEN, str(store.path)).startswith("NotWritable FAILED_PRECONDITION")
    assert {each.name for each in tmp_path.iterdir()} == {"s", "s.lock"}


@pytest.mark.parametrize(
    ("make", "obstacle"),
    [
        (lambda path: None, ""),
        (lambda path: path.mkdir(), ""),
        (lambda path: path.write_bytes(b""), " is a file: expected a directory"),
    ],
)
def test_the_obstacle_to_a_path_that_does_not_exist_is_that_of_its_parent(
    tmp_path: Path, make: Callable[[Path], object], obstacle: str
) -> None:
    make(tmp_path / "parent")
    expected = f"{tmp_path}/parent{obstacle}" if obstacle else ""
    assert write_obstacle(tmp_path / "parent" / "a" / "b") == expected
