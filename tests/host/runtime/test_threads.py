# SPDX-License-Identifier: Apache-2.0
"""The timer thread: order, times and end of its calls."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest

from ustreamer.core.base.clock import Clock
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.host.runtime.threads import TimerThread

DEADLINE_S = 30.0
NS_PER_MS = 1_000_000
HOUR_NS = 3_600_000 * NS_PER_MS
YEAR_NS = 365 * 24 * HOUR_NS


@pytest.fixture
def timers() -> Iterator[TimerThread]:
    """A running timer thread; it must be closable at the end."""
    timers = TimerThread(SYSTEM_CLOCK)
    timers.start()
    yield timers
    timers.close(DEADLINE_S)
    assert not timers._thread.is_alive()


def now() -> int:
    return SYSTEM_CLOCK.monotonic_ns()


def wait_until_called(timers: TimerThread, when_ns: int = 0) -> None:
    """Schedule a call and wait for it; all earlier calls have then run."""
    called = threading.Event()
    timers.schedule(when_ns, called.set)
    end = time.monotonic() + DEADLINE_S
    while not called.wait(0.01):
        assert timers._thread.is_alive(), "the timer thread has ended"
        assert time.monotonic() < end, f"not called within {DEADLINE_S} s"


def test_calls_are_made_in_the_order_of_their_times_and_never_early(timers: TimerThread) -> None:
    calls: list[tuple[int, int]] = []
    # Later than this thread may be kept from scheduling all of them.
    due = [now() + ms * NS_PER_MS for ms in (306, 302, 308, 304)]

    def note(when_ns: int) -> Callable[[], None]:
        return lambda: calls.append((when_ns, now()))

    for when_ns in due:
        timers.schedule(when_ns, note(when_ns))
    wait_until_called(timers, max(due) + 1)
    assert [when_ns for when_ns, _ in calls] == sorted(due)
    assert all(called_ns >= when_ns for when_ns, called_ns in calls)


def test_calls_with_equal_times_run_in_scheduling_order(timers: TimerThread) -> None:
    calls: list[int] = []
    when_ns = now() + 2 * NS_PER_MS
    for n in range(20):
        timers.schedule(when_ns, lambda n=n: calls.append(n))  # type: ignore[misc]
    wait_until_called(timers, when_ns)
    assert calls == list(range(20))


def test_a_call_that_is_due_earlier_does_not_wait_for_the_one_that_was_there_before(
    timers: TimerThread,
) -> None:
    late: list[str] = []
    timers.schedule(now() + HOUR_NS, lambda: late.append("called"))
    wait_until_called(timers, now() + NS_PER_MS)
    wait_until_called(timers, 0)  # long past: at once
    assert late == []


def test_a_call_can_schedule_the_next_one(timers: TimerThread) -> None:
    beats: list[int] = []
    done = threading.Event()

    def beat() -> None:
        beats.append(now())
        if len(beats) == 5:
            done.set()
        else:
            timers.schedule(beats[-1] + NS_PER_MS, beat)

    timers.schedule(0, beat)
    assert done.wait(DEADLINE_S)
    assert all(b - a >= NS_PER_MS for a, b in pairwise(beats))


def test_all_calls_are_made_on_one_thread_that_is_called_timers(timers: TimerThread) -> None:
    threads: list[threading.Thread] = []
    asking = [
        threading.Thread(target=timers.schedule, args=(0, lambda: threads.append(threading.current_thread())))
        for _ in range(4)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(DEADLINE_S)
    wait_until_called(timers)
    assert [thread.name for thread in threads] == ["timers"] * 4
    assert len(set(threads)) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("on purpose"), SystemExit("on purpose")])
def test_a_call_that_raises_is_logged_with_name_and_traceback_and_others_run(
    timers: TimerThread, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def broken() -> None:
        raise error

    with caplog.at_level("ERROR", "ustreamer.timers"):
        timers.schedule(0, broken)
        wait_until_called(timers)
    [record] = [each for each in caplog.records if each.name == "ustreamer.timers"]
    assert (record.getMessage(), record.levelno) == ("timers.callback_failed", logging.ERROR)
    assert vars(record)["action"].endswith("broken")
    assert record.exc_info is not None
    assert str(record.exc_info[1]) == "on purpose"


@pytest.mark.parametrize("years", [1, 30, 8_000])
def test_a_call_in_the_far_future_blocks_no_other_call(timers: TimerThread, years: int) -> None:
    # 9999-12-31, the "never" of many clients, is 8000 years from now; a lock can wait for 292.
    timers.schedule(now() + years * YEAR_NS, lambda: None)
    for _ in range(3):
        wait_until_called(timers, now() + NS_PER_MS)


def test_closing_ends_the_wait_for_a_call_that_is_then_never_made() -> None:
    calls: list[str] = []
    timers = TimerThread(SYSTEM_CLOCK)
    timers.start()
    timers.schedule(now() + HOUR_NS, lambda: calls.append("late"))
    timers.close(DEADLINE_S)
    assert not timers._thread.is_alive()
    timers.schedule(0, lambda: calls.append("after the end"))
    assert calls == []


def test_closing_waits_for_the_call_that_is_running_but_not_for_ever() -> None:
    timers = TimerThread(SYSTEM_CLOCK)
    running, end = threading.Event(), threading.Event()

    def action() -> None:
        running.set()
        assert end.wait(DEADLINE_S)

    timers.schedule(0, action)
    timers.start()
    assert running.wait(DEADLINE_S)
    timers.close(0.02)
    assert timers._thread.is_alive()
    end.set()
    timers.close(DEADLINE_S)
    assert not timers._thread.is_alive()


def test_closing_makes_no_further_call_even_if_several_were_due_together() -> None:
    timers = TimerThread(SYSTEM_CLOCK)
    running, end = threading.Event(), threading.Event()
    calls: list[str] = []

    def first() -> None:
        running.set()
        assert end.wait(DEADLINE_S)

    timers.schedule(0, first)
    timers.schedule(0, lambda: calls.append("second"))
    timers.start()
    assert running.wait(DEADLINE_S)
    timers.close(0)
    end.set()
    timers.close(DEADLINE_S)
    assert not timers._thread.is_alive()
    assert calls == []


def test_unstarted_timers_can_be_closed_and_early_calls_are_run() -> None:
    TimerThread(SYSTEM_CLOCK).close(0)
    timers = TimerThread(SYSTEM_CLOCK)
    called = threading.Event()
    timers.schedule(0, called.set)
    timers.start()
    assert called.wait(DEADLINE_S)
    timers.close(DEADLINE_S)
    timers.close(DEADLINE_S)


def test_the_thread_does_not_keep_the_process_alive() -> None:
    assert TimerThread(SYSTEM_CLOCK)._thread.daemon


def test_an_idle_timer_thread_does_not_spin() -> None:
    readings: list[int] = []

    def read() -> int:
        readings.append(now())
        return readings[-1]

    timers = TimerThread(Clock(read, SYSTEM_CLOCK.wall_ms))
    timers.start()
    timers.schedule(now() + HOUR_NS, lambda: None)
    wait_until_called(timers, now() + 40 * NS_PER_MS)
    timers.close(DEADLINE_S)
    assert len(readings) < 20
