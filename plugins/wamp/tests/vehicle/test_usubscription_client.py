# SPDX-License-Identifier: Apache-2.0
"""What is said to uSubscription for sessions, and when; uSubscription is played by the test."""

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
    """Wishes, the calls that they have led to and are not answered, and what their clients were told."""

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
        """Tell of a change, as uSubscription does."""
        payload = pb.Update(
            topic=topic.to_pb(), status=pb.SubscriptionStatus(state=state, message="refused there")
        ).SerializeToString()
        source = UUri("hpc", 0, 3, 0x8000)
        message = notification(self.ids.next(), source, ENTITY, payload, UPayloadFormat.PROTOBUF)
        assert self.client.is_subscription_update(message)
        self.client.on_subscription_update(message)

    def answer_revalidation(self, *, stands: bool) -> None:
        """Answer the oldest call, which is the question if a subscription stands."""
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
def desk() -> UsubscriptionClientRig:
    return UsubscriptionClientRig()


def test_a_wish_is_said_once_and_its_client_told_when_it_is_answered(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    assert desk.methods() == [1]
    assert desk.results == []
    assert desk.calls[0].attributes.source == ENTITY
    assert desk.calls[0].attributes.sink == UUri("hpc", 0, 3, 1)
    desk.answer()
    assert desk.results == [None]
    desk.subscribe()  # as it is
    assert (desk.calls, desk.results) == ([], [None, None])


def test_calls_about_a_topic_never_overtake_each_other(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.client.unsubscribe(ENTITY, TOPIC)
    desk.subscribe(5)
    desk.client.unsubscribe(ENTITY, TOPIC)
    assert desk.methods() == [1], "one at a time"
    assert desk.results == [None, None], "who waits is told before it ends"
    desk.answer()
    assert desk.methods() == [2], "and then the last word"
    desk.answer()
    assert desk.calls == []
    assert len(desk.client) == 0
    assert not desk.client.has_subscriptions(ENTITY)


def test_a_changed_rate_is_said_when_the_call_before_is_answered(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.subscribe(20_000_000)
    desk.answer()
    assert desk.methods() == [1]
    request = pb.SubscriptionRequest.FromString(desk.calls[0].payload)
    assert b"\x19" in request.attributes.SerializeToString(), (
        "max_frequency, of which sample_period_ms has the number"
    )
    assert desk.results == []
    desk.answer()
    assert desk.results == [None, None]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(UCode.NOT_FOUND, "up.error.not_found"), (UCode.PERMISSION_DENIED, "wamp.error.not_authorized")],
)
def test_a_refusal_is_told_and_the_wish_forgotten(
    desk: UsubscriptionClientRig, code: UCode, reason: str
) -> None:
    desk.subscribe()
    desk.fail(code)
    assert desk.results == [WampRefusal(reason, "because")]
    assert len(desk.client) == 0
    assert refusal_of(UStatus(code, "x")).reason == reason


def test_an_answer_that_says_unsubscribed_is_a_refusal(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer(UNSUBSCRIBED)
    assert desk.results[0] is not None
    assert len(desk.client) == 0


def test_a_rate_that_is_refused_leaves_the_one_before(desk: UsubscriptionClientRig) -> None:
    desk.subscribe(5)
    desk.answer()
    desk.subscribe(7)
    desk.fail()
    assert desk.results[0] is None
    assert desk.results[1] is not None
    assert len(desk.client) == 1
    desk.client.unsubscribe(ENTITY, TOPIC)
    assert desk.methods() == [2]


def test_what_is_not_answered_is_given_up_in_time(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.pass_time(TTL_MS / 1000)
    assert desk.results == []
    desk.pass_time(1)
    assert [each and each.reason for each in desk.results] == ["up.error.deadline_exceeded"]
    assert len(desk.client) == 0
    desk.answer()  # too late
    assert len(desk.results) == 1


def test_where_nobody_answers_the_next_one_does_not_wait_as_long(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.pass_time(6)
    desk.results.clear()
    desk.subscribe()
    desk.pass_time(0.4)
    assert desk.results == []
    desk.pass_time(0.2)
    assert [each and each.reason for each in desk.results] == ["up.error.deadline_exceeded"]
    desk.calls.pop(0)
    desk.answer()  # it is there after all
    assert desk.methods() == [2], "nobody wants it any more"
    desk.answer()
    assert len(desk.client) == 0
    desk.results.clear()
    desk.subscribe()
    desk.pass_time(5)
    assert desk.results == [], "who has answered is waited for"
    desk.answer()
    assert desk.results == [None]


def test_somebody_on_the_way_is_no_usubscription(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.fail(UCode.DEADLINE_EXCEEDED)
    desk.results.clear()
    desk.subscribe()
    desk.pass_time(0.6)
    assert [each and each.reason for each in desk.results] == ["up.error.deadline_exceeded"]


def test_that_nobody_answers_can_be_known_from_the_start(desk: UsubscriptionClientRig) -> None:
    desk.client.unsubscribe_stale_sessions("wamp.hpc")
    desk.pass_time(6)
    desk.subscribe()
    desk.pass_time(0.6)
    assert len(desk.results) == 1


def test_who_loses_patience_with_a_new_rate_keeps_the_one_before(desk: UsubscriptionClientRig) -> None:
    desk.subscribe(5)
    desk.answer()
    desk.subscribe(topic=UUri("car", 0x2001, 1, 0x8002))
    desk.pass_time(6)
    desk.calls.clear()
    desk.results.clear()
    desk.subscribe(7)
    desk.pass_time(0.6)
    assert len(desk.results) == 1
    desk.answer()
    assert desk.methods() == [1]
    assert b"\x19" in desk.calls[0].payload
    desk.answer()
    desk.client.unsubscribe(ENTITY, TOPIC)
    assert desk.methods() == [2]


def test_where_nobody_answers_no_more_is_kept_than_may_be_under_way(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.pass_time(6)
    for number in range(3 * MAX_PENDING_CALLS):
        desk.subscribe(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(desk.client) == MAX_PENDING_CALLS
    assert len(desk.results) == 1 + 2 * MAX_PENDING_CALLS
    desk.pass_time(6)
    assert len(desk.results) == 1 + 3 * MAX_PENDING_CALLS
    assert len(desk.client) == 0


def test_an_answer_after_the_client_was_told_is_undone(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    call = desk.calls[0]
    desk.pass_time(6)
    assert len(desk.client) == 0
    payload = pb.SubscriptionResponse(
        topic=TOPIC.to_pb(), status=pb.SubscriptionStatus(state=SUBSCRIBED)
    ).SerializeToString()
    desk.calls.clear()
    desk.client.on_response(response(desk.ids.next(), call, payload, UPayloadFormat.PROTOBUF))
    assert desk.methods() == [2]
    assert desk.calls[0].attributes.source == ENTITY
    desk.answer()
    assert len(desk.client) == 0


# --- what ends by itself ------------------------------------------------------------------------------------------------


def test_what_ends_by_itself_is_told_when_usubscription_has_confirmed_it(
    desk: UsubscriptionClientRig,
) -> None:
    desk.subscribe()
    desk.answer()
    desk.update()
    assert desk.ended == [], "it may be an old word"
    desk.answer_revalidation(stands=False)
    assert desk.ended == [f"{ENTITY} {TOPIC}: refused there"]
    assert desk.methods() == [2]
    desk.answer()
    assert len(desk.client) == 0


def test_an_update_that_was_overtaken_changes_nothing(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer()
    desk.update()
    desk.answer_revalidation(stands=True)
    assert (desk.ended, desk.calls) == ([], [])
    desk.subscribe()
    assert desk.results == [None, None]


@pytest.mark.parametrize("how", ["error", "silence"])
def test_an_update_is_believed_where_nobody_can_be_asked(desk: UsubscriptionClientRig, how: str) -> None:
    desk.subscribe()
    desk.answer()
    desk.update()
    if how == "error":
        desk.fail(UCode.UNIMPLEMENTED)
    else:
        desk.pass_time(6)
        desk.calls.pop(0)
    assert len(desk.ended) == 1
    assert desk.methods() == [2]


def test_updates_of_what_was_asked_for_end_nothing(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.update()  # of an earlier subscription
    desk.answer()
    desk.update(SUBSCRIBED)
    desk.update(topic=UUri("car", 0x2001, 1, 0x8002))
    desk.client.unsubscribe(ENTITY, TOPIC)
    desk.update()
    assert desk.methods() == [2]
    desk.answer()
    desk.update()
    assert (desk.ended, desk.calls) == ([], [])


def test_who_gives_up_what_is_in_doubt_is_not_told_of_its_end(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer()
    desk.update()
    desk.client.unsubscribe(ENTITY, TOPIC)
    desk.answer_revalidation(stands=False)
    assert desk.ended == []
    assert desk.methods() == [2]


def test_who_asks_for_it_again_while_it_is_in_doubt_is_told(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer()
    desk.update()
    desk.subscribe(5)
    desk.answer_revalidation(stands=False)
    assert desk.results[0] is None
    assert desk.results[1] is not None


def test_who_else_speaks_is_no_usubscription(desk: UsubscriptionClientRig) -> None:
    for source in (UUri("car", 0, 3, 0x8000), UUri("hpc", 1, 3, 0x8000), UUri("hpc", 0, 3, 0x8001)):
        assert not desk.client.is_subscription_update(notification(desk.ids.next(), source, ENTITY, b""))


def test_an_unsubscribe_that_fails_is_tried_again_and_given_up_some_day(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer()
    desk.client.unsubscribe(ENTITY, TOPIC)
    for _ in range(60):
        assert desk.methods() == [2]
        desk.fail(UCode.RESOURCE_EXHAUSTED)
        assert desk.calls == [], "not at once"
        desk.pass_time(1.1)
    assert len(desk.client) == 0


def test_who_wants_it_again_while_an_unsubscribe_is_waited_with_gets_it(desk: UsubscriptionClientRig) -> None:
    desk.subscribe()
    desk.answer()
    desk.client.unsubscribe(ENTITY, TOPIC)
    desk.fail(UCode.RESOURCE_EXHAUSTED)
    desk.subscribe(9)
    desk.pass_time(1.1)
    assert desk.methods() == [1]
    desk.answer()
    assert desk.results == [None, None]


def test_so_many_calls_are_under_way_and_no_more(desk: UsubscriptionClientRig) -> None:
    for number in range(3 * MAX_PENDING_CALLS):
        desk.subscribe(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(desk.calls) == MAX_PENDING_CALLS
    for left in range(3 * MAX_PENDING_CALLS, 0, -1):
        assert len(desk.calls) == min(left, MAX_PENDING_CALLS)
        desk.answer()
    assert desk.results == [None] * 3 * MAX_PENDING_CALLS


def test_all_that_a_session_wants_ends_with_it(desk: UsubscriptionClientRig) -> None:
    other = UUri("wamp.hpc", 0x2_8001, 1, 0)
    for topic in (TOPIC, UUri("car", 0x2001, 1, 0x8002)):
        desk.subscribe(topic=topic)
        desk.subscribe(topic=topic, entity=other)
    while desk.calls:
        desk.answer()
    desk.client.unsubscribe_all(ENTITY)
    assert desk.methods() == [2, 2]
    assert {each.attributes.source for each in desk.calls} == {ENTITY}
