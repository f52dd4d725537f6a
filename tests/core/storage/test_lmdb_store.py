# SPDX-License-Identifier: Apache-2.0
"""The store under the spool, the dead letters and the subscriptions: opening, damage, a full map, replacements."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest

from tests.core.storage.number_store import (
    deletions,
    key_of,
    layout_record,
    number_store,
    numbers_in,
    record,
    records,
)
from ustreamer.core.storage import store_reader
from ustreamer.core.storage.environment import RESERVE, file_size
from ustreamer.core.storage.errors import StoreDamaged, StoreTooNew
from ustreamer.core.storage.file_lock import FileLockHeld
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.core.storage.lmdb_store import LmdbStore
from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.core.storage.store_files import MAX_QUARANTINED
from ustreamer.uprotocol.ustatus import UCode, UStatusError

MB = 1 << 20
PAGE = 4096


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore[list[int]]]:
    store = number_store(tmp_path / "s")
    assert store.open() == []
    yield store
    store.close()


def filled(path: Path, count: int = 2000) -> LmdbStore[list[int]]:
    """A closed store with records; half of the file is half of its pages in use."""
    store = number_store(path)
    store.open()
    for start in range(0, count, 100):
        store.commit(records(range(start, start + 100)))
    store.close()
    data = path / "data.mdb"
    os.truncate(data, (LmdbTree(data.read_bytes())._meta_pages[0].last_page + 1) * PAGE)
    return store


def reopened(store: LmdbStore[list[int]]) -> list[int]:
    store.close()
    return store.open()


# --- create and open --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "of_directory"), [(0o600, 0o700), (0o640, 0o777)])
def test_a_new_store_has_its_mode_and_no_temporary_files(
    tmp_path: Path, mode: int, of_directory: int
) -> None:
    store = number_store(tmp_path / "below" / "s", mode=mode)
    store.open()
    assert {path.name for path in store.path.parent.iterdir()} == {"s", "s.lock"}
    assert {path.name for path in store.path.iterdir()} == {"data.mdb", "lock.mdb"}
    mask = os.umask(0)
    os.umask(mask)
    assert store.path.stat().st_mode & 0o777 == of_directory & ~mask
    assert (store.path / "data.mdb").stat().st_mode & 0o777 == mode & ~mask
    store.close()


def test_records_survive_a_restart_in_order(store: LmdbStore[list[int]]) -> None:
    store.commit(records([3, 1, 2]))
    assert reopened(store) == [1, 2, 3]
    assert store.get(key_of(2)) == record(2)[1]
    assert store.get(key_of(9)) is None


def test_a_commit_is_one_transaction_and_returns_what_it_deleted(store: LmdbStore[list[int]]) -> None:
    store.commit(records([1, 2]))
    deleted = store.commit([*deletions([1, 7]), record(3)])
    assert (deleted.records, deleted.bytes) == (1, sum(map(len, record(1))))
    assert (numbers_in(store), store.transactions) == ([2, 3], 2)


def test_an_interrupted_creation_starts_again(tmp_path: Path) -> None:
    (tmp_path / "s" / "new").mkdir(parents=True)
    (tmp_path / "s" / "new" / "data.mdb").write_bytes(b"half")
    store = number_store(tmp_path / "s")
    assert store.open() == []
    assert not (tmp_path / "s" / "new").exists()
    store.close()


@pytest.mark.parametrize("moved", [False, True])
def test_an_interrupted_replacement_is_completed_or_starts_again(tmp_path: Path, moved: bool) -> None:
    store = filled(tmp_path / "s", 100)
    if moved:
        store.path.rename(tmp_path / "s.new")
    else:
        (tmp_path / "s.new").mkdir()
    assert store.open() == list(range(100))
    assert not (tmp_path / "s.new").exists()
    store.close()


def test_a_store_in_use_is_not_opened_again(store: LmdbStore[list[int]]) -> None:
    with pytest.raises(FileLockHeld, match=rf"s\.lock is held by process {os.getpid()}") as refused:
        number_store(store.path).open()
    assert refused.value.code is UCode.UNAVAILABLE
    store.commit(records([1]))


def test_a_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s")
    store.close()
    for use in (lambda: store.commit([]), lambda: store.get(b"k"), lambda: list(store.records_from())):
        with pytest.raises(UStatusError, match="not open") as refused:
            use()
        assert refused.value.code is UCode.UNAVAILABLE


def test_a_store_of_a_later_layout_is_refused_and_unchanged(tmp_path: Path) -> None:
    store = filled(tmp_path / "s", 100)
    set_record(store, *layout_record(2))
    with pytest.raises(StoreTooNew, match="store .*/s: layout 2, this program reads layout 1") as refused:
        store.open()
    assert refused.value.code is UCode.FAILED_PRECONDITION
    assert {path.name for path in tmp_path.iterdir()} == {"s", "s.lock"}


def test_a_directory_that_is_a_symbolic_link_to_nothing_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "s").symlink_to("/proc/none")
    with pytest.raises(UStatusError, match="store .*/s: cannot be opened") as refused:
        number_store(tmp_path / "s").open()
    assert refused.value.code is UCode.UNAVAILABLE


# --- a full map -------------------------------------------------------------------------------------------------


def fill(store: LmdbStore[list[int]], size: int) -> int:
    """Fill the map; return the number of records that it holds."""
    count, refused = 0, None
    while refused is None:
        try:
            store.commit(records(range(count, count + 16), size))
            count += 16
        except UStatusError as error:
            refused = error
    assert refused.code is UCode.RESOURCE_EXHAUSTED
    assert "16 changes not made" in refused.message
    return count


@pytest.mark.parametrize("size", [100, 1000, 4000])
def test_a_full_map_refuses_records_and_allows_deletions(tmp_path: Path, size: int) -> None:
    store = number_store(tmp_path / "s", MB)
    store.open()
    count = fill(store, size)
    assert reopened(store) == list(range(count))
    shuffled = list(range(count))
    random.Random(1).shuffle(shuffled)
    for number in shuffled[: count // 2]:
        store.commit(deletions([number]))
    store.commit(deletions(shuffled[count // 2 :]))
    assert numbers_in(store) == []
    assert file_size(store.path) < 2.5 * MB  # within the map as configured, or it would grow for ever
    store.commit(records(range(count // 2), size))
    assert reopened(store) == list(range(count // 2))
    store.close()


def test_only_a_change_that_may_exceed_the_map_fits_into_a_full_one(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s", MB)
    store.open()
    fill(store, 4000)
    before = numbers_in(store)
    with pytest.raises(UStatusError):
        store.commit([*deletions([0]), *records([2000], 100_000)])
    assert numbers_in(store) == before
    store.commit(records([2000], 100_000), exceed_map=True)
    assert numbers_in(store)[-1] == 2000
    store.close()


def test_a_larger_map_holds_more(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s", MB)
    store.open()
    with pytest.raises(UStatusError):
        store.commit(records([1], 2 * MB))
    store.resize_map(8 * MB)
    store.commit(records([1], 2 * MB))
    assert reopened(store) == [1]
    store.close()


def test_space_for_deletions_is_reserved_in_the_file(store: LmdbStore[list[int]]) -> None:
    store.commit(records([1]))
    assert RESERVE < file_size(store.path) < 2 * RESERVE


# --- damage -----------------------------------------------------------------------------------------------------


def set_record(store: LmdbStore[list[int]], key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(store.path), map_size=64 * MB) as env, env.begin(write=True) as txn:
        if value is None:
            txn.delete(key)
        else:
            txn.put(key, value)


def damage(path: Path, change: Callable[[bytearray], None]) -> bytes:
    data = bytearray((path / "data.mdb").read_bytes())
    change(data)
    (path / "data.mdb").write_bytes(data)
    return bytes(data)


def truncate(data: bytearray) -> None:
    del data[len(data) // 2 // PAGE * PAGE :]


def wipe_roots(data: bytearray) -> None:
    for at in (0, PAGE):
        data[at + 88 + 40 + 5] ^= 0x01  # a page number after the end of the file


def hit_leaf(data: bytearray) -> None:
    data[list(LmdbTree(bytes(data)).leaf_offsets())[-2] + 10] ^= 0x02  # the kind of the page


def hit_record(data: bytearray) -> None:
    leaf = list(LmdbTree(bytes(data)).leaf_offsets())[-2]
    lowest = int.from_bytes(data[leaf + 14 : leaf + 16], "little")
    data[leaf + lowest + 24] ^= 0x10  # in a value


def empty(data: bytearray) -> None:
    data.clear()


def wipe(data: bytearray) -> None:
    data[:] = bytes(len(data))


HITS = [(truncate, 300), (wipe_roots, 0), (hit_leaf, 1900), (hit_record, 1999), (empty, 0), (wipe, 0)]
hits = pytest.mark.parametrize(("hit", "saved"), HITS, ids=[hit.__name__ for hit, _ in HITS])


@hits
@pytest.mark.parametrize("died", [False, True])
def test_a_damaged_store_is_moved_aside_unchanged_and_its_readable_records_stay(
    tmp_path: Path, hit: Callable[[bytearray], None], saved: int, died: bool
) -> None:
    store = filled(tmp_path / "s")
    damaged = damage(store.path, hit)
    if died:
        (tmp_path / "s.lock").write_bytes(b"1")
    found = store.open()
    assert saved <= len(found) < 2000
    assert set(found) <= set(range(2000))
    assert numbers_in(store) == found == sorted(found)
    assert store.quarantine is not None
    assert store.quarantine.path == tmp_path / "s.damaged-1"
    assert (store.quarantine.path / "data.mdb").read_bytes() == damaged
    store.commit(records([5000]))
    assert reopened(store) == [*found, 5000]
    store.close()


@hits
def test_refusing_a_damaged_store_touches_no_file(
    tmp_path: Path, hit: Callable[[bytearray], None], saved: int
) -> None:
    damaged = damage(filled(tmp_path / "s").path, hit)
    for _ in range(2):
        with pytest.raises(StoreDamaged) as refused:
            number_store(tmp_path / "s", refuse_damaged=True).open()
        assert refused.value.code is UCode.DATA_LOSS
    assert (tmp_path / "s" / "data.mdb").read_bytes() == damaged
    assert {each.name for each in tmp_path.iterdir()} == {"s", "s.lock"}
    # The next opening verifies every page.
    assert (tmp_path / "s.lock").read_text(encoding="ascii").split() == [str(os.getpid())]


@pytest.mark.parametrize("what", ["file", "layout record"])
def test_a_missing_part_is_damage_and_not_an_empty_store(tmp_path: Path, what: str) -> None:
    store = filled(tmp_path / "s", 100)
    if what == "file":
        store.open()
        store.close()
        (store.path / "data.mdb").unlink()
    else:
        set_record(store, LAYOUT_KEY, None)
    with pytest.raises(StoreDamaged, match="is missing"):
        number_store(tmp_path / "s", refuse_damaged=True).open()
    assert len(store.open()) == (0 if what == "file" else 100)
    assert store.quarantine is not None
    store.close()


def test_without_space_for_a_replacement_the_damaged_store_stays(tmp_path: Path) -> None:
    damage(filled(tmp_path / "s").path, hit_record)
    with pytest.raises(UStatusError, match="no room to keep its records") as refused:
        number_store(tmp_path / "s", 256 << 10).open()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert {each.name for each in tmp_path.iterdir()} == {"s", "s.lock"}
    partial = number_store(tmp_path / "s", 256 << 10, keep_partial=True)
    assert 0 < len(partial.open()) < 1999
    assert partial.quarantine is not None
    partial.close()


def test_only_the_latest_damaged_stores_stay(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s", date=lambda: "20260101T000000Z")
    for _ in range(MAX_QUARANTINED + 2):
        store.open()
        store.close()
        (store.path / "data.mdb").write_bytes(b"")
    store.open()
    store.close()
    assert sorted(path.name for path in tmp_path.glob("s.damaged-*")) == [
        f"s.damaged-{number}-20260101T000000Z" for number in (3, 4, 5)
    ]


def test_a_file_that_crashes_its_reader_crashes_only_the_child(tmp_path: Path) -> None:
    store = number_store(tmp_path / "s")
    store.open()
    store.commit(records(range(100), 3900))  # each on its own page
    store.close()

    def truncate_after_leaves(data: bytearray) -> None:
        del data[max(LmdbTree(bytes(data)).leaf_offsets()) + PAGE :]

    damage(store.path, truncate_after_leaves)
    with pytest.raises(StoreDamaged, match="ended the process that read it with SIGBUS"):
        number_store(tmp_path / "s", refuse_damaged=True).open()


def replace_python(directory: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a shell script in place of the interpreter of the process that reads a store."""
    stuck = directory / "python"
    stuck.write_text(f"#!/bin/sh\n{script}\n")
    stuck.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(stuck))


def test_a_reader_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s", 100)
    replace_python(tmp_path, monkeypatch, "exec sleep 1000")
    monkeypatch.setattr(store_reader, "_BASE_CPU_S", 0.2)
    monkeypatch.setattr(store_reader, "_WALL_FACTOR", 1)
    with pytest.raises(StoreDamaged, match="took longer than 1 s$"):
        number_store(tmp_path / "s", refuse_damaged=True).open()


def test_a_reader_that_works_forever_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s", 100)
    replace_python(tmp_path, monkeypatch, "while :; do :; done")
    monkeypatch.setattr(store_reader, "_BASE_CPU_S", 0.2)
    monkeypatch.setattr(store_reader, "_WALL_FACTOR", 1_000)
    with pytest.raises(StoreDamaged, match="took longer than 1 s of CPU time"):
        number_store(tmp_path / "s", refuse_damaged=True).open()


def test_a_slow_reader_on_a_busy_machine_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path / "s", 100)
    replace_python(tmp_path, monkeypatch, f'sleep 0.5\nexec "{sys.executable}" "$@"')
    monkeypatch.setattr(store_reader, "_BASE_CPU_S", 0.2)
    monkeypatch.setattr(store_reader, "_WALL_FACTOR", 1_000)
    store = number_store(tmp_path / "s", refuse_damaged=True)
    assert len(store.open()) == 100
    store.close()


def test_a_reader_that_cannot_start_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path / "s", 100)
    monkeypatch.setattr("sys.executable", str(tmp_path / "nothing"))
    with pytest.raises(UStatusError, match="nothing cannot read it") as refused:
        number_store(tmp_path / "s").open()
    assert refused.value.code is UCode.UNAVAILABLE
    assert not list(tmp_path.glob("*.damaged-*"))
