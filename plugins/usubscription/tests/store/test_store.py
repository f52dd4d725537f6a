# SPDX-License-Identifier: Apache-2.0
"""The store on a real LMDB and a real file system: records, layout, changed bytes, full maps and disks."""

import os
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
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
from ustreamer.uprotocol.ustatus import UCode, UStatusError
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


# --- what it keeps ----------------------------------------------------------------------------------------------------


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


def test_a_closed_store_raises_an_error(tmp_path: Path) -> None:
    store = SubscriptionStore(tmp_path, MB)
    with pytest.raises(UStatusError, match="not open") as refused:
        store.commit([])
    assert refused.value.code is UCode.UNAVAILABLE
    store.close()


def test_an_interrupted_creation_of_a_store_starts_again(tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "data.mdb").write_bytes(b"half")
    store = SubscriptionStore(tmp_path, MB)
    store.open()
    store.close()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "block", [lambda path: path.write_bytes(b""), lambda path: path.symlink_to("/proc/none")]
)
def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path, block: Callable[[Path], object]) -> None:
    block(tmp_path / "usubscription")
    with pytest.raises(UStatusError, match=f"store {tmp_path}/usubscription: cannot be opened") as refused:
        SubscriptionStore(tmp_path / "usubscription", MB).open()
    assert refused.value.code is UCode.UNAVAILABLE


# --- what it does not believe -----------------------------------------------------------------------------------------


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
    (frame_1(KEY, NEVER), "checksum"),
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
def test_a_whole_record_that_is_no_subscription_is_refused_when_it_is_read(
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
def test_a_record_of_no_known_kind_is_refused(store: SubscriptionStore, key: bytes) -> None:
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
    replace(store, b"layout", frame(b"layout", b"\x92\x04\xc0", version=7))  # this much will stay as it is
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


def test_a_missing_file_is_damage_and_not_a_new_store(store: SubscriptionStore) -> None:
    store.close()
    (store.path / "data.mdb").unlink()
    with pytest.raises(StoreDamaged, match="data.mdb: is missing beside lock.mdb"):
        store.open()


# --- when there is no room --------------------------------------------------------------------------------------------


def refusal(store: SubscriptionStore, *changes: RecordChange) -> UStatusError | None:
    try:
        store.commit(changes)
    except UStatusError as error:
        return error
    return None


def filled(store: SubscriptionStore) -> int:
    """Fill the map; how many subscriptions went in before one was refused."""
    number = 0
    while not (error := refusal(store, put_subscription(numbered(number, size=4000)))):
        number += 1
    assert error.code is UCode.RESOURCE_EXHAUSTED
    assert "1 changes not made" in error.message
    return number


def test_a_full_map_refuses_changes_and_keeps_stored_records(store: SubscriptionStore) -> None:
    count = filled(store)
    assert len(list(store.load_subscriptions())) == count > 100
    assert len(list(reopened(store).load_subscriptions())) == count


@pytest.mark.parametrize("size", [100, 1000, 4000])
def test_records_can_be_deleted_from_a_full_map(tmp_path: Path, size: int) -> None:
    store = SubscriptionStore(tmp_path, MB)
    store.open()
    count = 0
    while not refusal(store, *(put_subscription(numbered(count + n, size)) for n in range(16))):
        count += 16
    for number in range(100):
        store.commit([delete_subscription(TOPIC, numbered(number).subscriber)])
    assert len(list(store.load_subscriptions())) == count - 100
    assert (tmp_path / "data.mdb").stat().st_size < 1.1 * MB
    store.close()


def test_everything_can_be_deleted_from_a_full_map_at_once(store: SubscriptionStore) -> None:
    count = filled(store)
    store.commit([delete_subscription(TOPIC, numbered(number).subscriber) for number in range(count)])
    assert list(store.load_subscriptions()) == []


def test_deleting_frees_space(store: SubscriptionStore) -> None:
    count = filled(store)
    store.commit([delete_subscription(TOPIC, numbered(number).subscriber) for number in range(20)])
    for number in range(10):  # within the map as it was configured, or it would grow for ever
        store.commit([put_subscription(numbered(number, size=4000))])
    assert len(list(store.load_subscriptions())) == count - 10
    assert refusal(store, *(put_subscription(numbered(1000 + number, size=4000)) for number in range(50)))


def test_a_refused_commit_changes_no_record(store: SubscriptionStore) -> None:
    count = filled(store)
    assert refusal(
        store,
        delete_subscription(TOPIC, numbered(0).subscriber),
        *(put_subscription(numbered(1000 + n, size=4000)) for n in range(10)),
    )
    assert next(store.load_subscriptions()).subscriber.ue_id == 0
    assert len(list(store.load_subscriptions())) == count


# In a process of its own, because the limit on the size of a file holds for the whole process.
FULL_DISK = """
import resource, sys
from pathlib import Path
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.store.store import SubscriptionStore, put_subscription
from ustreamer_usubscription.model.subscription import SubscriptionRecord

store = SubscriptionStore(Path(sys.argv[1]), 1 << 26)
store.open()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
topic = UUri("a", 1, 1, 0x8000)
stored = 0
try:
    while True:
        store.commit([put_subscription(SubscriptionRecord(topic, UUri("a", stored, 1, 0), details=b"d" * 1000))])
        stored += 1
except UStatusError as error:
    assert error.code is UCode.RESOURCE_EXHAUSTED, error
assert len(list(store.load_subscriptions())) == stored > 10
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.commit([put_subscription(SubscriptionRecord(topic, UUri("a", stored, 1, 0)))])
assert len(list(store.load_subscriptions())) == stored + 1
print("ok")
"""


def test_a_full_file_system_refuses_writes_until_there_is_space(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "store")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


# A file system of 3 MB of its own, which no privilege is needed for in a namespace of users and mounts.
FULL_TMPFS = """
import os, sys
from pathlib import Path
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.store.store import SubscriptionStore, put_subscription
from ustreamer_usubscription.model.subscription import SubscriptionRecord

root = Path(sys.argv[1])
assert os.statvfs(root).f_blocks * os.statvfs(root).f_frsize == 3 << 20
(root / "ballast").write_bytes(b"b" * (1 << 20))
store = SubscriptionStore(root / "store", 1 << 26)
store.open()
topic = UUri("a", 1, 1, 0x8000)
entry = lambda number: SubscriptionRecord(topic, UUri("a", number, 1, 0), details=b"d" * 1000)
def refused(number):
    try:
        store.commit([put_subscription(entry(number))])
    except UStatusError as error:
        assert error.code is UCode.RESOURCE_EXHAUSTED, error
        return True
tried, stored = 0, []
while len(stored) + 50 > tried:  # a refusal may leave a page or two for the next one
    if not refused(tried):
        stored.append(tried)
    tried += 1
assert len(stored) > 100
assert list(store.load_subscriptions()) == sorted(map(entry, stored), key=lambda each: str(each.subscriber))
store.close()
store.open()
assert len(store.take_subscriptions()) == len(stored)
(root / "ballast").unlink()
assert not any(refused(tried + number) for number in range(50))
assert len(list(store.load_subscriptions())) == len(stored) + 50
store.close()
print("ok")
"""


def test_a_full_file_system_refuses_every_change_keeps_all_and_resumes_with_the_first_free_space(
    tmp_path: Path,
) -> None:
    unshare = [
        "unshare",
        "-Urm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=3m none "$0" && exec "$@"',
        str(tmp_path),
    ]
    if subprocess.run([*unshare, "true"], capture_output=True, check=False).returncode:
        assert os.environ.get("CI") != "true", "no namespaces here: cannot mount a small file system"
        pytest.skip("needs `unshare -Urm` to mount a small file system")
    done = subprocess.run(
        [*unshare, sys.executable, "-c", FULL_TMPFS, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


def test_any_other_failure_of_the_database_is_an_internal_one(store: SubscriptionStore) -> None:
    with pytest.raises(UStatusError, match="1 changes not made") as refused:
        store.commit([RecordChange(b"k" * 512, b"")])
    assert refused.value.code is UCode.INTERNAL
