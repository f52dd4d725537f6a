# SPDX-License-Identifier: Apache-2.0
"""The topics of other devices that somebody here subscribed, or that are still to be unsubscribed there."""

from collections.abc import Iterable, Iterator, Mapping

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.uuri import UUri


class RemoteTopicStates:
    """Remote topics and their states, in memory; UNSUBSCRIBED ones are not kept. Belongs to the writer's thread."""

    def __init__(self) -> None:
        self._states: dict[UUri, Status] = {}

    @property
    def count(self) -> int:
        return len(self._states)

    def find(self, topic: UUri) -> Status | None:
        return self._states.get(topic)

    def __iter__(self) -> Iterator[UUri]:
        return iter(self._states)

    def load(self, states: Iterable[tuple[UUri, Status]]) -> None:
        """Take over everything that a store holds."""
        self.apply(dict(states))

    def apply(self, changes: Mapping[UUri, Status | None]) -> None:
        """Put each topic into its state; None forgets it."""
        for topic, state in changes.items():
            if state is None:
                self._states.pop(topic, None)
            else:
                self._states[topic] = state
