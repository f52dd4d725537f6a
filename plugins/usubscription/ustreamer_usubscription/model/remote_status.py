# SPDX-License-Identifier: Apache-2.0
"""Remote topics with subscriptions here, or with an Unsubscribe that is not acknowledged yet."""

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

    def count_of(self, authority: str) -> int:
        """The remote topics of one authority."""
        return sum(topic.authority_name == authority for topic in self._states)

    def find(self, topic: UUri) -> Status | None:
        return self._states.get(topic)

    def __iter__(self) -> Iterator[UUri]:
        return iter(self._states)

    def load(self, states: Iterable[tuple[UUri, Status]]) -> None:
        """Take the contents of a store."""
        self.apply(dict(states))

    def apply(self, changes: Mapping[UUri, Status | None]) -> None:
        """Set the state of each topic; None removes it."""
        for topic, state in changes.items():
            if state is None:
                self._states.pop(topic, None)
            else:
                self._states[topic] = state
