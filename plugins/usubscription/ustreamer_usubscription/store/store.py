# SPDX-License-Identifier: Apache-2.0
"""Subscriptions on disk, in a store (`LmdbStore`) in the directory it is given; `records` has its layout.

<name>.damaged-<n>-<time>/   damaged stores, unchanged; the latest three
<name>.layout1-<n>-<time>/   migrated stores, unchanged; the latest three
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Final, Literal

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreTooNew
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.core.storage.lmdb_store import LmdbStore, Record
from ustreamer.core.storage.store_files import sibling
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader
from ustreamer.core.storage.store_states import StoreStates
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
    OBSERVER_PREFIX,
    REMOTE_TOPIC_PREFIX,
    SUBSCRIPTION_PREFIX,
    TOPIC_PREFIX,
    RecordChange,
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


class _SubscriptionsLayout:
    """A `StoreLayout`: every readable record of a damaged store stays."""

    def __init__(self) -> None:
        self.salvaged = StoreContents()
        """The result of the last salvage, with its losses."""

    @staticmethod
    def first_record() -> Record:
        return LAYOUT_KEY, records.layout_value()

    @staticmethod
    def read(chunks: Iterable[RecordChunk]) -> StoreContents:
        return store_contents.contents_from_chunks(chunks)

    def salvage(self, reader: StoreReader) -> Iterable[Iterable[Record]]:
        self.salvaged = store_contents.salvage_contents(reader)
        return [self.salvaged.all_records()]


class SubscriptionStore:
    """The subscriptions in directory `path`. Constructing it touches no file.

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
        states: StoreStates | None = None,
    ) -> None:
        self.path = path
        self._wall_ms = wall_ms
        self._layout = _SubscriptionsLayout()
        self._store = LmdbStore(
            "store",
            path,
            map_size,
            self._layout,
            mode=0o640,
            lock=FileLock(sibling(path, "lock")),
            refuse_damaged=damaged == "refuse",
            date=self._date,
            states=states,
        )
        self._contents = StoreContents()
        self._history = EventHistory(max_events(history, map_size))
        names = ("store_quarantined", "store_salvaged", "store_lost", "store_migrated", "history_skipped")
        self._counts = dict.fromkeys(names, 0)

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open or create the store; migrate a store of an older layout. Raises as `LmdbStore.open`.

        Without space to salvage or migrate into, the old store is unchanged.
        """
        self._contents = self._store.open()
        try:
            self._note_quarantine()
            self._migrate()
        except BaseException:
            self._store.close(orderly=False)
            raise
        self._history.load_stored([key for key, _ in self._contents.records_with_prefix(EVENT_PREFIX)])

    def close(self) -> None:
        """Close the store; commits are on disk already. May be repeated."""
        self._store.close()

    def _migrate(self) -> None:
        before = self._contents.layout
        if before == LAYOUT:
            return
        moved_to = self.path
        if before == _IN_PLACE_LAYOUT:
            self._store.commit([_LAYOUT_RECORD], exceed_map=True)
        else:
            moved_to = self._store.replace([self._contents.all_records()], f"layout{before}")
        self._counts["store_migrated"] += 1
        extra = {
            "store": str(self.path),
            "records": len(self._contents),
            "before": str(moved_to),
            "layout": LAYOUT,
        }
        log.info("usubscription.store_migrated", extra=extra)

    def _note_quarantine(self) -> None:
        quarantine = self._store.quarantine
        if quarantine is None:
            return
        found = self._layout.salvaged
        self._counts["store_quarantined"] += 1
        self._counts["store_salvaged"] += len(found)
        self._counts["store_lost"] += found.lost_total
        extra = {
            "store": str(self.path),
            "reason": quarantine.reason,
            "salvaged": len(found),
            "lost_records": found.lost_records,
            "lost_pages": found.lost_pages,
            "moved_to": str(quarantine.path),
        }
        log.error("usubscription.store_damaged", extra=extra)
        self._layout.salvaged = StoreContents()

    def _date(self) -> str:
        return datetime.fromtimestamp(self._wall_ms() / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")

    # --- reading ------------------------------------------------------------------------------------------------------

    def take_subscriptions(self) -> CompactIndex:
        """The subscriptions at opening; only the first call returns them."""
        stored, self._contents = self._contents, StoreContents()
        return stored.subscriptions

    def load_subscriptions(self) -> Iterator[SubscriptionRecord]:
        """All subscriptions, by topic and then by subscriber. Raises StoreDamaged at the first damaged record."""
        read = records.SubscriptionReader().read_subscription
        for key, value in self._store.records_from():
            if key.startswith(SUBSCRIPTION_PREFIX):
                yield read(key, value)
            else:
                records.check_record(key, value)

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

    def _records_with_prefix(self, kind: bytes) -> Iterator[Record]:
        return takewhile(lambda record: record[0].startswith(kind), self._store.records_from(kind))

    def statistics(self) -> Mapping[str, int]:
        """Stores quarantined and migrated, records salvaged and lost, events skipped for a full map, transactions."""
        return {**self._counts, "transactions": self._store.transactions}

    # --- writing ------------------------------------------------------------------------------------------------------

    @property
    def is_degraded(self) -> bool:
        """Whether the disk refused the last write."""
        return self._store.is_degraded

    def retry(self) -> None:
        """As `LmdbStore.retry`."""
        self._store.retry()

    def commit(self, changes: Sequence[RecordChange], events: Sequence[SubscriptionEvent] = ()) -> None:
        """Make all of `changes`, or none, in one transaction; on return they survive a power cut.

        The last of `events` enter the history in the same transaction. If they do not fit, the changes are committed
        without them, so that a full map can be emptied. Raises as `LmdbStore.commit`.
        """
        history_changes = self._history.changes_for(events)
        if history_changes:
            try:
                self._store.commit([*changes, *history_changes])
            except UStatusError as error:
                if error.code is not UCode.RESOURCE_EXHAUSTED:
                    raise
                self._counts["history_skipped"] += len(events)
            else:
                self._history.on_committed(events)
                return
        self._store.commit(changes)
