# SPDX-License-Identifier: Apache-2.0
"""A streamer that hears what another one puts onto its networks, and says what it puts itself."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.host.running import BASE, INSIDE, OUTSIDE, Running, eventually, new_id
from ustreamer.core.peers.election import Neighbours, Who, weight
from ustreamer.core.peers.topic_advertisements import Put
from ustreamer.host.runtime import process
from ustreamer.host.runtime.advertiser import HANDOVER_S
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.rpc import RpcClient
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri

TOPIC: Final = UUri("car", 0x1234, 1, 0x8001)
PLUGINS: Final = "[plugins.usubscription]\nmap_size_mb = 1"


class Scene:
    """A streamer of which the cloud has asked TOPIC, and another one beside it that comes first for TOPIC."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.streamer = running.streamer
        self.heard: list[UMessage] = running.hears(OUTSIDE, "cloud", None)
        self._car = running.app(INSIDE, "car")
        fleet = running.app(OUTSIDE, "cloud")
        rpc = RpcClient(fleet, UUri("cloud", 7, 1, 0), UuidSource(lambda: new_id().time_ms))
        asked = pb.SubscriptionRequest(topic=TOPIC.to_pb()).SerializeToString()
        rpc.call(UUri("hpc", 0, 3, 1), asked, UPayloadFormat.PROTOBUF)
        ours = weight(Who("hpc", ""), str(TOPIC))
        names = (f"gateway{number}" for number in range(100))
        self._name = next(name for name in names if weight(Who(name, ""), str(TOPIC)) > ours)

    def another_comes(self) -> None:
        other = Neighbours(self._name, "1" * 16)
        other.settle(BASE)
        for endpoint in BASE:
            self.streamer._neighbours_changed(endpoint, other.announcements(endpoint))

    def it_puts(self) -> frozenset[Put]:
        word = frozenset([Put("1" * 16, OUTSIDE, self._name, TOPIC)])
        self.streamer._puts_changed(OUTSIDE, word, frozenset())
        return word

    def publish(self) -> None:
        self._car.send(publish(new_id(), TOPIC))

    @property
    def said(self) -> set[UUri]:
        return {each.topic for each in self.streamer._puts.announced(OUTSIDE)}

    @property
    def left(self) -> int:
        return self.streamer.dispatcher.refused()[INSIDE]["neighbour"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Running(tmp_path, PLUGINS) as running:
        yield Scene(running)


def test_what_another_says_and_takes_back_holds_from_the_next_message_on(scene: Scene) -> None:
    scene.another_comes()
    scene.publish()
    eventually(lambda: len(scene.heard) == 1, "the first, which nobody else puts")
    word = scene.it_puts()
    scene.publish()
    eventually(lambda: scene.left == 1, "the second to be left to the other")
    scene.streamer._puts_changed(OUTSIDE, frozenset(), word)
    scene.publish()
    eventually(lambda: len(scene.heard) == 2, "the third")
    assert scene.left == 1


def test_a_reload_takes_back_every_word_until_it_is_known_whether_it_can_be_kept(scene: Scene) -> None:
    scene.another_comes()
    scene.publish()
    eventually(lambda: scene.said == {TOPIC}, "our word")
    scene.running.write(PLUGINS, authorities={OUTSIDE: ("cloud", "fleet")})
    scene.streamer.reload(process.load(scene.running.path).config)
    assert scene.said == set()
    scene.publish()
    eventually(lambda: scene.said == {TOPIC}, "our word")


def test_a_stop_goes_on_until_the_others_can_have_heard_of_it(scene: Scene) -> None:
    scene.another_comes()
    scene.publish()
    eventually(lambda: scene.said == {TOPIC}, "our word")
    began = time.monotonic()
    scene.streamer._put_announcer.resign()
    assert time.monotonic() - began >= HANDOVER_S
    assert scene.said == set()
    assert not scene.streamer._puts.resign()  # there is nothing left that anybody may have left to us
    scene.publish()
    eventually(lambda: len(scene.heard) == 2, "what comes in meanwhile")
