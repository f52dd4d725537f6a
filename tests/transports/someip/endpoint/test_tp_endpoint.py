# SPDX-License-Identifier: Apache-2.0
"""Long messages from a SOME/IP endpoint on real sockets, reassembled by peers that are plain sockets."""

import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from tests.waiting import wait_until
from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext, RouteUnavailable, Unconfirmed
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint import transport
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.protocol.addresses import Address
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode, split
from ustreamer.transports.someip.protocol.tp import Reassembly
from ustreamer.transports.someip.protocol.tp_config import TpLimits
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.uprotocol.umessage import UMessage, publish, request, response
from ustreamer.uprotocol.ustatus import UCode, UStatusError
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

WITHIN_S = 30.0  # a generous limit: only a failing test waits for it

METHOD = UUri.parse("//chassis/CD/4/B")
APP = UUri.parse("//device1/3AB/1/0")
MAP = UUri.parse("//hpc.vin1/9077/1/8001")
DOOR = UUri.parse("//hpc.vin1/9077/1/8002")
LIMITS = TpLimits(message_bytes=1 << 20, peer_bytes=1 << 22, total_bytes=1 << 22)


_SO_TIMESTAMPNS = 35  # Linux; not a constant of Python's socket module


def _seconds_and_ns(stamp: bytes) -> int:
    seconds, ns = struct.unpack("qq", stamp)
    return int(seconds) * 1_000_000_000 + int(ns)


class Ecu:
    """A UDP socket with reassembly; `datagrams` are the received datagrams."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self.socket.settimeout(WITHIN_S)
        self.address: Address = self.socket.getsockname()
        wait_until(self._stamps_at_arrival)
        self.reassembly = Reassembly(LIMITS)
        self.segments: list[SomeIpMessage] = []
        self.arrivals_ns: list[int] = []  # kernel timestamps, independent of the time of the read

    def _stamps_at_arrival(self) -> bool:
        """Whether a datagram gets its stamp when it arrives. The kernel enables this a while after the option was
        set; until then the stamp is the time of the read.
        """
        self.socket.sendto(b"", self.address)
        sent_ns = time.time_ns()
        _, ((_, _, stamp),), _, _ = self.socket.recvmsg(0, 64)
        return _seconds_and_ns(stamp) <= sent_ns

    def receive(self) -> SomeIpMessage:
        """The next whole message."""
        while True:
            datagram, ((_, _, stamp),), _, peer = self.socket.recvmsg(65_535, 64)
            (message,), _ = split(datagram)
            if not message.is_tp:
                return message
            self.segments.append(message)
            self.arrivals_ns.append(_seconds_and_ns(stamp))
            whole = self.reassembly.feed(message, peer, 0)
            if isinstance(whole, SomeIpMessage):
                return whole
            assert whole is None


class Bench:
    def __init__(self, stack: ExitStack, how: object, **keys: Any) -> None:
        self.ecu = Ecu()
        stack.callback(self.ecu.socket.close)
        remote = "{}:{}".format(*self.ecu.address)
        services = [
            {"service": 0x00CD, "major": 4, "methods": [{"id": 0x000B, "tp": how}], "remote": remote},
            {
                "service": 0x0777,
                "major": 2,
                "methods": [{"id": 1, "tp": how}],
                "events": [{"id": 0x8001, "tp": how}, {"id": 0x8002}],
                "offered": True,
                "provider": "//hpc.vin1/9077/1/0",
                "remote": remote,
            },
        ]
        base = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 0,
            "services": services,
        }
        config = msgspec.convert(base | keys, SomeipEndpoint)
        self.endpoint = SomeipTransport(config, EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK))
        stack.callback(self.endpoint.close)
        self.received: SimpleQueue[UMessage] = SimpleQueue()
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.received.put)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)
        (self.receiver,) = {each.subscriber for each in self.endpoint.subscriptions()}

    def event(self, payload: bytes, topic: UUri = MAP, ttl: int = 0) -> None:
        self.endpoint.transmitter(self.receiver)(publish(self.ids.next(), topic, payload, ttl=ttl))

    def wait(self, condition: Callable[[dict[str, int]], bool]) -> None:
        wait_until(lambda: condition(dict(self.endpoint.statistics())))


MakeBench = Callable[..., Bench]


@pytest.fixture
def make_bench() -> Iterator[MakeBench]:
    with ExitStack() as stack:

        def make(how: object = True, **keys: Any) -> Bench:
            bench = Bench(stack, how, **keys)
            bench.endpoint.open()
            return bench

        yield make


def noise(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


# [utest->TP-760, TP-762]
def test_an_event_longer_than_a_datagram_arrives_complete(make_bench: MakeBench) -> None:
    bench = make_bench()
    large = noise(100_000)
    bench.event(large)
    event = bench.ecu.receive()

    assert event == SomeIpMessage(0x0777, 0x8001, 0, 1, 2, MessageType.NOTIFICATION, payload=large)
    assert len(bench.ecu.segments) == 72
    assert {len(each.payload) for each in bench.ecu.segments[:-1]} == {1_392 + 4}
    assert {each.session for each in bench.ecu.segments} == {1}
    bench.wait(lambda count: count["tp_waiting"] == 0)
    assert bench.endpoint.statistics()["tp_segmented"] == bench.endpoint.statistics()["sent"] == 1


def test_an_event_that_fits_a_segment_is_one_datagram(make_bench: MakeBench) -> None:
    bench = make_bench()
    for size in (0, 1_392, 1_393):
        bench.event(noise(size))
    events = [bench.ecu.receive() for _ in range(3)]
    assert [len(each.payload) for each in events] == [0, 1_392, 1_393]
    assert [each.session for each in events] == [1, 2, 3]
    assert len(bench.ecu.segments) == 2


def wall_offset_ns() -> int:
    """The difference of the two clocks, to 20 us: read again if the thread was delayed meanwhile."""
    while True:
        before_ns, wall_ns, after_ns = (
            SYSTEM_CLOCK.monotonic_ns(),
            time.time_ns(),
            SYSTEM_CLOCK.monotonic_ns(),
        )
        if after_ns - before_ns < 20_000:
            return wall_ns - before_ns


# [utest->TP-801]
def test_segments_keep_the_configured_separation(make_bench: MakeBench) -> None:
    bench = make_bench({"segment_bytes": 512, "separation_us": 3_000})
    offset_ns = wall_offset_ns()
    bench.event(noise(5_000))
    assert bench.ecu.receive().payload == noise(5_000)
    steps_ns = abs(wall_offset_ns() - offset_ns)  # the kernel stamps with the wall clock
    pauses_ns = [later - earlier for earlier, later in pairwise(bench.ecu.arrivals_ns)]
    assert len(pauses_ns) == 9
    assert min(pauses_ns) >= 2_990_000 - steps_ns


def test_a_topic_keeps_its_order_and_no_other_topic_waits(make_bench: MakeBench) -> None:
    bench = make_bench({"separation_us": 5_000})
    bench.event(noise(4_000))
    bench.event(b"short")
    bench.event(noise(3_000))
    bench.event(b"lock", DOOR)
    assert [bench.ecu.receive().payload for _ in range(4)] == [b"lock", noise(4_000), b"short", noise(3_000)]


def test_a_long_request_gets_its_long_response(make_bench: MakeBench) -> None:
    bench = make_bench()
    bench.endpoint.send(request(bench.ids.next(), APP, METHOD, noise(200_000), ttl=10_000))
    sent_request = bench.ecu.receive()
    assert (sent_request.payload, sent_request.message_type, sent_request.client) == (
        noise(200_000),
        MessageType.REQUEST,
        0x3AB,
    )

    answer = msgspec.structs.replace(sent_request, message_type=MessageType.RESPONSE, payload=noise(100_000))
    for datagram in split_into_segments(answer):
        bench.ecu.socket.sendto(datagram, bench.endpoint.address)
    assert bench.received.get(timeout=WITHIN_S).payload == noise(100_000)


def test_a_client_gets_a_long_response(make_bench: MakeBench) -> None:
    bench = make_bench()
    sent_request = SomeIpMessage(0x0777, 1, 0x12, 9, 2, MessageType.REQUEST, payload=b"all of it")
    bench.ecu.socket.sendto(encode(sent_request), bench.endpoint.address)
    received = bench.received.get(timeout=WITHIN_S)
    bench.endpoint.send(response(bench.ids.next(), received, noise(150_000)))

    answer = bench.ecu.receive()
    assert answer == SomeIpMessage(0x0777, 1, 0x12, 9, 2, MessageType.RESPONSE, payload=noise(150_000))
    assert bench.endpoint.statistics()["requests_open"] == 0


# [utest->TP-788]
def test_without_tp_a_long_message_fails_and_the_error_names_the_setting(make_bench: MakeBench) -> None:
    bench = make_bench(how=False)
    with pytest.raises(UStatusError, match="`tp = true` of its event, method or service") as refused:
        bench.event(noise(70_000))
    assert refused.value.code is UCode.INVALID_ARGUMENT
    bench.event(noise(60_000))
    assert bench.ecu.receive().payload == noise(60_000)


def test_a_full_segment_queue_blocks_the_route_until_there_is_room(make_bench: MakeBench) -> None:
    bench = make_bench({"separation_us": 2_000}, tp={"waiting_bytes": 16_384})
    opened: SimpleQueue[object] = SimpleQueue()
    bench.endpoint.watch_routes(opened.put)
    bench.event(noise(16_000))
    with pytest.raises(RouteUnavailable) as refused:
        bench.event(noise(1_400))
    assert opened.empty()
    assert bench.ecu.receive().payload == noise(16_000)
    assert opened.get(timeout=WITHIN_S) == refused.value.route
    bench.event(noise(1_400))
    assert bench.ecu.receive().payload == noise(1_400)


def test_waiting_segments_are_sent_at_close(make_bench: MakeBench) -> None:
    bench = make_bench({"separation_us": 2_000})
    bench.event(noise(20_000))
    bench.endpoint.stop_receiving()
    bench.event(noise(10_000))
    bench.endpoint.close()
    assert [bench.ecu.receive().payload for _ in range(2)] == [noise(20_000), noise(10_000)]
    assert bench.endpoint.statistics()["tp_unsent"] == 0


def test_a_stop_counts_the_messages_whose_segments_it_could_not_send(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "JOIN_TIMEOUT_S", 0.01)
    bench = make_bench({"separation_us": 500_000})
    for _ in range(3):
        bench.event(noise(20_000))
    bench.endpoint.stop_receiving()
    assert bench.endpoint.finish() == Unconfirmed(forgotten=3)
    bench.endpoint.close()
    assert bench.endpoint.statistics()["tp_unsent"] == 3


def test_an_event_that_waits_for_its_segments_expires(make_bench: MakeBench) -> None:
    bench = make_bench({"separation_us": 20_000})
    bench.event(noise(20_000))
    bench.event(noise(10_000), ttl=100)
    bench.event(noise(5_000))
    assert [bench.ecu.receive().payload for _ in range(2)] == [noise(20_000), noise(5_000)]
    assert bench.endpoint.statistics()["tp_expired"] == 1


def test_the_limit_of_received_messages_is_the_configured_one(make_bench: MakeBench) -> None:
    bench = make_bench(tp={"message_bytes": 2_000})
    sent_request = SomeIpMessage(0x0777, 1, 0x12, 9, 2, MessageType.REQUEST)
    for size in (2_001, 2_000):
        for datagram in split_into_segments(msgspec.structs.replace(sent_request, payload=noise(size))):
            bench.ecu.socket.sendto(datagram, bench.endpoint.address)
    assert bench.received.get(timeout=WITHIN_S).payload == noise(2_000)
    assert bench.endpoint.statistics()["refused_tp_too_long"] == 1
