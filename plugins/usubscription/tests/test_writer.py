# SPDX-License-Identifier: Apache-2.0
"""What is committed, and what waits for a commit that succeeds."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.model.subscription import Changed, Tracked
from ustreamer_usubscription.store.committer import Writer
from ustreamer_usubscription.store.store import Store, put
from ustreamer_usubscription.store.transaction import Draft, State

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import UUri

ENDED = Tracked(UUri("a", 1, 1, 0x8000), UUri("a", 2, 1, 0), 0, 5)
NEW = Tracked(UUri("b", 1, 1, 0x8000), UUri("a", 2, 1, 0))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store", 1 << 20)
    store.open()
    store.commit([put(ENDED)])
    yield store
    store.close()


def drafted(*entries: Tracked) -> Draft:
    draft = Draft(State({"a"}, Directory()), UsubscriptionConfig(), 6)
    for entry in entries:
        draft.put(entry)
    return draft


def test_a_draft_without_changes_needs_no_transaction(store: Store) -> None:
    before = store.transactions
    assert Writer(store, 0).save(drafted()) is None
    assert store.transactions == before


def test_what_memory_has_dropped_goes_with_the_next_commit(store: Store) -> None:
    writer = Writer(store, 0)
    writer.forget([Changed(ENDED, Status.UNSUBSCRIBED)], 6)
    behind = writer.is_behind
    assert writer.save(drafted(NEW)) is None
    assert (behind, writer.is_behind) == (True, False)
    assert list(store.load()) == [NEW]
    assert list(store.remotes()) == [(NEW.topic, Status.SUBSCRIBE_PENDING)]


def test_whoever_subscribes_anew_what_has_just_ended_is_not_deleted(store: Store) -> None:
    writer = Writer(store, 0)
    writer.forget([Changed(ENDED, Status.UNSUBSCRIBED)], 6)
    again = Tracked(*ENDED.pair)
    assert writer.save(drafted(again)) is None
    assert list(store.load()) == [again]


def test_what_could_not_be_deleted_is_tried_again_and_nobody_is_refused_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(store, 0)
    writer.forget([Changed(ENDED, Status.UNSUBSCRIBED)], 6)

    def full(*_: object) -> None:
        raise UStatusError(UCode.RESOURCE_EXHAUSTED, "full")

    with monkeypatch.context() as patched:
        patched.setattr(store, "commit", full)
        assert writer.save(drafted()) is None
        refused = writer.save(drafted(NEW))
        assert refused is not None
        assert refused.code is UCode.RESOURCE_EXHAUSTED
    assert writer.is_behind
    assert writer.save(drafted()) is None
    assert list(store.load()) == []
