# SPDX-License-Identifier: Apache-2.0
"""Borders of the disk: stores and recordings, as a damaged disk or an unknown program leaves them."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from zlib import crc32

import lmdb
import msgspec
from ustreamer_recorder.layout import HEADER, RECORD, BlockHeader, Damaged
from ustreamer_recorder.reader import read_segment
from ustreamer_usubscription.model.declared_topics import TopicState
from ustreamer_usubscription.model.subscription import Observer, SubscriptionRecord
from ustreamer_usubscription.store import records

from plugins.recorder.tests.test_reader import small
from tests.fuzz.border import Border, Take, join_pieces, pure, split_pieces
from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import CRC_LAST, encode_frame
from ustreamer.core.storage.lmdb_tree import LmdbTree
from ustreamer.host.storage import spool_records
from ustreamer.host.storage.dead_letter_store import StoredDeadLetter, decode_letter, encode_record
from ustreamer.testing.messages import REMOTE_CLIENT, TOPIC, four_messages
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.wire import encode


def takes_records(decode: Callable[[bytes, bytes], object]) -> Take:
    """Takes a key and a value in two pieces. A kind of 1 or 2 makes the value the body of a valid frame of this version."""

    def take(data: bytes) -> None:
        pieces = [*split_pieces(data)][:2]
        if len(pieces) < 2:
            return
        (_, key), (kind, value) = pieces
        with suppress(StoreDamaged, UStatusError):
            decode(key, encode_frame(key, value, kind) if kind in {1, CRC_LAST} else value)

    return take


def take_tree(data: bytes) -> None:
    tree = LmdbTree(data)
    for key, value in tree.records():
        assert type(key) is type(value) is bytes
    tree.transaction_error()
    assert tree.missing_pages >= 0


def take_segment(data: bytes) -> None:
    """A segment as it is, and with valid checksums of its blocks."""
    for each in (data, with_checksums(data)):
        with suppress(Damaged):
            for _ in read_segment(each):
                pass


def with_checksums(data: bytes) -> bytes:
    """The segment with a new checksum in each block that has a readable head."""
    fixed, at = bytearray(data), HEADER
    while at + RECORD <= len(data):
        head = BlockHeader.find(bytes(fixed), at)
        if head is None:
            at += RECORD
            continue
        end = at + RECORD * (1 + head.records)
        head._replace(records_crc=crc32(fixed[at + RECORD : end])).pack_into(fixed, at)
        at = end
    return bytes(fixed)


def _small_tree() -> bytes:
    """The file of a store with a few records, one of them on pages of its own, and with free pages."""
    with tempfile.TemporaryDirectory() as directory:
        with lmdb.open(directory, map_size=1 << 20, subdir=True) as env:
            for number in range(3):
                with env.begin(write=True) as transaction:
                    transaction.put(bytes([number]), bytes(20))
                    transaction.put(b"large", bytes(5_000 + number))
        return (Path(directory) / "data.mdb").read_bytes()


def _subscription_seeds() -> list[bytes]:
    """A record of each kind in the store of subscriptions: whole, and as the body of a frame."""
    changes = [
        records.put_subscription(SubscriptionRecord(TOPIC, REMOTE_CLIENT)),
        records.put_observer(Observer(TOPIC, REMOTE_CLIENT)),
        records.put_topic(TOPIC, TopicState.ACTIVE),
        records.put_remote(TOPIC, Status.SUBSCRIBED),
    ]
    return [
        seed
        for key, value in changes
        if value is not None
        for seed in (join_pieces(key, value), join_pieces(key, value[1:-4], kind=CRC_LAST))
    ]


def _good_and_not_utf8(record: object) -> list[bytes]:
    """The body of a record, and the same with a text that is not UTF-8: msgspec has another error for that."""
    body = msgspec.msgpack.encode(record)
    assert b"link" in body
    return [body, body.replace(b"link", b"\xffink")]


_MESSAGE: Final = four_messages()[0]
_ATTRIBUTES: Final = encode(_MESSAGE.id, _MESSAGE.attributes)
_SPOOL_KEY: Final = spool_records.encode_key(1, 7)
_SPOOLED: Final = spool_records.SpoolRecord(_ATTRIBUTES, b"21.5", "link", None, None, 1, 2, b"boot", 3)
_LETTER: Final = StoredDeadLetter(_ATTRIBUTES, b"21.5", 4, 8, "full", "link", "chassis", 1, 2, 3)
_LETTER_KEY: Final = encode_record(7, 0)[0]

BORDERS: Final[Mapping[str, Border]] = {
    "store-tree": Border(pure(take_tree), [_small_tree()], max_length=65_536),
    "store-spool": Border(
        pure(takes_records(spool_records.decode_record)),
        [join_pieces(_SPOOL_KEY, each, kind=1) for each in _good_and_not_utf8(_SPOOLED)],
    ),
    "store-dead-letters": Border(
        pure(takes_records(decode_letter)),
        [join_pieces(_LETTER_KEY, each, kind=1) for each in _good_and_not_utf8(_LETTER)],
    ),
    "store-subscriptions": Border(pure(takes_records(records.check_record)), _subscription_seeds()),
    "recording": Border(pure(take_segment), [small()[0]], max_length=8_192),
}
