# SPDX-License-Identifier: Apache-2.0
"""Several streamers between SOME/IP networks, each a process: they know each other by service discovery.

Each ECU here subscribes the event of everybody who offers it, so that it would hear twice what is offered twice.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests.e2e import wire
from tests.e2e.ecu import Seen
from tests.e2e.neighbourhood import Gateway, Neighbourhood
from tests.e2e.peers import ECHO, eventually
from tests.e2e.someip_street import (
    EVENT,
    HERE,
    SPEED,
    TTL_S,
    Receiver,
    Source,
    Street,
    await_way,
    offered_for,
)
from tests.e2e.wire import Uri

Make = Callable[..., Street]
EACH: Final = 25
BUSY_S: Final = 2.0
"""On a quiet machine it is a tenth of this."""
OFF: Final = "neighbours = false"
BRIDGE: Final = {"a": [HERE], "b": [offered_for("a")]}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as last_first:
        yield lambda *networks: Street(tmp_path, last_first, *networks)


def side_by_side(street: Street, more: str = "", ttl_s: int = TTL_S) -> list[Gateway]:
    """Two streamers between the networks a and b, that know each other on both if they want to."""
    both = {"a": more, "b": more}
    gateways = [street.launch(name, BRIDGE, both, ttl_s=ttl_s) for name in ("g1", "g2")]
    for each in gateways:
        each.process.ready()
    for each, other in (gateways, gateways[::-1]) if not more else ():
        for network in ("a", "b"):
            each.wait_there(network, other.authority)
    return gateways


def offers(gateway: Gateway, network: str = "b") -> int:
    """How many services it offers, and does not leave to another one."""
    found = gateway.counts()[1][network]
    return found["sd_offers"] - found["sd_offers_standby"]


def test_through_two_side_by_side_each_event_and_each_call_comes_once(make: Make) -> None:
    street = make("a", "b")
    gateways = side_by_side(street)
    eventually(lambda: sorted(map(offers, gateways)), [0, 1])
    source, receivers = Source(street.ecu("a")), [Receiver(street.ecu("b")) for _ in range(2)]
    await_way(source, *receivers)

    payloads = [b"event %d" % number for number in range(EACH)]
    for each in payloads:
        source.emit(each)
    calls = [b"call %d" % number for number in range(EACH)]
    for each in calls:
        receivers[0].call(each)
    eventually(lambda: {receivers[0].answers(each) for each in calls}, {1})

    street.finish(*gateways)
    assert {source.asked(each) for each in calls} == {1}
    assert {receivers[0].answers(each) for each in calls} == {1}
    assert [each.times(payloads) for each in receivers] == [{1}, {1}]
    assert all(
        each.process.ledger["dead_lettered"] == each.process.ledger["denied"] == 0 for each in gateways
    )


def test_of_two_that_do_not_look_for_each_other_each_sends_every_event(make: Make) -> None:
    """What the above is for."""
    street = make("a", "b")
    gateways = side_by_side(street, OFF)
    source, receiver = Source(street.ecu("a")), Receiver(street.ecu("b"))
    await_way(source, receiver)
    eventually(lambda: [offers(each) for each in gateways], [1, 1])
    eventually(lambda: len(source.ecu.subscribers[SPEED, 1]), 2)
    payloads = [b"event %d" % number for number in range(EACH)]
    for each in payloads:
        source.emit(each)
    eventually(lambda: receiver.times(payloads), {2})


# --------------------------------------------------------------------------------------------------- who comes and goes


def holder_first(gateways: list[Gateway]) -> list[Gateway]:
    """The one that offers, and the one that stands by."""
    eventually(lambda: sorted(map(offers, gateways)), [0, 1])
    return sorted(gateways, key=offers, reverse=True)


def gap_of(source: Source, receiver: Receiver, end: Callable[[], None]) -> float:
    """For how long nothing came when a streamer ended, in s."""
    numbers = itertools.count()
    sent: dict[bytes, float] = {}

    def beat() -> None:
        payload = b"beat %d" % next(numbers)
        sent[payload] = time.monotonic()
        source.emit(payload)

    beat()
    end()
    ended_s = time.monotonic()

    def is_back() -> bool:
        beat()
        return any(sent.get(each, 0.0) > ended_s for each in receiver.payloads())

    eventually(is_back, True)
    first = min(at for each, at in sent.items() if at > ended_s and receiver.has(each))
    print(f"\nnothing for {first - ended_s:.2f} s")
    assert receiver.times([each for each, at in sent.items() if at >= first]) <= {0, 1}
    return first - ended_s


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_when_the_one_that_offers_ends_the_other_takes_over(make: Make, how: str) -> None:
    street = make("a", "b")
    first, second = holder_first(side_by_side(street, ttl_s=1))
    source, receiver = Source(street.ecu("a")), Receiver(street.ecu("b"))
    await_way(source, receiver)
    gap_s = gap_of(source, receiver, first.process.kill if how == "killed" else first.process.stop)
    # A ttl, and what it takes to offer and to be subscribed; who says goodbye is not waited for.
    assert gap_s < (1 if how == "killed" else 0) + BUSY_S
    assert offers(second) == 1
    second.wait_there("b")


def test_one_that_comes_back_leaves_it_to_the_one_that_offers(make: Make) -> None:
    street = make("a", "b")
    first, second = holder_first(side_by_side(street))
    source, receiver = Source(street.ecu("a")), Receiver(street.ecu("b"))
    await_way(source, receiver)
    first.process.stop()
    eventually(lambda: offers(second), 1)
    await_way(source, receiver)
    back = street.launch(first.authority, BRIDGE)
    back.process.ready()
    for network in ("a", "b"):
        back.wait_there(network, second.authority)
        second.wait_there(network, back.authority)
    payloads = [b"event %d" % number for number in range(EACH)]
    for each in payloads:
        source.emit(each)
    eventually(lambda: receiver.times(payloads), {1})
    eventually(lambda: [offers(back), offers(second)], [0, 1])
    street.finish(back, second)
    assert receiver.times(payloads) == {1}


# --------------------------------------------------------------------------------------------------- rings


def circle(street: Street, more: str = "") -> list[Gateway]:
    """Three streamers between three networks, of which each offers on the next one what it finds on its own."""
    networks = ("a", "b", "c")
    gateways = []
    for number, own in enumerate(networks):
        following = networks[(number + 1) % 3]
        services = {own: [HERE], following: [offered_for(own)]}
        gateway = street.launch(f"g{number + 1}", services, dict.fromkeys(services, more))
        gateway.process.ready()
        # Each finds it where it is before the next one offers it there.
        eventually(lambda gateway=gateway, own=own: found(gateway, own), own == "a" or bool(more))  # type: ignore[misc]
        gateways.append(gateway)
    return gateways


def found(gateway: Gateway, network: str) -> bool:
    return gateway.counts()[1][network]["sd_found"] > 0


def test_in_a_ring_nothing_goes_round(make: Make) -> None:
    street = make("a", "b", "c")
    source = Source(street.ecu("a"))
    gateways = circle(street)
    at_home, away = Receiver(street.ecu("a")), Receiver(street.ecu("b"))
    await_way(source, at_home, away)
    eventually(lambda: gateways[1].counts()[1]["b"]["refused_sd_relayed"] > 0, True)
    eventually(lambda: gateways[2].counts()[1]["c"]["refused_sd_relayed"] > 0, True)
    payloads = [b"event %d" % number for number in range(EACH)]
    for each in payloads:
        source.emit(each)
    eventually(lambda: [each.times(payloads) for each in (at_home, away)], [{1}, {1}])
    away.call(b"call")
    eventually(lambda: away.answers(b"call"), 1)
    street.finish(*gateways)
    assert [each.times(payloads) for each in (at_home, away)] == [{1}, {1}]
    assert source.asked(b"call") == 1


def test_in_a_ring_of_streamers_that_do_not_look_for_each_other_an_event_comes_round(make: Make) -> None:
    """What the above is for: an offer of one of them is an ECU's to the next."""
    street = make("a", "b", "c")
    source = Source(street.ecu("a"))
    circle(street, OFF)
    at_home = Receiver(street.ecu("a"))
    payload = b"round"

    def ways() -> int:
        source.emit(payload)
        return len({each.sender for each in at_home.ecu.data.inbox.all() if each.head.payload == payload})

    eventually(ways, 2)


def test_in_a_ring_where_two_ways_lead_to_a_network_each_event_comes_once(make: Make) -> None:
    """The long way is what `relayed` allows, and nobody sees both its ends: it has to be named."""
    street = make("a", "b", "c")
    relayed = "relayed = true"
    named = {"c": 'neighbours = ["g1", "g2", "g3"]'}
    gateways = [
        street.launch("g1", {"a": [HERE], "b": [offered_for("a")]}),
        street.launch("g2", {"b": [relayed], "c": [offered_for("b")]}, named),
        street.launch("g3", {"a": [HERE], "c": [offered_for("a")]}, named),
    ]
    for each in gateways:
        each.process.ready()
    _, second, third = gateways
    eventually(lambda: sorted(offers(each, "c") for each in (second, third)), [0, 1])
    source, receivers = Source(street.ecu("a")), [Receiver(street.ecu(each)) for each in ("b", "c")]
    await_way(source, *receivers)
    payloads = [b"event %d" % number for number in range(EACH)]
    for payload in payloads:
        source.emit(payload)
    eventually(lambda: [each.times(payloads) for each in receivers], [{1}, {1}])
    street.finish(*gateways)
    assert [each.times(payloads) for each in receivers] == [{1}, {1}]


# --------------------------------------------------------------------------------------------------- Zenoh beside it

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


def await_one_left(source: Source, gateways: list[Gateway]) -> None:
    """Wait until one of two leaves the events to the other, whose word it has heard; nobody but the Zenoh network wants them."""

    def left() -> list[int]:
        return [each.counts()[1]["a"]["refused_neighbour"] for each in gateways]

    def leaving() -> int:
        before = left()
        for _ in range(5):
            source.emit(b"?")
        return sum(now > then for now, then in zip(left(), before, strict=True))

    eventually(leaving, 1)


def test_between_two_someip_networks_and_a_zenoh_network_everything_comes_once(
    make: Make, tmp_path: Path
) -> None:
    """Nobody is named: that the others are on the SOME/IP side as well is what makes them believed on the Zenoh side."""
    street = make("a", "b")
    with ExitStack() as last_first:
        zenoh = Neighbourhood(tmp_path, last_first, "z")
        services = {"a": [HERE], "b": [offered_for("a") + LAMPS_OFFERED]}
        gateways = [
            street.launch(name, services, beside=ZENOH.format(port=zenoh.ports["z"])) for name in ("g1", "g2")
        ]
        for each in gateways:
            each.process.ready()
        for each, other in (gateways, gateways[::-1]):
            for network in ("a", "b", "z"):
                each.wait_there(network, other.authority)
        app = zenoh.peer("z", "z.vin1", 0x8401)
        lamps = app.address
        source, topic = Source(street.ecu("a")), Uri("a", SPEED, 1, EVENT)
        for each in gateways:
            app.call(Uri(each.authority, 0, 3).at(wire.SUBSCRIBE), wire.subscription_request(topic))
        await_one_left(source, gateways)
        receiver = Receiver(street.ecu("b"))
        receiver.ecu.find(LAMPS)
        await_way(source, receiver)

        def came(payload: bytes) -> int:
            return sum(each.payload == payload for each in app.events(topic))

        payloads = [b"event %d" % number for number in range(EACH)]
        for payload in payloads:
            source.emit(payload)
        asked = [app.request(Uri("a", SPEED, 1, ECHO), b"call %d" % number) for number in range(EACH)]
        for id in asked:
            assert app.answer(id).head.commstatus in {None, wire.OK}
        receiver.ecu.seen.one(lambda seen: seen == Seen("offered", LAMPS))
        receiver.call(b"from b", LAMPS)
        request = app.inbox.one(lambda each: each.payload == b"from b")
        app.respond(request, b"to b")
        eventually(lambda: receiver.has(b"to b"), True)
        eventually(lambda: {came(each) for each in payloads}, {1})

        street.finish(*gateways)
        assert {came(each) for each in payloads} == {1}
        assert receiver.times(payloads) == {1}
        assert {source.asked(b"call %d" % number) for number in range(EACH)} == {1}
        assert {len(app.answers(id)) for id in asked} == {1}
        assert [each.payload for each in app.inbox.all() if each.head.sink == lamps.at(1)] == [b"from b"]
        assert receiver.answers(b"to b") == 1
        assert [each.process.ledger["dead_lettered"] for each in gateways] == [0, 0]
