# SPDX-License-Identifier: Apache-2.0
"""The header on the wire: vectors made with upstream's .proto files, and the fast path compared with the readable
one.
"""

from itertools import product

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.uprotocol.pb import uattributes as pb
from ustreamer.uprotocol.pb import uuid as pb_uuid
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import (
    ID_SIZE,
    HeaderDecoder,
    HeaderEncoder,
    decode,
    decode_status,
    encode,
    encode_status,
)

MSB = 0x018D548EA8E07000
FIRST = UUID(MSB, 0x8000000000000001)
SECOND = UUID(MSB, 0x8000000000000002)
LATER = UUID(MSB + (1 << 16), 0x8000000000000001)
TOPIC = UUri("device1", 0x10AB, 3, 0x80CD)

VECTORS = {
    "publish": (
        FIRST,
        UAttributes(type=UMessageType.PUBLISH, source=TOPIC),
        "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102",
    ),
    "publish with ttl 0": (
        FIRST,
        UAttributes(
            type=UMessageType.PUBLISH,
            source=TOPIC,
            priority=UPriority.CS2,
            ttl=0,
            payload_format=UPayloadFormat.TEXT,
        ),
        "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102280330006007",
    ),
    "notification": (
        FIRST,
        UAttributes(type=UMessageType.NOTIFICATION, source=TOPIC, sink=UUri("device2", 0x300EF, 4, 0)),
        (
            "0a12090070e0a88e548d0111010000000000008010041a120a076465766963653110ab21180320cd8102"
            "220f0a076465766963653210ef810c1804"
        ),
    ),
    "request": (
        FIRST,
        UAttributes(
            type=UMessageType.REQUEST,
            source=UUri("device1", 0x403AB, 3, 0),
            sink=UUri("device2", 0xCD, 4, 0xB),
            priority=UPriority.CS4,
            ttl=5000,
            permission_level=2,
            token="tok",
            payload_format=UPayloadFormat.PROTOBUF,
        ),
        (
            "0a12090070e0a88e548d0111010000000000008010021a0f0a076465766963653110ab8710180322100a0764657669636532"
            "10cd011804200b280530882738025203746f6b6002"
        ),
    ),
    "response": (
        SECOND,
        UAttributes(
            type=UMessageType.RESPONSE,
            source=UUri("device2", 0xCD, 4, 0xB),
            sink=UUri("device1", 0x403AB, 3, 0),
            priority=UPriority.CS4,
            ttl=5000,
            commstatus=UCode.NOT_FOUND,
            reqid=FIRST,
        ),
        (
            "0a12090070e0a88e548d0111020000000000008010031a100a076465766963653210cd011804200b220f0a0764657669636531"
            "10ab87101803280530882740054a12090070e0a88e548d01110100000000000080"
        ),
    ),
    "request of a remote subscription": (
        FIRST,
        UAttributes(
            type=UMessageType.REQUEST,
            source=UUri("device1", 0, 3, 0),
            sink=UUri("device2", 0, 3, 1),
            priority=UPriority.CS4,
            ttl=300000,
            payload_format=UPayloadFormat.PROTOBUF,
        ),
        (
            "0a12090070e0a88e548d0111010000000000008010021a0b0a07646576696365311803220d0a076465766963653218032001"
            "280530e0a7126002"
        ),
    ),
}
vectors = pytest.mark.parametrize(("id", "attributes", "data"), VECTORS.values(), ids=VECTORS)


def read_pb(data: bytes) -> pb.UAttributes:
    message = pb.UAttributes()
    message.ParseFromString(data)
    return message


# --------------------------------------------------------------------------------------------------------- the vectors


@vectors
def test_headers_of_other_implementations_are_decoded(id: UUID, attributes: UAttributes, data: str) -> None:
    decoder = HeaderDecoder()
    assert decode(bytes.fromhex(data)) == (id, attributes)
    assert decoder.decode(bytes.fromhex(data)) == (id, attributes)
    assert decoder.decode(bytes.fromhex(data)) == (id, attributes)  # now from its cache


@vectors
def test_headers_are_encoded_like_other_implementations(id: UUID, attributes: UAttributes, data: str) -> None:
    encoder = HeaderEncoder()
    assert read_pb(encode(id, attributes)) == read_pb(bytes.fromhex(data))
    assert encoder.encode(id, attributes) == encode(id, attributes)
    assert encoder.encode(id, attributes) == encode(id, attributes)


@vectors
def test_the_id_is_encoded_first(id: UUID, attributes: UAttributes, data: str) -> None:
    assert encode(id, attributes)[:ID_SIZE] == bytes.fromhex(data)[:ID_SIZE]


def test_a_status_is_encoded_and_decoded_like_other_implementations() -> None:
    status = UStatus(UCode.INVALID_ARGUMENT, "bad topic")
    assert encode_status(status).hex() == "0803120962616420746f706963"
    assert decode_status(bytes.fromhex("0803120962616420746f706963")) == status


@pytest.mark.parametrize(
    ("data", "code"), [("", UCode.OK), ("0811", UCode.UNKNOWN), ("0810", UCode.UNAUTHENTICATED)]
)
def test_a_status_may_be_empty_or_of_a_later_revision(data: str, code: UCode) -> None:
    assert decode_status(bytes.fromhex(data)) == UStatus(code)


def test_invalid_status_bytes_are_refused() -> None:
    with pytest.raises(UStatusError, match="UStatus of 2 bytes: not protobuf") as refusal:
        decode_status(b"\x0a\xff")
    assert refusal.value.code is UCode.INVALID_ARGUMENT


# --------------------------------------------------------------------------------------------- rejected input

PUBLICATION = bytes.fromhex(VECTORS["publish"][2])
ID_FIELD, TYPE_AND_SOURCE = PUBLICATION[:ID_SIZE], PUBLICATION[ID_SIZE:]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "UAttributes: id is missing"),
        (TYPE_AND_SOURCE, "UAttributes: id is missing"),
        (ID_FIELD, "UAttributes: source is missing"),
        (PUBLICATION[:-1], "UAttributes of 41 bytes: not protobuf"),
        (b"\xff" * 12, "UAttributes of 12 bytes: not protobuf"),
        (PUBLICATION + b"\x52\x01\xff", "not protobuf"),  # a token that is not UTF-8
        (PUBLICATION + b"\x10\x05", "UAttributes: 5 is not a valid UMessageType"),
        (PUBLICATION + b"\x28\x08", "UAttributes: 8 is not a valid UPriority"),
        (PUBLICATION + b"\x60\x09", "UAttributes: payload_format 9 is none of 0..8"),
        (PUBLICATION + b"\x22\x03\x18\x80\x02", "ue_version_major 0x100 is not in 0..0xFF"),
        (PUBLICATION + b"\x1a\x03\x0a\x01V", "authority 'V' is not"),
    ],
)
def test_invalid_headers_are_refused_by_both_paths(data: bytes, complaint: str) -> None:
    for each in (decode, HeaderDecoder().decode):
        with pytest.raises(UStatusError) as refusal:
            each(data)
        assert refusal.value.code is UCode.INVALID_ARGUMENT
        assert complaint in refusal.value.message


def test_a_commstatus_of_a_later_revision_is_unknown() -> None:
    assert decode(PUBLICATION + b"\x40\x11")[1].commstatus is UCode.UNKNOWN


# ----------------------------------------------------------------------------------------------------- round trips

uint64 = st.integers(0, 2**64 - 1)
uint32 = st.integers(0, 2**32 - 1)
ids = st.builds(UUID, uint64, uint64)
uuris = st.builds(
    UUri,
    st.sampled_from(["", "vin", "my_vin.x-1~", "*", "10.0.0.1", "[2001::7]"]),
    uint32,
    st.integers(0, 0xFF),
    st.integers(0, 0xFFFF),
)


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low]) if not rest else bytes([low | 0x80]) + varint(rest)


def field(number: int, wire_type: int, value: bytes) -> bytes:
    return varint(number << 3 | wire_type) + value


unknown_fields = st.lists(
    st.one_of(
        st.builds(field, st.integers(13, 2**29 - 1), st.just(0), uint64.map(varint)),
        st.builds(field, st.integers(13, 2**29 - 1), st.just(1), st.binary(min_size=8, max_size=8)),
        st.builds(
            field,
            st.integers(13, 2**29 - 1),
            st.just(2),
            st.binary(max_size=20).map(lambda data: varint(len(data)) + data),
        ),
        st.builds(field, st.integers(13, 2**29 - 1), st.just(5), st.binary(min_size=4, max_size=4)),
    ),
    max_size=3,
).map(b"".join)

attributes = st.builds(
    UAttributes,
    type=st.sampled_from(UMessageType),
    source=uuris,
    sink=st.none() | uuris,
    priority=st.sampled_from(UPriority),
    ttl=st.none() | uint32,
    permission_level=st.none() | uint32,
    commstatus=st.none() | st.sampled_from(UCode),
    reqid=st.none() | ids,
    token=st.none() | st.text(max_size=10),
    traceparent=st.none() | st.text(max_size=10),
    payload_format=st.sampled_from(UPayloadFormat),
    unknown=unknown_fields,
)


@given(ids, ids, attributes)
def test_every_header_survives_both_encoders_and_decoders(
    first: UUID, second: UUID, attributes: UAttributes
) -> None:
    encoder, decoder = HeaderEncoder(), HeaderDecoder()
    for id in (first, second, first):
        data = encode(id, attributes)
        assert encoder.encode(id, attributes) == data
        assert decode(data) == (id, attributes)
        assert decoder.decode(data) == (id, attributes)


@given(unknown_fields)
@example(bytes.fromhex("a00601"))  # field 100 = 1
def test_fields_of_a_later_revision_are_forwarded(unknown: bytes) -> None:
    id, read = decode(ID_FIELD + unknown + TYPE_AND_SOURCE)
    assert read.unknown == unknown
    assert encode(id, read) == PUBLICATION + unknown


# ------------------------------------------------------------------------ fast path and oracle (random bytes)


def outcome(decoder: HeaderDecoder | None, data: bytes) -> tuple[UUID, UAttributes] | str:
    try:
        return decode(data) if decoder is None else decoder.decode(data)
    except UStatusError as error:
        return str(error)


def id_field(id: UUID) -> bytes:
    return pb.UAttributes(id=pb_uuid.UUID(msb=id.msb, lsb=id.lsb)).SerializeToString()


SWAPPED_HALVES = b"\x0a\x12\x11" + ID_FIELD[12:20] + b"\x09" + ID_FIELD[3:11]
SPLIT_ID = b"\x0a\x09" + ID_FIELD[2:11] + b"\x0a\x09" + ID_FIELD[11:20]
HOSTILE = {  # a header that fills the decoder's cache, and another that resembles it
    "another id": (PUBLICATION, id_field(SECOND) + TYPE_AND_SOURCE),
    "the id again, last": (
        PUBLICATION + id_field(FIRST),
        id_field(SECOND) + TYPE_AND_SOURCE + id_field(FIRST),
    ),
    "the id again, first": (ID_FIELD * 2 + TYPE_AND_SOURCE, id_field(LATER) + ID_FIELD + TYPE_AND_SOURCE),
    "half of the id again": (
        PUBLICATION + b"\x0a\x09" + ID_FIELD[2:11],
        id_field(LATER) + TYPE_AND_SOURCE + b"\x0a\x09" + ID_FIELD[2:11],
    ),
    "an empty id again": (PUBLICATION + b"\x0a\x00", id_field(SECOND) + TYPE_AND_SOURCE + b"\x0a\x00"),
    "id not first": (TYPE_AND_SOURCE + ID_FIELD, TYPE_AND_SOURCE + id_field(SECOND)),
    "20 other bytes before": (PUBLICATION, b"\x52\x12" + b"t" * 18 + TYPE_AND_SOURCE),
    "id of one half": (
        PUBLICATION,
        b"\x0a\x09" + ID_FIELD[2:11] + b"\x28\x01" * 4 + b"\x60" + TYPE_AND_SOURCE,
    ),
    "halves the other way round": (PUBLICATION, SWAPPED_HALVES + TYPE_AND_SOURCE),
    "id in two parts": (SPLIT_ID + TYPE_AND_SOURCE, PUBLICATION),
    "one byte less": (PUBLICATION, PUBLICATION[1:]),
    "shorter than an id": (PUBLICATION, PUBLICATION[:10]),
    "first byte": (PUBLICATION, b"\x0b" + PUBLICATION[1:]),
    "length of the id": (PUBLICATION, b"\x0a\x11" + PUBLICATION[2:]),
    "tag of msb": (PUBLICATION, PUBLICATION[:2] + b"\x19" + PUBLICATION[3:]),
    "tag of lsb": (PUBLICATION, PUBLICATION[:11] + b"\x19" + PUBLICATION[12:]),
}


@pytest.mark.parametrize(("first", "second"), HOSTILE.values(), ids=HOSTILE)
def test_the_decoder_cache_never_changes_a_result(first: bytes, second: bytes) -> None:
    decoder = HeaderDecoder()
    for data in (first, second, first, second):
        assert outcome(decoder, data) == outcome(None, data)


pieces = st.sampled_from(
    [
        ID_FIELD,
        id_field(SECOND),
        id_field(LATER),
        SWAPPED_HALVES,
        b"\x0a\x09" + ID_FIELD[2:11],
        b"\x0a\x00",
        TYPE_AND_SOURCE,
        TYPE_AND_SOURCE[:2],
        TYPE_AND_SOURCE[2:],
        b"\x28\x03",
        b"\x30\x00",
        b"\x52\x03tok",
        b"\x52\x12" + b"t" * 18,
        b"\xa0\x06\x01",
        b"\xff",
    ]
)
headers = st.one_of(
    st.lists(pieces, max_size=5).map(b"".join),
    st.builds(
        lambda id, rest: id_field(id) + TYPE_AND_SOURCE + rest,
        st.sampled_from([FIRST, SECOND, LATER, UUID(0, 0)]),
        st.just(b"") | pieces,
    ),
    st.binary(max_size=40),
    st.builds(
        lambda data, position, byte: data[:position] + bytes([byte]) + data[position + 1 :],
        st.just(PUBLICATION),
        st.integers(0, len(PUBLICATION) - 1),
        st.integers(0, 255),
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(headers, max_size=8))
def test_the_cached_decoder_equals_decode_for_any_bytes(
    received: list[bytes],
) -> None:
    decoder = HeaderDecoder(limit=2)
    for data in (*received, *received):
        assert outcome(decoder, data) == outcome(None, data)


@settings(max_examples=150)
@given(headers)
def test_any_bytes_are_a_header_or_an_invalid_argument(data: bytes) -> None:
    result = outcome(None, data)
    if isinstance(result, str):
        assert result.startswith("INVALID_ARGUMENT: ")
    else:
        id, read = result
        read.source.check()
        assert decode(encode(id, read)) == result


# --------------------------------------------------------------------------------- stored data and its limits


def topics(count: int) -> list[UAttributes]:
    return [
        UAttributes(type=UMessageType.PUBLISH, source=TOPIC.with_resource(0x8000 + n)) for n in range(count)
    ]


def test_a_known_header_is_shared_and_not_decoded_again() -> None:
    decoder = HeaderDecoder()
    _, first = decoder.decode(PUBLICATION)
    id, second = decoder.decode(id_field(SECOND) + TYPE_AND_SOURCE)
    assert second is first
    assert id == SECOND


def test_the_decoder_caches_up_to_its_limit() -> None:
    decoder = HeaderDecoder(limit=3)
    first = [decoder.decode(encode(FIRST, each))[1] for each in topics(3)]
    second = [decoder.decode(encode(SECOND, each))[1] for each in topics(3)]
    assert all(again is before for before, again in zip(first, second, strict=True))


def test_the_encoder_caches_up_to_its_limit_and_encodes_no_header_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoder = HeaderEncoder(limit=3)
    first = [encoder.encode(FIRST, each) for each in topics(3)]
    monkeypatch.delattr("ustreamer.uprotocol.wire.encode_tail")
    assert [encoder.encode(FIRST, each) for each in topics(3)] == first


def test_the_decoder_never_exceeds_its_limit_and_stays_correct() -> None:
    decoder = HeaderDecoder(limit=3)
    for each, id in product([*topics(10), *topics(10)], [FIRST, SECOND]):
        assert decoder.decode(encode(id, each)) == (id, each)
        assert len(decoder._cache) <= 3


def test_the_encoder_never_exceeds_its_limit_and_stays_correct() -> None:
    encoder = HeaderEncoder(limit=3)
    for each, id in product([*topics(10), *topics(10)], [FIRST, SECOND]):
        assert encoder.encode(id, each) == encode(id, each)
        assert len(encoder._tails) <= 3


@pytest.mark.parametrize("change", [{"reqid": SECOND}, {"token": "t"}, {"traceparent": "00"}])
def test_unique_headers_are_not_cached(change: dict[str, object]) -> None:
    once = msgspec.structs.replace(topics(1)[0], **change)
    encoder, decoder = HeaderEncoder(), HeaderDecoder()
    assert decoder.decode(encoder.encode(FIRST, once)) == (FIRST, once)
    assert not decoder._cache
    assert not encoder._tails


def test_absent_and_zero_attributes_are_distinguished() -> None:
    encoder = HeaderEncoder()
    plain = topics(1)[0]
    variants = [plain, *(msgspec.structs.replace(plain, **{name: 0}) for name in ("ttl", "permission_level"))]
    variants.append(msgspec.structs.replace(plain, commstatus=UCode.OK))
    assert [decode(encoder.encode(FIRST, each))[1] for each in variants] == variants
