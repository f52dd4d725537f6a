# SPDX-License-Identifier: Apache-2.0
"""The CRC routines against published values, and against a routine that works bit by bit.

Published values: the result of "123456789" in the catalogue of CRC algorithms (reveng), and the tables of results in
AUTOSAR SWS CRC Routines, as the MIT-licensed package autosar-e2e tests them.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.crc import crc8, crc16, crc32p4, crc64

CHECK = b"123456789"
TABLE = [
    bytes.fromhex(each)
    for each in ("00000000", "f20183", "0faa0055", "00ff5511", "332255aabbccddeeff", "926b55", "ffffffff")
]


@pytest.mark.parametrize(
    ("routine", "result"),
    [(crc16, 0x29B1), (crc32p4, 0x1697_D06A), (crc64, 0x995D_C9BB_DF19_39FA)],
)
def test_the_result_of_the_catalogue(routine: Callable[[bytes], int], result: int) -> None:
    assert routine(CHECK) == result


AUTOSAR: dict[Callable[[bytes], int], list[int]] = {
    crc16: [0x84C0, 0xD374, 0x2023, 0xB8F9, 0xF53F, 0x0745, 0x1D0F],
    crc32p4: [0x6FB32240, 0x4F721A25, 0x20662DF8, 0x9BD7996E, 0xA65A343D, 0xEE688A78, 0xFFFFFFFF],
    crc64: [
        0xF4A586351E1B9F4B,
        0x319C27668164F1C6,
        0x54C5D0F7667C1575,
        0xA63822BE7E0704E6,
        0x701ECEB219A8E5D5,
        0x5FAA96A9B59F3E4E,
        0xFFFFFFFF00000000,
    ],
}


@pytest.mark.parametrize("routine", AUTOSAR)
def test_the_results_of_autosar(routine: Callable[[bytes], int]) -> None:
    assert list(map(routine, TABLE)) == AUTOSAR[routine]


def test_crc8_without_start_value_and_final_xor() -> None:
    """AUTOSAR lists CRC8 with both of them 0xFF. A start value of 0xFF inverts the first byte, in effect."""
    published = [0x59, 0x37, 0x79, 0xB8, 0xCB, 0x8C, 0x74]
    assert [crc8(bytes([each[0] ^ 0xFF]) + each[1:]) ^ 0xFF for each in TABLE] == published


def bitwise(data: bytes, width: int, polynomial: int, start: int, *, reflected: bool) -> int:
    """A CRC without a table; `reflected` takes the low bit of each byte first."""
    crc, top = start, 1 << width - 1
    for byte in data:
        for bit in range(8) if reflected else range(7, -1, -1):
            is_set = bool(crc & top) ^ bool(byte >> bit & 1)
            crc = (crc << 1) & (2 * top - 1) ^ (polynomial if is_set else 0)
    return int(f"{crc:0{width}b}"[::-1], 2) ^ start if reflected else crc


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=40))
def test_every_routine_equals_the_one_bit_by_bit(data: bytes) -> None:
    assert crc8(data) == bitwise(data, 8, 0x1D, 0, reflected=False)
    assert crc16(data) == bitwise(data, 16, 0x1021, 0xFFFF, reflected=False)
    assert crc32p4(data) == bitwise(data, 32, 0xF4ACFB13, (1 << 32) - 1, reflected=True)
    assert crc64(data) == bitwise(data, 64, 0x42F0E1EBA9EA3693, (1 << 64) - 1, reflected=True)
