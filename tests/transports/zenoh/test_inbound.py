# SPDX-License-Identifier: Apache-2.0
import re
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.transports.contract import (
    ALPHA,
    METHOD,
    REMOTE_CLIENT,
    TOPIC,
    four_messages,
    new_id,
    response_from,
)
from ustreamer.transports.zenoh.inbound import (
    MAX_ATTACHMENT,
    VERSION_BYTE,
    InboundReader,
    Reason,
    Refusal,
    inbound,
)
from ustreamer.transports.zenoh.keys import NO_SINK, message_key
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, notification, publish
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at
from ustreamer.uprotocol.wire import REQID_PREFIX, encode, reqid_field

Read = Callable[[str, bytes | None, bytes], UMessage | Refusal]


def reader_twice(key: str, attachment: bytes | None, payload: bytes) -> UMessage | Refusal:
    """The caching reader, asked a second time, when it may answer from its caches."""
    reader = InboundReader()
    first = reader.read(key, attachment, payload)
    second = reader.read(key, attachment, payload)
    assert first == second
    return second


both_ways = pytest.mark.parametrize("read", [inbound, reader_twice])


def attachment_of(message: UMessage) -> bytes:
    return VERSION_BYTE + encode(message.id, message.attributes)


def key_of(message: UMessage) -> str:
    return message_key(message.attributes.source, message.attributes.sink, ALPHA)


def stated(message: UMessage, **changes: object) -> bytes:
    """The attachment of `message` with other attributes."""
    return VERSION_BYTE + encode(message.id, msgspec.structs.replace(message.attributes, **changes))


@both_ways
@pytest.mark.parametrize("position", range(4))
def test_a_message_is_read_as_it_was_written(read: Read, position: int) -> None:
    message = four_messages()[position]
    assert read(key_of(message), attachment_of(message), message.payload) == message


class Refused(NamedTuple):
    reason: Reason
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
    "no attachment": Refused(Reason.NO_ATTACHMENT, "no attachment", P_KEY, None),
    "an empty attachment": Refused(Reason.SHORT, "0 bytes, expected 01", P_KEY, b""),
    "a version and nothing else": Refused(Reason.SHORT, "1 bytes, expected 01", P_KEY, b"\x01"),
    "version 2": Refused(Reason.VERSION, "begins with 02, expected 01", P_KEY, b"\x02" + P[1:]),
    "no version": Refused(Reason.VERSION, "begins with 0a, expected 01", P_KEY, P[1:]),
    "a huge attachment": Refused(
        Reason.LONG, "16385 bytes, limit 16384", P_KEY, b"\x01" + bytes(MAX_ATTACHMENT)
    ),
    "no protobuf": Refused(Reason.ATTRIBUTES, "not protobuf", P_KEY, b"\x01\xff\xff\xff"),
    "attributes cut short": Refused(Reason.ATTRIBUTES, "not protobuf", P_KEY, P[:-1]),
    "attributes without id": Refused(Reason.ATTRIBUTES, "id is missing", P_KEY, b"\x01" + P[21:]),
    "an authority in capitals": Refused(
        Reason.ATTRIBUTES, "authority 'ALPHA'", P_KEY, stated(PUBLICATION, source=UUri("ALPHA", 1, 1, 0x8000))
    ),
    "a foreign key": Refused(Reason.KEY, "expected up/", "demo/example", P),
    "a key with a wildcard": Refused(Reason.KEY, "is a pattern", P_KEY.replace("8001", "*"), P),
    "a publication with a sink in its key": Refused(Reason.KEY, "is a pattern", SINK_IN_KEY, P),
    "another source authority": Refused(
        Reason.MISMATCH, "from up://elsewhere/", P_KEY, stated(PUBLICATION, source=ELSEWHERE)
    ),
    "another resource": Refused(
        Reason.MISMATCH, "/8002 to None", P_KEY, stated(PUBLICATION, source=TOPIC.with_resource(0x8002))
    ),
    "another sink": Refused(
        Reason.MISMATCH,
        "to up://beta.vin1/F/1/0",
        N_KEY,
        stated(NOTIFICATION, sink=UUri("beta.vin1", 0xF, 1, 0)),
    ),
    "another sink authority": Refused(
        Reason.MISMATCH, "to up://gamma/", N_KEY, stated(NOTIFICATION, sink=UUri("gamma", 0xE, 1, 0))
    ),
    "a missing sink": Refused(Reason.MISMATCH, "to None", N_KEY, stated(NOTIFICATION, sink=None)),
    "a notification on the key of a publication": Refused(
        Reason.MISMATCH, "a NOTIFICATION on key .* names no sink", P_KEY, N
    ),
    "a publication on the key of a notification": Refused(
        Reason.MISMATCH,
        "a PUBLISH on key .* names sink",
        N_KEY,
        stated(NOTIFICATION, type=UMessageType.PUBLISH),
    ),
    "no type on the key of a publication": Refused(
        Reason.MISMATCH, "a UNSPECIFIED on key", P_KEY, stated(PUBLICATION, type=UMessageType.UNSPECIFIED)
    ),
}


@both_ways
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_message_is_refused_with_its_reason(read: Read, name: str) -> None:
    case = REFUSED[name]
    refusal = read(case.key, case.attachment, b"payload")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is case.reason
    assert re.search(case.text, refusal.text)


def test_every_reason_has_a_case() -> None:
    # A delete is told by the kind of the sample, which tests/transports/zenoh/test_wire.py does.
    assert {case.reason for case in REFUSED.values()} == set(Reason) - {Reason.DELETE}


# --- what the key fills in ------------------------------------------------------------------------------------------


@both_ways
def test_an_empty_authority_is_the_one_in_the_key(read: Read) -> None:
    source, sink = (UUri("", *parts) for parts in ((TOPIC.ue_id, 1, 0x8001), (REMOTE_CLIENT.ue_id, 1, 0)))
    message = read(N_KEY, stated(NOTIFICATION, source=source, sink=sink), b"")
    assert message == NOTIFICATION


def test_the_same_header_on_another_key_is_another_source() -> None:
    reader = InboundReader()
    header = stated(PUBLICATION, source=UUri("", TOPIC.ue_id, TOPIC.ue_version_major, TOPIC.resource_id))
    sources = []
    for authority in ("one", "two", "one", "two"):
        message = reader.read(P_KEY.replace(ALPHA, authority), header, b"")
        assert isinstance(message, UMessage)
        sources.append(message.attributes.source.authority_name)
    assert sources == ["one", "two", "one", "two"]


def test_a_header_that_passed_on_its_own_key_does_not_pass_on_another() -> None:
    reader = InboundReader()
    assert isinstance(reader.read(P_KEY, P, b""), UMessage)
    refusal = reader.read(P_KEY.replace("8001", "8002"), P, b"")
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.MISMATCH


@both_ways
@pytest.mark.parametrize("sink", [any_at("beta.vin1"), UUri("beta.vin1", 1, 1, 5), UUri("", 0, 0, 0)])
def test_a_publication_loses_the_sink_that_a_streamer_put_in(read: Read, sink: UUri) -> None:
    assert read(P_KEY, stated(PUBLICATION, sink=sink), b"") == PUBLICATION


# --- caches ---------------------------------------------------------------------------------------------------------


def test_messages_of_one_topic_share_their_attributes() -> None:
    reader = InboundReader()
    header = stated(PUBLICATION, sink=any_at("beta.vin1"))  # also where the attributes had to be changed
    first, second = reader.read(P_KEY, header, b""), reader.read(P_KEY, header, b"")
    assert isinstance(first, UMessage)
    assert isinstance(second, UMessage)
    assert first.attributes is second.attributes


@pytest.mark.parametrize(
    "other",
    [
        P[:3] + b"\x11" + P[4:12] + b"\x09" + P[13:],  # the halves of the id the other way round
        b"\x02" + P[1:],
        P[:2] + b"\x13" + P[3:],
        P[:12] + b"\x12" + P[13:],
        P[21:],
    ],
)
def test_another_frame_around_a_header_that_is_known_is_read_anew(other: bytes) -> None:
    reader = InboundReader()
    for _ in range(2):
        assert isinstance(reader.read(P_KEY, P, b""), UMessage)
    assert reader.read(P_KEY, other, b"") == inbound(P_KEY, other, b"")


def test_the_caches_are_bounded_and_skip_what_does_not_repeat() -> None:
    reader = InboundReader(limit=10)
    for number in range(100):
        topic = TOPIC.with_resource(0x8000 + number)
        message = publish(new_id(), topic)
        assert reader.read(key_of(message), attachment_of(message), b"") == message
        assert len(reader._agreed) <= 10
    reader = InboundReader()
    for _ in range(10):
        answer = response_from(METHOD, REMOTE_CLIENT)
        assert reader.read(key_of(answer), attachment_of(answer), b"") == UMessage(
            answer.id, answer.attributes
        )
    assert len(reader._agreed) == 0
    assert len(reader._answers) == 1


def test_answers_are_read_by_what_is_around_their_reqid(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = InboundReader()
    decoded: list[bytes] = []
    decode = reader._decoder.decode

    def counting(data: bytes) -> tuple[UUID, UAttributes]:
        decoded.append(data)
        return decode(data)

    monkeypatch.setattr(reader._decoder, "decode", counting)
    failed = {"commstatus": UCode.INTERNAL, "payload_format": UPayloadFormat.PROTOBUF}
    for number in range(5):
        for changes in ({}, failed, {"ttl": None}):
            answer = response_from(METHOD, REMOTE_CLIENT)
            answer = UMessage(
                answer.id, msgspec.structs.replace(answer.attributes, **changes), b"%d" % number
            )
            assert reader.read(key_of(answer), attachment_of(answer), answer.payload) == answer
    assert len(decoded) == 3


def test_what_is_kept_of_answers_is_bounded() -> None:
    reader = InboundReader(limit=10)
    for number in range(100):
        answer = response_from(METHOD, REMOTE_CLIENT.with_authority("a"))
        answer = UMessage(answer.id, msgspec.structs.replace(answer.attributes, ttl=number + 1))
        assert reader.read(key_of(answer), attachment_of(answer), b"") == answer
        assert len(reader._answers) <= 10


@pytest.mark.parametrize("change", [{"token": "t"}, {"traceparent": "00-x"}])
def test_an_answer_with_something_of_its_own_is_not_kept(change: dict[str, object]) -> None:
    reader = InboundReader()
    reader.read(key_of(ANSWER), stated(ANSWER, **change), b"")
    assert len(reader._answers) == 0


@both_ways
def test_a_long_header_is_read_and_not_kept(read: Read) -> None:
    message = publish(new_id(), TOPIC)
    unknown = b"\xfa\x07\xe8\x07" + bytes(1000)  # field 127, 1000 bytes, of a later revision
    long = UMessage(message.id, msgspec.structs.replace(message.attributes, unknown=unknown))
    assert read(P_KEY, attachment_of(long), b"") == long
    reader = InboundReader()
    reader.read(P_KEY, attachment_of(long), b"")
    assert len(reader._agreed) == 0


# --- anything at all ------------------------------------------------------------------------------------------------


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sound attachment with some bytes changed, taken out or put in."""
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
def test_any_bytes_are_a_message_or_a_reason(key: str, attachment: bytes | None, payload: bytes) -> None:
    read = inbound(key, attachment, payload)
    assert read == reader_twice(key, attachment, payload)
    if isinstance(read, Refusal):
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
    """An answer, with bytes changed, taken out, or put in, also such as look like a reqid."""
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


@settings(max_examples=400)
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
def test_an_answer_says_what_it_says_whatever_came_before_it(attachments: list[bytes]) -> None:
    reader = InboundReader()
    for attachment in attachments * 2:
        assert reader.read(A_KEY, attachment, b"x") == inbound(A_KEY, attachment, b"x")
