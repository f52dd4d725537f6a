# SPDX-License-Identifier: Apache-2.0
"""What shares a plan is decided about alike."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from ustreamer.core.access import Access, AccessRule
from ustreamer.core.plans import plan_key
from ustreamer.core.routes import Decision, Places, Refused, Router
from ustreamer.core.subscriptions import StaticDirectory
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType, UPayloadFormat, UPriority
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

METHODS = [UUri("chassis", 0x1234, 1, each) for each in (1, 2, 0, 0x8001, 0xFFFF)]
CALLERS = [UUri("hpc", 0x10, 1, 0), UUri("hpc", 0x10, 1, 1), UUri("mars", 1, 1, 0), UUri("chassis", 1, 1, 0)]
RULES = [AccessRule(allow=False, source="//chassis/1234/1/2", type="response")]
"""Of a Response too, by name."""

attributes = st.builds(
    UAttributes,
    type=st.sampled_from([UMessageType.RESPONSE] * 8 + list(UMessageType)),
    source=st.sampled_from(METHODS + CALLERS[2:3]),
    sink=st.sampled_from([*CALLERS, None]),
    priority=st.sampled_from([UPriority.CS4, UPriority.CS6, UPriority.CS3]),
    ttl=st.sampled_from([None, 0, 5, 1_000]),
    permission_level=st.sampled_from([None, 1]),
    commstatus=st.sampled_from([None, UCode.OK, UCode.INTERNAL]),
    reqid=st.one_of(
        st.none(),
        st.builds(
            UUID, st.sampled_from([0x7000, 0x4000, 0x1_7000]), st.sampled_from([1 << 63, 1, 1 << 63 | 5])
        ),
    ),
    token=st.sampled_from([None, "t"]),
    traceparent=st.sampled_from([None, "", "wrong"]),
    payload_format=st.sampled_from([UPayloadFormat.UNSPECIFIED, UPayloadFormat.PROTOBUF]),
    unknown=st.sampled_from([b"", b"\x78\x01"]),
)


def decided(each: UAttributes) -> Decision | str:
    places = Places({"hpc": "backbone", "chassis": "chassis"})
    unicast = {"backbone": False, "chassis": True}
    rules = {"chassis": Access("chassis", RULES)}
    try:
        return Router(places, StaticDirectory([]), unicast, rules).decide("chassis", each)
    except Refused as refused:
        return str(refused)


@given(attributes, attributes)
def test_what_has_the_same_key_is_decided_alike(one: UAttributes, other: UAttributes) -> None:
    # Most pairs differ in what matters: so the other is given the ends of the first.
    other = msgspec.structs.replace(other, source=one.source, sink=one.sink)
    if plan_key(one) == plan_key(other):
        assert decided(one) == decided(other)


def test_answers_share_a_plan_and_whatever_is_no_valid_answer_does_not() -> None:
    answer = UAttributes(
        type=UMessageType.RESPONSE,
        source=METHODS[0],
        sink=CALLERS[0],
        priority=UPriority.CS4,
        reqid=UUID(0x7000, 1 << 63),
    )
    assert plan_key(answer) == (METHODS[0], CALLERS[0])
    changes: list[dict[str, object]] = [
        {"type": UMessageType.REQUEST},
        {"sink": None},
        {"priority": UPriority.CS3},
        {"reqid": UUID(0x4000, 1 << 63)},
        {"reqid": UUID(0x7000, 1)},
        {"reqid": None},
    ]
    for change in changes:
        other = msgspec.structs.replace(answer, **change)
        assert plan_key(other) is other
