# SPDX-License-Identifier: Apache-2.0
"""Router and ingress use other streamers only by their forwarding policy, and call it when they build a route."""

from typing import TYPE_CHECKING

import pytest

from ustreamer.core.routing.forwarding import FORWARD_ALL, ForwardAll, ForwardingRole, ForwardingShare, Target
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import publish
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

SPEED = UUri("chassis", 7, 1, 0x8001)
APP = UUri("cloud", 9, 1, 0)


class CountingPolicy(ForwardAll):
    """Forwards everything and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def forwarding_role(self, ingress: str, attributes: UAttributes) -> ForwardingRole:
        self.calls.append("forwarding_role")
        return super().forwarding_role(ingress, attributes)

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        self.calls.append("assign")
        return super().assign(topic, targets, now_ns)


def test_the_policy_is_called_per_route_and_not_per_message(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    world, policy = build(), CountingPolicy()
    monkeypatch.setattr(world.dispatcher.router, "forwarding", policy)
    world.directory.subscribe(SPEED, APP)
    for _ in range(10):
        world.receive("chassis", publish(world.id(), SPEED))
    assert policy.calls == ["forwarding_role", "assign"]
    world.run()
    assert len(world.egress["backbone"].messages) == 10


def test_a_streamer_without_peers_forwards_to_all_targets(build: "type[World]") -> None:
    assert build().dispatcher.router.forwarding is FORWARD_ALL
