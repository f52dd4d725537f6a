# SPDX-License-Identifier: Apache-2.0
"""The kit's codecs against vectors of up-spec and of the protobuf guide."""

import uuid

import pytest
from uprotocol_tck.protobuf import Fields, MalformedProtobuf, field, fixed64
from uprotocol_tck.uprotocol import (
    ANYTHING,
    Attributes,
    Code,
    Kind,
    Priority,
    Status,
    Uri,
    Uuid,
    new_uuid,
    parse_uri,
    zenoh_key,
)
from uprotocol_tck.usubscription import DIALECTS, VERSION_3, Dialect, State, Subscription

# basics/uuri_protobuf_serialization.feature
UURI_VECTORS = [
    (Uri("", 0x1, 0x1, 0xA1FB), "1001180120fbc302"),
    (Uri("my_vin", 0x1000_0001, 0x2, 0x1A), "0a066d795f76696e1081808080011802201a"),
    (Uri("*", 0x101, 0xA0, 0xA1FB), "0a012a10810218a00120fbc302"),
    (Uri("mcu1", 0xFFFF, 0x1, 0xA1FB), "0a046d63753110ffff03180120fbc302"),
    (Uri("vcu.my_vin", 0xFFFF_FFFF, 0x1, 0xA1FB), "0a0a7663752e6d795f76696e10ffffffff0f180120fbc302"),
    (Uri("vcu.my_vin", 0x101, 0x0, 0xA1FB), "0a0a7663752e6d795f76696e10810220fbc302"),
    (Uri("vcu.my_vin", 0x101, 0x1, 0x0), "0a0a7663752e6d795f76696e1081021801"),
]
# The examples of up-l1/zenoh.adoc.
KEYS = [
    (Uri("device1", 0x10AB, 3, 0x80CD), None, "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
    (
        Uri("device1", 0x10AB, 3, 0x80CD),
        Uri("device2", 0x3_00EF, 4, 0),
        "up/device1/10AB/0/3/80CD/device2/EF/3/4/0",
    ),
    (Uri("device1", 0x4_03AB, 3, 0), Uri("device2", 0xCD, 4, 0xB), "up/device1/3AB/4/3/0/device2/CD/0/4/B"),
    (ANYTHING, Uri("device1", 0x3_00EF, 4, 0), "up/*/*/*/*/*/device1/EF/3/4/0"),
]
TOPIC, SUBSCRIBER = Uri("device1", 0x10AB, 3, 0x80CD), Uri("device2", 0x3_00EF, 4, 0)


@pytest.mark.parametrize(("uri", "encoded"), UURI_VECTORS)
def test_a_uuri_has_the_bytes_of_the_specification(uri: Uri, encoded: str) -> None:
    assert (uri.encode().hex(), Uri.decode(bytes.fromhex(encoded))) == (encoded, uri)


@pytest.mark.parametrize(("source", "sink", "key"), KEYS)
def test_a_key_is_that_of_the_examples(source: Uri, sink: Uri | None, key: str) -> None:
    assert zenoh_key(source, sink) == key


def test_an_address_is_parsed_from_its_text() -> None:
    assert parse_uri("up://device1/10AB/3/80CD") == parse_uri("//device1/10ab/3/80cd") == TOPIC
    for wrong in ("", "/10AB/3/80CD", "//device1/10AB/3", "//device1/xyz/3/80CD", "http://device1/1/1/1"):
        with pytest.raises(ValueError):
            parse_uri(wrong)


def test_an_id_is_a_uuid_of_version_7_and_of_this_moment() -> None:
    made = new_uuid()
    standard = uuid.UUID(int=made.msb << 64 | made.lsb)
    assert (standard.version, standard.variant, made.is_version_7) == (7, uuid.RFC_4122, True)
    assert new_uuid().time_ms - new_uuid(age_ms=5_000).time_ms in range(4_900, 5_001)
    assert Uuid.decode(made.encode()) == made
    assert not made._replace(msb=made.msb & ~0xF000 | 4 << 12).is_version_7
    assert not made._replace(lsb=0).is_version_7


def test_all_attributes_are_read_as_they_were_written() -> None:
    full = Attributes(
        new_uuid(), Kind.RESPONSE, TOPIC, SUBSCRIBER, Priority.CS6, 0, 3, Code.NOT_FOUND, new_uuid(), "t", "00-1-2-3", 2
    )  # fmt: skip
    assert Attributes.decode(full.encode()) == full
    least = Attributes(new_uuid(), Kind.PUBLISH, TOPIC)
    assert Attributes.decode(least.encode()) == least
    assert (full.code, least.code) == (Code.NOT_FOUND, Code.OK)


def test_a_status_is_read() -> None:
    assert Status.decode(field(1, 5) + field(2, "no such topic")) == (5, "no such topic")


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
@pytest.mark.parametrize("state", State)
def test_a_subscription_response_is_read_as_it_was_written(dialect: Dialect, state: State) -> None:
    assert dialect.read_subscribed(dialect.encode_subscribed(TOPIC, state)) == (state, TOPIC)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
def test_a_request_is_read_as_it_was_written(dialect: Dialect) -> None:
    wanted = dialect.read_request(dialect.subscribe(TOPIC, 1_700_000_000_123, 40))
    assert (wanted.topic, wanted.expire_ms, wanted.period_ms) == (TOPIC, 1_700_000_000_123, 40)
    bare = dialect.read_request(dialect.topic_request(TOPIC))
    assert (bare.topic, bare.expire_ms, bare.period_ms) == (TOPIC, None, None)


def test_an_update_of_version_3_and_a_subscription_of_version_4_are_read() -> None:
    stamp = field(1, 1_700_000_000) + field(2, 5_000_000)
    update = field(1, TOPIC.encode()) + field(2, field(1, SUBSCRIBER.encode())) + field(3, field(1, 2))
    expected = Subscription(TOPIC, SUBSCRIBER, State.SUBSCRIBED, 1_700_000_000_005, 25)
    assert VERSION_3.read_change(update + field(4, field(1, stamp) + field(3, 25))) == expected
    subscription = field(1, TOPIC.encode()) + field(2, SUBSCRIBER.encode()) + field(3, 3)
    assert DIALECTS[4].read_change(subscription + field(4, stamp) + field(5, 25)) == expected
    assert DIALECTS[4].read_list(field(1, subscription)) == [
        expected._replace(expire_ms=None, period_ms=None)
    ]


@pytest.mark.parametrize(
    "malformed",
    [b"\x0a", b"\x0a\x05abc", b"\x09\x00", b"\x0b", b"\xff", b"\x08" + b"\xff" * 10],
)
def test_bytes_that_are_no_message_are_refused(malformed: bytes) -> None:
    with pytest.raises(MalformedProtobuf):
        Fields(malformed)


def test_a_field_of_another_type_is_refused() -> None:
    with pytest.raises(MalformedProtobuf, match="field 1 has wire type 0, expected 2"):
        Fields(field(1, 7)).data(1)
    with pytest.raises(MalformedProtobuf, match="field 1 has wire type 1, expected 0"):
        Fields(fixed64(1, 7)).number(1)
    with pytest.raises(MalformedProtobuf, match="status 5, expected 1 to 4"):
        DIALECTS[4].read_subscribed(field(2, 5))
    with pytest.raises(MalformedProtobuf, match="no status"):
        VERSION_3.read_subscribed(b"")
