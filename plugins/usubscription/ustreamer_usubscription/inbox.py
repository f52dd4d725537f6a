# SPDX-License-Identifier: Apache-2.0
"""Where requests wait for the thread that serves them."""

from collections import deque
from threading import Condition
from typing import Final, Generic, TypeVar

from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAX_BATCH: Final = 1024
"""Requests that share a transaction at most: about 20 ms of deciding before the first of them is answered."""


T = TypeVar("T")


class ServiceInbox(Generic[T]):
    """A bounded queue that is emptied many at a time. Any thread may put; one takes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._queue: deque[T] = deque()
        self._changed = Condition()
        self._woken = False
        self._closed = False

    def put_nowait(self, message: T, *, reserve: int = 0) -> None:
        """Accept a message. Raises UStatusError: RESOURCE_EXHAUSTED when full, UNAVAILABLE once closed.

        `reserve` places more than usual are open to a message that others wait for.
        """
        with self._changed:
            if self._closed:
                raise UStatusError(UCode.UNAVAILABLE, "core.usubscription has stopped")
            if len(self._queue) >= self._limit + reserve:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._limit} requests wait for core.usubscription, max_queued_requests; try again later",
                )
            self._queue.append(message)
            self._changed.notify()

    def wake(self) -> None:
        """Have `wait_batch` return, if need be with nothing."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait_batch(self) -> list[T] | None:
        """Wait for requests, or to be woken, and take what is there; None when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._woken or self._closed)
            if self._closed and not self._queue:
                return None
            self._woken = False
            return [self._queue.popleft() for _ in range(min(len(self._queue), MAX_BATCH))]

    def close(self) -> None:
        """Accept nothing more; what is inside can still be taken. May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __len__(self) -> int:
        return len(self._queue)
