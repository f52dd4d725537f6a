# SPDX-License-Identifier: Apache-2.0
"""The spool on a real LMDB and a real file system: order, limits, kills, full disks and changed bytes."""

import errno
import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import lmdb
import pytest

from tests.core.storage.refused_writes import with_refused_writes
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import LAYOUT_KEY
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.host.storage import spool_records
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import (
    SpoolRecord,
    decode_key,
    encode_key,
    encode_value,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError

LIMITS = SpoolLimits(100_000, 100_000_000)
MB = 1 << 20


def numbered(number: int, size: int = 4) -> SpoolRecord:
    topic = "up://chassis/1234/1/8001" if number % 2 else None
    return SpoolRecord(
        b"attributes", number.to_bytes(4, "big") * (size // 4), "chassis", topic, None, 7, 8, b"boot", 9
    )


def number_of(found: SpoolRecord | None) -> int:
    return -1 if found is None else int.from_bytes(found.payload[:4], "big")


def a_spool(path: Path, limits: SpoolLimits = LIMITS) -> Spool:
    return Spool(path / "spool" / "backbone", limits)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = a_spool(tmp_path)
    spool.open()
    yield spool
    spool.close()


def add(spool: Spool, *numbers: int, rank: int = 1, size: int = 4) -> list[bytes]:
    return spool.commit([(rank, numbered(number, size)) for number in numbers])


def numbers(spool: Spool, rank: int = 1) -> list[int]:
    return [number_of(found) for _, found in spool.read(rank, None, 1_000_000, 1 << 40)]


def reopened(spool: Spool) -> list[int]:
    spool.close()
    return spool.open()


# --- stored state -------------------------------------------------------------------------------------------


def test_a_new_spool_is_empty_and_leaves_no_temporary_files(spool: Spool) -> None:
    assert spool.messages == spool.bytes == 0
    assert {path.name for path in spool.path.parent.iterdir()} == {"backbone", "backbone.lock"}
    assert {path.name for path in spool.path.iterdir()} == {"data.mdb", "lock.mdb"}
    assert (spool.path.parent.stat().st_mode & 0o777, spool.path.stat().st_mode & 0o777) == (0o700, 0o700)


@pytest.mark.parametrize(
    "message",
    [
        SpoolRecord(b"", b"", "", None, None, 0, 0, b"", 0),
        SpoolRecord(
            b"\0" * 30,
            b"p" * 100_000,
            "chassis",
            "up://a/1/1/8000",
            "up://b/1/1/0",
            -5,
            2**62,
            b"12345678",
            2**50,
        ),
    ],
)
def test_a_stored_message_is_read_back_unchanged(spool: Spool, message: SpoolRecord) -> None:
    [key] = spool.commit([(6, message)])
    reopened(spool)
    assert spool.read(6, None, 10, 10) == [(key, message)]


def test_prepended_messages_come_before_all_others_of_their_class(spool: Spool) -> None:
    spool.commit([(rank, numbered(100 + n)) for n in range(10) for rank in (1, 5)])
    spool.prepend([(rank, numbered(50 + n)) for n in range(10) for rank in (1, 5, 6)])
    spool.prepend([(1, numbered(n)) for n in range(10)])
    assert reopened(spool) == [0, 30, 0, 0, 0, 20, 10]
    assert [each % 50 for each in numbers(spool, 1)] == [*range(10), *range(10), *range(10)]
    assert numbers(spool, 1) == [*range(10), *range(50, 60), *range(100, 110)]
    assert numbers(spool, 5) == [*range(50, 60), *range(100, 110)]
    assert numbers(spool, 6) == [*range(50, 60)]
    add(spool, 200, rank=6)
    assert numbers(spool, 6)[-1] == 200


def test_messages_are_deleted_in_the_transaction_that_prepends_others(spool: Spool) -> None:
    sent = spool.commit([(spool_records.SENT, numbered(n)) for n in range(3)])
    add(spool, 7, rank=1)
    before = spool.statistics()["spool_transactions"]
    spool.prepend([(1, numbered(5))], sent)
    assert spool.statistics()["spool_transactions"] == before + 1
    assert numbers(spool, spool_records.SENT) == []
    assert numbers(spool, 1) == [5, 7]
    assert (reopened(spool), spool.messages) == ([0, 2, 0, 0, 0, 0, 0], 2)


def test_deleted_messages_of_the_class_are_not_moved_behind_the_prepended_ones(spool: Spool) -> None:
    deleted, _ = add(spool, 5, 6, rank=1)
    spool.prepend([(1, numbered(1))], [deleted])
    assert numbers(spool, 1) == [1, 6]
    assert (reopened(spool)[1], spool.messages) == (2, 2)


def test_a_full_spool_refuses_prepended_messages(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, SpoolLimits(3, 100_000))
    spool.open()
    add(spool, 7, 8)
    with pytest.raises(UStatusError, match="is full") as refused:
        spool.prepend([(1, numbered(1)), (1, numbered(2))])
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert numbers(spool) == [7, 8]
    spool.close()


def test_the_receivers_are_replaced_and_are_no_message(spool: Spool) -> None:
    assert spool.receivers() == []
    spool.commit([(each, numbered(each)) for each in (0, 6, spool_records.SENT)])
    for receivers in (["a" * 100, "b"], ["b"]):
        spool.write_receivers(receivers)
        assert spool.receivers() == receivers
    before = spool.messages, spool.bytes
    spool.close()
    assert spool.open() == [1, 0, 0, 0, 0, 0, 1]
    assert (spool.receivers(), (spool.messages, spool.bytes), spool.quarantined) == (["b"], before, 0)
    assert numbers(spool, spool_records.SENT) == [spool_records.SENT]


def test_damaged_receivers_cost_no_message(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    spool.commit([(0, numbered(0))])
    spool.write_receivers(["a"])
    spool.close()
    damage_record(spool, spool_records.RECEIVERS_KEY, b"damaged")
    assert spool.open()[0] == 1
    assert (spool.receivers(), spool.quarantined, spool.lost) == ([], 1, 0)
    assert caplog.messages == ["spool.damaged", "spool.receivers_lost"]


def test_a_quarantined_spool_keeps_the_receivers(spool: Spool) -> None:
    spool.commit([(0, numbered(0))])
    spool.write_receivers(["a"])
    spool.close()
    damage_record(spool, encode_key(0, 1), b"damaged")
    assert spool.open()[0] == 0
    assert (spool.receivers(), spool.quarantined, spool.lost) == (["a"], 1, 1)


def test_messages_of_a_class_keep_their_order_over_restarts(spool: Spool) -> None:
    for start in (0, 100, 200):
        spool.commit([(rank, numbered(start + n)) for n in range(100) for rank in (5, 0)])
        assert reopened(spool) == [start + 100, 0, 0, 0, 0, start + 100, 0]
    assert numbers(spool, 0) == numbers(spool, 5) == list(range(300))
    assert numbers(spool, 1) == []


def test_reads_start_at_a_key_and_are_bounded_by_number_and_size(spool: Spool) -> None:
    keys = add(spool, *range(10), size=1000)
    assert [key for key, _ in spool.read(1, None, 3, 1 << 30)] == keys[:3]
    assert [key for key, _ in spool.read(1, keys[2], 100, 2_500)] == keys[3:5]
    assert [key for key, _ in spool.read(1, keys[4], 100, 0)] == keys[5:6]
    assert spool.read(1, keys[-1], 100, 1 << 30) == []


def test_deleted_messages_are_removed_and_counted(spool: Spool) -> None:
    keys = add(spool, *range(300))
    before = spool.bytes
    spool.delete_messages(keys[100:])
    assert (spool.messages, numbers(spool)) == (100, list(range(100)))
    spool.commit([(1, numbered(300))], deleted_keys=keys[:99])
    spool.delete_messages([keys[0], encode_key(3, 12345)])  # already deleted, or never stored
    assert numbers(spool) == [99, 300]
    assert (spool.messages, spool.bytes) == (2, before // 150)
    found = spool.bytes
    assert reopened(spool)[1] == 2
    assert (spool.messages, spool.bytes) == (2, found)


def test_adding_and_deleting_is_one_transaction(spool: Spool) -> None:
    keys = add(spool, *range(64))
    before = spool.statistics()["spool_transactions"]
    spool.commit([(1, numbered(n)) for n in range(64)], deleted_keys=keys)
    assert spool.statistics()["spool_transactions"] == before + 1


@pytest.mark.parametrize("limits", [SpoolLimits(10, 1 << 30), SpoolLimits(1 << 30, 800)])
def test_a_full_spool_refuses_messages_until_there_is_space(tmp_path: Path, limits: SpoolLimits) -> None:
    spool = a_spool(tmp_path, limits)
    spool.open()
    keys = add(spool, *range(10))
    with pytest.raises(UStatusError, match="is full") as refused:
        add(spool, *range(10, 15))
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert numbers(spool) == list(range(10))
    spool.delete_messages(keys[:5])
    add(spool, *range(10, 15))
    assert numbers(spool) == list(range(5, 15))
    spool.close()


def test_a_full_spool_accepts_as_many_messages_as_are_deleted_with_them(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, SpoolLimits(10, 1 << 30))
    spool.open()
    keys = add(spool, *range(10))
    spool.commit([(1, numbered(n)) for n in range(10, 13)], deleted_keys=keys[:3])
    assert numbers(spool) == list(range(3, 13))
    spool.close()


def test_deletions_are_made_even_if_the_added_messages_are_refused(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, SpoolLimits(10, 1 << 30))
    spool.open()
    keys = add(spool, *range(10))
    with pytest.raises(UStatusError):
        spool.commit([(1, numbered(n)) for n in range(12)], deleted_keys=keys[:1])
    assert numbers(spool) == list(range(1, 10))
    spool.close()


# --- kills ------------------------------------------------------------------------------------------------------------

STORM = """
import sys
from itertools import count
from pathlib import Path
from ustreamer.host.storage.spool import Spool, SpoolLimits
from ustreamer.host.storage.spool_records import SpoolRecord

spool = Spool(Path(sys.argv[1]), SpoolLimits(100_000, 100_000_000))
spool.open()
keys = []
for start in count(0, 8):
    print(">", start, flush=True)
    new = [(1, SpoolRecord(b"a", n.to_bytes(4, "big"), "c", None, None, 0, 0, b"", 0)) for n in range(start, start + 8)]
    keys += spool.commit(new, deleted_keys=keys[start - 64 : start - 60] if start >= 64 else [])
    print("<", start, flush=True)
"""


@pytest.mark.parametrize("kills", [3, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_kill_loses_no_commit_and_restores_no_deleted_message(tmp_path: Path, kills: int) -> None:
    # Each commit adds eight messages and removes, of those of eight commits ago, the first four.
    committed = 0
    for seed in range(kills):
        rng = random.Random(seed)
        path = tmp_path / str(seed) / "backbone"
        with subprocess.Popen(
            [sys.executable, "-c", STORM, str(path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout
            lines = [next(process.stdout) for _ in range(rng.randint(1, 60))]
            process.send_signal(signal.SIGKILL)
            lines += [line for line in process.stdout if line.endswith("\n")]
        sign, latest = lines[-1].split()
        done = int(latest) + 8 if sign == "<" else int(latest)
        spool = Spool(path, LIMITS)
        spool.open()
        found = numbers(spool)
        assert (spool.lost, spool.quarantined) == (0, 0)
        spool.close()

        def left(end: int) -> list[int]:
            return [n for n in range(end) if not (n % 8 < 4 and n // 8 * 8 + 64 < end)]

        assert found in (left(done), left(done + 8)), f"after the kill with seed {seed}"
        committed += done
    print(f"\nkills={kills} committed={committed} lost=0 back=0")


# --- no room ----------------------------------------------------------------------------------------------------------


def test_a_deletion_that_the_disk_refuses_is_retried_with_the_next(
    spool: Spool, caplog: pytest.LogCaptureFixture
) -> None:
    keys = add(spool, 1, 2, 3)
    for at in (0, 1):
        with_refused_writes(errno.EROFS, partial(spool.delete_messages, keys[at : at + 1]))
    events = [record.message for record in caplog.records if record.name == "ustreamer.spool"]
    assert events == ["spool.delete_failed"]
    assert numbers(spool) == [1, 2, 3]
    spool.delete_messages([])
    assert (spool.messages, numbers(spool)) == (1, [3])


@pytest.mark.parametrize("retry", [Spool.retry, Spool.close])
def test_a_refused_deletion_needs_no_further_change(spool: Spool, retry: Callable[[Spool], None]) -> None:
    keys = add(spool, 1, 2, 3)
    with_refused_writes(errno.EROFS, partial(spool.delete_messages, keys[:2]))
    assert (spool.is_degraded, numbers(spool)) == (True, [1, 2, 3])
    retry(spool)
    spool.close()
    assert spool.open()[1] == 1
    assert numbers(spool) == [3]


# --- damage -----------------------------------------------------------------------------------------------------------


def filled(path: Path, count: int = 2000) -> Spool:
    spool = a_spool(path)
    spool.open()
    for start in range(0, count, 100):
        add(spool, *range(start, start + 100), size=100)
    spool.close()
    return spool


def hit_leaf(data: bytearray) -> None:
    at = data.index((1000).to_bytes(4, "big") * 25) // 4096 * 4096
    data[at + 10] ^= 0x02  # the kind of page


def test_an_unreadable_file_is_moved_aside_and_its_readable_messages_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spool = filled(tmp_path)
    data = bytearray((spool.path / "data.mdb").read_bytes())
    hit_leaf(data)
    (spool.path / "data.mdb").write_bytes(data)
    (spool.path.parent / "backbone.lock").write_bytes(b"1")  # its user was killed
    spool.open()
    found = numbers(spool)
    assert found == sorted(found)
    assert 1900 <= len(found) == spool.messages < 2000
    assert spool.quarantined == 1
    [log_record] = [record for record in caplog.records if record.message == "spool.damaged"]
    assert log_record.levelno == logging.ERROR
    aside = tmp_path / "spool" / "backbone.damaged-1"
    assert vars(log_record)["moved_to"] == str(aside)
    assert (aside / "data.mdb").read_bytes() == data
    add(spool, 2000)
    assert reopened(spool)[1] == len(found) + 1
    spool.close()


def damage_record(spool: Spool, key: bytes, value: bytes) -> None:
    with lmdb.open(str(spool.path), map_size=64 * MB) as env, env.begin(write=True) as txn:
        txn.put(key, value)


BAD_VALUES = [
    b"",
    b"\x01\0\0\0",
    b"\x02" + encode_value(encode_key(1, 3), numbered(3))[1:],
    encode_value(encode_key(1, 4), numbered(3)),
    encode_value(encode_key(1, 3), numbered(3)) + b"\0",
]


@pytest.mark.parametrize("value", BAD_VALUES, ids=["empty", "short", "version", "key", "longer"])
def test_damaged_records_are_skipped_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    spool = filled(tmp_path, 100)
    damage_record(spool, encode_key(1, 3), value)
    damage_record(spool, b"\x08" + bytes(8), encode_value(b"\x08" + bytes(8), numbered(1)))
    assert spool.open()[1] == 99
    assert (spool.lost, spool.quarantined, spool.messages) == (2, 1, 99)
    assert numbers(spool) == [n for n in range(100) if n != 2]  # sequences begin with 1
    [log_record] = [record for record in caplog.records if record.message == "spool.messages_lost"]
    assert vars(log_record)["messages"] == 2
    spool.close()
    assert spool.open()[1] == 99  # they are gone, so this is logged once
    assert (spool.lost, spool.quarantined) == (2, 1)
    spool.close()


def test_a_record_whose_size_in_the_file_is_damaged_costs_no_other_message(tmp_path: Path) -> None:
    """LMDB would move the other records of the page by that size, if it deleted the record."""
    spool = filled(tmp_path, 100)
    file = spool.path / "data.mdb"
    data = bytearray(file.read_bytes())
    key = encode_key(1, 50)
    size_at = data.rindex(key) - 8  # two bytes of size, the upper two, flags, size of the key
    assert int.from_bytes(data[size_at + 6 : size_at + 8], "little") == len(key)
    data[size_at] ^= 0x40
    file.write_bytes(data)
    assert spool.open()[1] == 99
    assert numbers(spool) == [n for n in range(100) if n != 49]
    spool.close()


def test_a_record_damaged_while_the_spool_is_open_is_skipped(spool: Spool) -> None:
    keys = add(spool, 0, 1, 2)
    with spool._store._environment().begin(write=True) as txn:
        txn.put(keys[1], b"nonsense")
    assert numbers(spool) == [0, -1, 2]
    assert spool.lost == 1
    body = b"\x01" + (0).to_bytes(4, "big")
    with pytest.raises(StoreDamaged):
        spool_records.decode_record(keys[1], body)


def test_every_flipped_bit_in_key_or_value_is_found() -> None:
    key = encode_key(3, 77)
    value = encode_value(key, numbered(5))
    for bit in range(8 * len(key + value)):
        flipped = bytearray(key + value)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamaged):
            spool_records.decode_record(bytes(flipped[: len(key)]), bytes(flipped[len(key) :]))


@pytest.mark.parametrize("flips", [12, pytest.param(1000, marks=pytest.mark.soak)])
def test_a_flipped_bit_in_the_file_returns_no_wrong_message_and_the_spool_opens(
    tmp_path: Path, flips: int
) -> None:
    spool = filled(tmp_path, 300)
    whole = (spool.path / "data.mdb").read_bytes()
    used = len(whole.rstrip(b"\0"))
    rng = random.Random(5)
    for _ in range(flips):
        data = bytearray(whole)
        data[rng.randrange(used)] ^= 1 << rng.randrange(8)
        (spool.path / "data.mdb").write_bytes(data)
        (spool.path.parent / "backbone.lock").write_bytes(b"1")
        spool.open()
        found = numbers(spool)
        assert set(found) <= set(range(300))
        assert found == sorted(found)
        assert spool.messages == len(found)
        spool.close()
    print(f"flips={flips} wrong_data_accepted=0")


def test_a_spool_of_a_later_layout_is_refused_and_unchanged(tmp_path: Path) -> None:
    spool = filled(tmp_path, 100)
    damage_record(spool, LAYOUT_KEY, encode_value(LAYOUT_KEY, 2))
    with pytest.raises(UStatusError, match="layout 2, this program reads layout 1") as refused:
        spool.open()
    assert refused.value.code is UCode.FAILED_PRECONDITION
    assert not list(spool.path.parent.glob("*.damaged-*"))


def test_the_summary_counts_by_class(spool: Spool) -> None:
    add(spool, 1, 2, 3, rank=2)
    keys = add(spool, 4, rank=6)
    spool.close()
    with StoreReader("walk", spool.path) as reader:
        found = spool_records.summarize(reader.records())
    assert (found.messages, found.last, found.damaged) == (
        [0, 0, 3, 0, 0, 0, 1, 0],
        [0, 0, 3, 0, 0, 0, 1, 0],
        [],
    )
    assert decode_key(keys[0]) == (6, 1)
    assert sum(found.bytes) == spool.bytes


# --- for an endpoint queue ----------------------------------------------------------------------------------


def test_a_message_is_read_by_key_from_any_thread_during_writes(spool: Spool) -> None:
    keys = add(spool, *range(100))
    with ThreadPoolExecutor(1) as other:
        read = other.submit(lambda: [number_of(spool.get(key)) for key in keys * 10])
        add(spool, *range(100, 200))
        assert read.result() == [*range(100)] * 10


def test_a_missing_key_that_may_be_deleted_is_no_loss(spool: Spool) -> None:
    assert spool.get(encode_key(1, 1), may_be_deleted=True) is None
    assert spool.lost == 0


def test_a_missing_key_counts_as_a_lost_message(spool: Spool) -> None:
    assert spool.get(encode_key(1, 77)) is None
    assert spool.lost == 1


def test_a_closed_spool_counts_no_loss(spool: Spool) -> None:
    [key] = add(spool, 1)
    spool.close()
    with pytest.raises(UStatusError, match="not open"):
        spool.get(key)
    assert spool.lost == 0


def test_larger_limits_enlarge_the_map(tmp_path: Path) -> None:
    spool = a_spool(tmp_path, SpoolLimits(10, 1_000))
    spool.open()
    with pytest.raises(UStatusError, match="is full"):
        add(spool, 1, size=2_000)
    spool.set_limits(SpoolLimits(1_000, 100 * MB))
    for number in range(18):  # more than the map was large
        add(spool, number, size=5 * MB)
    assert numbers(spool) == list(range(18))
    spool.close()
