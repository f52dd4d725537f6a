# SPDX-License-Identifier: Apache-2.0
"""Routing decisions as a table. Endpoints: zenoh (multicast), someip and wamp (unicast), and the streamer itself."""

from collections.abc import Callable

import pytest

from ustreamer.core.delivery.ledger import Verdict
from ustreamer.core.peers.election import PeerRouters
from ustreamer.core.peers.forwarding import PeerForwarding
from ustreamer.core.peers.topic_advertisements import TopicAdvertisements
from ustreamer.core.routing.access import AccessPolicy, AccessRule
from ustreamer.core.routing.forwarding import Target
from ustreamer.core.routing.router import SELF, AuthorityTable, InvalidMessage, Router, RoutingDecision
from ustreamer.core.routing.subscriptions import PausedSubscription, StaticDirectory, Subscription
from ustreamer.uprotocol.uattributes import UAttributes, UMessageType
from ustreamer.uprotocol.umessage import notification, publish, request, response
from ustreamer.uprotocol.ustatus import UCode
from ustreamer.uprotocol.uuid import UUID
from ustreamer.uprotocol.uuri import UUri, any_at

AUTHORITIES = {"hpc": "zenoh", "cloud": "zenoh", "chassis": "someip", "brake": "someip", "dash": "wamp"}
UNICAST = {"zenoh": False, "someip": True, "wamp": True, SELF: False}
HOSTED = [UUri("hpc", 0, 3, 0), UUri("chassis", 0, 3, 0)]  # the own uSubscription serves chassis too

ID = UUID(0x018D548EA8E07000, 0x8000000000000001)
SPEED = UUri("chassis", 0x1234, 1, 0x8001)
HPC_TOPIC = UUri("hpc", 0x99, 1, 0x8000)
CHANGES = UUri("hpc", 0, 3, 0x8000)  # the topic of the own uSubscription
APP, OTHER_APP, CLOUD = UUri("hpc", 0x10, 1, 0), UUri("hpc", 0x11, 1, 0), UUri("cloud", 1, 1, 0)
BRAKE, BRAKE_2, DASH = UUri("brake", 0x55, 1, 0), UUri("brake", 0x10055, 1, 0), UUri("dash", 7, 1, 0)
CHASSIS_METHOD = UUri("chassis", 0x1234, 1, 1)


def router(*subscriptions: tuple[UUri, UUri, int], authorities: dict[str, str] | None = None) -> Router:
    places = AuthorityTable(AUTHORITIES if authorities is None else authorities, HOSTED)
    return Router(
        places, StaticDirectory([Subscription(*subscription) for subscription in subscriptions]), UNICAST
    )


# --------------------------------------------------------------------------------------------------------- publications


@pytest.mark.parametrize(
    ("ingress", "topic", "subscriptions", "targets"),
    [
        ("someip", SPEED, [], []),
        ("someip", SPEED, [(HPC_TOPIC, APP, 0)], []),
        ("someip", SPEED, [(SPEED, APP, 0)], [Target("zenoh")]),
        # A multicast domain is one target, at the fastest subscribed rate.
        ("someip", SPEED, [(SPEED, APP, 9), (SPEED, CLOUD, 5), (SPEED, OTHER_APP, 7)], [Target("zenoh", None, 5)]),
        ("someip", SPEED, [(SPEED, APP, 9), (SPEED, CLOUD, 0)], [Target("zenoh", None, 0)]),
        # Each unicast subscriber is a target of its own, at its own rate.
        (
            "zenoh",
            HPC_TOPIC,
            [(HPC_TOPIC, BRAKE, 9), (HPC_TOPIC, BRAKE_2, 0), (HPC_TOPIC, DASH, 5)],
            [Target("someip", BRAKE, 9), Target("someip", BRAKE_2, 0), Target("wamp", DASH, 5)],
        ),
        # Both kinds: multicast domains first.
        ("someip", SPEED, [(SPEED, DASH, 5), (SPEED, APP, 9)], [Target("zenoh", None, 9), Target("wamp", DASH, 5)]),
        # Never back to its endpoint: the subscribers there have received it.
        ("someip", SPEED, [(SPEED, BRAKE, 0)], []),
        ("zenoh", HPC_TOPIC, [(HPC_TOPIC, CLOUD, 0), (HPC_TOPIC, DASH, 3)], [Target("wamp", DASH, 3)]),
        # The authority of this subscriber is unknown.
        ("someip", SPEED, [(SPEED, UUri("mars", 1, 1, 0), 0), (SPEED, APP, 0)], [Target("zenoh")]),
        # Subscriptions and publications of a hosted service belong to the endpoint "self".
        ("someip", SPEED, [(SPEED, UUri("hpc", 0, 3, 0), 0)], [Target(SELF)]),
        (SELF, CHANGES, [(CHANGES, APP, 0), (CHANGES, DASH, 4)], [Target("zenoh"), Target("wamp", DASH, 4)]),
        # A pattern of topics, as in a configured subscription.
        ("someip", SPEED, [(any_at("chassis"), DASH, 4)], [Target("wamp", DASH, 4)]),
    ],
)  # fmt: skip
def test_a_publication_is_routed_to_its_subscribers(
    ingress: str, topic: UUri, subscriptions: list[tuple[UUri, UUri, int]], targets: list[Target]
) -> None:
    assert router(*subscriptions).decide(ingress, publish(ID, topic).attributes) == RoutingDecision(
        tuple(targets)
    )


@pytest.mark.parametrize(
    "subscriptions", [[(SPEED, DASH, 5), (any_at("chassis"), DASH, 3)], [(SPEED, DASH, 3), (SPEED, DASH, 5)]]
)
def test_a_unicast_subscriber_with_overlapping_subscriptions_is_one_target_at_its_fastest_rate(
    subscriptions: list[tuple[UUri, UUri, int]],
) -> None:
    assert router(*subscriptions).subscribed_targets("someip", SPEED) == (Target("wamp", DASH, 3),)


# ------------------------------------------------------------------------------------------------- messages with a sink


def notify(source: UUri, sink: UUri) -> UAttributes:
    return notification(ID, source, sink).attributes


def call(source: UUri, sink: UUri) -> UAttributes:
    return request(ID, source, sink, ttl=1000).attributes


def answer(source: UUri, sink: UUri) -> UAttributes:
    return response(ID, request(ID, sink, source, ttl=1000)).attributes


@pytest.mark.parametrize(
    ("ingress", "attributes", "endpoint"),
    [
        ("zenoh", call(APP, CHASSIS_METHOD), "someip"),
        ("someip", answer(CHASSIS_METHOD, APP), "zenoh"),
        ("someip", notify(SPEED, DASH), "wamp"),
        ("wamp", call(DASH, UUri("cloud", 1, 1, 1)), "zenoh"),
        # A hosted service is in this process, under any of its authorities and in any version.
        ("zenoh", call(APP, UUri("hpc", 0, 3, 1)), SELF),
        ("wamp", call(DASH, UUri("hpc", 0, 4, 1)), SELF),
        ("zenoh", call(APP, UUri("chassis", 0, 3, 1)), SELF),
        (SELF, answer(UUri("hpc", 0, 3, 1), APP), "zenoh"),
        (SELF, notify(CHANGES, DASH), "wamp"),
        # The same ue_id at another authority is another entity, and so is another instance.
        ("someip", notify(SPEED, UUri("cloud", 0, 3, 0)), "zenoh"),
        ("someip", notify(SPEED, UUri("hpc", 0x10000, 3, 0)), "zenoh"),
    ],
)
def test_a_message_with_a_sink_is_routed_to_the_endpoint_of_the_sink(
    ingress: str, attributes: UAttributes, endpoint: str
) -> None:
    assert router().decide(ingress, attributes) == RoutingDecision((Target(endpoint),))


@pytest.mark.parametrize("make", [notify, answer])
def test_a_message_with_a_sink_does_not_read_the_directory(make: Callable[[UUri, UUri], UAttributes]) -> None:
    source = SPEED if make is notify else CHASSIS_METHOD
    decision = router((SPEED, APP, 0)).decide("someip", make(source, DASH))
    assert decision == RoutingDecision((Target("wamp"),))


def test_no_message_returns_to_its_ingress() -> None:
    decision = router().decide("zenoh", call(APP, UUri("cloud", 1, 1, 1)))
    assert (decision.targets, decision.verdict) == ((), Verdict.NO_SUBSCRIBER)
    assert decision.reason is not None
    assert decision.reason.message == "sink up://cloud/1/1/1 lives behind 'zenoh', where it came from"


def test_an_unknown_sink_is_unavailable() -> None:
    decision = router().decide("zenoh", call(APP, UUri("mars", 1, 1, 1)))
    assert (decision.targets, decision.verdict) == ((), Verdict.DEAD_LETTERED)
    assert decision.reason is not None
    assert decision.reason.code is UCode.UNAVAILABLE
    assert decision.reason.message == "no endpoint for authority 'mars' of sink up://mars/1/1/1"


def test_unnamed_authorities_are_behind_the_endpoint_with_the_star() -> None:
    everyone = router(authorities={"chassis": "someip", "*": "zenoh"})
    assert everyone.decide("someip", notify(SPEED, UUri("mars", 1, 1, 0))).targets == (Target("zenoh"),)
    assert everyone.decide("zenoh", call(UUri("mars", 1, 1, 0), CHASSIS_METHOD)).targets == (
        Target("someip"),
    )
    assert everyone.decide("zenoh", call(UUri("mars", 1, 1, 0), UUri("venus", 1, 1, 1))).targets == ()


def test_a_star_is_not_the_name_of_an_authority() -> None:
    assert AuthorityTable({"*": "zenoh"}).endpoint_of(UUri("x", 1, 1, 0)) == "zenoh"
    assert AuthorityTable({"x": "zenoh"}).endpoint_of(UUri("*", 1, 1, 0)) is None


# ------------------------------------------------------------------------------------------------------ spoofed sources


@pytest.mark.parametrize(
    ("ingress", "attributes", "home"),
    [
        ("zenoh", publish(ID, SPEED).attributes, "'someip'"),
        ("someip", publish(ID, HPC_TOPIC).attributes, "'zenoh'"),
        ("wamp", call(APP, CHASSIS_METHOD), "'zenoh'"),
        ("wamp", answer(CHASSIS_METHOD, APP), "'someip'"),
        ("wamp", notify(SPEED, APP), "'someip'"),
        ("zenoh", publish(ID, UUri("mars", 1, 1, 0x8000)).attributes, "None"),
        ("zenoh", publish(ID, UUri("", 1, 1, 0x8000)).attributes, "None"),
        # Its authority is here, but the streamer hosts the service.
        ("zenoh", publish(ID, CHANGES).attributes, "'self'"),
        ("zenoh", publish(ID, UUri("hpc", 0, 9, 0x8000)).attributes, "'self'"),
        ("someip", answer(UUri("chassis", 0, 3, 1), APP), "'self'"),
        (SELF, publish(ID, HPC_TOPIC).attributes, "'zenoh'"),
    ],
)
def test_a_source_behind_another_endpoint_is_denied(ingress: str, attributes: UAttributes, home: str) -> None:
    decision = router((SPEED, DASH, 0), (CHANGES, DASH, 0)).decide(ingress, attributes)
    assert (decision.targets, decision.verdict) == ((), Verdict.DENIED)
    assert decision.reason is not None
    assert decision.reason.code is UCode.PERMISSION_DENIED
    assert decision.reason.message == (
        f"source {attributes.source} does not live behind endpoint {ingress!r} but {home}"
    )


@pytest.mark.parametrize("source", [CHASSIS_METHOD, UUri("mars", 1, 1, 1)])
def test_a_reply_that_stays_on_its_network_is_not_denied_whatever_its_source(source: UUri) -> None:
    """A peer may have forwarded it to this network; an endpoint with one filter for all replies receives it."""
    decision = router().decide("zenoh", answer(source, APP))
    assert (decision.targets, decision.verdict) == ((), Verdict.NO_SUBSCRIBER)
    assert decision.reason is not None
    assert decision.reason.code is UCode.OK


def test_attributes_that_break_the_rules_of_their_type_are_refused() -> None:
    with pytest.raises(
        InvalidMessage, match="^INVALID_ARGUMENT: PUBLISH: expected source that is a topic"
    ) as refusal:
        router().decide("zenoh", UAttributes(type=UMessageType.PUBLISH, source=APP))
    assert refusal.value.code is UCode.INVALID_ARGUMENT


def test_known_deviations_of_other_libraries_are_accepted() -> None:
    """up-python sends Responses without a ttl."""
    lax = UAttributes(
        type=UMessageType.RESPONSE,
        source=CHASSIS_METHOD,
        sink=APP,
        reqid=ID,
        priority=answer(CHASSIS_METHOD, APP).priority,
    )
    assert router().decide("someip", lax) == RoutingDecision((Target("zenoh"),))


@pytest.mark.parametrize(
    ("authorities", "authority", "endpoint"),
    [
        (AUTHORITIES, "chassis", "someip"),
        (AUTHORITIES, "hpc", "zenoh"),  # hosted services do not matter
        (AUTHORITIES, "mars", None),
        ({**AUTHORITIES, "*": "wamp"}, "mars", "wamp"),
        ({**AUTHORITIES, "*": "wamp"}, "chassis", "someip"),
    ],
)
def test_an_authority_is_behind_the_endpoint_that_names_it_or_the_default_one(
    authorities: dict[str, str], authority: str, endpoint: str | None
) -> None:
    assert AuthorityTable(authorities, HOSTED).endpoint_of_authority(authority) == endpoint


# ----------------------------------------------------------------------------------------------------- broadcast topics


def broadcasting(
    *subscriptions: Subscription, access: dict[str, AccessPolicy] | None = None, more: str = "wifi"
) -> Router:
    """A router for which CHANGES is a broadcast topic, with one more multicast domain."""
    directory = StaticDirectory(subscriptions)
    table = AuthorityTable({**AUTHORITIES, "phone": more}, HOSTED)
    return Router(table, directory, {**UNICAST, more: False}, access, broadcast_topics=[CHANGES])


@pytest.mark.parametrize(
    ("subscriptions", "targets"),
    [
        ([], [Target("zenoh", broadcast=True), Target("wifi", broadcast=True)]),
        # Subscribers in a multicast domain and its listeners are one target, at the rate of the listeners.
        ([Subscription(CHANGES, APP, 9)], [Target("zenoh"), Target("wifi", broadcast=True)]),
        ([Subscription(CHANGES, APP, 9), Subscription(CHANGES, CLOUD, 5)], [Target("zenoh"), Target("wifi", broadcast=True)]),
        # A subscriber that has stopped the topic stops it for no listener.
        ([PausedSubscription(CHANGES, APP, 9)], [Target("zenoh"), Target("wifi", broadcast=True)]),
        # Unicast subscribers have their own rates.
        (
            [Subscription(CHANGES, DASH, 4), Subscription(CHANGES, BRAKE)],
            [Target("zenoh", broadcast=True), Target("wifi", broadcast=True), Target("wamp", DASH, 4), Target("someip", BRAKE)],
        ),
    ],
)  # fmt: skip
def test_a_broadcast_topic_goes_to_each_multicast_domain_once(
    subscriptions: list[Subscription], targets: list[Target]
) -> None:
    assert broadcasting(*subscriptions).subscribed_targets(SELF, CHANGES) == tuple(targets)


@pytest.mark.parametrize(
    "topic", [UUri("hpc", 0, 4, 0x8000), UUri("hpc", 0, 3, 0x8001), UUri("cloud", 0, 3, 0x8000)]
)
def test_no_other_topic_is_broadcast(topic: UUri) -> None:
    assert broadcasting().subscribed_targets(SELF, topic) == ()


def test_only_the_streamer_itself_broadcasts() -> None:
    assert broadcasting().decide("zenoh", publish(ID, CHANGES).attributes).denied_as == "spoofed"
    assert broadcasting().subscribed_targets("zenoh", CHANGES) == ()


DENYING = AccessRule(allow=False, type="publish", source="//hpc/0/FF/8000")
ALLOWING = AccessRule(allow=True, type="publish", source="//hpc/0/FF/8000")
OTHER = AccessRule(allow=True, type="request")


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ([], True),
        ([DENYING], False),
        ([DENYING, AccessRule(allow=True)], False),
        ([ALLOWING], True),
        ([ALLOWING, DENYING], True),
        ([AccessRule(allow=False, type="publish"), ALLOWING], False),
        ([AccessRule(allow=True, type="publish"), ALLOWING], True),
        # These are about what may come in.
        ([AccessRule(allow=True)], False),
        ([AccessRule(allow=True, type="publish")], False),
        ([OTHER], False),  # an endpoint with rules denies what no rule allows
    ],
)
def test_the_access_rules_of_a_network_decide_whether_its_listeners_get_a_broadcast(
    rules: list[AccessRule], allowed: bool
) -> None:
    found = broadcasting(access={"wifi": AccessPolicy("wifi", rules)})
    assert found.broadcast_endpoints(CHANGES) == (("zenoh", "wifi") if allowed else ("zenoh",))
    subscribed = broadcasting(
        Subscription(CHANGES, UUri("phone", 1, 1, 0), 5), access={"wifi": AccessPolicy("wifi", rules)}
    )
    # A Subscribe is decided where it comes in.
    assert Target("wifi", None, 0 if allowed else 5) in subscribed.subscribed_targets(SELF, CHANGES)


# ---------------------------------------------------------------------------------------------------------------- peers


def with_peer(authority: str = "g2") -> PeerRouters:
    """The peers of a streamer: one with precedence for `authority`, between zenoh and someip."""
    ours = PeerRouters("hpc", "1" * 16)
    behind = {"zenoh": ["hpc", "cloud"], "someip": ["chassis", "brake"], "wamp": ["dash"]}
    ours.configure(behind)
    theirs = PeerRouters(authority, "2" * 16)
    theirs.configure(behind)
    for endpoint in ("zenoh", "someip"):
        ours.on_announcements(endpoint, theirs.own_announcements(endpoint))
    return ours


def router_with_peer(authority: str = "chassis") -> Router:
    peers, authority_table = with_peer(authority), AuthorityTable(AUTHORITIES, HOSTED)
    forwarding = PeerForwarding(peers, TopicAdvertisements(peers), authority_table, UNICAST)
    return Router(authority_table, StaticDirectory([]), UNICAST, None, forwarding)


def test_a_message_from_a_unicast_endpoint_is_forwarded_whatever_peers_exist() -> None:
    call = request(ID, CHASSIS_METHOD.with_resource(0), UUri("cloud", 7, 1, 1), ttl=100).attributes
    assert router_with_peer("cloud").decide("someip", call).targets == (Target("zenoh"),)


def test_a_message_from_a_multicast_domain_is_deferred_to_the_elected_peer() -> None:
    call = request(ID, CLOUD, CHASSIS_METHOD, ttl=100).attributes
    assert router_with_peer().decide("zenoh", call).deferred


def test_a_call_between_two_others_on_a_network_is_not_denied_in_place_of_their_answer() -> None:
    other = UUri("fleet", 0x10, 1, 0)
    router = router_with_peer()
    decision = router.decide("zenoh", request(ID, other, UUri("hpc", 0x10, 1, 1), ttl=100).attributes)
    assert (decision.denied_as, decision.targets) == ("", ())
    assert (
        router.decide("zenoh", request(ID, other, CHASSIS_METHOD, ttl=100).attributes).denied_as == "spoofed"
    )


@pytest.mark.parametrize(("peer", "is_its_own"), [("hpc", True), ("chassis", False)])
def test_a_call_of_a_service_of_this_authority_may_be_that_of_a_peer(peer: str, is_its_own: bool) -> None:
    call = request(ID, HOSTED[0], UUri("hpc", 0x10, 1, 1), ttl=100).attributes
    decision = router_with_peer(peer).decide("zenoh", call)
    assert decision.deferred is is_its_own
    assert decision.targets == ()
    assert (decision.denied_as == "spoofed") is not is_its_own


def test_a_response_to_a_unicast_requester_is_forwarded_by_the_streamer_of_the_request() -> None:
    call = request(ID, UUri("chassis", 5, 1, 0), UUri("cloud", 7, 1, 1), ttl=100)
    answer = response(ID, call).attributes
    assert router_with_peer().decide("zenoh", answer).targets == (Target("someip"),)


@pytest.mark.parametrize(
    ("peer", "topic", "is_published"),
    [
        ("cloud", UUri("cloud", 0, 3, 0x8000), True),
        ("cloud", UUri("cloud", 0, 4, 0x8000), False),
        ("cloud", UUri("cloud", 1, 3, 0x8000), False),
        ("mars", UUri("cloud", 0, 3, 0x8000), False),  # another streamer has that authority
    ],
)
def test_a_peer_publishes_its_broadcast_topics_itself(peer: str, topic: UUri, is_published: bool) -> None:
    unicast = {**UNICAST, "someip": False}
    peers, authority_table = with_peer(peer), AuthorityTable(AUTHORITIES, HOSTED)
    forwarding = PeerForwarding(peers, TopicAdvertisements(peers), authority_table, unicast, [CHANGES])
    targets = (Target("someip"), Target("wamp", DASH))
    share = forwarding.assign(topic, targets, 0)
    assert share.targets == targets
    assert share.deferred == (frozenset({"someip"}) if is_published else frozenset())
