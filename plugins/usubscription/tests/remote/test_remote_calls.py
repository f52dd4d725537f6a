# SPDX-License-Identifier: Apache-2.0
"""The policy of calls to other devices. Pure: time and links are passed in."""

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
    """Calls, a clock and links of other devices."""

    refresh_ms: int = 0
    now_ms: int = 0
    link: dict[str, LinkState] = field(default_factory=dict)
    seen: dict[str, LinkState] = field(default_factory=dict)
    calls_made: int = 0
    requested: dict[UUri, SubscriptionRecord | None] = field(default_factory=dict)
    """The value of the last call for each topic."""

    def __post_init__(self) -> None:
        self.calls = RemoteCalls(
            lambda authority: self.link.get(authority, LinkState(up=True, up_count=0)), self.refresh_ms
        )

    def set_desired(self, of: UUri = T, period_ns: int = 0) -> None:
        self.calls.set_desired(of, desired_subscription(of, period_ns))

    def set_undesired(self, of: UUri = T) -> None:
        self.calls.set_desired(of, None)

    def due(self, after_ms: int = 0) -> list[UUID]:
        """Send the calls that are due `after_ms` ms from now; returns their ids."""
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


def test_a_desired_subscription_is_requested_once() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    assert len(rig.due()) == 1
    rig.set_desired()
    assert rig.due(CALL_TIMEOUT_MS - 1) == []


def test_a_call_without_a_response_is_repeated_after_five_minutes_for_ever() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1] [utest->req~usubscription-remote-max-timeout~1]
    [utest->LIF-16] [utest->LIF-17]
    """
    rig = RemoteCallsRig()
    rig.set_desired()
    rig.due()
    for _ in range(100):
        assert rig.due(CALL_TIMEOUT_MS - 1) == []
        assert len(rig.due(1)) == 1
    assert rig.calls.counts["remote_timeouts"] == 100


def test_repeated_calls_for_one_topic_keep_the_deadlines_of_others() -> None:
    """Deadlines are in a heap that is rebuilt when too many entries are stale."""
    rig = RemoteCallsRig()
    rig.set_desired(topic(1))
    rig.answer_call(*rig.due(), well=False)
    rig.set_desired()
    rig.due()
    for _ in range(3000):
        rig.set_desired(topic(2))
        rig.due()
        rig.calls.clear_desired(topic(2))
    assert len(rig.calls._reconciler._deadlines) == 2
    assert len(rig.due(INITIAL_BACKOFF_MS)) == 1
    assert len(rig.due(CALL_TIMEOUT_MS - INITIAL_BACKOFF_MS)) == 1


def test_an_answer_ends_the_call() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    assert rig.calls.is_pending(call)
    rig.answer_call(call)
    assert not rig.calls.is_pending(call)
    assert rig.due(10 * CALL_TIMEOUT_MS) == []
    assert rig.calls.next_due_ns() is None


def test_an_answer_counts_once_and_from_the_called_device_only() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    assert rig.calls.on_response(call, "c") is None
    assert rig.calls.on_response(UUID(0x7000, 99), "b") is None
    assert rig.calls.is_pending(call)
    rig.answer_call(call)
    assert rig.calls.on_response(call, "b") is None


def test_a_cleared_subscription_is_not_retried() -> None:
    """[utest->req~usubscription-remote-retry-indefinitely~1]"""
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    rig.calls.clear_desired(T)
    assert rig.due(CALL_TIMEOUT_MS) == []
    assert rig.calls.on_response(call, "b") is None
    rig.calls.clear_desired(T)  # no entry


def test_the_pause_after_an_undelivered_call_doubles_up_to_a_minute() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    pauses, pause = [], 0
    [call] = rig.due()
    for _ in range(9):
        rig.answer_call(call, well=False)
        pause = 0
        while not (made := rig.due(500)):
            pause += 500
        pauses.append(pause + 500)
        [call] = made
    assert pauses == [min(INITIAL_BACKOFF_MS << n, MAX_BACKOFF_MS) for n in range(9)]
    rig.answer_call(call)
    rig.set_desired(period_ns=1)
    [call] = rig.due()
    rig.answer_call(call, well=False)
    assert len(rig.due(INITIAL_BACKOFF_MS)) == 1  # an answer ends the row of failures


@pytest.mark.parametrize(("jitter", "pause_ms"), [(0, 1000), (0.5, 750), (1, 500)])
def test_jitter_shortens_the_pause_by_up_to_half(jitter: float, pause_ms: int) -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    rig.answer_call(call, well=False, jitter=jitter)
    assert rig.due(pause_ms - 1) == []
    assert len(rig.due(1)) == 1


def test_a_change_during_a_pending_call_waits_for_its_answer() -> None:
    """[utest->LIF-20]"""
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    rig.set_desired(period_ns=5)
    assert rig.due() == []
    remote_call = rig.answer_call(call)
    [_] = rig.due()
    assert remote_call.requested == desired_subscription(T, 5)


def test_a_change_that_is_undone_during_a_pending_call_causes_no_call() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    rig.set_desired(period_ns=5)
    rig.set_desired()
    rig.answer_call(call)
    assert rig.due() == []


def test_the_opposite_call_supersedes_a_pending_one() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [first] = rig.due()
    rig.set_undesired()
    [second] = rig.due()
    assert rig.calls.on_response(first, "b") is None
    rig.answer_call(second)
    assert rig.due(CALL_TIMEOUT_MS) == []


@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("removed", [True, False])
def test_an_answer_to_a_superseded_call_changes_nothing(well: bool, removed: bool) -> None:
    """The answer arrived, but before its commit the entry was dropped, or superseded."""
    rig = RemoteCallsRig(refresh_ms=1)
    rig.set_desired()
    [call] = rig.due()
    remote_call = rig.calls.on_response(call, "b")
    assert remote_call is not None
    rig.set_desired(period_ns=5)
    if removed:
        rig.calls.clear_desired(T)
    else:
        rig.set_undesired()
    (rig.calls.on_success if well else rig.calls.on_failure)(remote_call, 0, 0)
    assert rig.calls.counts["remote_retries"] == 0
    assert len(rig.due()) == (not removed)
    assert rig.requested[T] == (desired_subscription(T) if removed else None)
    assert rig.due(CALL_TIMEOUT_MS - 1) == []


def test_devices_without_calls_are_dropped() -> None:
    sent_request = []

    def link_of(authority: str) -> LinkState:
        sent_request.append(authority)
        return LinkState(up=True, up_count=0)

    calls = RemoteCalls(link_of)
    for number in range(3):
        of = topic(authority=f"b{number}")
        calls.set_desired(of, desired_subscription(of))
        calls.set_desired(of, None)
        if number:
            calls.clear_desired(of)
    sent_request.clear()
    assert [remote_call.key.authority_name for remote_call in calls.pop_due(0)] == sent_request == ["b0"]


def test_calls_wait_while_the_link_is_down_and_start_at_link_up() -> None:
    """[utest->LIF-18]"""
    rig = RemoteCallsRig(link={"b": LinkState(up=False, up_count=0)})
    rig.set_desired()
    rig.set_desired(topic(authority="c"))
    assert len(rig.due()) == 1  # c has no known link, which counts as up
    assert rig.due(10 * CALL_TIMEOUT_MS) != []  # c again
    rig.link["b"] = LinkState(up=True, up_count=1)
    [call] = rig.due()
    assert rig.answer_call(call).key == T


def test_link_up_repeats_calls_in_every_state() -> None:
    rig = RemoteCallsRig(link={"b": LinkState(up=True, up_count=1)})
    granted, open_, paused = (topic(number) for number in range(3))
    for each in (granted, open_, paused):
        rig.set_desired(each)
    first, second, third = rig.due()
    rig.answer_call(first)
    rig.answer_call(third, well=False)
    rig.link["b"] = LinkState(up=True, up_count=2)  # a short outage between two checks
    assert len(rig.due()) == 3
    assert rig.calls.on_response(second, "b") is None
    assert rig.due() == []


def test_link_up_resets_the_backoff() -> None:
    rig = RemoteCallsRig(link={"b": LinkState(up=True, up_count=1)})
    rig.set_desired()
    [call] = rig.due()
    for _ in range(5):
        rig.answer_call(call, well=False)
        [call] = rig.due(MAX_BACKOFF_MS)
    rig.link["b"] = LinkState(up=True, up_count=2)
    [call] = rig.due()
    rig.answer_call(call, well=False)
    assert len(rig.due(INITIAL_BACKOFF_MS)) == 1


def test_a_suspicion_repeats_the_call_after_a_pause_unless_one_is_pending() -> None:
    rig = RemoteCallsRig()
    rig.calls.suspect(T, 0, 0)  # an unknown topic
    rig.set_desired()
    [call] = rig.due()
    rig.calls.suspect(T, 0, 0)
    assert rig.due(INITIAL_BACKOFF_MS) == []
    rig.answer_call(call)
    rig.calls.suspect(T, rig.now_ms * MS, 0)
    assert rig.due(INITIAL_BACKOFF_MS - 1) == []
    assert len(rig.due(1)) == 1


def test_a_suspicion_about_a_waiting_call_changes_nothing() -> None:
    rig = RemoteCallsRig(refresh_ms=1000)
    rig.set_desired()
    [call] = rig.due()
    rig.answer_call(call)
    rig.link["b"] = LinkState(up=False, up_count=0)
    assert rig.due(1000) == []
    rig.calls.suspect(T, rig.now_ms * MS, 0)
    assert rig.calls.counts["remote_retries"] == 0
    assert rig.calls.next_due_ns() is None


def test_the_first_suspicion_of_a_pending_status_causes_no_pause() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    rig.answer_call(call)
    rig.calls.suspect(T, rig.now_ms * MS, 0, while_pending=True)
    [call] = rig.due()
    rig.answer_call(call)
    rig.calls.suspect(T, rig.now_ms * MS, 0, while_pending=True)
    assert rig.due(INITIAL_BACKOFF_MS - 1) == []


def test_a_device_that_contradicts_every_answer_is_called_ever_more_rarely() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    [call] = rig.due()
    pauses = []
    for _ in range(9):
        rig.answer_call(call)
        rig.calls.suspect(T, rig.now_ms * MS, 0)
        rig.calls.suspect(T, rig.now_ms * MS, 0)  # again before the first request: nothing
        began = rig.now_ms
        while not (made := rig.due(500)):
            pass
        pauses.append(rig.now_ms - began)
        [call] = made
    assert pauses == [min(INITIAL_BACKOFF_MS << n, MAX_BACKOFF_MS) for n in range(9)]
    rig.answer_call(call)
    rig.now_ms += 2 * MAX_BACKOFF_MS + 1
    rig.calls.suspect(T, rig.now_ms * MS, 0)
    assert len(rig.due(INITIAL_BACKOFF_MS)) == 1  # that row has ended


def flap(rig: RemoteCallsRig) -> int:
    """The device leaves and returns, with an Update and an answer for each. The ms until both are known here."""
    before_ms = rig.now_ms
    for awaited in (False, True):
        rig.calls.suspect(T, rig.now_ms * MS, 0, while_pending=awaited)
        while not (made := rig.due()):
            next_ns = rig.calls.next_due_ns()
            assert next_ns is not None
            rig.now_ms = max(rig.now_ms, next_ns // MS)
        [call] = made
        remote_call = rig.calls.on_response(call, "b")
        assert remote_call is not None
        rig.calls.on_success(remote_call, rig.now_ms * MS, 0, pending=not awaited, changed=True)
    return rig.now_ms - before_ms


def test_a_flapping_device_is_called_ever_more_rarely_until_it_is_stable() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    rig.answer_call(*rig.due())
    quick = [flap(rig) for _ in range(SUSPICION_BURST // 2)]
    assert quick == [INITIAL_BACKOFF_MS] * len(quick)

    made, since_ms = rig.calls_made, rig.now_ms
    while rig.now_ms - since_ms < 600_000:
        flap(rig)
    assert rig.calls_made - made <= 600_000 // SUSPICION_INTERVAL_MS + 2

    rig.now_ms += SUSPICION_BURST * SUSPICION_INTERVAL_MS
    assert [flap(rig) for _ in quick] == quick


def test_an_ecu_that_reboots_once_a_minute_is_called_at_once() -> None:
    rig = RemoteCallsRig()
    rig.set_desired()
    rig.answer_call(*rig.due())
    for _ in range(200):
        rig.now_ms += 60_000
        assert flap(rig) == INITIAL_BACKOFF_MS


def test_a_call_is_in_flight_until_its_answer() -> None:
    rig = RemoteCallsRig()
    assert not rig.calls.in_flight(T)
    rig.set_desired()
    assert not rig.calls.in_flight(T)
    [call] = rig.due()
    assert rig.calls.in_flight(T)
    rig.answer_call(call)
    assert not rig.calls.in_flight(T)


def test_a_granted_subscription_is_refreshed() -> None:
    rig = RemoteCallsRig(refresh_ms=10_000)
    rig.set_desired()
    [call] = rig.due()
    rig.answer_call(call, jitter=1)
    assert rig.due(4_999) == []
    assert len(rig.due(1)) == 1
    assert rig.calls.counts["remote_timeouts"] == 0


def test_the_calls_in_flight_to_one_device_are_bounded() -> None:
    rig = RemoteCallsRig()
    for number in range(MAX_IN_FLIGHT + 10):
        rig.set_desired(topic(number))
        rig.set_desired(topic(number, "c"))
    calls = rig.due()
    assert len(calls) == 2 * MAX_IN_FLIGHT
    assert rig.due() == []
    rig.answer_call(calls[0])
    assert len(rig.due()) == 1
    assert rig.calls.in_flight_count == 2 * MAX_IN_FLIGHT


def test_many_topics_are_called_in_linear_time() -> None:
    """Finding the first key of a dict is slow after its first keys were deleted: 20 000 would take a minute."""
    rig = RemoteCallsRig()
    for number in range(20_000):
        rig.set_desired(UUri("b", number, 1, 0x8000))
    for _ in range(20_000 // MAX_IN_FLIGHT + 1):
        for call in rig.due():
            rig.answer_call(call)
    assert rig.calls_made == 20_000


def test_unreachable_devices_cost_nothing_while_no_link_changes() -> None:
    """Subscribers choose the names: a check of each in every batch would delay all Requests."""
    rig = RemoteCallsRig(link={f"b{number}": LinkState(up=False, up_count=0) for number in range(1000)})
    sent_request: list[str] = []
    link_of = rig.calls._reconciler._link_of

    def noted(authority: str) -> LinkState:
        sent_request.append(authority)
        return link_of(authority)

    rig.calls._reconciler._link_of = noted
    for authority in rig.link:
        rig.set_desired(topic(authority=authority))
    assert rig.due() == []
    sent_request.clear()
    assert rig.due() == []
    assert sent_request == []
    rig.link["b7"] = LinkState(up=True, up_count=1)
    assert len(rig.due()) == 1


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
def test_every_device_gets_the_last_desired_subscription(steps: list[tuple[str, int, int]]) -> None:
    """After any events, once the link is up and calls are answered, each device has the last desired value."""
    rig = RemoteCallsRig()
    wanted: dict[UUri, SubscriptionRecord | None] = {}
    for what, number, period in steps:
        match what:
            case "want":
                rig.set_desired(topic(number), period)
                wanted[topic(number)] = desired_subscription(topic(number), period)
            case "leave":
                rig.set_undesired(topic(number))
                wanted[topic(number)] = None
            case "release":
                rig.calls.clear_desired(topic(number))
                wanted.pop(topic(number), None)
            case "well" | "badly":
                if open_ := [
                    each
                    for each in (UUID(0x7000, n) for n in range(rig.calls_made + 1))
                    if rig.calls.is_pending(each)
                ]:
                    rig.answer_call(open_[number % len(open_)], well=what == "well")
            case "time":
                rig.due(number)
            case "link":
                before = rig.link.get("b", LinkState(up=True, up_count=0))
                rig.link["b"] = LinkState(bool(number), before.up_count + (number and not before.up))
    rig.link["b"] = LinkState(up=True, up_count=rig.link.get("b", LinkState(up=True, up_count=0)).up_count)
    for _ in range(10):
        for reqid in [*rig.due(MAX_BACKOFF_MS), *(UUID(0x7000, n) for n in range(rig.calls_made + 1))]:
            if rig.calls.is_pending(reqid):
                rig.answer_call(reqid)
    assert rig.calls.in_flight_count == 0
    assert rig.calls.next_due_ns() is None
    assert {of: rig.requested[of] for of in wanted} == wanted
