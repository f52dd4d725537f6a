# SPDX-License-Identifier: Apache-2.0
"""The frame of a record: its bytes, and every flipped bit."""

from zlib import crc32

import pytest

from ustreamer.core.storage.errors import StoreDamaged
from ustreamer.core.storage.framed_record import encode_frame, frame_body
from ustreamer.uprotocol.ustatus import UCode


def test_a_frame_has_version_checksum_and_body() -> None:
    assert encode_frame(b"key", b"body") == b"\x01" + crc32(b"keybody").to_bytes(4, "big") + b"body"
    assert frame_body(b"key", encode_frame(b"key", b"body")) == b"body"


def test_every_flipped_bit_in_key_or_frame_is_found() -> None:
    whole = b"key" + encode_frame(b"key", b"body")
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreDamaged) as refused:
            frame_body(bytes(flipped[:3]), bytes(flipped[3:]))
        assert refused.value.code is UCode.DATA_LOSS


def test_a_short_value_is_damage() -> None:
    with pytest.raises(StoreDamaged, match="record b'key': 4 bytes, expected at least 5"):
        frame_body(b"key", b"\x01\0\0\0")
