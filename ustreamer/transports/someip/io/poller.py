# SPDX-License-Identifier: Apache-2.0
"""What the receiving thread of an endpoint waits for: file descriptors, and what is to be called for each.

`epoll` rather than `poll`: another thread may add and change while the receiving thread waits, and need not wake it.
"""

import select
from collections.abc import Callable
from contextlib import suppress
from typing import Final

READABLE: Final = select.EPOLLIN
WRITABLE: Final = select.EPOLLOUT

Handler = Callable[[int], bool | None]
"""Called on the receiving thread with the events of its file descriptor. True: nothing of it has to be looked after."""


class Poller:
    """`wait` and `close` belong to one thread, the rest to any."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}

    def add(self, fd: int, handler: Handler, events: int = READABLE) -> None:
        """Have `handler` called when one of `events` comes; an error of `fd` counts as all of them."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Wait for other events of `fd`; nothing happens if it was removed meanwhile."""
        with suppress(FileNotFoundError):
            self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forget `fd`, before it is closed. A handler must bear to be called for what its number meant before."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for events, at most so long (None: for ever), and have them handled.

        Whether some came and no handler has left anything to be looked after.
        """
        ready = self._epoll.poll(timeout_s)
        quiet = bool(ready)
        for fd, events in ready:
            handler = self._handlers.get(fd)
            if handler is None or not handler(events):  # None: removed by a handler before it
                quiet = False
        return quiet

    def close(self) -> None:
        self._epoll.close()
