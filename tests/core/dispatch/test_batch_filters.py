# SPDX-License-Identifier: Apache-2.0
"""Filters that change within a batch: the messages of a topic keep their order."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import BatchListEgress, HoldingFilter, World

TOPIC = UUri("chassis", 0x1234, 1, 0x8001)
APP = UUri("cloud", 0x10, 1, 0)
PERIOD_NS = 10_000_000


@pytest.mark.parametrize("as_batch", [False, True])
@pytest.mark.parametrize("window", [0, 8])
def test_a_held_message_does_not_overtake_when_its_limit_ends_within_a_batch(
    build: "type[World]",
    batch_egress: "type[BatchListEgress]",
    holding: "type[HoldingFilter]",
    as_batch: bool,
    window: int,
) -> None:
    """Another thread removes the limit between the third and the fourth message, which has another header."""

    class HoldThird(Filter):
        """Holds the third message."""

        def __init__(self, delivery: Delivery) -> None:
            self._holder = holding(delivery, 100)
            self._count = 0

        def admit(self, message: UMessage, now_ns: int) -> Verdict | None:
            self._count += 1
            return self._holder.admit(message, now_ns) if self._count == 3 else None

    def filters(delivery: Delivery) -> tuple[Filter, ...]:
        return (HoldThird(delivery),) if delivery.period_ns else ()

    world = build(filters, egress_class=batch_egress, dedup_windows={"chassis": window})
    world.directory.subscribe(TOPIC, APP, PERIOD_NS)
    ttls = [None, None, None, 60_000, 60_000]
    messages = [publish(world.id(), TOPIC, b"%d" % n, ttl=ttl) for n, ttl in enumerate(ttls)]

    class Changing(list[UMessage]):
        def __iter__(self) -> Iterator[UMessage]:
            for number, each in enumerate(super().__iter__()):
                if number == 3:
                    world.directory.subscribe(TOPIC, APP, 0)
                yield each

    if as_batch:
        world.ingress("chassis").on_batch(Changing(messages))
    else:
        for each in Changing(messages):
            world.receive("chassis", each)
    world.run()
    assert [each.payload for each in world.egress["backbone"].messages] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_with_ttl_that_joins_a_batch_makes_it_ageing(
    build: "type[World]", batch_egress: "type[BatchListEgress]", holding: "type[HoldingFilter]"
) -> None:
    world = build(
        lambda delivery: (holding(delivery, 100),) if delivery.period_ns else (), egress_class=batch_egress
    )
    other = TOPIC.with_resource(0x8002)
    world.directory.subscribe(TOPIC, APP, PERIOD_NS)
    world.directory.subscribe(other, APP)
    held = publish(world.id(), TOPIC, b"held", ttl=30_000)
    world.receive("chassis", held)
    world.directory.subscribe(TOPIC, APP, 0)
    batch = [publish(world.id(), other, b"1"), publish(world.id(), TOPIC, b"2")]
    world.ingress("chassis").on_batch(batch)
    egress: BatchListEgress = world.egress["backbone"]  # type: ignore[assignment]
    ((together, _, has_ttl),) = egress.batches
    assert (list(together), has_ttl) == ([batch[0], held, batch[1]], True)
    world.run()
