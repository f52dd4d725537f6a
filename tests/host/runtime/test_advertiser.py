# SPDX-License-Identifier: Apache-2.0
"""Topic advertisements are announced a little after a change, and together."""

from collections.abc import Callable

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.timers import Timers
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.topic_advertisements import TopicAdvertisement
from ustreamer.core.routing.forwarding import Target
from ustreamer.host.runtime.advertiser import ADVERTISE_DELAY_NS, TopicAdvertiser
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


def test_changes_within_the_delay_are_advertised_together() -> None:
    time, timers = ManualClock(), Timers()
    us, other = PeerRouters("hpc", "0" * 16), PeerRouters("other", "1" * 16)
    for each in (us, other):
        each.configure(HOMES)
    us.on_announcements("two", other.own_announcements("two"))
    transports = {name: Recording() for name in HOMES}
    announcer = TopicAdvertiser(us, transports, time.clock(), timers.schedule)

    def put(number: int) -> None:
        announcer.advertisements.assign(UUri("a", number, 1, 0x8001), (Target("two"),), time.now_ns)

    def run(ns: int) -> list[int]:
        time.now_ns += ns
        for action in timers.pop_due(time.now_ns):
            action()
        return [len(each) for each in transports["two"].advertised]

    put(1)
    put(2)
    assert run(ADVERTISE_DELAY_NS - 1) == []
    put(3)
    assert run(1) == [3]
    assert run(ADVERTISE_DELAY_NS) == [3]
    put(3)  # no change
    assert run(ADVERTISE_DELAY_NS) == [3]
    put(4)
    assert run(ADVERTISE_DELAY_NS) == [3, 4]
    assert transports["one"].advertised == []
    announcer.hand_over()
    assert run(ADVERTISE_DELAY_NS) == [3, 4, 0]
