# SPDX-License-Identifier: Apache-2.0
"""The server: Offers, answers to Finds, and subscriptions of other hosts."""

from typing import Any

import msgspec
import pytest

from tests.transports.someip.sd.network import (
    KEY,
    MS,
    OTHER,
    PEER,
    SERVICE,
    TIMINGS,
    WANTED,
    Node,
    ack,
    find,
    of_kind,
    refusals,
    sent,
    settings,
    subscribe,
)
from ustreamer.transports.someip.sd.action_buffer import ActionBuffer
from ustreamer.transports.someip.sd.actions import (
    EndReason,
    InitialDataRequested,
    SdSubscription,
    Send,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.codec import (
    ANY_INSTANCE,
    ANY_MAJOR,
    INITIAL_DATA,
    EntryType,
    ServiceEntry,
)
from ustreamer.transports.someip.sd.config import TTL_FOREVER, SdLimits, SdTimings
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole, L4Protocol, UnknownOption
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.server import SdServer
from ustreamer.transports.someip.sd.settings import OfferedService, ServiceKey, WantedService

OFFER = ServiceEntry(
    EntryType.OFFER,
    0x1234,
    0x5678,
    1,
    7,
    3,
    (Endpoint("10.0.0.1", 30501), Endpoint("10.0.0.1", 30502, int(L4Protocol.TCP))),
)
STOP = ServiceEntry(OFFER.type, OFFER.service, OFFER.instance, OFFER.major, OFFER.minor, 0, OFFER.options)
UDP = ("10.0.0.2", 40000)


def offering(service: OfferedService = SERVICE, **changes: Any) -> Node:
    """A node that offers and has reached the main phase."""
    node = Node(**changes)
    node.discovery.offer_service(service, node.now)
    node.up()
    node.advance(3_000)
    assert node.discovery.offer_phase(service.key) is Phase.MAIN
    return node


# --- offers -----------------------------------------------------------------------------------------------------------


# [utest->SD-252, SD-253, SD-68, SD-72, SD-62, SD-64, SD-80, SD-79, SD-81, SD-429]
@pytest.mark.parametrize(("rng", "first"), [(0.0, 10), (0.5, 55), (1.0, 100)])
def test_offers_follow_initial_delay_repetition_and_cycle(rng: float, first: int) -> None:
    node = Node(rng)
    node.discovery.offer_service(SERVICE, node.now)
    assert node.advance_timed(1_000) == []  # the link is down
    node.up()

    times = [at for at, action in node.advance_timed(5_000) if sent([action], None) == [(OFFER,)]]

    repeated = [first, first + 200, first + 600, first + 1_400]
    assert times == [*repeated, *range(first + 2_400, 5_000, 1_000)]


# [utest->SD-63, SD-84]
@pytest.mark.parametrize(
    ("timings", "expected"),
    [
        ({"repetitions_max": 0}, [55, 1_055, 2_055]),
        ({"repetitions_base_delay_ms": 1, "repetitions_max": 2}, [55, 56, 58, 1_058, 2_058]),
        ({"cyclic_offer_delay_ms": 0, "ttl_offer_s": TTL_FOREVER, "repetitions_max": 1}, [55, 255]),
        (
            {"initial_delay_min_ms": 0, "initial_delay_max_ms": 0, "repetitions_max": 1},
            [0, 200, 1_200, 2_200],
        ),
    ],
)
def test_every_timing_is_a_setting(timings: dict[str, int], expected: list[int]) -> None:
    node = Node(timings=SdTimings(**timings))
    node.discovery.offer_service(SERVICE, node.now)
    node.up()
    assert [at for at, _ in node.advance_timed(2_900)] == expected


# [utest->SD-68, SD-66, SD-67, SD-76, SD-73, SD-74, SD-75]
def test_the_phase_follows_its_table() -> None:
    node = Node()
    seen = [node.discovery.offer_phase(KEY)]
    node.discovery.offer_service(SERVICE, node.now)
    seen.append(node.discovery.offer_phase(KEY))
    node.up()
    for ms in (0, 60, 1_400):
        node.advance(ms)
        seen.append(node.discovery.offer_phase(KEY))
    node.discovery.link_down()
    seen.append(node.discovery.offer_phase(KEY))
    assert seen == [Phase.DOWN, Phase.DOWN, Phase.INITIAL_WAIT, Phase.REPETITION, Phase.MAIN, Phase.DOWN]


# [utest->COMPAT-714, COMPAT-799, COMPAT-800, COMPAT-803, COMPAT-801]
def test_two_versions_of_a_service_are_offered_and_subscribed_apart() -> None:
    node = offering()
    second = ServiceKey(KEY.service, KEY.instance, KEY.major + 1)
    node.discovery.offer_service(msgspec.structs.replace(SERVICE, key=second), node.now)
    node.advance(3_000)
    [answer] = sent(node.receive(find(WantedService(KEY.service))), PEER)
    assert [(entry.service, entry.instance, entry.major) for entry in answer] == [
        (KEY.service, KEY.instance, 1),
        (KEY.service, KEY.instance, 2),
    ]
    for key in (KEY, second):
        [requested] = of_kind(SubscriptionRequested, node.receive(subscribe(key=key)))
        assert requested.subscription.key == key


# [utest->SD-65, SD-836]
def test_services_offered_together_share_messages() -> None:
    node = Node()
    keys = [ServiceKey(0x1000 + number, 1, 1) for number in range(50)]
    for key in keys:
        node.discovery.offer_service(OfferedService(key, udp=("10.0.0.1", 30501)), node.now)
    node.up()

    messages = sent(node.advance(60), None)

    assert [[entry.service for entry in entries] for entries in messages] == [[key.service for key in keys]]


def test_a_message_above_the_size_limit_is_split() -> None:
    node = Node(limits=SdLimits(datagram=600))
    for number in range(50):
        node.discovery.offer_service(
            OfferedService(ServiceKey(number + 1, 1, 1), udp=("10.0.0.1", 30501 + number)), node.now
        )
    node.up()

    actions = node.advance(60)

    assert [len(entries) for entries in sent(actions, None)] == [20, 20, 10]
    assert max(len(send.datagram) for send in of_kind(Send, actions)) <= 600


def test_session_numbers_continue_through_a_link_loss() -> None:
    node = offering()
    before = of_kind(Send, node.advance(1_000))
    node.discovery.link_down()
    assert node.advance(10_000) == []
    node.up()
    after = of_kind(Send, node.advance(60))
    assert [int.from_bytes(send.datagram[10:12], "big") for send in (before[-1], after[0])] == [6, 7]


# [utest->SD-17, SD-261, SD-262, SD-820]
def test_a_withdrawn_service_sends_one_stop_offer() -> None:
    node = offering()
    assert sent(node.discovery.stop_offer(KEY), None) == [(STOP,)]
    assert node.discovery.stop_offer(KEY) == []
    assert node.advance(10_000) == []


def test_an_unannounced_service_is_withdrawn_without_a_message() -> None:
    node = Node()
    node.discovery.offer_service(SERVICE, node.now)
    node.up()
    assert node.discovery.stop_offer(KEY) == []
    assert node.advance(1_000) == []


# [utest->SD-821]
def test_the_close_stops_all_offers_in_one_message() -> None:
    node = offering()
    other = OfferedService(ServiceKey(1, 1, 1), udp=("10.0.0.1", 30501))
    node.discovery.offer_service(other, node.now)
    node.advance(200)
    (entries,) = sent(node.discovery.close(), None)
    assert [(entry.service, entry.ttl) for entry in entries] == [(0x1234, 0), (1, 0)]
    assert node.advance(10_000) == []


def test_a_service_offered_again_is_stopped_first() -> None:
    node = offering()
    moved = OfferedService(KEY, 8, ("10.0.0.1", 40000))
    assert sent(node.discovery.offer_service(moved, node.now), None) == [(STOP,)]
    (entries,) = sent(node.advance(60), None)
    assert entries[0].options == (Endpoint("10.0.0.1", 40000),)


# [utest->SD-681]
def test_an_offered_service_needs_an_endpoint() -> None:
    with pytest.raises(ValueError, match="udp or tcp: missing"):
        OfferedService(KEY)


# --- finds ------------------------------------------------------------------------------------------------------------

FITTING = [
    WANTED,
    WantedService(0x1234),
    WantedService(0x1234, ANY_INSTANCE, 1, 7),
    WantedService(0x1234, 0x5678, ANY_MAJOR),
]
NOT_FITTING = [
    WantedService(0x1235),
    WantedService(0x1234, 0x5679),
    WantedService(0x1234, 0x5678, 2),
    WantedService(0x1234, 0x5678, 1, 8),
]


# [utest->SD-624]
@pytest.mark.parametrize("wanted", FITTING)
def test_a_unicast_find_is_answered_immediately(wanted: WantedService) -> None:
    node = offering()
    assert sent(node.receive(find(wanted)), PEER) == [(OFFER,)]


@pytest.mark.parametrize("wanted", NOT_FITTING)
def test_a_find_of_another_service_is_not_answered(wanted: WantedService) -> None:
    node = offering()
    assert node.receive(find(wanted)) == []
    assert node.receive(find(wanted), multicast=True) == []
    assert sent(node.advance(100), PEER) == []


# [utest->SD-83, SD-85, SD-824]
@pytest.mark.parametrize(("rng", "delay"), [(0.0, 10), (0.5, 30), (1.0, 50)])
def test_a_multicast_find_is_answered_by_unicast_after_a_random_delay(rng: float, delay: int) -> None:
    node = offering(rng=rng)
    assert node.receive(find(), multicast=True) == []
    assert [at for at, action in node.advance_timed(90) if sent([action], PEER) == [(OFFER,)]] == [delay]


def test_pending_finds_are_answered_together_and_once() -> None:
    node = offering()
    node.discovery.offer_service(OfferedService(ServiceKey(1, 1, 1), udp=("10.0.0.1", 30501)), node.now)
    node.advance(200)
    node.receive(find(), multicast=True)
    node.advance(10)
    node.receive(find(WantedService(1)), find(), multicast=True)
    (entries,) = sent(node.advance(50), PEER)
    assert sorted(entry.service for entry in entries) == [1, 0x1234]


def test_a_unicast_find_also_answers_pending_ones() -> None:
    node = offering()
    node.receive(find(), multicast=True)
    assert sent(node.receive(find()), PEER) == [(OFFER,)]
    assert sent(node.advance(100), PEER) == []


@pytest.mark.parametrize("multicast", [True, False])
def test_finds_are_answered_from_the_repetition_phase_on(multicast: bool) -> None:
    node = Node()
    node.discovery.offer_service(SERVICE, node.now)
    node.up()
    assert sent([*node.receive(find(), multicast=multicast), *node.advance(54)], PEER) == []
    node.advance(10)
    assert node.discovery.offer_phase(KEY) is Phase.REPETITION
    assert sent([*node.receive(find(), multicast=multicast), *node.advance(60)], PEER) == [(OFFER,)]


def test_a_find_of_ttl_0_is_not_answered() -> None:
    assert offering().receive(find(ttl=0)) == []


def test_a_service_withdrawn_meanwhile_is_not_in_the_answer() -> None:
    node = offering()
    node.receive(find(), multicast=True)
    node.discovery.stop_offer(KEY)
    assert sent(node.advance(100), PEER) == []


# [utest->SD-106, SD-878, SD-879]
def test_an_endpoint_in_a_find_is_ignored() -> None:
    node = offering()
    odd = ServiceEntry(EntryType.FIND, 0x1234, 0x5678, 1, 7, 3, (Endpoint("10.0.0.9", 1),))
    assert sent(node.receive(odd), PEER) == [(OFFER,)]


# --- subscriptions ----------------------------------------------------------------------------------------------------

SUBSCRIPTION = SdSubscription(PEER, KEY, 0x4465, 0, UDP, None)


def subscribed(node: Node, ttl: int = 5) -> None:
    (requested,) = of_kind(SubscriptionRequested, node.receive(subscribe(ttl)))
    assert requested.subscription == SUBSCRIPTION
    assert sent(node.discovery.decide_subscriptions([requested.subscription]), PEER) == [(ack(ttl),)]


# [utest->SD-613, SD-441, SD-625]
def test_a_subscription_is_decided_and_acknowledged() -> None:
    node = offering()
    actions = node.receive(subscribe(5))
    assert actions == [SubscriptionRequested(SUBSCRIPTION, 5, initial_data=True, multicast=None)]
    assert sent(node.discovery.decide_subscriptions([SUBSCRIPTION]), PEER) == [(ack(5),)]
    assert node.discovery.statistics()["sd_subscribers"] == 1


# [utest->SD-618]
def test_a_refused_subscription_gets_a_nack_and_is_removed() -> None:
    node = offering()
    node.receive(subscribe())
    assert sent(node.discovery.decide_subscriptions(refused=[SUBSCRIPTION]), PEER) == [(ack(0),)]
    assert node.discovery.statistics()["sd_subscribers"] == 0
    assert of_kind(SubscriptionRequested, node.receive(subscribe())) != []


def test_a_renewal_is_acknowledged_without_a_decision() -> None:
    node = offering()
    subscribed(node, 5)
    node.advance(4_000)
    assert sent(node.receive(subscribe(9)), PEER) == [(ack(9),)]
    assert of_kind(SubscriptionEnded, node.advance(8_900)) == []
    assert of_kind(SubscriptionEnded, node.advance(200)) == [
        SubscriptionEnded(SUBSCRIPTION, EndReason.EXPIRED)
    ]


# [utest->SD-432, SD-445]
def test_a_subscription_ends_one_ttl_after_its_arrival() -> None:
    node = offering()
    node.receive(subscribe(5))
    node.advance(900)
    node.discovery.decide_subscriptions([SUBSCRIPTION])
    ends = [at for at, action in node.advance_timed(6_000) if isinstance(action, SubscriptionEnded)]
    assert ends == [4_100]


def test_a_subscription_of_unlimited_ttl_does_not_expire() -> None:
    node = offering()
    subscribed(node, TTL_FOREVER)
    assert of_kind(SubscriptionEnded, node.advance(1_000_000)) == []


# [utest->SD-1297]
def test_stop_subscribe_ends_it_without_an_answer() -> None:
    node = offering()
    subscribed(node)
    assert node.receive(subscribe(0)) == [SubscriptionEnded(SUBSCRIPTION, EndReason.STOPPED)]
    assert node.receive(subscribe(0)) == []
    assert of_kind(SubscriptionEnded, node.advance(10_000)) == []


def test_stop_subscribe_without_endpoints_means_all_and_with_others_none() -> None:
    node = offering()
    subscribed(node)
    assert node.receive(subscribe(0, (Endpoint("10.0.0.2", 40001),))) == []
    assert node.receive(subscribe(0, counter=1)) == []
    assert node.receive(subscribe(0), peer=OTHER) == []
    assert node.receive(subscribe(0, ())) == [SubscriptionEnded(SUBSCRIPTION, EndReason.STOPPED)]


# [utest->SD-862]
def test_a_stop_and_subscribe_in_one_message_restart_the_subscription() -> None:
    node = offering()
    subscribed(node)
    ended, requested = node.receive(subscribe(0), subscribe(5))
    assert ended == SubscriptionEnded(SUBSCRIPTION, EndReason.STOPPED)
    assert requested == SubscriptionRequested(SUBSCRIPTION, 5, initial_data=True, multicast=None)


# [utest->RPC-545]
def test_counters_endpoints_and_peers_distinguish_subscriptions() -> None:
    node = offering()
    different = [
        node.receive(subscribe()),
        node.receive(subscribe(counter=1)),
        node.receive(subscribe(options=(Endpoint("10.0.0.2", 40001),))),
        node.receive(subscribe(options=(Endpoint("10.0.0.3", 40000),)), peer=OTHER),
        node.receive(subscribe(eventgroup=0x4466)),
    ]
    requested = {a.subscription for actions in different for a in of_kind(SubscriptionRequested, actions)}
    assert len(requested) == 5
    (entries,) = sent(node.discovery.decide_subscriptions(sorted(requested, key=repr)), OTHER)
    assert entries == (ack(5),)


# [utest->SD-836]
def test_the_subscriptions_of_one_message_are_answered_in_one() -> None:
    node = offering()
    actions = node.receive(
        subscribe(), subscribe(counter=1), subscribe(eventgroup=0x4466), subscribe(eventgroup=0x9999)
    )
    assert sent(actions, PEER) == [], "the Nack waits for the Acks"
    one, two, three = (each.subscription for each in of_kind(SubscriptionRequested, actions))
    (entries,) = sent(node.discovery.decide_subscriptions([one, three], refused=[two]), PEER)
    assert [(e.counter, e.eventgroup, e.ttl) for e in entries] == [  # type: ignore[union-attr]
        (0, 0x4465, 5),
        (0, 0x9999, 0),
        (0, 0x4466, 5),
        (1, 0x4465, 0),
    ]


def test_a_nack_waits_for_undecided_subscribes_only_until_their_timeout() -> None:
    node = offering()
    assert sent(node.receive(subscribe(), subscribe(eventgroup=0x9999)), PEER) == []
    (entries,) = sent(node.advance(100_000), PEER)
    assert [(e.eventgroup, e.ttl) for e in entries] == [(0x4465, 0), (0x9999, 0)]  # type: ignore[union-attr]


# [utest->SD-854, SD-763, SD-789, SD-814]
def test_an_ack_names_the_multicast_group_of_its_event_group() -> None:
    node = offering()
    (requested,) = of_kind(SubscriptionRequested, node.receive(subscribe(eventgroup=0x4466, options=())))
    assert requested.multicast == ("224.0.1.1", 30600)
    group = (Endpoint("224.0.1.1", 30600, role=int(EndpointRole.MULTICAST)),)
    assert sent(node.discovery.decide_subscriptions([requested.subscription]), PEER) == [
        (ack(5, group, 0x4466),)
    ]


# [utest->SD-1188, SD-833, SD-1194]
@pytest.mark.parametrize(
    ("initial_data", "reserved", "initial"),
    [(False, 0, True), (False, INITIAL_DATA, True), (True, 0, False), (True, INITIAL_DATA, True)],
)
def test_initial_data_follows_the_flag_if_the_client_supports_it(
    initial_data: bool, reserved: int, initial: bool
) -> None:
    node = offering()
    (requested,) = of_kind(
        SubscriptionRequested, node.receive(subscribe(reserved=reserved), initial_data=initial_data)
    )
    assert requested.initial_data is initial
    node.discovery.decide_subscriptions([requested.subscription])
    renewed = node.receive(subscribe(reserved=reserved), initial_data=initial_data)
    assert isinstance(renewed[0], Send)  # the Ack precedes
    again = initial_data and bool(reserved)
    assert renewed[1:] == ([InitialDataRequested(SUBSCRIPTION)] if again else [])


# [utest->SD-614, SD-619]
def test_an_answer_repeats_the_reserved_bits_and_the_counter() -> None:
    node = offering()
    assert sent(node.receive(subscribe(eventgroup=0x9999, counter=7, reserved=0xABC)), PEER) == [
        (ack(0, eventgroup=0x9999, counter=7, reserved=0xABC),)
    ]


# [utest->SD-1144, SD-1137, SD-1164, SD-798]
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (subscribe(key=ServiceKey(0x1235, 0x5678, 1)), "sd_subscribe_unknown"),
        (subscribe(key=ServiceKey(0x1234, 0x5679, 1)), "sd_subscribe_unknown"),
        (subscribe(key=ServiceKey(0x1234, 0x5678, 2)), "sd_subscribe_unknown"),
        (subscribe(eventgroup=0x4467), "sd_subscribe_unknown"),
        (subscribe(options=()), "sd_endpoints"),
        (
            subscribe(options=(Endpoint("10.0.0.3", 40000),)),
            "sd_endpoints",
        ),  # another host would receive the events
        (subscribe(options=(Endpoint("10.0.0.2", 1), Endpoint("10.0.0.2", 2))), "sd_endpoints"),
    ],
)
def test_an_invalid_subscription_is_refused_immediately(entry: Any, reason: str) -> None:
    node = offering()
    actions = node.receive(entry)
    assert refusals(actions) == [reason]
    ((answer,),) = sent(actions, PEER)
    assert (answer.type, answer.ttl) == (EntryType.ACK, 0)
    assert of_kind(SubscriptionRequested, actions) == []


# [utest->SD-1142]
def test_an_unknown_option_does_not_refuse_a_subscription() -> None:
    node = offering()
    options = (Endpoint("10.0.0.2", 40000), UnknownOption(0x20, b"\1"))
    assert node.receive(subscribe(options=options)) == [SubscriptionRequested(SUBSCRIPTION, 5, True, None)]


def test_a_repeated_endpoint_is_not_a_contradiction() -> None:
    node = offering()
    options = (Endpoint("10.0.0.2", 40000), Endpoint("10.0.0.2", 40000), Endpoint("fd00::1", 1))
    assert node.receive(subscribe(options=options)) == [SubscriptionRequested(SUBSCRIPTION, 5, True, None)]


# [utest->SD-818]
def test_a_multicast_subscribe_is_ignored() -> None:
    node = offering()
    actions = node.receive(subscribe(), multicast=True)
    assert (refusals(actions), len(actions)) == (["sd_multicast"], 1)


# [utest->SD-102]
def test_a_subscribe_with_missing_options_gets_a_nack() -> None:
    node = offering()
    payload = bytes.fromhex("c0000000 00000010 06090010 12345678 01000003 00034465 00000000")
    datagram = bytes.fromhex("ffff8100 00000024 00000001 01010200") + payload

    actions = node.feed(datagram)

    assert refusals(actions) == ["sd_option_index"]
    assert sent(actions, PEER) == [(ack(0, counter=3),)]
    again = bytes.fromhex("ffff8100 00000024 00000002 01010200") + payload
    assert sent(node.feed(again, multicast=True), PEER) == []


def test_a_decision_timeout_is_a_refusal() -> None:
    node = offering()
    node.receive(subscribe())
    actions = node.advance(TIMINGS.decision_timeout_ms)
    assert refusals(actions) == ["sd_subscribe_undecided"]
    assert of_kind(SubscriptionEnded, actions) == [SubscriptionEnded(SUBSCRIPTION, EndReason.UNDECIDED)]
    assert sent(actions, PEER) == [(ack(0),)]
    assert node.discovery.decide_subscriptions([SUBSCRIPTION]) == []


def test_an_undecided_subscription_is_not_requested_again() -> None:
    node = offering()
    node.receive(subscribe(5))
    assert node.receive(subscribe(9)) == []
    assert sent(node.discovery.decide_subscriptions([SUBSCRIPTION]), PEER) == [(ack(9),)]


def test_an_accepted_subscription_may_be_refused_later() -> None:
    node = offering()
    subscribed(node)
    assert sent(node.discovery.decide_subscriptions(refused=[SUBSCRIPTION]), PEER) == [(ack(0),)]
    assert node.discovery.decide_subscriptions(refused=[SUBSCRIPTION]) == []


# [utest->SD-830]
def test_a_withdrawn_service_has_no_subscribers() -> None:
    node = offering()
    subscribed(node)
    assert of_kind(SubscriptionEnded, node.discovery.stop_offer(KEY)) == [
        SubscriptionEnded(SUBSCRIPTION, EndReason.WITHDRAWN)
    ]


# [utest->SD-437]
def test_a_lost_link_ends_all_subscriptions() -> None:
    node = offering()
    subscribed(node)
    assert node.discovery.link_down() == [SubscriptionEnded(SUBSCRIPTION, EndReason.LINK)]
    assert refusals(node.receive(subscribe())) == ["sd_subscribe_unknown"]


# [utest->SD-871]
def test_a_reboot_ends_only_the_subscriptions_of_its_peer() -> None:
    node = offering()
    subscribed(node)
    foreign = subscribe(TTL_FOREVER, (Endpoint("10.0.0.3", 40000),))
    (requested,) = of_kind(SubscriptionRequested, node.receive(foreign, peer=OTHER))
    node.discovery.decide_subscriptions([requested.subscription])
    node.now += 100 * MS

    actions = node.receive(subscribe(), session=1)

    assert of_kind(SubscriptionEnded, actions) == [SubscriptionEnded(SUBSCRIPTION, EndReason.REBOOTED)]
    assert of_kind(SubscriptionRequested, actions) == [SubscriptionRequested(SUBSCRIPTION, 5, True, None)]
    assert node.discovery.statistics()["sd_subscribers"] == 2


# [utest->SD-1137]
@pytest.mark.parametrize("limit", ["subscriptions", "peer_subscriptions"])
def test_a_subscription_above_the_limit_gets_a_nack(limit: str) -> None:
    node = offering(limits=SdLimits(**{limit: 2}))
    for counter in range(2):
        assert refusals(node.receive(subscribe(counter=counter))) == []
    actions = node.receive(subscribe(counter=2))
    assert refusals(actions) == ["sd_subscribe_limit"]
    assert sent(actions, PEER) == [(ack(0, counter=2),)]
    other = node.receive(subscribe(options=(Endpoint("10.0.0.3", 1),)), peer=OTHER)
    assert refusals(other) == (["sd_subscribe_limit"] if limit == "subscriptions" else [])
    node.receive(subscribe(0))
    assert refusals(node.receive(subscribe(counter=2))) == []


# --- dependencies on peers --------------------------------------------------------------------------------------------


def test_a_peer_is_in_use_while_it_has_a_subscription_or_waits_for_an_answer() -> None:
    buffer = ActionBuffer(settings(), lambda: 0.5, lambda _: (1, True))
    server = SdServer(buffer)
    server.offer_service(SERVICE, 0)
    server.link_up(0, 0)
    due = buffer.deadlines.pop_due(0)
    assert due is not None
    server._offer_due(KEY, 0)
    assert not server.depends_on(PEER)

    server.on_find(find(), PEER, multicast=True, now_ns=0)
    server.on_subscribe(subscribe(), OTHER, multicast=True, supports_initial_data=False, now_ns=0)
    assert (server.depends_on(PEER), server.depends_on(OTHER)) == (True, False)

    server.on_find(find(), PEER, multicast=False, now_ns=0)
    assert not server.depends_on(PEER)

    server.on_subscribe(subscribe(), PEER, multicast=False, supports_initial_data=False, now_ns=0)
    assert server.depends_on(PEER)
    server.end_subscriptions_of(PEER, EndReason.REBOOTED)
    assert not server.depends_on(PEER)
