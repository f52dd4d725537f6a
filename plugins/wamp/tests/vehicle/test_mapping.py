# SPDX-License-Identifier: Apache-2.0
"""UUris as WAMP URIs and back; messages as arguments and back."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_wamp import uri
from ustreamer_wamp.connections.rawsocket import WIRE_FORMATS
from ustreamer_wamp.events import Publication, RetainedEvents, WampEvent
from ustreamer_wamp.vehicle.mapping import WampEventTemplate, may_name_topics, message_of, topic_of, uuri_of
from ustreamer_wamp.vehicle.patterns import Pattern, PatternDirectory

from ustreamer.core.base.clock import ManualClock
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

AUTHORITY = st.one_of(
    st.text("abz09-._~", min_size=1, max_size=20), st.sampled_from(["192.0.2.1", "[2001:db8::7]", "a" * 128])
)
TOPICS = st.builds(
    lambda authority, type, instance, version, resource: UUri(
        authority, instance << 16 | type, version, resource
    ),
    AUTHORITY,
    st.integers(0, 0xFFFE),
    st.integers(0, 0xFFFE),
    st.integers(0, 0xFE),
    st.integers(0x8000, 0xFFFE),
)
IDS = UuidSource(ManualClock().clock().wall_ms)
TOPIC = UUri("vcu", 0x10AB, 3, 0x80CD)


@given(TOPICS)
def test_a_topic_has_one_uri_and_the_uri_is_strict(topic: UUri) -> None:
    name = topic_of(topic)
    assert uuri_of(name) == topic
    assert uri.problem(name) == ""
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_.")
    assert len(name) <= 405


@given(TOPICS, TOPICS)
def test_two_topics_have_two_uris(one: UUri, other: UUri) -> None:
    assert (topic_of(one) == topic_of(other)) is (one == other)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("//vcu.my_vin/10AB/3/80CD", "up.vcu_2emy_5fvin.10ab.0.3.80cd"),
        ("//chassis/21234/1/8001", "up.chassis.1234.2.1.8001"),
        ("//[::1]/1/1/A1FB", "up._5b_3a_3a1_5d.1.0.1.a1fb"),
    ],
)
def test_examples(text: str, name: str) -> None:
    assert topic_of(UUri.parse(text)) == name
    assert uuri_of(name) == UUri.parse(text)


@pytest.mark.parametrize(
    "name",
    [
        "up.vcu.10ab.0.3",
        "up.vcu.10ab.0.3.80cd.1",
        "up.vcu.10AB.0.3.80cd",
        "up.vcu.010ab.0.3.80cd",
        "up.vcu.10ab.00.3.80cd",
        "up.vcu.10ab.0.3.7fff",  # a method
        "up.vcu.10ab.0.3.ffff",  # wildcards are empty components here
        "up.vcu.ffff.0.3.80cd",
        "up.vcu.10ab.ffff.3.80cd",
        "up.vcu.10ab.0.ff.80cd",
        "up.*.10ab.0.3.80cd",
        "up._2a.10ab.0.3.80cd",  # the same, escaped
        "up._.10ab.0.3.80cd",
        "up._76cu.10ab.0.3.80cd",  # an escape for a character that needs none
        "up.v_2Ecu.10ab.0.3.80cd",
        "up.v_c.10ab.0.3.80cd",
        "up._c3_a4.10ab.0.3.80cd",  # no authority has such letters
        "up..10ab.0.3.80cd",
        "UP.vcu.10ab.0.3.80cd",
        "com.vcu.10ab.0.3.80cd",
        "up.vcu.10ab.0.3.80cd\n",
        "",
    ],
)
def test_any_other_spelling_is_not_a_topic(name: str) -> None:
    assert uuri_of(name) is None


@pytest.mark.parametrize(
    ("match", "pattern", "may"),
    [
        ("prefix", "", True),
        ("prefix", "u", True),
        ("prefix", "up.vcu.", True),
        ("prefix", "upx", False),
        ("prefix", "com.", False),
        ("wildcard", ".....", True),
        ("wildcard", "up..10ab...80cd", True),
        ("wildcard", "com.....", False),
        ("wildcard", "up...", False),
    ],
)
def test_the_patterns_that_can_match_vehicle_topics(match: Any, pattern: str, may: bool) -> None:
    assert may_name_topics(pattern, match) is may


# --- messages -----------------------------------------------------------------------------------------------


def test_a_payload_that_cannot_be_decoded_is_passed_as_bytes() -> None:
    message = publish(IDS.next(), TOPIC, b"\x01\x02", UPayloadFormat.RAW)
    assert WampEventTemplate(message.attributes, None).args(message) == ([b"\x01\x02"], False)
    assert WampEventTemplate(message.attributes, lambda payload: {"a": len(payload)}).args(message) == (
        [{"a": 2}],
        False,
    )
    for wrong in (lambda _: object(), lambda _: {1: 2}, lambda _: 1 / 0, lambda _: 2**70):
        assert WampEventTemplate(message.attributes, wrong).args(message) == ([b"\x01\x02"], True)
    empty = publish(IDS.next(), TOPIC)
    assert WampEventTemplate(empty.attributes, lambda _: 1 / 0).args(empty) == ([], False)


@pytest.mark.parametrize(
    ("args", "kwargs", "payload", "form"),
    [
        ([], {}, b"", UPayloadFormat.UNSPECIFIED),
        ([b"\x01"], {}, b"\x01", UPayloadFormat.RAW),
        ([b"\x01"], {"format": "PROTOBUF"}, b"\x01", UPayloadFormat.PROTOBUF),
        (["ä"], {}, "ä".encode(), UPayloadFormat.TEXT),
        ([{"a": [1, None]}], {"priority": "CS3", "ttl": 7}, b'{"a":[1,null]}', UPayloadFormat.JSON),
    ],
)
def test_a_publication_of_a_client_becomes_a_message(
    args: list[Any], kwargs: dict[str, Any], payload: bytes, form: UPayloadFormat
) -> None:
    message = message_of(IDS.next(), TOPIC, args, kwargs)
    message.check()
    assert (message.payload, message.attributes.payload_format) == (payload, form)
    assert message.attributes.priority is (UPriority.CS3 if "priority" in kwargs else UPriority.CS1)
    assert message.attributes.ttl == kwargs.get("ttl")


@pytest.mark.parametrize(
    ("args", "kwargs", "word"),
    [
        ([1, 2], {}, "2 arguments"),
        ([b""], {"format": "XML"}, "format 'XML'"),
        (["text"], {"format": "RAW"}, "format: only"),
        ([b""], {"priority": "CS9"}, "priority 'CS9'"),
        ([b""], {"ttl": 0}, "ttl 0"),
        ([b""], {"ttl": True}, "ttl True"),
        ([b""], {"ttl": 2**32}, "ttl 4294967296"),
    ],
)
def test_an_invalid_publication_is_rejected_with_its_fault(
    args: list[Any], kwargs: dict[str, Any], word: str
) -> None:
    with pytest.raises(UStatusError, match=word):
        message_of(IDS.next(), TOPIC, args, kwargs)


# --- patterns and last values -------------------------------------------------------------------------------


def test_a_client_with_several_patterns_for_a_topic_is_one_subscriber_at_the_fastest_rate() -> None:
    changes: list[int] = []
    patterns = PatternDirectory(lambda: changes.append(1))
    one, other = UUri("w", 0x1_8001, 1, 0), UUri("w", 0x2_8001, 1, 0)
    patterns.add_pattern(Pattern(one, "up.", "prefix"), 50)
    patterns.add_pattern(Pattern(one, "up.vcu....", "wildcard"), 20)
    patterns.add_pattern(Pattern(other, "up.car.", "prefix"), 0)
    assert [(each.subscriber, each.period_ns) for each in patterns.subscribers(TOPIC)] == [(one, 20)]
    patterns.add_pattern(Pattern(one, "up.", "prefix"), 50)  # unchanged
    assert len(changes) == 3
    patterns.remove_pattern(Pattern(one, "up.vcu....", "wildcard"))
    patterns.remove_pattern(Pattern(one, "up.vcu....", "wildcard"))
    assert [each.period_ns for each in patterns.subscribers(TOPIC)] == [50]
    assert len(changes) == 4


def test_last_values_are_bounded_by_number_and_by_size() -> None:
    values = RetainedEvents(max_topics=3, max_bytes=1000)
    for number in range(5):
        values.retain(Publication(number, f"a.{number}", [number], {}, size=10))
    assert [each.id for each in values.matching("a.", "prefix")] == [2, 3, 4]
    values.retain(Publication(9, "a.2", [], {}, size=900))  # renewed: the latest now
    assert [each.id for each in values.matching("", "prefix")] == [3, 4, 9]
    values.retain(Publication(10, "b", [], {}, size=95))
    assert [each.id for each in values.matching("", "prefix")] == [9, 10]
    values.retain(Publication(11, "c", [], {}, size=2000))
    assert len(values) == 2
    values.discard("b")
    assert values._bytes == 900


def test_a_frame_is_kept_for_each_wire() -> None:
    event = WampEvent(Publication(7, "a", [b"x"], {}), 3, "exact")
    assert event.frame_for(WIRE_FORMATS[2]) is event.frame_for(WIRE_FORMATS[2])
    assert event.frame_for(WIRE_FORMATS[1]) != event.frame_for(WIRE_FORMATS[2])
    assert set(event.frames) == {WIRE_FORMATS[1], WIRE_FORMATS[2]}
