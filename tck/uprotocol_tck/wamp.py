# SPDX-License-Identifier: Apache-2.0
"""A WAMP client over RawSocket, in JSON: as much as subscribing needs. https://wamp-proto.org"""

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import urlsplit

from uprotocol_tck.case import CaseFailed, NotJudged

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
NO_RIGHT: Final = frozenset({"wamp.error.not_authorized", "wamp.error.authorization_failed"})
"""The reasons of a broker that an action is not permitted."""
_MAGIC, _JSON_16_MIB, _MESSAGE = 0x7F, 0xF1, 0


class WampClient:
    """One session. A case fails if an expected message does not come."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._requests = itertools.count(1)
        self._waiting: list[list[Any]] = []

    def shake_hands(self) -> None:
        """RawSocket's handshake: messages of up to 16 MiB, in JSON."""
        self._write(bytes([_MAGIC, _JSON_16_MIB, 0, 0]))
        try:
            reply = self._exactly(4)
        except (OSError, EOFError) as error:
            raise CaseFailed(f"the RawSocket handshake has no answer: {error}") from None
        if reply[0] != _MAGIC or reply[1] & 0xF != _JSON_16_MIB & 0xF:
            raise CaseFailed(f"the RawSocket handshake is answered {reply.hex()}")

    def log_in(self, realm: str, authid: str, ticket: str) -> None:
        """Open the session, with a ticket if there is an authid. Raises NotJudged if the broker refuses the user."""
        details: dict[str, Any] = {"roles": {"subscriber": {}, "publisher": {}}, "authmethods": ["anonymous"]}
        if authid:
            details |= {"authid": authid, "authmethods": ["ticket"]}
        self.send(HELLO, realm, details)
        answer = self.wait(WELCOME, CHALLENGE, ABORT)
        if answer[0] == CHALLENGE:
            self.send(AUTHENTICATE, ticket, {})
            answer = self.wait(WELCOME, ABORT)
        if answer[0] != WELCOME:
            options = "--wamp-realm and --wamp-user"
            raise NotJudged(
                f"the broker refuses {authid or 'anonymous'} in the realm {realm}: {answer}; see {options}"
            )

    def send(self, *message: Any) -> None:
        body = json.dumps(message).encode()
        self._write(len(body).to_bytes(4, "big") + body)

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
        check_right(answer, f"subscribe {topic}")
        if answer[:2] != [SUBSCRIBED, request]:
            raise CaseFailed(f"SUBSCRIBE of {topic} is answered {answer}")
        return int(answer[2])

    def publish(self, topic: str, argument: Any) -> None:
        """PUBLISH, and wait until the broker has it."""
        request = self.request(PUBLISH, {"acknowledge": True}, topic, [argument])
        answer = self.wait(PUBLISHED, ERROR)
        check_right(answer, f"publish {topic}")
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
        try:
            message = json.loads(body)
        except ValueError:
            raise CaseFailed(f"{body[:80]!r} is no JSON") from None
        if not isinstance(message, list) or not message:
            raise CaseFailed(f"{message} is no WAMP message")
        return message

    def _write(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise CaseFailed(f"the connection of WAMP was closed: {error}") from None

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._connection.recv(size - len(data))
            if not part:
                raise EOFError("the broker closed the connection")
            data += part
        return data


def check_right(answer: list[Any], action: str) -> None:
    """Raises NotJudged if the broker does not permit this to the user of the kit."""
    if answer[0] == ERROR and len(answer) > 4 and answer[4] in NO_RIGHT:
        raise NotJudged(
            f"the broker does not let the user of --wamp-user {action} ({answer[4]}); "
            "--wamp-prefix names topics that it may publish and subscribe"
        )


@contextmanager
def wamp_client(address: str, realm: str, user: str, deadline_s: float) -> Iterator[WampClient]:
    """A session as subscriber and publisher. `address` is rs://host:port, `user` is authid:ticket or empty."""
    at = urlsplit(address)
    assert at.hostname
    assert at.port
    try:
        opened = socket.create_connection((at.hostname, at.port), timeout=deadline_s)
    except OSError as error:
        raise CaseFailed(f"nothing answers at --wamp {address}: {error}") from None
    with opened as connection:
        client = WampClient(connection)
        client.shake_hands()
        client.log_in(realm, *user.partition(":")[::2])
        yield client
        with suppress(CaseFailed):
            client.send(GOODBYE, {}, "wamp.close.close_realm")
