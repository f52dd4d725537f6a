# SPDX-License-Identifier: Apache-2.0
"""The server below the WAMP endpoint, without sockets and without asyncio: a loop on a simulated thread.

Real: the endpoint, the bridge, the realm and its sessions. Simulated: `WampServer`, the connections, the clients.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, ParamSpec

import ustreamer_wamp.router
from ustreamer_wamp.codec import SERIALIZERS
from ustreamer_wamp.config import WampConfig
from ustreamer_wamp.realm import Realm
from ustreamer_wamp.session import Session
from ustreamer_wamp.vehicle.mapping import topic_of

from tests.simulation import primitives
from tests.simulation.scheduler import NS_PER_MS, NS_PER_S, Process, Scheduler
from ustreamer.uprotocol.uuri import UUri

P = ParamSpec("P")

ROUTER: Final = ustreamer_wamp.router.__name__
_TICK_NS: Final = NS_PER_S // 4
_GOODBYE_NS: Final = 2 * NS_PER_S
_JOIN_S: Final = 5.0
_JSON: Final = SERIALIZERS[0]
_HELLO: Final = [1, "realm1", {"roles": {"subscriber": {}, "publisher": {}}}]
_GOODBYE: Final = 6
_EVENT_DELAY_MS: Final = 20


class SimWampClient:
    """A client and its connection, which is the frame sink of the session."""

    def __init__(self, server: "SimWampServer", topics: Sequence[UUri]) -> None:
        self.events = 0
        self.closed = False
        self._server = server
        self._session = Session(server.realms, _JSON, self, server.monotonic_ns())
        self._send(_HELLO)
        for number, topic in enumerate(topics, 1):
            self._send([32, number, {}, topic_of(topic)])

    def _send(self, message: Sequence[object]) -> None:
        self._session.on_message(_JSON.encode(list(message)))

    def send_reply(self, message: Sequence[object]) -> None:
        if message[0] == _GOODBYE:
            self._server.run_after_ms(self._server.rng.randrange(_EVENT_DELAY_MS), self._echo)

    def _echo(self) -> None:
        if not self.closed:
            self._send([_GOODBYE, {}, "wamp.close.goodbye_and_out"])

    def send_event(self, event: object) -> None:
        self.events += 1

    write_event = send_event

    def report_dropped(self, events: int) -> None:
        """The simulation counts delivered events only."""

    def close(self, code: int, reason: str) -> None:
        self.closed = True
        self._server.clients.pop(self, None)

    def lose_connection(self) -> None:
        """The client is gone."""
        if not self.closed:
            self.closed = True
            self._session.on_connection_lost()
            self._server.clients.pop(self, None)

    def shut_down(self) -> None:
        """The server stops."""
        self._session.send_goodbye("wamp.close.system_shutdown")


class SimWampServer:
    """The interface of `WampServer`."""

    def __init__(
        self,
        scheduler: Scheduler,
        config: WampConfig,
        realms: Mapping[str, Realm],
        monotonic_ns: Callable[[], int],
        counts: Any,
        pages: Any = None,
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.realms = realms
        self.monotonic_ns = monotonic_ns
        self.clients: dict[SimWampClient, None] = {}
        self.unfinished_bytes = 0  # no message arrives in pieces
        self.rng = Random(scheduler.rng.getrandbits(64))
        self.urls: list[str] = []
        self.process: Process = scheduler.current.process
        self._scheduler = scheduler
        self._on_tick = tick
        self._calls = primitives.SimQueue()
        self._thread = primitives.SimThread(target=self._run, name="wamp")
        self._accepting = True
        self._is_closed = False

    # --- life ---------------------------------------------------------------------------------------------------------

    def open(self) -> None:
        self._thread.start()
        self._calls.put(self._tick)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()

    def _tick(self) -> None:
        self._on_tick(self.monotonic_ns())
        self._after(_TICK_NS, self._tick)

    def stop_accepting(self) -> None:
        self._accepting = False

    def close(self) -> None:
        if not self._thread.is_alive():
            self._is_closed = True
            return
        self.run_on_loop(self._shut_down)
        deadline_ns = self._scheduler.now_ns + _GOODBYE_NS
        while self.clients and self._scheduler.now_ns < deadline_ns:
            self._scheduler.sleep(NS_PER_MS)
        self.run_on_loop(self._abort)
        self._is_closed = True
        self._calls.put(None)
        self._thread.join(_JOIN_S)

    def _shut_down(self) -> None:
        for client in list(self.clients):
            client.shut_down()

    def _abort(self) -> None:
        for client in list(self.clients):
            client.lose_connection()

    # --- the loop -----------------------------------------------------------------------------------------------------

    def run_on_loop(self, function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> bool:
        if self._is_closed:
            return False
        self._calls.put(lambda: function(*args, **kwargs))
        return True

    def run_after(self, seconds: float, function: Callable[[], None]) -> None:
        self._after(round(seconds * NS_PER_S), function)

    def run_after_ms(self, ms: int, function: Callable[[], None]) -> None:
        self._after(ms * NS_PER_MS, function)

    def _after(self, ns: int, function: Callable[[], None]) -> None:
        self._scheduler.call_after(ns, lambda: self._calls.put_unlocked(function))

    # --- clients ------------------------------------------------------------------------------------------------------

    def connect(self, count: int, topics: Sequence[UUri]) -> None:
        """Let clients join and subscribe; from the story."""

        def join() -> None:
            if self._accepting:
                self.clients[SimWampClient(self, topics)] = None

        for _ in range(count):
            self._calls.put_unlocked(join)

    def disconnect(self, count: int) -> None:
        """Let clients vanish, one by one; from the story."""

        def leave() -> None:
            client = next(iter(self.clients), None)
            if client is not None:
                client.lose_connection()

        for number in range(count):
            self.run_after_ms(number, leave)

    def problems(self) -> list[str]:
        return []

    @property
    def connection_count(self) -> int:
        return len(self.clients)
