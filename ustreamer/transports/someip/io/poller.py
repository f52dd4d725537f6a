# SPDX-License-Identifier: Apache-2.0
"""The wait of the receiving thread: file descriptors and their handlers.

`epoll` rather than `poll`: another thread may add and change file descriptors during a wait, without a wake-up.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ustreamer.core.delivery.plugin_errors import FOREIGN_ERRORS

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT
ERROR: Final = select.EPOLLERR
"""Always waited for."""

Handler = Callable[[int], bool | None]
"""Called on the receiving thread with the events of its file descriptor. True: no deadline was set for an earlier time."""


class Poller:
    """`wait` and `close` belong to one thread, the rest to any thread."""

    def __init__(self, on_error: Callable[[BaseException], None] | None = None) -> None:
        """`on_error` takes what a handler raises; without it, `wait` raises it."""
        self._on_error = on_error
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def add(self, fd: int, handler: Handler, events: int = READABLE) -> None:
        """Call `handler` on any of `events`; an error of `fd` counts as all of them."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of `fd`; no effect if `fd` was removed meanwhile."""
        with suppress(FileNotFoundError):
            self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Remove `fd`, before it is closed. A handler must tolerate one call for an earlier file with the same
        number.
        """
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for events, at most `timeout_s` (None: forever), and call their handlers.

        Returns whether there were events and every handler returned True.
        """
        ready = self._epoll.poll(timeout_s)
        quiet = bool(ready)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            try:
                if handler is None or not handler(events):  # None: removed by an earlier handler
                    quiet = False
            except FOREIGN_ERRORS as error:
                if self._on_error is None:
                    raise
                quiet = False
                self._on_error(error)
        return quiet

    def close(self) -> None:
        self._epoll.close()
