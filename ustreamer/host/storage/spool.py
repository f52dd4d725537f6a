# SPDX-License-Identifier: Apache-2.0
"""The messages of one endpoint on disk, in the store `<state_dir>/spool/<endpoint>` (`LmdbStore`).

In: messages to add, keys to delete. Out: keys, and stored messages in the order of their class. `spool_records` has
the layout. The directory is readable by its owner only: attributes can have a token.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from ustreamer.core.base.log_limit import limited
from ustreamer.core.storage.environment import DELETE_BATCH, file_size, map_size_for
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.core.storage.lmdb_store import LmdbStore, Record
from ustreamer.core.storage.store_files import sibling
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader, records_of
from ustreamer.core.storage.store_states import StoreStates
from ustreamer.host.storage.spool_records import (
    LAYOUT,
    RECEIVERS_KEY,
    SENT,
    SpoolRecord,
    SpoolSummary,
    decode_key,
    decode_receivers,
    decode_record,
    encode_key,
    encode_value,
    is_whole,
    summarize,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

log = logging.getLogger("ustreamer.spool")


class SpoolLimits(msgspec.Struct, frozen=True):
    """The most that may be on disk: messages, and bytes of their records."""

    messages: int
    bytes: int


class _SpoolLayout:
    """A `StoreLayout`: damaged records are counted, and every readable message of a damaged spool stays.

    A damaged record makes the spool a damaged one. LMDB could not delete it safely: its size may be wrong.
    """

    def __init__(self) -> None:
        self.damaged: list[bytes] = []
        """The keys of damaged records in the spool that was replaced."""

    @staticmethod
    def first_record() -> Record:
        return LAYOUT_KEY, encode_value(LAYOUT_KEY, LAYOUT)

    def read(self, chunks: Iterator[RecordChunk]) -> SpoolSummary:
        found = summarize(records_of(chunks))
        if found.damaged:
            self.damaged = found.damaged
            raise StoreDamaged(f"checksums are wrong, the first that of record {found.damaged[0].hex()}")
        return found

    @staticmethod
    def salvage(reader: StoreReader) -> Iterator[list[Record]]:
        for _, keys, values in reader.chunks():
            yield [record for record in zip(keys, values, strict=True) if is_whole(*record)]


class Spool:
    """The spool in directory `path`. Constructing it touches no file.

    One thread at a time, except for `get`. Messages of a class keep the order in which they were added.
    """

    def __init__(self, path: Path, limits: SpoolLimits, states: StoreStates | None = None) -> None:
        self.path = path
        self.messages = 0
        self.bytes = 0
        self.lost = 0
        """Messages with damaged records, as far as they can be counted."""
        self.quarantined = 0
        """Damaged spools that were replaced by a spool with their readable messages."""
        self._limits = limits
        self._layout = _SpoolLayout()
        lock = FileLock(sibling(path, "lock"), mode=0o600)
        self._store = LmdbStore(
            "spool",
            path,
            map_size_for(limits.bytes),
            self._layout,
            lock=lock,
            keep_partial=True,
            states=states,
        )
        self._next: list[int] = []
        self._pending_deletes: dict[bytes, None] = {}
        self._failing = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> list[int]:
        """Open or create the spool; return the number of its messages of each class, without sent ones.

        A spool with a damaged record is replaced; the record is counted and logged. Raises as `LmdbStore.open`.
        """
        # The file may be one of larger limits than now.
        self._store.map_size = max(self._store.map_size, map_size_for(file_size(self.path)))
        self._layout.damaged = []
        found = self._store.open()
        if self._store.quarantine:
            self.quarantined += 1
            extra = {
                "spool": str(self.path),
                "reason": self._store.quarantine.reason,
                "salvaged": sum(found.messages),
                "moved_to": str(self._store.quarantine.path),
            }
            log.error("spool.damaged", extra=extra)
        self._next = [last + 1 for last in found.last]
        self.messages, self.bytes = sum(found.messages), sum(found.bytes)
        if self._layout.damaged and self._store.quarantine:
            messages = sum(each != RECEIVERS_KEY for each in self._layout.damaged)
            if messages:
                self._report_lost(messages, self._store.quarantine.reason)
            if messages < len(self._layout.damaged):
                log.error("spool.receivers_lost", extra={"spool": str(self.path)})
        return found.messages[:SENT]

    def close(self, *, orderly: bool = True) -> None:
        """Close the spool; added messages are on disk already. Deletions that the disk refused are tried once more.

        May be repeated.
        """
        if orderly:
            self._flush_deletes()
        self._store.close(orderly=orderly)

    def set_limits(self, limits: SpoolLimits) -> None:
        """Apply other limits; stored messages above them stay."""
        self._limits = limits
        if map_size_for(limits.bytes) > self._store.map_size:
            self._store.resize_map(map_size_for(limits.bytes))

    @property
    def is_degraded(self) -> bool:
        """Whether the disk refused the last write, or deletions that are still to be made."""
        return self._store.is_degraded or bool(self._pending_deletes)

    @property
    def pending_deletes(self) -> Mapping[bytes, None]:
        """The keys of deletions that the disk has refused so far."""
        return self._pending_deletes

    def retry(self) -> None:
        """As `LmdbStore.retry`, and make the deletions that the disk refused."""
        self._store.retry()
        self._flush_deletes()

    # --- changes ------------------------------------------------------------------------------------------------------

    def commit(
        self, added: Iterable[tuple[int, SpoolRecord]], deleted_keys: Iterable[bytes] = ()
    ) -> list[bytes]:
        """Add messages to their classes and delete others, in one transaction; return the keys of the added messages.

        On return the change survives a power cut. Raises UStatusError if nothing was added: RESOURCE_EXHAUSTED if the
        limits, the map or the disk are full or writing is not permitted, INTERNAL for any other error. Deletions are
        made even then, now or with the next call, and also if `added` raises.
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
            self._write(records, list(islice(self._pending_deletes, DELETE_BATCH)))
            self._next = following
        finally:
            self._flush_deletes()
        return [key for key, _ in records]

    def prepend(self, added: Sequence[tuple[int, SpoolRecord]], deleted_keys: Collection[bytes] = ()) -> None:
        """Add messages in front of their classes and delete others, in one transaction. Raises as `commit`.

        The other messages of these classes move behind them: they get new keys.
        """
        following, deleted = self._next.copy(), frozenset(deleted_keys)
        records, moved, deletes = list[Record](), list[Record](), list(deleted_keys)

        def append(to: list[Record], rank: int, content: SpoolRecord) -> None:
            key = encode_key(rank, following[rank])
            following[rank] += 1
            to.append((key, encode_value(key, content)))

        for rank, content in added:
            append(records, rank, content)
        for rank in sorted({rank for rank, _ in added}):
            for key, content_found in self.read(rank, None, self.messages, self.bytes):
                if content_found is not None and key not in self._pending_deletes and key not in deleted:
                    append(moved, rank, content_found)
                    deletes.append(key)
        self._check_limits(records, replaced=len(deleted_keys))
        self._write([*records, *moved], deletes)
        self._next = following

    def write_receivers(self, receivers: Sequence[str]) -> None:
        """Replace the receivers of the sent messages. Raises UStatusError as `LmdbStore.commit`."""
        self._store.commit([(RECEIVERS_KEY, encode_value(RECEIVERS_KEY, receivers))], exceed_map=True)

    def delete_messages(self, keys: Iterable[bytes]) -> None:
        """Delete messages; deletions that the disk refuses are retried with the next call."""
        self._pending_deletes |= dict.fromkeys(keys)
        self._flush_deletes()

    def _flush_deletes(self) -> None:
        try:
            while deletes := list(islice(self._pending_deletes, DELETE_BATCH)):
                self._write((), deletes)
        except UStatusError as error:
            if not self._failing:
                self._failing = True
                extra = {
                    "spool": str(self.path),
                    "reason": error.message,
                    "messages": len(self._pending_deletes),
                    **limited(self.path),
                }
                log.error("spool.delete_failed", extra=extra)  # noqa: TRY400 - the reason is enough
            return
        self._failing = False

    def _write(self, records: Sequence[Record], deletes: Sequence[bytes]) -> None:
        deleted = self._store.commit([*((key, None) for key in deletes), *records])
        self.messages += len(records) - deleted.records
        self.bytes += _size(records) - deleted.bytes
        for key in deletes:
            self._pending_deletes.pop(key, None)

    def _check_limits(self, records: Sequence[tuple[bytes, bytes]], replaced: int = 0) -> None:
        limits = self._limits
        messages = self.messages + len(records) - len(self._pending_deletes) - replaced
        size = self.bytes + _size(records)
        if records and (messages > limits.messages or size > limits.bytes):
            bounds = f"{limits.messages} messages or {limits.bytes} bytes"
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, f"spool {self.path} is full ({bounds})")

    # --- reading ------------------------------------------------------------------------------------------------------

    def read(
        self, rank: int, after: bytes | None, limit: int, size: int
    ) -> list[tuple[bytes, SpoolRecord | None]]:
        """The oldest messages of a class after the key `after`, or from the first; None for a damaged record.

        At most `limit` messages and `size` bytes, but at least one. Raises StoreDamaged if LMDB cannot continue.
        """
        found: list[tuple[bytes, SpoolRecord | None]] = []
        start = encode_key(rank, 0) if after is None else after + b"\0"
        for key, value in self._store.records_from(start):
            size -= len(value)
            if key[0] != rank or len(found) == limit or (found and size < 0):
                break
            found.append((key, self._decode_or_lose(key, value)))
        return found

    def receivers(self) -> list[str]:
        """The receivers of the last `write_receivers`, of any process. Raises StoreDamaged, which `open` excludes."""
        value = self._store.get(RECEIVERS_KEY)
        return [] if value is None else decode_receivers(value)

    def get(self, key: bytes, *, may_be_deleted: bool = False) -> SpoolRecord | None:
        """The message at a key, from any thread; None if it cannot be read. Waits for no commit.

        Such a message is counted and logged as lost, but not a missing one that `may_be_deleted`. Raises
        UStatusError(UNAVAILABLE) for a closed spool.
        """
        reason = f"record {key.hex()}: is missing"
        try:
            value = self._store.get(key)
        except StoreDamaged as error:
            value, reason = None, error.message
        else:
            if value is None and may_be_deleted:
                return None
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
        log.error("spool.messages_lost", extra={**extra, **limited(self.path)})

    def statistics(self) -> Mapping[str, int]:
        """Messages on disk now, and losses and quarantines so far."""
        return {
            "spooled": self.messages,
            "spooled_bytes": self.bytes,
            "spool_lost": self.lost,
            "spool_quarantined": self.quarantined,
            "spool_transactions": self._store.transactions,
        }


def _size(records: Sequence[tuple[bytes, bytes]]) -> int:
    return sum(len(key) + len(value) for key, value in records)
