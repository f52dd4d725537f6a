# SPDX-License-Identifier: Apache-2.0
"""The numbers by which rows name where messages go, and the limit that held when it was decided."""

import weakref
from itertools import count
from typing import Final

from ustreamer.core.delivery.delivery import Delivery
from ustreamer_recorder.events import Target

_VERSIONS: Final = 16  # of a delivery's limit


class TargetHistory:
    """A delivery, or the endpoint of messages without one, as rows name it: by its targets, each with another limit.

    `target` and `tuned_ns` are of the latest.
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
        """The target that a decision of this time was made by; the oldest that is known, if it was an older one."""
        for target in reversed(self.targets):
            if target.tuned_ns <= received_ns:
                return target
        return self.targets[0]


class Targets:
    """Everything that rows of this run may name. A delivery's state goes with the delivery."""

    def __init__(self) -> None:
        self.states: dict[int, TargetHistory] = {}
        """By identity of the delivery or endpoint, which a note that names it keeps from becoming another's."""
        self._deliveries, self._targets = count(1), count(1)

    def target_for(self, destination: Delivery | str, received_ns: int) -> Target:
        """The target of a message that was decided about at this time, for a delivery or, without one, at an endpoint."""
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
