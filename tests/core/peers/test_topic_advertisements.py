# SPDX-License-Identifier: Apache-2.0
"""Which of several streamers puts a topic that each of them was asked for, and what becomes of it at the others."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.dispatch.dispatcher import LOOP_WINDOW
from ustreamer.core.peers import topic_advertisements as puts_module
from ustreamer.core.peers.election import Announcement, AnnouncementRole, PeerRouters, RouterId
from ustreamer.core.peers.topic_advertisements import GRACE_PERIOD_NS, TopicAdvertisement, TopicAdvertisements
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
    """One of several between the networks one and two; `wish` is what somebody on two asked it for, in ns."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.peers = PeerRouters(name, f"{number:016x}")
        self.peers.configure(HOMES)
        self.changed: list[str] = []
        self.topic_advertisements = TopicAdvertisements(self.peers, self.changed.append)
        self.period_ns: int | None = None
        self.seen: frozenset[TopicAdvertisement] = frozenset()

    def announcements(self, network: str) -> frozenset[Announcement]:
        return self.peers.own_announcements(network)

    def assign(self, now_ns: int = 0, topic: UUri = TOPIC) -> ForwardingShare:
        """What becomes of a message on the topic."""
        wished = () if self.period_ns is None else (Target("two", None, self.period_ns),)
        return self.topic_advertisements.assign(topic, wished, now_ns)

    def period(self, now_ns: int = 0) -> int | None:
        """How often it puts the topic; None: not at all."""
        share = self.assign(now_ns)
        return None if share.deferred or not share.targets else share.targets[0].period_ns

    def on_advertisements(self, said: frozenset[TopicAdvertisement]) -> frozenset[UUri]:
        came, went, self.seen = said - self.seen, self.seen - said, said
        return self.topic_advertisements.on_advertisements("two", came, went)


def street(count: int) -> list[Streamer]:
    """Streamers side by side, each of which is seen by all others on both networks."""
    streamers = [Streamer(f"g{number}", number) for number in range(count)]
    for network in HOMES:
        everything = frozenset().union(*(each.announcements(network) for each in streamers))
        for each in streamers:
            each.peers.on_announcements(network, everything)
    return streamers


def exchange(streamers: Iterable[Streamer]) -> None:
    """Each hears what all say."""
    everything = frozenset().union(*(each.topic_advertisements.advertised("two") for each in streamers))
    for each in streamers:
        each.on_advertisements(everything)


def advertising(streamers: Iterable[Streamer], now_ns: int = 0) -> dict[str, int]:
    """Who puts the topic, and how often."""
    found = {each.name: each.period(now_ns) for each in streamers}
    return {name: period for name, period in found.items() if period is not None}


# ------------------------------------------------------------------------------------------------- one of them

PERIODS = st.one_of(st.none(), st.sampled_from([0, 1, 5, 10**9]))


@given(st.lists(PERIODS, min_size=1, max_size=5))
def test_whatever_each_was_asked_for_one_puts_it_at_the_highest_rate(wishes: list[int | None]) -> None:
    streamers = street(len(wishes))
    for each, wish in zip(streamers, wishes, strict=True):
        each.period_ns = wish
    wanted = [wish for wish in wishes if wish is not None]
    assert sorted(advertising(streamers).values()) == sorted(
        wanted
    )  # nobody has heard of anybody: all put it
    exchange(streamers)
    assert list(advertising(streamers).values()) == ([min(wanted)] if wanted else [])


def test_of_equals_the_lot_decides_which_is_another_for_each_topic_and_the_same_after_a_restart() -> None:
    shares = dict.fromkeys(("g0", "g1", "g2"), 0)
    streamers, again = street(3), street(3)[::-1]
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


def test_when_the_one_that_puts_is_gone_another_one_does() -> None:
    streamers = street(3)
    for each in streamers:
        each.period_ns = 7
    assert len(advertising(streamers)) == 3
    for left in (3, 2, 1):
        exchange(streamers)
        [one] = advertising(streamers)
        assert len(streamers) == left
        streamers = [each for each in streamers if each.name != one]


def test_alone_nothing_is_announced_and_nothing_is_kept() -> None:
    [alone] = street(1)
    alone.period_ns = 0
    assert alone.period() == 0
    assert alone.topic_advertisements.advertised("two") == frozenset()
    assert alone.changed == []


def test_what_nobody_else_there_can_bring_is_not_announced() -> None:
    """Such as what goes from one vehicle to the next, where each streamer is between its own network and the others'."""
    one, other = Streamer("g0", 0), Streamer("g1", 1)
    other.peers.configure({"two": ["a", "a2"], "three": ["b"]})
    everything = one.announcements("two") | other.announcements("two")
    for each in (one, other):
        each.peers.on_announcements("two", everything)
    one.period_ns = 0
    assert one.period() == 0
    assert one.topic_advertisements.advertised("two") == frozenset()


def test_targets_of_one_subscriber_are_nobody_elses() -> None:
    one, _ = street(2)
    targets = (Target("two", UUri("b", 1, 1, 0)),)
    assert one.topic_advertisements.assign(TOPIC, targets, 0) == ForwardingShare(targets)
    assert one.topic_advertisements.advertised("two") == frozenset()


def test_what_has_changed_is_said_once() -> None:
    one, _ = street(2)
    for one.period_ns, times in ((5, 1), (5, 1), (0, 2), (None, 3), (None, 3)):
        one.assign()
        assert one.changed == ["two"] * times
        said = {each.period_ns for each in one.topic_advertisements.advertised("two")}
        assert said == (set() if one.period_ns is None else {one.period_ns})


# ------------------------------------------------------------------------------------------------- who is believed


def advertisement(name: str, instance: str, period_ns: int = 0) -> TopicAdvertisement:
    return TopicAdvertisement(instance, "x", name, TOPIC, period_ns)


@pytest.mark.parametrize(
    ("there", "here", "left"),
    [
        pytest.param({"one": ["a"]}, {"two": ["b"], "one": ["a"]}, True, id="it hears the topic"),
        pytest.param({}, {"two": ["b"], "one": ["a"]}, False, id="it is not seen where the topic comes from"),
        pytest.param({"one": ["a2"]}, {"two": ["b"], "one": ["a"]}, False, id="it says that it lives elsewhere"),
        pytest.param({"one": ["a"]}, {"two": ["b", "a"]}, False, id="it says that it lives here"),
        pytest.param({"one": ["a"]}, {}, False, id="it is not here"),
    ],
)  # fmt: skip
def test_a_topic_is_left_to_who_is_believed_to_hear_it(
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


def test_a_word_does_not_outlive_who_gave_it() -> None:
    one, other = street(2)
    one.period_ns, other.period_ns = 5, 0
    assert len(advertising([one, other])) == 2
    exchange([one, other])
    assert one.assign().deferred == {"two"}
    said = one.announcements("one") | frozenset(
        each for each in other.announcements("one") if each.role is not AnnouncementRole.IDENTITY
    )
    one.peers.on_announcements("one", said)  # whose name is taken back first
    assert one.assign() == ForwardingShare((Target("two", None, 5),))


def test_our_own_word_is_no_news_to_us() -> None:
    one, _ = street(2)
    one.period_ns = 3
    one.assign()
    assert one.on_advertisements(one.topic_advertisements.advertised("two")) == frozenset()
    assert one.period() == 3


def test_of_two_words_of_one_streamer_the_faster_counts_until_it_is_taken_back() -> None:
    one, other = street(2)
    me = RouterId(other.name, other.peers.local_id.instance)
    old, new = advertisement(*me, period_ns=2), advertisement(*me, period_ns=9)
    one.period_ns = 5
    for came, went, left in (([old], [], True), ([new], [], True), ([], [old], False), ([], [new], False)):
        assert one.topic_advertisements.on_advertisements("two", came, went) == {TOPIC}
        assert bool(one.assign().deferred) is left
    assert one.topic_advertisements.on_advertisements("two", [], [old]) == frozenset()


# ------------------------------------------------------------------------------------------------- bounds


def test_above_the_bound_nothing_is_announced_and_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts_module, "MAX_ADVERTISEMENTS", 3)
    one, other = street(2)
    one.period_ns = other.period_ns = 0
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(50)]
    for topic in topics:
        one.assign(topic=topic)
    assert len(one.topic_advertisements.advertised("two")) == 3
    assert one.topic_advertisements.suppressed["two"] == 47
    exchange([one, other])
    assert not any(other.assign(topic=topic).deferred for topic in topics[3:])  # both put it
    # One that is no more makes room.
    one.period_ns = None
    one.assign(topic=topics[0])
    one.period_ns = 0
    one.assign(topic=topics[-1])
    assert topics[-1] in {each.topic for each in one.topic_advertisements.advertised("two")}


def test_there_is_a_bound_to_what_is_heard_of_one_topic() -> None:
    me, other = street(2)
    me.period_ns = 5
    who = RouterId(other.name, other.peers.local_id.instance)
    words = [advertisement(*who, period_ns=period_ns) for period_ns in range(10**9, 10**9 + 100)]
    me.topic_advertisements.on_advertisements("two", words, [])
    assert me.topic_advertisements.over_limit["two"] == 100 - puts_module.MAX_ADVERTISEMENTS_PER_TOPIC
    assert me.topic_advertisements.on_advertisements("two", [advertisement(*who)], []) == frozenset()
    assert me.period() == 5  # what has no room is not known, so both put it
    me.topic_advertisements.on_advertisements("two", [], words[:1])
    assert me.topic_advertisements.on_advertisements("two", [advertisement(*who)], []) == {TOPIC}
    assert me.period() is None


def test_nothing_is_left_behind_when_all_is_taken_back() -> None:
    one, other = street(2)
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


# ------------------------------------------------------------------------------------------------- nothing is lost


class HandOvers(RuleBasedStateMachine):
    """Wishes come and go, words take their time, and messages come in at all of them.

    Words of one streamer arrive in order, and before what it has taken back has ended. Then somebody puts each message, and
    no slower than anybody there is entitled to: who asked for a rate and had it once.
    """

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.now_ns = 0
        self.streamers = street(count)
        # (when it was said, by whom, what), of which each hears the first part.
        self.history: list[tuple[int, Streamer, frozenset[TopicAdvertisement]]] = []
        self.heard = [0] * count
        self.releases: list[tuple[int, Streamer]] = []
        self.latest: dict[str, frozenset[TopicAdvertisement]] = {
            each.name: frozenset() for each in self.streamers
        }
        self.lost: list[tuple[int, int | None]] = []

    @rule(which=st.integers(0, 3), wish=PERIODS)
    def is_asked(self, which: int, wish: int | None) -> None:
        self.streamers[which % len(self.streamers)].period_ns = wish

    @rule(which=st.integers(0, 3))
    def hears_one_more(self, which: int) -> None:
        which %= len(self.streamers)
        if self.heard[which] < len(self.history):
            self._receive(which)

    def _receive(self, which: int) -> None:
        _, speaker, said = self.history[self.heard[which]]
        self.heard[which] += 1
        one = self.streamers[which]
        others = frozenset(each for each in one.seen if each.authority != speaker.name)
        one.on_advertisements(others | said)

    @rule(ns=st.sampled_from([1, GRACE_PERIOD_NS // 3, GRACE_PERIOD_NS - 1]))
    def time_passes(self, ns: int) -> None:
        """At most as much as words may take."""
        for which in range(len(self.streamers)):
            while (
                self.heard[which] < len(self.history)
                and self.history[self.heard[which]][0] + GRACE_PERIOD_NS <= self.now_ns + ns
            ):
                self._receive(which)
        self.now_ns += ns
        due = [each for each in self.releases if each[0] <= self.now_ns]
        self.releases = [each for each in self.releases if each[0] > self.now_ns]
        for _, one in due:
            one.topic_advertisements.end_grace(TOPIC, self.now_ns)

    @rule()
    def a_message_comes(self) -> None:
        periods = []
        for each in self.streamers:
            share = each.assign(self.now_ns)
            if share.grace_until_ns:
                self.releases.append((share.grace_until_ns, each))
            if share.targets and not share.deferred:
                periods.append(share.targets[0].period_ns)
            said = each.topic_advertisements.advertised("two")
            if said != self.latest[each.name]:
                self.latest[each.name] = said
                self.history.append((self.now_ns, each, said))
        wishes = [each.period_ns for each in self.streamers if each.period_ns is not None]
        if wishes and (not periods or min(periods) > min(wishes)):
            self.lost.append((self.now_ns, min(periods, default=None)))

    @rule()
    def all_is_heard(self) -> None:
        self.a_message_comes()
        for which in range(len(self.streamers)):
            while self.heard[which] < len(self.history):
                self._receive(which)
        self.releases = []
        for each in self.streamers:
            each.topic_advertisements.end_grace(TOPIC, self.now_ns + 2 * GRACE_PERIOD_NS)
        wishes = [each.period_ns for each in self.streamers if each.period_ns is not None]
        assert list(advertising(self.streamers, self.now_ns).values()) == ([min(wishes)] if wishes else [])

    @invariant()
    def nothing_is_lost(self) -> None:
        assert not getattr(self, "lost", [])


TestHandOvers = HandOvers.TestCase


def test_a_word_that_is_kept_no_longer_than_it_is_given_loses_what_comes_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lingering is for."""
    for linger_ns, lost in ((GRACE_PERIOD_NS, False), (0, True)):
        monkeypatch.setattr(puts_module, "GRACE_PERIOD_NS", linger_ns)
        one, other = street(2)
        one.period_ns, other.period_ns = 0, 5
        assert len(advertising([one, other])) == 2
        exchange([one, other])
        assert list(advertising([one, other])) == [one.name]
        one.period_ns = None
        one.assign(100)
        one.topic_advertisements.end_grace(TOPIC, 101)
        assert (advertising([one, other], 101) == {}) is lost


def test_at_a_stop_every_word_is_taken_back_and_all_is_put_as_before() -> None:
    one, other = street(2)
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


# ------------------------------------------------------------------------------------------------- what becomes of it

EVENT: Final = UUri("chassis", 7, 1, 0x8001)
APP: Final = UUri("cloud", 9, 1, 0)
OTHER: Final = RouterId("other", "1" * 16)


class PeerRig:
    """A streamer with another one, which is vouched for, on its backbone."""

    def __init__(self, build: "type[World]", carries: str = "chassis", **more: object) -> None:
        self.neighbours = PeerRouters("hpc", "0" * 16)
        self.neighbours.configure({"backbone": ["hpc", "cloud"], "chassis": ["chassis"], "dash": ["dash"]})
        says = [
            (AnnouncementRole.IDENTITY, "other"),
            (AnnouncementRole.LOCAL, "cloud"),
            (AnnouncementRole.CARRIES, carries),
        ]
        said = (Announcement(OTHER.instance, "x", "other", *each, trusted=True) for each in says)
        self.neighbours.on_announcements("backbone", frozenset(said))
        self.puts = TopicAdvertisements(self.neighbours)
        self.world = build(peers=self.neighbours, topic_advertisements=self.puts, **more)  # type: ignore[arg-type]
        self.world.directory.subscribe(EVENT, APP, 5)

    def event(self, topic: UUri = EVENT) -> UMessage:
        message = publish(self.world.id(), topic)
        self.world.receive("chassis", message)
        return message

    def peer_advertises(self, period_ns: int = 0, *, no_more: bool = False) -> None:
        said = [TopicAdvertisement(OTHER.instance, "x", OTHER.authority, EVENT, period_ns)]
        topics = self.puts.on_advertisements("backbone", [] if no_more else said, said if no_more else [])
        self.world.dispatcher.invalidate_topics(topics)

    def announced(self) -> dict[UUri, int]:
        return {each.topic: each.period_ns for each in self.puts.advertised("backbone")}

    @property
    def received(self) -> list[UMessage]:
        """What was put, or waits to be."""
        self.world.send()
        return self.world.egress["backbone"].messages

    def deferred(self) -> int:
        return self.world.dispatcher.refused_counts()["chassis"]["deferred_to_peer"]


def test_what_another_puts_is_counted_as_its_own_and_is_none_of_ours(build: "type[World]") -> None:
    beside = PeerRig(build)
    first = beside.event()
    assert beside.announced() == {EVENT: 5}
    beside.peer_advertises()
    for _ in range(3):
        beside.event()
    assert beside.received == [first]
    assert beside.deferred() == 3
    assert beside.world.ledger().received == 1
    assert beside.announced() == {EVENT: 5}  # for when the other one is gone
    beside.peer_advertises(no_more=True)
    last = beside.event()
    assert beside.received == [first, last]


def test_other_targets_of_what_another_puts_get_it_from_us(build: "type[World]") -> None:
    beside = PeerRig(build)
    dash = UUri("dash", 3, 1, 0)
    beside.world.directory.subscribe(EVENT, dash)
    beside.peer_advertises()
    event = beside.event()
    assert beside.received == []
    assert beside.world.egress["dash"].messages == [event]
    assert beside.deferred() == 0
    assert beside.announced() == {EVENT: 5}
    assert beside.world.ledger().received == 1


def test_what_only_we_have_heard_is_told_from_what_another_hears_as_well(build: "type[World]") -> None:
    """A dead letter that is redriven comes from no network."""
    beside = PeerRig(build)
    dash = UUri("dash", 3, 1, 0)
    beside.world.directory.subscribe(EVENT, dash)
    attributes = beside.event().attributes
    ingress = beside.world.ingress("chassis")  # where it is buried if it has expired on arrival
    assert not ingress.defers_to_peer(attributes, "backbone")
    beside.peer_advertises()
    assert ingress.defers_to_peer(attributes, "backbone")
    assert not ingress.defers_to_peer(attributes, "dash")
    assert not ingress.defers_to_peer(attributes, "chassis")
    beside.world.directory.unsubscribe(EVENT, dash)
    assert ingress.defers_to_peer(attributes, "chassis")
    assert not ingress.defers_to_peer(
        publish(beside.world.id(), EVENT.with_resource(0x8005)).attributes, "backbone"
    )
    # Nor what it has brought itself.
    assert beside.world.ingress("backbone").defers_to_peer(attributes, "dash")


def test_a_slower_word_leaves_it_with_us(build: "type[World]") -> None:
    beside = PeerRig(build)
    beside.peer_advertises(6)
    event = beside.event()
    assert beside.received == [event]


def test_filters_go_on_knowing_what_they_know(build: "type[World]", answering: "type[VerdictFilter]") -> None:
    made: list[VerdictFilter] = []

    def filters(delivery: "Delivery") -> list["VerdictFilter"]:
        made.append(answering([None] * 9))
        return made[-1:]

    beside = PeerRig(build, filters=filters)
    first = beside.event()
    beside.peer_advertises()
    beside.event()
    beside.peer_advertises(no_more=True)
    last = beside.event()
    [one] = made
    assert [message for message, _ in one.calls] == [first, last]


def test_what_a_filter_holds_is_put_though_another_puts_the_rest(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    beside = PeerRig(build, filters=lambda delivery: [holding(delivery, 100)])
    held = beside.event()
    beside.peer_advertises()
    beside.event()
    beside.world.time.now_ns += 100
    beside.world.run()
    assert beside.received == [held]


def test_what_a_filter_holds_is_put_as_long_as_others_rely_on_us(
    build: "type[World]", holding: "type[HoldingFilter]"
) -> None:
    beside = PeerRig(build, filters=lambda delivery: [holding(delivery, 100)])
    held = beside.event()
    beside.peer_advertises(9)
    beside.world.directory.unsubscribe(EVENT, APP)
    beside.world.time.now_ns += 100
    beside.world.run()
    assert beside.received == [held]


def test_what_nobody_wants_any_more_is_put_until_the_others_have_heard_of_it(build: "type[World]") -> None:
    beside = PeerRig(build)
    events = [beside.event()]
    beside.peer_advertises(9)
    events.append(beside.event())
    beside.world.directory.unsubscribe(EVENT, APP)
    for _ in range(3):
        events.append(beside.event())
        assert beside.announced() == {}
    beside.world.time.now_ns += GRACE_PERIOD_NS
    beside.world.run()
    beside.event()
    assert beside.received == events
    assert beside.world.verdicts()[-1] is Verdict.NO_SUBSCRIBER
    assert beside.puts._grace == {}


def test_what_is_put_less_often_goes_on_as_before_until_the_others_have_heard_of_it(
    build: "type[World]",
) -> None:
    beside = PeerRig(build)
    beside.event()
    beside.peer_advertises(9)
    beside.event()
    beside.world.directory.subscribe(EVENT, APP, 20)
    beside.event()
    assert beside.announced() == {EVENT: 20}
    [target] = beside.world.dispatcher.target_statistics()
    assert target.period_ns == 5
    beside.world.time.now_ns += GRACE_PERIOD_NS
    beside.world.run()
    beside.event()
    assert beside.deferred() == 1
    [target] = beside.world.dispatcher.target_statistics()
    assert target.period_ns == 20


def test_what_is_heard_of_a_topic_elsewhere_changes_nothing(build: "type[World]") -> None:
    """What the other one puts is heard, and so is who pretends to be somebody."""
    beside = PeerRig(build)
    beside.event()
    for endpoint in ("backbone", "dash"):
        beside.world.receive(endpoint, publish(beside.world.id(), EVENT))
    assert beside.announced() == {EVENT: 5}


def test_of_our_own_topics_nothing_is_said(build: "type[World]") -> None:
    beside = PeerRig(build, carries=ANY_AUTHORITY)
    own = UUri("hpc", 4, 1, 0x8000)
    beside.world.directory.subscribe(own, APP)
    beside.world.receive(SELF, publish(beside.world.id(), own))
    assert len(beside.received) == 1
    assert beside.announced() == {}


def test_who_cannot_decide_has_nobody_rely_on_him(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = PeerRig(build)
    beside.event()

    def broken(topic: UUri) -> list[object]:
        raise RuntimeError("broken")

    monkeypatch.setattr(beside.world.directory, "subscribers", broken)
    beside.world.directory.touch()
    beside.event()
    assert beside.announced() == {}


def test_topics_that_are_forgotten_are_announced_no_more_until_they_come_again(build: "type[World]") -> None:
    beside = PeerRig(build, route_limit=10)
    topics = [EVENT.with_resource(0x8000 + number) for number in range(25)]
    beside.world.directory.subscribe(UUri("chassis", 7, 1, 0xFFFF), APP)
    for topic in topics:
        beside.event(topic)
        assert topic in beside.announced()
        assert len(beside.announced()) <= 10
    beside.event(topics[0])
    assert topics[0] in beside.announced()


@pytest.mark.parametrize("window", [0, LOOP_WINDOW])
def test_only_the_plans_of_what_has_changed_are_made_again(build: "type[World]", window: int) -> None:
    beside = PeerRig(build, dedup_windows={"chassis": window})
    topics = [EVENT, EVENT.with_resource(0x8002)]
    beside.world.directory.subscribe(topics[1], APP)
    for topic in topics * 2:
        beside.event(topic)
    asked = beside.world.directory.queries
    beside.peer_advertises()
    for topic in topics * 2:
        beside.event(topic)
    assert beside.world.directory.queries == asked + 1
    assert beside.deferred() == 2
