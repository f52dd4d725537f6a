# SPDX-License-Identifier: Apache-2.0
"""The sockets of service discovery on loopback, and those of multicast event groups."""

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.rigs.ports import udp_ports
from ustreamer.transports.someip.io.multicast_groups import MAX_GROUPS, MulticastGroups
from ustreamer.transports.someip.io.poller import Handler, Poller
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.sd.sockets import ReceivedDatagram, SdSockets
from ustreamer.uprotocol.ustatus import UCode, UStatusError

GROUP = "224.244.224.245"
WITHIN_S = 30.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as closing:
        yield closing


def make_sockets(stack: ExitStack, number: int, host: str) -> SdSockets:
    opened = SdSockets((host, number), (GROUP, number))
    opened.open()
    stack.callback(opened.close)
    return opened


def received_by(listener: SdSockets) -> ReceivedDatagram:
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        for received in listener.receive(8):
            return received
    raise AssertionError("nothing was received")


# [utest->SD-27]
def test_multicasts_and_unicasts_are_distinguished(stack: ExitStack) -> None:
    [number] = udp_ports(1)
    local, remote = (make_sockets(stack, number, host) for host in ("127.0.0.1", "127.0.0.2"))

    remote.send(b"all", None)
    assert received_by(local)[:3] == (b"all", ("127.0.0.2", number), True)
    remote.send(b"you", ("127.0.0.1", number))
    assert received_by(local)[:3] == (b"you", ("127.0.0.2", number), False)


def test_the_wait_of_a_message_is_known_to_the_millisecond(stack: ExitStack) -> None:
    [number] = udp_ports(1)
    local, remote = (make_sockets(stack, number, host) for host in ("127.0.0.1", "127.0.0.2"))
    for to in (None, ("127.0.0.1", number)):
        before = time.time_ns()
        remote.send(b"?", to)
        received = received_by(local)
        behind = time.time_ns()  # not before: on a busy machine a datagram arrives after the end of its send
        assert received.arrived_ns is not None
        assert before <= received.arrived_ns <= behind
        later_ms = received.arrived_ns // 1_000_000 + 70
        assert 69_000_000 < received.waited_ns(later_ms) <= 70_000_000


@pytest.mark.parametrize(("set_by_ms", "waited_ns"), [(-5_000, 0), (3_600_000, 10_000_000_000)])
def test_a_clock_step_yields_a_bounded_wait(set_by_ms: int, waited_ns: int) -> None:
    received = ReceivedDatagram(b"", ("127.0.0.2", 1), True, 1_700_000_000_000_000_000)
    assert received.waited_ns(1_700_000_000_000 + set_by_ms) == waited_ns
    assert ReceivedDatagram(b"", ("127.0.0.2", 1), True).waited_ns(set_by_ms) == 0


def test_a_foreign_bind_address_is_named_in_the_error(stack: ExitStack) -> None:
    [number] = udp_ports(1)
    with pytest.raises(UStatusError, match=rf"198.51.100.1:{number}") as refused:
        make_sockets(stack, number, "198.51.100.1")
    assert refused.value.code is UCode.UNAVAILABLE


def test_a_failed_send_is_counted(stack: ExitStack) -> None:
    [number] = udp_ports(1)
    local = make_sockets(stack, number, "127.0.0.1")
    local.send(bytes(70_000), None)
    assert local.send_failed == 1


def test_the_group_is_received_after_a_rejoin(stack: ExitStack) -> None:
    [number] = udp_ports(1)
    local, remote = (make_sockets(stack, number, host) for host in ("127.0.0.1", "127.0.0.2"))
    local.rejoin()
    remote.send(b"again", None)
    assert received_by(local).datagram == b"again"


# --- groups of events -------------------------------------------------------------------------------------------------


class Bench:
    def __init__(self, stack: ExitStack) -> None:
        self.received: list[bytes] = []
        self.poller = Poller()
        stack.callback(self.poller.close)
        self.groups = MulticastGroups("127.0.0.1", 65_536, self._reader)
        self.groups.open(self.poller)
        stack.callback(self.groups.close)
        self.sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton("127.0.0.1"))
        stack.callback(self.sender.close)

    def _reader(self, opened: socket.socket) -> Handler:
        return lambda events: self.received.append(opened.recv(100))

    def send(self, datagram: bytes, group: Address) -> None:
        self.sender.sendto(datagram, group)
        self.poller.wait(0.2 if len(self.groups) == 0 else WITHIN_S)


def test_a_group_is_received_until_its_last_release(stack: ExitStack) -> None:
    bench = Bench(stack)
    group = ("239.1.1.1", udp_ports(1)[0])
    bench.groups.set_membership("first", group)
    bench.groups.set_membership("second", group)
    bench.send(b"1", group)
    bench.groups.rejoin()
    bench.send(b"2", group)
    bench.groups.set_membership("first", None)
    bench.groups.set_membership("first", None)
    bench.send(b"3", group)
    bench.groups.set_membership("second", None)
    bench.send(b"4", group)
    assert bench.received == [b"1", b"2", b"3"]
    assert len(bench.groups) == 0


def test_the_number_of_groups_is_limited(stack: ExitStack) -> None:
    bench = Bench(stack)
    ports = udp_ports(MAX_GROUPS + 1)
    for number in ports:
        bench.groups.set_membership(number, ("239.1.1.2", number))
    assert (len(bench.groups), bench.groups.not_joined) == (MAX_GROUPS, 1)
    bench.groups.set_membership(ports[-1], None)
    bench.groups.set_membership(ports[0], None)
    assert len(bench.groups) == MAX_GROUPS - 1


def test_a_group_that_cannot_be_joined_is_counted(stack: ExitStack) -> None:
    bench = Bench(stack)
    bench.groups.set_membership("it", ("10.0.0.1", 1))
    assert (len(bench.groups), bench.groups.not_joined) == (0, 1)
    bench.groups.set_membership("it", None)


def test_a_moved_event_group_is_received_in_its_new_group_only(stack: ExitStack) -> None:
    bench = Bench(stack)
    first, second = (("239.1.1.1", number) for number in udp_ports(2))
    bench.groups.set_membership("it", first)
    bench.groups.set_membership("it", second)
    bench.send(b"2", second)
    assert (bench.received, len(bench.groups)) == ([b"2"], 1)
