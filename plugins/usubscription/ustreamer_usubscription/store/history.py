# SPDX-License-Identifier: Apache-2.0
"""The latest events, before and in the store: bounded, the oldest leave first."""

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from ustreamer_usubscription.events import SubscriptionEvent, subscription_event_of
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange
from ustreamer_usubscription.store.records import RecordChange, delete_event, event_number, put_event
from ustreamer_usubscription.store.transaction import Transaction

T = TypeVar("T")

_MAP_DIVISOR: Final = 8
_EVENT_BYTES: Final = 512  # a typical event has 130 bytes, one with the longest names 600


def max_events(limit: int, map_size: int) -> int:
    """The most events in a store of `map_size` bytes: `limit`, but less than an eighth of the map."""
    return min(limit, map_size // _MAP_DIVISOR // _EVENT_BYTES)


_EVICTION_DIVISOR: Final = 16
"""A full history drops this part of its events at once, the oldest.

Dropping one event for each new one makes every commit copy the pages at both ends: 34 KB instead of 16, 0.06 ms more.
"""


class EventHistory:
    """The numbers of the events in a store. It decides the changes; the store writes them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = self._next = 0

    def load_stored(self, keys: Sequence[bytes]) -> None:
        """Continue after the stored events, given by their keys in order."""
        self._first, self._next = (event_number(keys[0]), event_number(keys[-1]) + 1) if keys else (0, 0)

    def changes_for(self, events: Sequence[SubscriptionEvent]) -> list[RecordChange]:
        """The changes that add `events`, or the last of them, and keep the history within its limit."""
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
    """The last `limit` events that wait for the next commit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[SubscriptionEvent] = deque(maxlen=limit)

    def add_change(self, change: SubscriptionStatusChange, now_ms: int) -> None:
        self._events.append(subscription_event_of(change, now_ms))

    def with_events_of(self, transaction: Transaction) -> list[SubscriptionEvent]:
        """The events to commit with `transaction`."""
        return [*self._events, *_events_of(transaction, self._limit)]

    def add_events_of(self, transaction: Transaction) -> None:
        """Queue the events of a transaction without changes, which has no commit."""
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
