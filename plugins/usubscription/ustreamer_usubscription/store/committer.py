# SPDX-License-Identifier: Apache-2.0
"""From a draft to the disk."""

from collections.abc import Iterable
from typing import Final

from ustreamer.uprotocol.ustatus import UStatus, UStatusError
from ustreamer_usubscription.model.subscription import Changed, Pair
from ustreamer_usubscription.store.history import Unwritten
from ustreamer_usubscription.store.records import (
    Change,
    delete,
    delete_observer,
    delete_remote,
    put,
    put_observer,
    put_remote,
    put_topic,
)
from ustreamer_usubscription.store.store import Store
from ustreamer_usubscription.store.transaction import Draft


class Writer:
    """Commits drafts, and with them what memory has given up before the disk did. Belongs to the service's thread."""

    def __init__(self, store: Store, history: int) -> None:
        """`history` is how many events are kept at most."""
        self._store: Final = store
        self._unsaved: set[Pair] = set()
        self._unwritten = Unwritten(history)

    @property
    def is_behind(self) -> bool:
        """Whether the store still has subscriptions that have ended."""
        return bool(self._unsaved)

    def forget(self, ended: Iterable[Changed], now_ms: int) -> None:
        """Have the next commit delete these subscriptions, which memory has dropped at once, whatever the disk says."""
        for changed in ended:
            self._unsaved.add(changed.entry.pair)
            self._unwritten.note(changed, now_ms)

    def save(self, draft: Draft) -> UStatus | None:
        """Commit the draft, and with it what is still to be deleted; the reason if the draft is not on disk now."""
        if draft.is_empty and not self._unsaved:
            self._unwritten.keep(draft)
            return None
        try:
            self._store.commit(_records(draft, self._unsaved), self._unwritten.with_those_of(draft))
        except UStatusError as error:
            if not draft.is_empty:
                return error.status
            self._unwritten.keep(draft)
            return None
        self._unsaved.clear()
        self._unwritten.clear()
        return None


def _records(draft: Draft, unsaved: Iterable[Pair]) -> list[Change]:
    """The records to write for a draft and for what is still to be deleted."""
    subscriptions = dict.fromkeys(unsaved) | draft.subscriptions.changes
    return [
        *(delete(*pair) if entry is None else put(entry) for pair, entry in subscriptions.items()),
        *(
            delete_observer(pair) if observer is None else put_observer(observer)
            for pair, observer in draft.observers.changes.items()
        ),
        *(
            delete_remote(topic) if status is None else put_remote(topic, status)
            for topic, status in draft.remotes.changes.items()
        ),
        *(put_topic(topic, state) for topic, state in draft.topics.changes.items() if state is not None),
    ]
