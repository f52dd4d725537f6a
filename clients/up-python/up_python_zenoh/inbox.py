# SPDX-License-Identifier: Apache-2.0
"""Messages on their way from a thread of Zenoh to a listener in an event loop."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from uprotocol.transport.ulistener import UListener
from uprotocol.transport.validator.uattributesvalidator import UAttributesValidator
from uprotocol.v1.umessage_pb2 import UMessage

CLOSE_S: Final = 5.0
_LOG: Final = logging.getLogger("up_python_zenoh")


class ListenerInbox:
    """The messages of one listener in their order. The next call starts when the last one has ended.

    At most `max_waiting` messages wait; a further one is dropped, and `on_drop` is called.
    """

    def __init__(self, listener: UListener, max_waiting: int, on_drop: Callable[[], None]) -> None:
        """Called in the event loop, which then owns the inbox."""
        self._listener = listener
        self._max_waiting = max_waiting
        self._on_drop = on_drop
        self._waiting: deque[UMessage] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._run(), name=f"messages of {listener!r}")

    def put(self, message: UMessage) -> None:
        """Thread-safe; never waits."""
        if self._closed:
            return
        if len(self._waiting) >= self._max_waiting:
            self._on_drop()
            return
        self._waiting.append(message)
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._wake.set)

    async def _run(self) -> None:
        while not self._closed:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                message = self._waiting.popleft()
                if UAttributesValidator.is_expired(message.attributes):
                    self._on_drop()
                else:
                    await self._call(message)

    async def _call(self, message: UMessage) -> None:
        try:
            await self._listener.on_receive(message)
        # Foreign code: reported, and the next message is delivered.
        except asyncio.CancelledError:
            if self._task.cancelling():  # by `close`, or at the end of the loop
                raise
            _LOG.exception("listener %r: on_receive awaited something that was cancelled", self._listener)
        except Exception:  # noqa: BLE001
            _LOG.exception("listener %r: on_receive failed", self._listener)

    async def close(self) -> None:
        """No call starts after the return. A running call is cancelled, unless the listener itself closes its inbox.

        It waits at most `CLOSE_S` for a listener that ignores the cancellation, and then logs it.
        """
        self._closed = True
        self._waiting.clear()
        self._wake.set()
        if self._task is not asyncio.current_task():
            self._task.cancel()
            _, running = await asyncio.wait([self._task], timeout=CLOSE_S)
            if running:
                _LOG.error("listener %r: on_receive goes on after it was cancelled", self._listener)
