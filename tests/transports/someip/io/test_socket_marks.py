# SPDX-License-Identifier: Apache-2.0
"""The interface, the DSCP and the priority of the sockets of an endpoint."""

import socket
from contextlib import ExitStack

import msgspec
import pytest

from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.waiting import wait_until
from ustreamer.core.base.clock import Clock
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.io.connected_sockets import open_connected
from ustreamer.transports.someip.io.tcp_connection import open_listener, start_connect
from ustreamer.transports.someip.io.udp import bind_udp
from ustreamer.transports.someip.protocol.addresses import TcpAddress
from ustreamer.transports.someip.protocol.socket_marks import SocketMarks
from ustreamer.transports.someip.sd.sockets import SdSockets
from ustreamer.uprotocol.ustatus import UStatusError

MARKS = SocketMarks(dscp=10, priority=5, interface="lo")
CLOCK: Clock = SYSTEM_CLOCK


def marks_of(opened: socket.socket) -> SocketMarks:
    return SocketMarks(
        opened.getsockopt(socket.IPPROTO_IP, socket.IP_TOS) >> 2,
        opened.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY),
        opened.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0").decode() or None,
    )


def endpoint(stack: ExitStack, **settings: object) -> SomeipTransport:
    [port], [port_tcp], [sd] = udp_ports(1), tcp_ports(1), udp_ports(1)
    service = {
        "service": 0x1234,
        "major": 1,
        "protocol": "tcp",
        "methods": [1],
        "offered": True,
        "provider": "//hpc.vin1/1/1/0",
    }
    config = {
        "transport": "someip",
        "authorities": ["chassis"],
        "bind": "127.0.0.1",
        "port": port,
        "port_tcp": port_tcp,
        "sd": {"multicast": "224.244.224.245", "port": sd, "interface": "127.0.0.1"},
        "services": [service],
        **settings,
    }
    made = SomeipTransport(
        msgspec.convert(config, SomeipEndpoint), EndpointContext("chassis", "hpc.vin1", CLOCK)
    )
    stack.callback(made.close)
    return made


def test_udp_tcp_and_discovery_sockets_have_the_marks() -> None:
    with ExitStack() as stack:
        udp = stack.enter_context(bind_udp(("127.0.0.1", 0), MARKS))
        listener = stack.enter_context(open_listener(("127.0.0.1", 0), MARKS))
        address = TcpAddress(*listener.getsockname())
        connecting = stack.enter_context(start_connect(address, "127.0.0.1", MARKS))
        sd = SdSockets(("127.0.0.1", udp_ports(1)[0]), ("224.244.224.245", udp_ports(1)[0]), MARKS)
        stack.callback(sd.close)
        sd.open()
        assert [marks_of(each) for each in (udp, listener, connecting, *sd.sockets)] == [MARKS] * 5


def test_a_socket_for_one_sender_has_the_interface() -> None:
    with ExitStack() as stack:
        own = stack.enter_context(bind_udp(("127.0.0.1", 0), MARKS))
        connected = stack.enter_context(open_connected([own], ("127.0.0.1", 9), 65_536))
        assert marks_of(connected).interface == "lo"


def test_without_settings_the_kernel_decides() -> None:
    with bind_udp(("127.0.0.1", 0)) as udp:
        assert marks_of(udp) == SocketMarks(0, 0, None)


def test_an_endpoint_receives_and_accepts_with_its_marks() -> None:
    with ExitStack() as stack:
        made = endpoint(stack, dscp=10, vlan_priority=5, interface="lo")
        made.open()
        assert made._socket is not None
        assert marks_of(made._socket) == MARKS
        stack.enter_context(socket.create_connection(made.tcp_address))
        wait_until(lambda: made.statistics()["tcp_accepted"] == 1)
        assert made._connections is not None
        [accepted] = made._connections._connections.values()
        assert marks_of(accepted.socket) == MARKS


def test_an_unknown_interface_is_named() -> None:
    with ExitStack() as stack:
        made = endpoint(stack, interface="none0")
        with pytest.raises(UStatusError, match="No such device .interface none0: there is no such interface"):
            made.open()


@pytest.mark.parametrize("settings", [{"vlan_priority": 8}, {"interface": "a b"}, {"interface": "x" * 16}])
def test_invalid_settings_are_refused(settings: dict[str, object]) -> None:
    with ExitStack() as stack, pytest.raises(msgspec.ValidationError):
        endpoint(stack, **settings)
