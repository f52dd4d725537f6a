# SPDX-License-Identifier: Apache-2.0
"""The frame of a record: version, 1 byte; CRC-32 of key and body, 4 bytes, big endian; body.

The checksum covers the key because LMDB has no checksum: a flipped bit can move a record to another key. The
subscriptions of today have a frame of their own, with the CRC last, which checks a million records in 0.3 s.
"""

import struct
from typing import Final
from zlib import crc32

from ustreamer.core.storage.errors import StoreDamaged

VERSION: Final = 1
_HEADER: Final = struct.Struct(">BI")


def encode_frame(key: bytes, body: bytes) -> bytes:
    """The value that is stored under `key`."""
    return _HEADER.pack(VERSION, crc32(body, crc32(key))) + body


def frame_body(key: bytes, value: bytes) -> bytes:
    """The body of a value. Raises StoreDamaged unless `encode_frame` made the value for this key."""
    if len(value) < _HEADER.size:
        raise StoreDamaged(f"record {key!r}: {len(value)} bytes, expected at least {_HEADER.size}")
    version, checksum = _HEADER.unpack_from(value)
    body = value[_HEADER.size :]
    if version != VERSION:
        raise StoreDamaged(f"record {key!r}: version {version}, expected {VERSION}")
    if checksum != crc32(body, crc32(key)):
        raise StoreDamaged(f"record {key!r}: checksum {checksum:08x} is wrong")
    return body
