# SPDX-License-Identifier: Apache-2.0
"""The numbers by which rows name where messages go, and the limit that held when it was decided."""

import weakref
from itertools import count
from typing import Final

from ustreamer.core.delivery.delivery import Delivery
from ustreamer_recorder.events import Target

_VERSIONS: Final = 16  # of a delivery's limit


class State:
    """A delivery, or the endpoint of messages without one, as rows name it: by its targets, each with another limit.

    `target` and `tuned_ns` are of the latest.
    """

    __slots__ = ("number", "target", "targets", "tuned_ns", "whose")

    def __init__(self, number: int, whose: "weakref.ref[Delivery] | str") -> None:
        self.number = number
        self.whose = whose
        self.targets: tuple[Target, ...] = ()
        self.target = self.tuned_ns = 0

    def use(self, target: Target) -> None:
        self.targets = (*self.targets[-_VERSIONS:], target)
        self.target, self.tuned_ns = target.target, target.tuned_ns

    def at(self, received_ns: int) -> Target:
        """The target that a decision of this time was made by; the oldest that is known, if it was an older one."""
        for target in reversed(self.targets):
            if target.tuned_ns <= received_ns:
                return target
        return self.targets[0]


class Targets:
    """Everything that rows of this run may name. A delivery's state goes with the delivery."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        """By identity of the delivery or endpoint, which a note that names it keeps from becoming another's."""
        self._deliveries, self._targets = count(1), count(1)

    def of(self, where: Delivery | str, received_ns: int) -> Target:
        """The target of a message that was decided about at this time, for a delivery or, without one, at an endpoint."""
        state = self.states.get(id(where))
        if state is not None:
            return state.at(received_ns)
        if isinstance(where, str):
            state = self.states[id(where)] = State(0, where)
            state.use(Target(next(self._targets), 0, where))
            return state.targets[0]
        return self.tuned(where, where.period_ns, where.tuned_ns)

    def tuned(self, delivery: Delivery, period_ns: int, tuned_ns: int) -> Target:
        """A new target of this delivery."""
        key = id(delivery)
        state = self.states.get(key)
        if state is None:
            gone = weakref.ref(delivery, lambda _: self.states.pop(key, None))
            state = self.states[key] = State(next(self._deliveries), gone)
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
        state.use(target)
        return target
