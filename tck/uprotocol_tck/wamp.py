# SPDX-License-Identifier: Apache-2.0
"""A WAMP client over RawSocket, in JSON: as much as subscribing needs. https://wamp-proto.org"""

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from uprotocol_tck.case import CaseFailed

HELLO, WELCOME, ABORT, CHALLENGE, AUTHENTICATE, GOODBYE, ERROR = 1, 2, 3, 4, 5, 6, 8
PUBLISH, PUBLISHED, SUBSCRIBE, SUBSCRIBED, UNSUBSCRIBE, UNSUBSCRIBED, EVENT = 16, 17, 32, 33, 34, 35, 36
_NAMES: Final = {
    ABORT: "ABORT",
    ERROR: "ERROR",
    PUBLISHED: "PUBLISHED",
    SUBSCRIBED: "SUBSCRIBED",
    UNSUBSCRIBED: "UNSUBSCRIBED",
    EVENT: "EVENT",
    WELCOME: "WELCOME",
    CHALLENGE: "CHALLENGE",
}
_MAGIC, _JSON_16_MIB, _MESSAGE = 0x7F, 0xF1, 0


class WampClient:
    """One session. A case fails if an expected message does not come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._requests = itertools.count(1)
        self._waiting: list[list[Any]] = []

    def shake_hands(self) -> None:
        """RawSocket's handshake: messages of up to 16 MiB, in JSON."""
        self._connection.sendall(bytes([_MAGIC, _JSON_16_MIB, 0, 0]))
        reply = self._exactly(4)
        if reply[0] != _MAGIC or reply[1] & 0xF != _JSON_16_MIB & 0xF:
            raise CaseFailed(f"the RawSocket handshake is answered {reply.hex()}")

    def log_in(self, realm: str, authid: str, ticket: str) -> None:
        """Open the session, with a ticket if there is an authid."""
        details: dict[str, Any] = {"roles": {"subscriber": {}, "publisher": {}}, "authmethods": ["anonymous"]}
        if authid:
            details |= {"authid": authid, "authmethods": ["ticket"]}
        self.send(HELLO, realm, details)
        answer = self.wait(WELCOME, CHALLENGE, ABORT)
        if answer[0] == CHALLENGE:
            self.send(AUTHENTICATE, ticket, {})
            answer = self.wait(WELCOME, ABORT)
        if answer[0] != WELCOME:
            raise CaseFailed(f"the realm {realm} is refused: {answer}")

    def send(self, *message: Any) -> None:
        body = json.dumps(message).encode()
        self._connection.sendall(len(body).to_bytes(4, "big") + body)

    def request(self, kind: int, *rest: Any) -> int:
        """Send a message with a new request id. Returns the id."""
        number = next(self._requests)
        self.send(kind, number, *rest)
        return number

    def wait(self, *kinds: int) -> list[Any]:
        """Wait for the next message of these kinds; others stay for later. ABORT stands for a closed connection."""
        for message in self._waiting:
            if message[0] in kinds:
                self._waiting.remove(message)
                return message
        names = " or ".join(_NAMES[kind] for kind in kinds)
        while True:
            try:
                message = self._receive()
            except TimeoutError:
                raise CaseFailed(f"no {names} came; instead {self._waiting[-3:]}") from None
            if message[0] in kinds:
                return message
            if message[0] == ABORT:
                raise CaseFailed(f"{message} came, expected {names}")
            self._waiting.append(message)

    def subscribe(self, topic: str) -> int:
        """SUBSCRIBE without options; the subscription id."""
        request = self.request(SUBSCRIBE, {}, topic)
        answer = self.wait(SUBSCRIBED, ERROR)
        if answer[:2] != [SUBSCRIBED, request]:
            raise CaseFailed(f"SUBSCRIBE of {topic} is answered {answer}")
        return int(answer[2])

    def publish(self, topic: str, argument: Any) -> None:
        """PUBLISH, and wait until the broker has it."""
        request = self.request(PUBLISH, {"acknowledge": True}, topic, [argument])
        answer = self.wait(PUBLISHED, ERROR)
        if answer[:2] != [PUBLISHED, request]:
            raise CaseFailed(f"PUBLISH to {topic} is answered {answer}")

    def _receive(self) -> list[Any]:
        try:
            header = self._exactly(4)
            body = self._exactly(int.from_bytes(header[1:], "big"))
        except (ConnectionError, EOFError):
            return [ABORT, {}, "the connection was closed"]
        if header[0] != _MESSAGE:
            raise CaseFailed(f"a RawSocket frame of type {header[0]}")
        message = json.loads(body)
        if not isinstance(message, list) or not message:
            raise CaseFailed(f"{message} is no WAMP message")
        return message

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise EOFError
            data += part
        return data


@contextmanager
def wamp_client(address: str, realm: str, user: str, deadline_s: float) -> Iterator[WampClient]:
    """A session as subscriber and publisher. `address` is rs://host:port, `user` is authid:ticket or empty."""
    at = urlsplit(address)
    if at.scheme != "rs" or not at.hostname or not at.port:
        raise CaseFailed(f"--wamp {address}: expected rs://host:port")
    with socket.create_connection((at.hostname, at.port), timeout=deadline_s) as connection:
        client = WampClient(connection)
        client.shake_hands()
        client.log_in(realm, *user.partition(":")[::2])
        yield client
        with suppress(OSError):
            client.send(GOODBYE, {}, "wamp.close.close_realm")
