# SPDX-License-Identifier: Apache-2.0
"""Subscriptions on disk: one LMDB environment in the directory it is given, written in synchronous transactions.

Layout 1. One unnamed database; the first bytes of a key say what kind of record it is:

    key                                        value
    layout                                     frame [layout version]
    n/<topic> NUL <entity>                     frame [version of the interface]
    s/<topic> NUL <subscriber>                 frame [period_ns, expire_ms or nil, details, version]
    t/<topic>                                  frame [state]: 1 active, 2 deprecated

A record n/ is an entity that registered for notifications of the topic. Topic, subscriber and entity are UUri texts (`up://authority/ue/version/resource`, never an empty authority), so a scan of a
prefix gives one topic's subscribers, and all subscriptions, in an order that does not change. A frame is

    1 byte  version of the record, 1
    4 bytes CRC-32 of key and body, big endian
    body    MessagePack

The checksum covers the key, because LMDB has none: of 1 500 single-bit flips in a store 718 came back as wrong data.
An older version byte can be read beside a newer one, so records migrate one by one; what is not known is not believed.

`data.mdb` is made beside its place and moved there once it holds the layout record: a store without one is damaged,
not new, and can not be mistaken for "no subscriptions".
"""

import errno
import os
import shutil
import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

import lmdb
import msgspec

from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.topics import TopicState
from ustreamer_usubscription.tracked import Observer, Pair, Tracked

LAYOUT: Final = 1

_DATA: Final = "data.mdb"
_LAYOUT_KEY: Final = b"layout"
_SUBSCRIPTION: Final = b"s/"
_OBSERVER: Final = b"n/"
_TOPIC: Final = b"t/"
_OTHERS: Final = (_OBSERVER, _TOPIC)
"""Kinds of records that `load` leaves to their own readers."""
_NUL: Final = b"\0"
_HEAD: Final = struct.Struct(">BI")
_RECORD_VERSION: Final = 1

_DAMAGE: Final = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
_FULL: Final = (lmdb.MapFullError, lmdb.DiskError, lmdb.TxnFullError)
# LMDB reports a write that the file system cut short as EIO, whatever the reason was.
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


class StoreDamaged(UStatusError):
    """The store holds something that this program did not write. DATA_LOSS; the message names file or record."""

    def __init__(self, message: str) -> None:
        super().__init__(UCode.DATA_LOSS, message)


class StoreTooNew(UStatusError):
    """The store was written by a later version of this program. FAILED_PRECONDITION."""

    def __init__(self, message: str) -> None:
        super().__init__(UCode.FAILED_PRECONDITION, message)


class Change(NamedTuple):
    """One record to write, or (value None) to delete."""

    key: bytes
    value: bytes | None


class Record(msgspec.Struct, frozen=True, array_like=True):
    """The body of a subscription's record; fields are added at the end, with a default."""

    period_ns: int
    expire_ms: int | None = None
    details: bytes = b""
    version: int = 3


class _ObserverRecord(msgspec.Struct, frozen=True, array_like=True):
    version: int


class _TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    state: TopicState


class _Layout(msgspec.Struct, frozen=True, array_like=True):
    version: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(Record).decode
_decode_observer: Final = msgspec.msgpack.Decoder(_ObserverRecord).decode
_decode_topic: Final = msgspec.msgpack.Decoder(_TopicRecord).decode
_decode_layout: Final = msgspec.msgpack.Decoder(_Layout).decode


# --- records ----------------------------------------------------------------------------------------------------------


def put(entry: Tracked) -> Change:
    """The change that makes `entry` stand in the store."""
    key = _key(_SUBSCRIPTION, entry.pair)
    return Change(
        key, _frame(key, _encode(Record(entry.period_ns, entry.expire_ms, entry.details, entry.version)))
    )


def delete(topic: UUri, subscriber: UUri) -> Change:
    """The change after which the store knows nothing of this subscription."""
    return Change(_key(_SUBSCRIPTION, (topic, subscriber)), None)


def put_observer(observer: Observer) -> Change:
    """The change that makes a registration for notifications stand in the store."""
    key = _key(_OBSERVER, observer.pair)
    return Change(key, _frame(key, _encode(_ObserverRecord(observer.version))))


def delete_observer(pair: Pair) -> Change:
    """The change after which the store knows nothing of this registration."""
    return Change(_key(_OBSERVER, pair), None)


def put_topic(topic: UUri, state: TopicState) -> Change:
    """The change that makes a declared topic stand in the store."""
    key = _TOPIC + str(topic).encode()
    return Change(key, _frame(key, _encode(_TopicRecord(state))))


def _key(kind: bytes, pair: Pair) -> bytes:
    # At most 2 + 150 + 1 + 150 bytes, for an authority of 128 characters; LMDB takes 511.
    return b"%s%s\0%s" % (kind, str(pair[0]).encode(), str(pair[1]).encode())


def _frame(key: bytes, body: bytes) -> bytes:
    return _HEAD.pack(_RECORD_VERSION, zlib.crc32(body, zlib.crc32(key))) + body


def _body(key: bytes, value: bytes) -> bytes:
    """The body of a frame that is whole and of a version we know; else StoreDamaged naming the key."""
    if len(value) < _HEAD.size:
        raise StoreDamaged(f"record {key!r}: {len(value)} bytes, expected at least {_HEAD.size}")
    version, checksum = _HEAD.unpack_from(value)
    if version != _RECORD_VERSION:
        raise StoreDamaged(f"record {key!r}: version {version}, expected {_RECORD_VERSION}")
    body = value[_HEAD.size :]
    if zlib.crc32(body, zlib.crc32(key)) != checksum:
        raise StoreDamaged(f"record {key!r}: its checksum is not {checksum:08x}, as its frame says")
    return body


def _address(text: bytes) -> UUri:
    """The UUri of a text that we wrote (the checksum says so): 0.8 us instead of the 5 of `UUri.parse`."""
    _, _, authority, ue, version, resource = text.decode().split("/")
    return UUri(authority, int(ue, 16), int(version, 16), int(resource, 16))


class _Addresses(dict[bytes, UUri]):
    """UUris by their text, each made once and shared by all subscriptions that name it."""

    def __missing__(self, text: bytes) -> UUri:
        address = self[text] = _address(text)
        return address


class _Reader:
    """Reads subscriptions in the order of their keys."""

    def __init__(self) -> None:
        self._subscribers = _Addresses()
        self._topic_text = b""
        self._topic = UUri()

    def read(self, key: bytes, value: bytes) -> Tracked:
        body = _body(key, value)
        topic_text, _, subscriber = key[len(_SUBSCRIPTION) :].partition(_NUL)
        try:
            if topic_text != self._topic_text:
                self._topic_text, self._topic = topic_text, _address(topic_text)
            record = _decode_record(body)
            return Tracked(
                self._topic,
                self._subscribers[subscriber],
                record.period_ns,
                record.expire_ms,
                record.details,
                record.version,
            )
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreDamaged(
                f"record {key!r}: {error}, expected a subscription of layout {LAYOUT}"
            ) from error


def _read_observer(key: bytes, value: bytes) -> Observer:
    body = _body(key, value)
    topic, _, entity = key[len(_OBSERVER) :].partition(_NUL)
    try:
        return Observer(_address(topic), _address(entity), _decode_observer(body).version)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a registration of layout {LAYOUT}") from error


def _read_topic(key: bytes, value: bytes) -> tuple[UUri, TopicState]:
    body = _body(key, value)
    try:
        return _address(key[len(_TOPIC) :]), _decode_topic(body).state
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a topic of layout {LAYOUT}") from error


_LAYOUT_VALUE: Final = _frame(_LAYOUT_KEY, _encode(_Layout(LAYOUT)))


# --- the environment --------------------------------------------------------------------------------------------------


class Store:
    """The LMDB environment in directory `path`. Constructing it touches nothing.

    One thread at a time; a store is opened once per process. `transactions` counts the commits that succeeded.
    """

    def __init__(self, path: Path, map_size: int) -> None:
        self.path = path
        self.transactions = 0
        self._map_size = map_size
        self._env: lmdb.Environment | None = None

    def open(self) -> None:
        """Open the store, or make an empty one.

        Raises StoreDamaged, StoreTooNew, or UStatusError(UNAVAILABLE) where the directory cannot be used.
        """
        try:
            if not (self.path / _DATA).exists():
                self._create()
            self._env = self._open_in(self.path)
        except _DAMAGE as error:
            raise StoreDamaged(f"store {self.path / _DATA}: {error}") from error
        except (lmdb.Error, OSError) as error:
            raise UStatusError(UCode.UNAVAILABLE, f"store {self.path}: cannot be opened: {error}") from error
        try:
            self._check_layout(self._env)
        except UStatusError:
            self.close()
            raise

    def close(self) -> None:
        """Close the store; what was committed is on disk already. May be repeated."""
        if self._env is not None:
            self._env.close()
            self._env = None

    def load(self) -> Iterator[Tracked]:
        """All subscriptions, by the text of topic and then of subscriber. Raises StoreDamaged at the first bad record."""
        read = _Reader().read
        try:
            with self._opened().begin() as txn, txn.cursor() as cursor:
                for key, value in cursor:
                    if key.startswith(_SUBSCRIPTION):
                        yield read(key, value)
                    # Passed over, a record whose first bytes were hit would be lost in silence.
                    elif key != _LAYOUT_KEY and not key.startswith(_OTHERS):
                        raise StoreDamaged(f"record {key!r}: of no kind that layout {LAYOUT} has")
        except lmdb.Error as error:
            raise StoreDamaged(f"store {self.path / _DATA}: {error}") from error

    def observers(self) -> Iterator[Observer]:
        """All registrations for notifications, by topic and then by entity. Raises StoreDamaged at the first bad one."""
        yield from (_read_observer(key, value) for key, value in self._of_kind(_OBSERVER))

    def topics(self) -> Iterator[tuple[UUri, TopicState]]:
        """All declared topics. Raises StoreDamaged at the first bad one."""
        yield from (_read_topic(key, value) for key, value in self._of_kind(_TOPIC))

    def _of_kind(self, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            with self._opened().begin() as txn, txn.cursor() as cursor:
                if cursor.set_range(kind):
                    yield from takewhile(lambda record: record[0].startswith(kind), cursor)
        except lmdb.Error as error:
            raise StoreDamaged(f"store {self.path / _DATA}: {error}") from error

    def commit(self, changes: Sequence[Change]) -> None:
        """Make all of `changes`, or none, in one transaction; on return they survive a power cut.

        Raises UStatusError: RESOURCE_EXHAUSTED where map or disk is full (what is stored stays readable, and a full map
        does not keep anything from being deleted), INTERNAL for any other refusal of LMDB.
        """
        try:
            try:
                self._write(changes)
            except lmdb.MapFullError:
                self._write_in_full_map(changes)
        except lmdb.Error as error:
            full = isinstance(error, _FULL) or error.code in _NO_ROOM
            code = UCode.RESOURCE_EXHAUSTED if full else UCode.INTERNAL
            raise UStatusError(
                code, f"store {self.path}: {len(changes)} changes not made: {error}"
            ) from error
        self.transactions += 1

    def _write(self, changes: Sequence[Change]) -> None:
        with self._opened().begin(write=True) as txn:
            for key, value in changes:
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)

    def _write_in_full_map(self, changes: Sequence[Change]) -> None:
        """Try again, with all that was freed, and for deletions with a map twice the size.

        LMDB copies each page that it changes before it frees any; to copy every page once is the worst case, and
        afterwards it makes the map no smaller than what is in use. What a transaction frees is for the second one after
        it, and one that fails does not count: hence the one in between, which changes nothing.
        """
        env = self._opened()
        deletions = all(value is None for _, value in changes)
        env.set_mapsize(2 * self._map_size)
        try:
            self._write([Change(_LAYOUT_KEY, _LAYOUT_VALUE)])
            if deletions:
                self._write(changes)
        finally:
            env.set_mapsize(self._map_size)
        if not deletions:
            self._write(changes)

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open_in(self, path: Path) -> lmdb.Environment:
        # writemap would end the process with SIGBUS on a full disk; without sync an acknowledged record may be lost.
        return lmdb.open(
            str(path), map_size=self._map_size, sync=True, metasync=True, writemap=False, mode=0o640
        )

    def _create(self) -> None:
        """Make an empty store that has its layout record from its first moment on."""
        nursery = self.path / "new"
        if nursery.exists():
            shutil.rmtree(nursery)  # a creation that was killed
        nursery.mkdir(parents=True)
        with self._open_in(nursery) as env, env.begin(write=True) as txn:
            txn.put(_LAYOUT_KEY, _LAYOUT_VALUE)
        (nursery / _DATA).rename(self.path / _DATA)
        shutil.rmtree(nursery)
        for directory in (self.path, self.path.parent):
            _sync_directory(directory)

    def _check_layout(self, env: lmdb.Environment) -> None:
        try:
            with env.begin() as txn:
                value = txn.get(_LAYOUT_KEY)
            if value is None:
                raise StoreDamaged(f"store {self.path / _DATA}: record {_LAYOUT_KEY!r} is missing")
            layout = _decode_layout(_body(_LAYOUT_KEY, value)).version
        except (lmdb.Error, msgspec.DecodeError) as error:
            raise StoreDamaged(f"store {self.path / _DATA}: record {_LAYOUT_KEY!r}: {error}") from error
        if layout != LAYOUT:
            raise StoreTooNew(f"store {self.path}: layout {layout}, this program reads layout {LAYOUT}")

    def _opened(self) -> lmdb.Environment:
        if self._env is None:
            raise UStatusError(UCode.UNAVAILABLE, f"store {self.path}: not open")
        return self._env


def _sync_directory(path: Path) -> None:
    """Make the names in a directory survive a power cut, as fsync of a file does for its bytes."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
