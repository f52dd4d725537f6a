# SPDX-License-Identifier: Apache-2.0
"""The client: Finds, received Offers and own subscriptions."""

from ipaddress import ip_network
from typing import Any

import pytest

from tests.transports.someip.sd.network import (
    KEY,
    MS,
    OTHER,
    PEER,
    REMOTE,
    REMOTE_BOTH,
    TIMINGS,
    WANTED,
    Node,
    ack,
    find,
    of_kind,
    offer,
    refusals,
    sent,
    settings,
    subscribe,
)
from ustreamer.transports.someip.sd.action_buffer import ActionBuffer
from ustreamer.transports.someip.sd.actions import (
    ConnectRequested,
    EndReason,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    PeerRebooted,
    ServiceFound,
    ServiceLost,
)
from ustreamer.transports.someip.sd.client import SdClient
from ustreamer.transports.someip.sd.codec import INITIAL_DATA, EventgroupEntry
from ustreamer.transports.someip.sd.config import TTL_FOREVER, SdLimits, SdTimings
from ustreamer.transports.someip.sd.endpoints import NetworkPolicy
from ustreamer.transports.someip.sd.eventgroups import TRANSITIONS, EventgroupState, EventgroupTrigger
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole, L4Protocol, Option
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService

GROUP = 0x4465
FOUND = ServiceFound(KEY, 0, ("10.0.0.2", 30509), None, PEER)
OURS: tuple[Option, ...] = (Endpoint("10.0.0.1", 30500),)
STREAM = ("10.0.0.1", 51000)
OURS_TCP: tuple[Option, ...] = (Endpoint(*STREAM, protocol=int(L4Protocol.TCP)),)
SUBSCRIBE = subscribe(5, OURS)
STOP = subscribe(0, OURS)


def wanting(wanted: WantedService = WANTED, group: int | None = GROUP, **changes: Any) -> Node:
    """A node with a requested service, after its Finds."""
    node = Node(**changes)
    node.discovery.request_service(wanted, node.now)
    if group is not None:
        node.discovery.subscribe(wanted, group, node.now)
    node.up()
    node.advance(3_000)
    return node


def subscribed(**changes: Any) -> Node:
    """A node with an acknowledged subscription of unlimited ttl."""
    node = wanting(**changes)
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]
    return node


# --- finds ------------------------------------------------------------------------------------------------------------


# [utest->SD-239, SD-76, SD-866, SD-877]
@pytest.mark.parametrize(("rng", "first"), [(0.0, 10), (1.0, 100)])
def test_finds_are_repeated_with_doubled_pauses_and_then_stop(rng: float, first: int) -> None:
    node = Node(rng)
    node.discovery.request_service(WANTED, node.now)
    assert node.advance_timed(500) == []
    node.up()
    times = [at for at, action in node.advance_timed(100_000) if sent([action], None) == [(find(),)]]
    assert times == [first, first + 200, first + 600, first + 1_400]
    assert node.discovery.find_phase(WANTED) is Phase.MAIN


# [utest->SD-238, SD-867]
def test_a_find_stops_with_the_offer() -> None:
    node = Node()
    node.discovery.request_service(WANTED, node.now)
    node.up()
    node.advance(60)
    assert node.receive(offer(TTL_FOREVER)) == [FOUND]
    assert node.advance_timed(10_000) == []


# [utest->SD-238]
def test_an_offer_in_the_initial_wait_prevents_the_find() -> None:
    node = Node()
    node.discovery.request_service(WANTED, node.now)
    node.up()
    node.receive(offer(TTL_FOREVER))
    assert node.advance_timed(10_000) == []


# [utest->SD-239]
def test_a_request_for_any_instance_sends_one_find() -> None:
    wanted = WantedService(0x1234)
    node = Node()
    node.discovery.request_service(wanted, node.now)
    node.up()
    node.receive(offer(TTL_FOREVER))
    assert sent(node.advance(10_000), None) == [(find(wanted),)]


# [utest->SD-831, SD-834]
def test_after_a_stop_offer_nothing_is_sent_until_there_is_an_offer() -> None:
    node = subscribed()
    assert node.receive(offer(0)) == [
        EventgroupLost(KEY, GROUP, EndReason.STOPPED),
        ServiceLost(KEY, EndReason.STOPPED),
    ]
    assert node.advance_timed(10_000) == []
    assert sent(node.receive(offer()), PEER) == [(SUBSCRIBE,)]


def test_an_expired_offer_restarts_the_find() -> None:
    node = wanting()
    node.receive(offer(3))
    node.receive(ack(TTL_FOREVER))
    timed = node.advance_timed(3_500)
    assert [(at, a) for at, a in timed if isinstance(a, EventgroupLost | ServiceLost)] == [
        (3_000, EventgroupLost(KEY, GROUP, EndReason.EXPIRED)),
        (3_000, ServiceLost(KEY, EndReason.EXPIRED)),
    ]
    assert [at for at, action in timed if sent([action], None) == [(find(),)]] == [3_055, 3_255]


def test_an_offer_is_renewed_by_an_offer() -> None:
    node = wanting(group=None)
    node.receive(offer(3))
    for _ in range(5):
        node.advance(2_900)
        assert node.receive(offer(3)) == []
    assert of_kind(ServiceLost, node.advance(3_000)) == [ServiceLost(KEY, EndReason.EXPIRED)]


# [utest->SD-253]
def test_an_offer_of_unlimited_ttl_does_not_expire() -> None:
    node = wanting(group=None)
    node.receive(offer(TTL_FOREVER))
    assert node.advance(100_000_000) == []


def test_an_unrequested_offer_is_not_stored() -> None:
    node = wanting()
    for entry in (
        offer(key=ServiceKey(0x1235, 0x5678, 1)),
        offer(key=ServiceKey(0x1234, 0x5679, 1)),
        offer(key=ServiceKey(0x1234, 0x5678, 2)),
    ):
        assert node.receive(entry) == []
    assert (node.discovery.statistics()["sd_found"], node.discovery.statistics()["sd_unwanted_offers"]) == (
        0,
        3,
    )


def test_a_stop_offer_ends_an_unrequested_offer() -> None:
    node = wanting()
    other = ServiceKey(0x1235, 0x5678, 1)
    node.receive(offer(key=other))
    assert node.discovery.unwanted_offers() == [other]
    node.receive(offer(0, key=other))
    assert node.discovery.unwanted_offers() == []
    assert node.discovery.statistics()["sd_unwanted_offers"] == 1


# [utest->RPC-636]
def test_every_instance_of_a_wildcard_request_is_subscribed() -> None:
    wanted = WantedService(0x1234)
    node = wanting(wanted)
    keys = [ServiceKey(0x1234, instance, 1) for instance in (1, 2)]
    actions = node.receive(
        *(offer(key=key, options=(Endpoint("10.0.0.2", 1 + key.instance),)) for key in keys)
    )
    assert [found.key for found in of_kind(ServiceFound, actions)] == keys
    assert sent(actions, PEER) == [tuple(subscribe(5, OURS, key=key) for key in keys)]


# --- trust in Offers --------------------------------------------------------------------------------------------------


# [utest->SD-1144, SD-681, SD-1135]
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "sd_endpoints"),
        ((Endpoint("10.0.0.2", 1), Endpoint("10.0.0.2", 2)), "sd_endpoints"),
        ((Endpoint("192.168.0.1", 30509),), "sd_network"),
        ((Endpoint("fd00::1", 30509),), "sd_endpoints"),
        ((Endpoint("10.0.0.1", 30500),), "sd_endpoints"),  # the own event endpoint
        ((Endpoint("10.0.0.1", 30490),), "sd_endpoints"),
        ((Endpoint("224.0.0.1", 30490, role=int(EndpointRole.MULTICAST)),), "sd_endpoints"),
    ],
)
def test_an_offer_without_a_trusted_endpoint_is_refused(options: tuple[Option, ...], reason: str) -> None:
    node = wanting()
    actions = node.receive(offer(options=options))
    assert (refusals(actions), len(actions)) == ([reason], 1)


MOVED = (Endpoint("10.0.0.3", 30509),)
MOVED_PORT = (Endpoint("10.0.0.2", 30510),)


@pytest.mark.parametrize(
    ("of", "options", "reason", "text"),
    [
        (PEER, MOVED, "sd_offer_changed", "at 10.0.0.3:30509, which is in use at 10.0.0.2:30509"),
        (PEER, MOVED_PORT, "sd_offer_changed", "at 10.0.0.2:30510, which is in use at 10.0.0.2:30509"),
        (OTHER, MOVED, "sd_offer_foreign", "which 10.0.0.2:30490 offers"),
        (OTHER, REMOTE, "sd_offer_foreign", "which 10.0.0.2:30490 offers"),
    ],
)
def test_an_offer_that_moves_a_service_in_use_is_refused_and_reported(
    of: tuple[str, int], options: tuple[Option, ...], reason: str, text: str
) -> None:
    node = subscribed()
    (refused,) = node.receive(offer(TTL_FOREVER, options), peer=of)
    assert refused.reason == reason  # type: ignore[union-attr]
    assert text in refused.detail  # type: ignore[union-attr]
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.SUBSCRIBED


def test_another_peer_cannot_stop_a_service() -> None:
    node = subscribed()
    assert refusals(node.receive(offer(0), peer=OTHER)) == ["sd_offer_foreign"]
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.SUBSCRIBED


def test_a_refused_offer_does_not_renew_the_one_in_use() -> None:
    node = wanting(group=None)
    node.receive(offer(3))
    node.advance(2_000)
    assert refusals(node.receive(offer(3, MOVED), peer=OTHER)) == ["sd_offer_foreign"]
    assert of_kind(ServiceLost, node.advance(1_000)) == [ServiceLost(KEY, EndReason.EXPIRED)]
    assert node.receive(offer(3, MOVED), peer=OTHER) == [
        ServiceFound(KEY, 0, ("10.0.0.3", 30509), None, OTHER)
    ]


def test_a_service_may_move_after_a_stop_or_a_reboot() -> None:
    node = subscribed()
    found = ServiceFound(KEY, 0, ("10.0.0.2", 30510), None, PEER)
    assert of_kind(ServiceFound, node.receive(offer(0), offer(TTL_FOREVER, MOVED_PORT))) == [found]
    node.now += 100 * MS
    actions = node.receive(offer(TTL_FOREVER), session=1)
    assert of_kind(ServiceFound, actions) == [FOUND]


def test_an_additional_protocol_is_not_a_move() -> None:
    node = subscribed()
    actions = node.receive(offer(TTL_FOREVER, REMOTE_BOTH))
    assert of_kind(ServiceFound, actions) == [
        ServiceFound(KEY, 0, ("10.0.0.2", 30509), ("10.0.0.2", 30510), PEER)
    ]
    assert refusals(node.receive(offer(TTL_FOREVER, REMOTE))) == ["sd_offer_changed"]  # and no change


def test_above_the_limit_offers_are_refused() -> None:
    wanted = WantedService(0x1234)
    node = wanting(wanted, None, limits=SdLimits(services=2))
    actions = node.receive(*(offer(key=ServiceKey(0x1234, instance, 1)) for instance in (1, 2, 3)))
    assert [found.key.instance for found in of_kind(ServiceFound, actions)] == [1, 2]
    assert refusals(actions) == ["sd_offer_limit"]


# --- subscriptions ----------------------------------------------------------------------------------------------------


# [utest->SD-442]
def test_the_transition_table_equals_the_docstring() -> None:
    for (state, event), after in TRANSITIONS.items():
        if event is EventgroupTrigger.ACK:
            assert after is EventgroupState.SUBSCRIBED
        if event is EventgroupTrigger.NACK:
            assert after is EventgroupState.REFUSED
        if event is EventgroupTrigger.DISCONNECTED:
            assert after is EventgroupState.CONNECTING
        assert (state, event) != (EventgroupState.CONNECTING, EventgroupTrigger.OFFER)


# [utest->SD-321, SD-624, SD-422, SD-428]
def test_a_unicast_offer_is_answered_immediately() -> None:
    node = wanting()
    assert node.receive(offer(TTL_FOREVER))[0] == FOUND
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.PENDING


# [utest->SD-766]
@pytest.mark.parametrize(("rng", "delay"), [(0.0, 10), (0.5, 30), (1.0, 50)])
def test_a_multicast_offer_is_answered_after_a_random_delay(rng: float, delay: int) -> None:
    node = wanting(rng=rng)
    assert node.receive(offer(TTL_FOREVER), multicast=True) == [FOUND]
    assert [at for at, action in node.advance_timed(100) if sent([action], PEER) == [(SUBSCRIBE,)]] == [delay]


def test_offers_of_one_message_are_answered_in_one() -> None:
    node = wanting()
    other = WantedService(1)
    node.discovery.subscribe(other, 7, node.now)
    node.advance(3_000)
    actions = node.receive(offer(), offer(key=ServiceKey(1, 1, 1)), multicast=True)
    assert len(of_kind(ServiceFound, actions)) == 2
    assert [len(entries) for entries in sent(node.advance(50), PEER)] == [2]


def test_an_ack_names_the_multicast_group() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    group = (Endpoint("224.0.1.1", 30600, role=int(EndpointRole.MULTICAST)),)
    expected = EventgroupSubscribed(KEY, GROUP, ("224.0.1.1", 30600))
    assert node.receive(ack(TTL_FOREVER, group)) == [expected]
    assert node.receive(ack(TTL_FOREVER, group)) == []
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]


# [utest->SD-631, SD-431, SD-828]
def test_a_subscription_is_renewed_with_every_offer_and_reported_once() -> None:
    node = wanting()
    for number in range(5):
        assert sent(node.receive(offer(3)), PEER) == [(SUBSCRIBE,)]
        reported = [] if number else [EventgroupSubscribed(KEY, GROUP, None)]
        assert node.receive(ack(5)) == reported
        assert node.advance(2_000) == []


# [utest->SD-828]
def test_without_offers_a_subscription_is_renewed_at_half_its_ttl() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    node.receive(ack(5))
    times = []
    for _ in range(4):
        times += [at for at, action in node.advance_timed(2_500) if sent([action], PEER) == [(SUBSCRIBE,)]]
        assert node.receive(ack(5)) == []
    assert times == [2_500] * 4
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.SUBSCRIBED


# [utest->SD-431, SD-829]
def test_a_subscription_of_unlimited_ttl_is_not_renewed() -> None:
    assert subscribed().advance(100_000_000) == []


def test_an_expired_subscription_is_lost_and_requested_again() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    node.receive(ack(5))
    timed = node.advance_timed(20_000)
    assert [(at, a) for at, a in timed if isinstance(a, EventgroupLost)] == [
        (5_000, EventgroupLost(KEY, GROUP, EndReason.EXPIRED))
    ]
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.PENDING
    assert node.receive(ack(5)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_an_unanswered_subscribe_is_retried_with_doubled_pauses() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    times = [at for at, action in node.advance_timed(40_000) if sent([action], PEER) == [(SUBSCRIBE,)]]
    assert times == [1_000, 3_000, 7_000, 15_000, 23_000, 31_000, 39_000]


# [utest->SD-844, SD-1178]
def test_a_multicast_offer_restarts_an_unanswered_subscription() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(50), PEER) == [(SUBSCRIBE,)]
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(50), PEER) == [(STOP, SUBSCRIBE)]
    node.receive(ack(TTL_FOREVER))
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(50), PEER) == [(SUBSCRIBE,)]


# [utest->SD-1171]
def test_the_restart_of_a_subscription_over_tcp_keeps_its_connection() -> None:
    node = connecting()
    node.discovery.on_connected(KEY, STREAM, node.now)
    node.receive(offer(TTL_FOREVER, REMOTE_BOTH), multicast=True)
    node.advance(50)
    node.receive(offer(TTL_FOREVER, REMOTE_BOTH), multicast=True)
    restarted = node.advance(50)
    assert sent(restarted, PEER) == [(subscribe(0, OURS_TCP), subscribe(5, OURS_TCP))]
    assert of_kind(ConnectRequested, restarted) == []


# [utest->SD-816]
def test_without_delays_and_finds_a_client_answers_offers_at_once() -> None:
    timings = {"initial_delay": 0, "request_response_delay": 0}
    none = {f"{name}_{which}_ms": value for name, value in timings.items() for which in ("min", "max")}
    node = Node(timings=SdTimings(**none, repetitions_max=0))
    node.discovery.subscribe(WANTED, GROUP, node.now)
    node.up()
    node.advance(0)
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(0), PEER) == [(SUBSCRIBE,)]
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_an_answer_is_missing_only_after_the_response_delay() -> None:
    node = wanting(rng=0.0)
    node.receive(offer(TTL_FOREVER), multicast=True)
    for _ in range(2):
        assert sent(node.advance(10), PEER) == [(SUBSCRIBE,)]
        node.receive(offer(TTL_FOREVER), multicast=True)
    node.advance(10)
    node.advance(30)
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(10), PEER) == [(SUBSCRIBE,)]  # 40 ms after the last one
    node.advance(40)
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(10), PEER) == [(STOP, SUBSCRIBE)]  # 50 ms


# [utest->SD-1169, SD-1176]
def test_a_unicast_offer_restarts_no_subscription() -> None:
    node = wanting()
    for _ in range(3):
        assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]
    node.receive(offer(TTL_FOREVER), multicast=True)
    assert sent(node.advance(50), PEER) == [(SUBSCRIBE,)]
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]


# [utest->SD-322, SD-1191, SD-1192, SD-1193, SD-844, SD-1194]
def test_a_server_with_the_initial_data_flag_gets_requests_with_it() -> None:
    wants = subscribe(5, OURS, reserved=INITIAL_DATA)
    node = wanting(initial_data=True)
    node.receive(offer(TTL_FOREVER), multicast=True, initial_data=True)
    assert sent(node.advance(50), PEER) == [(wants,)]
    node.receive(offer(TTL_FOREVER), multicast=True, initial_data=True)
    assert sent(node.advance(50), PEER) == [(wants,)]  # no answer, but no StopSubscribe
    node.receive(ack(TTL_FOREVER), initial_data=True)
    node.receive(offer(TTL_FOREVER), multicast=True, initial_data=True)
    assert sent(node.advance(50), PEER) == [(SUBSCRIBE,)]


# [utest->SD-1188]
def test_a_server_without_the_initial_data_flag_never_gets_it() -> None:
    node = wanting(initial_data=True)
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]


def test_a_nack_is_reported_and_the_next_offer_retries() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    assert node.receive(ack(0)) == [EventgroupRefused(KEY, GROUP)]
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.REFUSED
    assert node.advance(100_000) == []
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]
    assert node.receive(ack(0)) == [EventgroupRefused(KEY, GROUP)]


# [utest->SD-818]
@pytest.mark.parametrize(
    ("entry", "of", "multicast", "reason"),
    [
        (ack(eventgroup=0x4466), PEER, False, "sd_ack_unexpected"),
        (ack(key=ServiceKey(0x1234, 1, 1)), PEER, False, "sd_ack_unexpected"),
        (ack(key=ServiceKey(0x1234, 0x5678, 2)), PEER, False, "sd_ack_unexpected"),
        (ack(counter=1), PEER, False, "sd_ack_unexpected"),
        (ack(), OTHER, False, "sd_ack_unexpected"),
        (ack(0), OTHER, False, "sd_ack_unexpected"),
        (ack(), PEER, True, "sd_multicast"),
        (
            ack(
                options=tuple(
                    Endpoint("224.0.1.1", port, role=int(EndpointRole.MULTICAST)) for port in (1, 2)
                )
            ),
            PEER,
            False,
            "sd_endpoints",
        ),
    ],
)
def test_an_unexpected_answer_changes_nothing(
    entry: EventgroupEntry, of: tuple[str, int], multicast: bool, reason: str
) -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER))
    actions = node.receive(entry, peer=of, multicast=multicast)
    assert (refusals(actions), len(actions)) == ([reason], 1)
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.PENDING


# [utest->SD-871]
def test_a_reboot_voids_offers_and_its_first_offer_is_answered() -> None:
    node = subscribed()
    node.now += 100 * MS
    actions = node.receive(offer(TTL_FOREVER), session=1)
    assert actions[:4] == [
        PeerRebooted(PEER),
        EventgroupLost(KEY, GROUP, EndReason.REBOOTED),
        ServiceLost(KEY, EndReason.REBOOTED),
        FOUND,
    ]
    assert sent(actions, PEER) == [(SUBSCRIBE,)]
    assert node.discovery.statistics()["sd_reboots"] == 1


def test_a_reboot_without_an_offer_restarts_the_find() -> None:
    node = subscribed()
    node.now += 100 * MS
    assert node.receive(session=1)[0] == PeerRebooted(PEER)
    assert sent(node.advance(60), None) == [(find(),)]


# [utest->SD-72, SD-1193, SD-440]
def test_a_lost_link_ends_everything_and_a_new_one_restarts() -> None:
    node = subscribed()
    assert node.discovery.link_down() == [
        EventgroupLost(KEY, GROUP, EndReason.LINK),
        ServiceLost(KEY, EndReason.LINK),
    ]
    assert node.receive(offer(TTL_FOREVER)) == []
    node.up()
    assert sent(node.advance(60), None) == [(find(),)]
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == [(SUBSCRIBE,)]


# [utest->SD-430]
def test_a_later_requested_event_group_is_subscribed_immediately() -> None:
    node = subscribed()
    assert sent(node.discovery.subscribe(WANTED, 7, node.now), PEER) == [(subscribe(5, OURS, 7),)]
    assert node.discovery.subscribe(WANTED, 7, node.now) == []


# [utest->SD-203, SD-332, SD-333, SD-1177, SD-433]
def test_an_unneeded_subscription_is_stopped() -> None:
    node = subscribed()
    node.discovery.subscribe(WantedService(0x1234), GROUP, node.now)
    assert sent(node.discovery.unsubscribe(WANTED, GROUP), PEER) == []  # another request needs it
    assert sent(node.discovery.unsubscribe(WantedService(0x1234), GROUP), PEER) == [(STOP,)]
    assert node.discovery.unsubscribe(WANTED, GROUP) == []
    assert sent(node.receive(offer(TTL_FOREVER)), PEER) == []


# [utest->SD-17, SD-18, SD-822]
def test_an_unneeded_service_is_removed() -> None:
    node = subscribed()
    assert sent(node.discovery.release_service(WANTED), PEER) == [(STOP,)]
    assert node.discovery.release_service(WANTED) == []
    assert node.receive(offer(TTL_FOREVER)) == []
    assert node.discovery.next_deadline_ns is None
    assert node.discovery.statistics()["sd_found"] == 0


def test_values_are_requested_by_the_flag_or_by_a_new_subscription() -> None:
    node = subscribed()
    assert sent(node.discovery.request_values(KEY, GROUP, node.now), PEER) == [(STOP, SUBSCRIBE)]
    node = wanting(initial_data=True)
    node.receive(offer(TTL_FOREVER), initial_data=True)
    assert node.discovery.request_values(KEY, GROUP, node.now) == [], "the first Subscribe is not answered"
    node.receive(ack(TTL_FOREVER), initial_data=True)
    [(entry,)] = sent(node.discovery.request_values(KEY, GROUP, node.now), PEER)
    assert isinstance(entry, EventgroupEntry)
    assert (entry.ttl, entry.reserved) == (5, INITIAL_DATA)
    assert node.discovery.request_values(KEY, 0x77, node.now) == []


# [utest->SD-439]
def test_a_renewed_subscription_is_stopped_first() -> None:
    node = subscribed(initial_data=True)
    assert sent(node.discovery.renew_subscription(KEY, GROUP, node.now), PEER) == [(STOP, SUBSCRIBE)]
    assert node.discovery.renew_subscription(KEY, 0x77, node.now) == []
    assert node.receive(ack(TTL_FOREVER)) == [], "the subscription did not end"


# [utest->SD-821]
def test_the_close_stops_all_subscriptions() -> None:
    node = subscribed()
    assert sent(node.discovery.close(), PEER) == [(STOP,)]
    assert node.discovery.next_deadline_ns is None


# --- over TCP ---------------------------------------------------------------------------------------------------------


def connecting(**changes: Any) -> Node:
    node = wanting(group=None, **changes)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    actions = node.receive(offer(TTL_FOREVER, REMOTE_BOTH))
    assert of_kind(ConnectRequested, actions) == [ConnectRequested(KEY, ("10.0.0.2", 30510))]
    assert sent(actions, PEER) == []
    return node


# [utest->RPC-646, SD-762, SD-767]
def test_a_tcp_subscribe_follows_the_connect_and_names_its_local_end() -> None:
    node = connecting()
    assert node.discovery.eventgroup_state(KEY, GROUP) is EventgroupState.CONNECTING
    assert sent(node.discovery.on_connected(KEY, STREAM, node.now), PEER) == [(subscribe(5, OURS_TCP),)]
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_a_later_requested_tcp_event_group_connects_first() -> None:
    node = wanting(group=None)
    node.receive(offer(TTL_FOREVER, REMOTE_BOTH))
    actions = node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    assert actions == [ConnectRequested(KEY, ("10.0.0.2", 30510))]


def test_a_connection_is_requested_once_until_it_closes() -> None:
    node = connecting()
    assert node.receive(offer(TTL_FOREVER, REMOTE_BOTH)) == []
    node.discovery.on_disconnected(KEY)
    assert of_kind(ConnectRequested, node.receive(offer(TTL_FOREVER, REMOTE_BOTH))) != []


def test_a_lost_connection_loses_the_subscription() -> None:
    node = connecting()
    node.discovery.on_connected(KEY, STREAM, node.now)
    node.receive(ack(5))
    assert node.discovery.on_disconnected(KEY) == [EventgroupLost(KEY, GROUP, EndReason.DISCONNECTED)]
    assert refusals(node.receive(ack(5))) == ["sd_ack_unexpected"]
    assert node.advance(100_000) == []
    assert of_kind(ConnectRequested, node.receive(offer(TTL_FOREVER, REMOTE_BOTH))) != []


def test_a_tcp_event_group_is_refused_until_the_service_offers_tcp() -> None:
    node = wanting(group=None)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    assert node.receive(offer(TTL_FOREVER)) == [FOUND, EventgroupRefused(KEY, GROUP)]
    assert node.receive(offer(TTL_FOREVER)) == []
    assert of_kind(ConnectRequested, node.receive(offer(TTL_FOREVER, REMOTE_BOTH))) != []


def test_a_connection_to_a_lost_service_has_no_effect() -> None:
    node = connecting()
    node.receive(offer(0))
    assert node.discovery.on_connected(KEY, STREAM, node.now) == []
    assert node.discovery.on_disconnected(KEY) == []


# [utest->SD-848, SD-814]
def test_both_protocols_at_once() -> None:
    node = connecting()
    node.discovery.subscribe(WANTED, 7, node.now)
    node.discovery.on_connected(KEY, STREAM, node.now)
    (entries,) = sent(node.receive(offer(TTL_FOREVER, REMOTE_BOTH)), PEER)
    assert set(entries) == {subscribe(5, OURS_TCP), subscribe(5, OURS, 7)}


# [utest->SD-848, SD-682, SD-786]
def test_a_group_with_both_protocols_names_both_endpoints() -> None:
    node = wanting(group=None)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True, mixed=True)
    assert of_kind(ConnectRequested, node.receive(offer(TTL_FOREVER, REMOTE_BOTH))) != []
    subscribed = sent(node.discovery.on_connected(KEY, STREAM, node.now), PEER)
    assert subscribed == [(subscribe(5, OURS + OURS_TCP),)]
    assert node.receive(ack(TTL_FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]
    assert sent(node.discovery.unsubscribe(WANTED, GROUP), PEER) == [(subscribe(0, OURS + OURS_TCP),)]


def test_a_group_with_both_protocols_is_refused_until_the_service_offers_both() -> None:
    node = wanting(group=None)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True, mixed=True)
    assert node.receive(offer(TTL_FOREVER)) == [FOUND, EventgroupRefused(KEY, GROUP)]
    assert of_kind(ConnectRequested, node.receive(offer(TTL_FOREVER, REMOTE_BOTH))) != []


# --- dependencies on peers --------------------------------------------------------------------------------------------


def test_a_peer_is_in_use_while_it_offers_a_requested_service() -> None:
    client = SdClient(
        ActionBuffer(settings(), lambda: 0.5, lambda _: (1, True)),
        NetworkPolicy((ip_network("10.0.0.0/24"),)),
    )
    client.request_service(WANTED, 0)
    client.link_up(0, 0)
    client.on_offer(
        offer(key=ServiceKey(1, 1, 1)), PEER, multicast=True, supports_initial_data=False, now_ns=0
    )
    assert not client.depends_on(PEER)
    client.on_offer(offer(), PEER, multicast=True, supports_initial_data=False, now_ns=0)
    assert (client.depends_on(PEER), client.depends_on(OTHER)) == (True, False)
    client.on_offer(offer(0), PEER, multicast=True, supports_initial_data=False, now_ns=0)
    assert not client.depends_on(PEER)


# --- settings ---------------------------------------------------------------------------------------------------------


# [utest->SD-63, SD-84]
@pytest.mark.parametrize(
    ("timings", "text"),
    [
        (
            {"initial_delay_min_ms": 200},
            "initial_delay_min_ms: 200, expected at most initial_delay_max_ms, 100",
        ),
        ({"request_response_delay_min_ms": 51}, "request_response_delay_min_ms: 51, expected at most"),
        ({"cyclic_offer_delay_ms": 3_000}, "cyclic_offer_delay_ms: 3000, expected 1 to 2999"),
        ({"cyclic_offer_delay_ms": 0}, "cyclic_offer_delay_ms: 0, expected 1 to 2999"),
    ],
)
def test_contradicting_timings_are_refused(timings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SdTimings(**timings)


def test_the_answer_timeout_is_a_setting() -> None:
    node = wanting(timings=SdTimings(ack_timeout_ms=100))
    node.receive(offer(TTL_FOREVER))
    assert [at for at, _ in node.advance_timed(800)] == [100, 300, 700]
    assert TIMINGS.ack_timeout_ms == 1_000
