# SPDX-License-Identifier: Apache-2.0
"""The latest events, on their way to the store and in it: bounded, oldest out first."""

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from ustreamer_usubscription.events import SubscriptionEvent, subscription_event_of
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange
from ustreamer_usubscription.store.records import RecordChange, delete_event, event_number, put_event
from ustreamer_usubscription.store.transaction import Transaction

T = TypeVar("T")

_MAP_DIVISOR: Final = 8
_EVENT_BYTES: Final = 512  # bytes; an event takes 130 mostly, and 600 with the longest names there are


def max_events(limit: int, map_size: int) -> int:
    """How many events a store of `map_size` bytes may keep, if `limit` are wished: they never take an eighth of it."""
    return min(limit, map_size // _MAP_DIVISOR // _EVENT_BYTES)


_EVICTION_DIVISOR: Final = 16
"""Where one event would be too many, this part of them leaves at once, the oldest.

One out for each one in would have every commit copy the pages at both ends: 34 KB written instead of 16, and 0.06 ms more.
"""


class EventHistory:
    """The numbers of the events in a store. It decides what is written; the store writes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = self._next = 0

    def load_stored(self, keys: Sequence[bytes]) -> None:
        """Go on behind the events that a store has; these are their keys, in order."""
        self._first, self._next = (event_number(keys[0]), event_number(keys[-1]) + 1) if keys else (0, 0)

    def changes_for(self, events: Sequence[SubscriptionEvent]) -> list[RecordChange]:
        """What makes `events`, or the last of them, the latest in the store, and leaves no more there than may be."""
        added = _last(events, self._limit)
        evicted = range(self._first, self._first_after(len(added)))
        additions = (put_event(number, event) for number, event in enumerate(added, self._next))
        return [*map(delete_event, evicted), *additions]

    def on_committed(self, events: Sequence[SubscriptionEvent]) -> None:
        """The changes for `events` have been committed."""
        added = min(len(events), self._limit)
        self._first, self._next = self._first_after(added), self._next + added

    def _first_after(self, added: int) -> int:
        if self._next + added - self._first <= self._limit:
            return self._first
        return min(self._next, self._next + added - self._limit + self._limit // _EVICTION_DIVISOR)


class PendingEvents:
    """Events that go with the next commit: those that memory knows of before the disk does. The last `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[SubscriptionEvent] = deque(maxlen=limit)

    def add_change(self, change: SubscriptionStatusChange, now_ms: int) -> None:
        self._events.append(subscription_event_of(change, now_ms))

    def with_events_of(self, transaction: Transaction) -> list[SubscriptionEvent]:
        """What is to be committed with `draft`."""
        return [*self._events, *_events_of(transaction, self._limit)]

    def add_events_of(self, transaction: Transaction) -> None:
        """Have the events of a draft wait, which came to nothing and so needs no commit of its own."""
        self._events.extend(_events_of(transaction, self._limit))

    def clear(self) -> None:
        self._events.clear()


def _events_of(transaction: Transaction, limit: int) -> list[SubscriptionEvent]:
    return [
        subscription_event_of(change, transaction.now_ms)
        for change in _last(transaction.subscription_changes, limit)
    ]


def _last(items: Sequence[T], count: int) -> Sequence[T]:
    return items[max(len(items) - count, 0) :]
