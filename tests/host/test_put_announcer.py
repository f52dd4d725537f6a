# SPDX-License-Identifier: Apache-2.0
"""What we put is announced a little later than it changes, and all of it at once."""

from ustreamer.core.base.clock import ManualClock
from ustreamer.core.base.deadline_queue import TimerQueue
from ustreamer.core.peers.election import Neighbours
from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.core.routing.router import Target
from ustreamer.host.runtime.advertiser import PAUSE_NS, PutAnnouncer
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.uuri import UUri

HOMES = {"one": ["a"], "two": ["b"]}


class Recording(LocalTransport):
    """A transport that notes what it is to announce."""

    def __init__(self) -> None:
        super().__init__(LocalNetwork(), "hpc")
        self.told: list[frozenset[Put]] = []

    def announce_puts(self, puts: frozenset[Put]) -> None:
        self.told.append(puts)


def test_what_changes_within_a_moment_is_told_at_once() -> None:
    time, timers = ManualClock(), TimerQueue()
    us, other = Neighbours("hpc", "0" * 16), Neighbours("other", "1" * 16)
    for each in (us, other):
        each.settle(HOMES)
    us.hear("two", other.announcements("two"))
    transports = {name: Recording() for name in HOMES}
    announcer = PutAnnouncer(us, transports, time.clock(), timers.schedule)

    def put(number: int) -> None:
        announcer.puts.share(UUri("a", number, 1, 0x8001), (Target("two"),), time.now_ns)

    def run(ns: int) -> list[int]:
        time.now_ns += ns
        for action in timers.due(time.now_ns):
            action()
        return [len(each) for each in transports["two"].told]

    put(1)
    put(2)
    assert run(PAUSE_NS - 1) == []
    put(3)
    assert run(1) == [3]
    assert run(PAUSE_NS) == [3]
    put(3)  # no news
    assert run(PAUSE_NS) == [3]
    put(4)
    assert run(PAUSE_NS) == [3, 4]
    assert transports["one"].told == []
    announcer.resign()
    assert run(PAUSE_NS) == [3, 4, 0]
