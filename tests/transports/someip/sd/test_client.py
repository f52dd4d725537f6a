# SPDX-License-Identifier: Apache-2.0
"""The wanting side: Finds, offers of others, and our subscriptions."""

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
from ustreamer.transports.someip.sd.action_buffer import Desk
from ustreamer.transports.someip.sd.actions import (
    ConnectWanted,
    Ended,
    EventgroupLost,
    EventgroupRefused,
    EventgroupSubscribed,
    PeerRebooted,
    ServiceFound,
    ServiceLost,
)
from ustreamer.transports.someip.sd.client import Client
from ustreamer.transports.someip.sd.codec import FOREVER, INITIAL_DATA, EventgroupEntry
from ustreamer.transports.someip.sd.endpoints import Neighbourhood
from ustreamer.transports.someip.sd.eventgroups import TRANSITIONS, Event, State
from ustreamer.transports.someip.sd.options import Endpoint, Option, Protocol, Role
from ustreamer.transports.someip.sd.phases import Phase
from ustreamer.transports.someip.sd.settings import Limits, ServiceKey, Timings, WantedService

GROUP = 0x4465
FOUND = ServiceFound(KEY, 0, ("10.0.0.2", 30509), None, PEER)
OURS: tuple[Option, ...] = (Endpoint("10.0.0.1", 30500),)
STREAM = ("10.0.0.1", 51000)
OURS_TCP: tuple[Option, ...] = (Endpoint(*STREAM, protocol=int(Protocol.TCP)),)
SUBSCRIBE = subscribe(5, OURS)
STOP = subscribe(0, OURS)


def wanting(wanted: WantedService = WANTED, group: int | None = GROUP, **changes: Any) -> Node:
    """A node that has said what it wants, and whose Finds are over."""
    node = Node(**changes)
    node.discovery.want(wanted, node.now)
    if group is not None:
        node.discovery.subscribe(wanted, group, node.now)
    node.up()
    node.wait(3_000)
    return node


def subscribed(**changes: Any) -> Node:
    """A node with a subscription that its server granted for ever."""
    node = wanting(**changes)
    assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]
    assert node.hear(ack(FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]
    return node


# --- finds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dice", "first"), [(0.0, 10), (1.0, 100)])
def test_finds_are_repeated_ever_slower_and_then_never(dice: float, first: int) -> None:
    node = Node(dice)
    node.discovery.want(WANTED, node.now)
    assert node.timed(500) == []
    node.up()
    times = [at for at, action in node.timed(100_000) if sent([action], None) == [(find(),)]]
    assert times == [first, first + 200, first + 600, first + 1_400]
    assert node.discovery.find_phase(WANTED) is Phase.MAIN


def test_a_find_stops_with_the_offer() -> None:
    node = Node()
    node.discovery.want(WANTED, node.now)
    node.up()
    node.wait(60)
    assert node.hear(offer(FOREVER)) == [FOUND]
    assert node.timed(10_000) == []


def test_what_is_offered_in_the_initial_wait_needs_no_find() -> None:
    node = Node()
    node.discovery.want(WANTED, node.now)
    node.up()
    node.hear(offer(FOREVER))
    assert node.timed(10_000) == []


def test_of_any_instance_one_find_is_sent_whatever_is_known() -> None:
    wanted = WantedService(0x1234)
    node = Node()
    node.discovery.want(wanted, node.now)
    node.up()
    node.hear(offer(FOREVER))
    assert sent(node.wait(10_000), None) == [(find(wanted),)]


def test_after_a_stop_offer_nothing_is_sent_until_there_is_an_offer() -> None:
    node = subscribed()
    assert node.hear(offer(0)) == [EventgroupLost(KEY, GROUP, Ended.STOPPED), ServiceLost(KEY, Ended.STOPPED)]
    assert node.timed(10_000) == []
    assert sent(node.hear(offer()), PEER) == [(SUBSCRIBE,)]


def test_after_its_ttl_an_offer_is_gone_and_looked_for_again() -> None:
    node = wanting()
    node.hear(offer(3))
    node.hear(ack(FOREVER))
    timed = node.timed(3_500)
    assert [(at, a) for at, a in timed if isinstance(a, EventgroupLost | ServiceLost)] == [
        (3_000, EventgroupLost(KEY, GROUP, Ended.EXPIRED)),
        (3_000, ServiceLost(KEY, Ended.EXPIRED)),
    ]
    assert [at for at, action in timed if sent([action], None) == [(find(),)]] == [3_055, 3_255]


def test_an_offer_is_renewed_by_an_offer() -> None:
    node = wanting(group=None)
    node.hear(offer(3))
    for _ in range(5):
        node.wait(2_900)
        assert node.hear(offer(3)) == []
    assert of_kind(ServiceLost, node.wait(3_000)) == [ServiceLost(KEY, Ended.EXPIRED)]


def test_an_offer_for_ever_does_not_expire() -> None:
    node = wanting(group=None)
    node.hear(offer(FOREVER))
    assert node.wait(100_000_000) == []


def test_what_nobody_wants_is_not_kept() -> None:
    node = wanting()
    for entry in (
        offer(key=ServiceKey(0x1235, 0x5678, 1)),
        offer(key=ServiceKey(0x1234, 0x5679, 1)),
        offer(key=ServiceKey(0x1234, 0x5678, 2)),
    ):
        assert node.hear(entry) == []
    assert (node.discovery.statistics()["sd_found"], node.discovery.statistics()["sd_unwanted_offers"]) == (
        0,
        3,
    )


def test_every_instance_of_any_is_found_and_subscribed() -> None:
    wanted = WantedService(0x1234)
    node = wanting(wanted)
    keys = [ServiceKey(0x1234, instance, 1) for instance in (1, 2)]
    actions = node.hear(*(offer(key=key, options=(Endpoint("10.0.0.2", 1 + key.instance),)) for key in keys))
    assert [found.key for found in of_kind(ServiceFound, actions)] == keys
    assert sent(actions, PEER) == [tuple(subscribe(5, OURS, key=key) for key in keys)]


# --- whose offers are believed ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "sd_endpoints"),
        ((Endpoint("10.0.0.2", 1), Endpoint("10.0.0.2", 2)), "sd_endpoints"),
        ((Endpoint("192.168.0.1", 30509),), "sd_network"),
        ((Endpoint("fd00::1", 30509),), "sd_endpoints"),
        ((Endpoint("10.0.0.1", 30500),), "sd_endpoints"),  # where we take events
        ((Endpoint("10.0.0.1", 30490),), "sd_endpoints"),
        ((Endpoint("224.0.0.1", 30490, role=int(Role.MULTICAST)),), "sd_endpoints"),
    ],
)
def test_an_offer_of_nowhere_or_elsewhere_is_refused(options: tuple[Option, ...], reason: str) -> None:
    node = wanting()
    actions = node.hear(offer(options=options))
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
    (refused,) = node.hear(offer(FOREVER, options), of=of)
    assert refused.reason == reason  # type: ignore[union-attr]
    assert text in refused.detail  # type: ignore[union-attr]
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.SUBSCRIBED


def test_somebody_else_cannot_stop_a_service() -> None:
    node = subscribed()
    assert refusals(node.hear(offer(0), of=OTHER)) == ["sd_offer_foreign"]
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.SUBSCRIBED


def test_a_refused_offer_does_not_prolong_the_one_in_use_and_then_it_is_taken() -> None:
    node = wanting(group=None)
    node.hear(offer(3))
    node.wait(2_000)
    assert refusals(node.hear(offer(3, MOVED), of=OTHER)) == ["sd_offer_foreign"]
    assert of_kind(ServiceLost, node.wait(1_000)) == [ServiceLost(KEY, Ended.EXPIRED)]
    assert node.hear(offer(3, MOVED), of=OTHER) == [ServiceFound(KEY, 0, ("10.0.0.3", 30509), None, OTHER)]


def test_a_service_moves_after_it_was_stopped_or_its_ecu_rebooted() -> None:
    node = subscribed()
    found = ServiceFound(KEY, 0, ("10.0.0.2", 30510), None, PEER)
    assert of_kind(ServiceFound, node.hear(offer(0), offer(FOREVER, MOVED_PORT))) == [found]
    node.now += 100 * MS
    actions = node.hear(offer(FOREVER), session=1)
    assert of_kind(ServiceFound, actions) == [FOUND]


def test_a_protocol_that_comes_up_later_is_no_move() -> None:
    node = subscribed()
    actions = node.hear(offer(FOREVER, REMOTE_BOTH))
    assert of_kind(ServiceFound, actions) == [
        ServiceFound(KEY, 0, ("10.0.0.2", 30509), ("10.0.0.2", 30510), PEER)
    ]
    assert refusals(node.hear(offer(FOREVER, REMOTE))) == ["sd_offer_changed"]  # and it does not go away


def test_above_the_limit_offers_are_refused() -> None:
    wanted = WantedService(0x1234)
    node = wanting(wanted, None, limits=Limits(services=2))
    actions = node.hear(*(offer(key=ServiceKey(0x1234, instance, 1)) for instance in (1, 2, 3)))
    assert [found.key.instance for found in of_kind(ServiceFound, actions)] == [1, 2]
    assert refusals(actions) == ["sd_offer_limit"]


# --- our subscriptions ------------------------------------------------------------------------------------------------


def test_the_table_of_our_subscriptions_is_the_one_in_the_text() -> None:
    for (state, event), after in TRANSITIONS.items():
        if event is Event.ACK:
            assert after is State.SUBSCRIBED
        if event is Event.NACK:
            assert after is State.REFUSED
        if event is Event.DISCONNECTED:
            assert after is State.CONNECTING
        assert (state, event) != (State.CONNECTING, Event.OFFER)


def test_an_offer_by_unicast_is_answered_at_once() -> None:
    node = wanting()
    assert node.hear(offer(FOREVER))[0] == FOUND
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.PENDING


@pytest.mark.parametrize(("dice", "delay"), [(0.0, 10), (0.5, 30), (1.0, 50)])
def test_an_offer_by_multicast_is_answered_after_a_random_delay(dice: float, delay: int) -> None:
    node = wanting(dice=dice)
    assert node.hear(offer(FOREVER), multicast=True) == [FOUND]
    assert [at for at, action in node.timed(100) if sent([action], PEER) == [(SUBSCRIBE,)]] == [delay]


def test_offers_of_one_message_are_answered_in_one() -> None:
    node = wanting()
    other = WantedService(1)
    node.discovery.subscribe(other, 7, node.now)
    node.wait(3_000)
    actions = node.hear(offer(), offer(key=ServiceKey(1, 1, 1)), multicast=True)
    assert len(of_kind(ServiceFound, actions)) == 2
    assert [len(entries) for entries in sent(node.wait(50), PEER)] == [2]


def test_an_ack_says_where_events_are_multicast() -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    group = (Endpoint("224.0.1.1", 30600, role=int(Role.MULTICAST)),)
    expected = EventgroupSubscribed(KEY, GROUP, ("224.0.1.1", 30600))
    assert node.hear(ack(FOREVER, group)) == [expected]
    assert node.hear(ack(FOREVER, group)) == []
    assert node.hear(ack(FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_a_subscription_is_renewed_with_every_offer_and_told_once() -> None:
    node = wanting()
    for number in range(5):
        assert sent(node.hear(offer(3)), PEER) == [(SUBSCRIBE,)]
        told = [] if number else [EventgroupSubscribed(KEY, GROUP, None)]
        assert node.hear(ack(5)) == told
        assert node.wait(2_000) == []


def test_without_offers_a_subscription_is_renewed_at_half_its_ttl() -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    node.hear(ack(5))
    times = []
    for _ in range(4):
        times += [at for at, action in node.timed(2_500) if sent([action], PEER) == [(SUBSCRIBE,)]]
        assert node.hear(ack(5)) == []
    assert times == [2_500] * 4
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.SUBSCRIBED


def test_a_subscription_for_ever_is_not_renewed() -> None:
    assert subscribed().wait(100_000_000) == []


def test_a_subscription_that_is_not_renewed_is_lost_and_asked_for_again() -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    node.hear(ack(5))
    timed = node.timed(20_000)
    assert [(at, a) for at, a in timed if isinstance(a, EventgroupLost)] == [
        (5_000, EventgroupLost(KEY, GROUP, Ended.EXPIRED))
    ]
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.PENDING
    assert node.hear(ack(5)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_without_an_answer_it_is_sent_again_ever_slower() -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    times = [at for at, action in node.timed(40_000) if sent([action], PEER) == [(SUBSCRIBE,)]]
    assert times == [1_000, 3_000, 7_000, 15_000, 23_000, 31_000, 39_000]


def test_without_an_answer_to_the_last_one_a_multicast_offer_begins_anew() -> None:
    node = wanting()
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(50), PEER) == [(SUBSCRIBE,)]
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(50), PEER) == [(STOP, SUBSCRIBE)]
    node.hear(ack(FOREVER))
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(50), PEER) == [(SUBSCRIBE,)]


def test_an_answer_has_time_to_come_before_it_is_missed() -> None:
    node = wanting(dice=0.0)
    node.hear(offer(FOREVER), multicast=True)
    for _ in range(2):
        assert sent(node.wait(10), PEER) == [(SUBSCRIBE,)]
        node.hear(offer(FOREVER), multicast=True)
    node.wait(10)
    node.wait(30)
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(10), PEER) == [(SUBSCRIBE,)]  # 40 ms after the last one
    node.wait(40)
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(10), PEER) == [(STOP, SUBSCRIBE)]  # 50 ms


def test_an_offer_that_answers_a_find_begins_nothing_anew() -> None:
    node = wanting()
    for _ in range(3):
        assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]
    node.hear(offer(FOREVER), multicast=True)
    assert sent(node.wait(50), PEER) == [(SUBSCRIBE,)]
    assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]


def test_a_server_that_knows_the_flag_is_asked_for_initial_data_by_it() -> None:
    wants = subscribe(5, OURS, reserved=INITIAL_DATA)
    node = wanting(initial_data=True)
    node.hear(offer(FOREVER), multicast=True, initial_data=True)
    assert sent(node.wait(50), PEER) == [(wants,)]
    node.hear(offer(FOREVER), multicast=True, initial_data=True)
    assert sent(node.wait(50), PEER) == [(wants,)]  # no answer: and no StopSubscribe
    node.hear(ack(FOREVER), initial_data=True)
    node.hear(offer(FOREVER), multicast=True, initial_data=True)
    assert sent(node.wait(50), PEER) == [(SUBSCRIBE,)]


def test_a_server_that_does_not_know_the_flag_never_sees_it() -> None:
    node = wanting(initial_data=True)
    assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]


def test_a_nack_is_told_and_the_next_offer_tries_again() -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    assert node.hear(ack(0)) == [EventgroupRefused(KEY, GROUP)]
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.REFUSED
    assert node.wait(100_000) == []
    assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]
    assert node.hear(ack(FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]
    assert node.hear(ack(0)) == [EventgroupRefused(KEY, GROUP)]


@pytest.mark.parametrize(
    ("entry", "of", "multicast", "reason"),
    [
        (ack(eventgroup=0x4466), PEER, False, "sd_ack_unasked"),
        (ack(key=ServiceKey(0x1234, 1, 1)), PEER, False, "sd_ack_unasked"),
        (ack(key=ServiceKey(0x1234, 0x5678, 2)), PEER, False, "sd_ack_unasked"),
        (ack(counter=1), PEER, False, "sd_ack_unasked"),
        (ack(), OTHER, False, "sd_ack_unasked"),
        (ack(0), OTHER, False, "sd_ack_unasked"),
        (ack(), PEER, True, "sd_multicast"),
        (
            ack(options=tuple(Endpoint("224.0.1.1", port, role=int(Role.MULTICAST)) for port in (1, 2))),
            PEER,
            False,
            "sd_endpoints",
        ),
    ],
)
def test_an_answer_to_nothing_changes_nothing(
    entry: EventgroupEntry, of: tuple[str, int], multicast: bool, reason: str
) -> None:
    node = wanting()
    node.hear(offer(FOREVER))
    actions = node.hear(entry, of=of, multicast=multicast)
    assert (refusals(actions), len(actions)) == ([reason], 1)
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.PENDING


def test_a_reboot_ends_what_was_offered_and_its_first_offer_is_answered() -> None:
    node = subscribed()
    node.now += 100 * MS
    actions = node.hear(offer(FOREVER), session=1)
    assert actions[:4] == [
        PeerRebooted(PEER),
        EventgroupLost(KEY, GROUP, Ended.REBOOTED),
        ServiceLost(KEY, Ended.REBOOTED),
        FOUND,
    ]
    assert sent(actions, PEER) == [(SUBSCRIBE,)]
    assert node.discovery.statistics()["sd_reboots"] == 1


def test_a_rebooted_peer_that_offers_nothing_yet_is_looked_for() -> None:
    node = subscribed()
    node.now += 100 * MS
    assert node.hear(session=1)[0] == PeerRebooted(PEER)
    assert sent(node.wait(60), None) == [(find(),)]


def test_a_lost_link_ends_everything_and_the_next_one_begins_anew() -> None:
    node = subscribed()
    assert node.discovery.link_down() == [
        EventgroupLost(KEY, GROUP, Ended.LINK),
        ServiceLost(KEY, Ended.LINK),
    ]
    assert node.hear(offer(FOREVER)) == []
    node.up()
    assert sent(node.wait(60), None) == [(find(),)]
    assert sent(node.hear(offer(FOREVER)), PEER) == [(SUBSCRIBE,)]


def test_an_event_group_wanted_later_is_subscribed_at_once() -> None:
    node = subscribed()
    assert sent(node.discovery.subscribe(WANTED, 7, node.now), PEER) == [(subscribe(5, OURS, 7),)]
    assert node.discovery.subscribe(WANTED, 7, node.now) == []


def test_a_subscription_nobody_wants_any_more_is_stopped() -> None:
    node = subscribed()
    node.discovery.subscribe(WantedService(0x1234), GROUP, node.now)
    assert sent(node.discovery.unsubscribe(WANTED, GROUP), PEER) == []  # somebody else wants it
    assert sent(node.discovery.unsubscribe(WantedService(0x1234), GROUP), PEER) == [(STOP,)]
    assert node.discovery.unsubscribe(WANTED, GROUP) == []
    assert sent(node.hear(offer(FOREVER)), PEER) == []


def test_a_service_nobody_wants_any_more_is_forgotten() -> None:
    node = subscribed()
    assert sent(node.discovery.release(WANTED), PEER) == [(STOP,)]
    assert node.discovery.release(WANTED) == []
    assert node.hear(offer(FOREVER)) == []
    assert node.discovery.next_deadline_ns is None
    assert node.discovery.statistics()["sd_found"] == 0


def test_at_the_end_all_subscriptions_are_stopped() -> None:
    node = subscribed()
    assert sent(node.discovery.close(), PEER) == [(STOP,)]
    assert node.discovery.next_deadline_ns is None


# --- over TCP ---------------------------------------------------------------------------------------------------------


def connecting(**changes: Any) -> Node:
    node = wanting(group=None, **changes)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    actions = node.hear(offer(FOREVER, REMOTE_BOTH))
    assert of_kind(ConnectWanted, actions) == [ConnectWanted(KEY, ("10.0.0.2", 30510))]
    assert sent(actions, PEER) == []
    return node


def test_the_connection_comes_before_the_subscribe_which_names_our_end_of_it() -> None:
    node = connecting()
    assert node.discovery.eventgroup_state(KEY, GROUP) is State.CONNECTING
    assert sent(node.discovery.connected(KEY, STREAM, node.now), PEER) == [(subscribe(5, OURS_TCP),)]
    assert node.hear(ack(FOREVER)) == [EventgroupSubscribed(KEY, GROUP, None)]


def test_an_event_group_over_tcp_that_is_wanted_later_connects_first() -> None:
    node = wanting(group=None)
    node.hear(offer(FOREVER, REMOTE_BOTH))
    actions = node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    assert actions == [ConnectWanted(KEY, ("10.0.0.2", 30510))]


def test_a_connection_is_asked_for_once_until_it_is_said_to_be_gone() -> None:
    node = connecting()
    assert node.hear(offer(FOREVER, REMOTE_BOTH)) == []
    node.discovery.disconnected(KEY)
    assert of_kind(ConnectWanted, node.hear(offer(FOREVER, REMOTE_BOTH))) != []


def test_a_lost_connection_loses_the_subscription() -> None:
    node = connecting()
    node.discovery.connected(KEY, STREAM, node.now)
    node.hear(ack(5))
    assert node.discovery.disconnected(KEY) == [EventgroupLost(KEY, GROUP, Ended.DISCONNECTED)]
    assert refusals(node.hear(ack(5))) == ["sd_ack_unasked"]
    assert node.wait(100_000) == []
    assert of_kind(ConnectWanted, node.hear(offer(FOREVER, REMOTE_BOTH))) != []


def test_a_service_without_tcp_refuses_those_who_need_it_until_it_has_it() -> None:
    node = wanting(group=None)
    node.discovery.subscribe(WANTED, GROUP, node.now, reliable=True)
    assert node.hear(offer(FOREVER)) == [FOUND, EventgroupRefused(KEY, GROUP)]
    assert node.hear(offer(FOREVER)) == []
    assert of_kind(ConnectWanted, node.hear(offer(FOREVER, REMOTE_BOTH))) != []


def test_a_connection_to_a_service_that_is_gone_is_nobodys() -> None:
    node = connecting()
    node.hear(offer(0))
    assert node.discovery.connected(KEY, STREAM, node.now) == []
    assert node.discovery.disconnected(KEY) == []


def test_both_protocols_at_once() -> None:
    node = connecting()
    node.discovery.subscribe(WANTED, 7, node.now)
    node.discovery.connected(KEY, STREAM, node.now)
    (entries,) = sent(node.hear(offer(FOREVER, REMOTE_BOTH)), PEER)
    assert set(entries) == {subscribe(5, OURS_TCP), subscribe(5, OURS, 7)}


# --- who depends on whom ----------------------------------------------------------------------------------------------


def test_a_peer_is_in_use_while_it_offers_what_we_want() -> None:
    client = Client(
        Desk(settings(), lambda: 0.5, lambda _: (1, True)), Neighbourhood((ip_network("10.0.0.0/24"),))
    )
    client.want(WANTED, 0)
    client.link_up(0, 0)
    client.offer(offer(key=ServiceKey(1, 1, 1)), PEER, multicast=True, knows_initial=False, now_ns=0)
    assert not client.uses(PEER)
    client.offer(offer(), PEER, multicast=True, knows_initial=False, now_ns=0)
    assert (client.uses(PEER), client.uses(OTHER)) == (True, False)
    client.offer(offer(0), PEER, multicast=True, knows_initial=False, now_ns=0)
    assert not client.uses(PEER)


# --- settings ---------------------------------------------------------------------------------------------------------


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
def test_timings_that_contradict_each_other_are_refused(timings: dict[str, int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Timings(**timings)


def test_the_answer_timeout_is_a_setting() -> None:
    node = wanting(timings=Timings(ack_timeout_ms=100))
    node.hear(offer(FOREVER))
    assert [at for at, _ in node.timed(800)] == [100, 300, 700]
    assert TIMINGS.ack_timeout_ms == 1_000
