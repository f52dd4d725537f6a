# SPDX-License-Identifier: Apache-2.0
"""Configured policies for topics and callers."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from ustreamer_usubscription.config import UsubscriptionConfig
from ustreamer_usubscription.requests.policy import SubscriptionPolicy
from ustreamer_usubscription.requests.requests import UNVERIFIED

from ustreamer.core.base.links import LinkStates
from ustreamer.core.routing.identity import Identity, Peer
from ustreamer.uprotocol.pb import usubscription_v3 as pb
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuri import ANY, UUri

if TYPE_CHECKING:
    from tests.conftest import ServiceRig

MakeRig = Callable[..., "ServiceRig"]

OWN, SERVED = "device1", "device2"
APP = UUri(OWN, 0x300EF, 4, 0)
TOPIC = UUri(SERVED, 0x10AB, 3, 0x80CD)
EVERY_INSTANCE = UUri(SERVED, 0xFFFF10AB, 3, 0x80CD)


def config(**section: object) -> UsubscriptionConfig:
    return msgspec.convert(section, UsubscriptionConfig)


def policy(**section: object) -> SubscriptionPolicy:
    return SubscriptionPolicy(config(**section), OWN)


# --- permission levels ------------------------------------------------------------------------------------------------

RULES = [
    {"topic": "//device2/110AB/3/80CD", "level": 1},
    {"topic": "//device2/FFFF10AB/3/FFFF", "level": 3},
    {"topic": "up:/42/1/8000", "level": 0},
    {"topic": "//*/FFFFFFFF/FF/8000", "level": 2},
]


@pytest.mark.parametrize(
    ("topic", "highest"),
    [
        (UUri(SERVED, 0x110AB, 3, 0x80CD), 1),
        (TOPIC, 3),
        (EVERY_INSTANCE, 1),  # one of the instances is that of the first rule
        (UUri(SERVED, 0xFFFF10AB, 3, 0x80CE), 3),
        (UUri(OWN, 0x42, 1, 0x8000), 0),
        (UUri("else", 0x42, 1, 0x8000), 2),
        (UUri("else", 0x42, 1, 0x8001), 5),
    ],
)
def test_a_caller_above_the_level_of_a_topic_is_refused(topic: UUri, highest: int) -> None:
    for level in {0, highest}:
        rules = policy(permissions=RULES, callers=[{"caller": str(APP), "level": level}])
        rules.check_permission_level(topic, 0, APP, UNVERIFIED)
    for above in range(highest + 1, 6):
        rules = policy(permissions=RULES, callers=[{"caller": str(APP), "level": above}])
        with pytest.raises(UStatusError, match=f"expected at most {highest}") as refused:
            rules.check_permission_level(topic, 0, APP, UNVERIFIED)
        assert refused.value.code is UCode.PERMISSION_DENIED


def test_without_any_level_everything_is_allowed_up_to_the_most_permissive() -> None:
    policy().check_permission_level(TOPIC, 0, APP, UNVERIFIED)
    policy().check_permission_level(TOPIC, 5, APP, UNVERIFIED)
    policy(permission_levels=9).check_permission_level(TOPIC, 9, APP, UNVERIFIED)
    with pytest.raises(UStatusError, match=f"permission_level 6 of the caller {APP}, expected at most 5"):
        policy().check_permission_level(TOPIC, 6, APP, UNVERIFIED)


def test_the_level_of_a_caller_is_the_configured_one_whatever_its_request_claims(make_rig: MakeRig) -> None:
    rig = make_rig(permissions=config(permissions=RULES).permissions).start()
    for level in (0, 3, 5, None):
        status = rig.call_refused(1, rig.subscription_request(), permission_level=level)
        assert status.code is UCode.PERMISSION_DENIED
    assert rig.pairs() == []


@pytest.mark.parametrize("level", [None, 0, 3])
def test_a_configured_caller_may_subscribe_and_its_claim_can_only_lower_its_rights(
    make_rig: MakeRig, level: int | None
) -> None:
    section = config(permissions=RULES, callers=[{"caller": "//device1/300EF/4/0", "level": 3}])
    rig = make_rig(permissions=section.permissions, callers=section.callers).start()
    assert rig.call_refused(1, rig.subscription_request(), permission_level=4).code is UCode.PERMISSION_DENIED
    assert rig.call(1, rig.subscription_request(), permission_level=level).attributes.commstatus is None
    assert rig.pairs() == [(TOPIC, APP)]


# --- verified callers -------------------------------------------------------------------------------------------------

FLEET = Peer("cloud", frozenset({Identity("fleet")}))
FLEET_OR_GUEST = Peer("cloud", frozenset({Identity("fleet"), Identity("guest")}))


@pytest.mark.parametrize(("peer", "granted"), [(FLEET, 1), (FLEET_OR_GUEST, 5), (UNVERIFIED, 5)])
def test_the_level_of_an_identity_needs_a_sender_that_is_proven_to_have_it(peer: Peer, granted: int) -> None:
    rules = policy(permissions=RULES, callers=[{"caller": "fleet", "level": 1}])
    topic = UUri(SERVED, 0x110AB, 3, 0x80CD)
    if granted == 1:
        rules.check_permission_level(topic, 0, APP, peer)
    else:
        with pytest.raises(UStatusError, match="permission_level 5 of the caller"):
            rules.check_permission_level(topic, 0, APP, peer)


@pytest.mark.parametrize(
    ("listed", "peer", "permitted"),
    [
        ((), FLEET, False),
        (("//device3/0/FF/0",), UNVERIFIED, True),
        (("//device4/0/FF/0",), FLEET, False),
        (("fleet",), FLEET, True),
        (("fleet",), FLEET_OR_GUEST, False),
        (("fleet",), UNVERIFIED, False),
    ],
)
def test_only_a_listed_usubscription_may_reset(
    make_rig: MakeRig, listed: tuple[str, ...], peer: Peer, permitted: bool
) -> None:
    caller = UUri("device3", 0, 3, 0)
    rig = make_rig(may_reset=listed).start()
    rig.peers[caller] = peer
    rig.subscribe()
    if permitted:
        rig.call(9, pb.ResetRequest(), caller=caller)
    else:
        status = rig.call_refused(9, pb.ResetRequest(), caller=caller)
        assert status.code is UCode.PERMISSION_DENIED
        assert "may_reset of [plugins.usubscription] does not list it" in status.message
    assert rig.pairs() == ([] if permitted else [(TOPIC, APP)])


def test_topics_that_no_caller_may_subscribe_are_a_warning() -> None:
    section = config(permissions=RULES, callers=[{"caller": "fleet", "level": 2}])
    assert [each.key for each in section.warnings()] == ["permissions[0].level", "permissions[2].level"]
    assert config(permissions=RULES[3:], callers=[{"caller": "fleet", "level": 2}]).warnings() == []


# --- permission to register ---------------------------------------------------------------------------------

PRODUCER = TOPIC.with_resource(0)
LISTED = UUri("device3", 0, 3, 0)
WATCHERS = [
    (APP, TOPIC, False),
    (PRODUCER, TOPIC, True),
    (PRODUCER, TOPIC.with_resource(0x8000), True),
    (PRODUCER, UUri(SERVED, 0x10AC, 3, 0x80CD), False),
    (UUri(SERVED, 0x10AB, 4, 0), TOPIC, False),
    (UUri(OWN, 0x10AB, 3, 0), TOPIC, False),
    (LISTED, TOPIC, True),
    (LISTED, ANY, True),
    (UUri("device4", 0, 3, 0), TOPIC, False),
    (UUri(OWN, 7, 1, 0), ANY, True),
    (PRODUCER, ANY, False),
]


@pytest.mark.parametrize(("caller", "topic", "allowed"), WATCHERS)
def test_the_strict_policy_limits_the_observers_of_topics(caller: UUri, topic: UUri, allowed: bool) -> None:
    """[utest->LIF-10] [utest->LIF-11] [utest->LIF-12]"""
    policy().check_observer(caller, topic)  # an open policy permits all callers
    strict = policy(register_policy="strict", dispatchers=["//device3/0/FF/0", "up:/7/1/0"])
    if allowed:
        strict.check_observer(caller, topic)
        return
    with pytest.raises(UStatusError, match="register_policy is strict") as refused:
        strict.check_observer(caller, topic)
    assert refused.value.code is UCode.PERMISSION_DENIED


def test_a_strict_policy_holds_for_registering_and_not_for_unregistering(make_rig: MakeRig) -> None:
    """[utest->LIF-10]"""
    rig = make_rig(register_policy="strict", dispatchers=("//device3/0/FF/0",)).start()
    wanted = pb.NotificationsRequest(topic=TOPIC.to_pb())
    assert rig.call_refused(6, wanted, caller=APP).code is UCode.PERMISSION_DENIED
    rig.unregister(caller=APP)
    rig.register(caller=PRODUCER)
    rig.register(caller=LISTED)
    assert rig.registered_observers() == {(TOPIC, PRODUCER), (TOPIC, LISTED)}


# --- delivery ---------------------------------------------------------------------------------------------------------

DELIVERY = [
    {"topic": "//device2/10AB/3/80CD", "id": "t7", "type": "mqtt", "attributes": {"qos": "1"}},
    {"topic": "//device2/FFFFFFFF/FF/FFFF", "id": "rest"},
]


def test_the_first_pattern_that_matches_a_topic_sets_its_delivery() -> None:
    """[utest->LIF-14]"""
    routes = policy(delivery=DELIVERY)
    first, second = routes.delivery_config_of(TOPIC), routes.delivery_config_of(TOPIC.with_resource(0x8000))
    assert first is not None
    assert second is not None
    assert (first.id, first.type, second.id, second.type) == ("t7", "mqtt", "rest", "")
    qos = first.attributes["qos"]
    assert qos.type_url == "type.googleapis.com/google.protobuf.StringValue"
    assert StringValue.FromString(qos.value).value == "1"
    assert routes.delivery_config_of(UUri(OWN, 1, 1, 0x8000)) is None


def test_subscribers_receive_the_delivery_config_of_their_topic(make_rig: MakeRig) -> None:
    """[utest->LIF-14]"""
    rig = make_rig(delivery=config(delivery=DELIVERY).delivery).start()
    elsewhere = UUri(OWN, 1, 1, 0x8000)
    for topic, id in ((TOPIC, "t7"), (elsewhere, "")):
        answer = rig.call_for(pb.SubscriptionResponse, 1, rig.subscription_request(topic))
        assert (answer.config.id, answer.HasField("config")) == (id, bool(id))
    assert [(each.config.id, each.HasField("config")) for each in rig.fetch().subscriptions] == [
        ("", False),
        ("t7", True),
    ]


def test_only_callers_with_a_configured_authority_may_change() -> None:
    known = ["cloud"]
    policy = SubscriptionPolicy(config(), OWN, ["chassis"], known)
    assert [policy.is_known_authority(each) for each in (OWN, "chassis", "cloud", "fleet")] == [
        True,
        True,
        True,
        False,
    ]
    known[:] = ["fleet"]
    assert [policy.is_known_authority(each) for each in (OWN, "chassis", "cloud", "fleet")] == [
        True,
        True,
        False,
        True,
    ]


def test_a_topic_behind_no_endpoint_has_a_reason_and_is_counted() -> None:
    policy = SubscriptionPolicy(config(), OWN, links=LinkStates({"cloud": "uplink"}.get))
    assert policy.pending_reason(UUri("cloud", 1, 1, 0x8001)) == ""
    assert policy.pending_reason(UUri("mars", 1, 1, 0x8001)) == (
        "'mars' lives behind no endpoint of this streamer; add it to the authorities of an endpoint"
    )
    assert policy.counts == {"pending_without_endpoint": 1}
