# SPDX-License-Identifier: Apache-2.0
"""The timer thread: makes the calls of `Timers` when they are due."""

import logging
from collections.abc import Callable
from threading import Condition, Thread

from ustreamer.core.base.clock import Clock
from ustreamer.core.base.log_limit import limited
from ustreamer.core.base.timers import Timers
from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS

log = logging.getLogger("ustreamer.timers")

_NS_PER_S = 1_000_000_000
_MAX_WAIT_S = 3600  # a lock cannot wait until the year 9999, which some clients use as "never"


class TimerThread:
    """Runs scheduled actions one after another; they must be short. `schedule` may be called from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._monotonic_ns = clock.monotonic_ns
        self._timers = Timers()
        self._changed = Condition()
        self._closing = False
        self._thread = Thread(target=self._run, name="timers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def schedule(self, when_ns: int, action: Callable[[], None]) -> None:
        """Call `action()` at the monotonic time `when_ns`."""
        with self._changed:
            self._timers.schedule(when_ns, action)
            if self._timers.next_due_ns == when_ns:
                self._changed.notify()

    def _run(self) -> None:
        while not self._closing:
            with self._changed:
                actions = self._timers.pop_due(self._monotonic_ns())
                if not actions and not self._closing:
                    self._wait()
            for action in actions:
                if not self._closing:
                    _call(action)

    def _wait(self) -> None:
        next_ns = self._timers.next_due_ns
        left_s = _MAX_WAIT_S if next_ns is None else (next_ns - self._monotonic_ns()) / _NS_PER_S
        self._changed.wait(min(max(0, left_s), _MAX_WAIT_S))

    def close(self, timeout_s: float) -> None:
        """Start no further action. An action in progress completes."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)


def _call(action: Callable[[], None]) -> None:
    try:
        action()
    except FOREIGN_ERRORS:
        # A defect in a plugin must not stop the timers of all others. The log has its traceback.
        name = getattr(action, "__qualname__", repr(action))
        log.exception("timers.callback_failed", extra={"action": name, **limited(name)})
