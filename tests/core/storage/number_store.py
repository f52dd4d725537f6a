# SPDX-License-Identifier: Apache-2.0
"""A store of numbered records, for tests of `LmdbStore`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.file_lock import FileLock
from ustreamer.core.storage.framed_record import LAYOUT_KEY, encode_frame, frame_body, layout_number
from ustreamer.core.storage.lmdb_store import Change, LmdbStore, Record
from ustreamer.core.storage.store_files import sibling
from ustreamer.core.storage.store_reader import RecordChunk, StoreReader


def key_of(number: int) -> bytes:
    return b"n%06d" % number


def record(number: int, size: int = 100) -> Record:
    key = key_of(number)
    return key, encode_frame(key, b"%06d" % number * (size // 6))


def records(numbers: Sequence[int], size: int = 100) -> list[Change]:
    return [record(number, size) for number in numbers]


def deletions(numbers: Sequence[int]) -> list[Change]:
    return [(key_of(number), None) for number in numbers]


def layout_record(number: int = 1) -> Record:
    return LAYOUT_KEY, encode_frame(LAYOUT_KEY, bytes([number]))


class NumberLayout:
    """A `StoreLayout` whose contents are the numbers."""

    @staticmethod
    def first_record() -> Record:
        return layout_record()

    @staticmethod
    def read(chunks: Iterator[RecordChunk]) -> list[int]:
        found, layout = [], None
        for _, keys, values in chunks:
            for key, value in zip(keys, values, strict=True):
                if key == LAYOUT_KEY:
                    layout = value
                else:
                    found.append(int(frame_body(key, value)[:6]))
        layout_number(layout, 1)
        return found

    @staticmethod
    def salvage(reader: StoreReader) -> Iterator[list[Record]]:
        for _, keys, values in reader.chunks():
            yield [each for each in zip(keys, values, strict=True) if _is_whole(*each)]


def _is_whole(key: bytes, value: bytes) -> bool:
    try:
        return bool(frame_body(key, value))
    except StoreDamaged:
        return False


def number_store(path: Path, map_size: int = 1 << 30, **options: Any) -> LmdbStore[list[int]]:
    return LmdbStore("store", path, map_size, NumberLayout(), lock=FileLock(sibling(path, "lock")), **options)


def numbers_in(store: LmdbStore[list[int]]) -> list[int]:
    return [int(frame_body(*each)[:6]) for each in store.records_from(b"n")]
