# SPDX-License-Identifier: Apache-2.0
"""Sessions without a network: a client's messages go to a real session, and the output of a real outbox is decoded."""

import asyncio
import json
import logging
import random
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ustreamer_wamp.auth import Authenticator, UserTable
from ustreamer_wamp.codec import SERIALIZERS, Serializer
from ustreamer_wamp.connections.outbox import OutboxLimits, SessionOutbox
from ustreamer_wamp.connections.rawsocket import WIRE_FORMATS
from ustreamer_wamp.realm import Backend, Env, NullBackend, Realm, SessionLimits
from ustreamer_wamp.session import Session
from ustreamer_wamp.users import Principal, User
from websockets.asyncio.client import ClientConnection as AsyncConnection
from websockets.asyncio.client import connect as connect_async
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from ustreamer.core.base.clock import ManualClock

if TYPE_CHECKING:
    from tests.car import Car

Message = list[Any]
DEADLINE_S = 30.0

BY_NAME = {each.name: each for each in SERIALIZERS}
ANONYMOUS = Principal("anonymous", "anonymous", "anonymous", "static", ("",), ("",), meta_api=True)
HELLO: Message = [1, "realm1", {"roles": {"subscriber": {}, "publisher": {}}}]


class Client:
    """One client and its session. `send` sends a message, `received` returns the messages since the last call."""

    def __init__(
        self, rig: "RealmRig", serializer: Serializer, limits: OutboxLimits, *, private: bool
    ) -> None:
        self.serializer = serializer
        self.written = b""
        self.closed: tuple[int, str] | None = None
        self.counts: Counter[str] = Counter()
        wire = WIRE_FORMATS[serializer.rawsocket]
        self.outbox = SessionOutbox(wire, limits, self._write, lambda: None, self.counts)
        self.send_reply, self.send_event = self.outbox.enqueue_reply, self.outbox.enqueue_event
        self.write_event = self.outbox.write_event
        self.report_dropped = self.outbox.report_dropped
        self.session = Session(
            {"realm1": rig.realm}, serializer, self, rig.clock.now_ns, peer="192.0.2.1", private=private
        )

    def _write(self, data: bytes) -> None:
        self.written += data

    def close(self, code: int, reason: str) -> None:
        assert self.closed is None, "closed twice"
        self.closed = (code, reason)

    def send(self, *message: Any) -> None:
        self.session.on_message(self.serializer.encode(list(message)))

    def received(self) -> list[Message]:
        self.outbox.flush()
        found, at = [], 0
        while at < len(self.written):
            size = int.from_bytes(self.written[at + 1 : at + 4], "big")
            message = self.serializer.decode(self.written[at + 4 : at + 4 + size])
            assert isinstance(message, list)
            found.append(message)
            at += 4 + size
        self.written = b""
        return found

    def request(self, *message: Any) -> Message:
        """Send a message and return its only response."""
        self.send(*message)
        (answer,) = self.received()
        return answer

    def join(self) -> "Client":
        assert self.request(*HELLO)[0] == 2
        return self

    def subscribe(self, topic: str, options: Mapping[str, Any] | None = None) -> int:
        """The id of a new or existing subscription."""
        self.send(32, 1, dict(options or {}), topic)
        received = self.received()
        assert received[0][:2] == [33, 1]
        return int(received[0][2])


class RealmRig:
    """A realm, a clock that is moved by hand, and the clients in it."""

    def __init__(
        self,
        *users: User,
        anonymous: Principal | None = ANONYMOUS,
        gate: Backend | None = None,
        **limits: Any,
    ) -> None:
        self.clock = ManualClock()
        rng = random.Random(1)
        monotonic_ns, wall_ms = self.clock.clock()
        bits = rng.getrandbits
        env = Env(monotonic_ns, wall_ms, bits, SessionLimits(**limits), gate or NullBackend(), bits)
        self.authenticator = Authenticator(UserTable(users, anonymous), rng.randbytes, wall_ms)
        self.realm = Realm("realm1", self.authenticator, env)

    def client(
        self, serializer: str = "json", limits: OutboxLimits | None = None, *, private: bool = True
    ) -> Client:
        """A connected client that has sent nothing."""
        return Client(self, BY_NAME[serializer], limits or OutboxLimits(), private=private)

    def joined_client(self, serializer: str = "json", limits: OutboxLimits | None = None) -> Client:
        """A client with a session."""
        return self.client(serializer, limits).join()


OPENED = ExitStack()
"""Connections of the test that runs; closed when it ends."""


class Peer:
    """A WebSocket client with a session."""

    def __init__(self, url: str, serializer: str = "json", **options: Any) -> None:
        self.serializer = BY_NAME[serializer]
        subprotocols: Any = [self.serializer.subprotocol]
        self.socket: ClientConnection = OPENED.enter_context(
            connect(url, subprotocols=subprotocols, compression=None, **options)
        )

    def send(self, *message: Any) -> None:
        data = self.serializer.encode(list(message))
        self.socket.send(data.decode() if self.serializer.is_text else data)

    def receive(self) -> Any:
        data = self.socket.recv(timeout=DEADLINE_S)
        assert isinstance(data, str) is self.serializer.is_text
        return self.serializer.decode(data.encode() if isinstance(data, str) else data)

    def request(self, *message: Any) -> Any:
        self.send(*message)
        return self.receive()

    def join(self) -> "Peer":
        assert self.request(*HELLO)[0] == 2
        return self

    def receive_within(self, seconds: float) -> Any:
        """The message received within that time, or None."""
        try:
            data = self.socket.recv(timeout=seconds)
        except TimeoutError:
            return None
        return self.serializer.decode(data.encode() if isinstance(data, str) else data)

    def join_publisher(self, authid: str = "p") -> "Peer":
        details = {"roles": {"publisher": {}}, "authmethods": ["ticket"], "authid": authid}
        assert self.request(1, "realm1", details)[0] == 4
        assert self.request(5, "t", {})[0] == 2
        return self

    def wait_closed(self) -> None:
        """Read all messages until the router closes."""
        with suppress(ConnectionClosed):
            while True:
                self.receive()

    def close_code(self) -> int:
        """The code with which the router closes."""
        with pytest.raises(ConnectionClosed):
            self.socket.recv(timeout=DEADLINE_S)
        return int(self.socket.close_code or 0)


class TlsPeer:
    """A WebSocket client with a session over TLS. One thread reads and writes: `Peer` has two, and ssl forbids that."""

    def __init__(self, url: str, context: ssl.SSLContext) -> None:
        self._loop = OPENED.enter_context(asyncio.Runner())
        self._socket = self._loop.run(self._connect(url, context))
        OPENED.callback(lambda: self._loop.run(self._socket.close()))
        assert self.request(*HELLO)[0] == 2

    async def _connect(self, url: str, context: ssl.SSLContext) -> AsyncConnection:
        subprotocol = Subprotocol(BY_NAME["json"].subprotocol)
        return await connect_async(url, subprotocols=[subprotocol], compression=None, ssl=context)

    async def _request(self, message: Message) -> Any:
        await self._socket.send(json.dumps(message))
        return json.loads(await asyncio.wait_for(self._socket.recv(), DEADLINE_S))

    def request(self, *message: Any) -> Any:
        return self._loop.run(self._request(list(message)))


@pytest.fixture(autouse=True)
def close_what_was_opened() -> Iterator[None]:
    yield
    OPENED.close()


class _Tracebacks(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(f"{record.getMessage()} {record.exc_info and record.exc_info[1]!r}")


@pytest.fixture(autouse=True)
def no_traceback() -> Iterator[list[str]]:
    """For any input of clients, no exception may reach asyncio, which would log it and close the connection."""
    handler, logger = _Tracebacks(), logging.getLogger("asyncio")
    logger.addHandler(handler)
    yield handler.found
    logger.removeHandler(handler)
    assert handler.found == []


@pytest.fixture
def rig() -> RealmRig:
    return RealmRig()


@pytest.fixture(scope="session")  # hypothesis rejects function-scoped fixtures
def make_rig() -> Callable[..., RealmRig]:
    return RealmRig


@pytest.fixture(params=["json", "msgpack", "cbor"])
def serializer(request: pytest.FixtureRequest) -> str:
    """Each of the three."""
    return str(request.param)


@pytest.fixture(params=["thread", pytest.param("process", marks=pytest.mark.soak)])
def make_car(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., "Car"]]:
    # Imported here: `tests.car` imports this module.
    if TYPE_CHECKING:
        from tests.car import Car
    else:
        from plugins.wamp.tests.car import Car

    cars: list[Car] = []

    def make(*more: str, **options: Any) -> Car:
        options.setdefault("in_process", request.param == "process")
        cars.append(Car(tmp_path, *more, **options))
        return cars[-1]

    yield make
    OPENED.close()  # first: a router that stops waits for the goodbyes of its clients
    for car in cars:
        car.stop()


@pytest.fixture
def car(make_car: Callable[..., "Car"]) -> "Car":
    return make_car()
