# SPDX-License-Identifier: Apache-2.0
"""A WAMP client at byte level: WebSocket with JSON over plain TCP, and whatever else an attacker sends."""

import base64
import json
import os
import socket
import struct
from types import TracebackType
from typing import Any, Final, Self

from ustreamer.host.attack.target import WampPlace

HELLO, WELCOME, ABORT, CHALLENGE, AUTHENTICATE, ERROR = 1, 2, 3, 4, 5, 8
PUBLISH, PUBLISHED, SUBSCRIBE, SUBSCRIBED, EVENT = 16, 17, 32, 33, 36
CALL, RESULT, REGISTER, REGISTERED = 48, 50, 64, 65
TEXT, PING = 0x1, 0x9
_TIMEOUT_S: Final = 2.0
_ROLES: Final[dict[str, Any]] = {"roles": {"subscriber": {}, "publisher": {}, "caller": {}, "callee": {}}}


class WampSocket:
    """A connection from one host. `receive` raises OSError when the streamer has closed it."""

    def __init__(self, place: WampPlace, host: str) -> None:
        self._place = place
        self.socket = socket.create_connection((place.host, place.port), _TIMEOUT_S, (host, 0))
        self._buffer = b""

    def upgrade(self, origin: str = "") -> str:
        """The WebSocket handshake; returns the status line."""
        lines = [
            f"GET {self._place.path or '/'} HTTP/1.1",
            f"Host: {self._place.host}:{self._place.port}",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Protocol: wamp.2.json",
            *([f"Origin: {origin}"] if origin else []),
        ]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._buffer:
            self._read()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        return head.partition(b"\r\n")[0].decode(errors="replace")

    def join(self, **details: Any) -> Any:
        """Upgrade and HELLO; the first message of the streamer."""
        self.upgrade()
        return self.ask(HELLO, self._place.realm, _ROLES | details)

    def ask(self, *message: Any) -> Any:
        """Send a message, and receive the next one that is no EVENT."""
        self.send(*message)
        while (answer := self.receive())[0] == EVENT:
            pass
        return answer

    def send(self, *message: Any) -> None:
        self.send_frame(TEXT, json.dumps(message).encode())

    def send_frame(
        self, opcode: int, payload: bytes, *, length: int | None = None, final: bool = True
    ) -> None:
        """A masked frame; `length` overrides the true one."""
        size = len(payload) if length is None else length
        if size < 126:
            head = bytes((opcode | final << 7, 0x80 | size))
        elif size < 1 << 16:
            head = struct.pack(">BBH", opcode | final << 7, 0x80 | 126, size)
        else:
            head = struct.pack(">BBQ", opcode | final << 7, 0x80 | 127, size)
        self.socket.sendall(head + bytes(4) + payload)  # a mask of zeros

    def receive(self) -> Any:
        """The next message."""
        while True:
            opcode, payload = self._frame()
            if opcode == TEXT:
                return json.loads(payload)
            if opcode == 0x8:
                raise ConnectionError(payload[2:].decode(errors="replace"))

    def _frame(self) -> tuple[int, bytes]:
        self._fill(2)
        size, at = self._buffer[1] & 0x7F, 2
        if size >= 126:
            width = 2 if size == 126 else 8
            self._fill(2 + width)
            size, at = int.from_bytes(self._buffer[2 : 2 + width], "big"), 2 + width
        self._fill(at + size)
        opcode, payload = self._buffer[0] & 0xF, self._buffer[at : at + size]
        self._buffer = self._buffer[at + size :]
        return opcode, payload

    def _fill(self, size: int) -> None:
        while len(self._buffer) < size:
            self._read()

    def _read(self) -> None:
        data = self.socket.recv(65_536)
        if not data:
            raise ConnectionError("closed by the streamer")
        self._buffer += data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()
