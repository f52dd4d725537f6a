# SPDX-License-Identifier: Apache-2.0
"""Malformed payloads: each receives a typed response, and the service continues."""

from typing import TYPE_CHECKING

import pytest
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuri import UUri
from ustreamer.uprotocol.wire import decode_status

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

TOPIC = UUri("device2", 0x10AB, 3, 0x80CD)
ANSWERS: dict[tuple[int, int], type[Message]] = {
    (3, 1): pb.SubscriptionResponse,
    (3, 2): pb.UnsubscribeResponse,
    (3, 3): pb.FetchSubscriptionsResponse,
    (3, 6): pb.NotificationsResponse,
    (3, 7): pb.NotificationsResponse,
    (3, 8): pb.FetchSubscribersResponse,
    (3, 9): pb.ResetResponse,
    (4, 1): pb4.SubscribeResponse,
    (4, 2): pb4.UnsubscribeResponse,
    (4, 3): pb4.FetchSubscriptionsResponse,
    (4, 4): pb4.NotificationsResponse,
    (4, 5): pb4.NotificationsResponse,
    (4, 6): pb4.ResetResponse,
}
REFUSALS = {UCode.INVALID_ARGUMENT, UCode.PERMISSION_DENIED, UCode.UNIMPLEMENTED, UCode.RESOURCE_EXHAUSTED}
FORMATS = st.sampled_from([f for f in UPayloadFormat if f is not UPayloadFormat.SHM])

VALID = [
    bytes.fromhex("0a120a076465766963653210ab21180320cd81021a0b0a0608cc93c2d10618e807"),
    bytes.fromhex("0a120a076465766963653210ab21180320cd81021a0919000000000000244018e807"),
    bytes.fromhex("0a120a076465766963653210ab21180320cd8102120d0a0b0a07646576696365311803"),
    bytes.fromhex("0a120a076465766963653210ab21180320cd8102120608cc93c2d10618e807"),  # version 4
    bytes.fromhex(
        "0a47747970652e676f6f676c65617069732e636f6d2f7570726f746f636f6c2e636f72652e75737562736372697074696f6e2e7633"
        "2e537562736372697074696f6e5265717565737412140a120a076465766963653210ab21180320cd8102"
    ),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A valid request with some bytes changed, cut out or repeated."""
    data = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "cut", "insert", "repeat"])):
            case "change":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=1))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(st.binary(max_size=10))
            case _:
                data[at:at] = data[:at]
    return bytes(data[:2000])


FUZZ = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.parametrize(("version", "method"), ANSWERS)
def test_any_payload_receives_a_response_of_its_kind_or_a_typed_error(
    rig: "ServiceRig", version: int, method: int
) -> None:
    @FUZZ
    @given(st.binary(max_size=200) | mutated(), FORMATS)
    def send(payload: bytes, payload_format: UPayloadFormat) -> None:
        answer = rig.call(method, payload, version=version, payload_format=payload_format)
        attributes = answer.attributes
        if attributes.commstatus is not None:
            status = decode_status(answer.payload)
            assert status.code == attributes.commstatus
            assert status.code in REFUSALS
            assert status.message
        elif payload_format is not UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY:
            ANSWERS[version, method].FromString(answer.payload)

    send()
    assert rig.subscribe() == pb.SubscriptionStatus.SUBSCRIBED
    before = rig.fetch()
    rig.restart()  # whatever was accepted can be read back
    assert rig.fetch() == before


def test_any_attributes_are_stored_so_that_they_can_be_listed_or_are_rejected(rig: "ServiceRig") -> None:
    @FUZZ
    @given(st.binary(max_size=40))
    def send(attributes: bytes) -> None:
        prefix = bytes.fromhex("0a120a076465766963653210ab21180320cd81021a")
        answer = rig.call(1, prefix + bytes([len(attributes)]) + attributes)
        if answer.attributes.commstatus is None:
            state = pb.SubscriptionResponse.FromString(answer.payload).status.state
            listed = rig.fetch(TOPIC).subscriptions
            assert [each.status.state for each in listed] == [state] * (
                state != pb.SubscriptionStatus.UNSUBSCRIBED
            )

    send()
