# SPDX-License-Identifier: Apache-2.0
"""Commits of transactions, and deletions and events that wait for a successful commit."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.subscription import SubscriptionRecord, SubscriptionStatusChange
from ustreamer_usubscription.store.committer import Committer
from ustreamer_usubscription.store.store import SubscriptionStore, put_subscription
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

ENDED = SubscriptionRecord(UUri("a", 1, 1, 0x8000), UUri("a", 2, 1, 0), 0, 5)
NEW = SubscriptionRecord(UUri("b", 1, 1, 0x8000), UUri("a", 2, 1, 0))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SubscriptionStore]:
    store = SubscriptionStore(tmp_path / "store", 1 << 20)
    store.open()
    store.commit([put_subscription(ENDED)])
    yield store
    store.close()


def drafted(*entries: SubscriptionRecord) -> Transaction:
    transaction = Transaction(ServiceState({"a"}, InMemoryDirectory()), UsubscriptionConfig(), 6)
    for entry in entries:
        transaction.put_subscription(entry)
    return transaction


def test_a_transaction_without_changes_needs_no_commit(store: SubscriptionStore) -> None:
    before = store.statistics()["transactions"]
    assert Committer(store, 0).commit_transaction(drafted()) is None
    assert store.statistics()["transactions"] == before


def test_the_next_commit_deletes_subscriptions_dropped_from_memory(store: SubscriptionStore) -> None:
    writer = Committer(store, 0)
    writer.delete_with_next_commit([SubscriptionStatusChange(ENDED, Status.UNSUBSCRIBED)], 6)
    behind = writer.has_pending_deletes
    assert writer.commit_transaction(drafted(NEW)) is None
    assert (behind, writer.has_pending_deletes) == (True, False)
    assert list(store.load_subscriptions()) == [NEW]
    assert list(store.load_remote_states()) == [(NEW.topic, Status.SUBSCRIBE_PENDING)]


def test_a_renewed_subscription_is_not_deleted(store: SubscriptionStore) -> None:
    writer = Committer(store, 0)
    writer.delete_with_next_commit([SubscriptionStatusChange(ENDED, Status.UNSUBSCRIBED)], 6)
    again = SubscriptionRecord(*ENDED.pair)
    assert writer.commit_transaction(drafted(again)) is None
    assert list(store.load_subscriptions()) == [again]


def test_a_failed_deletion_is_retried_and_refuses_no_request(
    store: SubscriptionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Committer(store, 0)
    writer.delete_with_next_commit([SubscriptionStatusChange(ENDED, Status.UNSUBSCRIBED)], 6)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", full)
        assert writer.commit_transaction(drafted()) is None
        refused = writer.commit_transaction(drafted(NEW))
        assert refused is not None
        assert refused.code is UCode.RESOURCE_EXHAUSTED
    assert writer.has_pending_deletes
    assert writer.commit_transaction(drafted()) is None
    assert list(store.load_subscriptions()) == []
