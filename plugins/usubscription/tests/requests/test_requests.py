# SPDX-License-Identifier: Apache-2.0
"""Decoding of requests, and encoding of responses."""

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests.requests import (
    MAX_DETAILS,
    CallContext,
    specific_uuri,
    subscribe_attributes_of,
    subscription_record,
    topic_uuri,
    unpack_request,
)

from ustreamer.core.routing.usubscription_codec import pack_payload
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

APP = UUri("device1", 0x300EF, 4, 0)
ID = UUID(0x7000, 2 << 62)
TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
MS = 1_000_000
PROTOBUF, ANY, UNSPECIFIED = (
    UPayloadFormat.PROTOBUF,
    UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY,
    UPayloadFormat.UNSPECIFIED,
)


def call(payload: bytes = b"", payload_format: UPayloadFormat = PROTOBUF) -> CallContext:
    return CallContext(ID, APP, "device1", {"device1", "device2"}, payload, payload_format)


def hertz(value: float) -> bytes:
    """SubscribeAttributes.max_frequency of the draft: field 3 as a double."""
    return b"\x19" + struct.pack("<d", value)


def milliseconds(value: int) -> bytes:
    return pb.SubscribeAttributes(sample_period_ms=value).SerializeToString()


def tracked(desired: bytes) -> SubscriptionRecord:
    return subscription_record(TOPIC, APP, pb.SubscribeAttributes.FromString(desired))


# --- payloads ---------------------------------------------------------------------------------------------------------

PLAIN = bytes.fromhex("0a120a076465766963653210ab21180320cd8102")
WRAPPED = bytes.fromhex(
    "0a47747970652e676f6f676c65617069732e636f6d2f7570726f746f636f6c2e636f72652e75737562736372697074696f6e2e7633"
    "2e537562736372697074696f6e5265717565737412140a120a076465766963653210ab21180320cd8102"
)


@pytest.mark.parametrize(
    ("payload", "payload_format"), [(PLAIN, PROTOBUF), (PLAIN, UNSPECIFIED), (WRAPPED, ANY)]
)
def test_a_request_is_understood_plain_and_wrapped(payload: bytes, payload_format: UPayloadFormat) -> None:
    """[utest->dsn~usubscription-subscribe-protobuf~1]"""
    request = unpack_request(pb.SubscriptionRequest, call(payload, payload_format))
    assert UUri.from_pb(request.topic) == TOPIC


@pytest.mark.parametrize("payload_format", [PROTOBUF, UNSPECIFIED, ANY])
def test_no_payload_is_an_empty_request(payload_format: UPayloadFormat) -> None:
    request = unpack_request(pb.FetchSubscriptionsRequest, call(b"", payload_format))
    assert request.WhichOneof("request") is None


@pytest.mark.parametrize(
    ("payload", "payload_format", "why"),
    [
        (b"\xff", PROTOBUF, "payload of 1 bytes: not a uprotocol.core.usubscription.v3.SubscriptionRequest"),
        (PLAIN[:-1], UNSPECIFIED, "payload of 19 bytes: not a"),
        (PLAIN, ANY, "not a google.protobuf.Any"),
        (
            Any(type_url="type.googleapis.com/x.Y", value=PLAIN).SerializeToString(),
            ANY,
            "Any of type 'type.googleapis.com/x.Y', expected uprotocol.core.usubscription.v3.SubscriptionReq",
        ),
        (
            Any(
                type_url="t/uprotocol.core.usubscription.v3.SubscriptionRequest", value=b"\x0a"
            ).SerializeToString(),
            ANY,
            "payload of 1 bytes",
        ),
        (b"{}", UPayloadFormat.JSON, "payload format JSON: expected PROTOBUF or PROTOBUF_WRAPPED_IN_ANY"),
        (PLAIN, UPayloadFormat.SHM, "payload format SHM"),
    ],
)
def test_an_invalid_payload_is_rejected(payload: bytes, payload_format: UPayloadFormat, why: str) -> None:
    with pytest.raises(UStatusError) as refused:
        unpack_request(pb.SubscriptionRequest, call(payload, payload_format))
    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert why in refused.value.message


def test_a_response_has_the_format_of_its_request() -> None:
    answer = pb.UnsubscribeResponse()
    assert pack_payload(answer, PROTOBUF) == pack_payload(answer, UNSPECIFIED) == (b"", PROTOBUF)
    data, payload_format = pack_payload(answer, ANY)
    wrapped = Any.FromString(data)
    assert payload_format is ANY
    assert wrapped.type_url == "type.googleapis.com/uprotocol.core.usubscription.v3.UnsubscribeResponse"
    assert wrapped.value == b""


# --- addresses --------------------------------------------------------------------------------------------------------

BAD_TOPICS = [
    (UUri("*", 0x10AB, 3, 0x80CD), "authority is a wildcard"),
    (UUri("device2", 0xFFFF, 3, 0x80CD), "type is a wildcard"),
    (UUri("device2", 0xFFFF10AB, 3, 0x80CD), "instance is a wildcard"),
    (UUri("device2", 0xFFFFFFFF, 3, 0x80CD), "instance is a wildcard"),
    (UUri("device2", 0x10AB, 0xFF, 0x80CD), "version is a wildcard"),
    (UUri("device2", 0x10AB, 3, 0xFFFF), "resource is a wildcard"),
    (UUri("device2", 0x10AB, 3, 0), "resource 0 is not a topic, expected 8000..FFFE"),
    (UUri("device2", 0x10AB, 3, 0x7FFF), "resource 7FFF is not a topic"),
    (UUri("DEVICE2", 0x10AB, 3, 0x80CD), "authority 'DEVICE2' is not"),
    (UUri("device2:80", 0x10AB, 3, 0x80CD), "authority 'device2:80' is not"),
    (UUri("d" * 129, 0x10AB, 3, 0x80CD), "at most 128 characters"),
    (UUri("device2", 0x10AB, 0x100, 0x80CD), "ue_version_major 0x100 is not in 0..0xFF"),
    (UUri("device2", 0x10AB, 3, 0x10000), "resource_id 0x10000 is not in 0..0xFFFF"),
]


@pytest.mark.parametrize(("topic", "why"), BAD_TOPICS)
def test_a_malformed_or_wildcard_topic_is_rejected_with_its_name(topic: UUri, why: str) -> None:
    """[utest->dsn~usubscription-uri-version-major~1]"""
    with pytest.raises(UStatusError) as refused:
        topic_uuri(topic.to_pb(), call())
    assert refused.value.code is UCode.INVALID_ARGUMENT
    assert why in refused.value.message


@pytest.mark.parametrize("resource", [0x8000, 0x80CD, 0xFFFE])
def test_a_topic_without_authority_is_one_of_the_authority_that_was_called(resource: int) -> None:
    assert topic_uuri(UUri("", 1, 1, resource).to_pb(), call()) == UUri("device1", 1, 1, resource)


def test_a_subscriber_may_have_any_resource_but_no_wildcard() -> None:
    assert specific_uuri("subscriber", APP.to_pb(), call()) == APP
    with pytest.raises(UStatusError, match="subscriber up://device1/300EF/FF/0: its version is a wildcard"):
        specific_uuri("subscriber", UUri("device1", 0x300EF, 0xFF, 0).to_pb(), call())


# --- attributes -------------------------------------------------------------------------------------------------------

PERIODS = [
    (b"", 0, "nothing requested"),
    (milliseconds(1000), 1000 * MS, "sample_period_ms"),
    (b"\x18\x00", 0, "0 ms is no limit"),
    (milliseconds(2**32 - 1), (2**32 - 1) * MS, "the longest period that fits"),
    (hertz(60.0), 16_666_667, "max_frequency, in ns and never above the limit"),
    (hertz(0.1), 10_000 * MS, "once in ten seconds"),
    (milliseconds(10) + hertz(50.0), 20 * MS, "both: the slower, which is the frequency"),
    (hertz(50.0) + milliseconds(40), 40 * MS, "both, the other way round: the slower, which is the period"),
    (b"\x18\x00" + hertz(10.0), 100 * MS, "no limit and a limit"),
    (hertz(10.0) + hertz(20.0), 50 * MS, "twice: the last, as for any protobuf field"),
    (b"\x1d\x00\x00\x80\x3f", 0, "field 3 as a float is an unknown field"),
]


@pytest.mark.parametrize(("desired", "period_ns", "case"), PERIODS, ids=[case for *_, case in PERIODS])
def test_the_period_is_read_in_both_wire_types(desired: bytes, period_ns: int, case: str) -> None:
    assert tracked(desired).period_ns == period_ns, case


@pytest.mark.parametrize("value", [0.0, -0.0, -1.0, 1e-10, math.nan, math.inf, -math.inf])
def test_an_invalid_frequency_is_rejected(value: float) -> None:
    with pytest.raises(UStatusError, match="max_frequency .* Hz: expected a finite number") as refused:
        tracked(hertz(value))
    assert refused.value.code is UCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("seconds", "nanos", "expire_ms"),
    [
        (1781565900, 0, 1781565900_000),
        (1781565900, 1, 1781565900_001),
        (1781565900, 999_000_000, 1781565900_999),
        (1781565900, 999_999_999, 1781565901_000),
        (0, 0, 0),
        (-1, 1, -999),
        (253_402_300_799, 999_999_999, 253_402_300_800_000),
    ],
)
def test_expire_is_kept_in_ms_and_never_early(seconds: int, nanos: int, expire_ms: int) -> None:
    desired = pb.SubscribeAttributes()
    desired.expire.seconds, desired.expire.nanos = seconds, nanos
    assert subscription_record(TOPIC, APP, desired).expire_ms == expire_ms


@pytest.mark.parametrize(
    ("seconds", "nanos"),
    [(253_402_300_800, 0), (-62_135_596_801, 0), (0, -1), (0, 1_000_000_000), (2**63 - 1, 0)],
)
def test_an_expire_outside_of_protobufs_calendar_is_refused(seconds: int, nanos: int) -> None:
    desired = pb.SubscribeAttributes()
    desired.expire.seconds, desired.expire.nanos = seconds, nanos
    with pytest.raises(UStatusError, match=f"expire {seconds} s {nanos} ns: expected the years 1 to 9999"):
        subscription_record(TOPIC, APP, desired)


def test_details_for_the_producer_are_kept_up_to_a_bound() -> None:
    desired = pb.SubscribeAttributes(details=[Any(type_url="t/x", value=b"v" * 4000)], sample_period_ms=5)
    entry = subscription_record(TOPIC, APP, desired)
    assert subscribe_attributes_of(entry) == desired
    desired.details.add().value = b"v" * 100
    with pytest.raises(UStatusError, match=f"details: 41.. bytes, at most {MAX_DETAILS} are kept"):
        subscription_record(TOPIC, APP, desired)


@pytest.mark.parametrize(
    ("period_ns", "sample_period_ms"),
    [(0, None), (MS - 1, None), (MS, 1), (16_666_667, 16), (10**10, 10_000), (10**18, 2**32 - 1)],
)
def test_a_period_is_reported_in_whole_ms_rounded_down(period_ns: int, sample_period_ms: int | None) -> None:
    shown = subscribe_attributes_of(SubscriptionRecord(TOPIC, APP, period_ns))
    assert (shown.sample_period_ms if shown.HasField("sample_period_ms") else None) == sample_period_ms
    assert not shown.HasField("expire")


@given(st.integers(-62_135_596_800_000, 253_402_300_799_999), st.integers(0, 2**32 - 1))
def test_reported_attributes_request_the_same_when_sent_back(expire_ms: int, period_ms: int) -> None:
    entry = SubscriptionRecord(TOPIC, APP, period_ms * MS, expire_ms)
    assert subscription_record(TOPIC, APP, subscribe_attributes_of(entry)) == entry
