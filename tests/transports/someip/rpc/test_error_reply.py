# SPDX-License-Identifier: Apache-2.0
"""Replies to malformed messages: which ones get a reply, and its return code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.codec import SomeIpMessage, split
from ustreamer.transports.someip.rpc.error_reply import error_reply

REQUEST = bytes.fromhex("077700010000000c001200090102000064303031")


def answers(datagram: bytes) -> list[str | None]:
    found = (error_reply(datagram, error) for error in split(datagram)[1])
    return [None if answer is None else answer.hex() for answer in found]


# [utest->RPC-703]
def test_another_protocol_version_gets_a_reply_in_our_version() -> None:
    assert answers(REQUEST[:12] + b"\x02" + REQUEST[13:]) == ["07770001000000080012000901028107"]


def test_a_length_above_the_datagram_results_in_malformed_message() -> None:
    assert answers(REQUEST[:-1]) == ["07770001000000080012000901028109"]


def test_a_malformed_request_behind_a_valid_message_gets_a_reply() -> None:
    assert answers(REQUEST + REQUEST[:-1]) == ["07770001000000080012000901028109"]


SILENT = {
    "a length less than 8": REQUEST[:7] + b"\x07" + REQUEST[8:],
    "another version and a length less than 8": REQUEST[:7]
    + b"\x07"
    + REQUEST[8:12]
    + b"\x02"
    + REQUEST[13:],
    "half a header": REQUEST[:15],
    "a REQUEST_NO_RETURN": REQUEST[:14] + b"\x01" + REQUEST[15:-1],
    "an event": REQUEST[:14] + b"\x02" + REQUEST[15:-1],
    "an answer": REQUEST[:14] + b"\x80" + REQUEST[15:-1],
    "an error": REQUEST[:14] + b"\x81" + REQUEST[15:-1],
    "a segment": REQUEST[:14] + b"\x20" + REQUEST[15:-1],
    "an unknown type": REQUEST[:14] + b"\x55" + REQUEST[15:],
    "a request that carries an error": REQUEST[:15] + b"\x01" + REQUEST[16:-1],
}


# [utest->RPC-597]
@pytest.mark.parametrize("datagram", SILENT.values(), ids=SILENT)
def test_any_other_malformed_message_gets_no_reply(datagram: bytes) -> None:
    assert answers(datagram) == [None]


@given(st.binary(max_size=80))
def test_a_reply_is_an_error_and_never_longer_than_the_request(datagram: bytes) -> None:
    for error in split(datagram)[1]:
        answer = error_reply(datagram, error)
        if answer is not None:
            (message,), refused = split(answer)
            assert isinstance(message, SomeIpMessage)
            assert (message.message_type, refused) == (0x81, [])
            assert len(answer) <= len(datagram) - error.offset
