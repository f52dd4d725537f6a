# SPDX-License-Identifier: Apache-2.0
"""One restart of the subject for several cases."""

import threading
from collections.abc import Callable

from uprotocol_tck.case import NotJudged
from uprotocol_tck.probe import PAUSE_S
from uprotocol_tck.stop import Stop


class SharedRestart:
    """The cases of a group wait for each other, and then the subject restarts once for all of them."""

    def __init__(self, cases: int, stop: Stop) -> None:
        """`cases` is the number of cases that run; each of them calls `leave` at its end."""
        self._running = cases
        self._stop = stop
        self._waiting = 0
        self._restarts = 0
        self._failure: Exception | None = None
        self._left_at = 0.0
        self._changed = threading.Condition()

    def leave(self) -> None:
        """A case has ended: the others do not wait for it."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    def restart(self, perform: Callable[[], float]) -> float:
        """Wait for the other cases; one of them calls its `perform`. Returns the result, or raises the exception.

        Raises NotJudged at the end of the run.
        """
        with self._changed:
            before = self._restarts
            self._waiting += 1
            try:
                while self._restarts == before:
                    self._stop.check()
                    if self._waiting == self._running:
                        self._perform(perform)
                    else:
                        self._changed.wait(PAUSE_S)
            except NotJudged:
                self._waiting -= 1
                raise
            if self._failure:
                raise self._failure
            return self._left_at

    def _perform(self, perform: Callable[[], float]) -> None:
        self._failure = None
        try:
            self._left_at = perform()
        except Exception as failure:  # noqa: BLE001 - each case of the group ends with it
            self._failure = failure
        self._restarts += 1
        self._waiting = 0
        self._changed.notify_all()
