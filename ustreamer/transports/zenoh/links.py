# SPDX-License-Identifier: Apache-2.0
"""Whether anybody is there: the Zenoh nodes a session is connected to.

Zenoh takes a put and loses it in silence when no node is connected (measured: 50 of 50 in an outage of its router, no
exception). So a send asks here first, and answers UNAVAILABLE, which makes the lane keep the message.
"""

import logging
from collections.abc import Callable
from threading import Thread
from typing import Final

import zenoh
from zenoh.handlers import FifoChannel

from ustreamer.hookspecs import EndpointContext

log = logging.getLogger("ustreamer.zenoh")

_SETTLING_FIRST_NS: Final = 1_000_000_000  # the first link: a node's subscriptions come milliseconds after it
_SETTLING_NS: Final = 5_000_000_000  # after an outage: those who lost a router too try again every 4 s
_EVENTS: Final = 64  # one per node that comes or goes; read at once, so this many come only in a storm
_JOIN_S: Final = 5.0


class Links:
    """The nodes a session is connected to, kept up to date by a thread of its own."""

    def __init__(self, context: EndpointContext) -> None:
        self.up = False
        self.settled_ns = 0
        """Monotonic time until which subscribers may be on their way: a put that nobody matches yet had better wait."""
        self._context = context
        self._watchers: list[Callable[[bool], None]] = []
        self._reported: set[type[Exception]] = set()
        self._nodes: set[tuple[str, bool]] = set()
        self._listener: zenoh.TransportEventsListener[zenoh.Handler[zenoh.TransportEvent]] | None = None
        self._thread: Thread | None = None

    def tell(self, changed: Callable[[bool], None]) -> None:
        """Have `changed(up)` called when `watch` has found out how it is, and whenever a node comes or the last one goes."""
        self._watchers.append(changed)

    def watch(self, session: zenoh.Session) -> None:
        """Begin; nodes that are connected already count before this returns."""
        # The annotation is for the type checker only: the class cannot be subscripted at run time.
        channel: FifoChannel[zenoh.TransportEvent] = FifoChannel(_EVENTS)
        self._listener = session.info.declare_transport_events_listener(channel, history=True)
        events = self._listener.handler
        while (event := events.try_recv()) is not None:
            self._note(event)
        self._call()
        self._thread = Thread(
            target=self._run, args=(events,), name=f"zenoh {self._context.name} links", daemon=True
        )
        self._thread.start()

    def _run(self, events: "zenoh.Handler[zenoh.TransportEvent]") -> None:
        while True:
            try:
                event = events.recv()
            except zenoh.ZError:  # undeclared, or the session is closed
                self.up = False
                return
            if self._note(event):
                self._call()

    def _note(self, event: zenoh.TransportEvent) -> bool:
        """Count a node that came or went; whether that is to be told: somebody has come, or the last one has gone."""
        node = str(event.transport.zid), event.transport.is_multicast
        joined = event.kind == zenoh.SampleKind.PUT and node not in self._nodes
        if event.kind == zenoh.SampleKind.PUT:
            self._nodes.add(node)
        else:
            self._nodes.discard(node)
        if self.up is not bool(self._nodes):
            self._turn(up=not self.up)
            return True
        return joined

    def _turn(self, *, up: bool) -> None:
        if up:
            settling_ns = _SETTLING_NS if self.settled_ns else _SETTLING_FIRST_NS
            self.settled_ns = self._context.clock.monotonic_ns() + settling_ns
        self.up = up
        log.info("zenoh.link_up" if up else "zenoh.link_down", extra={"endpoint": self._context.name})

    def _call(self) -> None:
        for changed in self._watchers:
            try:
                changed(self.up)
            # Foreign code must end neither the thread that notices outages nor the opening: said once per kind.
            except Exception as error:
                if type(error) not in self._reported:
                    self._reported.add(type(error))
                    log.exception("zenoh.link_watcher_failed", extra={"endpoint": self._context.name})

    def __len__(self) -> int:
        return len(self._nodes)

    def close(self) -> None:
        """End the thread; nobody counts as connected from here on."""
        if self._listener is not None:
            self._listener.undeclare()  # type: ignore[no-untyped-call]
        if self._thread is not None:
            self._thread.join(_JOIN_S)
        self.up = False
