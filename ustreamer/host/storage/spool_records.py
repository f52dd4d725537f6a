# SPDX-License-Identifier: Apache-2.0
"""What a spool holds, byte by byte.

    key      class, 1 byte: 0 to 6 for CS0 to CS6; sequence, 8 bytes, big endian: the order of a class
    value    version, 1 byte; CRC-32 of key and body, 4 bytes; body, MessagePack

One more record, `layout`, is there from the first moment on: a spool without it is damaged, not empty.
"""

import struct
import zlib
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from ustreamer.core.egress.limits import CLASSES
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.uprotocol.ustatus import UCode, UStatusError

LAYOUT: Final = 1
LAYOUT_KEY: Final = b"layout"
_VERSION: Final = 1
_KEY: Final = struct.Struct(">BQ")
_HEADER: Final = struct.Struct(">BI")


class SpoolRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message as it is stored, with all that is needed to send it after a restart.

    `attributes` are as on the wire, the id among them. `topic` and `subscriber` are those of its delivery. Its times are
    on the monotonic clock of the boot `boot`; where that is over, what counts is `deadline_ms`, ms since the epoch.
    """

    attributes: bytes
    payload: bytes
    ingress: str
    topic: str | None
    subscriber: str | None
    received_ns: int
    deadline_ns: int
    boot: bytes
    deadline_ms: int


_encode_body: Final = msgspec.msgpack.Encoder().encode
_decode_body: Final = msgspec.msgpack.Decoder(SpoolRecord).decode


def encode_key(rank: int, sequence: int) -> bytes:
    """The key of a message; keys of a class are ordered as their sequences."""
    return _KEY.pack(rank, sequence)


def decode_key(key: bytes) -> tuple[int, int]:
    """Class and sequence of a key. Raises StoreDamaged for what is none."""
    if len(key) != _KEY.size or key[0] >= CLASSES:
        raise StoreDamaged(f"record {key.hex()}: expected a class below {CLASSES} and 8 bytes of sequence")
    rank, sequence = _KEY.unpack(key)
    return rank, sequence


def encode_value(key: bytes, content: SpoolRecord | int) -> bytes:
    """The value of a message or, for the layout record, of its number."""
    body = _encode_body(content)
    return _HEADER.pack(_VERSION, zlib.crc32(body, zlib.crc32(key))) + body


def verify_record(key: bytes, value: bytes) -> bytes:
    """The body of a record. Raises StoreDamaged unless it is what was written under this very key."""
    if len(value) < _HEADER.size:
        raise StoreDamaged(f"record {key.hex()}: {len(value)} bytes, expected at least {_HEADER.size}")
    version, checksum = _HEADER.unpack_from(value)
    body = value[_HEADER.size :]
    if version != _VERSION:
        raise StoreDamaged(f"record {key.hex()}: version {version}, expected {_VERSION}")
    if checksum != zlib.crc32(body, zlib.crc32(key)):
        raise StoreDamaged(f"record {key.hex()}: checksum {checksum:08x} is wrong")
    return body


def decode_record(key: bytes, value: bytes) -> SpoolRecord:
    """The message of a record. Raises StoreDamaged."""
    try:
        return _decode_body(verify_record(key, value))
    except msgspec.MsgspecError as error:
        raise StoreDamaged(f"record {key.hex()}: {error}") from error


def check_layout(value: bytes | None) -> None:
    """Raises StoreDamaged unless this is the layout record of a spool that this program reads.

    FAILED_PRECONDITION, as UStatusError, where it is a later one's.
    """
    if value is None:
        raise StoreDamaged("layout record: is missing")
    try:
        layout = msgspec.msgpack.decode(verify_record(LAYOUT_KEY, value), type=int)
    except (StoreDamaged, msgspec.MsgspecError) as error:
        raise StoreDamaged(f"layout record: {error}") from error
    if layout > LAYOUT:
        raise UStatusError(UCode.FAILED_PRECONDITION, f"layout {layout}, this program reads layout {LAYOUT}")


RecordKey: TypeAlias = bytes  # `SpoolSummary` has a field of the name `bytes`


class SpoolSummary(msgspec.Struct):
    """The contents of a spool: messages, bytes of keys and values, and the last sequence of each class; damaged keys."""

    messages: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    bytes: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    last: list[int] = msgspec.field(default_factory=lambda: [0] * CLASSES)
    damaged: list[RecordKey] = []


def is_whole(key: bytes, value: bytes) -> bool:
    """Whether this is a message as it was written."""
    try:
        decode_key(key)
        verify_record(key, value)
    except StoreDamaged:
        return False
    return True


def summarize(records: Iterable[tuple[bytes, bytes]]) -> SpoolSummary:
    """Count all records of a spool. Raises StoreDamaged and UStatusError as `check_layout`."""
    summary = SpoolSummary()
    layout = None
    for key, value in records:
        if key == LAYOUT_KEY:
            layout = value
        elif is_whole(key, value):
            rank, sequence = decode_key(key)
            summary.messages[rank] += 1
            summary.bytes[rank] += len(key) + len(value)
            summary.last[rank] = sequence
        else:
            summary.damaged.append(key)
    check_layout(layout)
    return summary
