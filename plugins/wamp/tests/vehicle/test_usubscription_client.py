# SPDX-License-Identifier: Apache-2.0
"""The calls to uSubscription for sessions, and their times; the test answers as uSubscription."""

from collections import Counter

import pytest
from ustreamer_wamp.errors import WampRefusal
from ustreamer_wamp.vehicle.usubscription_client import MAX_PENDING_CALLS, TTL_MS, UsubscriptionClient
from ustreamer_wamp.vehicle.usubscription_codec import refusal_of

from ustreamer.core.base.clock import ManualClock
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.pb import usubscription_v4 as pb4
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, error_response, notification, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

ENTITY = UUri("wamp.hpc", 0x1_8001, 1, 0)
TOPIC = UUri("car", 0x2001, 1, 0x8001)
SUBSCRIBED, UNSUBSCRIBED = pb.SubscriptionStatus.SUBSCRIBED, pb.SubscriptionStatus.UNSUBSCRIBED


class UsubscriptionClientRig:
    """A client of uSubscription, its unanswered calls, and the results for its callers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        monotonic_ns, wall_ms = self.clock.clock()
        self.ids = UuidSource(wall_ms)
        self.calls: list[UMessage] = []
        self.results: list[WampRefusal | None] = []
        self.client = UsubscriptionClient(
            "hpc", UuidSource(wall_ms), self.calls.append, monotonic_ns, Counter()
        )
        self.ended: list[str] = []
        self.client.on_subscription_ended = lambda entity, topic, why: self.ended.append(
            f"{entity} {topic}: {why}"
        )

    def subscribe(self, period_ns: int = 0, topic: UUri = TOPIC, entity: UUri = ENTITY) -> None:
        self.client.subscribe(entity, topic, period_ns, self.results.append)

    def methods(self) -> list[int]:
        return [each.attributes.sink.resource_id for each in self.calls if each.attributes.sink]

    def answer(self, state: int = SUBSCRIBED) -> None:
        """Answer the oldest call."""
        call = self.calls.pop(0)
        payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=state)).SerializeToString()
        self.client.on_response(response(self.ids.next(), call, payload, UPayloadFormat.PROTOBUF))

    def update(self, state: int = UNSUBSCRIBED, topic: UUri = TOPIC) -> None:
        """Send an Update, as uSubscription does."""
        payload = pb.Update(
            topic=topic.to_pb(), status=pb.SubscriptionStatus(state=state, message="refused there")
        ).SerializeToString()
        source = UUri("hpc", 0, 3, 0x8000)
        message = notification(self.ids.next(), source, ENTITY, payload, UPayloadFormat.PROTOBUF)
        assert self.client.is_subscription_update(message)
        self.client.on_subscription_update(message)

    def answer_revalidation(self, *, stands: bool) -> None:
        """Answer the oldest call, a FetchSubscriptions."""
        call = self.calls.pop(0)
        fetch_request = pb4.FetchSubscriptionsRequest.FromString(call.payload)
        assert call.attributes.sink == UUri("hpc", 0, 4, 3)
        assert (fetch_request.topic_filter, fetch_request.subscriber_filter) == (
            TOPIC.to_pb(),
            ENTITY.to_pb(),
        )
        found = pb4.Subscription(topic=fetch_request.topic_filter, subscriber=fetch_request.subscriber_filter)
        payload = pb4.FetchSubscriptionsResponse(subscriptions=[found] * stands).SerializeToString()
        self.client.on_response(response(self.ids.next(), call, payload, UPayloadFormat.PROTOBUF))

    def fail(self, code: UCode = UCode.NOT_FOUND) -> None:
        call = self.calls.pop(0)
        self.client.on_response(error_response(self.ids.next(), call, UStatus(code, "because")))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(s=seconds)
        self.client.tick(self.clock.now_ns)


@pytest.fixture
def rig() -> UsubscriptionClientRig:
    return UsubscriptionClientRig()


def test_a_subscription_is_requested_once_and_its_client_notified_of_the_answer(
    rig: UsubscriptionClientRig,
) -> None:
    rig.subscribe()
    assert rig.methods() == [1]
    assert rig.results == []
    assert rig.calls[0].attributes.source == ENTITY
    assert rig.calls[0].attributes.sink == UUri("hpc", 0, 3, 1)
    rig.answer()
    assert rig.results == [None]
    rig.subscribe()  # unchanged
    assert (rig.calls, rig.results) == ([], [None, None])


def test_calls_about_a_topic_never_overtake_each_other(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.client.unsubscribe(ENTITY, TOPIC)
    rig.subscribe(5)
    rig.client.unsubscribe(ENTITY, TOPIC)
    assert rig.methods() == [1], "one at a time"
    assert rig.results == [None, None], "a waiting callback is called before the end"
    rig.answer()
    assert rig.methods() == [2], "and then the final result"
    rig.answer()
    assert rig.calls == []
    assert len(rig.client) == 0
    assert not rig.client.has_subscriptions(ENTITY)


def test_a_changed_rate_is_requested_after_the_answer_of_the_pending_call(
    rig: UsubscriptionClientRig,
) -> None:
    rig.subscribe()
    rig.subscribe(20_000_000)
    rig.answer()
    assert rig.methods() == [1]
    request = pb.SubscriptionRequest.FromString(rig.calls[0].payload)
    assert b"\x19" in request.attributes.SerializeToString(), (
        "max_frequency, of which sample_period_ms has the number"
    )
    assert rig.results == []
    rig.answer()
    assert rig.results == [None, None]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(UCode.NOT_FOUND, "up.error.not_found"), (UCode.PERMISSION_DENIED, "wamp.error.not_authorized")],
)
def test_a_refusal_is_sent_to_the_client_and_the_subscription_dropped(
    rig: UsubscriptionClientRig, code: UCode, reason: str
) -> None:
    rig.subscribe()
    rig.fail(code)
    assert rig.results == [WampRefusal(reason, "because")]
    assert len(rig.client) == 0
    assert refusal_of(UStatus(code, "x")).reason == reason


def test_an_unsubscribed_status_is_a_refusal(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer(UNSUBSCRIBED)
    assert rig.results[0] is not None
    assert len(rig.client) == 0


def test_a_refused_rate_keeps_the_acknowledged_one(rig: UsubscriptionClientRig) -> None:
    rig.subscribe(5)
    rig.answer()
    rig.subscribe(7)
    rig.fail()
    assert rig.results[0] is None
    assert rig.results[1] is not None
    assert len(rig.client) == 1
    rig.client.unsubscribe(ENTITY, TOPIC)
    assert rig.methods() == [2]


def test_an_unanswered_call_times_out(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.pass_time(TTL_MS / 1000)
    assert rig.results == []
    rig.pass_time(1)
    assert [each and each.reason for each in rig.results] == ["up.error.deadline_exceeded"]
    assert len(rig.client) == 0
    rig.answer()  # too late
    assert len(rig.results) == 1


def test_after_a_timeout_the_next_client_waits_less(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.pass_time(6)
    rig.results.clear()
    rig.subscribe()
    rig.pass_time(0.4)
    assert rig.results == []
    rig.pass_time(0.2)
    assert [each and each.reason for each in rig.results] == ["up.error.deadline_exceeded"]
    rig.calls.pop(0)
    rig.answer()  # it is there after all
    assert rig.methods() == [2], "it has no subscriber any more"
    rig.answer()
    assert len(rig.client) == 0
    rig.results.clear()
    rig.subscribe()
    rig.pass_time(5)
    assert rig.results == [], "a service that has answered is awaited"
    rig.answer()
    assert rig.results == [None]


def test_an_undelivered_call_counts_as_no_answer(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.fail(UCode.DEADLINE_EXCEEDED)
    rig.results.clear()
    rig.subscribe()
    rig.pass_time(0.6)
    assert [each and each.reason for each in rig.results] == ["up.error.deadline_exceeded"]


def test_an_unanswered_fetch_at_the_start_shortens_the_wait(rig: UsubscriptionClientRig) -> None:
    rig.client.unsubscribe_stale_sessions("wamp.hpc")
    rig.pass_time(6)
    rig.subscribe()
    rig.pass_time(0.6)
    assert len(rig.results) == 1


def test_a_timed_out_change_of_rate_keeps_the_acknowledged_one(rig: UsubscriptionClientRig) -> None:
    rig.subscribe(5)
    rig.answer()
    rig.subscribe(topic=UUri("car", 0x2001, 1, 0x8002))
    rig.pass_time(6)
    rig.calls.clear()
    rig.results.clear()
    rig.subscribe(7)
    rig.pass_time(0.6)
    assert len(rig.results) == 1
    rig.answer()
    assert rig.methods() == [1]
    assert b"\x19" in rig.calls[0].payload
    rig.answer()
    rig.client.unsubscribe(ENTITY, TOPIC)
    assert rig.methods() == [2]


def test_without_answers_the_subscriptions_are_bounded_by_pending_calls(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.pass_time(6)
    for number in range(3 * MAX_PENDING_CALLS):
        rig.subscribe(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(rig.client) == MAX_PENDING_CALLS
    assert len(rig.results) == 1 + 2 * MAX_PENDING_CALLS
    rig.pass_time(6)
    assert len(rig.results) == 1 + 3 * MAX_PENDING_CALLS
    assert len(rig.client) == 0


def test_a_late_grant_is_undone(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    call = rig.calls[0]
    rig.pass_time(6)
    assert len(rig.client) == 0
    payload = pb.SubscriptionResponse(
        topic=TOPIC.to_pb(), status=pb.SubscriptionStatus(state=SUBSCRIBED)
    ).SerializeToString()
    rig.calls.clear()
    rig.client.on_response(response(rig.ids.next(), call, payload, UPayloadFormat.PROTOBUF))
    assert rig.methods() == [2]
    assert rig.calls[0].attributes.source == ENTITY
    rig.answer()
    assert len(rig.client) == 0


# --- subscriptions that end without a request ---------------------------------------------------------------


def test_an_announced_end_is_verified_before_the_client_is_notified(
    rig: UsubscriptionClientRig,
) -> None:
    rig.subscribe()
    rig.answer()
    rig.update()
    assert rig.ended == [], "it may be an outdated update"
    rig.answer_revalidation(stands=False)
    assert rig.ended == [f"{ENTITY} {TOPIC}: refused there"]
    assert rig.methods() == [2]
    rig.answer()
    assert len(rig.client) == 0


def test_an_update_that_was_overtaken_changes_nothing(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer()
    rig.update()
    rig.answer_revalidation(stands=True)
    assert (rig.ended, rig.calls) == ([], [])
    rig.subscribe()
    assert rig.results == [None, None]


@pytest.mark.parametrize("how", ["error", "silence"])
def test_an_update_counts_when_it_cannot_be_verified(rig: UsubscriptionClientRig, how: str) -> None:
    rig.subscribe()
    rig.answer()
    rig.update()
    if how == "error":
        rig.fail(UCode.UNIMPLEMENTED)
    else:
        rig.pass_time(6)
        rig.calls.pop(0)
    assert len(rig.ended) == 1
    assert rig.methods() == [2]


def test_updates_caused_by_own_requests_end_nothing(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.update()  # of an earlier subscription
    rig.answer()
    rig.update(SUBSCRIBED)
    rig.update(topic=UUri("car", 0x2001, 1, 0x8002))
    rig.client.unsubscribe(ENTITY, TOPIC)
    rig.update()
    assert rig.methods() == [2]
    rig.answer()
    rig.update()
    assert (rig.ended, rig.calls) == ([], [])


def test_a_client_that_unsubscribes_during_verification_gets_no_notice(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer()
    rig.update()
    rig.client.unsubscribe(ENTITY, TOPIC)
    rig.answer_revalidation(stands=False)
    assert rig.ended == []
    assert rig.methods() == [2]


def test_a_client_that_subscribes_again_during_verification_is_notified(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer()
    rig.update()
    rig.subscribe(5)
    rig.answer_revalidation(stands=False)
    assert rig.results[0] is None
    assert rig.results[1] is not None


def test_updates_from_other_entities_are_ignored(rig: UsubscriptionClientRig) -> None:
    for source in (UUri("car", 0, 3, 0x8000), UUri("hpc", 1, 3, 0x8000), UUri("hpc", 0, 3, 0x8001)):
        assert not rig.client.is_subscription_update(notification(rig.ids.next(), source, ENTITY, b""))


def test_a_failed_unsubscribe_is_retried_a_bounded_number_of_times(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer()
    rig.client.unsubscribe(ENTITY, TOPIC)
    for _ in range(60):
        assert rig.methods() == [2]
        rig.fail(UCode.RESOURCE_EXHAUSTED)
        assert rig.calls == [], "not at once"
        rig.pass_time(1.1)
    assert len(rig.client) == 0


def test_a_subscribe_during_the_retry_pause_of_an_unsubscribe_is_granted(rig: UsubscriptionClientRig) -> None:
    rig.subscribe()
    rig.answer()
    rig.client.unsubscribe(ENTITY, TOPIC)
    rig.fail(UCode.RESOURCE_EXHAUSTED)
    rig.subscribe(9)
    rig.pass_time(1.1)
    assert rig.methods() == [1]
    rig.answer()
    assert rig.results == [None, None]


def test_pending_calls_are_bounded(rig: UsubscriptionClientRig) -> None:
    for number in range(3 * MAX_PENDING_CALLS):
        rig.subscribe(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(rig.calls) == MAX_PENDING_CALLS
    for left in range(3 * MAX_PENDING_CALLS, 0, -1):
        assert len(rig.calls) == min(left, MAX_PENDING_CALLS)
        rig.answer()
    assert rig.results == [None] * 3 * MAX_PENDING_CALLS
