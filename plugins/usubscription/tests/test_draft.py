# SPDX-License-Identifier: Apache-2.0
"""Decisions on top of a state, before they are committed."""

import pytest
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.directory import Directory
from ustreamer_usubscription.model.observers import Observers
from ustreamer_usubscription.model.subscription import Changed, Observer, Pair, Tracked
from ustreamer_usubscription.store.transaction import Draft, State

from ustreamer.core.routing.usubscription_codec import Status
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri

T1, T2 = UUri("a", 1, 1, 0x8001), UUri("a", 1, 1, 0x8002)
S1, S2, S10 = UUri("a", 0x1, 1, 0), UUri("a", 0x2, 1, 0), UUri("a", 0x10, 1, 0)


def directory(*entries: Tracked) -> Directory:
    known = Directory()
    known.apply({entry.pair: entry for entry in entries})
    return known


def state_of(known: Directory, *observers: Observer) -> State:
    state = State({"a"}, known)
    state.observers.load(observers)
    return state


def draft_on(state: State | Directory, **limits: int) -> Draft:
    state = state_of(state) if isinstance(state, Directory) else state
    return Draft(state, UsubscriptionConfig(**limits), 0)  # type: ignore[arg-type]


def test_a_draft_is_seen_by_itself_and_not_by_the_directory() -> None:
    known = directory(Tracked(T1, S1))
    draft = draft_on(known)
    draft.put(Tracked(T1, S1, 5))
    draft.remove((T1, S2))
    assert draft.subscriptions.find((T1, S1)) == Tracked(T1, S1, 5)
    assert known.find((T1, S1)) == Tracked(T1, S1)
    assert draft.subscriptions.changes == {(T1, S1): Tracked(T1, S1, 5)}


UNDONE: list[tuple[str, list[Pair | Tracked]]] = [
    ("the same once more", [Tracked(T1, S1)]),
    ("there and back", [Tracked(T1, S1, 9), Tracked(T1, S1)]),
    ("in and out", [Tracked(T2, S2), (T2, S2)]),
    ("out and in", [(T1, S1), Tracked(T1, S1)]),
    ("out what is not in", [(T2, S2)]),
]


@pytest.mark.parametrize(("case", "steps"), UNDONE, ids=[case for case, _ in UNDONE])
def test_what_changes_nothing_is_not_written(case: str, steps: list[Pair | Tracked]) -> None:
    draft = draft_on(directory(Tracked(T1, S1)))
    for step in steps:
        if isinstance(step, Tracked):
            draft.put(step)
        else:
            draft.remove(step)
    assert draft.subscriptions.changes == {}, case


def test_the_limit_counts_what_the_draft_adds_and_removes() -> None:
    draft = draft_on(directory(Tracked(T1, S1)), max_subscriptions=2)
    draft.put(Tracked(T1, S2))
    with pytest.raises(UStatusError, match="2 subscriptions are kept, max_subscriptions is 2") as refused:
        draft.put(Tracked(T1, S10))
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    draft.put(Tracked(T1, S2, 5))  # a change of what is there needs no room
    draft.remove((T1, S1))
    draft.put(Tracked(T1, S10))
    assert set(draft.subscriptions.changes) == {(T1, S1), (T1, S2), (T1, S10)}


def test_registrations_have_a_limit_of_their_own() -> None:
    draft = draft_on(state_of(directory(Tracked(T1, S1)), Observer(T1, S1)), max_registrations=2)
    draft.register(Observer(T1, S2))
    with pytest.raises(UStatusError, match="2 registrations are kept, max_registrations is 2") as refused:
        draft.register(Observer(T2, S2))
    assert refused.value.code is UCode.RESOURCE_EXHAUSTED
    draft.register(Observer(T1, S1))  # it is there already
    draft.unregister((T1, S1))
    draft.register(Observer(T2, S2))
    assert draft.observers.changes == {
        (T1, S2): Observer(T1, S2),
        (T1, S1): None,
        (T2, S2): Observer(T2, S2),
    }


def test_clearing_ends_what_is_committed_and_what_is_not() -> None:
    known = directory(Tracked(T1, S1), Tracked(T2, S1))
    state = state_of(known, Observer(T1, S1))
    draft = draft_on(state)
    draft.put(Tracked(T1, S2))
    draft.remove((T2, S1))
    draft.register(Observer(T2, S2))
    draft.clear("reset")
    assert draft.subscriptions.changes == {(T1, S1): None, (T2, S1): None}
    assert draft.observers.changes == {(T1, S1): None}
    draft.put(Tracked(T2, S10))
    state.apply(draft)
    assert list(known) == [Tracked(T2, S10)]
    assert (list(state.observers), state.observers.count) == ([], 0)


def test_registrations_are_found_by_topic_and_forgotten_when_they_end() -> None:
    observers = Observers()
    observers.load([Observer(T1, S1), Observer(T1, S2), Observer(T2, S1)])
    assert list(observers.of(T1)) == [Observer(T1, S1), Observer(T1, S2)]
    assert observers.find((T2, S1)) == Observer(T2, S1)
    observers.apply({(T1, S1): None, (T2, S1): None, (T2, S2): None, (T1, S2): Observer(T1, S2, 4)})
    assert (list(observers), observers.count) == ([Observer(T1, S2, 4)], 1)
    assert list(observers.of(T2)) == []


# --- what is told of a draft ------------------------------------------------------------------------------------------


def test_every_step_is_told_though_a_later_one_undoes_it() -> None:
    """[utest->req~usubscription-subscribe-notifications~1] [utest->req~usubscription-unsubscribe-notifications~1]"""
    draft = draft_on(directory(Tracked(T1, S1, 5)))
    draft.put(Tracked(T1, S1, 5))  # as it is: nothing
    draft.put(Tracked(T1, S1, 9))
    draft.put(Tracked(T1, S1, 5))
    draft.remove((T1, S1), "why")
    draft.remove((T1, S1), "again")  # nothing
    draft.put(Tracked(T1, S1, 5))
    assert draft.is_empty
    assert draft.events == [
        Changed(Tracked(T1, S1, 9), Status.SUBSCRIBED),
        Changed(Tracked(T1, S1, 5), Status.SUBSCRIBED),
        Changed(Tracked(T1, S1, 5), Status.UNSUBSCRIBED, (), "why"),
        Changed(Tracked(T1, S1, 5), Status.SUBSCRIBED),
    ]


def test_whoever_watches_at_that_moment_is_told() -> None:
    """[utest->req~usubscription-register-notifications~1] [utest->req~usubscription-unregister-notifications~1]"""
    first, second, elsewhere = Observer(T1, S2), Observer(T1, S10), Observer(T2, S2)
    draft = draft_on(state_of(directory(), first, elsewhere))
    draft.put(Tracked(T1, S1, 1))
    draft.register(second)
    draft.put(Tracked(T1, S1, 2))
    draft.unregister(first.pair)
    draft.put(Tracked(T1, S1, 3))
    draft.clear("reset")
    draft.put(Tracked(T1, S1, 4))
    assert [event.observers for event in draft.events] == [
        (first,),
        (first, second),
        (second,),
        (second,),
        (),
    ]


def test_a_subscription_that_is_refused_is_not_told() -> None:
    draft = draft_on(directory(Tracked(T1, S1)), max_subscriptions=1)
    with pytest.raises(UStatusError):
        draft.put(Tracked(T1, S2))
    assert draft.events == []


def test_whoever_registers_for_everything_in_the_same_draft_is_told() -> None:
    """[utest->req~usubscription-register-notifications~1]"""
    everything = Observer(ANY, S2, 4)
    draft = draft_on(directory())
    draft.register(everything)
    draft.put(Tracked(T1, S1))
    draft.unregister(everything.pair)
    draft.put(Tracked(T2, S1))
    assert [event.observers for event in draft.events] == [(everything,), ()]
