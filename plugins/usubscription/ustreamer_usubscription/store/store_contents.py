# SPDX-License-Identifier: Apache-2.0
"""The contents of a store: chunks of the verify process in, checked records out."""

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Final, Literal

from ustreamer.core.storage import store_reader
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import lock_holder
from ustreamer.core.storage.framed_record import LAYOUT_KEY, layout_number
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader
from ustreamer_usubscription.store import records
from ustreamer_usubscription.store.compact_index import BLOCK_RECORDS, CompactIndex
from ustreamer_usubscription.store.records import (
    EVENT_PREFIX,
    LAYOUT,
    SUBSCRIPTION_PREFIX,
)

_PREFIX_BYTES: Final = len(SUBSCRIPTION_PREFIX)  # the bytes of a key that define the kind of the record


class StoreContents:
    """The records without the layout record, in the order of their keys, and the losses of a salvage."""

    def __init__(self) -> None:
        self.subscriptions = CompactIndex()
        self.other_records: list[tuple[bytes, bytes]] = []
        """Keys and values of the other kinds."""
        self.layout: int | None = None
        self.lost_records = 0
        self.lost_pages = 0

    def __len__(self) -> int:
        return len(self.subscriptions) + len(self.other_records)

    def add_records(self, keys: list[bytes], values: list[bytes], block: bytes = b"") -> None:
        """Add the next records; `block` as for `CompactIndex`. Raises StoreDamaged for a damaged record."""
        if not keys:
            return
        kind, last = keys[0][:_PREFIX_BYTES], keys[-1][:_PREFIX_BYTES]
        if kind != last:
            for _, run in groupby(zip(keys, values, strict=True), key=_prefix_of):
                chunk_records = list(run)
                self.add_records([key for key, _ in chunk_records], [value for _, value in chunk_records])
        elif kind == SUBSCRIPTION_PREFIX:
            extremes = records.verify_subscriptions(keys, values)
            if extremes is None:
                _check_records(keys, values)
            may_expire = extremes is None or records.values_may_expire(*extremes)
            self.subscriptions.add_block(keys, values, block, may_expire=may_expire)
        else:
            if kind != EVENT_PREFIX or not records.verify_events(keys, values):
                _check_records(keys, values)
            self.other_records += zip(keys, values, strict=True)

    def records_with_prefix(self, kind: bytes) -> list[tuple[bytes, bytes]]:
        """Keys and values of the records of one kind other than subscriptions."""
        return [record for record in self.other_records if record[0].startswith(kind)]

    def all_records(self) -> Iterator[tuple[bytes, bytes]]:
        """Keys and values of all records."""
        after = bisect_left(self.other_records, (SUBSCRIPTION_PREFIX,))
        return chain(self.other_records[:after], self.subscriptions.records(), self.other_records[after:])

    @property
    def lost_total(self) -> int:
        """The sum of unreadable records and unreadable pages."""
        return self.lost_records + self.lost_pages


def _prefix_of(record: tuple[bytes, bytes]) -> bytes:
    return record[0][:_PREFIX_BYTES]


def _check_records(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    for key, value in zip(keys, values, strict=True):
        records.check_record(key, value)


def read_store(directory: Path, mode: Literal["walk", "verify", "snapshot"]) -> StoreContents:
    """The contents of a store of this or an older layout; older records are converted.

    "verify" runs LMDB's verifier first; "snapshot" is for a store that a streamer may be using. Takes at most 20 s
    and 1 s for each 4 MiB. Raises StoreDamaged for any damage, and StoreTooNew.
    """
    return store_reader.read_store(f"store {directory}", directory, mode, contents_from_chunks)


def inspect_store(directory: Path) -> StoreContents:
    """The contents for a reader outside the streamer; an unused store is verified. Raises as `read_store`."""
    running = lock_holder(directory.with_name(f"{directory.name}.lock")) is not None
    return read_store(directory, "snapshot" if running else "verify")


def contents_from_chunks(chunks: Iterable[RecordChunk]) -> StoreContents:
    """The contents in these chunks. Raises as `read_store`."""
    found = StoreContents()
    for block, keys, values in chunks:
        packed_block = block
        if found.layout is None:
            found.layout = _checked_layout(keys, values)
            packed_block = b""
            del keys[0], values[0]
        if found.layout == 1:
            values[:] = [records.migrate_record(*record) for record in zip(keys, values, strict=True)]
            packed_block = b""
        found.add_records(keys, values, packed_block)
    if found.layout is None:
        layout_number(None)
    return found


def salvage_contents(reader: StoreReader) -> StoreContents:
    """The readable records of a damaged store: only records with a valid checksum, no deleted ones.

    An unreadable file gives no record.
    """
    found: dict[bytes, bytes] = {}
    lost_records = 0
    with contextlib.suppress(StoreDamaged):
        for _, keys, values in reader.chunks():
            lost_records += salvage_records(keys, values, found)
    result = StoreContents()
    keys = sorted(found)
    for at in range(0, len(keys), BLOCK_RECORDS):
        some = keys[at : at + BLOCK_RECORDS]
        result.add_records(some, [found[key] for key in some])
    result.lost_records, result.lost_pages = lost_records, reader.lost_pages
    return result


def salvage_records(keys: Sequence[bytes], values: Sequence[bytes], found: dict[bytes, bytes]) -> int:
    """Add the undamaged records to `found`; return the number of damaged ones."""
    lost = 0
    for key, value in zip(keys, values, strict=True):
        if key == LAYOUT_KEY:
            continue
        try:
            if value[:1] == b"\x01":
                found[key] = records.migrate_record(key, value)
            else:
                records.check_record(key, value)
                found[key] = value
        except StoreDamaged:
            lost += 1
    return lost


def _checked_layout(keys: list[bytes], values: list[bytes]) -> int:
    if keys[0] != LAYOUT_KEY:  # no other key is less
        records.check_record(keys[0], values[0])
    return layout_number(values[0] if keys[0] == LAYOUT_KEY else None, LAYOUT)
