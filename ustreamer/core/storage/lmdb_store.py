# SPDX-License-Identifier: Apache-2.0
"""A store in one LMDB environment: the one path on which every store is created, opened, read and written.

    <name>/                the environment
    <name>/new/            a store that is being created
    <name>.lock            the lock of the process that uses it; not every store has one
    <name>.new/            a replacement
    <name>.<label>-<n>/    stores that were moved aside

In: the layout of a store, changes. Out: its contents on opening, then records. A new `data.mdb` is moved into place
with its first record: a store without that record is damaged and is not mistaken for an empty one. A child process
(`StoreReader`) reads the whole file before this process maps it into memory. The file has reserved space, so that
records can be deleted on a full disk.

A full disk never raises at the opening. A store that has no room for its files is empty, and the next commit creates
it. A store that has no room for its reader table is opened for reading only. Every refused commit raises, is counted
in `StoreStates`, and changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from threading import Condition, RLock
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import lmdb
import msgspec

from ustreamer.core.storage.environment import (
    RESERVE,
    file_size,
    is_disk_full,
    open_environment,
    open_error,
    open_read_only,
    preallocate,
    read_meta_pages,
    restore_meta_pages,
    write_error,
)
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.reader_table import DATA_FILE, LOCK_FILE
from ustreamer.core.storage.store_files import (
    DAMAGED,
    finish_replacement,
    remove_store,
    replace_store,
    sibling,
    sync_directory,
)
from ustreamer.core.storage.store_reader import ReadMode, RecordChunk, StoreReader, read_store
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.core.storage.write_access import require_writable
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_VALUE: Final = itemgetter(1)
_REOPEN_S: Final = 5.0  # for the writing thread to open the environment again

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Record: TypeAlias = tuple[bytes, bytes]
Change: TypeAlias = tuple[bytes, bytes | None]
"""A key and its new value, or None to delete it."""


class StoreLayout(Protocol[T_co]):
    """What one store decides itself: its records, and what stays of a damaged store."""

    def first_record(self) -> Record:
        """The only record of an empty store."""

    def read(self, chunks: Iterator[RecordChunk]) -> T_co:
        """The contents of a store. Raises StoreDamaged and StoreTooNew."""

    def salvage(self, reader: StoreReader) -> Iterable[Iterable[Record]]:
        """The readable records for the replacement of a damaged store, in transactions; may end with StoreDamaged."""


class Quarantine(msgspec.Struct, frozen=True):
    """A damaged store that was moved aside."""

    reason: str
    path: Path


class Deleted(msgspec.Struct, frozen=True):
    """The records that a commit deleted: their number, and the bytes of their keys and values."""

    records: int
    bytes: int


class LmdbStore(Generic[T]):
    """The environment in directory `path`. Constructing it touches no file.

    `name` begins every message. `mode` is the permissions of the files. Without a `lock`, the caller guarantees
    one process, and every opening verifies the store. One thread at a time, except for `get`.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        map_size: int,
        layout: StoreLayout[T],
        *,
        mode: int = 0o600,
        lock: FileLock | None = None,
        refuse_damaged: bool = False,
        keep_partial: bool = False,
        date: Callable[[], str] = lambda: "",
        states: StoreStates | None = None,
    ) -> None:
        """`refuse_damaged`: raise for damage and touch nothing. `keep_partial`: replace a damaged store also where the
        disk has no space for all readable records. `date` names the stores that are moved aside. `states` receives
        refused commits.
        """
        self.path = path
        self.map_size = map_size
        self.transactions = 0
        """Commits that succeeded."""
        self.quarantine: Quarantine | None = None
        """The damaged store that the last `open` replaced."""
        self._name = f"{name} {path}"
        self._layout = layout
        self._mode = mode
        self._directory_mode = 0o700 if mode == 0o600 else 0o777
        self._lock = lock
        self._refuse_damaged = refuse_damaged
        # Errors that end a salvage; the records written before stay.
        self._salvage_end_errors = (StoreDamaged, lmdb.Error) if keep_partial else (StoreDamaged,)
        self._date = date
        self._states = states or StoreStates()
        self.is_degraded = False
        """Whether the disk refused a write, and accepted none but deletions since then."""
        self._env: lmdb.Environment | None = None
        self._is_read_only = False
        self._is_missing = False  # open, and without room on the disk for its files
        self._file_size = 0
        self._meta_pages = b""  # as before the last transaction
        self._map_lock = RLock()  # no thread may read while the map grows or the environment is opened again
        self._reopened = Condition(self._map_lock)

    # --- life ----------------------------------------------------------------------------------------------------

    def open(self) -> T:
        """Open or create the store; return its contents.

        After a crash LMDB's verifier reads every page. A damaged store is replaced by one with its readable records.
        Raises StoreDamaged (with `refuse_damaged`), StoreTooNew, NotWritable, FileLockHeld, or UStatusError:
        UNAVAILABLE if the directory cannot be used, RESOURCE_EXHAUSTED if there is no space for a replacement.
        """
        self.require_writable()
        try:
            return self._open_files()
        except (lmdb.Error, OSError) as error:
            if not is_disk_full(error) or (self.path / DATA_FILE).exists():
                raise open_error(error, f"{self._name}: cannot be opened") from error
            self._is_missing = True
            self._on_refused(f"{self._name}: cannot be created: {error}")
            return self._empty_contents()

    def _open_files(self) -> T:
        """Lock, create or read, and open the store; on any error nothing stays locked or open."""
        self.path.parent.mkdir(mode=self._directory_mode, parents=True, exist_ok=True)
        verify = self._lock is None or self._lock.acquire()
        try:
            found = self._prepare("verify" if verify else "walk")
            try:
                self._open_environment()
            except (lmdb.Error, OSError) as error:
                if not is_disk_full(error):
                    raise
                self._open_read_only()
                self._on_refused(f"{self._name}: can only be read: {error}")
        except BaseException:
            self._close_files(orderly=False)
            raise
        self._is_missing = False
        return found

    def require_writable(self) -> None:
        """Raises NotWritable if this process may not write the files, or create and replace them."""
        files = self.path / DATA_FILE, self.path / LOCK_FILE
        require_writable(self._name, self.path.parent, self.path, *files)

    def close(self, *, orderly: bool = True) -> None:
        """Close the store; commits are on disk already. Not `orderly`: as a process that is killed. May be repeated."""
        self._is_missing = False
        self._close_files(orderly=orderly)

    def _close_files(self, *, orderly: bool) -> None:
        with self._map_lock:
            env, self._env = self._env, None
            if env is not None:
                env.close()
        if self._lock is not None:
            self._lock.release(orderly=orderly)

    @property
    def is_open(self) -> bool:
        return self._env is not None or self._is_missing

    def _open_environment(self) -> None:
        self._env = open_environment(self.path, self.map_size, mode=self._mode)
        self._file_size = 0  # not known
        self._is_read_only = False

    def _open_read_only(self) -> None:
        self._env = open_read_only(self.path, self.map_size)
        self._is_read_only = True

    def _environment(self) -> lmdb.Environment:
        if self._env is None:
            raise UStatusError(UCode.UNAVAILABLE, f"{self._name}: not open")
        return self._env

    def _on_refused(self, reason: str) -> None:
        self.is_degraded = True
        self._states.on_refused(str(self.path), reason)

    def _on_written(self) -> None:
        if self.is_degraded:
            self.is_degraded = False
            self._states.on_written(str(self.path))

    # --- writing -------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[Change], *, exceed_map: bool = False) -> Deleted:
        """Make all changes, or none, in one transaction; on return they survive a power cut.

        Deletions fit into a full map and on a full disk; with `exceed_map` other changes fit into a full map too.
        Raises UStatusError: RESOURCE_EXHAUSTED if map or disk is full or writing is not permitted (stored records
        stay readable), INTERNAL for any other error. A later commit succeeds as soon as the disk accepts it.
        """
        try:
            deleted = self._commit(changes, exceed_map=exceed_map)
        except UStatusError as error:
            # A full map is a limit of the configuration: the disk accepts other writes.
            if error.code is UCode.RESOURCE_EXHAUSTED and not isinstance(error.__cause__, lmdb.MapFullError):
                self._on_refused(error.message)
            raise
        self.transactions += 1
        if any(map(_VALUE, changes)):  # deletions fit on a full disk too
            self._on_written()
        return deleted

    def retry(self) -> None:
        """Try to write a degraded store again, without a change of its records. Raises nothing, counts nothing."""
        if self.is_degraded:
            with suppress(UStatusError):
                self._commit([next(self.records_from(), self._layout.first_record())])
                self._on_written()

    def _commit(self, changes: Sequence[Change], *, exceed_map: bool = False) -> Deleted:
        try:
            if self._is_missing:
                self._open_files()
            elif self._is_read_only:
                self._reopen()
            try:
                return self._write(changes)
            except lmdb.MapFullError:
                return self._write_in_full_map(changes, exceed_map=exceed_map)
        except (lmdb.Error, OSError) as error:
            if self._has_panicked():
                restore_meta_pages(self.path, self._meta_pages)
                self._reopen()
            raise write_error(error, f"{self._name}: {len(changes)} changes not made") from error

    def _write(self, changes: Sequence[Change]) -> Deleted:
        env, records, size = self._environment(), 0, 0
        if added := list(filter(None, map(_VALUE, changes))):
            reserve = min(RESERVE, self.map_size // 8)
            self._file_size = preallocate(env, self.path, added, reserve, self._file_size)
        self._meta_pages = read_meta_pages(env, self.path)
        with env.begin(write=True) as txn:
            for key, value in changes:
                if value is not None:
                    txn.put(key, value)
                elif (old := txn.pop(key)) is not None:
                    records, size = records + 1, size + len(key) + len(old)
        return Deleted(records, size)

    def _has_panicked(self) -> bool:
        """Whether the disk refused a meta page: LMDB then refuses every transaction of the environment."""
        if self._is_missing:
            return False
        try:
            self._environment().begin().abort()
        except lmdb.PanicError:
            return True
        return False

    def _reopen(self) -> None:
        """Open the environment again; only for reading where writing is not permitted now."""
        with self._map_lock:
            self._environment().close()
            try:
                self._open_environment()
            except (lmdb.Error, OSError):
                self._open_read_only()
            self._reopened.notify_all()

    def _write_in_full_map(self, changes: Sequence[Change], *, exceed_map: bool) -> Deleted:
        """Try again with all freed pages, and for deletions with a map twice the size (`_larger_map`).

        LMDB reuses freed pages in the second transaction after the one that freed them; a failed one does not count. So
        one transaction, which changes no record, comes in between.
        """
        exceed_map = exceed_map or all(value is None for _, value in changes)
        with self._larger_map():
            with self._environment().begin(write=True) as txn, txn.cursor() as cursor:
                if cursor.first():
                    txn.put(*cursor.item())
            if exceed_map:
                return self._write(changes)
        return self._write(changes)

    @contextmanager
    def _larger_map(self) -> Iterator[None]:
        """Double the map meanwhile, so that records can be deleted from a full one.

        LMDB copies each page that it changes before it frees any; a copy of every page is the worst case. Afterwards
        LMDB makes the map no smaller than the used part.
        """
        self.resize_map(2 * max(self.map_size, file_size(self.path)), keep=False)
        try:
            yield
        finally:
            self.resize_map(self.map_size)

    def resize_map(self, size: int, *, keep: bool = True) -> None:
        """Change the size of the map; `keep` it for later openings too. Raises lmdb.Error if the size stays as it is."""
        with self._map_lock:
            if not self._is_missing:
                try:
                    self._environment().set_mapsize(size)
                except lmdb.Error:  # no memory; LMDB has closed the environment
                    self._reopen()
                    raise
            if keep:
                self.map_size = size

    # --- reading -------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        """The value of a record, from any thread; None if there is none. Waits for no commit. Raises StoreDamaged."""
        with self._map_lock:
            if self._is_missing:
                return None
            env = self._environment()
            try:
                try:
                    return _value_in(env, key)
                except lmdb.PanicError:
                    self._reopened.wait_for(lambda: self._env is not env, _REOPEN_S)
                    return _value_in(self._environment(), key)
            except lmdb.Error as error:
                raise StoreDamaged(f"{self._name}: {error}") from error

    def records_from(self, start: bytes = b"") -> Iterator[Record]:
        """The records from key `start` on. Raises StoreDamaged if LMDB cannot continue."""
        if self._is_missing:
            return
        try:
            with self._environment().begin() as txn, txn.cursor() as cursor:
                if cursor.set_range(start):
                    yield from cursor
        except lmdb.Error as error:
            raise StoreDamaged(f"{self._name}: {error}") from error

    # --- create and replace --------------------------------------------------------------------------------------

    def _prepare(self, mode: ReadMode) -> T:
        """Create, read or salvage the store; return its contents."""
        self.quarantine = None
        finish_replacement(self.path)
        remove_store(sibling(self.path, "new"))
        if not (self.path / DATA_FILE).exists() and not (self.path / LOCK_FILE).exists():
            return self._create()
        try:
            return self._read(mode)
        except StoreDamaged as error:
            if self._refuse_damaged:
                raise
            with StoreReader("salvage", self.path) as reader:
                moved_to = self._replace(self._layout.salvage(reader), DAMAGED)
            self.quarantine = Quarantine(error.message, moved_to)
            return self._read("walk")

    def _read(self, mode: ReadMode) -> T:
        if not (self.path / DATA_FILE).exists():
            raise StoreDamaged(f"{self._name}: {DATA_FILE} is missing")
        return read_store(self._name, self.path, mode, self._layout.read)

    def _create(self) -> T:
        """Create an empty store, or nothing."""
        staging = self.path / "new"
        remove_store(staging)  # left by a crash
        self.path.mkdir(mode=self._directory_mode, exist_ok=True)
        try:
            self._write_new(staging, ())
            (staging / DATA_FILE).rename(self.path / DATA_FILE)
        except BaseException:
            remove_store(staging)
            with suppress(OSError):
                self.path.rmdir()  # commands take a directory without its file for a damaged store
            raise
        staging.rmdir()
        for directory in (self.path, self.path.parent):
            sync_directory(directory)
        return self._empty_contents()

    def _empty_contents(self) -> T:
        key, value = self._layout.first_record()
        return self._layout.read(iter([(b"", [key], [value])]))

    def replace(self, records: Iterable[Iterable[Record]], label: str) -> Path:
        """Replace the open store by a new one with these records; return where the old store is. Raises as `open`."""
        self._environment().close()
        moved_to = self._replace(records, label)
        self._open_environment()
        return moved_to

    def _replace(self, records: Iterable[Iterable[Record]], label: str) -> Path:
        """At any moment the old store or a complete new one exists."""
        new = sibling(self.path, "new")
        try:
            self._write_new(new, records)
        except (lmdb.Error, OSError) as error:
            remove_store(new)
            raise write_error(error, f"{self._name}: no room to keep its records") from error
        return replace_store(self.path, label, self._date())

    def _write_new(self, directory: Path, batches: Iterable[Iterable[Record]]) -> None:
        """Write a complete store in a new directory."""
        directory.mkdir(mode=self._directory_mode)
        with open_environment(directory, self.map_size, mode=self._mode, shared=False) as env:
            with env.begin(write=True) as txn:
                txn.put(*self._layout.first_record())
            with suppress(*self._salvage_end_errors):
                for batch in batches:
                    with env.begin(write=True) as txn, txn.cursor() as cursor:
                        cursor.putmulti(batch)
        sync_directory(directory)


def _value_in(env: lmdb.Environment, key: bytes) -> bytes | None:
    with env.begin() as txn:
        value: bytes | None = txn.get(key)
    return value
