# SPDX-License-Identifier: Apache-2.0
"""The messages of one endpoint on disk, in an LMDB environment that is written in synchronous transactions.

    <state_dir>/spool/<endpoint>/                 the environment; `spool_records` has its layout
    <state_dir>/spool/<endpoint>.lock             the lock of the streamer that uses it
    <state_dir>/spool/<endpoint>.making/, .new/   a spool that is being created, and a replacement
    <state_dir>/spool/<endpoint>.damaged-<n>/     damaged spools, unchanged; the latest three

In: messages to add, keys to delete. Out: keys, and stored messages in the order of their class. A child process
(`StoreReader`) reads the whole file before this process maps it into memory. The file has reserved space for deletions,
so messages can leave on a full disk. The directory is readable by its owner only: attributes can have a token.
"""

import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Final, Literal

import lmdb
import msgspec

from ustreamer.core.storage.environment import (
    file_size,
    larger_map,
    map_size_for,
    open_environment,
    preallocate,
    write_error,
)
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

RESERVE: Final = 2 << 20
"""Bytes in the file that only a deletion may use: twice the pages that `_DELETE_BATCH` deletions touch."""
_DELETE_BATCH: Final = 128

log = logging.getLogger("ustreamer.spool")


class SpoolLimits(msgspec.Struct, frozen=True):
    """The most that may be on disk: messages, and bytes of their records."""

    messages: int
    bytes: int


class Spool:
    """The LMDB environment in directory `path`. Constructing it touches no file.

    One thread at a time, except for `get`. Messages of a class keep the order in which they were added.
    """

    def __init__(self, path: Path, limits: SpoolLimits) -> None:
        self.path = path
        self.messages = 0
        self.bytes = 0
        self.lost = 0
        """Messages with damaged records, as far as they can be counted."""
        self.quarantined = 0
        """Damaged spools that were replaced by a spool with their readable messages."""
        self.transactions = 0
        """Commits that succeeded."""
        self._limits = limits
        self._map_size = map_size_for(limits.bytes)
        self._env: lmdb.Environment | None = None
        self._next: list[int] = []
        self._pending_deletes: dict[bytes, None] = {}
        self._failing = False
        self._lock = FileLock(sibling(self.path, "lock"), mode=0o600)
        self._map_lock = Lock()  # no thread may read while the map grows

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> list[int]:
        """Open or create the spool; return the number of its messages of each class.

        A damaged record is skipped, counted and logged. A file that cannot be read to its end is moved aside. LMDB's
        verifier checks a spool after a crash. Raises UStatusError: UNAVAILABLE if the directory cannot be used or
        another process uses it, FAILED_PRECONDITION for a spool of a later version.
        """
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            was_killed = self._lock.acquire()
            try:
                found = self._prepare(verify=was_killed)
                map_size = max(self._map_size, file_size(self.path))
                self._env = open_environment(self.path, map_size, mode=0o600)
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
        """Close the spool; added messages are on disk already. May be repeated."""
        self._release(orderly=True)

    def _release(self, *, orderly: bool) -> None:
        with self._map_lock:
            env, self._env = self._env, None
            if env is not None:
                env.close()
        self._lock.release(orderly=orderly)

    def set_limits(self, limits: SpoolLimits) -> None:
        """Apply other limits; stored messages above them stay."""
        self._limits = limits
        if map_size_for(limits.bytes) > self._map_size:
            self._map_size = map_size_for(limits.bytes)
            self._set_map_size(self._map_size)

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, added: Sequence[tuple[int, SpoolRecord]], deleted_keys: Iterable[bytes] = ()
    ) -> list[bytes]:
        """Add messages to their classes and delete others, in one transaction; return the keys of the added messages.

        On return the change survives a power cut. Raises UStatusError if nothing was added: RESOURCE_EXHAUSTED if the
        limits, the map or the disk are full, INTERNAL for any other error of LMDB. Deletions are made even then, now or
        with the next call.
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
            if records:
                preallocate(self._require_env(), self.path, [value for _, value in records], RESERVE)
            deletes = list(islice(self._pending_deletes, _DELETE_BATCH))
            self._write(records, deletes)
        except UStatusError:
            self._flush_deletes()
            raise
        except (lmdb.Error, OSError) as error:
            self._flush_deletes()
            raise write_error(error, f"spool {self.path}: {len(added)} messages not added") from error
        self._next = following
        self._flush_deletes()
        return [key for key, _ in records]

    def delete_messages(self, keys: Iterable[bytes]) -> None:
        """Delete messages; deletions that the disk refuses are retried with the next call."""
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
                log.error("spool.delete_failed", extra=extra)  # noqa: TRY400 - the reason is enough
            return
        self._failing = False

    def _delete_keys(self, keys: Sequence[bytes]) -> None:
        """Delete records, with a larger map if the map is full. Raises lmdb.Error only for a failing disk."""
        if not keys:
            return
        try:
            self._write((), keys)
        except lmdb.MapFullError:
            with larger_map(self.path, self._map_size, self._set_map_size):
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

    def _set_map_size(self, size: int) -> None:
        with self._map_lock:
            self._require_env().set_mapsize(size)

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, rank: int, after: bytes | None, limit: int, size: int
    ) -> list[tuple[bytes, SpoolRecord | None]]:
        """The oldest messages of a class after the key `after`, or from the first; None for a damaged record.

        At most `limit` messages and `size` bytes, but at least one. Raises StoreDamaged if LMDB cannot continue.
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
        """The message at a key, from any thread; None if it cannot be read. Waits for no commit.

        Raises UStatusError(UNAVAILABLE) for a closed spool.
        """
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
        """Messages on disk now, and losses and quarantines so far."""
        return {
            "spooled": self.messages,
            "spooled_bytes": self.bytes,
            "spool_lost": self.lost,
            "spool_quarantined": self.quarantined,
            "spool_transactions": self.transactions,
        }

    # --- create and replace -----------------------------------------------------------------------------------------

    def _prepare(self, *, verify: bool) -> SpoolSummary:
        """Create, read or salvage the spool; return its contents."""
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
        with open_environment(directory, self._map_size, mode=0o600) as env, env.begin(write=True) as txn:
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
            open_environment(new, max(self._map_size, map_size_for(file_size(self.path))), mode=0o600) as env,
            StoreReader("salvage", self.path) as reader,
        ):
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


def _size(records: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for key, value in records)
