# SPDX-License-Identifier: Apache-2.0
"""Attributes as properties of a packet, by the table of up-spec's up-l1/mqtt_5.adoc; read back by the library paho."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from ustreamer_mqtt.properties import PropertiesDecoder, PublishProperties, encode, pack

from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

ID = UUID.parse("018d548e-a8e0-7000-8000-000000000001")
REQID = UUID.parse("018d548e-a8e0-7000-8000-000000000002")
TOPIC = UUri("device1", 0x3BA, 3, 0x9876)
CLIENT = UUri("device1", 0x100AB, 1, 0)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
MINIMAL = [("uP", "1"), ("1", str(ID)), ("2", "pub.v1"), ("3", "up://device1/3BA/3/9876")]


def decode(properties: PublishProperties, limit: int = 32) -> tuple[UUID, UAttributes]:
    return PropertiesDecoder(limit).decode(properties, "device1", "device2")


def test_a_publication_with_nothing_else_has_four_user_properties() -> None:
    """[utest->dsn~up-transport-mqtt5-attributes-mapping~1]"""
    encoded = encode(ID, UAttributes(type=UMessageType.PUBLISH, source=TOPIC))
    assert encoded == PublishProperties(tuple(MINIMAL))


def test_every_attribute_has_its_property() -> None:
    attributes = UAttributes(
        type=UMessageType.RESPONSE,
        source=UUri("device1", 0x3BA, 3, 0x67),
        sink=CLIENT,
        priority=UPriority.CS5,
        ttl=5_001,
        permission_level=7,
        commstatus=UCode.NOT_FOUND,
        reqid=REQID,
        token="a token",
        traceparent=TRACE,
        payload_format=UPayloadFormat.SOMEIP_TLV,
    )
    encoded = encode(ID, attributes)
    assert dict(encoded.user) == {
        "uP": "1",
        "1": "018d548e-a8e0-7000-8000-000000000001",
        "2": "res.v1",
        "3": "up://device1/3BA/3/67",
        "4": "up://device1/100AB/1/0",
        "5": "CS5",
        "6": "5001",
        "7": "7",
        "8": "5",
        "10": "a token",
        "11": TRACE,
    }
    assert encoded.expiry_s == 6
    assert encoded.content_type == "5"
    assert encoded.correlation_data == bytes.fromhex("018d548ea8e070008000000000000002")
    assert decode(encoded) == (ID, attributes)


@pytest.mark.parametrize(
    ("ttl", "expiry_s", "user"),
    [
        (None, None, None),
        (0, None, None),
        (1, 1, "1"),
        (1000, 1, None),
        (1001, 2, "1001"),
        (60_000, 60, None),
    ],
)
def test_a_ttl_of_whole_seconds_is_the_expiry_interval_alone(
    ttl: int | None, expiry_s: int | None, user: str | None
) -> None:
    encoded = encode(ID, UAttributes(type=UMessageType.PUBLISH, source=TOPIC, ttl=ttl))
    assert (encoded.expiry_s, dict(encoded.user).get("6")) == (expiry_s, user)
    assert decode(encoded)[1].ttl == (ttl or None)


@pytest.mark.parametrize(
    ("ttl", "left_s", "expiry_s", "user"),
    [
        (2_000, 2, 2, None),
        (2_000, 1, 1, "2000"),
        (2_500, 1, 1, "2500"),
        (2_500, 9, 3, "2500"),
        (None, 1, None, None),
    ],
)
def test_a_message_that_waited_has_the_rest_as_its_interval_and_its_whole_ttl(
    ttl: int | None, left_s: int, expiry_s: int | None, user: str | None
) -> None:
    """A receiver adds the ttl to the time of the id. With the rest as its ttl the message would expire early."""
    encoded = encode(ID, UAttributes(type=UMessageType.PUBLISH, source=TOPIC, ttl=ttl), left_s)
    assert (encoded.expiry_s, dict(encoded.user).get("6")) == (expiry_s, user)
    assert decode(encoded)[1].ttl == ttl


def test_an_interval_that_no_ttl_can_have_is_the_longest_ttl() -> None:
    assert decode(PublishProperties(tuple(MINIMAL), expiry_s=0xFFFF_FFFF))[1].ttl == 0xFFFF_FFFF


def test_an_empty_authority_is_that_of_the_topic() -> None:
    """The sender of another library has no authority of its own in the properties."""
    user = [("uP", "1"), ("1", str(ID)), ("2", "not.v1"), ("3", "/3BA/3/9876"), ("4", "/100AB/1/0")]
    _, attributes = decode(PublishProperties(tuple(user)))
    assert (attributes.source.authority_name, attributes.sink and attributes.sink.authority_name) == (
        "device1",
        "device2",
    )


def test_foreign_user_properties_are_ignored() -> None:
    foreign = [("x", "1"), ("x", "2"), ("9", "?"), ("", "")]
    assert decode(PublishProperties((*MINIMAL, *foreign))) == decode(PublishProperties(tuple(MINIMAL)))


def without(key: str) -> list[tuple[str, str]]:
    return [pair for pair in MINIMAL if pair[0] != key]


WRONG: dict[str, tuple[list[tuple[str, str]], dict[str, Any], UCode, str]] = {
    "no version": (without("uP"), {}, UCode.INVALID_ARGUMENT, "no user property uP"),
    "another version": ([*without("uP"), ("uP", "2")], {}, UCode.UNIMPLEMENTED, "version '2', expected 1"),
    "no id": (without("1"), {}, UCode.INVALID_ARGUMENT, "0 user properties 1, the id"),
    "two ids": ([*MINIMAL, ("1", str(REQID))], {}, UCode.INVALID_ARGUMENT, "2 user properties 1, the id"),
    "an id of another version": (
        [*without("1"), ("1", "018d548e-a8e0-4000-8000-000000000001")],
        {},
        UCode.INVALID_ARGUMENT,
        "version 7",
    ),
    "no type": (without("2"), {}, UCode.INVALID_ARGUMENT, "2, the type: none"),
    "a wrong type": ([*without("2"), ("2", "pub.v2")], {}, UCode.INVALID_ARGUMENT, "2, the type: 'pub.v2'"),
    "no source": (without("3"), {}, UCode.INVALID_ARGUMENT, "no user property 3"),
    "a wrong source": ([*without("3"), ("3", "device1")], {}, UCode.INVALID_ARGUMENT, "UUri 'device1'"),
    "two sources": ([*MINIMAL, ("3", "/1/1/8000")], {}, UCode.INVALID_ARGUMENT, "property 3 is there twice"),
    "a wrong sink": ([*MINIMAL, ("4", "//a/1/1/g")], {}, UCode.INVALID_ARGUMENT, "resource 'g'"),
    "a wrong priority": ([*MINIMAL, ("5", "CS7")], {}, UCode.INVALID_ARGUMENT, "5, the priority: 'CS7'"),
    "an unspecified priority": ([*MINIMAL, ("5", "UNSPECIFIED")], {}, UCode.INVALID_ARGUMENT, "CS0 to CS6"),
    "a ttl with a sign": ([*MINIMAL, ("6", "-1")], {}, UCode.INVALID_ARGUMENT, "6, the ttl: '-1'"),
    "a ttl above 32 bits": ([*MINIMAL, ("6", "4294967296")], {}, UCode.INVALID_ARGUMENT, "0 to 4294967295"),
    "a ttl in foreign digits": ([*MINIMAL, ("6", "١")], {}, UCode.INVALID_ARGUMENT, "6, the ttl"),
    "a huge number": ([*MINIMAL, ("7", "9" * 5000)], {}, UCode.INVALID_ARGUMENT, "7, the permission level"),
    "a wrong commstatus": ([*MINIMAL, ("8", "OK")], {}, UCode.INVALID_ARGUMENT, "8, the commstatus: 'OK'"),
    "a wrong format": (MINIMAL, {"content_type": "text/plain"}, UCode.INVALID_ARGUMENT, "content type"),
    "an unknown format": (MINIMAL, {"content_type": "9"}, UCode.INVALID_ARGUMENT, "0 to 8"),
    "a short reqid": (MINIMAL, {"correlation_data": b"1"}, UCode.INVALID_ARGUMENT, "1 bytes, expected 16"),
    "too many": (
        [*MINIMAL, *[("x", "")] * 29],
        {},
        UCode.INVALID_ARGUMENT,
        "33 user properties, expected at most 32",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_property_is_refused_with_its_name(name: str) -> None:
    user, others, code, text = WRONG[name]
    with pytest.raises(UStatusError, match=text) as refused:
        decode(PublishProperties(tuple(user), **others))
    assert refused.value.code is code


def test_a_code_of_a_later_revision_is_unknown() -> None:
    assert decode(PublishProperties((*MINIMAL, ("8", "99"))))[1].commstatus is UCode.UNKNOWN


FORBIDDEN = {
    "the first controls": (0x0000, 0x0001),
    "the last control": (0x001F,),
    "delete": (0x007F,),
    "C1 controls": (0x0080, 0x0085, 0x009F),
    "surrogates": (0xD800, 0xDFFF),
    "non-characters of Arabic": (0xFDD0, 0xFDEF),
    "the last two of each plane": [plane << 16 | last for plane in range(17) for last in (0xFFFE, 0xFFFF)],
}
ALLOWED = (0x20, 0x7E, 0xA0, 0xD7FF, 0xE000, 0xFDCF, 0xFDF0, 0xFEFF, 0xFFFD, 0x10000, 0x1FFFD, 0x10FFFD)


@pytest.mark.parametrize("field", ["token", "traceparent"])
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_character_that_mqtt_forbids_is_refused_with_its_field(field: str, name: str) -> None:
    """A broker ends the connection with such a packet, and would get it first on each further one."""
    for code in FORBIDDEN[name]:
        given: dict[str, Any] = {field: f"a{chr(code)}b"}
        attributes = UAttributes(type=UMessageType.PUBLISH, source=TOPIC, **given)
        text = f"{field} has the character U+{code:04X}, which MQTT forbids"
        with pytest.raises(UStatusError, match=re.escape(text)) as refused:
            pack(encode(ID, attributes))
        assert refused.value.code is UCode.INVALID_ARGUMENT


def test_all_other_characters_are_carried() -> None:
    text = "".join(map(chr, ALLOWED))
    attributes = UAttributes(type=UMessageType.PUBLISH, source=TOPIC, token=text, traceparent=text)
    assert pack(encode(ID, attributes)).count(text.encode()) == 2


@pytest.mark.parametrize(("field", "source", "sink"), [("source", "a\x01", ""), ("sink", "a", "b\x01")])
def test_an_address_that_nothing_has_checked_is_refused_too(field: str, source: str, sink: str) -> None:
    attributes = UAttributes(
        type=UMessageType.NOTIFICATION, source=UUri(source, 1, 1, 0x8001), sink=UUri(sink, 1, 1, 0)
    )
    with pytest.raises(UStatusError, match=rf"{field} has the character U\+0001, which MQTT forbids"):
        pack(encode(ID, attributes))


def test_a_text_that_is_too_long_is_refused() -> None:
    def with_token(number: int) -> bytes:
        return pack(encode(ID, UAttributes(type=UMessageType.PUBLISH, source=TOPIC, token="ü" * number)))

    assert with_token(0x7FFF)
    with pytest.raises(UStatusError, match="token has 65536 bytes, MQTT allows 65535") as refused:
        with_token(0x8000)
    assert refused.value.code is UCode.INVALID_ARGUMENT


uuris = st.builds(
    UUri, st.just("device1"), st.integers(0, 0xFFFF_FFFF), st.integers(0, 0xFF), st.integers(0, 0xFFFF)
)
ids = st.builds(
    lambda high, low: UUID(high << 16 | 0x7000, 0b10 << 62 | low),
    st.integers(0, 2**48 - 1),
    st.integers(0, 2**62 - 1),
)
numbers = st.none() | st.integers(0, 0xFFFF_FFFF)
# U+FEFF: MQTT allows it, the library does not. Cn has the non-characters.
texts = st.text(
    st.characters(exclude_characters="\ufeff", exclude_categories=["Cc", "Cn", "Cs"]),
    min_size=1,
    max_size=300,
)
attributes_of_any_kind = st.builds(
    UAttributes,
    type=st.sampled_from(list(UMessageType)[1:]),
    source=uuris,
    sink=st.none() | uuris,
    priority=st.sampled_from(UPriority),
    ttl=st.none() | st.integers(1, 0xFFFF_FFFF),
    permission_level=numbers,
    commstatus=st.none() | st.sampled_from(UCode),
    reqid=st.none() | ids,
    token=st.none() | texts,
    traceparent=st.none() | texts,
    payload_format=st.sampled_from(UPayloadFormat),
)


@given(ids, attributes_of_any_kind)
def test_whatever_is_packed_is_read_back_by_another_program(id: UUID, attributes: UAttributes) -> None:
    packed = pack(encode(id, attributes))
    read: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    _, length = read.unpack(packed)
    assert length == len(packed)
    found = PublishProperties(
        tuple(read.UserProperty),
        getattr(read, "ContentType", None),
        getattr(read, "CorrelationData", None),
        getattr(read, "MessageExpiryInterval", None),
    )
    assert decode(found) == (id, attributes)


@given(st.lists(st.tuples(st.sampled_from(["uP", *map(str, range(12))]), st.text(max_size=12)), max_size=12))
def test_any_properties_are_a_message_or_refused(user: list[tuple[str, str]]) -> None:
    with pytest.raises(UStatusError) as refused:
        decode(PublishProperties(tuple(user)))
    assert refused.value.code in {UCode.INVALID_ARGUMENT, UCode.UNIMPLEMENTED}
