# SPDX-License-Identifier: Apache-2.0
"""What is said to other uSubscriptions, byte by byte, and what is read in their answers."""

import pytest
from ustreamer_usubscription.abroad import LANGUAGES, Told, status_in, told_in, version_for
from ustreamer_usubscription.states import Status
from ustreamer_usubscription.tracked import Tracked

from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, notification, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

# The vectors of the standard's messages: this topic and subscriber, this time.
TOPIC, SUBSCRIBER = UUri("device2", 0x10AB, 3, 0x80CD), UUri("device1", 0x300EF, 4, 0)
EXPIRE_MS = 1_781_565_900_000
WISH = Tracked(TOPIC, SUBSCRIBER, 1000 * 1_000_000, EXPIRE_MS)
ID = UUID(0x7000, 2 << 62)
PROTOBUF = UPayloadFormat.PROTOBUF

SUBSCRIBE = {
    3: "0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807",
    4: "0a120a076465766963653210ab21180320cd8102120608cc93c2d10618e807",
}


def answered(version: int, payload: str) -> UMessage:
    asked = request(ID, UUri("device1", 0, version, 0), UUri("device2", 0, version, 1), ttl=1)
    return response(ID, asked, bytes.fromhex(payload), PROTOBUF)


def notified(source: UUri, payload: str) -> UMessage:
    return notification(ID, source, UUri("device1", 0, 3, 0), bytes.fromhex(payload), PROTOBUF)


@pytest.mark.parametrize("version", SUBSCRIBE)
def test_a_subscribe_is_that_of_the_standard(version: int) -> None:
    assert LANGUAGES[version].subscribe(WISH).SerializeToString().hex() == SUBSCRIBE[version]


@pytest.mark.parametrize("version", SUBSCRIBE)
def test_what_nobody_wished_is_left_out(version: int) -> None:
    topic_alone = "0a120a076465766963653210ab21180320cd8102"
    language = LANGUAGES[version]
    assert language.subscribe(Tracked(TOPIC, SUBSCRIBER)).SerializeToString().hex() == topic_alone
    assert language.unsubscribe(TOPIC).SerializeToString().hex() == topic_alone


@pytest.mark.parametrize(
    ("version", "payload", "status"),
    [
        (3, "0a0208021a120a076465766963653210ab21180320cd8102", Status.SUBSCRIBED),
        (3, "0a0208011a120a076465766963653210ab21180320cd8102", Status.SUBSCRIBE_PENDING),
        (3, "", Status.UNSUBSCRIBED),
        (4, "0a120a076465766963653210ab21180320cd81021003", Status.SUBSCRIBED),
        (4, "0a120a076465766963653210ab21180320cd81021002", Status.SUBSCRIBE_PENDING),
        (4, "0a120a076465766963653210ab21180320cd81021001", Status.UNSUBSCRIBED),
    ],
)
def test_the_status_in_an_answer_is_read(version: int, payload: str, status: Status) -> None:
    assert status_in(answered(version, payload)) is status


@pytest.mark.parametrize(
    ("version", "payload", "why"),
    [
        (3, "0a020809", "status 9 of a subscription"),
        (4, "1009", "status 8 of a subscription"),
        (4, "", "status -1 of a subscription"),  # STATUS_UNSPECIFIED
        (3, "ff", "not a uprotocol.core.usubscription.v3.SubscriptionResponse"),
    ],
)
def test_an_answer_without_a_status_that_there_is_says_nothing(version: int, payload: str, why: str) -> None:
    with pytest.raises(UStatusError, match=why) as refused:
        status_in(answered(version, payload))
    assert refused.value.code is UCode.INVALID_ARGUMENT


UPDATE = "0a120a076465766963653210ab21180320cd810212110a0f0a076465766963653110ef810c18041a020802"
CHANGE = "0a120a076465766963653210ab21180320cd8102120f0a076465766963653110ef810c18041803"


@pytest.mark.parametrize(("version", "payload"), [(3, UPDATE), (4, CHANGE)])
def test_a_notification_of_change_is_read(version: int, payload: str) -> None:
    told = told_in(notified(UUri("device2", 0, version, 0x8000), payload))
    assert told == Told(TOPIC, SUBSCRIBER, Status.SUBSCRIBED)


@pytest.mark.parametrize(
    ("source", "payload"),
    [
        (UUri("device2", 1, 3, 0x8000), UPDATE),
        (UUri("device2", 0, 3, 0x8001), UPDATE),
        (UUri("device2", 0, 5, 0x8000), UPDATE),
        (UUri("device2", 0, 3, 0x8000), "ffff"),
        (UUri("device2", 0, 4, 0x8000), CHANGE[:-1] + "9"),
    ],
    ids=["an entity", "another topic", "another version", "noise", "an unknown status"],
)
def test_nothing_else_is_one(source: UUri, payload: str) -> None:
    assert told_in(notified(source, payload)) is None


def test_only_a_topic_of_every_instance_needs_version_4() -> None:
    assert version_for(TOPIC) == 3
    assert version_for(UUri("device2", 0xFFFF10AB, 3, 0x80CD)) == 4
