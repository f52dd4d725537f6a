# SPDX-License-Identifier: Apache-2.0
"""Entities of one network subscribe one topic at several streamers: exactly one streamer forwards it, also after a
failure.

tests/core/peers/test_topic_advertisements.py tests which streamer that is.
"""

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple
from urllib.parse import quote

import pytest

from tests.e2e.multi_streamer.zenoh_networks import (
    FAR_AUTHORITIES,
    MESSAGES_EACH,
    SIDE_BY_SIDE,
    Gateway,
    ZenohNetworks,
    launch_side_by_side,
    receive_counts,
    stop_and_drain,
)
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import Metronome, ZenohEntity, eventually
from tests.e2e.rigs.wire import Id, Uri

HZ: Final = 400

Make = Callable[..., ZenohNetworks]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as exit_stack:
        yield lambda *networks: ZenohNetworks(tmp_path, exit_stack, *networks)


def subscribe_at(
    listener: ZenohEntity, gateway: Gateway, topic: Uri, max_frequency: float | None = None
) -> None:
    """Subscribe `topic` at `gateway`."""
    method = Uri(gateway.authority, 0, 3).at(wire.SUBSCRIBE)
    answer = listener.call(method, wire.subscription_request(topic, max_frequency=max_frequency))
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def unsubscribe_at(listener: ZenohEntity, gateway: Gateway, topic: Uri) -> None:
    """Unsubscribe `topic` at `gateway`."""
    answer = listener.call(Uri(gateway.authority, 0, 3).at(wire.UNSUBSCRIBE), wire.topic_request(topic))
    assert answer.head.commstatus in {None, wire.OK}, answer.status


def deferred_count(gateway: Gateway, endpoint: str) -> int:
    """Number of messages from `endpoint` that the streamer has deferred to a peer so far."""
    _, endpoints = gateway.ledger_and_counters()
    return endpoints[endpoint]["refused_deferred_to_peer"]


def wait_all_but_one_defer(
    near: ZenohEntity, topic: Uri, gateways: Sequence[Gateway], endpoint: str = "one"
) -> list[Gateway]:
    """Publish until all but one streamer defer the topic.

    Returns the forwarding streamer first, then the deferring ones.
    """
    before = [deferred_count(each, endpoint) for each in gateways]
    defers: list[bool] = []

    def deferring_count() -> int:
        nonlocal before, defers
        for _ in range(5):
            near.publish(topic)
        now = [deferred_count(each, endpoint) for each in gateways]
        defers = [one > other for one, other in zip(now, before, strict=True)]
        before = now
        return sum(defers)

    eventually(deferring_count, len(gateways) - 1)
    return [each for _, each in sorted(zip(defers, gateways, strict=True), key=lambda pair: pair[0])]


class SharedTopic(NamedTuple):
    """A topic of network one that `near` publishes.

    For each streamer one listener on network two has subscribed it there.
    """

    nets: ZenohNetworks
    near: ZenohEntity
    topic: Uri
    listeners: list[ZenohEntity]
    forwarding: Gateway
    deferring: Gateway

    def listener_of(self, gateway: Gateway) -> ZenohEntity:
        """The listener that subscribed at `gateway`."""
        return self.listeners[("g1", "g2").index(gateway.authority)]

    def stop_and_drain(self, *gateways: Gateway, codes: Container[int] = (0,)) -> None:
        sender = self.nets.connect_entity("two", FAR_AUTHORITIES[0])
        stop_and_drain(sender, self.listeners[0], *gateways, codes=codes)
        after = self.nets.connect_entity("two", FAR_AUTHORITIES[0])
        last = after.publish(after.address.at(0x8FFE))
        eventually(lambda: receive_counts(self.listeners[1], [last]), [1])


def set_up(
    nets: ZenohNetworks,
    gateways: Sequence[Gateway],
    frequencies: Sequence[float | None] = (None, None),
) -> SharedTopic:
    near = nets.connect_entity("one", "a.vin1")
    topic = near.address.at(0x8001)
    listeners = [nets.connect_entity("two", who) for who in FAR_AUTHORITIES[:2]]
    for listener, gateway, frequency in zip(listeners, gateways, frequencies, strict=True):
        subscribe_at(listener, gateway, topic, frequency)
    forwarding, deferring = wait_all_but_one_defer(near, topic, gateways)
    return SharedTopic(nets, near, topic, listeners, forwarding, deferring)


class PublicationStream:
    """HZ publications per second, with the time of each."""

    def __init__(self, shared_topic: SharedTopic) -> None:
        self._shared_topic = shared_topic
        self.sent: list[tuple[float, Id]] = []

    def beat(self, number: int) -> None:
        self.sent.append(
            (time.monotonic(), self._shared_topic.near.publish(self._shared_topic.topic, b"%d" % number))
        )

    def wait_sent(self, count: int) -> None:
        """Wait until `count` more publications are sent."""
        wanted = len(self.sent) + count
        eventually(lambda: len(self.sent) >= wanted, True)

    def result(self, listener: ZenohEntity) -> tuple[list[float], int]:
        """Send times of the lost publications, and the number of duplicates. No publication arrives three times."""
        times = receive_counts(listener, [id for _, id in self.sent])
        assert max(times) <= 2
        lost = [when for (when, _), count in zip(self.sent, times, strict=True) if not count]
        gap_s = max(lost) - min(lost) if lost else 0.0
        twice = sum(count > 1 for count in times)
        print(f"\n{len(times)} sent, {len(lost)} lost within {1000 * gap_s:.1f} ms, {twice} twice")
        return lost, twice


# ------------------------------------------------------------------------------------------------- one forwarder


def test_a_topic_subscribed_at_two_streamers_arrives_once_at_each_listener(make: Make) -> None:
    nets = make("one", "two")
    scene = set_up(nets, launch_side_by_side(nets))
    before = deferred_count(scene.deferring, "one")
    events = [scene.near.publish(scene.topic) for _ in range(4 * MESSAGES_EACH)]
    scene.stop_and_drain(scene.deferring, scene.forwarding)
    assert [set(receive_counts(each, events)) for each in scene.listeners] == [{1}, {1}]
    assert scene.deferring.refused_counts("one")["deferred_to_peer"] >= before + 4 * MESSAGES_EACH
    assert "deferred_to_peer" not in scene.forwarding.refused_counts("one")
    assert scene.forwarding.process.ledger["dead_lettered"] == 0


ONE_SHOTS: Final = 20


@pytest.mark.parametrize("first", [0, 1], ids=["g1 first", "g2 first"])
def test_a_shared_topic_arrives_once_from_its_first_message_on(make: Make, first: int) -> None:
    """Each topic has one message, sent when the second streamer has acknowledged its subscription."""
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    near = nets.connect_entity("one", "a.vin1")
    listeners = [nets.connect_entity("two", who) for who in FAR_AUTHORITIES[:2]]
    # Zenoh needs time to find the listeners of a new publisher.
    wait_all_but_one_defer(near, shared_topic(near, listeners, gateways, 0x8001, first), gateways)
    sent = []
    for number in range(ONE_SHOTS):
        topic = shared_topic(near, listeners, gateways, 0x9000 + number, first)
        sent.append(near.publish(topic))
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), listeners[0], *gateways)
    counts = receive_counts(listeners[0], sent)
    print(f"{ONE_SHOTS} topics, {sum(count > 1 for count in counts)} twice")
    assert min(counts) == 1
    assert sum(count > 1 for count in counts) <= ONE_SHOTS // 10  # on a busy machine


def shared_topic(
    near: ZenohEntity,
    listeners: Sequence[ZenohEntity],
    gateways: Sequence[Gateway],
    resource: int,
    first: int,
) -> Uri:
    """A topic of `near` that each listener has subscribed at its streamer, at `first` before the other.

    The advertisement of the first streamer is on the network before the second one is asked.
    """
    topic = near.address.at(resource)
    subscribe_at(listeners[first], gateways[first], topic)
    eventually(lambda: is_advertised(listeners[first], topic), True)
    subscribe_at(listeners[1 - first], gateways[1 - first], topic)
    return topic


def is_advertised(listener: ZenohEntity, topic: Uri) -> bool:
    """Whether a streamer advertises `topic` on the network of `listener`."""
    tokens = [
        str(each.ok.key_expr) for each in listener.session.liveliness().get("up-streamer/**") if each.ok
    ]
    return any(quote(f"{topic}", safe="") in each for each in tokens)


def test_a_running_topic_arrives_once_while_a_second_streamer_is_asked_for_it(make: Make) -> None:
    """The streamer that forwards it keeps it, whichever streamer has precedence for the topic."""
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    near = nets.connect_entity("one", "a.vin1")
    listeners = [nets.connect_entity("two", who) for who in FAR_AUTHORITIES[:2]]
    for first in (0, 1):  # both advertise, so both have settled after their start
        shared_topic(near, listeners, gateways, 0x8001 + first, first)
    sent: list[list[Id]] = []
    for number in range(8):
        in_order = list(zip(listeners, gateways, strict=True))[:: 1 if number % 2 else -1]
        sent.append(publish_during_subscribes(near, near.address.at(0x9000 + number), in_order))
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), listeners[0], *gateways)
    counts = [receive_counts(listeners[0], each) for each in sent]
    # At a load of 40 on four cores, the second streamer may be asked before it has read the advertisement.
    assert sum(max(each) > 1 for each in counts) <= 1
    assert sum(map(sum, counts)) > 8 * HZ // 10


def publish_during_subscribes(
    near: ZenohEntity, topic: Uri, subscribers: Sequence[tuple[ZenohEntity, Gateway]]
) -> list[Id]:
    """Publish `topic` until 0.1 s after the second subscription; returns what was sent."""
    listener = subscribers[0][0]
    sent: list[Id] = []

    def wait_received(count: int) -> None:
        wanted = len(listener.events(topic)) + count
        eventually(lambda: len(listener.events(topic)) >= wanted, True)

    with Metronome(HZ, lambda beat: sent.append(near.publish(topic, b"%d" % beat))):
        for listener_at, gateway in subscribers:
            subscribe_at(listener_at, gateway, topic)
            eventually(lambda: is_advertised(listener, topic), True)  # after 0.1 s and more on a busy machine
            wait_received(HZ // 10)
    return sent


def test_two_subscribes_at_the_same_time_lose_no_message_and_one_streamer_forwards_in_the_end(
    make: Make,
) -> None:
    """Both streamers forward at first: neither knows what the other has read before it was asked."""
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    near = nets.connect_entity("one", "a.vin1")
    listeners = [nets.connect_entity("two", who) for who in FAR_AUTHORITIES[:2]]
    for first in (0, 1):  # both advertise, so both have settled after their start
        shared_topic(near, listeners, gateways, 0x8001 + first, first)
    topic = near.address.at(0x9000)
    sent: list[Id] = []
    with ThreadPoolExecutor(2) as both, Metronome(HZ, lambda _: sent.append(near.publish(topic))):
        list(both.map(subscribe_at, listeners, gateways, [topic] * 2))
        acknowledged = len(sent) + 1  # a publication may be in progress
        eventually(lambda: any(deferred_count(each, "one") for each in gateways), True)
        deferred = len(sent) + 1
        eventually(lambda: len(sent) >= deferred + MESSAGES_EACH, True)
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), listeners[0], *gateways)
    counts = receive_counts(listeners[0], sent)
    print(f"{len(counts) - acknowledged} messages, {counts[acknowledged:].count(2)} twice")
    assert set(counts[acknowledged:deferred]) <= {1, 2}
    assert set(counts[deferred:]) == {1}


@pytest.mark.parametrize("rates", [(20.0, 50.0), (50.0, 20.0)], ids=["the second", "the first"])
def test_of_two_rates_all_listeners_get_the_higher_one(make: Make, rates: Sequence[float]) -> None:
    """As if both had subscribed at one streamer: a network is one target, at the fastest rate requested in it."""
    nets = make("one", "two")
    gateways = launch_side_by_side(nets)
    scene = set_up(nets, gateways, rates)
    assert scene.forwarding is gateways[rates.index(50.0)]
    stream = PublicationStream(scene)
    began = time.monotonic()
    with Metronome(HZ, stream.beat):
        stream.wait_sent(2 * HZ)
        for each in scene.listeners:  # never true at the lower rate, and soon at the higher one
            eventually(lambda each=each: usual_gap_s(each, scene.topic) < 1 / 30, True)  # type: ignore[misc]
    sent_s = time.monotonic() - began
    scene.stop_and_drain(*gateways)
    for each in scene.listeners:
        times = receive_counts(each, [id for _, id in stream.sent])
        assert set(times) == {0, 1}
        # Longer than the sending if messages waited on a busy machine.
        received_s = each.events(scene.topic)[-1].received_at - began
        assert sum(times) < 55 * max(sent_s, received_s)


def usual_gap_s(listener: ZenohEntity, topic: Uri) -> float:
    """The median time between the last events, by their ids. A busy machine makes some gaps longer and none shorter."""
    made_s = [each.head.id.time_ms / 1_000 for each in listener.events(topic)[-40:]]
    return median(later - earlier for earlier, later in pairwise(made_s))


def test_two_streamers_without_peer_detection_both_forward_a_topic(make: Make) -> None:
    """The control of the tests above."""
    nets = make("one", "two")
    gateways = launch_side_by_side(nets, dict.fromkeys(SIDE_BY_SIDE, "peers = false"))
    near, listener = nets.connect_entity("one", "a.vin1"), nets.connect_entity("two", FAR_AUTHORITIES[0])
    topic = near.address.at(0x8001)
    for each in gateways:  # not awaited: each streamer takes the responses of the other for spoofed ones
        subscribe = Uri(each.authority, 0, 3).at(wire.SUBSCRIBE)
        listener.send_request(subscribe, wire.subscription_request(topic))
    sent_request: list[Id] = []

    def passes_through_both() -> bool:
        sent_request.append(near.publish(topic))
        return 2 in receive_counts(listener, sent_request)

    eventually(passes_through_both, True)
    events = [near.publish(topic) for _ in range(MESSAGES_EACH)]
    stop_and_drain(nets.connect_entity("two", FAR_AUTHORITIES[0]), listener, *gateways)
    assert set(receive_counts(listener, events)) == {2}


# ------------------------------------------------------------------------------------------------- take-over


def run_hand_over(scene: SharedTopic, change: Callable[[], None]) -> PublicationStream:
    """Run `change` under load, with traffic before and after it."""
    stream = PublicationStream(scene)
    with Metronome(HZ, stream.beat):
        stream.wait_sent(HZ // 2)
        change()
        stream.wait_sent(HZ)
    return stream


def end_forwarder(scene: SharedTopic, by: Callable[[Gateway], None]) -> tuple[list[float], int]:
    """End the forwarding streamer under load. Returns the lost publications and the number of duplicates."""

    def change() -> None:
        by(scene.forwarding)
        for network in SIDE_BY_SIDE:
            scene.deferring.wait_known_peers(network)

    stream = run_hand_over(scene, change)
    scene.stop_and_drain(scene.deferring)
    assert stream.result(scene.listeners[0]) == stream.result(scene.listeners[1])
    assert scene.deferring.process.ledger["dead_lettered"] == 0
    return stream.result(scene.listeners[0])


def test_when_the_forwarding_streamer_is_killed_the_other_takes_over(make: Make) -> None:
    nets = make("one", "two")
    lost, twice = end_forwarder(
        set_up(nets, launch_side_by_side(nets)), lambda gateway: gateway.process.kill()
    )
    assert not lost or max(lost) - min(lost) < 1.0  # milliseconds, on a quiet machine
    assert twice <= HZ // 10  # messages that the other streamer had not read yet are now its own


def test_when_the_forwarding_streamer_stops_the_other_takes_over_without_loss(make: Make) -> None:
    nets = make("one", "two")
    lost, twice = end_forwarder(
        set_up(nets, launch_side_by_side(nets)), lambda gateway: gateway.process.stop()
    )
    assert lost == []
    assert twice <= HZ // 2  # the stopping streamer drains its queue when the other begins


def test_when_the_forwarding_streamer_loses_its_subscriber_the_other_takes_over_without_loss(
    make: Make,
) -> None:
    nets = make("one", "two")
    scene = set_up(nets, launch_side_by_side(nets))
    before = deferred_count(scene.deferring, "one")
    stream = run_hand_over(
        scene, lambda: unsubscribe_at(scene.listener_of(scene.forwarding), scene.forwarding, scene.topic)
    )
    scene.stop_and_drain(scene.deferring, scene.forwarding)
    lost, twice = stream.result(scene.listener_of(scene.deferring))
    assert lost == []
    assert 0 < twice <= 2 * HZ  # the grace period of 1 s after a withdrawal
    assert scene.deferring.refused_counts("one")["deferred_to_peer"] < before + len(stream.sent)


def test_a_restarted_streamer_leaves_the_topic_to_the_other_without_loss(make: Make) -> None:
    nets = make("one", "two")
    scene = set_up(nets, launch_side_by_side(nets))
    name = scene.forwarding.authority
    scene.forwarding.process.kill()
    scene.deferring.wait_known_peers("two")
    back: list[Gateway] = []

    def change() -> None:
        back.append(nets.launch_streamer(name, SIDE_BY_SIDE).wait_ready())
        eventually(lambda: deferred_count(back[0], "one") > 0, True)

    stream = run_hand_over(scene, change)
    scene.stop_and_drain(scene.deferring, *back)
    lost, twice = stream.result(scene.listener_of(scene.deferring))
    assert lost == []
    assert twice <= HZ  # until it has the advertisement of the other streamer; some ms
    assert scene.deferring.process.ledger["dead_lettered"] == 0


def test_a_streamer_cut_off_from_the_topic_loses_the_forwarding_role(make: Make) -> None:
    """The streamer is still on the network of the subscribers, and still advertises the topic there."""
    nets = make("one", "two")
    branches = {name: nets.open_branch(f"branch-{name}", network="one") for name in ("g1", "g2")}
    gateways = [
        nets.launch_streamer(name, {f"branch-{name}:one": SIDE_BY_SIDE["one"], "two": FAR_AUTHORITIES})
        for name in ("g1", "g2")
    ]
    for each in gateways:
        each.wait_ready()
    for one, other in (gateways, gateways[::-1]):
        for network in SIDE_BY_SIDE:
            one.wait_known_peers(network, other.authority)
    scene = set_up(nets, gateways)

    def change() -> None:
        branches[scene.forwarding.authority].close()  # type: ignore[no-untyped-call]
        scene.deferring.wait_known_peers("one")

    stream = run_hand_over(scene, change)
    assert scene.deferring.known_peers("two") == [scene.forwarding.authority]
    # 75: what the one that was cut off sent there just before may be lost, and is reported.
    scene.stop_and_drain(scene.deferring, scene.forwarding, codes=(0, 75))
    lost, twice = stream.result(scene.listeners[0])
    assert not lost or max(lost) - min(lost) < 1.0
    assert twice <= HZ // 10


# ------------------------------------------------------------------------------------------------- a ring

RING: Final[Mapping[str, Mapping[str, Sequence[str]]]] = {
    "ab": {"a": ("a.vin1", "ab"), "b": ("b.vin1", "c.vin1")},
    "bc": {"b": ("b.vin1", "a.vin1"), "c": ("c.vin1", "bc")},
    "ca": {"c": ("c.vin1", "b.vin1"), "a": ("a.vin1", "ca")},
}
"""A publication of network a reaches network c by two paths: through ca, and through ab and bc."""


def test_in_a_ring_of_three_that_name_each_other_a_publication_arrives_once_on_each_network(
    make: Make,
) -> None:
    """The control, a ring without names, is in test_peer_streamers.py."""
    nets = make("a", "b", "c")
    trust = 'peers = ["ab", "bc", "ca"]'
    ring = [nets.launch_streamer(name, homes, dict.fromkeys(homes, trust)) for name, homes in RING.items()]
    for each in ring:
        each.wait_ready()
    for each in ring:
        for network in RING[each.authority]:
            there = [n for n, homes in RING.items() if network in homes and n != each.authority]
            each.wait_known_peers(network, *there)
    ab, bc, ca = ring
    near, middle, far = (nets.connect_entity(network, f"{network}.vin1") for network in "abc")
    topic = near.address.at(0x8001)
    subscribe_at(middle, ab, topic)
    for each in (bc, ca):
        subscribe_at(far, each, topic)
    wait_deferred_by(near, topic, {ca: "a", bc: "b"})
    sent_request: list[Id] = []

    def received_count() -> bool:
        sent_request.append(near.publish(topic))
        return 1 in receive_counts(far, sent_request) and 1 in receive_counts(middle, sent_request)

    eventually(received_count, True)
    events = [near.publish(topic) for _ in range(MESSAGES_EACH)]
    stop_and_drain(nets.connect_entity("c", "c.vin1"), far, *ring)
    stop_and_drain(nets.connect_entity("b", "b.vin1"), middle)
    assert set(receive_counts(middle, events)) == {1}
    assert set(receive_counts(far, events)) == {1}


def wait_deferred_by(near: ZenohEntity, topic: Uri, gateways: Mapping[Gateway, str]) -> None:
    """Publish until one of these streamers defers the messages of its endpoint to the other."""
    before = {each: deferred_count(each, endpoint) for each, endpoint in gateways.items()}

    def one_defers() -> bool:
        near.publish(topic)
        return any(deferred_count(each, endpoint) > before[each] for each, endpoint in gateways.items())

    eventually(one_defers, True)
