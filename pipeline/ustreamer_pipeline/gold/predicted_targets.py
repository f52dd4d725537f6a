# SPDX-License-Identifier: Apache-2.0
"""The targets that publications must have, predicted from subscriptions alone: the second opinion of the audit.

In: the subscribers of a topic at a time (topic_subscribers.py), and where the recording shows entities. Out: the
targets of its messages, and the periods that they may have.

The prediction shares two things with the gateway: the match of an address with a pattern (`UUri.matches`), and the
rule that a multicast domain gets the shortest period that one of its subscribers requested (0 is no limit).
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from ustreamer.uprotocol.ustatus import UStatusError
from ustreamer.uprotocol.uuri import UUri
from ustreamer_pipeline.gold.topic_subscribers import Periods

SELF: Final = "self"
"""The endpoint of the services that the gateway itself hosts."""


class PublicationTarget(NamedTuple):
    """Where a message goes: `subscriber` is None in a multicast domain, both are None without a target."""

    egress: str | None
    subscriber: str | None


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


class PredictedTargets:
    """The targets of a topic with these subscribers."""

    def __init__(self, periods: Periods, endpoints: Endpoints, multicast: Mapping[str, bool]) -> None:
        """`multicast`: whether the targets of an endpoint are multicast domains, as far as rows show it."""
        self._periods = periods
        self._endpoint_of = {subscriber: endpoints.find(subscriber) for subscriber in periods}
        self._shortest: dict[str, int] = {}
        self._elsewhere: set[int] = set()
        """Periods of subscribers whose endpoint is unknown."""
        for subscriber, endpoint in self._endpoint_of.items():
            period_ns = periods[subscriber]
            if endpoint is None:
                self._elsewhere.add(period_ns)
            else:
                self._shortest[endpoint] = min(period_ns, self._shortest.get(endpoint, period_ns))
        self._multicast = multicast
        self._from: dict[str, frozenset[PublicationTarget]] = {}

    def periods_of(self, target: PublicationTarget) -> set[int]:
        """Periods that the target may have, in ns; none without a subscription that leads to it."""
        if target.subscriber is not None:
            return {self._periods[target.subscriber]} if target.subscriber in self._periods else set()
        shortest = None if target.egress is None else self._shortest.get(target.egress)
        if shortest is None:
            return set(self._elsewhere)
        return {shortest, *(each for each in self._elsewhere if each < shortest)}

    def of_message_from(self, ingress: str) -> frozenset[PublicationTarget]:
        """Targets of a message from this endpoint: behind other endpoints, as far as these are known."""
        if ingress not in self._from:
            self._from[ingress] = frozenset(
                PublicationTarget(endpoint, None if self._multicast[endpoint] else subscriber)
                for subscriber, endpoint in self._endpoint_of.items()
                if endpoint is not None and endpoint != ingress and endpoint in self._multicast
            )
        return self._from[ingress]


def authority_of(entity: str) -> str:
    """The authority of an address; a text that is none is its own authority."""
    return _place(entity)[0]


@lru_cache(maxsize=100_000)
def is_address(text: str) -> bool:
    """Whether a text is a UUri."""
    try:
        UUri.parse(text)
    except UStatusError:
        return False
    return True


@lru_cache(maxsize=100_000)
def _place(entity: str) -> tuple[str, int]:
    try:
        uuri = UUri.parse(entity)
    except UStatusError:
        return entity, 0
    return uuri.authority_name, uuri.ue_id
