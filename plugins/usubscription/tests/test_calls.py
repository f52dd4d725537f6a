# SPDX-License-Identifier: Apache-2.0
"""When other devices are called, as a pure decision: time and links are given."""

from collections.abc import Callable
from dataclasses import dataclass, field

import hypothesis.strategies as st
import pytest
from hypothesis import given
from ustreamer_usubscription.model.subscription import Tracked
from ustreamer_usubscription.remote.remote_calls import (
    DOUBTS_AT_ONCE,
    DOUBTS_PAUSE_MS,
    FIRST_PAUSE_MS,
    LONGEST_PAUSE_MS,
    TIMEOUT_MS,
    WINDOW,
    Calls,
    Errand,
)

from ustreamer.core.base.links import Link
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

MS = 1_000_000
US = UUri("a", 0, 3, 0)


def topic(number: int = 0, authority: str = "b") -> UUri:
    return UUri(authority, 1, 1, 0x8000 + number)


def wish(of: UUri, period_ns: int = 0) -> Tracked:
    return Tracked(of, US, period_ns)


T = topic()


@dataclass
class Side:
    """Calls, a clock and links, and short words for both."""

    refresh_ms: int = 0
    now_ms: int = 0
    link: dict[str, Link] = field(default_factory=dict)
    seen: dict[str, Link] = field(default_factory=dict)
    made: int = 0
    said: dict[UUri, Tracked | None] = field(default_factory=dict)
    """What the last call for each topic said."""

    def __post_init__(self) -> None:
        self.calls = Calls(
            lambda authority: self.link.get(authority, Link(up=True, times_up=0)), self.refresh_ms
        )

    def want(self, of: UUri = T, period_ns: int = 0) -> None:
        self.calls.require(of, wish(of, period_ns))

    def leave(self, of: UUri = T) -> None:
        self.calls.require(of, None)

    def due(self, after_ms: int = 0) -> list[UUID]:
        """Make the calls that are due `after_ms` ms from now; their ids."""
        self.now_ms += after_ms
        if self.link != self.seen:
            self.seen = dict(self.link)
            self.calls.link_turned()
        made = []
        for errand in self.calls.due(self.now_ms * MS):
            self.made += 1
            made.append(UUID(0x7000, self.made))
            self.said[errand.topic] = errand.wish
            self.calls.called(errand, made[-1], self.now_ms * MS)
        return made

    def answered(self, reqid: UUID, *, well: bool = True, authority: str = "b", jitter: float = 0) -> Errand:
        errand = self.calls.answered(reqid, authority)
        assert errand is not None
        done: Callable[[Errand, int, float], None] = self.calls.succeeded if well else self.calls.failed
        done(errand, self.now_ms * MS, jitter)
        return errand


def test_what_is_required_is_called_for_once() -> None:
    side = Side()
    side.want()
    assert len(side.due()) == 1
    side.want()
    assert side.due(TIMEOUT_MS - 1) == []


def test_a_call_without_an_answer_is_made_again_after_five_minutes_for_ever() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->req~usubscription-remote-max-timeout~1]
    [utest->LIF-16] [utest->LIF-17]
    """
    side = Side()
    side.want()
    side.due()
    for _ in range(100):
        assert side.due(TIMEOUT_MS - 1) == []
        assert len(side.due(1)) == 1
    assert side.calls.counts["remote_timeouts"] == 100


def test_calls_that_come_and_go_do_not_make_another_be_forgotten() -> None:
    """What is due is kept in a heap that is made anew when too much in it is out of date."""
    side = Side()
    side.want(topic(1))
    side.answered(*side.due(), well=False)
    side.want()
    side.due()
    for _ in range(3000):
        side.want(topic(2))
        side.due()
        side.calls.release(topic(2))
    assert len(side.calls._deadlines) < 2000
    assert len(side.due(FIRST_PAUSE_MS)) == 1
    assert len(side.due(TIMEOUT_MS - FIRST_PAUSE_MS)) == 1


def test_an_answer_ends_it() -> None:
    side = Side()
    side.want()
    [call] = side.due()
    assert side.calls.is_open(call)
    side.answered(call)
    assert not side.calls.is_open(call)
    assert side.due(10 * TIMEOUT_MS) == []
    assert side.calls.next_ns() is None


def test_an_answer_is_taken_from_the_device_that_was_called_and_once() -> None:
    side = Side()
    side.want()
    [call] = side.due()
    assert side.calls.answered(call, "c") is None
    assert side.calls.answered(UUID(0x7000, 99), "b") is None
    assert side.calls.is_open(call)
    side.answered(call)
    assert side.calls.answered(call, "b") is None


def test_what_is_not_required_any_more_is_not_retried() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1]"""
    side = Side()
    side.want()
    [call] = side.due()
    side.calls.release(T)
    assert side.due(TIMEOUT_MS) == []
    assert side.calls.answered(call, "b") is None
    side.calls.release(T)  # nothing to release


def test_the_pause_after_a_call_that_was_not_delivered_doubles_up_to_a_minute() -> None:
    side = Side()
    side.want()
    pauses, pause = [], 0
    [call] = side.due()
    for _ in range(9):
        side.answered(call, well=False)
        pause = 0
        while not (made := side.due(500)):
            pause += 500
        pauses.append(pause + 500)
        [call] = made
    assert pauses == [min(FIRST_PAUSE_MS << n, LONGEST_PAUSE_MS) for n in range(9)]
    side.answered(call)
    side.want(period_ns=1)
    [call] = side.due()
    side.answered(call, well=False)
    assert len(side.due(FIRST_PAUSE_MS)) == 1  # an answer ends the row of failures


@pytest.mark.parametrize(("jitter", "pause_ms"), [(0, 1000), (0.5, 750), (1, 500)])
def test_jitter_takes_up_to_half_of_the_pause_off(jitter: float, pause_ms: int) -> None:
    side = Side()
    side.want()
    [call] = side.due()
    side.answered(call, well=False, jitter=jitter)
    assert side.due(pause_ms - 1) == []
    assert len(side.due(1)) == 1


def test_a_change_while_a_call_is_under_way_waits_for_its_answer() -> None:
    """[utest->LIF-20]"""
    side = Side()
    side.want()
    [call] = side.due()
    side.want(period_ns=5)
    assert side.due() == []
    errand = side.answered(call)
    [_] = side.due()
    assert errand.asked == wish(T, 5)


def test_a_change_and_its_undoing_while_a_call_is_under_way_need_no_other() -> None:
    side = Side()
    side.want()
    [call] = side.due()
    side.want(period_ns=5)
    side.want()
    side.answered(call)
    assert side.due() == []


def test_the_opposite_is_called_for_at_once_and_the_earlier_answer_means_nothing() -> None:
    side = Side()
    side.want()
    [first] = side.due()
    side.leave()
    [second] = side.due()
    assert side.calls.answered(first, "b") is None
    side.answered(second)
    assert side.due(TIMEOUT_MS) == []


@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("gone", [True, False])
def test_an_answer_to_what_has_been_given_up_since_changes_nothing(well: bool, gone: bool) -> None:
    """It was heard, but before it was dealt with the errand was released, or became the opposite."""
    side = Side(refresh_ms=1)
    side.want()
    [call] = side.due()
    errand = side.calls.answered(call, "b")
    assert errand is not None
    side.want(period_ns=5)
    if gone:
        side.calls.release(T)
    else:
        side.leave()
    (side.calls.succeeded if well else side.calls.failed)(errand, 0, 0)
    assert side.calls.counts["remote_retries"] == 0
    assert len(side.due()) == (not gone)
    assert side.said[T] == (wish(T) if gone else None)
    assert side.due(TIMEOUT_MS - 1) == []


def test_devices_to_which_nothing_is_to_be_said_are_forgotten() -> None:
    asked = []

    def link_of(authority: str) -> Link:
        asked.append(authority)
        return Link(up=True, times_up=0)

    calls = Calls(link_of)
    for number in range(3):
        of = topic(authority=f"b{number}")
        calls.require(of, wish(of))
        calls.require(of, None)
        if number:
            calls.release(of)
    asked.clear()
    assert [errand.topic.authority_name for errand in calls.due(0)] == asked == ["b0"]


def test_nobody_is_called_while_the_link_is_down_and_at_once_when_it_comes_up() -> None:
    """[utest->LIF-18]"""
    side = Side(link={"b": Link(up=False, times_up=0)})
    side.want()
    side.want(topic(authority="c"))
    assert len(side.due()) == 1  # c, of whose link nobody knows, counts as up
    assert side.due(10 * TIMEOUT_MS) != []  # c again
    side.link["b"] = Link(up=True, times_up=1)
    [call] = side.due()
    assert side.answered(call).topic == T


def test_whatever_the_state_of_a_call_it_is_made_anew_when_the_link_comes_up() -> None:
    side = Side(link={"b": Link(up=True, times_up=1)})
    granted, open_, paused = (topic(number) for number in range(3))
    for each in (granted, open_, paused):
        side.want(each)
    first, second, third = side.due()
    side.answered(first)
    side.answered(third, well=False)
    side.link["b"] = Link(up=True, times_up=2)  # an outage that was over before anybody looked
    assert len(side.due()) == 3
    assert side.calls.answered(second, "b") is None
    assert side.due() == []


def test_a_link_that_comes_up_ends_the_row_of_failures() -> None:
    side = Side(link={"b": Link(up=True, times_up=1)})
    side.want()
    [call] = side.due()
    for _ in range(5):
        side.answered(call, well=False)
        [call] = side.due(LONGEST_PAUSE_MS)
    side.link["b"] = Link(up=True, times_up=2)
    [call] = side.due()
    side.answered(call, well=False)
    assert len(side.due(FIRST_PAUSE_MS)) == 1


def test_a_doubt_asks_again_after_a_pause_but_not_while_an_answer_is_awaited() -> None:
    side = Side()
    side.calls.doubt(T, 0, 0)  # of what nobody asked for
    side.want()
    [call] = side.due()
    side.calls.doubt(T, 0, 0)
    assert side.due(FIRST_PAUSE_MS) == []
    side.answered(call)
    side.calls.doubt(T, side.now_ms * MS, 0)
    assert side.due(FIRST_PAUSE_MS - 1) == []
    assert len(side.due(1)) == 1


def test_a_doubt_about_what_waits_to_be_asked_again_changes_nothing() -> None:
    side = Side(refresh_ms=1000)
    side.want()
    [call] = side.due()
    side.answered(call)
    side.link["b"] = Link(up=False, times_up=0)
    assert side.due(1000) == []
    side.calls.doubt(T, side.now_ms * MS, 0)
    assert side.calls.counts["remote_retries"] == 0
    assert side.calls.next_ns() is None


def test_what_is_awaited_is_asked_for_at_once_and_the_next_time_after_a_pause() -> None:
    side = Side()
    side.want()
    [call] = side.due()
    side.answered(call)
    side.calls.doubt(T, side.now_ms * MS, 0, awaited=True)
    [call] = side.due()
    side.answered(call)
    side.calls.doubt(T, side.now_ms * MS, 0, awaited=True)
    assert side.due(FIRST_PAUSE_MS - 1) == []


def test_who_contradicts_every_answer_is_asked_ever_more_seldom() -> None:
    side = Side()
    side.want()
    [call] = side.due()
    pauses = []
    for _ in range(9):
        side.answered(call)
        side.calls.doubt(T, side.now_ms * MS, 0)
        side.calls.doubt(T, side.now_ms * MS, 0)  # once more before it has been asked: nothing
        began = side.now_ms
        while not (made := side.due(500)):
            pass
        pauses.append(side.now_ms - began)
        [call] = made
    assert pauses == [min(FIRST_PAUSE_MS << n, LONGEST_PAUSE_MS) for n in range(9)]
    side.answered(call)
    side.now_ms += 2 * LONGEST_PAUSE_MS + 1
    side.calls.doubt(T, side.now_ms * MS, 0)
    assert len(side.due(FIRST_PAUSE_MS)) == 1  # that row has ended


def flap(side: Side) -> int:
    """The device goes and comes: it says so, and answers accordingly. How many ms pass until both is known here."""
    before_ms = side.now_ms
    for awaited in (False, True):
        side.calls.doubt(T, side.now_ms * MS, 0, awaited=awaited)
        while not (made := side.due()):
            next_ns = side.calls.next_ns()
            assert next_ns is not None
            side.now_ms = max(side.now_ms, next_ns // MS)
        [call] = made
        errand = side.calls.answered(call, "b")
        assert errand is not None
        side.calls.succeeded(errand, side.now_ms * MS, 0, pending=not awaited, news=True)
    return side.now_ms - before_ms


def test_who_does_nothing_but_go_and_come_is_asked_ever_more_seldom_and_then_at_once_again() -> None:
    side = Side()
    side.want()
    side.answered(*side.due())
    quick = [flap(side) for _ in range(DOUBTS_AT_ONCE // 2)]
    assert quick == [FIRST_PAUSE_MS] * len(quick)

    made, since_ms = side.made, side.now_ms
    while side.now_ms - since_ms < 600_000:
        flap(side)
    assert side.made - made <= 600_000 // DOUBTS_PAUSE_MS + 2

    side.now_ms += DOUBTS_AT_ONCE * DOUBTS_PAUSE_MS
    assert [flap(side) for _ in quick] == quick


def test_an_ecu_that_reboots_once_a_minute_is_always_asked_at_once() -> None:
    side = Side()
    side.want()
    side.answered(*side.due())
    for _ in range(200):
        side.now_ms += 60_000
        assert flap(side) == FIRST_PAUSE_MS


def test_an_answer_is_awaited_from_the_call_until_it_comes() -> None:
    side = Side()
    assert not side.calls.awaits(T)
    side.want()
    assert not side.calls.awaits(T)
    [call] = side.due()
    assert side.calls.awaits(T)
    side.answered(call)
    assert not side.calls.awaits(T)


def test_what_was_granted_is_confirmed_now_and_then() -> None:
    side = Side(refresh_ms=10_000)
    side.want()
    [call] = side.due()
    side.answered(call, jitter=1)
    assert side.due(4_999) == []
    assert len(side.due(1)) == 1
    assert side.calls.counts["remote_timeouts"] == 0


def test_a_window_bounds_what_is_under_way_to_one_device() -> None:
    side = Side()
    for number in range(WINDOW + 10):
        side.want(topic(number))
        side.want(topic(number, "c"))
    calls = side.due()
    assert len(calls) == 2 * WINDOW
    assert side.due() == []
    side.answered(calls[0])
    assert len(side.due()) == 1
    assert side.calls.open == 2 * WINDOW


def test_many_topics_go_out_in_time_that_grows_with_their_number() -> None:
    """A dict whose first keys have gone takes ever longer to find its first: 20 000 would take a minute."""
    side = Side()
    for number in range(20_000):
        side.want(UUri("b", number, 1, 0x8000))
    for _ in range(20_000 // WINDOW + 1):
        for call in side.due():
            side.answered(call)
    assert side.made == 20_000


def test_devices_that_nobody_can_reach_cost_nothing_while_nothing_changes() -> None:
    """Their names are chosen by whoever subscribes: to look at each in every turn would hold up everybody."""
    side = Side(link={f"b{number}": Link(up=False, times_up=0) for number in range(1000)})
    asked: list[str] = []
    link_of = side.calls._link_of

    def noted(authority: str) -> Link:
        asked.append(authority)
        return link_of(authority)

    side.calls._link_of = noted
    for authority in side.link:
        side.want(topic(authority=authority))
    assert side.due() == []
    asked.clear()
    assert side.due() == []
    assert asked == []
    side.link["b7"] = Link(up=True, times_up=1)
    assert len(side.due()) == 1


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("want"), st.integers(0, 2), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 2), st.just(0)),
        st.tuples(st.just("release"), st.integers(0, 2), st.just(0)),
        st.tuples(st.sampled_from(["well", "badly"]), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("time"), st.sampled_from([0, 500, 1000, 60_000, TIMEOUT_MS]), st.just(0)),
        st.tuples(st.just("link"), st.integers(0, 1), st.just(0)),
    ),
    max_size=40,
)


@given(STEPS)
def test_in_the_end_every_device_was_told_what_is_wanted_last(steps: list[tuple[str, int, int]]) -> None:
    """Whatever happened on the way: when the link is up and answers come, each errand ends, and the last word was right."""
    side = Side()
    wanted: dict[UUri, Tracked | None] = {}
    for what, number, period in steps:
        match what:
            case "want":
                side.want(topic(number), period)
                wanted[topic(number)] = wish(topic(number), period)
            case "leave":
                side.leave(topic(number))
                wanted[topic(number)] = None
            case "release":
                side.calls.release(topic(number))
                wanted.pop(topic(number), None)
            case "well" | "badly":
                if open_ := [
                    each
                    for each in (UUID(0x7000, n) for n in range(side.made + 1))
                    if side.calls.is_open(each)
                ]:
                    side.answered(open_[number % len(open_)], well=what == "well")
            case "time":
                side.due(number)
            case "link":
                before = side.link.get("b", Link(up=True, times_up=0))
                side.link["b"] = Link(bool(number), before.times_up + (number and not before.up))
    side.link["b"] = Link(up=True, times_up=side.link.get("b", Link(up=True, times_up=0)).times_up)
    for _ in range(10):
        for reqid in [*side.due(LONGEST_PAUSE_MS), *(UUID(0x7000, n) for n in range(side.made + 1))]:
            if side.calls.is_open(reqid):
                side.answered(reqid)
    assert side.calls.open == 0
    assert side.calls.next_ns() is None
    assert {of: side.said[of] for of in wanted} == wanted
