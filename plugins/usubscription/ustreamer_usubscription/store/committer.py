# SPDX-License-Identifier: Apache-2.0
"""Transactions in, commits of the store out."""

from collections.abc import Iterable
from typing import Final

from ustreamer.uprotocol.ustatus import UStatus, UStatusError
from ustreamer_usubscription.model.subscription import SubscriptionStatusChange, TopicEntityPair
from ustreamer_usubscription.store.history import PendingEvents
from ustreamer_usubscription.store.records import (
    RecordChange,
    delete_observer,
    delete_remote,
    delete_subscription,
    put_observer,
    put_remote,
    put_subscription,
    put_topic,
)
from ustreamer_usubscription.store.store import SubscriptionStore
from ustreamer_usubscription.store.transaction import Transaction


class Committer:
    """Commits transactions, with deletions that memory has already made. The service's thread owns it."""

    def __init__(self, store: SubscriptionStore, history: int) -> None:
        """`history`: the most events that wait for a commit."""
        self._store: Final = store
        self._pending_deletes: set[TopicEntityPair] = set()
        self._pending_events = PendingEvents(history)

    @property
    def has_pending_deletes(self) -> bool:
        """Whether the store still has ended subscriptions."""
        return bool(self._pending_deletes)

    def delete_with_next_commit(self, ended: Iterable[SubscriptionStatusChange], now_ms: int) -> None:
        """Delete these subscriptions, which memory has dropped, with the next commit."""
        for change in ended:
            self._pending_deletes.add(change.entry.pair)
            self._pending_events.add_change(change, now_ms)

    def commit_transaction(self, transaction: Transaction) -> UStatus | None:
        """Commit the transaction and pending deletions; return the error if the transaction is not on disk."""
        if transaction.is_empty and not self._pending_deletes:
            self._pending_events.add_events_of(transaction)
            return None
        try:
            self._store.commit(
                _record_changes(transaction, self._pending_deletes),
                self._pending_events.with_events_of(transaction),
            )
        except UStatusError as error:
            if not transaction.is_empty:
                return error.status
            self._pending_events.add_events_of(transaction)
            return None
        self._pending_deletes.clear()
        self._pending_events.clear()
        return None


def _record_changes(
    transaction: Transaction, pending_deletes: Iterable[TopicEntityPair]
) -> list[RecordChange]:
    """The record changes of a transaction and of the pending deletions."""
    subscriptions = dict.fromkeys(pending_deletes) | transaction.subscriptions.changes
    return [
        *(
            delete_subscription(*pair) if entry is None else put_subscription(entry)
            for pair, entry in subscriptions.items()
        ),
        *(
            delete_observer(pair) if observer is None else put_observer(observer)
            for pair, observer in transaction.observers.changes.items()
        ),
        *(
            delete_remote(topic) if status is None else put_remote(topic, status)
            for topic, status in transaction.remote_states.changes.items()
        ),
        *(
            put_topic(topic, state)
            for topic, state in transaction.declared_topics.changes.items()
            if state is not None
        ),
    ]
