# SPDX-License-Identifier: Apache-2.0
"""The receiving thread of an endpoint: what it waits for, who wakes it, and that it can be waited for."""

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ustreamer.transports.someip.io.poller import Poller

JOIN_TIMEOUT_S: Final = 2.0
_NS_PER_S: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 63
_MAX_SLEEP_NS: Final = 1_000_000_000


class LoopCallbacks(NamedTuple):
    """What the thread does besides reading."""

    on_tick: Callable[[], None]
    """Does what is due."""
    next_deadline_ns: Callable[[], int | None]
    """When `turn` has something to do without being woken; None: never."""
    on_stop: Callable[[], None]
    """Is done at the end."""


class ReceiveLoop:
    """`open` and `close` once each; `wake`, `wake_by` and `wait_until_calls_are_over` from any thread."""

    def __init__(self, name: str, callbacks: LoopCallbacks, monotonic_ns: Callable[[], int]) -> None:
        """`name` is that of the endpoint."""
        self._name = name
        self._callbacks = callbacks
        self._monotonic_ns = monotonic_ns
        self._poller: Poller | None = None
        self._thread: threading.Thread | None = None
        self._wake_lock = (
            threading.Lock()
        )  # no wake between the closing of its file descriptor and the forgetting
        self._wake_fd = -1
        self._stopping = False
        self._barriers: deque[threading.Event] = deque()
        self.sleeping_until_ns = 0
        """What the thread will wake at by itself; 0 while it has something to look after."""

    # --- life -----------------------------------------------------------------------------------------------------------

    def open(self) -> Poller:
        """What the thread will wait for: add to it, and `start`."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = Poller()
        self._poller.add(self._wake_fd, self._on_wake)
        return self._poller

    def start(self) -> None:
        assert self._poller is not None  # `open` comes first
        self._thread = threading.Thread(
            target=self._run, args=(self._poller,), name=f"someip {self._name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Have the thread end, and wait until it has. May be repeated."""
        self._stopping = True
        thread = self._thread
        if thread is not None:
            self.wake()
            if thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)

    def close(self) -> None:
        """After `stop`."""
        with self._wake_lock:
            if self._poller is not None:
                self._poller.close()
                os.close(self._wake_fd)
            self._wake_fd, self._thread, self._poller = -1, None, None

    # --- from other threads ---------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Have the thread take a turn."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def wake_by(self, deadline_ns: int) -> None:
        """Wake the thread if it would sleep for longer."""
        if deadline_ns < self.sleeping_until_ns:
            self.wake()

    def wait_for_listener_calls(self) -> None:
        """Wait for the listener calls that had begun; at once on the receiving thread, inside such a call."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        passed = threading.Event()
        self._barriers.append(passed)
        self.wake()
        while thread.is_alive() and not passed.wait(0.05):
            pass  # the thread may have ended between the two questions

    # --- the thread -----------------------------------------------------------------------------------------------------

    def _run(self, poller: Poller) -> None:
        while not self._stopping:
            self._callbacks.on_tick()
            self._wait(poller)
            while self._barriers:
                self._barriers.popleft().set()
        self._callbacks.on_stop()

    def _wait(self, poller: Poller) -> None:
        """Wait until something has to be looked after: a deadline has come, or something that may have set one."""
        # In this order, so that a call opened meanwhile either is seen here or sees that it has to wake us.
        self.sleeping_until_ns = _NEVER_NS
        now_ns = self._monotonic_ns()
        # Not for longer than this, so that a call need not wake us for the sake of its deadline: 20 us of a call by itself.
        until_ns = now_ns + _MAX_SLEEP_NS
        deadline_ns = self._callbacks.next_deadline_ns()
        if deadline_ns is not None:
            until_ns = min(until_ns, deadline_ns)
        self.sleeping_until_ns = until_ns
        # Events set none, so they come and go in here: 45 us of CPU less of each that comes alone. The poller waits for whole
        # ms, rounded up.
        while poller.wait(max(0, until_ns - now_ns) / _NS_PER_S) and now_ns < until_ns:
            now_ns = self._monotonic_ns()
        self.sleeping_until_ns = 0

    def _on_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)
