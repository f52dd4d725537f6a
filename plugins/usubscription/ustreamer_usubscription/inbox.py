# SPDX-License-Identifier: Apache-2.0
"""The bounded queue of messages for the thread of the service."""

from collections import Counter, OrderedDict, deque
from threading import Condition
from typing import Final, Generic, TypeVar

from ustreamer.uprotocol.ustatus import UCode, UStatusError

MAX_BATCH: Final = 1024
"""The weight of a batch at most: 1 024 requests of weight 1 are about 20 ms of work before the first Response."""
MAX_OF_OWNER: Final = 128
"""Messages of one owner in a batch at most: the next request of another owner waits for the whole batch."""


T = TypeVar("T")


class ServiceInbox(Generic[T]):
    """A bounded queue that is read in batches. Any thread may put; one thread reads.

    The owners are served in turn (round robin), so that one of them delays no other. Messages of one owner keep their
    order.
    """

    def __init__(self, limit: int, share: int | None = None) -> None:
        """`limit`: messages in the queue; `share`: those of one owner, such as an authority."""
        self._limit = limit
        self._share = limit if share is None else share
        # The owners with messages, the next one to serve first; each message with its weight.
        self._queues: OrderedDict[str, deque[tuple[T, int]]] = OrderedDict()
        self._size = 0
        self._changed = Condition()
        self._woken = False
        self._closed = False

    def put_nowait(self, message: T, owner: str = "", *, reserve: int = 0, weight: int = 1) -> None:
        """Accept a message. Raises UStatusError: RESOURCE_EXHAUSTED when full, UNAVAILABLE once closed.

        A message without an `owner` is in no share.

        `reserve`: places above the limit, for a message that others wait for.
        `weight`: the part of `MAX_BATCH` that the message takes.
        """
        with self._changed:
            if self._closed:
                raise UStatusError(UCode.UNAVAILABLE, "core.usubscription has stopped")
            if self._size >= self._limit + reserve:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._limit} requests wait for core.usubscription, max_queued_requests; try again later",
                )
            if owner and len(self._queues.get(owner, ())) >= self._share:
                raise UStatusError(
                    UCode.RESOURCE_EXHAUSTED,
                    f"{self._share} requests of {owner!r} wait for core.usubscription, "
                    "max_queued_requests_per_authority; try again later",
                )
            self._queues.setdefault(owner, deque()).append((message, weight))
            self._size += 1
            self._changed.notify()

    def wake(self) -> None:
        """Make `wait_batch` return, with an empty batch if need be."""
        with self._changed:
            self._woken = True
            self._changed.notify()

    def wait_batch(self) -> list[T] | None:
        """Wait for messages or a wake-up, and take up to `MAX_BATCH`, one of each owner in turn, and `MAX_OF_OWNER` of each.

        None when closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._size or self._woken or self._closed)
            if self._closed and not self._size:
                return None
            self._woken = False
            return self._take_batch()

    def _take_batch(self) -> list[T]:
        batch: list[T] = []
        left, taken = MAX_BATCH, Counter[str]()
        turns = deque(self._queues)
        while turns:
            owner = turns.popleft()
            queue = self._queues[owner]
            message, weight = queue[0]
            if batch and weight > left:
                break
            left -= weight
            queue.popleft()
            batch.append(message)
            if not queue:
                del self._queues[owner]
                continue
            self._queues.move_to_end(owner)
            taken[owner] += 1
            if taken[owner] < MAX_OF_OWNER:
                turns.append(owner)
        self._size -= len(batch)
        return batch

    def close(self) -> None:
        """Refuse further messages; queued ones can still be read. May be repeated."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def __len__(self) -> int:
        return self._size
