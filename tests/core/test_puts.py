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
from ustreamer.core.peers.election import Announcement, Neighbours, Role, Who
from ustreamer.core.peers.topic_advertisements import LINGER_NS, Put, Puts, Share
from ustreamer.core.routing.router import SELF, Target
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import ANY_AUTHORITY, UUri

if TYPE_CHECKING:
    from tests.core.conftest import Holding, Verdicts, World
    from ustreamer.core.delivery.delivery import Delivery

HOMES: Final = {"one": ["a", "a2"], "two": ["b"]}
TOPIC: Final = UUri("a", 1, 1, 0x8001)


class Streamer:
    """One of several between the networks one and two; `wish` is what somebody on two asked it for, in ns."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.neighbours = Neighbours(name, f"{number:016x}")
        self.neighbours.settle(HOMES)
        self.changed: list[str] = []
        self.puts = Puts(self.neighbours, self.changed.append)
        self.wish: int | None = None
        self.seen: frozenset[Put] = frozenset()

    def said(self, network: str) -> frozenset[Announcement]:
        return self.neighbours.announcements(network)

    def share(self, now_ns: int = 0, topic: UUri = TOPIC) -> Share:
        """What becomes of a message on the topic."""
        wished = () if self.wish is None else (Target("two", None, self.wish),)
        return self.puts.share(topic, wished, now_ns)

    def period(self, now_ns: int = 0) -> int | None:
        """How often it puts the topic; None: not at all."""
        share = self.share(now_ns)
        return None if share.left or not share.targets else share.targets[0].period_ns

    def hear(self, said: frozenset[Put]) -> frozenset[UUri]:
        came, went, self.seen = said - self.seen, self.seen - said, said
        return self.puts.hear("two", came, went)


def street(count: int) -> list[Streamer]:
    """Streamers side by side, each of which is seen by all others on both networks."""
    streamers = [Streamer(f"g{number}", number) for number in range(count)]
    for network in HOMES:
        everything = frozenset().union(*(each.said(network) for each in streamers))
        for each in streamers:
            each.neighbours.hear(network, everything)
    return streamers


def talk(streamers: Iterable[Streamer]) -> None:
    """Each hears what all say."""
    everything = frozenset().union(*(each.puts.announced("two") for each in streamers))
    for each in streamers:
        each.hear(everything)


def putting(streamers: Iterable[Streamer], now_ns: int = 0) -> dict[str, int]:
    """Who puts the topic, and how often."""
    found = {each.name: each.period(now_ns) for each in streamers}
    return {name: period for name, period in found.items() if period is not None}


# ------------------------------------------------------------------------------------------------- one of them

WISHES = st.one_of(st.none(), st.sampled_from([0, 1, 5, 10**9]))


@given(st.lists(WISHES, min_size=1, max_size=5))
def test_whatever_each_was_asked_for_one_puts_it_at_the_highest_rate(wishes: list[int | None]) -> None:
    streamers = street(len(wishes))
    for each, wish in zip(streamers, wishes, strict=True):
        each.wish = wish
    wanted = [wish for wish in wishes if wish is not None]
    assert sorted(putting(streamers).values()) == sorted(wanted)  # nobody has heard of anybody: all put it
    talk(streamers)
    assert list(putting(streamers).values()) == ([min(wanted)] if wanted else [])


def test_of_equals_the_lot_decides_which_is_another_for_each_topic_and_the_same_after_a_restart() -> None:
    shares = dict.fromkeys(("g0", "g1", "g2"), 0)
    streamers, again = street(3), street(3)[::-1]
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(300)]
    for each in (*streamers, *again):
        each.wish = 0
        for topic in topics:
            each.share(topic=topic)
    talk(streamers)
    talk(again)
    for topic in topics:
        [one] = [each.name for each in streamers if not each.share(topic=topic).left]
        assert [each.name for each in again if not each.share(topic=topic).left] == [one]
        shares[one] += 1
    assert min(shares.values()) > 60


def test_when_the_one_that_puts_is_gone_another_one_does() -> None:
    streamers = street(3)
    for each in streamers:
        each.wish = 7
    assert len(putting(streamers)) == 3
    for left in (3, 2, 1):
        talk(streamers)
        [one] = putting(streamers)
        assert len(streamers) == left
        streamers = [each for each in streamers if each.name != one]


def test_alone_nothing_is_announced_and_nothing_is_kept() -> None:
    [alone] = street(1)
    alone.wish = 0
    assert alone.period() == 0
    assert alone.puts.announced("two") == frozenset()
    assert alone.changed == []


def test_what_nobody_else_there_can_bring_is_not_announced() -> None:
    """Such as what goes from one vehicle to the next, where each streamer is between its own network and the others'."""
    one, other = Streamer("g0", 0), Streamer("g1", 1)
    other.neighbours.settle({"two": ["a", "a2"], "three": ["b"]})
    everything = one.said("two") | other.said("two")
    for each in (one, other):
        each.neighbours.hear("two", everything)
    one.wish = 0
    assert one.period() == 0
    assert one.puts.announced("two") == frozenset()


def test_targets_of_one_subscriber_are_nobody_elses() -> None:
    one, _ = street(2)
    targets = (Target("two", UUri("b", 1, 1, 0)),)
    assert one.puts.share(TOPIC, targets, 0) == Share(targets)
    assert one.puts.announced("two") == frozenset()


def test_what_has_changed_is_said_once() -> None:
    one, _ = street(2)
    for one.wish, times in ((5, 1), (5, 1), (0, 2), (None, 3), (None, 3)):
        one.share()
        assert one.changed == ["two"] * times
        said = {each.period_ns for each in one.puts.announced("two")}
        assert said == (set() if one.wish is None else {one.wish})


# ------------------------------------------------------------------------------------------------- who is believed


def word(name: str, instance: str, period_ns: int = 0) -> Put:
    return Put(instance, "x", name, TOPIC, period_ns)


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
        other = Neighbours("other", "f" * 16)
        other.settle(homes)
        me.neighbours.hear(network, other.announcements(network) | third.said(network))
    me.wish = 5
    me.puts.hear("two", [word("other", "f" * 16)], [])
    assert bool(me.share().left) is left


def test_a_word_does_not_outlive_who_gave_it() -> None:
    one, other = street(2)
    one.wish, other.wish = 5, 0
    assert len(putting([one, other])) == 2
    talk([one, other])
    assert one.share().left == {"two"}
    said = one.said("one") | frozenset(each for each in other.said("one") if each.role is not Role.IS)
    one.neighbours.hear("one", said)  # whose name is taken back first
    assert one.share() == Share((Target("two", None, 5),))


def test_our_own_word_is_no_news_to_us() -> None:
    one, _ = street(2)
    one.wish = 3
    one.share()
    assert one.hear(one.puts.announced("two")) == frozenset()
    assert one.period() == 3


def test_of_two_words_of_one_streamer_the_faster_counts_until_it_is_taken_back() -> None:
    one, other = street(2)
    me = Who(other.name, other.neighbours.me.instance)
    old, new = word(*me, period_ns=2), word(*me, period_ns=9)
    one.wish = 5
    for came, went, left in (([old], [], True), ([new], [], True), ([], [old], False), ([], [new], False)):
        assert one.puts.hear("two", came, went) == {TOPIC}
        assert bool(one.share().left) is left
    assert one.puts.hear("two", [], [old]) == frozenset()


# ------------------------------------------------------------------------------------------------- bounds


def test_above_the_bound_nothing_is_announced_and_it_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(puts_module, "MAX_PROMISES", 3)
    one, other = street(2)
    one.wish = other.wish = 0
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(50)]
    for topic in topics:
        one.share(topic=topic)
    assert len(one.puts.announced("two")) == 3
    assert one.puts.unannounced["two"] == 47
    talk([one, other])
    assert not any(other.share(topic=topic).left for topic in topics[3:])  # both put it
    # One that is no more makes room.
    one.wish = None
    one.share(topic=topics[0])
    one.wish = 0
    one.share(topic=topics[-1])
    assert topics[-1] in {each.topic for each in one.puts.announced("two")}


def test_there_is_a_bound_to_what_is_heard_of_one_topic() -> None:
    me, other = street(2)
    me.wish = 5
    who = Who(other.name, other.neighbours.me.instance)
    words = [word(*who, period_ns=period_ns) for period_ns in range(10**9, 10**9 + 100)]
    me.puts.hear("two", words, [])
    assert me.puts.unheard["two"] == 100 - puts_module.MAX_WORDS
    assert me.puts.hear("two", [word(*who)], []) == frozenset()
    assert me.period() == 5  # what has no room is not known, so both put it
    me.puts.hear("two", [], words[:1])
    assert me.puts.hear("two", [word(*who)], []) == {TOPIC}
    assert me.period() is None


def test_nothing_is_left_behind_when_all_is_taken_back() -> None:
    one, other = street(2)
    topics = [UUri("a", 1, 1, 0x8000 + number) for number in range(100)]
    for one.wish in (0, None):
        for topic in topics:
            one.share(topic=topic)
        talk([one, other])
    for topic in topics:
        one.puts.release(topic, LINGER_NS)
    assert one.puts._promised == {}
    assert one.puts._lingering == {}
    assert other.puts._heard == {"two": {}}


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
        self.history: list[tuple[int, Streamer, frozenset[Put]]] = []
        self.heard = [0] * count
        self.releases: list[tuple[int, Streamer]] = []
        self.latest: dict[str, frozenset[Put]] = {each.name: frozenset() for each in self.streamers}
        self.lost: list[tuple[int, int | None]] = []

    @rule(which=st.integers(0, 3), wish=WISHES)
    def is_asked(self, which: int, wish: int | None) -> None:
        self.streamers[which % len(self.streamers)].wish = wish

    @rule(which=st.integers(0, 3))
    def hears_one_more(self, which: int) -> None:
        which %= len(self.streamers)
        if self.heard[which] < len(self.history):
            self._hear(which)

    def _hear(self, which: int) -> None:
        _, speaker, said = self.history[self.heard[which]]
        self.heard[which] += 1
        one = self.streamers[which]
        others = frozenset(each for each in one.seen if each.authority != speaker.name)
        one.hear(others | said)

    @rule(ns=st.sampled_from([1, LINGER_NS // 3, LINGER_NS - 1]))
    def time_passes(self, ns: int) -> None:
        """At most as much as words may take."""
        for which in range(len(self.streamers)):
            while (
                self.heard[which] < len(self.history)
                and self.history[self.heard[which]][0] + LINGER_NS <= self.now_ns + ns
            ):
                self._hear(which)
        self.now_ns += ns
        due = [each for each in self.releases if each[0] <= self.now_ns]
        self.releases = [each for each in self.releases if each[0] > self.now_ns]
        for _, one in due:
            one.puts.release(TOPIC, self.now_ns)

    @rule()
    def a_message_comes(self) -> None:
        periods = []
        for each in self.streamers:
            share = each.share(self.now_ns)
            if share.until_ns:
                self.releases.append((share.until_ns, each))
            if share.targets and not share.left:
                periods.append(share.targets[0].period_ns)
            said = each.puts.announced("two")
            if said != self.latest[each.name]:
                self.latest[each.name] = said
                self.history.append((self.now_ns, each, said))
        wishes = [each.wish for each in self.streamers if each.wish is not None]
        if wishes and (not periods or min(periods) > min(wishes)):
            self.lost.append((self.now_ns, min(periods, default=None)))

    @rule()
    def all_is_heard(self) -> None:
        self.a_message_comes()
        for which in range(len(self.streamers)):
            while self.heard[which] < len(self.history):
                self._hear(which)
        self.releases = []
        for each in self.streamers:
            each.puts.release(TOPIC, self.now_ns + 2 * LINGER_NS)
        wishes = [each.wish for each in self.streamers if each.wish is not None]
        assert list(putting(self.streamers, self.now_ns).values()) == ([min(wishes)] if wishes else [])

    @invariant()
    def nothing_is_lost(self) -> None:
        assert not getattr(self, "lost", [])


TestHandOvers = HandOvers.TestCase


def test_a_word_that_is_kept_no_longer_than_it_is_given_loses_what_comes_in_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lingering is for."""
    for linger_ns, lost in ((LINGER_NS, False), (0, True)):
        monkeypatch.setattr(puts_module, "LINGER_NS", linger_ns)
        one, other = street(2)
        one.wish, other.wish = 0, 5
        assert len(putting([one, other])) == 2
        talk([one, other])
        assert list(putting([one, other])) == [one.name]
        one.wish = None
        one.share(100)
        one.puts.release(TOPIC, 101)
        assert (putting([one, other], 101) == {}) is lost


def test_at_a_stop_every_word_is_taken_back_and_all_is_put_as_before() -> None:
    one, other = street(2)
    one.wish, other.wish = 0, 5
    assert len(putting([one, other])) == 2
    talk([one, other])
    assert one.puts.resign()
    assert one.puts.announced("two") == frozenset()
    assert putting([one, other]) == {one.name: 0}
    talk([one, other])
    assert putting([one, other]) == {one.name: 0, other.name: 5}
    assert one.puts.announced("two") == frozenset()
    assert not one.puts.resign()


# ------------------------------------------------------------------------------------------------- what becomes of it

EVENT: Final = UUri("chassis", 7, 1, 0x8001)
APP: Final = UUri("cloud", 9, 1, 0)
OTHER: Final = Who("other", "1" * 16)


class Beside:
    """A streamer with another one, which is vouched for, on its backbone."""

    def __init__(self, build: "type[World]", carries: str = "chassis", **more: object) -> None:
        self.neighbours = Neighbours("hpc", "0" * 16)
        self.neighbours.settle({"backbone": ["hpc", "cloud"], "chassis": ["chassis"], "dash": ["dash"]})
        says = [(Role.IS, "other"), (Role.HERE, "cloud"), (Role.CARRIES, carries)]
        said = (Announcement(OTHER.instance, "x", "other", *each, vouched=True) for each in says)
        self.neighbours.hear("backbone", frozenset(said))
        self.puts = Puts(self.neighbours)
        self.world = build(neighbours=self.neighbours, puts=self.puts, **more)  # type: ignore[arg-type]
        self.world.directory.subscribe(EVENT, APP, 5)

    def event(self, topic: UUri = EVENT) -> UMessage:
        message = publish(self.world.id(), topic)
        self.world.receive("chassis", message)
        return message

    def other_puts(self, period_ns: int = 0, *, no_more: bool = False) -> None:
        said = [Put(OTHER.instance, "x", OTHER.authority, EVENT, period_ns)]
        topics = self.puts.hear("backbone", [] if no_more else said, said if no_more else [])
        self.world.dispatcher.replan_topics(topics)

    def announced(self) -> dict[UUri, int]:
        return {each.topic: each.period_ns for each in self.puts.announced("backbone")}

    @property
    def came(self) -> list[UMessage]:
        """What was put, or waits to be."""
        self.world.send()
        return self.world.lanes["backbone"].messages

    def left_alone(self) -> int:
        return self.world.dispatcher.refused()["chassis"]["neighbour"]


def test_what_another_puts_is_counted_as_its_own_and_is_none_of_ours(build: "type[World]") -> None:
    beside = Beside(build)
    first = beside.event()
    assert beside.announced() == {EVENT: 5}
    beside.other_puts()
    for _ in range(3):
        beside.event()
    assert beside.came == [first]
    assert beside.left_alone() == 3
    assert beside.world.books().received == 1
    assert beside.announced() == {EVENT: 5}  # for when the other one is gone
    beside.other_puts(no_more=True)
    last = beside.event()
    assert beside.came == [first, last]


def test_other_targets_of_what_another_puts_get_it_from_us(build: "type[World]") -> None:
    beside = Beside(build)
    dash = UUri("dash", 3, 1, 0)
    beside.world.directory.subscribe(EVENT, dash)
    beside.other_puts()
    event = beside.event()
    assert beside.came == []
    assert beside.world.lanes["dash"].messages == [event]
    assert beside.left_alone() == 0
    assert beside.announced() == {EVENT: 5}
    assert beside.world.books().received == 1


def test_what_only_we_have_heard_is_told_from_what_another_hears_as_well(build: "type[World]") -> None:
    """A dead letter that is redriven comes from no network."""
    beside = Beside(build)
    dash = UUri("dash", 3, 1, 0)
    beside.world.directory.subscribe(EVENT, dash)
    attributes = beside.event().attributes
    ingress = beside.world.ingress("chassis")  # where it is buried if it has expired on arrival
    assert not ingress.leaves(attributes, "backbone")
    beside.other_puts()
    assert ingress.leaves(attributes, "backbone")
    assert not ingress.leaves(attributes, "dash")
    assert not ingress.leaves(attributes, "chassis")
    beside.world.directory.unsubscribe(EVENT, dash)
    assert ingress.leaves(attributes, "chassis")
    assert not ingress.leaves(publish(beside.world.id(), EVENT.with_resource(0x8005)).attributes, "backbone")
    # Nor what it has brought itself.
    assert beside.world.ingress("backbone").leaves(attributes, "dash")


def test_a_slower_word_leaves_it_with_us(build: "type[World]") -> None:
    beside = Beside(build)
    beside.other_puts(6)
    event = beside.event()
    assert beside.came == [event]


def test_filters_go_on_knowing_what_they_know(build: "type[World]", answering: "type[Verdicts]") -> None:
    made: list[Verdicts] = []

    def filters(delivery: "Delivery") -> list["Verdicts"]:
        made.append(answering([None] * 9))
        return made[-1:]

    beside = Beside(build, filters=filters)
    first = beside.event()
    beside.other_puts()
    beside.event()
    beside.other_puts(no_more=True)
    last = beside.event()
    [one] = made
    assert [message for message, _ in one.asked] == [first, last]


def test_what_a_filter_holds_is_put_though_another_puts_the_rest(
    build: "type[World]", holding: "type[Holding]"
) -> None:
    beside = Beside(build, filters=lambda delivery: [holding(delivery, 100)])
    held = beside.event()
    beside.other_puts()
    beside.event()
    beside.world.time.now_ns += 100
    beside.world.run()
    assert beside.came == [held]


def test_what_a_filter_holds_is_put_as_long_as_others_rely_on_us(
    build: "type[World]", holding: "type[Holding]"
) -> None:
    beside = Beside(build, filters=lambda delivery: [holding(delivery, 100)])
    held = beside.event()
    beside.other_puts(9)
    beside.world.directory.unsubscribe(EVENT, APP)
    beside.world.time.now_ns += 100
    beside.world.run()
    assert beside.came == [held]


def test_what_nobody_wants_any_more_is_put_until_the_others_have_heard_of_it(build: "type[World]") -> None:
    beside = Beside(build)
    events = [beside.event()]
    beside.other_puts(9)
    events.append(beside.event())
    beside.world.directory.unsubscribe(EVENT, APP)
    for _ in range(3):
        events.append(beside.event())
        assert beside.announced() == {}
    beside.world.time.now_ns += LINGER_NS
    beside.world.run()
    beside.event()
    assert beside.came == events
    assert beside.world.verdicts()[-1] is Verdict.NO_SUBSCRIBER
    assert beside.puts._lingering == {}


def test_what_is_put_less_often_goes_on_as_before_until_the_others_have_heard_of_it(
    build: "type[World]",
) -> None:
    beside = Beside(build)
    beside.event()
    beside.other_puts(9)
    beside.event()
    beside.world.directory.subscribe(EVENT, APP, 20)
    beside.event()
    assert beside.announced() == {EVENT: 20}
    [target] = beside.world.dispatcher.targets()
    assert target.period_ns == 5
    beside.world.time.now_ns += LINGER_NS
    beside.world.run()
    beside.event()
    assert beside.left_alone() == 1
    [target] = beside.world.dispatcher.targets()
    assert target.period_ns == 20


def test_what_is_heard_of_a_topic_elsewhere_changes_nothing(build: "type[World]") -> None:
    """What the other one puts is heard, and so is who pretends to be somebody."""
    beside = Beside(build)
    beside.event()
    for endpoint in ("backbone", "dash"):
        beside.world.receive(endpoint, publish(beside.world.id(), EVENT))
    assert beside.announced() == {EVENT: 5}


def test_of_our_own_topics_nothing_is_said(build: "type[World]") -> None:
    beside = Beside(build, carries=ANY_AUTHORITY)
    own = UUri("hpc", 4, 1, 0x8000)
    beside.world.directory.subscribe(own, APP)
    beside.world.receive(SELF, publish(beside.world.id(), own))
    assert len(beside.came) == 1
    assert beside.announced() == {}


def test_who_cannot_decide_has_nobody_rely_on_him(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(build)
    beside.event()

    def broken(topic: UUri) -> list[object]:
        raise RuntimeError("broken")

    monkeypatch.setattr(beside.world.directory, "subscribers", broken)
    beside.world.directory.touch()
    beside.event()
    assert beside.announced() == {}


def test_topics_that_are_forgotten_are_announced_no_more_until_they_come_again(build: "type[World]") -> None:
    beside = Beside(build, plan_limit=10)
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
    beside = Beside(build, duplicate_windows={"chassis": window})
    topics = [EVENT, EVENT.with_resource(0x8002)]
    beside.world.directory.subscribe(topics[1], APP)
    for topic in topics * 2:
        beside.event(topic)
    asked = beside.world.directory.asked
    beside.other_puts()
    for topic in topics * 2:
        beside.event(topic)
    assert beside.world.directory.asked == asked + 1
    assert beside.left_alone() == 2
