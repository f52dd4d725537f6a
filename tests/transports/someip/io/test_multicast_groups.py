# SPDX-License-Identifier: Apache-2.0
"""Event groups by multicast, and instances on one host, from the configuration. Real sockets."""

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import pytest

from ustreamer.core.routing.subscriptions import UNLIMITED
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.io.multicast_groups import MulticastGroups
from ustreamer.transports.someip.io.poller import Poller
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, decode, encode
from ustreamer.uprotocol.umessage import UMessage, publish
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

WITHIN_S = 30.0  # a generous limit: only a failing test waits for it
LOOPBACK = socket.inet_aton("127.0.0.1")
DOOR = UUri.parse("//hpc.vin1/9077/1/0")


def udp(stack: ExitStack, host: str = "127.0.0.1") -> socket.socket:
    opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    opened.bind((host, 0))
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, LOOPBACK)
    opened.settimeout(WITHIN_S)
    return opened


def member(stack: ExitStack, group: Address) -> socket.socket:
    """A member of a group, as a receiver of events."""
    opened = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    opened.bind(group)
    opened.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(group[0]) + LOOPBACK)
    opened.settimeout(WITHIN_S)
    return opened


def text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


class Bench:
    """An endpoint, two ECUs on one host, and a group with an unused port."""

    def __init__(self, stack: ExitStack, services: Callable[["Bench"], list[dict[str, Any]]]) -> None:
        self.ecu, self.second = udp(stack), udp(stack)
        self.group: Address = ("239.7.7.7", udp(stack).getsockname()[1])
        self.member = member(stack, self.group)
        config = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 0,
            "services": services(self),
        }
        self.endpoint = SomeipTransport(
            msgspec.convert(config, SomeipEndpoint), EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK)
        )
        stack.callback(self.endpoint.close)
        self._received: SimpleQueue[UMessage] = SimpleQueue()
        self.endpoint.register_listener(ANY, None, self._received.put)
        self.endpoint.open()

    def next_message(self) -> UMessage:
        return self._received.get(timeout=WITHIN_S)

    def is_quiet(self) -> bool:
        try:
            self._received.get_nowait()
        except Empty:
            return True
        return False

    def publish(self, event: int, payload: bytes) -> None:
        message = publish(UuidSource(SYSTEM_CLOCK.wall_ms).next(), DOOR.with_resource(event), payload)
        for each in self.endpoint.subscriptions():
            if each.topic == message.attributes.source:
                self.endpoint.transmitter(each.subscriber)(message)


@pytest.fixture
def make_bench() -> Iterator[Callable[[Callable[[Bench], list[dict[str, Any]]]], Bench]]:
    with ExitStack() as stack:
        yield lambda services: Bench(stack, services)


MakeBench = Callable[[Callable[[Bench], list[dict[str, Any]]]], Bench]


def event(number: int, payload: bytes, service: int = 0x1234) -> bytes:
    return encode(SomeIpMessage(service, number, 0, 1, 1, MessageType.NOTIFICATION, payload=payload))


def received_in_group(bench: Bench) -> list[dict[str, Any]]:
    return [
        {
            "service": 0x1234,
            "major": 1,
            "events": [{"id": 0x8001, "eventgroup": 1}, {"id": 0x8002, "eventgroup": 1}, {"id": 0x8003}],
            "remote": text(bench.ecu.getsockname()),
            "eventgroups": [{"id": 1, "multicast": text(bench.group)}],
        }
    ]


# [utest->RPC-811]
def test_events_of_a_configured_group_are_received(make_bench: MakeBench) -> None:
    bench = make_bench(received_in_group)
    bench.ecu.sendto(event(0x8001, b"one") + event(0x8002, b"two"), bench.group)
    assert [bench.next_message().payload for _ in range(2)] == [b"one", b"two"]
    bench.ecu.sendto(event(0x8003, b"alone"), bench.endpoint.address)
    assert bench.next_message().payload == b"alone"


def test_events_of_a_group_are_checked_like_unicast_events(make_bench: MakeBench) -> None:
    bench = make_bench(received_in_group)
    with ExitStack() as stack:
        udp(stack, "127.0.0.2").sendto(event(0x8001, b"forged"), bench.group)
        bench.ecu.sendto(event(0x8001, b"true"), bench.group)
        assert bench.next_message().payload == b"true"
    assert bench.is_quiet()
    assert bench.endpoint.statistics()["refused_event_address"] == 1


def offered_in_group(bench: Bench) -> list[dict[str, Any]]:
    return [
        {
            "service": 0x0777,
            "major": 1,
            "events": [{"id": 0x8001, "eventgroup": 1}, {"id": 0x8002, "eventgroup": 2}],
            "offered": True,
            "provider": "//hpc.vin1/9077/1/0",
            "remote": text(bench.ecu.getsockname()),
            "receivers": [{"address": text(bench.second.getsockname())}],
            "eventgroups": [{"id": 1, "multicast": text(bench.group)}],
            "tp": {"segment_bytes": 512},
        }
    ]


def test_an_event_of_a_group_is_sent_once_to_the_group_only(make_bench: MakeBench) -> None:
    bench = make_bench(offered_in_group)
    bench.publish(0x8001, b"to all")
    bench.publish(0x8002, b"to each")
    message, _ = decode(bench.member.recv(2_048))
    assert (message.service, message.method, message.payload) == (0x0777, 0x8001, b"to all")
    for receiver in (bench.ecu, bench.second):
        assert decode(receiver.recv(2_048))[0].payload == b"to each"
    bench.member.setblocking(False)
    with pytest.raises(BlockingIOError):
        bench.member.recv(2_048)


def test_an_event_of_two_groups_is_sent_to_both(make_bench: MakeBench) -> None:
    def services(bench: Bench) -> list[dict[str, Any]]:
        [service] = offered_in_group(bench)
        other = f"239.7.7.8:{bench.group[1]}"
        return [
            service
            | {
                "events": [{"id": 0x8001, "eventgroup": [1, 2]}, {"id": 0x8002, "eventgroup": 2}],
                "eventgroups": [*service["eventgroups"], {"id": 2, "multicast": other}],
            }
        ]

    bench = make_bench(services)
    found = [(each.topic.resource_id, str(each.subscriber)) for each in bench.endpoint.subscriptions()]
    assert found == [
        (0x8001, "up://chassis/20777/1/0"),
        (0x8001, "up://chassis/30777/1/0"),
        (0x8002, "up://chassis/30777/1/0"),
    ]
    with ExitStack() as stack:
        second = member(stack, ("239.7.7.8", bench.group[1]))
        bench.publish(0x8001, b"to both")
        for each in (bench.member, second):
            assert decode(each.recv(2_048))[0].payload == b"to both"


def test_the_group_is_one_subscriber_without_a_rate_limit(make_bench: MakeBench) -> None:
    bench = make_bench(offered_in_group)
    found = [
        (str(each.topic), str(each.subscriber), each.period_ns) for each in bench.endpoint.subscriptions()
    ]
    assert found == [
        ("up://hpc.vin1/9077/1/8002", "up://chassis/777/1/0", UNLIMITED),
        ("up://hpc.vin1/9077/1/8002", "up://chassis/10777/1/0", UNLIMITED),
        ("up://hpc.vin1/9077/1/8001", "up://chassis/20777/1/0", UNLIMITED),
    ]


def test_a_long_event_is_sent_to_the_group_in_segments(make_bench: MakeBench) -> None:
    bench = make_bench(offered_in_group)
    bench.publish(0x8001, bytes(1_000))
    kinds = [decode(bench.member.recv(2_048))[0].message_type for _ in range(2)]
    assert kinds == [MessageType.TP_NOTIFICATION, MessageType.TP_NOTIFICATION]


# [utest->RPC-813]
def test_with_a_threshold_of_0_there_is_no_multicast(make_bench: MakeBench) -> None:
    def services(bench: Bench) -> list[dict[str, Any]]:
        (service,) = offered_in_group(bench)
        return [service | {"eventgroups": [{"id": 1, "multicast": text(bench.group), "threshold": 0}]}]

    bench = make_bench(services)
    bench.publish(0x8001, b"to each")
    for receiver in (bench.ecu, bench.second):
        assert decode(receiver.recv(2_048))[0].payload == b"to each"


def test_instances_on_one_host_are_distinguished_by_the_source_port(
    make_bench: MakeBench,
) -> None:
    def services(bench: Bench) -> list[dict[str, Any]]:
        return [
            {
                "service": 0x1234,
                "instance": instance,
                "major": 1,
                "events": [{"id": 0x8001}],
                "remote": text(ecu.getsockname()),
            }
            for instance, ecu in ((1, bench.ecu), (2, bench.second))
        ]

    bench = make_bench(services)
    for ecu, source in ((bench.ecu, "up://chassis/1234/1/8001"), (bench.second, "up://chassis/21234/1/8001")):
        ecu.sendto(event(0x8001, b"x"), bench.endpoint.address)
        assert str(bench.next_message().attributes.source) == source
    with ExitStack() as stack:
        udp(stack).sendto(event(0x8001, b"unknown"), bench.endpoint.address)
        bench.ecu.sendto(event(0x8001, b"mine"), bench.endpoint.address)
        assert bench.next_message().payload == b"mine"
    assert bench.endpoint.statistics()["refused_event_address"] == 1


def test_a_group_that_cannot_be_joined_fails_the_open() -> None:
    groups = MulticastGroups("192.0.2.1", 65_536, lambda opened: lambda events: None)  # an unused address
    poller = Poller()
    groups.open(poller)
    with pytest.raises(UStatusError, match="cannot join 239.7.7.7 on the interface of 192.0.2.1") as refused:
        groups.join_all([("239.7.7.7", 30600)])
    assert refused.value.code is UCode.UNAVAILABLE
    groups.close()
    poller.close()


SD = {"multicast": "224.244.224.245", "interface": "10.0.0.1"}
GROUPED = {
    "service": 0x1234,
    "major": 1,
    "events": [{"id": 0x8001, "eventgroup": 1}],
    "remote": "10.0.0.2:30501",
    "eventgroups": [{"id": 1, "multicast": "239.1.1.1:30600"}],
}


@pytest.mark.parametrize(
    ("keys", "error"),
    [
        (
            {"sd": SD, "services": [GROUPED]},
            r"services\[0\].eventgroups: only for a service with offered = true",
        ),
        ({"bind": "0.0.0.0", "services": [GROUPED]}, r"expected a bind other than 0.0.0.0"),
        (
            {"services": [GROUPED | {"eventgroups": [{"id": 2, "multicast": "239.1.1.1:30600"}]}]},
            "no event of the service is in it",
        ),
        (
            {"services": [GROUPED | {"eventgroups": [{"id": 1, "multicast": "10.1.1.1:30600"}]}]},
            "expected a multicast group and a port",
        ),
    ],
)
def test_invalid_groups_are_refused(keys: dict[str, Any], error: str) -> None:
    base = {"transport": "someip", "authorities": ["chassis"], "bind": "10.0.0.1", "port": 30500}
    with pytest.raises(msgspec.ValidationError, match=error):
        msgspec.convert(base | keys, SomeipEndpoint)
