# SPDX-License-Identifier: Apache-2.0
"""The streamer that forwards a topic with subscriptions at several streamers, and the effect on its peers."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.dispatch.dispatcher import LOOP_WINDOW
from ustreamer.core.peers import topic_advertisements as advertisements_module
from ustreamer.core.peers.election import Announcement, AnnouncementRole, PeerRouters, RouterId
from ustreamer.core.peers.topic_advertisements import (
    GRACE_PERIOD_NS,
    TopicAdvertisement,
    TopicAdvertisements,
)
from ustreamer.core.routing.forwarding import ForwardingShare, Target
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

if TYPE_CHECKING:
    from tests.core.conftest import HoldingFilter, VerdictFilter, World
    from ustreamer.core.delivery.delivery import Delivery

HOMES: Final = {"one": ["a", "a2"], "two": ["b"]}
TOPIC: Final = UUri("a", 1, 1, 0x8001)


class Streamer:
    """A streamer between the networks one and two; `period_ns` is the period subscribed on two."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.peers = PeerRouters(name, f"{number:016x}")
        self.peers.configure(HOMES)
        self.changed: list[str] = []
        self.urgent = False
        self.topic_advertisements = TopicAdvertisements(self.peers, self._on_change)
        self.period_ns: int | None = None
        self.seen: frozenset[TopicAdvertisement] = frozenset()

    def _on_change(self, endpoint: str, /, *, urgent: bool) -> None:
        self.changed.append(endpoint)
        self.urgent = urgent

    def announcements(self, network: str) -> frozenset[Announcement]:
        return self.peers.own_announcements(network)

    def assign(self, now_ns: int = 0, topic: UUri = TOPIC) -> ForwardingShare:
        """The share of this streamer in the topic."""
        targets_of_topic = () if self.period_ns is None else (Target("two", None, self.period_ns),)
        return self.topic_advertisements.assign(topic, targets_of_topic, now_ns)

    def period(self, now_ns: int = 0) -> int | None:
        """The period at which it forwards the topic; None: it does not forward."""
        share = self.assign(now_ns)
        return None if share.deferred or not share.targets else share.targets[0].period_ns

    def on_advertisements(self, announced_set: frozenset[TopicAdvertisement]) -> frozenset[UUri]:
        added, removed, self.seen = announced_set - self.seen, self.seen - announced_set, announced_set
        return self.topic_advertisements.on_advertisements("two", added, removed)


def connected_streamers(count: int) -> list[Streamer]:
    """Streamers that see each other on both networks."""
    streamers = [Streamer(f"g{number}", number) for number in range(count)]
    for network in HOMES:
        everything = frozenset().union(*(each.announcements(network) for each in streamers))
        for each in streamers:
            each.peers.on_announcements(network, everything)
    return streamers


def exchange(streamers: Iterable[Streamer]) -> None:
    """Give the advertisements of all streamers to each."""
    everything = frozenset().union(*(each.topic_advertisements.advertised("two") for each in streamers))
    for each in streamers:
        each.on_advertisements(everything)


def advertising(streamers: Iterable[Streamer], now_ns: int = 0) -> dict[str, int]:
    """The forwarding streamers and their periods."""
    found = {each.name: each.period(now_ns) for each in streamers}
    return {name: period for name, period in found.items() if period is not None}


# --------------------------------------------------------------------------------------------------------- the election

PERIODS = st.one_of(st.none(), st.sampled_from([0, 1, 5, 10**9]))


@given(st.lists(PERIODS, min_size=1, max_size=5))
def test_one_streamer_forwards_a_topic_at_the_highest_subscribed_rate(
    wanted_periods: list[int | None],
) -> None:
    streamers = connected_streamers(len(wanted_periods))
    for each, wanted_ns in zip(streamers, wanted_periods, strict=True):
        each.period_ns = wanted_ns
    wanted = [wanted_ns for wanted_ns in wanted_periods if wanted_ns is not None]
    assert sorted(advertising(streamers).values()) == sorted(
        wanted
    )  # no advertisement has arrived: all forward
    exchange(streamers)
    assert list(advertising(streamers).values()) == ([min(wanted)] if wanted else [])


def test_equal_rates_are_decided_by_a_tie_break_per_topic_that_survives_a_restart() -> None:
    shares = dict.fromkeys(("g0", "g1", "g2"), 0)
    streamers, again = connected_streamers(3), connected_streamers(3)[::-1]
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(300)]
    for each in (*streamers, *again):
        each.period_ns = 0
        for topic in topics:
            each.assign(topic=topic)
    exchange(streamers)
    exchange(again)
    for topic in topics:
        [one] = [each.name for each in streamers if not each.assign(topic=topic).deferred]
        assert [each.name for each in again if not each.assign(topic=topic).deferred] == [one]
        shares[one] += 1
    assert min(shares.values()) > 60


def test_when_the_forwarding_streamer_leaves_another_takes_over() -> None:
    streamers = connected_streamers(3)
    for each in streamers:
        each.period_ns = 7
    assert len(advertising(streamers)) == 3
    for left in (3, 2, 1):
        exchange(streamers)
        [one] = advertising(streamers)
        assert len(streamers) == left
        streamers = [each for each in streamers if each.name != one]


def test_without_peers_no_topic_is_advertised_or_stored() -> None:
    [alone] = connected_streamers(1)
    alone.period_ns = 0
    assert alone.period() == 0
    assert alone.topic_advertisements.advertised("two") == frozenset()
    assert alone.changed == []


def test_a_topic_that_no_peer_can_forward_is_not_advertised() -> None:
    """Streamers of two vehicles, each between its own network and a shared one."""
    one, other = Streamer("g0", 0), Streamer("g1", 1)
    other.peers.configure({"two": ["a", "a2"], "three": ["b"]})
    everything = one.announcements("two") | other.announcements("two")
    for each in (one, other):
        each.peers.on_announcements("two", everything)
    one.period_ns = 0
    assert one.period() == 0
    assert one.topic_advertisements.advertised("two") == frozenset()


def test_a_new_topic_is_urgent_and_a_withdrawal_is_not() -> None:
    one, _ = connected_streamers(2)
    one.period_ns = 5
    one.assign()
    assert one.urgent
    one.period_ns = None
    one.assign()
    assert one.changed == ["two"] * 2
    assert not one.urgent


# ---------------------------------------------------------------------------------------------- the first one forwards


@pytest.mark.parametrize("number", [0, 1])
def test_a_running_topic_stays_at_its_streamer_when_another_is_asked_for_it(number: int) -> None:
    """In either order of precedence: no message comes twice, also if the streamer restarts."""
    streamers = connected_streamers(2)
    first, second = streamers[number], streamers[1 - number]
    first.period_ns = 5
    assert first.period() == 5
    exchange(streamers)
    second.period_ns = 5
    for _ in range(2):
        assert advertising(streamers) == {first.name: 5}
        exchange(streamers)
    assert second.topic_advertisements.advertised("two") == frozenset()


def test_a_streamer_that_advertises_yields_later_and_one_that_does_not_defers_at_once() -> None:
    """A slow streamer may still read messages that the peer read before it was asked."""
    for period_ns, at_once in ((5, False), (None, True)):
        one, other = connected_streamers(2)
        one.period_ns = period_ns
        one.assign(0)
        one.period_ns = 5
        faster = [advertisement(other.name, other.peers.local_id.instance, 4)]
        one.topic_advertisements.on_advertisements("two", faster, [], 7)
        assert (one.period(10**9) is None) is at_once
        assert one.topic_advertisements.yield_to("two", faster, 7) == {TOPIC}
        assert one.period(10**9) is None
        assert one.topic_advertisements.yield_to("two", faster, 7) == frozenset()


def test_an_advertisement_that_was_withdrawn_and_returns_waits_again() -> None:
    one, other = connected_streamers(2)
    one.period_ns = 5
    one.assign()
    faster = [advertisement(other.name, other.peers.local_id.instance, 4)]
    one.topic_advertisements.on_advertisements("two", faster, [], 7)
    one.topic_advertisements.on_advertisements("two", [], faster)
    assert one.topic_advertisements.yield_to("two", faster, 7) == frozenset()
    one.topic_advertisements.on_advertisements("two", faster, [], 8)
    assert one.topic_advertisements.yield_to("two", faster, 7) == frozenset()
    assert one.period() == 5
    one.topic_advertisements.yield_to("two", faster, 8)
    assert one.period() is None


@pytest.mark.parametrize("why", ["it has started", "it is at the limit"])
def test_a_streamer_that_forwards_without_advertising_yields_later_too(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = connected_streamers(2)
    one.period_ns = 5
    if why == "it has started":
        one.topic_advertisements.on_peer_joined(100)
    else:
        monkeypatch.setattr(advertisements_module, "MAX_OWN_ADVERTISEMENTS", 1)
        one.assign(topic=TOPIC.with_resource(0x8002))
    assert one.period(9) == 5
    equal = [advertisement(other.name, other.peers.local_id.instance, 5)]
    one.topic_advertisements.on_advertisements("two", equal, [], 10)
    for now_ns in (10, 200):
        assert one.period(now_ns) == 5
        # Else it would take the topic over if it has precedence.
        assert TOPIC not in {each.topic for each in one.topic_advertisements.advertised("two")}
    one.topic_advertisements.yield_to("two", equal, 10)
    assert one.period(200) is None


def test_a_streamer_that_starts_forwards_without_advertising_until_it_knows_the_advertisements() -> None:
    """Else a streamer that returns would take the topics with its precedence back, with duplicates."""
    one, other = connected_streamers(2)
    one.period_ns = 5
    one.topic_advertisements.on_peer_joined(100)
    assert one.period(99) == 5
    assert one.topic_advertisements.advertised("two") == frozenset()
    one.on_advertisements(frozenset([advertisement(other.name, other.peers.local_id.instance)]))
    assert one.period(99) is None
    one.on_advertisements(frozenset())
    assert one.period(100) == 5
    assert len(one.topic_advertisements.advertised("two")) == 1
    one.topic_advertisements.on_peer_joined(200)
    one.period_ns = 4
    assert one.period(150) == 4  # what it advertised already, it keeps up to date
    assert {each.period_ns for each in one.topic_advertisements.advertised("two")} == {4}


def test_a_faster_rate_takes_a_running_topic_over() -> None:
    streamers = connected_streamers(2)
    first, second = streamers
    first.period_ns, second.period_ns = 5, None
    assert advertising(streamers) == {first.name: 5}
    exchange(streamers)
    second.period_ns = 4
    assert advertising(streamers) == {first.name: 5, second.name: 4}
    exchange(streamers)
    assert advertising(streamers) == {second.name: 4}


def test_a_streamer_that_waited_takes_over_when_the_first_one_withdraws() -> None:
    streamers = connected_streamers(2)
    first, second = streamers
    first.period_ns = second.period_ns = 5
    first.assign()
    exchange(streamers)
    assert second.period() is None
    first.period_ns = None
    assert first.period(1) == 5  # the grace period
    assert second.period(1) is None
    exchange(streamers)
    assert second.period(2) == 5


def test_a_withdrawn_topic_is_advertised_again_although_a_peer_advertises_it() -> None:
    """The peer may not know of the withdrawal yet, and still defer."""
    streamers = connected_streamers(2)
    for each in streamers:
        each.period_ns = 5
    assert len(advertising(streamers)) == 2
    exchange(streamers)
    [name] = advertising(streamers)
    one = next(each for each in streamers if each.name == name)
    one.topic_advertisements.withdraw({TOPIC}, 7)
    assert advertising(streamers, 7) == {name: 5}
    one.topic_advertisements.withdraw_all(9)
    assert advertising(streamers, 9) == {name: 5}


def test_a_late_withdrawal_of_a_peer_that_deferred_loses_nothing() -> None:
    """The peer unsubscribes before it knows that this streamer has withdrawn, so that no other streamer forwards."""
    streamers = connected_streamers(2)
    for each in streamers:
        each.period_ns = 5
    assert len(advertising(streamers)) == 2
    exchange(streamers)
    [name] = advertising(streamers)
    one, other = sorted(streamers, key=lambda each: each.name != name)
    one.period_ns = None
    one.assign(0)
    third_ns = GRACE_PERIOD_NS // 3
    other.period_ns = None
    other.assign(2 * third_ns)
    one.period_ns = 5
    # The withdrawal of `one` has arrived, and its grace period is over; that of the other is on its way.
    one.topic_advertisements.end_grace(TOPIC, GRACE_PERIOD_NS)
    other.on_advertisements(frozenset())
    assert advertising(streamers, GRACE_PERIOD_NS + third_ns) == {other.name: 5}


def test_unicast_targets_are_never_deferred() -> None:
    one, _ = connected_streamers(2)
    targets = (Target("two", UUri("b", 1, 1, 0)),)
    assert one.topic_advertisements.assign(TOPIC, targets, 0) == ForwardingShare(targets)
    assert one.topic_advertisements.advertised("two") == frozenset()


def test_a_change_is_advertised_once() -> None:
    one, _ = connected_streamers(2)
    for one.period_ns, times in ((5, 1), (5, 1), (0, 2), (None, 3), (None, 3)):
        one.assign()
        assert one.changed == ["two"] * times
        announced_set = {each.period_ns for each in one.topic_advertisements.advertised("two")}
        assert announced_set == (set() if one.period_ns is None else {one.period_ns})


# ---------------------------------------------------------------------------------------------------------------- trust


def advertisement(name: str, instance: str, period_ns: int = 0) -> TopicAdvertisement:
    return TopicAdvertisement(instance, "x", name, TOPIC, period_ns)


@pytest.mark.parametrize(
    ("there", "here", "left"),
    [
        pytest.param({"one": ["a"]}, {"two": ["b"], "one": ["a"]}, True, id="it receives the topic"),
        pytest.param({}, {"two": ["b"], "one": ["a"]}, False, id="it is not seen on the network of the topic"),
        pytest.param({"one": ["a2"]}, {"two": ["b"], "one": ["a"]}, False, id="it has the source elsewhere"),
        pytest.param({"one": ["a"]}, {"two": ["b", "a"]}, False, id="it has the source here"),
        pytest.param({"one": ["a"]}, {}, False, id="it is not here"),
    ],
)  # fmt: skip
def test_a_topic_is_deferred_to_a_peer_trusted_to_receive_it(
    there: Mapping[str, list[str]], here: Mapping[str, list[str]], left: bool
) -> None:
    me, third = Streamer("me", 0), Streamer("third", 3)
    for network, homes in (("one", there), ("two", here)):
        other = PeerRouters("other", "f" * 16)
        other.configure(homes)
        me.peers.on_announcements(network, other.own_announcements(network) | third.announcements(network))
    me.period_ns = 5
    me.topic_advertisements.on_advertisements("two", [advertisement("other", "f" * 16)], [])
    assert bool(me.assign().deferred) is left


def test_an_advertisement_ends_with_its_streamer() -> None:
    one, other = connected_streamers(2)
    one.period_ns, other.period_ns = 5, 0
    assert len(advertising([one, other])) == 2
    exchange([one, other])
    assert one.assign().deferred == {"two"}
    announced_set = one.announcements("one") | frozenset(
        each for each in other.announcements("one") if each.role is not AnnouncementRole.IDENTITY
    )
    one.peers.on_announcements("one", announced_set)  # the identity announcement is withdrawn first
    assert one.assign() == ForwardingShare((Target("two", None, 5),))


def test_an_own_advertisement_is_ignored() -> None:
    one, _ = connected_streamers(2)
    one.period_ns = 3
    one.assign()
    assert one.on_advertisements(one.topic_advertisements.advertised("two")) == frozenset()
    assert one.period() == 3


def test_the_faster_of_two_advertisements_counts_until_it_is_withdrawn() -> None:
    one, other = connected_streamers(2)
    me = RouterId(other.name, other.peers.local_id.instance)
    old, new = advertisement(*me, period_ns=2), advertisement(*me, period_ns=9)
    one.period_ns = 5
    for added, removed, left in (
        ([old], [], True),
        ([new], [], True),
        ([], [old], False),
        ([], [new], False),
    ):
        assert one.topic_advertisements.on_advertisements("two", added, removed) == {TOPIC}
        assert bool(one.assign().deferred) is left
    assert one.topic_advertisements.on_advertisements("two", [], [old]) == frozenset()


# --------------------------------------------------------------------------------------------------------------- bounds


def test_a_topic_over_the_limit_is_not_advertised_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advertisements_module, "MAX_OWN_ADVERTISEMENTS", 3)
    one, other = connected_streamers(2)
    one.period_ns = other.period_ns = 0
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(50)]
    for topic in topics:
        one.assign(topic=topic)
    assert len(one.topic_advertisements.advertised("two")) == 3
    assert one.topic_advertisements.suppressed["two"] == 47
    exchange([one, other])
    assert not any(other.assign(topic=topic).deferred for topic in topics[3:])  # both forward it
    # A withdrawn topic frees an entry.
    one.period_ns = None
    one.assign(topic=topics[0])
    one.period_ns = 0
    one.assign(topic=topics[-1])
    assert topics[-1] in {each.topic for each in one.topic_advertisements.advertised("two")}


def test_peer_advertisements_of_one_topic_are_bounded() -> None:
    me, other = connected_streamers(2)
    me.period_ns = 5
    other_id = RouterId(other.name, other.peers.local_id.instance)
    received = [advertisement(*other_id, period_ns=period_ns) for period_ns in range(10**9, 10**9 + 100)]
    me.topic_advertisements.on_advertisements("two", received, [])
    assert (
        me.topic_advertisements.over_limit["two"] == 100 - advertisements_module.MAX_ADVERTISEMENTS_PER_TOPIC
    )
    assert me.topic_advertisements.on_advertisements("two", [advertisement(*other_id)], []) == frozenset()
    assert me.period() == 5  # an advertisement over the limit is unknown, so both forward
    me.topic_advertisements.on_advertisements("two", [], received[:1])
    assert me.topic_advertisements.on_advertisements("two", [advertisement(*other_id)], []) == {TOPIC}
    assert me.period() is None


def test_withdrawn_advertisements_leave_no_memory_behind() -> None:
    one, other = connected_streamers(2)
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(100)]
    for one.period_ns in (0, None):
        for topic in topics:
            one.assign(topic=topic)
        exchange([one, other])
    for topic in topics:
        one.topic_advertisements.end_grace(topic, GRACE_PERIOD_NS)
    assert one.topic_advertisements._advertised == {}
    assert one.topic_advertisements._grace == {}
    assert other.topic_advertisements._peer_advertisements == {"two": {}}


# --------------------------------------------------------------------------------------------------- no message is lost


class HandOvers(RuleBasedStateMachine):
    """Subscriptions change, advertisements are delayed, and messages come in at all streamers.

    Changes of one streamer arrive in order, and within its grace period. Then some streamer forwards each message, at
    a rate that is not below the subscribed one.
    """

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.now_ns = 0
        self.streamers = connected_streamers(count)
        # (time, sender, advertisements); each streamer has received a prefix of it.
        self.history: list[tuple[int, Streamer, frozenset[TopicAdvertisement]]] = []
        self.received_counts = [0] * count
        self.releases: list[tuple[int, Streamer]] = []
        self.latest: dict[str, frozenset[TopicAdvertisement]] = {
            each.name: frozenset() for each in self.streamers
        }
        self.lost: list[tuple[int, int | None]] = []

    @rule(which=st.integers(0, 3), wanted_ns=PERIODS)
    def a_subscription_changes(self, which: int, wanted_ns: int | None) -> None:
        self.streamers[which % len(self.streamers)].period_ns = wanted_ns

    @rule(which=st.integers(0, 3))
    def a_route_is_evicted(self, which: int) -> None:
        one = self.streamers[which % len(self.streamers)]
        if until_ns := one.topic_advertisements.withdraw({TOPIC}, self.now_ns):
            self.releases.append((until_ns, one))
        self._announce(one)

    @rule(which=st.integers(0, 3))
    def one_change_arrives(self, which: int) -> None:
        which %= len(self.streamers)
        if self.received_counts[which] < len(self.history):
            self._receive(which)

    def _receive(self, which: int) -> None:
        _, sender, announced_set = self.history[self.received_counts[which]]
        self.received_counts[which] += 1
        one = self.streamers[which]
        others = frozenset(each for each in one.seen if each.authority != sender.name)
        one.on_advertisements(others | announced_set)

    @rule(ns=st.sampled_from([1, GRACE_PERIOD_NS // 3, GRACE_PERIOD_NS - 1]))
    def time_passes(self, ns: int) -> None:
        """Deliver the messages that may not be delayed any longer."""
        for which in range(len(self.streamers)):
            while (
                self.received_counts[which] < len(self.history)
                and self.history[self.received_counts[which]][0] + GRACE_PERIOD_NS <= self.now_ns + ns
            ):
                self._receive(which)
        self.now_ns += ns
        due = [each for each in self.releases if each[0] <= self.now_ns]
        self.releases = [each for each in self.releases if each[0] > self.now_ns]
        for _, one in due:
            one.topic_advertisements.end_grace(TOPIC, self.now_ns)

    @rule()
    def a_message_arrives(self) -> None:
        periods = []
        for each in self.streamers:
            share = each.assign(self.now_ns)
            if share.grace_until_ns:
                self.releases.append((share.grace_until_ns, each))
            if share.targets and not share.deferred:
                periods.append(share.targets[0].period_ns)
            self._announce(each)
        wanted_periods = [each.period_ns for each in self.streamers if each.period_ns is not None]
        if wanted_periods and (not periods or min(periods) > min(wanted_periods)):
            self.lost.append((self.now_ns, min(periods, default=None)))

    def _announce(self, one: Streamer) -> None:
        announced_set = one.topic_advertisements.advertised("two")
        if announced_set != self.latest[one.name]:
            self.latest[one.name] = announced_set
            self.history.append((self.now_ns, one, announced_set))

    @rule()
    def all_changes_arrive(self) -> None:
        for _ in range(3):  # the streamers that waited advertise when the forwarding one has withdrawn
            self.a_message_arrives()
            for which in range(len(self.streamers)):
                while self.received_counts[which] < len(self.history):
                    self._receive(which)
            self.now_ns += GRACE_PERIOD_NS
            self.releases = []
            for each in self.streamers:
                each.topic_advertisements.end_grace(TOPIC, self.now_ns)
        wanted_periods = [each.period_ns for each in self.streamers if each.period_ns is not None]
        assert list(advertising(self.streamers, self.now_ns).values()) == (
            [min(wanted_periods)] if wanted_periods else []
        )

    @invariant()
    def no_message_is_lost(self) -> None:
        assert not getattr(self, "lost", [])


TestHandOvers = HandOvers.TestCase
TestHandOvers.settings = settings(max_examples=100)


def test_without_a_grace_period_a_hand_over_loses_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for grace_ns, lost in ((GRACE_PERIOD_NS, False), (0, True)):
        monkeypatch.setattr(advertisements_module, "GRACE_PERIOD_NS", grace_ns)
        one, other = connected_streamers(2)
        one.period_ns, other.period_ns = 0, 5
        assert len(advertising([one, other])) == 2
        exchange([one, other])
        assert list(advertising([one, other])) == [one.name]
        one.period_ns = None
        one.assign(100)
        one.topic_advertisements.end_grace(TOPIC, 101)
        assert (advertising([one, other], 101) == {}) is lost


def test_a_shutdown_withdraws_all_advertisements_and_keeps_forwarding() -> None:
    one, other = connected_streamers(2)
    one.period_ns, other.period_ns = 0, 5
    assert len(advertising([one, other])) == 2
    exchange([one, other])
    assert one.topic_advertisements.withdraw_all_for_shutdown()
    assert one.topic_advertisements.advertised("two") == frozenset()
    assert advertising([one, other]) == {one.name: 0}
    exchange([one, other])
    assert advertising([one, other]) == {one.name: 0, other.name: 5}
    assert one.topic_advertisements.advertised("two") == frozenset()
    assert not one.topic_advertisements.withdraw_all_for_shutdown()


def test_a_shutdown_in_a_grace_period_is_a_hand_over_too() -> None:
    """The subscription has just ended, and the withdrawal may be on its way to a peer that still defers."""
    one, _ = connected_streamers(2)
    one.period_ns = 5
    one.assign(0)
    one.period_ns = None
    one.assign(0)
    assert one.topic_advertisements.withdraw_all_for_shutdown()
    one.topic_advertisements.end_grace(TOPIC, GRACE_PERIOD_NS)
    assert not one.topic_advertisements.withdraw_all_for_shutdown()


# ------------------------------------------------------------------------------------------------------ in a dispatcher

EVENT: Final = UUri("chassis", 7, 1, 0x8001)
APP: Final = UUri("cloud", 9, 1, 0)
OTHER: Final = RouterId("other", "1" * 16)


class PeerRig:
    """A world with a trusted peer on its backbone."""

    def __init__(self, build: "type[World]", carries: str = "chassis", **more: object) -> None:
        self.peers = PeerRouters("hpc", "0" * 16)
        self.peers.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis"], "dash": ["dash"]})
        claims = [
            (AnnouncementRole.IDENTITY, "other"),
            (AnnouncementRole.LOCAL, "cloud"),
            (AnnouncementRole.CARRIES, carries),
        ]
        announced_set = (Announcement(OTHER.instance, "x", "other", *each, trusted=True) for each in claims)
        self.peers.on_announcements("backbone", frozenset(announced_set))
        self.advertisements = TopicAdvertisements(self.peers)
        self.world = build(peers=self.peers, topic_advertisements=self.advertisements, **more)  # type: ignore[arg-type]
        self.world.directory.subscribe(EVENT, APP, 5)

    def event(self, topic: UUri = EVENT) -> UMessage:
        message = publish(self.world.id(), topic)
        self.world.receive("chassis", message)
        return message

    def peer_advertises(self, period_ns: int = 0, *, no_more: bool = False) -> None:
        announced_set = [TopicAdvertisement(OTHER.instance, "x", OTHER.authority, EVENT, period_ns)]
        topics = self.advertisements.on_advertisements(
            "backbone", [] if no_more else announced_set, announced_set if no_more else []
        )
        self.world.dispatcher.invalidate_topics(topics)

    def announced(self) -> dict[UUri, int]:
        return {each.topic: each.period_ns for each in self.advertisements.advertised("backbone")}

    @property
    def received(self) -> list[UMessage]:
        """The messages that the backbone received or is about to receive."""
        self.world.send()
        return self.world.egress["backbone"].messages

    def deferred(self) -> int:
        return self.world.dispatcher.refused_counts()["chassis"]["deferred_to_peer"]


def test_a_topic_that_a_peer_forwards_is_counted_as_deferred(build: "type[World]") -> None:
    rig = PeerRig(build)
    first = rig.event()
    assert rig.announced() == {EVENT: 5}
    rig.peer_advertises()
    for _ in range(3):
        rig.event()
    assert rig.received == [first]
    assert rig.deferred() == 3
    assert rig.world.ledger().received == 1
    assert rig.announced() == {EVENT: 5}  # to take over when the peer leaves
    rig.peer_advertises(no_more=True)
    last = rig.event()
    assert rig.received == [first, last]


def test_other_targets_of_a_deferred_topic_are_still_served(build: "type[World]") -> None:
    rig = PeerRig(build)
    dash = UUri("dash", 3, 1, 0)
    rig.world.directory.subscribe(EVENT, dash)
    rig.peer_advertises()
    event = rig.event()
    assert rig.received == []
    assert rig.world.egress["dash"].messages == [event]
    assert rig.deferred() == 0
    assert rig.announced() == {}
    assert rig.world.ledger().received == 1


def test_defers_to_peer_depends_on_the_endpoint(build: "type[World]") -> None:
    """Needed to redrive a dead letter, which has no ingress network."""
    rig = PeerRig(build)
    dash = UUri("dash", 3, 1, 0)
    rig.world.directory.subscribe(EVENT, dash)
    attributes = rig.event().attributes
    ingress = rig.world.ingress("chassis")  # the endpoint of a dead letter that expired on arrival
    assert not ingress.defers_to_peer(attributes, "backbone")
    rig.peer_advertises()
    assert ingress.defers_to_peer(attributes, "backbone")
    assert not ingress.defers_to_peer(attributes, "dash")
    assert not ingress.defers_to_peer(attributes, "chassis")
    rig.world.directory.unsubscribe(EVENT, dash)
    assert ingress.defers_to_peer(attributes, "chassis")
    assert not ingress.defers_to_peer(
        publish(rig.world.id(), EVENT.with_resource(0x8005)).attributes, "backbone"
    )
    # The same for a message that the peer forwarded.
    assert rig.world.ingress("backbone").defers_to_peer(attributes, "dash")


def test_a_slower_advertisement_of_a_peer_does_not_defer_the_topic(build: "type[World]") -> None:
    rig = PeerRig(build)
    rig.peer_advertises(6)
    event = rig.event()
    assert rig.received == [event]


def test_filters_keep_their_state_while_a_peer_forwards(
    build: "type[World]", answering: "type[VerdictFilter]"
) -> None:
    made: list[VerdictFilter] = []

    def filters(delivery: "Delivery") -> list["VerdictFilter"]:
        made.append(answering([None] * 9))
        return made[-1:]

    rig = PeerRig(build, filters=filters)
    first = rig.event()
    rig.peer_advertises()
    rig.event()
    rig.peer_advertises(no_more=True)
    last = rig.event()
    [one] = made
    assert [message for message, _ in one.calls] == [first, last]


def test_a_held_message_is_sent_after_a_peer_takes_over(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    rig = PeerRig(build, filters=lambda delivery: [holding(delivery, 100)])
    held = rig.event()
    rig.peer_advertises()
    rig.event()
    rig.world.time.now_ns += 100
    rig.world.run()
    assert rig.received == [held]


def test_a_held_message_is_sent_during_the_grace_period(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    rig = PeerRig(build, filters=lambda delivery: [holding(delivery, 100)])
    held = rig.event()
    rig.peer_advertises(9)
    rig.world.directory.unsubscribe(EVENT, APP)
    rig.world.time.now_ns += 100
    rig.world.run()
    assert rig.received == [held]


def test_an_unsubscribed_topic_is_forwarded_during_the_grace_period(build: "type[World]") -> None:
    rig = PeerRig(build)
    events = [rig.event()]
    rig.peer_advertises(9)
    events.append(rig.event())
    rig.world.directory.unsubscribe(EVENT, APP)
    for _ in range(3):
        events.append(rig.event())
        assert rig.announced() == {}
    rig.world.time.now_ns += GRACE_PERIOD_NS
    rig.world.run()
    rig.event()
    assert rig.received == events
    assert rig.world.verdicts()[-1] is Verdict.NO_SUBSCRIBER
    assert rig.advertisements._grace == {}


def test_a_slowed_topic_keeps_its_old_rate_during_the_grace_period(
    build: "type[World]",
) -> None:
    rig = PeerRig(build)
    rig.event()
    rig.peer_advertises(9)
    rig.event()
    rig.world.directory.subscribe(EVENT, APP, 20)
    rig.event()
    assert rig.announced() == {EVENT: 20}
    [target] = rig.world.dispatcher.target_statistics()
    assert target.period_ns == 5
    rig.world.time.now_ns += GRACE_PERIOD_NS
    rig.world.run()
    rig.event()
    assert rig.deferred() == 1
    [target] = rig.world.dispatcher.target_statistics()
    assert target.period_ns == 20


def test_echoes_and_spoofed_messages_do_not_change_the_advertisement(build: "type[World]") -> None:
    rig = PeerRig(build)
    rig.event()
    for endpoint in ("backbone", "dash"):
        rig.world.receive(endpoint, publish(rig.world.id(), EVENT))
    assert rig.announced() == {EVENT: 5}


def test_topics_of_hosted_services_are_not_advertised(build: "type[World]") -> None:
    rig = PeerRig(build, carries=ANY_AUTHORITY)
    own = UUri("hpc", 4, 1, 0x8000)
    rig.world.directory.subscribe(own, APP)
    rig.world.receive(SELF, publish(rig.world.id(), own))
    assert len(rig.received) == 1
    assert rig.announced() == {}


def test_a_failing_directory_withdraws_the_advertisement(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = PeerRig(build)
    rig.event()

    def broken(topic: UUri) -> list[object]:
        raise RuntimeError("broken")

    monkeypatch.setattr(rig.world.directory, "subscribers", broken)
    rig.world.directory.touch()
    rig.event()
    assert rig.announced() == {}


def test_evicted_topics_are_withdrawn_until_their_next_message(build: "type[World]") -> None:
    rig = PeerRig(build, route_limit=10)
    topics = [EVENT.with_resource(0x8000 + number) for number in range(25)]
    rig.world.directory.subscribe(UUri("chassis", 7, 1, 0xFFFF), APP)
    for topic in topics:
        rig.event(topic)
        assert topic in rig.announced()
        assert len(rig.announced()) <= 10
    rig.event(topics[0])
    assert topics[0] in rig.announced()


@pytest.mark.parametrize("window", [0, LOOP_WINDOW])
def test_only_routes_of_changed_topics_are_built_again(build: "type[World]", window: int) -> None:
    rig = PeerRig(build, dedup_windows={"chassis": window})
    topics = [EVENT, EVENT.with_resource(0x8002)]
    rig.world.directory.subscribe(topics[1], APP)
    for topic in topics * 2:
        rig.event(topic)
    queries_before = rig.world.directory.queries
    rig.peer_advertises()
    for topic in topics * 2:
        rig.event(topic)
    assert rig.world.directory.queries == queries_before + 1
    assert rig.deferred() == 2


def test_a_topic_is_advertised_before_its_first_message_and_no_ingress_is_made(build: "type[World]") -> None:
    rig = PeerRig(build)
    dispatcher = rig.world.dispatcher
    assert not dispatcher.share_topic(EVENT)  # the start has not made the ingress yet
    assert "chassis" not in dispatcher._ingresses
    dispatcher.ingress("chassis")
    assert [each.endpoint for each in dispatcher.share_topic(EVENT, with_peers=False)] == ["backbone"]
    assert rig.announced() == {}
    assert [each.endpoint for each in dispatcher.share_topic(EVENT)] == ["backbone"]
    assert rig.announced() == {EVENT: 5}
    rig.world.directory.unsubscribe(EVENT, APP)
    assert not dispatcher.share_topic(EVENT)
    assert rig.announced() == {}
    assert not dispatcher.share_topic(UUri("unknown", 1, 1, 0x8001))
