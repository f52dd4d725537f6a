# SPDX-License-Identifier: Apache-2.0
"""The receiving thread of an endpoint: wait, read, run due work, stop.

In: events of the poller, deadlines, and wake-ups from any thread. Out: calls of handlers and of `LoopCallbacks`.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS
from ustreamer.transports.someip.io.poller import Poller

log = logging.getLogger("ustreamer.someip")

JOIN_TIMEOUT_S: Final = 2.0
_ERROR_PAUSE_S: Final = 0.01
_NS_PER_S: Final = 1_000_000_000
_NEVER_NS: Final = 1 << 63
MAX_SLEEP_NS: Final = 1_000_000_000
"""The loop reads its deadlines again after this time, so input that sets a later deadline need not end the wait."""


class LoopCallbacks(msgspec.Struct, frozen=True):
    """The work of the thread besides reading."""

    on_start: Callable[[], None]
    """Runs once, at the begin."""
    on_tick: Callable[[], None]
    """Runs all due work."""
    next_deadline_ns: Callable[[], int | None]
    """The time of the next due work; None: never."""
    on_stop: Callable[[], None]
    """Runs once, at the end."""


class ReceiveLoop:
    """`open` and `close` once each; `wake`, `wake_by` and `wait_for_listener_calls` from any thread."""

    def __init__(self, name: str, callbacks: LoopCallbacks, monotonic_ns: Callable[[], int]) -> None:
        """`name` is the name of the endpoint."""
        self._name = name
        self._callbacks = callbacks
        self._monotonic_ns = monotonic_ns
        self._poller: Poller | None = None
        self._thread: threading.Thread | None = None
        # No wake-up between closing the file descriptor and clearing `_wake_fd`.
        self._wake_lock = threading.Lock()
        self._wake_fd = -1
        self._stopping = False
        self._barriers: deque[threading.Event] = deque()
        self.sleeping_until_ns = 0
        """The time at which the thread wakes without a wake-up; 0 while it works."""
        self.errors = 0
        """How often a handler or due work raised: defects."""
        self._reported: set[type[BaseException]] = set()
        self._error_pause = threading.Event()  # never set
        self.turns = 0
        """Rounds of the thread: at least one per `MAX_SLEEP_NS`, unless a call in it hangs."""

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> Poller:
        """The poller of the thread: add file descriptors, then call `start`."""
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller = Poller(self._on_error)
        self._poller.add(self._wake_fd, self._on_wake)
        return self._poller

    def start(self) -> None:
        assert self._poller is not None  # `open` comes first
        self._thread = threading.Thread(
            target=self._run, args=(self._poller,), name=f"someip {self._name}", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for its end. May be repeated."""
        self._stopping = True
        thread = self._thread
        if thread is not None:
            self.wake()
            if thread is not threading.current_thread():
                thread.join(JOIN_TIMEOUT_S)

    def close(self) -> None:
        """Close all, after `stop`."""
        with self._wake_lock:
            if self._poller is not None:
                self._poller.close()
                os.close(self._wake_fd)
            self._wake_fd, self._thread, self._poller = -1, None, None

    # --- from other threads -------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        """True from `start` until `stop`."""
        return self._thread is not None and not self._stopping

    def wake(self) -> None:
        """Wake the thread, so that it runs due work."""
        with self._wake_lock:
            if self._wake_fd >= 0:
                os.eventfd_write(self._wake_fd, 1)

    def wake_by(self, deadline_ns: int) -> None:
        """Wake the thread if it would sleep longer."""
        if deadline_ns < self.sleeping_until_ns:
            self.wake()

    def wait_for_listener_calls(self) -> None:
        """Wait for the running listener calls; returns at once inside such a call."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        passed = threading.Event()
        self._barriers.append(passed)
        self.wake()
        while thread.is_alive() and not passed.wait(0.05):
            pass  # the thread may end between the two conditions

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, poller: Poller) -> None:
        try:
            self._callbacks.on_start()
        except FOREIGN_ERRORS as error:
            self._on_error(error)
        while not self._stopping:
            self.turns += 1
            try:
                self._callbacks.on_tick()
                self._wait(poller)
            except FOREIGN_ERRORS as error:
                self._on_error(error)
            while self._barriers:
                self._barriers.popleft().set()
        self._callbacks.on_stop()

    def _on_error(self, error: BaseException) -> None:
        """A handler or due work raised: the thread goes on. Each type is logged once."""
        self.errors += 1
        if type(error) not in self._reported:
            self._reported.add(type(error))
            log.error("someip.receive_failed", exc_info=error, extra={"endpoint": self._name})
        # An event that was not read comes again at once: without a pause it would take all of the CPU.
        self._error_pause.wait(_ERROR_PAUSE_S)

    def _wait(self, poller: Poller) -> None:
        """Wait until work is due: a deadline, or an event that may have set one."""
        # In this order: a call opened meanwhile is either seen here, or its caller sees that a wake-up is needed.
        self.sleeping_until_ns = _NEVER_NS
        now_ns = self._monotonic_ns()
        # A limit, so that a call with a later deadline needs no wake-up: 20 us of a single call.
        until_ns = now_ns + MAX_SLEEP_NS
        deadline_ns = self._callbacks.next_deadline_ns()
        if deadline_ns is not None:
            until_ns = min(until_ns, deadline_ns)
        self.sleeping_until_ns = until_ns
        # Most input sets no earlier deadline, so this inner loop handles it: 45 us of CPU less per single event. The
        # poller rounds its timeout up to whole ms.
        while poller.wait(max(0, until_ns - now_ns) / _NS_PER_S) and now_ns < until_ns:
            now_ns = self._monotonic_ns()
        self.sleeping_until_ns = 0

    def _on_wake(self, events: int) -> None:
        os.eventfd_read(self._wake_fd)
