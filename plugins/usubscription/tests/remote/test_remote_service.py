# SPDX-License-Identifier: Apache-2.0
"""Topics of other devices, asked over a bus: the service and its store are real, the other uSubscription is a script."""

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
SUBSCRIBE, UNSUBSCRIBE = 1, 2
TIMEOUT_S = 300


def states(desk: "ServiceRig") -> dict[UUri, int]:
    """The state of each subscriber of REMOTE, as FetchSubscriptions has it."""
    return {UUri.from_pb(each.subscriber.uri): each.status.state for each in desk.fetch(REMOTE).subscriptions}


def changes(desk: "ServiceRig") -> list[tuple[UUri, str]]:
    """(subscriber, state) of each change that a subscriber itself was told since the last time."""
    return [
        (subscriber, state) for to, _, subscriber, state in desk.take_v3_notifications() if to == subscriber
    ]


def granted(desk: "ServiceRig", **wish: int) -> None:
    """Let APP's subscription of REMOTE be granted."""
    desk.subscribe(REMOTE, **wish)  # type: ignore[arg-type]
    desk.remote_grants(desk.take_remote_request())
    desk.take_v3_notifications()


def pending_unsubscribe(desk: "ServiceRig") -> None:
    """Let APP's subscription of REMOTE be granted and ended, and the answer to that fail to come."""
    granted(desk)
    desk.unsubscribe(REMOTE)
    desk.take_remote_request()
    desk.take_v3_notifications()


# --- Subscribe --------------------------------------------------------------------------------------------------------


def test_the_first_subscriber_waits_for_the_other_device_and_is_told(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-remote~1] [utest->req~usubscription-subscribe-remote-pending~1]
    [utest->req~usubscription-subscribe-remote-response~1]
    """
    assert desk.subscribe(REMOTE) == PENDING
    assert states(desk) == {APP: PENDING}
    call = desk.take_remote_request()
    desk.remote_grants(call)
    assert states(desk) == {APP: SUBSCRIBED}
    assert changes(desk) == [(APP, "SUBSCRIBE_PENDING"), (APP, "SUBSCRIBED")]
    assert desk.routed_subscribers(REMOTE) == [(APP, 0)]


def test_what_arrives_while_the_answer_is_on_its_way_is_routed_already(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    assert desk.routed_subscribers(REMOTE) == [(APP, 0)]


def test_the_request_is_the_one_of_the_standard(desk: "ServiceRig") -> None:
    """[utest->dsn~usubscription-subscribe-remote-subscriber-change~1] [utest->LIF-15]
    [utest->req~usubscription-remote-max-timeout~1]
    """
    desk.subscribe(REMOTE.with_authority(FAR), sample_period_ms=1000, expire_ms=1_781_565_900_000)
    call = desk.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (US, UUri(FAR, 0, 3, 1))
    assert (call.attributes.ttl, call.attributes.priority) == (300_000, UPriority.CS4)
    vector = "0a120a076465766963653310ab21180320cd81021a0b0a0608cc93c2d10618e807"  # section 4.8, at device3
    assert call.payload.hex() == vector
    header = encode(UUID(0x018D548EA8E07000, 0x8000000000000001), call.attributes)
    assert header.hex() == (
        "0a12090070e0a88e548d0111010000000000008010021a0b0a07646576696365311803220d0a076465766963653318032001280530e0a7126002"
    )


def test_the_request_to_end_it_comes_from_us_as_well(desk: "ServiceRig") -> None:
    """[utest->dsn~usubscription-unsubscribe-remote-subscriber-change~1] [utest->LIF-15]
    [utest->req~usubscription-unsubscribe-last-remote~1]
    """
    granted(desk)
    desk.unsubscribe(REMOTE)
    call = desk.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (US, UUri(FAR, 0, 3, 2))
    assert call.attributes.ttl == 300_000
    assert pb.UnsubscribeRequest.FromString(call.payload) == pb.UnsubscribeRequest(topic=REMOTE.to_pb())


def test_the_subscriber_is_named_only_to_those_who_need_it(make_desk: MakeRig) -> None:
    desk = make_desk(legacy_subscriber_field=True).start()
    granted(desk)
    desk.unsubscribe(REMOTE)
    call = desk.take_remote_request()
    assert UUri.from_pb(pb.UnsubscribeRequest.FromString(call.payload).subscriber.uri) == US


def test_others_while_it_is_pending_wait_with_the_first_and_cause_no_call(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-multiple~1]"""
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    assert desk.subscribe(REMOTE, caller=OTHER_APP) == PENDING
    assert desk.subscribe(REMOTE) == PENDING
    assert desk.take_remote_requests() == []
    desk.remote_grants(call)
    assert states(desk) == {APP: SUBSCRIBED, OTHER_APP: SUBSCRIBED}
    assert sorted(changes(desk)) == sorted(
        (app, state) for app in (APP, OTHER_APP) for state in ("SUBSCRIBE_PENDING", "SUBSCRIBED")
    )
    assert desk.take_remote_requests() == []


def test_others_after_it_was_granted_are_subscribed_at_once(desk: "ServiceRig") -> None:
    granted(desk)
    assert desk.subscribe(REMOTE, caller=OTHER_APP) == SUBSCRIBED
    assert desk.take_remote_requests() == []
    assert changes(desk) == [(OTHER_APP, "SUBSCRIBED")]


def test_many_who_subscribe_in_the_same_moment_cause_one_call(desk: "ServiceRig") -> None:
    with desk.service_blocked():
        waiting = [
            desk.send_request(
                SUBSCRIBE, desk.subscription_request(REMOTE), caller=UUri(OWN, 1 + number, 1, 0)
            )
            for number in range(100)
        ]
    answers = [pb.SubscriptionResponse.FromString(desk.wait_response(each).payload) for each in waiting]
    assert {answer.status.state for answer in answers} == {PENDING}
    assert len(desk.take_remote_requests()) == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_answer_may_be_wrapped_in_any(desk: "ServiceRig", wrapped: bool) -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=SUBSCRIBED)).SerializeToString()
    if wrapped:
        name = "type.googleapis.com/uprotocol.core.usubscription.v3.SubscriptionResponse"
        payload = Any(type_url=name, value=payload).SerializeToString()
    style = UPayloadFormat.PROTOBUF_WRAPPED_IN_ANY if wrapped else UPayloadFormat.PROTOBUF
    desk.client.send(response(UUID(0x7000, 2 << 62), call, payload, style))
    assert states(desk) == {APP: SUBSCRIBED}


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_answer_unsubscribed_ends_it_for_everybody(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-remote-response~1] [utest->LIF-19]"""
    desk.subscribe(REMOTE)
    desk.subscribe(REMOTE, caller=OTHER_APP)
    call = desk.take_remote_request()
    desk.take_v3_notifications()
    desk.remote_grants(call, UNSUBSCRIBED)
    assert (states(desk), desk.routed_subscribers(REMOTE)) == ({}, [])
    assert changes(desk) == [(APP, "UNSUBSCRIBED"), (OTHER_APP, "UNSUBSCRIBED")]
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() == []
    assert desk.statistics("remote_topics") == 0


LAST_WORDS = [
    code
    for code in UCode
    if code not in {UCode.OK, UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED}
]


@pytest.mark.parametrize("code", LAST_WORDS, ids=[code.name for code in LAST_WORDS])
def test_an_error_of_the_other_usubscription_is_its_last_word(desk: "ServiceRig", code: UCode) -> None:
    """[utest->LIF-19]"""
    desk.subscribe(REMOTE)
    desk.remote_refuses(desk.take_remote_request(), code, "because")
    assert states(desk) == {}
    update = pb.Update.FromString(desk.notifications[-1].payload)
    assert update.status.state == UNSUBSCRIBED
    assert update.status.message == f"core.usubscription of 'device3': {code.name}: because"
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() == []


@pytest.mark.parametrize("code", [UCode.UNAVAILABLE, UCode.DEADLINE_EXCEEDED, UCode.RESOURCE_EXHAUSTED])
@pytest.mark.parametrize("ends", [False, True], ids=["subscribe", "unsubscribe"])
def test_an_error_of_a_dispatcher_on_the_way_is_no_answer(
    desk: "ServiceRig", code: UCode, ends: bool
) -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->LIF-17]"""
    if ends:
        granted(desk)
        desk.unsubscribe(REMOTE)
    else:
        desk.subscribe(REMOTE)
    for pause_s in (1, 2, 4, 8, 16, 32, 60, 60):
        desk.remote_refuses(desk.take_remote_request(), code)
        assert desk.take_remote_requests() == []
        desk.advance(s=pause_s)
    assert states(desk) == ({} if ends else {APP: PENDING})
    call = desk.take_remote_request()
    desk.remote_grants(call)
    assert states(desk) == ({} if ends else {APP: SUBSCRIBED})


SAYS_NOTHING = {
    "noise": b"\xff\xff",
    "state 9": bytes.fromhex("0a020809"),
    "unsubscribe pending": bytes.fromhex("0a020803"),
    "empty": b"",
    "a UStatus": bytes.fromhex("0805"),
}


@pytest.mark.parametrize("payload", SAYS_NOTHING.values(), ids=SAYS_NOTHING)
def test_an_answer_that_says_nothing_is_none(desk: "ServiceRig", payload: bytes) -> None:
    desk.subscribe(REMOTE)
    desk.client.send(
        response(UUID(0x7000, 2 << 62), desk.take_remote_request(), payload, UPayloadFormat.PROTOBUF)
    )
    assert states(desk) == {APP: PENDING}
    assert desk.take_remote_requests() == []
    desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


def test_nobody_else_answers_for_a_device(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    forged = response(UUID(0x7000, 2 << 62), call)
    attributes = replace(forged.attributes, source=UUri("device4", 0, 3, 1))
    desk.client.send(replace(forged, attributes=attributes))
    assert states(desk) == {APP: PENDING}
    assert desk.statistics("remote_late") == 1
    desk.remote_grants(call)
    assert states(desk) == {APP: SUBSCRIBED}


def test_only_the_usubscription_of_a_device_answers_for_it(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    forged = response(UUID(0x7000, 2 << 62), call)
    refused = error_response(UUID(0x7000, 2 << 62), call, UStatus(UCode.NOT_FOUND, "no"))
    for each in (forged, refused):
        attributes = replace(each.attributes, source=UUri(FAR, 7, 1, 1))
        desk.client.send(replace(each, attributes=attributes))
    assert states(desk) == {APP: PENDING}
    assert desk.statistics("remote_late") == 2
    lost = error_response(UUID(0x7000, 2 << 62), call, UStatus(UCode.UNAVAILABLE, "no"))
    desk.client.send(replace(lost, attributes=replace(lost.attributes, source=UUri(FAR, 4, 1, 1))))
    assert desk.take_remote_requests() == []
    desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


@pytest.mark.parametrize("version", [0, 4, 9])
def test_an_answer_is_read_in_the_version_of_the_call_whatever_its_source_says(
    desk: "ServiceRig", version: int
) -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=SUBSCRIBED)).SerializeToString()
    answer = response(UUID(0x7000, 2 << 62), call, payload, UPayloadFormat.PROTOBUF)
    desk.client.send(
        replace(answer, attributes=replace(answer.attributes, source=UUri(FAR, 0, version, SUBSCRIBE)))
    )
    assert states(desk) == {APP: SUBSCRIBED}


def test_a_long_reason_is_not_passed_on_in_full(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    desk.remote_refuses(desk.take_remote_request(), UCode.NOT_FOUND, "x" * 10_000)
    update = pb.Update.FromString(desk.notifications[-1].payload)
    assert update.status.message == f"core.usubscription of 'device3': NOT_FOUND: {'x' * MAX_REMOTE_REASON}"


def test_an_answer_that_comes_while_the_call_is_still_being_sent_is_heard(desk: "ServiceRig") -> None:
    """As one from this streamer does, that it has no room for the call."""

    def answer(call: UMessage) -> None:
        desk._on_remote_request(call)
        desk.send_remote_error(call, UCode.RESOURCE_EXHAUSTED)

    everything = UUri(FAR, 0, ANY_VERSION, ANY_RESOURCE)
    desk.client.unregister_listener(ANY, everything, desk._on_remote_request)
    desk.client.register_listener(ANY, everything, answer)
    desk.subscribe(REMOTE)
    desk.take_remote_request()
    assert desk.take_remote_requests() == []
    desk.advance(s=1)
    desk.take_remote_request()


def test_an_error_that_cannot_be_read_is_an_error_without_a_reason(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    noise = error_response(UUID(0x7000, 2 << 62), desk.take_remote_request(), UStatus(UCode.NOT_FOUND, "no"))
    desk.client.send(replace(noise, payload=b"\xff\xff"))
    assert states(desk) == {}
    update = pb.Update.FromString(desk.notifications[-1].payload)
    assert update.status.message == "core.usubscription of 'device3': NOT_FOUND: without a reason"


def test_the_last_bits_of_an_id_spread_calls_over_the_pause() -> None:
    assert [_jitter(UUID(0, bits)) for bits in (0xF0000, 0xFFFFF)] == [0, 1]


def test_a_call_that_no_transport_takes_is_made_again_after_a_pause(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send = desk.bus.send

    def full(message: UMessage) -> None:
        if message.attributes.sink == UUri(FAR, 0, 3, SUBSCRIBE):
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")
        send(message)

    monkeypatch.setattr(desk.bus, "send", full)
    assert desk.subscribe(REMOTE) == PENDING
    desk.advance(s=1)
    assert desk.take_remote_requests() == []
    assert (desk.statistics("remote_unsent"), desk.statistics("remote_open")) == (2, 0)
    assert [each.message for each in caplog.records if "not_sent" in each.message] == [
        "usubscription.call_not_sent"
    ]
    monkeypatch.setattr(desk.bus, "send", send)
    desk.advance(s=2)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


def test_a_topic_that_is_pending_there_too_is_pending_here_until_it_is_not(desk: "ServiceRig") -> None:
    """The other device may have to ask a third one."""
    desk.subscribe(REMOTE)
    desk.remote_grants(desk.take_remote_request(), PENDING)
    assert states(desk) == {APP: PENDING}
    desk.advance(s=TIMEOUT_S / 2 - 1)
    assert desk.take_remote_requests() == []
    desk.remote_notifies(REMOTE, SUBSCRIBED)
    desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


def test_what_is_pending_there_is_asked_for_again_should_nobody_tell(make_desk: MakeRig) -> None:
    desk = make_desk(remote_refresh_s=0).start()
    desk.subscribe(REMOTE)
    desk.remote_grants(desk.take_remote_request(), PENDING)
    desk.advance(s=TIMEOUT_S)
    desk.remote_grants(desk.take_remote_request())
    desk.advance(s=TIMEOUT_S)
    assert (desk.take_remote_requests(), states(desk)) == ([], {APP: SUBSCRIBED})


# --- Unsubscribe ------------------------------------------------------------------------------------------------------


def test_whoever_unsubscribes_is_unsubscribed_at_once_and_the_last_one_there_too(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-last-remote~1] [utest->req~usubscription-unsubscribe-remote-unsubscribed~1]"""
    granted(desk)
    desk.subscribe(REMOTE, caller=OTHER_APP)
    desk.unsubscribe(REMOTE)
    assert desk.take_remote_requests() == []
    assert states(desk) == {OTHER_APP: SUBSCRIBED}
    desk.take_v3_notifications()
    desk.unsubscribe(REMOTE, caller=OTHER_APP)
    assert (states(desk), desk.routed_subscribers(REMOTE)) == ({}, [])
    assert changes(desk) == [(OTHER_APP, "UNSUBSCRIBED")]
    assert desk.statistics("remote_topics") == 1
    call = desk.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    desk.remote_grants(call)
    desk.fetch()
    assert desk.statistics("remote_topics") == 0


@pytest.mark.parametrize("code", LAST_WORDS, ids=[code.name for code in LAST_WORDS])
def test_whatever_the_other_side_says_to_an_unsubscribe_it_is_the_end(
    desk: "ServiceRig", code: UCode
) -> None:
    """[utest->req~usubscription-unsubscribe-remote-unsubscribed~1]"""
    granted(desk)
    desk.unsubscribe(REMOTE)
    desk.remote_refuses(desk.take_remote_request(), code)
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() == []
    assert desk.statistics("remote_topics") == 0


def test_the_last_who_leaves_while_it_is_pending_calls_the_subscribe_off(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-subscribe-pending~1] [utest->req~usubscription-remote-retry-indefinitely~1]"""
    desk.subscribe(REMOTE)
    subscribe = desk.take_remote_request()
    desk.unsubscribe(REMOTE)
    assert states(desk) == {}
    unsubscribe = desk.take_remote_request()
    assert unsubscribe.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    desk.remote_grants(subscribe)  # too late
    assert (states(desk), desk.statistics("remote_topics")) == ({}, 1)
    desk.remote_grants(unsubscribe)
    desk.fetch()
    assert desk.statistics("remote_topics") == 0
    assert changes(desk) == [(APP, "SUBSCRIBE_PENDING"), (APP, "UNSUBSCRIBED")]


def test_after_the_last_unsubscribe_nothing_is_told_of_the_topic(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-unsubscribe-notifications~1] [utest->req~usubscription-remote-unsubscribe-notifications~1]"""
    desk.register(REMOTE)
    granted(desk)
    desk.unsubscribe(REMOTE)
    call = desk.take_remote_request()
    desk.take_v3_notifications()
    desk.published.clear()
    desk.remote_grants(call)
    assert desk.take_v3_notifications() == []
    assert desk.published == []


def test_whoever_comes_back_before_the_other_side_has_answered_subscribes_anew(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-unsubscribe-pending~1]"""
    pending_unsubscribe(desk)
    assert desk.subscribe(REMOTE) == PENDING
    call = desk.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, SUBSCRIBE)
    desk.remote_grants(call)
    assert states(desk) == {APP: SUBSCRIBED}


def test_whoever_leaves_and_comes_back_in_the_same_moment_is_asked_for_anew(desk: "ServiceRig") -> None:
    granted(desk)
    with desk.service_blocked():
        desk.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=REMOTE.to_pb()))
        back = desk.send_request(SUBSCRIBE, desk.subscription_request(REMOTE))
    assert pb.SubscriptionResponse.FromString(desk.wait_response(back).payload).status.state == PENDING
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


# What happens in one commit, in order, and whom that leaves waiting for a Subscribe or (None) an Unsubscribe.
TOGETHER: dict[str, tuple[str, str, UUri | None]] = {
    "refused, and another one comes": ("subscribe", "refused other", OTHER_APP),
    "refused, and the same one comes back": ("subscribe", "refused joins", APP),
    "granted, but the last one has gone and comes back": ("subscribe", "granted leaves joins", APP),
    "the last one goes, the answer comes, he comes back": ("subscribe", "leaves granted joins", APP),
    "confirmed, but the last one has gone and comes back": ("refresh", "granted leaves joins", APP),
    "refused, and the same one comes back and goes": ("subscribe", "refused joins leaves", None),
    "released, and one comes and goes": ("unsubscribe", "released joins leaves", None),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_whoever_comes_or_goes_in_the_commit_of_an_answer_is_called_for_anew(
    desk: "ServiceRig", case: str
) -> None:
    """The state before and after it is the same, but nobody there knows of him."""
    before, steps, waits = TOGETHER[case]
    if before == "subscribe":
        desk.subscribe(REMOTE)
    else:
        granted(desk)
    if before == "unsubscribe":
        desk.unsubscribe(REMOTE)
    elif before == "refresh":
        desk.links.set_state(FAR, up=True)
    call = desk.take_remote_request()
    with desk.service_blocked():
        for step in steps.split():
            match step:
                case "granted" | "refused" | "released":
                    desk.send_remote_grant(call, UNSUBSCRIBED if step == "refused" else SUBSCRIBED)
                case "leaves":
                    desk.send_request(UNSUBSCRIBE, pb.UnsubscribeRequest(topic=REMOTE.to_pb()))
                case _:
                    caller = OTHER_APP if step == "other" else APP
                    desk.send_request(SUBSCRIBE, desk.subscription_request(REMOTE), caller=caller)
    assert states(desk) == ({} if waits is None else {waits: PENDING})
    again = desk.take_remote_request()
    assert desk.remote_request_fields(again)[0] == (UNSUBSCRIBE if waits is None else SUBSCRIBE)
    desk.remote_grants(again)
    assert states(desk) == ({} if waits is None else {waits: SUBSCRIBED})
    assert desk.take_remote_requests() == []
    assert desk.statistics("remote_topics") == (waits is not None)


def test_a_subscription_that_expires_is_ended_there_too(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-subscribe-expiration~1]"""
    granted(desk, expire_ms=desk.now_ms + 1000)
    desk.advance(ms=1001)
    assert changes(desk) == [(APP, "UNSUBSCRIBED")]
    desk.remote_grants(desk.take_remote_request())
    desk.fetch()
    assert desk.statistics("remote_topics") == 0


def test_when_the_fastest_expires_the_others_rate_is_asked_for(desk: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    granted(desk, sample_period_ms=100)
    desk.subscribe(REMOTE, caller=OTHER_APP, expire_ms=desk.now_ms + 1000)
    desk.remote_grants(desk.take_remote_request())
    desk.advance(ms=1001)
    assert desk.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 100, None)]


def test_a_reset_ends_the_subscriptions_elsewhere(desk: "ServiceRig") -> None:
    """[utest->req~usubscription-reset~1]"""
    granted(desk)
    desk.reset()
    assert changes(desk) == [(APP, "UNSUBSCRIBED")]
    assert desk.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


# --- what is asked for ------------------------------------------------------------------------------------------------


def test_the_fastest_rate_and_the_latest_end_are_asked_for_and_changes_follow(desk: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    soon, late = desk.now_ms + 10_000, desk.now_ms + 20_000
    granted(desk, sample_period_ms=100, expire_ms=soon)
    desk.subscribe(REMOTE, caller=OTHER_APP, sample_period_ms=20, expire_ms=late)
    call = desk.take_remote_request()
    assert desk.remote_request_fields(call) == (SUBSCRIBE, REMOTE, 20, late)
    assert states(desk) == {APP: SUBSCRIBED, OTHER_APP: SUBSCRIBED}
    desk.subscribe(REMOTE, caller=APP, sample_period_ms=50)  # not while one is under way
    assert desk.take_remote_requests() == []
    desk.remote_grants(call)
    assert desk.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 20, None)]
    desk.unsubscribe(REMOTE, caller=OTHER_APP)
    assert states(desk) == {APP: SUBSCRIBED}


def test_a_slower_or_shorter_wish_changes_nothing_there(desk: "ServiceRig") -> None:
    granted(desk, sample_period_ms=20)
    desk.subscribe(REMOTE, caller=OTHER_APP, sample_period_ms=100, expire_ms=desk.now_ms + 1000)
    desk.unsubscribe(REMOTE, caller=OTHER_APP)
    assert desk.take_remote_requests() == []


def test_when_the_fastest_leaves_the_others_rate_is_asked_for(desk: "ServiceRig") -> None:
    """[utest->LIF-20]"""
    granted(desk, sample_period_ms=100)
    desk.subscribe(REMOTE, caller=OTHER_APP)
    desk.remote_grants(desk.take_remote_request())
    desk.unsubscribe(REMOTE, caller=OTHER_APP)
    assert desk.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 100, None)]


def test_the_same_details_twice_are_asked_for_once(desk: "ServiceRig") -> None:
    wanted = desk.subscription_request(REMOTE)
    wanted.attributes.details.append(Any(value=b"same"))
    desk.call(SUBSCRIBE, wanted)
    desk.remote_grants(desk.take_remote_request())
    desk.call(SUBSCRIBE, wanted, caller=OTHER_APP)
    assert desk.take_remote_requests() == []


def test_the_lowest_frequency_is_asked_for_as_the_longest_period(desk: "ServiceRig") -> None:
    wanted = desk.subscription_request(REMOTE)
    wanted.attributes.MergeFromString(bytes.fromhex("1995d626e80b2e113e"))  # max_frequency 1e-9 Hz
    desk.call(SUBSCRIBE, wanted)
    assert desk.take_remote_request_fields() == [(SUBSCRIBE, REMOTE, 2**32 - 1, None)]


def test_details_that_are_too_long_together_are_left_out(desk: "ServiceRig") -> None:
    call = None
    for app, text in ((APP, b"1" * 3000), (OTHER_APP, b"2" * 3000), (UUri(OWN, 7, 1, 0), b"3" * 900)):
        wanted = desk.subscription_request(REMOTE)
        wanted.attributes.details.append(Any(value=text))
        desk.call(SUBSCRIBE, wanted, caller=app)
        for call in desk.take_remote_requests():
            desk.remote_grants(call)
    assert call is not None
    asked = pb.SubscriptionRequest.FromString(call.payload)
    assert len(asked.attributes.SerializeToString()) <= MAX_DETAILS
    assert sorted(len(each.value) for each in asked.attributes.details) == [900, 3000]


def test_the_producer_gets_the_details_of_all(desk: "ServiceRig") -> None:
    call = None
    for app, text in ((APP, b"one"), (OTHER_APP, b"two")):
        wanted = desk.subscription_request(REMOTE)
        wanted.attributes.details.append(Any(type_url="t", value=text))
        desk.call(SUBSCRIBE, wanted, caller=app)
        call = desk.take_remote_request()
        desk.remote_grants(call)
    assert call is not None
    asked = pb.SubscriptionRequest.FromString(call.payload)
    assert sorted(each.value for each in asked.attributes.details) == [b"one", b"two"]


def test_a_topic_of_every_instance_is_asked_for_in_version_4(desk: "ServiceRig") -> None:
    wanted = pb4.SubscribeRequest(topic=EVERY.to_pb(), sample_period=40)
    answer = desk.call_for(pb4.SubscribeResponse, SUBSCRIBE, wanted, version=4)
    assert answer.status == pb4.STATUS_SUBSCRIBE_PENDING
    call = desk.take_remote_request()
    assert (call.attributes.source, call.attributes.sink) == (UUri(OWN, 0, 4, 0), UUri(FAR, 0, 4, SUBSCRIBE))
    assert pb4.SubscribeRequest.FromString(call.payload) == wanted
    granted = pb4.SubscribeResponse(topic=EVERY.to_pb(), status=pb4.STATUS_SUBSCRIBED)
    desk.client.send(
        response(UUID(0x7000, 2 << 62), call, granted.SerializeToString(), UPayloadFormat.PROTOBUF)
    )
    [listed] = desk.call_for(
        pb4.FetchSubscriptionsResponse, 3, pb4.FetchSubscriptionsRequest(), version=4
    ).subscriptions
    assert listed.status == pb4.STATUS_SUBSCRIBED
    desk.call_for(
        pb4.UnsubscribeResponse, UNSUBSCRIBE, pb4.UnsubscribeRequest(topic=EVERY.to_pb()), version=4
    )
    assert desk.take_remote_request().attributes.sink == UUri(FAR, 0, 4, UNSUBSCRIBE)


def grant_every(desk: "ServiceRig") -> None:
    """Let APP's subscription of EVERY be granted."""
    desk.call(SUBSCRIBE, pb4.SubscribeRequest(topic=EVERY.to_pb()), version=4)
    desk.remote_grants(desk.take_remote_request())


@pytest.mark.parametrize(
    ("status", "calls"),
    [(pb4.STATUS_SUBSCRIBED, 0), (pb4.STATUS_UNSUBSCRIBED, 1), (pb4.STATUS_UNSPECIFIED, 0)],
)
def test_a_device_tells_in_version_4_as_well_that_it_forgot(
    desk: "ServiceRig", status: int, calls: int
) -> None:
    grant_every(desk)
    change = pb4.Subscription(topic=EVERY.to_pb(), subscriber=UUri(OWN, 0, 4, 0).to_pb())
    change.status = status
    source, sink = UUri(FAR, 0, 4, 0x8000), UUri(OWN, 0, 4, 0)
    payload = change.SerializeToString()
    desk.client.send(notification(UUID(0x7000, 2 << 62), source, sink, payload, UPayloadFormat.PROTOBUF))
    desk.fetch()
    desk.advance(s=1)
    assert len(desk.take_remote_requests()) == calls


def test_the_end_is_asked_for_in_version_4_as_well(desk: "ServiceRig") -> None:
    wanted = pb4.SubscribeRequest(topic=EVERY.to_pb())
    wanted.expiration.FromMilliseconds(desk.now_ms + 1500)
    desk.call(SUBSCRIBE, wanted, version=4)
    assert desk.take_remote_request_fields() == [(SUBSCRIBE, EVERY, 0, desk.now_ms + 1500)]


@pytest.mark.parametrize("resource", [0, 1])
def test_a_device_that_forgot_is_asked_again(desk: "ServiceRig", resource: int) -> None:
    """It was reset, say; and it tells us so, as it tells every subscriber."""
    granted(desk)
    desk.remote_notifies(REMOTE, UNSUBSCRIBED, subscriber=US.with_resource(resource))
    assert desk.take_remote_requests() == []
    desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}
    assert changes(desk) == []


@pytest.mark.parametrize("order", ["answer hint", "hint answer"])
@pytest.mark.parametrize(("answered", "hinted"), [(PENDING, SUBSCRIBED), (SUBSCRIBED, UNSUBSCRIBED)])
@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one commit"])
def test_what_is_told_around_an_answer_is_compared_with_it(
    desk: "ServiceRig", order: str, answered: int, hinted: int, together: bool
) -> None:
    """They come by different priorities; what is not looked at now may not be said again."""
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()

    def tell() -> None:
        for each in order.split():
            if each == "answer":
                desk.send_remote_grant(call, answered)
            else:
                desk.send_remote_notification(REMOTE, hinted)
            if not together:
                desk.fetch()

    if together:
        with desk.service_blocked():
            tell()
    else:
        tell()
    assert states(desk) == {APP: answered}
    if answered == SUBSCRIBED:  # what is awaited is asked for at once
        assert desk.take_remote_requests() == []
        desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() == []


@pytest.mark.parametrize("order", ["answer hint", "hint answer"])
def test_what_is_told_along_with_an_answer_that_says_the_same_causes_no_call(
    desk: "ServiceRig", order: str
) -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    for each in order.split():
        if each == "answer":
            desk.send_remote_grant(call)
        else:
            desk.send_remote_notification(REMOTE, SUBSCRIBED)
    assert states(desk) == {APP: SUBSCRIBED}
    desk.advance(s=10)
    assert desk.take_remote_requests() == []


def test_an_ecu_that_comes_and_goes_is_asked_each_time_it_is_back(desk: "ServiceRig") -> None:
    granted(desk)
    for _ in range(5):
        desk.remote_notifies(REMOTE, PENDING)
        desk.advance(ms=1_000)
        desk.remote_grants(desk.take_remote_request(), PENDING)
        assert states(desk) == {APP: PENDING}
        desk.remote_notifies(REMOTE, SUBSCRIBED)
        desk.remote_grants(desk.take_remote_request())
        assert states(desk) == {APP: SUBSCRIBED}


def test_what_was_told_before_a_call_is_not_compared_with_its_answer(desk: "ServiceRig") -> None:
    desk.subscribe(REMOTE)
    desk.take_remote_request()
    desk.remote_notifies(REMOTE, UNSUBSCRIBED)
    desk.advance(s=TIMEOUT_S)
    desk.remote_grants(desk.take_remote_request())
    desk.advance(s=10)
    assert desk.take_remote_requests() == []


HINTS = {
    "what we know": {"state": SUBSCRIBED},
    "of somebody else": {"state": UNSUBSCRIBED, "subscriber": UUri(OWN, 1, 1, 0)},
    "of another device's topic": {"state": UNSUBSCRIBED, "source": UUri("device4", 0, 3, 0x8000)},
    "from some entity": {"state": UNSUBSCRIBED, "source": UUri(FAR, 7, 3, 0x8000)},
    "on another topic": {"state": UNSUBSCRIBED, "source": UUri(FAR, 0, 3, 0x8001)},
    "in an unknown version": {"state": UNSUBSCRIBED, "source": UUri(FAR, 0, 9, 0x8000)},
    "in an unknown state": {"state": 9},
    "of a topic that nobody has": {"state": UNSUBSCRIBED, "topic": UUri(FAR, 1, 1, 0x8000)},
}


@pytest.mark.parametrize("hint", HINTS)
def test_other_notifications_cause_no_call(desk: "ServiceRig", hint: str) -> None:
    granted(desk)
    desk.remote_notifies(**{"topic": REMOTE, **HINTS[hint]})  # type: ignore[arg-type,dict-item]
    desk.advance(s=10)
    assert desk.take_remote_requests() == []
    assert states(desk) == {APP: SUBSCRIBED}


@pytest.mark.parametrize("state", [PENDING, SUBSCRIBED])
def test_what_nobody_wants_here_is_unsubscribed_there(desk: "ServiceRig", state: int) -> None:
    """A Subscribe may arrive after the Unsubscribe that was to undo it: a transport that repeats has no order of methods."""
    desk.remote_notifies(REMOTE, state)
    call = desk.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    desk.remote_notifies(REMOTE, state)
    assert desk.take_remote_requests() == []  # while one is under way
    desk.remote_grants(call)
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() != []  # for the second hint, which may be newer than the answer
    desk.remote_notifies(UUri(OWN, 1, 1, 0x8000), state, source=UUri(OWN, 0, 3, 0x8000))
    desk.remote_notifies(ELSEWHERE, UNSUBSCRIBED)
    assert desk.take_remote_requests() == []


# --- time, links and restarts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [False, True], ids=["subscribe", "unsubscribe"])
def test_a_call_without_an_answer_is_made_again_and_again(desk: "ServiceRig", ends: bool) -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->req~usubscription-remote-max-timeout~1]
    [utest->LIF-16] [utest->LIF-17]
    """
    if ends:
        pending_unsubscribe(desk)
    else:
        desk.subscribe(REMOTE)
        desk.take_remote_request()
    for _ in range(5):
        desk.advance(s=TIMEOUT_S - 1)
        assert desk.take_remote_requests() == []
        desk.advance(s=1)
        assert len(desk.take_remote_requests()) == 1
    desk.advance(s=TIMEOUT_S)
    desk.remote_grants(desk.take_remote_request())
    desk.advance(s=TIMEOUT_S)
    assert desk.take_remote_requests() == []


def test_what_was_granted_is_confirmed_as_often_as_the_configuration_says(make_desk: MakeRig) -> None:
    desk = make_desk(remote_refresh_s=600).start()
    granted(desk)
    desk.advance(s=299)
    assert desk.take_remote_requests() == []
    desk.advance(s=301)
    desk.remote_grants(desk.take_remote_request())
    assert changes(desk) == []


def test_nobody_is_called_while_the_link_is_down(desk: "ServiceRig") -> None:
    """[utest->LIF-18]"""
    desk.links.set_state(FAR, up=False)
    assert desk.subscribe(REMOTE) == PENDING
    desk.subscribe(ELSEWHERE)
    assert desk.take_remote_request().attributes.sink == UUri("device4", 0, 3, SUBSCRIBE)
    desk.advance(s=TIMEOUT_S - 1)
    assert desk.take_remote_requests() == []
    desk.links.set_state(FAR, up=True)
    desk.wait_until(lambda: len(desk._remote_requests) == 1, "the call at link-up")
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


def test_at_link_up_everything_is_asked_for_anew(desk: "ServiceRig") -> None:
    """[utest->LIF-18] What was on its way may be lost, and who was away may have forgotten."""
    desk.links.set_state(FAR, up=True)
    granted(desk)
    desk.subscribe(UUri(FAR, 1, 1, 0x8000))
    desk.take_remote_request()
    desk.links.set_state(FAR, up=False)
    desk.links.set_state(FAR, up=True)
    assert [topic for _, topic, _, _ in desk.take_remote_request_fields()] == [
        REMOTE,
        UUri(FAR, 1, 1, 0x8000),
    ]
    assert states(desk) == {APP: SUBSCRIBED}  # a confirmation is nobody's business


@pytest.mark.parametrize("died", [False, True], ids=["stopped", "killed"])
@pytest.mark.parametrize("before", ["subscribe", "granted", "unsubscribe"])
def test_after_a_restart_pending_work_goes_on(make_desk: MakeRig, before: str, died: bool) -> None:
    """[utest->req~usubscription-subscribe-persistency~1] [utest->req~usubscription-remote-retry-indefinitely~1]"""
    desk = make_desk().start()
    if before == "unsubscribe":
        pending_unsubscribe(desk)
    else:
        desk.subscribe(REMOTE)
        call = desk.take_remote_request()
        if before == "granted":
            desk.remote_grants(call)
            desk.fetch()
    if died:
        desk.plugin.service._store._store.close(orderly=False)  # nothing more is written
    desk.restart()
    expected = {"subscribe": PENDING, "granted": SUBSCRIBED}
    assert states(desk) == ({APP: expected[before]} if before in expected else {})
    call = desk.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE if before == "unsubscribe" else SUBSCRIBE)
    desk.remote_grants(call)
    assert states(desk) == ({APP: SUBSCRIBED} if before in expected else {})
    desk.restart()
    assert len(desk.take_remote_requests()) == (before in expected)


def test_before_the_endpoints_are_up_nobody_is_called(make_desk: MakeRig) -> None:
    desk = make_desk().start()
    desk.subscribe(REMOTE)
    desk.take_remote_request()
    desk.stop()
    desk.plugin = desk._new_plugin()
    desk.plugin.service.start(desk.bus)
    assert desk._remote_requests == []
    desk.plugin.ustreamer_started()
    desk.wait_until(lambda: len(desk._remote_requests) == 1, "the call")


def test_what_expired_while_nobody_was_here_is_ended_there(make_desk: MakeRig) -> None:
    desk = make_desk().start()
    granted(desk, expire_ms=desk.now_ms + 1000)
    desk.stop()
    desk.advance(ms=1001)
    desk.plugin = desk._new_plugin()
    desk.start()
    assert desk.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    assert desk.pairs() == []


def test_a_topic_whose_subscribers_the_store_has_lost_is_unsubscribed_there(make_desk: MakeRig) -> None:
    desk = make_desk().start()
    granted(desk)
    desk.stop()
    plugin = desk._new_plugin()
    store: SubscriptionStore = plugin.service._store
    store.open()
    store.take_subscriptions()
    store.commit([delete_subscription(REMOTE, APP)])
    store.close()
    desk.plugin = desk._new_plugin()
    desk.start()
    call = desk.take_remote_request()
    assert call.attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)
    desk.remote_grants(call)
    assert desk.take_remote_requests() == []
    assert desk.statistics("remote_topics") == 0


def test_a_topic_that_the_configuration_made_local_needs_nobody_else(make_desk: MakeRig) -> None:
    desk = make_desk().start()
    desk.subscribe(REMOTE)
    desk.take_remote_request()
    desk.serves = (OWN, FAR)
    desk.restart()
    assert states(desk) == {APP: SUBSCRIBED}
    assert (desk.take_remote_requests(), desk.statistics("remote_topics")) == ([], 0)


def test_a_topic_that_the_configuration_made_remote_is_asked_for(make_desk: MakeRig) -> None:
    desk = make_desk(serves=(OWN, FAR)).start()
    assert desk.subscribe(REMOTE) == SUBSCRIBED
    desk.serves = (OWN,)
    desk.restart()
    assert states(desk) == {APP: PENDING}
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_remote_topics_are_bounded_with_those_that_are_still_to_be_unsubscribed(make_desk: MakeRig) -> None:
    desk = make_desk(max_remote_topics=2).start()
    for number in range(2):
        desk.subscribe(UUri(FAR, 1, 1, 0x8000 + number))
    desk.unsubscribe(UUri(FAR, 1, 1, 0x8000))
    status = desk.call_refused(SUBSCRIBE, desk.subscription_request(REMOTE))
    assert status.code is UCode.RESOURCE_EXHAUSTED
    assert "2 remote_topics are kept, max_remote_topics is 2" in status.message
    assert desk.pairs() == [(UUri(FAR, 1, 1, 0x8001), APP)]
    assert desk.subscribe(UUri(FAR, 1, 1, 0x8001), caller=OTHER_APP) == PENDING  # it is there already
    assert desk.subscribe(UUri(FAR, 1, 1, 0x8000)) == PENDING
    desk.subscribe()  # a local one


def test_nobody_is_refused_because_an_expiry_elsewhere_finds_no_room(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(desk, expire_ms=desk.now_ms + 1000)
    store = desk.plugin.service._store
    commit = store.commit

    def no_new_states(changes: Sequence[RecordChange], *more: object) -> None:
        if any(change.key.startswith(b"r/") for change in changes):
            raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")
        commit(changes, *more)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", no_new_states)
        desk.advance(ms=1001)
        desk.unsubscribe(UUri(OWN, 1, 1, 0x8000))
        assert desk.subscribe(UUri(OWN, 1, 1, 0x8000)) == SUBSCRIBED
    desk.advance(s=1)
    assert desk.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


def test_what_is_no_hint_or_too_large_for_one_does_not_queue(desk: "ServiceRig") -> None:
    granted(desk)
    before = desk.statistics("ignored")
    desk.remote_notifies(REMOTE, UNSUBSCRIBED, source=UUri(FAR, 7, 3, 0x8000))
    large = UUri(FAR, 0, 3, 0x8000)
    desk.client.send(notification(UUID(0x7000, 2 << 62), large, US, b"x" * (MAX_PAYLOAD + 1)))
    assert desk.statistics("ignored") == before + 2


def test_a_question_is_answered_although_an_expiry_elsewhere_finds_no_room(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    granted(desk, expire_ms=desk.now_ms + 1000)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    with monkeypatch.context() as patched:
        patched.setattr(desk.plugin.service._store, "commit", full)
        desk.advance(ms=1001)
        assert states(desk) == {}
        assert desk.take_remote_requests() == []  # only what is on disk is said
    desk.advance(s=1)
    assert desk.take_remote_request().attributes.sink == UUri(FAR, 0, 3, UNSUBSCRIBE)


def test_an_answer_that_finds_no_room_on_the_disk_is_asked_for_again(
    desk: "ServiceRig", monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.subscribe(REMOTE)
    call = desk.take_remote_request()
    store = desk.plugin.service._store
    commit = store.commit

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    monkeypatch.setattr(store, "commit", full)
    desk.remote_grants(call)
    assert states(desk) == {APP: PENDING}
    assert desk.take_remote_requests() == []  # not at once, or a full disk would make us call without a pause
    monkeypatch.setattr(store, "commit", commit)
    desk.advance(s=1)
    desk.remote_grants(desk.take_remote_request())
    assert states(desk) == {APP: SUBSCRIBED}
