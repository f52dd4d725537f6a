# SPDX-License-Identifier: Apache-2.0
"""Minimal WAMP clients, so that the clients are not the bottleneck."""

import base64
import json
import selectors
import socket
import struct
import threading
import time
from typing import Final

TICKET: Final = "t"
TOPIC: Final = "com.example.benchmark"
_TEXT: Final = 0x81
_PING: Final = 0x89
_PONG: Final = b"\x8a\x80\0\0\0\0"


class WampClient:
    """A minimal WebSocket client for one subprotocol."""

    def __init__(self, port: int, *, publisher: bool = False) -> None:
        self.socket = socket.socket()
        try:
            self._join(port, publisher=publisher)
        except BaseException:
            self.socket.close()
            raise

    def _join(self, port: int, *, publisher: bool) -> None:
        self.socket.settimeout(10)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        self.socket.connect(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(b"0123456789abcdef").decode()
        self.socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: wamp.2.json\r\n\r\n".encode()
        )
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += self.socket.recv(1)
        if b" 101 " not in head.split(b"\r\n")[0]:
            raise RuntimeError(head.decode())
        roles: dict[str, object] = {"publisher": {}} if publisher else {"subscriber": {}}
        login = {"authmethods": ["ticket", "anonymous"], "authid": "p"} if publisher else {}
        answer = self.request([1, "realm1", {"roles": roles, **login}])
        if answer[0] == 4:
            answer = self.request([5, TICKET, {}])
        if answer[0] != 2:
            raise RuntimeError(str(answer))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, message: list[object]) -> list[object]:
        self.send_bytes(text_frame(json.dumps(message).encode()))
        first, size = self._receive_exactly(2)
        size &= 0x7F
        if size == 126:
            (size,) = struct.unpack("!H", self._receive_exactly(2))
        answer: list[object] = json.loads(self._receive_exactly(size))
        return answer if first else []

    def _receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            data += self.socket.recv(size - len(data))
        return data


def text_frame(payload: bytes) -> bytes:
    """A text frame of a client; a mask of zeros is one, too."""
    size = len(payload)
    head = bytes([0x81, 0x80 | size]) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    return head + b"\0\0\0\0" + payload


class SubscriberClients:
    """Subscribers on one thread; `counts` are the received events of each, `latencies_ns` their ages."""

    def __init__(self, port: int, subscribers: int) -> None:
        self._selector = selectors.DefaultSelector()
        self.counts = [0] * subscribers
        self.latencies_ns: list[int] | None = None
        self.timed = range(subscribers)
        self._buffers = [bytearray() for _ in range(subscribers)]
        self.clients = [WampClient(port) for _ in range(subscribers)]
        for index, client in enumerate(self.clients):
            if client.request([32, 1, {}, TOPIC])[0] != 33:
                raise RuntimeError("not subscribed")
            client.socket.setblocking(False)
            self._selector.register(client.socket, selectors.EVENT_READ, index)
        self._closed = False
        self._stalled: set[int] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed:
            for key, _ in self._selector.select(0.1):
                index: int = key.data
                try:
                    self._parse_frames(index, self.clients[index].socket.recv(1 << 20))
                except BlockingIOError:
                    continue

    def _parse_frames(self, index: int, data: bytes) -> None:
        buffer = self._buffers[index]
        buffer += data
        at, end, events = 0, len(buffer), 0
        while end - at >= 4:
            size, head = buffer[at + 1], 2
            if size == 126:
                size, head = struct.unpack_from("!H", buffer, at + 2)[0], 4
            if end - at < head + size:
                break
            if buffer[at] == _PING:
                self.clients[index].socket.send(_PONG)
            events += buffer[at] == _TEXT
            if self.latencies_ns is not None and buffer[at] == _TEXT and index in self.timed:
                self._record_latency(bytes(buffer[at + head : at + head + size]))
            at += head + size
        del buffer[:at]
        self.counts[index] += events

    def _record_latency(self, event: bytes) -> None:
        message = json.loads(event)
        assert self.latencies_ns is not None
        if message[0] == 36:
            self.latencies_ns.append(time.monotonic_ns() - message[5]["sent"])

    def all_received(self, events: int) -> bool:
        """Whether every reading subscriber has this number of events."""
        return min(count for index, count in enumerate(self.counts) if index not in self._stalled) >= events

    def pause_reading(self, index: int) -> None:
        self._stalled.add(index)
        self._selector.unregister(self.clients[index].socket)

    def resume_reading(self, index: int) -> None:
        self._stalled.remove(index)
        self._selector.register(self.clients[index].socket, selectors.EVENT_READ, index)

    def close(self) -> None:
        self._closed = True
        self._thread.join()
        for client in self.clients:
            client.socket.close()
        self._selector.close()
