# SPDX-License-Identifier: Apache-2.0
"""The messages of one endpoint on disk, in an LMDB environment that is written in synchronous transactions.

    <state_dir>/spool/<endpoint>/                 the environment; `spool_records` has its layout
    <state_dir>/spool/<endpoint>.lock             who uses it
    <state_dir>/spool/<endpoint>.making/, .new/   one that is about to take its place
    <state_dir>/spool/<endpoint>.damaged-<n>/     what was found damaged, with all that was in it; the latest three

The whole file is read, by another process (`StoreReader`), before this one maps it into memory. Room for removing
messages is kept in the file, so that a full disk keeps nothing from leaving. What is stored is secret: attributes may
have a token.
"""

import errno
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import lmdb
import msgspec

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.lmdb_tree import DATA_FILE
from ustreamer.core.storage.store_files import finish_replacement, replace_store, sibling, sync_directory
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.host.storage.spool_records import (
    LAYOUT,
    LAYOUT_KEY,
    SpoolRecord,
    SpoolSummary,
    decode_key,
    decode_record,
    encode_key,
    encode_value,
    is_whole,
    summarize,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

_PAGE: Final = 4096
_GROWTH: Final = 4 << 20
RESERVE: Final = 2 << 20
"""Bytes in the file that only a removal may use: twice the pages that one of `_DELETE_BATCH` touches."""
_DELETE_BATCH: Final = 128
_MAP_SLACK: Final = 64 << 20
_MAP_FACTOR: Final = (
    4  # a value just above 2 KB takes a page of 4, and a page is free again two commits after it was
)
_FULL: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# LMDB reports a write that the file system cut short as EIO, whatever the reason was.
_NO_SPACE_ERRNOS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})

log = logging.getLogger("ustreamer.spool")


class SpoolLimits(msgspec.Struct, frozen=True):
    """How much may be on disk: messages, and bytes of their records."""

    messages: int
    bytes: int


class Spool:
    """The LMDB environment in directory `path`. Constructing it touches nothing. One thread at a time, but for `get`.

    Within a class the order in which messages were added is kept.
    """

    def __init__(self, path: Path, limits: SpoolLimits) -> None:
        self.path = path
        self.messages = 0
        self.bytes = 0
        self.lost = 0
        """Messages whose records were damaged and could not be read, as far as they can be counted."""
        self.quarantined = 0
        """Spools that were found damaged, and replaced by one with what could be read of them."""
        self.transactions = 0
        """Commits that succeeded."""
        self._limits = limits
        self._map_size = _map_size(limits)
        self._env: lmdb.Environment | None = None
        self._next: list[int] = []
        self._pending_deletes: dict[bytes, None] = {}
        self._failing = False
        self._lock = FileLock(sibling(self.path, "lock"), mode=0o600)
        self._map_lock = Lock()  # nobody may read while the map is made larger

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> list[int]:
        """Open the spool, or make an empty one; how many messages of each class it holds.

        What is damaged is skipped, counted and said, and a file that cannot be read through is moved aside. LMDB's own
        verifier looks at a spool whose last user died. Raises UStatusError: UNAVAILABLE where the directory cannot be
        used or another process uses it, FAILED_PRECONDITION for a spool of a later version.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            was_killed = self._lock.acquire()
            try:
                found = self._prepare(verify=was_killed)
                self._env = self._open_in(self.path)
                self._delete_keys(found.damaged)
            except BaseException:
                self._release(orderly=False)
                raise
        except (lmdb.Error, OSError) as error:
            raise UStatusError(UCode.UNAVAILABLE, f"spool {self.path}: cannot be opened: {error}") from error
        self._next = [last + 1 for last in found.last]
        self.messages, self.bytes = sum(found.messages), sum(found.bytes)
        return found.messages

    def close(self) -> None:
        """Close the spool; what was added is on disk already. May be repeated."""
        self._release(orderly=True)

    def _release(self, *, orderly: bool) -> None:
        with self._map_lock:
            env, self._env = self._env, None
            if env is not None:
                env.close()
        self._lock.release(orderly=orderly)

    def set_limits(self, limits: SpoolLimits) -> None:
        """Go by other limits; what is stored stays, also if it is too much."""
        self._limits = limits
        if _map_size(limits) > self._map_size:
            self._map_size = _map_size(limits)
            self._set_map_size(self._map_size)

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, added: Sequence[tuple[int, SpoolRecord]], deleted_keys: Iterable[bytes] = ()
    ) -> list[bytes]:
        """Add messages, each to its class, and remove others by their keys, in one transaction; the keys of those added.

        On return this survives a power cut. Raises UStatusError if nothing was added: RESOURCE_EXHAUSTED where the
        limits, the map or the disk are full, INTERNAL for any other refusal of LMDB. What is to be removed goes all the
        same, now or with the next call.
        """
        self._pending_deletes |= dict.fromkeys(deleted_keys)
        following = self._next.copy()
        records = []
        for rank, content in added:
            key = encode_key(rank, following[rank])
            following[rank] += 1
            records.append((key, encode_value(key, content)))
        try:
            self._check_limits(records)
            self._preallocate(records)
            deletes = list(islice(self._pending_deletes, _DELETE_BATCH))
            self._write(records, deletes)
        except UStatusError:
            self._flush_deletes()
            raise
        except (lmdb.Error, OSError) as error:
            self._flush_deletes()
            raise self._commit_error(error, f"{len(added)} messages not added") from error
        self._next = following
        self._flush_deletes()
        return [key for key, _ in records]

    def delete_messages(self, keys: Iterable[bytes]) -> None:
        """Remove messages; what the disk refuses now goes with the next call."""
        self._pending_deletes |= dict.fromkeys(keys)
        self._flush_deletes()

    def _flush_deletes(self) -> None:
        try:
            while deletes := list(islice(self._pending_deletes, _DELETE_BATCH)):
                self._delete_keys(deletes)
        except lmdb.Error as error:
            if not self._failing:
                self._failing = True
                extra = {
                    "spool": str(self.path),
                    "reason": str(error),
                    "messages": len(self._pending_deletes),
                }
                log.error("spool.delete_failed", extra=extra)  # noqa: TRY400 - the reason says it all
            return
        self._failing = False

    def _delete_keys(self, keys: Sequence[bytes]) -> None:
        """Remove these in any case but that of a disk that fails: a full map is made larger for it."""
        if not keys:
            return
        try:
            self._write((), keys)
        except lmdb.MapFullError:
            with self._larger_map():
                self._write((), keys)

    def _write(self, records: Sequence[tuple[bytes, bytes]], deletes: Sequence[bytes]) -> None:
        deleted, deleted_bytes = 0, 0
        with self._require_env().begin(write=True) as txn:
            for key in deletes:
                value = txn.pop(key)
                if value is not None:
                    deleted, deleted_bytes = deleted + 1, deleted_bytes + len(key) + len(value)
            for key, value in records:
                txn.put(key, value)
        self.transactions += 1
        self.messages += len(records) - deleted
        self.bytes += _size(records) - deleted_bytes
        for key in deletes:
            self._pending_deletes.pop(key, None)

    def _check_limits(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        limits = self._limits
        messages = self.messages + len(records) - len(self._pending_deletes)
        size = self.bytes + _size(records)
        if records and (messages > limits.messages or size > limits.bytes):
            bounds = f"{limits.messages} messages or {limits.bytes} bytes"
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, f"spool {self.path} is full ({bounds})")

    def _preallocate(self, records: Sequence[tuple[bytes, bytes]]) -> None:
        """Have the file so large that these records leave `RESERVE` free in it. Raises OSError where the disk is full."""
        if not records:
            return
        env = self._require_env()
        stat = env.stat()
        used = stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]
        needed = (
            sum(2 * len(value) + _PAGE // 8 for _, value in records) + RESERVE + _PAGE * (used // 500 + 16)
        )
        size = (self.path / DATA_FILE).stat().st_size
        missing = used * _PAGE + needed - size
        if missing <= 0:
            return
        descriptor = os.open(self.path / DATA_FILE, os.O_RDWR | os.O_CLOEXEC)
        try:
            try:
                os.posix_fallocate(descriptor, size, max(missing, _GROWTH))
            except OSError:
                os.posix_fallocate(descriptor, size, missing)
        finally:
            os.close(descriptor)

    @contextmanager
    def _larger_map(self) -> Iterator[None]:
        self._set_map_size(2 * max(self._map_size, (self.path / DATA_FILE).stat().st_size))
        try:
            yield
        finally:
            self._set_map_size(self._map_size)

    def _set_map_size(self, size: int) -> None:
        with self._map_lock:
            self._require_env().set_mapsize(size)

    def _commit_error(self, error: Exception, text: str) -> UStatusError:
        number = error.code if isinstance(error, lmdb.Error) else getattr(error, "errno", None)
        full = isinstance(error, _FULL) or number in _NO_SPACE_ERRNOS
        code = UCode.RESOURCE_EXHAUSTED if full else UCode.INTERNAL
        return UStatusError(code, f"spool {self.path}: {text}: {error}")

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, rank: int, after: bytes | None, limit: int, size: int
    ) -> list[tuple[bytes, SpoolRecord | None]]:
        """The oldest messages of a class behind the one at `after`, or of all; None for one that cannot be read.

        At most `limit`, and no more than come to `size` bytes, but one in any case. Raises StoreDamaged where LMDB cannot
        go on.
        """
        found: list[tuple[bytes, SpoolRecord | None]] = []
        start = encode_key(rank, 0) if after is None else after + b"\0"
        try:
            with self._require_env().begin() as txn, txn.cursor() as cursor:
                records = cursor.iternext() if cursor.set_range(start) else iter(())
                for key, value in records:
                    size -= len(value)
                    if key == LAYOUT_KEY or key[0] != rank or len(found) == limit or (found and size < 0):
                        break
                    found.append((key, self._decode_or_lose(key, value)))
        except lmdb.Error as error:
            raise StoreDamaged(f"spool {self.path}: {error}") from error
        return found

    def get(self, key: bytes) -> SpoolRecord | None:
        """The message at a key, from any thread; None if it cannot be read. Waits for no commit. Raises UNAVAILABLE."""
        with self._map_lock:
            try:
                with self._require_env().begin() as txn:
                    value = txn.get(key)
            except lmdb.Error as error:
                value, reason = None, str(error)
            else:
                reason = f"record {key.hex()}: is missing"
        if value is None:
            self._report_lost(1, reason)
            return None
        return self._decode_or_lose(key, value)

    def _decode_or_lose(self, key: bytes, value: bytes) -> SpoolRecord | None:
        try:
            decode_key(key)
            return decode_record(key, value)
        except StoreDamaged as error:
            self._report_lost(1, error.message)
            return None

    def _report_lost(self, messages: int, reason: str) -> None:
        self.lost += messages
        extra = {"spool": str(self.path), "reason": reason, "messages": messages}
        log.error("spool.messages_lost", extra=extra)

    def statistics(self) -> Mapping[str, int]:
        """What is on disk now, and what opening it took."""
        return {
            "spooled": self.messages,
            "spooled_bytes": self.bytes,
            "spool_lost": self.lost,
            "spool_quarantined": self.quarantined,
            "spool_transactions": self.transactions,
        }

    # --- making and replacing -----------------------------------------------------------------------------------------

    def _open_in(self, path: Path) -> lmdb.Environment:
        # writemap would end the process with SIGBUS on a full disk; without sync an accepted message may be lost.
        return lmdb.open(
            str(path),
            map_size=max(self._map_size, _file_size(path)),
            sync=True,
            metasync=True,
            writemap=False,
            mode=0o600,
        )

    def _prepare(self, *, verify: bool) -> SpoolSummary:
        """Have a whole spool in place; what is in it."""
        making = sibling(self.path, "making")
        shutil.rmtree(making, ignore_errors=True)
        finish_replacement(self.path)
        shutil.rmtree(sibling(self.path, "new"), ignore_errors=True)
        if not self.path.exists():
            self._create(making)
            making.rename(self.path)
            sync_directory(self.path.parent)
            return SpoolSummary()
        try:
            found = self._summarize("verify" if verify else "walk")
        except StoreDamaged as error:
            found = self._salvage(error)
        if found.damaged:
            self._report_lost(
                len(found.damaged), f"checksums are wrong, the first that of record {found.damaged[0].hex()}"
            )
        return found

    def _create(self, directory: Path) -> None:
        """Create an empty spool in a new directory."""
        directory.mkdir(mode=0o700)
        with self._open_in(directory) as env, env.begin(write=True) as txn:
            txn.put(LAYOUT_KEY, encode_value(LAYOUT_KEY, LAYOUT))
        sync_directory(directory)

    def _summarize(self, mode: Literal["walk", "verify"]) -> SpoolSummary:
        if not (self.path / DATA_FILE).exists():
            raise StoreDamaged(f"store {self.path / DATA_FILE}: is missing")
        try:
            with StoreReader(mode, self.path) as reader:
                return summarize(reader.records())
        except StoreDamaged:
            raise
        except UStatusError as error:
            raise UStatusError(error.code, f"spool {self.path}: {error.message}") from error

    def _salvage(self, reason: StoreDamaged) -> SpoolSummary:
        """Replace this spool by a new one with every readable message."""
        new = sibling(self.path, "new")
        self._create(new)
        with (
            suppress(StoreDamaged, lmdb.Error),  # what was copied until then is kept
            self._open_in(new) as env,
            StoreReader("salvage", self.path) as reader,
        ):
            env.set_mapsize(max(self._map_size, _MAP_FACTOR * _file_size(self.path) + _MAP_SLACK))
            for _, keys, values in reader.chunks():
                whole = [record for record in zip(keys, values, strict=True) if is_whole(*record)]
                with env.begin(write=True) as txn, txn.cursor() as cursor:
                    cursor.putmulti(whole)
        quarantine = replace_store(self.path)
        found = self._summarize("walk")
        self.quarantined += 1
        extra = {
            "spool": str(self.path),
            "reason": reason.message,
            "salvaged": sum(found.messages),
            "moved_to": str(quarantine),
        }
        log.error("spool.damaged", extra=extra)
        return found

    def _require_env(self) -> lmdb.Environment:
        if self._env is None:
            raise UStatusError(UCode.UNAVAILABLE, f"spool {self.path}: not open")
        return self._env


def _map_size(limits: SpoolLimits) -> int:
    return _MAP_FACTOR * limits.bytes + _MAP_SLACK


def _size(records: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for key, value in records)


def _file_size(path: Path) -> int:
    file = path / DATA_FILE
    return file.stat().st_size if file.exists() else 0
