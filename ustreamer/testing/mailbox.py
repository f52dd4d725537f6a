# SPDX-License-Identifier: Apache-2.0
"""Listeners that record their messages."""

import threading
from collections.abc import Sequence

from ustreamer.testing.waiting import DEADLINE_S
from ustreamer.uprotocol.umessage import UMessage


class Mailbox:
    """A listener that records its messages."""

    def __init__(self) -> None:
        self._messages: list[UMessage] = []
        self._changed = threading.Condition()

    def __call__(self, message: UMessage) -> None:
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    @property
    def messages(self) -> list[UMessage]:
        """The messages until now, in order."""
        with self._changed:
            return list(self._messages)

    def wait(self, count: int, timeout_s: float = DEADLINE_S) -> list[UMessage]:
        """Return all messages when there are `count`, or after `timeout_s`. Does not fail."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._messages) >= count, timeout_s)
            return list(self._messages)


class BatchMailbox(Mailbox):
    """A batch listener. Each call waits until `go`, so that a backlog builds up."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.largest = 0

    def __call__(self, message: UMessage) -> None:
        assert self.go.wait(DEADLINE_S)
        super().__call__(message)

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        """Record a batch."""
        self.largest = max(self.largest, len(messages))
        for message in messages:
            self(message)
