# SPDX-License-Identifier: Apache-2.0
"""What is committed, and what waits for a commit that succeeds."""

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


def test_a_draft_without_changes_needs_no_transaction(store: SubscriptionStore) -> None:
    before = store.transactions
    assert Committer(store, 0).commit_transaction(drafted()) is None
    assert store.transactions == before


def test_what_memory_has_dropped_goes_with_the_next_commit(store: SubscriptionStore) -> None:
    writer = Committer(store, 0)
    writer.delete_with_next_commit([SubscriptionStatusChange(ENDED, Status.UNSUBSCRIBED)], 6)
    behind = writer.has_pending_deletes
    assert writer.commit_transaction(drafted(NEW)) is None
    assert (behind, writer.has_pending_deletes) == (True, False)
    assert list(store.load_subscriptions()) == [NEW]
    assert list(store.load_remote_states()) == [(NEW.topic, Status.SUBSCRIBE_PENDING)]


def test_whoever_subscribes_anew_what_has_just_ended_is_not_deleted(store: SubscriptionStore) -> None:
    writer = Committer(store, 0)
    writer.delete_with_next_commit([SubscriptionStatusChange(ENDED, Status.UNSUBSCRIBED)], 6)
    again = SubscriptionRecord(*ENDED.pair)
    assert writer.commit_transaction(drafted(again)) is None
    assert list(store.load_subscriptions()) == [again]


def test_what_could_not_be_deleted_is_tried_again_and_nobody_is_refused_for_it(
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
