# SPDX-License-Identifier: Apache-2.0
"""When other devices are called, as a pure decision: time and links are given."""

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given
from ustreamer_usubscription.model.subscription import SubscriptionRecord
from ustreamer_usubscription.remote.remote_calls import (
    CALL_TIMEOUT_MS,
    INITIAL_BACKOFF_MS,
    MAX_BACKOFF_MS,
    MAX_IN_FLIGHT,
    SUSPICION_BURST,
    SUSPICION_INTERVAL_MS,
    RemoteCall,
    RemoteCalls,
)

from ustreamer.core.base.links import LinkState
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MS = 1_000_000
US = UUri("a", 0, 3, 0)


def topic(number: int = 0, authority: str = "b") -> UUri:
    return UUri(authority, 1, 1, 0x8000 + number)


def desired_subscription(of: UUri, period_ns: int = 0) -> SubscriptionRecord:
    return SubscriptionRecord(of, US, period_ns)


T = topic()


@dataclass
class RemoteCallsRig:
    """Calls, a clock and links, and short words for both."""

    refresh_ms: int = 0
    now_ms: int = 0
    link: dict[str, LinkState] = field(default_factory=dict)
    seen: dict[str, LinkState] = field(default_factory=dict)
    calls_made: int = 0
    requested: dict[UUri, SubscriptionRecord | None] = field(default_factory=dict)
    """What the last call for each topic said."""

    def __post_init__(self) -> None:
        self.calls = RemoteCalls(
            lambda authority: self.link.get(authority, LinkState(up=True, up_count=0)), self.refresh_ms
        )

    def set_desired(self, of: UUri = T, period_ns: int = 0) -> None:
        self.calls.set_desired(of, desired_subscription(of, period_ns))

    def set_undesired(self, of: UUri = T) -> None:
        self.calls.set_desired(of, None)

    def due(self, after_ms: int = 0) -> list[UUID]:
        """Make the calls that are due `after_ms` ms from now; their ids."""
        self.now_ms += after_ms
        if self.link != self.seen:
            self.seen = dict(self.link)
            self.calls.on_link_changed()
        made = []
        for remote_call in self.calls.pop_due(self.now_ms * MS):
            self.calls_made += 1
            made.append(UUID(0x7000, self.calls_made))
            self.requested[remote_call.key] = remote_call.desired
            self.calls.begin_call(remote_call, made[-1], self.now_ms * MS)
        return made

    def answer_call(
        self, reqid: UUID, *, well: bool = True, authority: str = "b", jitter: float = 0
    ) -> RemoteCall:
        remote_call = self.calls.on_response(reqid, authority)
        assert remote_call is not None
        done: Callable[[RemoteCall, int, float], None] = (
            self.calls.on_success if well else self.calls.on_failure
        )
        done(remote_call, self.now_ms * MS, jitter)
        return remote_call


def test_what_is_required_is_called_for_once() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    assert len(side.due()) == 1
    side.set_desired()
    assert side.due(CALL_TIMEOUT_MS - 1) == []


def test_a_call_without_an_answer_is_made_again_after_five_minutes_for_ever() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->req~usubscription-remote-max-timeout~1]
    [utest->LIF-16] [utest->LIF-17]
    """
    side = RemoteCallsRig()
    side.set_desired()
    side.due()
    for _ in range(100):
        assert side.due(CALL_TIMEOUT_MS - 1) == []
        assert len(side.due(1)) == 1
    assert side.calls.counts["remote_timeouts"] == 100


def test_calls_that_come_and_go_do_not_make_another_be_forgotten() -> None:
    side = RemoteCallsRig()
    side.set_desired(topic(1))
    side.answer_call(*side.due(), well=False)
    side.set_desired()
    side.due()
    for _ in range(3000):
        side.set_desired(topic(2))
        side.due()
        side.calls.clear_desired(topic(2))
    assert len(side.calls._reconciler._deadlines) == 2
    assert len(side.due(INITIAL_BACKOFF_MS)) == 1
    assert len(side.due(CALL_TIMEOUT_MS - INITIAL_BACKOFF_MS)) == 1


def test_an_answer_ends_it() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    assert side.calls.is_pending(call)
    side.answer_call(call)
    assert not side.calls.is_pending(call)
    assert side.due(10 * CALL_TIMEOUT_MS) == []
    assert side.calls.next_due_ns() is None


def test_an_answer_is_taken_from_the_device_that_was_called_and_once() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    assert side.calls.on_response(call, "c") is None
    assert side.calls.on_response(UUID(0x7000, 99), "b") is None
    assert side.calls.is_pending(call)
    side.answer_call(call)
    assert side.calls.on_response(call, "b") is None


def test_what_is_not_required_any_more_is_not_retried() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1]"""
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    side.calls.clear_desired(T)
    assert side.due(CALL_TIMEOUT_MS) == []
    assert side.calls.on_response(call, "b") is None
    side.calls.clear_desired(T)  # nothing to release


def test_the_pause_after_a_call_that_was_not_delivered_doubles_up_to_a_minute() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    pauses, pause = [], 0
    [call] = side.due()
    for _ in range(9):
        side.answer_call(call, well=False)
        pause = 0
        while not (made := side.due(500)):
            pause += 500
        pauses.append(pause + 500)
        [call] = made
    assert pauses == [min(INITIAL_BACKOFF_MS << n, MAX_BACKOFF_MS) for n in range(9)]
    side.answer_call(call)
    side.set_desired(period_ns=1)
    [call] = side.due()
    side.answer_call(call, well=False)
    assert len(side.due(INITIAL_BACKOFF_MS)) == 1  # an answer ends the row of failures


@pytest.mark.parametrize(("jitter", "pause_ms"), [(0, 1000), (0.5, 750), (1, 500)])
def test_jitter_takes_up_to_half_of_the_pause_off(jitter: float, pause_ms: int) -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    side.answer_call(call, well=False, jitter=jitter)
    assert side.due(pause_ms - 1) == []
    assert len(side.due(1)) == 1


def test_a_change_while_a_call_is_under_way_waits_for_its_answer() -> None:
    """[utest->LIF-20]"""
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    side.set_desired(period_ns=5)
    assert side.due() == []
    remote_call = side.answer_call(call)
    [_] = side.due()
    assert remote_call.requested == desired_subscription(T, 5)


def test_a_change_and_its_undoing_while_a_call_is_under_way_need_no_other() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    side.set_desired(period_ns=5)
    side.set_desired()
    side.answer_call(call)
    assert side.due() == []


def test_the_opposite_is_called_for_at_once_and_the_earlier_answer_means_nothing() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [first] = side.due()
    side.set_undesired()
    [second] = side.due()
    assert side.calls.on_response(first, "b") is None
    side.answer_call(second)
    assert side.due(CALL_TIMEOUT_MS) == []


@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_an_answer_to_what_has_been_given_up_since_changes_nothing(well: bool, gone: bool) -> None:
    """It was heard, but before it was dealt with the errand was released, or became the opposite."""
    side = RemoteCallsRig(refresh_ms=1)
    side.set_desired()
    [call] = side.due()
    remote_call = side.calls.on_response(call, "b")
    assert remote_call is not None
    side.set_desired(period_ns=5)
    if gone:
        side.calls.clear_desired(T)
    else:
        side.set_undesired()
    (side.calls.on_success if well else side.calls.on_failure)(remote_call, 0, 0)
    assert side.calls.counts["remote_retries"] == 0
    assert len(side.due()) == (not gone)
    assert side.requested[T] == (desired_subscription(T) if gone else None)
    assert side.due(CALL_TIMEOUT_MS - 1) == []


def test_devices_to_which_nothing_is_to_be_said_are_forgotten() -> None:
    asked = []

    def link_of(authority: str) -> LinkState:
        asked.append(authority)
        return LinkState(up=True, up_count=0)

    calls = RemoteCalls(link_of)
    for number in range(3):
        of = topic(authority=f"b{number}")
        calls.set_desired(of, desired_subscription(of))
        calls.set_desired(of, None)
        if number:
            calls.clear_desired(of)
    asked.clear()
    assert [remote_call.key.authority_name for remote_call in calls.pop_due(0)] == asked == ["b0"]


def test_nobody_is_called_while_the_link_is_down_and_at_once_when_it_comes_up() -> None:
    """[utest->LIF-18]"""
    side = RemoteCallsRig(link={"b": LinkState(up=False, up_count=0)})
    side.set_desired()
    side.set_desired(topic(authority="c"))
    assert len(side.due()) == 1  # c, of whose link nobody knows, counts as up
    assert side.due(10 * CALL_TIMEOUT_MS) != []  # c again
    side.link["b"] = LinkState(up=True, up_count=1)
    [call] = side.due()
    assert side.answer_call(call).key == T


def test_whatever_the_state_of_a_call_it_is_made_anew_when_the_link_comes_up() -> None:
    side = RemoteCallsRig(link={"b": LinkState(up=True, up_count=1)})
    granted, open_, paused = (topic(number) for number in range(3))
    for each in (granted, open_, paused):
        side.set_desired(each)
    first, second, third = side.due()
    side.answer_call(first)
    side.answer_call(third, well=False)
    side.link["b"] = LinkState(up=True, up_count=2)  # an outage that was over before anybody looked
    assert len(side.due()) == 3
    assert side.calls.on_response(second, "b") is None
    assert side.due() == []


def test_a_link_that_comes_up_ends_the_row_of_failures() -> None:
    side = RemoteCallsRig(link={"b": LinkState(up=True, up_count=1)})
    side.set_desired()
    [call] = side.due()
    for _ in range(5):
        side.answer_call(call, well=False)
        [call] = side.due(MAX_BACKOFF_MS)
    side.link["b"] = LinkState(up=True, up_count=2)
    [call] = side.due()
    side.answer_call(call, well=False)
    assert len(side.due(INITIAL_BACKOFF_MS)) == 1


def test_a_doubt_asks_again_after_a_pause_but_not_while_an_answer_is_awaited() -> None:
    side = RemoteCallsRig()
    side.calls.suspect(T, 0, 0)  # of what nobody asked for
    side.set_desired()
    [call] = side.due()
    side.calls.suspect(T, 0, 0)
    assert side.due(INITIAL_BACKOFF_MS) == []
    side.answer_call(call)
    side.calls.suspect(T, side.now_ms * MS, 0)
    assert side.due(INITIAL_BACKOFF_MS - 1) == []
    assert len(side.due(1)) == 1


def test_a_doubt_about_what_waits_to_be_asked_again_changes_nothing() -> None:
    side = RemoteCallsRig(refresh_ms=1000)
    side.set_desired()
    [call] = side.due()
    side.answer_call(call)
    side.link["b"] = LinkState(up=False, up_count=0)
    assert side.due(1000) == []
    side.calls.suspect(T, side.now_ms * MS, 0)
    assert side.calls.counts["remote_retries"] == 0
    assert side.calls.next_due_ns() is None


def test_what_is_awaited_is_asked_for_at_once_and_the_next_time_after_a_pause() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    side.answer_call(call)
    side.calls.suspect(T, side.now_ms * MS, 0, while_pending=True)
    [call] = side.due()
    side.answer_call(call)
    side.calls.suspect(T, side.now_ms * MS, 0, while_pending=True)
    assert side.due(INITIAL_BACKOFF_MS - 1) == []


def test_who_contradicts_every_answer_is_asked_ever_more_seldom() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    [call] = side.due()
    pauses = []
    for _ in range(9):
        side.answer_call(call)
        side.calls.suspect(T, side.now_ms * MS, 0)
        side.calls.suspect(T, side.now_ms * MS, 0)  # once more before it has been asked: nothing
        began = side.now_ms
        while not (made := side.due(500)):
            pass
        pauses.append(side.now_ms - began)
        [call] = made
    assert pauses == [min(INITIAL_BACKOFF_MS << n, MAX_BACKOFF_MS) for n in range(9)]
    side.answer_call(call)
    side.now_ms += 2 * MAX_BACKOFF_MS + 1
    side.calls.suspect(T, side.now_ms * MS, 0)
    assert len(side.due(INITIAL_BACKOFF_MS)) == 1  # that row has ended


def flap(side: RemoteCallsRig) -> int:
    """The device goes and comes: it says so, and answers accordingly. How many ms pass until both is known here."""
    before_ms = side.now_ms
    for awaited in (False, True):
        side.calls.suspect(T, side.now_ms * MS, 0, while_pending=awaited)
        while not (made := side.due()):
            next_ns = side.calls.next_due_ns()
            assert next_ns is not None
            side.now_ms = max(side.now_ms, next_ns // MS)
        [call] = made
        remote_call = side.calls.on_response(call, "b")
        assert remote_call is not None
        side.calls.on_success(remote_call, side.now_ms * MS, 0, pending=not awaited, changed=True)
    return side.now_ms - before_ms


def test_who_does_nothing_but_go_and_come_is_asked_ever_more_seldom_and_then_at_once_again() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    side.answer_call(*side.due())
    quick = [flap(side) for _ in range(SUSPICION_BURST // 2)]
    assert quick == [INITIAL_BACKOFF_MS] * len(quick)

    made, since_ms = side.calls_made, side.now_ms
    while side.now_ms - since_ms < 600_000:
        flap(side)
    assert side.calls_made - made <= 600_000 // SUSPICION_INTERVAL_MS + 2

    side.now_ms += SUSPICION_BURST * SUSPICION_INTERVAL_MS
    assert [flap(side) for _ in quick] == quick


def test_an_ecu_that_reboots_once_a_minute_is_always_asked_at_once() -> None:
    side = RemoteCallsRig()
    side.set_desired()
    side.answer_call(*side.due())
    for _ in range(200):
        side.now_ms += 60_000
        assert flap(side) == INITIAL_BACKOFF_MS


def test_an_answer_is_awaited_from_the_call_until_it_comes() -> None:
    side = RemoteCallsRig()
    assert not side.calls.in_flight(T)
    side.set_desired()
    assert not side.calls.in_flight(T)
    [call] = side.due()
    assert side.calls.in_flight(T)
    side.answer_call(call)
    assert not side.calls.in_flight(T)


def test_what_was_granted_is_confirmed_now_and_then() -> None:
    side = RemoteCallsRig(refresh_ms=10_000)
    side.set_desired()
    [call] = side.due()
    side.answer_call(call, jitter=1)
    assert side.due(4_999) == []
    assert len(side.due(1)) == 1
    assert side.calls.counts["remote_timeouts"] == 0


def test_a_window_bounds_what_is_under_way_to_one_device() -> None:
    side = RemoteCallsRig()
    for number in range(MAX_IN_FLIGHT + 10):
        side.set_desired(topic(number))
        side.set_desired(topic(number, "c"))
    calls = side.due()
    assert len(calls) == 2 * MAX_IN_FLIGHT
    assert side.due() == []
    side.answer_call(calls[0])
    assert len(side.due()) == 1
    assert side.calls.in_flight_count == 2 * MAX_IN_FLIGHT


def test_many_topics_go_out_in_time_that_grows_with_their_number() -> None:
    """A dict whose first keys have gone takes ever longer to find its first: 20 000 would take a minute."""
    side = RemoteCallsRig()
    for number in range(20_000):
        side.set_desired(UUri("b", number, 1, 0x8000))
    for _ in range(20_000 // MAX_IN_FLIGHT + 1):
        for call in side.due():
            side.answer_call(call)
    assert side.calls_made == 20_000


def test_devices_that_nobody_can_reach_cost_nothing_while_nothing_changes() -> None:
    """Their names are chosen by whoever subscribes: to look at each in every turn would hold up everybody."""
    side = RemoteCallsRig(link={f"b{number}": LinkState(up=False, up_count=0) for number in range(1000)})
    asked: list[str] = []
    link_of = side.calls._reconciler._link_of

    def noted(authority: str) -> LinkState:
        asked.append(authority)
        return link_of(authority)

    side.calls._reconciler._link_of = noted
    for authority in side.link:
        side.set_desired(topic(authority=authority))
    assert side.due() == []
    asked.clear()
    assert side.due() == []
    assert asked == []
    side.link["b7"] = LinkState(up=True, up_count=1)
    assert len(side.due()) == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["well", "badly"]), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("time"), st.sampled_from([0, 500, 1000, 60_000, CALL_TIMEOUT_MS]), st.just(0)),
        st.tuples(st.just("link"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_in_the_end_every_device_was_told_what_is_wanted_last(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happened on the way: when the link is up and answers come, each errand ends, and the last word was right."""
    side = RemoteCallsRig()
    wanted: dict[UUri, SubscriptionRecord | None] = {}
    for what, number, period in steps:
        match what:
            case "want":
                side.set_desired(topic(number), period)
                wanted[topic(number)] = desired_subscription(topic(number), period)
            case "leave":
                side.set_undesired(topic(number))
                wanted[topic(number)] = None
            case "release":
                side.calls.clear_desired(topic(number))
                wanted.pop(topic(number), None)
            case "well" | "badly":
                if open_ := [
                    each
                    for each in (UUID(0x7000, n) for n in range(side.calls_made + 1))
                    if side.calls.is_pending(each)
                ]:
                    side.answer_call(open_[number % len(open_)], well=what == "well")
            case "time":
                side.due(number)
            case "link":
                before = side.link.get("b", LinkState(up=True, up_count=0))
                side.link["b"] = LinkState(bool(number), before.up_count + (number and not before.up))
    side.link["b"] = LinkState(up=True, up_count=side.link.get("b", LinkState(up=True, up_count=0)).up_count)
    for _ in range(10):
        for reqid in [*side.due(MAX_BACKOFF_MS), *(UUID(0x7000, n) for n in range(side.calls_made + 1))]:
            if side.calls.is_pending(reqid):
                side.answer_call(reqid)
    assert side.calls.in_flight_count == 0
    assert side.calls.next_due_ns() is None
    assert {of: side.requested[of] for of in wanted} == wanted
