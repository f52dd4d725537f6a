# SPDX-License-Identifier: Apache-2.0
"""The rig of the endpoint tests: a `SomeipTransport` on real sockets, its ECU, and golden frames."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

import msgspec
import pytest

from ustreamer.host.runtime.clock import SYSTEM_CLOCK
from ustreamer.transport_port import EndpointContext
from ustreamer.transports.someip.config import SomeipEndpoint
from ustreamer.transports.someip.endpoint.transport import SomeipTransport
from ustreamer.transports.someip.protocol.addresses import Address, format_address, open_socket
from ustreamer.transports.someip.protocol.codec import MalformedReason
from ustreamer.transports.someip.protocol.mapping import SomeipRefusal
from ustreamer.transports.someip.protocol.tp import TpReason
from ustreamer.uprotocol.umessage import UMessage, publish, request
from ustreamer.uprotocol.uuid import UuidSource
from ustreamer.uprotocol.uuri import ANY, UUri

WITHIN_S = 30.0  # a generous limit: only a failing test waits for it
TOPIC = UUri.parse("//chassis/10AB/3/80CD")
METHOD = UUri.parse("//chassis/CD/4/B")
APP = UUri.parse("//device1/3AB/1/0")
DOOR = UUri.parse("//hpc.vin1/9077/1/8001")
WINDOW = UUri.parse("//hpc.vin1/9077/1/8002")
EVENT = bytes.fromhex("10ab80cd0000000d000000010103020068656c6c6f")
REQUEST = bytes.fromhex("00cd000b0000000a03ab0001010400006869")
RESPONSE = bytes.fromhex("00cd000b0000000a03ab0001010480006f6b")
ERROR = bytes.fromhex("00cd000b0000000803ab000101048102")
OPEN_DOOR = bytes.fromhex("077700010000000c001200090102000064303031")  # client 0x12, session 9, payload d001


class Peer:
    """A plain UDP socket on loopback, as on an ECU."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.socket = open_socket(host, socket.SOCK_DGRAM)
        self.socket.bind((host, 0))
        self.socket.settimeout(WITHIN_S)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.address: Address = self.socket.getsockname()[:2]

    def __str__(self) -> str:
        return format_address(self.address)

    def send(self, to: SomeipTransport, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.socket.sendto(datagram, to.address)

    def receive(self) -> bytes:
        return self.socket.recv(65_535)


class ReceivedMessages:
    """A listener that keeps received messages."""

    def __init__(self) -> None:
        self._received: SimpleQueue[UMessage] = SimpleQueue()

    def __call__(self, message: UMessage) -> None:
        self._received.put(message)

    def next(self) -> UMessage:
        return self._received.get(timeout=WITHIN_S)

    def is_quiet(self) -> bool:
        return self._received.empty()


class Bench:
    """An endpoint between an ECU (events, a climate service, a receiver) and listeners for everything."""

    def __init__(self, stack: ExitStack, host: str = "127.0.0.1", **keys: Any) -> None:
        self._stack, self._host = stack, host
        self.ecu, self.second = self.peer(host), self.peer(host)
        self.endpoint = self.another(self.config(**keys))
        self.listener = ReceivedMessages()
        for sink in (None, ANY):
            self.endpoint.register_listener(ANY, sink, self.listener)
        self.ids = UuidSource(SYSTEM_CLOCK.wall_ms)

    def peer(self, host: str = "127.0.0.1") -> Peer:
        peer = Peer(host)
        self._stack.callback(peer.socket.close)
        return peer

    def another(self, config: SomeipEndpoint) -> SomeipTransport:
        endpoint = SomeipTransport(config, EndpointContext("chassis", "hpc.vin1", SYSTEM_CLOCK))
        self._stack.callback(endpoint.close)
        return endpoint

    def config(self, **keys: Any) -> SomeipEndpoint:
        services = [
            {"service": 0x10AB, "major": 3, "events": [{"id": 0x80CD}], "remote": str(self.ecu)},
            {"service": 0x00CD, "major": 4, "methods": [0x000B], "remote": str(self.ecu)},
            {
                "service": 0x0777,
                "major": 2,
                "methods": [1],
                "events": [{"id": 0x8001}, {"id": 0x8002}],
                "offered": True,
                "provider": "//hpc.vin1/9077/1/0",
                "remote": str(self.ecu),
                "receivers": [{"address": str(self.second), "max_frequency": 40}],
            },
        ]
        base = {
            "transport": "someip",
            "authorities": ["chassis"],
            "bind": self._host,
            "port": 0,
            "clients": [self._host],
            "services": services,
        }
        return msgspec.convert(base | keys, SomeipEndpoint)

    def request(self, ttl: int = 10_000, payload: bytes = b"hi") -> UMessage:
        return request(self.ids.next(), APP, METHOD, payload, ttl=ttl)

    def event(self, topic: UUri = DOOR, payload: bytes = b"ajar") -> UMessage:
        return publish(self.ids.next(), topic, payload)

    def count(self, name: str) -> int:
        return self.endpoint.statistics()[name]

    def is_asleep(self) -> bool:
        """Whether the receiving thread has no input and no due work."""
        return self.endpoint._receive_loop.sleeping_until_ns > 0

    @contextmanager
    def kernel_error(self, error: OSError) -> Iterator[None]:
        """Fail every send of the endpoint with `error`."""

        def refuse(_datagram: bytes, _address: Address) -> object:
            raise error

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self.endpoint._outbound, "sendto", refuse)
            yield


BAD: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", MalformedReason.TRUNCATED_HEADER),
    "half a header": (EVENT[:7], MalformedReason.TRUNCATED_HEADER),
    "a length beyond the end": (EVENT[:-1], MalformedReason.LENGTH_BEYOND_DATAGRAM),
    "a length of 4 GiB": (
        EVENT[:4] + b"\xff\xff\xff\xff" + EVENT[8:],
        MalformedReason.LENGTH_BEYOND_DATAGRAM,
    ),
    "a length too small": (EVENT[:4] + bytes(4) + EVENT[8:], MalformedReason.LENGTH_TOO_SMALL),
    "another protocol": (EVENT[:12] + b"\x02" + EVENT[13:], MalformedReason.PROTOCOL_VERSION),
    "an unknown type": (EVENT[:14] + b"\x55" + EVENT[15:], MalformedReason.UNKNOWN_MESSAGE_TYPE),
    "an invalid segment": (EVENT[:14] + b"\x22" + EVENT[15:], TpReason.TP_TOO_LONG),
    "an acknowledgement": (EVENT[:14] + b"\x42" + EVENT[15:], SomeipRefusal.MESSAGE_TYPE),
    "an unknown event": (b"\x10\xab\x80\xce" + EVENT[4:], SomeipRefusal.EVENT_UNKNOWN),
    "an event of another version": (EVENT[:13] + b"\x04" + EVENT[14:], SomeipRefusal.EVENT_VERSION),
    "an unsolicited response": (RESPONSE, SomeipRefusal.RESPONSE_UNSOLICITED),
    "a request for an unknown service": (REQUEST, SomeipRefusal.REQUEST_SERVICE),
}


class BlockingListener(ReceivedMessages):
    """A listener that blocks in its first call until `go`, so that later datagrams accumulate."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.go = threading.Event(), threading.Event()
        self.batches: list[int] = []

    def __call__(self, message: UMessage) -> None:
        self.entered.set()
        assert self.go.wait(WITHIN_S)
        super().__call__(message)

    def on_batch(self, messages: Sequence[UMessage]) -> None:
        self.batches.append(len(messages))
        for message in messages:
            self(message)
