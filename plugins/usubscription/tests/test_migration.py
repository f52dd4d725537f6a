# SPDX-License-Identifier: Apache-2.0
"""Stores of former layouts: `store_of_layout1.mdb.gz` was written by the last version that had layout 1."""

import gzip
from pathlib import Path

import pytest
from ustreamer_usubscription.store import Store, StoreDamaged, put
from ustreamer_usubscription.tracked import Tracked

from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
MB = 1 << 20
OLD = gzip.decompress(Path(__file__).with_name("store_of_layout1.mdb.gz").read_bytes())


def subscription(number: int) -> Tracked:
    expire_ms = None if number % 2 else 1_781_565_900_000 + number
    details = b"\x12\x00" if number == 3 else b""
    return Tracked(TOPIC, UUri("device1", number, 1, 0), number * 1_000_000, expire_ms, details)


def put_down(path: Path, data: bytes = OLD) -> Path:
    path.mkdir()
    (path / "data.mdb").write_bytes(data)
    return path


def test_a_store_of_layout_1_is_migrated_once_and_kept_as_it_was(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """[utest->req~usubscription-subscribe-persistency~1]"""
    caplog.set_level("INFO")
    store = Store(put_down(tmp_path / "s"), MB)
    for _ in range(2):
        store.open()
        assert list(store.take()) == [subscription(number) for number in (1, 2, 3, 4)]  # the fifth has left
        assert store.statistics()["store_migrated"] == 1
        store.close()
    [kept] = tmp_path.glob("s.layout1-*")
    assert (kept / "data.mdb").read_bytes() == OLD
    assert caplog.messages == ["usubscription.store_migrated"]
    store.open()
    store.commit([put(subscription(6))])
    assert len(list(store.load())) == 5
    store.close()


def test_a_damaged_store_of_layout_1_is_salvaged_into_this_one(tmp_path: Path) -> None:
    hit = OLD.replace(b"\0up://device1/2/1/0", b"\0up://device1/2/1/1")
    with pytest.raises(StoreDamaged, match="device1/2/1/1"):
        Store(put_down(tmp_path / "refused", hit), MB).open()
    store = Store(put_down(tmp_path / "s", hit), MB, damaged="quarantine")
    store.open()
    assert list(store.take()) == [subscription(number) for number in (1, 3, 4)]
    assert store.statistics()["store_lost"] == 1
    store.close()


def test_without_room_to_migrate_the_old_store_stays(tmp_path: Path) -> None:
    store = Store(put_down(tmp_path / "s"), 12 << 10)
    with pytest.raises(UStatusError, match="no room to keep 4 records") as refused:
        store.open()
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    assert (tmp_path / "s" / "data.mdb").read_bytes() == OLD
