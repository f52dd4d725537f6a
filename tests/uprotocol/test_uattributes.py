# SPDX-License-Identifier: Apache-2.0
"""UAttributes: every rule of every message type broken once, and valid attributes."""

from enum import IntEnum

import msgspec
import pytest

from ustreamer.uprotocol.pb import uattributes as pb
from ustreamer.uprotocol.uattributes import (
    RULES,
    UAttributes,
    UMessageType,
    UPayloadFormat,
    UPriority,
    check_attributes,
    is_expired,
)
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at

PUBLISH, REQUEST, RESPONSE, NOTIFICATION = (
    UMessageType.PUBLISH,
    UMessageType.REQUEST,
    UMessageType.RESPONSE,
    UMessageType.NOTIFICATION,
)
ID = UUID(0x018D548EA8E07000, 0x8000000000000001)
TOPIC = UUri("device1", 0x10AB, 3, 0x80CD)
CLIENT = UUri("device1", 0x403AB, 3, 0)
METHOD = UUri("device2", 0xCD, 4, 0xB)

VALID = {
    PUBLISH: UAttributes(type=PUBLISH, source=TOPIC),
    NOTIFICATION: UAttributes(type=NOTIFICATION, source=TOPIC, sink=CLIENT),
    REQUEST: UAttributes(type=REQUEST, source=CLIENT, sink=METHOD, priority=UPriority.CS4, ttl=5000),
    RESPONSE: UAttributes(
        type=RESPONSE, source=METHOD, sink=CLIENT, priority=UPriority.CS4, ttl=5000, reqid=ID
    ),
}

# ----------------------------------------------------------------------------------------------- one rule, one breach

NO_WILDCARD = "source without wildcards"
TOPIC_SOURCE = "source that is a topic (8000..FFFE)"
METHOD_SOURCE = "source that is the invoked method (1..7FFF)"
METHOD_SINK = "sink that is a method (1..7FFF) without wildcards"
REPLY_ADDRESS = "sink with resource 0 and no wildcard"
PUBLISH_SINK = "sink absent, or an authority with all else wildcards"
CS4 = "priority of at least CS4"
NO_REQID = "no reqid outside a Response"
NO_COMMSTATUS = "no commstatus outside a Response"
TRACE = "traceparent empty or as W3C Trace Context has it"
REQID = "reqid, the id of the request"

# fmt: off
BREACHES = [  # type, expectation, invalid change, value in the error
    (PUBLISH, NO_WILDCARD, {"source": UUri("*", 0x10AB, 3, 0x80CD)}, "up://*/10AB/3/80CD"),
    (PUBLISH, NO_WILDCARD, {"source": TOPIC.with_resource(0xFFFF)}, "up://device1/10AB/3/FFFF"),
    (PUBLISH, TOPIC_SOURCE, {"source": TOPIC.with_resource(0x7FFF)}, "up://device1/10AB/3/7FFF"),
    (PUBLISH, TOPIC_SOURCE, {"source": TOPIC.with_resource(0)}, "up://device1/10AB/3/0"),
    (PUBLISH, PUBLISH_SINK, {"sink": any_at("")}, "up:/FFFFFFFF/FF/FFFF"),
    (PUBLISH, PUBLISH_SINK, {"sink": any_at("*")}, "up://*/FFFFFFFF/FF/FFFF"),
    (PUBLISH, PUBLISH_SINK, {"sink": UUri("cloud", 1, 0xFF, 0xFFFF)}, "up://cloud/1/FF/FFFF"),
    (PUBLISH, PUBLISH_SINK, {"sink": UUri("cloud", 0xFFFFFFFF, 1, 0xFFFF)}, "up://cloud/FFFFFFFF/1/FFFF"),
    (PUBLISH, PUBLISH_SINK, {"sink": UUri("cloud", 0xFFFFFFFF, 0xFF, 0)}, "up://cloud/FFFFFFFF/FF/0"),
    (PUBLISH, NO_REQID, {"reqid": ID}, str(ID)),
    (PUBLISH, NO_COMMSTATUS, {"commstatus": UCode.OK}, "0"),
    (PUBLISH, TRACE, {"traceparent": "00-x"}, "00-x"),
    (NOTIFICATION, NO_WILDCARD, {"source": UUri("device1", 0xFFFF, 3, 0x80CD)}, "up://device1/FFFF/3/80CD"),
    (NOTIFICATION, "source with a resource other than 0", {"source": CLIENT}, "up://device1/403AB/3/0"),
    (NOTIFICATION, TOPIC_SOURCE, {"source": METHOD}, "up://device2/CD/4/B"),
    (NOTIFICATION, REPLY_ADDRESS, {"sink": None}, "none"),
    (NOTIFICATION, REPLY_ADDRESS, {"sink": METHOD}, "up://device2/CD/4/B"),
    (NOTIFICATION, REPLY_ADDRESS, {"sink": UUri("*", 1, 1, 0)}, "up://*/1/1/0"),
    (NOTIFICATION, NO_REQID, {"reqid": ID}, str(ID)),
    (NOTIFICATION, NO_COMMSTATUS, {"commstatus": UCode.NOT_FOUND}, "5"),
    (NOTIFICATION, TRACE, {"traceparent": "01"}, "01"),
    (REQUEST, NO_WILDCARD, {"source": UUri("device1", 0x403AB, 0xFF, 0)}, "up://device1/403AB/FF/0"),
    (REQUEST, "source with resource 0, the reply address", {"source": TOPIC}, "up://device1/10AB/3/80CD"),
    (REQUEST, METHOD_SINK, {"sink": None}, "none"),
    (REQUEST, METHOD_SINK, {"sink": CLIENT}, "up://device1/403AB/3/0"),
    (REQUEST, METHOD_SINK, {"sink": TOPIC}, "up://device1/10AB/3/80CD"),
    (REQUEST, METHOD_SINK, {"sink": UUri("device2", 0xFFFF00CD, 4, 0xB)}, "up://device2/FFFF00CD/4/B"),
    (REQUEST, CS4, {"priority": UPriority.CS3}, "CS3"),
    (REQUEST, CS4, {"priority": UPriority.UNSPECIFIED}, "UNSPECIFIED"),
    (REQUEST, "ttl above 0 ms", {"ttl": None}, "none"),
    (REQUEST, "ttl above 0 ms", {"ttl": 0}, "0"),
    (REQUEST, NO_REQID, {"reqid": ID}, str(ID)),
    (REQUEST, NO_COMMSTATUS, {"commstatus": UCode.OK}, "0"),
    (REQUEST, TRACE, {"traceparent": "00"}, "00"),
    (RESPONSE, NO_WILDCARD, {"source": UUri("*", 0xCD, 4, 0xB)}, "up://*/CD/4/B"),
    (RESPONSE, METHOD_SOURCE, {"source": CLIENT}, "up://device1/403AB/3/0"),
    (RESPONSE, METHOD_SOURCE, {"source": TOPIC}, "up://device1/10AB/3/80CD"),
    (RESPONSE, REPLY_ADDRESS, {"sink": None}, "none"),
    (RESPONSE, REPLY_ADDRESS, {"sink": TOPIC}, "up://device1/10AB/3/80CD"),
    (RESPONSE, CS4, {"priority": UPriority.CS0}, "CS0"),
    (RESPONSE, "ttl above 0 ms, the request's", {"ttl": None}, "none"),
    (RESPONSE, REQID, {"reqid": None}, "none"),
    (RESPONSE, REQID, {"reqid": UUID(ID.msb ^ 0x1000, ID.lsb)}, "018d548e-a8e0-6000-8000-000000000001"),
    (RESPONSE, TRACE, {"traceparent": "00"}, "00"),
]
# fmt: on

WAIVED_ON_RECEIPT = {  # known libraries break these
    (PUBLISH, NO_REQID),
    (PUBLISH, NO_COMMSTATUS),
    (PUBLISH, TRACE),
    (NOTIFICATION, TOPIC_SOURCE),
    (NOTIFICATION, NO_REQID),
    (NOTIFICATION, NO_COMMSTATUS),
    (NOTIFICATION, TRACE),
    (REQUEST, NO_REQID),
    (REQUEST, NO_COMMSTATUS),
    (REQUEST, TRACE),
    (RESPONSE, "ttl above 0 ms, the request's"),
    (RESPONSE, TRACE),
}


def test_every_rule_is_broken_below() -> None:
    rules = {(type, rule.expectation) for type, rules in RULES.items() for rule in rules}
    assert {(type, expectation) for type, expectation, _, _ in BREACHES} == rules


@pytest.mark.parametrize(("type", "expectation", "change", "shown"), BREACHES)
def test_a_breach_names_the_type_the_expectation_and_the_value(
    type: UMessageType, expectation: str, change: dict[str, object], shown: str
) -> None:
    with pytest.raises(UStatusError) as refusal:
        check_attributes(msgspec.structs.replace(VALID[type], **change), strict=True)
    assert refusal.value.code is UCode.INVALID_ARGUMENT
    assert refusal.value.message == f"{type.name}: expected {expectation}, got {shown}"


@pytest.mark.parametrize(("type", "expectation", "change", "shown"), BREACHES)
def test_on_receipt_the_rules_that_known_libraries_break_are_waived(
    type: UMessageType, expectation: str, change: dict[str, object], shown: str
) -> None:
    broken = msgspec.structs.replace(VALID[type], **change)
    if (type, expectation) in WAIVED_ON_RECEIPT:
        check_attributes(broken)
    else:
        with pytest.raises(UStatusError, match=f"^INVALID_ARGUMENT: {type.name}: expected "):
            check_attributes(broken)


def test_a_message_without_type_is_refused() -> None:
    attributes = UAttributes(type=UMessageType.UNSPECIFIED, source=TOPIC)
    with pytest.raises(UStatusError, match="type is UNSPECIFIED, expected PUBLISH, REQUEST, RESPONSE or N"):
        check_attributes(attributes)


# ------------------------------------------------------------------------------------------------ valid input

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("type", "change"),
    [
        (PUBLISH, {}),
        (PUBLISH, {"source": UUri("", 0, 0, 0x8000)}),
        (PUBLISH, {"source": TOPIC.with_resource(0xFFFE)}),
        (PUBLISH, {"sink": any_at("cloud")}),
        (PUBLISH, {"ttl": 0, "priority": UPriority.CS0, "traceparent": ""}),
        (PUBLISH, {"traceparent": TRACEPARENT}),
        (PUBLISH, {"priority": UPriority.CS6, "payload_format": UPayloadFormat.SHM}),
        (NOTIFICATION, {}),
        (NOTIFICATION, {"ttl": 1}),
        (REQUEST, {}),
        (REQUEST, {"ttl": 1, "token": "t", "permission_level": 0, "priority": UPriority.CS6}),
        (REQUEST, {"sink": METHOD.with_resource(0x7FFF)}),
        (RESPONSE, {}),
        (RESPONSE, {"commstatus": UCode.OK}),
        (RESPONSE, {"commstatus": UCode.NOT_FOUND}),
    ],
)
def test_messages_that_the_specification_allows_are_valid(
    type: UMessageType, change: dict[str, object]
) -> None:
    check_attributes(msgspec.structs.replace(VALID[type], **change), strict=True)


@pytest.mark.parametrize(
    "traceparent",
    [
        TRACEPARENT.upper(),
        TRACEPARENT + "\n",
        TRACEPARENT[:-1],
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    ],
)
def test_an_invalid_traceparent_is_refused(traceparent: str) -> None:
    """Its section 3.2.2: lower case; version ff is invalid, and so are ids of nothing but zeros."""
    with pytest.raises(UStatusError, match="traceparent empty or as W3C"):
        check_attributes(msgspec.structs.replace(VALID[PUBLISH], traceparent=traceparent), strict=True)


# --------------------------------------------------------------------------------------------------------- small facts


@pytest.mark.parametrize(
    ("ours", "theirs", "prefix"),
    [
        (UMessageType, pb.UMessageType.items(), "UMESSAGE_TYPE_"),
        (UPriority, pb.UPriority.items(), "UPRIORITY_"),
        (UPayloadFormat, pb.UPayloadFormat.items(), "UPAYLOAD_FORMAT_"),
    ],
    ids=["UMessageType", "UPriority", "UPayloadFormat"],
)
def test_enums_have_the_names_and_numbers_of_the_protobuf_enums(
    ours: type[IntEnum], theirs: list[tuple[str, int]], prefix: str
) -> None:
    assert [(prefix + each.name, each.value) for each in ours] == theirs


@pytest.mark.parametrize(
    ("priority", "rank"), [(UPriority.UNSPECIFIED, 1), *((UPriority[f"CS{n}"], n) for n in range(7))]
)
def test_the_default_priority_class_is_cs1(priority: UPriority, rank: int) -> None:
    assert UAttributes(type=PUBLISH, source=TOPIC, priority=priority).priority_class == rank


@pytest.mark.parametrize(
    ("change", "repeats"),
    [
        ({}, True),
        ({"ttl": 5}, True),
        ({"reqid": ID}, False),
        ({"token": ""}, False),
        ({"traceparent": ""}, False),
    ],
)
def test_attributes_with_unique_fields_are_not_cacheable(change: dict[str, object], repeats: bool) -> None:
    assert msgspec.structs.replace(VALID[REQUEST], **change).is_cacheable is repeats


@pytest.mark.parametrize(
    ("created_ms", "ttl", "now_ms", "expired"),
    [
        (1000, None, 10**15, False),
        (1000, 0, 10**15, False),
        (1000, 5, 1000, False),
        (1000, 5, 1005, False),  # the specification says "exceeds"; up-rust is 1 ms stricter
        (1000, 5, 1006, True),
        (1000, 5, 900, False),  # the sender's clock is ahead
    ],
)
def test_a_message_expires_when_its_ttl_is_exceeded(
    created_ms: int, ttl: int | None, now_ms: int, expired: bool
) -> None:
    assert is_expired(created_ms, ttl, now_ms) is expired
