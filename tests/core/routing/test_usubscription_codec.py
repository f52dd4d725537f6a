# SPDX-License-Identifier: Apache-2.0
"""Payloads of core.usubscription: each reader decodes the payload of its writer."""

import pytest

from ustreamer.core.routing.usubscription_codec import (
    CHANGE_RESOURCE,
    Status,
    SubscribeRequest,
    SubscriptionUpdate,
    pack_payload,
    status_in,
    subscribe_in,
    subscribe_request,
    subscribe_response,
    subscription_update_in,
    unsubscribe_in,
    unsubscribe_request,
    unsubscribe_response,
    update_message,
)
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import notification
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

TOPIC, US = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc.vin1", 0, 3, 0)
PROTOBUF = UPayloadFormat.PROTOBUF
ID = UUID(0x7000, 2 << 62)


@pytest.mark.parametrize("expire_ms", [None, 1_781_565_900_123])
def test_a_subscribe_round_trips(expire_ms: int | None) -> None:
    subscription = SubscribeRequest(TOPIC, expire_ms)
    assert subscribe_in(3, subscribe_request(subscription).SerializeToString(), PROTOBUF) == subscription


def test_a_subscribe_of_version_4_is_read_with_its_period() -> None:
    request = pb4.SubscribeRequest(topic=TOPIC.to_pb(), sample_period=20)
    assert subscribe_in(4, request.SerializeToString(), PROTOBUF) == SubscribeRequest(TOPIC, None, 20_000_000)


def test_an_unsubscribe_is_read_in_both_versions() -> None:
    assert unsubscribe_in(3, unsubscribe_request(TOPIC).SerializeToString(), PROTOBUF) == TOPIC
    request = pb4.UnsubscribeRequest(topic=TOPIC.to_pb())
    assert unsubscribe_in(4, request.SerializeToString(), PROTOBUF) == TOPIC


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("read", [subscribe_in, unsubscribe_in])
def test_a_request_without_a_topic_is_an_error_that_names_the_field(version: int, read: object) -> None:
    assert callable(read)
    with pytest.raises(UStatusError, match="topic: missing") as refused:
        read(version, b"", PROTOBUF)
    assert refused.value.code is UCode.INVALID_ARGUMENT


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("status", [Status.UNSUBSCRIBED, Status.SUBSCRIBE_PENDING, Status.SUBSCRIBED])
def test_a_response_and_an_update_have_the_status_in_both_versions(version: int, status: Status) -> None:
    answer = subscribe_response(version, TOPIC, status, "because")
    assert status_in(version, *pack_payload(answer, PROTOBUF)) is status

    payload = update_message(version, TOPIC, US, status, "because").SerializeToString()
    update = notification(ID, UUri("chassis", 0, version, CHANGE_RESOURCE), US, payload, PROTOBUF)
    assert subscription_update_in(update) == SubscriptionUpdate(TOPIC, US, status)


@pytest.mark.parametrize("version", [3, 4])
def test_the_response_to_an_unsubscribe_is_empty(version: int) -> None:
    assert unsubscribe_response(version).SerializeToString() == b""
