# SPDX-License-Identifier: Apache-2.0
"""The end of a run before its last case: Ctrl-C, or a subject that does not answer any more."""

import threading

from uprotocol_tck.case import NotJudged


class Stop:
    """Every wait of a run ends when it is set."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.reason = ""
        """Why the run ended; empty while it goes on."""

    def set(self, reason: str) -> None:
        """End the run. The first reason counts."""
        self.reason = self.reason or reason
        self._event.set()

    def check(self) -> None:
        """Raises NotJudged after the end of the run."""
        if self._event.is_set():
            raise NotJudged(self.reason)

    def sleep(self, seconds: float) -> None:
        """Let time pass. Raises NotJudged at the end of the run."""
        self._event.wait(seconds)
        self.check()
