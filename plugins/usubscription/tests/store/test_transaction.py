# SPDX-License-Identifier: Apache-2.0
"""Decisions on top of a state, before they are committed."""

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import InMemoryDirectory
from ustreamer_usubscription.model.observers import Observers
from ustreamer_usubscription.model.subscription import (
    Observer,
    SubscriptionRecord,
    SubscriptionStatusChange,
    TopicEntityPair,
)
from ustreamer_usubscription.store.transaction import ServiceState, Transaction

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri

T1, T2 = UUri("a", 1, 1, 0x8001), UUri("a", 1, 1, 0x8002)
S1, S2, S10 = UUri("a", 0x1, 1, 0), UUri("a", 0x2, 1, 0), UUri("a", 0x10, 1, 0)


def directory(*entries: SubscriptionRecord) -> InMemoryDirectory:
    known = InMemoryDirectory()
    known.apply({entry.pair: entry for entry in entries})
    return known


def state_of(known: InMemoryDirectory, *observers: Observer) -> ServiceState:
    state = ServiceState({"a"}, known)
    state.observers.load(observers)
    return state


def draft_on(state: ServiceState | InMemoryDirectory, **limits: int) -> Transaction:
    state = state_of(state) if isinstance(state, InMemoryDirectory) else state
    return Transaction(state, UsubscriptionConfig(**limits), 0)  # type: ignore[arg-type]


def test_a_transaction_sees_its_changes_and_the_directory_does_not() -> None:
    known = directory(SubscriptionRecord(T1, S1))
    transaction = draft_on(known)
    transaction.put_subscription(SubscriptionRecord(T1, S1, 5))
    transaction.remove_subscription((T1, S2))
    assert transaction.subscriptions.find((T1, S1)) == SubscriptionRecord(T1, S1, 5)
    assert known.find((T1, S1)) == SubscriptionRecord(T1, S1)
    assert transaction.subscriptions.changes == {(T1, S1): SubscriptionRecord(T1, S1, 5)}


UNDONE: list[tuple[str, list[TopicEntityPair | SubscriptionRecord]]] = [
    ("the same once more", [SubscriptionRecord(T1, S1)]),
    ("there and back", [SubscriptionRecord(T1, S1, 9), SubscriptionRecord(T1, S1)]),
    ("in and out", [SubscriptionRecord(T2, S2), (T2, S2)]),
    ("out and in", [(T1, S1), SubscriptionRecord(T1, S1)]),
    ("out what is not in", [(T2, S2)]),
]


@pytest.mark.parametrize(("case", "steps"), UNDONE, ids=[case for case, _ in UNDONE])
def test_an_unchanged_entry_is_not_written(
    case: str, steps: list[TopicEntityPair | SubscriptionRecord]
) -> None:
    transaction = draft_on(directory(SubscriptionRecord(T1, S1)))
    for step in steps:
        if isinstance(step, SubscriptionRecord):
            transaction.put_subscription(step)
        else:
            transaction.remove_subscription(step)
    assert transaction.subscriptions.changes == {}, case


def test_the_limit_counts_changes_of_the_transaction() -> None:
    transaction = draft_on(directory(SubscriptionRecord(T1, S1)), max_subscriptions=2)
    transaction.put_subscription(SubscriptionRecord(T1, S2))
    with pytest.raises(UStatusError, match="2 subscriptions are kept, max_subscriptions is 2") as refused:
        transaction.put_subscription(SubscriptionRecord(T1, S10))
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    # a change of an existing record needs no space
    transaction.put_subscription(SubscriptionRecord(T1, S2, 5))
    transaction.remove_subscription((T1, S1))
    transaction.put_subscription(SubscriptionRecord(T1, S10))
    assert set(transaction.subscriptions.changes) == {(T1, S1), (T1, S2), (T1, S10)}


def test_registrations_have_a_limit_of_their_own() -> None:
    transaction = draft_on(
        state_of(directory(SubscriptionRecord(T1, S1)), Observer(T1, S1)), max_registrations=2
    )
    transaction.register_observer(Observer(T1, S2))
    with pytest.raises(UStatusError, match="2 registrations are kept, max_registrations is 2") as refused:
        transaction.register_observer(Observer(T2, S2))
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    transaction.register_observer(Observer(T1, S1))  # it is there already
    transaction.unregister_observer((T1, S1))
    transaction.register_observer(Observer(T2, S2))
    assert transaction.observers.changes == {
        (T1, S2): Observer(T1, S2),
        (T1, S1): None,
        (T2, S2): Observer(T2, S2),
    }


def test_a_reset_ends_committed_and_uncommitted_subscriptions() -> None:
    known = directory(SubscriptionRecord(T1, S1), SubscriptionRecord(T2, S1))
    state = state_of(known, Observer(T1, S1))
    transaction = draft_on(state)
    transaction.put_subscription(SubscriptionRecord(T1, S2))
    transaction.remove_subscription((T2, S1))
    transaction.register_observer(Observer(T2, S2))
    transaction.remove_all("reset")
    assert transaction.subscriptions.changes == {(T1, S1): None, (T2, S1): None}
    assert transaction.observers.changes == {(T1, S1): None}
    transaction.put_subscription(SubscriptionRecord(T2, S10))
    state.apply(transaction)
    assert list(known) == [SubscriptionRecord(T2, S10)]
    assert (list(state.observers), state.observers.count) == ([], 0)


def test_registrations_are_found_by_topic_until_they_end() -> None:
    observers = Observers()
    observers.load([Observer(T1, S1), Observer(T1, S2), Observer(T2, S1)])
    assert list(observers.observers_of(T1)) == [Observer(T1, S1), Observer(T1, S2)]
    assert observers.find((T2, S1)) == Observer(T2, S1)
    observers.apply({(T1, S1): None, (T2, S1): None, (T2, S2): None, (T1, S2): Observer(T1, S2, 4)})
    assert (list(observers), observers.count) == ([Observer(T1, S2, 4)], 1)
    assert list(observers.observers_of(T2)) == []


# --- observers of a transaction -----------------------------------------------------------------------------


def test_every_step_is_notified_even_if_a_later_one_reverts_it() -> None:
    """[utest->req~usubscription-subscribe-notifications~1] [utest->req~usubscription-unsubscribe-notifications~1]"""
    transaction = draft_on(directory(SubscriptionRecord(T1, S1, 5)))
    transaction.put_subscription(SubscriptionRecord(T1, S1, 5))  # unchanged: nothing
    transaction.put_subscription(SubscriptionRecord(T1, S1, 9))
    transaction.put_subscription(SubscriptionRecord(T1, S1, 5))
    transaction.remove_subscription((T1, S1), "why")
    transaction.remove_subscription((T1, S1), "again")  # nothing
    transaction.put_subscription(SubscriptionRecord(T1, S1, 5))
    assert transaction.is_empty
    assert transaction.subscription_changes == [
        SubscriptionStatusChange(SubscriptionRecord(T1, S1, 9), Status.SUBSCRIBED),
        SubscriptionStatusChange(SubscriptionRecord(T1, S1, 5), Status.SUBSCRIBED),
        SubscriptionStatusChange(SubscriptionRecord(T1, S1, 5), Status.UNSUBSCRIBED, (), "why"),
        SubscriptionStatusChange(SubscriptionRecord(T1, S1, 5), Status.SUBSCRIBED),
    ]


def test_the_observers_at_the_time_of_the_change_are_notified() -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    first, second, elsewhere = Observer(T1, S2), Observer(T1, S10), Observer(T2, S2)
    transaction = draft_on(state_of(directory(), first, elsewhere))
    transaction.put_subscription(SubscriptionRecord(T1, S1, 1))
    transaction.register_observer(second)
    transaction.put_subscription(SubscriptionRecord(T1, S1, 2))
    transaction.unregister_observer(first.pair)
    transaction.put_subscription(SubscriptionRecord(T1, S1, 3))
    transaction.remove_all("reset")
    transaction.put_subscription(SubscriptionRecord(T1, S1, 4))
    assert [event.observers for event in transaction.subscription_changes] == [
        (first,),
        (first, second),
        (second,),
        (second,),
        (),
    ]


def test_a_refused_subscription_is_not_notified() -> None:
    transaction = draft_on(directory(SubscriptionRecord(T1, S1)), max_subscriptions=1)
    with pytest.raises(UStatusError):
        transaction.put_subscription(SubscriptionRecord(T1, S2))
    assert transaction.subscription_changes == []


def test_an_observer_of_all_topics_in_the_same_transaction_is_notified() -> None:
    """[utest->req~usubscription-register-notifications~1]"""
    everything = Observer(ANY, S2, 4)
    transaction = draft_on(directory())
    transaction.register_observer(everything)
    transaction.put_subscription(SubscriptionRecord(T1, S1))
    transaction.unregister_observer(everything.pair)
    transaction.put_subscription(SubscriptionRecord(T2, S1))
    assert [event.observers for event in transaction.subscription_changes] == [(everything,), ()]
