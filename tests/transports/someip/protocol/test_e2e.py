# SPDX-License-Identifier: Apache-2.0
"""E2E protection against published messages, and its properties.

Published messages: the protocol examples of AUTOSAR FO PRS E2E Protocol, as the MIT-licensed package autosar-e2e tests
them (P01, P04 to P07), and messages that the tests of COVESA vsomeip expect from its E2E library (P01, P04, P07).
There is no public example of P11 in a licence that permits use here: P11 is P01 with two of its four data id modes.
"""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.e2e import (
    E2eChecker,
    E2eProtector,
    E2eResult,
    covered_header,
)
from ustreamer.transports.someip.protocol.e2e_config import E2eConfig
from ustreamer.uprotocol.ustatus import UStatusError

NO_HEADER = b""
ZERO_HEADER = bytes(8)  # of the examples of AUTOSAR with an offset of 8 bytes


def config(profile: str, data_id: int = 0x1234, **keys: Any) -> E2eConfig:
    return msgspec.convert({"profile": profile, "data_id": data_id} | keys, E2eConfig)


def payloads(config: E2eConfig, header: bytes, size: int, number: int = 2) -> list[str]:
    """The first protected events with an empty payload of this size."""
    protector, made = E2eProtector(config), []
    for _ in range(number):
        made.append(protector.protect(header, bytes(size)).hex())
        protector.advance()
    return made


AUTOSAR: dict[str, tuple[E2eConfig, bytes, list[str]]] = {
    "P01 both": (config("P01", 0x123), NO_HEADER, ["cc00000000000000", "9101000000000000"]),
    "P01 alternating": (
        config("P01", 0x123, data_id_mode="alternating"),
        NO_HEADER,
        ["ce00000000000000", "0201000000000000"],
    ),
    "P01 low": (
        config("P01", 0x123, data_id_mode="low"),
        NO_HEADER,
        ["ce00000000000000", "9301000000000000"],
    ),
    "P01 nibble": (
        config("P01", 0x123, data_id_mode="nibble"),
        NO_HEADER,
        ["2a10000000000000", "7711000000000000"],
    ),
    "P04": (
        config("P04", 0x0A0B0C0D, covers_header=False),
        NO_HEADER,
        ["001000000a0b0c0d862b055600000000", "001000010a0b0c0da58e680700000000"],
    ),
    "P04 with the header": (
        config("P04", 0x0A0B0C0D),
        ZERO_HEADER,
        ["001800000a0b0c0d69d7502e00000000", "001800010a0b0c0d4a723d7f00000000"],
    ),
    "P05": (config("P05", covers_header=False), NO_HEADER, ["1cca000000000000", "cf8d010000000000"]),
    "P05 with the header": (config("P05"), ZERO_HEADER, ["2891000000000000", "fbd6010000000000"]),
    "P06": (config("P06", covers_header=False), NO_HEADER, ["b155000800000000", "f4f5000801000000"]),
    "P06 with the header": (config("P06"), ZERO_HEADER, ["4eb7001000000000", "0b17001001000000"]),
    "P07": (
        config("P07", 0x0A0B0C0D, covers_header=False),
        NO_HEADER,
        [
            "1fb2e737fcedbcd900000018000000000a0b0c0d00000000",
            "7bde7268b8e9bc2700000018000000010a0b0c0d00000000",
        ],
    ),
    "P07 with the header": (
        config("P07", 0x0A0B0C0D),
        ZERO_HEADER,
        [
            "17f7c817323865a800000020000000000a0b0c0d00000000",
            "739b5d48763c655600000020000000010a0b0c0d00000000",
        ],
    ),
}


# [utest->RPC-103]
@pytest.mark.parametrize("example", AUTOSAR)
def test_the_examples_of_autosar(example: str) -> None:
    how, header, expected = AUTOSAR[example]
    assert payloads(how, header, len(expected[0]) // 2) == expected
    checker = E2eChecker(how)
    assert [checker.check(header, bytes.fromhex(each)) for each in expected] == [E2eResult.OK] * 2


VSOMEIP_P01 = [
    "f9a000ffffffffff",
    "e2a101ffffffffff",
    "cfa202ffffffffff",
    "d4a303ffffffffff",
    "95a404ffffffffff",
    "8ea505ffffffffff",
    "a3a606ffffffffff",
    "b8a707ffffffffff",
    "21a808ffffffffff",
    "3aa909ffffffffff",
]


@pytest.mark.parametrize("profile", ["P01", "P11"])
def test_the_events_of_vsomeip_with_p01(profile: str) -> None:
    how = config(profile, 0xA73, data_id_mode="nibble")
    protector, checker = E2eProtector(how), E2eChecker(how)
    for number, expected in enumerate(map(bytes.fromhex, VSOMEIP_P01)):
        assert protector.protect(NO_HEADER, bytes(2) + bytes([number]) + b"\xff" * 5) == expected
        protector.advance()
        assert checker.check(NO_HEADER, expected) is E2eResult.OK


_DATA = "000106fe013e4ccccd803fb2{}3f800000fc01013c{}"
_FIRST = _DATA.format("3d833eba68ed3fb37af2bd96c1423d251a62bdae77f3", "1dbd4e01013c2b87ed00")
_SECOND = _DATA.format("3c2f3eba46813fb3738dbd93cbae3cf7d258bda26ecd", "1c892401013c2b244500")
VSOMEIP: dict[str, tuple[E2eConfig, list[str]]] = {
    "P04": (
        config("P04", 0x0100_002D),  # vsomeip puts the instance into the highest byte of the data id
        [
            "00508f810100002ded6e788d08b7f44c0000093d" + _FIRST,
            "00508f820100002d9dbb493f0c69021c0000093d" + _SECOND,
        ],
    ),
    "P07": (
        config("P07", 0x2D),
        [
            "23fc1f7f135895c000000050000000000000002d" + _FIRST,
            "d018a88d18cf436e00000050000000010000002d" + _SECOND,
        ],
    ),
}


# [utest->RPC-102]
@pytest.mark.parametrize("profile", VSOMEIP)
def test_the_events_of_vsomeip_with_its_header(profile: str) -> None:
    """vsomeip sends these events with client 0 and session 0; the header is part of what the CRC covers."""
    how, events = VSOMEIP[profile]
    header = covered_header(0, 1, 0x02, 0)
    assert header.hex() == "0000000001010200"
    checker = E2eChecker(how)
    assert [checker.check(header, bytes.fromhex(each)) for each in events] == [E2eResult.OK] * 2
    assert E2eChecker(how).check(covered_header(1, 1, 0x02, 0), bytes.fromhex(events[0])) is E2eResult.ERROR


def test_p05_of_vsomeip_has_its_crc_in_the_other_order() -> None:
    [little] = payloads(config("P05"), ZERO_HEADER, 8, 1)
    [big] = payloads(config("P05", crc_byte_order="big"), ZERO_HEADER, 8, 1)
    assert big == little[2:4] + little[:2] + little[4:]


# --- properties -------------------------------------------------------------------------------------------------------

COUNTERS = {"P01": 15, "P04": 1 << 16, "P05": 256, "P06": 256, "P07": 1 << 32, "P11": 15}
HEADERS = st.builds(
    covered_header,
    st.integers(0, 0xFFFF_FFFF),
    st.integers(0, 255),
    st.sampled_from([0x02, 0x80]),
    st.just(0),
)
CONFIGS = st.sampled_from(
    [
        config(profile, 0x123, **keys)
        for profile in COUNTERS
        for keys in ({}, {"offset": 3}, {"covers_header": True}, {"covers_header": False}, {"strip": True})
    ]
    + [config(profile, 0x123, data_id_mode="nibble") for profile in ("P01", "P11")]
    + [config("P01", 0x123, data_id_mode=mode) for mode in ("alternating", "low")]
    + [config("P05", crc_byte_order="big")]
)


@settings(max_examples=100, deadline=None)
@given(
    how=CONFIGS, header=HEADERS, payload=st.binary(min_size=24, max_size=60), first=st.integers(0, 1 << 33)
)
def test_a_protected_event_is_valid_and_one_with_another_bit_is_not(
    how: E2eConfig, header: bytes, payload: bytes, first: int
) -> None:
    protector = E2eProtector(how)
    protector._counter = first % COUNTERS[how.profile]
    sent = protector.protect(header, payload)
    assert E2eChecker(how).check(header, sent) is E2eResult.OK
    if how.strip:
        assert E2eChecker(how).stripped(sent) == payload
    else:
        assert len(sent) == len(payload)
    for bit in (0, how.offset * 8 + 9, len(sent) * 8 - 1):
        broken = (int.from_bytes(sent) ^ 1 << len(sent) * 8 - 1 - bit).to_bytes(len(sent))
        assert E2eChecker(how).check(header, broken) is E2eResult.ERROR
    corrupt = protector.protect(header, payload, valid=False)
    assert E2eChecker(how).check(header, corrupt) is E2eResult.ERROR
    other = E2eChecker(msgspec.structs.replace(how, data_id=how.data_id ^ 0x101))
    assert other.check(header, sent) is E2eResult.ERROR
    changed = bytes([header[0], header[1], header[2], header[3] ^ 1]) + header[4:]
    expected = E2eResult.ERROR if how.includes_header else E2eResult.OK
    assert E2eChecker(how).check(changed, sent) is expected


@settings(max_examples=60, deadline=None)
@given(how=CONFIGS, header=HEADERS, data=st.binary(max_size=40))
def test_any_payload_has_a_result(how: E2eConfig, header: bytes, data: bytes) -> None:
    assert E2eChecker(how).check(header, data) in E2eResult


@pytest.mark.parametrize("profile", COUNTERS)
def test_the_counter_wraps_and_gaps_are_judged(profile: str) -> None:
    how = config(profile, 0x123, max_delta_counter=3)
    top = COUNTERS[profile]

    def event(counter: int) -> bytes:
        protector = E2eProtector(how)
        protector._counter = counter % top
        return protector.protect(ZERO_HEADER, bytes(24))

    checker = E2eChecker(how)
    steps = [top - 2, top - 1, top, top + 3, top + 3, top + 7, top + 8]
    assert [checker.check(ZERO_HEADER, event(each)) for each in steps] == [
        E2eResult.OK,
        E2eResult.OK,
        E2eResult.OK,
        E2eResult.SOME_LOST,
        E2eResult.REPEATED,
        E2eResult.WRONG_SEQUENCE,
        E2eResult.OK,
    ]
    protector = E2eProtector(how)
    protector._counter = top - 1
    protector.advance()
    assert protector.protect(ZERO_HEADER, bytes(24)) == event(0)


def test_an_event_with_an_error_does_not_change_the_expected_counter() -> None:
    how = config("P05")
    protector, checker = E2eProtector(how), E2eChecker(how)
    first = protector.protect(ZERO_HEADER, bytes(8))
    protector.advance()
    assert checker.check(ZERO_HEADER, first) is E2eResult.OK
    assert checker.check(ZERO_HEADER, bytes(8)) is E2eResult.ERROR
    assert checker.check(ZERO_HEADER, protector.protect(ZERO_HEADER, bytes(8))) is E2eResult.OK


@pytest.mark.parametrize("profile", COUNTERS)
def test_a_payload_without_room_for_the_e2e_header_is_refused(profile: str) -> None:
    with pytest.raises(UStatusError, match=f"E2E header of {profile} at offset 1"):
        E2eProtector(config(profile, offset=1)).protect(ZERO_HEADER, bytes(2))


def test_a_length_above_the_length_field_is_refused() -> None:
    with pytest.raises(UStatusError, match="too long for E2E profile P06"):
        E2eProtector(config("P06")).protect(ZERO_HEADER, bytes(0xFFFF))


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"profile": "P05", "data_id": 0x10000}, "data_id: 0x10000, expected at most 16 bits for P05"),
        ({"profile": "P11", "data_id": 1, "data_id_mode": "low"}, "expected both or nibble"),
        ({"profile": "P04", "data_id": 1, "data_id_mode": "low"}, "it is for P01 and P11"),
        ({"profile": "P06", "data_id": 1, "crc_byte_order": "big"}, "only for P05"),
        ({"profile": "P02", "data_id": 1}, "profile"),
    ],
)
def test_a_contradiction_is_refused(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=problem):
        msgspec.convert(keys, E2eConfig)
