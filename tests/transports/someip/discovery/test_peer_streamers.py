# SPDX-License-Identifier: Apache-2.0
"""An endpoint next to other streamers: its announcements, its standby, and the input it refuses."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from tests.e2e.rigs.ports import udp_ports
from tests.transports.someip.discovery.sd_bench import DOORS, FAST, GROUP, SPEED, WITHIN_S, Ecu
from tests.waiting import wait_until
from ustreamer.core.peers.election import Announcement, AnnouncementRole, RouterId
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, SubscriberEnded
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.peer_streamers import PeerStreamers, peer_discovery_settings
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.actions import OfferRoleChanged
from ustreamer.transports.someip.sd.codec import EntryType, ServiceEntry
from ustreamer.transports.someip.sd.options import Endpoint, Option
from ustreamer.transports.someip.sd.peer_options import encode_announcements, streamer_mark
from ustreamer.transports.someip.sd.settings import ServiceKey
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import UUri, any_at

ME, OTHER = RouterId("hpc.vin1", "1" * 16), RouterId("g2.vin1", "2" * 16)
OPEN = UUri("hpc.vin1", 0x8401, 1, 0x8001)
RECEIVER = UUri("chassis", DOORS, 1, 0)
ANY = any_at("*")


class Bench:
    """An endpoint that offers the doors service, also to a configured receiver, and requests the speed service."""

    def __init__(
        self, stack: ExitStack, *, sd: bool = True, instance: str = ME.instance, **more: Any
    ) -> None:
        self.stack = stack
        self.sd_port, self.port = udp_ports(2)
        self.ecu = Ecu(stack, "127.0.0.7", self.sd_port)
        section = {"multicast": GROUP, "port": self.sd_port, "interface": "127.0.0.1", "timings": FAST}
        config = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": self.port,
            "sd": section if sd else False,
            "services": [
                {
                    "service": SPEED,
                    "major": 1,
                    "events": [{"id": 0x8001, "eventgroup": 1}],
                    "methods": [1],
                    **({} if sd else {"remote": f"127.0.0.7:{self.ecu.address[1]}"}),
                },
                {
                    "service": DOORS,
                    "major": 1,
                    "events": [{"id": 0x8001, "eventgroup": 1}],
                    "methods": [1],
                    "offered": True,
                    "provider": "//hpc.vin1/8401/1/0",
                    "receivers": [{"address": "{}:{}".format(*self.ecu.address)}],
                },
            ],
            **more,
        }
        context = EndpointContext("chassis", ME.authority, SYSTEM_CLOCK, instance=instance)
        self.endpoint = SomeipTransport(msgspec.convert(config, SomeipEndpoint), context)
        stack.callback(self.endpoint.close)
        self.ears: SimpleQueue[UMessage] = SimpleQueue()
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.ears.put)
        self.announced: list[frozenset[Announcement]] = []
        self.endpoint.watch_peers(self.announced.append)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        self.endpoint.open()

    @property
    def address(self) -> Address:
        return ("127.0.0.1", self.port)

    @property
    def counters(self) -> Mapping[str, int]:
        return self.endpoint.statistics()

    def publish(self) -> UMessage:
        return publish(self.ids.next(), OPEN, b"ajar")


def announcements_of(who: RouterId = OTHER) -> frozenset[Announcement]:
    return frozenset(
        Announcement(who.instance, "net", who.authority, role, subject)
        for role, subject in ((AnnouncementRole.IDENTITY, who.authority), (AnnouncementRole.CARRIES, "far"))
    )


def announce_streamer(ecu: Ecu, ttl: int = 3) -> None:
    """Announce the ECU as a streamer."""
    [words], _ = encode_announcements(
        OTHER,
        "net",
        1,
        [(AnnouncementRole.IDENTITY, OTHER.authority), (AnnouncementRole.CARRIES, "far")],
        1_000,
    )
    ecu.send(ServiceEntry(EntryType.OFFER, 0xFFFE, 1, 1, 0, ttl, (words,)))


def offer_as_streamer(ecu: Ecu, service: int, ttl: int = 3) -> None:
    where: tuple[Option, ...] = (Endpoint(*ecu.address), streamer_mark(OTHER))
    ecu.send(ServiceEntry(EntryType.OFFER, service, 1, 1, 0, ttl, where))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


# --- announcements ----------------------------------------------------------------------------------------------------


def test_streamers_exchange_announcements_until_the_stop(stack: ExitStack) -> None:
    bench = Bench(stack)
    bench.endpoint.announce(announcements_of(ME))
    entry = bench.ecu.expect_entry(lambda each: each.type == EntryType.OFFER and each.service == 0xFFFE)
    assert [option for option in entry.options if option == Endpoint(*bench.address)]
    announce_streamer(bench.ecu)
    wait_until(lambda: bench.announced == [announcements_of()])
    announce_streamer(bench.ecu, ttl=0)
    wait_until(lambda: bench.announced == [announcements_of(), frozenset()])
    bench.endpoint.stop_receiving()
    bench.ecu.expect_entry(
        lambda each: each.type == EntryType.OFFER and each.service == 0xFFFE and not each.ttl
    )


def test_looped_back_announcements_are_ignored(stack: ExitStack) -> None:
    bench = Bench(stack)
    bench.endpoint.announce(announcements_of(ME))
    for _ in range(5):
        bench.ecu.expect_entry(lambda each: each.type == EntryType.OFFER and each.service == 0xFFFE)
    announce_streamer(bench.ecu)
    wait_until(lambda: bench.announced == [announcements_of()])
    assert {name for name, number in bench.counters.items() if name.startswith("refused") and number} == set()


@pytest.mark.parametrize("off", [{"peers": False}, {"instance": ""}])
def test_without_peer_discovery_nothing_is_announced(stack: ExitStack, off: dict[str, Any]) -> None:
    bench = Bench(stack, **off)
    bench.endpoint.announce(announcements_of(ME))
    announce_streamer(bench.ecu)
    offer = bench.ecu.expect_entry(lambda each: each.type == EntryType.OFFER and each.service == DOORS)
    assert streamer_mark(ME) not in offer.options
    offers = [bench.ecu.expect_entry(lambda each: each.type == EntryType.OFFER) for _ in range(5)]
    ours = [each for each in offers if Endpoint(*bench.address) in each.options]
    assert {each.service for each in ours} == {DOORS}
    assert bench.announced == []


# --- standby ----------------------------------------------------------------------------------------------------------


def test_a_configured_receiver_gets_no_events_from_a_standby_streamer(stack: ExitStack) -> None:
    bench = Bench(stack)
    offer_as_streamer(bench.ecu, DOORS, ttl=600)
    assert bench.endpoint._sd_driver
    is_elsewhere = bench.endpoint._sd_driver.served_by_peer_check(bench.endpoint._receivers[RECEIVER])
    wait_until(is_elsewhere)  # the counter changes a moment earlier
    assert bench.counters["sd_offers_standby"] == 1
    transmit, burst = bench.endpoint.transmitter(RECEIVER), bench.endpoint.batch_transmitter(RECEIVER)
    with pytest.raises(SubscriberEnded):
        transmit(bench.publish())
    assert burst([bench.publish(), bench.publish()]) == 0

    offer_as_streamer(bench.ecu, DOORS, ttl=0)
    wait_until(lambda: not is_elsewhere())
    transmit(bench.publish())
    assert burst([bench.publish(), bench.publish()]) == 2
    assert [bench.ecu.receive().payload for _ in range(3)] == [b"ajar"] * 3


def test_the_trust_check_gets_the_authority_of_the_service(stack: ExitStack) -> None:
    bench = Bench(stack)
    requested: list[tuple[RouterId, str]] = []
    offer_as_streamer(bench.ecu, DOORS)
    wait_until(lambda: bench.counters["sd_offers_standby"] == 1)

    def brings(who: RouterId, authority: str) -> bool:
        requested.append((who, authority))
        return False

    bench.endpoint.trust_peers(brings)
    wait_until(lambda: bench.counters["sd_offers_standby"] == 0)  # after a ttl of 1 s
    assert set(requested) == {(OTHER, "hpc.vin1")}


def test_a_response_for_a_client_of_another_streamer_is_no_failure(stack: ExitStack) -> None:
    bench = Bench(stack)
    call = request(bench.ids.next(), UUri("chassis", 7, 1, 0), OPEN.with_resource(1), ttl=1_000)
    answer = response(bench.ids.next(), call)
    with pytest.raises(UStatusError) as alone:
        bench.endpoint.send(answer)
    assert (alone.value.code, isinstance(alone.value, SubscriberEnded)) == (UCode.NOT_FOUND, False)
    announce_streamer(bench.ecu)
    wait_until(lambda: bool(bench.announced))
    with pytest.raises(SubscriberEnded):
        bench.endpoint.send(answer)


# --- refused input ----------------------------------------------------------------------------------------------------


def test_an_offer_of_a_streamer_is_not_an_ecus(stack: ExitStack) -> None:
    bench = Bench(stack)
    offer_as_streamer(bench.ecu, SPEED)
    wait_until(lambda: bench.counters["refused_sd_relayed"] == 1)
    assert bench.counters["sd_found"] == 0
    bench.ecu.offer()
    wait_until(lambda: bench.counters["sd_found"] == 1)


def test_dynamic_services_ignore_offers_of_streamers(stack: ExitStack) -> None:
    sd_port, port = udp_ports(2)
    section = {
        "multicast": GROUP,
        "port": sd_port,
        "interface": "127.0.0.1",
        "timings": FAST,
        "dynamic_services": True,
    }
    config = {
        "transport": "someip",
        "authorities": ["chassis"],
        "bind": "127.0.0.1",
        "port": port,
        "sd": section,
    }
    endpoint = SomeipTransport(
        msgspec.convert(config, SomeipEndpoint),
        EndpointContext("chassis", ME.authority, SYSTEM_CLOCK, instance=ME.instance),
    )
    stack.callback(endpoint.close)
    endpoint.open()
    ecu = Ecu(stack, "127.0.0.7", sd_port)
    call = request(
        UuidSource(SYSTEM_CLOCK.wall_ms).next(),
        OPEN.with_resource(0),
        UUri("chassis", SPEED, 1, 1),
        ttl=5_000,
    )
    with pytest.raises(UStatusError):
        endpoint.send(call)
    ecu.expect_entry(lambda each: each.type == EntryType.FIND and each.service == SPEED)
    offer_as_streamer(ecu, SPEED)
    wait_until(lambda: endpoint.statistics()["refused_sd_relayed"] == 1)
    assert endpoint.statistics()["sd_found"] == 0
    ecu.offer()
    wait_until(lambda: endpoint.statistics()["sd_found"] == 1)


@pytest.mark.parametrize("kind", ["event", "request"])
@pytest.mark.parametrize("streamer_first", [True, False])
def test_without_service_discovery_input_of_a_streamer_host_is_counted_and_dropped(
    stack: ExitStack, kind: str, streamer_first: bool
) -> None:
    bench = Bench(stack, sd=False, peer_streamer_addresses=["127.0.0.8"], clients=["127.0.0.0/8"])
    streamer = Ecu(stack, "127.0.0.8", bench.sd_port)
    for each in (streamer, bench.ecu) if streamer_first else (bench.ecu, streamer):
        if kind == "event":
            each.event(b"fast", bench.address)
        else:
            each.request(bench.address)
    announced = bench.ears.get(timeout=WITHIN_S)
    wait_until(lambda: bench.counters["datagrams"] == 2)
    assert bench.ears.empty()
    assert announced.attributes.source.authority_name == "chassis"
    assert bench.counters["refused_peer_streamer"] == 1


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"peers": ["g2"]}, "peers: without sd no streamer is discovered"),
        ({"peer_streamer_addresses": ["me"]}, r"peer_streamer_addresses\[0\]"),
        ({"peer_streamer_addresses": ["127.0.0.1"]}, "this endpoint's own bind"),
        (
            {"peer_streamer_addresses": ["127.0.0.7"]},
            r"services\[0\]: 127.0.0.7:\d+ is a streamer's by peer_streamer_addresses",
        ),
    ],
)
def test_an_invalid_peer_configuration_is_refused(stack: ExitStack, more: dict[str, Any], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        Bench(stack, sd=False, **more)


@pytest.mark.parametrize(
    ("names", "why"), [(["*"], "is not the name of a streamer"), (["A B"], "peers: .*authority 'A B'")]
)
def test_an_invalid_streamer_name_is_refused(stack: ExitStack, names: list[str], why: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=why):
        Bench(stack, peers=names)


def test_peer_discovery_settings_have_own_id_and_named_streamers(stack: ExitStack) -> None:
    bench = Bench(stack, peers=["g2.vin1"], peer_streamer_addresses=["127.0.0.9"])
    context = EndpointContext("chassis", ME.authority, SYSTEM_CLOCK, instance=ME.instance)
    found = peer_discovery_settings(bench.endpoint._config, context, [ServiceKey(1, 1, 1)])
    assert found is not None
    assert (found.own_id, found.service, found.trusted_authorities) == (ME, 0xFFFE, frozenset({"g2.vin1"}))
    assert (found.accept_relayed, found.streamer_hosts) == (
        frozenset({ServiceKey(1, 1, 1)}),
        frozenset({"127.0.0.9"}),
    )


def test_a_service_offered_by_a_peer_is_known_until_the_role_returns() -> None:
    others = PeerStreamers(lambda: None)
    key = ServiceKey(1, 1, 1)
    others.on_offer_role_changed(OfferRoleChanged(key, ours=False))
    assert others.is_served_by_peer(key)
    others.on_offer_role_changed(OfferRoleChanged(key, ours=True))
    assert not others.is_served_by_peer(key)
