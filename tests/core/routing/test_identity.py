# SPDX-License-Identifier: Apache-2.0
"""Verified senders: which sources they may send from, rules about them, and decisions of plugins. Once per route."""

from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.delivery import Delivery
from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.delivery.ports import Filter
from ustreamer.core.dispatch.explain import explain
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.identity import Identity, Peer
from ustreamer.transport_port import EndpointConfig
from ustreamer.transports.zenoh.config import ZenohEndpoint, ZenohIdentity
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

FLEET, BACKEND = Identity("fleet"), Identity("backend", "operator")
TOPIC = UUri("cloud", 0x7001, 1, 0x8001)
SHARED_TOPIC = UUri("cloud", 0x7002, 1, 0x8001)
FOREIGN_TOPIC = UUri("cloud", 0x7003, 1, 0x8001)
OPEN_TOPIC = UUri("chassis", 1, 1, 0x8001)
FLEET_APP = UUri("cloud", 9, 1, 0)
BOTH = frozenset({FLEET, BACKEND})


def senders(source: UUri) -> frozenset[Identity]:
    return {0x7001: frozenset({FLEET}), 0x7002: BOTH}.get(source.ue_id, frozenset())


def denials(world: "World", endpoint: str = "backbone") -> dict[str, int]:
    return {why: count for why, count in world.dispatcher.refused_counts()[endpoint].items() if count}


# --- sources ----------------------------------------------------------------------------------------------------------


def test_a_source_without_an_identity_is_denied_and_counted(build: "type[World]") -> None:
    world = build(identities={"backbone": senders})
    for topic in (TOPIC, SHARED_TOPIC, FOREIGN_TOPIC):
        world.receive("backbone", publish(world.id(), topic))
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER, Verdict.NO_SUBSCRIBER, Verdict.DENIED]
    assert denials(world) == {"identity": 1}
    world.check()


def test_a_network_that_authenticates_no_sender_has_no_identities(build: "type[World]") -> None:
    world = build(identities={"backbone": senders, "chassis": lambda _: None})
    world.receive("chassis", publish(world.id(), OPEN_TOPIC))
    assert world.verdicts() == [Verdict.NO_SUBSCRIBER]
    peer_of = world.dispatcher.router.peer_of
    assert [peer_of(each).is_verified for each in (TOPIC, FOREIGN_TOPIC, OPEN_TOPIC)] == [True, False, False]
    assert peer_of(UUri("hpc", 0, 3, 0)).hosted


def test_the_reasons_of_a_decision_name_the_verified_sender(build: "type[World]") -> None:
    router = build(identities={"backbone": senders}).dispatcher.router
    steps = explain(router, "backbone", publish_attributes(SHARED_TOPIC)).steps
    assert [each.text for each in steps if each.rule == "identity"] == [
        "the sender is verified: backend (operator) or fleet"
    ]
    (*_, last) = explain(router, "backbone", publish_attributes(FOREIGN_TOPIC)).steps
    assert (last.rule, last.passed) == ("identity", False)


def publish_attributes(topic: UUri) -> UAttributes:
    from ustreamer.uprotocol.uuid import UUID

    return publish(UUID(0x7000, 2 << 62), topic).attributes


def test_a_denial_is_reported_once_per_route(build: "type[World]") -> None:
    world = build(identities={"backbone": senders})
    reported: list[tuple[str, UUri]] = []
    world.dispatcher.on_denied = lambda endpoint, attributes, _: reported.append(
        (endpoint, attributes.source)
    )
    for _ in range(10):
        world.receive("backbone", publish(world.id(), FOREIGN_TOPIC))
        world.receive("backbone", publish(world.id(), TOPIC))
    assert reported == [("backbone", FOREIGN_TOPIC)]


# --- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "own", "shared"),
    [
        (AccessRule(allow=True, identity="fleet"), True, False),  # an allowed sender has to be proven
        (AccessRule(allow=True, role="operator"), False, False),
        (AccessRule(allow=True), True, True),
    ],
)
def test_a_rule_allows_only_senders_that_are_proven(rule: AccessRule, own: bool, shared: bool) -> None:
    access = AccessPolicy("cloud", [rule])
    assert (access.deny_reason(publish_attributes(TOPIC), senders(TOPIC)) is None) is own
    assert (access.deny_reason(publish_attributes(SHARED_TOPIC), senders(SHARED_TOPIC)) is None) is shared


def test_a_rule_denies_a_sender_that_may_be_the_named_one() -> None:
    access = AccessPolicy("cloud", [AccessRule(allow=False, identity="fleet"), AccessRule(allow=True)])
    for topic in (TOPIC, SHARED_TOPIC):
        assert access.deny_reason(publish_attributes(topic), senders(topic)) is not None
    assert access.deny_reason(publish_attributes(OPEN_TOPIC), None) is None


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        ([{"allow": True, "identity": "fleet"}], "access[0].identity: the network authenticates no sender"),
        ([{"allow": True, "role": "operator"}], "access[0].role: the network authenticates no sender"),
    ],
)
def test_a_rule_about_a_sender_needs_a_network_that_authenticates(
    rules: list[dict[str, object]], text: str
) -> None:
    with pytest.raises(ValueError) as refused:
        EndpointConfig(
            transport="local",
            authorities=("a",),
            access=tuple(AccessRule(**each) for each in rules),  # type: ignore[arg-type]
        )
    assert text in str(refused.value)


def zenoh_endpoint(**keys: object) -> ZenohEndpoint:
    return ZenohEndpoint(transport="zenoh", authorities=("cloud",), **keys)  # type: ignore[arg-type]


def test_a_rule_about_an_unknown_identity_names_the_known_ones() -> None:
    from pathlib import Path

    identity = ZenohIdentity(certificate="fleet", sources=("//cloud/7001/1/FFFF",))
    rules = (AccessRule(allow=True, identity="flet"),)
    with pytest.raises(ValueError, match=r"access\[0\].identity: 'flet' is not known here; have: fleet"):
        zenoh_endpoint(config=Path("x"), identities=(identity,), access=rules)
    with pytest.raises(ValueError, match="identities needs config"):
        zenoh_endpoint(listen=("tcp/127.0.0.1:0",), identities=(identity,))
    with pytest.raises(ValueError, match=r"identities\[1\]: 'fleet' is there twice"):
        zenoh_endpoint(config=Path("x"), identities=(identity, identity))
    with pytest.raises(ValueError, match="expected either certificate, a common name, or user"):
        ZenohIdentity(sources=("//cloud/7001/1/FFFF",))
    with pytest.raises(ValueError, match=r"sources\[0\]: '/7001/1/FFFF' names no authority"):
        ZenohIdentity(user="fleet", sources=("/7001/1/FFFF",))


# --- plugins ----------------------------------------------------------------------------------------------------------


class Guard:
    """Decides as told, and notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Peer, UAttributes]] = []
        self.decision: UStatus | None = None

    def __call__(self, peer: Peer, attributes: UAttributes) -> UStatus | None:
        self.asked.append((peer, attributes))
        return self.decision


def with_token(message: UMessage, token: str) -> UMessage:
    from msgspec.structs import replace

    return replace(message, attributes=replace(message.attributes, token=token))


def test_a_plugin_decides_once_for_a_route_and_for_each_message_with_a_token(build: "type[World]") -> None:
    guard = Guard()
    world = build(identities={"backbone": senders}, authorise=guard)
    for _ in range(10):
        world.receive("backbone", publish(world.id(), TOPIC))
    assert [peer for peer, _ in guard.asked] == [Peer("backbone", frozenset({FLEET}))]
    for token in ("a", "b", "a"):
        world.receive("backbone", with_token(publish(world.id(), TOPIC), token))
    assert [attributes.token for _, attributes in guard.asked] == [None, "a", "b", "a"]


def test_a_denied_message_leaves_the_targets_of_its_topic_alone(build: "type[World]") -> None:
    """Else each denied message would start the limits of the topic again."""
    guard = Guard()
    made: list[Delivery] = []

    def filters(delivery: Delivery) -> list[Filter]:
        made.append(delivery)
        return []

    world = build(authorise=guard, filters=filters)
    world.directory.subscribe(OPEN_TOPIC, FLEET_APP, 1_000)
    for decision in (None, UStatus(UCode.PERMISSION_DENIED, "expired"), None):
        guard.decision = decision
        world.receive("chassis", with_token(publish(world.id(), OPEN_TOPIC), "t"))
    assert len(made) == 1
    world.send("backbone")
    assert sorted(world.verdicts()) == sorted([Verdict.DELIVERED, Verdict.DENIED, Verdict.DELIVERED])


def test_a_denied_message_ends_targets_without_a_subscription(build: "type[World]") -> None:
    guard = Guard()
    world = build(authorise=guard)
    world.directory.subscribe(OPEN_TOPIC, FLEET_APP)
    world.receive("chassis", with_token(publish(world.id(), OPEN_TOPIC), "t"))
    assert len(world.dispatcher.target_statistics()) == 1
    world.directory.unsubscribe(OPEN_TOPIC, FLEET_APP)
    guard.decision = UStatus(UCode.PERMISSION_DENIED, "expired")
    world.receive("chassis", with_token(publish(world.id(), OPEN_TOPIC), "t"))
    assert world.dispatcher.target_statistics() == []
    world.run()


def test_what_a_plugin_denies_is_denied_and_a_request_is_answered(build: "type[World]") -> None:
    guard = Guard()
    guard.decision = UStatus(UCode.PERMISSION_DENIED, "no token")
    world = build(authorise=guard)
    app, method = UUri("cloud", 0x7001, 1, 0), UUri("chassis", 0x10, 1, 1)
    world.receive("backbone", request(world.id(), app, method, ttl=1000))
    assert world.verdicts() == [Verdict.DENIED]
    assert denials(world) == {"authorisation": 1}
    world.send("backbone")
    (answer,) = world.egress["backbone"].sent
    assert answer.message.attributes.commstatus is UCode.PERMISSION_DENIED


def test_responses_and_the_streamers_own_messages_are_not_authorised(build: "type[World]") -> None:
    guard = Guard()
    world = build(authorise=guard)
    app, method = UUri("cloud", 0x7001, 1, 0), UUri("chassis", 0x10, 1, 1)
    asked = request(world.id(), app, method, ttl=1000)
    world.receive("chassis", response(world.id(), asked))
    world.receive("self", publish(world.id(), UUri("hpc", 4, 1, 0x8000)))
    assert guard.asked == []
