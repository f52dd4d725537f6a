# SPDX-License-Identifier: Apache-2.0
"""The store on a real LMDB and a real file system: records, layout, changed bytes, full maps and disks."""

import zlib
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store.store import (
    RecordChange,
    StoreTooNew,
    SubscriptionStore,
    delete_observer,
    delete_subscription,
    put_observer,
    put_subscription,
)

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
APP = UUri("device1", 0x300EF, 4, 0)
ENTRY = SubscriptionRecord(TOPIC, APP, 16_666_667, 1_781_565_900_000, b"\x12\x00")
KEY = b"s/up://device2/10AB/3/80CD\0up://device1/300EF/4/0"
MB = 1 << 20


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SubscriptionStore]:
    store = SubscriptionStore(tmp_path / "usubscription", MB)
    store.open()
    yield store
    store.close()


def reopened(store: SubscriptionStore) -> SubscriptionStore:
    """A store on the same directory, as the next process would open it."""
    store.close()
    store.open()
    return store


def numbered(number: int, size: int = 0) -> SubscriptionRecord:
    return SubscriptionRecord(TOPIC, UUri("device1", number, 1, 0), details=b"d" * size)


# --- stored state -------------------------------------------------------------------------------------------


def test_a_new_store_is_empty_and_leaves_no_temporary_files(store: SubscriptionStore) -> None:
    assert list(store.load_subscriptions()) == []
    assert {path.name for path in store.path.iterdir()} == {"data.mdb", "lock.mdb"}


def test_the_store_keeps_registrations_and_subscriptions(store: SubscriptionStore) -> None:
    first, second = Observer(TOPIC, APP), Observer(UUri("z", 1, 1, 0x8000), APP, 4)
    store.commit([put_subscription(ENTRY), put_observer(second), put_observer(first)])
    assert (list(store.load_subscriptions()), list(store.load_observers())) == ([ENTRY], [first, second])
    store.commit([delete_observer(first.pair)])
    assert (list(store.load_subscriptions()), list(reopened(store).load_observers())) == ([ENTRY], [second])


@pytest.mark.parametrize("value", [b"", b"\1\0\0\0\0\x91\3"], ids=["short", "checksum"])
def test_a_damaged_registration_is_refused_with_its_key(store: SubscriptionStore, value: bytes) -> None:
    store.commit([RecordChange(b"n/up://a/1/1/8000\0up://a/1/1/0", value)])
    with pytest.raises(StoreDamaged, match="record b'n/up://a/1/1/8000.x00up://a/1/1/0'"):
        list(store.load_observers())


@pytest.mark.parametrize(
    "entry",
    [
        ENTRY,
        SubscriptionRecord(TOPIC, APP),
        SubscriptionRecord(
            UUri("[2001::7]", 0xFFFEFFFE, 0xFE, 0xFFFE),
            UUri("a" * 128, 0, 0, 0),
            2**62,
            -(2**60),
            b"x" * 4096,
        ),
    ],
)
def test_a_stored_subscription_is_read_back_unchanged(
    store: SubscriptionStore, entry: SubscriptionRecord
) -> None:
    store.commit([put_subscription(entry)])
    assert list(reopened(store).load_subscriptions()) == [entry]


def test_subscriptions_are_read_in_the_order_of_their_texts(store: SubscriptionStore) -> None:
    entries = [numbered(number) for number in (0x2, 0x10, 0x1)]
    store.commit([put_subscription(entry) for entry in entries])
    assert [entry.subscriber.ue_id for entry in store.load_subscriptions()] == [0x1, 0x10, 0x2]


def test_one_topic_is_not_the_prefix_of_another(store: SubscriptionStore) -> None:
    first, second = UUri("a", 1, 1, 0x8000), UUri("a", 1, 1, 0x80000 >> 4 | 1)
    store.commit([put_subscription(SubscriptionRecord(topic, APP)) for topic in (second, first)])
    assert [entry.topic for entry in store.load_subscriptions()] == [first, second]


def test_addresses_are_shared_between_the_subscriptions_that_name_them(store: SubscriptionStore) -> None:
    store.commit([put_subscription(SubscriptionRecord(UUri("a", 1, 1, 0x8000 + n), APP)) for n in range(2)])
    first, second = store.load_subscriptions()
    assert first.subscriber is second.subscriber


def test_a_commit_is_one_transaction(store: SubscriptionStore) -> None:
    store.commit([put_subscription(numbered(1)), put_subscription(numbered(2))])
    store.commit(
        [
            delete_subscription(TOPIC, numbered(1).subscriber),
            delete_subscription(TOPIC, numbered(3).subscriber),
            put_subscription(numbered(4)),
        ]
    )
    assert [entry.subscriber.ue_id for entry in store.load_subscriptions()] == [2, 4]
    assert store.statistics()["transactions"] == 2


# --- rejected announcements ---------------------------------------------------------------------------------


def replace(store: SubscriptionStore, key: bytes, value: bytes | None, new_key: bytes | None = None) -> None:
    """Change a record behind the store's back; None as value deletes it."""
    store.close()
    with lmdb.open(str(store.path), map_size=MB) as env, env.begin(write=True) as txn:
        if value is None:
            txn.delete(key)
        else:
            txn.delete(key)
            txn.put(new_key or key, value)


def frame(key: bytes, body: bytes, version: int = 2) -> bytes:
    """A record as the layout describes it."""
    head = bytes([version]) + body
    return head + zlib.crc32(key + head).to_bytes(4, "little")


def frame_1(key: bytes, body: bytes) -> bytes:
    """A record of layout 1."""
    return b"\x01" + zlib.crc32(key + body).to_bytes(4, "big") + body


def test_the_layout_is_the_documented_one(store: SubscriptionStore) -> None:
    change = put_subscription(ENTRY)
    body = bytes.fromhex("94 cf0000019ecd9a44e0 ce00fe502b c4021200 03")
    assert change == RecordChange(KEY, frame(KEY, body))
    assert delete_subscription(TOPIC, APP) == RecordChange(KEY, None)


def test_a_record_from_before_there_was_a_version_4_is_one_of_version_3(store: SubscriptionStore) -> None:
    store.commit([RecordChange(KEY, frame(KEY, b"\x93\xc0\0\xc4\0"))])
    assert list(store.load_subscriptions()) == [SubscriptionRecord(TOPIC, APP, version=3)]


def test_every_flipped_bit_in_key_or_value_of_a_record_is_found(store: SubscriptionStore) -> None:
    [key, value] = put_subscription(ENTRY)
    record = key + (value or b"")
    for at in range(len(record)):
        flipped = bytearray(record)
        flipped[at] ^= 1 << at % 8
        changed = RecordChange(bytes(flipped[: len(key)]), bytes(flipped[len(key) :]))
        store.commit([changed])
        with pytest.raises(StoreDamaged) as refused:
            list(store.load_subscriptions())
        assert repr(changed.key) in refused.value.message
        store.commit([RecordChange(changed.key, None)])


NEVER = b"\x93\xc0\0\xc4\0"  # the body of a subscription that does not expire

DAMAGED = [
    (b"", "0 bytes, expected at least 5"),
    (b"\x02\0\0\0", "4 bytes, expected at least 5"),
    (frame(KEY, NEVER, version=3), "version 3, expected 2"),
    (frame(b"another key", NEVER), "checksum"),
    (frame(KEY, NEVER) + b"\0", "checksum"),
    (frame_1(KEY, NEVER), "version 1, expected 2"),
]
UNREADABLE = [
    (frame(KEY, b"\x90"), "Expected `array` of at least length 2"),
    (frame(KEY, b"\xa1a"), "Expected `array`"),
    (frame(KEY, b""), "truncated"),
]


@pytest.mark.parametrize(("value", "why"), DAMAGED, ids=[why for _, why in DAMAGED])
def test_a_damaged_record_is_refused_by_its_key(store: SubscriptionStore, value: bytes, why: str) -> None:
    store.commit([put_subscription(ENTRY)])
    replace(store, KEY, value)
    with pytest.raises(StoreDamaged) as refused:
        list(reopened(store).load_subscriptions())
    assert refused.value.code is UCode.DATA_LOSS
    assert repr(KEY) in refused.value.message
    assert why in refused.value.message


@pytest.mark.parametrize(("value", "why"), UNREADABLE, ids=[why for _, why in UNREADABLE])
def test_a_complete_record_that_is_not_a_subscription_is_rejected_when_it_is_read(
    store: SubscriptionStore, value: bytes, why: str
) -> None:
    replace(store, KEY, value)
    reopened(store)
    with pytest.raises(StoreDamaged, match=why):
        list(store.load_subscriptions())


@pytest.mark.parametrize(
    "key", [b"s/", b"s/\0", b"s/up://a/1/1/8000", b"s/up://a/1/1/8000\0up:/1/1/0", b"s/\xff\0\xff"]
)
def test_a_record_with_an_invalid_key_is_refused(store: SubscriptionStore, key: bytes) -> None:
    replace(store, key, frame(key, NEVER))
    with pytest.raises(StoreDamaged, match="expected a subscription of layout 3"):
        list(reopened(store).load_subscriptions())


@pytest.mark.parametrize("key", [b"\0", b"v/up://a/1/1/8000", b"t", b"u/", b"layout2"])
def test_a_record_of_an_unknown_kind_is_rejected(store: SubscriptionStore, key: bytes) -> None:
    replace(store, key, frame(key, NEVER))
    with pytest.raises(
        StoreDamaged, match=f"record {key!r}: of no kind that layout 3 has".replace("\\", "\\\\")
    ):
        list(reopened(store).load_subscriptions())


def test_a_store_without_its_layout_record_is_damaged_and_not_empty(store: SubscriptionStore) -> None:
    replace(store, b"layout", None)
    with pytest.raises(StoreDamaged, match="record b'layout' is missing"):
        store.open()
    with pytest.raises(StoreDamaged):  # and still: it was closed properly
        store.open()


@pytest.mark.parametrize("value", [b"", frame(b"layout", b"\xa1a"), b"\x02\x91\x02\0\0\0\0"])
def test_a_damaged_layout_record_is_refused(store: SubscriptionStore, value: bytes) -> None:
    replace(store, b"layout", value)
    with pytest.raises(StoreDamaged, match="record b'layout'"):
        store.open()


def test_a_store_of_a_later_layout_is_refused(store: SubscriptionStore) -> None:
    replace(store, b"layout", frame(b"layout", b"\x92\x04\xc0", version=7))  # the size that stays unchanged
    with pytest.raises(StoreTooNew, match="layout 4, this program reads layout 3") as refused:
        store.open()
    assert refused.value.code is UCode.FAILED_PRECONDITION


@pytest.mark.parametrize("garbage", [b"\0" * 8192, b"not a database" * 1000], ids=["zeros", "text"])
def test_a_file_that_is_no_database_is_damage(tmp_path: Path, garbage: bytes) -> None:
    (tmp_path / "data.mdb").write_bytes(garbage)
    with pytest.raises(StoreDamaged, match=f"store {tmp_path}/data.mdb"):
        SubscriptionStore(tmp_path, MB).open()


def test_an_emptied_file_is_damage_and_not_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"")
    with pytest.raises(StoreDamaged, match=f"store {tmp_path}/data.mdb"):
        SubscriptionStore(tmp_path, MB).open()
