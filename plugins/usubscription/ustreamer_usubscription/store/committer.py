# SPDX-License-Identifier: Apache-2.0
"""From a draft to the disk."""

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
    """Commits drafts, and with them what memory has given up before the disk did. Belongs to the service's thread."""

    def __init__(self, store: SubscriptionStore, history: int) -> None:
        """`history` is how many events are kept at most."""
        self._store: Final = store
        self._pending_deletes: set[TopicEntityPair] = set()
        self._pending_events = PendingEvents(history)

    @property
    def has_pending_deletes(self) -> bool:
        """Whether the store still has subscriptions that have ended."""
        return bool(self._pending_deletes)

    def delete_with_next_commit(self, ended: Iterable[SubscriptionStatusChange], now_ms: int) -> None:
        """Have the next commit delete these subscriptions, which memory has dropped at once, whatever the disk says."""
        for change in ended:
            self._pending_deletes.add(change.entry.pair)
            self._pending_events.add_change(change, now_ms)

    def commit_transaction(self, transaction: Transaction) -> UStatus | None:
        """Commit the draft, and with it what is still to be deleted; the reason if the draft is not on disk now."""
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
    """The records to write for a draft and for what is still to be deleted."""
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
