# SPDX-License-Identifier: Apache-2.0
"""The time of a datagram is that of its arrival at the host, whenever it is read and whatever the wall clock does.

Datagrams are real, and so are their stamps. Only the wall clock of the reader is stepped.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.transports.someip.loopback_rig import LoopbackReceiver
from tests.waiting import DEADLINE_S as WITHIN_S
from ustreamer.core.base.clock import Clock
from ustreamer.transports.someip.io.receive_times import (
    RESOLUTION_MS,
    WINDOW_MS,
    ReceiveTimes,
    receive_times_of,
)
from ustreamer.transports.someip.io.recvmmsg import DatagramBatch

MS = 1_000_000


class SteppedClock:
    """The real clock, with a wall clock that can be stepped."""

    def __init__(self) -> None:
        self.stepped_ms = 0
        self.clock = Clock(time.monotonic_ns, self.wall_ms)

    def wall_ms(self) -> int:
        return time.time_ns() // MS + self.stepped_ms


def wait(ms: int) -> None:
    """The streamer stops for this time. The kernel reads the real clock, so the time must pass."""
    end_ns = time.monotonic_ns() + ms * MS
    while (left_ns := end_ns - time.monotonic_ns()) > 0:
        time.sleep(left_ns / 1e9)


class SentAt(NamedTuple):
    """The wall clock before and after a sending: on loopback the datagram arrived in between."""

    before_ms: int
    after_ms: int

    def is_time_of(self, received_ms: int) -> bool:
        return self.before_ms <= received_ms <= self.after_ms + RESOLUTION_MS + 1


class TimedSocket:
    def __init__(self, stack: ExitStack) -> None:
        self.loop = LoopbackReceiver(stack)
        self.now = SteppedClock()
        times = receive_times_of(self.loop.receiver, self.now.clock)
        assert times is not None
        self.times: ReceiveTimes = times
        self.loop.send([b"first"])  # from the first one on the kernel stamps all
        self.read()

    def send(self, *datagrams: bytes) -> "SentAt":
        before_ms = self.now.wall_ms()
        self.loop.send(datagrams)
        return SentAt(before_ms, self.now.wall_ms())

    def read(self) -> int:
        """The time of one datagram."""
        began_ns = time.monotonic_ns()
        self.loop.receiver.recv(2_048)
        return self.times.of_datagram(began_ns)

    def read_batch(self) -> list[int]:
        """The time of each datagram that waits."""
        number = self.times.receive(self.loop.batch, time.monotonic_ns())
        return list(self.loop.batch.received_each_ms) or [self.loop.batch.received_ms] * number


@pytest.fixture
def timed() -> Iterator[TimedSocket]:
    with ExitStack() as stack:
        yield TimedSocket(stack)


@pytest.mark.parametrize("waited_ms", [0, 1, 30, 60])
def test_a_datagram_that_waited_has_the_time_of_its_arrival(timed: TimedSocket, waited_ms: int) -> None:
    wait(20)
    sent = timed.send(b"event")
    wait(waited_ms)
    assert sent.is_time_of(timed.read())


def test_each_datagram_of_a_batch_has_its_own_time(timed: TimedSocket) -> None:
    sent = []
    for number in range(6):
        sent.append(timed.send(b"event %d" % number))
        wait(20)
    wait(20)
    times = [timed.read(), *timed.read_batch()]
    assert [each.is_time_of(received_ms) for each, received_ms in zip(sent, times, strict=True)] == [True] * 6
    assert timed.loop.batch.datagrams() == [b"event %d" % number for number in range(1, 6)]


def test_a_batch_that_is_read_at_once_has_the_time_of_now(timed: TimedSocket) -> None:
    for _ in range(3):
        sent = timed.send(*[b"event"] * 5)
        assert [sent.is_time_of(each) for each in timed.read_batch()] == [True] * 5


def test_without_datagrams_there_are_no_times(timed: TimedSocket) -> None:
    wait(20)
    assert timed.read_batch() == []
    assert timed.read_batch() == []


def test_in_a_flood_all_have_the_time_of_their_reading(
    timed: TimedSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    while time.monotonic() - began_s < 2 * WINDOW_MS / 1000 or not timed.times._is_flood:
        timed.send(*[b"event"] * 100)
        timed.read_batch()
        assert time.monotonic() - began_s < WITHIN_S
    monkeypatch.delattr(DatagramBatch, "receive_stamped")
    timed.send(b"event")
    wait(RESOLUTION_MS + 2)
    assert timed.now.wall_ms() - timed.read_batch()[0] <= RESOLUTION_MS
    monkeypatch.undo()
    wait(WINDOW_MS)  # no longer a flood, one window later
    timed.send(b"event")
    timed.read_batch()
    wait(WINDOW_MS)
    sent = timed.send(b"event")
    wait(RESOLUTION_MS + 20)
    assert [sent.is_time_of(each) for each in timed.read_batch()] == [True]


@pytest.mark.parametrize("stepped_ms", [-3_600_000, -70, -10, 10, 70, 3_600_000])
@pytest.mark.parametrize("together", [False, True])
def test_a_step_of_the_wall_clock_moves_a_time_by_no_more_than_the_wait(
    timed: TimedSocket, stepped_ms: int, together: bool
) -> None:
    wait(10)
    before_ms, _ = timed.send(b"before")
    timed.read()
    timed.send(b"during", b"during")
    wait(20)
    timed.now.stepped_ms = stepped_ms
    times = timed.read_batch() if together else [timed.read(), timed.read()]
    assert len(times) == 2
    assert times == sorted(times)
    assert all(before_ms + stepped_ms - RESOLUTION_MS - 1 <= each <= timed.now.wall_ms() for each in times)


def test_times_do_not_fall(timed: TimedSocket) -> None:
    """An id from before that of the previous event would mean a wrong clock to a limit."""
    found = []
    for number in range(200):
        timed.send(b"one", b"two", b"three")
        wait((0, 0, 1, 2, 4)[number % 5])
        found.append(timed.read())
        found += timed.read_batch() if number % 2 else [timed.read(), timed.read()]
    assert len(found) == 600
    assert all(earlier <= later for earlier, later in pairwise(found))


def test_a_file_without_stamps_has_no_times() -> None:
    one, other = socket.socketpair()
    with one, other, Path(os.devnull).open("rb") as no_socket:
        os.dup2(no_socket.fileno(), one.fileno())
        assert receive_times_of(one, SteppedClock().clock) is None
