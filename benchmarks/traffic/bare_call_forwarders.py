# SPDX-License-Identifier: Apache-2.0
"""The bare forwarders of calls: the shortest Python that does the same transport work, without routing.

    python -m benchmarks.traffic.bare_call_forwarders bare-to-someip ZENOH_PORT PORT ECU | bare-to-zenoh ZENOH_PORT PORT
    python -m benchmarks.traffic.bare_call_forwarders blind-to-someip ZENOH_PORT PORT ECU | blind-to-zenoh ZENOH_PORT PORT

The bare forwarder supports one service, one method and one Zenoh caller. It checks nothing, and removes only answered
calls. It needs one dict, because both protocols need correlation. A SOME/IP response belongs to a request by client
and session, so two pending calls must differ in them. A uProtocol Response has its own id and the reqid of its
request, otherwise no library delivers it. So each request has a session or an id, and the dict contains the data for
its response.

The blind forwarder has no dict: every message has the same header, and a response is sent to the last caller. One
caller that numbers its calls in their payloads works with it, but no real client would. It shows the cost of sockets
and sessions alone.

Both end when their stdin closes.
"""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from zenoh.handlers import FifoChannel

from benchmarks.traffic import sockets, wire

METHOD: Final = wire.Address(wire.ECU, wire.SERVICE, wire.MAJOR, 1)
"""A method of an ECU, called over Zenoh."""
OFFERED: Final = wire.Address(wire.STREAMER, wire.OFFERED, wire.MAJOR, 1)
"""A method of an application, called over SOME/IP."""
CLIENT: Final = wire.Address(wire.ECU, 0x0077, 1, 0)
TTL_MS: Final = 5_000
CHANNEL: Final = 1_024
PADDING: Final = bytes(48)
"""Payload of a call before its number."""


def bare_to_someip(zenoh_port: int, port: int, ecu: int) -> None:
    sock, session = sockets.udp_socket(port, ecu), sockets.zenoh_peer(zenoh_port)
    recv, send, monotonic_ns, time_ns = sock.recv, sock.send, time.monotonic_ns, time.time_ns
    put = sockets.blocking_publisher(session, wire.unicast_key(METHOD, wire.SUBSCRIBER)).put
    requests = session.declare_subscriber(wire.unicast_key(wire.SUBSCRIBER, METHOD), FifoChannel(CHANNEL))
    head, pack = wire.attachment_head, wire.SOMEIP_HEADER.pack
    tail = wire.response_tail(METHOD, wire.SUBSCRIBER, TTL_MS)
    pending: dict[bytes, bytes] = {}  # reqids, by session

    def forward_responses() -> None:
        while True:
            answer = recv(2_048)
            reqid = pending.pop(answer[10:12])
            put(answer[16:], attachment=head(time_ns() // 1_000_000, monotonic_ns()) + tail + reqid)

    threading.Thread(target=forward_responses, daemon=True).start()
    sockets.print_ready()
    number = 0
    while True:
        request = requests.recv()
        attachment, payload = request.attachment, request.payload.to_bytes()
        assert attachment is not None
        number = number % 0xFFFF + 1
        header = pack(wire.SERVICE, 1, len(payload) + 8, 1, number, 1, wire.MAJOR, 0, 0)
        pending[header[10:12]] = wire.reqid(attachment.to_bytes())
        send(header + payload)


def bare_to_zenoh(zenoh_port: int, port: int) -> None:
    sock, session = sockets.udp_socket(port), sockets.zenoh_peer(zenoh_port)
    recvfrom, sendto, time_ns = sock.recvfrom, sock.sendto, time.time_ns
    put = sockets.blocking_publisher(session, wire.unicast_key(CLIENT, OFFERED)).put
    answers = session.declare_subscriber(wire.unicast_key(OFFERED, CLIENT), FifoChannel(CHANNEL))
    head, pack = wire.attachment_head, wire.SOMEIP_HEADER.pack
    tail = wire.request_tail(CLIENT, OFFERED, TTL_MS)
    pending: dict[bytes, tuple[bytes, Any]] = {}  # client, session and sender, by the lower half of the id

    def forward_responses() -> None:
        while True:
            answer = answers.recv()
            attachment, payload = answer.attachment, answer.payload.to_bytes()
            assert attachment is not None
            request_id, address = pending.pop(wire.reqid_lsb(attachment.to_bytes()))
            header = pack(wire.OFFERED, 1, len(payload) + 8, 0, 0, 1, wire.MAJOR, 0x80, 0)
            sendto(header[:8] + request_id + header[12:] + payload, address)

    threading.Thread(target=forward_responses, daemon=True).start()
    sockets.print_ready()
    number = 0
    while True:
        request, address = recvfrom(2_048)
        number += 1
        id = head(time_ns() // 1_000_000, number)
        pending[id[-8:]] = request[8:12], address
        put(request[16:], attachment=id + tail)


def blind_to_someip(zenoh_port: int, port: int, ecu: int) -> None:
    sock, session = sockets.udp_socket(port, ecu), sockets.zenoh_peer(zenoh_port)
    put = sockets.blocking_publisher(session, wire.unicast_key(METHOD, wire.SUBSCRIBER)).put
    requests = session.declare_subscriber(wire.unicast_key(wire.SUBSCRIBER, METHOD), FifoChannel(CHANNEL))
    header = wire.SOMEIP_HEADER.pack(wire.SERVICE, 1, len(PADDING) + 16, 1, 1, 1, wire.MAJOR, 0, 0)
    attachment = wire.attachment_head(0, 0) + wire.response_tail(METHOD, wire.SUBSCRIBER, TTL_MS)

    def forward_responses() -> None:
        while True:
            put(sock.recv(2_048)[16:], attachment=attachment)

    threading.Thread(target=forward_responses, daemon=True).start()
    sockets.print_ready()
    while True:
        sock.send(header + requests.recv().payload.to_bytes())


def blind_to_zenoh(zenoh_port: int, port: int) -> None:
    sock, session = sockets.udp_socket(port), sockets.zenoh_peer(zenoh_port)
    put = sockets.blocking_publisher(session, wire.unicast_key(CLIENT, OFFERED)).put
    answers = session.declare_subscriber(wire.unicast_key(OFFERED, CLIENT), FifoChannel(CHANNEL))
    header = wire.SOMEIP_HEADER.pack(wire.OFFERED, 1, len(PADDING) + 16, 0x77, 1, 1, wire.MAJOR, 0x80, 0)
    attachment = wire.attachment_head(0, 0) + wire.request_tail(CLIENT, OFFERED, TTL_MS)
    callers: list[Any] = []

    def forward_responses() -> None:
        while True:
            sock.sendto(header + answers.recv().payload.to_bytes(), callers[0])

    threading.Thread(target=forward_responses, daemon=True).start()
    sockets.print_ready()
    while True:
        datagram, address = sock.recvfrom(2_048)
        callers[:] = [address]
        put(datagram[16:], attachment=attachment)


_ROLES: Final[dict[str, Callable[..., None]]] = {
    "bare-to-someip": bare_to_someip,
    "bare-to-zenoh": bare_to_zenoh,
    "blind-to-someip": blind_to_someip,
    "blind-to-zenoh": blind_to_zenoh,
}


if __name__ == "__main__":
    sockets.exit_with_parent()
    _ROLES[sys.argv[1]](*map(int, sys.argv[2:]))
