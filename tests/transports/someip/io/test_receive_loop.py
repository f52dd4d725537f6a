# SPDX-License-Identifier: Apache-2.0
"""The receiving thread: it runs due work at its deadline, and does not check deadlines for events alone."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from msgspec.structs import replace

from tests.transports.someip.endpoint_rig import EVENT, OPEN_DOOR, WITHIN_S, Bench
from tests.waiting import wait_until
from ustreamer.transports.someip.io.poller import Poller
from ustreamer.transports.someip.io.receive_loop import LoopCallbacks, ReceiveLoop

S = 1_000_000_000


class LoopRig:
    """A receiving thread that reads one eventfd, with counters."""

    def __init__(self) -> None:
        self.ticks = self.read = self.ended = 0
        self.quiet = True
        self.storm = False  # there is always more input
        self.deadline_ns: int | None = None
        self.entered, self.go = threading.Event(), threading.Event()
        self.go.set()
        self.sleeping_ns = 0
        self.meanwhile: Callable[[], None] = lambda: (
            None
        )  # called before it sleeps, after it read the deadlines
        callbacks = LoopCallbacks(lambda: None, self._on_tick, self._next_deadline_ns, self._on_stop)
        self.receive_loop = ReceiveLoop("chassis", callbacks, time.monotonic_ns)
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.poller: Poller = self.receive_loop.open()
        self.poller.add(self.fd, self._read)

    def _on_tick(self) -> None:
        self.ticks += 1
        self.sleeping_ns = self.receive_loop.sleeping_until_ns

    def _next_deadline_ns(self) -> int | None:
        deadline_ns = self.deadline_ns
        self.meanwhile()
        return deadline_ns

    def _on_stop(self) -> None:
        self.ended += 1

    def _read(self, events: int) -> bool:
        if not self.storm:
            os.eventfd_read(self.fd)
        self.entered.set()
        assert self.go.wait(WITHIN_S)
        self.read += 1
        return self.quiet

    def trigger_read(self) -> None:
        read = self.read
        os.eventfd_write(self.fd, 1)
        wait_until(lambda: self.read > read)

    def wait_until_asleep(self) -> None:
        wait_until(lambda: self.receive_loop.sleeping_until_ns > 0)

    def close(self) -> None:
        self.go.set()
        self.receive_loop.stop()
        self.receive_loop.close()
        os.close(self.fd)


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopRig]:
    monkeypatch.setattr("ustreamer.transports.someip.io.receive_loop.MAX_SLEEP_NS", 3600 * S)
    made = LoopRig()
    made.receive_loop.start()
    made.wait_until_asleep()
    yield made
    made.close()


@pytest.mark.parametrize("part", ["handler", "tick", "deadline"])
def test_what_fails_ends_neither_the_thread_nor_other_handlers(
    thread: LoopRig, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = os.eventfd(0, os.EFD_NONBLOCK)

    def fail(events: int = 0) -> bool:
        raise OSError("broken")

    with caplog.at_level(logging.ERROR, "ustreamer.someip"):
        if part == "handler":
            thread.poller.add(broken, fail)
            os.eventfd_write(broken, 1)
        else:
            callbacks = thread.receive_loop._callbacks
            name = "on_tick" if part == "tick" else "next_deadline_ns"
            thread.receive_loop._callbacks = replace(callbacks, **{name: fail})
            thread.receive_loop.wake()
        wait_until(lambda: thread.receive_loop.errors > 2)
        if part == "handler":
            thread.trigger_read()
        thread.receive_loop.stop()
    os.close(broken)
    assert thread.ended == 1
    assert [each.message for each in caplog.records] == ["someip.receive_failed"]


def test_events_alone_do_not_run_due_work(thread: LoopRig) -> None:
    ticks = thread.ticks
    for _ in range(50):
        thread.trigger_read()
    assert thread.ticks == ticks
    thread.quiet = False
    thread.trigger_read()
    wait_until(lambda: thread.ticks == ticks + 1)


def test_a_deadline_is_met_whatever_input_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ustreamer.transports.someip.io.receive_loop.MAX_SLEEP_NS", 3600 * S)
    thread = LoopRig()
    due_ns = thread.deadline_ns = time.monotonic_ns() + S // 2
    thread.storm = True
    os.eventfd_write(thread.fd, 1)
    thread.receive_loop.start()
    wait_until(lambda: thread.ticks >= 2)
    assert thread.read > 2
    assert time.monotonic_ns() >= due_ns
    thread.deadline_ns = None
    thread.close()


def test_a_wake_up_runs_due_work_also_during_events(thread: LoopRig) -> None:
    ticks = thread.ticks
    thread.go.clear()
    os.eventfd_write(thread.fd, 1)
    assert thread.entered.wait(WITHIN_S)
    thread.receive_loop.wake()
    thread.go.set()
    wait_until(lambda: thread.ticks > ticks)


def test_wake_by_wakes_only_for_an_earlier_deadline(thread: LoopRig) -> None:
    """Also while it reads, because it does not read the deadlines again."""
    thread.go.clear()
    os.eventfd_write(thread.fd, 1)
    assert thread.entered.wait(WITHIN_S)
    ticks, until_ns = thread.ticks, thread.receive_loop.sleeping_until_ns
    assert until_ns > time.monotonic_ns()
    thread.receive_loop.wake_by(until_ns)
    thread.go.set()
    thread.trigger_read()
    assert thread.ticks == ticks
    thread.receive_loop.wake_by(until_ns - 1)
    wait_until(lambda: thread.ticks > ticks)


def test_a_deadline_set_just_before_the_sleep_is_not_missed(thread: LoopRig) -> None:
    def meanwhile() -> None:
        thread.meanwhile = lambda: None
        thread.deadline_ns = time.monotonic_ns()
        thread.receive_loop.wake_by(thread.deadline_ns)

    thread.meanwhile = meanwhile
    ticks = thread.ticks
    thread.receive_loop.wake()
    wait_until(lambda: thread.ticks > ticks + 1)
    thread.deadline_ns = None


def test_a_working_thread_needs_no_wake_up(thread: LoopRig) -> None:
    ticks = thread.ticks
    thread.sleeping_ns = -1
    thread.receive_loop.wake()
    wait_until(lambda: thread.ticks > ticks)
    assert thread.sleeping_ns == 0


def test_a_running_listener_call_is_waited_for(thread: LoopRig) -> None:
    thread.go.clear()
    os.eventfd_write(thread.fd, 1)
    assert thread.entered.wait(WITHIN_S)
    waiting = threading.Thread(target=thread.receive_loop.wait_for_listener_calls)
    waiting.start()
    waiting.join(0.2)
    assert waiting.is_alive()
    thread.go.set()
    waiting.join(WITHIN_S)
    assert not waiting.is_alive()
    assert thread.read == 1


def test_after_the_end_waits_and_wake_ups_return_at_once(thread: LoopRig) -> None:
    thread.receive_loop.stop()
    thread.receive_loop.stop()
    assert thread.ended == 1
    thread.receive_loop.wait_for_listener_calls()
    thread.receive_loop.close()
    thread.receive_loop.wake()


def test_before_open_waits_and_wake_ups_have_no_effect() -> None:
    done: list[str] = []
    work = LoopCallbacks(lambda: None, lambda: done.append("tick"), lambda: None, lambda: done.append("last"))
    receiving = ReceiveLoop("chassis", work, time.monotonic_ns)
    receiving.wake()
    receiving.wake_by(0)
    receiving.wait_for_listener_calls()
    receiving.stop()
    receiving.close()
    assert (done, receiving.sleeping_until_ns) == ([], 0)


# ------------------------------------------------------------------------------------------------------- the endpoint


@pytest.fixture
def bench() -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack)


def test_a_call_ends_at_its_ttl_in_a_flood_of_events(bench: Bench) -> None:
    bench.endpoint.open()
    begun = time.monotonic()
    sent_request = bench.request(ttl=300)
    bench.endpoint.send(sent_request)
    while bench.endpoint.statistics()["calls_expired"] == 0:
        bench.ecu.send(bench.endpoint, EVENT)
        assert time.monotonic() < begun + WITHIN_S
    assert time.monotonic() - begun >= 0.29


def test_requests_of_clients_expire_in_time(bench: Bench) -> None:
    """Requests have deadlines; concurrent events have none."""
    bench.endpoint.open()
    ticks: list[int] = []
    loop = bench.endpoint._receive_loop
    work = loop._callbacks

    def tick() -> None:
        ticks.append(1)
        work.on_tick()

    loop._callbacks = replace(work, on_tick=tick)
    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    bench.listener.next()
    wait_until(lambda: len(ticks) > 0)
    wait_until(bench.is_asleep)
    before = len(ticks)
    for _ in range(20):
        bench.ecu.send(bench.endpoint, EVENT)
        bench.listener.next()
    assert len(ticks) <= before + 1


def test_the_thread_makes_turns_without_input_and_none_while_a_handler_hangs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ustreamer.transports.someip.io.receive_loop.MAX_SLEEP_NS", S // 100)
    thread = LoopRig()
    thread.receive_loop.start()
    wait_until(lambda: thread.receive_loop.turns > 3)
    thread.go.clear()
    os.eventfd_write(thread.fd, 1)
    assert thread.entered.wait(WITHIN_S)
    turns, until = thread.receive_loop.turns, time.monotonic() + 0.1
    while time.monotonic() < until:
        assert thread.receive_loop.turns == turns
        time.sleep(0.01)
    thread.go.set()
    wait_until(lambda: thread.receive_loop.turns > turns)
    thread.close()
    assert not thread.receive_loop.is_running
