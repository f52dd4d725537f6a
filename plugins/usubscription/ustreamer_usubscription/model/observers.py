# SPDX-License-Identifier: Apache-2.0
"""Registrations for notifications of changes."""

from collections.abc import Iterable, Iterator, Mapping

from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer_usubscription.model.subscription import Observer, TopicEntityPair


class Observers:
    """Registrations for notifications by topic, in memory. Belongs to the writer's thread."""

    def __init__(self) -> None:
        self._by_topic: dict[UUri, dict[UUri, Observer]] = {}
        self.count = 0

    def count_of(self, authority: str) -> int:
        """The registrations of the entities at one authority."""
        return sum(each.entity.authority_name == authority for each in self)

    def find(self, pair: TopicEntityPair) -> Observer | None:
        topic, entity = pair
        return self._by_topic.get(topic, {}).get(entity)

    def observers_of(self, topic: UUri) -> tuple[Observer, ...]:
        """The observers of this topic and those of every topic."""
        return (*self._by_topic.get(topic, {}).values(), *self._by_topic.get(ANY, {}).values())

    def __iter__(self) -> Iterator[Observer]:
        for entities in self._by_topic.values():
            yield from entities.values()

    def load(self, observers: Iterable[Observer]) -> None:
        """Take the contents of a store."""
        self.apply({each.pair: each for each in observers})

    def apply(self, changes: Mapping[TopicEntityPair, Observer | None]) -> None:
        """Replace each registration; None ends it."""
        for (topic, entity), observer in changes.items():
            entities = self._by_topic.setdefault(topic, {})
            self.count -= entities.pop(entity, None) is not None
            if observer is not None:
                entities[entity] = observer
                self.count += 1
            if not entities:
                del self._by_topic[topic]
