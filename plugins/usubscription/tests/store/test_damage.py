# SPDX-License-Identifier: Apache-2.0
"""A damaged store: detected at opening, rejected or moved to quarantine, and salvaged."""

import logging
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import lmdb
import pytest
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.store import store_contents
from ustreamer_usubscription.store.store import (
    RecordChange,
    SubscriptionStore,
    delete_subscription,
    put_subscription,
)
from ustreamer_usubscription.store.store_contents import StoreContents

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.core.storage.store_reader import StoreReader
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
MB = 1 << 20
PAGE = 4096
NOON_MS = 1_781_524_800_000  # 2026-06-15 12:00 UTC


def numbered(number: int, size: int = 0) -> SubscriptionRecord:
    return SubscriptionRecord(TOPIC, UUri("device1", number, 1, 0), details=b"d" * size)


def a_store(path: Path, damaged: Literal["refuse", "quarantine"] = "quarantine") -> SubscriptionStore:
    return SubscriptionStore(path, 16 * MB, damaged=damaged, wall_ms=lambda: NOON_MS)


def filled(path: Path, count: int = 2000, size: int = 0) -> list[SubscriptionRecord]:
    """Write a store, with some history: each fourth record has been deleted again."""
    store = a_store(path)
    store.open()
    for start in range(0, count, 100):
        store.commit([put_subscription(numbered(number, size)) for number in range(start, start + 100)])
        store.commit(
            [
                delete_subscription(TOPIC, numbered(number).subscriber)
                for number in range(start, start + 100, 4)
            ]
        )
    store.close()
    drop_reserve(path)
    return [numbered(number, size) for number in range(count) if number % 4]


def drop_reserve(path: Path) -> None:
    """Truncate the file to its pages in use, so that half of the file is half of the pages."""
    data = path / "data.mdb"
    os.truncate(data, (LmdbTree(data.read_bytes())._meta_pages[0].last_page + 1) * PAGE)


def salvaged(path: Path) -> StoreContents:
    with StoreReader("salvage", path) as reader:
        return store_contents.salvage_contents(reader)


def damage(path: Path, change: Callable[[bytearray], None]) -> None:
    data = bytearray((path / "data.mdb").read_bytes())
    change(data)
    (path / "data.mdb").write_bytes(data)


def truncate(data: bytearray) -> None:
    del data[len(data) // 2 :]


def leaf(data: bytearray) -> int:
    """Where a page of records begins, one that the tree leads to."""
    return list(LmdbTree(bytes(data)).leaf_offsets())[-2]


def hit_record(data: bytearray) -> None:
    at = leaf(data)
    lowest = int.from_bytes(data[at + 14 : at + 16], "little")
    data[at + lowest + 12] ^= 0x10  # in a key


def hit_page_header(data: bytearray) -> None:
    data[leaf(data)] ^= 0x40


def hit_root(data: bytearray) -> None:
    for at in (0, PAGE):
        data[at + 88 + 40 + 5] ^= 0x01  # a page number beyond the end of the file


def flip(data: bytearray, *, bit: int) -> None:
    data[bit // 8] ^= 1 << bit % 8


def wipe(data: bytearray) -> None:
    data[:] = b"\0" * len(data)


# The damage to the file, and the share of its records that must be restored.
HITS: list[tuple[Callable[[bytearray], None], float]] = [
    (truncate, 0.2),
    (hit_record, 0.999),
    (hit_page_header, 0.9),
    (hit_root, 0.0),
    (wipe, 0.0),
]


@pytest.mark.parametrize(("hit", "saved"), HITS, ids=[hit.__name__ for hit, _ in HITS])
def test_a_damaged_store_is_moved_aside_logged_and_its_readable_records_stay(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hit: Callable[[bytearray], None], saved: float
) -> None:
    path = tmp_path / "usubscription"
    entries = filled(path)
    damage(path, hit)
    as_it_was = (path / "data.mdb").read_bytes()
    store = a_store(path)
    store.open()
    rest = list(store.load_subscriptions())
    assert list(store.take_subscriptions()) == rest
    assert set(rest) <= set(entries)  # nothing that was deleted, nothing that was never there
    assert saved * len(entries) <= len(rest) < len(entries)
    assert store.statistics()["store_quarantined"] == 1
    assert store.statistics()["store_salvaged"] == len(rest)
    assert store.statistics()["store_lost"] > 0
    aside = tmp_path / "usubscription.damaged-1-20260615T120000Z"
    assert (aside / "data.mdb").read_bytes() == as_it_was
    [record_of_damage] = [
        record for record in caplog.records if record.message == "usubscription.store_damaged"
    ]
    assert record_of_damage.levelno == logging.ERROR
    assert vars(record_of_damage)["moved_to"] == str(aside)
    assert (
        f"store {path}/data.mdb" in vars(record_of_damage)["reason"]
        or "record" in vars(record_of_damage)["reason"]
    )
    store.commit([put_subscription(numbered(5000))])
    store.close()
    store.open()
    assert len(store.take_subscriptions()) == len(rest) + 1
    assert store.statistics()["store_quarantined"] == 1
    store.close()


def test_after_a_crash_the_free_pages_are_verified_too(tmp_path: Path) -> None:
    path = tmp_path / "usubscription"
    filled(path)
    damage(path, hit_free_list)
    store_contents.read_store(path, "walk")  # the pages with the records are valid
    (tmp_path / "usubscription.lock").write_text("4711\n")
    with pytest.raises(StoreDamaged, match="freeDB"):
        a_store(path, "refuse").open()


def hit_free_list(data: bytearray) -> None:
    meta = max((0, PAGE), key=lambda at: int.from_bytes(data[at + 144 : at + 152], "little"))
    root = int.from_bytes(data[meta + 80 : meta + 88], "little") * PAGE
    data[root + PAGE - 7] ^= 0x40  # the number of a free page, which is now behind the end


def test_a_flipped_bit_gives_no_wrong_record_and_no_crash(tmp_path: Path) -> None:
    path = tmp_path / "usubscription"
    entries = set(filled(path, count=400, size=100))
    whole = (path / "data.mdb").read_bytes()
    rng = random.Random(7)
    found_out = 0
    for _ in range(20):
        at = rng.randrange(len(whole) * 8)
        damage(path, partial(flip, bit=at))
        store = a_store(path)
        store.open()
        assert set(store.load_subscriptions()) <= entries
        found_out += store.statistics()["store_quarantined"]
        assert len(store.take_subscriptions()) == len(entries) or store.statistics()["store_lost"]
        store.close()
        (path / "data.mdb").write_bytes(whole)
    assert found_out > 2


def test_without_space_to_salvage_the_damaged_store_stays(tmp_path: Path) -> None:
    path = tmp_path / "usubscription"
    filled(path, size=1000)
    damage(path, hit_record)
    store = SubscriptionStore(path, MB, damaged="quarantine")
    with pytest.raises(UStatusError, match="no room to keep") as refused:
        store.open()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert {each.name for each in tmp_path.iterdir()} == {"usubscription", "usubscription.lock"}


def test_large_records_are_salvaged_from_their_overflow_pages(tmp_path: Path) -> None:
    entries = filled(tmp_path / "s", count=100, size=3900)
    assert len(salvaged(tmp_path / "s")) == len(entries)


# --- one user at a time -----------------------------------------------------------------------------------------------


# --- the service ------------------------------------------------------------------------------------------------------


def test_a_streamer_starts_with_the_salvaged_records_and_logs_it(
    make_rig: "Callable[..., ServiceRig]", caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig().start()
    for number in range(1, 4):
        rig.subscribe(caller=UUri("device1", number, 1, 0))
    rig.stop()
    with lmdb.open(str(rig.state_dir / "usubscription")) as env, env.begin(write=True) as txn:
        key = b"s/up://device2/10AB/3/80CD\0up://device1/2/1/0"
        txn.put(*RecordChange(key, b"\x02" + b"?" * 20))  # type: ignore[arg-type]
    rig.restart()
    assert [subscriber.ue_id for subscriber, _ in rig.routed_subscribers()] == [1, 3]
    assert (rig.statistics("store_salvaged"), rig.statistics("store_lost")) == (
        2 + 3,
        1,
    )  # and the events
    assert "usubscription.store_damaged" in caplog.messages
    rig.subscribe(caller=UUri("device1", 2, 1, 0))  # the state after the damage
    assert len(rig.routed_subscribers()) == 3


def test_a_streamer_that_refuses_damage_does_not_start(
    make_rig: "Callable[..., ServiceRig]",
) -> None:
    rig = make_rig(damaged="refuse").start()
    rig.subscribe()
    rig.stop()
    damage(rig.state_dir / "usubscription", wipe)
    with pytest.raises(StoreDamaged):
        rig.restart()
