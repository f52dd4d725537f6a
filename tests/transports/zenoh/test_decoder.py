# SPDX-License-Identifier: Apache-2.0
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ustreamer.testing.messages import (
    ALPHA,
    METHOD,
    REMOTE_CLIENT,
    TOPIC,
    four_messages,
    new_id,
    response_from,
)
from ustreamer.transports.zenoh import decoder as inbound_module
from ustreamer.transports.zenoh.decoder import (
    MAX_ATTACHMENT_BYTES,
    VERSION_BYTE,
    AttachmentColumns,
    SampleDecoder,
    SampleRefusal,
    SampleRefusalReason,
    decode_sample,
)
from ustreamer.transports.zenoh.keys import NO_SINK, message_key
from ustreamer.uprotocol.batch import MAX_BATCH, MIN_BATCH, MessageBatch, unpack_columns
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer.uprotocol.wire import REQID_PREFIX, encode, reqid_field

Decode = Callable[[str, bytes | None, bytes], UMessage | SampleRefusal]


def decoder_twice(key: str, attachment: bytes | None, payload: bytes) -> UMessage | SampleRefusal:
    """The second result of the caching decoder, possibly from its caches."""
    decoder = SampleDecoder()
    first = decoder.decode(key, attachment, payload)
    second = decoder.decode(key, attachment, payload)
    assert first == second
    return second


both_ways = pytest.mark.parametrize("read", [decode_sample, decoder_twice])


def attachment_of(message: UMessage) -> bytes:
    return VERSION_BYTE + encode(message.id, message.attributes)


def key_of(message: UMessage) -> str:
    return message_key(message.attributes.source, message.attributes.sink, ALPHA)


def stated(message: UMessage, **changes: object) -> bytes:
    """The attachment of `message` with other attributes."""
    return VERSION_BYTE + encode(message.id, msgspec.structs.replace(message.attributes, **changes))


@both_ways
@pytest.mark.parametrize("position", range(4))
def test_a_decoded_message_equals_the_encoded_message(read: Decode, position: int) -> None:
    message = four_messages()[position]
    assert read(key_of(message), attachment_of(message), message.payload) == message


class Refused(NamedTuple):
    reason: SampleRefusalReason
    text: str
    key: str
    attachment: bytes | None


PUBLICATION = publish(new_id(), TOPIC)
NOTIFICATION = notification(new_id(), TOPIC, REMOTE_CLIENT)
P, N = attachment_of(PUBLICATION), attachment_of(NOTIFICATION)
P_KEY, N_KEY = key_of(PUBLICATION), key_of(NOTIFICATION)
ANSWER = response_from(METHOD, REMOTE_CLIENT)
assert ANSWER.attributes.reqid is not None
A, A_KEY = attachment_of(ANSWER), key_of(ANSWER)
ELSEWHERE = UUri("elsewhere", TOPIC.ue_id, TOPIC.ue_version_major, TOPIC.resource_id)
SINK_IN_KEY = P_KEY.replace(NO_SINK, "beta.vin1/*/*/*/*")

REFUSED: dict[str, Refused] = {
    "no attachment": Refused(SampleRefusalReason.NO_ATTACHMENT, "no attachment", P_KEY, None),
    "an empty attachment": Refused(SampleRefusalReason.SHORT, "0 bytes, expected 01", P_KEY, b""),
    "a version and nothing else": Refused(SampleRefusalReason.SHORT, "1 bytes, expected 01", P_KEY, b"\x01"),
    "version 2": Refused(SampleRefusalReason.VERSION, "begins with 02, expected 01", P_KEY, b"\x02" + P[1:]),
    "no version": Refused(SampleRefusalReason.VERSION, "begins with 0a, expected 01", P_KEY, P[1:]),
    "a huge attachment": Refused(
        SampleRefusalReason.LONG, "16385 bytes, limit 16384", P_KEY, b"\x01" + bytes(MAX_ATTACHMENT_BYTES)
    ),
    "no protobuf": Refused(SampleRefusalReason.ATTRIBUTES, "not protobuf", P_KEY, b"\x01\xff\xff\xff"),
    "attributes cut short": Refused(SampleRefusalReason.ATTRIBUTES, "not protobuf", P_KEY, P[:-1]),
    "attributes without id": Refused(
        SampleRefusalReason.ATTRIBUTES, "id is missing", P_KEY, b"\x01" + P[21:]
    ),
    "an authority in capitals": Refused(
        SampleRefusalReason.ATTRIBUTES,
        "authority 'ALPHA'",
        P_KEY,
        stated(PUBLICATION, source=UUri("ALPHA", 1, 1, 0x8000)),
    ),
    "a foreign key": Refused(SampleRefusalReason.KEY, "expected up/", "demo/example", P),
    "a key with a wildcard": Refused(SampleRefusalReason.KEY, "is a pattern", P_KEY.replace("8001", "*"), P),
    "a publication with a sink in its key": Refused(SampleRefusalReason.KEY, "is a pattern", SINK_IN_KEY, P),
    "another source authority": Refused(
        SampleRefusalReason.MISMATCH, "from up://elsewhere/", P_KEY, stated(PUBLICATION, source=ELSEWHERE)
    ),
    "another resource": Refused(
        SampleRefusalReason.MISMATCH,
        "/8002 to None",
        P_KEY,
        stated(PUBLICATION, source=TOPIC.with_resource(0x8002)),
    ),
    "another sink": Refused(
        SampleRefusalReason.MISMATCH,
        "to up://beta.vin1/F/1/0",
        N_KEY,
        stated(NOTIFICATION, sink=UUri("beta.vin1", 0xF, 1, 0)),
    ),
    "another sink authority": Refused(
        SampleRefusalReason.MISMATCH,
        "to up://gamma/",
        N_KEY,
        stated(NOTIFICATION, sink=UUri("gamma", 0xE, 1, 0)),
    ),
    "a missing sink": Refused(
        SampleRefusalReason.MISMATCH, "to None", N_KEY, stated(NOTIFICATION, sink=None)
    ),
    "a notification on the key of a publication": Refused(
        SampleRefusalReason.MISMATCH, "a NOTIFICATION on key .* names no sink", P_KEY, N
    ),
    "a publication on the key of a notification": Refused(
        SampleRefusalReason.MISMATCH,
        "a PUBLISH on key .* names sink",
        N_KEY,
        stated(NOTIFICATION, type=UMessageType.PUBLISH),
    ),
    "no type on the key of a publication": Refused(
        SampleRefusalReason.MISMATCH,
        "a UNSPECIFIED on key",
        P_KEY,
        stated(PUBLICATION, type=UMessageType.UNSPECIFIED),
    ),
}


@both_ways
@pytest.mark.parametrize("name", REFUSED)
def test_an_invalid_sample_is_refused_with_its_reason(read: Decode, name: str) -> None:
    case = REFUSED[name]
    refusal = read(case.key, case.attachment, b"payload")
    assert isinstance(refusal, SampleRefusal)
    assert refusal.reason is case.reason
    assert re.search(case.text, refusal.text)


def test_every_reason_has_a_case() -> None:
    # A delete is recognized by the kind of the sample: see tests/transports/zenoh/test_wire.py.
    assert {case.reason for case in REFUSED.values()} == set(SampleRefusalReason) - {
        SampleRefusalReason.DELETE
    }


# --- fields from the key ------------------------------------------------------------------------------------


@both_ways
def test_an_empty_authority_is_filled_in_from_the_key(read: Decode) -> None:
    source, sink = (UUri("", *parts) for parts in ((TOPIC.ue_id, 1, 0x8001), (REMOTE_CLIENT.ue_id, 1, 0)))
    message = read(N_KEY, stated(NOTIFICATION, source=source, sink=sink), b"")
    assert message == NOTIFICATION


def test_the_same_header_on_another_key_has_another_source() -> None:
    decoder = SampleDecoder()
    header = stated(PUBLICATION, source=UUri("", TOPIC.ue_id, TOPIC.ue_version_major, TOPIC.resource_id))
    sources = []
    for authority in ("one", "two", "one", "two"):
        message = decoder.decode(P_KEY.replace(ALPHA, authority), header, b"")
        assert isinstance(message, UMessage)
        sources.append(message.attributes.source.authority_name)
    assert sources == ["one", "two", "one", "two"]


def test_a_header_valid_on_its_key_is_refused_on_another() -> None:
    decoder = SampleDecoder()
    assert isinstance(decoder.decode(P_KEY, P, b""), UMessage)
    refusal = decoder.decode(P_KEY.replace("8001", "8002"), P, b"")
    assert isinstance(refusal, SampleRefusal)
    assert refusal.reason is SampleRefusalReason.MISMATCH


@both_ways
@pytest.mark.parametrize("sink", [any_at("beta.vin1"), UUri("beta.vin1", 1, 1, 5), UUri("", 0, 0, 0)])
def test_the_sink_of_a_publication_is_removed(read: Decode, sink: UUri) -> None:
    assert read(P_KEY, stated(PUBLICATION, sink=sink), b"") == PUBLICATION


# --- caches -----------------------------------------------------------------------------------------------------------


def test_messages_of_one_topic_share_their_attributes() -> None:
    decoder = SampleDecoder()
    header = stated(PUBLICATION, sink=any_at("beta.vin1"))  # also where the attributes had to be changed
    first, second = decoder.decode(P_KEY, header, b""), decoder.decode(P_KEY, header, b"")
    assert isinstance(first, UMessage)
    assert isinstance(second, UMessage)
    assert first.attributes is second.attributes


@pytest.mark.parametrize(
    "other",
    [
        P[:3] + b"\x11" + P[4:12] + b"\x09" + P[13:],  # the halves of the id the other way round
        b"\x02" + P[1:],
        P[:2] + b"\x13" + P[3:],
        P[:2] + b"\x00" + P[3:],  # an empty id, and its halves as unknown fields
        P[:12] + b"\x12" + P[13:],
        P[21:],
    ],
)
def test_a_known_header_in_another_frame_is_decoded_again(other: bytes) -> None:
    decoder = SampleDecoder()
    for _ in range(2):
        assert isinstance(decoder.decode(P_KEY, P, b""), UMessage)
    assert decoder.decode(P_KEY, other, b"") == decode_sample(P_KEY, other, b"")
    assert decoder.decode(P_KEY, P, b"") == decode_sample(P_KEY, P, b"")


def test_the_caches_are_bounded_and_skip_unique_headers() -> None:
    decoder = SampleDecoder(limit=10)
    for number in range(100):
        topic = TOPIC.with_resource(0x8000 + number)
        message = publish(new_id(), topic)
        assert decoder.decode(key_of(message), attachment_of(message), b"") == message
        assert len(decoder._reconciled) <= 10
    decoder = SampleDecoder()
    for _ in range(10):
        answer = response_from(METHOD, REMOTE_CLIENT)
        assert decoder.decode(key_of(answer), attachment_of(answer), b"") == UMessage(
            answer.id, answer.attributes
        )
    assert len(decoder._reconciled) == 0
    assert len(decoder._responses) == 1


def test_responses_are_cached_by_the_bytes_around_their_reqid(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = SampleDecoder()
    decoded: list[bytes] = []
    decode = decoder._decoder.decode

    def counting(data: bytes) -> tuple[UUID, UAttributes]:
        decoded.append(data)
        return decode(data)

    monkeypatch.setattr(decoder._decoder, "decode", counting)
    failed = {"commstatus": UCode.INTERNAL, "payload_format": UPayloadFormat.PROTOBUF}
    for number in range(5):
        for changes in ({}, failed, {"ttl": None}):
            answer = response_from(METHOD, REMOTE_CLIENT)
            answer = UMessage(
                answer.id, msgspec.structs.replace(answer.attributes, **changes), b"%d" % number
            )
            assert decoder.decode(key_of(answer), attachment_of(answer), answer.payload) == answer
    assert len(decoded) == 3


def test_the_response_cache_is_bounded() -> None:
    decoder = SampleDecoder(limit=10)
    for number in range(100):
        answer = response_from(METHOD, REMOTE_CLIENT.with_authority("a"))
        answer = UMessage(answer.id, msgspec.structs.replace(answer.attributes, ttl=number + 1))
        assert decoder.decode(key_of(answer), attachment_of(answer), b"") == answer
        assert len(decoder._responses) <= 10


@pytest.mark.parametrize("change", [{"token": "t"}, {"traceparent": "00-x"}])
def test_a_response_with_unique_attributes_is_not_cached(change: dict[str, object]) -> None:
    decoder = SampleDecoder()
    decoder.decode(key_of(ANSWER), stated(ANSWER, **change), b"")
    assert len(decoder._responses) == 0


@both_ways
def test_a_long_header_is_decoded_and_not_cached(read: Decode) -> None:
    message = publish(new_id(), TOPIC)
    unknown = b"\xfa\x07\xe8\x07" + bytes(1000)  # field 127, 1000 bytes, of a later revision
    long = UMessage(message.id, msgspec.structs.replace(message.attributes, unknown=unknown))
    assert read(P_KEY, attachment_of(long), b"") == long
    decoder = SampleDecoder()
    decoder.decode(P_KEY, attachment_of(long), b"")
    assert len(decoder._reconciled) == 0


# --- arbitrary input ----------------------------------------------------------------------------------------


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid attachment with some bytes changed, removed or inserted."""
    data = bytearray(attachment_of(draw(st.sampled_from(four_messages()))))
    for _ in range(draw(st.integers(1, 4))):
        position = draw(st.integers(0, len(data) - 1))
        data[position : position + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
        if not data:
            break
    return bytes(data)


keys = st.text(max_size=80) | st.sampled_from([P_KEY, N_KEY, *(key_of(m) for m in four_messages())])


@given(keys, st.none() | st.binary(max_size=200) | mutated(), st.binary(max_size=8))
@example(P_KEY, P + b"\x2a\x00", b"")
def test_any_bytes_decode_to_a_message_or_a_refusal_by_both_paths(
    key: str, attachment: bytes | None, payload: bytes
) -> None:
    read = decode_sample(key, attachment, payload)
    assert read == decoder_twice(key, attachment, payload)
    if isinstance(read, SampleRefusal):
        assert read.text
        return
    attributes = read.attributes
    assert attributes.source.authority_name
    assert message_key_of(attributes) == key
    assert read.payload == payload


def message_key_of(attributes: UAttributes) -> str:
    return message_key(attributes.source, attributes.sink, "")


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    """A response with bytes changed, removed or inserted, also with a second reqid."""
    data = bytearray(attachment_of(response_from(METHOD, REMOTE_CLIENT)))
    for _ in range(draw(st.integers(0, 2))):
        position = draw(st.integers(0, len(data)))
        piece = draw(st.binary(max_size=2) | st.sampled_from(PIECES))
        data[position : position + draw(st.sampled_from([0, 0, 1, 2, 20]))] = piece
    return bytes(data)


PIECES = [
    reqid_field(new_id()),
    A[:21],
    A[1:21],
    REQID_PREFIX,
    b"\x4a\x00",
    b"\x0a\x00",
    b"\x30\x05",
    b"\x52\x01t",
]
"""A reqid, an id, the beginning of one, an empty one, an empty id, a ttl, a token."""


B = stated(ANSWER, payload_format=UPayloadFormat.UNSPECIFIED)  # which ends with its reqid
OTHER = attachment_of(response_from(METHOD, REMOTE_CLIENT))  # the same but for id and reqid


@settings(max_examples=150)
@given(st.lists(answers(), min_size=1, max_size=6))
@example([B, B[:-9] + b"\x09" + B[-8:]])  # half of a reqid, twice
@example([B, B[:-1], B[:-8], B[:-9], B[:-20], B])  # cut off within the reqid
@example(
    [A + reqid_field(ANSWER.attributes.reqid), OTHER + reqid_field(ANSWER.attributes.reqid)]
)  # the last counts
@example([A + A[1:21], OTHER[:21] + A[21:] + A[1:21]])  # so it does of two ids
@example(
    [b"\x01\x38\x01\x0a\x09" + A[3:12] + b"\x28\x05\x28\x05\x78\x80\x01" + A[21:], A]
)  # no id alone in front
def test_a_response_decodes_independently_of_earlier_ones(attachments: list[bytes]) -> None:
    decoder = SampleDecoder()
    for attachment in attachments * 2:
        assert decoder.decode(A_KEY, attachment, b"x") == decode_sample(A_KEY, attachment, b"x")


# --- batches of equal headers -----------------------------------------------------------------------------------------

HEAD_SIZE = 21
TAIL = P[HEAD_SIZE:]


def similar_attachments(count: int, tail: bytes = TAIL) -> list[bytes]:
    """Attachments that differ in their ids only."""
    return [VERSION_BYTE + encode(new_id(), PUBLICATION.attributes)[:20] + tail for _ in range(count)]


def numbers(count: int) -> list[bytes]:
    """One payload per attachment."""
    return [b"%d" % number for number in range(count)]


def warmed_decoder(key: str = P_KEY, attachment: bytes = P) -> SampleDecoder:
    """A decoder that has decoded one such attachment."""
    decoder = SampleDecoder()
    decoder.decode(key, attachment, b"")
    return decoder


def one_by_one(
    key: str, attachments: Sequence[bytes], payloads: Sequence[bytes]
) -> list[UMessage | SampleRefusal]:
    decoder = warmed_decoder(key, attachments[0])
    return [decoder.decode(key, *sample) for sample in zip(attachments, payloads, strict=True)]


@pytest.mark.parametrize("count", [1, 8, 9, 127, 128, 129])
def test_equal_headers_decode_to_a_batch_equal_to_single_messages(count: int) -> None:
    attachments, payloads = similar_attachments(count), numbers(count)
    batch = warmed_decoder().decode_batch(P_KEY, attachments, payloads)
    assert batch is not None
    assert list(batch) == one_by_one(P_KEY, attachments, payloads)
    assert [each.id.is_valid for each in batch] == [True] * count
    # Unchanged, so that a sender with the same header can reuse them.
    assert type(batch.ids) is AttachmentColumns
    assert all(each is arrived for each, arrived in zip(batch.ids.items, attachments, strict=True))
    assert all(each is arrived for each, arrived in zip(batch.payloads, payloads, strict=True))


@pytest.mark.parametrize(
    "changes", [{"sink": any_at("beta.vin1")}, {"source": TOPIC.with_authority("")}, {"unknown": b"\xfa\x07\x00"}]
)  # fmt: skip
def test_a_batch_is_reconciled_with_its_key_like_single_messages(changes: dict[str, object]) -> None:
    first = stated(PUBLICATION, **changes)
    attachments, payloads = similar_attachments(9, first[HEAD_SIZE:]), numbers(9)
    decoder = warmed_decoder(P_KEY, first)
    read = decoder.decode(P_KEY, first, b"")
    assert isinstance(read, UMessage)
    batch = decoder.decode_batch(P_KEY, attachments, payloads)
    assert batch is not None
    assert batch.attributes is read.attributes
    assert list(batch) == one_by_one(P_KEY, attachments, payloads)


def test_an_unknown_header_or_key_gives_no_batch() -> None:
    attachments, payloads = similar_attachments(9), numbers(9)
    assert SampleDecoder().decode_batch(P_KEY, attachments, payloads) is None
    decoder = warmed_decoder()
    assert decoder.decode_batch(P_KEY.replace("8001", "8002"), attachments, payloads) is None
    assert decoder.decode_batch(P_KEY, similar_attachments(9, TAIL + b"\x28\x05"), payloads) is None


@pytest.mark.parametrize("change", [{"token": "t"}, {"traceparent": "00-x"}])
def test_unique_attributes_give_no_batch(change: dict[str, object]) -> None:
    for message, key in ((PUBLICATION, P_KEY), (ANSWER, A_KEY)):
        first = stated(message, **change)
        decoder = warmed_decoder(key, first)
        assert decoder.decode_batch(key, [first] * 9, numbers(9)) is None


@pytest.mark.parametrize(
    "message", [PUBLICATION, NOTIFICATION, ANSWER], ids=["event", "notification", "response"]
)
def test_every_message_type_decodes_to_a_batch_equal_to_single_messages(message: UMessage) -> None:
    """A reqid on any type: the dispatcher checks the rules of the type."""
    first, key = stated(message, reqid=new_id()), key_of(message)
    decoder, attachments = warmed_decoder(key, first), [first] * 4 + [stated(message, reqid=new_id())] * 5
    batch = decoder.decode_batch(key, attachments, numbers(9))
    assert batch is not None
    assert list(batch) == one_by_one(key, attachments, numbers(9))


@pytest.mark.parametrize("size", [0, 1, 2, 20, 21])
def test_truncated_attachments_give_no_batch(size: int) -> None:
    decoder = warmed_decoder()
    decoder.decode(P_KEY, P[:size], b"")
    assert decoder.decode_batch(P_KEY, [P[:size]] * 9, numbers(9)) is None


def at(position: int, byte: int) -> Callable[[bytes], bytes]:
    return lambda sound: sound[:position] + bytes([byte]) + sound[position + 1 :]


FLAWS: dict[str, Callable[[bytes], bytes]] = {
    "no version": lambda sound: sound[1:],
    **{f"version {version}": at(0, version) for version in (0, 2, 255)},
    **{f"byte {position} of the frame is {byte}": at(position, byte) for position in (1, 2, 3, 12) for byte in (0, 0x13, 255)},
    "the halves the other way round": lambda sound: at(3, 0x11)(at(12, 0x09)(sound)),
    **{f"UUID version {version}": at(5, version << 4) for version in range(16) if version != 7},
    **{f"UUID variant {top:x}": at(20, top) for top in (0x00, 0x3F, 0x7F, 0x40, 0xC0, 0xFF)},
    "another resource": lambda _: attachment_of(publish(new_id(), TOPIC.with_resource(0x8002))),
    "another ttl": lambda sound: sound + b"\x28\x05",
    "a tail that ends early": lambda sound: sound[:-1],
    "another last byte": lambda sound: sound[:-1] + bytes([sound[-1] ^ 1]),
    "another first byte of the tail": lambda sound: at(HEAD_SIZE, sound[HEAD_SIZE] ^ 1)(sound),
    "a token": lambda _: stated(PUBLICATION, token="t"),
    "a head and nothing else": lambda sound: sound[:HEAD_SIZE],
    "less than a head": lambda sound: sound[: HEAD_SIZE - 1],
    "a version and nothing else": lambda sound: sound[:1],
    "nothing": lambda _: b"",
    "a byte before": lambda sound: b"\x01" + sound,
    "twice": lambda sound: sound * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS)
def test_one_flawed_attachment_gives_no_batch(name: str) -> None:
    count = MIN_BATCH
    decoder, payloads, attachments = warmed_decoder(), numbers(count), similar_attachments(count)
    for position in {0, 1, count // 2, count - 1}:
        flawed = [*attachments]
        flawed[position] = FLAWS[name](flawed[position])
        assert decoder.decode_batch(P_KEY, flawed, payloads) is None
        if position > 0:  # also if another attachment compensates the length
            flawed[0] = attachments[0][: len(attachments[0]) * 2 - len(flawed[position])]
            assert decoder.decode_batch(P_KEY, flawed, payloads) is None
    assert decoder.decode_batch(P_KEY, attachments, payloads) is not None


VALID_BYTES = list(product(range(0x70, 0x80), [0x80, 0x9F, 0xA0, 0xBF]))
"""Every version byte of a valid id, with variant bytes."""


def test_every_valid_id_is_accepted_in_a_batch() -> None:
    attachments = [
        at(5, version)(at(20, variant)(each))
        for (version, variant), each in zip(VALID_BYTES, similar_attachments(len(VALID_BYTES)), strict=True)
    ]
    batch = warmed_decoder().decode_batch(P_KEY, attachments, numbers(len(attachments)))
    assert batch is not None
    assert all(each.id.is_valid for each in batch)


BATCH_SIZES = st.integers(MIN_BATCH, 30) | st.sampled_from([MAX_BATCH - 1, MAX_BATCH, MAX_BATCH + 1])


@st.composite
def batches(draw: st.DrawFn) -> list[bytes]:
    """Attachments with equal headers; some may have a few bytes changed, removed or inserted."""
    attachments = similar_attachments(draw(BATCH_SIZES))
    for _ in range(draw(st.integers(0, 3))):
        number = draw(st.integers(0, len(attachments) - 1))
        data = bytearray(attachments[number])
        position = draw(st.integers(0, len(data)))
        taken_out = draw(st.integers(0, 2))
        data[position : position + taken_out] = draw(
            st.binary(min_size=taken_out, max_size=taken_out) | st.binary(max_size=2)
        )
        attachments[number] = bytes(data)
    return attachments


@settings(max_examples=120)
@given(batches())
def test_a_batch_equals_its_samples_decoded_one_by_one(
    attachments: list[bytes],
) -> None:
    payloads = numbers(len(attachments))
    batch = warmed_decoder().decode_batch(P_KEY, attachments, payloads)
    read = [decode_sample(P_KEY, *sample) for sample in zip(attachments, payloads, strict=True)]
    sound = all(
        isinstance(each, UMessage)
        and each.id.is_valid
        and each.attributes == PUBLICATION.attributes
        and attachment_of(each) == arrived
        for each, arrived in zip(read, attachments, strict=True)
    )
    assert (batch is not None) is sound
    if batch is not None:
        assert list(batch) == read


@given(st.integers(0, 140), st.integers(0, 60), st.integers(0, 140), st.integers(0, 140))
def test_id_columns_of_attachments_equal_the_decoded_ids(count: int, tail: int, begin: int, end: int) -> None:
    heads = [VERSION_BYTE + encode(new_id(), PUBLICATION.attributes)[:20] for _ in range(count)]
    ids = [read_id(each) for each in heads]
    attachments = AttachmentColumns([head + bytes(tail) for head in heads], bytes(tail))
    for each, expected in ((attachments, ids), (attachments.sliced(slice(begin, end)), ids[begin:end])):
        assert list(map(UUID, *each.msb_lsb_columns())) == expected
        assert each.tail == bytes(tail)
    assert attachments.sliced(slice(begin, end)).items == attachments.items[begin:end]


def read_id(head: bytes) -> UUID:
    return UUID(int.from_bytes(head[4:12], "little"), int.from_bytes(head[13:21], "little"))


@given(st.integers(1, 20), st.slices(20))
def test_a_batch_of_attachments_can_be_sliced(count: int, part: slice) -> None:
    attachments, payloads = similar_attachments(count), numbers(count)
    batch = warmed_decoder().decode_batch(P_KEY, attachments, payloads)
    assert batch is not None
    read = one_by_one(P_KEY, attachments, payloads)
    assert [batch[at] for at in range(-count, count)] == read * 2
    some = batch[part]
    assert type(some) is MessageBatch
    assert list(some) == read[part]
    assert list(batch[count:]) == []
    assert [each.id for each in batch] == [read_id(each) for each in attachments]


# --- responses that differ in their reqid -----------------------------------------------------------------------------

AT = A.find(REQID_PREFIX, HEAD_SIZE)
"""The offset of the 20 bytes of the reqid of a response."""


def similar_responses(count: int, like: bytes = A) -> list[bytes]:
    """Attachments that differ in their ids and reqids only."""
    begin = like.find(REQID_PREFIX, HEAD_SIZE)
    heads = [VERSION_BYTE + encode(new_id(), ANSWER.attributes)[:20] for _ in range(count)]
    return [head + like[HEAD_SIZE:begin] + reqid_field(new_id()) + like[begin + 20 :] for head in heads]


KNOWN_RESPONSES = {
    "in the middle": A,
    "at the end": B,
    "without ttl": stated(ANSWER, ttl=None),
    "with an error": stated(ANSWER, commstatus=UCode.INTERNAL),
    "of a later revision": stated(ANSWER, unknown=b"\xfa\x07\x00"),
    "without authorities": stated(
        ANSWER, source=METHOD.with_authority(""), sink=REMOTE_CLIENT.with_authority("")
    ),
}


@pytest.mark.parametrize("like", KNOWN_RESPONSES.values(), ids=KNOWN_RESPONSES)
@pytest.mark.parametrize("count", [1, 8, 9, 127, 128, 129])
def test_equal_responses_decode_to_a_batch_equal_to_single_messages(like: bytes, count: int) -> None:
    attachments, payloads = similar_responses(count, like), numbers(count)
    batch = warmed_decoder(A_KEY, like).decode_batch(A_KEY, attachments, payloads)
    assert batch is not None
    assert list(batch) == one_by_one(A_KEY, attachments, payloads)
    assert batch.reqids is not None
    assert (len(batch), len(batch.reqids), batch.attributes.reqid) == (count, count, None)
    assert all(each.id.is_valid for each in batch)
    assert all(each.is_valid for each in batch.reqids)
    assert len(set(batch.reqids)) == count
    assert all(each is arrived for each, arrived in zip(batch.payloads, payloads, strict=True))


def test_unknown_responses_give_no_batch() -> None:
    attachments, payloads = similar_responses(9), numbers(9)
    assert SampleDecoder().decode_batch(A_KEY, attachments, payloads) is None
    decoder = warmed_decoder(A_KEY, A)
    assert (
        decoder.decode_batch(
            key_of(response_from(METHOD.with_resource(2), REMOTE_CLIENT)), attachments, payloads
        )
        is None
    )
    assert decoder.decode_batch(A_KEY, similar_responses(9, B), payloads) is None
    assert decoder.decode_batch(A_KEY, attachments, payloads) is not None


@pytest.mark.parametrize(
    "cut", [HEAD_SIZE, AT, AT + 1, AT + 3, AT + 4, AT + 12, AT + 19, AT + 20, len(A) - 1]
)
def test_truncated_responses_give_no_batch(cut: int) -> None:
    decoder = warmed_decoder(A_KEY, A)
    attachments = [each[:cut] for each in similar_responses(9)]
    assert decoder.decode_batch(A_KEY, attachments, numbers(9)) is None


@pytest.mark.parametrize("count", [8, 9, 128])
def test_responses_truncated_in_their_reqid_give_no_batch(count: int) -> None:
    """Also if the first bytes of the next attachment would complete the reqid."""
    decoder = warmed_decoder(A_KEY, B)
    whole = [at(4, 0x80)(at(6, 0x80)(at(7, 0x80)(each))) for each in similar_responses(count, B)]
    for cut in range(1, 21):
        assert decoder.decode_batch(A_KEY, [each[:-cut] for each in whole], numbers(count)) is None


def moved(sound: bytes) -> bytes:
    """With the reqid at the end, which decodes to the same attributes."""
    return sound[:AT] + sound[AT + 20 :] + sound[AT : AT + 20]


FLAWS_OF_RESPONSES: dict[str, Callable[[bytes], bytes]] = {
    "no version": lambda sound: sound[1:],
    **{f"version {version}": at(0, version) for version in (0, 2, 255)},
    **{f"byte {position} of the frame is {byte}": at(position, byte) for position in (1, 2, 3, 12) for byte in (0, 0x13, 255)},
    **{f"byte {position} of the reqid is {byte}": at(AT + position, byte) for position in (0, 1, 2, 11) for byte in (0, 0x13, 255)},
    "the halves of the reqid the other way round": lambda sound: at(AT + 2, 0x11)(at(AT + 11, 0x09)(sound)),
    "a reqid that is another id": at(AT, 0x0A),
    **{f"id of version {version}": at(5, version << 4) for version in range(16) if version != 7},
    **{f"reqid of version {version}": at(AT + 4, version << 4) for version in range(16) if version != 7},
    **{f"id of variant {top:x}": at(20, top) for top in (0x00, 0x3F, 0x7F, 0x40, 0xC0, 0xFF)},
    **{f"reqid of variant {top:x}": at(AT + 19, top) for top in (0x00, 0x3F, 0x7F, 0x40, 0xC0, 0xFF)},
    "the reqid at another place": moved,
    "the reqid twice": lambda sound: sound[: AT + 20] + sound[AT:],
    "two reqids": lambda sound: sound + reqid_field(new_id()),
    "no reqid": lambda sound: sound[:AT] + sound[AT + 20 :],
    "another byte before": at(AT - 1, A[AT - 1] ^ 1),
    "another first byte before": at(HEAD_SIZE, A[HEAD_SIZE] ^ 1),
    "another byte behind": at(AT + 20, A[AT + 20] ^ 1),
    "another last byte": at(len(A) - 1, A[-1] ^ 1),
    "another ttl": lambda _: stated(response_from(METHOD, REMOTE_CLIENT), ttl=5001),
    "another method": lambda _: attachment_of(response_from(METHOD.with_resource(2), REMOTE_CLIENT)),
    "more behind": lambda sound: sound + b"\x28\x05",
    "a field that is unknown": lambda sound: sound + b"\xfa\x07\x00",
    "a token": lambda _: stated(response_from(METHOD, REMOTE_CLIENT), token="t"),
    "a tail that ends early": lambda sound: sound[:-1],
    "the end within the reqid": lambda sound: sound[: AT + 10],
    "a head and nothing else": lambda sound: sound[:HEAD_SIZE],
    "a version and nothing else": lambda sound: sound[:1],
    "nothing": lambda _: b"",
    "a byte before all": lambda sound: b"\x01" + sound,
    "twice": lambda sound: sound * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", FLAWS_OF_RESPONSES)
def test_one_flawed_response_gives_no_batch(name: str) -> None:
    count = MIN_BATCH
    decoder, payloads, attachments = warmed_decoder(A_KEY, A), numbers(count), similar_responses(count)
    for position in {0, 1, count // 2, count - 1}:
        flawed = [*attachments]
        flawed[position] = FLAWS_OF_RESPONSES[name](flawed[position])
        assert flawed[position] != attachments[position]
        assert decoder.decode_batch(A_KEY, flawed, payloads) is None
        if position > 0:  # also if another attachment compensates the length
            flawed[0] = attachments[0][: len(attachments[0]) * 2 - len(flawed[position])]
            assert decoder.decode_batch(A_KEY, flawed, payloads) is None
    assert decoder.decode_batch(A_KEY, attachments, payloads) is not None


def test_every_valid_reqid_is_accepted_in_a_batch() -> None:
    attachments = [
        at(AT + 4, version)(at(AT + 19, variant)(each))
        for (version, variant), each in zip(VALID_BYTES, similar_responses(len(VALID_BYTES)), strict=True)
    ]
    payloads = numbers(len(attachments))
    batch = warmed_decoder(A_KEY, A).decode_batch(A_KEY, attachments, payloads)
    assert batch is not None
    assert list(batch) == one_by_one(A_KEY, attachments, payloads)


@st.composite
def response_batches(draw: st.DrawFn) -> tuple[bytes, list[bytes]]:
    """A known response, and similar ones; some have bytes changed, removed or inserted, or a second reqid."""
    like = draw(st.sampled_from(list(KNOWN_RESPONSES.values())))
    attachments = similar_responses(draw(BATCH_SIZES), like)
    for _ in range(draw(st.integers(0, 2))):
        number = draw(st.integers(0, len(attachments) - 1))
        data = bytearray(attachments[number])
        begin = like.find(REQID_PREFIX, HEAD_SIZE)
        around = st.integers(begin, min(begin + 20, len(data)))
        position = draw(st.integers(0, len(data)) | around)
        taken_out = draw(st.sampled_from([0, 1, 2, 20]))
        data[position : position + taken_out] = draw(
            st.binary(min_size=taken_out, max_size=taken_out)
            | st.binary(max_size=2)
            | st.sampled_from(PIECES)
        )
        attachments[number] = bytes(data)
    return like, attachments


@settings(max_examples=120, deadline=None)
@given(response_batches())
def test_a_response_batch_equals_its_samples_decoded_one_by_one(
    known_and_batch: tuple[bytes, list[bytes]],
) -> None:
    like, attachments = known_and_batch
    payloads = numbers(len(attachments))
    decoder = warmed_decoder(A_KEY, like)
    batch = decoder.decode_batch(A_KEY, attachments, payloads)
    read = [decode_sample(A_KEY, *sample) for sample in zip(attachments, payloads, strict=True)]
    begin = like.find(REQID_PREFIX, HEAD_SIZE)
    expected = decode_sample(A_KEY, like, b"")
    assert isinstance(expected, UMessage)

    def is_sound(each: UMessage | SampleRefusal, arrived: bytes) -> bool:
        """True if all its bytes equal those of the first except id and reqid, which are valid."""
        if isinstance(each, SampleRefusal) or each.attributes.reqid is None:
            return False
        reqid = each.attributes.reqid
        stated = VERSION_BYTE + encode(each.id, ANSWER.attributes)[:20]
        whole = stated + like[HEAD_SIZE:begin] + reqid_field(reqid) + like[begin + 20 :]
        attributes = msgspec.structs.replace(expected.attributes, reqid=reqid)
        return each.id.is_valid and reqid.is_valid and arrived == whole and each.attributes == attributes

    sound = all(is_sound(*each) for each in zip(read, attachments, strict=True))
    assert (batch is not None) is sound
    if batch is not None:
        assert list(batch) == read


def test_id_columns_of_attachments_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_request: list[str] = []

    def counting(record: str, records: bytes) -> list[tuple[Any, ...]]:
        sent_request.append(record)
        return unpack_columns(record, records)

    monkeypatch.setattr(inbound_module, "unpack_columns", counting)
    each = similar_attachments(20)
    attachments = AttachmentColumns(each, TAIL)
    first = attachments.msb_lsb_columns()
    assert attachments.msb_lsb_columns() is first
    assert len(sent_request) == 1
    part = attachments.sliced(slice(3, 9))
    assert list(map(UUID, *part.msb_lsb_columns())) == [read_id(one) for one in each[3:9]]
    assert list(map(UUID, *attachments.msb_lsb_columns())) == [read_id(one) for one in each]
    assert (part.tail, len(sent_request)) == (TAIL, 2)
