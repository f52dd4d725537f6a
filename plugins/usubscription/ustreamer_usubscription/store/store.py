# SPDX-License-Identifier: Apache-2.0
"""Subscriptions on disk: one LMDB environment in the directory it is given, written in synchronous transactions.

    <name>/                      the environment; `records` has its layout
    <name>.lock                  the lock of the streamer that uses it
    <name>.new/                  a replacement
    <name>.damaged-<n>-<time>/   damaged stores, unchanged; the latest three
    <name>.layout1-<n>-<time>/   migrated stores, unchanged; the latest three

A new `data.mdb` is moved into place after its layout record is written: a store without that record is damaged and is
not mistaken for an empty one. A child process (`store_contents`) reads the whole store before this process maps it
into memory.
"""

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal

import lmdb

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.environment import larger_map, open_environment, write_error
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.lmdb_tree import DATA_FILE
from ustreamer.core.storage.store_files import finish_replacement, replace_store, sibling, sync_directory
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.events import SubscriptionEvent
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import records, store_contents
from ustreamer_usubscription.store.compact_index import CompactIndex
from ustreamer_usubscription.store.history import EventHistory, max_events
from ustreamer_usubscription.store.records import (
    EVENT_PREFIX,
    LAYOUT,
    LAYOUT_KEY,
    OBSERVER_PREFIX,
    REMOTE_TOPIC_PREFIX,
    SUBSCRIPTION_PREFIX,
    TOPIC_PREFIX,
    RecordChange,
    StoreTooNew,
    delete_observer,
    delete_remote,
    delete_subscription,
    put_observer,
    put_remote,
    put_subscription,
    put_topic,
)
from ustreamer_usubscription.store.store_contents import StoreContents

__all__ = [
    "RecordChange",
    "StoreTooNew",
    "SubscriptionStore",
    "delete_observer",
    "delete_remote",
    "delete_subscription",
    "put_observer",
    "put_remote",
    "put_subscription",
    "put_topic",
]

_IN_PLACE_LAYOUT: Final = 2
"""The layout that differs from a store of today without a history only in its number."""

_LAYOUT_RECORD: Final = RecordChange(LAYOUT_KEY, records.layout_value())

log = logging.getLogger("ustreamer.usubscription")


class SubscriptionStore:
    """The LMDB environment in directory `path`. Constructing it touches no file.

    `damaged`: "refuse" does not touch a damaged store; "quarantine" moves it aside and continues with its readable
    records. `history`: the most events, within an eighth of the map. `wall_ms`: the clock that dates stores moved
    aside, in ms since the epoch. One thread at a time.
    """

    def __init__(
        self,
        path: Path,
        map_size: int,
        *,
        damaged: Literal["refuse", "quarantine"] = "refuse",
        history: int = 0,
        wall_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self.path = path
        self.transactions = 0
        """Commits that succeeded."""
        self._map_size = map_size
        self._damaged = damaged
        self._wall_ms = wall_ms
        self._lock = FileLock(sibling(path, "lock"))
        self._env: lmdb.Environment | None = None
        self._contents = StoreContents()
        self._history = EventHistory(max_events(history, map_size))
        names = ("store_quarantined", "store_salvaged", "store_lost", "store_migrated", "history_skipped")
        self._counts = dict.fromkeys(names, 0)

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the store.

        After a crash the store is verified page by page. Raises StoreDamaged (with "refuse"), StoreTooNew,
        FileLockHeld, or UStatusError: UNAVAILABLE if the directory cannot be used, RESOURCE_EXHAUSTED if there is no
        space to salvage or migrate into; then the old store is unchanged.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            unclean = self._lock.acquire()
            try:
                self._open(verify=unclean)
            except BaseException:
                self._close_env()
                self._lock.release(orderly=False)
                raise
        except (lmdb.Error, OSError) as error:
            raise UStatusError(UCode.UNAVAILABLE, f"store {self.path}: cannot be opened: {error}") from error

    def _open(self, *, verify: bool) -> None:
        finish_replacement(self.path)
        self._contents = StoreContents()
        if not (self.path / DATA_FILE).exists() and not (self.path / "lock.mdb").exists():
            self._create()
        else:
            try:
                self._contents = self._read_contents(verify=verify)
            except StoreDamaged as error:
                if self._damaged == "refuse":
                    raise
                self._contents = self._quarantine(error)
        self._env = self._open_in(self.path)
        self._history.load_stored([key for key, _ in self._contents.records_with_prefix(EVENT_PREFIX)])
        if self._contents.layout == _IN_PLACE_LAYOUT:
            self._upgrade_in_place()

    def close(self) -> None:
        """Close the store; commits are on disk already. May be repeated."""
        self._close_env()
        self._lock.release()

    def _close_env(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    # --- reading ------------------------------------------------------------------------------------------------------

    def take_subscriptions(self) -> CompactIndex:
        """The subscriptions at opening; only the first call returns them."""
        stored, self._contents = self._contents, StoreContents()
        return stored.subscriptions

    def load_subscriptions(self) -> Iterator[SubscriptionRecord]:
        """All subscriptions, by topic and then by subscriber. Raises StoreDamaged at the first damaged record."""
        read = records.SubscriptionReader().read_subscription
        try:
            with self._environment().begin() as txn, txn.cursor() as cursor:
                for key, value in cursor:
                    if key.startswith(SUBSCRIPTION_PREFIX):
                        yield read(key, value)
                    else:
                        records.check_record(key, value)
        except lmdb.Error as error:
            raise StoreDamaged(f"store {self.path / DATA_FILE}: {error}") from error

    def load_observers(self) -> Iterator[Observer]:
        """All registrations for notifications, by topic and entity. Raises StoreDamaged at the first damaged one."""
        return (
            records.read_observer(key, value) for key, value in self._records_with_prefix(OBSERVER_PREFIX)
        )

    def load_declared_topics(self) -> Iterator[tuple[UUri, TopicState]]:
        """All declared topics. Raises StoreDamaged at the first damaged one."""
        return (records.read_topic(key, value) for key, value in self._records_with_prefix(TOPIC_PREFIX))

    def load_remote_states(self) -> Iterator[tuple[UUri, Status]]:
        """All remote topics. Raises StoreDamaged at the first damaged one."""
        return (
            records.read_remote(key, value) for key, value in self._records_with_prefix(REMOTE_TOPIC_PREFIX)
        )

    def _records_with_prefix(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            with self._environment().begin() as txn, txn.cursor() as cursor:
                if cursor.set_range(kind):
                    yield from takewhile(lambda record: record[0].startswith(kind), cursor)
        except lmdb.Error as error:
            raise StoreDamaged(f"store {self.path / DATA_FILE}: {error}") from error

    def statistics(self) -> Mapping[str, int]:
        """Stores quarantined and migrated, records salvaged and lost, events skipped for a full map, transactions."""
        return {**self._counts, "transactions": self.transactions}

    # --- writing ------------------------------------------------------------------------------------------------------

    def commit(self, changes: Sequence[RecordChange], events: Sequence[SubscriptionEvent] = ()) -> None:
        """Make all of `changes`, or none, in one transaction; on return they survive a power cut.

        The last of `events` enter the history in the same transaction. If they do not fit, the changes are committed
        without them, so that a full map can be emptied.

        Raises UStatusError: RESOURCE_EXHAUSTED if map or disk is full (stored records stay readable and can be
        deleted), INTERNAL for any other error of LMDB.
        """
        history_changes = self._history.changes_for(events)
        try:
            if history_changes and self._try_write([*changes, *history_changes]):
                self._history.on_committed(events)
            else:
                self._counts["history_skipped"] += len(events) if history_changes else 0
                if not self._try_write(changes):
                    self._write_in_full_map(changes)
        except lmdb.Error as error:
            raise write_error(error, f"store {self.path}: {len(changes)} changes not made") from error
        self.transactions += 1

    def _try_write(self, changes: Sequence[RecordChange]) -> bool:
        """Make these changes; false if the map is full."""
        try:
            self._write(changes)
        except lmdb.MapFullError:
            return False
        return True

    def _write(self, changes: Sequence[RecordChange]) -> None:
        with self._environment().begin(write=True) as txn:
            for key, value in changes:
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)

    def _write_in_full_map(self, changes: Sequence[RecordChange]) -> None:
        """Try again with all freed pages, and for deletions with a map twice the size (`larger_map`).

        The second transaction after one that frees pages reuses them, and a failed transaction does not count: hence
        the transaction in between, which changes no record.
        """
        deletions = all(value is None for _, value in changes)
        with larger_map(self.path, self._map_size, self._environment().set_mapsize):
            self._write([_LAYOUT_RECORD])
            if deletions:
                self._write(changes)
        if not deletions:
            self._write(changes)

    def _upgrade_in_place(self) -> None:
        """Convert a store of layout 2. Raises UStatusError(RESOURCE_EXHAUSTED) for a full disk."""
        try:
            if not self._try_write([_LAYOUT_RECORD]):
                with larger_map(self.path, self._map_size, self._environment().set_mapsize):
                    self._write([_LAYOUT_RECORD])
        except lmdb.Error as error:
            raise write_error(error, f"store {self.path}: not migrated to layout {LAYOUT}") from error
        self._log_migration(self._contents, self.path)

    # --- create and replace -----------------------------------------------------------------------------------------

    def _open_in(self, path: Path) -> lmdb.Environment:
        return open_environment(path, self._map_size, mode=0o640)

    def _create(self) -> None:
        """Create an empty store with a layout record."""
        staging = self.path / "new"
        if staging.exists():
            shutil.rmtree(staging)  # left by a crash
        self._write_new_store(staging, StoreContents())
        (staging / DATA_FILE).rename(self.path / DATA_FILE)
        shutil.rmtree(staging)
        for directory in (self.path, self.path.parent):
            sync_directory(directory)

    def _write_new_store(self, directory: Path, found: StoreContents) -> None:
        """Write a complete store in a new directory."""
        directory.mkdir(parents=True)
        with self._open_in(directory) as env, env.begin(write=True) as txn, txn.cursor() as cursor:
            cursor.putmulti([(LAYOUT_KEY, records.layout_value())])
            cursor.putmulti(found.all_records(), append=True)

    def _read_contents(self, *, verify: bool) -> StoreContents:
        if not (self.path / DATA_FILE).exists():
            raise StoreDamaged(f"store {self.path / DATA_FILE}: is missing next to lock.mdb")
        found = store_contents.read_store(self.path, "verify" if verify else "walk")
        if found.layout not in {LAYOUT, _IN_PLACE_LAYOUT}:
            self._log_migration(found, self._replace_store(found, f"layout{found.layout}"))
        return found

    def _log_migration(self, found: StoreContents, old_path: Path) -> None:
        """Log the migration of these records; `old_path`: the older store."""
        self._counts["store_migrated"] += 1
        extra = {"store": str(self.path), "records": len(found), "before": str(old_path), "layout": LAYOUT}
        log.info("usubscription.store_migrated", extra=extra)

    def _quarantine(self, reason: StoreDamaged) -> StoreContents:
        found = store_contents.salvage_store(self.path)
        quarantined = self._replace_store(found, "damaged")
        self._counts["store_quarantined"] += 1
        self._counts["store_salvaged"] += len(found)
        self._counts["store_lost"] += found.lost_total
        extra = {
            "store": str(self.path),
            "reason": reason.message,
            "salvaged": len(found),
            "lost_records": found.lost_records,
            "lost_pages": found.lost_pages,
            "moved_to": str(quarantined),
        }
        log.error("usubscription.store_damaged", extra=extra)
        return found

    def _replace_store(self, found: StoreContents, label: str) -> Path:
        """Replace the store by a new one with these records; return where the old store is.

        At any moment the old store or a complete new one exists.
        """
        new = sibling(self.path, "new")
        if new.exists():
            shutil.rmtree(new)
        try:
            self._write_new_store(new, found)
        except lmdb.Error as error:
            shutil.rmtree(new)
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED, f"store {self.path}: no room to keep {len(found)} records: {error}"
            ) from error
        sync_directory(new)
        date = datetime.fromtimestamp(self._wall_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
        return replace_store(self.path, label, date)

    def _environment(self) -> lmdb.Environment:
        if self._env is None:
            raise UStatusError(UCode.UNAVAILABLE, f"store {self.path}: not open")
        return self._env
