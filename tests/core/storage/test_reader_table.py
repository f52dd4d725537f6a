# SPDX-License-Identifier: Apache-2.0
"""The reader table of LMDB has all its blocks before LMDB maps it, so that no full disk ends the process."""

import errno
import os
from pathlib import Path

import lmdb
import pytest

from tests.core.storage.refused_writes import run_on_small_disk
from ustreamer.core.storage.reader_table import LOCK_FILE, allocate_reader_table

MODE = 0o640


def allocated(directory: Path) -> int:
    return (directory / LOCK_FILE).stat().st_blocks * 512


def test_a_new_reader_table_is_whole_and_lmdb_uses_it(tmp_path: Path) -> None:
    allocate_reader_table(str(tmp_path), MODE)
    before = (tmp_path / LOCK_FILE).stat()
    assert (allocated(tmp_path), before.st_mode & 0o777) == (before.st_size, MODE & ~_umask())
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"b")
    after = (tmp_path / LOCK_FILE).stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size), "LMDB needs another size"


def test_a_sparse_reader_table_of_an_earlier_version_is_filled(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)):
        pass
    content = (tmp_path / LOCK_FILE).read_bytes()
    with (tmp_path / LOCK_FILE).open("r+b") as file:
        file.truncate(0)
        file.truncate(len(content))
    assert allocated(tmp_path) == 0
    allocate_reader_table(str(tmp_path))
    assert allocated(tmp_path) >= len(content)


def test_a_reader_makes_no_table(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        allocate_reader_table(str(tmp_path), create=False)
    assert not list(tmp_path.iterdir())


def test_no_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError) as refused:
        allocate_reader_table(str(tmp_path / "none"))
    assert refused.value.errno == errno.ENOENT


ON_FULL_DISK = """
import os, sys
from pathlib import Path
from ustreamer.core.storage.reader_table import allocate_reader_table

root = Path(sys.argv[1])
allocate_reader_table(str(root))
whole = root / "whole"
whole.mkdir()
(root / "lock.mdb").rename(whole / "lock.mdb")
(root / "ballast").write_bytes(b"x" * (os.statvfs(root).f_bavail * 4096))
try:
    allocate_reader_table(str(root))
except OSError as error:
    print(error.errno)
allocate_reader_table(str(whole))  # it needs no more room
if sys.argv[2:]:
    import lmdb
    lmdb.open(str(root))
"""


def test_a_full_disk_is_an_error_and_costs_a_whole_table_nothing(tmp_path: Path) -> None:
    assert run_on_small_disk(ON_FULL_DISK, tmp_path, "1m") == f"{errno.ENOSPC}\n"


def test_lmdb_alone_dies_of_a_full_disk(tmp_path: Path) -> None:
    """The negative control."""
    with pytest.raises(AssertionError):
        run_on_small_disk(ON_FULL_DISK, tmp_path, "1m", "open")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
