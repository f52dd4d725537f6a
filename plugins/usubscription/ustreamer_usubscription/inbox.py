# SPDX-License-Identifier: Apache-2.0
"""The bounded queue of messages for the thread of the service."""

from collections import Counter, deque
from threading import Condition
from typing import Final, Generic, TypeVar

from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAX_BATCH: Final = 1024
"""Requests in a transaction at most: about 20 ms of work before the first Response."""


T = TypeVar("T")


class ServiceInbox(Generic[T]):
    """A bounded queue that is read in batches. Any thread may put; one thread reads."""

    def __init__(self, limit: int, share: int | None = None) -> None:
        """`limit`: messages in the queue; `share`: those of one owner, such as an authority."""
        self._limit = limit
        self._share = limit if share is None else share
        self._owners: deque[str] = deque()
        self._by_owner: Counter[str] = Counter()
        self._queue: deque[T] = deque()
        self._changed = Condition()
        self._woken = False
        self._closed = False

    def put_nowait(self, message: T, owner: str = "", *, reserve: int = 0) -> None:
        """Accept a message. Raises UStatusError: RESOURCE_EXHAUSTED when full, UNAVAILABLE once closed.

        A message without an `owner` is in no share.

        `reserve`: places above the limit, for a message that others wait for.
        """
        with self._changed:
            if self._closed:
                raise UStatusError(UCode.UNAVAILABLE, "core.usubscription has stopped")
            if len(self._queue) >= self._limit + reserve:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._limit} requests wait for core.usubscription, max_queued_requests; try again later",
                )
            if owner and self._by_owner[owner] >= self._share:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._share} requests of {owner!r} wait for core.usubscription, "
                    "max_queued_requests_per_authority; try again later",
                )
            self._queue.append(message)
            self._owners.append(owner)
            self._by_owner[owner] += 1
            self._changed.notify()

    def wake(self) -> None:
        """Make `wait_batch` return, with an empty batch if need be."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait_batch(self) -> list[T] | None:
        """Wait for messages or a wake-up, and take all messages; None when closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._woken or self._closed)
            if self._closed and not self._queue:
                return None
            self._woken = False
            count = min(len(self._queue), MAX_BATCH)
            for _ in range(count):
                owner = self._owners.popleft()
                self._by_owner[owner] -= 1
                if not self._by_owner[owner]:
                    del self._by_owner[owner]
            return [self._queue.popleft() for _ in range(count)]

    def close(self) -> None:
        """Refuse further messages; queued ones can still be read. May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __len__(self) -> int:
        return len(self._queue)
