# SPDX-License-Identifier: Apache-2.0
"""A streamer that receives topic advertisements of a peer, and sends its own."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.host.running_streamer import BASE, INSIDE, OUTSIDE, RunningStreamer
from tests.host.waiting import eventually
from ustreamer.core.peers.election import PeerRouters, RouterId, election_key
from ustreamer.core.peers.topic_advertisements import MAX_YIELD_DELAY_NS, TopicAdvertisement
from ustreamer.host.runtime import advertiser, process
from ustreamer.host.runtime.advertiser import HANDOVER_S, NEW_LINK_NS, PEER_SETTLE_NS
from ustreamer.testing.messages import new_id
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("car", 0x1234, 1, 0x8001)
DEADLINE_NS: Final = 60_000_000_000
"""Longer than the test."""
PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1"


class Scene:
    """A streamer with a subscription of the cloud to TOPIC, and a peer with precedence for TOPIC."""

    def __init__(self, running: RunningStreamer) -> None:
        self.running = running
        self.streamer = running.streamer
        self.received: list[UMessage] = running.listen(OUTSIDE, "cloud", None)
        self._car = running.app(INSIDE, "car")
        fleet = running.app(OUTSIDE, "cloud")
        rpc = RpcClient(fleet, UUri("cloud", 7, 1, 0), UuidSource(lambda: new_id().time_ms))
        sent_request = pb.SubscriptionRequest(topic=TOPIC.to_pb()).SerializeToString()
        rpc.call(UUri("hpc", 0, 3, 1), sent_request, UPayloadFormat.PROTOBUF)
        ours = election_key(RouterId("hpc", ""), str(TOPIC))
        names = (f"gateway{number}" for number in range(100))
        self._name = next(name for name in names if election_key(RouterId(name, ""), str(TOPIC)) > ours)

    def add_peer(self) -> None:
        settled_ns = self.join_peer()
        eventually(lambda: time.monotonic_ns() >= settled_ns, "the advertisements of the peer")

    def join_peer(self) -> int:
        """Returns the time from which the streamer adds topics."""
        other = PeerRouters(self._name, "1" * 16)
        other.configure(BASE)
        for endpoint in BASE:
            self.streamer._peer_watcher.on_peers_changed(endpoint, other.own_announcements(endpoint))
        return self.streamer._advertisements._settled_ns

    def peer_advertises(self) -> frozenset[TopicAdvertisement]:
        advertisements = frozenset([TopicAdvertisement("1" * 16, OUTSIDE, self._name, TOPIC)])
        self.streamer._peer_watcher.on_advertisements_changed(OUTSIDE, advertisements, frozenset())
        return advertisements

    def publish(self) -> None:
        self._car.send(publish(new_id(), TOPIC))

    def wait_deferred(self) -> int:
        """Publish until a message is deferred; returns how many were published."""
        sent = 0

        def is_deferred() -> bool:
            nonlocal sent
            self.publish()
            sent += 1
            return self.deferred > 0

        eventually(is_deferred, "a message to be left to the other")
        return sent

    @property
    def advertised(self) -> set[UUri]:
        return {each.topic for each in self.streamer._advertisements.advertised(OUTSIDE)}

    @property
    def deferred(self) -> int:
        return self.streamer.dispatcher.refused_counts()[INSIDE]["deferred_to_peer"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with RunningStreamer(tmp_path, PLUGINS) as running:
        yield Scene(running)


def test_a_peer_advertisement_applies_after_the_delay_and_its_withdrawal_from_the_next_message_on(
    scene: Scene,
) -> None:
    scene.add_peer()
    scene.publish()
    eventually(lambda: len(scene.received) == 1, "the first, which no other streamer forwards")
    word = scene.peer_advertises()
    sent = 1 + scene.wait_deferred()
    eventually(lambda: len(scene.received) + scene.deferred == sent, "the others")
    deferred = scene.deferred
    scene.streamer._peer_watcher.on_advertisements_changed(OUTSIDE, frozenset(), word)
    scene.publish()
    eventually(lambda: len(scene.received) + deferred == sent + 1, "the next")
    assert scene.deferred == deferred


def test_a_streamer_yields_when_it_has_read_what_had_arrived(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among it can be messages that the peer read before it was asked, so that no streamer would forward them."""
    reading: list[Callable[[], None]] = []
    monkeypatch.setattr(scene.streamer.transports[INSIDE], "call_when_read", reading.append)
    monkeypatch.setattr(advertiser, "MAX_YIELD_DELAY_NS", DEADLINE_NS)
    scene.add_peer()
    scene.publish()
    eventually(lambda: len(scene.received) == 1, "the first, which no other streamer forwards")
    scene.peer_advertises()
    eventually(lambda: bool(reading), "the end of the delay")
    scene.publish()
    assert scene.deferred == 0
    [action] = reading
    action()
    scene.wait_deferred()


def test_a_streamer_that_cannot_know_what_it_has_read_yields_after_the_maximum_delay(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene.streamer.transports[INSIDE], "call_when_read", lambda _: None)
    scene.add_peer()
    scene.publish()
    began_ns = time.monotonic_ns()
    scene.peer_advertises()
    scene.wait_deferred()
    assert time.monotonic_ns() - began_ns >= MAX_YIELD_DELAY_NS


@pytest.mark.parametrize(("link_age_ns", "waits"), [(0, True), (NEW_LINK_NS, False)], ids=["new", "old"])
def test_a_streamer_with_a_new_link_adds_no_topic_until_it_knows_those_of_its_peers(
    scene: Scene, link_age_ns: int, waits: bool
) -> None:
    """Else it would take running topics from them. A streamer that was there before its peer does not wait."""
    began_ns = time.monotonic_ns()
    scene.streamer._peer_watcher._link_up_ns = dict.fromkeys(BASE, began_ns - link_age_ns)
    settled_ns = scene.join_peer()
    if waits:
        assert settled_ns >= began_ns + PEER_SETTLE_NS
    else:
        assert settled_ns <= time.monotonic_ns()


def test_a_reload_withdraws_every_topic_advertisement_first(scene: Scene) -> None:
    scene.add_peer()
    scene.publish()
    eventually(lambda: scene.advertised == {TOPIC}, "our advertisement")
    scene.running.write(PLUGINS, authorities={OUTSIDE: ("cloud", "fleet")})
    scene.streamer.reload(process.load(scene.running.path).config)
    assert scene.advertised == set()
    scene.publish()
    eventually(lambda: scene.advertised == {TOPIC}, "our advertisement")


def test_a_stop_keeps_forwarding_during_the_hand_over(scene: Scene) -> None:
    scene.add_peer()
    scene.publish()
    eventually(lambda: scene.advertised == {TOPIC}, "our advertisement")
    began = time.monotonic()
    scene.streamer._advertiser.hand_over()
    assert time.monotonic() - began >= HANDOVER_S
    assert scene.advertised == set()
    assert (
        not scene.streamer._advertisements.withdraw_all_for_shutdown()
    )  # no advertisement is left to hand over
    scene.publish()
    eventually(lambda: len(scene.received) == 2, "messages received meanwhile")
