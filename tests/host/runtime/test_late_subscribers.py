# SPDX-License-Identifier: Apache-2.0
"""A new subscriber of a field gets its value."""

from collections.abc import Sequence

import pytest

from tests.core.conftest import World
from ustreamer.core.routing.subscriptions import Subscription
from ustreamer.host.runtime.late_subscribers import LateSubscribers
from ustreamer.transports.local.transport import LocalNetwork, LocalTransport
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import UUri

LIMIT, OTHER = UUri("chassis", 7, 1, 0x8001), UUri("chassis", 7, 1, 0x8002)
FLEET = UUri("cloud", 9, 1, 0)


class WithField(LocalTransport):
    """A network behind which one field is published."""

    def __init__(self, world: World) -> None:
        super().__init__(LocalNetwork(), "hpc")
        self._world = world

    def field_values(self, topic: UUri) -> Sequence[UMessage]:
        return [publish(self._world.id(), LIMIT, b"50")] if topic == LIMIT else ()


@pytest.mark.parametrize(("topic", "sent"), [(LIMIT, [b"50"]), (OTHER, [])])
def test_a_new_subscriber_of_a_field_gets_its_value(topic: UUri, sent: list[bytes]) -> None:
    world = World()
    world.ingress("chassis")
    late = LateSubscribers(
        world.dispatcher, {"chassis": WithField(world)}, lambda _: "chassis", world.clock, world._schedule
    )
    world.directory.subscribe(topic, FLEET)
    late.on_subscribe(Subscription(topic, FLEET))
    assert world.egress["backbone"].messages == [], "the caller may hold locks"
    world.run()
    assert [each.payload for each in world.egress["backbone"].messages] == sent
    world.check()


class SendsField(LocalTransport):
    """A network that sends the value of the field to its subscribers itself."""

    def sends_field(self, topic: UUri) -> bool:
        return topic == LIMIT


def test_a_subscriber_whose_endpoint_sends_the_value_gets_it_once() -> None:
    """An ECU behind a bridge has the value after its Ack, and renews its subscription every 30 s."""
    world = World()
    world.ingress("chassis")
    late = LateSubscribers(
        world.dispatcher,
        {"chassis": WithField(world), "backbone": SendsField(LocalNetwork(), "hpc")},
        lambda authority: "chassis" if authority == "chassis" else "backbone",
        world.clock,
        world._schedule,
    )
    world.directory.subscribe(LIMIT, FLEET)
    late.on_subscribe(Subscription(LIMIT, FLEET))
    world.run()
    assert world.egress["backbone"].messages == []
