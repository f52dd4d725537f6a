# SPDX-License-Identifier: Apache-2.0
"""What an actor of each kind of story does: plan actions in virtual time, send traffic, start the streamer, wait."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final

from tests.simulation.host import DRAIN_S, SimHost
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Scheduler

STOP_LIMIT_S: Final = DRAIN_S + 40


class Actor(ABC):
    """Does the steps of a story. A subclass makes the world, and plans the steps."""

    host: SimHost

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._unsent = 0
        """Messages that the applications have yet to send."""
        self._moved: Sequence[int] = ()
        self._moved_ns = 0
        self._actions: list[tuple[int, int, Callable[[], None]]] = []

    def _at(self, at_ms: int, action: Callable[[], None]) -> None:
        self._actions.append((at_ms, len(self._actions), action))

    def _do_all(self) -> None:
        """Do all planned actions, each at its time from now on."""
        begin_ns = self.scheduler.now_ns
        for at_ms, _, action in sorted(self._actions):
            self.scheduler.sleep(max(1, begin_ns + at_ms * NS_PER_MS - self.scheduler.now_ns))
            action()

    def _send(self, flow: str, count: int, every_us: int, size: int, ttl_ms: int) -> None:
        """Send a number of messages of a flow, one by one."""

        def send_next(left: int) -> None:
            self.send_one(flow, left, size, ttl_ms)
            self._unsent -= 1
            if left > 1:
                self.scheduler.call_after(every_us * 1_000, lambda: send_next(left - 1))

        self._unsent += count
        send_next(count)

    @abstractmethod
    def send_one(self, flow: str, left: int, size: int, ttl_ms: int) -> None:
        """Send one message. `left` counts down to 1."""

    def _start(self) -> None:
        """Start the streamer, unless it runs already. One that stops is waited for."""
        if self.host.is_up and not self.host.is_stopping:
            return  # the end of an earlier stop has started it
        if not self.host.is_up or self.host.wait_stopped(STOP_LIMIT_S):
            self.start_host()

    def start_host(self) -> None:
        """Start the streamer."""
        self.host.start()

    def _stop(self) -> None:
        """Stop the streamer, and let late messages arrive."""
        self.host.letters_before_stop = self.host.letter_count
        self.host.stop()
        self.host.wait_stopped(STOP_LIMIT_S)
        self.scheduler.sleep(2 * NS_PER_S)

    def _wait(self, condition: Callable[[], bool], limit_s: int) -> None:
        """Wait for a condition, and at least a second."""
        until_ns = self.scheduler.now_ns + limit_s * NS_PER_S
        self.scheduler.sleep(NS_PER_S)
        while not condition() and self.scheduler.now_ns < until_ns:
            self.scheduler.sleep(NS_PER_S)

    def _is_still(self, moved: Sequence[int], still_ns: int) -> bool:
        """Whether the counts `moved` have not changed for a time."""
        if moved != self._moved:
            self._moved, self._moved_ns = moved, self.scheduler.now_ns
        return self.scheduler.now_ns - self._moved_ns > still_ns
