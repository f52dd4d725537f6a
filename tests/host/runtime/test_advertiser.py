# SPDX-License-Identifier: Apache-2.0
"""Topic advertisements are announced at once and then together; subscribed topics are advertised before messages."""

from collections.abc import Callable

import pytest

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.subscriptions import Change, Subscription
from ustreamer.host.runtime import advertiser
from ustreamer.host.runtime.advertiser import (
    ADVERTISE_DELAY_NS,
    SubscribedTopics,
    TopicAdvertiser,
)
from ustreamer.transport_port import PeerTopicTransport
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uuri import UUri

HOMES = {"one": ["a"], "two": ["b"]}


class Recording(LocalTransport, PeerTopicTransport):
    """A transport that notes its advertisements."""

    def __init__(self) -> None:
        super().__init__(LocalNetwork(), "hpc")
        self.advertised: list[frozenset[TopicAdvertisement]] = []

    def advertise_topics(self, advertisements: frozenset[TopicAdvertisement]) -> None:
        self.advertised.append(advertisements)

    def watch_topic_advertisements(
        self, changed: Callable[[frozenset[TopicAdvertisement], frozenset[TopicAdvertisement]], None]
    ) -> None:
        pass


class Scene:
    """A streamer with a peer on network two."""

    def __init__(self) -> None:
        self.time, self.timers = ManualClock(), Timers()
        us, other = PeerRouters("hpc", "0" * 16), PeerRouters("other", "1" * 16)
        for each in (us, other):
            each.configure(HOMES)
        us.on_announcements("two", other.own_announcements("two"))
        self.transports = {name: Recording() for name in HOMES}
        self.advertiser = TopicAdvertiser(us, self.transports, self.time.clock(), self.timers.schedule)
        self.time.advance(s=1)

    def put(self, number: int) -> None:
        topic = UUri("a", number, 1, 0x8001)
        self.advertiser.advertisements.assign(topic, (Target("two"),), self.time.now_ns)

    def run(self, ns: int = 0) -> list[int]:
        """The numbers of topics of all announcements so far, `ns` later."""
        self.time.now_ns += ns
        while due := self.timers.pop_due(self.time.now_ns):
            for action in due:
                action()
        return [len(each) for each in self.transports["two"].advertised]


def test_the_first_change_is_advertised_at_once_and_others_within_the_delay_together() -> None:
    scene = Scene()
    scene.put(1)
    scene.put(2)
    assert scene.run() == [2]
    scene.put(3)
    assert scene.run(ADVERTISE_DELAY_NS - 1) == [2]
    scene.put(4)
    assert scene.run(1) == [2, 4]
    scene.put(4)  # no change
    assert scene.run(ADVERTISE_DELAY_NS) == [2, 4]
    scene.put(5)
    assert scene.run() == [2, 4, 5]
    assert scene.transports["one"].advertised == []


def test_a_withdrawal_waits_for_the_delay_so_that_a_reload_withdraws_nothing() -> None:
    scene = Scene()
    scene.put(1)
    assert scene.run(ADVERTISE_DELAY_NS) == [1]
    scene.advertiser.advertisements.withdraw_all(scene.time.now_ns)
    assert scene.run() == [1]
    scene.put(1)
    assert scene.run(ADVERTISE_DELAY_NS) == [1, 1]
    scene.advertiser.hand_over()
    assert scene.run(ADVERTISE_DELAY_NS) == [1, 1, 0]


# --------------------------------------------------------------------------------------------- before the first message

TOPICS = [UUri("a", 1, 1, 0x8001 + number) for number in range(5)]
SUBSCRIBERS = [UUri("b", number, 1, 0) for number in (1, 2)]


class SharedTopics:
    """Subscribed topics, and each topic that was shared."""

    def __init__(self) -> None:
        self.time, self.timers = ManualClock(), Timers()
        self.subscribed: set[tuple[UUri, UUri]] = set()
        self.shared: list[UUri] = []
        self.topics = SubscribedTopics(self._share, self.time.clock(), self.timers.schedule)

    def _share(self, topic: UUri) -> bool:
        self.shared.append(topic)
        return any(each == topic for each, _ in self.subscribed)

    def change(self, topic: UUri, subscriber: UUri, change: Change) -> None:
        if change is Change.UNSUBSCRIBED:
            self.subscribed.discard((topic, subscriber))
        else:
            self.subscribed.add((topic, subscriber))
        self.topics.on_subscription(Subscription(topic, subscriber), change)

    def run(self, ns: int = 0) -> list[UUri]:
        """The topics that were shared since the last call, `ns` later."""
        self.time.now_ns += ns
        while due := self.timers.pop_due(self.time.now_ns):
            for action in due:
                action()
        shared, self.shared = self.shared, []
        return shared


def test_a_topic_is_shared_with_each_change_of_its_subscriptions() -> None:
    rig = SharedTopics()
    for change in Change:
        rig.change(TOPICS[0], SUBSCRIBERS[0], change)
        assert rig.run() == [TOPICS[0]]
    for topic in TOPICS:
        rig.change(topic, SUBSCRIBERS[0], Change.PRESENT)
    assert rig.run() == TOPICS


def test_topics_are_shared_again_after_a_change_of_the_advertisements_of_peers() -> None:
    rig = SharedTopics()
    for subscriber in SUBSCRIBERS:
        rig.change(TOPICS[0], subscriber, Change.SUBSCRIBED)
    rig.change(TOPICS[1], SUBSCRIBERS[0], Change.SUBSCRIBED)
    rig.change(TOPICS[2], SUBSCRIBERS[0], Change.SUBSCRIBED)
    rig.change(TOPICS[2], SUBSCRIBERS[0], Change.UNSUBSCRIBED)
    rig.change(TOPICS[0], SUBSCRIBERS[0], Change.UNSUBSCRIBED)  # another subscription is left
    rig.run()
    rig.topics.on_advertisements({TOPICS[0], TOPICS[4]})
    assert rig.run() == [TOPICS[0]]
    rig.topics.share_all()
    assert rig.run() == TOPICS[:2]


def test_wildcards_and_topics_above_the_limit_wait_for_their_first_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advertiser, "MAX_OWN_ADVERTISEMENTS", 2)
    rig = SharedTopics()
    rig.change(UUri("a", 0xFFFF0001, 1, 0x8001), SUBSCRIBERS[0], Change.SUBSCRIBED)
    for topic in TOPICS:
        rig.change(topic, SUBSCRIBERS[0], Change.SUBSCRIBED)
    assert rig.run() == TOPICS[:2]
    rig.change(TOPICS[0], SUBSCRIBERS[0], Change.UNSUBSCRIBED)
    assert rig.run() == TOPICS[:1]
    rig.change(TOPICS[4], SUBSCRIBERS[0], Change.SUBSCRIBED)
    assert rig.run() == [TOPICS[4]]
