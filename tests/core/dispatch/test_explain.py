# SPDX-License-Identifier: Apache-2.0
"""The explanation of a decision equals the decision, and each rule has its reason."""

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from ustreamer.core.dispatch.explain import Explanation, Step, explain, rate_text
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.forwarding import ForwardAll, ForwardingRole, Target
from ustreamer.core.routing.router import SELF
from ustreamer.uprotocol.uattributes import UAttributes, UPriority
from ustreamer.uprotocol.umessage import UMessage, notification, publish, request, response
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

SPEED, APP = UUri("chassis", 0x1234, 1, 0x8001), UUri("hpc", 0x10, 1, 0)
DASH, CLOUD = UUri("dash", 7, 1, 0), UUri("cloud", 1, 1, 0)
METHOD, NOWHERE = UUri("chassis", 0x1234, 1, 1), UUri("mars", 1, 1, 0)
CHANGES = UUri("hpc", 0, 3, 0x8000)
RULES = (
    AccessRule(allow=False, source="//chassis/1234/1/8002"),
    AccessRule(allow=True, type="publish"),
    AccessRule(allow=True, sink="//hpc/FFFFFFFF/FF/FFFF"),
)
ID = UUID(0x7000, 2 << 62)


def explained(world: "World", ingress: str, attributes: UAttributes) -> Explanation:
    return explain(world.dispatcher.router, ingress, attributes)


def steps(found: Explanation) -> list[tuple[str, bool]]:
    return [(each.rule, each.passed) for each in found.steps]


def test_the_explanation_of_a_publication_lists_each_subscriber_and_its_rate(world: "World") -> None:
    for who, period_ns in ((APP, 40_000_000), (CLOUD, 0), (DASH, 10**9), (NOWHERE, 0), (METHOD, 0)):
        world.directory.subscribe(SPEED, who.with_resource(0), period_ns)
    found = explained(world, "chassis", publish(ID, SPEED).attributes)
    assert steps(found) == [
        ("valid", True),
        ("source", True),
        ("access", True),
        ("subscriber", True),
        ("subscriber", True),
        ("subscriber", True),
        ("subscriber", False),
        ("subscriber", False),
    ]
    assert [each.text.partition("; ")[2] for each in found.steps[3:]] == [
        "it lives behind 'backbone'",
        "it lives behind 'backbone'",
        "it lives behind 'dash'",
        "no endpoint has its authority",
        "it lives behind 'chassis' and receives it there",
    ]
    assert "at most 25 Hz" in found.steps[3].text
    assert found.verdict == "delivered"
    assert found.targets == (Target("backbone"), Target("dash", DASH, 10**9))


def test_the_listeners_of_a_broadcast_topic_are_explained(build: "type[World]") -> None:
    world = build(broadcast_topics=[CHANGES])
    found = explained(world, SELF, publish(ID, CHANGES).attributes)
    assert steps(found)[-1] == ("listeners", True)
    assert "'backbone'" in found.steps[-1].text
    assert found.targets == (Target("backbone", broadcast=True),)


def test_a_network_without_the_broadcast_is_explained(build: "type[World]") -> None:
    access = {"backbone": AccessPolicy("backbone", [AccessRule(allow=False)])}
    found = explained(build(broadcast_topics=[CHANGES], access=access), SELF, publish(ID, CHANGES).attributes)
    text = "a listener behind 'backbone' does not get it: endpoints.backbone.access[0] denies it"
    assert found.steps[-1] == Step("listeners", passed=False, text=text)
    assert (found.verdict, found.targets) == ("no_subscriber", ())


@pytest.mark.parametrize(
    ("ingress", "attributes", "verdict", "rule", "text"),
    [
        ("chassis", publish(ID, SPEED).attributes, "no_subscriber", "subscribers", "no subscription of"),
        ("backbone", publish(ID, SPEED).attributes, "denied", "source", "but 'chassis'"),
        ("chassis", publish(ID, SPEED.with_resource(1)).attributes, "refused", "valid", "that is a topic"),
        (
            "backbone",
            request(ID, APP, NOWHERE.with_resource(1), ttl=1).attributes,
            "dead_lettered",
            "sink",
            "mars",
        ),
        (
            "backbone",
            notification(ID, APP.with_resource(0x8000), CLOUD).attributes,
            "no_subscriber",
            "sink",
            "cloud",
        ),
    ],
)
def test_the_rule_that_ended_the_decision_has_the_reason(
    world: "World", ingress: str, attributes: UAttributes, verdict: str, rule: str, text: str
) -> None:
    found = explained(world, ingress, attributes)
    assert (found.verdict, found.targets) == (verdict, ())
    assert steps(found)[-1] == (rule, False)
    assert all(each.passed for each in found.steps[:-1])
    assert text in found.steps[-1].text


@pytest.mark.parametrize(
    ("attributes", "passed", "text"),
    [
        (publish(ID, SPEED).attributes, True, "endpoints.chassis.access[1] allows it"),
        (publish(ID, SPEED.with_resource(0x8002)).attributes, False, "endpoints.chassis.access[0] denies"),
        (request(ID, METHOD.with_resource(0), DASH.with_resource(1), ttl=1).attributes, False, "no rule of"),
        (response(ID, request(ID, DASH, METHOD, ttl=1)).attributes, True, "a RESPONSE needs none"),
    ],
)
def test_the_access_rule_that_decided_is_named(
    build: "type[World]", attributes: UAttributes, passed: bool, text: str
) -> None:
    world = build(access={"chassis": AccessPolicy("chassis", RULES)})
    access = explained(world, "chassis", attributes).steps[2]
    assert (access.rule, access.passed) == ("access", passed)
    assert text in access.text


def test_a_message_that_a_peer_forwards_is_explained_as_deferred(
    world: "World", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ForwardAll, "forwarding_role", lambda *_: ForwardingRole.DEFER)
    found = explained(world, "backbone", publish(ID, SPEED).attributes)
    assert (found.verdict, steps(found)) == ("deferred", [("peers", False)])


def test_a_rate_is_shown_in_hertz() -> None:
    assert (rate_text(0), rate_text(40_000_000)) == ("every message", "at most 25 Hz")


# --------------------------------------------------------------------------------------------- explanation and decision

ADDRESSES = [
    SPEED,
    SPEED.with_resource(0x8002),
    METHOD,
    METHOD.with_resource(0),
    APP,
    APP.with_resource(0x8000),
]
ADDRESSES += [
    DASH,
    DASH.with_resource(1),
    CLOUD,
    CLOUD.with_resource(0x9000),
    NOWHERE,
    NOWHERE.with_resource(1),
]
ADDRESSES += [UUri("hpc", 0, 3, 1), UUri("hpc", 4, 1, 0x8000), UUri("*", 1, 1, 0x8000)]
addresses = st.sampled_from(ADDRESSES)
ends = st.sampled_from(["backbone", "chassis", "dash", SELF])


@st.composite
def headers(draw: st.DrawFn) -> UAttributes:
    source, sink = draw(addresses), draw(addresses)
    kind = draw(st.sampled_from(["publish", "notification", "request", "response"]))
    made = {
        "publish": publish(ID, source),
        "notification": notification(ID, source, sink),
        "request": request(ID, source, sink, ttl=60_000),
        "response": response(ID, request(ID, sink, source, ttl=60_000)),
    }[kind].attributes
    return replace(made, priority=UPriority.CS0) if draw(st.integers(0, 9)) == 0 else made


subscription_lists = st.lists(st.tuples(addresses, addresses, st.sampled_from([0, 10**9])), max_size=4)


@given(ingress=ends, attributes=headers(), subscriptions=subscription_lists, with_rules=st.booleans())
@settings(max_examples=150)
def test_the_explanation_equals_the_decision_of_the_dispatcher(
    unchecked: "type[World]",
    ingress: str,
    attributes: UAttributes,
    subscriptions: list[tuple[UUri, UUri, int]],
    with_rules: bool,
) -> None:
    access = {name: AccessPolicy(name, RULES) for name in ("chassis", "backbone")} if with_rules else {}
    world = unchecked(access=access)
    for topic, subscriber, period_ns in subscriptions:
        world.directory.subscribe(topic, subscriber.with_resource(0), period_ns)
    found = explained(world, ingress, attributes)
    message = UMessage(world.id(), attributes)
    world.receive(ingress, message)
    world.send()
    seen = [each for each in world.tap_calls if each.message is message]
    if found.verdict == "refused":
        assert seen == []
        assert world.ingress(ingress).refused["invalid"] == 1
        return
    assert {each.verdict.name.lower() for each in seen} == {found.verdict}
    got = [each.delivery for each in seen if each.delivery is not None]
    assert sorted((each.endpoint, str(each.subscriber), each.period_ns) for each in got) == sorted(
        (each.endpoint, str(each.subscriber), each.period_ns) for each in found.targets
    )
    assert bool(found.targets) is (found.verdict == "delivered")
    assert found.targets or not found.steps[-1].passed
