# SPDX-License-Identifier: Apache-2.0
"""Topics of other devices, tested over a bus.

The service and its store are real; the other uSubscription is a script.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from ustreamer_usubscription.remote.remote_topics import MAX_REMOTE_REASON, _jitter
from ustreamer_usubscription.requests.requests import MAX_DETAILS
from ustreamer_usubscription.service import MAX_PAYLOAD
from ustreamer_usubscription.store.store import RecordChange, SubscriptionStore, delete_subscription

from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.pb.google_any import Any
from ustreamer.uprotocol.uattributes import UPayloadFormat, UPriority
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatus, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, ANY_RESOURCE, ANY_VERSION, UUri
from ustreamer.uprotocol.wire import encode

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, FAR = "device1", "device3"
APP, OTHER_APP = UUri(OWN, 0x300EF, 4, 0), UUri(OWN, 0x42, 1, 0)
US = UUri(OWN, 0, 3, 0)
REMOTE, ELSEWHERE = UUri(FAR, 0x10AB, 3, 0x80CD), UUri("device4", 1, 1, 0x8000)
EVERY = UUri(FAR, 0xFFFF0001, 1, 0x8000)
UNSUBSCRIBED, PENDING, SUBSCRIBED, LEAVING = range(4)
SUBSCRIBE, UNSUBSCRIBE, FETCH = 1, 2, 3
TIMEOUT_S = 300


def states(rig: "ServiceRig") -> dict[UUri, int]:
    """The state of each subscriber of REMOTE, as FetchSubscriptions has it."""
    return {UUri.from_pb(each.subscriber.uri): each.status.state for each in rig.fetch(REMOTE).subscriptions}


def changes(rig: "ServiceRig") -> list[tuple[UUri, str]]:
    """(subscriber, state) of each notification to a subscriber since the last call."""
    return [
        (subscriber, state) for to, _, subscriber, state in rig.take_v3_notifications() if to == subscriber
    ]


def granted(rig: "ServiceRig", **desired: int) -> None:
    """Let APP's subscription of REMOTE be granted."""
    rig.subscribe(REMOTE, **desired)  # type: ignore[arg-type]
    rig.remote_grants(rig.take_remote_request())
    rig.take_v3_notifications()


def pending_unsubscribe(rig: "ServiceRig") -> None:
    """APP's subscription of REMOTE is granted and ended, and the response to its end is missing."""
    granted(rig)
    rig.unsubscribe(REMOTE)
    rig.take_remote_request()
    rig.take_v3_notifications()


# --- Subscribe --------------------------------------------------------------------------------------------------------


def test_the_first_subscriber_waits_for_the_other_device_and_receives_the_result(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-remote~1] [utest->req~usubscription-subscribe-remote-pending~1]
    [utest->req~usubscription-subscribe-remote-response~1]
    """
    assert rig.subscribe(REMOTE) == PENDING
    assert states(rig) == {APP: PENDING}
    call = rig.take_remote_request()
    rig.remote_grants(call)
    assert states(rig) == {APP: SUBSCRIBED}
    assert changes(rig) == [(APP, "SUBSCRIBE_PENDING"), (APP, "SUBSCRIBED")]
    assert rig.routed_subscribers(REMOTE) == [(APP, 0)]


def test_a_pending_subscription_has_a_reason_while_its_link_is_down(rig: "ServiceRig") -> None:
    def answer() -> pb.SubscriptionStatus:
        return rig.call_for(pb.SubscriptionResponse, SUBSCRIBE, rig.subscription_request(REMOTE)).status

    assert (answer().state, answer().message) == (PENDING, "")
    rig.links.set_state(FAR, up=True)
    rig.links.set_state(FAR, up=False)
    status = answer()
    assert status.state == PENDING
    assert (
        status.message
        == "the link to 'device3' is down; its core.usubscription is called when the link is up"
    )
    assert rig.plugin.service.statistics()["pending_link_down"] == 1


def test_events_are_routed_while_the_response_is_pending(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    assert rig.routed_subscribers(REMOTE) == [(APP, 0)]


def test_the_request_is_the_one_of_the_standard(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-subscribe-remote-subscriber-change~1] [utest->LIF-15]
    [utest->req~usubscription-remote-max-timeout~1]
    """
    rig.subscribe(REMOTE.with_authority(FAR), sample_period_ms=1500, expire_ms=1_781_565_900_000)
    call = rig.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (US, UUri(FAR, 0, 3, 1))
    assert (call.attributes.ttl, call.attributes.priority) == (300_000, UPriority.CS4)
    vector = "0a120a076465766963653310ab21180320cd81021a0b0a0608cc93c2d10618e807"  # section 4.8, at device3
    assert call.payload.hex() == vector
    header = encode(UUID(0x018D548EA8E07000, 0x8000000000000001), call.attributes)
    assert header.hex() == (
        "0a12090070e0a88e548d0111010000000000008010021a0b0a07646576696365311803220d0a076465766963653318032001280530e0a7126002"
    )


def test_the_unsubscribe_request_names_this_service_as_well(rig: "ServiceRig") -> None:
    """[utest->dsn~usubscription-unsubscribe-remote-subscriber-change~1] [utest->LIF-15]
    [utest->req~usubscription-unsubscribe-last-remote~1]
    """
    granted(rig)
    rig.unsubscribe(REMOTE)
    call = rig.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (US, UUri(FAR, 0, 3, 2))
    assert call.attributes.ttl == 300_000
    assert pb.UnsubscribeRequest.FromString(call.payload) == pb.UnsubscribeRequest(topic=REMOTE.to_pb())


def test_the_subscriber_field_is_set_only_where_configured(make_rig: MakeRig) -> None:
    rig = make_rig(legacy_subscriber_field=True).start()
    granted(rig)
    rig.unsubscribe(REMOTE)
    call = rig.take_remote_request()
    assert UUri.from_pb(pb.UnsubscribeRequest.FromString(call.payload).subscriber.uri) == US


def test_others_while_it_is_pending_wait_with_the_first_and_cause_no_call(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-multiple~1]"""
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    assert rig.subscribe(REMOTE, caller=OTHER_APP) == PENDING
    assert rig.subscribe(REMOTE) == PENDING
    assert rig.take_remote_requests() == []
    rig.remote_grants(call)
    assert states(rig) == {APP: SUBSCRIBED, OTHER_APP: SUBSCRIBED}
    assert sorted(changes(rig)) == sorted(
        (app, state) for app in (APP, OTHER_APP) for state in ("SUBSCRIBE_PENDING", "SUBSCRIBED")
    )
    assert rig.take_remote_requests() == []


def test_others_after_it_was_granted_are_subscribed_at_once(rig: "ServiceRig") -> None:
    granted(rig)
    assert rig.subscribe(REMOTE, caller=OTHER_APP) == SUBSCRIBED
    assert rig.take_remote_requests() == []
    assert changes(rig) == [(OTHER_APP, "SUBSCRIBED")]


def test_simultaneous_subscribers_cause_one_call(rig: "ServiceRig") -> None:
    with rig.service_blocked():
        waiting = [
            rig.send_request(SUBSCRIBE, rig.subscription_request(REMOTE), caller=UUri(OWN, 1 + number, 1, 0))
            for number in range(100)
        ]
    answers = [pb.SubscriptionResponse.FromString(rig.wait_response(each).payload) for each in waiting]
    assert {answer.status.state for answer in answers} == {PENDING}
    assert len(rig.take_remote_requests()) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_answer_may_be_wrapped_in_any(rig: "ServiceRig", wrapped: bool) -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=SUBSCRIBED)).SerializeToString()
    if wrapped:
        name = "type.googleapis.com/uprotocol.core.usubscription.v3.SubscriptionResponse"
        payload = Any(type_url=name, value=payload).SerializeToString()
    style = UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY if wrapped else UPayloadFormat.PROTOBUF
    rig.client.send(response(UUID(0x7000, 2 << 62), call, payload, style))
    assert states(rig) == {APP: SUBSCRIBED}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_response_unsubscribed_ends_it_for_all_subscribers(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-remote-response~1] [utest->LIF-19]"""
    rig.subscribe(REMOTE)
    rig.subscribe(REMOTE, caller=OTHER_APP)
    call = rig.take_remote_request()
    rig.take_v3_notifications()
    rig.remote_grants(call, UNSUBSCRIBED)
    assert (states(rig), rig.routed_subscribers(REMOTE)) == ({}, [])
    assert changes(rig) == [(APP, "UNSUBSCRIBED"), (OTHER_APP, "UNSUBSCRIBED")]
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() == []
    assert rig.statistics("remote_topics") == 0


LAST_WORDS = [
    code
    for code in UCode
    if code not in {UCode.OK, UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED}
    and code is not UCode.UNIMPLEMENTED  # see test_peer_versions.py
]


@pytest.mark.parametrize("code", LAST_WORDS, ids=[code.name for code in LAST_WORDS])
def test_an_error_of_the_other_usubscription_is_final(rig: "ServiceRig", code: UCode) -> None:
    """[utest->LIF-19]"""
    rig.subscribe(REMOTE)
    rig.remote_refuses(rig.take_remote_request(), code, "because")
    assert states(rig) == {}
    update = pb.Update.FromString(rig.notifications[-1].payload)
    assert update.status.state == UNSUBSCRIBED
    assert update.status.message == f"core.usubscription of 'device3': {code.name}: because"
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() == []


@pytest.mark.parametrize("code", [UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("ends", [False, True], ids=["subscribe", "unsubscribe"])
def test_an_error_of_a_dispatcher_on_the_way_is_no_answer(rig: "ServiceRig", code: UCode, ends: bool) -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->LIF-17]"""
    if ends:
        granted(rig)
        rig.unsubscribe(REMOTE)
    else:
        rig.subscribe(REMOTE)
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        rig.remote_refuses(rig.take_remote_request(), code)
        assert rig.take_remote_requests() == []
        rig.advance(s=pause_s)
    assert states(rig) == ({} if ends else {APP: PENDING})
    call = rig.take_remote_request()
    rig.remote_grants(call)
    assert states(rig) == ({} if ends else {APP: SUBSCRIBED})


SAYS_NOTHING = {
    "noise": b"\xff\xff",
    "state 9": bytes.fromhex("0a020809"),
    "unsubscribe pending": bytes.fromhex("0a020803"),
    "empty": b"",
    "a UStatus": bytes.fromhex("0805"),
}


@pytest.mark.parametrize("payload", SAYS_NOTHING.values(), ids=SAYS_NOTHING)
def test_an_empty_response_is_no_response(rig: "ServiceRig", payload: bytes) -> None:
    rig.subscribe(REMOTE)
    rig.client.send(
        response(UUID(0x7000, 2 << 62), rig.take_remote_request(), payload, UPayloadFormat.PROTOBUF)
    )
    assert states(rig) == {APP: PENDING}
    assert rig.take_remote_requests() == []
    rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


def test_only_the_usubscription_of_a_device_can_answer_for_it(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    forged = response(UUID(0x7000, 2 << 62), call)
    attributes = replace(forged.attributes, source=UUri("device4", 0, 3, 1))
    rig.client.send(replace(forged, attributes=attributes))
    assert states(rig) == {APP: PENDING}
    assert rig.statistics("remote_late") == 1
    rig.remote_grants(call)
    assert states(rig) == {APP: SUBSCRIBED}


def test_only_the_usubscription_of_a_device_answers_for_it(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    forged = response(UUID(0x7000, 2 << 62), call)
    refused = error_response(UUID(0x7000, 2 << 62), call, UStatus(UCode.NOT_FOUND, "no"))
    for each in (forged, refused):
        attributes = replace(each.attributes, source=UUri(FAR, 7, 1, 1))
        rig.client.send(replace(each, attributes=attributes))
    assert states(rig) == {APP: PENDING}
    assert rig.statistics("remote_late") == 2
    lost = error_response(UUID(0x7000, 2 << 62), call, UStatus(UCode.UNAVAILABLE, "no"))
    rig.client.send(replace(lost, attributes=replace(lost.attributes, source=UUri(FAR, 4, 1, 1))))
    assert rig.take_remote_requests() == []
    rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


@pytest.mark.parametrize("version", [0, 4, 9])
def test_a_response_is_decoded_in_the_version_of_the_call_whatever_its_source(
    rig: "ServiceRig", version: int
) -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=SUBSCRIBED)).SerializeToString()
    answer = response(UUID(0x7000, 2 << 62), call, payload, UPayloadFormat.PROTOBUF)
    rig.client.send(
        replace(answer, attributes=replace(answer.attributes, source=UUri(FAR, 0, version, SUBSCRIBE)))
    )
    assert states(rig) == {APP: SUBSCRIBED}


def test_a_long_reason_is_not_passed_on_in_full(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    rig.remote_refuses(rig.take_remote_request(), UCode.NOT_FOUND, "x" * 10_000)
    assert states(rig) == {}
    update = pb.Update.FromString(rig.notifications[-1].payload)
    assert update.status.message == f"core.usubscription of 'device3': NOT_FOUND: {'x' * MAX_REMOTE_REASON}"


def test_a_response_that_arrives_during_the_send_is_processed(rig: "ServiceRig") -> None:
    """As one from this streamer does, that it has no room for the call."""

    def answer(call: UMessage) -> None:
        rig._on_remote_request(call)
        rig.send_remote_error(call, UCode.RESOURCE_EXHAUSTED)

    everything = UUri(FAR, 0, ANY_VERSION, ANY_RESOURCE)
    rig.client.unregister_listener(ANY, everything, rig._on_remote_request)
    rig.client.register_listener(ANY, everything, answer)
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    assert rig.take_remote_requests() == []
    rig.advance(s=1)
    rig.take_remote_request()


def test_an_error_that_cannot_be_read_is_an_error_without_a_reason(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    noise = error_response(UUID(0x7000, 2 << 62), rig.take_remote_request(), UStatus(UCode.NOT_FOUND, "no"))
    rig.client.send(replace(noise, payload=b"\xff\xff"))
    rig.fetch()  # the response to the next call comes after the notification
    assert states(rig) == {}
    update = pb.Update.FromString(rig.notifications[-1].payload)
    assert update.status.message == "core.usubscription of 'device3': NOT_FOUND: without a reason"


def test_the_last_bits_of_an_id_spread_calls_over_the_pause() -> None:
    assert [_jitter(UUID(0, bits)) for bits in (0xF0000, 0xFFFFF)] == [0, 1]


def test_a_call_that_no_transport_accepts_is_repeated_after_a_pause(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send = rig.bus.send

    def full(message: UMessage) -> None:
        if message.attributes.sink == UUri(FAR, 0, 3, SUBSCRIBE):
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")
        send(message)

    monkeypatch.setattr(rig.bus, "send", full)
    assert rig.subscribe(REMOTE) == PENDING
    rig.advance(s=1)
    assert rig.take_remote_requests() == []
    assert (rig.statistics("remote_unsent"), rig.statistics("remote_open")) == (2, 0)
    assert [each.message for each in caplog.records if "not_sent" in each.message] == [
        "usubscription.call_not_sent"
    ]
    monkeypatch.setattr(rig.bus, "send", send)
    rig.advance(s=2)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


def test_a_topic_that_is_pending_there_too_is_pending_here_until_it_is_not(rig: "ServiceRig") -> None:
    """The other device may have to call a third device."""
    rig.subscribe(REMOTE)
    rig.remote_grants(rig.take_remote_request(), PENDING)
    assert states(rig) == {APP: PENDING}
    rig.advance(s=TIMEOUT_S / 2 - 1)
    assert rig.take_remote_requests() == []
    rig.remote_notifies(REMOTE, SUBSCRIBED)
    rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


def test_a_pending_remote_topic_is_requested_again_without_a_notification(make_rig: MakeRig) -> None:
    rig = make_rig(remote_refresh_s=0).start()
    rig.subscribe(REMOTE)
    rig.remote_grants(rig.take_remote_request(), PENDING)
    rig.advance(s=TIMEOUT_S)
    rig.remote_grants(rig.take_remote_request())
    rig.advance(s=TIMEOUT_S)
    assert (rig.take_remote_requests(), states(rig)) == ([], {APP: SUBSCRIBED})


# --- Unsubscribe ------------------------------------------------------------------------------------------------------


def test_unsubscribe_takes_effect_at_once_and_the_last_one_unsubscribes_remotely(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-last-remote~1] [utest->req~usubscription-unsubscribe-remote-unsubscribed~1]"""
    granted(rig)
    rig.subscribe(REMOTE, caller=OTHER_APP)
    rig.unsubscribe(REMOTE)
    assert rig.take_remote_requests() == []
    assert states(rig) == {OTHER_APP: SUBSCRIBED}
    rig.take_v3_notifications()
    rig.unsubscribe(REMOTE, caller=OTHER_APP)
    assert (states(rig), rig.routed_subscribers(REMOTE)) == ({}, [])
    assert changes(rig) == [(OTHER_APP, "UNSUBSCRIBED")]
    assert rig.statistics("remote_topics") == 1
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    rig.remote_grants(call)
    rig.fetch()
    assert rig.statistics("remote_topics") == 0


@pytest.mark.parametrize("code", LAST_WORDS, ids=[code.name for code in LAST_WORDS])
def test_any_response_to_an_unsubscribe_ends_the_topic(rig: "ServiceRig", code: UCode) -> None:
    """[utest->req~usubscription-unsubscribe-remote-unsubscribed~1]"""
    granted(rig)
    rig.unsubscribe(REMOTE)
    rig.remote_refuses(rig.take_remote_request(), code)
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() == []
    assert rig.statistics("remote_topics") == 0


def test_the_last_unsubscribe_cancels_a_pending_subscribe(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-subscribe-pending~1] [utest->req~usubscription-remote-retry-indefinitely~1]"""
    rig.subscribe(REMOTE)
    subscribe = rig.take_remote_request()
    rig.unsubscribe(REMOTE)
    assert states(rig) == {}
    unsubscribe = rig.take_remote_request()
    assert unsubscribe.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    rig.remote_grants(subscribe)  # too late
    assert (states(rig), rig.statistics("remote_topics")) == ({}, 1)
    rig.remote_grants(unsubscribe)
    rig.fetch()
    assert rig.statistics("remote_topics") == 0
    assert changes(rig) == [(APP, "SUBSCRIBE_PENDING"), (APP, "UNSUBSCRIBED")]


def test_after_the_last_unsubscribe_no_changes_of_the_topic_are_announced(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-notifications~1] [utest->req~usubscription-remote-unsubscribe-notifications~1]"""
    rig.register(REMOTE)
    granted(rig)
    rig.unsubscribe(REMOTE)
    call = rig.take_remote_request()
    rig.take_v3_notifications()
    rig.published.clear()
    rig.remote_grants(call)
    assert rig.take_v3_notifications() == []
    assert rig.published == []


def test_a_new_subscribe_before_the_unsubscribe_response_is_sent_again(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-unsubscribe-pending~1]"""
    pending_unsubscribe(rig)
    assert rig.subscribe(REMOTE) == PENDING
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, SUBSCRIBE)
    rig.remote_grants(call)
    assert states(rig) == {APP: SUBSCRIBED}


def test_unsubscribe_and_subscribe_in_one_commit_are_requested_again(rig: "ServiceRig") -> None:
    granted(rig)
    with rig.service_blocked():
        rig.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=REMOTE.to_pb()))
        back = rig.send_request(SUBSCRIBE, rig.subscription_request(REMOTE))
    assert pb.SubscriptionResponse.FromString(rig.wait_response(back).payload).status.state == PENDING
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


# The changes of one commit, in order, and the subscribers that then wait for a Subscribe or (None) an Unsubscribe.
TOGETHER: dict[str, tuple[str, str, UUri | None]] = {
    "refused, and another one subscribes": ("subscribe", "refused other", OTHER_APP),
    "refused, and the same one subscribes again": ("subscribe", "refused joins", APP),
    "granted, but the last one left and subscribes again": ("subscribe", "granted leaves joins", APP),
    "the last one leaves, the response arrives, a new subscribe": ("subscribe", "leaves granted joins", APP),
    "confirmed, but the last one left and subscribes again": ("refresh", "granted leaves joins", APP),
    "refused, and the same one subscribes and leaves": ("subscribe", "refused joins leaves", None),
    "released, and one subscribes and leaves": ("unsubscribe", "released joins leaves", None),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_a_change_in_the_commit_of_a_response_is_requested_again(rig: "ServiceRig", case: str) -> None:
    """The state before and after it is the same, but the other device has no such subscription."""
    before, steps, waits = TOGETHER[case]
    if before == "subscribe":
        rig.subscribe(REMOTE)
    else:
        granted(rig)
    if before == "unsubscribe":
        rig.unsubscribe(REMOTE)
    elif before == "refresh":
        rig.links.set_state(FAR, up=True)
    call = rig.take_remote_request()
    with rig.service_blocked():
        for step in steps.split():
            match step:
                case "granted" | "refused" | "released":
                    rig.send_remote_grant(call, UNSUBSCRIBED if step == "refused" else SUBSCRIBED)
                case "leaves":
                    rig.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=REMOTE.to_pb()))
                case _:
                    caller = OTHER_APP if step == "other" else APP
                    rig.send_request(SUBSCRIBE, rig.subscription_request(REMOTE), caller=caller)
    assert states(rig) == ({} if waits is None else {waits: PENDING})
    again = rig.take_remote_request()
    assert rig.remote_request_fields(again)[0] == (UNSUBSCRIBE if waits is None else SUBSCRIBE)
    rig.remote_grants(again)
    assert states(rig) == ({} if waits is None else {waits: SUBSCRIBED})
    assert rig.take_remote_requests() == []
    assert rig.statistics("remote_topics") == (waits is not None)


def test_a_subscription_that_expires_is_ended_there_too(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-expiration~1]"""
    granted(rig, expire_ms=rig.now_ms + 1000)
    rig.advance(ms=1001)
    assert changes(rig) == [(APP, "UNSUBSCRIBED")]
    rig.remote_grants(rig.take_remote_request())
    rig.fetch()
    assert rig.statistics("remote_topics") == 0


def test_after_the_fastest_expires_the_rate_of_the_others_is_requested(rig: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    granted(rig, sample_period_ms=100)
    rig.subscribe(REMOTE, caller=OTHER_APP, expire_ms=rig.now_ms + 1000)
    rig.remote_grants(rig.take_remote_request())
    rig.advance(ms=1001)
    assert rig.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 66, None)]


def test_a_reset_ends_the_subscriptions_elsewhere(rig: "ServiceRig") -> None:
    """[utest->req~usubscription-reset~1]"""
    granted(rig)
    rig.reset()
    assert changes(rig) == [(APP, "UNSUBSCRIBED")]
    assert rig.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


# --- requested topics ---------------------------------------------------------------------------------------


def test_the_fastest_rate_and_the_latest_end_are_requested_and_changes_follow(rig: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    soon, late = rig.now_ms + 10_000, rig.now_ms + 20_000
    granted(rig, sample_period_ms=100, expire_ms=soon)
    rig.subscribe(REMOTE, caller=OTHER_APP, sample_period_ms=20, expire_ms=late)
    call = rig.take_remote_request()
    assert rig.remote_request_fields(call) == (SUBSCRIBE, REMOTE, 13, late)
    assert states(rig) == {APP: SUBSCRIBED, OTHER_APP: SUBSCRIBED}
    rig.subscribe(REMOTE, caller=APP, sample_period_ms=50)  # not while one is under way
    assert rig.take_remote_requests() == []
    rig.remote_grants(call)
    assert rig.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 13, None)]
    rig.unsubscribe(REMOTE, caller=OTHER_APP)
    assert states(rig) == {APP: SUBSCRIBED}


def test_a_slower_or_shorter_subscription_changes_nothing_remotely(rig: "ServiceRig") -> None:
    granted(rig, sample_period_ms=20)
    rig.subscribe(REMOTE, caller=OTHER_APP, sample_period_ms=100, expire_ms=rig.now_ms + 1000)
    rig.unsubscribe(REMOTE, caller=OTHER_APP)
    assert rig.take_remote_requests() == []


def test_after_the_fastest_leaves_the_rate_of_the_others_is_requested(rig: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    granted(rig, sample_period_ms=100)
    rig.subscribe(REMOTE, caller=OTHER_APP)
    rig.remote_grants(rig.take_remote_request())
    rig.unsubscribe(REMOTE, caller=OTHER_APP)
    assert rig.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 66, None)]


def test_the_same_details_twice_are_requested_once(rig: "ServiceRig") -> None:
    wanted = rig.subscription_request(REMOTE)
    wanted.attributes.details.append(Any(value=b"same"))
    rig.call(SUBSCRIBE, wanted)
    rig.remote_grants(rig.take_remote_request())
    rig.call(SUBSCRIBE, wanted, caller=OTHER_APP)
    assert rig.take_remote_requests() == []


def test_the_lowest_frequency_is_requested_as_the_longest_period(rig: "ServiceRig") -> None:
    wanted = rig.subscription_request(REMOTE)
    wanted.attributes.MergeFromString(bytes.fromhex("1995d626e80b2e113e"))  # max_frequency 1e-9 Hz
    rig.call(SUBSCRIBE, wanted)
    assert rig.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 2**32 - 1, None)]


def test_details_that_are_too_long_together_are_left_out(rig: "ServiceRig") -> None:
    call = None
    for app, text in ((APP, b"1" * 3000), (OTHER_APP, b"2" * 3000), (UUri(OWN, 7, 1, 0), b"3" * 900)):
        wanted = rig.subscription_request(REMOTE)
        wanted.attributes.details.append(Any(value=text))
        rig.call(SUBSCRIBE, wanted, caller=app)
        for call in rig.take_remote_requests():
            rig.remote_grants(call)
    assert call is not None
    sent_request = pb.SubscriptionRequest.FromString(call.payload)
    assert len(sent_request.attributes.SerializeToString()) <= MAX_DETAILS
    assert sorted(len(each.value) for each in sent_request.attributes.details) == [900, 3000]


def test_the_producer_gets_the_details_of_all(rig: "ServiceRig") -> None:
    call = None
    for app, text in ((APP, b"one"), (OTHER_APP, b"two")):
        wanted = rig.subscription_request(REMOTE)
        wanted.attributes.details.append(Any(type_url="t", value=text))
        rig.call(SUBSCRIBE, wanted, caller=app)
        call = rig.take_remote_request()
        rig.remote_grants(call)
    assert call is not None
    sent_request = pb.SubscriptionRequest.FromString(call.payload)
    assert sorted(each.value for each in sent_request.attributes.details) == [b"one", b"two"]


def test_a_topic_of_every_instance_is_requested_in_version_4(rig: "ServiceRig") -> None:
    wanted = pb4.SubscribeRequest(topic=EVERY.to_pb(), sample_period=40)
    answer = rig.call_for(pb4.SubscribeResponse, SUBSCRIBE, wanted, version=4)
    assert answer.status == pb4.STATUS_SUBSCRIBE_PENDING
    call = rig.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (UUri(OWN, 0, 4, 0), UUri(FAR, 0, 4, SUBSCRIBE))
    assert pb4.SubscribeRequest.FromString(call.payload) == pb4.SubscribeRequest(
        topic=EVERY.to_pb(), sample_period=26
    )
    granted = pb4.SubscribeResponse(topic=EVERY.to_pb(), status=pb4.STATUS_SUBSCRIBED)
    rig.client.send(
        response(UUID(0x7000, 2 << 62), call, granted.SerializeToString(), UPayloadFormat.PROTOBUF)
    )
    [listed] = rig.call_for(
        pb4.FetchSubscriptionsResponse, 3, pb4.FetchSubscriptionsRequest(), version=4
    ).subscriptions
    assert listed.status == pb4.STATUS_SUBSCRIBED
    rig.call_for(pb4.UnsubscribeResponse, UNSUBSCRIBE, pb4.UnsubscribeRequest(topic=EVERY.to_pb()), version=4)
    assert rig.take_remote_request().attributes.sink == UUri(FAR, 0, 4, UNSUBSCRIBE)


def grant_every(rig: "ServiceRig") -> None:
    """Let APP's subscription of EVERY be granted."""
    rig.call(SUBSCRIBE, pb4.SubscribeRequest(topic=EVERY.to_pb()), version=4)
    rig.remote_grants(rig.take_remote_request())


@pytest.mark.parametrize(
    ("status", "calls"),
    [(pb4.STATUS_SUBSCRIBED, 0), (pb4.STATUS_UNSUBSCRIBED, 1), (pb4.STATUS_UNSPECIFIED, 0)],
)
def test_a_device_can_report_a_lost_subscription_in_version_4(
    rig: "ServiceRig", status: int, calls: int
) -> None:
    grant_every(rig)
    change = pb4.Subscription(topic=EVERY.to_pb(), subscriber=UUri(OWN, 0, 4, 0).to_pb())
    change.status = status
    source, sink = UUri(FAR, 0, 4, 0x8000), UUri(OWN, 0, 4, 0)
    payload = change.SerializeToString()
    rig.client.send(notification(UUID(0x7000, 2 << 62), source, sink, payload, UPayloadFormat.PROTOBUF))
    rig.fetch()
    rig.advance(s=1)
    assert len(rig.take_remote_requests()) == calls


def test_unsubscribe_is_sent_in_version_4_as_well(rig: "ServiceRig") -> None:
    wanted = pb4.SubscribeRequest(topic=EVERY.to_pb())
    wanted.expiration.FromMilliseconds(rig.now_ms + 1500)
    rig.call(SUBSCRIBE, wanted, version=4)
    assert rig.take_remote_request_fields() == [(SUBSCRIBE, EVERY, 0, rig.now_ms + 1500)]


@pytest.mark.parametrize("resource", [0, 1])
def test_a_device_that_lost_a_subscription_is_called_again(rig: "ServiceRig", resource: int) -> None:
    """For example after a reset; the device notifies every subscriber, including this service."""
    granted(rig)
    rig.remote_notifies(REMOTE, UNSUBSCRIBED, subscriber=US.with_resource(resource))
    assert rig.take_remote_requests() == []
    rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}
    assert changes(rig) == []


@pytest.mark.parametrize("order", ["answer hint", "hint answer"])
@pytest.mark.parametrize(("answered", "hinted"), [(PENDING, SUBSCRIBED), (SUBSCRIBED, UNSUBSCRIBED)])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one commit"])
def test_notifications_around_a_response_are_compared_with_it(
    rig: "ServiceRig", order: str, answered: int, hinted: int, together: bool
) -> None:
    """They arrive with different priorities. A notification that is ignored now may not be repeated."""
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()

    def notify() -> None:
        for each in order.split():
            if each == "answer":
                rig.send_remote_grant(call, answered)
            else:
                rig.send_remote_notification(REMOTE, hinted)
            if not together:
                rig.fetch()

    if together:
        with rig.service_blocked():
            notify()
    else:
        notify()
    assert states(rig) == {APP: answered}
    if answered == SUBSCRIBED:  # the expected state is requested at once
        assert rig.take_remote_requests() == []
        rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() == []


@pytest.mark.parametrize("order", ["answer hint", "hint answer"])
def test_a_notification_equal_to_the_response_causes_no_call(rig: "ServiceRig", order: str) -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    for each in order.split():
        if each == "answer":
            rig.send_remote_grant(call)
        else:
            rig.send_remote_notification(REMOTE, SUBSCRIBED)
    assert states(rig) == {APP: SUBSCRIBED}
    rig.advance(s=10)
    assert rig.take_remote_requests() == []


def test_an_ecu_that_reboots_repeatedly_is_called_after_each_reboot(rig: "ServiceRig") -> None:
    granted(rig)
    for _ in range(5):
        rig.remote_notifies(REMOTE, PENDING)
        rig.advance(ms=1_000)
        rig.remote_grants(rig.take_remote_request(), PENDING)
        assert states(rig) == {APP: PENDING}
        rig.remote_notifies(REMOTE, SUBSCRIBED)
        rig.remote_grants(rig.take_remote_request())
        assert states(rig) == {APP: SUBSCRIBED}


def test_a_notification_before_a_call_is_not_compared_with_its_response(rig: "ServiceRig") -> None:
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    rig.remote_notifies(REMOTE, UNSUBSCRIBED)
    rig.advance(s=TIMEOUT_S)
    rig.remote_grants(rig.take_remote_request())
    rig.advance(s=10)
    assert rig.take_remote_requests() == []


HINTS = {
    "the known state": {"state": SUBSCRIBED},
    "of another subscriber": {"state": UNSUBSCRIBED, "subscriber": UUri(OWN, 1, 1, 0)},
    "of another device's topic": {"state": UNSUBSCRIBED, "source": UUri("device4", 0, 3, 0x8000)},
    "from some entity": {"state": UNSUBSCRIBED, "source": UUri(FAR, 7, 3, 0x8000)},
    "on another topic": {"state": UNSUBSCRIBED, "source": UUri(FAR, 0, 3, 0x8001)},
    "in an unknown version": {"state": UNSUBSCRIBED, "source": UUri(FAR, 0, 9, 0x8000)},
    "in an unknown state": {"state": 9},
    "of an unknown topic": {"state": UNSUBSCRIBED, "topic": UUri(FAR, 1, 1, 0x8000)},
}


@pytest.mark.parametrize("hint", HINTS)
def test_other_notifications_cause_no_call(rig: "ServiceRig", hint: str) -> None:
    granted(rig)
    rig.remote_notifies(**{"topic": REMOTE, **HINTS[hint]})  # type: ignore[arg-type,dict-item]
    rig.advance(s=10)
    assert rig.take_remote_requests() == []
    assert states(rig) == {APP: SUBSCRIBED}


@pytest.mark.parametrize("state", [PENDING, SUBSCRIBED])
def test_a_remote_subscription_without_a_local_subscriber_is_unsubscribed(
    rig: "ServiceRig", state: int
) -> None:
    """A Subscribe may arrive after its Unsubscribe: a transport that retransmits does not keep the order of methods."""
    rig.remote_notifies(REMOTE, state)
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    rig.remote_notifies(REMOTE, state)
    assert rig.take_remote_requests() == []  # while one is under way
    rig.remote_grants(call)
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() != []  # for the second hint, which may be newer than the answer
    rig.remote_notifies(UUri(OWN, 1, 1, 0x8000), state, source=UUri(OWN, 0, 3, 0x8000))
    rig.remote_notifies(ELSEWHERE, UNSUBSCRIBED)
    assert rig.take_remote_requests() == []


# --- time, links and restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True], ids=["subscribe", "unsubscribe"])
def test_a_call_without_a_response_is_repeated_without_limit(rig: "ServiceRig", ends: bool) -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->req~usubscription-remote-max-timeout~1]
    [utest->LIF-16] [utest->LIF-17]
    """
    if ends:
        pending_unsubscribe(rig)
    else:
        rig.subscribe(REMOTE)
        rig.take_remote_request()
    for _ in range(5):
        rig.advance(s=TIMEOUT_S - 1)
        assert rig.take_remote_requests() == []
        rig.advance(s=1)
        assert len(rig.take_remote_requests()) == 1
    rig.advance(s=TIMEOUT_S)
    rig.remote_grants(rig.take_remote_request())
    rig.advance(s=TIMEOUT_S)
    assert rig.take_remote_requests() == []


def test_granted_subscriptions_are_confirmed_at_the_configured_interval(make_rig: MakeRig) -> None:
    rig = make_rig(remote_refresh_s=600).start()
    granted(rig)
    rig.advance(s=299)
    assert rig.take_remote_requests() == []
    rig.advance(s=301)
    rig.remote_grants(rig.take_remote_request())
    assert changes(rig) == []


def test_no_call_is_sent_while_the_link_is_down(rig: "ServiceRig") -> None:
    """[utest->LIF-18]"""
    rig.links.set_state(FAR, up=False)
    assert rig.subscribe(REMOTE) == PENDING
    rig.subscribe(ELSEWHERE)
    assert rig.take_remote_request().attributes.sink == UUri("device4", 0, 3, SUBSCRIBE)
    rig.advance(s=TIMEOUT_S - 1)
    assert rig.take_remote_requests() == []
    rig.links.set_state(FAR, up=True)
    rig.wait_until(lambda: len(rig._remote_requests) == 1, "the call at link-up")
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


def test_link_up_requests_all_topics_again(rig: "ServiceRig") -> None:
    """[utest->LIF-18] Messages in transit may be lost, and a rebooted device may have lost its state."""
    rig.links.set_state(FAR, up=True)
    granted(rig)
    rig.subscribe(UUri(FAR, 1, 1, 0x8000))
    rig.take_remote_request()
    rig.links.set_state(FAR, up=False)
    rig.links.set_state(FAR, up=True)
    assert [topic for _, topic, _, _ in rig.take_remote_request_fields()] == [
        REMOTE,
        UUri(FAR, 1, 1, 0x8000),
    ]
    assert states(rig) == {APP: SUBSCRIBED}  # a confirmation is not announced


@pytest.mark.parametrize("crashed", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("before", ["subscribe", "granted", "unsubscribe"])
def test_after_a_restart_pending_calls_continue(make_rig: MakeRig, before: str, crashed: bool) -> None:
    """[utest->req~usubscription-subscribe-persistency~1] [utest->req~usubscription-remote-retry-indefinitely~1]"""
    rig = make_rig().start()
    if before == "unsubscribe":
        pending_unsubscribe(rig)
    else:
        rig.subscribe(REMOTE)
        call = rig.take_remote_request()
        if before == "granted":
            rig.remote_grants(call)
            rig.fetch()
    if crashed:
        rig.plugin.service._store._store.close(orderly=False)  # nothing more is written
    rig.restart()
    expected = {"subscribe": PENDING, "granted": SUBSCRIBED}
    assert states(rig) == ({APP: expected[before]} if before in expected else {})
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE if before == "unsubscribe" else SUBSCRIBE)
    rig.remote_grants(call)
    assert states(rig) == ({APP: SUBSCRIBED} if before in expected else {})
    rig.restart()
    assert len(rig.take_remote_requests()) == (before in expected)


def test_no_call_is_sent_before_the_endpoints_are_up(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    rig.stop()
    rig.plugin = rig._new_plugin()
    rig.plugin.service.start(rig.bus)
    assert rig._remote_requests == []
    rig.plugin.ustreamer_started()
    rig.wait_until(lambda: len(rig._remote_requests) == 1, "the call")


def test_a_subscription_that_expired_during_a_stop_is_ended_remotely(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    granted(rig, expire_ms=rig.now_ms + 1000)
    rig.stop()
    rig.advance(ms=1001)
    rig.plugin = rig._new_plugin()
    rig.start()
    assert rig.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    assert rig.pairs() == []


def test_a_topic_whose_subscribers_are_lost_in_the_store_is_unsubscribed_remotely(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    granted(rig)
    rig.stop()
    plugin = rig._new_plugin()
    store: SubscriptionStore = plugin.service._store
    store.open()
    store.take_subscriptions()
    store.commit([delete_subscription(REMOTE, APP)])
    store.close()
    rig.plugin = rig._new_plugin()
    rig.start()
    call = rig.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    rig.remote_grants(call)
    assert rig.take_remote_requests() == []
    assert rig.statistics("remote_topics") == 0


def test_a_topic_that_the_configuration_made_local_needs_no_call(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    rig.subscribe(REMOTE)
    rig.take_remote_request()
    rig.serves = (OWN, FAR)
    rig.restart()
    assert states(rig) == {APP: SUBSCRIBED}
    assert (rig.take_remote_requests(), rig.statistics("remote_topics")) == ([], 0)


def test_a_topic_that_the_configuration_made_remote_is_requested(make_rig: MakeRig) -> None:
    rig = make_rig(serves=(OWN, FAR)).start()
    assert rig.subscribe(REMOTE) == SUBSCRIBED
    rig.serves = (OWN,)
    rig.restart()
    assert states(rig) == {APP: PENDING}
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_remote_topics_are_bounded_with_those_that_are_still_to_be_unsubscribed(make_rig: MakeRig) -> None:
    rig = make_rig(max_remote_topics=2).start()
    for number in range(2):
        rig.subscribe(UUri(FAR, 1, 1, 0x8000 + number))
    rig.unsubscribe(UUri(FAR, 1, 1, 0x8000))
    status = rig.call_refused(SUBSCRIBE, rig.subscription_request(REMOTE))
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert "2 remote_topics are kept, max_remote_topics is 2" in status.message
    assert rig.pairs() == [(UUri(FAR, 1, 1, 0x8001), APP)]
    assert rig.subscribe(UUri(FAR, 1, 1, 0x8001), caller=OTHER_APP) == PENDING  # it is there already
    assert rig.subscribe(UUri(FAR, 1, 1, 0x8000)) == PENDING
    rig.subscribe()  # a local one


def test_no_subscriber_is_rejected_because_of_a_remote_expiry_without_space(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(rig, expire_ms=rig.now_ms + 1000)
    store = rig.plugin.service._store
    commit = store.commit

    def no_new_states(changes: Sequence[RecordChange], *more: object) -> None:
        if any(change.key.startswith(b"r/") for change in changes):
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")
        commit(changes, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", no_new_states)
        rig.advance(ms=1001)
        rig.unsubscribe(UUri(OWN, 1, 1, 0x8000))
        assert rig.subscribe(UUri(OWN, 1, 1, 0x8000)) == SUBSCRIBED
    rig.advance(s=1)
    assert rig.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


def test_an_invalid_or_oversized_hint_is_not_queued(rig: "ServiceRig") -> None:
    granted(rig)
    before = rig.statistics("ignored")
    rig.remote_notifies(REMOTE, UNSUBSCRIBED, source=UUri(FAR, 7, 3, 0x8000))
    large = UUri(FAR, 0, 3, 0x8000)
    rig.client.send(notification(UUID(0x7000, 2 << 62), large, US, b"x" * (MAX_PAYLOAD + 1)))
    assert rig.statistics("ignored") == before + 2


def test_an_answer_is_taken_although_the_queue_of_requests_is_full(make_rig: MakeRig) -> None:
    rig = make_rig(max_queued_requests=1).start()
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    with rig.service_blocked():
        accepted = rig.send_request(FETCH)
        refused = rig.wait_response(rig.send_request(FETCH))
        assert refused.attributes.commstatus is UCode.RESOURCE_EXHAUSTED
        rig.send_remote_grant(call)
    rig.wait_response(accepted)
    assert states(rig) == {APP: SUBSCRIBED}


def test_a_question_is_answered_although_an_expiry_elsewhere_finds_no_room(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(rig, expire_ms=rig.now_ms + 1000)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    with monkeypatch.context() as patched:
        patched.setattr(rig.plugin.service._store, "commit", full)
        rig.advance(ms=1001)
        assert states(rig) == {}
        assert rig.take_remote_requests() == []  # only stored changes are announced
    rig.advance(s=1)
    assert rig.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


def test_a_response_that_does_not_fit_on_the_disk_is_requested_again(
    rig: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.subscribe(REMOTE)
    call = rig.take_remote_request()
    store = rig.plugin.service._store
    commit = store.commit

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    monkeypatch.setattr(store, "commit", full)
    rig.remote_grants(call)
    assert states(rig) == {APP: PENDING}
    # not at once, otherwise a full disk would cause calls without a pause
    assert rig.take_remote_requests() == []
    monkeypatch.setattr(store, "commit", commit)
    rig.advance(s=1)
    rig.remote_grants(rig.take_remote_request())
    assert states(rig) == {APP: SUBSCRIBED}
