# SPDX-License-Identifier: Apache-2.0
"""Messages of several topics to one target leave in one call, in their order, each settled with its own delivery."""

from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.delivery import Delivery, settle_all_delivered
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.outgoing_batch import OutgoingBatch
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import BatchListEgress, World

TOPICS = [UUri("chassis", 0x1234, 1, 0x8001 + n) for n in range(3)]
APP = UUri("cloud", 0x10, 1, 0)
DASH = UUri("dash", 7, 1, 0)


@pytest.fixture
def world(build: "type[World]", batch_egress: "type[BatchListEgress]") -> "World":
    world = build(egress_class=batch_egress)
    for topic in TOPICS:
        world.directory.subscribe(topic, APP)
    return world


def test_all_topics_to_one_endpoint_leave_in_one_call_in_order(world: "World") -> None:
    messages = [publish(world.id(), TOPICS[n % 3], b"%d" % n) for n in range(10)]
    world.ingress("chassis").on_batch(messages)
    egress: BatchListEgress = world.egress["backbone"]  # type: ignore[assignment]
    ((together, times_ns, has_ttl),) = egress.batches
    assert list(together) == messages
    assert (len(times_ns), has_ttl) == (10, False)
    world.run()
    assert egress.messages == messages
    counts = {each.topic: (each.received, each.delivered) for each in world.dispatcher.target_statistics()}
    assert counts == {TOPICS[0]: (4, 4), TOPICS[1]: (3, 3), TOPICS[2]: (3, 3)}


def test_another_target_has_a_batch_of_its_own(world: "World") -> None:
    world.directory.subscribe(TOPICS[1], DASH)
    messages = [publish(world.id(), TOPICS[n % 3], b"%d" % n) for n in range(9)]
    world.ingress("chassis").on_batch(messages)
    backbone: BatchListEgress = world.egress["backbone"]  # type: ignore[assignment]
    dash: BatchListEgress = world.egress["dash"]  # type: ignore[assignment]
    assert [list(together) for together, _, _ in backbone.batches] == [messages]
    assert [list(together) for together, _, _ in dash.batches] == [messages[1::3]]


@pytest.mark.parametrize("has_tap", [False, True])
def test_settling_messages_with_their_deliveries_equals_settling_each(
    build: "type[World]", has_tap: bool
) -> None:
    unchecked = build.__mro__[1]  # its taps are replaced below, so they do not see every verdict
    messages = [publish(unchecked().id(), TOPICS[n % 3], b"%d" % n) for n in range(6)]
    results = []
    for together in (True, False):
        world, seen = unchecked(), list[tuple[object, ...]]()
        ingress = world.ingress("chassis")
        ingress.taps = (
            ((lambda *call, seen=seen: seen.append((call[0], str(call[1]), *call[2:]))),) if has_tap else ()
        )
        ingress.ledger.received += len(messages)
        targets = [Delivery(ingress, world.egress["backbone"], topic) for topic in TOPICS]
        deliveries = [targets[n % 3] for n in range(6)]
        if together:
            settle_all_delivered(deliveries, ingress.ledger, messages, range(6))
        else:
            for n, (delivery, message) in enumerate(zip(deliveries, messages, strict=True)):
                delivery.settle(ingress.ledger, message, Verdict.DELIVERED, n, n, None, 1, n)
        results.append((ingress.ledger.settled, [each.delivered for each in targets], seen))
    assert results[0] == results[1]
    assert results[0][1] == [2, 2, 2]
    assert len(results[0][2]) == (6 if has_tap else 0)


def test_one_message_is_offered_alone(world: "World") -> None:
    egress: BatchListEgress = world.egress["backbone"]  # type: ignore[assignment]
    world.ingress("chassis").on_batch([publish(world.id(), TOPICS[0])])
    assert egress.batches == []
    OutgoingBatch(egress).flush(has_ttl=False)
    world.run()
    assert len(egress.messages) == 1
