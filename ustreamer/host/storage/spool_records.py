# SPDX-License-Identifier: Apache-2.0
"""The records of a spool, byte by byte. Messages in, keys and values out; no I/O.

    key      class, 1 byte: 0 to 6 for CS0 to CS6, 7 for sent messages of all classes;
             sequence, 8 bytes, big endian, which orders a class
    value    frame of version 1 (`framed_record`); its body is MessagePack

Two records are no messages. `layout` is written at creation: a spool without it is damaged, not empty. `receivers` has
the receivers of the sent messages, an array of strings of the transport. A spool without it has none.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from ustreamer.core.egress.limits import CLASSES
from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import LAYOUT_KEY, encode_frame, frame_body, layout_number

LAYOUT: Final = 1
SENT: Final = CLASSES
"""The class of messages that were sent and may not have arrived. After a restart they precede all others."""
RANKS: Final = CLASSES + 1
RECEIVERS_KEY: Final = b"receivers"
METADATA_KEYS: Final = frozenset((LAYOUT_KEY, RECEIVERS_KEY))
"""The keys of records that are no messages."""
_KEY: Final = struct.Struct(">BQ")


class SpoolRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A stored message, with everything that sending it after a restart needs.

    `attributes` are as on the wire, with the id. `topic` and `subscriber` are those of its delivery. Times in ns are on
    the monotonic clock of the boot `boot`; after a reboot only `deadline_ms`, ms since the epoch, is valid.
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
_decode_receivers: Final = msgspec.msgpack.Decoder(list[str]).decode


def encode_key(rank: int, sequence: int) -> bytes:
    """The key of a message; keys of a class sort by sequence."""
    return _KEY.pack(rank, sequence)


def decode_key(key: bytes) -> tuple[int, int]:
    """Class and sequence of a key. Raises StoreDamaged for any other key."""
    if len(key) != _KEY.size or key[0] >= RANKS:
        raise StoreDamaged(f"record {key.hex()}: expected a class below {RANKS} and 8 bytes of sequence")
    rank, sequence = _KEY.unpack(key)
    return rank, sequence


def encode_value(key: bytes, content: SpoolRecord | int | Sequence[str]) -> bytes:
    """The value of a message, of the layout number, or of the receivers."""
    return encode_frame(key, _encode_body(content))


def decode_record(key: bytes, value: bytes) -> SpoolRecord:
    """The message of a record. Raises StoreDamaged."""
    try:
        return _decode_body(frame_body(key, value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"record {key.hex()}: {error}") from error


def decode_receivers(value: bytes) -> list[str]:
    """The receivers of the record at `RECEIVERS_KEY`. Raises StoreDamaged."""
    try:
        return _decode_receivers(frame_body(RECEIVERS_KEY, value))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"record {RECEIVERS_KEY!r}: {error}") from error


RecordKey: TypeAlias = bytes  # `SpoolSummary` has a field of the name `bytes`


class SpoolSummary(msgspec.Struct):
    """The contents of a spool by class: messages, bytes of keys and values, last sequence; and the damaged keys."""

    messages: list[int] = msgspec.field(default_factory=lambda: [0] * RANKS)
    bytes: list[int] = msgspec.field(default_factory=lambda: [0] * RANKS)
    last: list[int] = msgspec.field(default_factory=lambda: [0] * RANKS)
    damaged: list[RecordKey] = []


def is_whole(key: bytes, value: bytes) -> bool:
    """Whether this is an undamaged message, or the undamaged record of the receivers."""
    try:
        if key == RECEIVERS_KEY:
            decode_receivers(value)
            return True
        decode_key(key)
        frame_body(key, value)
    except StoreDamaged:
        return False
    return True


def summarize(records: Iterable[tuple[bytes, bytes]]) -> SpoolSummary:
    """Count the messages of a spool, and list its damaged records. Raises StoreDamaged and StoreTooNew as `layout_number`."""
    summary = SpoolSummary()
    layout = None
    for key, value in records:
        if key == LAYOUT_KEY:
            layout = value
        elif not is_whole(key, value):
            summary.damaged.append(key)
        elif key not in METADATA_KEYS:
            rank, sequence = decode_key(key)
            summary.messages[rank] += 1
            summary.bytes[rank] += len(key) + len(value)
            summary.last[rank] = sequence
    layout_number(layout, LAYOUT)
    return summary
