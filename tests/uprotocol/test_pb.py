# SPDX-License-Identifier: Apache-2.0
import ast
import importlib
import importlib.util
import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from google.protobuf import any_pb2, json_format, timestamp_pb2
from google.protobuf.internal import well_known_types
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from ustreamer.uprotocol import pb
from ustreamer.uprotocol.pb import (
    google_any,
    google_timestamp,
    uattributes,
    ucode,
    umessage,
    uri,
    ustatus,
    ustreamer_v1,
    usubscription_v3,
    usubscription_v4,
    uuid,
)

ROOT = Path(__file__).resolve().parents[2]
PB = ROOT / "ustreamer" / "uprotocol" / "pb"
HAND_WRITTEN = {"__init__.py", "_pool.py"}

# ---------------------------------------------------------------------------------------------------- vectors
# The bytes come from implementations other than this one: the specification's own feature files (UUri, UUID)
# and messages made with upstream's .proto files.

MSB = 0x018D548EA8E07000
FIRST = uuid.UUID(msb=MSB, lsb=0x8000000000000001)
SECOND = uuid.UUID(msb=MSB, lsb=0x8000000000000002)


def address(authority: str, ue_id: int, version: int, resource: int) -> uri.UUri:
    return uri.UUri(authority_name=authority, ue_id=ue_id, ue_version_major=version, resource_id=resource)


def info(entity: uri.UUri) -> usubscription_v3.SubscriberInfo:
    return usubscription_v3.SubscriberInfo(uri=entity)


def state(number: int) -> usubscription_v3.SubscriptionStatus:
    return usubscription_v3.SubscriptionStatus(state=number)


TOPIC = address("device2", 0x10AB, 3, 0x80CD)
SUBSCRIBER = address("device1", 0x300EF, 4, 0)
EXPIRY = google_timestamp.Timestamp(seconds=1781565900)
SUBSCRIBED = state(usubscription_v3.SubscriptionStatus.SUBSCRIBED)
PENDING = state(usubscription_v3.SubscriptionStatus.SUBSCRIBE_PENDING)

VECTORS: dict[str, tuple[Message, str]] = {
    "UUri of a local topic": (address("", 0x1, 0x1, 0xA1FB), "1001180120fbc302"),
    "UUri of a method": (
        address("my_vin", 0x10000001, 0x2, 0x1A),
        "0a066d795f76696e1081808080011802201a",
    ),
    "UUri of any authority": (
        address("*", 0x101, 0xA0, 0xA1FB),
        "0a012a10810218a00120fbc302",
    ),
    "UUri of any type": (
        address("mcu1", 0xFFFF, 0x1, 0xA1FB),
        "0a046d63753110ffff03180120fbc302",
    ),
    "UUri with an instance": (
        address("vcu.my_vin", 0x1A40101, 0x1, 0x8000),
        "0a0a7663752e6d795f76696e108182900d180120808002",
    ),
    "UUri of any instance": (
        address("vcu.my_vin", 0xFFFF0101, 0x1, 0xA1FB),
        "0a0a7663752e6d795f76696e108182fcff0f180120fbc302",
    ),
    "UUri of any entity": (
        address("vcu.my_vin", 0xFFFFFFFF, 0x1, 0xA1FB),
        "0a0a7663752e6d795f76696e10ffffffff0f180120fbc302",
    ),
    "UUri of version 0": (
        address("vcu.my_vin", 0x101, 0x0, 0xA1FB),
        "0a0a7663752e6d795f76696e10810220fbc302",
    ),
    "UUri of any version": (
        address("vcu.my_vin", 0x101, 0xFF, 0xA1FB),
        "0a0a7663752e6d795f76696e10810218ff0120fbc302",
    ),
    "UUri of an entity": (
        address("vcu.my_vin", 0x101, 0x1, 0x0),
        "0a0a7663752e6d795f76696e1081021801",
    ),
    "UUri of any resource": (
        address("vcu.my_vin", 0x101, 0x1, 0xFFFF),
        "0a0a7663752e6d795f76696e108102180120ffff03",
    ),
    "UUID early": (
        uuid.UUID(msb=0x0000000000017000, lsb=0x8010101010101A1A),
        "090070010000000000111a1a101010101080",
    ),
    "UUID late": (
        uuid.UUID(msb=0xFFFFFFFFFFFF7000, lsb=0x8010FFAABB997700),
        "090070ffffffffffff11007799bbaaff1080",
    ),
    "Publish": (
        uattributes.UAttributes(
            id=FIRST, type=uattributes.UMESSAGE_TYPE_PUBLISH, source=address("device1", 0x10AB, 3, 0x80CD)
        ),
        "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102",
    ),
    "Publish, ttl set to 0": (
        uattributes.UAttributes(
            id=FIRST,
            type=uattributes.UMESSAGE_TYPE_PUBLISH,
            source=address("device1", 0x10AB, 3, 0x80CD),
            priority=uattributes.UPRIORITY_CS2,
            ttl=0,
            payload_format=uattributes.UPAYLOAD_FORMAT_TEXT,
        ),
        "0a12090070e0a88e548d0111010000000000008010011a120a076465766963653110ab21180320cd8102280330006007",
    ),
    "Notification": (
        uattributes.UAttributes(
            id=FIRST,
            type=uattributes.UMESSAGE_TYPE_NOTIFICATION,
            source=address("device1", 0x10AB, 3, 0x80CD),
            sink=address("device2", 0x300EF, 4, 0),
        ),
        (
            "0a12090070e0a88e548d0111010000000000008010041a120a076465766963653110ab21180320cd8102220f"
            "0a076465766963653210ef810c1804"
        ),
    ),
    "Request": (
        uattributes.UAttributes(
            id=FIRST,
            type=uattributes.UMESSAGE_TYPE_REQUEST,
            source=address("device1", 0x403AB, 3, 0),
            sink=address("device2", 0xCD, 4, 0xB),
            priority=uattributes.UPRIORITY_CS4,
            ttl=5000,
            permission_level=2,
            token="tok",
            payload_format=uattributes.UPAYLOAD_FORMAT_PROTOBUF,
        ),
        (
            "0a12090070e0a88e548d0111010000000000008010021a0f0a076465766963653110ab8710180322100a0764"
            "65766963653210cd011804200b280530882738025203746f6b6002"
        ),
    ),
    "Response": (
        uattributes.UAttributes(
            id=SECOND,
            type=uattributes.UMESSAGE_TYPE_RESPONSE,
            source=address("device2", 0xCD, 4, 0xB),
            sink=address("device1", 0x403AB, 3, 0),
            priority=uattributes.UPRIORITY_CS4,
            ttl=5000,
            commstatus=ucode.NOT_FOUND,
            reqid=FIRST,
        ),
        (
            "0a12090070e0a88e548d0111020000000000008010031a100a076465766963653210cd011804200b220f0a07"
            "6465766963653110ab87101803280530882740054a12090070e0a88e548d01110100000000000080"
        ),
    ),
    "Request of a remote v3 Subscribe": (
        uattributes.UAttributes(
            id=FIRST,
            type=uattributes.UMESSAGE_TYPE_REQUEST,
            source=address("device1", 0, 3, 0),
            sink=address("device2", 0, 3, 1),
            priority=uattributes.UPRIORITY_CS4,
            ttl=300_000,
            payload_format=uattributes.UPAYLOAD_FORMAT_PROTOBUF,
        ),
        (
            "0a12090070e0a88e548d0111010000000000008010021a0b0a07646576696365311803220d0a076465766963"
            "653218032001280530e0a7126002"
        ),
    ),
    "UStatus": (
        ustatus.UStatus(code=ucode.INVALID_ARGUMENT, message="bad topic"),
        "0803120962616420746f706963",
    ),
    "UStatus of success": (ustatus.UStatus(code=ucode.OK), ""),
    "v3 SubscriptionRequest": (
        usubscription_v3.SubscriptionRequest(
            topic=TOPIC,
            attributes=usubscription_v3.SubscribeAttributes(expire=EXPIRY, sample_period_ms=1000),
        ),
        "0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807",
    ),
    "v3 SubscriptionResponse, subscribed": (
        usubscription_v3.SubscriptionResponse(status=SUBSCRIBED, topic=TOPIC),
        "0a0208021a120a076465766963653210ab21180320cd8102",
    ),
    "v3 SubscriptionResponse, pending": (
        usubscription_v3.SubscriptionResponse(status=PENDING, topic=TOPIC),
        "0a0208011a120a076465766963653210ab21180320cd8102",
    ),
    "v3 Update": (
        usubscription_v3.Update(topic=TOPIC, subscriber=info(SUBSCRIBER), status=SUBSCRIBED),
        "0a120a076465766963653210ab21180320cd810212110a0f0a076465766963653110ef810c18041a020802",
    ),
    "v3 SubscriptionRequest in an Any": (
        google_any.Any(
            type_url="type.googleapis.com/uprotocol.core.usubscription.v3.SubscriptionRequest",
            value=usubscription_v3.SubscriptionRequest(topic=TOPIC).SerializeToString(),
        ),
        (
            "0a47747970652e676f6f676c65617069732e636f6d2f7570726f746f636f6c2e636f72652e75737562736372"
            "697074696f6e2e76332e537562736372697074696f6e5265717565737412140a120a076465766963653210ab"
            "21180320cd8102"
        ),
    ),
    "v4 SubscribeRequest": (
        usubscription_v4.SubscribeRequest(topic=TOPIC, expiration=EXPIRY, sample_period=1000),
        "0a120a076465766963653210ab21180320cd8102120608cc93c2d10618e807",
    ),
    "v4 SubscribeResponse, subscribed": (
        usubscription_v4.SubscribeResponse(topic=TOPIC, status=usubscription_v4.STATUS_SUBSCRIBED),
        "0a120a076465766963653210ab21180320cd81021003",
    ),
    "v4 SubscribeResponse, pending": (
        usubscription_v4.SubscribeResponse(topic=TOPIC, status=usubscription_v4.STATUS_SUBSCRIBE_PENDING),
        "0a120a076465766963653210ab21180320cd81021002",
    ),
    "v4 Subscription": (
        usubscription_v4.Subscription(
            topic=TOPIC, subscriber=SUBSCRIBER, status=usubscription_v4.STATUS_SUBSCRIBED
        ),
        "0a120a076465766963653210ab21180320cd8102120f0a076465766963653110ef810c18041803",
    ),
}


@pytest.mark.parametrize(("message", "wire"), VECTORS.values(), ids=VECTORS.keys())
def test_bytes_of_other_implementations_are_decoded_and_encoded(message: Message, wire: str) -> None:
    parsed = type(message).FromString(bytes.fromhex(wire))
    assert parsed == message
    assert not len(UnknownFieldSet(parsed))
    assert message.SerializeToString(deterministic=True).hex() == wire


@pytest.mark.parametrize(
    ("cls", "wire"),
    [
        (usubscription_v3.SubscriptionRequest, VECTORS["v3 SubscriptionRequest"][1]),
        (usubscription_v3.UnsubscribeRequest, "0a120a076465766963653210ab21180320cd8102"),
        (usubscription_v3.NotificationsRequest, "0a120a076465766963653210ab21180320cd8102"),
    ],
)
def test_a_legacy_subscriber_is_decoded_from_the_end_of_a_request(cls: type[Message], wire: str) -> None:
    modern = cls.FromString(bytes.fromhex(wire))
    assert not modern.HasField("subscriber")
    legacy: Any = cls.FromString(bytes.fromhex(wire + "120d0a0b0a07646576696365311803"))
    assert legacy.topic == TOPIC
    assert legacy.subscriber.uri == address("device1", 0, 3, 0)
    legacy.ClearField("subscriber")
    assert legacy == modern


def test_max_frequency_of_the_throttling_draft_arrives_as_an_unknown_field_and_survives_a_relay() -> None:
    wire = b"\x19" + struct.pack("<d", 12.5)  # field 3, wire type 1
    attributes = usubscription_v3.SubscribeAttributes.FromString(wire)
    assert not attributes.HasField("sample_period_ms")
    unknown = UnknownFieldSet(attributes)
    assert len(unknown) == 1
    field = unknown[0]
    assert (field.field_number, field.wire_type) == (3, 1)
    assert struct.unpack("<d", struct.pack("<Q", field.data)) == (12.5,)
    assert attributes.SerializeToString() == wire


# ---------------------------------------------------------------------------------------------- field numbers

FIELDS: dict[type[Message], str] = {
    uri.UUri: "authority_name 1, ue_id 2, ue_version_major 3, resource_id 4",
    uri.UUriBatch: "uris 1",
    uuid.UUID: "msb 1, lsb 2",
    ustatus.UStatus: "code 1, message 2, details 3",
    umessage.UMessage: "attributes 1, payload 2",
    uattributes.UAttributes: (
        "id 1, type 2, source 3, sink 4, priority 5, ttl 6, permission_level 7, commstatus 8, reqid 9, "
        "token 10, traceparent 11, payload_format 12"
    ),
    usubscription_v3.SubscribeAttributes: "expire 1, details 2, sample_period_ms 3",
    usubscription_v3.SubscriberInfo: "uri 1, details 2",
    usubscription_v3.SubscriptionStatus: "state 1, code 2, message 3",
    usubscription_v3.EventDeliveryConfig: "id 1, type 2, attributes 3",
    usubscription_v3.SubscriptionRequest: "topic 1, subscriber 2, attributes 3",
    usubscription_v3.SubscriptionResponse: "status 1, config 2, topic 3",
    usubscription_v3.UnsubscribeRequest: "topic 1, subscriber 2",
    usubscription_v3.UnsubscribeResponse: "",
    usubscription_v3.FetchSubscriptionsRequest: "topic 1, subscriber 2, offset 3",
    usubscription_v3.FetchSubscriptionsResponse: "subscriptions 1, has_more_records 2, status 3",
    usubscription_v3.Subscription: "topic 1, subscriber 2, status 3, attributes 4, config 5",
    usubscription_v3.CreateTopicRequest: "topic 1",
    usubscription_v3.DeprecateTopicRequest: "topic 1",
    usubscription_v3.NotificationsRequest: "topic 1, subscriber 2",
    usubscription_v3.NotificationsResponse: "",
    usubscription_v3.FetchSubscribersRequest: "topic 1, offset 2",
    usubscription_v3.FetchSubscribersResponse: "subscribers 1, has_more_records 2, status 3",
    usubscription_v3.Update: "topic 1, subscriber 2, status 3, attributes 4",
    usubscription_v3.PassiveMode: "enable 1",
    usubscription_v3.ResetRequest: "reason 1, before 2",
    usubscription_v3.ResetRequest.Reason: "code 1, message 2",
    usubscription_v3.ResetResponse: "",
    usubscription_v4.Subscription: "topic 1, subscriber 2, status 3, expiration 4, sample_period 5",
    usubscription_v4.SubscribeRequest: "topic 1, expiration 2, sample_period 3",
    usubscription_v4.SubscribeResponse: "topic 1, status 2",
    usubscription_v4.UnsubscribeRequest: "topic 1",
    usubscription_v4.UnsubscribeResponse: "",
    usubscription_v4.FetchSubscriptionsRequest: "topic_filter 1, subscriber_filter 2",
    usubscription_v4.FetchSubscriptionsResponse: "subscriptions 1",
    usubscription_v4.NotificationsRequest: "",
    usubscription_v4.NotificationsResponse: "",
    usubscription_v4.ResetRequest: "",
    usubscription_v4.ResetResponse: "",
    ustreamer_v1.DeadLetter: (
        "attributes 1, payload 2, status 3, endpoint 4, attempts 5, first_attempt 6, last_attempt 7"
    ),
}

ENUMS = {
    "ucode.UCode": (
        "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
        "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE "
        "DATA_LOSS UNAUTHENTICATED"
    ),
    "uattributes.UMessageType": (
        "UMESSAGE_TYPE_UNSPECIFIED UMESSAGE_TYPE_PUBLISH UMESSAGE_TYPE_REQUEST UMESSAGE_TYPE_RESPONSE "
        "UMESSAGE_TYPE_NOTIFICATION"
    ),
    "uattributes.UPriority": (
        "UPRIORITY_UNSPECIFIED UPRIORITY_CS0 UPRIORITY_CS1 UPRIORITY_CS2 UPRIORITY_CS3 UPRIORITY_CS4 "
        "UPRIORITY_CS5 UPRIORITY_CS6"
    ),
    "uattributes.UPayloadFormat": (
        "UPAYLOAD_FORMAT_UNSPECIFIED UPAYLOAD_FORMAT_PROTOBUF_WRAPPED_IN_ANY UPAYLOAD_FORMAT_PROTOBUF "
        "UPAYLOAD_FORMAT_JSON UPAYLOAD_FORMAT_SOMEIP UPAYLOAD_FORMAT_SOMEIP_TLV UPAYLOAD_FORMAT_RAW "
        "UPAYLOAD_FORMAT_TEXT UPAYLOAD_FORMAT_SHM"
    ),
    "usubscription_v3.SubscriptionStatus.State": (
        "UNSUBSCRIBED SUBSCRIBE_PENDING SUBSCRIBED UNSUBSCRIBE_PENDING"
    ),
    "usubscription_v3.Update.Resources": "subscriptions",
    "usubscription_v3.ResetRequest.Reason.Code": "UNSPECIFIED FACTORY_RESET CORRUPTED_DATA",
    "usubscription_v4.SubscriptionStatus": (
        "STATUS_UNSPECIFIED STATUS_UNSUBSCRIBED STATUS_SUBSCRIBE_PENDING STATUS_SUBSCRIBED "
        "STATUS_UNSUBSCRIBE_PENDING"
    ),
}


def find(path: str) -> Any:
    """The class with this path inside the package, e.g. "uri.UUri"."""
    module, *attributes = path.split(".")
    return reduce(getattr, attributes, importlib.import_module(f"{pb.__name__}.{module}"))


@pytest.mark.parametrize(
    ("cls", "fields"), FIELDS.items(), ids=lambda value: getattr(value, "__qualname__", "")
)
def test_fields_have_the_standards_numbers(cls: type[Message], fields: str) -> None:
    assert ", ".join(f"{field.name} {field.number}" for field in cls.DESCRIPTOR.fields) == fields


@pytest.mark.parametrize(("path", "names"), ENUMS.items())
def test_enum_values_count_up_from_zero_in_the_standards_order(path: str, names: str) -> None:
    assert list(find(path).items()) == [(name, number) for number, name in enumerate(names.split())]


@pytest.mark.parametrize(
    "module",
    [uri, uuid, ustatus, umessage, uattributes, usubscription_v3, usubscription_v4],
    ids=lambda m: m.__name__,
)
def test_no_message_of_the_standard_is_missing_from_the_table(module: ModuleType) -> None:
    names = {cls.DESCRIPTOR.full_name for cls in FIELDS}
    assert {message.full_name for message in module.DESCRIPTOR.message_types_by_name.values()} <= names


def test_a_dead_letter_read_as_a_message_is_the_undelivered_message() -> None:
    attributes, _ = VECTORS["Publish"]
    assert isinstance(attributes, uattributes.UAttributes)
    letter = ustreamer_v1.DeadLetter(
        attributes=attributes, payload=b"", status=ustatus.UStatus(code=ucode.UNAVAILABLE), attempts=3
    )
    message = umessage.UMessage.FromString(letter.SerializeToString())
    assert message.attributes == attributes
    assert message.HasField("payload")


# ------------------------------------------------------------------------------------ next to other libraries

DEFINITIONS = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool

def load_theirs():
    file = descriptor_pb2.FileDescriptorProto(name="uprotocol/v1/uri.proto", package="uprotocol.v1")
    file.message_type.add(name="UUri").field.add(name="authority", number=1, type=9, label=1)
    descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

def load_ours():
    from ustreamer.uprotocol.pb import uattributes, umessage, usubscription_v3, usubscription_v4, ustreamer_v1
    update = usubscription_v3.Update.FromString(bytes.fromhex(
        "0a120a076465766963653210ab21180320cd810212110a0f0a076465766963653110ef810c18041a020802"))
    assert update.topic.authority_name == "device2"
    assert update.status.state == usubscription_v3.SubscriptionStatus.SUBSCRIBED
    assert usubscription_v3.SubscriptionStatus.State.Name(2) == "SUBSCRIBED"
    reset = usubscription_v3.ResetRequest(reason=usubscription_v3.ResetRequest.Reason(code=1))
    assert reset.reason.code == usubscription_v3.ResetRequest.Reason.FACTORY_RESET
"""
CHECKS = """
their_uri = descriptor_pool.Default().FindMessageTypeByName("uprotocol.v1.UUri")
assert [field.name for field in their_uri.fields] == ["authority"]
assert not [name for name in sys.modules if name.split(".")[0] == "uprotocol"]
print("both loaded")
"""
CLASH = """
from ustreamer.uprotocol.pb import uri
load_theirs()
descriptor_pool.Default().AddSerializedFile(uri.DESCRIPTOR.serialized_pb)
"""


def run_next_to_a_package_named_uprotocol(
    script: str, folder: Path, implementation: str
) -> subprocess.CompletedProcess[str]:
    theirs = folder / "uprotocol" / "__init__.py"
    theirs.parent.mkdir()
    theirs.write_text("raise ImportError('ours imported what belongs to another library')")
    paths = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", DEFINITIONS + script],
        env={**os.environ, "PYTHONPATH": paths, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": implementation},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("implementation", ["upb", "python"])
@pytest.mark.parametrize("order", ["load_theirs(); load_ours()", "load_ours(); load_theirs()"])
def test_uprotocol_messages_of_another_library_load_next_to_ours(
    order: str, implementation: str, tmp_path: Path
) -> None:
    finished = run_next_to_a_package_named_uprotocol(order + CHECKS, tmp_path, implementation)
    assert (finished.stderr, finished.stdout) == ("", "both loaded\n")


def test_both_libraries_clash_in_one_pool(tmp_path: Path) -> None:
    finished = run_next_to_a_package_named_uprotocol(CLASH, tmp_path, "upb")
    assert "TypeError: Couldn't build proto file into descriptor pool" in finished.stderr


_OTHER_NAMES = """\
import google.protobuf.descriptor_pool, google.protobuf.reflection
from google.protobuf.internal import api_implementation
if api_implementation.Type() == "upb":
    from google._upb import _message
    del _message.MessageMeta
from ustreamer.uprotocol.pb.uri import UUri
print(UUri.FromString(UUri(authority_name="hpc").SerializeToString()).authority_name)
"""


def test_a_protobuf_whose_classes_have_other_names_is_used_by_its_public_ones() -> None:
    found = subprocess.run([sys.executable, "-c", _OTHER_NAMES], capture_output=True, text=True, check=False)
    assert (found.stdout, found.stderr) == ("hpc\n", "")


def test_an_any_passes_between_the_default_pool_and_ours() -> None:
    request = usubscription_v3.SubscriptionRequest(topic=TOPIC)
    foreign = any_pb2.Any()
    foreign.Pack(request)
    ours = google_any.Any.FromString(foreign.SerializeToString())
    assert ours.Is(usubscription_v3.SubscriptionRequest.DESCRIPTOR)
    unpacked = usubscription_v3.SubscriptionRequest()
    assert ours.Unpack(unpacked)
    assert unpacked == request
    assert not ours.Unpack(usubscription_v3.UnsubscribeRequest())
    ours.Pack(timestamp_pb2.Timestamp(seconds=5))
    assert ours.type_url == "type.googleapis.com/google.protobuf.Timestamp"


def test_a_timestamp_has_the_well_known_methods_and_is_no_timestamp_of_the_default_pool() -> None:
    instant = datetime(2026, 6, 15, 23, 25, tzinfo=UTC)
    attributes = usubscription_v3.SubscribeAttributes()
    attributes.expire.FromDatetime(instant)
    assert attributes.expire == EXPIRY
    assert attributes.expire.ToDatetime(UTC) == instant
    assert isinstance(attributes.expire, well_known_types.Timestamp)
    foreign = timestamp_pb2.Timestamp(seconds=EXPIRY.seconds)
    assert google_timestamp.Timestamp.FromString(foreign.SerializeToString()) == EXPIRY
    with pytest.raises(TypeError, match="same class"):
        attributes.expire.CopyFrom(foreign)  # type: ignore[arg-type]


def test_json_shows_the_message_in_an_any_with_the_pool() -> None:
    status = ustatus.UStatus(code=ucode.UNAVAILABLE)
    status.details.add().Pack(TOPIC)
    shown = json_format.MessageToDict(status, descriptor_pool=pb.POOL)
    assert shown["code"] == "UNAVAILABLE"
    assert shown["details"][0]["@type"] == "type.googleapis.com/uprotocol.v1.UUri"
    assert json_format.ParseDict(shown, ustatus.UStatus(), descriptor_pool=pb.POOL) == status


@pytest.mark.parametrize("message", [TOPIC, EXPIRY], ids=["own", "well-known"])
def test_messages_can_be_pickled(message: Message) -> None:
    assert pickle.loads(pickle.dumps(message)) == message


# -------------------------------------------------------------------------------------------- generated files


def generated(directory: Path) -> dict[str, str]:
    return {
        path.name: path.read_text(encoding="utf-8")
        for path in directory.glob("*.py*")
        if path.name not in HAND_WRITTEN
    }


@pytest.mark.skipif(
    importlib.util.find_spec("grpc_tools") is None, reason="grpcio-tools is not installed: cannot run protoc"
)
def test_the_checked_in_modules_match_the_proto_files(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-W", "error", ROOT / "proto" / "generate.py", tmp_path], check=True)
    assert generated(PB) == generated(tmp_path), "run: make proto"


def stub_classes(body: list[ast.stmt], outer: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_"):
            yield f"{outer}.{statement.name}", statement
            yield from stub_classes(statement.body, f"{outer}.{statement.name}")


STUBS = {
    path: stub
    for file in sorted(PB.glob("*.pyi"))
    for path, stub in stub_classes(ast.parse(file.read_text(encoding="utf-8")).body, file.stem)
}


def names_in_literals(node: ast.AST) -> set[str]:
    return {
        each.value
        for each in ast.walk(node)
        if isinstance(each, ast.Constant) and isinstance(each.value, str)
    }


@pytest.mark.parametrize(("path", "stub"), STUBS.items(), ids=STUBS.keys())
def test_stubs_match_the_messages_at_run_time(path: str, stub: ast.ClassDef) -> None:
    cls = find(path)
    assert f"{cls.__module__}.{cls.__qualname__}" == f"{pb.__name__}.{path}"
    message = cls()
    assignable: set[str] = set()
    read_only: set[str] = set()
    with_presence: set[str] = set()
    for member in stub.body:
        match member:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=value)):
                assert getattr(cls, name) == value
            case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name()):
                assignable.add(name)
            case ast.FunctionDef(name=name, decorator_list=[ast.Name(id="property")]):
                read_only.add(name)
            case ast.FunctionDef(name="HasField"):
                with_presence = names_in_literals(member)
            case ast.FunctionDef(name="WhichOneof"):
                assert message.WhichOneof("request") is None

    assert assignable | read_only == {field.name for field in cls.DESCRIPTOR.fields}
    for field in assignable:
        setattr(message, field, getattr(message, field))
    for field in read_only:
        # TypeError: a Timestamp field accepts a datetime, which the stub does not declare.
        with pytest.raises((AttributeError, TypeError)):
            setattr(message, field, getattr(message, field))
    for field in assignable | read_only | with_presence:
        if field in with_presence:
            message.HasField(field)
        else:
            with pytest.raises(ValueError, match=field):
                message.HasField(field)
