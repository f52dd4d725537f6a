# SPDX-License-Identifier: Apache-2.0
"""What stands in the store, byte by byte.

Layout 3. One unnamed database; the first bytes of a key say what kind of record it is:

    key                                        value
    layout                                     frame [layout version]
    n/<topic> NUL <entity>                     frame [version of the interface]
    p/<number, 16 hex digits>                  frame [time_ms, topic, subscriber, status, why, version]
    r/<topic>                                  frame [state]: 1 subscribe pending, 2 subscribed, 3 unsubscribe pending
    s/<topic> NUL <subscriber>                 frame [expire_ms or nil, period_ns, details, version]
    t/<topic>                                  frame [state]: 1 active, 2 deprecated

A record n/ is an entity that registered for notifications of the topic, r/ a topic of another device and what the
uSubscription there knows of it. The records p/ are the past: what has happened to subscriptions, numbered without end, of
which the last are kept; status is that of version 3. Topic, subscriber and entity are UUri texts (`up://authority/ue/version/resource`, never an empty authority), so a scan of a
prefix gives one topic's subscribers, and all subscriptions, in an order that does not change. A frame is

    1 byte  version of the record, 2
    body    MessagePack
    4 bytes CRC-32 of key, version and body, little endian

The checksum covers the key, because LMDB has none: of 1 500 single-bit flips in a store 718 came back as wrong data. It
stands last, so that the CRC of key and frame is the same number for every record that is whole: a million records are
checked by calls into C alone, in 0.3 s. `expire_ms` is first, so that the least and the greatest of many values say
whether any of them expires.

No key is less than `layout`: whoever reads in order knows the layout before anything else, and a program of former times
refuses a store of this layout by its number instead of taking it for damaged.

Layout 2 had no records p/, and its others are those of layout 3: a migration writes the layout record and nothing else.
Layout 1 had frames of version 1: the checksum (of key and body, big endian) between version and body, and the body
[period_ns, expire_ms or nil, details].
"""

import re
import struct
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple
from zlib import crc32

import msgspec

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_usubscription.events import Event
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, Pair, Tracked

LAYOUT: Final = 3
LAYOUT_KEY: Final = b"layout"
OBSERVER: Final = b"n/"
REMOTE: Final = b"r/"
PAST: Final = b"p/"
SUBSCRIPTION: Final = b"s/"
TOPIC: Final = b"t/"

_NUL: Final = b"\0"
_VERSION: Final = 2
_TRAILER: Final = struct.Struct("<I")
_LEAST: Final = 1 + _TRAILER.size
_WHOLE: Final = {0x2144_DF1C}
"""The CRC-32 of anything that is followed by its CRC-32."""

_FOR_EVER: Final = b"\x02\x94\xc0"
"""How the value of a subscription without an end begins: version, array of four, nil."""

_HEAD_1: Final = struct.Struct(">BI")

_UURI: Final = rb"up://[^/\0]{1,128}/[0-9A-F]{1,8}/[0-9A-F]{1,2}/[0-9A-F]{1,4}"
_SUBSCRIPTION_KEY: Final = re.compile(SUBSCRIPTION + _UURI + _NUL + _UURI)
_TOPIC_KEY: Final = re.compile(TOPIC + _UURI)
_REMOTE_KEY: Final = re.compile(REMOTE + _UURI)
_OBSERVER_KEY: Final = re.compile(OBSERVER + _UURI + _NUL + _UURI)
_PAST_KEY: Final = re.compile(PAST + rb"[0-9a-f]{16}")
_PAST_KEYS: Final = {len(PAST) + 16}  # their lengths
_ADDRESS: Final = re.compile(_UURI)
_SLASHES: Final = 11  # in such a key


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

    expire_ms: int | None
    period_ns: int
    details: bytes = b""
    version: int = 3


class _ObserverRecord(msgspec.Struct, frozen=True, array_like=True):
    version: int


class _TopicRecord(msgspec.Struct, frozen=True, array_like=True):
    state: TopicState


class _RemoteRecord(msgspec.Struct, frozen=True, array_like=True):
    state: Literal[1, 2, 3]


class _EventRecord(msgspec.Struct, frozen=True, array_like=True):
    time_ms: int
    topic: str
    subscriber: str
    status: Status
    why: str
    version: int


class _Record1(msgspec.Struct, frozen=True, array_like=True):
    period_ns: int
    expire_ms: int | None = None
    details: bytes = b""


class _Layout(msgspec.Struct, frozen=True, array_like=True):
    version: int


_encode: Final = msgspec.msgpack.Encoder().encode
_decode_record: Final = msgspec.msgpack.Decoder(Record).decode
_decode_record_1: Final = msgspec.msgpack.Decoder(_Record1).decode
_decode_observer: Final = msgspec.msgpack.Decoder(_ObserverRecord).decode
_decode_remote: Final = msgspec.msgpack.Decoder(_RemoteRecord).decode
_decode_topic: Final = msgspec.msgpack.Decoder(_TopicRecord).decode
_decode_event: Final = msgspec.msgpack.Decoder(_EventRecord).decode
_decode_layout: Final = msgspec.msgpack.Decoder(_Layout).decode


# --- writing ----------------------------------------------------------------------------------------------------------


def put(entry: Tracked) -> Change:
    """The change that makes `entry` stand in the store."""
    key = _key(SUBSCRIPTION, entry.pair)
    return Change(
        key, frame(key, _encode(Record(entry.expire_ms, entry.period_ns, entry.details, entry.version)))
    )


def delete(topic: UUri, subscriber: UUri) -> Change:
    """The change after which the store knows nothing of this subscription."""
    return Change(_key(SUBSCRIPTION, (topic, subscriber)), None)


def put_observer(observer: Observer) -> Change:
    """The change that makes a registration for notifications stand in the store."""
    key = _key(OBSERVER, observer.pair)
    return Change(key, frame(key, _encode(_ObserverRecord(observer.version))))


def delete_observer(pair: Pair) -> Change:
    """The change after which the store knows nothing of this registration."""
    return Change(_key(OBSERVER, pair), None)


def layout_value() -> bytes:
    """The value of the record that every store has, at LAYOUT_KEY."""
    return frame(LAYOUT_KEY, _encode(_Layout(LAYOUT)))


def topic_prefix(topic: UUri) -> bytes:
    """How the keys of a topic's subscriptions begin."""
    return b"%s%s\0" % (SUBSCRIPTION, str(topic).encode())


def frame(key: bytes, body: bytes) -> bytes:
    """The value under which `body` stands at `key`."""
    head = b"%c%s" % (_VERSION, body)
    return head + _TRAILER.pack(crc32(head, crc32(key)))


def put_topic(topic: UUri, state: TopicState) -> Change:
    """The change that makes a declared topic stand in the store."""
    key = TOPIC + str(topic).encode()
    return Change(key, frame(key, _encode(_TopicRecord(state))))


def put_remote(topic: UUri, state: Status) -> Change:
    """The change that makes the state of a remote topic, which is not UNSUBSCRIBED, stand in the store."""
    key = REMOTE + str(topic).encode()
    return Change(key, frame(key, _encode([int(state)])))


def delete_remote(topic: UUri) -> Change:
    """The change after which the store knows nothing of this remote topic."""
    return Change(REMOTE + str(topic).encode(), None)


def put_event(number: int, event: Event) -> Change:
    """The change that makes an event stand in the store."""
    key = _past_key(number)
    topic, subscriber = str(event.topic), str(event.subscriber)
    body = _EventRecord(event.time_ms, topic, subscriber, event.status, event.why, event.version)
    return Change(key, frame(key, _encode(body)))


def delete_event(number: int) -> Change:
    """The change after which the store knows nothing of an event."""
    return Change(_past_key(number), None)


def event_number(key: bytes) -> int:
    return int(key[len(PAST) :], 16)


def _past_key(number: int) -> bytes:
    return b"%s%016x" % (PAST, number)


def _key(kind: bytes, pair: Pair) -> bytes:
    # At most 2 + 150 + 1 + 150 bytes, for an authority of 128 characters; LMDB takes 511.
    return b"%s%s\0%s" % (kind, str(pair[0]).encode(), str(pair[1]).encode())


# --- reading one ------------------------------------------------------------------------------------------------------


def body_of(key: bytes, value: bytes) -> bytes:
    """The body of a frame that is whole and of the version we write; else StoreDamaged naming the key."""
    if len(value) < _LEAST:
        raise StoreDamaged(f"record {key!r}: {len(value)} bytes, expected at least {_LEAST}")
    if crc32(value, crc32(key)) not in _WHOLE:
        (checksum,) = _TRAILER.unpack(value[-_TRAILER.size :])
        raise StoreDamaged(f"record {key!r}: its checksum is not {checksum:08x}, as its frame says")
    if value[0] != _VERSION:
        raise StoreDamaged(f"record {key!r}: version {value[0]}, expected {_VERSION}")
    return value[1 : -_TRAILER.size]


def layout_of(value: bytes) -> int:
    """The layout that the value of the layout record names. Raises StoreDamaged.

    Whatever later layouts do to other records, this one keeps its form, so that they can be refused by their number.
    """
    try:
        if value[:1] == b"\x01":
            return _decode_layout(_body_1(LAYOUT_KEY, value)).version
        if len(value) < _LEAST or crc32(value, crc32(LAYOUT_KEY)) not in _WHOLE:
            raise StoreDamaged(f"record {LAYOUT_KEY!r}: {value[:32]!r} is no whole frame")
        return _decode_layout(value[1 : -_TRAILER.size]).version
    except msgspec.DecodeError as error:
        raise StoreDamaged(f"record {LAYOUT_KEY!r}: {error}, expected the number of a layout") from error


def address(text: bytes) -> UUri:
    """The UUri of a text that we wrote (the checksum says so): 0.8 us instead of the 5 of `UUri.parse`."""
    _, _, authority, ue, version, resource = text.decode().split("/")
    return UUri(authority, int(ue, 16), int(version, 16), int(resource, 16))


class Addresses(dict[bytes, UUri]):
    """UUris by their text, each made once and shared by all subscriptions that name it."""

    def __missing__(self, text: bytes) -> UUri:
        made = self[text] = address(text)
        return made


class Reader:
    """Makes subscriptions of records. One thread at a time."""

    def __init__(self) -> None:
        self._addresses = Addresses()

    def read(self, key: bytes, value: bytes) -> Tracked:
        """The subscription that a record is; StoreDamaged unless it is whole and one that this program writes."""
        body = body_of(key, value)
        topic, _, subscriber = key[len(SUBSCRIPTION) :].partition(_NUL)
        try:
            record = _decode_record(body)
            if not _SUBSCRIPTION_KEY.fullmatch(key):
                raise ValueError("no pair of addresses")
        except (msgspec.DecodeError, ValueError) as error:
            raise StoreDamaged(
                f"record {key!r}: {error}, expected a subscription of layout {LAYOUT}"
            ) from error
        topic_uuri, subscriber_uuri = self._addresses[topic], self._addresses[subscriber]
        return Tracked(
            topic_uuri, subscriber_uuri, record.period_ns, record.expire_ms, record.details, record.version
        )


def read_observer(key: bytes, value: bytes) -> Observer:
    """The registration that a record is; StoreDamaged unless it is whole and one that this program writes."""
    body = body_of(key, value)
    try:
        if not _OBSERVER_KEY.fullmatch(key):
            raise ValueError("no pair of addresses")
        topic, _, entity = key[len(OBSERVER) :].partition(_NUL)
        return Observer(address(topic), address(entity), _decode_observer(body).version)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a registration of layout {LAYOUT}") from error


def read_topic(key: bytes, value: bytes) -> tuple[UUri, TopicState]:
    """The declared topic that a record is; StoreDamaged unless it is whole and one that this program writes."""
    body = body_of(key, value)
    try:
        if not _TOPIC_KEY.fullmatch(key):
            raise ValueError("no address")
        return address(key[len(TOPIC) :]), _decode_topic(body).state
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a topic of layout {LAYOUT}") from error


def read_remote(key: bytes, value: bytes) -> tuple[UUri, Status]:
    """The remote topic that a record is; StoreDamaged unless it is whole and one that this program writes."""
    body = body_of(key, value)
    try:
        if not _REMOTE_KEY.fullmatch(key):
            raise ValueError("no address")
        return address(key[len(REMOTE) :]), Status(_decode_remote(body).state)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a remote topic of layout {LAYOUT}") from error


def read_event(key: bytes, value: bytes) -> Event:
    """The event that a record is; StoreDamaged unless it is whole and one that this program writes."""
    body = body_of(key, value)
    try:
        if not _PAST_KEY.fullmatch(key):
            raise ValueError("no number")
        found = _decode_event(body)
        topic, subscriber = found.topic.encode(), found.subscriber.encode()
        if not (_ADDRESS.fullmatch(topic) and _ADDRESS.fullmatch(subscriber)):
            raise ValueError("no pair of addresses")
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected an event of layout {LAYOUT}") from error
    return Event(found.time_ms, address(topic), address(subscriber), found.status, found.why, found.version)


# --- reading many -----------------------------------------------------------------------------------------------------


def whole(keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[bytes, bytes] | None:
    """The least and the greatest value, if every one of these is a whole subscription of this layout.

    0.3 us each; None, without a word about which is not. At least one record, in ascending order of keys.
    """
    if set(map(crc32, values, map(crc32, keys))) != _WHOLE:
        return None
    least, greatest = min(values), max(values)
    joined = _NUL.join(keys)
    # By the checksum somebody wrote these keys as they are; what is asked is only whether it was this program.
    ours = (
        least[0] == greatest[0] == _VERSION
        and keys[0].startswith(SUBSCRIPTION)
        and keys[-1].startswith(SUBSCRIPTION)
        and joined.count(_NUL) == 2 * len(keys) - 1
        and joined.count(b"/") == _SLASHES * len(keys)
    )
    return (least, greatest) if ours else None


def whole_events(keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Whether every one of these is a whole record of the past; all their keys begin as one does. 0.3 us each."""
    versions = min(values)[0], max(values)[0]
    return (
        set(map(crc32, values, map(crc32, keys))) == _WHOLE
        and versions == (_VERSION, _VERSION)
        and set(map(len, keys)) == _PAST_KEYS
    )


def check(key: bytes, value: bytes) -> None:
    """StoreDamaged, saying why, unless this is a whole record of a known kind."""
    if key == LAYOUT_KEY:
        layout_of(value)
    elif key.startswith(SUBSCRIPTION):
        Reader().read(key, value)
    elif key.startswith(OBSERVER):
        read_observer(key, value)
    elif key.startswith(TOPIC):
        read_topic(key, value)
    elif key.startswith(REMOTE):
        read_remote(key, value)
    elif key.startswith(PAST):
        read_event(key, value)
    else:  # passed over, a record whose first bytes were hit would be lost in silence
        raise StoreDamaged(f"record {key!r}: of no kind that layout {LAYOUT} has")


def may_expire(least: bytes, greatest: bytes) -> bool:
    """Whether one of the subscriptions whose values lie between these two may expire."""
    return not (least.startswith(_FOR_EVER) and greatest.startswith(_FOR_EVER))


# --- layout 1 ---------------------------------------------------------------------------------------------------------


def migrated(key: bytes, value: bytes) -> bytes:
    """The value, in this layout, of a subscription of layout 1. Raises StoreDamaged."""
    if not key.startswith(SUBSCRIPTION):
        raise StoreDamaged(f"record {key!r}: of no kind that layout 1 has")
    body = _body_1(key, value)
    try:
        old = _decode_record_1(body)
        if not _SUBSCRIPTION_KEY.fullmatch(key):
            raise ValueError("no pair of addresses")
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(f"record {key!r}: {error}, expected a subscription of layout 1") from error
    return frame(key, _encode(Record(old.expire_ms, old.period_ns, old.details)))


def _body_1(key: bytes, value: bytes) -> bytes:
    if len(value) < _HEAD_1.size:
        raise StoreDamaged(f"record {key!r}: {len(value)} bytes, expected at least {_HEAD_1.size}")
    version, checksum = _HEAD_1.unpack_from(value)
    body = value[_HEAD_1.size :]
    if version != 1 or crc32(body, crc32(key)) != checksum:
        raise StoreDamaged(f"record {key!r}: version {version}, and its checksum is not {checksum:08x}")
    return body
