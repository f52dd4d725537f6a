# SPDX-License-Identifier: Apache-2.0
"""A text stream whose writes never wait: a thread writes to the terminal, the pipe or the file below.

A terminal after Ctrl-S takes no bytes, and a pipe that is not read takes 64 KB. A line of the log must not stop the
thread that forwards messages. So lines wait here, at most MAX_CHARS; further ones are left out, and counted.
"""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread
from typing import Final, TextIO

MAX_CHARS: Final = 1 << 20


class LogStream:
    """The stream of a `logging.StreamHandler`. Safe from any thread."""

    def __init__(self, stream: TextIO, on_left_out: Callable[[int], None]) -> None:
        """`on_left_out` gets the number of lines that were left out, when `stream` takes lines again."""
        self.left_out = 0
        self._stream = stream
        self._on_left_out = on_left_out
        self._unreported = 0
        self._waiting: deque[str] = deque()
        self._chars = 0
        """Of the waiting lines, and of the one that is being written."""
        self._changed = Condition()
        Thread(target=self._run, name="log", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue a line, or leave it out."""
        with self._changed:
            if self._chars + len(text) > MAX_CHARS:
                self.left_out += 1
                self._unreported += 1
            else:
                self._chars += len(text)
                self._waiting.append(text)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread flushes."""

    def wait_written(self, timeout_s: float) -> bool:
        """Wait until everything is written; False after the time."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._chars, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting.popleft()
            with suppress(OSError, ValueError):  # it is full, or closed: there is no place to report that
                self._stream.write(text)
                self._stream.flush()
            with self._changed:
                self._chars -= len(text)
                self._changed.notify_all()
                left_out, self._unreported = (
                    (self._unreported, 0) if not self._waiting else (0, self._unreported)
                )
            if left_out:
                self._on_left_out(left_out)
