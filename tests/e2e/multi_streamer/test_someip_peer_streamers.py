# SPDX-License-Identifier: Apache-2.0
"""Several streamers between SOME/IP networks, each a process: they detect each other by service discovery.

Each ECU here subscribes the event at every offer, so that a double offer gives double events.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.multi_streamer.someip_networks import (
    EVENT,
    LOCAL_SERVICE,
    SPEED,
    TTL_S,
    OfferingEcu,
    SomeipNetworks,
    SubscribingEcu,
    offered_for,
    wait_delivered,
)
from tests.e2e.multi_streamer.zenoh_networks import Gateway, ZenohNetworks
from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import ECHO, eventually
from tests.e2e.rigs.sd_ecu import SdNotification
from tests.e2e.rigs.wire import Uri

Make = Callable[..., SomeipNetworks]
MESSAGES_EACH: Final = 25
BUSY_S: Final = 2.0
"""A quiet machine needs a tenth of this."""
NO_PEERS: Final = "peers = false"
BRIDGE: Final = {"a": [LOCAL_SERVICE], "b": [offered_for("a")]}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as exit_stack:
        yield lambda *networks: SomeipNetworks(tmp_path, exit_stack, *networks)


def launch_two(nets: SomeipNetworks, extra_toml: str = "", ttl_s: int = TTL_S) -> list[Gateway]:
    """Two streamers between the networks a and b; they detect each other on both networks if enabled."""
    both = {"a": extra_toml, "b": extra_toml}
    gateways = [nets.launch_streamer(name, BRIDGE, both, ttl_s=ttl_s) for name in ("g1", "g2")]
    for each in gateways:
        each.process.wait_ready()
    for each, other in (gateways, gateways[::-1]) if not extra_toml else ():
        for network in ("a", "b"):
            each.wait_known_peers(network, other.authority)
    return gateways


def active_offers(gateway: Gateway, network: str = "b") -> int:
    """Number of services that the streamer offers and does not defer to a peer."""
    found = gateway.ledger_and_counters()[1][network]
    return found["sd_offers"] - found["sd_offers_standby"]


def test_through_two_redundant_streamers_each_event_and_each_call_arrives_once(make: Make) -> None:
    nets = make("a", "b")
    gateways = launch_two(nets)
    eventually(lambda: sorted(map(active_offers, gateways)), [0, 1])
    source, receivers = OfferingEcu(nets.new_ecu("a")), [SubscribingEcu(nets.new_ecu("b")) for _ in range(2)]
    wait_delivered(source, *receivers)

    payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
    for each in payloads:
        source.send_event(each)
    calls = [b"call %d" % number for number in range(MESSAGES_EACH)]
    for each in calls:
        receivers[0].send_call(each)
    eventually(lambda: {receivers[0].response_count(each) for each in calls}, {1})

    nets.stop_streamers(*gateways)
    assert {source.call_count(each) for each in calls} == {1}
    assert {receivers[0].response_count(each) for each in calls} == {1}
    assert [each.receive_counts(payloads) for each in receivers] == [{1}, {1}]
    assert all(
        each.process.ledger["dead_lettered"] == each.process.ledger["denied"] == 0 for each in gateways
    )


def test_two_streamers_without_peer_detection_both_send_every_event(make: Make) -> None:
    """The control of the test above."""
    nets = make("a", "b")
    gateways = launch_two(nets, NO_PEERS)
    source, receiver = OfferingEcu(nets.new_ecu("a")), SubscribingEcu(nets.new_ecu("b"))
    wait_delivered(source, receiver)
    eventually(lambda: [active_offers(each) for each in gateways], [1, 1])
    eventually(lambda: len(source.ecu.event_subscribers[SPEED, 1]), 2)
    payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
    for each in payloads:
        source.send_event(each)
    eventually(lambda: receiver.receive_counts(payloads), {2})


# ------------------------------------------------------------------------------------- connect and disconnect


def offering_first(gateways: list[Gateway]) -> list[Gateway]:
    """The offering streamer, and the streamer that stands by."""
    eventually(lambda: sorted(map(active_offers, gateways)), [0, 1])
    return sorted(gateways, key=active_offers, reverse=True)


def measure_gap(source: OfferingEcu, receiver: SubscribingEcu, end: Callable[[], None]) -> float:
    """Length of the gap without events when a streamer ends, in s."""
    numbers = itertools.count()
    sent: dict[bytes, float] = {}

    def beat() -> None:
        payload = b"beat %d" % next(numbers)
        sent[payload] = time.monotonic()
        source.send_event(payload)

    beat()
    end()
    ended_s = time.monotonic()

    def is_back() -> bool:
        beat()
        return any(sent.get(each, 0.0) > ended_s for each in receiver.received_payloads())

    eventually(is_back, True)
    first = min(at for each, at in sent.items() if at > ended_s and receiver.has_received(each))
    print(f"\nnothing for {first - ended_s:.2f} s")
    assert receiver.receive_counts([each for each, at in sent.items() if at >= first]) <= {0, 1}
    return first - ended_s


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_when_the_offering_streamer_ends_the_other_takes_over(make: Make, how: str) -> None:
    nets = make("a", "b")
    first, second = offering_first(launch_two(nets, ttl_s=1))
    source, receiver = OfferingEcu(nets.new_ecu("a")), SubscribingEcu(nets.new_ecu("b"))
    wait_delivered(source, receiver)
    gap_s = measure_gap(source, receiver, first.process.kill if how == "killed" else first.process.stop)
    # A ttl, and the time to offer and subscribe. A streamer that stops sends StopOffer, so there is no wait for it.
    assert gap_s < (1 if how == "killed" else 0) + BUSY_S
    assert active_offers(second) == 1
    second.wait_known_peers("b")


def test_a_restarted_streamer_stands_by_for_the_offering_streamer(make: Make) -> None:
    nets = make("a", "b")
    first, second = offering_first(launch_two(nets))
    source, receiver = OfferingEcu(nets.new_ecu("a")), SubscribingEcu(nets.new_ecu("b"))
    wait_delivered(source, receiver)
    first.process.stop()
    eventually(lambda: active_offers(second), 1)
    wait_delivered(source, receiver)
    back = nets.launch_streamer(first.authority, BRIDGE)
    back.process.wait_ready()
    for network in ("a", "b"):
        back.wait_known_peers(network, second.authority)
        second.wait_known_peers(network, back.authority)
    payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
    for each in payloads:
        source.send_event(each)
    eventually(lambda: receiver.receive_counts(payloads), {1})
    eventually(lambda: [active_offers(back), active_offers(second)], [0, 1])
    nets.stop_streamers(back, second)
    assert receiver.receive_counts(payloads) == {1}


# --------------------------------------------------------------------------------------------------- rings


def launch_ring(nets: SomeipNetworks, extra_toml: str = "") -> list[Gateway]:
    """Three streamers between three networks; each offers the services of one network on the next."""
    networks = ("a", "b", "c")
    gateways = []
    for number, home_network in enumerate(networks):
        following = networks[(number + 1) % 3]
        services = {home_network: [LOCAL_SERVICE], following: [offered_for(home_network)]}
        gateway = nets.launch_streamer(f"g{number + 1}", services, dict.fromkeys(services, extra_toml))
        gateway.process.wait_ready()
        # Each streamer finds the service before the next one offers it there.
        eventually(
            lambda gateway=gateway, own=home_network: has_found_service(gateway, own),  # type: ignore[misc]
            home_network == "a" or bool(extra_toml),
        )
        gateways.append(gateway)
    return gateways


def has_found_service(gateway: Gateway, network: str) -> bool:
    return gateway.ledger_and_counters()[1][network]["sd_found"] > 0


def test_in_a_ring_no_event_loops(make: Make) -> None:
    nets = make("a", "b", "c")
    source = OfferingEcu(nets.new_ecu("a"))
    gateways = launch_ring(nets)
    at_home, away = SubscribingEcu(nets.new_ecu("a")), SubscribingEcu(nets.new_ecu("b"))
    wait_delivered(source, at_home, away)
    eventually(lambda: gateways[1].ledger_and_counters()[1]["b"]["refused_sd_relayed"] > 0, True)
    eventually(lambda: gateways[2].ledger_and_counters()[1]["c"]["refused_sd_relayed"] > 0, True)
    payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
    for each in payloads:
        source.send_event(each)
    eventually(lambda: [each.receive_counts(payloads) for each in (at_home, away)], [{1}, {1}])
    away.send_call(b"call")
    eventually(lambda: away.response_count(b"call"), 1)
    nets.stop_streamers(*gateways)
    assert [each.receive_counts(payloads) for each in (at_home, away)] == [{1}, {1}]
    assert source.call_count(b"call") == 1


def test_in_a_ring_without_peer_detection_an_event_loops(make: Make) -> None:
    """The control of the test above."""
    nets = make("a", "b", "c")
    source = OfferingEcu(nets.new_ecu("a"))
    launch_ring(nets, NO_PEERS)
    at_home = SubscribingEcu(nets.new_ecu("a"))
    payload = b"round"

    def ways() -> int:
        source.send_event(payload)
        return len(
            {each.sender for each in at_home.ecu.data_socket.inbox.items() if each.head.payload == payload}
        )

    eventually(ways, 2)


def test_in_a_ring_with_two_paths_to_a_network_each_event_arrives_once(make: Make) -> None:
    """`accept_relayed` permits the indirect path.

    No streamer is connected to both its ends, so the origin must be configured.
    """
    nets = make("a", "b", "c")
    relayed = "accept_relayed = true"
    named = {"c": 'peers = ["g1", "g2", "g3"]'}
    gateways = [
        nets.launch_streamer("g1", {"a": [LOCAL_SERVICE], "b": [offered_for("a")]}),
        nets.launch_streamer("g2", {"b": [relayed], "c": [offered_for("b")]}, named),
        nets.launch_streamer("g3", {"a": [LOCAL_SERVICE], "c": [offered_for("a")]}, named),
    ]
    for each in gateways:
        each.process.wait_ready()
    _, second, third = gateways
    eventually(lambda: sorted(active_offers(each, "c") for each in (second, third)), [0, 1])
    source, receivers = (
        OfferingEcu(nets.new_ecu("a")),
        [SubscribingEcu(nets.new_ecu(each)) for each in ("b", "c")],
    )
    wait_delivered(source, *receivers)
    payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
    for payload in payloads:
        source.send_event(payload)
    eventually(lambda: [each.receive_counts(payloads) for each in receivers], [{1}, {1}])
    nets.stop_streamers(*gateways)
    assert [each.receive_counts(payloads) for each in receivers] == [{1}, {1}]


# ----------------------------------------------------------------------------------- next to a Zenoh endpoint

LAMPS: Final = 0x4001
LAMPS_OFFERED: Final = """
[[endpoints.b.services]]
service = 0x4001
major = 1
methods = [0x0001]
offered = true
provider = "//z.vin1/8401/1/0"
"""
ZENOH: Final = """
[endpoints.z]
transport = "zenoh"
mode = "client"
authorities = ["z.vin1", "g1", "g2"]
connect = ["tcp/127.0.0.1:{port}"]
"""


def wait_one_defers(source: OfferingEcu, gateways: list[Gateway]) -> None:
    """Wait until one of two streamers defers the events to the other after its advertisement.

    Only the Zenoh network has subscribers.
    """

    def deferred_counts() -> list[int]:
        return [each.ledger_and_counters()[1]["a"]["refused_deferred_to_peer"] for each in gateways]

    def deferring_count() -> int:
        before = deferred_counts()
        for _ in range(5):
            source.send_event(b"?")
        return sum(now > then for now, then in zip(deferred_counts(), before, strict=True))

    eventually(deferring_count, 1)


def test_between_two_someip_networks_and_a_zenoh_network_every_message_arrives_once(
    make: Make, tmp_path: Path
) -> None:
    """No peer is configured. The peers are trusted on the Zenoh side because they are on the SOME/IP side as well."""
    nets = make("a", "b")
    with ExitStack() as exit_stack:
        zenoh = ZenohNetworks(tmp_path, exit_stack, "z")
        services = {"a": [LOCAL_SERVICE], "b": [offered_for("a") + LAMPS_OFFERED]}
        gateways = [
            nets.launch_streamer(name, services, extra_sections=ZENOH.format(port=zenoh.ports["z"]))
            for name in ("g1", "g2")
        ]
        for each in gateways:
            each.process.wait_ready()
        for each, other in (gateways, gateways[::-1]):
            for network in ("a", "b", "z"):
                each.wait_known_peers(network, other.authority)
        app = zenoh.connect_entity("z", "z.vin1", 0x8401)
        lamps = app.address
        source, topic = OfferingEcu(nets.new_ecu("a")), Uri("a", SPEED, 1, EVENT)
        for each in gateways:
            app.call(Uri(each.authority, 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
        wait_one_defers(source, gateways)
        receiver = SubscribingEcu(nets.new_ecu("b"))
        receiver.ecu.find(LAMPS)
        wait_delivered(source, receiver)

        def received_events(payload: bytes) -> int:
            return sum(each.payload == payload for each in app.events(topic))

        payloads = [b"event %d" % number for number in range(MESSAGES_EACH)]
        for payload in payloads:
            source.send_event(payload)
        sent_request = [
            app.send_request(Uri("a", SPEED, 1, ECHO), b"call %d" % number) for number in range(MESSAGES_EACH)
        ]
        for id in sent_request:
            assert app.wait_response(id).head.commstatus in {None, wire.OK}
        receiver.ecu.notifications.wait_one(lambda seen: seen == SdNotification("offered", LAMPS))
        receiver.send_call(b"from b", LAMPS)
        request = app.inbox.wait_one(lambda each: each.payload == b"from b")
        app.respond(request, b"to b")
        eventually(lambda: receiver.has_received(b"to b"), True)
        eventually(lambda: {received_events(each) for each in payloads}, {1})

        nets.stop_streamers(*gateways)
        assert {received_events(each) for each in payloads} == {1}
        assert receiver.receive_counts(payloads) == {1}
        assert {source.call_count(b"call %d" % number) for number in range(MESSAGES_EACH)} == {1}
        assert {len(app.responses(id)) for id in sent_request} == {1}
        assert [each.payload for each in app.inbox.items() if each.head.sink == lamps.at(1)] == [b"from b"]
        assert receiver.response_count(b"to b") == 1
        assert [each.process.ledger["dead_lettered"] for each in gateways] == [0, 0]
