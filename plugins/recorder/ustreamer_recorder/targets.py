# SPDX-License-Identifier: Apache-2.0
"""The target numbers of rows: a destination and the limit at the time of the decision."""

import weakref
from itertools import count
from typing import Final

from ustreamer.core.delivery.delivery import Delivery
from ustreamer_recorder.events import Target

_VERSIONS: Final = 16  # targets of one delivery, one for each limit


class TargetHistory:
    """The targets of a delivery, or of an endpoint for messages without a delivery; one for each limit.

    `target` and `tuned_ns` are those of the latest.
    """

    __slots__ = ("number", "owner", "target", "targets", "tuned_ns")

    def __init__(self, number: int, owner: "weakref.ref[Delivery] | str") -> None:
        self.number = number
        self.owner = owner
        self.targets: tuple[Target, ...] = ()
        self.target = self.tuned_ns = 0

    def add_target(self, target: Target) -> None:
        self.targets = (*self.targets[-_VERSIONS:], target)
        self.target, self.tuned_ns = target.target, target.tuned_ns

    def target_at(self, received_ns: int) -> Target:
        """The target in effect at that time; the oldest known one for an earlier time."""
        for target in reversed(self.targets):
            if target.tuned_ns <= received_ns:
                return target
        return self.targets[0]


class Targets:
    """All targets of this run. A delivery's history is dropped with the delivery."""

    def __init__(self) -> None:
        self.states: dict[int, TargetHistory] = {}
        """Keyed by the identity of delivery or endpoint; a note holds a reference, so the identity is not reused."""
        self._deliveries, self._targets = count(1), count(1)

    def target_for(self, destination: Delivery | str, received_ns: int) -> Target:
        """The target, at the time of the decision, of a delivery or of an endpoint without a delivery."""
        state = self.states.get(id(destination))
        if state is not None:
            return state.target_at(received_ns)
        if isinstance(destination, str):
            state = self.states[id(destination)] = TargetHistory(0, destination)
            state.add_target(Target(next(self._targets), 0, destination))
            return state.targets[0]
        return self.new_target(destination, destination.period_ns, destination.period_since_ns)

    def new_target(self, delivery: Delivery, period_ns: int, tuned_ns: int) -> Target:
        """A new target of this delivery."""
        key = id(delivery)
        state = self.states.get(key)
        if state is None:
            reference = weakref.ref(delivery, lambda _: self.states.pop(key, None))
            state = self.states[key] = TargetHistory(next(self._deliveries), reference)
        target = Target(
            next(self._targets),
            state.number,
            delivery.ingress,
            delivery.endpoint,
            None if delivery.topic is None else str(delivery.topic),
            None if delivery.subscriber is None else str(delivery.subscriber),
            period_ns,
            tuned_ns,
        )
        state.add_target(target)
        return target
