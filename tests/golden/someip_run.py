# SPDX-License-Identifier: Apache-2.0
"""A fixed run of a SOME/IP endpoint on loopback: its datagrams, and the messages that it makes of input.

Covered: events, fields, requests, responses, errors, E2E-protected payloads, batches, SOME/IP-TP and TCP.
"""

import socket
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue

import msgspec

from tests.golden.frames import Frame, numbered
from ustreamer.core.base.clock import ManualClock
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.protocol.codec import MessageType, SomeIpMessage, encode
from ustreamer.transports.someip.protocol.correlation import OutboundCall
from ustreamer.transports.someip.protocol.mapping import decode_response
from ustreamer.transports.someip.protocol.return_codes import SomeipFailure, encode_failure
from ustreamer.transports.someip.protocol.tp_segmenter import split_into_segments
from ustreamer.uprotocol.batch import IdColumns, MessageBatch
from ustreamer.uprotocol.uattributes import UPayloadFormat
from ustreamer.uprotocol.umessage import (
    UMessage,
    error_response,
    publish,
    request,
    response,
    response_attributes,
)
from ustreamer.uprotocol.ustatus import UCode, UStatus
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri
from ustreamer.uprotocol.wire import encode_tail

WITHIN_S = 30.0
APP = UUri.parse("//device1/3AB/1/0")
METHOD = UUri.parse("//chassis/CD/4/B")
NO_RETURN = UUri.parse("//chassis/CD/4/C")
LONG_METHOD = UUri.parse("//chassis/CD/4/D")
TCP_METHOD = UUri.parse("//chassis/CE/1/1")
DOOR = UUri.parse("//hpc.vin1/9077/1/8001")
WINDOW = UUri.parse("//hpc.vin1/9077/1/8002")
MAP = UUri.parse("//hpc.vin1/9077/1/8003")
E2E_PROFILE_4 = bytes.fromhex("0014000700000ab1d5a1c3e9") + b"protected"
"""Length, counter, data id and CRC-32 of AUTOSAR E2E profile 4, and data: opaque for the streamer."""
E2E_PROFILE_1 = bytes.fromhex("9b07") + b"old"
"""CRC-8 and counter of AUTOSAR E2E profile 1, and data."""
E_E2E = 0x0D


def run(_directory: Path) -> list[Frame]:
    """The frames of the run."""
    with ExitStack() as stack:
        rig = _Rig(stack)
        return [
            *_events(rig),
            *_received_events(rig),
            *_calls(rig),
            *_batches_of_calls(rig),
            *_served_requests(rig),
            *_refused_requests(rig),
            *_segments(rig),
            *_tcp(rig),
            *_failures_with_text(),
        ]


class _Rig:
    """The endpoint, its ECU on UDP and TCP, and a listener for everything."""

    def __init__(self, stack: ExitStack) -> None:
        self.clock = ManualClock()
        self.ids = UuidSource(self.clock.clock().wall_ms, lambda _: 0)
        self.received: SimpleQueue[UMessage] = SimpleQueue()
        self.tcp_listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.tcp_listener.settimeout(WITHIN_S)
        self.stack = stack
        self.ecu, self.second = self._udp_socket(), self._udp_socket()
        self.endpoint = SomeipTransport(
            self._config(), EndpointContext("chassis", "hpc.vin1", self.clock.clock())
        )
        stack.callback(self.endpoint.close)
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.received.put)
        self.endpoint.open()

    def _udp_socket(self) -> socket.socket:
        opened = self.stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        opened.bind(("127.0.0.1", 0))
        opened.settimeout(WITHIN_S)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        return opened

    def _config(self) -> SomeipEndpoint:
        ecu = _address_text(self.ecu)
        segments = {"segment_bytes": 64}
        called = [0x000B, {"id": 0x000C, "no_return": True}, {"id": 0x000D, "tp": segments}]
        events = [{"id": 0x80CD}, {"id": 0x80CE, "field": True}]
        services = [
            {"service": 0x10AB, "major": 3, "events": events, "remote": ecu},
            {"service": 0x00CD, "major": 4, "methods": called, "remote": ecu},
            {
                "service": 0x00CE,
                "major": 1,
                "methods": [1],
                "protocol": "tcp",
                "remote": _address_text(self.tcp_listener),
            },
            {
                "service": 0x0777,
                "major": 2,
                "methods": [1, {"id": 2, "no_return": True}, {"id": 3, "tp": segments}],
                "events": [{"id": 0x8001}, {"id": 0x8002, "field": True}, {"id": 0x8003, "tp": segments}],
                "offered": True,
                "provider": "//hpc.vin1/9077/1/0",
                "remote": ecu,
                "receivers": [{"address": _address_text(self.second), "max_frequency": 40}],
            },
        ]
        section = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": "127.0.0.1",
            "port": 0,
            "clients": ["127.0.0.1"],
            "services": services,
        }
        return msgspec.convert(section, SomeipEndpoint)

    def publish(self, topic: UUri, payload: bytes) -> UMessage:
        return publish(self.ids.next(), topic, payload)

    def request(self, method: UUri, payload: bytes) -> UMessage:
        return request(self.ids.next(), APP, method, payload, ttl=10_000)

    def send_from_ecu(self, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.ecu.sendto(datagram, self.endpoint.address)

    def receive_at_ecu(self, count: int) -> list[bytes]:
        return [self.ecu.recv(65_535) for _ in range(count)]

    def next_message(self) -> UMessage:
        """The next message that the endpoint received."""
        return self.received.get(timeout=WITHIN_S)


def _address_text(opened: socket.socket) -> str:
    host, port = opened.getsockname()
    return f"{host}:{port}"


def _as_bytes(message: UMessage) -> bytes:
    """A received message without its id, which the endpoint draws at random."""
    return encode_tail(message.attributes) + b"|" + message.payload


def _received(name: str, messages: Iterable[UMessage]) -> list[Frame]:
    return numbered(name, map(_as_bytes, messages))


def _events(rig: _Rig) -> list[Frame]:
    """Events and a field to two receivers, one by one and in a batch."""
    first, second = (each.subscriber for each in rig.endpoint.subscriptions() if each.topic == DOOR)
    to_first, to_second = rig.endpoint.transmitter(first), rig.endpoint.transmitter(second)
    for payload in (b"ajar", b"", E2E_PROFILE_4, E2E_PROFILE_1):
        to_first(rig.publish(DOOR, payload))
    to_first(rig.publish(WINDOW, b"field value"))
    to_second(rig.publish(DOOR, b"shut"))
    frames = numbered("event to the first receiver", rig.receive_at_ecu(5))
    frames.append(("event to the second receiver", rig.second.recv(65_535)))
    batch = [rig.publish(DOOR, b"%04d" % number) for number in range(12)]
    columns = MessageBatch.from_messages(batch)
    assert columns is not None
    assert rig.endpoint.batch_transmitter(first)(columns) == 12
    mixed = [rig.publish(WINDOW, b"w"), rig.publish(DOOR, b"longer"), rig.publish(WINDOW, b"x")]
    assert rig.endpoint.batch_transmitter(first)(mixed) == 3
    return [*frames, *numbered("event in a batch", rig.receive_at_ecu(15))]


def _received_events(rig: _Rig) -> list[Frame]:
    """Events, a field notification and E2E payloads from the ECU, as messages."""
    for method, payload in ((0x80CD, b"hello"), (0x80CE, b"value"), (0x80CD, E2E_PROFILE_4), (0x80CD, b"")):
        rig.send_from_ecu(
            encode(SomeIpMessage(0x10AB, method, 0, 1, 3, MessageType.NOTIFICATION, 0, payload))
        )
    return _received("received event", (rig.next_message() for _ in range(4)))


def _calls(rig: _Rig) -> list[Frame]:
    """Requests of the vehicle, and the responses of the ECU as messages."""
    for payload in (b"hi", b"", E2E_PROFILE_4):
        rig.endpoint.send(rig.request(METHOD, payload))
    requests = rig.receive_at_ecu(3)
    rig.endpoint.send(rig.request(NO_RETURN, b"fire"))
    frames = [
        *numbered("request", requests),
        *numbered("request without return", rig.receive_at_ecu(1)),
        ("outcome of a request without return", _as_bytes(rig.next_message())),
    ]
    for each, payload in zip(requests, (b"ok", b"", E2E_PROFILE_1), strict=True):
        rig.send_from_ecu(_response_to(each, payload))
    return [*frames, *_received("received response", (rig.next_message() for _ in range(3)))]


def _response_to(asked: bytes, payload: bytes) -> bytes:
    """The RESPONSE of an ECU to a request."""
    service, method, client, session = (int.from_bytes(asked[at : at + 2], "big") for at in (0, 2, 8, 10))
    return encode(
        SomeIpMessage(service, method, client, session, asked[13], MessageType.RESPONSE, 0, payload)
    )


def _batches_of_calls(rig: _Rig) -> list[Frame]:
    """Ten requests in one batch, after the fast path has learned the method."""
    asked = rig.request(METHOD, b"0000")
    ids = [rig.ids.next() for _ in range(10)]
    columns = IdColumns([each.msb for each in ids], [each.lsb for each in ids])
    batch = MessageBatch(asked.attributes, columns, [b"%04d" % number for number in range(10)])
    assert rig.endpoint.batch_transmitter(None)(batch) == 10
    return numbered("request in a batch", rig.receive_at_ecu(10))


def _served_requests(rig: _Rig) -> list[Frame]:
    """Requests of the ECU as messages, and our responses and errors."""
    frames = list[Frame]()
    no_return = SomeIpMessage(0x0777, 2, 0x12, 8, 2, MessageType.REQUEST_NO_RETURN, 0, b"d000")
    rig.send_from_ecu(encode(no_return))
    frames.append(("received request without return", _as_bytes(rig.next_message())))
    replies = [
        ("response", b"D001", None),
        ("response with E2E", E2E_PROFILE_4, None),
        *((f"error {code.name}", b"", UStatus(code, "asleep")) for code in UCode if code is not UCode.OK),
    ]
    for session, (name, payload, status) in enumerate(replies, 9):
        rig.send_from_ecu(encode(SomeIpMessage(0x0777, 1, 0x12, session, 2, MessageType.REQUEST, 0, b"d001")))
        asked = rig.next_message()
        frames.append((f"received request {session}", _as_bytes(asked)))
        id = rig.ids.next()
        rig.endpoint.send(
            response(id, asked, payload) if status is None else error_response(id, asked, status)
        )
        frames += numbered(name, rig.receive_at_ecu(1))
    return [*frames, *_forwarded_errors(rig), *_batches_of_responses(rig)]


def _forwarded_errors(rig: _Rig) -> list[Frame]:
    """ERRORs of another SOME/IP service, which keep return code and payload."""
    frames = list[Frame]()
    for session, return_code in enumerate((E_E2E, 0x0B, 0x2A), 100):
        rig.send_from_ecu(encode(SomeIpMessage(0x0777, 1, 0x12, session, 2, MessageType.REQUEST, 0, b"d001")))
        asked = rig.next_message()
        detail = encode_failure(
            UStatus(UCode.UNKNOWN, "of another service"), SomeipFailure(return_code, b"why")
        )
        attributes = response_attributes(asked, UCode.UNKNOWN, UPayloadFormat.PROTOBUF)
        rig.endpoint.send(UMessage(rig.ids.next(), attributes, detail))
        frames += numbered(f"forwarded error {return_code:#04x}", rig.receive_at_ecu(1))
    return frames


def _batches_of_responses(rig: _Rig) -> list[Frame]:
    """Ten responses in one batch."""
    requests = [
        encode(SomeIpMessage(0x0777, 1, 0x12, session, 2, MessageType.REQUEST, 0, b"many"))
        for session in range(200, 210)
    ]
    rig.send_from_ecu(*requests)
    asked = [rig.next_message() for _ in requests]
    ids = [rig.ids.next() for _ in asked]
    batch = MessageBatch(
        msgspec.structs.replace(response(ids[0], asked[0]).attributes, reqid=None),
        IdColumns([each.msb for each in ids], [each.lsb for each in ids]),
        [b"%04d" % number for number in range(10)],
        [each.id for each in asked],
    )
    assert rig.endpoint.batch_transmitter(None)(batch) == 10
    return numbered("response in a batch", rig.receive_at_ecu(10))


def _refused_requests(rig: _Rig) -> list[Frame]:
    """The ERRORs for requests that are refused or malformed."""
    good = SomeIpMessage(0x0777, 1, 0x12, 77, 2, MessageType.REQUEST, 0, b"d001")
    refused = {
        "service": encode(msgspec.structs.replace(good, service=0x0778)),
        "method": encode(msgspec.structs.replace(good, method=9)),
        "version": encode(msgspec.structs.replace(good, interface_version=1)),
        "type": encode(msgspec.structs.replace(good, method=2)),
        "client": encode(msgspec.structs.replace(good, client=0xFFFF)),
        "protocol version": encode(good)[:12] + b"\x02" + encode(good)[13:],
        "length": encode(good)[:-1],
    }
    frames = list[Frame]()
    for name, datagram in refused.items():
        rig.send_from_ecu(datagram)
        frames += numbered(f"refused request, {name}", rig.receive_at_ecu(1))
    return frames


def _segments(rig: _Rig) -> list[Frame]:
    """SOME/IP-TP: a request, a response and an event in segments of 64 bytes, and default segments."""
    long = bytes(range(256))[:200]
    rig.endpoint.send(rig.request(LONG_METHOD, long))
    frames = numbered("segment of a request", rig.receive_at_ecu(4))
    rig.send_from_ecu(encode(SomeIpMessage(0x0777, 3, 0x12, 300, 2, MessageType.REQUEST, 0, b"long")))
    rig.endpoint.send(response(rig.ids.next(), rig.next_message(), long))
    frames += numbered("segment of a response", rig.receive_at_ecu(4))
    first = rig.endpoint.subscriptions()[0].subscriber
    rig.endpoint.transmitter(first)(rig.publish(MAP, long[:128]))
    rig.endpoint.transmitter(first)(rig.publish(MAP, b"short"))
    frames += numbered("segment of an event", rig.receive_at_ecu(3))
    event = SomeIpMessage(0x10AB, 0x80CD, 0, 5, 3, MessageType.NOTIFICATION, 0, long * 10)
    default = list(split_into_segments(event))
    rig.send_from_ecu(*default)
    frames += numbered("segment of default size", default)
    return [*frames, ("received event in segments", _as_bytes(rig.next_message()))]


def _tcp(rig: _Rig) -> list[Frame]:
    """Requests over TCP, back to back, and a response as a message."""
    rig.endpoint.send(rig.request(TCP_METHOD, b"over"))
    rig.endpoint.send(rig.request(TCP_METHOD, b"tcp"))
    connection, _ = rig.tcp_listener.accept()
    with connection:
        connection.settimeout(WITHIN_S)
        stream = b""
        while len(stream) < 2 * 16 + len(b"overtcp"):
            stream += connection.recv(4096)
        connection.sendall(_response_to(stream, b"answer"))
        return [("requests over TCP", stream), ("received over TCP", _as_bytes(rig.next_message()))]


def _failures_with_text() -> list[Frame]:
    """Error responses for ERRORs of an ECU at a fixed address, with the text for people."""
    asked = request(UuidSource(lambda: 1_700_000_000_000, lambda _: 0).next(), APP, METHOD, ttl=1_000)
    call = OutboundCall(asked, 0x00CD, 0x000B, ("192.0.2.7", 30_501))
    frames = list[Frame]()
    for return_code in (0, 1, 2, 4, 6, E_E2E, 0x2A, 0xFF):
        answer = SomeIpMessage(0x00CD, 0x000B, 0x03AB, 1, 4, MessageType.ERROR, return_code, b"why")
        attributes, payload = decode_response(call, answer)
        frames.append((f"received error {return_code:#04x}", encode_tail(attributes) + b"|" + payload))
    return frames
