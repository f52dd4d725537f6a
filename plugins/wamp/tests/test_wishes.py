# SPDX-License-Identifier: Apache-2.0
"""What is said to uSubscription for sessions, and when; uSubscription is played by the test."""

from collections import Counter

import pytest
from ustreamer_wamp.errors import Refusal
from ustreamer_wamp.vehicle.usubscription_client import TTL_MS, WINDOW, Wishes
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


class Desk:
    """Wishes, the calls that they have led to and are not answered, and what their clients were told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        monotonic_ns, wall_ms = self.clock.clock()
        self.ids = UuidSource(wall_ms)
        self.calls: list[UMessage] = []
        self.told: list[Refusal | None] = []
        self.wishes = Wishes("hpc", UuidSource(wall_ms), self.calls.append, monotonic_ns, Counter())
        self.ended: list[str] = []
        self.wishes.ended = lambda entity, topic, why: self.ended.append(f"{entity} {topic}: {why}")

    def want(self, period_ns: int = 0, topic: UUri = TOPIC, entity: UUri = ENTITY) -> None:
        self.wishes.want(entity, topic, period_ns, self.told.append)

    def methods(self) -> list[int]:
        return [each.attributes.sink.resource_id for each in self.calls if each.attributes.sink]

    def answer(self, state: int = SUBSCRIBED) -> None:
        """Answer the oldest call."""
        call = self.calls.pop(0)
        payload = pb.SubscriptionResponse(status=pb.SubscriptionStatus(state=state)).SerializeToString()
        self.wishes.answered(response(self.ids.next(), call, payload, UPayloadFormat.PROTOBUF))

    def update(self, state: int = UNSUBSCRIBED, topic: UUri = TOPIC) -> None:
        """Tell of a change, as uSubscription does."""
        payload = pb.Update(
            topic=topic.to_pb(), status=pb.SubscriptionStatus(state=state, message="refused there")
        ).SerializeToString()
        source = UUri("hpc", 0, 3, 0x8000)
        message = notification(self.ids.next(), source, ENTITY, payload, UPayloadFormat.PROTOBUF)
        assert self.wishes.is_update(message)
        self.wishes.changed(message)

    def answer_doubt(self, *, stands: bool) -> None:
        """Answer the oldest call, which is the question if a subscription stands."""
        call = self.calls.pop(0)
        asked = pb4.FetchSubscriptionsRequest.FromString(call.payload)
        assert call.attributes.sink == UUri("hpc", 0, 4, 3)
        assert (asked.topic_filter, asked.subscriber_filter) == (TOPIC.to_pb(), ENTITY.to_pb())
        found = pb4.Subscription(topic=asked.topic_filter, subscriber=asked.subscriber_filter)
        payload = pb4.FetchSubscriptionsResponse(subscriptions=[found] * stands).SerializeToString()
        self.wishes.answered(response(self.ids.next(), call, payload, UPayloadFormat.PROTOBUF))

    def fail(self, code: UCode = UCode.NOT_FOUND) -> None:
        call = self.calls.pop(0)
        self.wishes.answered(error_response(self.ids.next(), call, UStatus(code, "because")))

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(s=seconds)
        self.wishes.tick(self.clock.now_ns)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_wish_is_said_once_and_its_client_told_when_it_is_answered(desk: Desk) -> None:
    desk.want()
    assert desk.methods() == [1]
    assert desk.told == []
    assert desk.calls[0].attributes.source == ENTITY
    assert desk.calls[0].attributes.sink == UUri("hpc", 0, 3, 1)
    desk.answer()
    assert desk.told == [None]
    desk.want()  # as it is
    assert (desk.calls, desk.told) == ([], [None, None])


def test_calls_about_a_topic_never_overtake_each_other(desk: Desk) -> None:
    desk.want()
    desk.wishes.forget(ENTITY, TOPIC)
    desk.want(5)
    desk.wishes.forget(ENTITY, TOPIC)
    assert desk.methods() == [1], "one at a time"
    assert desk.told == [None, None], "who waits is told before it ends"
    desk.answer()
    assert desk.methods() == [2], "and then the last word"
    desk.answer()
    assert desk.calls == []
    assert len(desk.wishes) == 0
    assert not desk.wishes.is_known(ENTITY)


def test_a_changed_rate_is_said_when_the_call_before_is_answered(desk: Desk) -> None:
    desk.want()
    desk.want(20_000_000)
    desk.answer()
    assert desk.methods() == [1]
    request = pb.SubscriptionRequest.FromString(desk.calls[0].payload)
    assert b"\x19" in request.attributes.SerializeToString(), (
        "max_frequency, of which sample_period_ms has the number"
    )
    assert desk.told == []
    desk.answer()
    assert desk.told == [None, None]


@pytest.mark.parametrize(
    ("code", "reason"),
    [(UCode.NOT_FOUND, "up.error.not_found"), (UCode.PERMISSION_DENIED, "wamp.error.not_authorized")],
)
def test_a_refusal_is_told_and_the_wish_forgotten(desk: Desk, code: UCode, reason: str) -> None:
    desk.want()
    desk.fail(code)
    assert desk.told == [Refusal(reason, "because")]
    assert len(desk.wishes) == 0
    assert refusal_of(UStatus(code, "x")).reason == reason


def test_an_answer_that_says_unsubscribed_is_a_refusal(desk: Desk) -> None:
    desk.want()
    desk.answer(UNSUBSCRIBED)
    assert desk.told[0] is not None
    assert len(desk.wishes) == 0


def test_a_rate_that_is_refused_leaves_the_one_before(desk: Desk) -> None:
    desk.want(5)
    desk.answer()
    desk.want(7)
    desk.fail()
    assert desk.told[0] is None
    assert desk.told[1] is not None
    assert len(desk.wishes) == 1
    desk.wishes.forget(ENTITY, TOPIC)
    assert desk.methods() == [2]


def test_what_is_not_answered_is_given_up_in_time(desk: Desk) -> None:
    desk.want()
    desk.pass_time(TTL_MS / 1000)
    assert desk.told == []
    desk.pass_time(1)
    assert [each and each.reason for each in desk.told] == ["up.error.deadline_exceeded"]
    assert len(desk.wishes) == 0
    desk.answer()  # too late
    assert len(desk.told) == 1


def test_where_nobody_answers_the_next_one_does_not_wait_as_long(desk: Desk) -> None:
    desk.want()
    desk.pass_time(6)
    desk.told.clear()
    desk.want()
    desk.pass_time(0.4)
    assert desk.told == []
    desk.pass_time(0.2)
    assert [each and each.reason for each in desk.told] == ["up.error.deadline_exceeded"]
    desk.calls.pop(0)
    desk.answer()  # it is there after all
    assert desk.methods() == [2], "nobody wants it any more"
    desk.answer()
    assert len(desk.wishes) == 0
    desk.told.clear()
    desk.want()
    desk.pass_time(5)
    assert desk.told == [], "who has answered is waited for"
    desk.answer()
    assert desk.told == [None]


def test_somebody_on_the_way_is_no_usubscription(desk: Desk) -> None:
    desk.want()
    desk.fail(UCode.DEADLINE_EXCEEDED)
    desk.told.clear()
    desk.want()
    desk.pass_time(0.6)
    assert [each and each.reason for each in desk.told] == ["up.error.deadline_exceeded"]


def test_that_nobody_answers_can_be_known_from_the_start(desk: Desk) -> None:
    desk.wishes.end_those_of_before("wamp.hpc")
    desk.pass_time(6)
    desk.want()
    desk.pass_time(0.6)
    assert len(desk.told) == 1


def test_who_loses_patience_with_a_new_rate_keeps_the_one_before(desk: Desk) -> None:
    desk.want(5)
    desk.answer()
    desk.want(topic=UUri("car", 0x2001, 1, 0x8002))
    desk.pass_time(6)
    desk.calls.clear()
    desk.told.clear()
    desk.want(7)
    desk.pass_time(0.6)
    assert len(desk.told) == 1
    desk.answer()
    assert desk.methods() == [1]
    assert b"\x19" in desk.calls[0].payload
    desk.answer()
    desk.wishes.forget(ENTITY, TOPIC)
    assert desk.methods() == [2]


def test_where_nobody_answers_no_more_is_kept_than_may_be_under_way(desk: Desk) -> None:
    desk.want()
    desk.pass_time(6)
    for number in range(3 * WINDOW):
        desk.want(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(desk.wishes) == WINDOW
    assert len(desk.told) == 1 + 2 * WINDOW
    desk.pass_time(6)
    assert len(desk.told) == 1 + 3 * WINDOW
    assert len(desk.wishes) == 0


def test_an_answer_after_the_client_was_told_is_undone(desk: Desk) -> None:
    desk.want()
    call = desk.calls[0]
    desk.pass_time(6)
    assert len(desk.wishes) == 0
    payload = pb.SubscriptionResponse(
        topic=TOPIC.to_pb(), status=pb.SubscriptionStatus(state=SUBSCRIBED)
    ).SerializeToString()
    desk.calls.clear()
    desk.wishes.answered(response(desk.ids.next(), call, payload, UPayloadFormat.PROTOBUF))
    assert desk.methods() == [2]
    assert desk.calls[0].attributes.source == ENTITY
    desk.answer()
    assert len(desk.wishes) == 0


# --- what ends by itself ------------------------------------------------------------------------------------------------


def test_what_ends_by_itself_is_told_when_usubscription_has_confirmed_it(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.update()
    assert desk.ended == [], "it may be an old word"
    desk.answer_doubt(stands=False)
    assert desk.ended == [f"{ENTITY} {TOPIC}: refused there"]
    assert desk.methods() == [2]
    desk.answer()
    assert len(desk.wishes) == 0


def test_an_update_that_was_overtaken_changes_nothing(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.update()
    desk.answer_doubt(stands=True)
    assert (desk.ended, desk.calls) == ([], [])
    desk.want()
    assert desk.told == [None, None]


@pytest.mark.parametrize("how", ["error", "silence"])
def test_an_update_is_believed_where_nobody_can_be_asked(desk: Desk, how: str) -> None:
    desk.want()
    desk.answer()
    desk.update()
    if how == "error":
        desk.fail(UCode.UNIMPLEMENTED)
    else:
        desk.pass_time(6)
        desk.calls.pop(0)
    assert len(desk.ended) == 1
    assert desk.methods() == [2]


def test_updates_of_what_was_asked_for_end_nothing(desk: Desk) -> None:
    desk.want()
    desk.update()  # of an earlier subscription
    desk.answer()
    desk.update(SUBSCRIBED)
    desk.update(topic=UUri("car", 0x2001, 1, 0x8002))
    desk.wishes.forget(ENTITY, TOPIC)
    desk.update()
    assert desk.methods() == [2]
    desk.answer()
    desk.update()
    assert (desk.ended, desk.calls) == ([], [])


def test_who_gives_up_what_is_in_doubt_is_not_told_of_its_end(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.update()
    desk.wishes.forget(ENTITY, TOPIC)
    desk.answer_doubt(stands=False)
    assert desk.ended == []
    assert desk.methods() == [2]


def test_who_asks_for_it_again_while_it_is_in_doubt_is_told(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.update()
    desk.want(5)
    desk.answer_doubt(stands=False)
    assert desk.told[0] is None
    assert desk.told[1] is not None


def test_who_else_speaks_is_no_usubscription(desk: Desk) -> None:
    for source in (UUri("car", 0, 3, 0x8000), UUri("hpc", 1, 3, 0x8000), UUri("hpc", 0, 3, 0x8001)):
        assert not desk.wishes.is_update(notification(desk.ids.next(), source, ENTITY, b""))


def test_an_unsubscribe_that_fails_is_tried_again_and_given_up_some_day(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.wishes.forget(ENTITY, TOPIC)
    for _ in range(60):
        assert desk.methods() == [2]
        desk.fail(UCode.RESOURCE_EXHAUSTED)
        assert desk.calls == [], "not at once"
        desk.pass_time(1.1)
    assert len(desk.wishes) == 0


def test_who_wants_it_again_while_an_unsubscribe_is_waited_with_gets_it(desk: Desk) -> None:
    desk.want()
    desk.answer()
    desk.wishes.forget(ENTITY, TOPIC)
    desk.fail(UCode.RESOURCE_EXHAUSTED)
    desk.want(9)
    desk.pass_time(1.1)
    assert desk.methods() == [1]
    desk.answer()
    assert desk.told == [None, None]


def test_so_many_calls_are_under_way_and_no_more(desk: Desk) -> None:
    for number in range(3 * WINDOW):
        desk.want(topic=UUri("car", 0x2001, 1, 0x8000 + number))
    assert len(desk.calls) == WINDOW
    for left in range(3 * WINDOW, 0, -1):
        assert len(desk.calls) == min(left, WINDOW)
        desk.answer()
    assert desk.told == [None] * 3 * WINDOW


def test_all_that_a_session_wants_ends_with_it(desk: Desk) -> None:
    other = UUri("wamp.hpc", 0x2_8001, 1, 0)
    for topic in (TOPIC, UUri("car", 0x2001, 1, 0x8002)):
        desk.want(topic=topic)
        desk.want(topic=topic, entity=other)
    while desk.calls:
        desk.answer()
    desk.wishes.forget_all(ENTITY)
    assert desk.methods() == [2, 2]
    assert {each.attributes.source for each in desk.calls} == {ENTITY}
