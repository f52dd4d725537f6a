# SPDX-License-Identifier: Apache-2.0
"""The DSCP of datagrams, as their receivers read it."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import msgspec
import pytest

from tests.transports.someip.endpoint_rig import DOOR, OPEN_DOOR, WITHIN_S, Bench, Peer
from ustreamer.uprotocol.uattributes import UPriority
from ustreamer.uprotocol.umessage import UMessage, response
from ustreamer.uprotocol.uuri import ANY

HOSTS = ("127.0.0.1", "::1")
OFFERED = {
    "service": 0x0777,
    "major": 2,
    "methods": [1],
    "events": [{"id": 0x8001}],
    "offered": True,
    "provider": "//hpc.vin1/9077/1/0",
}


@pytest.fixture(params=HOSTS)
def host(request: pytest.FixtureRequest) -> str:
    host: str = request.param
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            pytest.skip(f"no {host} on this machine: {error.strerror}")
    return host


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def read_dscp(peer: Peer) -> int:
    """The DSCP of the next datagram."""
    peer.socket.settimeout(WITHIN_S)
    _, ((_, _, value), *_), _, _ = peer.socket.recvmsg(2_000, socket.CMSG_SPACE(4))
    number: int = value[0] >> 2
    return number


def opened(stack: ExitStack, host: str, *services: dict[str, Any], **keys: Any) -> Bench:
    """A bench whose ECU reads the DSCP. Each of `services`, if there are any, is at the ECU."""
    bench = Bench(stack, host, **keys)
    if services:
        at_ecu = [each | {"remote": str(bench.ecu)} for each in services]
        bench.endpoint = bench.another(bench.config(services=at_ecu, **keys))
        for sink in (None, ANY):
            bench.endpoint.register_listener(ANY, sink, bench.listener)
    if ":" in host:
        bench.ecu.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
    else:
        bench.ecu.socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
    bench.endpoint.open()
    return bench


def at_priority(message: UMessage, priority: UPriority) -> UMessage:
    attributes = msgspec.structs.replace(message.attributes, priority=priority)
    return UMessage(message.id, attributes, message.payload)


def answer_a_request(bench: Bench, priority: UPriority = UPriority.CS4) -> None:
    bench.ecu.send(bench.endpoint, OPEN_DOOR)
    bench.endpoint.send(at_priority(response(bench.ids.next(), bench.listener.next(), b"done"), priority))


def test_the_number_of_the_endpoint_is_in_all_datagrams(stack: ExitStack, host: str) -> None:
    bench = opened(stack, host, dscp=46)
    bench.endpoint.send(bench.event())
    bench.endpoint.send(bench.request())
    answer_a_request(bench)
    assert [read_dscp(bench.ecu) for _ in range(3)] == [46, 46, 46]


def test_the_priority_of_each_message_selects_its_class(stack: ExitStack, host: str) -> None:
    bench = opened(stack, host, dscp="priority")
    bench.endpoint.send(at_priority(bench.event(), UPriority.CS0))
    bench.endpoint.send(at_priority(bench.event(), UPriority.CS5))
    bench.endpoint.send(at_priority(bench.request(), UPriority.CS6))
    answer_a_request(bench, UPriority.CS4)
    assert [read_dscp(bench.ecu) >> 3 for _ in range(4)] == [0, 5, 6, 4]


def test_a_service_has_its_own_number(stack: ExitStack, host: str) -> None:
    """Next to one with the number of the endpoint, one by one and in a batch."""
    climate = {"service": 0x00CD, "major": 4, "methods": [0x000B]}
    bench = opened(stack, host, OFFERED | {"dscp": 10}, climate, dscp=40)
    bench.endpoint.send(bench.event(DOOR))
    answer_a_request(bench)
    bench.endpoint.send(bench.request())
    assert [read_dscp(bench.ecu) for _ in range(3)] == [10, 10, 40]

    bench = opened(stack, host, climate | {"dscp": 12}, dscp=40)
    assert bench.endpoint.batch_transmitter(None)([bench.request() for _ in range(3)]) == 3
    assert [read_dscp(bench.ecu) for _ in range(3)] == [12, 12, 12]
