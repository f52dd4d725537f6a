# SPDX-License-Identifier: Apache-2.0
"""One connection, whatever its framing: an asyncio protocol with a session on top and an outbox below.

Everything here runs on the loop's thread. A session's end never comes from within `event`: it may be called while the
holders of a subscription are gone through.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import ClassVar, Final

import msgspec

from ustreamer_wamp import errors
from ustreamer_wamp.codec import Serializer
from ustreamer_wamp.connections.outbox import Outbox, OutboxLimits
from ustreamer_wamp.events import Event, Wire
from ustreamer_wamp.messages import Reply
from ustreamer_wamp.realm import Realm
from ustreamer_wamp.session import Session

log = logging.getLogger("ustreamer.wamp")

BUFFERED: Final = 65_536
"""Bytes that asyncio may hold for a socket before the outbox is told to wait."""


class Terms(msgspec.Struct, frozen=True):
    """What all connections of a server go by. Times in ns."""

    realms: Mapping[str, Realm]
    monotonic_ns: Callable[[], int]
    outbox: OutboxLimits
    max_message_bytes: int
    hello_ns: int
    ping_ns: int
    pong_ns: int
    closing_ns: int
    counts: Counter[str]


class Connection(asyncio.Protocol):
    """The base of both framings. `arrived` and `left` are called once: when the connection is made, and when it is gone."""

    framing: ClassVar[str]
    event: Callable[[Event], None]
    """The outbox's own, from `_begin` on. No method, which would cost a call, and a slower look-up, for each event."""

    def __init__(
        self,
        terms: Terms,
        loop: asyncio.AbstractEventLoop,
        arrived: Callable[["Connection"], None],
        left: Callable[["Connection"], None],
        *,
        private: bool,
    ) -> None:
        self.address = ""
        self.session: Session | None = None
        self.refused = ""
        """Why nobody is let in here; "" if somebody is."""
        self._terms = terms
        self._loop = loop
        self._arrived = arrived
        self._left = left
        self._private = private
        self._transport: asyncio.Transport | None = None
        self._outbox: Outbox | None = None
        self._paused = False
        self._reading = True
        self._heard_ns = terms.monotonic_ns()
        self._pinged = False
        self._closing: tuple[int, str] | None = None
        self._said_goodbye = False
        self._over_ns: int | None = self._heard_ns + terms.hello_ns

    # --- asyncio's side -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # of a stream server
        self._transport = transport
        transport.set_write_buffer_limits(high=BUFFERED)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = str(peer[0])
            self._private = self._private or is_loopback(self.address)
        self._terms.counts["connections"] += 1
        self._arrived(self)

    def data_received(self, data: bytes) -> None:
        self._heard_ns = self._terms.monotonic_ns()
        self._pinged = False
        self._take(data)
        if self._outbox is not None and self._outbox.is_behind and self._reading:
            # It asks and asks and does not read the answers: then nothing more is asked.
            self._reading = False
            self._transport_or_none("pause_reading")

    def eof_received(self) -> bool:
        self._ended()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._ended()
        if self._outbox is not None:
            self._outbox.clear()
        self._transport = None
        self._left(self)

    def pause_writing(self) -> None:
        self._paused = True
        if self._outbox is not None:
            self._outbox.pause()

    def resume_writing(self) -> None:
        self._paused = False
        if self._outbox is not None:
            self._outbox.resume()
            # Not from within a `write`, which is where this may come from.
            self._loop.call_soon(self._flush)

    # --- the session's side (`ustreamer_wamp.realm.Outlet`) -----------------------------------------------------------

    def reply(self, message: Reply) -> None:
        assert self._outbox is not None  # made before the session
        self._outbox.reply(message)

    def close(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = (code, reason)
            self._over_ns = self._terms.monotonic_ns() + self._terms.closing_ns
            self._loop.call_soon(self._flush)

    # --- what framings use --------------------------------------------------------------------------------------------

    def _begin(self, wire: Wire, serializer: Serializer) -> None:
        """The framing is agreed upon: let the session begin."""
        outbox = Outbox(wire, self._terms.outbox, self._write, self._wake, self._terms.counts)
        if self._paused:
            outbox.pause()
        self._outbox = outbox
        self.event = outbox.event
        self._over_ns = None
        self.session = Session(
            self._terms.realms,
            serializer,
            self,
            self._terms.monotonic_ns(),
            peer=self.address,
            private=self._private,
        )
        self._terms.counts["sessions"] += 1

    def _take(self, data: bytes) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it reads")

    def _ping(self) -> None:
        raise TypeError(f"{type(self).__name__} does not say how it pings")

    def _say_goodbye(self, code: int, reason: str) -> None:
        """Close the connection in the words of its framing; all else is out."""
        raise TypeError(f"{type(self).__name__} does not say how it closes")

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _hang_up(self) -> None:
        """Close the connection when what was written is out."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close it at once, whatever is still to be said."""
        if self._transport is not None:
            self._transport.abort()

    # --- the loop's side ----------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        outbox = self._outbox
        if outbox is None or self._transport is None:
            return
        outbox.flush()
        if outbox.overrun and self.session is not None and self._closing is None:
            self._terms.counts["sessions_too_slow"] += 1
            self.session.kill(errors.KILLED, "events came faster than they were read")
        if not self._reading and not outbox.is_behind:
            self._reading = True
            self._transport_or_none("resume_reading")
        if self._closing is not None and outbox.is_empty and not self._said_goodbye:
            self._said_goodbye = True
            self._say_goodbye(*self._closing)

    def _transport_or_none(self, method: str) -> None:
        if self._transport is not None and not self._transport.is_closing():
            getattr(self._transport, method)()

    def _ended(self) -> None:
        if self.session is not None:
            self.session.lost()

    def tick(self, now_ns: int) -> None:
        """Look at the clock: deadlines of the session, of the close, and whether anybody is there."""
        if self._over_ns is not None and now_ns >= self._over_ns:
            self._terms.counts["deadlines"] += 1
            self.abort()
            return
        if self.session is None:
            return
        self.session.tick(now_ns)
        silent_ns = now_ns - self._heard_ns
        if silent_ns >= self._terms.ping_ns + self._terms.pong_ns:
            self._terms.counts["silent"] += 1
            self.abort()
        elif silent_ns >= self._terms.ping_ns and not self._pinged and self._closing is None:
            self._pinged = True
            self._ping()

    def leave(self, reason: str) -> None:
        """The router stops."""
        if self.session is None:
            self.abort()
        else:
            self.session.leave(reason)

    def __repr__(self) -> str:
        state = "no session" if self.session is None else self.session.state.value
        return f"<{type(self).__name__} {self.address}: {state}>"


def is_loopback(address: str) -> bool:
    """Whether a peer at `address` is on this machine."""
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
