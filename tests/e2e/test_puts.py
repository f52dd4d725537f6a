# SPDX-License-Identifier: Apache-2.0
"""One topic that entities of one network have asked several streamers for: one of those puts it there, whatever happens to it.

tests/core/test_puts.py has which one.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.e2e import wire
from tests.e2e.neighbourhood import (
    EACH,
    FAR,
    SIDE_BY_SIDE,
    Gateway,
    Neighbourhood,
    all_has_come,
    side_by_side,
    times_come,
)
from tests.e2e.peers import Metronome, ZenohPeer, eventually
from tests.e2e.wire import Id, Uri

HZ: Final = 400

Make = Callable[..., Neighbourhood]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as last_first:
        yield lambda *networks: Neighbourhood(tmp_path, last_first, *networks)


def ask(listener: ZenohPeer, gateway: Gateway, topic: Uri, max_frequency: float | None = None) -> None:
    """Subscribe at one of the streamers."""
    method = Uri(gateway.authority, 0, 3).at(wire.SUBSCRIBE)
    answer = listener.call(method, wire.subscription_request(topic, max_frequency=max_frequency))
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def take_back(listener: ZenohPeer, gateway: Gateway, topic: Uri) -> None:
    """Unsubscribe at one of them."""
    answer = listener.call(Uri(gateway.authority, 0, 3).at(wire.UNSUBSCRIBE), wire.on_topic(topic))
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def left_alone(gateway: Gateway, endpoint: str) -> int:
    """How many messages that came in there it has left to another so far."""
    _, endpoints = gateway.counts()
    return endpoints[endpoint]["refused_neighbour"]


def wait_one_left(
    near: ZenohPeer, topic: Uri, gateways: Sequence[Gateway], endpoint: str = "one"
) -> list[Gateway]:
    """Publish until all but one leave the topic alone; that one comes first. Who leaves it has seen the other's word."""
    before = [left_alone(each, endpoint) for each in gateways]
    ranks: list[bool] = []

    def others() -> int:
        nonlocal before, ranks
        for _ in range(5):
            near.publish(topic)
        now = [left_alone(each, endpoint) for each in gateways]
        ranks = [one > other for one, other in zip(now, before, strict=True)]
        before = now
        return sum(ranks)

    eventually(others, len(gateways) - 1)
    return [each for _, each in sorted(zip(ranks, gateways, strict=True), key=lambda pair: pair[0])]


class Scene(NamedTuple):
    """A topic of network one that `near` publishes; a listener on network two has asked each streamer for it."""

    street: Neighbourhood
    near: ZenohPeer
    topic: Uri
    listeners: list[ZenohPeer]
    putting: Gateway
    leaving: Gateway

    def asked_at(self, gateway: Gateway) -> ZenohPeer:
        """The listener that has asked this one."""
        return self.listeners[("g1", "g2").index(gateway.authority)]

    def all_has_come(self, *gateways: Gateway) -> None:
        all_has_come(self.street.peer("two", FAR[0]), self.listeners[0], *gateways)
        after = self.street.peer("two", FAR[0])
        last = after.publish(after.address.at(0x8FFE))
        eventually(lambda: times_come(self.listeners[1], [last]), [1])


def set_up(
    street: Neighbourhood,
    gateways: Sequence[Gateway],
    wishes: Sequence[float | None] = (None, None),
) -> Scene:
    near = street.peer("one", "a.vin1")
    topic = near.address.at(0x8001)
    listeners = [street.peer("two", who) for who in FAR[:2]]
    for listener, gateway, wish in zip(listeners, gateways, wishes, strict=True):
        ask(listener, gateway, topic, wish)
    putting, leaving = wait_one_left(near, topic, gateways)
    return Scene(street, near, topic, listeners, putting, leaving)


class Stream:
    """Publications, HZ of them a second, and when each was sent."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.sent: list[tuple[float, Id]] = []

    def beat(self, number: int) -> None:
        self.sent.append((time.monotonic(), self._scene.near.publish(self._scene.topic, b"%d" % number)))

    def await_more(self, count: int) -> None:
        """Wait until so many more have been sent."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) >= wanted, True)

    def result(self, listener: ZenohPeer) -> tuple[list[float], int]:
        """When those were sent that have not come, and how many have come twice; none has come more often."""
        times = times_come(listener, [id for _, id in self.sent])
        assert max(times) <= 2
        lost = [when for (when, _), count in zip(self.sent, times, strict=True) if not count]
        gap_s = max(lost) - min(lost) if lost else 0.0
        twice = sum(count > 1 for count in times)
        print(f"\n{len(times)} sent, {len(lost)} lost within {1000 * gap_s:.1f} ms, {twice} twice")
        return lost, twice


# ------------------------------------------------------------------------------------------------- one of them puts it


def test_what_was_asked_for_at_two_comes_once_to_everybody(make: Make) -> None:
    street = make("one", "two")
    scene = set_up(street, side_by_side(street))
    before = left_alone(scene.leaving, "one")
    events = [scene.near.publish(scene.topic) for _ in range(4 * EACH)]
    scene.all_has_come(scene.leaving, scene.putting)
    assert [set(times_come(each, events)) for each in scene.listeners] == [{1}, {1}]
    assert scene.leaving.refused("one")["neighbour"] >= before + 4 * EACH
    assert "neighbour" not in scene.putting.refused("one")
    assert scene.putting.process.ledger["dead_lettered"] == 0


@pytest.mark.parametrize("wishes", [(20.0, 50.0), (50.0, 20.0)], ids=["the second", "the first"])
def test_of_two_rates_everybody_gets_the_higher_one(make: Make, wishes: Sequence[float]) -> None:
    """As if both had asked one of them: a network is one target, and gets the fastest rate that anybody there asked for."""
    street = make("one", "two")
    gateways = side_by_side(street)
    scene = set_up(street, gateways, wishes)
    assert scene.putting is gateways[wishes.index(50.0)]
    stream = Stream(scene)
    began = time.monotonic()
    with Metronome(HZ, stream.beat):
        stream.await_more(3 * HZ)
    said_s = time.monotonic() - began
    scene.all_has_come(*gateways)
    for each in scene.listeners:
        times = times_come(each, [id for _, id in stream.sent])
        assert set(times) == {0, 1}
        came_s = (
            each.events(scene.topic)[-1].at - began
        )  # longer, if the machine was busy and some had to wait
        assert 30 * said_s < sum(times) < 55 * max(said_s, came_s)


def test_of_two_that_do_not_look_for_each_other_both_put_it(make: Make) -> None:
    """What the above is for."""
    street = make("one", "two")
    gateways = side_by_side(street, dict.fromkeys(SIDE_BY_SIDE, "neighbours = false"))
    near, listener = street.peer("one", "a.vin1"), street.peer("two", FAR[0])
    topic = near.address.at(0x8001)
    for each in gateways:  # whose answers come after those of the other one, which take its words for spoofs
        subscribe = Uri(each.authority, 0, 3).at(wire.SUBSCRIBE)
        listener.request(subscribe, wire.subscription_request(topic))
    asked: list[Id] = []

    def comes_through_both() -> bool:
        asked.append(near.publish(topic))
        return 2 in times_come(listener, asked)

    eventually(comes_through_both, True)
    events = [near.publish(topic) for _ in range(EACH)]
    all_has_come(street.peer("two", FAR[0]), listener, *gateways)
    assert set(times_come(listener, events)) == {2}


# ------------------------------------------------------------------------------------------------- another takes over


def hand_over(scene: Scene, change: Callable[[], None]) -> Stream:
    """Have something change under load, with some time before and after it."""
    stream = Stream(scene)
    with Metronome(HZ, stream.beat):
        stream.await_more(HZ // 2)
        change()
        stream.await_more(HZ)
    return stream


def end(scene: Scene, by: Callable[[Gateway], None]) -> tuple[list[float], int]:
    """End the one that puts, under load; what was lost, and how much came twice."""

    def change() -> None:
        by(scene.putting)
        for network in SIDE_BY_SIDE:
            scene.leaving.wait_there(network)

    stream = hand_over(scene, change)
    scene.all_has_come(scene.leaving)
    assert stream.result(scene.listeners[0]) == stream.result(scene.listeners[1])
    assert scene.leaving.process.ledger["dead_lettered"] == 0
    return stream.result(scene.listeners[0])


def test_when_the_one_that_puts_is_killed_the_other_takes_over(make: Make) -> None:
    street = make("one", "two")
    lost, twice = end(set_up(street, side_by_side(street)), lambda gateway: gateway.process.kill())
    assert not lost or max(lost) - min(lost) < 1.0  # milliseconds, on a quiet machine
    assert twice <= HZ // 10  # what the other one had not read yet has become its own


def test_when_the_one_that_puts_is_stopped_the_other_takes_over_and_nothing_is_lost(make: Make) -> None:
    street = make("one", "two")
    lost, twice = end(set_up(street, side_by_side(street)), lambda gateway: gateway.process.stop())
    assert lost == []
    assert twice <= HZ // 2  # it still sends what it has when the other begins


def test_when_nobody_asks_the_one_that_puts_any_more_the_other_takes_over_and_nothing_is_lost(
    make: Make,
) -> None:
    street = make("one", "two")
    scene = set_up(street, side_by_side(street))
    before = left_alone(scene.leaving, "one")
    stream = hand_over(scene, lambda: take_back(scene.asked_at(scene.putting), scene.putting, scene.topic))
    scene.all_has_come(scene.leaving, scene.putting)
    lost, twice = stream.result(scene.asked_at(scene.leaving))
    assert lost == []
    assert 0 < twice <= 2 * HZ  # a second: until then it cannot know that the other one has heard
    assert scene.leaving.refused("one")["neighbour"] < before + len(stream.sent)


def test_one_that_comes_back_takes_its_share_again_and_nothing_is_lost(make: Make) -> None:
    street = make("one", "two")
    scene = set_up(street, side_by_side(street))
    name = scene.putting.authority
    scene.putting.process.kill()
    scene.leaving.wait_there("two")
    back: list[Gateway] = []

    def change() -> None:
        back.append(street.launch(name, SIDE_BY_SIDE).ready())
        before = left_alone(scene.leaving, "one")
        eventually(lambda: left_alone(scene.leaving, "one") > before, True)

    stream = hand_over(scene, change)
    scene.all_has_come(scene.leaving, *back)
    lost, twice = stream.result(scene.asked_at(scene.leaving))
    assert lost == []
    assert twice <= HZ  # until the other has seen its word; 50 ms
    assert scene.leaving.process.ledger["dead_lettered"] == 0


def test_one_that_no_longer_hears_the_topic_is_not_relied_on(make: Make) -> None:
    """It is still on the network of those who have asked, and says there that it puts it."""
    street = make("one", "two")
    branches = {name: street.branch(f"branch-{name}", of="one") for name in ("g1", "g2")}
    gateways = [
        street.launch(name, {f"branch-{name}:one": SIDE_BY_SIDE["one"], "two": FAR}) for name in ("g1", "g2")
    ]
    for each in gateways:
        each.ready()
    for one, other in (gateways, gateways[::-1]):
        for network in SIDE_BY_SIDE:
            one.wait_there(network, other.authority)
    scene = set_up(street, gateways)

    def change() -> None:
        branches[scene.putting.authority].close()  # type: ignore[no-untyped-call]
        scene.leaving.wait_there("one")

    stream = hand_over(scene, change)
    assert scene.leaving.there("two") == [scene.putting.authority]
    scene.all_has_come(scene.leaving, scene.putting)
    lost, twice = stream.result(scene.listeners[0])
    assert not lost or max(lost) - min(lost) < 1.0
    assert twice <= HZ // 10


# ------------------------------------------------------------------------------------------------- a ring

RING: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("a.vin1", "ab"), "b": ("b.vin1", "c.vin1")},
    "bc": {"b": ("b.vin1", "a.vin1"), "c": ("c.vin1", "bc")},
    "ca": {"c": ("c.vin1", "b.vin1"), "a": ("a.vin1", "ca")},
}
"""What a publishes comes to c in two ways: through ca, and through ab and bc."""


@pytest.mark.parametrize(("named", "times"), [(True, {1}), (False, {2})])
def test_in_a_ring_of_three_that_name_each_other_a_publication_comes_once_to_each_side(
    make: Make, named: bool, times: set[int]
) -> None:
    street = make("a", "b", "c")
    trust = 'neighbours = ["ab", "bc", "ca"]' if named else ""
    ring = [street.launch(name, homes, dict.fromkeys(homes, trust)) for name, homes in RING.items()]
    for each in ring:
        each.ready()
    for each in ring:
        for network in RING[each.authority]:
            there = [n for n, homes in RING.items() if network in homes and n != each.authority]
            each.wait_there(network, *there)
    ab, bc, ca = ring
    near, middle, far = (street.peer(network, f"{network}.vin1") for network in "abc")
    topic = near.address.at(0x8001)
    ask(middle, ab, topic)
    for each in (bc, ca):
        ask(far, each, topic)
    if named:
        wait_left_by(near, topic, {ca: "a", bc: "b"})
    asked: list[Id] = []

    def comes() -> bool:
        asked.append(near.publish(topic))
        return max(times) in times_come(far, asked) and 1 in times_come(middle, asked)

    eventually(comes, True)
    events = [near.publish(topic) for _ in range(EACH)]
    all_has_come(street.peer("c", "c.vin1"), far, *ring)
    all_has_come(street.peer("b", "b.vin1"), middle)
    assert set(times_come(middle, events)) == {1}
    assert set(times_come(far, events)) == times


def wait_left_by(near: ZenohPeer, topic: Uri, gateways: Mapping[Gateway, str]) -> None:
    """Publish until one of these leaves what it hears at its endpoint to the other one."""
    before = {each: left_alone(each, endpoint) for each, endpoint in gateways.items()}

    def one_leaves() -> bool:
        near.publish(topic)
        return any(left_alone(each, endpoint) > before[each] for each, endpoint in gateways.items())

    eventually(one_leaves, True)
