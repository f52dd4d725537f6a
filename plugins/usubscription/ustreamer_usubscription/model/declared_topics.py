# SPDX-License-Identifier: Apache-2.0
"""The topics that their producers have declared."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum

from ustreamer.uprotocol.uuri import ANY_INSTANCE, UUri


class TopicState(IntEnum):
    """[impl->LIF-1] The state of a declared topic; a topic that was never created has none, INVALID in the standard.

    CreateTopic makes any topic ACTIVE, DeprecateTopic makes an ACTIVE one DEPRECATED.
    """

    ACTIVE = 1
    DEPRECATED = 2


class DeclaredTopics:
    """Declared topics and their states, in memory. Belongs to the writer's thread."""

    def __init__(self) -> None:
        self._states: dict[UUri, TopicState] = {}
        self._by_pattern: dict[UUri, dict[UUri, None]] = {}
        self._by_authority: Counter[str] = Counter()

    @property
    def count(self) -> int:
        return len(self._states)

    def count_of(self, authority: str) -> int:
        """The declared topics of one authority."""
        return self._by_authority[authority]

    def find(self, topic: UUri) -> TopicState | None:
        return self._states.get(topic)

    def __iter__(self) -> Iterator[UUri]:
        return iter(self._states)

    def instances_of(self, pattern: UUri) -> Iterable[UUri]:
        """The declared topics that differ from `pattern` in the instance only."""
        return self._by_pattern.get(pattern, ())

    def load(self, states: Iterable[tuple[UUri, TopicState]]) -> None:
        """Take the contents of a store. [impl->LIF-3]"""
        self.apply(dict(states))

    def apply(self, changes: Mapping[UUri, TopicState | None]) -> None:
        """Set the state of each topic. None is in the type for `Overlay`: a topic is never undeclared."""
        for topic, state in changes.items():
            if state is not None:
                self._by_authority[topic.authority_name] += topic not in self._states
                self._states[topic] = state
                self._by_pattern.setdefault(any_instance_pattern(topic), {})[topic] = None


def any_instance_pattern(topic: UUri) -> UUri:
    """The pattern of this topic of every instance of its entity."""
    return UUri(
        topic.authority_name,
        ANY_INSTANCE << 16 | topic.ue_type,
        topic.ue_version_major,
        topic.resource_id,
    )
