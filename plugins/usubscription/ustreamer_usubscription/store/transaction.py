# SPDX-License-Identifier: Apache-2.0
"""What the service knows, and what it is about to change."""

from collections.abc import Container, Hashable, Iterable, Iterator
from typing import Generic, Protocol, TypeVar

from msgspec.structs import replace

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, ANY_INSTANCE, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.model.declared_topics import Topics, TopicState
from ustreamer_usubscription.model.lifecycle import Event, step
from ustreamer_usubscription.model.observers import Observers
from ustreamer_usubscription.model.remote_status import Remotes
from ustreamer_usubscription.model.subscription import Changed, Observer, Pair, Tracked

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)


class Table(Protocol[K_contra, V_co]):
    """What an `Overlay` lies on."""

    @property
    def count(self) -> int: ...

    def find(self, key: K_contra, /) -> V_co | None: ...


class State:
    """Everything that is kept, in memory. One thread writes; what others may read, `Directory` says."""

    def __init__(self, serves: Container[str], directory: Directory) -> None:
        """Topics of the authorities in `serves` are local, all others remote."""
        self.directory = directory
        self.observers = Observers()
        self.topics = Topics()
        self.remotes = Remotes()
        self._serves = serves

    def is_remote(self, topic: UUri) -> bool:
        """Whether the topic is in the books of another uSubscription, too."""
        return topic.authority_name not in self._serves

    def status_of(self, topic: UUri) -> Status:
        """What those who subscribed `topic` are to it."""
        return self.remotes.find(topic) or Status.SUBSCRIBED

    def apply(self, draft: "Draft") -> None:
        """Make a committed draft the state."""
        self.directory.apply(draft.subscriptions.changes)
        self.observers.apply(draft.observers.changes)
        self.topics.apply(draft.topics.changes)
        self.remotes.apply(draft.remotes.changes)


class Overlay(Generic[K, V]):
    """A table with changes on top of it that are decided on but not committed.

    `changes` has the last decision for each key, and none for one that would stay as it is.
    """

    def __init__(self, table: Table[K, V], limit: int, noun: str) -> None:
        """`limit` bounds the entries that there may be afterwards; the setting max_<noun> is where it comes from."""
        self.changes: dict[K, V | None] = {}
        self._table = table
        self._limit = limit
        self._noun = noun
        self._count = table.count

    def find(self, key: K) -> V | None:
        return self.changes[key] if key in self.changes else self._table.find(key)

    def check_room(self, key: K) -> None:
        """RESOURCE_EXHAUSTED if something at `key` would be one too many."""
        if self._count >= self._limit and self.find(key) is None:
            raise UStatusError(
                UCode.RESOURCE_EXHAUSTED,
                f"{self._count} {self._noun} are kept, max_{self._noun} is {self._limit}",
            )

    def put(self, key: K, value: V) -> None:
        """Let `value` stand, whatever the limit: ask `check_room` before somebody gets something new."""
        self._count += self.find(key) is None
        self._set(key, value)

    def remove(self, key: K) -> None:
        """Let nothing stand at `key`."""
        self._count -= self.find(key) is not None
        self._set(key, None)

    def standing(self, committed: Iterable[K]) -> Iterator[tuple[K, V]]:
        """What stands; `committed` are the keys of the table, and come first."""
        for key in dict.fromkeys([*committed, *self.changes]):
            value = self.find(key)
            if value is not None:
                yield key, value

    def _set(self, key: K, value: V | None) -> None:
        if self._table.find(key) == value:
            self.changes.pop(key, None)
        else:
            self.changes[key] = value


class Draft:
    """Changes on top of a state, to be committed together.

    `events` has every step on the way, in order, also where a later one undoes it: each was answered, so each is told.
    """

    def __init__(self, state: State, config: UsubscriptionConfig, now_ms: int) -> None:
        """`now_ms` is wall-clock time; `config` has the limits."""
        self.now_ms = now_ms
        self.subscriptions: Overlay[Pair, Tracked] = Overlay(
            state.directory, config.max_subscriptions, "subscriptions"
        )
        self.observers: Overlay[Pair, Observer] = Overlay(
            state.observers, config.max_registrations, "registrations"
        )
        self.topics: Overlay[UUri, TopicState] = Overlay(state.topics, config.max_topics, "topics")
        self.remotes: Overlay[UUri, Status] = Overlay(
            state.remotes, config.max_remote_topics, "remote_topics"
        )
        self.events: list[Changed] = []
        self.settled: list[UUri] = []  # topics whose subscriptions changed without a draft
        self._state = state
        self._watching: dict[UUri, tuple[Observer, ...]] = {}  # of topics that had an event in this draft
        self._clients: dict[
            UUri, int
        ] = {}  # how many subscribe a remote topic that this draft has to do with

    @property
    def is_empty(self) -> bool:
        overlays = (self.subscriptions, self.observers, self.topics, self.remotes)
        return not any(each.changes for each in overlays)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def put(self, entry: Tracked) -> Status:
        """Let a subscription stand as `entry` says; its status then. RESOURCE_EXHAUSTED if it would be one too many.

        [impl->req~usubscription-subscribe-notifications~1] Told if it is new, and if anything about it has changed.
        """
        topic = entry.topic
        self.subscriptions.check_room(entry.pair)
        if self._state.is_remote(topic):
            self.remotes.check_room(topic)
        before = self.subscriptions.find(entry.pair)
        if before is None:
            self._count(topic, +1)
        self.subscriptions.put(entry.pair, entry)
        status = self._step(topic, Event.WANTED)
        if before is None or replace(before, version=entry.version) != entry:
            self._note(entry, status)
        return status

    def remove(self, pair: Pair, why: str = "") -> None:
        """End a subscription, if there is one.

        [impl->req~usubscription-unsubscribe-notifications~1] Its end is told, to its subscriber too, as the sequence
        diagrams have it. Without subscriptions nothing about a topic can change, so after the last one nothing is told.
        [impl->req~usubscription-remote-unsubscribe-notifications~1]
        """
        entry = self.subscriptions.find(pair)
        if entry is None:
            return
        self._count(entry.topic, -1)
        self.subscriptions.remove(pair)
        self._note(entry, Status.UNSUBSCRIBED, why)
        if not self._clients.get(entry.topic, 1):
            self._step(entry.topic, Event.UNWANTED)

    # --- remote topics ------------------------------------------------------------------------------------------------

    def status_of(self, topic: UUri) -> Status:
        """The state of a remote topic."""
        return self.remotes.find(topic) or Status.UNSUBSCRIBED

    def hear(self, topic: UUri, event: Event, why: str = "") -> None:
        """What the uSubscription of a remote topic answered holds for all its clients, and is told to each.

        [impl->req~usubscription-subscribe-remote-response~1] `why` is for people.
        """
        before = self.status_of(topic)
        after = self._step(topic, event)
        if after is before:
            return
        for entry in self._standing_at(topic):
            if after is Status.UNSUBSCRIBED:
                self._count(topic, -1)
                self.subscriptions.remove(entry.pair)
            self._note(entry, after, why)

    def settle(self, topic: UUri) -> None:
        """Let the state of a topic follow from who subscribes it: for what changed without a draft."""
        if not self._state.is_remote(topic):
            self.remotes.remove(topic)  # of the time before the configuration made it local
        else:
            self._count(topic, 0)
            self._step(topic, Event.WANTED if self._clients[topic] else Event.UNWANTED)
        self.settled.append(topic)

    def _step(self, topic: UUri, event: Event) -> Status:
        if not self._state.is_remote(topic):
            return step(Status.SUBSCRIBED, event, remote=False)
        status = step(self.status_of(topic), event, remote=True)
        if status is Status.UNSUBSCRIBED:
            self.remotes.remove(topic)
        else:
            self.remotes.put(topic, status)
        return status

    def _count(self, topic: UUri, change: int) -> None:
        if self._state.is_remote(topic):
            known = self._clients.get(topic)
            self._clients[topic] = (
                len(self._state.directory.exactly(topic)) if known is None else known
            ) + change

    def _standing_at(self, topic: UUri) -> list[Tracked]:
        """Who subscribes just this topic: O(its subscriptions + changes drafted)."""
        committed = [entry.pair for entry in self._state.directory.exactly(topic)]
        drafted = [pair for pair in self.subscriptions.changes if pair[0] == topic]
        found = (self.subscriptions.find(pair) for pair in dict.fromkeys([*committed, *drafted]))
        return [entry for entry in found if entry is not None]

    # --- registrations and topics -------------------------------------------------------------------------------------

    def register(self, observer: Observer) -> None:
        """Have an entity told of changes; RESOURCE_EXHAUSTED if it would be one too many."""
        self.observers.check_room(observer.pair)
        self.observers.put(observer.pair, observer)
        self._watching.clear()

    def unregister(self, pair: Pair) -> None:
        """Have an entity told of nothing more, if it was.

        [impl->req~usubscription-unregister-notifications~1]
        """
        self.observers.remove(pair)
        self._watching.clear()

    def declare(self, topic: UUri, state: TopicState) -> None:
        """Let a topic be in this state; RESOURCE_EXHAUSTED if it would be one too many."""
        self.topics.check_room(topic)
        self.topics.put(topic, state)

    def clear(self, why: str) -> None:
        """End all subscriptions, then all registrations: in this order, so that those who watch learn of it.

        What producers have declared stays: it is no subscription, and they would not know that they have to say it again.
        [impl->req~usubscription-reset~1]
        """
        for pair, _ in self.subscriptions.standing(entry.pair for entry in self._state.directory):
            self.remove(pair, why)
        for pair, _ in self.observers.standing(each.pair for each in self._state.observers):
            self.unregister(pair)

    def topic_states(self, topic: UUri) -> set[TopicState]:
        """The states of the declared topics that `topic`, which may have an instance wildcard, stands for."""
        topics: Iterable[UUri] = [topic]
        if topic.ue_instance == ANY_INSTANCE:
            drafted = [each for each in self.topics.changes if topic.matches(each)]
            topics = [*self._state.topics.of_any_instance(topic), *drafted]
        return {state for each in topics if (state := self.topics.find(each)) is not None}

    def _note(self, entry: Tracked, status: Status, why: str = "") -> None:
        watching = self._watching.get(entry.topic)
        if watching is None:
            watching = self._watching[entry.topic] = self._observers_of(entry.topic)
        self.events.append(Changed(entry, status, watching, why))

    def _observers_of(self, topic: UUri) -> tuple[Observer, ...]:
        found = {each.pair: each for each in self._state.observers.of(topic)}
        for pair, observer in self.observers.changes.items():
            if observer is None:
                found.pop(pair, None)
            elif pair[0] in (topic, ANY):
                found[pair] = observer
        return tuple(found.values())
