# SPDX-License-Identifier: Apache-2.0
"""Payloads as JSON values, with any result of a decoder."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.host.admin.payload_decoding import MAX_TEXT, MAX_TOPICS, DecodedPayload, PayloadDecoder
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat
from ustreamer.uprotocol.uuri import UUri

SPEED = UUri("chassis", 0x1234, 1, 0x8001)


def attributes(topic: UUri = SPEED, format: UPayloadFormat = UPayloadFormat.SOMEIP) -> UAttributes:
    return UAttributes(type=UMessageType.PUBLISH, source=topic, payload_format=format)


def shown(value: object) -> DecodedPayload | None:
    return PayloadDecoder(lambda topic: lambda payload: value).decode_payload(attributes(), b"")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (2**63, "9223372036854775808"),
        (1.5, "1.5"),
        (14.1, "14.1"),
        (struct.unpack("f", struct.pack("f", 14.1))[0], "14.1"),  # instead of 14.100000381469727
        (struct.unpack("f", b"\xff\xff\x7f\x7f")[0], "3.4028235e38"),
        (1e300, "1e300"),
        (0.1 + 0.2, "0.30000000000000004"),
        (float("nan"), '"nan"'),
        (float("-inf"), '"-inf"'),
        ("Ä", '"Ä"'),
        (b"\x01\xff", '"01ff"'),
        ({"a": [b"\1", (1, None)], 2: {}}, '{"a":["01",[1,null]],"2":{}}'),
    ],
)
def test_a_value_is_shown_as_json(value: object, text: str) -> None:
    assert str(shown(value)) == text


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_number_of_32_bits_is_shown_as_one_that_has_the_same(number: float) -> None:
    text = str(shown(number))
    assert struct.pack("f", float(text)) == struct.pack("f", number)
    assert len(text.strip("-").replace(".", "").partition("e")[0].strip("0")) <= 9


def endless() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "its decoder returned a object, which cannot be shown"),
        (endless(), "its values are more than 64 deep"),
        ("x" * MAX_TEXT, f"its value takes {MAX_TEXT + 2} bytes as text, more than {MAX_TEXT}"),
        ("\ud800", "surrogates"),
    ],
)
def test_an_undisplayable_value_is_reported_as_a_problem(value: object, problem: str) -> None:
    found = shown(value)
    assert found is not None
    assert problem in str(found)
    assert str(found).startswith("not decoded: ")


class Quiet(Exception):
    """An exception without text."""


@pytest.mark.parametrize(("error", "problem"), [(ValueError("too short"), "too short"), (Quiet(), "Quiet")])
def test_an_exception_of_a_decoder_is_the_problem(error: Exception, problem: str) -> None:
    def fails(_: object) -> Any:
        raise error

    for find in (fails, lambda topic: fails):
        assert PayloadDecoder(find).decode_payload(attributes(), b"") == DecodedPayload(problem=problem)


@pytest.mark.parametrize(
    ("format", "payload", "text"),
    [
        (UPayloadFormat.JSON, b'{"a": 1}', '{"a":1}'),
        (UPayloadFormat.TEXT, "Ä".encode(), '"Ä"'),
        (UPayloadFormat.RAW, b"x", "None"),
    ],
)
def test_a_payload_with_a_format_needs_no_plugin(format: UPayloadFormat, payload: bytes, text: str) -> None:
    assert str(PayloadDecoder(lambda topic: None).decode_payload(attributes(format=format), payload)) == text


def test_each_decoder_is_looked_up_once_in_a_bounded_cache() -> None:
    sent_request: list[UUri] = []

    def find(topic: UUri) -> Callable[[bytes], object]:
        sent_request.append(topic)
        return bytes.hex

    readable = PayloadDecoder(find)
    topics = [UUri("chassis", number, 1, 0x8001) for number in range(MAX_TOPICS + 1)]
    for topic in [*topics[:2], *topics, topics[-1]]:
        readable.decode_payload(attributes(topic), b"")
    assert sent_request == topics
    assert len(readable._decoders) <= MAX_TOPICS
    readable.decode_payload(attributes(topics[0]), b"")
    assert sent_request == [*topics, topics[0]]


def test_a_decoded_value_reaches_the_reader_unchanged() -> None:
    for each in (
        DecodedPayload(msgspec.Raw(b'{"a":[1,null]}')),
        DecodedPayload(msgspec.Raw(b"null")),
        DecodedPayload(problem="no"),
    ):
        assert str(msgspec.json.decode(msgspec.json.encode(each), type=DecodedPayload)) == str(each)
