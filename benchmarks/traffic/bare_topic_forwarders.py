# SPDX-License-Identifier: Apache-2.0
"""The bare forwarders of many topics and calls: the shortest Python that does the same transport work, without routing.

    python -m benchmarks.traffic.bare_topic_forwarders zenoh-to-zenoh ZENOH_PORT OTHER_ZENOH_PORT
    python -m benchmarks.traffic.bare_topic_forwarders udp-to-zenoh   ZENOH_PORT UDP_PORT
    python -m benchmarks.traffic.bare_topic_forwarders zenoh-to-udp   ZENOH_PORT UDP_PORT SINK_PORT

They keep one publisher or header for each topic. A dict holds the requests without a response, because both protocols
need correlation; between Zenoh networks nothing is held. They end when their stdin closes.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import zenoh
from zenoh.handlers import FifoChannel

from benchmarks.traffic import sockets, wire
from benchmarks.traffic.models import CALLER, ECU_CALLER, method

_CHANNEL: Final = 1_024
_TTL_MS: Final = 10_000
_MESSAGE_MAX: Final = 2_048
_HEADER: Final = wire.SOMEIP_HEADER
_REQUEST: Final = 0x00


def zenoh_to_zenoh(zenoh_port: int, other_port: int) -> None:
    """Put every sample unchanged to its key in the other network. Responses go in the other direction."""
    source, target = sockets.zenoh_peer(zenoh_port), sockets.zenoh_peer(other_port)
    answers = target.declare_subscriber(f"up/{wire.CLOUD}/**", FifoChannel(_CHANNEL))
    messages = source.declare_subscriber(f"up/{wire.STREAMER}/**", FifoChannel(_CHANNEL))
    threading.Thread(target=_forward, args=(answers, source), daemon=True).start()
    sockets.print_ready()
    _forward(messages, target)


def _forward(samples: "zenoh.Subscriber[zenoh.Handler[zenoh.Sample]]", target: zenoh.Session) -> None:
    publishers: dict[str, Callable[..., Any]] = {}
    while True:
        sample = samples.recv()
        key = str(sample.key_expr)
        put = publishers.get(key)
        if put is None:
            put = publishers[key] = sockets.blocking_publisher(target, key).put
        put(sample.payload, attachment=sample.attachment)


def udp_to_zenoh(zenoh_port: int, udp_port: int) -> None:
    """Put the payload of every datagram to the key of its event."""
    sock, session = sockets.udp_socket(udp_port), sockets.zenoh_peer(zenoh_port)
    called = method(wire.STREAMER)
    call = sockets.blocking_publisher(session, wire.unicast_key(ECU_CALLER, called)).put
    call_tail = wire.request_tail(ECU_CALLER, called, _TTL_MS)
    answers = session.declare_subscriber(wire.unicast_key(called, ECU_CALLER), FifoChannel(_CHANNEL))
    pending: dict[bytes, tuple[bytes, Any]] = {}  # header and sender, by the second half of the id

    def forward_responses() -> None:
        while True:
            sample = answers.recv()
            assert sample.attachment is not None
            header, address = pending.pop(wire.reqid_lsb(sample.attachment.to_bytes()))
            sock.sendto(header[:14] + b"\x80\x00" + sample.payload.to_bytes(), address)

    threading.Thread(target=forward_responses, daemon=True).start()
    parts: dict[bytes, tuple[Callable[..., Any], bytes]] = {}
    sockets.print_ready()
    number = 0
    while True:
        datagram, address = sock.recvfrom(_MESSAGE_MAX)
        number += 1
        head = wire.attachment_head(time.time_ns() // 1_000_000, number)
        if datagram[14] == _REQUEST:
            pending[head[-8:]] = datagram[:16], address
            call(datagram[16:], attachment=head + call_tail)
            continue
        part = parts.get(datagram[:4])
        if part is None:
            service, event = int.from_bytes(datagram[:2]), int.from_bytes(datagram[2:4])
            topic = wire.Address(wire.ECU, service, wire.MAJOR, event)
            put = sockets.blocking_publisher(session, wire.publish_key(topic)).put
            part = parts[datagram[:4]] = put, wire.publish_tail(topic)
        put, tail = part
        put(datagram[16:], attachment=head + tail)


def zenoh_to_udp(zenoh_port: int, udp_port: int, sink_port: int) -> None:
    """Send every payload with the header of its topic."""
    sock, session = sockets.udp_socket(udp_port, sink_port), sockets.zenoh_peer(zenoh_port)
    called = method(wire.ECU)
    call_key, answer_tail = wire.unicast_key(CALLER, called), wire.response_tail(called, CALLER, _TTL_MS)
    answer = sockets.blocking_publisher(session, wire.unicast_key(called, CALLER)).put
    pending: dict[bytes, bytes] = {}  # reqids, by session

    def forward_responses() -> None:
        while True:
            datagram = sock.recv(_MESSAGE_MAX)
            head = wire.attachment_head(time.time_ns() // 1_000_000, time.monotonic_ns())
            answer(datagram[16:], attachment=head + answer_tail + pending.pop(datagram[10:12]))

    threading.Thread(target=forward_responses, daemon=True).start()
    samples = session.declare_subscriber(f"up/{wire.STREAMER}/**", FifoChannel(_CHANNEL))
    events: dict[str, tuple[int, int]] = {}
    pack, send = _HEADER.pack, sock.send
    sockets.print_ready()
    number = 0
    while True:
        sample = samples.recv()
        number = number % 0xFFFF + 1
        key, body = str(sample.key_expr), sample.payload.to_bytes()
        if key == call_key:
            assert sample.attachment is not None
            request = wire.someip_request(called.service, called.resource, 1, number, body)
            pending[request[10:12]] = wire.reqid(sample.attachment.to_bytes())
            send(request)
            continue
        ids = events.get(key)
        if ids is None:
            chunks = key.split("/")
            ids = events[key] = int(chunks[2], 16), int(chunks[5], 16)
        send(pack(*ids, len(body) + 8, 0, number, 1, wire.MAJOR, 2, 0) + body)


_KINDS: Final[dict[str, Callable[..., None]]] = {
    "zenoh-to-zenoh": zenoh_to_zenoh,
    "udp-to-zenoh": udp_to_zenoh,
    "zenoh-to-udp": zenoh_to_udp,
}


if __name__ == "__main__":
    sockets.exit_with_parent()
    _KINDS[sys.argv[1]](*map(int, sys.argv[2:]))
