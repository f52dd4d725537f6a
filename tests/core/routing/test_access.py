# SPDX-License-Identifier: Apache-2.0
"""The access rules of an endpoint, as a table."""

from collections.abc import Collection
from typing import TYPE_CHECKING

import pytest

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.identity import Identity
from ustreamer.core.routing.router import SELF, AuthorityTable, Router
from ustreamer.core.routing.subscriptions import StaticDirectory, Subscription
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.umessage import notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri

if TYPE_CHECKING:
    from tests.core.conftest import World

ID = UUID(0x018D548EA8E07000, 0x8000000000000001)
APP, OTHER = UUri("phone", 0x10, 1, 0), UUri("phone", 0x11, 1, 0)
METHOD, OTHER_METHOD = UUri("chassis", 0x2001, 1, 1), UUri("chassis", 0x2001, 1, 2)
TOPIC = UUri("phone", 0x10, 1, 0x8001)

PUBLISH = publish(ID, TOPIC).attributes
OTHERS_PUBLISH = publish(ID, OTHER.with_resource(0x8001)).attributes
REQUEST = request(ID, APP, METHOD, ttl=1000).attributes
OTHER_REQUEST = request(ID, APP, OTHER_METHOD, ttl=1000).attributes
OTHERS_REQUEST = request(ID, OTHER, METHOD, ttl=1000).attributes
NOTIFICATION = notification(ID, TOPIC, METHOD.with_resource(0)).attributes
RESPONSE = response(ID, request(ID, METHOD.with_resource(0), APP.with_resource(1), ttl=1000)).attributes
OTHERS_RESPONSE = response(
    ID, request(ID, METHOD.with_resource(0), OTHER.with_resource(1), ttl=1000)
).attributes
EVERYTHING = {
    "PUBLISH": PUBLISH,
    "OTHERS_PUBLISH": OTHERS_PUBLISH,
    "REQUEST": REQUEST,
    "OTHER_REQUEST": OTHER_REQUEST,
    "OTHERS_REQUEST": OTHERS_REQUEST,
    "NOTIFICATION": NOTIFICATION,
    "RESPONSE": RESPONSE,
    "OTHERS_RESPONSE": OTHERS_RESPONSE,
}
RESPONSES = {"RESPONSE", "OTHERS_RESPONSE"}

ANY_OF_APP = "//phone/10/FF/FFFF"
YES, NO = True, False


def rule(allow: bool, **parts: str) -> AccessRule:
    return AccessRule(allow=allow, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "let_in"),
    [
        # Without rules every message passes, with rules the matching ones, and Responses always.
        ([], EVERYTHING.keys()),
        ([rule(YES)], EVERYTHING.keys()),
        ([rule(NO)], RESPONSES),
        # By source, for all types.
        ([rule(YES, source=ANY_OF_APP)], {"PUBLISH", "REQUEST", "OTHER_REQUEST", "NOTIFICATION"} | RESPONSES),
        ([rule(YES, source="//phone/10/1/8001")], {"PUBLISH", "NOTIFICATION"} | RESPONSES),
        ([rule(YES, source="//phone/10/1/8002")], RESPONSES),
        ([rule(YES, source="//mars/10/1/8001")], RESPONSES),
        ([rule(YES, source="//phone/10/2/8001")], RESPONSES),
        # By type.
        ([rule(YES, type="publish")], {"PUBLISH", "OTHERS_PUBLISH"} | RESPONSES),
        ([rule(YES, type="notification")], {"NOTIFICATION"} | RESPONSES),
        ([rule(YES, type="request")], {"REQUEST", "OTHER_REQUEST", "OTHERS_REQUEST"} | RESPONSES),
        # A publication has no sink, so a rule with a sink does not apply to it.
        (
            [rule(YES, sink="//*/FFFFFFFF/FF/FFFF")],
            {"REQUEST", "OTHER_REQUEST", "OTHERS_REQUEST", "NOTIFICATION"} | RESPONSES,
        ),
        ([rule(YES, sink="//chassis/2001/1/1")], {"REQUEST", "OTHERS_REQUEST"} | RESPONSES),
        ([rule(YES, sink="//chassis/2001/1/0")], {"NOTIFICATION"} | RESPONSES),
        ([rule(YES, source=ANY_OF_APP, sink="//chassis/2001/1/1")], {"REQUEST"} | RESPONSES),
        ([rule(NO, sink="//chassis/2001/1/1"), rule(YES)], EVERYTHING.keys() - {"REQUEST", "OTHERS_REQUEST"}),
        # The first rule that matches decides.
        ([rule(NO, source=ANY_OF_APP), rule(YES)], {"OTHERS_PUBLISH", "OTHERS_REQUEST"} | RESPONSES),
        ([rule(YES), rule(NO, source=ANY_OF_APP)], EVERYTHING.keys()),
        (
            [rule(YES, source=ANY_OF_APP, type="publish"), rule(NO, type="publish"), rule(YES)],
            EVERYTHING.keys() - {"OTHERS_PUBLISH"},
        ),
        # Only rules with type = "response" apply to Responses; without a match they pass.
        ([rule(YES), rule(NO, type="response")], EVERYTHING.keys() - RESPONSES),
        ([rule(NO, source=ANY_OF_APP, type="response")], {"OTHERS_RESPONSE"}),
        ([rule(YES, source=ANY_OF_APP, type="response"), rule(NO, type="response")], {"RESPONSE"}),
    ],
)
def test_the_first_rule_that_matches_decides(rules: list[AccessRule], let_in: set[str]) -> None:
    access = AccessPolicy("phone", rules)
    assert {name for name, each in EVERYTHING.items() if access.deny_reason(each) is None} == let_in


@pytest.mark.parametrize(
    ("rules", "attributes", "text"),
    [
        (
            [rule(YES, type="publish"), rule(NO, sink="//chassis/2001/1/1")],
            REQUEST,
            "endpoints.phone.access[1] denies a REQUEST from up://phone/10/1/0 to up://chassis/2001/1/1",
        ),
        (
            [rule(YES, type="request")],
            PUBLISH,
            "no rule of endpoints.phone.access allows a PUBLISH from up://phone/10/1/8001",
        ),
    ],
)
def test_a_denial_names_the_rule_and_the_message(
    rules: list[AccessRule], attributes: UAttributes, text: str
) -> None:
    assert AccessPolicy("phone", rules).deny_reason(attributes) == UStatus(UCode.PERMISSION_DENIED, text)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"source": "phone"}, "source: UUri 'phone': expected"),
        ({"sink": "//chassis/2001/1"}, "sink: UUri '//chassis/2001/1': expected three segments"),
        (
            {"source": "/10/1/8001"},
            "source: '/10/1/8001' names no authority; write //<authority>/10/1/8001, or //*",
        ),
        ({"type": "publish", "sink": "//*/1/1/1"}, "sink: a publication has none"),
        ({"type": "publish", "source": "//*/1/1/0"}, "source: no publish has such a resource"),
        ({"type": "request", "source": "//*/1/1/8001"}, "source: no request has such a resource"),
        ({"type": "request", "sink": "//*/1/1/0"}, "sink: no request has such a resource"),
        ({"type": "notification", "sink": "//*/1/1/1"}, "sink: no notification has such a resource"),
        ({"type": "response", "source": "//*/1/1/8001"}, "source: no response has such a resource"),
        ({"sink": "//*/1/1/8001"}, "sink: no message has such a resource"),
        ({"source": "//*/1/1/0", "sink": "//*/1/1/0"}, "sink: no message has such a resource"),
    ],
)
def test_a_rule_that_no_message_can_match_is_an_error(parts: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text.replace("*", r"\*")):
        rule(YES, **parts)


# -------------------------------------------------------------------------------------------------------- in the router


def router(*rules: AccessRule) -> Router:
    directory = StaticDirectory([Subscription(TOPIC, METHOD.with_resource(0))])
    return Router(
        AuthorityTable({"phone": "phone", "chassis": "chassis"}),
        directory,
        {"phone": False, "chassis": False, SELF: False},
        {"phone": AccessPolicy("phone", rules)},
    )


def test_a_denied_message_has_no_targets_and_is_counted_as_denied() -> None:
    decision = router(rule(NO)).decide("phone", PUBLISH)
    assert (decision.targets, decision.verdict, decision.denied_as) == ((), Verdict.DENIED, "access")
    assert router(rule(YES)).decide("phone", PUBLISH).targets == (Target("chassis"),)


def test_the_rules_of_an_endpoint_apply_to_incoming_messages_only() -> None:
    back = notification(ID, METHOD.with_resource(0x8001), APP).attributes
    assert router(rule(NO)).decide("chassis", back).targets == (Target("phone"),)


def test_no_rule_accepts_a_source_of_another_endpoint() -> None:
    decision = router(rule(YES)).decide("phone", publish(ID, METHOD.with_resource(0x8001)).attributes)
    assert (decision.verdict, decision.denied_as) == (Verdict.DENIED, "spoofed")


def test_rules_are_checked_per_route_and_not_per_message(
    build: "type[World]", monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_request: list[UAttributes] = []
    access = AccessPolicy("chassis", [rule(NO)])
    decide = access.deny_reason

    def refusal(attributes: UAttributes, identities: Collection[Identity] | None) -> UStatus | None:
        sent_request.append(attributes)
        return decide(attributes, identities)

    monkeypatch.setattr(access, "deny_reason", refusal)
    world = build(access={"chassis": access})
    for _ in range(10):
        world.receive("chassis", publish(world.id(), UUri("chassis", 1, 1, 0x8001)))
    assert (len(sent_request), world.verdicts()) == (1, [Verdict.DENIED] * 10)
    assert {why: n for why, n in world.dispatcher.refused_counts()["chassis"].items() if n} == {"access": 10}
