# SPDX-License-Identifier: Apache-2.0
"""The latest events, on their way to the store and in it: bounded, oldest out first."""

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from ustreamer_usubscription.events import Event, event_of
from ustreamer_usubscription.model.subscription import Changed
from ustreamer_usubscription.store.records import Change, delete_event, event_number, put_event
from ustreamer_usubscription.store.transaction import Draft

T = TypeVar("T")

_SHARE: Final = 8
_ROOM: Final = 512  # bytes; an event takes 130 mostly, and 600 with the longest names there are


def most(limit: int, map_size: int) -> int:
    """How many events a store of `map_size` bytes may keep, if `limit` are wished: they never take an eighth of it."""
    return min(limit, map_size // _SHARE // _ROOM)


_AT_ONCE: Final = 16
"""Where one event would be too many, this part of them leaves at once, the oldest.

One out for each one in would have every commit copy the pages at both ends: 34 KB written instead of 16, and 0.06 ms more.
"""


class History:
    """The numbers of the events in a store. It decides what is written; the store writes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._first = self._next = 0

    def load(self, keys: Sequence[bytes]) -> None:
        """Go on behind the events that a store has; these are their keys, in order."""
        self._first, self._next = (event_number(keys[0]), event_number(keys[-1]) + 1) if keys else (0, 0)

    def changes(self, events: Sequence[Event]) -> list[Change]:
        """What makes `events`, or the last of them, the latest in the store, and leaves no more there than may be."""
        added = _last(events, self._limit)
        gone = range(self._first, self._first_after(len(added)))
        puts = (put_event(number, event) for number, event in enumerate(added, self._next))
        return [*map(delete_event, gone), *puts]

    def written(self, events: Sequence[Event]) -> None:
        """The changes for `events` have been committed."""
        added = min(len(events), self._limit)
        self._first, self._next = self._first_after(added), self._next + added

    def _first_after(self, added: int) -> int:
        if self._next + added - self._first <= self._limit:
            return self._first
        return min(self._next, self._next + added - self._limit + self._limit // _AT_ONCE)


class Unwritten:
    """Events that go with the next commit: those that memory knows of before the disk does. The last `limit` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._events: deque[Event] = deque(maxlen=limit)

    def note(self, changed: Changed, now_ms: int) -> None:
        self._events.append(event_of(changed, now_ms))

    def with_those_of(self, draft: Draft) -> list[Event]:
        """What is to be committed with `draft`."""
        return [*self._events, *_of(draft, self._limit)]

    def keep(self, draft: Draft) -> None:
        """Have the events of a draft wait, which came to nothing and so needs no commit of its own."""
        self._events.extend(_of(draft, self._limit))

    def clear(self) -> None:
        self._events.clear()


def _of(draft: Draft, limit: int) -> list[Event]:
    return [event_of(changed, draft.now_ms) for changed in _last(draft.events, limit)]


def _last(items: Sequence[T], count: int) -> Sequence[T]:
    return items[max(len(items) - count, 0) :]
