# SPDX-License-Identifier: Apache-2.0
"""Located and lost services: the destinations of requests, the sources of events, and the connections."""

from ipaddress import IPv4Network

import msgspec
import pytest

from ustreamer.transport_port import RouteUnavailable
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.discovery.located_services import (
    LocatedServices,
    wanted_service,
)
from ustreamer.transports.someip.discovery.service_registry import ServiceRegistry
from ustreamer.transports.someip.io.tcp_connections import TcpCallbacks, TcpConnections
from ustreamer.transports.someip.protocol.addresses import Address, TcpAddress
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.protocol.tcp_config import TcpConfig
from ustreamer.transports.someip.sd.actions import EndReason, ServiceFound, ServiceLost
from ustreamer.transports.someip.sd.codec import ANY_MINOR
from ustreamer.transports.someip.sd.settings import ServiceKey, WantedService
from ustreamer.uprotocol.uattributes import UAttributes
from ustreamer.uprotocol.uuri import UUri

FIRST, SECOND = ServiceKey(0x1234, 1, 1), ServiceKey(0x1234, 2, 1)
STREAM = ServiceKey(0x5555, 1, 1)
PEER = ("10.0.0.2", 30490)
UDP, OTHER_UDP, TCP = ("10.0.0.2", 30501), ("10.0.0.2", 30502), ("10.0.0.2", 30503)
METHOD = UUri("chassis", 0x1234, 1, 1)


class Bench:
    def __init__(self) -> None:
        events = [{"id": 0x8001}]
        config = msgspec.convert(
            {
                "transport": "someip",
                "authorities": ["chassis"],
                "bind": "10.0.0.1",
                "port": 30500,
                "sd": {"multicast": "224.0.0.1", "interface": "10.0.0.1"},
                "services": [
                    {"service": 0x1234, "major": 1, "methods": [1], "events": events},
                    {"service": 0x1234, "instance": 2, "major": 1, "events": events, "protocol": "tcp"},
                    {"service": 0x5555, "major": 1, "events": events, "protocol": "tcp"},
                    {"service": 0x6666, "major": 1, "events": events, "remote": "10.0.0.6:30500"},
                ],
            },
            SomeipEndpoint,
        )
        self.services = ServiceRegistry(config, "hpc.vin1")
        self.routes: list[UUri] = []
        self.connections = TcpConnections(
            TcpConfig(),
            lambda: 0,
            lambda: 0.5,
            self.services.is_known_host,
            TcpCallbacks(lambda *_: None, lambda *_: None, lambda _: None),
        )
        sought = [each for each in config.services if each.needs_discovery]
        self.lost: list[tuple[UUri, list[Address], str]] = []
        self.found = LocatedServices(
            "chassis",
            "chassis",
            sought,
            self.services,
            self.connections,
            self.routes.append,
            lambda *news: self.lost.append(news),
        )

    def find(
        self, key: ServiceKey, udp: tuple[str, int] | None = None, tcp: tuple[str, int] | None = None
    ) -> None:
        self.found.on_found(ServiceFound(key, 0, udp, tcp, PEER))

    def lose(self, key: ServiceKey) -> None:
        self.found.on_lost(ServiceLost(key, EndReason.STOPPED))

    def keeps_connection(self, address: tuple[str, int]) -> bool:
        peer = self.connections._peers.get(TcpAddress(*address))
        return peer is not None and peer.keep_connected

    def event(self, host: str, port: int, service: int = 0x1234) -> str | SomeipRefusal:
        message = SomeIpMessage(
            service=service,
            method=0x8001,
            client=0,
            session=1,
            interface_version=1,
            message_type=int(MessageType.NOTIFICATION),
            return_code=0,
            payload=b"",
        )
        found = self.services.event_attributes(message, host, port)
        return f"{found.source.ue_id:X}" if isinstance(found, UAttributes) else found


def test_only_services_without_an_address_are_requested() -> None:
    assert list(Bench().found.wanted) == [FIRST, SECOND, STREAM]
    assert wanted_service(FIRST) == WantedService(0x1234, 1, 1)


# [utest->COMPAT-1197, COMPAT-1216]
def test_any_minor_version_is_requested() -> None:
    wanted = wanted_service(FIRST)
    assert wanted.minor == ANY_MINOR
    assert [wanted.matches(FIRST, minor) for minor in (0, 7, ANY_MINOR)] == [True] * 3


# [utest->SD-14]
def test_a_service_has_an_address_while_it_is_located() -> None:
    bench = Bench()
    with pytest.raises(RouteUnavailable) as away:
        bench.services.remote_service(METHOD)
    bench.find(FIRST, UDP)
    assert bench.services.remote_service(METHOD).methods[1] == UDP
    assert bench.routes == [away.value.route]
    assert bench.event("10.0.0.2", 1) == "1234"
    bench.lose(FIRST)
    bench.lose(FIRST)
    assert bench.lost == [(METHOD.with_resource(0), [UDP], "stopped")]
    with pytest.raises(RouteUnavailable):
        bench.services.remote_service(METHOD)
    assert bench.event("10.0.0.2", 1) is SomeipRefusal.EVENT_ADDRESS
    assert bench.event("10.0.0.6", 1, 0x6666) == "6666"  # its address is configured and stays
    assert bench.found.statistics() == {"sd_times_found": 1, "sd_times_lost": 1}


# [utest->RPC-542, RPC-636, SD-782]
def test_two_instances_on_one_host_are_distinguished_by_port() -> None:
    bench = Bench()
    bench.find(FIRST, UDP)
    bench.find(SECOND, OTHER_UDP, TCP)
    assert bench.event(*UDP) == "1234"
    assert bench.event(*TCP) == "21234"
    assert bench.event("10.0.0.2", 9) is SomeipRefusal.EVENT_ADDRESS
    bench.lose(FIRST)
    assert bench.event("10.0.0.2", 9) == "21234"


# [utest->RPC-732, RPC-645, RPC-678]
def test_a_connection_is_kept_while_it_has_a_located_service() -> None:
    bench = Bench()
    bench.find(FIRST, UDP, TCP)
    assert not bench.keeps_connection(TCP)  # no service uses TCP
    bench.find(SECOND, None, TCP)
    bench.find(STREAM, None, TCP)
    assert bench.keeps_connection(TCP)
    assert bench.found.services_over(TcpAddress(*TCP)) == [SECOND, STREAM]
    bench.lose(SECOND)
    assert bench.keeps_connection(TCP)
    bench.lose(STREAM)
    assert not bench.keeps_connection(TCP)


def test_an_unrequested_service_has_no_address() -> None:
    bench = Bench()
    bench.find(ServiceKey(0x7777, 1, 1), UDP)
    assert bench.routes == []


def test_trusted_networks_are_clients() -> None:
    bench = Bench()
    assert not bench.services.is_known_host("10.9.0.1")
    bench.services.trust_networks([IPv4Network("10.9.0.0/16")])
    assert bench.services.is_known_host("10.9.0.1")


def test_the_key_of_a_service_is_that_of_its_configuration() -> None:
    assert SECOND in Bench().found.wanted
