# SPDX-License-Identifier: Apache-2.0
"""A broadcast topic is sent while there is a listener, and takes no place in a queue without one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

CHANGES, OTHER = UUri("hpc", 0, 3, 0x8000), UUri("hpc", 0, 3, 0x8001)
APP = UUri("hpc", 0x10, 1, 0)


@pytest.fixture
def world(build: "type[World]") -> Iterator["World"]:
    world = build(broadcast_topics=[CHANGES])
    yield world
    world.check()


def change(world: "World", topic: UUri = CHANGES) -> UMessage:
    return publish(world.id(), topic)


def test_a_broadcast_is_delivered_while_there_is_a_listener(world: "World") -> None:
    wanted, unwanted = change(world), change(world)
    world.receive(SELF, wanted)
    world.egress["backbone"].listening = False
    world.receive(SELF, unwanted)
    assert len(world.egress["backbone"]) == 1
    world.run()
    assert world.egress["backbone"].messages == [wanted]
    assert [(each.message, each.verdict) for each in world.tap_calls] == [
        (unwanted, Verdict.NO_SUBSCRIBER),
        (wanted, Verdict.DELIVERED),
    ]


def test_a_network_without_a_listener_is_no_target_in_reports(world: "World") -> None:
    world.egress["backbone"].listening = False
    world.receive(SELF, change(world))
    assert world.dispatcher.target_statistics() == []
    world.egress["backbone"].listening = True
    world.receive(SELF, change(world))
    world.run()
    [target] = world.dispatcher.target_statistics()
    assert (target.endpoint, target.received, target.delivered) == ("backbone", 2, 1)


def test_for_a_subscriber_a_message_waits_and_for_listeners_alone_it_does_not(world: "World") -> None:
    world.egress["backbone"].listening = False
    world.directory.subscribe(CHANGES, APP, 10**9)
    world.receive(SELF, change(world))
    assert len(world.egress["backbone"]) == 1
    world.directory.unsubscribe(CHANGES, APP)
    world.receive(SELF, change(world))
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER]
    world.run()
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER, Verdict.DELIVERED]


def test_a_batch_of_broadcasts_has_the_results_of_its_messages(world: "World") -> None:
    world.egress["backbone"].listening = False
    world.ingress(SELF).on_batch([change(world), change(world), change(world, OTHER)])
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER] * 3
    assert len(world.egress["backbone"]) == 0


class Refusing(Filter):
    def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
        return Verdict.DENIED


def test_filters_of_plugins_still_decide(build: "type[World]") -> None:
    world = build(lambda _: [Refusing()], broadcast_topics=[CHANGES])
    world.receive(SELF, change(world))
    assert world.verdicts() == [Verdict.DENIED]
