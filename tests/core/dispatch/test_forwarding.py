# SPDX-License-Identifier: Apache-2.0
"""Router and ingress use other streamers only by their forwarding policy, and call it when they build a route."""

from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.routing.forwarding import FORWARD_ALL, ForwardAll, ForwardingRole, ForwardingShare, Target
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import publish, request
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

SPEED = UUri("chassis", 7, 1, 0x8001)
METHOD = UUri("chassis", 7, 1, 1)
APP = UUri("cloud", 9, 1, 0)


class CountingPolicy(ForwardAll):
    """Forwards everything and counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.withdrawn: list[UUri] = []

    def forwarding_role(self, ingress: str, attributes: UAttributes) -> ForwardingRole:
        self.calls.append("forwarding_role")
        return super().forwarding_role(ingress, attributes)

    def assign(self, topic: UUri, targets: tuple[Target, ...], now_ns: int) -> ForwardingShare:
        self.calls.append("assign")
        return super().assign(topic, targets, now_ns)

    def withdraw(self, topics: AbstractSet[UUri], now_ns: int) -> int:
        self.withdrawn += topics
        return 0


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


def test_a_change_of_subscriptions_renews_only_the_routes_of_publications(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    world, policy = build(), CountingPolicy()
    monkeypatch.setattr(world.dispatcher.router, "forwarding", policy)

    def receive_one_of_each() -> None:
        world.receive("backbone", request(world.id(), APP, METHOD, ttl=1_000))
        world.receive("chassis", publish(world.id(), SPEED))

    receive_one_of_each()
    assert policy.calls == ["forwarding_role", "forwarding_role", "assign"]
    policy.calls.clear()
    world.directory.subscribe(SPEED, APP)
    receive_one_of_each()
    assert policy.calls == ["forwarding_role", "assign"], "the route of the Request is still valid"
    policy.calls.clear()
    world.dispatcher.invalidate_routes()
    receive_one_of_each()
    assert policy.calls == ["forwarding_role", "forwarding_role", "assign"]
    world.run()
    assert len(world.egress["chassis"].messages) == 3
    assert len(world.egress["backbone"].messages) == 2


def test_a_topic_whose_subscriptions_cannot_be_read_is_withdrawn(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that relies on this streamer for the topic would lose its messages too."""
    world, policy = build(), CountingPolicy()
    monkeypatch.setattr(world.dispatcher.router, "forwarding", policy)
    world.directory.subscribe(SPEED, APP)
    world.receive("chassis", publish(world.id(), SPEED))
    assert policy.withdrawn == []
    world.directory.touch()
    monkeypatch.setattr(world.directory, "_subscriptions", None)
    world.receive("chassis", publish(world.id(), SPEED))
    assert policy.withdrawn == [SPEED]


def test_a_streamer_without_peers_forwards_to_all_targets(build: "type[World]") -> None:
    assert build().dispatcher.router.forwarding is FORWARD_ALL
