# SPDX-License-Identifier: Apache-2.0
"""Reconciling desired with acknowledged subscriptions converges, within bounds.

Pure: time, links and peers are simulated.
"""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ustreamer.core.base.links import LinkState
from ustreamer.core.routing.subscription_reconciler import (
    ReconcilerPolicy,
    SubscriptionEntry,
    SubscriptionReconciler,
)

MS = 1_000_000
TIMEOUT_MS = 5_000
MAX_IN_FLIGHT = 2
PEERS = 2
KEYS = 3

Key = tuple[str, int]
Entry = SubscriptionEntry[Key, int, int]


class SimulatedPeers:
    """Peers that apply each call that reaches them, and a network that loses calls and delays answers.

    A refused call changes nothing at the peer and is settled, as a final refusal is: the acknowledged value is
    desired.
    """

    def __init__(self, *, opposite_supersedes: bool) -> None:
        self.links = {f"peer{number}": LinkState(up=True, up_count=1) for number in range(PEERS)}
        policy = ReconcilerPolicy(
            call_timeout_ms=TIMEOUT_MS,
            max_in_flight=MAX_IN_FLIGHT,
            opposite_supersedes=opposite_supersedes,
        )
        self.reconciler: SubscriptionReconciler[Key, int, int] = SubscriptionReconciler(
            policy, lambda key: key[0], self.links.__getitem__
        )
        self.now_ms = 0
        self.calls_made = 0
        self.desired: dict[Key, int | None] = {}
        self.at_peer: dict[Key, int | None] = {}
        self.unanswered: list[int] = []

    def set_desired(self, key: Key, value: int | None) -> None:
        self.desired[key] = value
        self.reconciler.set_desired(key, value)

    def send_due(self, *, lose: bool = False) -> None:
        for entry in self.reconciler.pop_timeouts(self.now_ms * MS):
            self.reconciler.on_failure(entry, self.now_ms * MS)
        for entry in self.reconciler.pop_ready():
            self.calls_made += 1
            self.reconciler.begin_call(entry, self.calls_made, self.now_ms * MS)
            if not lose:
                self.at_peer[entry.key] = entry.desired
                self.unanswered.append(self.calls_made)
        self.check_bounds()

    def check_bounds(self) -> None:
        """At most MAX_IN_FLIGHT calls to each peer, and one about each key."""
        pending = [each for each in map(self.reconciler.find, self.desired) if each and each.pending_call]
        assert len(pending) == self.reconciler.in_flight_count
        for peer in self.links:
            assert sum(entry.key[0] == peer for entry in pending) <= MAX_IN_FLIGHT

    def answer(self, index: int, outcome: str) -> None:
        if not self.unanswered:
            return
        entry = self.reconciler.on_response(self.unanswered.pop(index % len(self.unanswered)))
        if entry is None:
            return  # late or superseded
        if outcome == "granted":
            self.reconciler.on_success(entry, self.now_ms * MS)
        elif outcome == "failed":
            self.reconciler.on_failure(entry, self.now_ms * MS)
        else:
            self.at_peer[entry.key] = entry.acknowledged
            self.reconciler.revert_desired(entry.key)
            self.desired[entry.key] = entry.desired
            self.reconciler.settle(entry)

    def set_link(self, peer: str, *, up: bool) -> None:
        before = self.links[peer]
        self.links[peer] = LinkState(up, before.up_count + (up and not before.up))
        self.reconciler.on_link_changed()

    def heal(self) -> None:
        """Bring all links up, then answer every call until nothing is due."""
        for peer in self.links:
            self.set_link(peer, up=True)
        for _ in range(2 * KEYS * PEERS + 20):
            self.send_due()
            while self.unanswered:
                self.answer(0, "granted")
                self.send_due()
            self.now_ms += 60_000


KEY = st.tuples(st.sampled_from([f"peer{number}" for number in range(PEERS)]), st.integers(0, KEYS - 1))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("desire"), KEY, st.sampled_from([None, 10, 20])),
        st.tuples(st.just("restart"), KEY, st.none()),
        st.tuples(st.just("send"), st.booleans(), st.none()),
        st.tuples(st.just("answer"), st.integers(0, 9), st.sampled_from(["granted", "failed", "refused"])),
        st.tuples(st.just("time"), st.sampled_from([0, 1_000, TIMEOUT_MS, 60_000]), st.none()),
        st.tuples(st.just("link"), st.integers(0, PEERS - 1), st.booleans()),
    ),
    max_size=40,
)


@pytest.mark.parametrize("opposite_supersedes", [True, False])
@given(steps=STEPS)
def test_lost_late_and_refused_calls_converge_within_bounds(
    opposite_supersedes: bool, steps: list[tuple[str, object, object]]
) -> None:
    peers = SimulatedPeers(opposite_supersedes=opposite_supersedes)
    for what, first, second in steps:
        match what, first, second:
            case "desire", (str(name), int(number)), (int() | None) as value:
                peers.set_desired((name, number), value)
            case "restart", (str(name), int(number)), _:
                # The peer lost its state, and its Update causes a suspicion.
                entry = peers.reconciler.find((name, number))
                if entry is not None and entry.confirmed:
                    peers.at_peer[name, number] = None
                    peers.reconciler.suspect((name, number), peers.now_ms * MS)
            case "send", bool(lose), _:
                peers.send_due(lose=lose)
            case "answer", int(index), str(outcome):
                peers.answer(index, outcome)
            case "time", int(ms), _:
                peers.now_ms += ms
            case "link", int(number), bool(up):
                peers.set_link(f"peer{number}", up=up)
    peers.heal()
    assert {key: peers.at_peer.get(key) for key in peers.desired} == peers.desired
    assert peers.reconciler.in_flight_count == 0
    assert peers.reconciler.next_due_ns() is None


def make_entry(*, opposite_supersedes: bool) -> tuple[SimulatedPeers, Entry]:
    """One key whose Subscribe is pending."""
    peers = SimulatedPeers(opposite_supersedes=opposite_supersedes)
    peers.set_desired(("peer0", 0), 10)
    peers.send_due()
    entry = peers.reconciler.find(("peer0", 0))
    assert entry is not None
    return peers, entry


@pytest.mark.parametrize("opposite_supersedes", [True, False])
def test_an_unsubscribe_supersedes_a_pending_subscribe_or_waits_for_it(opposite_supersedes: bool) -> None:
    peers, _ = make_entry(opposite_supersedes=opposite_supersedes)
    peers.set_desired(("peer0", 0), None)
    peers.send_due()
    assert peers.calls_made == (2 if opposite_supersedes else 1)
    peers.answer(0, "granted")
    peers.send_due()
    assert peers.calls_made == 2
    assert peers.at_peer == {("peer0", 0): None}


def test_a_refused_change_keeps_the_acknowledged_value_without_a_call() -> None:
    peers, entry = make_entry(opposite_supersedes=False)
    peers.answer(0, "granted")
    peers.set_desired(entry.key, 20)
    peers.send_due()
    peers.answer(0, "refused")
    peers.send_due()
    assert (entry.desired, entry.acknowledged, peers.calls_made) == (10, 10, 2)


def test_an_assumed_subscription_is_ended_by_one_unsubscribe() -> None:
    peers = SimulatedPeers(opposite_supersedes=False)
    peers.reconciler.assume_acknowledged(("peer0", 0), 10)
    peers.send_due()
    assert peers.calls_made == 0
    peers.set_desired(("peer0", 0), None)
    peers.send_due()
    assert peers.at_peer == {("peer0", 0): None}


def test_the_response_to_a_removed_key_is_ignored() -> None:
    peers, entry = make_entry(opposite_supersedes=False)
    peers.reconciler.forget(entry.key)
    assert peers.reconciler.on_response(1) is None
    peers.reconciler.on_success(entry, 0, refresh_ms=1_000)
    peers.reconciler.settle(entry)
    peers.reconciler.retry(entry)
    assert not peers.reconciler.on_failure(entry, 0)
    assert peers.reconciler.next_due_ns() is None


def test_link_up_repeats_every_call_of_its_peer() -> None:
    peers, entry = make_entry(opposite_supersedes=False)
    peers.answer(0, "granted")
    peers.set_link("peer0", up=False)
    peers.set_link("peer0", up=True)
    peers.at_peer.clear()
    peers.send_due()
    assert peers.at_peer == {entry.key: 10}


def test_a_node_that_connects_again_and_again_does_not_supersede_every_call() -> None:
    """Each answer comes 5 ms after its call, and a link comes up each ms, for ten seconds."""
    peers, entry = make_entry(opposite_supersedes=True)
    for ms in range(10_000):
        peers.now_ms = ms
        peers.set_link("peer0", up=False)
        peers.set_link("peer0", up=True)
        peers.send_due()
        if ms % 5 == 4:
            peers.answer(-1, "granted")
    assert entry.acknowledged == 10
    assert peers.calls_made == 1 + 16 + 9, "a burst, and one repeat for each second"


def test_a_late_repeat_is_due_although_nothing_else_happens() -> None:
    peers, entry = make_entry(opposite_supersedes=True)
    for _ in range(17):
        peers.set_link("peer0", up=False)
        peers.set_link("peer0", up=True)
        peers.send_due()
    peers.answer(-1, "granted")
    assert entry.confirmed
    assert peers.reconciler.next_due_ns() == 1_000 * MS
    peers.now_ms = 1_000
    peers.at_peer.clear()
    peers.send_due()
    assert peers.at_peer == {entry.key: 10}


def test_no_more_calls_are_in_flight_to_a_peer_than_its_limit() -> None:
    peers = SimulatedPeers(opposite_supersedes=False)
    for number in range(MAX_IN_FLIGHT + 1):
        peers.set_desired(("peer0", number), 10)
    peers.set_desired(("peer1", 0), 10)
    peers.send_due()
    assert peers.unanswered == [1, 2, 3], "the last call to peer0 waits, that to the other peer does not"
    peers.answer(0, "granted")
    peers.send_due()
    assert peers.unanswered == [2, 3, 4]
