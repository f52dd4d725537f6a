# SPDX-License-Identifier: Apache-2.0
"""The SOME/IP header codec: vectors of other implementations, every malformed kind, and arbitrary bytes."""

import pickle
from collections.abc import Iterable
from itertools import pairwise, product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from someip.header import ParseError, SOMEIPHeader, SOMEIPMessageType, SOMEIPReturnCode

from ustreamer.transports.someip.protocol.codec import (
    HEADER_LENGTH,
    MAX_PAYLOAD_LENGTH,
    MAX_REFUSALS,
    MalformedMessage,
    MalformedReason,
    MessageType,
    ReturnCode,
    SomeIpMessage,
    UnencodableMessage,
    decode,
    encode,
    next_session,
    pack_header,
    split,
)

TYPES = (0x00, 0x01, 0x02, 0x80, 0x81, 0x20, 0x21, 0x22, 0xA0, 0xA1, 0x40, 0x41, 0x42, 0xC0, 0xC1)

OFFER_ENTRIES = "c0000000 00000010 01000010 12345678 01000003 00000000 0000000c 00090400 7f000001 0011772d"
SUBSCRIBE_ENTRIES = (
    "c0000000 00000010 06000010 12345678 01000003 00004465 0000000c 00090400 7f000001 00119c40"
)

# event, offer and subscribe: scapy and tshark agree with them, and afflux's someip with the offer. The vectors named
# uprotocol are up-spec's mapping of a request, its responses and a topic. The last one is handmade.
VECTORS = {
    "uprotocol_request": (
        "00cd000b 0000000a 03ab0001 01040000 6869",
        SomeIpMessage(0x00CD, 0x000B, 0x03AB, 1, 4, MessageType.REQUEST, ReturnCode.E_OK, b"hi"),
    ),
    "uprotocol_response": (
        "00cd000b 0000000a 03ab0001 01048000 6f6b",
        SomeIpMessage(0x00CD, 0x000B, 0x03AB, 1, 4, MessageType.RESPONSE, ReturnCode.E_OK, b"ok"),
    ),
    "uprotocol_error_without_payload": (
        "00cd000b 00000008 03ab0001 01048102",
        SomeIpMessage(0x00CD, 0x000B, 0x03AB, 1, 4, MessageType.ERROR, ReturnCode.E_UNKNOWN_SERVICE),
    ),
    "uprotocol_event": (
        "10ab80cd 0000000d 00000001 01030200 68656c6c6f",
        SomeIpMessage(0x10AB, 0x80CD, 0, 1, 3, MessageType.NOTIFICATION, ReturnCode.E_OK, b"hello"),
    ),
    "event": (
        "12348778 0000000c 00000007 01010200 01020304",
        SomeIpMessage(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, ReturnCode.E_OK, b"\1\2\3\4"),
    ),
    "service_discovery_offer": (
        "ffff8100 00000030 00000001 01010200" + OFFER_ENTRIES,
        SomeIpMessage(0xFFFF, 0x8100, 0, 1, 1, 0x02, 0, bytes.fromhex(OFFER_ENTRIES)),
    ),
    "service_discovery_subscribe": (
        "ffff8100 00000030 00000003 01010200" + SUBSCRIBE_ENTRIES,
        SomeIpMessage(0xFFFF, 0x8100, 0, 3, 1, 0x02, 0, bytes.fromhex(SUBSCRIBE_ENTRIES)),
    ),
    "largest_of_every_field": (
        "ffffffff 0000000a ffffffff 01ffc1ff 0102",
        SomeIpMessage(0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFF, MessageType.ERROR_ACK, 0xFF, b"\1\2"),
    ),
}
EVENT = bytes.fromhex("12348778 0000000c 00000007 01010200 01020304")
EVENT_MESSAGE = SomeIpMessage(0x1234, 0x8778, 0, 7, 1, 0x02, 0, b"\1\2\3\4")

vectors = pytest.mark.parametrize(("hexadecimal", "message"), VECTORS.values(), ids=VECTORS)


# [utest->RPC-539, RPC-42, RPC-675, RPC-44, RPC-45, RPC-77, RPC-90, RPC-584]
@vectors
def test_a_message_is_encoded_byte_for_byte_as_by_other_implementations(
    hexadecimal: str, message: SomeIpMessage
) -> None:
    assert encode(message).hex() == bytes.fromhex(hexadecimal).hex()


# [utest->RPC-42]
@vectors
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_message_of_another_implementation_is_decoded(
    hexadecimal: str, message: SomeIpMessage, kind: type[bytes | memoryview]
) -> None:
    datagram = kind(bytes.fromhex(hexadecimal))

    assert decode(datagram) == (message, len(datagram))
    assert split(datagram) == ([message], [])


def test_a_packed_header_is_the_encoded_message_without_its_payload() -> None:
    assert pack_header(0x1234, 0x8778, 0, 7, 1, MessageType.NOTIFICATION, ReturnCode.E_OK, 4) == EVENT[:16]


def test_a_message_does_not_share_memory_with_its_buffer() -> None:
    buffer = bytearray(EVENT)
    message, _ = decode(memoryview(buffer))
    buffer[:] = bytes(len(buffer))

    assert message == EVENT_MESSAGE
    assert type(message.payload) is bytes


# --- types and return codes ---------------------------------------------------------------------------------


# [utest->RPC-95]
def test_exactly_the_message_types_of_the_standard_are_decoded() -> None:
    for number in range(0x100):
        messages, refused = split(pack_header(1, 2, 3, 4, 5, number, 0, 0))

        assert [m.message_type for m in messages] == [n for n in TYPES if n == number]
        assert [r.value for r in refused] == ([] if number in TYPES else [number])
    assert sorted(TYPES) == sorted(MessageType)


def test_no_return_code_is_a_reason_to_lose_a_message() -> None:
    for number in range(0x100):
        message = SomeIpMessage(1, 2, 3, 4, 5, MessageType.ERROR, number)

        assert split(encode(message)) == ([message], [])


# [utest->RPC-371]
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("E_OK", 0x00),
        ("E_NOT_OK", 0x01),
        ("E_UNKNOWN_SERVICE", 0x02),
        ("E_UNKNOWN_METHOD", 0x03),
        ("E_NOT_READY", 0x04),
        ("E_NOT_REACHABLE", 0x05),
        ("E_TIMEOUT", 0x06),
        ("E_WRONG_PROTOCOL_VERSION", 0x07),
        ("E_WRONG_INTERFACE_VERSION", 0x08),
        ("E_MALFORMED_MESSAGE", 0x09),
        ("E_WRONG_MESSAGE_TYPE", 0x0A),
        ("E_E2E_REPEATED", 0x0B),
        ("E_E2E_WRONG_SEQUENCE", 0x0C),
        ("E_E2E", 0x0D),
        ("E_E2E_NOT_AVAILABLE", 0x0E),
        ("E_E2E_NO_NEW_DATA", 0x0F),
    ],
)
def test_a_return_code_has_the_number_of_the_standard(name: str, number: int) -> None:
    assert ReturnCode[name] == number


# [utest->RPC-625, RPC-59, RPC-83]
def test_ids_are_the_two_halves_of_the_header_fields() -> None:
    message = SomeIpMessage(0x1234, 0x8778, 0xABCD, 0x0007, 1, MessageType.NOTIFICATION)

    assert message.message_id == 0x1234_8778
    assert message.request_id == 0xABCD_0007


# [utest->RPC-67]
@pytest.mark.parametrize(
    ("method", "event"), [(0, False), (0x7FFF, False), (0x8000, True), (0x8001, True), (0xFFFF, True)]
)
def test_the_top_bit_of_the_method_id_marks_an_event(method: int, event: bool) -> None:
    assert SomeIpMessage(1, method, 0, 1, 1, MessageType.NOTIFICATION).is_event is event


# [utest->RPC-761]
def test_the_message_type_marks_a_tp_segment() -> None:
    segments = [t for t in MessageType if SomeIpMessage(1, 2, 3, 4, 5, t).is_tp]

    assert segments == [0x20, 0x21, 0x22, 0xA0, 0xA1]


# [utest->RPC-107, RPC-727]
@pytest.mark.parametrize(
    ("message_type", "return_code", "error"),
    [
        (MessageType.RESPONSE, 0x00, False),
        (MessageType.RESPONSE, 0x01, True),
        (MessageType.RESPONSE, 0x20, True),
        (MessageType.ERROR, 0x00, True),
        (MessageType.ERROR, 0x05, True),
        (MessageType.TP_RESPONSE, 0x00, False),
        (MessageType.TP_RESPONSE, 0x0D, True),
        (MessageType.TP_ERROR, 0x00, True),
        (MessageType.REQUEST, 0x01, False),
        (MessageType.NOTIFICATION, 0x0D, False),
    ],
)
def test_an_error_is_a_response_of_type_error_or_with_a_code_other_than_ok(
    message_type: MessageType, return_code: int, error: bool
) -> None:
    assert SomeIpMessage(1, 2, 3, 4, 5, message_type, return_code).is_error is error


# --- session ids --------------------------------------------------------------------------------------------


# [utest->RPC-649, RPC-677]
@pytest.mark.parametrize(
    ("session", "following"), [(0, 1), (1, 2), (0x7FFF, 0x8000), (0xFFFE, 0xFFFF), (0xFFFF, 1)]
)
def test_the_session_counts_from_1_to_ffff_and_starts_again_at_1(session: int, following: int) -> None:
    assert next_session(session) == following


def test_a_session_repeats_after_ffff_others() -> None:
    session, seen = 0, []
    for _ in range(0xFFFF):
        session = next_session(session)
        seen.append(session)

    assert seen == list(range(1, 0x10000))
    assert next_session(session) == 1


# --- malformed datagrams ------------------------------------------------------------------------------------


def with_length(length: int) -> bytes:
    return EVENT[:4] + length.to_bytes(4, "big") + EVENT[8:]


def with_byte(position: int, value: int) -> bytes:
    return EVENT[:position] + bytes([value]) + EVENT[position + 1 :]


# reason, bytes, the wrong value, text; each ends the datagram
LOST = {
    "empty": (
        MalformedReason.TRUNCATED_HEADER,
        b"",
        0,
        "message at offset 0: 0 bytes, expected at least 16: one header",
    ),
    "one_byte_short_of_a_header": (
        MalformedReason.TRUNCATED_HEADER,
        EVENT[:15],
        15,
        "message at offset 0: 15 bytes, expected at least 16: one header",
    ),
    "protocol_version_0": (
        MalformedReason.PROTOCOL_VERSION,
        with_byte(12, 0),
        0,
        "message at offset 0: protocol version 0, expected 1",
    ),
    "protocol_version_2": (
        MalformedReason.PROTOCOL_VERSION,
        with_byte(12, 2),
        2,
        "message at offset 0: protocol version 2, expected 1",
    ),
    "length_0": (
        MalformedReason.LENGTH_TOO_SMALL,
        with_length(0),
        0,
        "message at offset 0: length 0, expected at least 8: it counts from the client id",
    ),
    "length_7": (
        MalformedReason.LENGTH_TOO_SMALL,
        with_length(7),
        7,
        "message at offset 0: length 7, expected at least 8: it counts from the client id",
    ),
    "length_one_too_large": (
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        with_length(13),
        13,
        "message at offset 0: length 13, expected at most 12: the datagram's end",
    ),
    "length_of_the_whole_message": (
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        with_length(20),
        20,
        "message at offset 0: length 20, expected at most 12: the datagram's end",
    ),
    "largest_length": (
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        with_length(0xFFFF_FFFF),
        0xFFFF_FFFF,
        "message at offset 0: length 4294967295, expected at most 12: the datagram's end",
    ),
    "payload_cut_off": (
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
        EVENT[:19],
        12,
        "message at offset 0: length 12, expected at most 11: the datagram's end",
    ),
}
UNKNOWN_TYPE_TEXT = (
    "message type {}, expected one of 0x00, 0x01, 0x02, 0x20, 0x21, 0x22, 0x40, 0x41, 0x42, "
    "0x80, 0x81, 0xa0, 0xa1, 0xc0, 0xc1"
)

lost = pytest.mark.parametrize(("reason", "datagram", "value", "text"), LOST.values(), ids=LOST)
lost_behind_another = pytest.mark.parametrize(
    ("reason", "datagram", "value", "text"),
    [row for row in LOST.values() if row[0] is not MalformedReason.TRUNCATED_HEADER],
)


# [utest->RPC-798, RPC-90]
@lost
def test_a_malformed_message_is_refused_with_offset_value_and_expectation(
    reason: MalformedReason, datagram: bytes, value: int, text: str
) -> None:
    with pytest.raises(MalformedMessage) as refusal:
        decode(datagram)

    assert refusal.value.args == (reason, 0, value, len(datagram), None)
    assert str(refusal.value) == text


@lost_behind_another
def test_an_unknown_end_stops_decoding_and_loses_no_earlier_message(
    reason: MalformedReason, datagram: bytes, value: int, text: str
) -> None:
    messages, refused = split(EVENT + datagram)

    assert messages == [EVENT_MESSAGE]
    assert [r.args for r in refused] == [(reason, 20, value, 20 + len(datagram), None)]
    assert str(refused[0]) == text.replace("offset 0", "offset 20")


def test_nothing_behind_an_unknown_end_is_decoded() -> None:
    for header in (with_byte(12, 2), with_length(0), with_length(7)):
        messages, refused = split(header + EVENT)

        assert messages == []
        assert len(refused) == 1


@pytest.mark.parametrize("left_over", range(1, HEADER_LENGTH))
def test_trailing_bytes_are_refused_and_lose_no_message(left_over: int) -> None:
    messages, refused = split(EVENT + bytes(left_over))

    assert messages == [EVENT_MESSAGE]
    assert [str(r) for r in refused] == [
        f"message at offset 20: {left_over} bytes left over, expected none or at least 16: one more header"
    ]
    assert refused[0].reason is MalformedReason.TRAILING_BYTES


def test_a_message_of_unknown_type_is_refused_and_later_ones_are_decoded() -> None:
    messages, refused = split(EVENT + with_byte(14, 0x55) + EVENT + with_byte(14, 0x03))

    assert messages == [EVENT_MESSAGE, EVENT_MESSAGE]
    assert [r.args for r in refused] == [
        (MalformedReason.UNKNOWN_MESSAGE_TYPE, 20, 0x55, 80, 40),
        (MalformedReason.UNKNOWN_MESSAGE_TYPE, 60, 0x03, 80, 80),
    ]
    assert [str(r) for r in refused] == [
        f"message at offset 20: {UNKNOWN_TYPE_TEXT.format('0x55')}",
        f"message at offset 60: {UNKNOWN_TYPE_TEXT.format('0x03')}",
    ]


def test_an_unknown_type_can_be_followed_by_an_unknown_end() -> None:
    messages, refused = split(with_byte(14, 0x55) + EVENT + b"\0")

    assert messages == [EVENT_MESSAGE]
    assert [(r.reason, r.offset, r.resume_at) for r in refused] == [
        (MalformedReason.UNKNOWN_MESSAGE_TYPE, 0, 20),
        (MalformedReason.TRAILING_BYTES, 40, None),
    ]


# Each header is wrong in its own field and all later ones; the first one is reported.
# [utest->RPC-721, RPC-719, RPC-718]
@pytest.mark.parametrize(
    ("datagram", "reason"),
    [
        ("12348778 00000007 00000007 02010355", MalformedReason.PROTOCOL_VERSION),
        ("12348778 0000ffff 00000007 02010200", MalformedReason.PROTOCOL_VERSION),
        ("12348778 00000007 00000007 01015500", MalformedReason.LENGTH_TOO_SMALL),
        ("12348778 00000009 00000007 01015500", MalformedReason.LENGTH_BEYOND_DATAGRAM),
        ("12348778 00000008 00000007 01015500", MalformedReason.UNKNOWN_MESSAGE_TYPE),
    ],
)
def test_the_most_basic_of_several_errors_is_reported(datagram: str, reason: MalformedReason) -> None:
    assert [r.reason for r in split(bytes.fromhex(datagram))[1]] == [reason]


def test_a_reason_is_one_of_seven_counter_labels() -> None:
    assert [str(reason) for reason in MalformedReason] == [
        "truncated_header",
        "trailing_bytes",
        "protocol_version",
        "length_too_small",
        "length_beyond_datagram",
        "unknown_message_type",
        "refusal_limit",
    ]


@pytest.mark.parametrize(
    "error",
    [
        MalformedMessage(MalformedReason.UNKNOWN_MESSAGE_TYPE, 20, 0x55, 60, 40),
        UnencodableMessage("session", 0x10000, 0xFFFF),
    ],
)
def test_an_error_can_be_pickled(error: ValueError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


# --- several messages per datagram --------------------------------------------------------------------------


# [utest->RPC-664, RPC-319]
def test_the_messages_of_a_datagram_are_decoded_in_order() -> None:
    frames = [bytes.fromhex(hexadecimal) for hexadecimal, _ in VECTORS.values()]

    assert split(b"".join(frames)) == ([message for _, message in VECTORS.values()], [])


def test_a_datagram_can_be_decoded_message_by_message() -> None:
    first, second = VECTORS["uprotocol_event"][1], VECTORS["uprotocol_error_without_payload"][1]
    datagram = encode(first) + encode(second)

    assert decode(datagram) == (first, 21)
    assert decode(datagram, 21) == (second, 37)
    with pytest.raises(
        MalformedMessage, match="message at offset 37: 0 bytes, expected at least 16: one header"
    ):
        decode(datagram, 37)


@pytest.mark.timeout(30)
def test_the_datagram_with_the_most_messages_is_decoded_completely() -> None:
    messages, refused = split(pack_header(1, 0x8001, 0, 1, 1, MessageType.NOTIFICATION, 0, 0) * 4095)

    assert (len(messages), refused) == (4095, [])


@pytest.mark.parametrize("more", [0, 1, 3967])
def test_a_datagram_is_not_read_behind_its_last_permitted_refusal(more: int) -> None:
    wrong = with_byte(14, 0x55)
    messages, refused = split(EVENT + wrong * (MAX_REFUSALS + more) + EVENT * bool(more))

    assert messages == [EVENT_MESSAGE]
    assert len(refused) == MAX_REFUSALS + bool(more)
    if more:
        assert refused[-1].reason is MalformedReason.REFUSAL_LIMIT
        assert refused[-1].offset == 20 * (1 + MAX_REFUSALS)
        assert str(refused[-1]) == (
            f"message at offset {20 * (1 + MAX_REFUSALS)}: {20 * (more + 1)} bytes behind 128 refused messages,"
            " not read"
        )


# --- unencodable values -------------------------------------------------------------------------------------

FIELDS = {
    "service": 0xFFFF,
    "method": 0xFFFF,
    "client": 0xFFFF,
    "session": 0xFFFF,
    "interface_version": 0xFF,
    "message_type": 0xFF,
    "return_code": 0xFF,
}
SMALLEST = SomeIpMessage(0, 0, 0, 0, 0, 0)
LARGEST = SomeIpMessage(0xFFFF, 0xFFFF, 0xFFFF, 0xFFFF, 0xFF, 0xFF, 0xFF)


@pytest.mark.parametrize(("field", "limit"), FIELDS.items(), ids=FIELDS)
def test_a_value_that_does_not_fit_its_field_is_refused_by_name(field: str, limit: int) -> None:
    for others, value in product((SMALLEST, LARGEST), (-1, limit + 1)):
        with pytest.raises(UnencodableMessage) as refusal:
            encode(msgspec.structs.replace(others, **{field: value}))

        assert refusal.value.args == (field, value, limit)
        assert str(refusal.value) == f"{field} {value}, expected an integer from 0 to {limit:#x}"


def test_a_payload_above_the_length_field_is_rejected() -> None:
    assert pack_header(1, 2, 3, 4, 5, 0, 0, MAX_PAYLOAD_LENGTH)[4:8] == b"\xff\xff\xff\xff"
    with pytest.raises(UnencodableMessage) as refusal:
        pack_header(1, 2, 3, 4, 5, 0, 0, MAX_PAYLOAD_LENGTH + 1)

    assert str(refusal.value) == "payload_length 4294967288, expected an integer from 0 to 0xfffffff7"


def test_a_value_that_is_no_integer_is_refused_by_name() -> None:
    with pytest.raises(UnencodableMessage, match="session None, expected an integer from 0 to 0xffff"):
        pack_header(1, 2, 3, None, 5, 0, 0, 0)  # type: ignore[arg-type]


# --- properties ---------------------------------------------------------------------------------------------

u8 = st.integers(0, 0xFF)
u16 = st.integers(0, 0xFFFF)
messages_of_any_kind = st.builds(
    SomeIpMessage, u16, u16, u16, u16, u8, st.sampled_from(TYPES), u8, st.binary(max_size=64)
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message with up to three bytes of its header changed, possibly truncated."""
    frame = bytearray(encode(draw(messages_of_any_kind)))
    for _ in range(draw(st.integers(0, 3))):
        frame[draw(st.integers(4, HEADER_LENGTH - 1))] = draw(u8)
    return bytes(frame[: draw(st.integers(0, len(frame)))] if draw(st.booleans()) else frame)


datagrams = st.one_of(
    st.binary(max_size=200),
    st.lists(st.one_of(messages_of_any_kind.map(encode), damaged(), st.binary(max_size=40)), max_size=5).map(
        b"".join
    ),
)


# [utest->RPC-165]
@given(st.lists(messages_of_any_kind, min_size=1, max_size=8))
def test_decoding_reverses_encoding(sent: list[SomeIpMessage]) -> None:
    assert split(b"".join(encode(message) for message in sent)) == (sent, [])


def rebuilt(datagram: bytes, messages: Iterable[SomeIpMessage], refused: Iterable[MalformedMessage]) -> bytes:
    """The datagram rebuilt: messages encoded, and the bytes of each refusal copied at its offset."""
    out = b""
    coming = iter(messages)
    for refusal in refused:
        while len(out) < refusal.offset:
            out += encode(next(coming))
        assert len(out) == refusal.offset
        out += datagram[refusal.offset : refusal.resume_at]
    return out + b"".join(encode(message) for message in coming)


# [utest->RPC-319]
@given(datagrams)
def test_each_byte_belongs_to_one_message_or_one_refusal(datagram: bytes) -> None:
    messages, refused = split(datagram)

    assert rebuilt(datagram, messages, refused) == datagram
    # The limit of the work: each step but the last one skips at least one header.
    assert len(messages) + len(refused) <= len(datagram) // HEADER_LENGTH + 1


@given(datagrams)
def test_only_the_last_refusal_ends_the_datagram(datagram: bytes) -> None:
    _, refused = split(datagram)

    assert all(earlier.resume_at is not None for earlier, _ in pairwise(refused))
    for refusal in refused:
        ends = refusal.reason is not MalformedReason.UNKNOWN_MESSAGE_TYPE
        assert (refusal.resume_at is None) is ends
        assert str(refusal).startswith(f"message at offset {refusal.offset}: ")


@given(datagrams)
def test_split_equals_decode_and_memoryview_equals_bytes(datagram: bytes) -> None:
    messages, refused = split(datagram)
    from_view, refused_from_view = split(memoryview(datagram))
    assert (from_view, [r.args for r in refused_from_view]) == (messages, [r.args for r in refused])

    one_by_one: list[SomeIpMessage] = []
    raised: list[tuple[object, ...]] = []
    offset: int | None = 0
    while offset is not None and (offset < len(datagram) or not offset):
        try:
            message, offset = decode(datagram, offset)
            one_by_one.append(message)
        except MalformedMessage as refusal:
            raised.append(refusal.args)
            offset = refusal.resume_at
    assert (one_by_one, raised) == (messages, [r.args for r in refused])


# --- an independent reader: someip 0.3.0, MIT ---------------------------------------------------------------
# The other reader has no TP types and no return code above 0x0A; it is not compared for those.

theirs_known = st.builds(
    SomeIpMessage,
    u16,
    u16,
    u16,
    u16,
    u8,
    st.sampled_from([int(t) for t in SOMEIPMessageType]),
    st.sampled_from([int(c) for c in SOMEIPReturnCode]),
    st.binary(max_size=64),
)


def as_theirs(message: SomeIpMessage) -> SOMEIPHeader:
    return SOMEIPHeader(
        service_id=message.service,
        method_id=message.method,
        client_id=message.client,
        session_id=message.session,
        interface_version=message.interface_version,
        message_type=SOMEIPMessageType(message.message_type),
        return_code=SOMEIPReturnCode(message.return_code),
        payload=message.payload,
    )


# [utest->RPC-44]
@given(theirs_known, st.binary(max_size=20))
def test_another_implementation_decodes_our_messages(message: SomeIpMessage, rest: bytes) -> None:
    assert SOMEIPHeader.parse(encode(message) + rest) == (as_theirs(message), rest)


@given(theirs_known)
def test_messages_of_another_implementation_are_decoded(message: SomeIpMessage) -> None:
    written = as_theirs(message).build()

    assert split(written) == ([message], [])
    assert encode(message) == written


@given(datagrams)
def test_bytes_that_another_implementation_decodes_are_decoded_equally(datagram: bytes) -> None:
    try:
        theirs, rest = SOMEIPHeader.parse(datagram)
    except ParseError:
        return  # the other reader refuses; our refusals are in the tables above
    message, end = decode(datagram)

    assert as_theirs(message) == theirs
    assert datagram[end:] == rest
