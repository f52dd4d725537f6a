# SPDX-License-Identifier: Apache-2.0
"""A message that was received before is sent to one new subscriber."""

from typing import TYPE_CHECKING

from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

LIGHT = UUri("hpc", 7, 1, 0x8001)
FIRST, SECOND = UUri("chassis", 1, 1, 0), UUri("chassis", 2, 1, 0)
FLEET = UUri("cloud", 9, 1, 0)
ECU_FIELD = UUri("chassis", 7, 1, 0x8001)


def sent_to(world: "World", endpoint: str) -> list[tuple[UUri | None, bytes]]:
    world.run()
    return [(each.subscriber, each.message.payload) for each in world.egress[endpoint].sent]


def test_only_the_new_subscriber_of_a_unicast_endpoint_gets_the_message(world: "World") -> None:
    world.directory.subscribe(LIGHT, FIRST)
    world.directory.subscribe(LIGHT, SECOND)
    world.receive("backbone", publish(world.id(), LIGHT, b"live"))
    sent_to(world, "chassis")
    world.dispatcher.send_to_subscriber("backbone", lambda: [publish(world.id(), LIGHT, b"kept")], SECOND)
    assert [each for each in sent_to(world, "chassis") if each[1] == b"kept"] == [(SECOND, b"kept")]


def test_a_multicast_domain_gets_the_message_once(world: "World") -> None:
    world.directory.subscribe(ECU_FIELD, FLEET)
    world.receive("chassis", publish(world.id(), ECU_FIELD, b"live"))
    world.dispatcher.send_to_subscriber("chassis", lambda: [publish(world.id(), ECU_FIELD, b"kept")], FLEET)
    assert sent_to(world, "backbone") == [(None, b"live"), (None, b"kept")]


def test_a_subscriber_that_left_meanwhile_gets_nothing(world: "World") -> None:
    world.receive("chassis", publish(world.id(), ECU_FIELD, b"live"))
    world.dispatcher.send_to_subscriber("chassis", lambda: [publish(world.id(), ECU_FIELD)], FLEET)
    assert sent_to(world, "backbone") == []
