# SPDX-License-Identifier: Apache-2.0
"""Return codes and UCodes: all of them, both directions, and the details of codes without an equivalent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.return_codes import (
    LAST_RETURN_CODE,
    SomeipFailure,
    decode_failure,
    encode_failure,
    return_code_of,
    ucode_of,
)
from ustreamer.uprotocol.pb import ustatus as pb_status
from ustreamer.uprotocol.pb import ustreamer_v1 as pb_ustreamer
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.wire import decode_status

OUT = {
    UCode.OK: 0x00,
    UCode.CANCELLED: 0x01,
    UCode.UNKNOWN: 0x01,
    UCode.INVALID_ARGUMENT: 0x0A,
    UCode.DEADLINE_EXCEEDED: 0x06,
    UCode.NOT_FOUND: 0x02,
    UCode.ALREADY_EXISTS: 0x01,
    UCode.PERMISSION_DENIED: 0x01,
    UCode.RESOURCE_EXHAUSTED: 0x01,
    UCode.FAILED_PRECONDITION: 0x07,
    UCode.ABORTED: 0x01,
    UCode.OUT_OF_RANGE: 0x01,
    UCode.UNIMPLEMENTED: 0x03,
    UCode.INTERNAL: 0x05,
    UCode.UNAVAILABLE: 0x04,
    UCode.DATA_LOSS: 0x09,
    UCode.UNAUTHENTICATED: 0x01,
}
IN = {
    0x00: UCode.OK,
    0x01: UCode.UNKNOWN,
    0x02: UCode.NOT_FOUND,
    0x03: UCode.INVALID_ARGUMENT,
    0x04: UCode.UNAVAILABLE,
    0x05: UCode.INTERNAL,
    0x06: UCode.DEADLINE_EXCEEDED,
    0x07: UCode.FAILED_PRECONDITION,
    0x08: UCode.FAILED_PRECONDITION,
    0x09: UCode.DATA_LOSS,
    0x0A: UCode.INVALID_ARGUMENT,
}


@pytest.mark.parametrize("code", UCode)
def test_every_ucode_has_a_return_code_of_the_basic_range(code: UCode) -> None:
    assert return_code_of(code) == OUT[code]
    assert OUT[code] <= 0x0A


def test_no_commstatus_is_success() -> None:
    assert return_code_of(None) == 0x00


# [utest->RPC-371]
def test_every_return_code_has_a_ucode() -> None:
    for number in range(256):
        assert ucode_of(number) is IN.get(number, UCode.UNKNOWN), number


@pytest.mark.parametrize("number", [0x01, 0x08, 0x0D, 0x20, 0x5E])
def test_the_return_code_of_a_failure_is_in_its_status(number: int) -> None:
    status = UStatus(ucode_of(number), "10.0.0.2:30501 said so")
    for failure in (SomeipFailure(number), SomeipFailure(number, b"why")):
        payload = encode_failure(status, failure)

        assert decode_status(payload) == status
        assert decode_failure(payload) == failure


@pytest.mark.parametrize("number", [0x00, LAST_RETURN_CODE + 1, 0x80, 0xFF])
def test_an_invalid_return_code_is_not_a_detail(number: int) -> None:
    assert not pb_status.UStatus.FromString(
        encode_failure(UStatus(UCode.UNKNOWN, "?"), SomeipFailure(number))
    ).details

    invalid = pb_status.UStatus(code=2)
    invalid.details.add().Pack(pb_ustreamer.SomeipReturnCode(return_code=number))
    assert decode_failure(invalid.SerializeToString()) is None


@pytest.mark.parametrize("number", [0x00, LAST_RETURN_CODE + 1, 0xFF])
def test_the_payload_of_a_failure_with_an_invalid_code_is_kept(number: int) -> None:
    status = pb_status.UStatus.FromString(
        encode_failure(UStatus(UCode.UNKNOWN, "?"), SomeipFailure(number, b"why"))
    )
    reply = pb_ustreamer.SomeipReturnCode()
    assert status.details[0].Unpack(reply)
    assert reply.payload == b"why"


def test_a_detail_in_a_payload_of_tcp_size_is_found() -> None:
    failure = SomeipFailure(0x21, bytes(1 << 20))
    assert decode_failure(encode_failure(UStatus(UCode.UNKNOWN, "?"), failure)) == failure


def test_a_detail_of_another_type_is_ignored() -> None:
    status = pb_status.UStatus(code=2)
    status.details.add().Pack(pb_ustreamer.FetchStatisticsRequest(offset=5))
    status.details.add().Pack(pb_ustreamer.SomeipReturnCode(return_code=0x21))

    assert decode_failure(status.SerializeToString()) == SomeipFailure(0x21)


def test_a_detail_with_a_wrong_type_is_ignored() -> None:
    status = pb_status.UStatus(code=2)
    detail = status.details.add()
    detail.Pack(pb_ustreamer.SomeipReturnCode(return_code=0x21))
    detail.value = b"\xff\xff"

    assert decode_failure(status.SerializeToString()) is None


@given(st.binary(max_size=200))
def test_arbitrary_payloads_never_raise(payload: bytes) -> None:
    found = decode_failure(payload)
    assert found is None or 0 < found.return_code <= LAST_RETURN_CODE
