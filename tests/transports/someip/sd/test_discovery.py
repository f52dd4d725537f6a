# SPDX-License-Identifier: Apache-2.0
"""Service discovery as a whole: input checks, two nodes on one network, and limits under arbitrary input."""

import random
from collections.abc import Callable
from ipaddress import ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.transports.someip.sd.network import (
    KEY,
    MS,
    OTHER,
    OWN,
    PEER,
    SECOND,
    SERVICE,
    WANTED,
    Network,
    Node,
    ack,
    find,
    of_kind,
    offer,
    read,
    refusals,
    sent,
    subscribe,
)
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import SomeIpMessage
from ustreamer.transports.someip.sd.actions import (
    EventgroupLost,
    EventgroupSubscribed,
    PeerRebooted,
    SdInputRefused,
    Send,
    ServiceFound,
    ServiceLost,
    SubscriptionEnded,
    SubscriptionRequested,
)
from ustreamer.transports.someip.sd.codec import SdMessage, encode_sd_message, encode_sd_payload
from ustreamer.transports.someip.sd.config import TTL_FOREVER, SdLimits
from ustreamer.transports.someip.sd.eventgroups import EventgroupState
from ustreamer.transports.someip.sd.options import Endpoint, EndpointRole
from ustreamer.transports.someip.sd.sessions import REORDER_NS
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService

SD_ELSEWHERE = Endpoint("10.0.0.3", 30490, role=int(EndpointRole.DISCOVERY))


def wanting(**changes: Any) -> Node:
    node = Node(**changes)
    node.discovery.offer_service(SERVICE, node.now)
    node.discovery.subscribe(WANTED, 0x4465, node.now)
    node.up()
    node.advance(3_000)
    return node


# --- input checks -----------------------------------------------------------------------------------------------------


def test_the_looped_back_multicast_is_ignored() -> None:
    node = wanting()
    assert node.receive(offer(), peer=OWN, multicast=True) == []
    assert node.discovery.statistics()["sd_peers"] == 0


# [utest->SD-1135]
@pytest.mark.parametrize("host", ["10.0.1.1", "192.168.0.1", "127.0.0.1", "fd00::1"])
def test_messages_of_untrusted_networks_are_dropped(host: str) -> None:
    node = wanting()
    for entry in (offer(), find(), subscribe(options=(Endpoint(host, 1),)), ack()):
        actions = node.receive(entry, peer=(host, 30490))
        assert (refusals(actions), len(actions)) == (["sd_network"], 1)
    assert node.discovery.statistics()["sd_peers"] == 0


# [utest->SD-1149]
def test_several_networks_can_be_trusted() -> None:
    node = wanting(networks=(ip_network("10.0.0.0/24"), ip_network("192.168.0.0/16")))
    assert len(of_kind(ServiceFound, node.receive(offer(), peer=("192.168.0.1", 30490)))) == 1


def test_a_malformed_message_is_refused_with_its_reason() -> None:
    node = wanting()
    for payload, reason in ((b"", "sd_truncated"), (bytes(13), "sd_trailing_bytes")):
        message = SomeIpMessage(0xFFFF, 0x8100, 0, 1, 1, 2, 0, payload)
        assert refusals(node.discovery.feed(message, PEER, multicast=True, now_ns=0)) == [reason]
    message = SomeIpMessage(0xFFFF, 0x8100, 0, 1, 1, 0, 0, bytes(12))
    assert refusals(node.discovery.feed(message, PEER, multicast=True, now_ns=0)) == ["sd_header"]


def test_duplicates_and_late_messages_change_nothing() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER), session=1)
    assert refusals(node.receive(offer(TTL_FOREVER), session=1)) == ["sd_duplicate"]
    node.receive(offer(TTL_FOREVER), session=3)
    assert refusals(node.receive(offer(0), session=2)) == ["sd_late"]  # the StopOffer preceded the last Offer
    assert node.discovery.eventgroup_state(KEY, 0x4465) is EventgroupState.PENDING


def test_a_delayed_message_is_judged_by_its_arrival_time() -> None:
    node = wanting()
    node.receive(offer(TTL_FOREVER), session=1)
    node.now += 200 * MS  # a busy machine: the next two arrived 5 ms after the first, the last one just now
    node.waited = 195 * MS
    assert refusals(node.receive(offer(TTL_FOREVER), session=1)) == ["sd_duplicate"]
    assert refusals(node.receive(offer(TTL_FOREVER), session=3)) == []
    node.waited = 0
    assert refusals(node.receive(offer(TTL_FOREVER), session=1)) == []
    assert node.discovery.statistics()["sd_reboots"] == 1


def test_the_rate_limit_of_a_peer_does_not_affect_others() -> None:
    node = wanting(limits=SdLimits(peer_entries_per_s=100, peer_entries_burst=1_024))
    verdicts = [refusals(node.receive(*[find()] * 100)) for _ in range(11)]
    assert verdicts == [[]] * 10 + [["sd_rate"]]
    assert refusals(node.receive(find(), peer=OTHER)) == []
    node.now += SECOND
    assert [refusals(node.receive(*[find()] * 100)) for _ in range(2)] == [[], ["sd_rate"]]


def test_a_message_without_entries_counts_for_the_rate_limit() -> None:
    node = wanting(limits=SdLimits(peer_entries_per_s=1, peer_entries_burst=1_024))
    message = SomeIpMessage(0xFFFF, 0x8100, 0, 0, 1, 2, 0, b"")
    reasons = [
        reason
        for _ in range(1_030)
        for reason in refusals(node.discovery.feed(message, PEER, multicast=False, now_ns=node.now))
    ]
    assert reasons == ["sd_truncated"] * 1_024 + ["sd_rate"] * 6


def test_idle_peers_are_evicted_and_peers_in_use_stay() -> None:
    node = wanting(limits=SdLimits(peers=3))
    node.receive(offer(TTL_FOREVER))
    for number in range(100):
        assert refusals(node.receive(find(), peer=(f"10.0.0.{100 + number}", 30490))) == []
    assert node.discovery.statistics()["sd_peers"] == 3
    node.now += 2 * REORDER_NS
    assert PeerRebooted(PEER) in node.receive(offer(TTL_FOREVER), session=1)


def test_a_new_peer_is_refused_while_all_peers_are_in_use() -> None:
    node = wanting(limits=SdLimits(peers=2))
    for host in ("10.0.0.2", "10.0.0.3"):
        requested = node.receive(subscribe(options=(Endpoint(host, 1),)), peer=(host, 30490))
        assert len(of_kind(SubscriptionRequested, requested)) == 1
    assert refusals(node.receive(find(), peer=("10.0.0.4", 30490))) == ["sd_peer_limit"]


def from_elsewhere(session: int) -> bytes:
    message = SdMessage((offer(TTL_FOREVER),), reboot=True, sd_endpoint=SD_ELSEWHERE)
    return encode_sd_message(message, session)


# [utest->SD-1084]
def test_an_sd_endpoint_option_is_accepted_only_if_configured() -> None:
    node = wanting()
    assert len(sent(node.feed(from_elsewhere(1)), PEER)) == 1

    believing = wanting(sd_endpoint_options=True)
    actions = believing.feed(from_elsewhere(1))
    assert (len(sent(actions, PEER)), len(sent(actions, OTHER))) == (0, 1)
    assert of_kind(ServiceFound, actions)[0].peer == OTHER


# [utest->SD-1135]
@pytest.mark.parametrize("host", ["192.168.0.1", "10.0.0.1"])
def test_an_sd_endpoint_option_with_an_untrusted_or_own_address_is_refused(host: str) -> None:
    node = wanting(sd_endpoint_options=True)
    named = Endpoint(host, 30490, role=int(EndpointRole.DISCOVERY))
    message = SdMessage((offer(TTL_FOREVER),), reboot=True, sd_endpoint=named)
    assert refusals(node.feed(encode_sd_message(message, 1))) == ["sd_network"]


# --- two nodes --------------------------------------------------------------------------------------------------------

SERVER: Address = ("10.0.0.1", 30490)
CLIENT: Address = ("10.0.0.2", 30490)


def network(seed: int, **changes: Any) -> Network:
    """A server of SERVICE and a client that requests it, both down."""
    rng = random.Random(seed)
    net = Network()
    net.add("10.0.0.1", rng.random, **changes)
    net.add("10.0.0.2", rng.random, **changes)
    net.nodes[SERVER].offer_service(SERVICE, 0)
    net.nodes[CLIENT].subscribe(WANTED, 0x4465, 0)
    net.nodes[CLIENT].subscribe(WANTED, 0x4466, 0)
    return net


def up(net: Network, *who: Address) -> None:
    for own in who:
        net.do(own, net.nodes[own].link_up(net.now))


def states(net: Network) -> list[EventgroupState | None]:
    return [net.nodes[CLIENT].eventgroup_state(KEY, group) for group in (0x4465, 0x4466)]


SUBSCRIBED = [EventgroupState.SUBSCRIBED, EventgroupState.SUBSCRIBED]


# [utest->RPC-361, SD-425, SD-1195]
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("first", [(SERVER, CLIENT), (CLIENT, SERVER)], ids=["server first", "client first"])
@pytest.mark.parametrize("between", [0, 50, 5_000])
def test_a_client_subscribes_whichever_side_starts_first(
    seed: int, first: tuple[Address, Address], between: int
) -> None:
    net = network(seed)
    up(net, first[0])
    net.advance(between)
    up(net, first[1])
    net.advance(200)
    assert states(net) == SUBSCRIBED
    reported = of_kind(EventgroupSubscribed, net.pop_actions(CLIENT))
    assert [(each.eventgroup, each.multicast) for each in reported] == [
        (0x4465, None),
        (0x4466, ("224.0.1.1", 30600)),
    ]
    net.advance(60_000)  # no further change
    quiet = net.pop_actions(CLIENT)
    assert of_kind(EventgroupSubscribed, quiet) + of_kind(EventgroupLost, quiet) == []
    assert of_kind(SubscriptionEnded, net.pop_actions(SERVER)) == []


def test_no_input_is_refused_between_two_valid_nodes() -> None:
    net = network(1)
    up(net, SERVER, CLIENT)
    net.advance(600_000)
    for own in (SERVER, CLIENT):
        assert of_kind(SdInputRefused, net.pop_actions(own)) == []


# [utest->SD-22]
def test_a_stop_is_immediate_and_a_start_is_found_within_the_initial_delay() -> None:
    net = network(2)
    up(net, SERVER, CLIENT)
    net.advance(5_000)
    net.pop_actions(CLIENT)
    net.do(SERVER, net.nodes[SERVER].stop_offer(KEY))
    assert len(of_kind(ServiceLost, net.pop_actions(CLIENT))) == 1
    net.do(SERVER, net.nodes[SERVER].offer_service(SERVICE, net.now))
    net.advance(200)
    assert states(net) == SUBSCRIBED


# [utest->SD-634]
def test_a_closing_client_ends_its_subscription_immediately() -> None:
    net = network(3)
    up(net, SERVER, CLIENT)
    net.advance(1_000)
    net.do(CLIENT, net.nodes[CLIENT].close())
    assert len(of_kind(SubscriptionEnded, net.pop_actions(SERVER))) == 2
    assert net.nodes[SERVER].statistics()["sd_subscribers"] == 0


# [utest->SD-23, SD-632, SD-436, SD-633]
def test_a_link_loss_and_return_restore_the_subscription() -> None:
    net = network(4)
    up(net, SERVER, CLIENT)
    net.advance(5_000)
    net.pop_actions(CLIENT)
    net.pop_actions(SERVER)
    net.is_lost = lambda _of, _to: True
    net.advance(20_000)
    assert len(of_kind(ServiceLost, net.pop_actions(CLIENT))) == 1
    assert len(of_kind(SubscriptionEnded, net.pop_actions(SERVER))) == 2
    net.is_lost = lambda _of, _to: False
    net.advance(1_100)  # the next cyclic Offer
    assert states(net) == SUBSCRIBED
    assert of_kind(PeerRebooted, net.pop_actions(CLIENT) + net.pop_actions(SERVER)) == []


def test_a_subscription_recovers_with_every_fifth_datagram_lost() -> None:
    net = network(5)
    rng = random.Random(5)
    net.is_lost = lambda _of, _to: rng.random() < 1 / 5
    up(net, SERVER, CLIENT)
    there = 0
    for _ in range(600):
        net.advance(1_000)
        there += states(net) == SUBSCRIBED
    assert there > 540
    assert of_kind(PeerRebooted, net.pop_actions(CLIENT) + net.pop_actions(SERVER)) == []


# [utest->SD-863]
def test_every_server_reboot_is_detected_and_subscribed_again() -> None:
    net = network(8)
    up(net, SERVER, CLIENT)
    net.advance(3_000)
    net.pop_actions(CLIENT)
    rng = random.Random(8)
    for life in range(500):
        net.nodes[SERVER] = net.add("10.0.0.1", rng.random)
        net.nodes[SERVER].offer_service(SERVICE, net.now)
        up(net, SERVER)
        net.advance(100)  # at most the initial delay: the first Offer is sent
        net.advance(60)  # the answer is sent
        assert states(net) == SUBSCRIBED, life
        net.advance(rng.randint(1, 5_000))
        assert len(of_kind(PeerRebooted, net.pop_actions(CLIENT))) == 1, life
    assert net.nodes[CLIENT].statistics()["sd_reboots"] == 500


def test_every_client_reboot_is_detected_and_ends_its_subscriptions() -> None:
    net = network(6)
    up(net, SERVER, CLIENT)
    net.advance(3_000)
    rng = random.Random(6)
    for life in range(500):
        net.pop_actions(SERVER)
        net.add("10.0.0.2", rng.random)
        for group in (0x4465, 0x4466):
            net.nodes[CLIENT].subscribe(WANTED, group, net.now)
        up(net, CLIENT)
        net.advance(2_000 + rng.randint(1, 3_000))
        assert states(net) == SUBSCRIBED, life
        assert len(of_kind(PeerRebooted, net.pop_actions(SERVER))) == 1, life
    assert net.nodes[SERVER].statistics()["sd_subscribers"] == 2


def test_a_wrap_of_session_numbers_is_not_a_reboot() -> None:
    net = network(7)
    up(net, SERVER, CLIENT)
    net.advance(3_000)
    for own, node in net.nodes.items():  # 18 hours later
        node._multicasts_sent = 0xFFF0
        for peer in node._peers._peers.values():
            peer.sent = 0xFFF8
        net.pop_actions(own)
    net.advance(60_000)
    actions = {own: net.pop_actions(own) for own in net.nodes}
    for own in net.nodes:
        assert of_kind(PeerRebooted, actions[own]) == []
        assert refusals(actions[own]) == []
        reported = [read(send) for send in of_kind(Send, actions[own]) if send.to is not None]
        numbers = [(session, message.reboot) for message, session in reported]
        wrap = numbers.index((0xFFFF, True))
        assert numbers[wrap + 1 : wrap + 3] == [(1, False), (2, False)]
    offers = [read(send) for send in of_kind(Send, actions[SERVER]) if send.to is None]
    assert {(1, False), (0xFFFF, True)} <= {(session, message.reboot) for message, session in offers}
    assert states(net) == SUBSCRIBED


def test_an_evicted_peer_is_found_again_after_its_reboot() -> None:
    node = Node(limits=SdLimits(peers=1))
    node.discovery.offer_service(SERVICE, node.now)
    node.up()
    node.advance(3_000)
    numbers = []
    for of in (PEER, OTHER, PEER, OTHER, PEER):
        (send,) = [each for each in of_kind(Send, node.receive(find(), peer=of)) if each.to == of]
        numbers.append((of, read(send)[1]))
    assert [number for of, number in numbers if of == PEER] == sorted({n for of, n in numbers if of == PEER})


# --- limits -----------------------------------------------------------------------------------------------------------

LIMITS = SdLimits(
    peers=4,
    services=3,
    subscriptions=5,
    peer_subscriptions=3,
    peer_entries_per_s=1_000_000,
    peer_entries_burst=1_000_000,
)
hosts = st.integers(1, 12).map(lambda number: f"10.0.0.{number}")
keys = st.builds(ServiceKey, st.sampled_from([0x1234, 0x2345]), st.integers(1, 6), st.just(1)) | st.just(KEY)
ttls = st.sampled_from([0, 1, 3, TTL_FOREVER])
endpoints = st.builds(Endpoint, hosts, st.integers(1, 3), st.sampled_from([6, 17]))
options = st.lists(endpoints, max_size=2).map(tuple)
groups = st.sampled_from([0x4465, 0x4466, 7])
entries = st.one_of(
    st.builds(offer, ttls, options, keys, st.integers(0, 1)),
    st.builds(find, st.sampled_from([WANTED, WantedService(0x1234)]), ttls),
    st.builds(subscribe, ttls, options, groups, keys, counter=st.integers(0, 3)),
    st.builds(ack, ttls, options, groups, keys),
)
verdicts = st.tuples(
    st.lists(entries, max_size=6), hosts, st.booleans(), st.integers(0, 40), st.booleans(), st.booleans()
)


def check_bounds(node: Node) -> None:
    discovery = node.discovery
    numbers = discovery.statistics()
    assert numbers["sd_peers"] <= LIMITS.peers
    assert numbers["sd_found"] <= LIMITS.services
    assert numbers["sd_subscribers"] <= LIMITS.subscriptions
    server, client = discovery._server, discovery._client
    assert all(len(each) <= LIMITS.peer_subscriptions for each in server._subscribers.values())
    assert server._subscription_count == sum(map(len, server._subscribers.values()))
    assert set(server._pending_offers) | set(server._subscribers) | set(client._by_peer) <= set(
        discovery._peers._peers
    )
    assert sum(map(len, client._by_peer.values())) == len(client._remotes)
    # An offer, two requests, an answer per peer, the subscribers, and per service two plus two per event group.
    most = 1 + 2 + LIMITS.peers + LIMITS.subscriptions + LIMITS.services * (2 + 2 * 3)
    assert len(discovery._actions.deadlines) <= most
    assert len(discovery._actions.deadlines._heap) <= 2 * most + 65


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.one_of(
            verdicts,
            st.integers(0, 5_000),
            st.sampled_from(["accept", "refuse", "down", "up", "connected", "disconnected"]),
        ),
        max_size=60,
    ),
    st.floats(0, 1),
)
def test_no_sequence_of_inputs_exceeds_a_limit(steps: list[Any], rng: float) -> None:
    node = Node(rng, limits=LIMITS, initial_data=True)
    node.discovery.offer_service(SERVICE, node.now)
    node.discovery.subscribe(WANTED, 0x4465, node.now)
    node.discovery.subscribe(WantedService(0x1234), 0x4466, node.now)
    node.discovery.subscribe(WantedService(0x1234), 7, node.now, reliable=True)
    node.up()
    requested: list[SubscriptionRequested] = []
    orders: dict[str, Callable[[], object]] = {
        "accept": lambda: node.discovery.decide_subscriptions([each.subscription for each in requested]),
        "refuse": lambda: node.discovery.decide_subscriptions(
            refused=[each.subscription for each in requested]
        ),
        "down": node.discovery.link_down,
        "up": node.up,
        "connected": lambda: node.discovery.on_connected(KEY, ("10.0.0.1", 5), node.now),
        "disconnected": lambda: node.discovery.on_disconnected(KEY),
    }
    for step in steps:
        if isinstance(step, int):
            node.advance(step)
        elif isinstance(step, str):
            orders[step]()
        else:
            sent_bytes, host, multicast, session, reboot, initial = step
            datagram = encode_sd_message(
                SdMessage(tuple(sent_bytes), reboot=reboot, initial_data=initial), session
            )
            requested += of_kind(SubscriptionRequested, node.feed(datagram, (host, 30490), multicast))
        check_bounds(node)
    node.discovery.close()
    node.advance(10_000)
    assert node.discovery.statistics()["sd_subscribers"] == 0
    assert node.discovery.statistics()["sd_found"] == 0


@given(st.binary(max_size=200), st.integers(0, 0xFFFF), st.booleans())
def test_arbitrary_bytes_never_raise(payload: bytes, session: int, multicast: bool) -> None:
    node = Node()
    message = SomeIpMessage(0xFFFF, 0x8100, 0, session, 1, 2, 0, payload)
    node.discovery.feed(message, PEER, multicast, node.now)
    check_bounds(node)


@given(st.binary(max_size=60), st.integers(0, 3))
def test_a_corrupted_message_never_raises(noise: bytes, where: int) -> None:
    node = wanting()
    good = encode_sd_payload(SdMessage((offer(), find(), subscribe(), ack()), reboot=True))
    at = len(good) * where // 4
    payload = good[:at] + noise + good[at + len(noise) :]
    message = SomeIpMessage(0xFFFF, 0x8100, 0, 1, 1, 2, 0, payload)
    node.discovery.feed(message, PEER, multicast=False, now_ns=node.now + MS)
    node.advance(1_000)
