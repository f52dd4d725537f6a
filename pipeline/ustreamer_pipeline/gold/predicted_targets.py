# SPDX-License-Identifier: Apache-2.0
"""The targets that publications must have, predicted from subscriptions alone: the second opinion of the audit.

In: the subscription changes of one run, and where the recording shows entities. Out: for a topic at a time, the
subscribers and their periods, and the endpoint of each subscriber.

The prediction shares two things with the gateway: the match of an address with a pattern (`UUri.matches`), and the
rule that a multicast domain gets the shortest period that one of its subscribers requested (0 is no limit).
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri

SELF: Final = "self"
"""The endpoint of the services that the gateway itself hosts."""

SLACK_NS: Final = 1_000_000_000
"""For this time around a change of a subscription, the targets before and after it are both right.

A batch of messages uses the subscriptions at its beginning, and a change is in effect shortly before it is recorded.
"""

Ints = npt.NDArray[np.int64]
Periods = Mapping[str, int]
"""The period that each subscriber requested."""


class TopicSubscribers:
    """The subscribers of one topic: the periods before and after each change.

    A change is surely in effect from `surely_ns` on, and perhaps from `perhaps_ns` on. Subscriptions that are present
    when a run begins are in effect before its first message.
    """

    def __init__(self, topic: str, changes: Iterable[Mapping[str, Any]]) -> None:
        """`changes` are rows of the table `subscriptions`, in order."""
        active: dict[tuple[str, str], int] = {}
        surely: list[int] = []
        perhaps: list[int] = []
        self._periods: list[Periods] = [{}]
        for change in changes:
            if not covers(change["topic"], topic):
                continue
            key = change["topic"], change["subscriber"]
            if change["change"] == "UNSUBSCRIBED":
                active.pop(key, None)
            else:
                active[key] = change["period_ns"]
            periods: dict[str, int] = {}
            for (_, subscriber), period_ns in active.items():
                periods[subscriber] = min(period_ns, periods.get(subscriber, period_ns))
            surely.append(change["time_ns"] + (0 if change["change"] == "PRESENT" else SLACK_NS))
            perhaps.append(change["time_ns"] - SLACK_NS)
            self._periods.append(periods)
        self.surely_ns: Ints = np.maximum.accumulate(np.array(surely, dtype=np.int64))
        self.perhaps_ns: Ints = np.maximum.accumulate(np.array(perhaps, dtype=np.int64))

    def between(self, first: int, last: int) -> list[Periods]:
        """The periods that were in force, from one number of past changes to another."""
        return self._periods[first : last + 1]


class Endpoints:
    """The endpoint that each entity lives behind, as far as the rows show one."""

    def __init__(self) -> None:
        self._found: dict[str, set[str]] = {}

    def add(self, entity: str, endpoint: str) -> None:
        """A row shows this entity behind this endpoint."""
        authority, ue_id = _place(entity)
        # The gateway's own services share their authority with entities elsewhere.
        names = [f"{authority}/{ue_id}"] if endpoint == SELF else [f"{authority}/{ue_id}", authority]
        for name in names:
            self._found.setdefault(name, set()).add(endpoint)

    def find(self, entity: str) -> str | None:
        """The endpoint of an entity; None if no row shows it, or if rows contradict each other."""
        authority, ue_id = _place(entity)
        found = self._found.get(f"{authority}/{ue_id}") or self._found.get(authority) or set()
        return next(iter(found)) if len(found) == 1 else None


@lru_cache(maxsize=100_000)
def covers(pattern: str, uuri: str) -> bool:
    """Whether an address matches a pattern; an invalid text matches itself."""
    try:
        return UUri.parse(pattern).matches(UUri.parse(uuri))
    except UStatusError:
        return pattern == uuri


@lru_cache(maxsize=100_000)
def _place(entity: str) -> tuple[str, int]:
    try:
        uuri = UUri.parse(entity)
    except UStatusError:
        return entity, 0
    return uuri.authority_name, uuri.ue_id
