# SPDX-License-Identifier: Apache-2.0
"""Stores of earlier layouts: each `store_of_layout<n>.mdb.gz` was written by the last version that had that layout."""

import errno
import gzip
from pathlib import Path

import lmdb
import pytest
from ustreamer_usubscription.events import SubscriptionEvent
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import records, store_contents
from ustreamer_usubscription.store.store import (
    SubscriptionStore,
    put_subscription,
)

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import LAYOUT_KEY, layout_number
from ustreamer.core.storage.lmdb_store import LmdbStore
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
MB = 1 << 20


def kept_of(layout: int) -> bytes:
    return gzip.decompress(Path(__file__).with_name(f"store_of_layout{layout}.mdb.gz").read_bytes())


OLD, OLD_2 = kept_of(1), kept_of(2)


def subscription(number: int) -> SubscriptionRecord:
    expire_ms = None if number % 2 else 1_781_565_900_000 + number
    details = b"\x12\x00" if number == 3 else b""
    return SubscriptionRecord(TOPIC, UUri("device1", number, 1, 0), number * 1_000_000, expire_ms, details)


def put_down(path: Path, data: bytes = OLD) -> Path:
    path.mkdir()
    (path / "data.mdb").write_bytes(data)
    return path


def test_a_store_of_layout_1_is_migrated_once_and_kept_unchanged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[utest->req~usubscription-subscribe-persistency~1]"""
    caplog.set_level("INFO")
    store = SubscriptionStore(put_down(tmp_path / "s"), MB)
    for _ in range(2):
        store.open()
        assert list(store.take_subscriptions()) == [
            subscription(number) for number in (1, 2, 3, 4)
        ]  # the fifth has left
        assert store.statistics()["store_migrated"] == 1
        store.close()
    [kept] = tmp_path.glob("s.layout1-*")
    assert (kept / "data.mdb").read_bytes() == OLD
    assert caplog.messages == ["usubscription.store_migrated"]
    store.open()
    store.commit([put_subscription(subscription(6))])
    assert len(list(store.load_subscriptions())) == 5
    store.close()


def test_a_damaged_store_of_layout_1_is_salvaged(tmp_path: Path) -> None:
    hit = OLD.replace(b"\0up://device1/2/1/0", b"\0up://device1/2/1/1")
    with pytest.raises(StoreDamaged, match="device1/2/1/1"):
        SubscriptionStore(put_down(tmp_path / "refused", hit), MB).open()
    store = SubscriptionStore(put_down(tmp_path / "s", hit), MB, damaged="quarantine")
    store.open()
    assert list(store.take_subscriptions()) == [subscription(number) for number in (1, 3, 4)]
    assert store.statistics()["store_lost"] == 1
    store.close()


def test_without_space_to_migrate_the_old_store_stays(tmp_path: Path) -> None:
    store = SubscriptionStore(put_down(tmp_path / "s"), 12 << 10)
    with pytest.raises(UStatusError, match="no room to keep its records") as refused:
        store.open()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert (tmp_path / "s" / "data.mdb").read_bytes() == OLD


# --- layout 2: in place -----------------------------------------------------------------------------------------------

IN_2 = [
    *(subscription(number) for number in (1, 2, 3)),
    SubscriptionRecord(TOPIC, UUri("device1", 4, 1, 0), 4_000_000, 1_781_565_900_004, version=4),
]


def test_a_store_of_layout_2_is_migrated_in_place_by_its_layout_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[utest->req~usubscription-subscribe~1]"""
    caplog.set_level("INFO")
    before = dict(store_contents.read_store(put_down(tmp_path / "s", OLD_2), "walk").all_records())
    store = SubscriptionStore(tmp_path / "s", MB, history=10)
    for _ in range(2):
        store.open()
        assert list(store.take_subscriptions()) == IN_2
        assert list(store.load_observers()) == [Observer(TOPIC, UUri("device1", 1, 1, 0), 4)]
        assert list(store.load_declared_topics()) == [(TOPIC, TopicState.DEPRECATED)]
        assert store.statistics()["store_migrated"] == 1
        store.close()
    found = store_contents.read_store(tmp_path / "s", "verify")
    assert (found.layout, dict(found.all_records())) == (3, before)
    assert {path.name for path in tmp_path.iterdir()} == {"s", "s.lock"}  # nothing was copied
    assert caplog.messages == ["usubscription.store_migrated"]
    store.open()
    store.commit([], [SubscriptionEvent(1, TOPIC, TOPIC, Status.SUBSCRIBED)])
    store.close()
    # A program of layout 2 rejects the store by its first record: it reads a number, not damage.
    with lmdb.open(str(tmp_path / "s")) as env, env.begin() as txn, txn.cursor() as cursor:
        assert cursor.first()
        assert (cursor.key(), layout_number(cursor.value())) == (LAYOUT_KEY, 3)


def test_a_damaged_store_of_layout_2_is_salvaged(tmp_path: Path) -> None:
    hit = OLD_2.replace(b"\0up://device1/2/1/0", b"\0up://device1/2/1/1")
    store = SubscriptionStore(put_down(tmp_path / "s", hit), MB, damaged="quarantine")
    store.open()
    assert list(store.take_subscriptions()) == [IN_2[0], *IN_2[2:]]
    assert (store.statistics()["store_lost"], store.statistics()["store_migrated"]) == (1, 0)
    store.close()
    assert store_contents.read_store(tmp_path / "s", "verify").layout == 3


def test_a_full_map_is_migrated_too(tmp_path: Path) -> None:
    """Written in one transaction, it has no free page; and the map has become smaller since."""
    changes = [
        put_subscription(SubscriptionRecord(TOPIC, UUri("device1", number, 1, 0))) for number in range(1000)
    ]
    with lmdb.open(str(tmp_path / "s"), map_size=MB) as env, env.begin(write=True) as txn:
        txn.put(LAYOUT_KEY, records.encode_frame(LAYOUT_KEY, b"\x91\x02"))
        for key, value in changes:
            txn.put(key, value or b"")
    store = SubscriptionStore(tmp_path / "s", 64 << 10)
    store.open()
    assert len(store.take_subscriptions()) == 1000
    store.close()
    assert store_contents.read_store(tmp_path / "s", "verify").layout == 3


def test_a_full_disk_leaves_a_store_of_layout_2_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise lmdb.DiskError("mdb_txn_commit", errno.ENOSPC)

    monkeypatch.setattr(LmdbStore, "_write", full)
    store = SubscriptionStore(put_down(tmp_path / "s", OLD_2), MB)
    with pytest.raises(UStatusError, match="1 changes not made") as refused:
        store.open()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert (tmp_path / "s" / "data.mdb").read_bytes() == OLD_2


# --- layout 3: today's, as written before the stores shared `LmdbStore` -------------------------------------------


def test_a_store_of_layout_3_is_read_and_its_bytes_are_those_of_today(tmp_path: Path) -> None:
    client = UUri("device1", 1, 1, 0)
    entries = [
        SubscriptionRecord(
            TOPIC,
            UUri("device1", number, 1, 0),
            number * 1_000_000,
            None if number % 2 else 1_781_565_900_000 + number,
            b"d" * number,
        )
        for number in range(1, 30)
        if number != 3
    ]
    remote, event = UUri("far", 1, 1, 0x8000), SubscriptionEvent(5, TOPIC, client, Status.SUBSCRIBED, "why")
    expected = [
        (LAYOUT_KEY, records.layout_value()),
        *map(put_subscription, entries),
        records.put_observer(Observer(TOPIC, client, 4)),
        records.put_topic(TOPIC, TopicState.DEPRECATED),
        records.put_remote(remote, Status.SUBSCRIBED),
        records.put_event(0, event),
    ]
    path = put_down(tmp_path / "s", kept_of(3))
    with lmdb.open(str(path), readonly=True, lock=False) as env, env.begin() as txn:
        assert dict(txn.cursor()) == dict(expected)
    (tmp_path / "s.lock").write_bytes(b"1")  # as after a crash: LMDB's verifier reads the file too
    store = SubscriptionStore(path, MB)
    store.open()
    assert sorted(store.take_subscriptions(), key=lambda each: each.subscriber.ue_id) == entries
    assert list(store.load_remote_states()) == [(remote, Status.SUBSCRIBED)]
    assert store.statistics()["store_quarantined"] == store.statistics()["store_migrated"] == 0
    store.close()
