# SPDX-License-Identifier: Apache-2.0
"""The subscribers of each topic over time, from the changes of subscriptions of one run.

In: rows of the table `subscriptions`, in order. Out: for a topic, its subscribers and their periods after each change.

A topic is looked up, not compared with each subscription: the cost is that of the subscriptions that match it. The
parts of a pattern that are no wildcards are its key, as in the table of the gateway; `UUri.matches` is the definition,
and tests/gold/test_topic_subscribers.py compares both.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, compress, takewhile
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, ANY_INSTANCE, ANY_RESOURCE, ANY_TYPE, ANY_VERSION, UUri

SLACK_NS: Final = 1_000_000_000
"""For this time around a change of a subscription, the targets before and after it are both right.

A batch of messages uses the subscriptions at its beginning, and a change is in effect shortly before it is recorded.
"""

Ints = npt.NDArray[np.int64]
Row = Mapping[str, Any]
Periods = Mapping[str, int]
"""The period that each subscriber requested, in ns; 0 is no limit."""

_Parts = tuple[str, int, int, int, int]
_Mask = tuple[bool, ...]
_WILDCARDS: Final[_Parts] = (ANY_AUTHORITY, ANY_TYPE, ANY_INSTANCE, ANY_VERSION, ANY_RESOURCE)


class TopicSubscribers:
    """The subscribers of one topic: the periods before and after each change.

    A change is surely in effect from `surely_ns` on, and perhaps from `perhaps_ns` on. Subscriptions that are present
    when a run begins are in effect before its first message: together they are one change.
    """

    def __init__(self, changes: Sequence[Row]) -> None:
        """`changes` are those of subscriptions to this topic."""
        present = list(takewhile(_is_present, changes))
        self._steps = [present] if present else []
        self._steps += [[change] for change in changes[len(present) :]]
        surely = [step[-1]["time_ns"] + (0 if _is_present(step[-1]) else SLACK_NS) for step in self._steps]
        perhaps = [step[0]["time_ns"] - SLACK_NS for step in self._steps]
        self.surely_ns: Ints = np.maximum.accumulate(np.array(surely, dtype=np.int64))
        self.perhaps_ns: Ints = np.maximum.accumulate(np.array(perhaps, dtype=np.int64))
        self._active: dict[tuple[str, str], int] = {}
        self._applied = 0

    def after(self, number: int) -> Periods:
        """The periods that were in force after so many changes. Ascending numbers are fast."""
        if number < self._applied:
            self._active, self._applied = {}, 0
        for change in chain.from_iterable(self._steps[self._applied : number]):
            key = change["topic"], change["subscriber"]
            if change["change"] == "UNSUBSCRIBED":
                self._active.pop(key, None)
            else:
                self._active[key] = change["period_ns"]
        self._applied = number
        periods: dict[str, int] = {}
        for (_, subscriber), period_ns in self._active.items():
            periods[subscriber] = min(period_ns, periods.get(subscriber, period_ns))
        return periods


class SubscriptionChanges:
    """The changes of subscriptions of one run, by topic. Topics with the same subscriptions share their subscribers."""

    def __init__(self, changes: Sequence[Row]) -> None:
        self._changes = changes
        self._patterns: dict[_Mask, dict[tuple[object, ...], list[int]]] = {}
        self._texts: dict[str | None, list[int]] = {}
        """Changes by a text that is no address: it matches itself."""
        self._subscribers: dict[str, TopicSubscribers] = {}
        self._shared: dict[tuple[int, ...], TopicSubscribers] = {}
        for number, topic in enumerate(change["topic"] for change in changes):
            self._of_pattern(topic).append(number)

    def of_topic(self, topic: str) -> TopicSubscribers:
        """The subscribers of a topic."""
        if topic not in self._subscribers:
            matching = self._matching(topic)
            # Lists of different patterns have no change in common: the first one identifies a list.
            key = tuple(numbers[0] for numbers in matching)
            if key not in self._shared:
                numbers = sorted(chain.from_iterable(matching))
                self._shared[key] = TopicSubscribers([self._changes[number] for number in numbers])
            self._subscribers[topic] = self._shared[key]
        return self._subscribers[topic]

    def _of_pattern(self, text: str | None) -> list[int]:
        parts = _parts(text)
        if parts is None:
            return self._texts.setdefault(text, [])
        mask = tuple(part != wildcard for part, wildcard in zip(parts, _WILDCARDS, strict=True))
        return self._patterns.setdefault(mask, {}).setdefault(tuple(compress(parts, mask)), [])

    def _matching(self, topic: str) -> list[list[int]]:
        """Numbers of the changes of each pattern that matches a topic."""
        parts = _parts(topic)
        if parts is None:
            found = [self._texts.get(topic)]
        else:
            found = [table.get(tuple(compress(parts, mask))) for mask, table in self._patterns.items()]
        return [numbers for numbers in found if numbers]


def _is_present(change: Row) -> bool:
    return bool(change["change"] == "PRESENT")


def _parts(text: str | None) -> _Parts | None:
    """The parts of an address or pattern; None if the text is no UUri, or missing."""
    if text is None:
        return None
    try:
        uuri = UUri.parse(text)
    except UStatusError:
        return None
    return uuri.authority_name, uuri.ue_type, uuri.ue_instance, uuri.ue_version_major, uuri.resource_id
