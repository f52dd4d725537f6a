# SPDX-License-Identifier: Apache-2.0
"""Stores that an earlier version wrote are read, and a record of today has the same bytes.

The spool has 20 messages over all classes; the first three were removed. The dead letters are 1 to 10 without 2 and
5. Both files were written before `ustreamer.core.storage` existed.
"""

import gzip
from pathlib import Path

import lmdb

from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.host.storage.dead_letter_store import (
    DeadLettersConfig,
    DeadLetterStore,
    StoredDeadLetter,
    encode_record,
    read_letters,
)
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import LAYOUT, SpoolRecord, encode_key, encode_value

GOLDEN = Path(__file__).parent / "golden"


def unpacked(name: str, store: Path) -> Path:
    store.mkdir()
    (store / "data.mdb").write_bytes(gzip.decompress((GOLDEN / name).read_bytes()))
    return store


def stored_records(store: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(store), readonly=True, lock=False) as env, env.begin() as txn:
        return dict(txn.cursor())


def message(number: int) -> SpoolRecord:
    payload = number.to_bytes(4, "big") * number
    topic = "up://chassis/1234/1/8001" if number % 2 else None
    return SpoolRecord(b"attributes", payload, "chassis", topic, None, 7, 8, b"boot", 9)


def letter(number: int) -> StoredDeadLetter:
    payload = None if number == 3 else b"p" * number
    times = (1000 + number, 2000 + number)
    return StoredDeadLetter(
        b"attributes", payload, number, 14, f"reason {number}", "backbone", "chassis", number, *times
    )


def test_an_earlier_spool_is_read_and_its_bytes_are_those_of_today(tmp_path: Path) -> None:
    path = unpacked("spool_layout1.mdb.gz", tmp_path / "backbone")
    expected = {
        encode_key(number % 7, number // 7 + 1): message(number) for number in range(3, 20)
    }  # sequences begin with 1
    encoded = {key: encode_value(key, content) for key, content in expected.items()}
    assert stored_records(path) == encoded | {LAYOUT_KEY: encode_value(LAYOUT_KEY, LAYOUT)}
    (tmp_path / "backbone.lock").write_bytes(b"1")  # as after a crash: LMDB's verifier reads the file too
    spool = Spool(path, SpoolLimits(1000, 1_000_000))
    assert spool.open() == [2, 2, 2, 3, 3, 3, 2]
    assert {key: found for rank in range(7) for key, found in spool.read(rank, None, 99, 1 << 20)} == expected
    assert (spool.lost, spool.quarantined) == (0, 0)
    spool.close()


def test_earlier_dead_letters_are_read_and_their_bytes_are_those_of_today(tmp_path: Path) -> None:
    path = unpacked("dead_letters_version1.mdb.gz", tmp_path / "dead-letters")
    expected = {number: letter(number) for number in range(1, 11) if number not in {2, 5}}
    encoded = dict(encode_record(number, each) for number, each in expected.items())
    assert stored_records(path) == encoded | dict([encode_record(0, 11)])
    assert dict(read_letters(path)) == expected
    store = DeadLetterStore(path, DeadLettersConfig())
    store.append([letter(99)])
    assert store.numbers() == [*expected, 11]
    assert store.damaged == 0
    store.close()
