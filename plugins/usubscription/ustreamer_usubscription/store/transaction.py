# SPDX-License-Identifier: Apache-2.0
"""The state of the service and a transaction on top of it: decisions in, changes to commit out."""

from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from msgspec.structs import replace

from ustreamer.core.dispatch.dedup_window import DedupWindow
from ustreamer.core.egress.dead_letter import USTREAMER
from ustreamer.core.routing.usubscription_codec import USUBSCRIPTION, Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import ANY, ANY_INSTANCE, UUri
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.declared_topics import DeclaredTopics, TopicState
from ustreamer_usubscription.model.lifecycle import LifecycleEvent, next_status
from ustreamer_usubscription.model.observers import Observers
from ustreamer_usubscription.model.remote_status import RemoteTopicStates
from ustreamer_usubscription.model.subscription import (
    Observer,
    SubscriptionRecord,
    SubscriptionStatusChange,
    TopicEntityPair,
)

K = TypeVar("K", bound=Hashable)
K_contra = TypeVar("K_contra", bound=Hashable, contravariant=True)
V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

MAX_RESETS: Final = 1_024
"""Executed Resets that are remembered. Only a caller that may reset can add one."""
_OWN_ENTITIES: Final = frozenset({USUBSCRIPTION, USTREAMER})
"""Their topics, the changes and the dead letters, are those of the streamer itself."""


class TableReader(Protocol[K_contra, V_co]):
    """The committed table under an `Overlay`."""

    @property
    def count(self) -> int: ...

    def count_of(self, authority: str, /) -> int:
        """The entries of one authority."""
        ...

    def find(self, key: K_contra, /) -> V_co | None: ...


class ShareExhausted(UStatusError):
    """RESOURCE_EXHAUSTED for one authority: others still have room."""


class ServiceState:
    """The committed state in memory. One thread writes; `InMemoryDirectory` documents concurrent reads."""

    def __init__(self, served_authorities: Container[str], directory: InMemoryDirectory) -> None:
        """Topics of `served_authorities` are local, all others are remote."""
        self.directory = directory
        self.observers = Observers()
        self.declared_topics = DeclaredTopics()
        self.remote_states = RemoteTopicStates()
        self.executed_resets = DedupWindow(MAX_RESETS)
        self._served_authorities = served_authorities

    def is_remote(self, topic: UUri) -> bool:
        """Whether another uSubscription manages the topic too."""
        return topic.authority_name not in self._served_authorities

    def subscription_status(self, topic: UUri) -> Status:
        """The status of existing subscriptions of `topic`; SUBSCRIBED for a local topic."""
        return self.remote_states.find(topic) or Status.SUBSCRIBED

    def apply(self, transaction: "Transaction") -> None:
        """Apply a committed transaction."""
        self.directory.apply(transaction.subscriptions.changes)
        self.directory.report_subscribes(transaction.subscribed.values())
        self.observers.apply(transaction.observers.changes)
        self.declared_topics.apply(transaction.declared_topics.changes)
        self.remote_states.apply(transaction.remote_states.changes)
        for each in transaction.executed_resets:
            self.executed_resets.first_seen(each)


class Overlay(Generic[K, V]):
    """A table with uncommitted changes on top.

    `changes` has the last decision for each key, and no entry for an unchanged key.
    """

    def __init__(
        self,
        table: TableReader[K, V],
        limit: int,
        noun: str,
        share: int | None = None,
        authority_of: Callable[[K], str] = lambda _: "",
    ) -> None:
        """`limit` bounds the entries, `share` those of one authority; the settings max_<noun>... define both."""
        self.changes: dict[K, V | None] = {}
        self._table = table
        self._limit = limit
        self._noun = noun
        self._count = table.count
        self._share = share
        self._authority_of = authority_of
        self._added: dict[str, int] = {}  # by authority, if there is a share

    def find(self, key: K) -> V | None:
        return self.changes[key] if key in self.changes else self._table.find(key)

    def check_limit(self, key: K) -> None:
        """Raises UStatusError(RESOURCE_EXHAUSTED) if a new entry at `key` exceeds the limit or the share."""
        authority = "" if self._share is None else self._authority_of(key)
        owned = 0 if self._share is None else self._table.count_of(authority) + self._added.get(authority, 0)
        exhausted = self._share is not None and owned >= self._share
        if not (exhausted or self._count >= self._limit) or self.find(key) is not None:
            return
        if exhausted:
            raise ShareExhausted(
                UCode.RESOURCE_EXHAUSTED,
                f"{owned} {self._noun} of {authority!r} are kept, max_{self._noun}_per_authority is {self._share}",
            )
        raise UStatusError(
            UCode.RESOURCE_EXHAUSTED,
            f"{self._count} {self._noun} are kept, max_{self._noun} is {self._limit}",
        )

    def set_value(self, key: K, value: V) -> None:
        """Set the value without a limit; call `check_limit` before."""
        self._set(key, value)

    def remove_value(self, key: K) -> None:
        """Remove the value of `key`."""
        self._set(key, None)

    def entries(self, committed: Iterable[K]) -> Iterator[tuple[K, V]]:
        """All entries; `committed` are the keys of the table, which come first."""
        for key in dict.fromkeys([*committed, *self.changes]):
            value = self.find(key)
            if value is not None:
                yield key, value

    def _set(self, key: K, value: V | None) -> None:
        stored = self._table.find(key)
        change = (value is not None) - (self.changes.get(key, stored) is not None)
        self._count += change
        if self._share is not None:
            authority = self._authority_of(key)
            self._added[authority] = self._added.get(authority, 0) + change
        if stored == value:
            self.changes.pop(key, None)
        else:
            self.changes[key] = value


def _entity_authority(pair: TopicEntityPair) -> str:
    return pair[1].authority_name


class Transaction:
    """Changes on top of a state that are committed together.

    `subscription_changes` has every step in order, even if a later step undoes it: each was answered, so observers
    are notified of each.
    """

    def __init__(
        self, state: ServiceState, config: UsubscriptionConfig, now_ms: int, earliest_ms: int | None = None
    ) -> None:
        """`now_ms` is wall-clock time and dates events; `config` has the limits.

        `earliest_ms` is the time that ends subscriptions: `Expiry.earliest_wall_ms`, or `now_ms`.
        """
        self.now_ms = now_ms
        self.earliest_ms = now_ms if earliest_ms is None else earliest_ms
        self.subscriptions: Overlay[TopicEntityPair, SubscriptionRecord] = Overlay(
            state.directory,
            config.max_subscriptions,
            "subscriptions",
            config.max_subscriptions_per_authority,
            _entity_authority,
        )
        self.observers: Overlay[TopicEntityPair, Observer] = Overlay(
            state.observers,
            config.max_registrations,
            "registrations",
            config.max_registrations_per_authority,
            _entity_authority,
        )
        self.declared_topics: Overlay[UUri, TopicState] = Overlay(
            state.declared_topics,
            config.max_topics,
            "topics",
            config.max_topics_per_authority,
            lambda topic: topic.authority_name,
        )
        self.remote_states: Overlay[UUri, Status] = Overlay(
            state.remote_states, config.max_remote_topics, "remote_topics"
        )
        self.subscription_changes: list[SubscriptionStatusChange] = []
        self.subscribed: dict[TopicEntityPair, SubscriptionRecord] = {}  # by a Subscribe, new or repeated
        self.executed_resets: set[UUID] = set()
        self.reconciled_topics: list[UUri] = []  # topics whose subscriptions changed outside a transaction
        self._state = state
        # Observers of the topics with a change in this transaction.
        self._observers_by_topic: dict[UUri, tuple[Observer, ...]] = {}
        # Subscribers of the remote topics that this transaction touches.
        self._client_counts: dict[UUri, int] = {}

    @property
    def is_empty(self) -> bool:
        overlays = (self.subscriptions, self.observers, self.declared_topics, self.remote_states)
        return not any(each.changes for each in overlays)

    # --- subscriptions ------------------------------------------------------------------------------------------------

    def put_subscription(self, entry: SubscriptionRecord) -> Status:
        """Create or change a subscription; return its status. Raises UStatusError(RESOURCE_EXHAUSTED) at the limit.

        [impl->req~usubscription-subscribe-notifications~1] Observers are notified of a new or changed subscription.
        """
        topic = entry.topic
        self.subscriptions.check_limit(entry.pair)
        if self._state.is_remote(topic):
            self.remote_states.check_limit(topic)
        before = self.subscriptions.find(entry.pair)
        if before is None:
            self._count_clients(topic, +1)
        self.subscriptions.set_value(entry.pair, entry)
        self.subscribed[entry.pair] = entry
        status = self._apply_lifecycle_event(topic, LifecycleEvent.CLIENT_SUBSCRIBED)
        if before is None or replace(before, version=entry.version) != entry:
            self._note_change(entry, status)
        return status

    def remove_subscription(
        self, pair: TopicEntityPair, reason: str = "", *, notifies_subscriber: bool = True
    ) -> None:
        """End a subscription, if there is one.

        [impl->req~usubscription-unsubscribe-notifications~1] Observers are notified of the end, and the subscriber if
        `notifies_subscriber`, as in the sequence diagrams. A topic without subscriptions cannot change, so no
        notification follows the last one. [impl->req~usubscription-remote-unsubscribe-notifications~1]
        """
        entry = self.subscriptions.find(pair)
        if entry is None:
            return
        self._count_clients(entry.topic, -1)
        self.subscriptions.remove_value(pair)
        self._note_change(entry, Status.UNSUBSCRIBED, reason, notifies_subscriber=notifies_subscriber)
        if not self._client_counts.get(entry.topic, 1):
            self._apply_lifecycle_event(entry.topic, LifecycleEvent.LAST_CLIENT_LEFT)

    # --- remote topics ------------------------------------------------------------------------------------------------

    def remote_status(self, topic: UUri) -> Status:
        """The state of a remote topic; UNSUBSCRIBED for an unknown one."""
        return self.remote_states.find(topic) or Status.UNSUBSCRIBED

    def apply_remote_event(self, topic: UUri, event: LifecycleEvent, reason: str = "") -> None:
        """Apply the response of a topic's remote uSubscription to all its subscriptions, and notify each.

        [impl->req~usubscription-subscribe-remote-response~1] `reason` is text for people.
        """
        before = self.remote_status(topic)
        after = self._apply_lifecycle_event(topic, event)
        if after is before:
            return
        for entry in self._subscriptions_at(topic):
            if after is Status.UNSUBSCRIBED:
                self._count_clients(topic, -1)
                self.subscriptions.remove_value(entry.pair)
            self._note_change(entry, after, reason)

    def reconcile_topic(self, topic: UUri) -> None:
        """Derive the state of a topic from its subscriptions, after changes outside a transaction."""
        if not self._state.is_remote(topic):
            self.remote_states.remove_value(topic)  # from before the configuration made the topic local
        else:
            self._count_clients(topic, 0)
            self._apply_lifecycle_event(
                topic,
                LifecycleEvent.CLIENT_SUBSCRIBED
                if self._client_counts[topic]
                else LifecycleEvent.LAST_CLIENT_LEFT,
            )
        self.reconciled_topics.append(topic)

    def _apply_lifecycle_event(self, topic: UUri, event: LifecycleEvent) -> Status:
        if not self._state.is_remote(topic):
            return next_status(Status.SUBSCRIBED, event, remote=False)
        status = next_status(self.remote_status(topic), event, remote=True)
        if status is Status.UNSUBSCRIBED:
            self.remote_states.remove_value(topic)
        else:
            self.remote_states.set_value(topic, status)
        return status

    def _count_clients(self, topic: UUri, change: int) -> None:
        if self._state.is_remote(topic):
            known = self._client_counts.get(topic)
            self._client_counts[topic] = (
                len(self._state.directory.exact_subscriptions(topic)) if known is None else known
            ) + change

    def _subscriptions_at(self, topic: UUri) -> list[SubscriptionRecord]:
        """The subscriptions of exactly this topic: O(its subscriptions + uncommitted changes)."""
        committed = [entry.pair for entry in self._state.directory.exact_subscriptions(topic)]
        pending = [pair for pair in self.subscriptions.changes if pair[0] == topic]
        found = (self.subscriptions.find(pair) for pair in dict.fromkeys([*committed, *pending]))
        return [entry for entry in found if entry is not None]

    # --- registrations and topics -------------------------------------------------------------------------------------

    def register_observer(self, observer: Observer) -> None:
        """Register an observer. Raises UStatusError(RESOURCE_EXHAUSTED) at the limit."""
        self.observers.check_limit(observer.pair)
        self.observers.set_value(observer.pair, observer)
        self._observers_by_topic.clear()

    def unregister_observer(self, pair: TopicEntityPair) -> None:
        """Remove an observer, if there is one.

        [impl->req~usubscription-unregister-notifications~1]
        """
        self.observers.remove_value(pair)
        self._observers_by_topic.clear()

    def declare_topic(self, topic: UUri, state: TopicState) -> None:
        """Set the state of a declared topic. Raises UStatusError(RESOURCE_EXHAUSTED) at the limit."""
        self.declared_topics.check_limit(topic)
        self.declared_topics.set_value(topic, state)

    def reset_once(self, id: UUID, reason: str) -> bool:
        """Execute the Reset with this id, unless it was executed before; whether it was executed now."""
        if id in self.executed_resets or id in self._state.executed_resets:
            return False
        self.executed_resets.add(id)
        self.remove_all(reason)
        return True

    def remove_all(self, reason: str) -> None:
        """End all subscriptions, then all registrations, so that observers are notified first.

        Declared topics stay: producers are not notified of a reset and would not declare them again.
        [impl->req~usubscription-reset~1]
        """
        for pair, _ in self.subscriptions.entries(entry.pair for entry in self._state.directory):
            self.remove_subscription(pair, reason)
        for pair, _ in self.observers.entries(each.pair for each in self._state.observers):
            self.unregister_observer(pair)

    def declared_states(self, topic: UUri) -> set[TopicState]:
        """The states of the declared topics that match `topic`, which can have an instance wildcard.

        The streamer's own topics are ACTIVE: no other entity may create them.
        """
        if topic.ue_id in _OWN_ENTITIES:
            return {TopicState.ACTIVE}
        topics: Iterable[UUri] = [topic]
        if topic.ue_instance == ANY_INSTANCE:
            pending = [each for each in self.declared_topics.changes if topic.matches(each)]
            topics = [*self._state.declared_topics.instances_of(topic), *pending]
        return {state for each in topics if (state := self.declared_topics.find(each)) is not None}

    def _note_change(
        self, entry: SubscriptionRecord, status: Status, reason: str = "", *, notifies_subscriber: bool = True
    ) -> None:
        observers = self._observers_by_topic.get(entry.topic)
        if observers is None:
            observers = self._observers_by_topic[entry.topic] = self._observers_of(entry.topic)
        self.subscription_changes.append(
            SubscriptionStatusChange(entry, status, observers, reason, notifies_subscriber)
        )

    def _observers_of(self, topic: UUri) -> tuple[Observer, ...]:
        found = {each.pair: each for each in self._state.observers.observers_of(topic)}
        for pair, observer in self.observers.changes.items():
            if observer is None:
                found.pop(pair, None)
            elif pair[0] in (topic, ANY):
                found[pair] = observer
        return tuple(found.values())
