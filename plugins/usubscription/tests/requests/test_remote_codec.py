# SPDX-License-Identifier: Apache-2.0
"""Messages to and from the uSubscriptions of other devices: bytes in each version of the interface."""

import pytest
from google.protobuf.message import Message
from ustreamer_usubscription.model.remote_status import RemoteTopicStates
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.requests.remote_codec import (
    CLIENT_CODECS,
    subscribe_status_in,
)

from ustreamer.core.routing.usubscription_codec import Status, SubscriptionUpdate, subscription_update_in
from ustreamer.uprotocol.pb import usubscription_v3 as pb3
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, notification, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

US, FAR = UUri("device1", 0, 3, 0), "device2"
TOPIC, EVERY = UUri(FAR, 0x10AB, 3, 0x80CD), UUri(FAR, 0xFFFF10AB, 3, 0x80CD)
ID = UUID(0x7000, 2 << 62)


def answer(payload: bytes, version: int = 3) -> UMessage:
    call = request(ID, US, UUri(FAR, 0, version, 1), ttl=1)
    return response(ID, call, payload, UPayloadFormat.PROTOBUF)


def change(version: int, notified: Message) -> UMessage:
    source = UUri(FAR, 0, version, 0x8000)
    return notification(ID, source, US, notified.SerializeToString(), UPayloadFormat.PROTOBUF)


# Vectors, as the tests of both interfaces have them.
REQUESTS = [
    (3, "0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807"),
    (4, "0a120a076465766963653210ab21180320cd8102120608cc93c2d10618e807"),
]


@pytest.mark.parametrize(("version", "expected"), REQUESTS)
def test_a_subscribe_has_the_bytes_of_the_standard(version: int, expected: str) -> None:
    desired = SubscriptionRecord(TOPIC, US, 1_000_000_000, 1_781_565_900_000)
    assert CLIENT_CODECS[version].encode_subscribe(desired).SerializeToString().hex() == expected


ANSWERS = [
    (3, "0a0208021a120a076465766963653210ab21180320cd8102", Status.SUBSCRIBED),
    (3, "0a0208011a120a076465766963653210ab21180320cd8102", Status.SUBSCRIBE_PENDING),
    (3, "0a00", Status.UNSUBSCRIBED),
    (4, "0a120a076465766963653210ab21180320cd81021003", Status.SUBSCRIBED),
    (4, "0a120a076465766963653210ab21180320cd81021002", Status.SUBSCRIBE_PENDING),
    (4, "1001", Status.UNSUBSCRIBED),
]


@pytest.mark.parametrize(("version", "payload", "status"), ANSWERS)
@pytest.mark.parametrize("source_version", [3, 4, 7])
def test_an_answer_is_read_in_the_version_of_the_call(
    version: int, payload: str, status: Status, source_version: int
) -> None:
    assert subscribe_status_in(answer(bytes.fromhex(payload), source_version), version) is status


NO_ANSWERS = [(3, ""), (3, "0805"), (3, "0a020804"), (3, "ff"), (4, ""), (4, "1005")]


@pytest.mark.parametrize(("version", "payload"), NO_ANSWERS)
def test_an_answer_without_a_known_status_is_none(version: int, payload: str) -> None:
    with pytest.raises(UStatusError, match="status|not a uprotocol") as refused:
        subscribe_status_in(answer(bytes.fromhex(payload)), version)
    assert refused.value.code is UCode.INVALID_ARGUMENT


def test_a_notification_of_change_is_read_in_both_versions() -> None:
    update = pb3.Update(
        topic=TOPIC.to_pb(),
        subscriber=pb3.SubscriberInfo(uri=US.to_pb()),
        status=pb3.SubscriptionStatus(state=pb3.SubscriptionStatus.SUBSCRIBED),
    )
    subscription = pb4.Subscription(topic=TOPIC.to_pb(), subscriber=US.to_pb(), status=pb4.STATUS_SUBSCRIBED)
    notified = SubscriptionUpdate(TOPIC, US, Status.SUBSCRIBED)
    assert (subscription_update_in(change(3, update)), subscription_update_in(change(4, subscription))) == (
        notified,
        notified,
    )
    assert subscription_update_in(change(5, update)) is None


def test_remote_topics_are_stored_until_they_are_removed() -> None:
    remotes = RemoteTopicStates()
    remotes.load([(TOPIC, Status.SUBSCRIBED), (EVERY, Status.SUBSCRIBE_PENDING)])
    remotes.apply({TOPIC: Status.UNSUBSCRIBE_PENDING, EVERY: None, UUri("b", 1, 1, 0x8000): None})
    assert (list(remotes), remotes.count) == ([TOPIC], 1)
    assert (remotes.find(TOPIC), remotes.find(EVERY)) == (Status.UNSUBSCRIBE_PENDING, None)
