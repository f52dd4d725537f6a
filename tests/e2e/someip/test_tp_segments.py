# SPDX-License-Identifier: Apache-2.0
"""Messages longer than a datagram, in both directions.

The ECU segments and reassembles by the specification, in this file.
"""

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rigs import wire
from tests.e2e.rigs.entities import DEADLINE_S, ZenohEntity, ZenohSample
from tests.e2e.rigs.ports import tcp_ports, udp_ports
from tests.e2e.rigs.streamer import StreamerProcess
from tests.e2e.rigs.wire import Uri

REQUEST, NO_RETURN, NOTIFICATION, RESPONSE, ERROR = 0x00, 0x01, 0x02, 0x80, 0x81
MAP = Uri("chassis", 0x1234, 1, 0x8001)
NAVIGATION = Uri("hpc.vin1", 0x8401, 1, 0)
UPDATE, HORN, READ = (Uri("chassis", 0x3001, 1, method) for method in (1, 2, 3))

_CONFIG = """
authority = "hpc.vin1"
state_dir = "state"

[endpoints.backbone]
transport = "zenoh"
authorities = ["hpc.vin1"]
mode = "peer"
listen = ["tcp/127.0.0.1:{backbone}"]

[endpoints.chassis]
transport = "someip"
authorities = ["chassis"]
bind = "127.0.0.1"
port = {someip}
sd = false
tp = {{ message_bytes = 200000, peer_bytes = 400000, waiting_bytes = 500000 }}

[[endpoints.chassis.services]]
service = 0x1234
major = 1
events = [{{ id = 0x8001 }}]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x3001
major = 1
methods = [{{ id = 1, tp = true }}, {{ id = 2, no_return = true }}, 3]
remote = "127.0.0.1:{ecu}"

[[endpoints.chassis.services]]
service = 0x4001
major = 1
events = [{{ id = 0x8001 }}, {{ id = 0x8002, tp = {{ segment_bytes = 512, separation_us = 1000 }} }}]
methods = [1]
tp = true
offered = true
provider = "//hpc.vin1/8401/1/0"
remote = "127.0.0.1:{ecu}"

[plugins.usubscription]
"""


class TpEcu:
    """SOME/IP-TP as specified: 16 bytes of header, 4 of offset and flag, parts of 16 n bytes."""

    def __init__(self, port: int, streamer: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self.socket.bind(("127.0.0.1", port))
        self.socket.settimeout(DEADLINE_S)
        self._streamer = ("127.0.0.1", streamer)
        self.datagrams = 0

    def send_message(self, head: tuple[int, int, int, int, int, int], payload: bytes, size: int = 0) -> None:
        """Send a message; `size` is that of a segment, 0 for none, negative for reverse order.

        `head` is service, method, client, session, type and return code.
        """
        service, method, client, session, kind, code = head
        parts = [(0, payload)]
        if size:
            offsets = range(0, len(payload), abs(size))
            parts = [(each, payload[each : each + abs(size)]) for each in offsets]
        for offset, part in parts if size >= 0 else reversed(parts):
            tp = struct.pack(">I", offset | (offset + len(part) < len(payload))) if size else b""
            kind_on_wire = kind | (0x20 if size else 0)
            body = tp + part
            ids = struct.pack(
                ">HHIHHBBBB", service, method, len(body) + 8, client, session, 1, 1, kind_on_wire, code
            )
            self.socket.sendto(ids + body, self._streamer)

    def receive_message(self) -> tuple[tuple[int, int, int, int, int, int], bytes]:
        """Receive the next whole message."""
        parts: dict[int, bytes] = {}
        end = None
        while True:
            datagram = self.socket.recv(65_535)
            self.datagrams += 1
            service, method, length, client, session, _, _, kind, code = struct.unpack_from(
                ">HHIHHBBBB", datagram
            )
            assert length + 8 == len(datagram)
            if not kind & 0x20:
                return (service, method, client, session, kind, code), datagram[16:]
            (offset_field,) = struct.unpack_from(">I", datagram, 16)
            offset = offset_field & 0xFFFF_FFF0
            parts[offset] = datagram[20:]
            if not offset_field & 1:
                end = offset + len(datagram) - 20
            if end is not None and sum(map(len, parts.values())) == end:
                complete = b"".join(parts[each] for each in sorted(parts))
                return (service, method, client, session, kind & ~0x20, code), complete


class TpBench:
    def __init__(self, backbone: int, ecu: TpEcu) -> None:
        self.backbone = backbone
        self.ecu = ecu


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TpBench]:
    (backbone,), (someip, port) = tcp_ports(1), udp_ports(2)
    config: Path = tmp_path_factory.mktemp("segments") / "segments.toml"
    config.write_text(_CONFIG.format(backbone=backbone, someip=someip, ecu=port), encoding="utf-8")
    ecu = TpEcu(port, someip)
    with ecu.socket, StreamerProcess(config):
        yield TpBench(backbone, ecu)


@pytest.fixture
def app(bench: TpBench) -> Iterator[ZenohEntity]:
    with ZenohEntity(bench.backbone, "hpc.vin1") as peer:
        yield peer


@pytest.fixture
def navigation(bench: TpBench) -> Iterator[ZenohEntity]:
    with ZenohEntity(bench.backbone, NAVIGATION.authority, NAVIGATION.ue_id) as peer:
        yield peer


def noise(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


@pytest.mark.parametrize("size", [1_400, -512])
def test_an_event_in_segments_in_any_order_reaches_the_subscriber(
    bench: TpBench, app: ZenohEntity, size: int
) -> None:
    app.subscribe(MAP)
    segment, payload = size // 16 * 16, noise(150_000 + size)
    bench.ecu.send_message((0x1234, 0x8001, 0, 1, NOTIFICATION, 0), payload, segment)
    # The event of the test before comes once more if its subscriber left just now.
    app.inbox.wait_one(lambda each: each.payload == payload)


def test_a_long_publication_arrives_in_segments_before_its_successor(
    bench: TpBench, navigation: ZenohEntity
) -> None:
    navigation.publish(NAVIGATION.at(0x8002), noise(20_000))
    navigation.publish(NAVIGATION.at(0x8002), b"short")
    before = bench.ecu.datagrams
    (head, payload), (later, short) = bench.ecu.receive_message(), bench.ecu.receive_message()
    assert (payload, short) == (noise(20_000), b"short")
    assert head[:3] == later[:3] == (0x4001, 0x8002, 0)
    assert later[3] == head[3] + 1
    assert bench.ecu.datagrams - before == 40 + 1


def test_messages_above_the_waiting_limit_stay_queued_and_arrive_in_order(
    bench: TpBench, navigation: ZenohEntity
) -> None:
    bodies = [bytes([number]) * 20_000 for number in range(40)]  # 800 000 bytes; waiting_bytes is 500 000
    for body in bodies:
        navigation.publish(NAVIGATION.at(0x8002), body)
    assert [bench.ecu.receive_message()[1] for _ in bodies] == bodies


def test_a_long_publication_without_a_pause_arrives(bench: TpBench, navigation: ZenohEntity) -> None:
    navigation.publish(NAVIGATION.at(0x8001), noise(300_000))
    head, payload = bench.ecu.receive_message()
    assert payload == noise(300_000)
    assert head[:3] == (0x4001, 0x8001, 0)


def test_a_long_call_gets_a_long_answer(bench: TpBench, app: ZenohEntity) -> None:
    call_id = app.send_request(UPDATE, noise(100_000))
    head, payload = bench.ecu.receive_message()
    assert payload == noise(100_000)
    assert head[:3] == (0x3001, 1, app.address.ue_id)
    bench.ecu.send_message((*head[:4], RESPONSE, 0), payload[::-1], -1_392)
    assert app.wait_response(call_id).payload == noise(100_000)[::-1]


def test_a_long_answer_to_a_client(bench: TpBench, navigation: ZenohEntity) -> None:
    bench.ecu.send_message((0x4001, 1, 0x0077, 5, REQUEST, 0), b"all of it")

    def is_call(sample: ZenohSample) -> bool:
        return sample.payload == b"all of it"

    navigation.respond(navigation.inbox.wait_one(is_call), noise(120_000))
    head, payload = bench.ecu.receive_message()
    assert (head, payload) == ((0x4001, 1, 0x0077, 5, RESPONSE, 0), noise(120_000))


def test_a_fire_and_forget_call_is_confirmed_when_sent(bench: TpBench, app: ZenohEntity) -> None:
    answer = app.call(HORN, b"twice")
    assert (answer.head.commstatus, answer.payload) == (None, b"")
    head, payload = bench.ecu.receive_message()
    assert (head[4], payload) == (NO_RETURN, b"twice")


def test_a_service_specific_return_code_reaches_the_caller(bench: TpBench, app: ZenohEntity) -> None:
    call_id = app.send_request(READ, b"")
    head, _ = bench.ecu.receive_message()
    bench.ecu.send_message((*head[:4], ERROR, 0x2A), b"")
    answer = app.wait_response(call_id)
    assert answer.head.commstatus == wire.UNKNOWN
    assert "(0x2A)" in answer.status.message
    # details { type_url: "type.googleapis.com/...", value: SomeipReturnCode { return_code: 0x2A } }
    assert b"uprotocol.core.ustreamer.v1.SomeipReturnCode\x12\x02\x08\x2a" in answer.payload
