# SPDX-License-Identifier: Apache-2.0
"""The least that two Python processes can do between SOME/IP and dashboards: the floor below the streamer's cost.

    python -m benchmarks.traffic.bare_wamp_forwarder WAMP_PORT UDP_PORT DASHBOARDS

One process receives datagrams and writes them to a socket pair; its child reads them and sends each as an EVENT to all
dashboards. There are no routes, rates, users, limits or counters, and nothing else is served.
"""

import os
import socket
import sys
from base64 import b64encode
from selectors import EVENT_READ, DefaultSelector
from typing import Final

from benchmarks.traffic import sockets, wire

_MAX_DATAGRAM: Final = 65_536
_SWITCHING: Final = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"


def main(wamp_port: str, udp_port: str, dashboards: str) -> None:
    receiving = sockets.udp_socket(int(udp_port))
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        _serve(theirs, int(wamp_port), int(dashboards))
    theirs.close()
    ours.recv(1)  # it listens
    sockets.exit_with_parent()
    sockets.print_ready()
    while True:
        ours.send(receiving.recv(_MAX_DATAGRAM))


def _serve(events: socket.socket, port: int, dashboards: int) -> None:
    """Send each event to all dashboards, which connect first. Ends with the receiving process."""
    with socket.create_server((sockets.LOOPBACK, port), backlog=dashboards) as listening:
        events.send(b"\0")
        connected = _join(listening, dashboards)
    while datagram := events.recv(_MAX_DATAGRAM):
        frame = _frame(b'[36,1,1,{},["\\u0000%b"]]' % b64encode(datagram[wire.SOMEIP_HEADER.size :]))
        for each in connected:
            each.send(frame)
    sockets.exit_now()


def _join(listening: socket.socket, dashboards: int) -> list[socket.socket]:
    """The dashboards, each with its subscription. A dashboard sends its next message after each answer."""
    answers: dict[socket.socket, list[bytes]] = {}
    with DefaultSelector() as selector:
        selector.register(listening, EVENT_READ)
        while len(answers) < dashboards or any(answers.values()):
            for key, _ in selector.select():
                if key.fileobj is listening:
                    dashboard, _ = listening.accept()
                    dashboard.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    answers[dashboard] = [_frame(b"[33,1,1]"), _frame(b"[2,1,{}]"), _SWITCHING]
                    selector.register(dashboard, EVENT_READ, dashboard)
                else:
                    key.data.recv(_MAX_DATAGRAM)
                    key.data.sendall(answers[key.data].pop())
    return list(answers)


def _frame(text: bytes) -> bytes:
    size = len(text)
    return (bytes([0x81, size]) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")) + text


if __name__ == "__main__":
    main(*sys.argv[1:])
