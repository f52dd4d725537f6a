# SPDX-License-Identifier: Apache-2.0
"""Offered services with a port of their own, on real sockets."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.transports.someip.endpoint_rig import OPEN_DOOR, Bench
from tests.waiting import wait_until
from ustreamer.transports.someip.endpoint.service_port import ServicePort
from ustreamer.uprotocol.uattributes import UMessageType
from ustreamer.uprotocol.umessage import UMessage, response
from ustreamer.uprotocol.uuri import UUri

WITHIN_S = 30.0
SECOND = UUri.parse("//hpc.vin1/9078/1/0")


class TwoPorts(Bench):
    """Two instances of the door service: the second is at `udp`, and over TCP at `tcp`."""

    def __init__(self, stack: ExitStack) -> None:
        [self.udp], [self.tcp] = udp_ports(1), tcp_ports(1)
        door = {"service": 0x0777, "major": 2, "events": [{"id": 0x8001}], "offered": True}
        methods = [1, {"id": 2, "protocol": "tcp"}]
        services = [
            door | {"methods": [1], "provider": "//hpc.vin1/9077/1/0"},
            door
            | {
                "instance": 2,
                "methods": methods,
                "provider": "//hpc.vin1/9078/1/0",
                "port": self.udp,
                "port_tcp": self.tcp,
            },
        ]
        super().__init__(stack, services=services)
        services[0]["remote"] = services[1]["remote"] = str(self.ecu)
        self.endpoint.close()
        self.endpoint = self.another(self.config(services=services))
        for sink in (UUri.parse("//hpc.vin1/9077/1/1"), SECOND.with_resource(1), SECOND.with_resource(2)):
            self.endpoint.register_listener(UUri.parse("//*/FFFFFFFF/FF/FFFF"), sink, self._answer)
        self.endpoint.open()

    def _answer(self, message: UMessage) -> None:
        assert message.attributes.type is UMessageType.REQUEST
        assert message.attributes.sink is not None
        self.endpoint.send(response(self.ids.next(), message, b"%X" % message.attributes.sink.ue_id))


@pytest.fixture
def bench() -> Iterator[TwoPorts]:
    with ExitStack() as stack:
        yield TwoPorts(stack)


# [utest->RPC-49, RPC-648, SD-782]
def test_the_port_selects_the_instance_that_answers(bench: TwoPorts) -> None:
    for port, payload in ((bench.endpoint.address[1], b"9077"), (bench.udp, b"9078")):
        bench.ecu.socket.sendto(OPEN_DOOR, ("127.0.0.1", port))
        answer, sender = bench.ecu.socket.recvfrom(65_535)
        assert (answer[16:], sender) == (payload, ("127.0.0.1", port))
    wait_until(lambda: bench.count("requests_open") == 0)
    assert bench.count("datagrams") == 2


def test_a_port_of_its_own_serves_tcp_too(bench: TwoPorts) -> None:
    call = OPEN_DOOR[:3] + b"\x02" + OPEN_DOOR[4:]
    with socket.create_connection(("127.0.0.1", bench.tcp), WITHIN_S) as client:
        client.sendall(call)
        assert client.recv(65_535)[16:] == b"9078"
    assert bench.endpoint.tcp_address.port == 0


# [utest->RPC-967, SD-850, SD-858, SD-758, SD-797]
def test_events_leave_from_the_port_of_their_instance(bench: TwoPorts) -> None:
    for provider, port in (("9077", bench.endpoint.address[1]), ("9078", bench.udp)):
        bench.endpoint.send(bench.event(UUri.parse(f"//hpc.vin1/{provider}/1/8001"), b"ajar"))
        datagram, sender = bench.ecu.socket.recvfrom(65_535)
        assert (datagram[16:], sender) == (b"ajar", ("127.0.0.1", port))


def test_an_instance_refuses_a_method_of_another(bench: TwoPorts) -> None:
    bench.ecu.socket.sendto(OPEN_DOOR[:3] + b"\x02" + OPEN_DOOR[4:], bench.endpoint.address)
    assert bench.ecu.receive()[14:16] == b"\x81\x03"
    assert bench.count("refused_request_method") == 1


def test_a_port_in_use_is_named(bench: TwoPorts) -> None:
    [port] = bench.endpoint._service_ports
    assert isinstance(port, ServicePort)
    assert len(list(port.problems())) == 2
