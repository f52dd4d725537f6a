# SPDX-License-Identifier: Apache-2.0
"""SOME/IP over TCP: messages of a stream, magic cookies, and the effect of a wrong length."""

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.transports.someip.protocol.codec import (
    MAX_REFUSALS,
    MalformedReason,
    MessageType,
    SomeIpMessage,
    encode,
    pack_header,
    split,
)
from ustreamer.transports.someip.protocol.stream import (
    CLIENT_COOKIE,
    SERVER_COOKIE,
    StreamReader,
)


def message(payload: bytes, session: int = 1) -> SomeIpMessage:
    return SomeIpMessage(0x1234, 0x0421, 5, session, 1, MessageType.REQUEST, 0, payload)


MESSAGES = [message(bytes((number,)) * number, number) for number in range(1, 40)]
STREAM = b"".join(map(encode, MESSAGES))
WRONG_VERSION = bytes.fromhex("12340421 00000008 00050001 02010000")


def pieces(stream: bytes, size: int) -> list[bytes]:
    return [stream[at : at + size] for at in range(0, len(stream), size)]


# [utest->RPC-664]
@pytest.mark.parametrize("size", [1, 2, 7, 15, 16, 17, 64, 10_000])
def test_messages_are_decoded_from_chunks_of_any_size(size: int) -> None:
    reader = StreamReader()
    got = [found for piece in pieces(STREAM, size) for found in reader.feed(piece).messages]
    assert got == MESSAGES
    assert (reader.pending_bytes, reader.broken) == (0, False)


@given(st.lists(st.binary(max_size=60), max_size=20), st.data())
def test_messages_equal_those_of_split(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode(message(payload)) for payload in payloads)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader = StreamReader()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += reader.feed(memoryview(stream)[start:end]).messages
    assert got == (split(stream)[0] if stream else [])


def test_a_message_does_not_share_memory_with_its_chunk() -> None:
    buffer = bytearray(STREAM)
    got = StreamReader().feed(buffer).messages
    buffer[:] = bytes(len(buffer))
    assert got == MESSAGES


# [utest->RPC-609, RPC-607, RPC-589]
def test_the_golden_bytes_of_the_cookies() -> None:
    assert CLIENT_COOKIE.hex(" ", 4) == "ffff0000 00000008 deadbeef 01010100"
    assert SERVER_COOKIE.hex(" ", 4) == "ffff8000 00000008 deadbeef 01010200"
    assert [split(cookie)[1] for cookie in (CLIENT_COOKIE, SERVER_COOKIE)] == [[], []]


@pytest.mark.parametrize("cookies", [True, False])
def test_cookies_are_skipped(cookies: bool) -> None:
    reader = StreamReader(cookies=cookies)
    stream = b"".join(
        (SERVER_COOKIE if each.session % 2 else CLIENT_COOKIE) + encode(each) for each in MESSAGES
    )
    got = [found for piece in pieces(stream, 13) for found in reader.feed(piece).messages]
    assert got == MESSAGES
    assert reader.cookies_seen == len(MESSAGES)


# --- invalid input ----------------------------------------------------------------------------------------------------

WRONG = {
    "version": (WRONG_VERSION, MalformedReason.PROTOCOL_VERSION, 2, "protocol version 2"),
    "length of 7": (
        bytes.fromhex("12340421 00000007 00050001 01010000"),
        MalformedReason.LENGTH_TOO_SMALL,
        7,
        "length 7, expected at least 8",
    ),
    "length above the limit": (
        bytes.fromhex("12340421 00000ff9 00050001 01010000"),
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        0xFF9,
        "length 4089, expected at most 4088",
    ),
    "length of 4 GB": (
        bytes.fromhex("12340421 ffffffff 00050001 01010000"),
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        0xFFFF_FFFF,
        "length 4294967295",
    ),
}


@pytest.mark.parametrize(("wrong", "reason", "value", "text"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("size", [1, 16, 10_000])
def test_without_cookies_a_wrong_length_ends_the_stream(
    wrong: bytes, reason: MalformedReason, value: int, text: str, size: int
) -> None:
    reader = StreamReader(max_message=4_096)
    good = encode(MESSAGES[0])
    fed = [reader.feed(piece) for piece in pieces(good + wrong + good, size)]
    assert [found for each in fed for found in each.messages] == MESSAGES[:1]
    (refused,) = [found for each in fed for found in each.refused]
    assert (refused.reason, refused.value, refused.offset) == (reason, value, len(good))
    assert text in str(refused)
    assert bool(reader.broken)
    assert reader.pending_bytes == 0
    assert reader.feed(good) == ([], [])


# [utest->RPC-586]
@pytest.mark.parametrize(("wrong", "reason", "value", "text"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("size", [1, 5, 16, 10_000])
@pytest.mark.parametrize("cookie", [CLIENT_COOKIE, SERVER_COOKIE])
def test_with_cookies_decoding_continues_behind_the_next_cookie(
    wrong: bytes, reason: MalformedReason, value: int, text: str, size: int, cookie: bytes
) -> None:
    reader = StreamReader(cookies=True, max_message=4_096)
    decoy = cookie[:12] + b"\1\1\7\0" + cookie[:15]  # similar to a cookie, but none
    stream = encode(MESSAGES[0]) + wrong + decoy + cookie + b"".join(map(encode, MESSAGES[1:]))
    fed = [reader.feed(piece) for piece in pieces(stream, size)]
    assert [found for each in fed for found in each.messages] == MESSAGES
    assert [found.reason for each in fed for found in each.refused] == [reason]
    assert reader.skipped_bytes == len(wrong) + len(decoy)
    assert (reader.broken, reader.cookies_seen, reader.pending_bytes) == (False, 1, 0)


def test_a_message_of_the_maximum_length_is_decoded() -> None:
    largest = message(bytes(4_096 - 16))
    assert StreamReader(max_message=4_096).feed(encode(largest)).messages == [largest]


def test_an_unknown_type_is_refused_and_the_stream_continues() -> None:
    unknown = bytes.fromhex("12340421 0000000a 00050001 01015500 abcd")
    reader = StreamReader()
    good = encode(MESSAGES[0])
    fed = reader.feed(good + unknown + good)
    assert fed.messages == [MESSAGES[0]] * 2
    (refused,) = fed.refused
    assert (refused.reason, refused.value, refused.offset) == (
        MalformedReason.UNKNOWN_MESSAGE_TYPE,
        0x55,
        len(good),
    )


def test_a_stream_ends_at_the_128th_refused_message_of_a_chunk() -> None:
    wrong = pack_header(1, 1, 0, 1, 1, 0x55, 0, 0)
    reader = StreamReader()
    assert len(reader.feed(wrong * (MAX_REFUSALS - 1)).refused) == MAX_REFUSALS - 1
    assert not reader.broken
    assert len(reader.feed(wrong * 4_000).refused) == MAX_REFUSALS
    assert bool(reader.broken)
    assert reader.pending_bytes == 0


def test_offsets_of_errors_count_from_the_start_of_the_stream() -> None:
    reader = StreamReader(max_message=4_096)
    for piece in pieces(STREAM, 100):
        reader.feed(piece)
    (refused,) = reader.feed(WRONG_VERSION).refused
    assert refused.offset == len(STREAM)


# --- limits -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=200), max_size=30), st.booleans())
def test_arbitrary_bytes_never_raise_and_the_buffer_is_bounded(data: list[bytes], cookies: bool) -> None:
    reader = StreamReader(cookies=cookies, max_message=64)
    for piece in data:
        reader.feed(piece)
        assert reader.pending_bytes < 64


def test_a_search_for_a_cookie_buffers_only_its_possible_beginning() -> None:
    reader = StreamReader(cookies=True)
    reader.feed(WRONG_VERSION)
    rng = random.Random(1)
    for _ in range(100):
        reader.feed(rng.randbytes(10_000))
        assert reader.pending_bytes < 16
    assert reader.feed(CLIENT_COOKIE + encode(MESSAGES[0])).messages == MESSAGES[:1]


def seconds(work: StreamReader, stream: bytes, size: int) -> float:
    started = time.process_time()
    for at in range(0, len(stream), size):
        work.feed(stream[at : at + size])
    return time.process_time() - started


@pytest.mark.parametrize(
    ("stream", "size"),
    [
        pytest.param(encode(message(bytes(4_000_000))), 1_448, id="one large message"),
        pytest.param(encode(message(bytes(48))) * 16_000, 1 << 30, id="many small ones"),
        pytest.param(WRONG_VERSION + bytes(4_000_000), 1_448, id="nothing but a search"),
        pytest.param(WRONG_VERSION + CLIENT_COOKIE[:14] * 280_000, 1_448, id="a search among decoys"),
    ],
)
def test_the_cost_is_linear_in_the_bytes(stream: bytes, size: int) -> None:
    """Linear cost: four times the bytes in the same chunks take four times as long; quadratic cost would take 16
    times.
    """
    quarter, whole = (
        min(
            seconds(StreamReader(cookies=True, max_message=8_000_000), stream[: len(stream) // part], size)
            for _ in range(3)
        )
        for part in (4, 1)
    )
    assert whole < 10 * quarter + 0.05
