# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

import msgspec
import pytest

from ustreamer.uprotocol.uattributes import UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import (
    UMessage,
    error_response,
    notification,
    publish,
    request,
    response,
    response_attributes,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

ID = UUID(0x018D548EA8E07000, 0x8000000000000001)
NEXT_ID = UUID(0x018D548EA8E07000, 0x8000000000000002)
TOPIC = UUri("device1", 0x10AB, 3, 0x80CD)
CLIENT = UUri("device1", 0x403AB, 3, 0)
METHOD = UUri("device2", 0xCD, 4, 0xB)

CALL = request(ID, CLIENT, METHOD, b"question", UPayloadFormat.PROTOBUF, ttl=5000, priority=UPriority.CS5)


@pytest.mark.parametrize(
    ("message", "type"),
    [
        (publish(ID, TOPIC), UMessageType.PUBLISH),
        (publish(ID, TOPIC, b"x", UPayloadFormat.RAW, priority=UPriority.CS0, ttl=9), UMessageType.PUBLISH),
        (notification(ID, TOPIC, CLIENT), UMessageType.NOTIFICATION),
        (notification(ID, TOPIC, CLIENT, b"x", UPayloadFormat.TEXT, ttl=9), UMessageType.NOTIFICATION),
        (request(ID, CLIENT, METHOD, ttl=1), UMessageType.REQUEST),
        (CALL, UMessageType.REQUEST),
        (response(NEXT_ID, CALL), UMessageType.RESPONSE),
        (error_response(NEXT_ID, CALL, UStatus(UCode.ABORTED)), UMessageType.RESPONSE),
    ],
)
def test_every_factory_creates_a_valid_message_with_priority(message: UMessage, type: UMessageType) -> None:
    message.check(strict=True)
    assert message.attributes.type is type
    assert message.attributes.priority  # up-python refuses a message that leaves it open


def test_the_factory_arguments_are_in_the_message() -> None:
    made = notification(
        ID, TOPIC, CLIENT, b"x", UPayloadFormat.TEXT, priority=UPriority.CS3, ttl=9
    ).attributes
    assert (made.source, made.sink, made.priority, made.ttl) == (TOPIC, CLIENT, UPriority.CS3, 9)
    assert made.payload_format is UPayloadFormat.TEXT


def test_a_request_has_the_client_as_source_and_the_method_as_sink() -> None:
    assert (CALL.attributes.source, CALL.attributes.sink, CALL.payload) == (CLIENT, METHOD, b"question")


def test_a_response_returns_with_priority_ttl_and_id_of_the_request() -> None:
    answer = response(NEXT_ID, CALL, b"answer", UPayloadFormat.RAW)
    made = answer.attributes
    assert (answer.id, answer.payload, made.payload_format) == (NEXT_ID, b"answer", UPayloadFormat.RAW)
    assert (made.source, made.sink) == (METHOD, CLIENT)
    assert (made.priority, made.ttl, made.reqid, made.commstatus) == (UPriority.CS5, 5000, ID, None)


# [utest->dsn~service-error-model-error-response~1]
def test_an_error_response_carries_the_status_as_commstatus_and_as_payload() -> None:
    status = UStatus(UCode.UNAVAILABLE, "link down")
    answer = error_response(NEXT_ID, CALL, status)
    assert answer.attributes.commstatus is UCode.UNAVAILABLE
    assert answer.attributes.payload_format is UPayloadFormat.PROTOBUF
    assert decode_status(answer.payload) == status


def without(**change: object) -> UMessage:
    return UMessage(ID, msgspec.structs.replace(CALL.attributes, **change))


@pytest.mark.parametrize(
    "refused",
    [
        without(priority=UPriority.CS0),
        without(priority=UPriority.UNSPECIFIED),
        without(ttl=None),
        without(ttl=0),
        without(reqid=NEXT_ID, commstatus=UCode.OK),
        without(traceparent="nonsense"),
    ],
    ids=["CS0", "no priority", "no ttl", "ttl 0", "reqid and commstatus", "bad traceparent"],
)
def test_the_response_to_a_refused_request_is_valid(refused: UMessage) -> None:
    error_response(NEXT_ID, refused, UStatus(UCode.INVALID_ARGUMENT)).check(strict=True)


@pytest.mark.parametrize(
    "message",
    [
        publish(ID, TOPIC),
        notification(ID, TOPIC, CLIENT),
        response(NEXT_ID, CALL),
        without(sink=None),
    ],
)
@pytest.mark.parametrize(
    "answer",
    [
        lambda message: response(NEXT_ID, message),
        lambda message: error_response(NEXT_ID, message, UStatus(UCode.INTERNAL)),
        lambda message: response_attributes(message, None, UPayloadFormat.RAW),
    ],
)
def test_only_a_request_has_a_response(message: UMessage, answer: Callable[[UMessage], object]) -> None:
    with pytest.raises(UStatusError, match=f"{message.attributes.type.name} {message.id}: only a REQUEST"):
        answer(message)


@pytest.mark.parametrize("strict", [False, True])
def test_a_message_needs_a_version_7_id(strict: bool) -> None:
    message = publish(UUID(ID.msb ^ 0x3000, ID.lsb), TOPIC)
    with pytest.raises(UStatusError, match="id 018d548e-a8e0-4000-8000-000000000001: expected a version 7"):
        message.check(strict=strict)


def test_a_message_is_checked_strictly_by_default() -> None:
    from_python_library = UMessage(NEXT_ID, msgspec.structs.replace(response(ID, CALL).attributes, ttl=None))
    from_python_library.check(strict=False)
    with pytest.raises(UStatusError, match="ttl above 0 ms, the request's"):
        from_python_library.check()


def test_a_message_leaves_with_the_authority_of_its_sender_where_it_has_none() -> None:
    local = notification(ID, TOPIC.with_authority(""), CLIENT.with_authority(""), b"x")
    assert local.sent_from("device1") == notification(ID, TOPIC, CLIENT, b"x")
    assert CALL.sent_from("other") is CALL


def test_a_publication_leaves_without_the_sink_that_a_streamer_added() -> None:
    plain = publish(ID, TOPIC, b"x")
    sunk = msgspec.structs.replace(plain.attributes, sink=CLIENT)
    assert msgspec.structs.replace(plain, attributes=sunk).sent_from("device1") == plain
